//! The transparent form: threads go to their regions' caches by themselves, when they touch them.
//!
//! Problem: [`crate::Region`] and [`crate::Unified`] need a program that says when it goes from one region to another.
//! Programs that do not say so touch memory all the same, and the processor can tell.
//!
//! Mechanism: each domain has a protection key, and each thread has the key of its own domain open alone ([`Form::Keys`]).
//! A touch of another domain's region raises SIGSEGV. The handler moves the thread to the domain's CPUs, as far as the
//! program lets it run there, opens the key in the register that the thread returns to, closes the one before, and
//! the access is made again. Where the processor has no keys, a program with one thread closes by mprotect(2) instead
//! ([`Form::Protection`]), at a cost that grows with the pages.
//!
//! - [`rule`] decides what a touch does, and when a region is open to all; pure;
//! - [`table`] is what the handler reads, static and atomic;
//! - [`handler`] is the handler, and [`open_for`], for buffers of system calls, where the kernel's touches would fail;
//! - [`chain`] hands what is no touch to the program's own handler;
//! - [`refuse`] says what is no region;
//! - [`policy`] tries whether it gains, by the judge of [`crate::Unified`];
//! - [`calls`] stands in for functions of the C library, where a program asks for it.
//!
//! `docs/micro-scheduling.md` is the manual, with what it costs and when it pays.

pub mod calls;
mod chain;
mod handler;
mod policy;
mod refuse;
mod rule;
mod table;

pub use handler::{Opened, leave, open_for, open_ranges};
pub use rule::{Form, Global};

use crate::domain::Domain;
use crate::error::Error;
use crate::life::Life;
use crate::unify::{Judge, RegionUse, UnifyState};
use hither_core::set::CpuSet;
use hither_linux::sys::fault::{self, CpuMask, MASK_WORDS};
use hither_linux::sys::pkey::{self, Pkru};
use hither_linux::sys::{monotonic_ns, thread_id};
use policy::Shared;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use table::{
    BOTH, FAULT_NS, FAULTS, IS_LIMITED, MOST_DOMAINS, MOST_REGIONS, MOVE_NS, MOVES, OPEN, OURS,
    OWNER, PAGE_FAULT_NS, PKRU_OFFSET, PLACES, SLOTS, UNMOVED,
};

/// Touches and moves that are timed for what one costs.
const TRIALS: usize = 33;
const PAGE: usize = 4096;

/// Is there a [`Transparent`] in this process? The handler of a signal is the process's.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// How regions are to be closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Closing {
    /// By keys where there are some, else by page protection.
    #[default]
    Any,
    /// By this alone.
    By(Form),
}

/// What happened so far, in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Touches of closed regions.
    pub faults: u64,
    /// Threads that went to other CPUs.
    pub moves: u64,
    /// Touches whose thread may use none of the domain's CPUs, so that it was opened where it was.
    pub unmoved: u64,
    /// Instructions that touched regions of two domains at once, so that both stay open to their thread for a while.
    pub both: u64,
    /// A touch without a move, in ns: fault, handler, return.
    pub fault_ns: u64,
    /// What a move adds to it, in the mean of late.
    pub move_ns: u64,
}

/// A region of the transparent kind: memory of one domain.
#[derive(Debug, PartialEq, Eq)]
pub struct Registered(usize);

/// Regions whose threads follow them without being told. One at a time in a process; all regions are opened
/// when it is dropped.
#[derive(Debug)]
pub struct Transparent {
    form: Form,
    domains: Vec<Domain>,
    /// Working sets by domain, and regions, under one lock.
    sets: Mutex<Vec<u64>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Its number.
    own: i32,
    life: Life,
}

