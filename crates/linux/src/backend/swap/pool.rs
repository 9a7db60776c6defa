//! Pages in stock: the larger half of a move's price is to get fresh pages, so they are got
//! before they are needed, and those that a move leaves behind are used again.
//!
//! Two areas of this process's address space, one for small and one for huge pages, are cut into
//! *slots*. A slot is empty, or it holds a page on a known node whose content nobody needs. An
//! exchange takes filled slots of the target node and empty ones; afterwards the former are empty
//! and the latter hold the old pages, which are stock for moves the other way.
//!
//! What always holds: every slot is in one list or lent to one exchange; what the lists say of a
//! slot is true of the page tables. A slot of which nothing is known is emptied first.
//!
//! Where a move finds nothing in stock, small pages are got on the way, and huge ones left to the
//! kernel's own migration: to get pages first and exchange them then would cost more CPU time than
//! that does. From then on twice the largest move is kept in stock: a thread of the pool gets it
//! when moves rest for a moment. All of it goes back to the system after [`PoolLimits::idle_ms`] without
//! a move.
//!
//! What moves leave behind goes back to the system too, or with [`PoolLimits::recycle`] is stock for
//! moves the other way, so that traffic in both directions needs no new pages.
//!
//! Pages come by the policy `MPOL_PREFERRED` of the filling thread, and those that came from
//! elsewhere are dropped: strict binding would wake the out-of-memory killer where a node is full.

use super::runs::Runs;
use super::survey::Locator;
use crate::sys::{self, Userfault};
use hither_core::ids::NodeId;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub(super) const PAGE: u64 = 4096;
pub(super) const HUGE: u64 = 2 << 20;

/// Bytes that the filling thread gets in one go.
const FILL_BYTES: u64 = 2 << 20;

/// Moves rest when none began for so long. Filling beside them would slow them down, and costs more
/// CPU time than getting pages on the way: it pays for who waits, not for a stream.
const REST: Duration = Duration::from_millis(10);

/// How much may be in stock.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Most bytes in stock per node and page size.
    pub stock_bytes: u64,
    /// After this time without a move everything in stock goes back to the system, in ms.
    pub idle_ms: u64,
    /// Use pages that moves leave behind for moves the other way, instead of giving them back to
    /// the system. About half as much time per page where traffic goes both ways. But the kernel
    /// may still be reading such a page: what was given to vmsplice(2), or to a socket with
    /// `MSG_ZEROCOPY` or by io_uring without a copy, is referred to without being pinned, and
    /// nobody can tell. Only for programs that ask for no such memory to be moved.
    pub recycle: bool,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            stock_bytes: 256 << 20,
            idle_ms: 2000,
            recycle: false,
        }
    }
}

/// Small or huge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Size {
    Small,
    Huge,
}

impl Size {
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Small => PAGE,
            Self::Huge => HUGE,
        }
    }
}

#[derive(Debug, Default)]
struct Stock {
    filled: Runs,
    /// What shall be there when moves rest, in bytes: what they found missing.
    low: u64,
    /// Nothing came the last time; do not try again before.
    exhausted_until: Option<Instant>,
}

impl Stock {
    fn is_exhausted(&self) -> bool {
        self.exhausted_until
            .is_some_and(|until| Instant::now() < until)
    }
}

struct Lists {
    empty: BTreeMap<Size, Runs>,
    stock: BTreeMap<(NodeId, Size), Stock>,
    /// Bytes of the largest move since moves rested for long.
    largest: u64,
    used: Instant,
    stopping: bool,
}

/// The stock.
pub(super) struct Pool {
    areas: [sys::Area; 2],
    locator: Locator,
    lists: Mutex<Lists>,
    changed: Condvar,
    limits: PoolLimits,
}

