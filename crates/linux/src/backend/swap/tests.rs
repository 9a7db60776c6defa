//! On this machine's own kernel: exchanges in place, which need no second node.

use super::pool::{HUGE, PAGE};
use super::*;
use hither_core::ids::Pid;
use hither_core::plan::Refusal;
use hither_mover::{Action, Pages, Race};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Touched private memory, small or huge pages, each word of which says where it is.
struct Memory(sys::MemoryArea, u64);

impl Memory {
    fn new(bytes: u64, huge: bool) -> Self {
        let area = sys::MemoryArea::new(bytes.next_multiple_of(HUGE), huge).unwrap();
        let memory = Self(area, bytes);
        for word in memory.words() {
            word.store(word as *const AtomicU64 as u64, Ordering::Relaxed);
        }
        memory
    }

    fn range(&self) -> Range<u64> {
        let start = self.0.range().start;
        start..start + self.1
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped for as long as `self`, aligned, and any bit pattern is valid.
        unsafe {
            std::slice::from_raw_parts(self.range().start as *const AtomicU64, self.1 as usize / 8)
        }
    }

    fn assert_intact(&self) {
        for word in self.words() {
            assert_eq!(
                word.load(Ordering::Relaxed),
                word as *const AtomicU64 as u64
            );
        }
    }

    fn job(&self, race: Race) -> Job<'static> {
        migrate(self.range(), race)
    }
}

fn migrate(range: Range<u64>, race: Race) -> Job<'static> {
    Job {
        pid: Pid(0),
        action: Action::Migrate {
            pages: Pages::Run(range.start / PAGE..range.end / PAGE),
            to: NodeId(0),
        },
        race,
    }
}

fn backend(hook: Hook) -> SwapBackend {
    let mut config = Config {
        in_place: true,
        without_privilege: true,
        hook,
        ..Config::default()
    };
    config.limits.recycle = true;
    let backend = SwapBackend::new(config).expect("this kernel has UFFDIO_MOVE");
    let stock = backend.warm(NodeId(0), 4 << 20, 8 << 20);
    assert!(stock[0] >= 4 << 20 && stock[1] >= 8 << 20, "{stock:?}");
    backend
}

/// The mapping of an address.
fn mapping(address: u64) -> Range<u64> {
    let maps = File::open("/proc/self/maps").unwrap();
    sys::query_mapping(&maps, address).unwrap().unwrap().range
}

#[test]
fn every_page_is_exchanged_and_keeps_its_content() {
    let memory = Memory::new(3 << 20, false);
    let mut backend = backend(None);
    for round in 0..3 {
        let outcome = backend.execute(&[memory.job(Race::Recover)]).remove(0);
        assert_eq!(outcome.moved.len(), 768, "round {round}: {outcome:?}");
        assert_eq!((outcome.bytes, outcome.raced), (3 << 20, None));
        memory.assert_intact();
    }
    drop(backend);
    memory.assert_intact();
    let whole = mapping(memory.range().start);
    assert!(
        whole.end >= memory.0.range().end,
        "left in parts: {whole:x?}"
    );
}

#[test]
fn huge_pages_stay_huge() {
    let memory = Memory::new(8 << 20, true);
    let mut backend = backend(None);
    for _ in 0..3 {
        let outcome = backend.execute(&[memory.job(Race::Block)]).remove(0);
        assert_eq!(outcome.moved.len(), 2048, "{outcome:?}");
        assert_eq!(
            (outcome.huge_kept, outcome.huge_split),
            (4, 0),
            "{outcome:?}"
        );
        memory.assert_intact();
    }
}

