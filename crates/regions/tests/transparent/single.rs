//! What one thread sees.

use crate::memory::{PAGE, Pages};
use crate::{begin, domains};
use hither_linux::sys::{self, pkey};
use hither_regions::{Closing, Form, Global, RegionUse, Transparent, leave, open_for};
use std::sync::atomic::Ordering::Relaxed;

/// The calling thread's domain.
fn here() -> usize {
    let cpu = sys::current_cpu().unwrap();
    let domains = domains_of_all();
    domains
        .iter()
        .position(|domain| domain.cpus().contains(cpu))
        .unwrap()
}

/// As at the beginning, wherever the thread is now.
fn domains_of_all() -> Vec<hither_regions::Domain> {
    use std::sync::OnceLock;
    static FIRST: OnceLock<Vec<hither_regions::Domain>> = OnceLock::new();
    FIRST.get_or_init(|| domains().unwrap()).clone()
}

pub fn follows(form: Form) {
    domains_of_all();
    let regions = begin(form).unwrap();
    let pages = [Pages::new(3), Pages::new(1)];
    let registered = [0, 1].map(|index| pages[index].register(&regions, index));
    let before = sys::allowed_cpus().unwrap();
    for turn in 0..200 {
        let at = turn % 2;
        pages[at].word(turn % 400).fetch_add(1, Relaxed);
        assert_eq!(here(), at, "turn {turn}");
    }
    for at in [0, 1] {
        let sum: u64 = (0..400)
            .map(|index| pages[at].word(index).load(Relaxed))
            .sum();
        assert_eq!(sum, 100);
        assert!(regions.entries(&registered[at]) >= 100);
        assert_eq!(regions.global(&registered[at]), None);
    }
    let moves = regions.moves();
    assert!(
        moves.moves >= 200 && moves.unmoved == 0 && moves.both == 0,
        "{moves:?}"
    );
    assert_eq!(sys::allowed_cpus().unwrap().len(), 1);
    leave();
    assert_eq!(sys::allowed_cpus().unwrap(), before);
    // Where the program puts it elsewhere, it goes no farther than that.
    sys::stay_on(domains_of_all()[0].cpus()).unwrap();
    pages[1].word(0).fetch_add(1, Relaxed);
    assert_eq!(here(), 0);
    assert!(regions.moves().unmoved > 0);
    sys::stay_on(&before).unwrap();
    pages[0].word(0).fetch_add(1, Relaxed);
    pages[1].word(0).fetch_add(1, Relaxed);
    assert_eq!(here(), 1);
    drop(regions);
    assert_eq!(sys::allowed_cpus().unwrap(), before);
}

pub fn copies_between_domains(form: Form) {
    let regions = begin(form).unwrap();
    let pages = [Pages::new(4), Pages::new(4)];
    let _registered = [0, 1].map(|index| pages[index].register(&regions, index));
    for round in 0..20u8 {
        let bytes = 4 * PAGE;
        // SAFETY: both are mapped and apart.
        unsafe {
            pages[0].start.write_bytes(round + 1, bytes);
            copy_by_one_instruction(pages[1].start, pages[0].start, bytes);
            assert!((0..bytes).all(|at| pages[1].start.add(at).read() == round + 1));
            pages[0].start.copy_from(pages[1].start, bytes / 2);
        }
        leave();
    }
    #[cfg(target_arch = "x86_64")]
    assert!(regions.moves().both >= 20, "{:?}", regions.moves());
}

/// # Safety
/// Both are mapped, and apart.
unsafe fn copy_by_one_instruction(to: *mut u8, from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as the caller vouches.
    unsafe {
        std::arch::asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") bytes => _);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as the caller vouches.
    unsafe {
        to.copy_from_nonoverlapping(from, bytes);
    }
}

/// A pipe: to read from, to write to.
fn pipe() -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    ends
}

