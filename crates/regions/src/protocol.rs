//! How a visit gets to a worker, and its answer back.
//!
//! Problem: one hand-over may cost some cache lines that move between two CPUs, and nothing else: no system call
//! while both sides are awake, no registration of callers, no memory allocated. Any number of threads may visit;
//! a worker that waits for a visit of its own elsewhere must still answer, or two regions that visit each other
//! would wait for ever.
//!
//! Mechanism: an [`Inbox`] is one word: empty, its owner asleep, or the newest of a list of visits. Who pushes makes
//! itself the newest (Treiber 1986); the owner takes the whole list at once and turns it round, so that visits are
//! answered in the order of their pushes. The nodes of the list are the visits themselves, which lie on their
//! callers' stacks. A worker watches its one inbox; an answer is the same visit pushed into an inbox of the caller's:
//! one beside the visit where the caller is a thread of the program, the worker's own where it is a worker. So every
//! thread watches and sleeps on exactly one word, and requests and answers cannot be missed for each other.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `Inbox::word` | who pushes, from EMPTY, ASLEEP or a visit to a visit; the owner, to EMPTY or ASLEEP | both |
//! | `Visit::next` | who pushes, before; the owner, after taking | the owner, after taking |
//! | `Visit::stage`, and what `data` leads to | who has the visit: caller, then worker, then caller | the same |
//! | `Visit::reply` | the caller, before pushing | the worker |
//!
//! **Orderings.**
//! - A push is a compare-exchange with Release; taking is a swap with Acquire, and the caller's look at its own inbox
//!   a load with Acquire: who finds a visit finds its fields, the closure and the result. The pushes of others in between are
//!   read-modify-writes, which continue the release sequence, so that one Acquire covers the whole list.
//! - Going to sleep is a compare-exchange from EMPTY to ASLEEP. Either it fails, as something was pushed, or the push
//!   finds ASLEEP and wakes. It needs no order: what is found is taken by the swap.
//! - The compare-exchange of a push is the last access of the visit and of the inbox: the owner may take, answer and
//!   free both at once. What is left for the one who pushed is the wake, by an address that is never followed.
//! - A reused visit at the same address as an earlier one does no harm: a push follows no pointer that it finds, and
//!   taking compares nothing.
//!
//! Why no slot for each caller, which would move one line less: callers would have to be registered and given up when
//! their threads end, a worker would look at as many lines as there are callers, and their number would be bounded.
//!
//! Always: visits of one inbox are begun in the order of their pushes. No set of visits waits for each other: let
//! one visit be *beneath* another where a worker began the other while it waited for what the first visits. A
//! visit waits only for one that began later (the one that it made), and one beneath can go on when those that began
//! later on the same worker have ended. Both lead to later visits alone, so that they form no circle, and the
//! latest one runs, or is taken by a worker that runs nothing. (Locks held across a nested visit are another matter.)

use crate::patience::Patience;
use crate::sync::{Ordering, Owned, Word};
use std::cell::Cell;
use std::ptr::null;

/// Nothing is there, and the owner is awake.
const EMPTY: usize = 0;
/// Nothing is there, and the owner sleeps or is about to. No visit is at this address.
const ASLEEP: usize = 1;

/// What a thread watches.
#[derive(Debug)]
pub(crate) struct Inbox {
    word: Word,
}

/// Whose a visit is, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// To be run.
    Asked,
    /// Has been run.
    Answered,
    /// No visit: the worker shall end.
    Stop,
}

/// One closure that is handed over; on the stack of its caller.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Visit {
    next: Owned<*const Visit>,
    stage: Owned<Stage>,
    reply: Owned<*const Inbox>,
    /// The caller's alone: it is a worker, and has taken the answer.
    is_received: Owned<bool>,
    work: unsafe fn(*mut ()),
    data: *mut (),
    /// For the answer, where the caller is no worker.
    home: Inbox,
}

impl Visit {
    /// `work` is called with `data`, once, and must not unwind.
    pub(crate) fn new(work: unsafe fn(*mut ()), data: *mut ()) -> Self {
        Self {
            next: Owned::new(null()),
            stage: Owned::new(Stage::Asked),
            reply: Owned::new(null()),
            is_received: Owned::new(false),
            work,
            data,
            home: Inbox::new(),
        }
    }

    /// What ends a worker.
    pub(crate) fn stop() -> Self {
        let stop = Self::new(|_| {}, std::ptr::null_mut());
        // SAFETY: nobody else knows it.
        unsafe { stop.stage.set(Stage::Stop) };
        stop
    }