impl Transparent {
    /// Domains with a key each. Nothing is closed yet. The calling thread makes some touches and moves, to learn what they cost.
    ///
    /// # Errors
    /// There is one already; there are no domains, or more than 15; there are neither keys nor a single thread; a cache's
    /// size is not known ([`Domain::with_cache_bytes`] says it).
    pub fn begin(domains: Vec<Domain>, closing: Closing) -> Result<Self, Error> {
        if !(1..=MOST_DOMAINS).contains(&domains.len()) {
            return Err(Error::Invalid(format!(
                "regions: {} domains: there can be 1 to {MOST_DOMAINS}, as many as protection keys",
                domains.len()
            )));
        }
        let mut bytes = Vec::new();
        for domain in &domains {
            bytes.push(domain.cache_bytes().ok_or_else(|| {
                Error::Invalid(format!(
                    "{domain}: the size of its cache is not known: say it by with_cache_bytes"
                ))
            })?);
        }
        let form = choose(closing)?;
        let life = Life::here().map_err(Error::system("no page to note forks in (Linux 4.14)"))?;
        if IS_TAKEN.swap(true, SeqCst) {
            let text =
                "regions: this process has transparent ones already: use those, or drop them";
            return Err(Error::Invalid(text.to_owned()));
        }
        let judge = Judge::new(vec![0; domains.len()], bytes);
        let shared = Shared::new(judge, domains.len());
        let mut made = Self {
            form,
            sets: Mutex::new(vec![0; domains.len()]),
            domains,
            shared,
            thread: None,
            own: 0,
            life,
        };
        IS_LIMITED.store(true, SeqCst);
        // Dropped where something fails, so that all is given back.
        made.prepare()?;
        Ok(made)
    }

    fn prepare(&mut self) -> Result<(), Error> {
        let allowed = fault::affinity(0);
        table::set_allowed(&allowed);
        OWNER.store(thread_id(), SeqCst);
        OPEN.store(0, SeqCst);
        PKRU_OFFSET.store(Pkru::find().map_or(0, |pkru| pkru.offset() as u32), SeqCst);
        let mut ours = 0;
        for (place, domain) in PLACES.iter().zip(&self.domains) {
            let mask = mask_of(domain.cpus())?;
            // The first one's absence was found in `choose`; of the others each is told by its regions.
            let key = match self.form {
                Form::Keys => pkey::alloc_key().ok(),
                Form::Protection => None,
            };
            ours |= key.map_or(0, pkey::closed);
            place.set(&mask, key);
        }
        OURS.store(ours, SeqCst);
        table::set_form(Some(self.form));
        chain::install().map_err(Error::system("regions: a handler of SIGSEGV"))?;
        self.measure()?;
        let (shared, (tell, told)) = (Arc::clone(&self.shared), mpsc::channel());
        // The program's signals are not its to take.
        let before = fault::swap_mask(Some(!fault::signal_bit(libc::SIGSEGV)));
        let started = std::thread::Builder::new()
            .name("hither-micro".to_owned())
            .stack_size(256 << 10)
            .spawn(move || {
                let _ = tell.send(thread_id());
                shared.run();
            });
        let _ = fault::swap_mask(Some(before));
        self.thread = Some(started.map_err(Error::system("no thread for regions: end some"))?);
        self.own = told.recv().unwrap_or(0);
        let mut course = self.shared.locked();
        self.shared.begin(&mut course);
        Ok(())
    }

    /// What a touch costs, by a page of our own, and what it costs to go to another domain's CPUs.
    fn measure(&self) -> Result<(), Error> {
        let page = Page::new().map_err(Error::system("regions: a page"))?;
        let start = page.0;
        table::store_mode(rule::Mode::Watch);
        let range = start as u64..(start as u64 + PAGE as u64);
        let index = self.take(&range, 0)?;
        let slot = &SLOTS[index];
        let is_closed = slot.close();
        let mut touches = Vec::new();
        for _ in 0..if is_closed { TRIALS } else { 0 } {
            leave();
            let from = monotonic_ns();
            // SAFETY: a page of ours, which the handler opens.
            unsafe { start.write_volatile(1) };
            touches.push(monotonic_ns() - from);
        }
        leave();
        slot.open();
        slot.free();
        table::store_mode(rule::Mode::Off);
        OPEN.store(u32::MAX, SeqCst);
        let touch = middle(touches);
        PAGE_FAULT_NS.store(touch, Relaxed);
        FAULT_NS.store(touch, Relaxed);
        let home = table::allowed();
        let mut moves = Vec::new();
        for turn in 0..TRIALS {
            let place = &PLACES[turn % self.domains.len()];
            let target = table::both(&home, &place.mask());
            let from = monotonic_ns();
            let _ = fault::affinity(0);
            if fault::set_affinity(0, &target).is_ok() {
                moves.push(monotonic_ns() - from);
            }
        }
        let _ = fault::set_affinity(0, &home);
        MOVE_NS.store(middle(moves), Relaxed);
        for count in [&FAULTS, &MOVES, &UNMOVED, &BOTH] {
            count.store(0, Relaxed);
        }
        Ok(())
    }