pub fn buffers_are_opened(form: Form) {
    let regions = begin(form).unwrap();
    let pages = [Pages::new(1), Pages::new(1)];
    let _registered = [0, 1].map(|index| pages[index].register(&regions, index));
    let [from, to] = pipe();
    pages[0].word(0).store(7, Relaxed);
    let bare = |number, file: i32, start: *mut u8| {
        // SAFETY: 8 bytes of ours.
        let result = unsafe { libc::syscall(number, file, start, 8) };
        (result, std::io::Error::last_os_error().raw_os_error())
    };
    pages[1].word(0).store(8, Relaxed);
    // The first one is closed now: the kernel's own read of it fails.
    assert_eq!(
        bare(libc::SYS_write, to, pages[0].start),
        (-1, Some(libc::EFAULT))
    );
    let open = open_for(pages[0].start, 8);
    assert_eq!(bare(libc::SYS_write, to, pages[0].start).0, 8);
    drop(open);
    // SAFETY: buffers of ours; these calls are stood in for.
    unsafe {
        assert_eq!(libc::read(from, pages[1].start.cast(), 8), 8);
        assert_eq!(pages[1].word(0).load(Relaxed), 7);
        assert_eq!(libc::write(to, pages[0].start.cast(), 8), 8);
        assert_eq!(libc::write(to, pages[1].start.cast(), 8), 8);
        // One call, two domains, twice.
        let parts = [0, 1].map(|index: usize| libc::iovec {
            iov_base: pages[index].start.cast(),
            iov_len: 8,
        });
        for value in [20, 30] {
            assert_eq!(libc::readv(from, parts.as_ptr(), 2), 16);
            for page in &pages {
                page.word(0).fetch_add(value, Relaxed);
            }
            assert_eq!(libc::writev(to, parts.as_ptr(), 2), 16);
        }
        assert_eq!(libc::readv(from, parts.as_ptr(), 2), 16);
        let mut ends = [0; 2];
        assert_eq!(
            libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM, 0, ends.as_mut_ptr()),
            0
        );
        for (turn, page) in pages.iter().enumerate() {
            assert_eq!(libc::send(ends[0], page.start.cast(), 8, 0), 8);
            let other = &pages[1 - turn];
            assert_eq!(libc::recv(ends[1], other.start.cast(), 8, 0), 8);
        }
        let mut head: libc::msghdr = std::mem::zeroed();
        head.msg_iov = parts.as_ptr().cast_mut();
        head.msg_iovlen = 2;
        assert_eq!(libc::sendmsg(ends[0], &raw const head, 0), 16);
        assert_eq!(libc::recvmsg(ends[1], &raw mut head, 0), 16);
        for file in ends.into_iter().chain([from, to]) {
            libc::close(file);
        }
    }
    assert_eq!(
        [0, 1].map(|at: usize| pages[at].word(0).load(Relaxed)),
        [57, 57]
    );
    // What was opened beside the thread's own domain is closed again.
    let entries = regions.moves().faults;
    for turn in 0..10 {
        pages[turn % 2].word(1).fetch_add(1, Relaxed);
    }
    assert!(regions.moves().faults >= entries + 9);
}

pub fn what_cannot_be_caught_is_refused(form: Form) {
    let regions = begin(form).unwrap();
    let said = |domain, start: *mut u8, bytes| {
        // SAFETY: refused.
        let outcome = unsafe { regions.register(domain, start, bytes) };
        outcome.unwrap_err().to_string()
    };
    let pages = Pages::new(2);
    let mut local = 0u64;
    let stack = (&raw mut local)
        .map_addr(|at| at & !(PAGE - 1))
        .cast::<u8>();
    // SAFETY: no memory is touched.
    let inside = unsafe { pages.start.add(8) };
    for (text, word) in [
        (said(2, pages.start, PAGE), "there are 2"),
        (said(0, inside, PAGE), "whole pages"),
        (said(0, pages.start, 0), "no bytes"),
        (said(0, pages.start, 4 * PAGE), "access `---p`"),
        (said(0, stack, PAGE), "[stack]"),
    ] {
        assert!(text.contains(word), "{text}");
    }
    let closed = Pages::with(1, libc::PROT_READ);
    assert!(said(0, closed.start, PAGE).contains("access `r--p`"));
    let region = pages.register(&regions, 0);
    assert!(said(1, pages.start, PAGE).contains("give that back first"));
    regions.give_back(region);
    pages.register(&regions, 1);
    let second = Transparent::begin(domains_of_all(), Closing::Any);
    assert!(second.unwrap_err().to_string().contains("already"));
}

pub fn too_often_is_global(form: Form) {
    let regions = begin(form).unwrap();
    let pages = [Pages::new(1), Pages::new(1)];
    let registered = [0, 1].map(|index| pages[index].register(&regions, index));
    let touch = |turns: usize| {
        for turn in 0..turns {
            pages[turn % 2].word(0).fetch_add(1, Relaxed);
        }
    };
    touch(200);
    assert_eq!(
        regions.global(&registered[0]),
        None,
        "it was asked to be closed always"
    );
    // As it pays, with working sets that the rule lets through.
    regions.set_use(RegionUse::Auto).unwrap();
    for domain in [0, 1] {
        regions.declare(domain, 3 << 18).unwrap();
    }
    let state = || regions.state().unwrap();
    while !state().is_settled {
        touch(1000);
    }
    // Visits of a touch are shorter than what they cost.
    assert!(!state().is_on, "{:?}", state());
    assert_eq!(state().reason.word(), "too-short", "{:?}", state());
    let before = regions.moves().faults;
    touch(1000);
    // By page protection the first touch opens.
    assert!(regions.moves().faults <= before + 1);
}

