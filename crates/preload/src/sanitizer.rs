//! Programs that a sanitizer checks (AddressSanitizer and its relatives): its allocator knows every
//! block, and what lies around it. The shim stands aside there: it hands everything on, and says so.
//!
//! AddressSanitizer also refuses to start where a library comes before it, as a preloaded one does,
//! unless an option says otherwise. Its hook for that is this library's for programs that have none
//! of their own; for those hither says it in the environment.

use crate::record;
use std::ffi::{CStr, c_char};

/// What AddressSanitizer asks for its options.
///
/// # Safety
/// None is needed.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn __asan_default_options() -> *const c_char {
    const OPTIONS: &CStr = c"verify_asan_link_order=0";
    OPTIONS.as_ptr()
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".weak __asan_init",
    ".weak __tsan_init",
    ".weak __msan_init",
    ".weak __lsan_init",
);

/// Is a sanitizer linked to this program? Without a look-up, which would allocate.
#[cfg(target_arch = "x86_64")]
pub fn is_there() -> bool {
    let mut found: usize;
    // SAFETY: reads what the dynamic linker has entered for weak symbols: 0 where there is none.
    unsafe {
        std::arch::asm!(
            "mov {0}, qword ptr [rip + __asan_init@GOTPCREL]",
            "or {0}, qword ptr [rip + __tsan_init@GOTPCREL]",
            "or {0}, qword ptr [rip + __msan_init@GOTPCREL]",
            "or {0}, qword ptr [rip + __lsan_init@GOTPCREL]",
            out(reg) found,
            options(nostack, readonly, pure),
        );
    }
    found != 0
}

/// Elsewhere nobody has tried.
#[cfg(not(target_arch = "x86_64"))]
pub fn is_there() -> bool {
    false
}

/// Leaves an empty file `PID.aside` in the folder of the logs.
pub fn leave_word(folder: &[u8]) {
    let mut path = [0u8; 4096];
    // SAFETY: no arguments, no effect.
    let pid = unsafe { libc::syscall(libc::SYS_getpid) } as u32;
    let mut digits = [0u8; 10];
    let mut first = digits.len();
    let mut number = pid;
    while let Some(digit) = first.checked_sub(1).and_then(|at| digits.get_mut(at)) {
        *digit = b'0' + (number % 10) as u8;
        first -= 1;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    let mut at = 0;
    for part in [folder, b"/", digits.get(first..).unwrap_or(&[]), b".aside"] {
        let Some(place) = path.get_mut(at..at + part.len()) else {
            return;
        };
        place.copy_from_slice(part);
        at += part.len();
    }
    if path.last() != Some(&0) {
        return;
    }
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let _errno = record::Errno::keep();
    // SAFETY: the path ends in a zero; the descriptor is closed at once.
    unsafe {
        let file = libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            0o600,
        );
        if file >= 0 {
            libc::syscall(libc::SYS_close, file);
        }
    }
}
