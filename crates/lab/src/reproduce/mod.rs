//! The five papers' figures beside ours. Pure: what to run, how to read it, and what to say of it.
//!
//! A [`PaperRow`] is one figure of a paper: where it stands there, how near one has to come, and how it is had here,
//! as a [`formula`] over what experiments have printed. An [`Experiment`] is one command; one serves all rows
//! that name it. What an experiment gave is [kept](kept), with the commit it was run at, so that a run of many
//! can be broken off and gone on with. [`assess`] puts the three together. `hither reproduce` runs and shows.
//!
//! A row is declared in one place, in [`rows`]. A figure that cannot be had is a row as well, with the reason.

pub mod assess;
pub mod experiments;
pub mod formula;
pub mod judge;
pub mod kept;
pub mod mechanisms;
pub mod read;
pub mod rows;

pub use experiments::Experiment;
pub use judge::{Figure, Tolerance};
pub use rows::{Ours, PaperRow};

/// A paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Paper {
    /// Gaud and others, 2015.
    Carrefour,
    /// Brock and others, 2001.
    Ibm,
    /// Lin and Liu, 2016.
    Memif,
    /// Lee and others, 2018.
    Hydm,
    /// Lee, 2013.
    Regions,
}

impl Paper {
    /// In the order of the project's digest of them.
    pub const ALL: [Self; 5] = [
        Self::Carrefour,
        Self::Ibm,
        Self::Memif,
        Self::Hydm,
        Self::Regions,
    ];

    /// As it is written on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Carrefour => "carrefour",
            Self::Ibm => "ibm",
            Self::Memif => "memif",
            Self::Hydm => "hydm",
            Self::Regions => "regions",
        }
    }

    /// As it is cited.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Carrefour => {
                "Carrefour: Gaud and others, Challenges of Memory Management on Modern NUMA Systems (2015)"
            }
            Self::Ibm => {
                "IBM ccNUMA: Brock and others, Experience with building a commodity Intel-based ccNUMA system (2001)"
            }
            Self::Memif => {
                "memif: Lin and Liu, memif: Towards Programming Heterogeneous Memory Asynchronously (2016)"
            }
            Self::Hydm => {
                "HyDM: Lee and others, Data Migration Methodology for Hybrid Memories targeting Intel Knights Landing"
            }
            Self::Regions => "Memory regions: Lee, a thesis on memory-centric scheduling (2013)",
        }
    }

    /// The paper of a name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|paper| paper.name() == name)
    }
}

/// Names of a paper's tables, in its order.
#[must_use]
pub fn tables(rows: &[PaperRow], paper: Paper) -> Vec<&'static str> {
    let mut tables = Vec::new();
    for row in rows.iter().filter(|row| row.paper == paper) {
        if !tables.contains(&row.table) {
            tables.push(row.table);
        }
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_paper_has_rows_and_each_row_a_name_of_its_own() {
        let rows = rows::all();
        let ids: BTreeSet<String> = rows.iter().map(PaperRow::id).collect();
        assert_eq!(ids.len(), rows.len(), "two rows have one id");
        for paper in Paper::ALL {
            assert!(!tables(&rows, paper).is_empty(), "{}", paper.name());
            assert_eq!(Paper::of(paper.name()), Some(paper));
        }
    }

    #[test]
    fn every_row_says_how_it_is_had() {
        for row in rows::all() {
            assert!(
                !row.source.is_empty() && !row.unit.is_empty(),
                "{}",
                row.id()
            );
            match &row.ours {
                Ours::Measured(text) => {
                    for name in formula::names(text) {
                        let (experiment, _) = name.split_once('/').expect(name);
                        assert!(
                            experiment == formula::DECLARED
                                || experiments::find(experiment).is_some(),
                            "{}: {experiment}",
                            row.id()
                        );
                    }
                    formula::check(text).unwrap_or_else(|error| panic!("{}: {error}", row.id()));
                }
                Ours::Beyond(why) | Ours::Refused(why) | Ours::Input(why) => {
                    assert!(why.len() > 10, "{}: no reason", row.id());
                }
            }
        }
    }

    #[test]
    fn every_experiment_serves_a_row() {
        let rows = rows::all();
        for experiment in experiments::ALL {
            assert!(
                rows.iter()
                    .any(|row| row.experiments().contains(experiment.name)),
                "{}",
                experiment.name
            );
        }
    }

    /// What the project's digest lacks.
    #[test]
    fn the_rows_that_the_digest_lacks_are_there() {
        let ids: Vec<String> = rows::all().iter().map(PaperRow::id).collect();
        for part in [
            "ibm/table-2/water-nsquared-orig",
            "ibm/table-3/barnes-hut-extra",
            "ibm/contention/",
            "regions/e-states/cpu",
            "regions/e-states/qos-score",
            "regions/regions/shrinking",
        ] {
            assert!(ids.iter().any(|id| id.starts_with(part)), "{part}");
        }
    }
}
