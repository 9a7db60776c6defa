//! The program's own handlers: of SIGSEGV, set before and after, left by a jump, within each other.

use crate::begin;
use crate::memory::{PAGE, Pages};
use hither_regions::{Form, Transparent};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicPtr, AtomicU64};

/// What the handlers below saw, and use.
static OWN_FAULTS: AtomicU64 = AtomicU64::new(0);
static OTHERS: AtomicU64 = AtomicU64::new(0);
static SHARED: [AtomicPtr<AtomicU64>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];

fn shared(domain: usize) -> &'static AtomicU64 {
    // SAFETY: tests set it to a word that lives as long as handlers may run.
    unsafe { &*SHARED[domain].load(Relaxed) }
}

fn share(pages: &[Pages; 2], index: usize) {
    for (shared, pages) in SHARED.iter().zip(pages) {
        shared.store(std::ptr::from_ref(pages.word(index)).cast_mut(), Relaxed);
    }
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

fn set(signal: c_int, handler: Handler, flags: c_int) -> libc::sigaction {
    // SAFETY: plain data, and a handler of this kind.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
        new.sa_sigaction = handler as *const () as usize;
        new.sa_flags = libc::SA_SIGINFO | flags;
        // All signals held back meanwhile, as careful programs do.
        libc::sigfillset(&raw mut new.sa_mask);
        assert_eq!(libc::sigaction(signal, &raw const new, &raw mut old), 0);
        old
    }
}

fn set_back(signal: c_int, old: &libc::sigaction) {
    // SAFETY: what `set` returned.
    unsafe { assert_eq!(libc::sigaction(signal, old, std::ptr::null_mut()), 0) };
}

/// Maps what was touched, and touches regions itself.
extern "C" fn maps(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    OWN_FAULTS.fetch_add(1, Relaxed);
    for domain in [0, 1] {
        shared(domain).fetch_add(1, Relaxed);
    }
    // SAFETY: the kernel's structure; the page is the test's.
    unsafe {
        let page = (*info).si_addr().map_addr(|at| at & !(PAGE - 1));
        libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE);
    }
}

fn guarded(regions: &Transparent, pages: &[Pages; 2]) {
    share(pages, 5);
    let before = OWN_FAULTS.load(Relaxed);
    let regions_before = pages[0].word(5).load(Relaxed);
    for turn in 0..20 {
        let guard = Pages::with(1, libc::PROT_NONE);
        pages[turn % 2].word(0).fetch_add(1, Relaxed);
        guard.word(3).store(9, Relaxed);
        assert_eq!(guard.word(3).load(Relaxed), 9);
        pages[turn % 2].word(0).fetch_add(1, Relaxed);
    }
    assert_eq!(OWN_FAULTS.load(Relaxed), before + 20);
    assert_eq!(pages[0].word(5).load(Relaxed), regions_before + 20);
    assert!(regions.is_in_front());
}

pub fn own_handler_before(form: Form) {
    let old = set(libc::SIGSEGV, maps, 0);
    let regions = begin(form).unwrap();
    let pages = [Pages::new(1), Pages::new(1)];
    let _registered = [0, 1].map(|index| pages[index].register(&regions, index));
    guarded(&regions, &pages);
    drop(regions);
    // It is the kernel's again.
    let ours = set(libc::SIGSEGV, maps, 0);
    assert_eq!(ours.sa_sigaction, maps as *const () as usize);
    set_back(libc::SIGSEGV, &old);
}

pub fn own_handler_after(form: Form) {
    let regions = begin(form).unwrap();
    let pages = [Pages::new(1), Pages::new(1)];
    let _registered = [0, 1].map(|index| pages[index].register(&regions, index));
    let old = set(libc::SIGSEGV, maps, 0);
    guarded(&regions, &pages);
    // On a stack of its own, with room for a handler within a handler.
    let stack = Pages::new(64);
    // SAFETY: plain data; the stack lives until the one before is set again.
    let before = unsafe {
        let mut before: libc::stack_t = std::mem::zeroed();
        let new = libc::stack_t {
            ss_sp: stack.start.cast(),
            ss_flags: 0,
            ss_size: stack.bytes,
        };
        assert_eq!(libc::sigaltstack(&raw const new, &raw mut before), 0);
        before
    };
    set(libc::SIGSEGV, maps, libc::SA_ONSTACK);
    guarded(&regions, &pages);
    // SAFETY: the one that was set.
    unsafe {
        assert_eq!(
            libc::sigaltstack(&raw const before, std::ptr::null_mut()),
            0
        )
    };
    let seen = set(libc::SIGSEGV, maps, 0);
    assert_eq!(seen.sa_sigaction, maps as *const () as usize);
    assert_eq!(seen.sa_flags & libc::SA_ONSTACK, libc::SA_ONSTACK);
    set_back(libc::SIGSEGV, &old);
}

/// A load that a handler may leave by a jump, as `sigsetjmp` and `siglongjmp` do; those cannot be called from Rust.
#[cfg(target_arch = "x86_64")]
mod jump {
    use std::cell::Cell;

