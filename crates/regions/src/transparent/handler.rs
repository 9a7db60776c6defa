//! The handler of SIGSEGV, and what else a thread does when it goes from one domain to another.
//!
//! Nothing here allocates or locks, and the handler runs with all signals held back. A thread's own state is a few
//! words of thread-local storage that need no destructor; they are atomic because a handler may come in between.
//!
//! Every way out of a touch of a region opens the page for this thread at least: the access goes on, whatever else fails.

use super::chain;
use super::rule::{Form, Global, Mode, Step, Touch, next_mean, opened, step, too_often};
use super::table::{
    self, BOTH, FAULT_NS, FAULTS, IS_LIMITED, MOVE_NS, MOVES, NONE, OPEN, OURS, OWNER,
    PAGE_FAULT_NS, PLACES, Slot, THREADS, UNMOVED,
};
use hither_linux::sys::fault::{self, CpuMask, MASK_WORDS};
use hither_linux::sys::pkey::{SEGV_ACCERR, SEGV_PKUERR, closed};
use hither_linux::sys::{monotonic_ns, thread_id};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Of `siginfo_t`: the key of a SEGV_PKUERR.
const SI_PKEY: usize = 32;

/// Where a thread is.
struct Here {
    domain: AtomicU32,
    /// Its line of [`THREADS`].
    line: AtomicU32,
    strays: AtomicU32,
    /// When its visit began; 0 before the first one.
    began_ns: AtomicU64,
    /// More than its domain is open, for an instruction that touched two.
    has_both: AtomicBool,
    /// What the last touch found.
    registers: [AtomicU64; REGISTERS],
}

/// General registers of x86-64, the stack pointer and the program counter among them: the first ones in a frame.
const REGISTERS: usize = 17;

thread_local! {
    static HERE: Here = const {
        Here {
            domain: AtomicU32::new(NONE),
            line: AtomicU32::new(NONE),
            strays: AtomicU32::new(0),
            began_ns: AtomicU64::new(0),
            has_both: AtomicBool::new(false),
            registers: [const { AtomicU64::new(0) }; REGISTERS],
        }
    };
}

/// # Safety
/// The kernel calls it.
pub(super) unsafe extern "C" fn on_fault(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: the C library's word of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    // SAFETY: as passed by the kernel.
    unsafe {
        if !is_ours(info, context) {
            chain::pass(signal, info, context);
        }
        *errno = before;
    }
}

/// # Safety
/// Within the handler, with its arguments.
unsafe fn is_ours(info: *mut libc::siginfo_t, context: *mut c_void) -> bool {
    // SAFETY: as the caller vouches; a SIGSEGV with these codes has an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as u64) };
    match table::form() {
        Some(Form::Keys) if code == SEGV_PKUERR => {
            // SAFETY: `siginfo_t` has 128 bytes, and these hold the key.
            let key = unsafe { info.cast::<u8>().add(SI_PKEY).cast::<u32>().read() };
            // SAFETY: as the caller vouches.
            unsafe { touched_key(address, key, context) }
        }
        // SAFETY: as the caller vouches.
        Some(Form::Protection) if code == SEGV_ACCERR => unsafe {
            touched_protected(address, context)
        },
        // A touch just before the last region was opened may come here after it. It is made again, once.
        None if code == SEGV_PKUERR || code == SEGV_ACCERR => {
            // SAFETY: as the caller vouches.
            !HERE.with(|here| unsafe { is_as_before(here, context) })
        }
        _ => false,
    }
}

/// # Safety
/// `context` is the handler's.
unsafe fn touched_key(address: u64, key: u32, context: *mut c_void) -> bool {
    let ours = OURS.load(Relaxed);
    if key >= 16 || ours & closed(key) == 0 {
        return false;
    }
    FAULTS.fetch_add(1, Relaxed);
    // SAFETY: as the caller vouches.
    let frame = unsafe { table::pkru().in_frame(context) };
    let found = table::find(address);
    let Some(frame) = frame else {
        // Without the register there are no threads that have a key open.
        let Some(slot) = found else {
            return false;
        };
        slot.make_global(Global::Refused);
        return true;
    };
    let before = frame.get();
    let Some(slot) = found else {
        // It was a region until just now, or its pages were moved by mremap(2).
        frame.set(before & !closed(key));
        return true;
    };
    HERE.with(|here| {
        let own = here.domain.load(Relaxed);
        let bits = |domain: u32| PLACES.get(domain as usize).map_or(0, |place| place.bits());
        let strays = here.strays.load(Relaxed);
        let touch = Touch {
            mode: table::mode(),
            is_global: slot.global().is_some(),
            is_astray: before & bits(own) != 0,
            strays,
            // SAFETY: as the caller vouches.
            is_stuck: unsafe { is_stuck(here, context) },
        };
        let domain = slot.domain.load(Relaxed);
        match step(touch) {
            Step::Again => frame.set(before & !closed(key)),
            Step::Also => {
                here.has_both.store(true, Relaxed);
                BOTH.fetch_add(1, Relaxed);
                frame.set(before & !closed(key));
            }
            Step::Open => {
                let is_astray = u32::from(touch.is_astray && domain != own);
                here.strays.store(is_astray * (strays + 1), Relaxed);
                frame.set(opened(before, ours, closed(key)));
            }
            step @ (Step::Watch | Step::Move) => {
                frame.set(opened(before, ours, closed(key)));
                let open_before = !before & ours;
                visit(here, slot, domain, step == Step::Move, open_before);
            }
        }
    });
    true
}

