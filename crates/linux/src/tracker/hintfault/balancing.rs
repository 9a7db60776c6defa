//! The kernel's NUMA balancing: switched on and paced for the tracker, and put back.
//!
//! The kernel takes the page-table entries of a stretch of a process away now and then, so that
//! the next access to each page faults: a hint fault. `kernel.numa_balancing` switches that on
//! for all processes; files in debugfs say how fast it goes. It takes `scan_period_min_ms` to
//! `scan_period_max_ms` to go over a whole process once, as the kernel adapts; both are set to
//! one figure here (and its double), so that a second brings about a set number of faults. Tasks follow a
//! longer period only after they were gone over once more at the old one; therefore balancing rests, where it
//! was off before, until the first of the longer periods is over. And tasks that were started before follow no period until
//! they were gone over once: they have a stretch taken each `scan_delay_ms` of their start, a second. So
//! stretches are larger until that is done.
//!
//! Source: `kernel/sched/fair.c`, `init_numa_balancing`, `task_scan_min`, `update_task_scan_period`.

use crate::error::{Error, Fault, Result};
use crate::parse::{self, Parsed, clip};
use crate::restore::{Journal, Setting, write};
use crate::root::Root;
use std::path::Path;

const SWITCH: &str = "proc/sys/kernel/numa_balancing";
/// Bit of the switch: pages go to the node that uses them. The other, 2, is promotion between
/// tiers, which takes no entries of fast memory away.
const LOCALITY: u64 = 1;

const DELAY: &str = "sys/kernel/debug/sched/numa_balancing/scan_delay_ms";
const PERIOD_MIN: &str = "sys/kernel/debug/sched/numa_balancing/scan_period_min_ms";
const PERIOD_MAX: &str = "sys/kernel/debug/sched/numa_balancing/scan_period_max_ms";
const SIZE: &str = "sys/kernel/debug/sched/numa_balancing/scan_size_mb";

/// Age at which a process, and a mapping, is gone over for the first time; the kernel's own is
/// 1000.
const FIRST_MS: u64 = 100;
/// A process is gone over in stretches of so much. The kernel's own is 256, which makes one burst
/// of faults of a whole small process.
const STRETCH_MB: u64 = 16;
/// The same for programs that ran before, until they were gone over once: 16,384 pages in a burst, which fit into
/// the ring of one CPU.
const FIRST_STRETCH_MB: u64 = 64;
/// Shortest period.
const LEAST_MS: u64 = 100;
/// Longest: the kernel's own maximum.
const MOST_MS: u64 = 60_000;

/// NUMA balancing while the tracker uses it.
#[derive(Debug)]
pub struct Balancing {
    root: Root,
    journal: Option<Journal>,
    /// May the pace be set?
    paced: bool,
    period_ms: Option<u64>,
    /// Of a stretch, in MB, and of a larger one.
    stretch_mb: u64,
    first_stretch_mb: u64,
    /// Pages a second that were asked for last.
    rate: u64,
    /// The switch as it is set while it rests, where it was off before.
    off: Option<u64>,
    /// It rests until then, in ns of the monotonic clock.
    rests_until_ns: Option<u64>,
    /// `scan_period_min_ms` as it was found: no process that is not watched is gone over faster.
    found_ms: u64,
}

/// Counters of `/proc/vmstat`: of the whole machine, since it was booted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalancingCounters {
    /// Page-table entries taken away.
    pub updates: u64,
    /// Hint faults.
    pub hint_faults: u64,
    /// Those of them by a CPU of the page's own node.
    pub local_hint_faults: u64,
    /// Pages that balancing moved.
    pub pages_migrated: u64,
}

impl BalancingCounters {
    /// Reads them; `None` where the kernel has none of them.
    #[must_use]
    pub fn read(root: &Root) -> Option<Self> {
        root.parse_if_any("proc/vmstat", parse_counters)
            .ok()
            .flatten()
            .flatten()
    }

    /// What was counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            updates: self.updates.wrapping_sub(before.updates),
            hint_faults: self.hint_faults.wrapping_sub(before.hint_faults),
            local_hint_faults: self
                .local_hint_faults
                .wrapping_sub(before.local_hint_faults),
            pages_migrated: self.pages_migrated.wrapping_sub(before.pages_migrated),
        }
    }
}

