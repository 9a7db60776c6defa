//! The rows: every figure that the five papers' texts quote, each declared once.

mod carrefour;
mod hydm;
mod ibm;
mod memif;
mod packets;
mod regions;

use super::Paper;
use super::judge::{Figure, Tolerance};
use super::{experiments, formula};
use std::collections::BTreeSet;

/// How a figure is had here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ours {
    /// By a formula over what experiments gave.
    Measured(String),
    /// Not from what the text tells; why.
    Beyond(&'static str),
    /// Not done here on purpose; why.
    Refused(&'static str),
    /// It goes into ours, so that nothing can come out; where.
    Input(&'static str),
}

/// A figure of a paper.
#[derive(Clone, Debug)]
pub struct PaperRow {
    /// Whose.
    pub paper: Paper,
    /// Table, or group of figures in prose.
    pub table: &'static str,
    /// What it is.
    pub name: String,
    /// The paper's figure.
    pub figure: Figure,
    /// Its unit.
    pub unit: &'static str,
    /// How near to come.
    pub tolerance: Tolerance,
    /// Section, table or figure of the paper.
    pub source: &'static str,
    /// How ours is had.
    pub ours: Ours,
    /// Why ours is off, where that is known; empty otherwise.
    pub why: &'static str,
}

impl PaperRow {
    /// `PAPER/TABLE/NAME`.
    #[must_use]
    pub fn id(&self) -> String {
        let name: String = self
            .name
            .to_lowercase()
            .chars()
            .map(|letter| {
                if letter.is_ascii_alphanumeric() {
                    letter
                } else {
                    '-'
                }
            })
            .collect();
        let words: Vec<&str> = name.split('-').filter(|word| !word.is_empty()).collect();
        format!("{}/{}/{}", self.paper.name(), self.table, words.join("-"))
    }

    /// Names of the experiments that it takes.
    #[must_use]
    pub fn experiments(&self) -> BTreeSet<&'static str> {
        let Ours::Measured(text) = &self.ours else {
            return BTreeSet::new();
        };
        let names = formula::names(text).into_iter();
        let experiments = names.filter_map(|name| experiments::find(name.split_once('/')?.0));
        experiments.map(|experiment| experiment.name).collect()
    }

    /// Both ways, in %.
    fn percent(&mut self, percent: f64) -> &mut Self {
        self.tolerance = Tolerance::Percent(percent);
        self
    }

    /// Both ways, in the row's unit.
    fn points(&mut self, points: f64) -> &mut Self {
        self.tolerance = Tolerance::Points(points);
        self
    }

    fn measured(&mut self, formula: impl Into<String>) -> &mut Self {
        self.ours = Ours::Measured(formula.into());
        self
    }

    fn beyond(&mut self, why: &'static str) -> &mut Self {
        self.ours = Ours::Beyond(why);
        self
    }

    fn refused(&mut self, why: &'static str) -> &mut Self {
        self.ours = Ours::Refused(why);
        self
    }

    fn input(&mut self, of: &'static str) -> &mut Self {
        self.ours = Ours::Input(of);
        self
    }

    fn why(&mut self, why: &'static str) -> &mut Self {
        self.why = why;
        self
    }
}

/// All rows, paper by paper, table by table.
#[must_use]
pub fn all() -> Vec<PaperRow> {
    let mut rows = Rows::default();
    carrefour::add(&mut rows);
    ibm::add(&mut rows);
    packets::add(&mut rows);
    memif::add(&mut rows);
    hydm::add(&mut rows);
    regions::add(&mut rows);
    rows.rows
}

/// Rows as they are written down.
#[derive(Default)]
struct Rows {
    rows: Vec<PaperRow>,
    at: Option<(Paper, &'static str, &'static str)>,
}

impl Rows {
    /// What follows is of this table, and stands there in the paper.
    fn table(&mut self, paper: Paper, table: &'static str, source: &'static str) {
        self.at = Some((paper, table, source));
    }

    fn row(
        &mut self,
        name: impl Into<String>,
        figure: Figure,
        unit: &'static str,
    ) -> &mut PaperRow {
        let (paper, table, source) = self.at.expect("a table comes before its rows");
        self.rows.push(PaperRow {
            paper,
            table,
            name: name.into(),
            figure,
            unit,
            tolerance: Tolerance::Unstated,
            source,
            ours: Ours::Beyond(""),
            why: "",
        });
        self.rows.last_mut().expect("it was just put there")
    }

    fn near(&mut self, name: impl Into<String>, figure: f64, unit: &'static str) -> &mut PaperRow {
        self.row(name, Figure::Near(figure), unit)
    }

    fn between(
        &mut self,
        name: impl Into<String>,
        least: f64,
        most: f64,
        unit: &'static str,
    ) -> &mut PaperRow {
        self.row(name, Figure::Between(least, most), unit)
    }

    fn at_most(&mut self, name: impl Into<String>, most: f64, unit: &'static str) -> &mut PaperRow {
        self.row(name, Figure::AtMost(most), unit)
    }

    fn at_least(
        &mut self,
        name: impl Into<String>,
        least: f64,
        unit: &'static str,
    ) -> &mut PaperRow {
        self.row(name, Figure::AtLeast(least), unit)
    }

    fn unprinted(&mut self, name: impl Into<String>, unit: &'static str) -> &mut PaperRow {
        self.row(name, Figure::Unprinted, unit)
    }
}
