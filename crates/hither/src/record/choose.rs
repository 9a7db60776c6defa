//! Which tracker records, and what it is said to tell.

use anyhow::anyhow;
use clap::builder::{PossibleValue, PossibleValuesParser};
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use hither_linux::tracker::table::{self, Recorder, Records, TrackerInputs};

/// For the help and for refusals.
pub fn names() -> PossibleValuesParser {
    let recording = table::TABLE
        .iter()
        .filter(|entry| entry.records != Records::Never);
    PossibleValuesParser::new(
        recording.map(|entry| PossibleValue::new(entry.name).help(entry.about)),
    )
}

/// The tracker of a name, or the first that works here.
///
/// # Errors
/// The one that was asked for does not work here: why, and what would help.
pub fn tracker(name: Option<&str>, root: &Root, topology: &Topology) -> anyhow::Result<Recorder> {
    let here = TrackerInputs {
        root,
        topology,
        ghz: None,
    };
    table::to_record(name, &here).map_err(|why| match name {
        Some(_) => anyhow!("--tracker: {why}"),
        None => anyhow!("no tracker works here\n  {why}"),
    })
}
