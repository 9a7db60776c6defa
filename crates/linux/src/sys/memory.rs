//! Moving and scanning pages: `move_pages(2)` and the `PAGEMAP_SCAN` request.

use super::check;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Move pages that only this process maps (`linux/mempolicy.h`).
const MPOL_MF_MOVE: libc::c_int = 1 << 1;
/// Move pages that other processes map as well: for who may change any process (CAP_SYS_NICE).
const MPOL_MF_MOVE_ALL: libc::c_int = 1 << 2;
/// `_IOWR('f', 16, struct pm_scan_arg)` (`linux/fs.h`).
const PAGEMAP_SCAN: libc::c_ulong = 0xC060_6610;

/// Category: backed by a file or shared.
pub const PAGE_IS_FILE: u64 = 1 << 2;
/// Category: in memory.
pub const PAGE_IS_PRESENT: u64 = 1 << 3;
/// Category: the page of zeros that all share.
pub const PAGE_IS_ZERO: u64 = 1 << 5;
/// Category: part of a huge page mapped as one.
pub const PAGE_IS_HUGE: u64 = 1 << 6;
/// Category: written since the process's soft-dirty bits were cleared, or of a mapping made since.
pub const PAGE_IS_SOFT_DIRTY: u64 = 1 << 7;

/// Moves pages of a process: `pages` are addresses, `nodes` the target of each. `status` gets a
/// node or a negative error number per page, and is left alone where the kernel gave up.
/// Returns the number of pages that the kernel gave up on (0: every status is valid).
///
/// Source: `move_pages(2)`. The slices must have one length.
pub fn move_pages(pid: i32, pages: &[u64], nodes: &[i32], status: &mut [i32]) -> io::Result<u64> {
    move_by(pid, pages, nodes, status, MPOL_MF_MOVE)
}

/// The same, of pages that several processes map too: each of them is moved once for all.
pub fn move_shared_pages(
    pid: i32,
    pages: &[u64],
    nodes: &[i32],
    status: &mut [i32],
) -> io::Result<u64> {
    move_by(pid, pages, nodes, status, MPOL_MF_MOVE_ALL)
}

/// May this process ask [`move_shared_pages`] to move anything?
#[must_use]
pub fn may_move_shared_pages() -> bool {
    move_shared_pages(0, &[], &[], &mut []).is_ok()
}

fn move_by(
    pid: i32,
    pages: &[u64],
    nodes: &[i32],
    status: &mut [i32],
    flag: libc::c_int,
) -> io::Result<u64> {
    assert!(pages.len() == nodes.len() && pages.len() == status.len());
    // SAFETY: the three arrays have `pages.len()` entries of the sizes that the call takes
    // (pointer, int, int) and outlive it; addresses in `pages` are only looked up in the other
    // process's page tables.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            pages.len(),
            pages.as_ptr(),
            nodes.as_ptr(),
            status.as_mut_ptr(),
            flag,
        )
    };
    check(result).map(|given_up| given_up as u64)
}

/// Where pages of a process are: `status` gets a node or a negative error number per page.
pub fn query_pages(pid: i32, pages: &[u64], status: &mut [i32]) -> io::Result<()> {
    assert!(pages.len() == status.len());
    // SAFETY: as in `move_by`; without target nodes the call only looks up.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            pages.len(),
            pages.as_ptr(),
            std::ptr::null::<i32>(),
            status.as_mut_ptr(),
            0,
        )
    };
    check(result).map(drop)
}

/// A run of pages with like categories, as `PAGEMAP_SCAN` reports it (`struct page_region`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRegion {
    /// First address.
    pub start: u64,
    /// End address (exclusive).
    pub end: u64,
    /// Categories asked for that it has.
    pub categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<ScanArgument>() == 96 && size_of::<PageRegion>() == 24);

/// What to scan for.
#[derive(Clone, Copy, Debug)]
pub struct ScanQuery {
    /// First address, page-aligned.
    pub start: u64,
    /// End address (exclusive), page-aligned.
    pub end: u64,
    /// Categories that a page must all have.
    pub required: u64,
    /// Categories to report.
    pub reported: u64,
    /// Pages after which the walk ends; 0 for no limit.
    pub most_pages: u64,
}

/// Scans page tables through an open `/proc/PID/pagemap`; changes nothing. Fills `regions` and
/// returns how many were filled and the address at which the walk ended. (Linux 6.7; older
/// kernels answer `ENOTTY`.)
pub fn pagemap_scan(
    pagemap: &File,
    query: ScanQuery,
    regions: &mut [PageRegion],
) -> io::Result<(usize, u64)> {
    let mut argument = ScanArgument {
        size: size_of::<ScanArgument>() as u64,
        flags: 0,
        start: query.start,
        end: query.end,
        walk_end: 0,
        vec: regions.as_mut_ptr() as u64,
        vec_len: regions.len() as u64,
        max_pages: query.most_pages,
        category_inverted: 0,
        category_mask: query.required,
        category_anyof_mask: 0,
        return_mask: query.reported,
    };
    // SAFETY: the argument has the kernel's layout (size checked above); `vec` points to
    // `vec_len` regions that outlive the call.
    let filled =
        check(unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument) }.into())?;
    Ok(((filled as usize).min(regions.len()), argument.walk_end))
}
