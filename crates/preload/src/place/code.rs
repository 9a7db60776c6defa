//! Whose code an address is: for rules about call sites.

use super::plan::plan;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Name(UnsafeCell<[u8; 4096]>);
// SAFETY: written by `start` alone, while the process has one thread.
unsafe impl Sync for Name {}
/// Path of the program, of which the dynamic linker does not tell the name.
#[unsafe(link_section = ".bss.large")]
static PROGRAM: Name = Name(UnsafeCell::new([0; 4096]));
static PROGRAM_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Asks for the program's name.
pub fn start() {
    // SAFETY: as above; at most the bytes of the array are written.
    let bytes = unsafe {
        let text = &mut *PROGRAM.0.get();
        let (link, text) = (c"/proc/self/exe".as_ptr(), text.as_mut_ptr());
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, link, text, 4096)
    };
    PROGRAM_BYTES.store(bytes.max(0) as usize, Ordering::Relaxed);
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|letter| *letter == b'/').next().unwrap_or(path)
}

/// File name of a loaded object.
fn name(info: &libc::dl_phdr_info) -> &[u8] {
    let path = match info.dlpi_name.is_null() {
        true => &[],
        // SAFETY: the dynamic linker's text ends in a zero.
        false => unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes(),
    };
    if !path.is_empty() {
        return file_name(path);
    }
    // SAFETY: written by `start` alone, before any rule is followed.
    let program = unsafe { &*PROGRAM.0.get() };
    file_name(
        program
            .get(..PROGRAM_BYTES.load(Ordering::Relaxed))
            .unwrap_or(&[]),
    )
}

struct Asked<'a> {
    frames: &'a [usize],
    rules: u16,
}

/// Site rules that mean any of these return addresses, a bit each.
pub fn rules(frames: &[usize]) -> u16 {
    let mut asked = Asked { frames, rules: 0 };
    // SAFETY: the callback reads what the dynamic linker describes, and does not unwind.
    unsafe { libc::dl_iterate_phdr(Some(ask), (&raw mut asked).cast()) };
    asked.rules
}

unsafe extern "C" fn ask(info: *mut libc::dl_phdr_info, _: usize, asked: *mut c_void) -> c_int {
    // SAFETY: `rules` passes its own; the description is valid during this call.
    let (asked, info) = unsafe { (&mut *asked.cast::<Asked>(), &*info) };
    let name = name(info);
    for (number, rule) in plan().rules().iter().enumerate() {
        if rule.module() != Some(name) {
            continue;
        }
        let is_meant = asked.frames.iter().any(|frame| {
            // The call is before the address to which it returns.
            let offset = (*frame as u64).wrapping_sub(1).wrapping_sub(info.dlpi_addr);
            (rule.code.0..rule.code.1).contains(&offset)
        });
        asked.rules |= u16::from(is_meant) << number;
    }
    0
}

struct Around {
    address: usize,
    found: Option<(usize, usize)>,
}

/// Where the object lies that has this function, unless it is the C library.
pub fn allocator(function: usize) -> Option<(usize, usize)> {
    let mut around = Around {
        address: function,
        found: None,
    };
    // SAFETY: as in `rules`.
    unsafe { libc::dl_iterate_phdr(Some(look_around), (&raw mut around).cast()) };
    around.found
}

unsafe extern "C" fn look_around(
    info: *mut libc::dl_phdr_info,
    _: usize,
    around: *mut c_void,
) -> c_int {
    // SAFETY: as in `ask`.
    let (around, info) = unsafe { (&mut *around.cast::<Around>(), &*info) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the table of program headers has this many.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let (mut start, mut end) = (usize::MAX, 0);
    for header in headers
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD)
    {
        let first = info.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
        start = start.min(first);
        end = end.max(first.wrapping_add(header.p_memsz as usize));
    }
    if !(start..end).contains(&around.address) {
        return 0;
    }
    let name = name(info);
    let is_libc =
        name.starts_with(b"libc.so") || name.starts_with(b"libc-") || name.starts_with(b"ld-musl");
    around.found = (!is_libc).then_some((start, end));
    1
}