/// The counters among all of `/proc/vmstat`.
///
/// ```text
/// numa_pte_updates 4096
/// numa_hint_faults 3991
/// ```
pub fn parse_counters(text: &str) -> Parsed<Option<BalancingCounters>> {
    let mut counters = BalancingCounters::default();
    let mut any = false;
    for (index, line) in text.lines().enumerate() {
        let Some((name, value)) = line.split_once(' ') else {
            continue;
        };
        let slot = match name {
            "numa_pte_updates" => &mut counters.updates,
            "numa_hint_faults" => &mut counters.hint_faults,
            "numa_hint_faults_local" => &mut counters.local_hint_faults,
            "numa_pages_migrated" => &mut counters.pages_migrated,
            _ => continue,
        };
        *slot = value
            .trim()
            .parse()
            .map_err(|_| Fault::new(index + 1, format!("`{}` has no count", clip(line))))?;
        any = true;
    }
    Ok(any.then_some(counters))
}

impl Balancing {
    /// Can it be had here? Nothing is changed.
    ///
    /// # Errors
    /// The kernel has it not, or it is off and this user may not switch it on.
    pub fn probe(root: &Root) -> Result<()> {
        let on = Self::switch(root)?;
        if on & LOCALITY == 0 && root.is_host() && crate::sys::effective_uid() != 0 {
            return Err(Error::new(
                root.path(SWITCH),
                format!("NUMA balancing is off ({on}), and this user may not switch it on"),
                "run hither as root, or set kernel.numa_balancing to 1",
            ));
        }
        Ok(())
    }

    fn switch(root: &Root) -> Result<u64> {
        root.parse_if_any(SWITCH, parse::number)?.ok_or_else(|| {
            Error::new(
                root.path(SWITCH),
                "this kernel has no NUMA balancing, or the machine has one node",
                "use a kernel with CONFIG_NUMA_BALANCING on a machine with several nodes, or the \
                 lab",
            )
        })
    }

    /// Switches it on. `folder` holds the journal of what is to be put back. Sentences for a
    /// person are added to `notes`.
    ///
    /// # Errors
    /// As [`Balancing::probe`]; or somebody else's journal is in the way.
    pub fn begin(root: &Root, folder: &Path, notes: &mut Vec<String>) -> Result<Self> {
        Self::probe(root)?;
        let on = Self::switch(root)?;
        let mut found = Vec::new();
        for path in [DELAY, PERIOD_MIN, PERIOD_MAX, SIZE] {
            found.extend(Setting::of(root, path).unwrap_or(None));
        }
        let number = |path| {
            let setting = found
                .iter()
                .find(|setting: &&Setting| setting.path == path)?;
            setting.content.parse().ok()
        };
        let (found_ms, found_size_mb) = (number(PERIOD_MIN), number(SIZE));
        let found_size_mb = found_size_mb.unwrap_or(STRETCH_MB);
        let paced = found.len() == 4;
        let mut balancing = Self {
            root: root.clone(),
            journal: None,
            paced,
            period_ms: None,
            stretch_mb: STRETCH_MB,
            first_stretch_mb: FIRST_STRETCH_MB.min(found_size_mb),
            rate: 0,
            off: None,
            rests_until_ns: None,
            found_ms: found_ms.unwrap_or(1000),
        };
        if !paced {
            notes.push(
                "hintfault: the pace of NUMA balancing cannot be set (no \
                 /sys/kernel/debug/sched/numa_balancing: mount debugfs, and run hither as root); \
                 the kernel's own is used"
                    .to_owned(),
            );
        }
        if on & LOCALITY != 0 && !paced {
            return Ok(balancing);
        }
        let (mut journal, told) = Journal::open(root, folder, "hintfault")?;
        notes.extend(told);
        // What a dead owner left may have been put back just now: read again.
        let mut settings: Vec<Setting> = Vec::new();
        settings.extend(Setting::of(root, SWITCH)?);
        for path in [DELAY, PERIOD_MIN, PERIOD_MAX, SIZE] {
            settings.extend(Setting::of(root, path).unwrap_or(None));
        }
        let on = Self::switch(root)?;
        journal.begin(settings)?;
        balancing.journal = Some(journal);
        let begun = balancing.set_up(on);
        if let Err(error) = begun {
            balancing.end()?;
            return Err(error);
        }
        Ok(balancing)
    }

    fn set_up(&mut self, on: u64) -> Result<()> {
        if self.paced {
            write(&self.root, DELAY, &FIRST_MS.to_string())?;
            write(&self.root, SIZE, &STRETCH_MB.to_string())?;
        }
        if on & LOCALITY == 0 {
            self.off = Some(on);
            self.turn(true)?;
        }
        Ok(())
    }

    /// On or off, where it was off before.
    fn turn(&self, on: bool) -> Result<()> {
        let Some(off) = self.off else { return Ok(()) };
        let value = if on { off | LOCALITY } else { off };
        write(&self.root, SWITCH, &value.to_string())
    }

