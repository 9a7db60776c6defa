//! One address space: its touches of the last seconds, its pages, and its regions as they are now.

mod shape;

use super::follows::Follows;
use super::history::{History, TICK_NS};
use super::label::{GLOBAL, Label, SEED, is_region};
use super::sequence::{Entry, Sequence};
use super::visits::Visits;
use super::{Config, Hint, Touch};
use std::collections::{HashMap, VecDeque};

/// What is left of older pairs and visits at each turn: a second's half-life at four turns a second.
const FADE: f64 = 0.84;
/// Turns from one forming to the next: half a second.
const FORM_TURNS: u64 = 2;
/// Touches of a region in a turn from which it is judged whether it still holds.
const LEAST_JUDGED: f64 = 8.0;
/// A region does not hold any more where touches stay in it by less than this part of what they did.
const LEAST_STAY: f64 = 0.5;
/// Where regions with this share of the touches do not hold, it is another phase.
const NEW_PHASE: f64 = 0.5;

/// No place.
const GONE: u32 = u32::MAX;

/// A page that was touched lately.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its number.
    pub number: u64,
    /// Its region.
    pub label: Label,
    /// Its access bits.
    pub history: History,
    /// Touches before this are of another phase.
    since_ns: u64,
    /// Code or stack: global whatever it is touched with.
    is_fixed: bool,
}

/// A region as it stands.
#[derive(Clone, Debug)]
pub struct Held {
    /// Its number, for life.
    pub name: u64,
    /// When it was formed.
    pub formed_ns: u64,
    /// Access and idle times, and its threads.
    pub visits: Visits,
    /// Share of touches that are followed by one in the same region, and of how many touches that is known.
    stay: f64,
    known: f64,
    /// The turn in which it was torn down last; 0 for never.
    torn_turn: u64,
}

impl Held {
    /// Did it hold for touches that came after it was formed?
    pub fn is_confirmed(&self) -> bool {
        self.known >= LEAST_JUDGED
    }

    /// It has to be confirmed again.
    fn doubt(&mut self) {
        (self.stay, self.known) = (0.0, 0.0);
    }
}

/// A thread, as it was last seen.
#[derive(Clone, Copy, Debug)]
struct Thread {
    page: u32,
    time_ns: u64,
}

/// One address space.
#[derive(Debug, Default)]
pub struct Space {
    entries: VecDeque<Entry>,
    pages: Vec<Page>,
    page_at: HashMap<u64, u32>,
    threads: Vec<Thread>,
    thread_at: HashMap<Option<i32>, u32>,
    held: Vec<Held>,
    /// Pairs of touches by region: since the last turn, in the turn before, and all, older ones faded.
    fresh: Follows,
    before: Follows,
    follows: Follows,
    next_name: u64,
    turns: u64,
    last_turn_ns: u64,
    turn_before_ns: u64,
    /// When regions were formed last.
    formed_ns: u64,
    /// Touches of the history when all was formed last.
    formed_touches: usize,
    /// Blocks of 2^this pages were the units then.
    shift: u32,
    /// The history as it was looked at last.
    sequence: Sequence,
    /// Ticks in which the space ran, and the last of them by the clock.
    tick: u32,
    clock_tick: u64,
    last_touch_ns: u64,
    touch_count: u64,
    left_out_count: u64,
}

impl Space {
    /// Takes a touch; those of one thread come in order of time.
    pub fn touch(&mut self, touch: &Touch, config: &Config) {
        self.last_touch_ns = self.last_touch_ns.max(touch.time_ns);
        let clock_tick = touch.time_ns / TICK_NS;
        if clock_tick > self.clock_tick || self.tick == 0 {
            self.tick += 1;
            self.clock_tick = clock_tick;
        }
        let known = (self.page(touch, config), self.thread(touch.thread, config));
        let (Some(at), Some(thread)) = known else {
            self.left_out_count += 1;
            return;
        };
        self.touch_count += 1;
        let page = &mut self.pages[at as usize];
        page.history.touch(self.tick);
        if touch.hint != Hint::None {
            page.is_fixed = true;
            page.label = GLOBAL;
        }
        if page.is_fixed {
            return;
        }
        let label = page.label;
        if self.entries.len() >= config.most_touches {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry {
            time_ns: touch.time_ns,
            page: at,
            thread,
        });
        // What is global does not part what was touched before it from what comes after.
        if label != GLOBAL {
            let now = Thread {
                page: at,
                time_ns: touch.time_ns,
            };
            let before = std::mem::replace(&mut self.threads[thread as usize], now);
            self.follow(before, touch, label, config);
        }
    }

