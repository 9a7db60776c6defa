//! All that is made out of a recording, once, for tables, pages and JSON alike.

use super::formed::FormedRegions;
use super::roofline::Roofline;
use hither_recording::analysis::Data;
use hither_recording::analysis::areas::{self, Areas};
use hither_recording::analysis::heat::{self, Heat};
use hither_recording::analysis::homes::{self, Resident};
use hither_recording::analysis::phases::{self, Phases};
use hither_recording::analysis::sharing::{self, SharedLine};
use hither_recording::analysis::use_of::{self, Judged};
use hither_recording::analysis::verdict::{self, Overall, ReportVerdict};
use hither_recording::analysis::working_set::{self, WorkingSet};

/// Rows and columns of the picture of heat.
const HEAT_SIZE: (usize, usize) = (64, 128);
/// Windows that a recording has for its working set, about; none shorter than [`LEAST_WINDOW_NS`].
const WINDOWS: u64 = 60;
/// Shortest window of the working set.
const LEAST_WINDOW_NS: u64 = 1_000_000_000;

/// Figures of a recording.
pub struct Figures {
    /// The recording.
    pub data: Data,
    /// Data areas.
    pub areas: Areas,
    /// How each of them is used, in the same order.
    pub judged: Vec<Judged>,
    /// Lines that several CPUs share.
    pub lines: Vec<SharedLine>,
    /// The whole.
    pub overall: Overall,
    /// What it comes to.
    pub verdict: ReportVerdict,
    /// Of one process, where anything was seen of it.
    pub heat: Option<Heat>,
    /// Of all processes.
    pub working_set: WorkingSet,
    /// Stretches of time in which about the same memory is used.
    pub phases: Phases,
    /// Where each process's memory was.
    pub residents: Vec<Resident>,
    /// Pages that went from node to node.
    pub moves: Vec<Vec<u64>>,
    /// The run's place below the machine's ceilings, where those were given.
    pub roofline: Option<Roofline>,
    /// Regions that are used together, where those were asked for.
    pub formed: Option<FormedRegions>,
    /// Rows of a table at most.
    pub top: usize,
}

impl Figures {
    /// Makes them; `pid` is whose heat is wanted.
    pub fn new(data: Data, pid: Option<i32>, top: usize) -> Self {
        let areas = areas::areas(&data);
        let judged = use_of::judge(&data, &areas);
        let lines = sharing::lines(&data, &areas.of_access, top);
        let overall = verdict::overall(&data, &areas);
        let verdict = verdict::verdict(&data, &overall, &areas, &judged, &lines);
        let of = match pid {
            Some(pid) => Some(Some(pid)),
            None => heat::processes(&data).into_iter().next(),
        };
        let heat = of.and_then(|pid| heat::heat(&data, pid, HEAT_SIZE.0, HEAT_SIZE.1));
        let window_ns = (data.length_ns() / WINDOWS).max(LEAST_WINDOW_NS);
        Self {
            working_set: working_set::working_set(&data, window_ns),
            phases: phases::phases(&data),
            residents: homes::residents(&data),
            moves: homes::moves(&data),
            areas,
            judged,
            lines,
            overall,
            verdict,
            heat,
            roofline: None,
            formed: None,
            data,
            top,
        }
    }

    /// Name of a node position.
    pub fn node(&self, position: usize) -> String {
        format!("node{}", self.data.nodes[position])
    }
}
