//! Cells of a column: from Rust's types to Parquet's and back.

use parquet::basic::{ConvertedType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType};
use parquet::data_type::{Int32Type, Int64Type};
use parquet::schema::types::{Type, TypePtr};
use std::sync::Arc;

/// A cell's type.
pub trait Cell: Sized {
    /// How Parquet stores it.
    type Stored: DataType;
    /// As the documentation of the format calls it.
    const NAME: &'static str;
    const PHYSICAL: Physical;
    const CONVERTED: ConvertedType;
    /// May there be none?
    const IS_OPTIONAL: bool = false;

    /// What is stored; `None` for no value, of optional cells alone.
    fn store(&self) -> Option<<Self::Stored as DataType>::T>;

    /// Back again; `None` where that is no such cell.
    fn load(stored: Option<&<Self::Stored as DataType>::T>) -> Option<Self>;

    /// Bytes that it takes beside the cell.
    fn text_bytes(_stored: &<Self::Stored as DataType>::T) -> u64 {
        0
    }

    /// The column's description in a file.
    fn field(name: &str) -> parquet::errors::Result<TypePtr> {
        let repetition = match Self::IS_OPTIONAL {
            true => Repetition::OPTIONAL,
            false => Repetition::REQUIRED,
        };
        let field = Type::primitive_type_builder(name, Self::PHYSICAL)
            .with_repetition(repetition)
            .with_converted_type(Self::CONVERTED)
            .build()?;
        Ok(Arc::new(field))
    }
}

macro_rules! cell {
    ($type:ty, $stored:ty, $physical:ident, $converted:ident, $store:expr, $load:expr $(, $text:expr)?) => {
        impl Cell for $type {
            type Stored = $stored;
            const NAME: &'static str = stringify!($type);
            const PHYSICAL: Physical = Physical::$physical;
            const CONVERTED: ConvertedType = ConvertedType::$converted;

            fn store(&self) -> Option<<$stored as DataType>::T> {
                Some($store(self))
            }

            fn load(stored: Option<&<$stored as DataType>::T>) -> Option<Self> {
                stored.and_then($load)
            }

            $(fn text_bytes(stored: &<$stored as DataType>::T) -> u64 {
                $text(stored)
            })?
        }
    };
}

// Parquet's integers are signed; unsigned ones are the same bits with a mark.
cell!(i32, Int32Type, INT32, NONE, |v: &i32| *v, |s| Some(*s));
cell!(
    u32,
    Int32Type,
    INT32,
    UINT_32,
    |v: &u32| v.cast_signed(),
    |s| Some(s.cast_unsigned())
);
cell!(
    u64,
    Int64Type,
    INT64,
    UINT_64,
    |v: &u64| v.cast_signed(),
    |s| Some(s.cast_unsigned())
);
cell!(f64, DoubleType, DOUBLE, NONE, |v: &f64| *v, |s| Some(*s));
cell!(bool, BoolType, BOOLEAN, NONE, |v: &bool| *v, |s| Some(*s));
cell!(
    String,
    ByteArrayType,
    BYTE_ARRAY,
    UTF8,
    |v: &String| ByteArray::from(v.as_str()),
    |s: &ByteArray| Some(String::from_utf8_lossy(s.data()).into_owned()),
    |s: &ByteArray| s.len() as u64
);

impl<C: Cell> Cell for Option<C> {
    type Stored = C::Stored;
    const NAME: &'static str = C::NAME;
    const PHYSICAL: Physical = C::PHYSICAL;
    const CONVERTED: ConvertedType = C::CONVERTED;
    const IS_OPTIONAL: bool = true;

    fn store(&self) -> Option<<C::Stored as DataType>::T> {
        self.as_ref().and_then(C::store)
    }

    fn load(stored: Option<&<C::Stored as DataType>::T>) -> Option<Self> {
        Some(stored.and_then(|stored| C::load(Some(stored))))
    }

    fn text_bytes(stored: &<Self::Stored as DataType>::T) -> u64 {
        C::text_bytes(stored)
    }
}