    /// Paces it so that the watched processes, of `pages` resident base pages in all, are gone
    /// over at so many pages a second. Others, of `others` pages, are gone over no faster than
    /// they would have been, unless they are small enough to be gone over at that rate, too. `now_ns` is of
    /// the monotonic clock.
    pub fn pace(&mut self, pages: u64, others: u64, pages_per_s: u64, now_ns: u64) -> Result<()> {
        let is_slower = pages_per_s < std::mem::replace(&mut self.rate, pages_per_s);
        let wanted_ms = period_ms(pages, others, pages_per_s, self.found_ms);
        let near = |now: u64| wanted_ms.abs_diff(now) * 8 <= now;
        if !self.paced || self.period_ms.is_some_and(near) {
            return Ok(());
        }
        write(&self.root, PERIOD_MIN, &wanted_ms.to_string())?;
        write(&self.root, PERIOD_MAX, &(2 * wanted_ms).to_string())?;
        let before_ms = self.period_ms.replace(wanted_ms);
        if is_slower && before_ms.is_some_and(|before_ms| wanted_ms >= 2 * before_ms) {
            self.rests_until_ns = Some(now_ns + wanted_ms * 1_000_000);
            return self.turn(false);
        }
        self.go_on(u64::MAX)
    }

    /// Sets the stretches where `updates` entries were taken away since it began, and programs that ran before have `older`
    /// pages.
    pub fn stretch(&mut self, updates: u64, older: u64) -> Result<()> {
        let wanted_mb = match updates < older {
            true => self.first_stretch_mb,
            false => STRETCH_MB,
        };
        if !self.paced || std::mem::replace(&mut self.stretch_mb, wanted_mb) == wanted_mb {
            return Ok(());
        }
        write(&self.root, SIZE, &wanted_mb.to_string())
    }

    /// Ends its rest where that is over.
    pub fn go_on(&mut self, now_ns: u64) -> Result<()> {
        if self.rests_until_ns.is_none_or(|until| now_ns < until) {
            return Ok(());
        }
        self.rests_until_ns = None;
        self.turn(true)
    }

    /// The time in which a watched process is gone over, where it is set.
    #[must_use]
    pub fn period_ms(&self) -> Option<u64> {
        self.period_ms
    }

    /// Puts back what was changed.
    ///
    /// # Errors
    /// Something cannot be put back; the journal is kept.
    pub fn end(&mut self) -> Result<()> {
        self.journal
            .take()
            .map_or(Ok(()), |mut journal| journal.put_back())
    }
}

impl Drop for Balancing {
    fn drop(&mut self) {
        // What fails here is in the journal, for the next start.
        let _ = self.end();
    }
}

