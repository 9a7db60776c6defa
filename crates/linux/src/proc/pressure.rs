//! Pressure stall information: time in which tasks waited for want of memory, of the machine
//! (`/proc/pressure/memory`) and of a control group (`memory.pressure`).

use crate::error::{Fault, Result};
use crate::parse::{Parsed, clip};
use crate::root::Root;

/// How long tasks waited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// Share of the last 10 s, 0..=1.
    pub share_10s: f64,
    /// Share of the last 60 s.
    pub share_60s: f64,
    /// Share of the last 300 s.
    pub share_300s: f64,
    /// Since boot, or since the group was made, in us.
    pub total_us: u64,
}

impl Stall {
    /// Share of an interval in which tasks waited; `None` for an empty interval.
    #[must_use]
    pub fn share_since(&self, before: &Self, interval_us: u64) -> Option<f64> {
        let waited_us = self.total_us.saturating_sub(before.total_us);
        (interval_us > 0).then(|| (waited_us as f64 / interval_us as f64).min(1.0))
    }
}

/// One reading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Stall,
    /// All tasks that could run waited at once, where the kernel tells.
    pub full: Option<Stall>,
}

/// Parses a pressure file.
///
/// ```text
/// some avg10=0.12 avg60=0.03 avg300=0.00 total=81234
/// full avg10=0.00 avg60=0.00 avg300=0.00 total=412
/// ```
pub fn parse(text: &str) -> Parsed<Pressure> {
    let (mut some, mut full) = (None, None);
    for (index, line) in text.lines().enumerate() {
        let fail = |what: &str| Fault::new(index + 1, format!("`{}` {what}", clip(line)));
        let (kind, figures) = line
            .split_once(' ')
            .ok_or_else(|| fail("is not a kind and its figures"))?;
        let slot = match kind {
            "some" => &mut some,
            "full" => &mut full,
            _ => continue,
        };
        let figure = |name: &str| {
            let words = figures.split_whitespace();
            let mut pairs = words.filter_map(|word| word.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let share = |name: &str| {
            let percent = figure(name).and_then(|value| value.parse::<f64>().ok());
            percent
                .filter(|percent| (0.0..=100.0).contains(percent))
                .map(|percent| percent / 100.0)
                .ok_or_else(|| fail(&format!("has no {name} from 0 to 100")))
        };
        *slot = Some(Stall {
            share_10s: share("avg10")?,
            share_60s: share("avg60")?,
            share_300s: share("avg300")?,
            total_us: figure("total")
                .and_then(|value| value.parse().ok())
                .ok_or_else(|| fail("has no total"))?,
        });
    }
    let some = some.ok_or_else(|| Fault::new(1, "has no line `some`"))?;
    Ok(Pressure { some, full })
}

/// The whole machine; `None` where the kernel keeps no such account (`CONFIG_PSI`, `psi=0`).
///
/// # Errors
/// A file that cannot be read, or is not what the kernel prints.
pub fn machine(root: &Root) -> Result<Option<Pressure>> {
    read(root, "proc/pressure/memory")
}

/// A control group, named as in `/proc/PID/cgroup` (`/user.slice/x`).
///
/// # Errors
/// As for the machine.
pub fn group(root: &Root, group: &str) -> Result<Option<Pressure>> {
    let group = group.trim_matches('/');
    // A name that climbs out of the tree is not the kernel's.
    if group.split('/').any(|part| part == "..") {
        return Ok(None);
    }
    read(root, &format!("sys/fs/cgroup/{group}/memory.pressure"))
}

/// The control group of a process in the unified tree.
///
/// ```text
/// 1:name=systemd:/x
/// 0::/user.slice/user-1000.slice
/// ```
#[must_use]
pub fn group_of(root: &Root, pid: i32) -> Option<String> {
    let text = root.text_if_any(&format!("proc/{pid}/cgroup")).ok()??;
    let unified = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(unified.to_owned())
}

fn read(root: &Root, below: &str) -> Result<Option<Pressure>> {
    match root.parse_if_any(below, parse) {
        // The file is there and answers so where pressure is switched off.
        Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => Ok(None),
        read => read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured::Captured;

    const TEXT: &str = "\
some avg10=12.50 avg60=3.00 avg300=0.25 total=81234
full avg10=0.00 avg60=0.00 avg300=0.00 total=412
";

    #[test]
    fn shares_are_fractions_and_differences_are_of_the_total() {
        let pressure = parse(TEXT).unwrap();
        assert_eq!(pressure.some.share_10s, 0.125);
        assert_eq!(pressure.some.share_60s, 0.03);
        assert_eq!(pressure.full.unwrap().total_us, 412);
        let mut later = pressure.some;
        later.total_us += 250_000;
        assert_eq!(later.share_since(&pressure.some, 1_000_000), Some(0.25));
        assert_eq!(pressure.some.share_since(&later, 1_000_000), Some(0.0));
        assert_eq!(later.share_since(&pressure.some, 0), None);
        // Linux before 5.13 has no `full` in some groups.
        assert_eq!(parse(TEXT.lines().next().unwrap()).unwrap().full, None);
    }

    #[test]
    fn malformed_texts_are_named() {
        for (bad, what) in [
            ("", "some"),
            ("full avg10=0.00 avg60=0.00 avg300=0.00 total=1", "some"),
            ("some", "figures"),
            ("some avg10=0.00 avg60=0.00 avg300=0.00", "total"),
            ("some avg10=0.00 avg60=0.00 total=1", "avg300"),
            ("some avg10=120 avg60=0.00 avg300=0.00 total=1", "avg10"),
            ("some avg10=NaN avg60=0.00 avg300=0.00 total=1", "avg10"),
            ("some avg10=0.00 avg60=0.00 avg300=0.00 total=-1", "total"),
        ] {
            let fault = parse(bad).unwrap_err();
            assert!(fault.reason.contains(what), "{bad}: {}", fault.reason);
        }
        for cut in 0..TEXT.len() {
            let _ = parse(&TEXT[..cut]);
        }
    }

    #[test]
    fn groups_are_found_below_the_root() {
        let captured = Captured::new();
        captured.put("proc/9/cgroup", "1:name=systemd:/x\n0::/a/b\n");
        captured.put("sys/fs/cgroup/a/b/memory.pressure", TEXT);
        let root = captured.root.clone();
        let name = group_of(&root, 9).unwrap();
        assert_eq!(name, "/a/b");
        assert_eq!(group(&root, &name).unwrap(), Some(parse(TEXT).unwrap()));
        assert_eq!(group(&root, "/a/../..").unwrap(), None);
        assert_eq!(group(&root, "/").unwrap(), None);
        assert_eq!(machine(&root).unwrap(), None);
        assert_eq!(group_of(&root, 10), None);
    }

    #[test]
    fn this_kernel_answers_or_has_none() {
        machine(&Root::host()).unwrap();
    }
}