impl Pool {
    /// Reserves addresses, which cost nothing, and lets `receiver` put pages there.
    pub(super) fn new(receiver: &Userfault, limits: PoolLimits) -> io::Result<Arc<Self>> {
        // Room for the stock of several nodes and for what exchanges have lent.
        let bytes = (limits.stock_bytes * 8)
            .next_multiple_of(HUGE)
            .max(16 * HUGE);
        let areas = [sys::Area::new(bytes, false)?, sys::Area::new(bytes, true)?];
        let mut empty = BTreeMap::new();
        for (size, area) in [Size::Small, Size::Huge].into_iter().zip(&areas) {
            receiver.accept(&area.range())?;
            let mut runs = Runs::default();
            runs.put(area.range());
            empty.insert(size, runs);
        }
        Ok(Arc::new(Self {
            areas,
            locator: Locator::new()?,
            lists: Mutex::new(Lists {
                empty,
                stock: BTreeMap::new(),
                largest: 0,
                used: Instant::now(),
                stopping: false,
            }),
            changed: Condvar::new(),
            limits,
        }))
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// The pool's own addresses, which nobody may ask to move.
    pub(super) fn ranges(&self) -> [Range<u64>; 2] {
        [self.areas[0].range(), self.areas[1].range()]
    }

    /// Filled slots on a node: `want` bytes of one run or fewer; none where none are in stock.
    pub(super) fn fresh(&self, node: NodeId, size: Size, want: u64) -> Option<Range<u64>> {
        let mut lists = self.lists();
        lists.used = Instant::now();
        let stock = lists.stock.entry((node, size)).or_default();
        let taken = stock.filled.take(want);
        if taken.is_none() {
            self.missed(lists, node, size);
        }
        taken
    }

    /// A move of so many bytes begins. Are pages of this size to be had on the node: in stock or,
    /// small ones, on the way? What is not in stock shall be in future.
    pub(super) fn expects(&self, node: NodeId, size: Size, bytes: u64) -> bool {
        let mut lists = self.lists();
        lists.largest = lists.largest.max(bytes);
        lists.used = Instant::now();
        let stock = lists.stock.entry((node, size)).or_default();
        let filled = stock.filled.bytes() > 0;
        let expected = filled || (size == Size::Small && !stock.is_exhausted());
        if !filled {
            self.missed(lists, node, size);
        }
        expected
    }

    /// Was the node full a moment ago?
    pub(super) fn is_exhausted(&self, node: NodeId, size: Size) -> bool {
        let lists = self.lists();
        let stock = lists.stock.get(&(node, size));
        stock.is_some_and(Stock::is_exhausted)
    }

    /// The node is full: nothing is tried there for a while.
    pub(super) fn exhaust(&self, node: NodeId, size: Size) {
        let until = Instant::now() + Duration::from_millis(self.limits.idle_ms);
        let mut lists = self.lists();
        let stock = lists.stock.entry((node, size)).or_default();
        stock.exhausted_until = Some(until);
    }

    fn missed(&self, mut lists: MutexGuard<'_, Lists>, node: NodeId, size: Size) {
        let wanted = (lists.largest * 2)
            .next_multiple_of(HUGE)
            .min(self.limits.stock_bytes);
        let stock = lists.stock.entry((node, size)).or_default();
        if stock.low < wanted {
            stock.low = wanted;
            self.changed.notify_all();
        }
    }

    /// Empty slots: `want` bytes of one run or fewer.
    pub(super) fn empty(&self, size: Size, want: u64) -> Option<Range<u64>> {
        self.lists().empty.get_mut(&size)?.take(want)
    }

    /// Slots that hold nothing.
    pub(super) fn put_empty(&self, size: Size, range: Range<u64>) {
        if let Some(runs) = self.lists().empty.get_mut(&size) {
            runs.put(range);
        }
    }

    /// Slots that hold pages on a node; dropped where enough are in stock.
    pub(super) fn put_filled(&self, node: NodeId, size: Size, range: Range<u64>) {
        let mut lists = self.lists();
        let largest = lists.largest;
        let stock = lists.stock.entry((node, size)).or_default();
        if stock.filled.bytes() + (range.end - range.start) <= self.most(stock, largest) {
            stock.filled.put(range);
            return;
        }
        drop(lists);
        self.put_unknown(size, range);
    }

    /// Slots that hold what a move left behind on a node. (Dropped by the caller: a thread of its
    /// own would contend with the moves for the same locks of the kernel, at twice the CPU time.)
    pub(super) fn put_left(&self, node: NodeId, size: Size, range: Range<u64>) {
        if self.limits.recycle {
            self.put_filled(node, size, range);
        } else {
            self.put_unknown(size, range);
        }
    }

    /// Slots of which nothing is known.
    pub(super) fn put_unknown(&self, size: Size, range: Range<u64>) {
        sys::discard(&range);
        self.put_empty(size, range);
    }

    /// More than this is dropped: moves both ways leave twice the largest at times.
    fn most(&self, stock: &Stock, largest: u64) -> u64 {
        (stock.low.max(largest) * 2).min(self.limits.stock_bytes)
    }

    /// Keeps so much in stock, and gets what is missing now. Returns what is there.
    pub(super) fn warm(&self, node: NodeId, size: Size, bytes: u64) -> u64 {
        let missing = {
            let mut lists = self.lists();
            let stock = lists.stock.entry((node, size)).or_default();
            stock.low = stock.low.max(bytes.min(self.limits.stock_bytes));
            stock.low.saturating_sub(stock.filled.bytes())
        };
        self.fill(node, size, missing);
        self.lists()
            .stock
            .entry((node, size))
            .or_default()
            .filled
            .bytes()
    }

    /// Gets pages on a node now. Returns the bytes that came.
    pub(super) fn fill(&self, node: NodeId, size: Size, bytes: u64) -> u64 {
        let mut came = 0;
        let bytes = bytes.next_multiple_of(size.bytes());
        while came < bytes {
            let Some(slots) = self.empty(size, bytes - came) else {
                break;
            };
            let got = self.fill_slots(node, size, slots.clone());
            came += got;
            if got < slots.end - slots.start {
                break;
            }
        }
        came
    }

    fn fill_slots(&self, node: NodeId, size: Size, slots: Range<u64>) -> u64 {
        let populated = sys::with_preferred_node(node.0, || sys::fill(&slots));
        if populated.is_err() {
            self.put_unknown(size, slots);
            return 0;
        }
        let step = size.bytes();
        let mut nodes = Vec::new();
        if self.locator.nodes(&slots, step, &mut nodes).is_err() {
            self.put_unknown(size, slots);
            return 0;
        }
        let mut got = 0;
        for (address, at) in (slots.start..slots.end).step_by(step as usize).zip(nodes) {
            let slot = address..address + step;
            if at == node.0 as i32 && (size == Size::Small || self.is_huge(&slot)) {
                got += step;
                self.lists()
                    .stock
                    .entry((node, size))
                    .or_default()
                    .filled
                    .put(slot);
            } else {
                self.put_unknown(size, slot);
            }
        }
        got
    }

    /// Is this one huge page, mapped as such?
    pub(super) fn is_huge(&self, slot: &Range<u64>) -> bool {
        self.locator.is_huge(slot)
    }

    /// Work of the pool's own thread: fills what is low, drops what is too much, until
    /// [`Pool::stop`].
    pub(super) fn keep_in_stock(&self) {
        loop {
            match self.next_chore() {
                Chore::Fill(node, size) => {
                    if self.fill(node, size, FILL_BYTES) == 0 {
                        self.exhaust(node, size);
                    }
                }
                Chore::Drop(size, slots) => self.put_unknown(size, slots),
                Chore::Stop => return,
            }
        }
    }

    fn next_chore(&self) -> Chore {
        let idle = Duration::from_millis(self.limits.idle_ms);
        let mut lists = self.lists();
        loop {
            if lists.stopping {
                return Chore::Stop;
            }
            let now = Instant::now();
            let rest = now.duration_since(lists.used);
            if rest >= idle {
                lists.largest = 0;
                lists.stock.values_mut().for_each(|stock| stock.low = 0);
            }
            let largest = lists.largest;
            let mut wait = None;
            for (&(node, size), stock) in &mut lists.stock {
                let most = self.most(stock, largest);
                if rest >= REST && stock.filled.bytes() > most {
                    let excess = (stock.filled.bytes() - most).min(FILL_BYTES);
                    if let Some(slots) = stock.filled.take(excess.next_multiple_of(size.bytes())) {
                        return Chore::Drop(size, slots);
                    }
                }
                let blocked = stock.exhausted_until.is_some_and(|until| now < until);
                let short = stock.filled.bytes() < stock.low && !blocked;
                if short && rest >= REST {
                    stock.exhausted_until = None;
                    return Chore::Fill(node, size);
                }
                let next = if short { REST } else { idle };
                if stock.low > 0 || stock.filled.bytes() > 0 {
                    wait = Some(next.min(wait.unwrap_or(next)));
                }
            }
            // With nothing in stock there is nothing to look after until somebody asks.
            let poisoned = |poison: std::sync::PoisonError<_>| poison.into_inner();
            lists = match wait {
                Some(wait) => self
                    .changed
                    .wait_timeout(lists, wait)
                    .map_or_else(|poison| poison.into_inner().0, |(lists, _)| lists),
                None => self.changed.wait(lists).unwrap_or_else(poisoned),
            };
        }
    }

    /// Lets [`Pool::keep_in_stock`] return.
    pub(super) fn stop(&self) {
        self.lists().stopping = true;
        self.changed.notify_all();
    }
}

enum Chore {
    Fill(NodeId, Size),
    Drop(Size, Range<u64>),
    Stop,
}