/// 16,384 pages at 40,000 a second: 410 ms.
fn period_ms(pages: u64, others: u64, pages_per_s: u64, found_ms: u64) -> u64 {
    let at_rate = |pages: u64| pages.saturating_mul(1000) / pages_per_s.max(1);
    let for_others = at_rate(others).min(found_ms);
    at_rate(pages).max(for_others).clamp(LEAST_MS, MOST_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured::Captured;

    fn tree(switch: &str, scan: bool) -> (Captured, Root) {
        let captured = Captured::new();
        captured.put(SWITCH, switch);
        if scan {
            for (path, text) in [
                (DELAY, "1000\n"),
                (PERIOD_MIN, "1000\n"),
                (PERIOD_MAX, "60000\n"),
                (SIZE, "256\n"),
            ] {
                captured.put(path, text);
            }
        }
        let root = captured.root.clone();
        (captured, root)
    }

    fn all(root: &Root) -> Vec<String> {
        [SWITCH, DELAY, PERIOD_MIN, PERIOD_MAX, SIZE]
            .iter()
            .map(|path| {
                let text = root.text_if_any(path).unwrap().unwrap_or_default();
                text.trim().to_owned()
            })
            .collect()
    }

    #[test]
    fn settings_are_changed_and_put_back() {
        for (switch, switched) in [("0", "1"), ("1", "1"), ("2", "3")] {
            let (folder, root) = tree(switch, true);
            let before = all(&root);
            let journals = folder.beside("run");
            let mut notes = Vec::new();
            let mut balancing = Balancing::begin(&root, &journals, &mut notes).unwrap();
            assert_eq!(all(&root), [switched, "100", "1000", "60000", "16"]);
            // Until programs that ran before were gone over once.
            for (updates, older, stretch) in [
                (0, 16_384, "64"),
                (16_383, 16_384, "64"),
                (16_384, 16_384, "16"),
            ] {
                balancing.stretch(updates, older).unwrap();
                assert_eq!(all(&root)[4], stretch);
            }
            balancing.pace(16_384, 0, 40_000, 0).unwrap();
            assert_eq!(all(&root), [switched, "100", "409", "818", "16"]);
            // A little more memory changes nothing, much more does.
            balancing.pace(17_000, 0, 40_000, 0).unwrap();
            assert_eq!(balancing.period_ms(), Some(409));
            balancing.pace(163_840, 0, 40_000, 0).unwrap();
            assert_eq!(all(&root), [switched, "100", "4096", "8192", "16"]);
            balancing.pace(16_384, 0, 40_000, 0).unwrap();
            // Of the same memory fewer pages: it rests for the first longer period, where it was off before.
            balancing.pace(16_384, 0, 4_000, 7).unwrap();
            let rests = if switch == "1" { switched } else { switch };
            assert_eq!(all(&root), [rests, "100", "4096", "8192", "16"]);
            balancing.go_on(4_096_000_006).unwrap();
            assert_eq!(all(&root)[0], rests);
            balancing.go_on(4_096_000_007).unwrap();
            assert_eq!(all(&root)[0], switched);
            // A shorter one begins at once.
            balancing.pace(16_384, 0, 400, 0).unwrap();
            assert_eq!(all(&root)[0], rests);
            balancing.pace(16_384, 0, 40_000, 0).unwrap();
            assert_eq!(all(&root)[0], switched);
            // A second tracker has to wait.
            let refused = Balancing::begin(&root, &journals, &mut notes).unwrap_err();
            assert!(refused.reason.contains("has changed"), "{refused}");
            balancing.end().unwrap();
            assert_eq!(all(&root), before);
            assert_eq!(notes, Vec::<String>::new());
        }
    }

    #[test]
    fn what_a_killed_tracker_left_is_put_back_at_the_next_start() {
        let (folder, root) = tree("0", true);
        let before = all(&root);
        let journals = folder.beside("run");
        let mut notes = Vec::new();
        let balancing = Balancing::begin(&root, &journals, &mut notes).unwrap();
        let path = journals.join("hintfault.journal");
        let journal = std::fs::read(&path).unwrap();
        drop(balancing);
        // As a kill leaves it: the journal full, its lock gone, the settings changed.
        std::fs::write(&path, journal).unwrap();
        std::fs::write(root.path(SWITCH), "1").unwrap();
        std::fs::write(root.path(SIZE), "16").unwrap();
        let again = Balancing::begin(&root, &journals, &mut notes).unwrap();
        assert!(notes[0].contains("ended without putting back"), "{notes:?}");
        drop(again);
        assert_eq!(all(&root), before);
    }

    #[test]
    fn without_debugfs_the_pace_is_the_kernels() {
        let (folder, root) = tree("1", false);
        let mut notes = Vec::new();
        let journals = folder.beside("run");
        let mut balancing = Balancing::begin(&root, &journals, &mut notes).unwrap();
        assert!(notes[0].contains("mount debugfs"), "{notes:?}");
        balancing.pace(1, 1, 1, 0).unwrap();
        assert!(!journals.exists(), "nothing is to be put back");
        let (_folder, root) = tree("0", false);
        let balancing = Balancing::begin(&root, &journals, &mut notes).unwrap();
        assert_eq!(all(&root)[0], "1");
        drop(balancing);
        assert_eq!(all(&root)[0], "0");
        let error = Balancing::probe(&Root::new(folder.beside("none"))).unwrap_err();
        assert!(error.reason.contains("no NUMA balancing"), "{error}");
    }

    #[test]
    fn others_are_not_gone_over_faster_than_they_were() {
        // 64 MB watched beside 4 GB: the kernel's own second.
        assert_eq!(period_ms(16_384, 1 << 20, 40_000, 1000), 1000);
        // Beside little: their own pages at that rate.
        assert_eq!(period_ms(16_384, 8_000, 40_000, 1000), 409);
        assert_eq!(period_ms(16_384, 24_000, 40_000, 1000), 600);
        assert_eq!(period_ms(10, 0, 40_000, 1000), LEAST_MS);
        assert_eq!(period_ms(u64::MAX, 0, 0, 1000), MOST_MS);
    }

    #[test]
    fn counters_are_read_and_nonsense_is_named() {
        let text = "nr_free_pages 5\nnuma_pte_updates 9\nnuma_hint_faults 7\n\
                    numa_hint_faults_local 3\nnuma_pages_migrated 2\n";
        let counters = parse_counters(text).unwrap().unwrap();
        let expected = BalancingCounters {
            updates: 9,
            hint_faults: 7,
            local_hint_faults: 3,
            pages_migrated: 2,
        };
        assert_eq!(counters, expected);
        assert_eq!(counters.since(&counters), BalancingCounters::default());
        assert_eq!(parse_counters("nr_free_pages 5").unwrap(), None);
        assert_eq!(
            parse_counters("a 1\nnuma_hint_faults x").unwrap_err().line,
            2
        );
    }
}
