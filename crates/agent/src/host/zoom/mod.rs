//! The steps of zooming beside a program: each looks anew, at less and the more closely.

pub mod steps;

use super::record::Session;
use super::supervisor::{Client, End, Supervisor};
use super::{Error, Result};
use hither_linux::counting::{Counting, PAGE_SHIFT};
use hither_linux::proc::frames::FrameNodes;
use hither_linux::proc::pagemap::{self, Pagemap};
use hither_linux::root::Root;
use hither_linux::sys;
use hither_recording::analysis::Data;
use hither_recording::analysis::pages::{self, PAGE_BYTES, PageCount};
use hither_recording::{Folder, Recording, Writer};
use std::ops::Range;
use steps::{LineCounts, ZoomSteps};

/// log2 of the places that lines are counted by; the device takes its own line where it is longer.
const LINE_SHIFT: u32 = 5;
/// Of the time that a step may look, the part that it does look, however much is counted: a program does not do the
/// same all the time.
const LEAST_PART: u64 = 5;
/// Entries of a page map per read.
const ENTRIES: u64 = 4096;

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

/// What a step found, for who shows it.
pub enum ZoomReport<'a> {
    /// Step 1, with what it rests on.
    Areas(&'a ZoomSteps, &'a Data),
    /// The page that was asked for.
    Page(&'a mut ZoomSteps, PageCounts<'a>),
    /// Step 2.
    Pages(&'a ZoomSteps),
    /// Step 3.
    Lines(&'a ZoomSteps),
    /// What it comes to.
    Conclusions(&'a ZoomSteps),
}

/// What was seen of the page that was asked for.
pub struct PageCounts<'a> {
    /// The recording.
    pub data: &'a Data,
    /// Counts of the device, by page.
    pub pages: Option<Vec<PageCount>>,
    /// And by line.
    pub lines: Option<LineCounts>,
    /// Pages that are not in memory.
    pub absent_pages: u64,
}

/// What to look at, and for how long.
pub struct Setup<'a> {
    /// Where `/proc` and `/sys` are.
    pub root: &'a Root,
    /// The recording that is made meanwhile.
    pub folder: &'a Folder,
    /// Steps at most.
    pub most_steps: u8,
    /// The one page that is meant: whose, and its addresses.
    pub page: Option<(i32, Range<u64>)>,
    /// How long a step looks.
    pub length_ns: u64,
}

/// What came of it.
pub struct Zoomed {
    /// All steps.
    pub steps: ZoomSteps,
    /// How the loop ended.
    pub end: End,
    /// Length of the recording.
    pub length_ns: u64,
}

/// Who works beside the steps.
pub struct Hooks<'a, E> {
    /// Has its turn after each of the recording's, with the time and who is watched.
    pub beside: &'a mut dyn FnMut(u64, &[i32]),
    /// Names areas by source lines, where that is known.
    pub name: &'a mut dyn FnMut(&mut Data) -> std::result::Result<(), E>,
    /// Shows what a step found.
    pub tell: &'a mut dyn FnMut(ZoomReport<'_>) -> std::result::Result<(), E>,
}

struct Zoom<'a, E> {
    setup: Setup<'a>,
    hooks: Hooks<'a, E>,
    frame_nodes: FrameNodes,
    steps: ZoomSteps,
    step: Step,
    /// When the step began, and when it ends, since the recording began.
    from_ns: u64,
    until_ns: u64,
    counting: Option<(Counting, Vec<Framed>)>,
    /// Pages of those that are not in memory.
    absent_pages: u64,
}