    thread_local! {
        static BACK: Cell<[u64; 2]> = const { Cell::new([0; 2]) };
    }

    /// Loads from `address`: 1, or 0 where a handler has left the load by [`leave`].
    #[unsafe(naked)]
    unsafe extern "C" fn load(address: *const u8, back: *mut u64) -> u32 {
        std::arch::naked_asm!(
            "push rbx",
            "push rbp",
            "push r12",
            "push r13",
            "push r14",
            "push r15",
            "mov [rsi], rsp",
            "lea rax, [rip + 2f]",
            "mov [rsi + 8], rax",
            "mov al, [rdi]",
            "mov eax, 1",
            "jmp 3f",
            "2:",
            "xor eax, eax",
            "3:",
            "pop r15",
            "pop r14",
            "pop r13",
            "pop r12",
            "pop rbp",
            "pop rbx",
            "ret",
        )
    }

    pub fn can_load(address: *const u8) -> bool {
        // SAFETY: the load faults at worst, and the place to go on at is of this thread.
        BACK.with(|back| unsafe { load(address, back.as_ptr().cast()) == 1 })
    }

    /// # Safety
    /// In a handler that came in during [`can_load`] of this thread.
    pub unsafe fn leave() -> ! {
        let [stack, at] = BACK.get();
        // SAFETY: as the caller vouches: the frame is there, and nothing in between has anything to give back.
        unsafe {
            std::arch::asm!("mov rsp, {}", "jmp {}", in(reg) stack, in(reg) at, options(noreturn))
        }
    }
}

#[cfg(target_arch = "x86_64")]
extern "C" fn jumps_out(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    OWN_FAULTS.fetch_add(1, Relaxed);
    // SAFETY: the mask as it was; the faults of these tests are within `can_load` alone.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        jump::leave()
    }
}

/// Nothing is left in a thread that leaves a handler: it goes on following.
pub fn jumps(form: Form) {
    #[cfg(target_arch = "x86_64")]
    {
        let regions = begin(form).unwrap();
        let pages = [Pages::new(1), Pages::new(1)];
        let _registered = [0, 1].map(|index| pages[index].register(&regions, index));
        let guard = Pages::with(1, libc::PROT_NONE);
        let old = set(libc::SIGSEGV, jumps_out, 0);
        for turn in 0..100 {
            pages[turn % 2].word(0).fetch_add(1, Relaxed);
            assert!(!jump::can_load(guard.start));
            pages[turn / 2 % 2].word(0).fetch_add(1, Relaxed);
            assert!(jump::can_load(pages[turn % 2].start));
        }
        let before = regions.moves().moves;
        for turn in 0..20 {
            pages[turn % 2].word(0).fetch_add(1, Relaxed);
        }
        assert!(regions.moves().moves > before + 10, "{:?}", regions.moves());
        let sum: u64 = [0, 1]
            .iter()
            .map(|&at: &usize| pages[at].word(0).load(Relaxed))
            .sum();
        assert_eq!(sum, 220);
        set_back(libc::SIGSEGV, &old);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = form;
}

/// Touches both domains, and raises the other signal in between.
extern "C" fn outer(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    shared(0).fetch_add(1, Relaxed);
    OTHERS.fetch_add(1, Relaxed);
    // SAFETY: a signal to this thread; its mask lets it through.
    unsafe {
        let mut open: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut open, libc::SIGUSR2);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const open, std::ptr::null_mut());
        libc::raise(libc::SIGUSR2);
    }
    shared(1).fetch_add(1, Relaxed);
}

extern "C" fn inner(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    for turn in 0..6 {
        shared(turn % 2).fetch_add(1, Relaxed);
    }
    OTHERS.fetch_add(1, Relaxed);
}

/// Loads from both domains, wherever it comes in.
extern "C" fn looks(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    for domain in [0, 1] {
        std::hint::black_box(shared(domain).load(Relaxed));
    }
}

/// What one SIGUSR1 adds to the shared words.
pub const BY_ONE: u64 = 4;

/// Handlers for the storm as well.
pub fn set_nested(pages: &[Pages; 2], index: usize) {
    share(pages, index);
    set(libc::SIGUSR1, outer, libc::SA_NODEFER);
    set(libc::SIGUSR2, inner, 0);
    set(libc::SIGWINCH, looks, 0);
}

pub fn nested(form: Form) {
    let regions = begin(form).unwrap();
    let pages = [Pages::new(1), Pages::new(1)];
    let _registered = [0, 1].map(|index| pages[index].register(&regions, index));
    set_nested(&pages, 9);
    let before = OTHERS.load(Relaxed);
    for turn in 0..50 {
        pages[turn % 2].word(0).fetch_add(1, Relaxed);
        // SAFETY: its handler is above.
        unsafe { libc::raise(libc::SIGUSR1) };
        pages[turn % 2].word(0).fetch_add(1, Relaxed);
    }
    assert_eq!(OTHERS.load(Relaxed), before + 100);
    for page in &pages {
        assert_eq!(
            (page.word(0).load(Relaxed), page.word(9).load(Relaxed)),
            (50, 50 * BY_ONE)
        );
    }
}
