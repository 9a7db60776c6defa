//! What the fault handler reads: regions, domains, threads. All of it is static and atomic, as a handler may neither
//! lock nor allocate.
//!
//! Who changes it holds the lock in [`super::Transparent`], apart from what is said to be the handler's.

use super::rule::{Form, Gaps, Global, Mode, overlap};
use hither_linux::sys::fault::{self, CpuMask, MASK_WORDS};
use hither_linux::sys::pkey::{self, Pkru, closed};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Regions at one time.
pub(crate) const MOST_REGIONS: usize = 256;
/// Domains: as many as there are keys for programs.
pub(crate) const MOST_DOMAINS: usize = 15;
/// Threads that are moved, at one time; others open without moving.
const MOST_THREADS: usize = 512;
/// No domain, no region, no line of [`THREADS`].
pub(crate) const NONE: u32 = u32::MAX;

/// A region. Its range is written last, and 0 where there is none.
pub(crate) struct Slot {
    start: AtomicU64,
    end: AtomicU64,
    pub(crate) domain: AtomicU32,
    /// `PROT_*` while it is open.
    access: AtomicI32,
    /// A [`Global`] as a word, or 0. Handlers write it too.
    global: AtomicU32,
    /// By handlers: beginnings of visits, and moves.
    pub(crate) entries: AtomicU64,
    /// By handlers: of the entries since the last look at how often there are some.
    gap_entries: AtomicU64,
    gap_ns: AtomicU64,
}

/// A domain's CPUs and key.
pub(crate) struct Place {
    mask: [AtomicU64; MASK_WORDS],
    key: AtomicU32,
    /// Visits since the policy's last look, and their time, from entry to entry. By handlers.
    pub(crate) visits: AtomicU64,
    pub(crate) visit_ns: AtomicU64,
}

/// A thread that was moved. Its own handlers write all but `tid`.
pub(crate) struct Thread {
    /// 0: free.
    pub(crate) tid: AtomicI32,
    /// The CPUs that the program wants it on.
    wanted: [AtomicU64; MASK_WORDS],
    /// The CPUs that it was put on.
    given: [AtomicU64; MASK_WORDS],
    /// Where it is.
    pub(crate) domain: AtomicU32,
}

pub(crate) static SLOTS: [Slot; MOST_REGIONS] = [const { Slot::new() }; MOST_REGIONS];
/// Slots that were ever used.
static USED: AtomicU32 = AtomicU32::new(0);
pub(crate) static PLACES: [Place; MOST_DOMAINS] = [const { Place::new() }; MOST_DOMAINS];
pub(crate) static THREADS: [Thread; MOST_THREADS] = [const { Thread::new() }; MOST_THREADS];

/// The CPUs of the thread that began all this: for threads that were started during a visit.
static ALLOWED: [AtomicU64; MASK_WORDS] = [const { AtomicU64::new(0) }; MASK_WORDS];

/// 0: nothing is there; a [`Form`].
static FORM: AtomicU32 = AtomicU32::new(0);
/// A [`Mode`].
static MODE: AtomicU32 = AtomicU32::new(0);
/// Bits of all our keys.
pub(crate) static OURS: AtomicU32 = AtomicU32::new(0);
pub(crate) static PKRU_OFFSET: AtomicU32 = AtomicU32::new(0);
/// Of page protection: the thread that it is for, and a bit for each domain that is open.
pub(crate) static OWNER: AtomicI32 = AtomicI32::new(0);
pub(crate) static OPEN: AtomicU32 = AtomicU32::new(0);
/// What a touch without a move costs, and a move, in ns. Handlers bring the latter up to date.
pub(crate) static FAULT_NS: AtomicU64 = AtomicU64::new(0);
/// The former by a page, as it was measured at first: by page protection it grows with the pages.
pub(crate) static PAGE_FAULT_NS: AtomicU64 = AtomicU64::new(0);
pub(crate) static MOVE_NS: AtomicU64 = AtomicU64::new(0);
/// Touches whose thread may use none of the domain's CPUs, or could not be noted.
pub(crate) static UNMOVED: AtomicU64 = AtomicU64::new(0);
pub(crate) static MOVES: AtomicU64 = AtomicU64::new(0);
/// Regions that are entered too often become global: unless the program wants them apart always.
pub(crate) static IS_LIMITED: AtomicBool = AtomicBool::new(true);
/// Instructions that touched two domains, so that both were opened.
pub(crate) static BOTH: AtomicU64 = AtomicU64::new(0);
pub(crate) static FAULTS: AtomicU64 = AtomicU64::new(0);