/// Takes the steps until all are done, or the program or the watching ends: those that are left then
/// make do with all that was recorded.
///
/// # Errors
/// What the loop, the recording or a hook says.
pub fn run<'a, E: From<Error>>(
    supervisor: &Supervisor,
    session: &mut Session,
    writer: &mut Writer,
    setup: Setup<'a>,
    steps: ZoomSteps,
    hooks: Hooks<'a, E>,
) -> std::result::Result<Zoomed, E> {
    let now_ns = || sys::monotonic_ns().saturating_sub(supervisor.start_ns());
    let mut zoom = Zoom {
        frame_nodes: FrameNodes::read(setup.root),
        step: match setup.page {
            Some(_) => Step::Page,
            None => Step::Areas,
        },
        from_ns: 0,
        until_ns: 0,
        counting: None,
        absent_pages: 0,
        steps,
        setup,
        hooks,
    };
    if zoom.step == Step::Page {
        zoom.count(None);
    }
    let mut failed = None;
    // Getting ready takes time too, in which nothing is seen.
    zoom.until_ns = now_ns() + zoom.setup.length_ns;
    let first_us = session.interval_us();
    let end = supervisor.run::<Error>(&mut [Client::new(first_us, |_| {
        let turned = (|| -> std::result::Result<u64, E> {
            let sleep_us = session.turn(writer)?;
            (zoom.hooks.beside)(now_ns(), &session.pids());
            if now_ns() >= zoom.until_ns || zoom.has_enough(now_ns()) {
                writer.flush().map_err(Error::from)?;
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
    session.finish(writer)?;
    if zoom.step != Step::Done {
        writer.flush().map_err(Error::from)?;
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
    Ok(Zoomed {
        steps: zoom.steps,
        end,
        length_ns,
    })
}

impl<E: From<Error>> Zoom<'_, E> {
    /// What was recorded in this step; what lives long, of the whole time.
    fn data(&mut self) -> std::result::Result<Data, E> {
        let read = || -> Result<Data> {
            let recording = Recording::open(&self.setup.folder.lasting_path())?;
            Ok(Data::read(&recording))
        };
        let mut data = read()?;
        data.accesses
            .retain(|access| access.time_ns >= self.from_ns);
        (self.hooks.name)(&mut data)?;
        Ok(data)
    }

    /// Has the device counted so much that looking on would tell nothing new? It says when to ask; then half of the
    /// pages must have been accessed often enough for their users to be known. Lines are judged by samples besides,
    /// which take their time.
    fn has_enough(&self, now_ns: u64) -> bool {
        if self.step != Step::Pages || now_ns < self.from_ns + self.setup.length_ns / LEAST_PART {
            return false;
        }
        let Some((counting, framed)) = self.counting.as_ref().filter(|of| of.0.has_enough()) else {
            return false;
        };
        let is_known = |page: &&Framed| {
            let counts = counting.at(page.2 << PAGE_SHIFT).unwrap_or_default();
            let all = counts.fills.iter().chain(&counts.transfers);
            f64::from(all.fold(0, |sum: u32, &count| sum.saturating_add(count)))
                >= pages::LEAST_SEEN
        };
        2 * framed.iter().filter(is_known).count() >= framed.len()
    }

    /// Ends a step and begins the next, if there is one.
    fn advance(&mut self, now_ns: impl Fn() -> u64) -> std::result::Result<(), E> {
        let data = self.data()?;
        let next = self.step_done(&data)?;
        self.step = next;
        self.counting = None;
        if next == Step::Done {
            return self.conclude(&data);
        }
        self.count(Some(&data));
        self.from_ns = now_ns();
        self.until_ns = self.from_ns + self.setup.length_ns;
        Ok(())
    }

    /// Makes the step of what was seen, tells it, and says which is next.
    fn step_done(&mut self, data: &Data) -> std::result::Result<Step, E> {
        let most = self.setup.most_steps;
        Ok(match self.step {
            Step::Areas => {
                self.steps.look_at_areas(data)?;
                (self.hooks.tell)(ZoomReport::Areas(&self.steps, data))?;
                match most > 1 && !self.steps.open_areas().is_empty() {
                    true => Step::Pages,
                    false => Step::Done,
                }
            }
            Step::Page => {
                let counts = PageCounts {
                    data,
                    pages: self.page_counts(data),
                    lines: self.line_counts(data),
                    absent_pages: self.absent_pages,
                };
                (self.hooks.tell)(ZoomReport::Page(&mut self.steps, counts))?;
                Step::Done
            }
            Step::Pages => {
                let counts = self.page_counts(data);
                self.steps.look_at_pages(data, counts.as_deref());
                (self.hooks.tell)(ZoomReport::Pages(&self.steps))?;
                match most > 2 && !self.steps.contested_areas().is_empty() {
                    true => Step::Lines,
                    false => Step::Done,
                }
            }
            Step::Lines => {
                let counts = self.line_counts(data);
                self.steps.look_at_lines(data, counts.as_ref());
                (self.hooks.tell)(ZoomReport::Lines(&self.steps))?;
                Step::Done
            }
            Step::Done => Step::Done,
        })
    }

    fn conclude(&mut self, data: &Data) -> std::result::Result<(), E> {
        if self.setup.page.is_some() {
            return Ok(());
        }
        self.steps.conclude(data);
        (self.hooks.tell)(ZoomReport::Conclusions(&self.steps))
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
                if let Some((pid, range)) = &self.setup.page {
                    frames_of(self.setup.root, *pid, range, &mut framed);
                    let pages = (range.end - range.start) / PAGE_BYTES;
                    self.absent_pages = pages - framed.len() as u64;
                }
                LINE_SHIFT
            }
            (Step::Pages, Some(data)) => {
                for index in self.steps.open_areas() {
                    let pid = self.steps.areas.list[index].pid;
                    for range in pages::ranges(data, &self.steps.areas, index) {
                        frames_of(self.setup.root, pid, &range, &mut framed);
                    }
                }
                PAGE_SHIFT
            }
            _ => {
                for (pid, address) in self.steps.contested_pages() {
                    frames_of(
                        self.setup.root,
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
            let enough = match self.step {
                Step::Pages => frames.len() as u64 * pages::LEAST_SEEN as u64,
                _ => 0,
            };
            let counting = Counting::begin(self.setup.root, &frames, shift, enough)?;
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
            frames_of(self.setup.root, run[0].0, &range, &mut now);
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

    fn page_counts(&self, data: &Data) -> Option<Vec<PageCount>> {
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
            Some(PageCount {
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
