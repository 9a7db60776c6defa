//! Which trackers and backends work here, and what would enable the others.
//!
//! Attempts are made on this process alone and undone at once. On a captured machine
//! (`root` is not `/`) only files are looked at.

mod standing;

pub use standing::{PolicyStanding, standings};

use crate::backend::copy::CopyBackend;
use crate::backend::kernel::KernelBackend;
use crate::backend::swap::SwapBackend;
use crate::counters::{lru_gen, resctrl as monitoring, vmstat as events, vmstat::VmEvent};
use crate::filter;
use crate::opium::OpiumDevice;
use crate::perf::catalogue::Catalogue;
use crate::perf::counter::Counters;
use crate::perf::refusal::{Asked, forbidden};
use crate::proc::pagemap::{self, Pagemap};
use crate::proc::pressure as psi;
use crate::proc::soft_dirty;
use crate::root::Root;
use crate::sys::{self, PAGE_IS_PRESENT};
use crate::tracker::damon::admin;
use crate::tracker::damon::events::Layout;
use crate::tracker::hintfault::HintFaultTracker;
use crate::tracker::perf::PerfTracker;
use hither_core::perf::events::Role as Wanted;
use hither_mover::Backend;

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It tells how memory is used.
    Tracker,
    /// It moves pages.
    Backend,
}

impl Role {
    /// The word for a person.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tracker => "tracker",
            Self::Backend => "backend",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What the check is about.
    pub role: Role,
    /// Name of the tracker, the backend, or the kernel interface it needs.
    pub name: &'static str,
    /// Does the kernel let it work here?
    pub works: bool,
    /// What was found: half a sentence.
    pub found: String,
    /// What would enable it; empty where it works.
    pub remedy: String,
}

/// What a check found: works with a remark, or not with the reason and the remedy.
type Finding = Result<String, (String, String)>;
/// A check.
type Probe = fn(&Root) -> Finding;

fn no<T>(why: impl Into<String>, remedy: impl Into<String>) -> Result<T, (String, String)> {
    Err((why.into(), remedy.into()))
}

/// All checks, in the order in which they are printed.
const TABLE: &[(Role, &str, Probe)] = &[
    (Role::Tracker, "opium", opium),
    (Role::Tracker, "residency", residency),
    (Role::Tracker, "pagemap", frames),
    (Role::Tracker, "pagemap_scan", pagemap_scan),
    (Role::Tracker, "perf", perf),
    (Role::Tracker, "hintfault", hintfault),
    (Role::Tracker, "damon", damon),
    (Role::Tracker, "written", written),
    (Role::Tracker, "mglru", mglru),
    (Role::Tracker, "vmstat", vmstat),
    (Role::Tracker, "psi", pressure),
    (Role::Tracker, "resctrl", resctrl),
    (Role::Tracker, "counts", counts),
    (Role::Tracker, "uncore", uncore),
    (Role::Backend, "kernel", kernel),
    (Role::Backend, "copy", copy),
    (Role::Backend, "swap", swap),
];

/// Runs all checks.
#[must_use]
pub fn examine(root: &Root) -> Vec<Check> {
    TABLE
        .iter()
        .map(|&(role, name, check)| {
            let (works, found, remedy) = match check(root) {
                Ok(found) => (true, found, String::new()),
                Err((found, remedy)) => (false, found, remedy),
            };
            Check {
                role,
                name,
                works,
                found,
                remedy,
            }
        })
        .collect()
}

fn text(root: &Root, below: &str) -> Option<String> {
    root.text_if_any(below)
        .ok()
        .flatten()
        .map(|text| text.trim().to_owned())
}

fn opium(root: &Root) -> Finding {
    let opened = match root.is_host() {
        true => OpiumDevice::open(root).map(|_| ()),
        false => OpiumDevice::find(root).and_then(|found| match found {
            Some(_) => Ok(()),
            None => OpiumDevice::open(root).map(|_| ()),
        }),
    };
    match opened {
        Ok(()) => Ok("the lab's device answers".to_owned()),
        Err(error) => no(error.reason, error.remedy),
    }
}

fn residency(root: &Root) -> Finding {
    if !root.is_host() || root.has("proc/self/numa_maps") {
        let asks = !root.is_host() || KernelBackend::new().probe().is_ok();
        let who = match asks {
            true => "numa_maps and move_pages queries tell",
            false => "numa_maps alone tells",
        };
        return Ok(format!("{who} where pages are"));
    }
    no(
        "there is no /proc/self/numa_maps",
        "use a kernel with CONFIG_NUMA and CONFIG_PROC_PAGE_MONITOR",
    )
}