#[test]
fn jobs_that_follow_each_other_share_windows_and_are_told_apart() {
    let memory = Memory::new(1 << 20, false);
    let windows = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&windows);
    let mut backend = backend(Some(Arc::new(move |step| {
        counted.fetch_add(u64::from(step == Step::Closed), Ordering::Relaxed);
    })));
    let start = memory.range().start;
    let jobs: Vec<Job<'_>> = (0..4)
        .map(|index| {
            migrate(
                start + index * 16 * PAGE..start + (index + 1) * 16 * PAGE,
                Race::Block,
            )
        })
        .collect();
    let mut told = Vec::new();
    backend.execute_each(&jobs, &mut |index, outcome| {
        let first = start / PAGE + index as u64 * 16;
        assert_eq!(outcome.moved, (first..first + 16).collect::<Vec<_>>());
        told.push((index, windows.load(Ordering::Relaxed)));
    });
    // Two windows of 128 KiB: nobody waits for those of the second who is in the first.
    assert_eq!(told, [(0, 1), (1, 1), (2, 2), (3, 2)]);
    memory.assert_intact();
}

#[test]
fn holes_and_foreign_pages_are_told() {
    let memory = Memory::new(1 << 20, false);
    let range = memory.range();
    sys::discard(&(range.start + PAGE..range.start + 3 * PAGE));
    let mut backend = backend(None);
    let outcome = backend.execute(&[memory.job(Race::Recover)]).remove(0);
    assert_eq!(outcome.moved.len(), 254);
    assert_eq!(outcome.refused, [(Refusal::Unmapped, 2)]);
    assert_eq!(
        memory.words()[512].load(Ordering::Relaxed),
        0,
        "reads as zeros, as before"
    );
    let pool = backend.pool.ranges()[0].clone();
    let outcome = backend
        .execute(&[migrate(pool.start..pool.start + PAGE, Race::Block)])
        .remove(0);
    assert_eq!(outcome.refused, [(Refusal::NotOurs, 1)]);
    let mut other = migrate(range, Race::Block);
    other.pid = Pid(1);
    assert_eq!(
        backend.execute(&[other])[0].refused,
        [(Refusal::NotSupported, 256)]
    );
}

#[test]
fn stacks_and_thread_local_storage_are_left_to_the_kernel() {
    thread_local!(static LOCAL: u64 = const { 7 });
    let closed = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&closed);
    let mut backend = backend(Some(Arc::new(move |_| seen.store(true, Ordering::Relaxed))));
    let on_stack = 5u64;
    let addresses = [
        std::ptr::from_ref(&on_stack) as u64,
        LOCAL.with(|local| std::ptr::from_ref(local) as u64),
    ];
    for address in addresses {
        let page = address / PAGE * PAGE;
        let outcome = backend
            .execute(&[migrate(page..page + PAGE, Race::Block)])
            .remove(0);
        assert_eq!(outcome.page_count(), 1);
    }
    assert!(!closed.load(Ordering::Relaxed), "no window was opened");
}

