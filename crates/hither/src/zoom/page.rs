//! `--page`: which page is meant, whether it is the program's own, and what was seen of it.

use super::code::{self, SourceLine};
use crate::moving::select::{self, Asked, KERNELS_OWN, USER_END_PAGE};
use anyhow::{bail, ensure};
use hither_agent::host::zoom::steps::LineCounts;
use hither_core::foreign::Foreign;
use hither_linux::counters::task;
use hither_linux::root::Root;
use hither_linux::sys::OwnMapping;
use hither_recording::analysis::Data;
use hither_recording::analysis::page::PageDetail;
use hither_recording::analysis::use_of::{AreaUse as By, Remedy};
use hither_recording::analysis::zoom::{Next, ZoomAdvice};
use std::collections::BTreeMap;
use std::ops::Range;

/// Pages at most: their lines must fit in the counters of the lab's device, and in a table.
const MOST_PAGES: u64 = 64;

/// Reads an address, or `A-B`, in hexadecimal, as tables of hither and `/proc/PID/maps` print them;
/// `0x` may be there. An address means the page that it is in.
pub fn parse(text: &str) -> Result<Asked, String> {
    let pages = if text.contains('-') {
        select::parse_range(text)?.0
    } else {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let is_hexadecimal = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let address = u64::from_str_radix(digits, 16).ok();
        let Some(address) = address.filter(|_| is_hexadecimal) else {
            return Err(
                "write an address in hexadecimal, as in 7f3c8d2a1040, or START-END; \
                        /proc/PID/maps and `hither zoom PID` print some"
                    .to_owned(),
            );
        };
        address >> 12..(address >> 12) + 1
    };
    if pages.end > USER_END_PAGE {
        return Err(format!(
            "{:x} is the kernel's: addresses of programs end at {:x}",
            pages.start << 12,
            USER_END_PAGE << 12
        ));
    }
    let count = pages.end - pages.start;
    if count > MOST_PAGES {
        return Err(format!(
            "that are {count} pages, and at most {MOST_PAGES} are looked at: give a smaller range, or \
             follow its area with --area"
        ));
    }
    Ok(Asked(pages))
}

/// The mappings that hold the pages.
///
/// # Errors
/// A page is in none, or in one that the kernel made for itself.
pub fn mapped(mappings: &[OwnMapping], asked: &Asked, pid: i32) -> anyhow::Result<Vec<OwnMapping>> {
    ensure!(
        !mappings.is_empty(),
        "--page {asked}: process {pid} has no memory of its own: it is the kernel's, or has just \
         ended; give the number of a running program"
    );
    let pages = &asked.0;
    let holds = |mapping: &&OwnMapping| {
        let own = mapping.pages();
        own.start < pages.end && pages.start < own.end
    };
    let found: Vec<OwnMapping> = mappings.iter().filter(holds).cloned().collect();
    let mut next = pages.start;
    for mapping in &found {
        if mapping.pages().start > next {
            break;
        }
        next = mapping.pages().end;
    }
    if next < pages.end {
        let hole = Asked(next..next + 1);
        bail!(
            "--page {asked}: {:x} is not mapped in process {pid}; {}, see /proc/{pid}/maps",
            next << 12,
            select::neighbours(mappings.iter(), &hole.0)
        );
    }
    if let Some(own) = found
        .iter()
        .find(|mapping| KERNELS_OWN.contains(&mapping.name.as_str()))
    {
        bail!(
            "--page {asked}: {} is the kernel's, which nobody can move or pad; give an address of \
             the program's own memory",
            own.name.shown()
        );
    }
    Ok(found)
}

/// Bytes of pages.
#[must_use]
pub fn bytes(asked: &Asked) -> Range<u64> {
    asked.0.start << 12..asked.0.end << 12
}