    /// A touched page, which is new where it was not touched lately; none where there are too many.
    fn page(&mut self, touch: &Touch, config: &Config) -> Option<u32> {
        if let Some(&at) = self.page_at.get(&touch.page) {
            return Some(at);
        }
        if self.pages.len() >= config.most_pages {
            return None;
        }
        let at = self.pages.len() as u32;
        self.page_at.insert(touch.page, at);
        self.pages.push(Page {
            number: touch.page,
            label: SEED,
            history: History::default(),
            since_ns: 0,
            is_fixed: false,
        });
        Some(at)
    }

    fn thread(&mut self, id: Option<i32>, config: &Config) -> Option<u32> {
        if let Some(&at) = self.thread_at.get(&id) {
            return Some(at);
        }
        if self.threads.len() >= config.most_threads {
            return None;
        }
        let at = self.threads.len() as u32;
        self.thread_at.insert(id, at);
        self.threads.push(Thread {
            page: GONE,
            time_ns: 0,
        });
        Some(at)
    }

    /// Counts what a touch says of the region that its thread was in before, and of its own.
    fn follow(&mut self, before: Thread, touch: &Touch, label: Label, config: &Config) {
        let was = self
            .pages
            .get(before.page as usize)
            .map_or(SEED, |page| page.label);
        let gap_ns = touch.time_ns.saturating_sub(before.time_ns);
        let is_near = gap_ns <= config.near_ns;
        if is_near && is_region(was) {
            let stayed_ns = if was == label { gap_ns } else { gap_ns / 2 };
            self.held[was as usize].visits.stay(stayed_ns);
        }
        if !is_region(label) {
            return;
        }
        let visits = &mut self.held[label as usize].visits;
        if was != label || !is_near {
            visits.enter(touch.time_ns);
            visits.stay(if is_near { gap_ns / 2 } else { 0 });
        }
        visits.touch(touch.time_ns, touch.thread);
        if is_near && is_region(was) {
            self.fresh.add(was as usize, label as usize);
        }
    }

    /// Judges regions by the touches since the last turn, and forms them anew where it is time.
    pub fn turn(&mut self, now_ns: u64, config: &Config) {
        self.turns += 1;
        self.forget(now_ns, config);
        let changed = self.judge(config);
        if changed || self.turns.is_multiple_of(FORM_TURNS) {
            self.form(now_ns, config);
        }
        for held in &mut self.held {
            held.visits.fade(FADE);
        }
        self.turn_before_ns = self.last_turn_ns;
        self.last_turn_ns = now_ns;
    }

    /// Pages and regions of this space, for reports.
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// Its regions; a page's label is the position in it.
    pub fn held(&self) -> &[Held] {
        &self.held
    }

    /// Ticks in which it ran.
    pub fn tick(&self) -> u32 {
        self.tick
    }

    /// Touches that were taken in.
    pub fn touch_count(&self) -> u64 {
        self.touch_count
    }

    /// Touches of pages or threads that were too many.
    pub fn left_out_count(&self) -> u64 {
        self.left_out_count
    }

    /// When it was touched last.
    pub fn last_touch_ns(&self) -> u64 {
        self.last_touch_ns
    }