    /// As a caller that is no worker does before it pushes.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn answer_to_itself(&self) {
        // SAFETY: nobody else knows it yet.
        unsafe { self.reply.set(&raw const self.home) };
    }

    /// Hands the visit to the owner of `to` and returns when it is answered. A caller that is a worker answers its
    /// own visitors meanwhile.
    ///
    /// # Safety
    /// The visit is new; until this returns nobody else uses what `data` leads to, and `to` has an owner that
    /// answers.
    #[inline]
    pub(crate) unsafe fn make(&self, to: &Inbox, caller: Option<&Desk<'_>>, patience: &Patience) {
        let reply = caller.map_or(&raw const self.home, |desk| std::ptr::from_ref(desk.inbox));
        // SAFETY: it is the caller's until it is pushed. Neither it nor `to` goes before this returns.
        unsafe {
            self.reply.set(reply);
            Inbox::push(to, self);
        }
        match caller {
            Some(desk) => desk.serve(Some(self), patience),
            None => {
                while !self.home.has_arrived() {
                    patience.wait(&self.home);
                }
            }
        }
    }

    /// Runs it and pushes the answer; it may be gone then.
    ///
    /// # Safety
    /// It was taken from an inbox of the calling thread, and is answered once.
    unsafe fn answer(this: *const Self) {
        // SAFETY: it is this thread's from its taking to the push, and its caller waits meanwhile. The reply's inbox
        // lives as long as its owner waits for this answer.
        unsafe {
            ((*this).work)((*this).data);
            (*this).stage.set(Stage::Answered);
            let reply = (*this).reply.get();
            Inbox::push(reply, this);
        }
    }
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            word: Word::new(EMPTY),
        }
    }

    /// Both may be gone when this returns.
    ///
    /// # Safety
    /// The inbox and the visit live until the owner takes the visit; it is in no other list.
    #[inline]
    pub(crate) unsafe fn push(this: *const Self, visit: *const Visit) {
        // SAFETY: they live until the exchange below succeeds.
        let (word, next) = unsafe { (&raw const (*this).word, &raw const (*visit).next) };
        // SAFETY: as above. The address is asked for before, as the word may be gone after.
        let bed = unsafe { (*word).bed() };
        // Guessed, as a look would fetch the line once more.
        let mut seen = EMPTY;
        loop {
            let before = match seen {
                EMPTY | ASLEEP => null(),
                newest => std::ptr::with_exposed_provenance(newest),
            };
            // SAFETY: the visit is this thread's until the exchange.
            unsafe { (*next).set(before) };
            let newest = visit.expose_provenance();
            // SAFETY: the inbox lives until then.
            match unsafe { (*word).compare_exchange(seen, newest, Ordering::Release) } {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        if seen == ASLEEP {
            bed.wake();
        }
    }

    /// Owner: is something there, as far as can be seen? Orders nothing.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.word.load(Ordering::Relaxed) == EMPTY
    }

    /// Owner: was something pushed? Its fields are the owner's then.
    #[inline]
    fn has_arrived(&self) -> bool {
        self.word.load(Ordering::Acquire) > ASLEEP
    }

    /// Owner: takes all that is there, the newest first.
    #[inline]
    fn take(&self) -> *const Visit {
        if self.is_empty() {
            return null();
        }
        std::ptr::with_exposed_provenance(self.word.swap(EMPTY, Ordering::Acquire))
    }

    /// Owner: sleeps while nothing is there. `look` is called before each sleep.
    pub(crate) fn sleep(&self, look: impl Fn()) {
        let word = &self.word;
        if word
            .compare_exchange(EMPTY, ASLEEP, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        while word.load(Ordering::Relaxed) == ASLEEP {
            look();
            word.sleep(ASLEEP as u32);
        }
    }
}

/// A worker's own: what it took from its inbox and has not begun, in order.
#[derive(Debug)]
pub(crate) struct Desk<'a> {
    inbox: &'a Inbox,
    oldest: Cell<*const Visit>,
    newest: Cell<*const Visit>,
    is_stopped: Cell<bool>,
}

impl<'a> Desk<'a> {
    pub(crate) fn new(inbox: &'a Inbox) -> Self {
        Self {
            inbox,
            oldest: Cell::new(null()),
            newest: Cell::new(null()),
            is_stopped: Cell::new(false),
        }
    }

    /// Answers visits until `own` is answered, or without one until the worker shall end.
    pub(crate) fn serve(&self, own: Option<&Visit>, patience: &Patience) {
        loop {
            self.collect();
            // SAFETY: this thread alone uses that field of its own visit.
            if own.is_some_and(|own| unsafe { own.is_received.get() }) {
                return;
            }
            if let Some(visit) = self.next() {
                // SAFETY: it was taken from this thread's inbox, and is no longer in the list.
                unsafe { Visit::answer(visit) };
            } else if own.is_none() && self.is_stopped.get() {
                return;
            } else {
                patience.wait(self.inbox);
            }
        }
    }

    /// Puts what has arrived behind what it has, in order, and notes answers to its own visits.
    fn collect(&self) {
        let mut visit = self.inbox.take();
        let (mut oldest, mut newest) = (null::<Visit>(), null::<Visit>());
        while !visit.is_null() {
            // SAFETY: what was taken is this thread's: visits of others wait for their answers, its own wait beneath
            // in `serve`, and a stop lives until the thread has ended.
            let (stage, before) = unsafe { ((*visit).stage.get(), (*visit).next.get()) };
            match stage {
                Stage::Asked => {
                    // SAFETY: as above.
                    unsafe { (*visit).next.set(oldest) };
                    oldest = visit;
                    if newest.is_null() {
                        newest = visit;
                    }
                }
                // SAFETY: as above.
                Stage::Answered => unsafe { (*visit).is_received.set(true) },
                Stage::Stop => self.is_stopped.set(true),
            }
            visit = before;
        }
        if oldest.is_null() {
            return;
        }
        match self.oldest.get().is_null() {
            true => self.oldest.set(oldest),
            // SAFETY: the newest of the list is this thread's, and its caller waits.
            false => unsafe { (*self.newest.get()).next.set(oldest) },
        }
        self.newest.set(newest);
    }

    fn next(&self) -> Option<*const Visit> {
        let visit = self.oldest.get();
        if visit.is_null() {
            return None;
        }
        // SAFETY: it is in this thread's list, and its caller waits.
        self.oldest.set(unsafe { (*visit).next.get() });
        Some(visit)
    }
}
