//! An array of values: the same with a type.

use crate::array::{Array, Config};
use crate::error::Error;
use crate::places::Places;
use crate::reader::{Guard, Reader};
use crate::writer::ArrayWriter;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Values that any bytes are, and that have no bytes without a value.
///
/// # Safety
/// Every pattern of bits is a value, there is no padding, and a value refers to nothing.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($type:ty),*) => { $(
        // SAFETY: numbers without padding, of which every pattern of bits is one.
        unsafe impl Plain for $type {}
    )* };
}
plain!(
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64
);
// SAFETY: as its elements, which follow each other without gaps.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// One logical array of `T` with a copy on each node. What is said of [`Array`], which it derefs to, holds.
///
/// ```
/// use hither_replica::{Config, Replicated};
/// use std::time::Duration;
///
/// let table = Replicated::<u64>::of(&[1, 2, 3], Config::default())?;
/// table.refresh(Duration::from_secs(1))?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         let mut reader = table.reader()?;
///         let guard = reader.read()?;
///         assert_eq!(guard.get(1), Some(2));
///         assert_eq!(guard.whole().len(), 3);
///         Ok::<(), hither_replica::Error>(())
///     });
/// });
/// let mut writer = table.write()?;
/// writer.write(1, &[20, 30])?;
/// assert_eq!(writer.publish()?, 2);
/// assert_eq!(table.reader()?.read()?.get(2), Some(30));
/// # Ok::<(), hither_replica::Error>(())
/// ```
#[derive(Debug)]
pub struct Replicated<T: Plain> {
    array: Array,
    len: usize,
    kind: PhantomData<T>,
}

impl<T: Plain> Deref for Replicated<T> {
    type Target = Array;

    fn deref(&self) -> &Array {
        &self.array
    }
}

impl<T: Plain> Replicated<T> {
    /// Zeros at the nodes of this machine.
    ///
    /// # Errors
    /// As [`Array::new`]; the size of `T` is no power of two up to 64 KiB.
    pub fn new(len: usize, config: Config) -> Result<Self, Error> {
        Self::filled(len, Places::here()?, config, |_| {})
    }

    /// A copy of values at the nodes of this machine.
    ///
    /// # Errors
    /// As [`Replicated::new`].
    pub fn of(values: &[T], config: Config) -> Result<Self, Error> {
        Self::filled(values.len(), Places::here()?, config, |all| {
            all.copy_from_slice(values);
        })
    }

    /// At places of the caller's choice; `fill` writes the first epoch over zeros.
    ///
    /// # Errors
    /// As [`Replicated::new`].
    pub fn filled(
        len: usize,
        places: Places,
        config: Config,
        fill: impl FnOnce(&mut [T]),
    ) -> Result<Self, Error> {
        let size = size_of::<T>();
        if !size.is_power_of_two() || size > 64 << 10 {
            return Err(Error::Invalid(format!(
                "values of {size} bytes: take a type whose size is a power of two up to 64 KiB"
            )));
        }
        let bytes = len.checked_mul(size).ok_or_else(|| {
            Error::Invalid(format!(
                "{len} values of {size} bytes are more than an address space has"
            ))
        })?;
        let array = Array::filled(bytes, places, config, |bytes| fill(values_mut(bytes)))?;
        Ok(Self {
            array,
            len,
            kind: PhantomData,
        })
    }

    /// How many values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// As [`Array::reader`].
    ///
    /// # Errors
    /// The same.
    pub fn reader(&self) -> Result<TypedReader<T>, Error> {
        Ok(TypedReader(self.array.reader()?, PhantomData))
    }

    /// As [`Array::reader_at`].
    ///
    /// # Errors
    /// The same.
    pub fn reader_at(&self, place: usize) -> Result<TypedReader<T>, Error> {
        Ok(TypedReader(self.array.reader_at(place)?, PhantomData))
    }

    /// As [`Array::write`].
    ///
    /// # Errors
    /// The same.
    pub fn write(&self) -> Result<TypedWriter<T>, Error> {
        Ok(TypedWriter(self.array.write()?, PhantomData))
    }

    /// As [`Array::write_within`].
    ///
    /// # Errors
    /// The same.
    pub fn write_within(&self, limit: Duration) -> Result<TypedWriter<T>, Error> {
        Ok(TypedWriter(self.array.write_within(limit)?, PhantomData))
    }
}

