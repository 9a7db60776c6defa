//! On this machine's own kernel, with mappings of our own around every range.

use super::stream::{Order, Way};
use super::*;
use hither_core::ids::{NodeId, Pid};
use hither_mover::{Pages, Race};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;
/// Where the next area is asked for.
static NEXT_PLACE: AtomicU64 = AtomicU64::new(0x2000_0000_0000);

/// Anonymous memory, unmapped at the end. `protect` and `unmap` change single pages of it.
struct Area {
    base: *mut u8,
    bytes: usize,
}

impl Area {
    fn new(pages: usize) -> Self {
        Self::mapped(pages * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    fn mapped(bytes: usize, flags: i32, fd: i32) -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // Far from where the kernel chooses, so that no other test's memory comes into a hole.
        let place = NEXT_PLACE.fetch_add(1 << 30, Ordering::Relaxed) as *mut libc::c_void;
        // SAFETY: a new mapping there, or elsewhere where that is taken.
        let base = unsafe { libc::mmap(place, bytes, access, flags, fd, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Self {
            base: base.cast(),
            bytes,
        }
    }

    fn at(&self, offset: usize) -> u64 {
        self.base as u64 + offset as u64
    }

    fn fill(&self, seed: u8) {
        for offset in 0..self.bytes {
            // SAFETY: inside the mapping, which only this test uses.
            unsafe { self.base.add(offset).write(pattern(seed, offset)) };
        }
    }

    fn slice(&self) -> &[u8] {
        // SAFETY: readable where a test asks for it, and nobody writes meanwhile.
        unsafe { std::slice::from_raw_parts(self.base, self.bytes) }
    }

    fn protect(&self, page: usize, access: i32) {
        // SAFETY: a page of our own.
        let result = unsafe { libc::mprotect(self.base.add(page * PAGE).cast(), PAGE, access) };
        assert_eq!(result, 0);
    }

    fn unmap(&self, page: usize) {
        // SAFETY: a page of our own that no test touches afterwards.
        let result = unsafe { libc::munmap(self.base.add(page * PAGE).cast(), PAGE) };
        assert_eq!(result, 0);
    }

    /// False where the kernel has no guards.
    fn guard(&self, page: usize) -> bool {
        /// `MADV_GUARD_INSTALL`, Linux 6.13 (`asm-generic/mman-common.h`).
        const GUARD: i32 = 102;
        // SAFETY: a page of our own.
        unsafe { libc::madvise(self.base.add(page * PAGE).cast(), PAGE, GUARD) == 0 }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping of `mapped`; holes in it are allowed.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

fn pattern(seed: u8, offset: usize) -> u8 {
    (offset as u64)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .to_le_bytes()[7]
        ^ seed
}

fn replicate(from: u64, to: u64, bytes: u64) -> Job<'static> {
    Job {
        pid: Pid(std::process::id() as i32),
        action: Action::Replicate { from, to, bytes },
        race: Race::default(),
    }
}

fn outcome(backend: &mut CopyBackend, job: &Job<'_>) -> Outcome {
    backend.execute(std::slice::from_ref(job)).remove(0)
}

fn refusals(backend: &mut CopyBackend, from: u64, to: u64, bytes: usize) -> Vec<(Refusal, u64)> {
    let outcome = outcome(backend, &replicate(from, to, bytes as u64));
    assert_eq!((outcome.moved.len(), outcome.bytes), (0, 0));
    outcome.refused
}

/// Backends that check in every way there is here: as it comes, without the page scan, by kernel.
fn backends() -> [CopyBackend; 3] {
    let [mut whole, mut slow] = [(); 2].map(|()| CopyBackend::new(1, Vec::new()).unwrap());
    whole.reach.as_mut().expect("Linux 5.14").forget_pages();
    slow.reach = None;
    [CopyBackend::new(2, Vec::new()).unwrap(), whole, slow]
}

#[cfg(target_arch = "x86_64")]
fn ways() -> Vec<Way> {
    let mut ways = vec![Way::Plain, Way::Sse2];
    if is_x86_feature_detected!("avx2") {
        ways.push(Way::Avx2);
    }
    if is_x86_feature_detected!("avx512f") {
        ways.push(Way::Avx512);
    }
    ways
}

#[cfg(not(target_arch = "x86_64"))]
fn ways() -> Vec<Way> {
    vec![Way::Plain]
}

/// Copies between two areas and compares every byte of both with a copy by the language.
fn compare(source_at: usize, target_at: usize, bytes: usize, copy: impl Fn(*const u8, *mut u8)) {
    let pages = (source_at.max(target_at) + bytes) / PAGE + 2;
    let (source, target) = (Area::new(pages), Area::new(pages));
    source.fill(1);
    target.fill(2);
    let mut expected = target.slice().to_vec();
    expected[target_at..][..bytes].copy_from_slice(&source.slice()[source_at..][..bytes]);
    // SAFETY: both areas are longer than offset and length.
    let (from, to) = unsafe { (source.base.add(source_at), target.base.add(target_at)) };
    copy(from, to);
    assert!(
        target.slice() == expected,
        "{source_at} {target_at} {bytes}"
    );
    let unchanged = (0..source.bytes).all(|offset| source.slice()[offset] == pattern(1, offset));
    assert!(unchanged, "the source was written to");
}

/// Lengths around every boundary of the loops: lines, steps, pages, groups.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        0usize..2048,
        (1usize..70, -70isize..70)
            .prop_map(|(pages, off)| (pages * PAGE).saturating_add_signed(off)),
        (1usize..5, -300isize..300)
            .prop_map(|(groups, off)| (groups * 4 * PAGE).saturating_add_signed(off)),
    ]
}

proptest! {
    #[test]
    fn every_way_copies_as_the_language_does(
        source_at in 0usize..PAGE,
        target_at in 0usize..PAGE,
        bytes in length(),
        takes_turns: bool,
    ) {
        let order = if takes_turns { Order::Interleaved } else { Order::Ascending };
        for way in ways() {
            compare(source_at, target_at, bytes, |from, to| {
                // SAFETY: `compare` gives disjoint areas; the processor has the way.
                unsafe { way.copy(from, to, bytes, order) };
            });
        }
        compare(source_at, target_at, bytes, |from, to| {
            // SAFETY: as above.
            unsafe { nontemporal(from, to, bytes) };
        });
        #[cfg(target_arch = "x86_64")]
        compare(source_at, target_at, bytes, |from, to| {
            // SAFETY: as above.
            unsafe { super::stream::x86::string(from, to, bytes) };
        });
    }

    #[test]
    fn a_backend_copies_as_the_language_does(
        source_at in 0usize..PAGE,
        target_at in 0usize..PAGE,
        bytes in length(),
    ) {
        for mut backend in backends() {
            let backend = std::cell::RefCell::new(&mut backend);
            compare(source_at, target_at, bytes, |from, to| {
                let job = replicate(from as u64, to as u64, bytes as u64);
                let outcome = outcome(&mut backend.borrow_mut(), &job);
                assert_eq!(outcome.moved.len() as u64, job.page_count());
                assert_eq!((outcome.bytes, outcome.refused), (bytes as u64, vec![]));
            });
        }
    }
}

#[test]
fn several_workers_copy_each_byte_once() {
    for workers in [2, 5] {
        let mut copier = Copier::new(workers, &[]).unwrap();
        assert_eq!(copier.worker_count(), workers);
        let copier = std::cell::RefCell::new(&mut copier);
        for (source_at, target_at, bytes) in [
            (0, 0, 8 << 20),
            (17, 4001, (5 << 20) + 333),
            (64, 0, 512 << 10),
            (0, 1, (512 << 10) - 1),
        ] {
            compare(source_at, target_at, bytes, |from, to| {
                // SAFETY: `compare` gives disjoint areas.
                unsafe { copier.borrow_mut().copy(from, to, bytes) };
            });
        }
    }
}

#[test]
fn nothing_asked_nothing_done() {
    for mut backend in backends() {
        assert_eq!(backend.probe(), Ok(()));
        assert_eq!(backend.name(), "copy");
        assert!(backend.execute(&[]).is_empty());
        // Not even the addresses are looked at.
        let outcome = outcome(&mut backend, &replicate(1, 1, 0));
        assert_eq!((outcome.page_count(), outcome.bytes), (0, 0));
    }
}

#[test]
fn what_it_cannot_do_is_refused() {
    let area = Area::new(4);
    area.fill(3);
    for mut backend in backends() {
        let overlapping = [(0, 1, 2), (1, 0, 2), (0, 0, 1), (0, PAGE, PAGE + 1)];
        for (from, to, bytes) in overlapping {
            let refused = refusals(&mut backend, area.at(from), area.at(to), bytes);
            let pages = (to + bytes).div_ceil(PAGE) - to / PAGE;
            assert_eq!(refused, [(Refusal::NotSupported, pages as u64)]);
        }
        // Neighbours do not overlap.
        let beside = replicate(area.at(0), area.at(2 * PAGE), 2 * PAGE as u64);
        assert_eq!(outcome(&mut backend, &beside).moved.len(), 2);
        let migrate = Job {
            action: Action::Migrate {
                pages: Pages::Run(1..4),
                to: NodeId(0),
            },
            ..beside.clone()
        };
        assert_eq!(
            outcome(&mut backend, &migrate).refused,
            [(Refusal::NotSupported, 3)]
        );
        let foreign = Job {
            pid: Pid(1),
            ..beside
        };
        assert_eq!(
            outcome(&mut backend, &foreign).refused,
            [(Refusal::NotOurs, 2)]
        );
    }
}

#[test]
fn addresses_that_cannot_be_are_refused() {
    let area = Area::new(1);
    let kernel = 0xFFFF_8000_0000_0000;
    for mut backend in backends() {
        for (from, to, bytes) in [
            (0, area.at(0), 1),
            (area.at(0), 0, 1),
            (kernel, area.at(0), 1),
            (area.at(0), kernel, PAGE),
            (area.at(0), u64::MAX, 1),
            (u64::MAX - 1, area.at(0), PAGE),
            (area.at(0), u64::MAX - 5, usize::MAX),
            (1, 1 << 62, 1 << 61),
        ] {
            let refused = refusals(&mut backend, from, to, bytes);
            assert!(
                matches!(refused[..], [(Refusal::Unmapped, _)]),
                "{refused:?}"
            );
        }
    }
}

/// Spoils one page of one of two areas and checks that the copy of all is refused; with the scan
/// and without, small and large, first, middle and last page.
fn refused_for(spoil_source: bool, spoil_target: bool, spoil: impl Fn(&Area, usize)) {
    for pages in [3, 100] {
        for page in [0, pages / 2, pages - 1] {
            let (source, target) = (Area::new(pages), Area::new(pages));
            source.fill(1);
            target.fill(2);
            // Two mappings where one would do: the check goes on from one to the next.
            source.protect(1, libc::PROT_READ);
            if spoil_source {
                spoil(&source, page);
            }
            if spoil_target {
                spoil(&target, page);
            }
            let bytes = pages * PAGE;
            for mut backend in backends() {
                if backend.reach.is_some() {
                    let refused = refusals(&mut backend, source.at(0), target.at(0), bytes);
                    assert_eq!(refused, [(Refusal::Unmapped, pages as u64)], "page {page}");
                    continue;
                }
                let job = replicate(source.at(0), target.at(0), bytes as u64);
                let outcome = outcome(&mut backend, &job);
                assert_eq!(outcome.moved.len(), page, "up to the bad page");
                assert_eq!(
                    outcome.refused,
                    [(Refusal::Unmapped, (pages - page) as u64)]
                );
            }
        }
    }
}

#[test]
fn a_hole_is_refused() {
    refused_for(true, false, Area::unmap);
    refused_for(false, true, Area::unmap);
}

#[test]
fn forbidden_accesses_are_refused() {
    refused_for(true, false, |area, page| {
        area.protect(page, libc::PROT_NONE)
    });
    refused_for(false, true, |area, page| {
        area.protect(page, libc::PROT_READ)
    });
}

#[test]
fn guards_are_refused() {
    if Area::new(1).guard(0) {
        refused_for(true, false, |area, page| assert!(area.guard(page)));
        refused_for(false, true, |area, page| assert!(area.guard(page)));
    }
}

#[test]
fn behind_the_end_of_a_file_is_refused() {
    use std::os::fd::AsRawFd;
    let file = tempfile::tempfile().unwrap();
    let pages = 40;
    file.set_len((pages / 2 * PAGE) as u64).unwrap();
    let mapped = Area::mapped(pages * PAGE, libc::MAP_SHARED, file.as_raw_fd());
    let plain = Area::new(pages);
    plain.fill(1);
    for mut backend in backends() {
        for (from, to) in [(&mapped, &plain), (&plain, &mapped)] {
            let job = replicate(from.at(0), to.at(0), (pages * PAGE) as u64);
            let outcome = outcome(&mut backend, &job);
            assert_eq!(outcome.refused.len(), 1);
            assert_eq!(outcome.refused[0].0, Refusal::Unmapped);
            let before_the_end = replicate(from.at(0), to.at(0), (pages / 2 * PAGE) as u64);
            let outcome = super::tests::outcome(&mut backend, &before_the_end);
            assert_eq!(outcome.moved.len(), pages / 2);
        }
    }
}

#[test]
fn untouched_pages_are_brought_in() {
    for mut backend in backends() {
        let (source, target) = (Area::new(64), Area::new(64));
        // SAFETY: inside the area.
        unsafe { source.base.add(20 * PAGE).write(7) };
        let job = replicate(source.at(0), target.at(0), 64 * PAGE as u64);
        let outcome = outcome(&mut backend, &job);
        assert_eq!(outcome.moved.len(), 64);
        assert_eq!(outcome.moved[0], target.at(0) >> 12);
        let sum: u32 = target.slice().iter().map(|&byte| u32::from(byte)).sum();
        assert_eq!((target.slice()[20 * PAGE], sum), (7, 7));
    }
}

#[test]
fn a_forked_child_has_no_backend() {
    let mut backend = CopyBackend::new(2, Vec::new()).unwrap();
    let area = Area::new(2);
    area.fill(1);
    let jobs = [replicate(area.at(0), area.at(PAGE), PAGE as u64)];
    // SAFETY: the child runs a few lines that allocate (glibc allows it after fork) and ends
    // without returning into the test.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let own = [Job {
            pid: Pid(std::process::id() as i32),
            ..jobs[0].clone()
        }];
        let refused = backend.execute(&own).remove(0).refused == [(Refusal::NotOurs, 1)];
        let told = backend.probe().is_err();
        drop(backend);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!(refused && told))) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's backend refuses and ends");
    assert_eq!(
        outcome(&mut backend, &jobs[0]).moved.len(),
        1,
        "the parent's works on"
    );
}