/// # Safety
/// `context` is the handler's.
unsafe fn touched_protected(address: u64, context: *mut c_void) -> bool {
    let Some(slot) = table::find(address) else {
        return false;
    };
    let domain = slot.domain.load(Relaxed);
    if slot.global().is_none() && OPEN.load(Relaxed) & 1 << domain != 0 {
        // The program itself has closed it.
        return false;
    }
    FAULTS.fetch_add(1, Relaxed);
    if thread_id() != OWNER.load(Relaxed) {
        table::used().for_each(|slot| slot.make_global(Global::Threads));
        return true;
    }
    let touch = Touch {
        mode: table::mode(),
        is_global: slot.global().is_some(),
        is_astray: false,
        strays: 0,
        // SAFETY: as the caller vouches.
        is_stuck: HERE.with(|here| unsafe { is_stuck(here, context) }),
    };
    match step(touch) {
        // It is open by now, unless the kernel refused even that.
        Step::Again => slot.open(),
        Step::Also => {
            HERE.with(|here| here.has_both.store(true, Relaxed));
            BOTH.fetch_add(1, Relaxed);
            open_domains(OPEN.load(Relaxed) | 1 << domain);
            true
        }
        Step::Open => {
            open_domains(u32::MAX);
            HERE.with(go_home);
            true
        }
        step @ (Step::Watch | Step::Move) => {
            HERE.with(|here| {
                let from = monotonic_ns();
                open_domains(1 << domain);
                let took = monotonic_ns().saturating_sub(from) + PAGE_FAULT_NS.load(Relaxed);
                FAULT_NS.store(next_mean(FAULT_NS.load(Relaxed), took), Relaxed);
                visit(here, slot, domain, step == Step::Move, 0);
            });
            true
        }
    }
}

/// Has the instruction that is to be made again made the last touch, too, with the same registers? It needs both
/// domains then, as `rep movs` does, or an instruction that stands in the one and loads from the other.
///
/// # Safety
/// `context` is the handler's.
unsafe fn is_stuck(here: &Here, context: *mut c_void) -> bool {
    // SAFETY: as the caller vouches.
    let is_same = unsafe { is_as_before(here, context) };
    cfg!(target_arch = "x86_64") && is_same && here.domain.load(Relaxed) != NONE
}

/// Are all registers as they were at the last fault that came here? Notes them.
///
/// # Safety
/// `context` is the handler's.
unsafe fn is_as_before(here: &Here, context: *mut c_void) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: as the caller vouches.
        let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let mut is_same = true;
        for (kept, &now) in here.registers.iter().zip(registers) {
            is_same &= kept.swap(now as u64, Relaxed) == now as u64;
        }
        is_same
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // Not known: nothing is made again for it.
        let _ = (here, context);
        true
    }
}

/// By page protection: opens these domains, a bit each, and closes all others.
fn open_domains(wanted: u32) {
    let open = OPEN.load(Relaxed);
    for slot in table::used().filter(|slot| slot.global().is_none()) {
        let bit = 1 << slot.domain.load(Relaxed);
        let is_done = match (open & bit != 0, wanted & bit != 0) {
            (false, true) => slot.open(),
            (true, false) => slot.close(),
            _ => true,
        };
        if !is_done {
            slot.make_global(Global::Refused);
        }
    }
    OPEN.store(wanted, Relaxed);
}

