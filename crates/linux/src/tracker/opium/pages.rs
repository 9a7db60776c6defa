//! Fills of every page, by counters of the device instead of samples: for a policy that must know of each page
//! whether it was accessed.
//!
//! A filter counts the fills of each 4 KiB frame of the machine, of user mode, by node that asked. Page maps
//! tell whose page a frame is. An interval lists pages with fills since the last one, 24 bytes each, as it does so ten
//! times a second beside the program; homes are those of the frames. Of a frame that another page had meanwhile, the fills are told of the present one: once.
//!
//! Rejected: samples at a period of 1 or 2. A vCPU's ring holds 20,000, which a program that waits for memory
//! alone fills in 7 ms.

use super::OpiumTracker;
use crate::error::{Error, Result};
use crate::opium::{Filter, OpiumDevice};
use crate::proc::frames::FrameNodes;
use crate::proc::pagemap;
use crate::proc::tree::{LiveProcess, Tree};
use crate::root::Root;
use crate::topology::Topology;
use hither_core::ids::{NodeId, Pid};
use hither_core::opium::{FILTERS, transaction};
use hither_core::snapshot::{Evidence, PresentPage, Snapshot};
use std::ops::Range;

/// Page-map entries per read.
const READ_PAGES: u64 = 1 << 14;
/// User addresses end here, in pages.
const USER_END_PAGE: u64 = ((1 << 47) >> 12) - 1;

/// The counters of a node's frames.
#[derive(Debug)]
struct Span {
    frames: Range<u64>,
    home: NodeId,
    /// Counter of the first frame.
    first: usize,
}

/// Counters of all frames, with what they told last.
#[derive(Debug)]
pub(super) struct EveryPage {
    spans: Vec<Span>,
    /// By counter, of all nodes that asked.
    before: Vec<u32>,
    /// One counter: two nodes in each word.
    words: Vec<u64>,
    entries: Vec<u64>,
    bytes: Vec<u8>,
}

impl EveryPage {
    /// Has the device count from now on.
    fn begin(device: &OpiumDevice, frames: &FrameNodes) -> std::result::Result<Self, String> {
        let spans = frames.spans();
        if spans.is_empty() || spans.len() > FILTERS {
            let count = spans.len();
            return Err(format!(
                "{FILTERS} filters cannot count {count} spans of memory"
            ));
        }
        device.claim_filters()?;
        let (mut every, mut next) = (Vec::new(), 0);
        for (index, (frames, home)) in spans.iter().enumerate() {
            let counted = Filter {
                start: frames.start << 12,
                end: frames.end << 12,
                shift: 12,
                types: transaction::FILLS,
                node: None,
                directions: 0,
                user_only: true,
                base_counter: next,
                threshold: 0,
            };
            device.set_filter(index, Some(counted))?;
            every.push(Span {
                frames: frames.clone(),
                home: *home,
                first: next as usize,
            });
            next += (frames.end - frames.start) as u32;
        }
        Ok(Self {
            spans: every,
            before: vec![0; next as usize],
            words: vec![0; device.node_ids().len().div_ceil(2)],
            entries: Vec::new(),
            bytes: Vec::new(),
        })
    }

    /// Adds the pages of a process that had fills; returns how many fills.
    fn add(
        &mut self,
        device: &OpiumDevice,
        process: &LiveProcess,
        pages: &mut Vec<PresentPage>,
    ) -> u64 {
        let Some(map) = &process.pagemap else {
            return 0;
        };
        let (present, huge) = (0..USER_END_PAGE, 0..USER_END_PAGE);
        // A process that has just ended has no pages.
        let present = map.present(present).unwrap_or_default();
        let huge = map.huge(huge).unwrap_or_default();
        let mut fills = 0;
        for range in present {
            for first in range.clone().step_by(READ_PAGES as usize) {
                let count = (range.end - first).min(READ_PAGES) as usize;
                self.entries.resize(count, 0);
                let got = map.read(first, &mut self.entries, &mut self.bytes);
                let entries = std::mem::take(&mut self.entries);
                for (page, &entry) in (first..).zip(&entries[..got.unwrap_or(0)]) {
                    let own = pagemap::frame(entry).filter(|_| pagemap::is_exclusive(entry));
                    let Some((home, accesses)) = own.and_then(|frame| self.count(device, frame))
                    else {
                        continue;
                    };
                    fills += u64::from(accesses);
                    let at = huge.partition_point(|run| run.end <= page);
                    pages.push(PresentPage {
                        pid: Pid(process.pid),
                        page,
                        home,
                        huge: huge.get(at).is_some_and(|run| run.contains(&page)),
                        accesses,
                    });
                }
                self.entries = entries;
            }
        }
        fills
    }

    /// Node and new fills of a frame, where there are any.
    fn count(&mut self, device: &OpiumDevice, frame: u64) -> Option<(NodeId, u32)> {
        let span = self
            .spans
            .iter()
            .find(|span| span.frames.contains(&frame))?;
        let at = span.first + (frame - span.frames.start) as usize;
        let home = span.home;
        device.read_counters(at, &mut self.words);
        let counts = self.words.iter();
        let now = counts.fold(0u32, |sum, &word| {
            sum.wrapping_add(word as u32)
                .wrapping_add((word >> 32) as u32)
        });
        let accesses = now.wrapping_sub(std::mem::replace(&mut self.before[at], now));
        (accesses > 0).then_some((home, accesses))
    }
}

impl OpiumTracker {
    /// Opens the device to count the fills of every page.
    ///
    /// # Errors
    /// As [`OpiumTracker::open`]; and the device may tell less than it counts, or its counters do not suffice
    /// for the machine's memory.
    pub fn open_counting(root: &Root, topology: &Topology, ghz: Option<f64>) -> Result<Self> {
        let mut tracker = Self::open(root, topology, ghz)?;
        let fail = |reason: String| {
            let remedy =
                "run `hither lab run` with `--evidence device` and at most 2 GiB (`--memory`)";
            Error::new("the Opium device", reason, remedy)
        };
        if tracker.pmu.is_some() {
            return Err(fail(
                "it tells what a PMU tells, which counts no pages".to_owned(),
            ));
        }
        let every = EveryPage::begin(&tracker.device, &FrameNodes::read(root)).map_err(fail)?;
        tracker.every_page = Some(every);
        tracker.set_period(0);
        Ok(tracker)
    }

    /// Switches the filters off.
    pub(super) fn stop_counting(&mut self) {
        let spans = self
            .every_page
            .as_ref()
            .map_or(0, |every| every.spans.len());
        for index in 0..spans {
            // Nothing is set up, so that nothing can be wrong with it.
            let _ = self.device.set_filter(index, None);
        }
    }

    /// Fills in the snapshot's pages from the counters.
    pub(super) fn read_every_page(&mut self, tree: &Tree, snapshot: &mut Snapshot) {
        snapshot.pages.clear();
        let Some(every) = &mut self.every_page else {
            return;
        };
        let mut fills = 0;
        for process in tree.processes() {
            fills += every.add(&self.device, process, &mut snapshot.present);
        }
        snapshot.sample_period = 1;
        snapshot.samples_lost = 0;
        snapshot.sample_count = Evidence::measured(fills, "opium counters of every page");
    }
}