fn frames(root: &Root) -> Finding {
    if !root.is_host() {
        return no("a captured machine cannot be tried", "run it there");
    }
    match pagemap::frames_are_told(root) {
        Ok(true) => Ok("frame numbers are told: samples can be tied to processes".to_owned()),
        Ok(false) => no(
            "frame numbers are hidden from this user",
            filter::as_root("SYS_ADMIN"),
        ),
        Err(error) => no(
            format!("/proc/self/pagemap cannot be read ({error})"),
            "use a kernel with CONFIG_PROC_PAGE_MONITOR",
        ),
    }
}

fn pagemap_scan(root: &Root) -> Finding {
    if !root.is_host() {
        return no("a captured machine cannot be tried", "run it there");
    }
    let probe = Box::new(1u8);
    let page = std::ptr::from_ref(&*probe) as u64 >> 12;
    let mut found = 0;
    let scanned = Pagemap::open(root, std::process::id() as i32).and_then(|map| {
        map.scan(page..page + 1, PAGE_IS_PRESENT, |range| {
            found += range.count()
        })
    });
    match scanned {
        Ok(()) if found == 1 => Ok("page categories are told (huge, present, written)".to_owned()),
        Ok(()) => no(
            "it misses pages that are there",
            "use another kernel version",
        ),
        Err(error) => no(
            format!("the kernel refuses it ({error})"),
            "use Linux 6.7 or later",
        ),
    }
}

fn perf(root: &Root) -> Finding {
    match PerfTracker::probe(root) {
        Ok(events) => {
            let names: Vec<&str> = events.iter().map(|event| event.pmu.as_str()).collect();
            let paranoid = text(root, "proc/sys/kernel/perf_event_paranoid");
            Ok(format!(
                "the PMU samples memory accesses ({}), perf_event_paranoid is {}; {UNTRIED}",
                names.join(", "),
                paranoid.as_deref().unwrap_or("?")
            ))
        }
        Err(error) => no(error.reason, error.remedy),
    }
}

fn hintfault(root: &Root) -> Finding {
    match HintFaultTracker::probe(root) {
        Ok(()) => Ok(format!(
            "page faults can be sampled, numa_balancing is {} (switched on while it watches: the \
             kernel moves pages then)",
            text(root, "proc/sys/kernel/numa_balancing").unwrap_or_else(|| "?".into())
        )),
        Err(error) => no(error.reason, error.remedy),
    }
}

fn damon(root: &Root) -> Finding {
    if root.is_host() && sys::effective_uid() != 0 {
        return no("DAMON is root's", "run hither as root");
    }
    let usable = admin::check_free(root).and_then(|()| Layout::read(root));
    match usable {
        Err(error) => no(error.reason, error.remedy),
        Ok(_) if admin::stat_is_on(root) => {
            Ok("DAMON is free but for damon_stat, which is off while hither watches".to_owned())
        }
        Ok(_) => Ok("DAMON is there and free".to_owned()),
    }
}

fn written(root: &Root) -> Finding {
    if !root.is_host() {
        return no("a captured machine cannot be tried", "run it there");
    }
    match soft_dirty::check(root) {
        Ok(()) if sys::effective_uid() == 0 => {
            Ok("soft-dirty bits are kept: pages written by any process are told".to_owned())
        }
        Ok(()) => Ok("soft-dirty bits are kept: pages written by your own processes".to_owned()),
        Err(error) => no(error.reason, error.remedy),
    }
}

fn mglru(root: &Root) -> Finding {
    match lru_gen::read(root) {
        Ok(lists) => Ok(format!(
            "ages of pages are told, of {} control groups and nodes (hither top --ages)",
            lists.len()
        )),
        Err(error) => no(error.reason, error.remedy),
    }
}

fn vmstat(root: &Root) -> Finding {
    let told = match events::machine(root) {
        Ok(told) => told,
        Err(error) => return no(error.to_string(), "use a kernel that prints /proc/vmstat"),
    };
    match (told.get(VmEvent::Migrated), told.get(VmEvent::Promoted)) {
        (Some(_), Some(_)) => Ok("moves, promotions and demotions are counted".to_owned()),
        (Some(_), None) => Ok("moves are counted, promotions are not (Linux 5.18 does)".to_owned()),
        (None, _) => no(
            "the kernel does not count page moves",
            "use a kernel with CONFIG_MIGRATION and CONFIG_VM_EVENT_COUNTERS",
        ),
    }
}