/// Ends the thread's visit and begins one to a region's domain. `open_before` are bits of our keys that were open.
fn visit(here: &Here, slot: &Slot, domain: u32, moves: bool, open_before: u32) {
    let now = monotonic_ns();
    let before = here.domain.swap(domain, Relaxed);
    let began = here.began_ns.swap(now, Relaxed);
    here.strays.store(0, Relaxed);
    here.has_both.store(false, Relaxed);
    slot.entries.fetch_add(1, Relaxed);
    let took = now.saturating_sub(began);
    if let (Some(place), true) = (PLACES.get(before as usize), began != 0) {
        place.visits.fetch_add(1, Relaxed);
        place.visit_ns.fetch_add(took, Relaxed);
    }
    go(here, domain, moves, open_before);
    if !moves || began == 0 {
        return;
    }
    let own = monotonic_ns().saturating_sub(now);
    let mean = MOVE_NS.load(Relaxed);
    MOVE_NS.store(next_mean(mean, own), Relaxed);
    if !IS_LIMITED.load(Relaxed) {
        return;
    }
    let cost = FAULT_NS.load(Relaxed) + mean;
    match too_often(slot.add_gap(took), cost) {
        Some(true) => slot.make_global(Global::TooOften),
        Some(false) => slot.forget_gaps(),
        None => {}
    }
}

/// Notes where the thread is, and takes it there.
fn go(here: &Here, domain: u32, moves: bool, open_before: u32) {
    let mut line = here.line.load(Relaxed);
    let is_new = line == NONE;
    if is_new {
        let Some(claimed) = table::claim(thread_id()) else {
            UNMOVED.fetch_add(1, Relaxed);
            return;
        };
        line = claimed;
        here.line.store(line, Relaxed);
    }
    let thread = &THREADS[line as usize];
    thread.domain.store(domain, SeqCst);
    if !is_new && !moves {
        return;
    }
    let now_on = fault::affinity(0);
    if is_new {
        let wanted = inherited(&now_on, open_before).unwrap_or(now_on);
        thread.set_wanted(&wanted);
        thread.set_given(&now_on);
    } else if now_on != thread.given() {
        // The program has put it elsewhere since.
        thread.set_wanted(&now_on);
    }
    if moves {
        take(thread, domain, &now_on);
    }
}

/// A thread that was started during a visit has its maker's CPUs and open key: the CPUs that it may have instead.
fn inherited(now_on: &CpuMask, open_before: u32) -> Option<CpuMask> {
    let allowed = table::allowed();
    let mut places = PLACES
        .iter()
        .filter(|place| place.bits() & open_before != 0);
    places
        .any(|place| table::both(&place.mask(), &allowed) == *now_on)
        .then_some(allowed)
}

fn take(thread: &table::Thread, domain: u32, now_on: &CpuMask) {
    let wanted = thread.wanted();
    let mut target = table::both(&wanted, &PLACES[domain as usize].mask());
    if target == [0; MASK_WORDS] {
        UNMOVED.fetch_add(1, Relaxed);
        target = *now_on;
    }
    if target != *now_on {
        if fault::set_affinity(0, &target).is_ok() {
            MOVES.fetch_add(1, Relaxed);
        } else {
            UNMOVED.fetch_add(1, Relaxed);
            target = *now_on;
        }
    }
    thread.set_given(&target);
    if table::mode() == Mode::Off && fault::set_affinity(0, &wanted).is_ok() {
        thread.set_given(&wanted);
    }
}

/// Takes the thread back to the CPUs that the program wants it on, unless the program has put it elsewhere since.
fn go_home(here: &Here) {
    let Some(thread) = THREADS.get(here.line.load(Relaxed) as usize) else {
        return;
    };
    thread.domain.store(NONE, SeqCst);
    thread.send_home(0);
}

/// Ends the thread's visit: its regions are closed to it, and it may run where the program wants it. Threads and programs that it
/// starts now do not inherit a domain's CPUs.
///
/// It makes system calls where a visit is to be ended alone. It may be called anywhere, in signal handlers as well.
pub fn leave() {
    let Some(form) = table::form() else { return };
    HERE.with(|here| {
        if here.domain.swap(NONE, Relaxed) == NONE {
            return;
        }
        here.began_ns.store(0, Relaxed);
        match form {
            Form::Keys => {
                let pkru = table::pkru();
                pkru.write(opened(pkru.read(), OURS.load(Relaxed), 0));
            }
            Form::Protection if thread_id() == OWNER.load(Relaxed) => open_domains(0),
            Form::Protection => {}
        }
        go_home(here);
    });
}

/// Closes what [`open_for`] has opened beside the domain in which its thread is.
#[derive(Debug)]
#[must_use = "what was opened is closed when this is dropped: keep it until the system call has returned"]
pub struct Opened {
    also: u32,
    /// It is of the thread that made it.
    of_thread: std::marker::PhantomData<*const ()>,
}

