//! The steps beside a program: each looks anew, at less and the more closely.

use super::page;
use super::steps::{LineCounts, Steps, Wanted};
use super::{Command, show};
use crate::record;
use crate::record::allocations::{Allocations, Rows};
use crate::record::choose;
use anyhow::Context;
use hither_agent::host::record::{Session, Setup, ended};
use hither_agent::host::{Client, Error};
use hither_linux::counting::{Counting, PAGE_SHIFT};
use hither_linux::proc::maps;
use hither_linux::proc::pagemap::{self, Pagemap};
use hither_linux::proc::tree::Scope;
use hither_linux::root::Root;
use hither_linux::sys::{self, Mapping};
use hither_linux::topology::Topology;
use hither_linux::tracker::frames::FrameNodes;
use hither_recording::analysis::Data;
use hither_recording::analysis::page as analysis;
use hither_recording::analysis::pages::{self, Count, PAGE_BYTES};
use hither_recording::{Folder, Recording, Writer};
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;

/// Time between two turns.
const INTERVAL_US: u64 = 100_000;
/// log2 of the places that lines are counted by; the device takes its own line where it is longer.
const LINE_SHIFT: u32 = 5;
/// Entries of a page map per read.
const ENTRIES: u64 = 4096;

/// Where the recording goes that the steps look at: taken away again unless it was asked for.
struct Place {
    folder: Folder,
    is_kept: bool,
}

impl Place {
    fn new(asked: Option<&Path>) -> anyhow::Result<Self> {
        let folder = match asked {
            Some(path) => Folder::make_or_take(path)?,
            None => Folder::make_temporary(&std::env::temp_dir(), "hither-zoom-")
                .context("the folder for temporary files (TMPDIR)")?,
        };
        let is_kept = asked.is_some();
        Ok(Self { folder, is_kept })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_kept {
            self.folder.remove_all();
        }
    }
}

/// A page that is counted: whose, its address, its frame.
type Framed = (i32, u64, u64);

/// What is looked at.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Areas,
    /// The page that was asked for, and nothing else.
    Page,
    Pages,
    Lines,
    Done,
}

struct Zoom<'a> {
    command: &'a Command,
    root: &'a Root,
    frame_nodes: FrameNodes,
    folder: &'a Folder,
    /// What names areas by source lines.
    allocations: Option<&'a Allocations>,
    /// What it told of the first step.
    named: Option<Rows>,
    /// Zero of the recording's times, on CLOCK_MONOTONIC.
    start_ns: u64,
    steps: Steps,
    step: Step,
    /// When the step began, and when it ends, since the recording began.
    from_ns: u64,
    until_ns: u64,
    length_ns: u64,
    counting: Option<(Counting, Vec<Framed>)>,
    /// Of the process whose page was asked for: its number and the mappings that hold the page.
    asked: Option<(i32, Vec<Mapping>)>,
    /// Pages of those that are not in memory.
    absent_pages: u64,
}