    fn take(&self, range: &Range<u64>, domain: usize) -> Result<usize, Error> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        table::take(range.start, range.end, domain as u32, access).ok_or_else(|| {
            Error::Invalid(format!(
                "regions: there are {MOST_REGIONS}: give some back, or register larger ones"
            ))
        })
    }

    /// Makes whole pages a region of a domain, by its number in the list that was passed. Its working set is taken to be all of
    /// it, until [`Transparent::declare`] says otherwise.
    ///
    /// # Errors
    /// There is no such domain; the range is another region's; it is not mapped, not readable and writable, or something touches
    /// it in ways that cannot be caught: the text says what, and what to do about it.
    ///
    /// # Safety
    /// Until it is given back the range stays mapped where it is, with the same access, and nobody else protects it or gives it a key.
    /// Threads that touch it do not hold SIGSEGV back. System calls get no buffer in it that was not opened ([`open_for`]).
    pub unsafe fn register(
        &self,
        domain: usize,
        start: *mut u8,
        bytes: usize,
    ) -> Result<Registered, Error> {
        self.in_parent()?;
        let range = start as u64..(start as u64).saturating_add(bytes as u64);
        if domain >= self.domains.len() {
            return Err(Error::Invalid(format!(
                "region: domain {domain}: there are {}, counted from 0",
                self.domains.len()
            )));
        }
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = table::touching(range.start, bytes as u64).next() {
            let (start, end) = other.range();
            return Err(Error::Invalid(format!(
                "region {:#x}-{:#x}: {start:#x}-{end:#x} is a region: give that back first",
                range.start, range.end
            )));
        }
        refuse::check(&range, self.form, self.own)?;
        sets[domain] = sets[domain].saturating_add(bytes as u64);
        let mut course = self.shared.locked();
        let index = self.take(&range, domain)?;
        let slot = &SLOTS[index];
        if self.form == Form::Keys && PLACES[domain].key().is_none() {
            slot.make_global(Global::NoKey);
        } else if table::mode() != rule::Mode::Off {
            let is_open = self.form == Form::Protection && OPEN.load(Relaxed) & 1 << domain != 0;
            if !is_open {
                slot.close_or_give_up();
            }
        }
        if course.judge.declare(domain, sets[domain]) {
            self.shared.begin(&mut course);
        }
        Ok(Registered(index))
    }

    /// Makes a region plain memory again, open to all.
    pub fn give_back(&self, region: Registered) {
        let slot = &SLOTS[region.0];
        if self.life.goes_on() {
            let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
            let mut course = self.shared.locked();
            let (start, end) = slot.range();
            let domain = slot.domain.load(Relaxed) as usize;
            sets[domain] = sets[domain].saturating_sub(end - start);
            slot.open();
            slot.free();
            if course.judge.declare(domain, sets[domain]) {
                self.shared.begin(&mut course);
            }
        } else {
            slot.open();
            slot.free();
        }
    }

    /// The regions of a domain have a working set of this size together. Where that is new, the decision is made anew.
    ///
    /// # Errors
    /// There is no such domain, or this is a child of the process that began it.
    pub fn declare(&self, domain: usize, bytes: u64) -> Result<(), Error> {
        self.in_parent()?;
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(set) = sets.get_mut(domain) else {
            return Err(Error::Invalid(format!(
                "region: there is no domain {domain}"
            )));
        };
        *set = bytes;
        let mut course = self.shared.locked();
        if course.judge.declare(domain, bytes) {
            self.shared.begin(&mut course);
        }
        Ok(())
    }

    /// How threads are to follow regions from now on: as it pays, always or never. Only as it pays does a region become global for
    /// being entered too often.
    ///
    /// # Errors
    /// This is a child of the process that began it.
    pub fn set_use(&self, wish: RegionUse) -> Result<(), Error> {
        self.in_parent()?;
        let mut course = self.shared.locked();
        IS_LIMITED.store(wish == RegionUse::Auto, SeqCst);
        course.judge.wish(wish);
        self.shared.begin(&mut course);
        Ok(())
    }

    /// What was decided, and why. As in [`crate::Unified`], a visit handed over is one that moves its thread.
    ///
    /// # Errors
    /// This is a child of the process that began it.
    pub fn state(&self) -> Result<UnifyState, Error> {
        self.in_parent()?;
        Ok(self.shared.locked().judge.state())
    }

    /// Why a region is open to all threads, for good; `None` where it is not.
    #[must_use]
    pub fn global(&self, region: &Registered) -> Option<Global> {
        SLOTS[region.0].global()
    }

    /// How often threads entered its domain by this region, since it was registered.
    #[must_use]
    pub fn entries(&self, region: &Registered) -> u64 {
        SLOTS[region.0].entries.load(Relaxed)
    }

    /// How regions are closed.
    #[must_use]
    pub fn form(&self) -> Form {
        self.form
    }

    /// What happened so far.
    #[must_use]
    pub fn moves(&self) -> Moves {
        Moves {
            faults: FAULTS.load(Relaxed),
            moves: MOVES.load(Relaxed),
            unmoved: UNMOVED.load(Relaxed),
            both: BOTH.load(Relaxed),
            fault_ns: FAULT_NS.load(Relaxed),
            move_ns: MOVE_NS.load(Relaxed),
        }
    }

    /// Is the handler of SIGSEGV ours? A program that sets its own without [`crate::stand_in`] takes its place, and gets touches of
    /// regions as plain faults.
    #[must_use]
    pub fn is_in_front(&self) -> bool {
        chain::is_in_front()
    }

    /// Puts ours in front of the one that the program has set since.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn come_to_front(&self) -> Result<(), Error> {
        chain::install().map_err(Error::system("regions: a handler of SIGSEGV"))
    }

    fn in_parent(&self) -> Result<(), Error> {
        if self.life.goes_on() {
            return Ok(());
        }
        let text = "regions: this process was forked from the one that made them: call exec, or use them as they are";
        Err(Error::Invalid(text.to_owned()))
    }
}

