//! Loaded objects: where they lie, which build they are, and their paths, for the log.
//!
//! They are listed when a call stack is written that was not written before, and only where
//! something was loaded or unloaded since.

use crate::hash::{finish, mix, top};
use crate::record;
use crate::state::STATE;
use hither_core::sites::{SLOT_TEXT, kind};
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const BITS: u32 = 11;
const PROBES: usize = 32;
/// Longest build id: SHA-1 has 20 bytes.
const BUILD_ID_BYTES: usize = 64;

/// Objects that are in the log, by a hash of what is known of them.
pub struct Known {
    hashes: [AtomicU64; 1 << BITS],
    /// Loads and unloads so far, when they were last listed.
    changes: AtomicU64,
}

/// Where this library lies: its frames are nobody's site.
static OWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Is this an address of this library?
pub fn is_own(address: usize) -> bool {
    let [start, end] = &OWN;
    (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&address)
}

/// Notes where this library lies.
pub fn find_own() {
    // SAFETY: the callback reads what the dynamic linker describes, and does not unwind.
    unsafe { libc::dl_iterate_phdr(Some(note_own), std::ptr::null_mut()) };
}

unsafe extern "C" fn note_own(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker's own description, valid during this call.
    let module = unsafe { Module::new(&*info) };
    let here = find_own as fn() as usize as u64;
    if !(module.start..module.end).contains(&here) {
        return 0;
    }
    let [start, end] = &OWN;
    start.store(module.start as usize, Ordering::Relaxed);
    end.store(module.end as usize, Ordering::Relaxed);
    1
}

/// An object as the dynamic linker describes it.
struct Module<'a> {
    /// What is added to the file's own addresses.
    bias: u64,
    start: u64,
    end: u64,
    build_id: &'a [u8],
    name: &'a [u8],
}

impl<'a> Module<'a> {
    /// # Safety
    /// `info` describes an object that stays loaded as long as the answer is used.
    unsafe fn new(info: &'a libc::dl_phdr_info) -> Self {
        let mut module = Self {
            bias: info.dlpi_addr,
            start: u64::MAX,
            end: 0,
            build_id: &[],
            name: &[],
        };
        if !info.dlpi_name.is_null() {
            // SAFETY: the dynamic linker's text ends in a zero.
            module.name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
        }
        if info.dlpi_phdr.is_null() {
            return module;
        }
        // SAFETY: the table of program headers has this many.
        let headers =
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        for header in headers {
            let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
            match header.p_type {
                libc::PT_LOAD => {
                    module.start = module.start.min(start);
                    module.end = module.end.max(start.wrapping_add(header.p_memsz));
                }
                libc::PT_NOTE if module.build_id.is_empty() => {
                    // SAFETY: a note segment is part of a loaded one, and readable.
                    let notes = unsafe {
                        std::slice::from_raw_parts(start as *const u8, header.p_memsz as usize)
                    };
                    module.build_id = build_id(notes).unwrap_or(&[]);
                }
                _ => {}
            }
        }
        module
    }
}

/// The build id among the notes of an object.
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const NT_GNU_BUILD_ID: u32 = 3;
    let number = |bytes: &[u8], at: usize| -> Option<u32> {
        let bytes = bytes.get(at..at + 4)?;
        Some(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    while notes.len() >= 12 {
        let name_bytes = number(notes, 0)? as usize;
        let text_bytes = number(notes, 4)? as usize;
        let text_start = 12usize.checked_add(name_bytes.checked_next_multiple_of(4)?)?;
        let text_end = text_start.checked_add(text_bytes)?;
        if number(notes, 8)? == NT_GNU_BUILD_ID && notes.get(12..12 + name_bytes)? == b"GNU\0" {
            return notes.get(text_start..text_end);
        }
        notes = notes.get(text_end.checked_next_multiple_of(4)?..)?;
    }
    None
}

impl Known {
    /// None.
    pub const fn new() -> Self {
        Self {
            hashes: [const { AtomicU64::new(0) }; 1 << BITS],
            changes: AtomicU64::new(0),
        }
    }

    /// Writes the objects into the log that are not there yet. The log must be open.
    pub fn write_new(&self) {
        let mut listing = Listing {
            known: self,
            changes: 0,
        };
        // SAFETY: the callback reads what the dynamic linker describes, and does not unwind.
        unsafe { libc::dl_iterate_phdr(Some(write_one), (&raw mut listing).cast()) };
        self.changes.store(listing.changes, Ordering::Relaxed);
    }

    /// The number of an object, where it is new.
    fn number_if_new(&self, hash: u64) -> Option<u32> {
        for probe in 0..PROBES {
            let index = (top(hash, BITS) + probe) % (1 << BITS);
            let place = &self.hashes[index];
            let mut found = place.load(Ordering::Relaxed);
            if found == 0 {
                match place.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return Some(index as u32 + 1),
                    Err(now) => found = now,
                }
            }
            if found == hash {
                return None;
            }
        }
        STATE.log.dropped_other();
        None
    }
}

/// One listing of all objects.
struct Listing<'a> {
    known: &'a Known,
    changes: u64,
}

