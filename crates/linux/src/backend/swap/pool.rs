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
//! The stock of a node follows what was asked for ([`Pool::fresh`]) and is given back to the
//! system when nothing was asked for [`Limits::idle_ms`]. A thread of the pool fills and drops.
//!
//! Pages come by the policy `MPOL_PREFERRED` of the filling thread, and those that came from
//! elsewhere are dropped: strict binding would wake the out-of-memory killer where a node is full.

use super::runs::Runs;
use crate::sys::{self, Userfault};
use hither_core::ids::NodeId;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub(super) const PAGE: u64 = 4096;
pub(super) const HUGE: u64 = 2 << 20;

/// Bytes that the filling thread gets in one go.
const FILL_BYTES: u64 = 2 << 20;

/// How much may be in stock.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes in stock per node and page size.
    pub stock_bytes: u64,
    /// After this time without a move everything in stock goes back to the system, in ms.
    pub idle_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            stock_bytes: 256 << 20,
            idle_ms: 2000,
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
    /// How much there shall be, in bytes.
    level: u64,
    /// Nothing came the last time; do not try again before.
    exhausted_until: Option<Instant>,
}

struct Lists {
    empty: BTreeMap<Size, Runs>,
    stock: BTreeMap<(NodeId, Size), Stock>,
    used: Instant,
    stopping: bool,
}

/// The stock.
pub(super) struct Pool {
    areas: [sys::Area; 2],
    pagemap: File,
    lists: Mutex<Lists>,
    changed: Condvar,
    limits: Limits,
}

impl Pool {
    /// Reserves addresses, which cost nothing, and lets `receiver` put pages there.
    pub(super) fn new(receiver: &Userfault, limits: Limits) -> io::Result<Arc<Self>> {
        // Room for the stock of several nodes and for what exchanges have lent.
        let bytes = (limits.stock_bytes * 8).next_multiple_of(HUGE).max(16 * HUGE);
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
            pagemap: File::open("/proc/self/pagemap")?,
            lists: Mutex::new(Lists {
                empty,
                stock: BTreeMap::new(),
                used: Instant::now(),
                stopping: false,
            }),
            changed: Condvar::new(),
            limits,
        }))
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(|poison| poison.into_inner())
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
        if stock.filled.bytes() < stock.level / 2 {
            self.changed.notify_all();
        }
        taken
    }

    /// A move of so many bytes to a node begins: its like shall find twice as much in stock.
    pub(super) fn expect(&self, node: NodeId, size: Size, bytes: u64) {
        let mut lists = self.lists();
        let stock = lists.stock.entry((node, size)).or_default();
        let level = (bytes * 2).next_multiple_of(FILL_BYTES).min(self.limits.stock_bytes);
        if stock.level < level {
            stock.level = level;
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

    /// Slots that hold pages on a node.
    pub(super) fn put_filled(&self, node: NodeId, size: Size, range: Range<u64>) {
        let mut lists = self.lists();
        let stock = lists.stock.entry((node, size)).or_default();
        stock.filled.put(range);
        if stock.filled.bytes() > self.most(stock) {
            self.changed.notify_all();
        }
    }

    /// Slots of which nothing is known.
    pub(super) fn put_unknown(&self, size: Size, range: Range<u64>) {
        sys::discard(&range);
        self.put_empty(size, range);
    }

    /// More than this is dropped: moves both ways need twice the level at times.
    fn most(&self, stock: &Stock) -> u64 {
        (stock.level * 2).min(self.limits.stock_bytes)
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
        let populated = sys::with_preferred_node(node.0, || sys::populate(&slots));
        if populated.is_err() {
            self.put_unknown(size, slots);
            return 0;
        }
        let step = size.bytes();
        let addresses: Vec<u64> = (slots.start..slots.end).step_by(step as usize).collect();
        let mut nodes = vec![i32::MIN; addresses.len()];
        if sys::query_pages(0, &addresses, &mut nodes).is_err() {
            self.put_unknown(size, slots);
            return 0;
        }
        let mut got = 0;
        for (&address, &at) in addresses.iter().zip(&nodes) {
            let slot = address..address + step;
            if at == node.0 as i32 && (size == Size::Small || self.is_huge(&slot)) {
                got += step;
                self.put_filled(node, size, slot);
            } else {
                self.put_unknown(size, slot);
            }
        }
        got
    }

    /// Is this one huge page, mapped as such?
    pub(super) fn is_huge(&self, slot: &Range<u64>) -> bool {
        let query = sys::ScanQuery {
            start: slot.start,
            end: slot.end,
            required: sys::PAGE_IS_HUGE,
            reported: sys::PAGE_IS_HUGE,
        };
        let mut found = [sys::PageRegion::default()];
        let filled = sys::pagemap_scan(&self.pagemap, query, &mut found);
        filled.is_ok_and(|(count, _)| count == 1) && (found[0].start..found[0].end) == *slot
    }

    /// Work of the pool's own thread: fills what is low, drops what is too much, until
    /// [`Pool::stop`].
    pub(super) fn keep_in_stock(&self) {
        loop {
            match self.next_chore() {
                Chore::Fill(node, size) => {
                    if self.fill(node, size, FILL_BYTES) == 0 {
                        let later = Instant::now() + Duration::from_millis(self.limits.idle_ms);
                        self.lists().stock.entry((node, size)).or_default().exhausted_until =
                            Some(later);
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
            let unused = now.duration_since(lists.used) >= idle;
            let mut stocked = false;
            for (&(node, size), stock) in &mut lists.stock {
                if unused {
                    stock.level = 0;
                }
                let most = self.most(stock);
                if stock.filled.bytes() > most {
                    let excess = (stock.filled.bytes() - most).min(FILL_BYTES);
                    if let Some(slots) = stock.filled.take(excess.next_multiple_of(size.bytes())) {
                        return Chore::Drop(size, slots);
                    }
                }
                let blocked = stock.exhausted_until.is_some_and(|until| now < until);
                if stock.filled.bytes() < stock.level / 2 && !blocked {
                    stock.exhausted_until = None;
                    return Chore::Fill(node, size);
                }
                stocked |= stock.level > 0;
            }
            // With nothing in stock there is nothing to look after until somebody asks.
            lists = if stocked {
                let waited = self.changed.wait_timeout(lists, idle);
                waited.unwrap_or_else(|poison| poison.into_inner()).0
            } else {
                let waited = self.changed.wait(lists);
                waited.unwrap_or_else(|poison| poison.into_inner())
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