    /// Drops touches that are too old, and pages and threads that are too many of those that are. A space
    /// that sleeps keeps its pages.
    fn forget(&mut self, now_ns: u64, config: &Config) {
        let oldest_ns = now_ns.saturating_sub(config.history_ns);
        while self
            .entries
            .front()
            .is_some_and(|entry| entry.time_ns < oldest_ns)
        {
            self.entries.pop_front();
        }
        let tick = self.tick;
        let pages = keep(&mut self.pages, |page| page.history.ones(tick) > 0);
        // The last page that a thread touched counts for what it touches next, if that is soon.
        let threads = keep(&mut self.threads, |thread| thread.time_ns >= oldest_ns);
        if let Some(moved) = &pages {
            self.page_at.clear();
            let numbers = self.pages.iter().map(|page| page.number).zip(0..);
            self.page_at.extend(numbers);
            for thread in &mut self.threads {
                thread.page = moved.get(thread.page as usize).copied().unwrap_or(GONE);
            }
        }
        if let Some(moved) = &threads {
            self.thread_at.retain(|_, at| {
                *at = moved[*at as usize];
                *at != GONE
            });
        }
        if pages.is_none() && threads.is_none() {
            return;
        }
        let at = |moved: &Option<Vec<u32>>, at: u32| match moved {
            Some(moved) => moved[at as usize],
            None => at,
        };
        self.entries.retain_mut(|entry| {
            entry.page = at(&pages, entry.page);
            entry.thread = at(&threads, entry.thread);
            entry.page != GONE && entry.thread != GONE
        });
    }

    /// Do regions hold for touches that came after they were formed? Those that do not are given up, with
    /// all that was before; those that turn out to be one are joined. Was one given up?
    fn judge(&mut self, config: &Config) -> bool {
        let fresh = std::mem::replace(&mut self.fresh, Follows::new(self.held.len()));
        self.follows.fade(FADE);
        self.follows.add_all(&fresh);
        let mut both = fresh.clone();
        both.add_all(&self.before);
        let (mut since_ns, mut fails) = (self.last_turn_ns, self.fails(&fresh));
        if !fails.contains(&true) {
            (since_ns, fails) = (self.turn_before_ns, self.fails(&both));
        }
        let all = fresh.total();
        let mut failed = 0.0;
        for (region, held) in self.held.iter_mut().enumerate() {
            let (touches, stayed) = (fresh.from(region), fresh.get(region, region));
            if fails[region] {
                failed += touches;
            } else if touches > 0.0 {
                let known = held.known + touches;
                held.stay = (held.stay * held.known + stayed) / known;
                held.known = FADE * known;
            }
        }
        self.before = fresh;
        let part_of = self
            .follows
            .joined(config.threshold, |one, other| !fails[one] && !fails[other]);
        let is_new_phase = failed > NEW_PHASE * all && failed > 0.0;
        if is_new_phase {
            self.formed_touches = 0;
        }
        for page in &mut self.pages {
            match page.label {
                GLOBAL => {}
                label if is_new_phase || (is_region(label) && fails[label as usize]) => {
                    page.label = SEED;
                    page.since_ns = since_ns;
                }
                SEED => {}
                label => page.label = part_of[label as usize] as Label,
            }
        }
        for region in (0..part_of.len()).filter(|&region| part_of[region] != region) {
            self.follows.join(region, part_of[region]);
            self.before.join(region, part_of[region]);
        }
        failed > 0.0
    }

    /// Which regions do not hold for these pairs: far fewer touches stay than did?
    fn fails(&self, pairs: &Follows) -> Vec<bool> {
        let all = pairs.total();
        let fails = |(region, held): (usize, &Held)| {
            let (touches, stayed) = (pairs.from(region), pairs.get(region, region));
            let chance = touches / all.max(1.0);
            let expected = touches * (chance + LEAST_STAY * (held.stay - chance));
            let is_judged = touches >= LEAST_JUDGED && held.is_confirmed() && held.stay > chance;
            is_judged && stayed + 2.0 * expected.sqrt() < expected
        };
        self.held.iter().enumerate().map(fails).collect()
    }
}

/// Drops what is not kept, where that is more than an eighth; then tells where each went, or that it is
/// [`GONE`].
fn keep<T>(all: &mut Vec<T>, is_kept: impl Fn(&T) -> bool) -> Option<Vec<u32>> {
    let kept: Vec<bool> = all.iter().map(is_kept).collect();
    let kept_count = kept.iter().filter(|kept| **kept).count();
    if (all.len() - kept_count) * 8 <= all.len() {
        return None;
    }
    let mut next = 0;
    let place = |kept: &bool| match kept {
        true => {
            next += 1;
            next - 1
        }
        false => GONE,
    };
    let moved = kept.iter().map(place).collect();
    let mut kept = kept.iter();
    all.retain(|_| kept.next() == Some(&true));
    Some(moved)
}
