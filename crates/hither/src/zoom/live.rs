//! The steps beside a program, as they are shown.

use super::page;
use super::{Command, Wanted, show};
use crate::moving::select::Asked;
use crate::record;
use crate::record::allocations::Rows;
use crate::record::choose;
use anyhow::Context;
use hither_agent::host::record::{Session, Setup, ended};
use hither_agent::host::zoom::steps::ZoomSteps;
use hither_agent::host::zoom::{self, Hooks, PageCounts, ZoomReport};
use hither_linux::proc::maps;
use hither_linux::proc::tree::Scope;
use hither_linux::root::Root;
use hither_linux::sys::OwnMapping;
use hither_linux::topology::Topology;
use hither_recording::analysis::Data;
use hither_recording::analysis::page as analysis;
use hither_recording::{Folder, Writer};
use std::path::Path;
use std::process::ExitCode;

/// Time between two turns.
const INTERVAL_US: u64 = 100_000;

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

/// Runs the steps beside a process, or a command that is started.
pub fn run(
    command: &Command,
    pid: Option<i32>,
    wanted: &Wanted,
) -> anyhow::Result<(ZoomSteps, Option<page::PageLook>, ExitCode)> {
    let root = Root::host();
    let mut asked = match (&command.page, pid) {
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
    let words = &command.command;
    let meta = record::meta(&root, &topology, &tracker, words, watched, INTERVAL_US);
    let place = Place::new(command.output.as_deref())?;
    let writer = Writer::create(place.folder.clone(), meta)?;
    let beside = match pid {
        Some(pid) => record::Companion::Process(pid),
        None => record::Companion::Command(words),
    };
    let (supervisor, allocations, mut writer) = record::begin(&beside, command.sites, writer)?;
    let start_ns = supervisor.start_ns();
    let mut session = Session::new(Setup {
        root: &root,
        topology: &topology,
        scope,
        tracker: tracker.tracker,
        start_ns,
        interval_us: INTERVAL_US,
        overhead: command.overhead / 100.0,
    });
    let mut steps = ZoomSteps::new(command.wanted());
    steps.process = pid;
    steps.notes.extend(tracker.notes);
    // What the shim told of the first step: the steps below look at its areas, and reading debugging
    // data takes time in which the program runs on.
    let mut named: Option<Rows> = None;
    let mut looked = None;
    let setup = zoom::Setup {
        root: &root,
        folder: &place.folder,
        most_steps: command.steps,
        page: match (&command.page, &asked) {
            (Some(range), Some((pid, _))) => Some((*pid, page::bytes(range))),
            _ => None,
        },
        length_ns: (command.seconds * 1e9) as u64,
    };
    let hooks = Hooks {
        beside: &mut |now_ns, pids| {
            if let Some(allocations) = &allocations {
                allocations.turn(now_ns, &root, pids);
            }
        },
        name: &mut |data: &mut Data| -> anyhow::Result<()> {
            if let Some(allocations) = &allocations {
                let rows = match named.take() {
                    Some(rows) => rows,
                    None => allocations.rows(start_ns)?,
                };
                (data.allocations, data.frames) = (rows.allocations.clone(), rows.frames.clone());
                named = Some(rows);
            }
            Ok(())
        },
        tell: &mut |told| match told {
            ZoomReport::Areas(steps, data) => command.tell(&show::areas(steps, data, wanted)),
            ZoomReport::Pages(steps) => command.tell(&show::pages(steps, wanted)),
            ZoomReport::Lines(steps) => command.tell(&show::lines(steps, wanted)),
            ZoomReport::Conclusions(steps) => command.tell(&show::conclusions(steps, wanted)),
            ZoomReport::Page(steps, counts) => {
                if let (Some(range), Some((pid, mappings))) = (&command.page, asked.take()) {
                    let look = look_at_page(&root, pid, mappings, range, counts);
                    looked = Some(command.tell_page(steps, look, wanted)?);
                }
                Ok(())
            }
        },
    };
    let zoomed = zoom::run(&supervisor, &mut session, &mut writer, setup, steps, hooks)?;
    let mut steps = zoomed.steps;
    steps.notes.extend(session.take_notes());
    if let Some(allocations) = &allocations {
        let told = allocations.write(&mut writer, start_ns)?;
        steps.notes.extend(told);
    }
    let ended = ended(zoomed.end, zoomed.length_ns, steps.notes.clone());
    let status = ended.status;
    writer.meta_mut().ended = Some(ended);
    writer.finish()?;
    Ok((steps, looked, ExitCode::from(status.unwrap_or(0))))
}

/// What was seen of the page that was asked for, and notes about names that are missing.
fn look_at_page(
    root: &Root,
    pid: i32,
    mappings: Vec<OwnMapping>,
    asked: &Asked,
    counts: PageCounts<'_>,
) -> (page::PageLook, Vec<String>) {
    let data = counts.data;
    let look = analysis::look(data, pid, page::bytes(asked), counts.pages.as_deref());
    let threads = page::threads(root, pid);
    let beside = page::DetailInputs {
        is_running: !threads.is_empty(),
        threads,
        absent_pages: Some(counts.absent_pages),
        line_counts: counts.lines,
    };
    page::PageLook::new(data, asked, mappings, look, beside)
}