/// The process of a recording whose page is meant: of those that mapped it, the one that was seen to
/// use it most.
///
/// # Errors
/// None mapped it.
pub fn process_of(data: &Data, asked: &Asked) -> anyhow::Result<(i32, Vec<OwnMapping>)> {
    let range = bytes(asked);
    let mut pids: Vec<i32> = data.mappings.iter().map(|mapping| mapping.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    let accesses = |pid: i32| {
        let own = data.accesses.iter();
        own.filter(|access| access.pid == pid && range.contains(&access.address))
            .count()
    };
    pids.sort_by_key(|&pid| std::cmp::Reverse(accesses(pid)));
    let mut refused = None;
    for &pid in &pids {
        match mapped(&recorded(data, pid), asked, pid) {
            Ok(found) => return Ok((pid, found)),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| {
        anyhow::anyhow!(
            "--page {asked}: the recording holds no mappings; record again, with Linux's /proc"
        )
    }))
}

/// The mappings of a process as a recording has them: of those at one place, the last.
fn recorded(data: &Data, pid: i32) -> Vec<OwnMapping> {
    let own = data.mappings.iter().filter(|row| row.pid == pid);
    let mut last: BTreeMap<u64, OwnMapping> = BTreeMap::new();
    for row in own.filter(|row| row.start < row.end) {
        let may = |letter| row.permissions.contains(letter);
        let mapping = OwnMapping {
            range: row.start..row.end,
            readable: may('r'),
            writable: may('w'),
            executable: may('x'),
            shared: may('s'),
            name: row.name.clone(),
            ..OwnMapping::default()
        };
        last.insert(row.start, mapping);
    }
    last.into_values().collect()
}

/// A thread as the kernel tells of it.
pub struct Thread {
    /// Its number.
    pub tid: i32,
    /// Its name.
    pub name: String,
    /// The CPU on which it ran last.
    pub last_cpu: u32,
}

/// Threads of a process; none of one that has ended.
#[must_use]
pub fn threads(root: &Root, pid: i32) -> Vec<Thread> {
    let all = task::threads(root, pid).into_iter();
    all.map(|(tid, task)| Thread {
        tid,
        name: task.stat.name,
        last_cpu: task.last_cpu,
    })
    .collect()
}

/// What is known of the pages, for tables and JSON alike.
pub struct PageLook {
    pub asked: Asked,
    pub pid: i32,
    /// Does the process run, so that commands for it can be given?
    pub is_running: bool,
    /// Its name.
    pub program: String,
    pub mappings: Vec<OwnMapping>,
    /// Variables of the program or of a library that begin in the pages or reach into them.
    pub variables: Vec<String>,
    pub look: PageDetail,
    /// Transfers to each node position by line, where a device counted them.
    pub line_counts: Option<LineCounts>,
    pub source: Vec<SourceLine>,
    pub threads: Vec<Thread>,
    /// Pages that are not in memory, where somebody looked.
    pub absent_pages: Option<u64>,
    /// The kernel's numbers of nodes.
    pub nodes: Vec<u32>,
    /// What to do.
    pub sentence: String,
    /// The command to try next; empty where there is none.
    pub next: String,
}

/// What was told of the process beside the recording.
#[derive(Default)]
pub struct DetailInputs {
    pub is_running: bool,
    pub threads: Vec<Thread>,
    pub absent_pages: Option<u64>,
    pub line_counts: Option<LineCounts>,
}

impl PageLook {
    /// Puts together what was seen, with names, and notes about names that are missing.
    pub fn new(
        data: &Data,
        asked: &Asked,
        mappings: Vec<OwnMapping>,
        look: PageDetail,
        beside: DetailInputs,
    ) -> (Self, Vec<String>) {
        let pid = look.pid;
        let mut names = code::Names::new(data, pid);
        let source = names.source(&look.code);
        let variables = names.variables(bytes(asked));
        let sentence = match look.choice.advice {
            Some(advice) => advice.sentence(data, &look.written),
            None => "look longer (--seconds)".to_owned(),
        };
        let of = Self {
            asked: asked.clone(),
            pid,
            is_running: beside.is_running,
            program: match beside.threads.iter().find(|thread| thread.tid == pid) {
                Some(first) => first.name.clone(),
                None => data.process_name(pid),
            },
            mappings,
            variables,
            line_counts: beside.line_counts,
            source,
            threads: beside.threads,
            absent_pages: beside.absent_pages,
            nodes: data.nodes.clone(),
            sentence,
            next: String::new(),
            look,
        };
        let next = of.next_command();
        (Self { next, ..of }, names.notes())
    }

    /// The command that carries the remedy out, or looks further.
    fn next_command(&self) -> String {
        if !self.is_running {
            return String::new();
        }
        let (pid, asked) = (self.pid, &self.asked);
        let area = || match self.look.areas.list.first() {
            // Names of sites come from the shim, which a process that ran before does not have.
            Some(area) => format!("hither zoom {pid} --area '{}'", area.name),
            None => String::new(),
        };
        match (self.look.choice.advice, self.look.choice.next) {
            (Some(ZoomAdvice::Place(Remedy::MoveTo(node))), _) => format!(
                "hither move --pid {pid} --to node{} --range {asked}",
                self.nodes[node]
            ),
            // One page cannot be spread: what it is a part of can.
            (Some(ZoomAdvice::Place(Remedy::Nothing)), _) if self.look.summary.by == By::Shared => {
                area()
            }
            (Some(ZoomAdvice::Place(Remedy::Interleave | Remedy::MakeLocal)), _) => area(),
            (None, Next::Longer) => format!("hither zoom {pid} --page {asked} --seconds 10"),
            _ => String::new(),
        }
    }

    /// Threads that ran last on a CPU, where the tracker tells CPUs alone.
    #[must_use]
    pub fn threads_on(&self, cpu: i32) -> Vec<&Thread> {
        let all = self.threads.iter();
        all.filter(|thread| !self.look.by_thread && i64::from(thread.last_cpu) == i64::from(cpu))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_linux::proc::maps;

    const TEXT: &str = "\
00400000-00402000 r-xp 00000000 08:01 7                        /usr/bin/app
00500000-00510000 rw-p 00000000 00:00 0                        [heap]
00510000-00512000 rw-p 00000000 00:00 0
7ffff0000000-7ffff0002000 r-xp 00000000 00:00 0                [vdso]
";

    #[test]
    fn an_address_means_its_page() {
        for (text, page) in [
            ("500000", 0x500),
            ("0x500fff", 0x500),
            ("7FFFF0001040", 0x7_ffff_0001),
        ] {
            assert_eq!(parse(text).unwrap().0, page..page + 1, "{text}");
        }
        assert_eq!(parse("500000-502000").unwrap().0, 0x500..0x502);
    }

    #[test]
    fn malformed_kernel_and_large_ones_are_refused() {
        for (text, words) in [
            ("", "hexadecimal"),
            ("heap", "hexadecimal"),
            ("0x", "hexadecimal"),
            ("+500000", "hexadecimal"),
            ("1ffffffffffffffff", "hexadecimal"),
            ("500000-500800", "not page aligned"),
            ("502000-500000", "is not above"),
            ("800000000000", "is the kernel's"),
            ("ffffffff81000000", "end at 800000000000"),
            ("7ffffffff000-800000001000", "is the kernel's"),
            ("500000-600000", "256 pages, and at most 64"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn pages_must_be_mapped_and_the_programs_own() {
        let mappings = maps::parse(TEXT).unwrap();
        let look = |text: &str| mapped(&mappings, &parse(text).unwrap(), 7);
        assert_eq!(look("501234").unwrap()[0].name, "[heap]");
        assert_eq!(look("50f000-511000").unwrap().len(), 2);
        for (text, words) in [
            (
                "600000",
                "600000 is not mapped in process 7; the nearest mappings are 00510000-00512000 and",
            ),
            // Its second page, and its first.
            ("511000-513000", "512000 is not mapped"),
            ("4ff000-501000", "4ff000 is not mapped"),
            ("7ffff0000000", "[vdso] is the kernel's"),
        ] {
            let error = look(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        let none = mapped(&[], &parse("500000").unwrap(), 7).unwrap_err();
        assert!(none.to_string().contains("has no memory of its own"));
    }
}