fn pressure(root: &Root) -> Finding {
    match psi::machine(root) {
        Ok(Some(_)) => Ok("time lost for want of memory is told".to_owned()),
        Ok(None) => no(
            "this kernel keeps no pressure stall information",
            "use a kernel with CONFIG_PSI, started with psi=1",
        ),
        Err(error) => no(error.reason, error.remedy),
    }
}

fn resctrl(root: &Root) -> Finding {
    if let Err((why, remedy)) = monitoring::available(root) {
        return no(why, remedy);
    }
    match monitoring::read(root) {
        Ok(Some(caches)) => Ok(format!("bandwidth of {} last-level caches", caches.len())),
        Ok(None) => no("resctrl was unmounted just now", "mount it again"),
        Err(error) => no(error.reason, error.remedy),
    }
}

/// Of all that reads a PMU.
const UNTRIED: &str = "never tried on real hardware";

fn counts(root: &Root) -> Finding {
    let roles: Vec<Wanted> = (Wanted::ALL.into_iter())
        .filter(|role| role.is_counted_by_core())
        .collect();
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    counted(root, &roles, Asked::ProcessCounts, |catalogue| {
        Counters::of_process(root, catalogue, own, &roles).map(drop)
    })
}

fn uncore(root: &Root) -> Finding {
    let roles: Vec<Wanted> = (Wanted::ALL.into_iter())
        .filter(|role| role.is_uncore())
        .collect();
    counted(root, &roles, Asked::UncoreCounts, |catalogue| {
        Counters::of_uncore(root, catalogue, &roles).map(drop)
    })
}

/// Which of these roles the machine counts, by which events, and why not the others. On the machine
/// itself `attempt` opens them and closes them again.
fn counted(
    root: &Root,
    roles: &[Wanted],
    asked: Asked,
    attempt: impl FnOnce(&Catalogue) -> crate::Result<()>,
) -> Finding {
    let catalogue = match Catalogue::read(root) {
        Ok(catalogue) => catalogue,
        Err(error) => return no(error.reason, error.remedy),
    };
    let served = (catalogue.served.iter()).filter(|served| roles.contains(&served.role));
    let events: Vec<String> = served
        .map(|served| {
            let terms = served.line.events.first().map_or("", |event| event.terms);
            let more = match served.line.events.len() {
                0 | 1 => String::new(),
                count => format!(" and {} more", count - 1),
            };
            let source = served.sources.first().map_or("", |source| &source.name);
            format!("{} ({source}/{terms}/{more})", served.role.name())
        })
        .collect();
    if events.is_empty() {
        return match catalogue.obstacle(roles) {
            Some(missing) if !missing.remedy.is_empty() => {
                no(missing.why.clone(), missing.remedy.clone())
            }
            _ => no("this processor counts none of it", "use real hardware"),
        };
    }
    match root.is_host() {
        true => {
            if let Err(error) = attempt(&catalogue) {
                let why = format!("{}; it has {}", error.reason, events.join(", "));
                return no(why, error.remedy);
            }
        }
        false => {
            if let Some((why, remedy)) = forbidden(root, asked) {
                let why = format!("{why}, so that only root counts {}", events.join(", "));
                return no(why, remedy);
            }
        }
    }
    let mut found = format!("{}: {}", catalogue.family.name, events.join(", "));
    let lacking = (catalogue.wanting()).filter(|missing| roles.contains(&missing.role));
    for missing in lacking {
        found += &format!("; not {}: {}", missing.role.name(), missing.why);
        if !missing.remedy.is_empty() {
            found += &format!(" ({})", missing.remedy);
        }
    }
    Ok(format!("{found}; {UNTRIED}"))
}

fn kernel(root: &Root) -> Finding {
    if !root.is_host() {
        return no("a captured machine cannot be tried", "run it there");
    }
    match KernelBackend::new().probe() {
        Ok(()) if sys::effective_uid() == 0 => {
            Ok("move_pages works, on others' processes with CAP_SYS_PTRACE".to_owned())
        }
        Ok(()) => Ok("move_pages works, on your own processes".to_owned()),
        Err(why) => no(why.why, why.remedy),
    }
}

fn copy(root: &Root) -> Finding {
    if !root.is_host() {
        return no("a captured machine cannot be tried", "run it there");
    }
    let backend = match CopyBackend::new(1, Vec::new()) {
        Ok(backend) => backend,
        Err(error) => {
            let why = format!("its threads cannot be started ({error})");
            return no(why, filter::no_thread(error).remedy);
        }
    };
    match backend.probe() {
        Ok(()) if backend.looks_ahead() => Ok(format!(
            "{}, addresses are checked beforehand",
            backend.instructions()
        )),
        Ok(()) => Ok("the kernel copies (process_vm_readv): slower, Linux 5.14 has better".into()),
        Err(why) => no(why.why, why.remedy),
    }
}