/// As [`Reader`].
#[derive(Debug)]
pub struct TypedReader<T: Plain>(Reader, PhantomData<T>);

impl<T: Plain> TypedReader<T> {
    /// As [`Reader::read`].
    ///
    /// # Errors
    /// The same.
    #[inline]
    pub fn read(&mut self) -> Result<TypedGuard<'_, T>, Error> {
        let guard = self.0.read()?;
        let (table, size) = (guard.table(), size_of::<T>());
        let shift = guard.chunk_bytes().trailing_zeros() - size.trailing_zeros();
        Ok(TypedGuard {
            len: guard.len() / size,
            guard,
            table,
            shift,
            kind: PhantomData,
        })
    }

    /// As [`Reader::follow`].
    pub fn follow(&mut self) {
        self.0.follow();
    }

    /// Its place.
    #[must_use]
    pub fn place(&self) -> usize {
        self.0.place()
    }
}

/// As [`Guard`], which it derefs to for all but bytes.
#[derive(Debug)]
pub struct TypedGuard<'a, T: Plain> {
    guard: Guard<'a>,
    table: &'a [AtomicUsize],
    len: usize,
    shift: u32,
    kind: PhantomData<T>,
}

impl<T: Plain> TypedGuard<'_, T> {
    /// One value: one load more than of a plain array. Not counted; `None` behind the end.
    #[must_use]
    #[inline]
    pub fn at(&self, index: usize) -> Option<&T> {
        if index >= self.len {
            return None;
        }
        let address = self.table[index >> self.shift].load(Ordering::Acquire);
        let within = index & ((1 << self.shift) - 1);
        let value = std::ptr::with_exposed_provenance::<T>(address + within * size_of::<T>());
        // SAFETY: within the chunk that begins there, aligned as chunks are and as its size divides it, and
        // not written while the guard lives; any bytes are a value.
        Some(unsafe { &*value })
    }

    /// A copy of it.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<T> {
        self.at(index).copied()
    }

    /// As [`Guard::whole`].
    #[must_use]
    pub fn whole(&self) -> &[T] {
        values(self.guard.whole())
    }

    /// As [`Guard::pieces`], of values.
    pub fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = &[T]> {
        let size = size_of::<T>();
        let end = range.end.min(self.len);
        let bytes = range.start.min(end) * size..end * size;
        self.guard.pieces(bytes).map(values)
    }

    /// The epoch that it holds.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.guard.epoch()
    }

    /// As [`Guard::is_local`].
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.guard.is_local()
    }

    /// How many values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// As [`ArrayWriter`].
#[derive(Debug)]
pub struct TypedWriter<T: Plain>(ArrayWriter, PhantomData<T>);

impl<T: Plain> TypedWriter<T> {
    /// As [`ArrayWriter::epoch`].
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    /// Writes values from an index on.
    ///
    /// # Errors
    /// They end behind the array.
    pub fn write(&mut self, index: usize, all: &[T]) -> Result<(), Error> {
        let offset = index.checked_mul(size_of::<T>());
        let offset = offset.ok_or_else(|| {
            Error::Invalid(format!("there is no value {index}: write within the array"))
        })?;
        self.0.write(offset, bytes(all))
    }

    /// Values of a range, to change.
    ///
    /// # Errors
    /// It ends behind the array.
    pub fn values_mut(&mut self, range: Range<usize>) -> Result<&mut [T], Error> {
        let size = size_of::<T>();
        let range = range.start.saturating_mul(size)..range.end.saturating_mul(size);
        Ok(values_mut(self.0.bytes_mut(range)?))
    }

    /// As [`ArrayWriter::publish`].
    ///
    /// # Errors
    /// The same.
    pub fn publish(self) -> Result<u64, Error> {
        self.0.publish()
    }
}

/// Bytes of an array that begin at a value.
fn values<T: Plain>(bytes: &[u8]) -> &[T] {
    // SAFETY: any bytes are values.
    let (before, values, _) = unsafe { bytes.align_to::<T>() };
    debug_assert!(
        before.is_empty(),
        "chunks are aligned to more than any value"
    );
    values
}

fn values_mut<T: Plain>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: any bytes are values, and values are bytes without gaps.
    let (before, values, _) = unsafe { bytes.align_to_mut::<T>() };
    debug_assert!(
        before.is_empty(),
        "chunks are aligned to more than any value"
    );
    values
}

fn bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: values are bytes without gaps.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
