//! DAMON's folder in sysfs: who uses it, how a kdamond is set up, and what was there before.
//!
//! A process has a kdamond of its own. One with several targets would have to be told of every
//! process that comes and goes; the kernel then refuses the numbers of those that have ended, and
//! gives the regions of one to another.

use super::Pace;
use crate::error::{Error, Result};
use crate::restore::{Setting, write};
use crate::root::Root;
use hither_core::foreign::Foreign;
use std::ops::Range;

/// The folder of kdamonds.
pub const KDAMONDS: &str = "sys/kernel/mm/damon/admin/kdamonds";
/// Kdamonds that are set up, hence processes watched at once.
pub const SLOTS: u32 = 16;
const STAT: &str = "sys/module/damon_stat/parameters/enabled";
/// Modules that run a kdamond of their own and change memory with it.
const ACTING: [&str; 2] = ["damon_reclaim", "damon_lru_sort"];
/// Deepest folder that is saved; DAMON's deepest lies 8 below.
const MOST_DEPTH: u32 = 16;

/// What a kdamond watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// These virtual addresses of a process.
    Process(i32, Vec<Range<u64>>),
    /// These physical addresses.
    Physical(Vec<Range<u64>>),
}

/// A file of one kdamond.
pub fn file(slot: u32, name: &str) -> String {
    format!("{KDAMONDS}/{slot}/{name}")
}

fn context(slot: u32, name: &str) -> String {
    file(slot, &format!("contexts/0/{name}"))
}

fn is(root: &Root, below: &str, content: &str) -> bool {
    let text = root.text_if_any(below).ok().flatten();
    text.is_some_and(|text| text.trim() == content)
}

/// Who uses DAMON, or why it cannot be used here.
///
/// # Errors
/// No such kernel, or somebody else's kdamond runs: it is never disturbed.
pub fn check_free(root: &Root) -> Result<()> {
    if !root.has(&format!("{KDAMONDS}/nr_kdamonds")) {
        return Err(Error::new(
            root.path(KDAMONDS),
            "this kernel has no DAMON in sysfs",
            "use a kernel with CONFIG_DAMON_SYSFS",
        ));
    }
    for module in ACTING {
        let switch = format!("sys/module/{module}/parameters/enabled");
        if is(root, &switch, "Y") {
            return Err(Error::new(
                root.path(&switch),
                format!("{module} is on and holds the only monitoring slot"),
                format!(
                    "write N to {} for as long as hither is to watch",
                    root.path(&switch).shown()
                ),
            ));
        }
    }
    for number in root.numbered(KDAMONDS, "")? {
        let state = file(number, "state");
        if is(root, &state, "on") {
            let pid = root.text_if_any(&file(number, "pid"))?.unwrap_or_default();
            return Err(Error::new(
                root.path(&state),
                format!(
                    "somebody else's kdamond runs (process {}): it is left alone",
                    pid.trim()
                ),
                format!(
                    "end who started it (`damo stop` for damo), or write off to {}",
                    root.path(&state).shown()
                ),
            ));
        }
    }
    Ok(())
}

/// Does `damon_stat` run?
pub fn stat_is_on(root: &Root) -> bool {
    is(root, STAT, "Y")
}

/// What is to be put back after [`claim`], in order. `mark_us` tells our kdamonds from others
/// that may have been set up since a crash.
pub fn settings(root: &Root, mark_us: u64) -> Result<Vec<Setting>> {
    let count = format!("{KDAMONDS}/nr_kdamonds");
    let before = Setting::of(root, &count)?.unwrap_or_default().content;
    let mut settings: Vec<Setting> = (0..SLOTS)
        .map(|slot| {
            let update = context(slot, "monitoring_attrs/intervals/update_us");
            Setting::new(file(slot, "state"), "off")
                .only_if(file(slot, "state"), "on")
                .only_if(update, mark_us.to_string())
        })
        .collect();
    settings.push(Setting::new(&count, &before).only_if(&count, SLOTS.to_string()));
    // What somebody had set up and not switched on: the folders first, then what they hold.
    let mut saved = Vec::new();
    save(root, KDAMONDS, 0, &mut saved)?;
    saved.retain(|setting| setting.path != count);
    settings.extend(
        saved
            .into_iter()
            .map(|setting| setting.only_if(&count, &before)),
    );
    settings.extend(Setting::of(root, STAT)?.filter(|setting| setting.content == "Y"));
    Ok(settings)
}

