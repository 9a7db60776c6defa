//! Where the static data of the code lies that runs while memory is away.

use std::ops::Range;

const PAGE: u64 = 4096;

/// What is looked for, and what was found.
struct Search {
    /// Addresses in the objects meant.
    inside: [u64; 3],
    found: Vec<Range<u64>>,
}

/// Writable segments, in whole pages, of the objects that hold this crate's code, the C library's and
/// the loader's: a call of the library's looks at variables there (`__libc_single_threaded`).
#[must_use]
pub fn own_statics() -> Vec<Range<u64>> {
    let here: extern "C" fn(*mut libc::dl_phdr_info, usize, *mut libc::c_void) -> i32 = look;
    let read: unsafe extern "C" fn(i32, *mut libc::c_void, usize) -> isize = libc::read;
    // SAFETY: an integer; 0 where there is no loader.
    let loader = unsafe { libc::getauxval(libc::AT_BASE) };
    let mut search = Search {
        inside: [here as usize as u64, read as usize as u64, loader],
        found: Vec::new(),
    };
    // SAFETY: the function gets what it expects, and does not outlive the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

extern "C" fn look(object: *mut libc::dl_phdr_info, _: usize, search: *mut libc::c_void) -> i32 {
    // SAFETY: the C library passes an object with so many segments, and what it was given.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
    if object.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: as above.
    let segments =
        unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let loaded = || segments.iter().filter(|one| one.p_type == libc::PT_LOAD);
    let range = |one: &libc::Elf64_Phdr| {
        let start = object.dlpi_addr + one.p_vaddr;
        start & !(PAGE - 1)..(start + one.p_memsz).next_multiple_of(PAGE)
    };
    let is_meant = loaded().any(|one| search.inside.iter().any(|at| range(one).contains(at)));
    if is_meant {
        let writable = loaded().filter(|one| one.p_flags & libc::PF_W != 0);
        search.found.extend(writable.map(range));
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn variables_of_this_crate_and_of_the_c_library_are_inside() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        unsafe extern "C" {
            static mut environ: *const *const libc::c_char;
        }
        let found = own_statics();
        let of_library = &raw const environ as u64;
        for address in [std::ptr::from_ref(&OWN) as u64, of_library] {
            assert!(
                found.iter().any(|range| range.contains(&address)),
                "{address:x} in {found:x?}"
            );
        }
    }
}