impl Slot {
    const fn new() -> Self {
        Self {
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            domain: AtomicU32::new(NONE),
            access: AtomicI32::new(0),
            global: AtomicU32::new(0),
            entries: AtomicU64::new(0),
            gap_entries: AtomicU64::new(0),
            gap_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn range(&self) -> (u64, u64) {
        let end = self.end.load(Ordering::Acquire);
        (self.start.load(Ordering::Relaxed), end)
    }

    pub(crate) fn is_used(&self) -> bool {
        self.end.load(Ordering::Acquire) != 0
    }

    pub(crate) fn global(&self) -> Option<Global> {
        Global::from_word(self.global.load(Ordering::Acquire))
    }

    /// Takes it; it is found from now on.
    pub(crate) fn take(&self, start: u64, end: u64, domain: u32, access: i32) {
        self.domain.store(domain, Ordering::Relaxed);
        self.access.store(access, Ordering::Relaxed);
        self.global.store(0, Ordering::Relaxed);
        for count in [&self.entries, &self.gap_entries, &self.gap_ns] {
            count.store(0, Ordering::Relaxed);
        }
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Release);
    }

    pub(crate) fn free(&self) {
        self.end.store(0, Ordering::Release);
        self.start.store(0, Ordering::Release);
    }

    /// Opens it for all threads by the protection of its pages; keeps the program's own.
    pub(crate) fn open(&self) -> bool {
        self.protect(self.access.load(Ordering::Relaxed), 0)
    }

    /// Closes it: by its domain's key, or by protection.
    pub(crate) fn close(&self) -> bool {
        match form() {
            Some(Form::Keys) => {
                let key = PLACES[self.domain.load(Ordering::Relaxed) as usize].key();
                key.is_some_and(|key| self.protect(self.access.load(Ordering::Relaxed), key))
            }
            Some(Form::Protection) => self.protect(libc::PROT_NONE, 0),
            None => false,
        }
    }

    fn protect(&self, access: i32, key: u32) -> bool {
        let (start, end) = self.range();
        let bytes = end.saturating_sub(start);
        // SAFETY: whoever registered the range vouches that it stays mapped and is nobody else's to protect; what is
        // closed is opened by the handler.
        let outcome = unsafe {
            match form() {
                Some(Form::Keys) => pkey::protect_by_key(start, bytes, access, key),
                _ => pkey::protect(start, bytes, access),
            }
        };
        outcome.is_ok()
    }

    /// Closes it, or opens it for good where the kernel refuses.
    pub(crate) fn close_or_give_up(&self) {
        if !self.close() {
            self.make_global(Global::Refused);
        }
    }

    /// Opens it for all, for good.
    pub(crate) fn make_global(&self, why: Global) {
        self.global.store(why.word(), Ordering::Release);
        self.open();
    }

    /// Adds an entry, `ns` after the thread's one before.
    pub(crate) fn add_gap(&self, ns: u64) -> Gaps {
        Gaps {
            entries: self.gap_entries.fetch_add(1, Ordering::Relaxed) + 1,
            ns: self.gap_ns.fetch_add(ns, Ordering::Relaxed) + ns,
        }
    }

    pub(crate) fn forget_gaps(&self) {
        self.gap_entries.store(0, Ordering::Relaxed);
        self.gap_ns.store(0, Ordering::Relaxed);
    }
}

impl Place {
    const fn new() -> Self {
        Self {
            mask: [const { AtomicU64::new(0) }; MASK_WORDS],
            key: AtomicU32::new(NONE),
            visits: AtomicU64::new(0),
            visit_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn set(&self, mask: &CpuMask, key: Option<u32>) {
        store(&self.mask, mask);
        self.key.store(key.unwrap_or(NONE), Ordering::Relaxed);
    }

    pub(crate) fn key(&self) -> Option<u32> {
        let key = self.key.load(Ordering::Relaxed);
        (key != NONE).then_some(key)
    }

    /// The bits of its key; 0 where it has none.
    pub(crate) fn bits(&self) -> u32 {
        self.key().map_or(0, closed)
    }

    pub(crate) fn mask(&self) -> CpuMask {
        load(&self.mask)
    }
}

impl Thread {
    const fn new() -> Self {
        Self {
            tid: AtomicI32::new(0),
            wanted: [const { AtomicU64::new(0) }; MASK_WORDS],
            given: [const { AtomicU64::new(0) }; MASK_WORDS],
            domain: AtomicU32::new(NONE),
        }
    }

    pub(crate) fn wanted(&self) -> CpuMask {
        load(&self.wanted)
    }

    pub(crate) fn given(&self) -> CpuMask {
        load(&self.given)
    }

    pub(crate) fn set_wanted(&self, mask: &CpuMask) {
        store(&self.wanted, mask);
    }

    pub(crate) fn set_given(&self, mask: &CpuMask) {
        store(&self.given, mask);
    }

    /// Lets it run where the program wants it, unless the program has put it elsewhere since. By its number; 0: the
    /// calling one.
    pub(crate) fn send_home(&self, tid: i32) {
        let wanted = self.wanted();
        if fault::affinity(tid) == self.given() && fault::set_affinity(tid, &wanted).is_ok() {
            self.set_given(&wanted);
        }
    }
}

fn load(words: &[AtomicU64; MASK_WORDS]) -> CpuMask {
    std::array::from_fn(|index| words[index].load(Ordering::Relaxed))
}

fn store(words: &[AtomicU64; MASK_WORDS], mask: &CpuMask) {
    for (word, value) in words.iter().zip(mask) {
        word.store(*value, Ordering::Relaxed);
    }
}

pub(crate) fn form() -> Option<Form> {
    match FORM.load(Ordering::Acquire) {
        1 => Some(Form::Keys),
        2 => Some(Form::Protection),
        _ => None,
    }
}

pub(crate) fn set_form(form: Option<Form>) {
    let word = match form {
        None => 0,
        Some(Form::Keys) => 1,
        Some(Form::Protection) => 2,
    };
    FORM.store(word, Ordering::Release);
}

pub(crate) fn allowed() -> CpuMask {
    load(&ALLOWED)
}

pub(crate) fn set_allowed(mask: &CpuMask) {
    store(&ALLOWED, mask);
}

pub(crate) fn mode() -> Mode {
    Mode::from_word(MODE.load(Ordering::SeqCst))
}

pub(crate) fn store_mode(mode: Mode) {
    MODE.store(mode as u32, Ordering::SeqCst);
}

pub(crate) fn pkru() -> Pkru {
    Pkru::at(PKRU_OFFSET.load(Ordering::Relaxed) as usize)
}

/// Regions, those that were there and are no more among them.
pub(crate) fn slots() -> &'static [Slot] {
    &SLOTS[..USED.load(Ordering::Acquire) as usize]
}

/// The regions that are there.
pub(crate) fn used() -> impl Iterator<Item = &'static Slot> {
    slots().iter().filter(|slot| slot.is_used())
}

/// The region of an address.
pub(crate) fn find(address: u64) -> Option<&'static Slot> {
    touching(address, 1).next()
}

/// Takes a free slot.
pub(crate) fn take(start: u64, end: u64, domain: u32, access: i32) -> Option<usize> {
    let index = SLOTS.iter().position(|slot| !slot.is_used())?;
    SLOTS[index].take(start, end, domain, access);
    USED.fetch_max(index as u32 + 1, Ordering::Release);
    Some(index)
}

/// The regions that these bytes touch.
pub(crate) fn touching(start: u64, bytes: u64) -> impl Iterator<Item = &'static Slot> {
    let slots = slots().iter();
    slots.filter(move |slot| overlap(start, bytes, slot.range()))
}

/// A line for a thread.
pub(crate) fn claim(tid: i32) -> Option<u32> {
    let own = THREADS
        .iter()
        .position(|thread| thread.tid.load(Ordering::Relaxed) == tid);
    let free = || {
        THREADS.iter().position(|thread| {
            let taken = thread
                .tid
                .compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed);
            taken.is_ok()
        })
    };
    own.or_else(free).map(|index| index as u32)
}

/// The CPUs of both.
pub(crate) fn both(one: &CpuMask, other: &CpuMask) -> CpuMask {
    std::array::from_fn(|word| one[word] & other[word])
}
