//! On this machine's own page cache.

use super::*;
use crate::backend::kernel::KernelBackend;
use std::io::Write;

/// A file with pages in memory, of which some are dropped: below this crate's build folder, as
/// `/tmp` may be memory itself.
fn file(pages: usize) -> (tempfile::TempDir, PathBuf, File) {
    let near = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(near.parent().unwrap()).unwrap();
    let path = folder.path().join("data");
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.write_all(&vec![1; pages * 4096]).unwrap();
    file.sync_all().unwrap();
    (folder, path, file)
}

fn cached_count(file: &File, pages: u64) -> u64 {
    let window = FileWindow::map(file, 0, pages * 4096).unwrap();
    window.cached().unwrap().iter().filter(|is| **is).count() as u64
}

fn bound(nodes: &str) -> Bound {
    let right: hither_core::set::NodeSet = nodes.parse().unwrap();
    Bound {
        targets: right.iter().collect(),
        right,
    }
}

#[test]
fn pages_that_are_not_cached_stay_so_and_others_are_found() {
    use std::os::fd::AsRawFd;
    const PAGES: u64 = 4096;
    let (_folder, path, file) = file(PAGES as usize);
    // SAFETY: a descriptor of this process; the advice drops clean pages of the file.
    unsafe {
        let half = (PAGES / 2 * 4096) as i64;
        libc::posix_fadvise(file.as_raw_fd(), 0, half, libc::POSIX_FADV_DONTNEED);
    }
    let before = cached_count(&file, PAGES);
    let pid = std::process::id() as i32;
    let (all, _) = used(&Root::host(), pid).unwrap();
    let ours = all.iter().find(|used| used.path == path).unwrap();
    assert_eq!(ours.how, HowUsed::Open);
    let cached = Cached::open(&Root::host(), pid, ours).unwrap();
    let seen = cached.look(&bound("0-255")).unwrap();
    assert_eq!(cached_count(&file, PAGES), before, "nothing was read");
    assert_eq!((seen.pages() + seen.gone, seen.elsewhere), (before, 0));
    // Memory in which files are kept drops nothing.
    println!("{before} of {PAGES} pages are cached");
    // What is where it shall be is not moved.
    let mut told = 0;
    let goes_on = cached.move_pages(
        &bound("0-255"),
        &mut KernelBackend::of_own_memory(),
        &mut |_| {
            told += 1;
            true
        },
    );
    assert!(goes_on.unwrap() && told == 0);
}

#[test]
fn a_mapped_file_is_known_by_its_inode() {
    let (folder, path, file) = file(16);
    let window = FileWindow::map(&file, 0, 16 * 4096).unwrap();
    let pid = std::process::id() as i32;
    let root = Root::host();
    let find = || {
        let (all, _) = used(&root, pid).unwrap();
        all.into_iter().find(|used| used.path == path).unwrap()
    };
    let ours = find();
    assert_eq!(ours.how, HowUsed::Mapped);
    let seen = Cached::open(&root, pid, &ours)
        .unwrap()
        .look(&bound("0-255"));
    let seen = seen.unwrap();
    assert_eq!(seen.pages() + seen.gone, 16);
    // Another file by that name is not touched.
    std::fs::rename(&path, folder.path().join("elsewhere")).unwrap();
    std::fs::write(&path, "another").unwrap();
    let why = Cached::open(&root, pid, &ours).unwrap_err().to_string();
    assert!(why.contains("another file has this name"), "{why}");
    std::fs::remove_file(&path).unwrap();
    let why = Cached::open(&root, pid, &ours).unwrap_err().to_string();
    assert!(why.contains("cannot be opened"), "{why}");
    drop(window);
}

#[test]
fn a_file_that_is_cut_short_meanwhile_kills_nobody() {
    let (_folder, _, file) = file(64);
    let window = FileWindow::map(&file, 0, 64 * 4096).unwrap();
    file.set_len(4096).unwrap();
    assert_eq!(
        window.enter(1..64).unwrap_err().raw_os_error(),
        Some(libc::EFAULT)
    );
    let (seen, _) = place(&window, &[0..1, 1..64], &bound("0-255")).unwrap();
    assert_eq!((seen.pages(), seen.gone), (1, 63));
}