impl Drop for Transparent {
    fn drop(&mut self) {
        if !self.life.goes_on() {
            // A child: its regions stay, and so does the handler.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Threads that touch a region just now find it open, or not there.
        policy::open_all();
        for slot in table::used() {
            slot.open();
            slot.free();
        }
        // The handler stays in front: a touch may be on its way to it.
        for place in &PLACES {
            if let Some(key) = place.key() {
                pkey::free_key(key);
            }
            place.set(&[0; MASK_WORDS], None);
        }
        OURS.store(0, SeqCst);
        table::set_form(None);
        IS_TAKEN.store(false, SeqCst);
    }
}

fn choose(closing: Closing) -> Result<Form, Error> {
    let has_keys = || {
        Pkru::find().is_some()
            && pkey::alloc_key().is_ok_and(|key| {
                pkey::free_key(key);
                true
            })
    };
    match closing {
        Closing::By(Form::Protection) => Ok(Form::Protection),
        Closing::Any if has_keys() => Ok(Form::Keys),
        Closing::Any => Ok(Form::Protection),
        Closing::By(Form::Keys) if has_keys() => Ok(Form::Keys),
        Closing::By(Form::Keys) => {
            let text = "regions: there are no protection keys: the processor or the kernel has none (`pku` and `ospke` in \
                 /proc/cpuinfo), or all are used: close by page protection, or visit explicitly";
            Err(Error::Invalid(text.to_owned()))
        }
    }
}

fn mask_of(cpus: &CpuSet) -> Result<CpuMask, Error> {
    let mut mask = [0; MASK_WORDS];
    for cpu in cpus.iter() {
        let word = mask.get_mut(cpu.0 as usize / 64).ok_or_else(|| {
            Error::Invalid(format!(
                "region: CPU {} is not below 1024: leave it out",
                cpu.0
            ))
        })?;
        *word |= 1 << (cpu.0 % 64);
    }
    Ok(mask)
}

/// A page to try things with.
struct Page(*mut u8);

impl Page {
    fn new() -> std::io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, kind, -1, 0) };
        match page {
            libc::MAP_FAILED => Err(std::io::Error::last_os_error()),
            page => Ok(Self(page.cast())),
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody else knows.
        unsafe { libc::munmap(self.0.cast(), PAGE) };
    }
}

/// The middle of some times; 0 of none.
fn middle(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}
