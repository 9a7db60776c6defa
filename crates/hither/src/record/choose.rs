//! Which tracker records, and what it is said to tell.

use anyhow::{anyhow, bail};
use clap::builder::{PossibleValue, PossibleValuesParser};
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_linux::tracker::table::{self, Here, Records};
use hither_recording::meta::MetaTracker;

/// A tracker that was chosen.
pub struct Chosen {
    /// Open.
    pub tracker: Box<dyn Tracker>,
    /// For the recording.
    pub meta: MetaTracker,
    /// Why better ones were not taken.
    pub notes: Vec<String>,
}

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
pub fn tracker(name: Option<&str>, root: &Root, topology: &Topology) -> anyhow::Result<Chosen> {
    let here = Here {
        root,
        topology,
        ghz: None,
    };
    match (table::to_record(name, &here), name) {
        (Ok(found), _) => Ok(Chosen {
            tracker: found.tracker,
            meta: MetaTracker {
                name: found.entry.name.to_owned(),
                about: found.entry.about.to_owned(),
            },
            notes: found.notes,
        }),
        (Err(why), Some(_)) => bail!("--tracker: {why}"),
        (Err(why), None) => Err(anyhow!("no tracker works here\n  {why}")),
    }
}