/// Until a thread of this process waits for something, or is gone: on a busy machine it may not
/// have run yet. After 10 s whatever depends on it fails by itself.
fn until_asleep(thread: i32) {
    let path = format!("/proc/self/task/{thread}/stat");
    for _ in 0..1000 {
        let stat = std::fs::read_to_string(&path).unwrap_or_default();
        match stat.rsplit_once(')') {
            Some((_, rest)) if rest.trim_start().starts_with('R') => {}
            _ => return,
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Runs one exchange of one chunk while `act` is called at a step, on another thread, which the
/// exchange does not wait for longer than `act` takes to get going.
fn with_act(
    at: Step,
    race: Race,
    act: impl FnOnce(&Memory) + Send + 'static,
) -> (Arc<Memory>, Outcome) {
    let memory = Arc::new(Memory::new(256 << 10, false));
    let inside = Arc::clone(&memory);
    let act = Mutex::new(Some(act));
    let thread = Arc::new(Mutex::new(None));
    let handle = Arc::clone(&thread);
    let mut backend = backend(Some(Arc::new(move |step| {
        if step == at
            && let Some(act) = act.lock().unwrap().take()
        {
            let memory = Arc::clone(&inside);
            let (sender, started) = std::sync::mpsc::channel();
            *handle.lock().unwrap() = Some(std::thread::spawn(move || {
                sender.send(sys::thread_id()).unwrap();
                act(&memory);
            }));
            let thread = started.recv().unwrap();
            until_asleep(thread);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    })));
    let outcome = backend.execute(&[memory.job(race)]).remove(0);
    let handle = thread.lock().unwrap().take().expect("the step was reached");
    handle.join().unwrap();
    (memory, outcome)
}

#[test]
fn a_store_on_the_way_is_kept_under_every_policy() {
    for at in [Step::Away, Step::Copying, Step::Copied] {
        for race in [Race::Recover, Race::Fail, Race::Block] {
            let (memory, outcome) = with_act(at, race, |memory| {
                memory.words()[9 * 512].store(1, Ordering::Relaxed);
            });
            let address = memory.range().start + 9 * PAGE;
            let word = &memory.words()[9 * 512];
            assert_eq!(word.load(Ordering::Relaxed), 1, "{at:?} {race:?}");
            word.store(address, Ordering::Relaxed);
            memory.assert_intact();
            assert!(outcome.stall_ns > 1_000_000, "it waited 20 ms: {outcome:?}");
            if race == Race::Fail {
                let raced = outcome.raced.expect("told");
                assert_eq!(raced.address, address);
                assert!(raced.thread > 0);
                assert_eq!(outcome.moved.len(), 0);
            } else {
                assert_eq!(outcome.moved.len(), 64, "{at:?} {race:?} {outcome:?}");
            }
        }
    }
}

/// Nothing is in stock: small pages are got on the way, huge ones left to the kernel, which does not
/// move in place. Where the node is said to be full, the kernel gets both.
#[test]
fn without_stock_small_pages_are_got_on_the_way() {
    let mut config = Config {
        in_place: true,
        without_privilege: true,
        ..Config::default()
    };
    config.limits.recycle = true;
    let mut backend = SwapBackend::new(config).unwrap();
    let memory = Memory::new(4 << 20, false);
    for race in [Race::Block, Race::Recover] {
        let outcome = backend.execute(&[memory.job(race)]).remove(0);
        assert_eq!((outcome.moved.len(), outcome.bytes), (1024, 4 << 20));
        assert_eq!(outcome.refused, []);
        memory.assert_intact();
    }
    backend.pool.exhaust(NodeId(0), Size::Small);
    // What was left behind is in stock, and serves before the kernel is asked.
    let outcome = backend.execute(&[memory.job(Race::Block)]).remove(0);
    assert!(outcome.moved.len() >= 512, "{outcome:?}");
    assert_eq!(outcome.moved.len() as u64 + outcome.already_there, 1024);
    memory.assert_intact();
    let huge = Memory::new(2 << 20, true);
    let outcome = backend.execute(&[huge.job(Race::Block)]).remove(0);
    assert_eq!((outcome.moved.len(), outcome.already_there), (0, 512));
    huge.assert_intact();
}

/// A raw child made while pages are away: what the program marked `MADV_WIPEONFORK` it finds empty,
/// all else as it was.
#[test]
fn children_find_what_is_wiped_empty() {
    if SwapBackend::available(false).is_err() {
        return;
    }
    let memory = Memory::new(256 << 10, false);
    // SAFETY: the advice is about children; the area's own test has no other use of it.
    let [keep, wipe] = [
        (memory.range(), libc::MADV_DOFORK),
        (
            memory.range().start..memory.range().start + 32 * PAGE,
            libc::MADV_WIPEONFORK,
        ),
    ]
    .map(|(range, advice)| unsafe {
        let bytes = (range.end - range.start) as usize;
        libc::madvise(range.start as *mut _, bytes, advice)
    });
    assert_eq!((keep, wipe), (0, 0));
    let range = memory.range();
    let failed = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&failed);
    let config = Config {
        in_place: true,
        hook: Some(Arc::new(move |step| {
            if step == Step::Away {
                let range = range.clone();
                let ended = std::thread::spawn(move || fork_and_look(&range)).join();
                told.fetch_add(ended.unwrap(), Ordering::Relaxed);
            }
        })),
        ..Config::default()
    };
    let mut backend = SwapBackend::new(config).unwrap();
    // One mapping at a time, as the kernel exchanges no pages of two at once.
    let middle = memory.range().start + 32 * PAGE;
    for part in [memory.range().start..middle, middle..memory.range().end] {
        // A store makes a page that was shared with a child this process's own again.
        for word in memory.words() {
            word.swap(word.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let outcome = backend.execute(&[migrate(part, Race::Block)]).remove(0);
        assert_eq!(failed.load(Ordering::Relaxed), 0, "what the child says");
        assert_eq!(outcome.moved.len(), 32, "{outcome:?}");
    }
    assert_eq!(backend.fork_count(), 2);
    memory.assert_intact();
}

/// Makes a child by the system call itself; returns its status: 0 where the first 32 pages are
/// empty and the others as they were.
fn fork_and_look(range: &Range<u64>) -> u64 {
    // SAFETY: no pointers are passed; the child only reads memory and ends.
    unsafe {
        let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32;
        if child == 0 {
            let good = range.clone().step_by(512).all(|address| {
                let is_wiped = address < range.start + 32 * PAGE;
                let found = (address as *const u64).read_volatile();
                found == if is_wiped { 0 } else { address }
            });
            libc::_exit(i32::from(!good));
        }
        let mut status = -1;
        libc::waitpid(child, &raw mut status, 0);
        status as u64
    }
}

/// The program maps something else where pages were to be moved, between two windows. That mapping
/// is not registered: pages taken from it could not come back.
#[test]
fn what_is_mapped_anew_between_windows_stays() {
    for change in [map_over, unmap_and_map, remap_away] {
        let memory = Arc::new(Memory::new(4 << 20, false));
        let inside = Arc::clone(&memory);
        let done = AtomicBool::new(false);
        let mut backend = backend(Some(Arc::new(move |step| {
            if step == Step::Closed && !done.swap(true, Ordering::Relaxed) {
                let memory = Arc::clone(&inside);
                std::thread::spawn(move || {
                    let start = memory.range().start + (2 << 20);
                    change(start..start + (2 << 20));
                    for word in &memory.words()[(2 << 20) / 8..] {
                        word.store(word as *const AtomicU64 as u64, Ordering::Relaxed);
                    }
                })
                .join()
                .unwrap();
            }
        })));
        let outcome = backend.execute(&[memory.job(Race::Block)]).remove(0);
        assert_eq!(outcome.page_count(), 1024, "{outcome:?}");
        memory.assert_intact();
    }
}

fn map_over(range: Range<u64>) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let bytes = (range.end - range.start) as usize;
    // SAFETY: the test's own memory, of which nobody holds a reference to these bytes.
    let mapped = unsafe { libc::mmap(range.start as *mut _, bytes, access, flags, -1, 0) };
    assert_eq!(mapped as u64, range.start);
}

fn unmap_and_map(range: Range<u64>) {
    let bytes = (range.end - range.start) as usize;
    // SAFETY: as above.
    assert_eq!(unsafe { libc::munmap(range.start as *mut _, bytes) }, 0);
    map_over(range);
}

/// To another place, where it is left.
fn remap_away(range: Range<u64>) {
    let bytes = (range.end - range.start) as usize;
    // SAFETY: as above.
    let moved = unsafe {
        let other = sys::MemoryArea::new(HUGE, false).unwrap();
        let to = other.range().start;
        std::mem::forget(other);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        libc::mremap(
            range.start as *mut _,
            bytes,
            bytes,
            flags,
            to as *mut libc::c_void,
        )
    };
    assert_ne!(moved, libc::MAP_FAILED);
    map_over(range);
}

/// Two movers: what one holds the other neither takes nor lets go of.
#[test]
fn another_movers_traps_stay() {
    let memory = Arc::new(Memory::new(256 << 10, false));
    let other = Mutex::new(backend(None));
    let inside = Arc::clone(&memory);
    let thread = Arc::new(Mutex::new(None));
    let handle = Arc::clone(&thread);
    let mut backend = backend(Some(Arc::new(move |step| {
        if step != Step::Away || handle.lock().unwrap().is_some() {
            return;
        }
        let outcome = other
            .lock()
            .unwrap()
            .execute(&[inside.job(Race::Block)])
            .remove(0);
        assert_eq!(outcome.moved.len(), 0, "{outcome:?}");
        let memory = Arc::clone(&inside);
        let (sender, started) = std::sync::mpsc::channel();
        let toucher = std::thread::spawn(move || {
            sender.send(sys::thread_id()).unwrap();
            let word = &memory.words()[5 * 512];
            let found = word.load(Ordering::Relaxed);
            assert_eq!(found, word as *const AtomicU64 as u64, "zeros: not waited");
        });
        until_asleep(started.recv().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!toucher.is_finished(), "an access to what is away waits");
        *handle.lock().unwrap() = Some(toucher);
    })));
    let outcome = backend.execute(&[memory.job(Race::Block)]).remove(0);
    assert_eq!(outcome.moved.len(), 64, "{outcome:?}");
    assert!(outcome.stall_ns > 1_000_000, "{outcome:?}");
    thread.lock().unwrap().take().unwrap().join().unwrap();
    memory.assert_intact();
}

/// What `release` relies on since Linux 6.17, where somebody else holds part of a range.
#[test]
fn a_context_lets_go_of_its_own_mappings_only() {
    let area = sys::MemoryArea::new(HUGE, false).unwrap();
    let range = area.range();
    let [own, foreign] = [(); 2].map(|()| Userfault::new(feature::MOVE, true).unwrap());
    own.trap_missing(&range).unwrap();
    let release = sys::kernel_release();
    let mut numbers = release.split('.').map(|number| number.parse::<u32>());
    if let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next())
        && (major, minor) >= (6, 17)
    {
        assert!(foreign.unregister(&range).is_err());
        let page = range.start..range.start + PAGE;
        assert!(foreign.unregister(&page).is_err());
    }
    assert!(foreign.trap_missing(&range).is_err());
    own.unregister(&range).unwrap();
    foreign.trap_missing(&range).unwrap();
}

/// A page that the kernel refers to without having pinned it keeps its bytes, as it is not used
/// again: here a pipe reads it after two moves and after other memory was moved.
#[test]
fn what_a_pipe_refers_to_keeps_its_bytes() {
    let config = Config {
        in_place: true,
        without_privilege: true,
        ..Config::default()
    };
    let mut backend = SwapBackend::new(config).unwrap();
    backend.warm(NodeId(0), 4 << 20, 0);
    let (memory, other) = (Memory::new(64 << 10, false), Memory::new(4 << 20, false));
    let (mut reader, writer) = std::io::pipe().unwrap();
    let given = libc::iovec {
        iov_base: memory.range().start as *mut _,
        iov_len: memory.1 as usize,
    };
    // SAFETY: the memory lives longer than the pipe.
    let sent = unsafe { libc::vmsplice(writer.as_raw_fd(), &raw const given, 1, 0) };
    assert_eq!(sent, memory.1 as isize);
    for _ in 0..2 {
        for moved in [&memory, &other] {
            let outcome = backend.execute(&[moved.job(Race::Block)]).remove(0);
            assert_eq!(outcome.bytes, moved.1, "{:?}", outcome.refused);
        }
    }
    let mut bytes = vec![0; memory.1 as usize];
    reader.read_exact(&mut bytes).unwrap();
    for (word, bytes) in memory.words().iter().zip(bytes.chunks_exact(8)) {
        assert_eq!(bytes, (word as *const AtomicU64 as u64).to_ne_bytes());
    }
}