/// Runs the steps beside a process, or a command that is started.
pub fn run(
    command: &Command,
    pid: Option<i32>,
    wanted: Wanted,
) -> anyhow::Result<(Steps, ExitCode)> {
    let root = Root::host();
    let asked = match (&command.page, pid) {
        (Some(asked), Some(pid)) => {
            let mappings = maps::read(&root, pid)?;
            Some((pid, page::mapped(&mappings, asked, pid)?))
        }
        _ => None,
    };
    let topology = Topology::read(&root)?;
    let tracker = choose::tracker(command.tracker.as_deref(), &root, &topology)?;
    let (scope, watched) = match pid {
        Some(pid) => (Scope::Processes(vec![pid]), format!("process {pid}")),
        None => (
            Scope::Descendants(std::process::id() as i32),
            "the command and its descendants".to_owned(),
        ),
    };
    let meta = record::meta(
        &root,
        &topology,
        &tracker,
        &command.command,
        watched,
        INTERVAL_US,
    );
    let place = Place::new(command.output.as_deref())?;
    let writer = Writer::create(place.folder.clone(), meta)?;
    let beside = match pid {
        Some(pid) => record::Beside::Process(pid),
        None => record::Beside::Command(&command.command),
    };
    let (supervisor, allocations, mut writer) = record::begin(&beside, command.sites, writer)?;
    let mut session = Session::new(Setup {
        root: &root,
        topology: &topology,
        scope,
        tracker: tracker.tracker,
        start_ns: supervisor.start_ns(),
        interval_us: INTERVAL_US,
        overhead: command.overhead / 100.0,
    });
    let length_ns = (command.seconds * 1e9) as u64;
    let mut zoom = Zoom {
        command,
        root: &root,
        frame_nodes: FrameNodes::read(&root),
        folder: &place.folder,
        allocations: allocations.as_ref(),
        named: None,
        start_ns: supervisor.start_ns(),
        steps: Steps::new(wanted),
        step: match asked {
            Some(_) => Step::Page,
            None => Step::Areas,
        },
        from_ns: 0,
        until_ns: length_ns,
        length_ns,
        counting: None,
        asked,
        absent_pages: 0,
    };
    zoom.steps.notes.extend(tracker.notes);
    if zoom.step == Step::Page {
        zoom.count(None);
    }
    let mut failed = None;
    let now_ns = || sys::monotonic_ns().saturating_sub(supervisor.start_ns());
    // Getting ready takes time too, in which nothing is seen.
    zoom.until_ns = now_ns() + length_ns;
    let end = supervisor.run(&mut [Client::<Error>::new(INTERVAL_US, |_| {
        let turned = (|| -> anyhow::Result<u64> {
            let sleep_us = session.turn(&mut writer)?;
            if let Some(allocations) = &allocations {
                allocations.turn(now_ns(), &root, &session.pids());
            }
            if now_ns() >= zoom.until_ns {
                writer.flush()?;
                zoom.advance(now_ns)?;
            }
            Ok(sleep_us)
        })();
        Ok(match turned {
            Ok(_) if zoom.step == Step::Done => None,
            Ok(sleep_us) => Some(sleep_us),
            // The program must not suffer from it: it is waited for.
            Err(error) => {
                failed = Some(error);
                None
            }
        })
    })])?;
    if let Some(error) = failed {
        return Err(error);
    }
    let length_ns = now_ns();
    session.finish(&mut writer)?;
    if zoom.step != Step::Done {
        writer.flush()?;
        zoom.steps.notes.push(
            "the program, or the watching, ended before all steps had looked: those left use all \
             that was recorded; run it longer, or with shorter --seconds"
                .to_owned(),
        );
        // The step that was cut short may have seen next to nothing: it and those after it make do
        // with all that was recorded.
        zoom.from_ns = 0;
        let data = zoom.data()?;
        while zoom.step != Step::Done {
            zoom.step = zoom.step_done(&data)?;
            zoom.counting = None;
        }
        zoom.conclude(&data)?;
    }
    zoom.steps.notes.extend(session.take_notes());
    if let Some(allocations) = &allocations {
        let told = allocations.write(&mut writer, supervisor.start_ns())?;
        zoom.steps.notes.extend(told);
    }
    let ended = ended(end, length_ns, zoom.steps.notes.clone());
    let status = ended.status;
    writer.meta_mut().ended = Some(ended);
    writer.finish()?;
    Ok((zoom.steps, ExitCode::from(status.unwrap_or(0))))
}