/// Opens the regions that these bytes touch, for a system call that the calling thread makes next: the kernel's accesses to
/// a closed region move nobody, and fail with EFAULT.
///
/// The thread visits the region from then on, as if it had touched it itself. Where the bytes lie in regions of several domains,
/// the others are open until the answer is dropped.
#[inline]
pub fn open_for(start: *const u8, bytes: usize) -> Opened {
    open_ranges(std::iter::once((start as u64, bytes as u64)))
}

/// The same of several ranges.
#[inline]
pub fn open_ranges(ranges: impl Iterator<Item = (u64, u64)>) -> Opened {
    let also = match table::form() {
        None => 0,
        Some(form) => open_all(form, ranges),
    };
    Opened {
        also,
        of_thread: std::marker::PhantomData,
    }
}

fn open_all(form: Form, ranges: impl Iterator<Item = (u64, u64)>) -> u32 {
    if HERE.with(|here| here.has_both.load(Relaxed)) {
        end_both(form);
    }
    let (mut wanted, mut first) = (0u32, None);
    for (start, bytes) in ranges {
        for slot in table::touching(start, bytes) {
            if slot.global().is_none() {
                wanted |= 1 << slot.domain.load(Relaxed);
                first = first.or(Some(slot));
            }
        }
    }
    let Some(first) = first else { return 0 };
    let own = HERE.with(|here| here.domain.load(Relaxed));
    let stays = PLACES.get(own as usize).is_some() && wanted & 1 << own != 0;
    match form {
        Form::Keys => open_keys(wanted, own, stays, first),
        Form::Protection => open_protected(wanted, own, stays, first),
    }
}

/// Closes what an instruction had opened beside the thread's own domain.
#[cold]
fn end_both(form: Form) {
    let own = HERE.with(|here| {
        here.has_both.store(false, Relaxed);
        here.domain.load(Relaxed)
    });
    match form {
        Form::Keys => {
            let pkru = table::pkru();
            let bits = PLACES.get(own as usize).map_or(0, |place| place.bits());
            pkru.write(pkru.read() | OURS.load(Relaxed) & !bits);
        }
        Form::Protection if thread_id() == OWNER.load(Relaxed) && table::mode() != Mode::Off => {
            open_domains(if own < 32 { 1 << own } else { 0 });
        }
        Form::Protection => {}
    }
}

fn bits_of(domains: u32) -> u32 {
    let places = PLACES.iter().enumerate();
    let of = places.filter(|(index, _)| domains & 1 << index != 0);
    of.fold(0, |bits, (_, place)| bits | place.bits())
}

fn open_keys(wanted: u32, own: u32, stays: bool, first: &Slot) -> u32 {
    let (pkru, ours) = (table::pkru(), OURS.load(Relaxed));
    let before = pkru.read();
    let bits = bits_of(wanted);
    if before & bits == 0 && stays {
        return 0;
    }
    let domain = first.domain.load(Relaxed);
    let mode = table::mode();
    if !stays && mode != Mode::Off {
        HERE.with(|here| visit(here, first, domain, mode == Mode::Move, !before & ours));
    } else if !stays {
        HERE.with(|here| here.domain.store(domain, Relaxed));
    }
    pkru.write(opened(before, ours, bits));
    let home = if stays { own } else { domain };
    wanted & !(1 << home)
}

fn open_protected(wanted: u32, own: u32, stays: bool, first: &Slot) -> u32 {
    if thread_id() != OWNER.load(Relaxed) {
        table::used().for_each(|slot| slot.make_global(Global::Threads));
        return 0;
    }
    let mode = table::mode();
    if mode == Mode::Off || OPEN.load(Relaxed) & wanted == wanted {
        if mode == Mode::Off {
            open_domains(u32::MAX);
        }
        return 0;
    }
    let domain = first.domain.load(Relaxed);
    let home = if stays { own } else { domain };
    open_domains(wanted);
    if !stays {
        HERE.with(|here| visit(here, first, domain, mode == Mode::Move, 0));
    }
    wanted & !(1 << home)
}

impl Drop for Opened {
    #[inline]
    fn drop(&mut self) {
        if self.also == 0 {
            return;
        }
        match table::form() {
            Some(Form::Keys) => {
                let pkru = table::pkru();
                pkru.write(pkru.read() | bits_of(self.also));
            }
            Some(Form::Protection) if table::mode() != Mode::Off => {
                open_domains(OPEN.load(Relaxed) & !self.also);
            }
            _ => {}
        }
    }
}