fn swap(root: &Root) -> Finding {
    let sysctl = "proc/sys/vm/unprivileged_userfaultfd";
    let Some(unprivileged) = text(root, sysctl) else {
        return no(
            "this kernel has no userfaultfd",
            "use a kernel with CONFIG_USERFAULTFD, 6.11 or later",
        );
    };
    if !root.is_host() {
        return Ok(format!(
            "userfaultfd is there, vm.unprivileged_userfaultfd is {unprivileged}"
        ));
    }
    match (SwapBackend::available(false), SwapBackend::available(true)) {
        (Ok(()), _) => Ok("pages are exchanged from user space; forks are seen".to_owned()),
        (Err(why), Ok(())) => no(
            why.why,
            format!(
                "{} (vm.unprivileged_userfaultfd is {unprivileged})",
                why.remedy
            ),
        ),
        (Err(_), Err(why)) => no(why.why, why.remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured::Captured;

    #[test]
    fn every_check_says_what_and_how() {
        let checks = examine(&Root::host());
        assert_eq!(checks.len(), TABLE.len());
        for check in &checks {
            assert!(!check.found.is_empty(), "{check:?}");
            assert_eq!(check.works, check.remedy.is_empty(), "{check:?}");
        }
        assert!(
            checks
                .iter()
                .any(|check| check.name == "kernel" && check.works)
        );
        let copy = checks.iter().find(|check| check.name == "copy").unwrap();
        assert!(
            copy.works && copy.found.contains("checked beforehand"),
            "{copy:?}"
        );
    }

    #[test]
    fn a_captured_machine_is_only_read() {
        let captured = Captured::new();
        captured.put("sys/bus/event_source/devices/ibs_op/type", "9\n");
        captured.put("proc/sys/kernel/perf_event_paranoid", "4\n");
        captured.put("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n");
        captured.put("sys/module/damon_stat/parameters/enabled", "Y\n");
        captured.put("sys/module/damon_reclaim/parameters/enabled", "Y\n");
        captured.put("sys/kernel/mm/lru_gen/enabled", "0x0000\n");
        let checks = examine(&captured.root);
        let of = |name: &str| checks.iter().find(|check| check.name == name).unwrap();
        assert!(
            of("perf")
                .found
                .contains("(ibs_op), perf_event_paranoid is 4")
        );
        assert!(of("hintfault").found.contains("no NUMA balancing"));
        assert!(of("damon").found.contains("damon_reclaim"));
        assert!(of("mglru").found.contains("switched off"));
        assert!(of("opium").remedy.contains("hither lab run"));
        assert!(!of("swap").works);
        captured.put("proc/vmstat", "pgmigrate_success 3\npgpromote_success 1\n");
        let checks = examine(&captured.root);
        let of = |name: &str| checks.iter().find(|check| check.name == name).unwrap();
        assert!(of("uncore").found.contains("no event table"));
        assert!(!of("uncore").remedy.is_empty());
        assert!(of("vmstat").works);
        assert!(of("psi").remedy.contains("CONFIG_PSI"));
        assert!(of("resctrl").found.contains("no resctrl"));
    }
    #[test]
    fn what_a_server_counts_is_told_by_role_and_event() {
        let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/pmu");
        let machine = |name: &str| Root::new(fixtures.join(name));
        let milan = counts(&machine("amd-milan")).unwrap();
        for part in [
            "AMD Zen 3 (Milan): instructions (cpu/event=0xc0/)",
            "remote memory (cpu/event=0x44,umask=0x40/)",
            "; not stalls on memory: AMD documents no event",
            "; never tried on real hardware",
        ] {
            assert!(milan.contains(part), "{milan}");
        }
        // Controllers are not every user's.
        let (why, remedy) = uncore(&machine("amd-genoa")).unwrap_err();
        assert!(
            why.contains("controller reads (amd_umc_0/event=0x0a,rdwrmask=0x1/)"),
            "{why}"
        );
        assert!(
            why.contains("link traffic (amd_df/event=0xd5f,umask=0xf3e/ and 5 more)"),
            "{why}"
        );
        assert!(remedy.contains("perf_event_paranoid to 0"), "{remedy}");
    }
}