impl Zoom<'_> {
    /// What was recorded in this step; what lives long, of the whole time.
    fn data(&mut self) -> anyhow::Result<Data> {
        let mut data = Data::read(&Recording::open(&self.folder.lasting_path())?);
        data.accesses
            .retain(|access| access.time_ns >= self.from_ns);
        if let Some(allocations) = self.allocations {
            // The steps below look at areas of the first, and reading debugging data takes time in
            // which the program runs on.
            let rows = match self.named.take() {
                Some(rows) => rows,
                None => allocations.rows(self.start_ns)?,
            };
            (data.allocations, data.frames) = (rows.allocations.clone(), rows.frames.clone());
            self.named = Some(rows);
        }
        Ok(data)
    }

    /// Ends a step and begins the next, if there is one.
    fn advance(&mut self, now_ns: impl Fn() -> u64) -> anyhow::Result<()> {
        let data = self.data()?;
        let next = self.step_done(&data)?;
        self.step = next;
        self.counting = None;
        if next == Step::Done {
            return self.conclude(&data);
        }
        self.count(Some(&data));
        self.from_ns = now_ns();
        self.until_ns = self.from_ns + self.length_ns;
        Ok(())
    }

    /// Makes the step of what was seen, tells it, and says which is next.
    fn step_done(&mut self, data: &Data) -> anyhow::Result<Step> {
        let most = self.command.steps;
        Ok(match self.step {
            Step::Areas => {
                self.steps.look_at_areas(data)?;
                self.command.tell(&show::areas(&self.steps, data))?;
                match most > 1 && !self.steps.open_areas().is_empty() {
                    true => Step::Pages,
                    false => Step::Done,
                }
            }
            Step::Page => {
                self.look_at_page(data)?;
                Step::Done
            }
            Step::Pages => {
                let counts = self.page_counts(data);
                self.steps.look_at_pages(data, counts.as_deref());
                self.command.tell(&show::pages(&self.steps))?;
                match most > 2 && !self.steps.contested_areas().is_empty() {
                    true => Step::Lines,
                    false => Step::Done,
                }
            }
            Step::Lines => {
                let counts = self.line_counts(data);
                self.steps.look_at_lines(data, counts.as_ref());
                self.command.tell(&show::lines(&self.steps))?;
                Step::Done
            }
            Step::Done => Step::Done,
        })
    }

    fn conclude(&mut self, data: &Data) -> anyhow::Result<()> {
        if self.steps.page.is_some() {
            return Ok(());
        }
        self.steps.conclude(data);
        self.command.tell(&show::conclusions(&self.steps))
    }

    /// What was seen of the page that was asked for.
    fn look_at_page(&mut self, data: &Data) -> anyhow::Result<()> {
        let (Some(asked), Some((pid, mappings))) = (&self.command.page, self.asked.take()) else {
            return Ok(());
        };
        let counts = self.page_counts(data);
        let look = analysis::look(data, pid, page::bytes(asked), counts.as_deref());
        let threads = page::threads(self.root, pid);
        let beside = page::Beside {
            is_running: !threads.is_empty(),
            threads,
            absent_pages: Some(self.absent_pages),
            line_counts: self.line_counts(data),
        };
        let told = page::PageLook::new(data, asked, mappings, look, beside);
        self.command.tell_page(&mut self.steps, told)
    }

    /// Sets the filters for the step that begins, where there is a device.
    fn count(&mut self, data: Option<&Data>) {
        if let Err(error) = self.try_count(data) {
            self.steps.notes.push(format!(
                "nothing is counted, samples must do: {}; {}",
                error.reason, error.remedy
            ));
        }
    }

    fn try_count(&mut self, data: Option<&Data>) -> hither_linux::Result<()> {
        let mut framed: Vec<Framed> = Vec::new();
        let shift = match (self.step, data) {
            (Step::Page, _) => {
                if let (Some(asked), Some((pid, _))) = (&self.command.page, &self.asked) {
                    frames_of(self.root, *pid, &page::bytes(asked), &mut framed);
                    self.absent_pages = asked.0.end - asked.0.start - framed.len() as u64;
                }
                LINE_SHIFT
            }
            (Step::Pages, Some(data)) => {
                for index in self.steps.open_areas() {
                    let pid = self.steps.areas.list[index].pid;
                    for range in pages::ranges(data, &self.steps.areas, index) {
                        frames_of(self.root, pid, &range, &mut framed);
                    }
                }
                PAGE_SHIFT
            }
            _ => {
                for (pid, address) in self.steps.contested_pages() {
                    frames_of(
                        self.root,
                        pid,
                        &(address..address + PAGE_BYTES),
                        &mut framed,
                    );
                }
                LINE_SHIFT
            }
        };
        let mut frames: Vec<u64> = framed.iter().map(|page| page.2).collect();
        frames.sort_unstable();
        frames.dedup();
        if !frames.is_empty() {
            let counting = Counting::begin(self.root, &frames, shift)?;
            self.counting = Some((counting, framed));
        }
        Ok(())
    }

    /// Those of pages that are still where they were.
    fn still_there(&self, framed: &[Framed]) -> Vec<Framed> {
        let mut now = Vec::new();
        let mut pages: Vec<(i32, u64)> = framed.iter().map(|page| (page.0, page.1)).collect();
        pages.sort_unstable();
        for run in pages.chunk_by(|a, b| a.0 == b.0 && a.1 + PAGE_BYTES == b.1) {
            let range = run[0].1..run[run.len() - 1].1 + PAGE_BYTES;
            frames_of(self.root, run[0].0, &range, &mut now);
        }
        if now.is_empty() {
            // The process has just ended: nobody moved its pages since.
            return framed.to_vec();
        }
        let before: std::collections::HashSet<&Framed> = framed.iter().collect();
        now.retain(|page| before.contains(page));
        now
    }

    fn by_position(&self, data: &Data, counting: &Counting, counts: &[u32]) -> Vec<f64> {
        let mut by = vec![0.0; data.nodes.len()];
        for (id, &count) in counting.node_ids().iter().zip(counts) {
            if let Some(position) = data.position(id.0) {
                by[position] += f64::from(count);
            }
        }
        by
    }

    fn page_counts(&self, data: &Data) -> Option<Vec<Count>> {
        let (counting, framed) = self.counting.as_ref()?;
        let pages = self.still_there(framed);
        let count = |&(pid, address, frame): &Framed| {
            let home = self.frame_nodes.node(frame);
            let (mut users, mut transfers) =
                (vec![0.0; data.nodes.len()], vec![0.0; data.nodes.len()]);
            // A page is one place, or as many as it has lines.
            for offset in (0..PAGE_BYTES).step_by(counting.place_bytes() as usize) {
                let counts = counting.at((frame << PAGE_SHIFT) + offset)?;
                add(&mut users, self.by_position(data, counting, &counts.fills));
                add(
                    &mut transfers,
                    self.by_position(data, counting, &counts.transfers),
                );
            }
            Some(Count {
                pid,
                address,
                users,
                transfers,
                home: home.and_then(|node| data.position(node.0)),
            })
        };
        Some(pages.iter().filter_map(count).collect())
    }

    fn line_counts(&self, data: &Data) -> Option<LineCounts> {
        let (counting, framed) = self.counting.as_ref()?;
        let line_bytes = data.meta.line_bytes();
        let mut lines = LineCounts::new();
        for (pid, address, frame) in self.still_there(framed) {
            for offset in (0..PAGE_BYTES).step_by(counting.place_bytes() as usize) {
                let Some(counts) = counting.at((frame << PAGE_SHIFT) + offset) else {
                    continue;
                };
                let counts = self.by_position(data, counting, &counts.transfers);
                let line = lines.entry((pid, (address + offset) / line_bytes * line_bytes));
                add(line.or_insert_with(|| vec![0.0; counts.len()]), counts);
            }
        }
        Some(lines)
    }
}

fn add(sums: &mut [f64], counts: Vec<f64>) {
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum += count;
    }
}

/// The pages of a range that are in memory, with their frames; none of a process that has ended.
fn frames_of(root: &Root, pid: i32, range: &Range<u64>, into: &mut Vec<Framed>) {
    let Ok(pagemap) = Pagemap::open(root, pid) else {
        return;
    };
    let pages = range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES);
    let (mut entries, mut bytes) = (vec![0; ENTRIES as usize], Vec::new());
    for run in pagemap.present(pages).unwrap_or_default() {
        let mut page = run.start;
        while page < run.end {
            let wanted = (run.end - page).min(ENTRIES) as usize;
            let Ok(got @ 1..) = pagemap.read(page, &mut entries[..wanted], &mut bytes) else {
                break;
            };
            let frames = (page..).zip(&entries[..got]);
            into.extend(frames.filter_map(|(page, &entry)| {
                Some((pid, page * PAGE_BYTES, pagemap::frame(entry)?))
            }));
            page += got as u64;
        }
    }
}