/// Every setting below a folder, counts of folders before what is in them.
fn save(root: &Root, folder: &str, depth: u32, into: &mut Vec<Setting>) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mut names = root.names(folder)?;
    names.sort_by_key(|name| !name.starts_with("nr_"));
    for name in names {
        let path = format!("{folder}/{name}");
        let Ok(seen) = std::fs::symlink_metadata(root.path(&path)) else {
            continue;
        };
        if seen.is_dir() && depth < MOST_DEPTH {
            save(root, &path, depth + 1, into)?;
        } else if seen.is_file() && seen.permissions().mode() & 0o200 != 0 && name != "state" {
            into.extend(Setting::of(root, &path)?);
        }
    }
    Ok(())
}

/// Takes the slot from `damon_stat` and makes the folders.
pub fn claim(root: &Root) -> Result<()> {
    if stat_is_on(root) {
        write(root, STAT, "N")?;
    }
    write(root, &format!("{KDAMONDS}/nr_kdamonds"), &SLOTS.to_string())?;
    for slot in 0..SLOTS {
        write(root, &file(slot, "contexts/nr_contexts"), "1")?;
    }
    Ok(())
}

/// Sets a kdamond up and starts it; its thread's number.
pub fn start(root: &Root, slot: u32, target: &Target, pace: &Pace, mark_us: u64) -> Result<i32> {
    let set = |name: &str, value: u64| write(root, &context(slot, name), &value.to_string());
    let operations = match target {
        Target::Process(..) => "fvaddr",
        Target::Physical(_) => "paddr",
    };
    write(root, &context(slot, "operations"), operations)?;
    set("monitoring_attrs/intervals/update_us", mark_us)?;
    set_pace(root, slot, pace)?;
    set("targets/nr_targets", 1)?;
    let (Target::Process(_, ranges) | Target::Physical(ranges)) = target;
    if let Target::Process(pid, _) = target {
        set("targets/0/pid_target", *pid as u64)?;
    }
    set_ranges(root, slot, ranges)?;
    write(root, &file(slot, "state"), "on")?;
    kdamond(root, slot)
}

fn set_pace(root: &Root, slot: u32, pace: &Pace) -> Result<()> {
    for (name, value) in [
        ("intervals/sample_us", pace.sample_us),
        ("intervals/aggr_us", pace.aggregation_us),
        ("nr_regions/min", pace.min_regions.into()),
        ("nr_regions/max", pace.max_regions().into()),
    ] {
        let below = context(slot, &format!("monitoring_attrs/{name}"));
        write(root, &below, &value.to_string())?;
    }
    Ok(())
}

/// None: what is watched stays as it is, where it is watched already.
fn set_ranges(root: &Root, slot: u32, ranges: &[Range<u64>]) -> Result<()> {
    let set = |name: &str, value: u64| {
        let below = context(slot, &format!("targets/0/regions/{name}"));
        write(root, &below, &value.to_string())
    };
    set("nr_regions", ranges.len() as u64)?;
    for (index, range) in ranges.iter().enumerate() {
        set(&format!("{index}/start"), range.start)?;
        set(&format!("{index}/end"), range.end)?;
    }
    Ok(())
}

/// Gives a running kdamond another pace, and ranges to watch where there are any; it keeps its regions,
/// as far as they are in them.
///
/// # Errors
/// It has ended, or the kernel cannot (before Linux 5.19).
pub fn commit(root: &Root, slot: u32, pace: &Pace, ranges: &[Range<u64>]) -> Result<()> {
    set_pace(root, slot, pace)?;
    set_ranges(root, slot, ranges)?;
    write(root, &file(slot, "state"), "commit")
}

/// Number of a kdamond's thread.
fn kdamond(root: &Root, slot: u32) -> Result<i32> {
    let pid = root.parse(&file(slot, "pid"), crate::parse::signed)?;
    i32::try_from(pid)
        .ok()
        .filter(|&pid| pid > 0)
        .ok_or_else(|| {
            Error::new(
                root.path(&file(slot, "state")),
                "the kdamond has ended at once",
                "see whether its process still runs",
            )
        })
}

/// Stops a kdamond; nothing where it has ended by itself, as with its process.
pub fn stop(root: &Root, slot: u32) -> Result<()> {
    let state = file(slot, "state");
    match is(root, &state, "on") {
        true => write(root, &state, "off").or_else(|error| match is(root, &state, "on") {
            true => Err(error),
            false => Ok(()),
        }),
        false => Ok(()),
    }
}