unsafe extern "C" fn write_one(
    info: *mut libc::dl_phdr_info,
    _: usize,
    listing: *mut c_void,
) -> c_int {
    // SAFETY: `write_new` passes its own; the description is valid during this call.
    let (listing, info) = unsafe { (&mut *listing.cast::<Listing>(), &*info) };
    // The same in every description of one listing; never 0, as the program itself was loaded.
    listing.changes = info.dlpi_adds.wrapping_add(info.dlpi_subs);
    if listing.known.changes.load(Ordering::Relaxed) == listing.changes {
        return 1;
    }
    // SAFETY: as above.
    let module = unsafe { Module::new(info) };
    write(listing.known, &module);
    0
}

fn write(known: &Known, module: &Module) {
    let words = module.build_id.iter().chain(module.name);
    let hash = words.fold(mix(module.bias, module.end), |hash, byte| {
        mix(hash, u64::from(*byte))
    });
    let Some(number) = known.number_if_new(finish(hash)) else {
        return;
    };
    let mut path = Path::new();
    path.fill(module.name);
    let build_id = module
        .build_id
        .get(..BUILD_ID_BYTES)
        .unwrap_or(module.build_id);
    let time = record::now_ns();
    let lengths = build_id.len() as u64 | (path.length as u64) << 16;
    let first = record::word(kind::MODULE, 0, 0, number);
    STATE.log.append_other(
        first,
        time,
        &[module.bias, module.start, module.end, lengths, 0, 0],
    );
    let mut bytes = build_id.iter().chain(path.bytes()).copied();
    let parts = (build_id.len() + path.length).div_ceil(SLOT_TEXT);
    for part in 0..parts {
        let mut body = [0u64; SLOT_TEXT / 8];
        for word in &mut body {
            let mut text = [0; 8];
            for place in &mut text {
                *place = bytes.next().unwrap_or(0);
            }
            *word = u64::from_le_bytes(text);
        }
        let first = record::word(kind::MODULE, part as u8 + 1, 0, number);
        STATE.log.append_other(first, time, &body);
    }
}

/// The absolute path of an object.
struct Path {
    text: [u8; 4096],
    length: usize,
}

impl Path {
    fn new() -> Self {
        Self {
            text: [0; 4096],
            length: 0,
        }
    }

    fn bytes(&self) -> &[u8] {
        self.text.get(..self.length).unwrap_or(&[])
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if let Some(place) = self.text.get_mut(self.length..end) {
            place.copy_from_slice(bytes);
            self.length = end;
        }
    }

    /// From the dynamic linker's name: empty for the program itself, relative to the folder that
    /// the process is in for what was loaded so.
    fn fill(&mut self, name: &[u8]) {
        let own = c"/proc/self/exe";
        match name.first() {
            Some(b'/') => {}
            None => {
                // SAFETY: at most the bytes of `text` are written.
                let length = unsafe {
                    let (text, bytes) = (self.text.as_mut_ptr(), self.text.len());
                    libc::syscall(
                        libc::SYS_readlinkat,
                        libc::AT_FDCWD,
                        own.as_ptr(),
                        text,
                        bytes,
                    )
                };
                self.length = length.max(0) as usize;
            }
            // The kernel's own object has a name without a file.
            Some(_) if !name.iter().any(|letter| matches!(letter, b'/')) => {}
            Some(_) => {
                // SAFETY: at most the bytes of `text` are written. The call counts the final zero.
                let length = unsafe {
                    libc::syscall(libc::SYS_getcwd, self.text.as_mut_ptr(), self.text.len())
                };
                self.length = (length - 1).max(0) as usize;
                self.push(b"/");
            }
        }
        self.push(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_is_found_among_notes_and_bad_notes_are_left() {
        let note = |kind: u32, name: &[u8], text: &[u8]| {
            let mut bytes = Vec::new();
            for number in [name.len() as u32, text.len() as u32, kind] {
                bytes.extend(number.to_ne_bytes());
            }
            for part in [name, text] {
                bytes.extend(part);
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            bytes
        };
        let mut notes = note(1, b"GNU\0", &[9; 16]);
        notes.extend(note(3, b"Other\0", b"other"));
        notes.extend(note(3, b"GNU\0", b"abcde"));
        assert_eq!(build_id(&notes), Some(&b"abcde"[..]));
        for cut in 0..notes.len() - 8 {
            assert_eq!(build_id(&notes[..cut]), None, "{cut}");
        }
        assert_eq!(build_id(&[0xff; 40]), None);
    }

    #[test]
    fn names_become_absolute() {
        let fill = |name: &[u8]| {
            let mut path = Path::new();
            path.fill(name);
            String::from_utf8(path.bytes().to_vec()).unwrap()
        };
        assert_eq!(fill(b"/lib/a.so"), "/lib/a.so");
        assert_eq!(fill(b"linux-vdso.so.1"), "linux-vdso.so.1");
        let here = std::env::current_dir().unwrap();
        assert_eq!(fill(b"./a.so"), format!("{}/./a.so", here.display()));
        let own = std::env::current_exe().unwrap();
        assert_eq!(fill(b""), own.display().to_string());
        assert_eq!(fill(&[b'/'; 5000]), "");
    }

    #[test]
    fn this_library_is_found() {
        find_own();
        assert!(is_own(find_own as fn() as usize));
        assert!(!is_own((&raw const OWN) as usize ^ (1 << 46)));
    }
}