pub fn all_is_given_back(form: Form) {
    let regions = begin(form).unwrap();
    let pages = [Pages::new(1), Pages::new(1)];
    let [first, _second] = [0, 1].map(|index| pages[index].register(&regions, index));
    for turn in 0..10 {
        pages[turn % 2].word(0).fetch_add(1, Relaxed);
    }
    regions.give_back(first);
    let before = regions.moves().faults;
    pages[0].word(0).fetch_add(1, Relaxed);
    assert_eq!(regions.moves().faults, before);
    drop(regions);
    for page in &pages {
        page.word(0).fetch_add(1, Relaxed);
    }
    let again = begin(form).unwrap();
    let _registered = [0, 1].map(|index| pages[index].register(&again, index));
    for turn in 0..10 {
        pages[turn % 2].word(0).fetch_add(1, Relaxed);
    }
    assert_eq!(pages[0].word(0).load(Relaxed), 12);
}

pub fn children_go_on(form: Form) {
    let regions = begin(form).unwrap();
    let pages = [Pages::new(1), Pages::new(1)];
    let _registered = [0, 1].map(|index| pages[index].register(&regions, index));
    pages[0].word(0).store(3, Relaxed);
    // SAFETY: the child touches memory of ours and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for turn in 0..100 {
            pages[turn % 2].word(0).fetch_add(1, Relaxed);
        }
        let good = pages[0].word(0).load(Relaxed) == 53 && regions.state().is_err();
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    pages[1].word(0).fetch_add(1, Relaxed);
    assert_eq!(
        [0, 1].map(|at: usize| pages[at].word(0).load(Relaxed)),
        [3, 1]
    );
}

/// Each of several threads has its own domain open; by page protection a second one opens all, with the reason.
pub fn threads(form: Form) {
    let before = sys::allowed_cpus().unwrap();
    let regions = begin(form).unwrap();
    let pages = [Pages::new(1), Pages::new(1)];
    let registered = [0, 1].map(|index| pages[index].register(&regions, index));
    pages[0].word(0).fetch_add(1, Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Its maker had gone to a domain, and came back for it.
            assert_eq!(sys::allowed_cpus().unwrap(), before);
            for turn in 0..100 {
                pages[turn % 2].word(0).fetch_add(1, Relaxed);
                if form == Form::Keys {
                    assert_eq!(here(), turn % 2);
                }
            }
        });
    });
    assert_eq!(pages[0].word(0).load(Relaxed), 51);
    let expected = (form == Form::Protection).then_some(Global::Threads);
    assert_eq!(regions.global(&registered[1]), expected);
    if form == Form::Protection {
        let other = Pages::new(1);
        let (go, end) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                go.wait();
                end.wait();
            });
            go.wait();
            // SAFETY: refused.
            let outcome = unsafe { regions.register(0, other.start, PAGE) };
            end.wait();
            let text = outcome.unwrap_err().to_string();
            assert!(text.contains("2 threads"), "{text}");
        });
    }
}

pub fn keys_are_used_up(form: Form) {
    if form == Form::Protection {
        return;
    }
    let mut taken = Vec::new();
    while let Ok(key) = pkey::alloc_key() {
        taken.push(key);
    }
    let none = Transparent::begin(domains_of_all(), Closing::By(Form::Keys));
    assert!(none.unwrap_err().to_string().contains("no protection keys"));
    // One is left: the second domain has none.
    pkey::free_key(taken.pop().unwrap());
    let regions = begin(form).unwrap();
    let pages = [Pages::new(1), Pages::new(1)];
    let registered = [0, 1].map(|index| pages[index].register(&regions, index));
    assert_eq!(regions.global(&registered[0]), None);
    let why = regions.global(&registered[1]);
    assert_eq!(why, Some(Global::NoKey));
    assert!(
        why.unwrap()
            .to_string()
            .contains("all protection keys are used")
    );
    for turn in 0..10 {
        pages[turn % 2].word(0).fetch_add(1, Relaxed);
    }
    assert_eq!(regions.entries(&registered[1]), 0);
    drop(regions);
    taken.into_iter().for_each(pkey::free_key);
}
