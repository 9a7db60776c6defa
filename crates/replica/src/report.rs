//! What an array did: figures, and sentences for a person.

use crate::array::Shared;
use crate::rule::megabytes;
use hither_core::size::decimals;
use std::fmt;

/// What one build did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Built {
    /// Bytes copied.
    pub bytes: u64,
    /// Of them, those whose copy was stale; the others had none.
    pub again_bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// Chunks that are to be copied and were not in this turn.
    pub later: usize,
    /// What was refused: a sentence each. The array works from its master there.
    pub refused: Vec<String>,
}

impl Built {
    /// Bytes copied per ns; 0 where nothing was.
    #[must_use]
    pub fn gbs(&self) -> f64 {
        match self.seconds > 0.0 {
            true => self.bytes as f64 / self.seconds / 1e9,
            false => 0.0,
        }
    }
}

/// Kept by the holder of the turn.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) built_bytes: u64,
    pub(crate) build_seconds: f64,
    /// Copied since a write had made it stale, or what would have been where copies are given up.
    pub(crate) recopied_bytes: u64,
    /// Of it, what would have been.
    pub(crate) spared_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) collapses: u64,
    pub(crate) later: usize,
    pub(crate) refused: Vec<String>,
    pub(crate) verdict: Option<String>,
}

impl Figures {
    pub(crate) fn take(&mut self, built: &Built) {
        self.built_bytes += built.bytes;
        self.build_seconds += built.seconds;
        self.recopied_bytes += built.again_bytes;
        self.later = built.later;
        self.refused.clone_from(&built.refused);
    }
}

/// What an array did so far. Its text has a sentence on each line.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayReport {
    /// Length of the array.
    pub bytes: u64,
    /// Published epochs, the first content included.
    pub epoch: u64,
    /// Places.
    pub places: usize,
    /// Copies of chunks that are valid, and of how many that would be all.
    pub copies: (usize, usize),
    /// Memory of masters and of copies.
    pub master_bytes: u64,
    /// See above.
    pub copy_bytes: u64,
    /// Bytes copied, and how long it took.
    pub built_bytes: u64,
    /// See above.
    pub build_seconds: f64,
    /// Bytes copied again after writes.
    pub recopied_bytes: u64,
    /// Bytes of chunks that were written.
    pub written_bytes: u64,
    /// Bytes that were read from copies, from the master on another node, and from it on the reader's own.
    pub local_bytes: u64,
    /// See above.
    pub remote_bytes: u64,
    /// See above.
    pub home_bytes: u64,
    /// How often copies were given up, and whether they are now.
    pub collapses: u64,
    /// See above.
    pub is_given_up: bool,
    /// Readers that hold an epoch, and those that hold an earlier one.
    pub holders: (usize, usize),
    /// What the last build refused.
    pub refused: Vec<String>,
    /// The last verdict of the rule.
    pub verdict: Option<String>,
}

impl ArrayReport {
    pub(crate) fn of(shared: &Shared) -> Self {
        let sums = shared.accounts.sums();
        let state = shared.state();
        let chunk_bytes = shared.chunk_bytes as u64;
        let places = state.copies.len();
        let wanted = (0..places).filter(|place| !shared.is_home(*place)).count();
        let masters = state.masters.iter().flatten().count() as u64;
        let figures = &state.figures;
        Self {
            bytes: shared.bytes as u64,
            epoch: state.epoch,
            places,
            copies: (state.copy_count(), wanted * shared.chunks),
            master_bytes: masters * shared.chunks as u64 * chunk_bytes,
            copy_bytes: state.chunks_with_pages() as u64 * chunk_bytes,
            built_bytes: figures.built_bytes,
            build_seconds: figures.build_seconds,
            recopied_bytes: figures.recopied_bytes - figures.spared_bytes,
            written_bytes: figures.written_bytes,
            local_bytes: sums.local_bytes,
            remote_bytes: sums.remote_bytes,
            home_bytes: sums.home_bytes,
            collapses: figures.collapses,
            is_given_up: state.given_up,
            holders: shared.protocol.holders(),
            refused: figures.refused.clone(),
            verdict: figures.verdict.clone(),
        }
    }

    /// Share of the counted bytes that came from the reader's own node; `None` where nothing was counted.
    #[must_use]
    pub fn local_share(&self) -> Option<f64> {
        let local = self.local_bytes + self.home_bytes;
        let all = local + self.remote_bytes;
        (all > 0).then(|| local as f64 / all as f64)
    }
}

impl fmt::Display for ArrayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = megabytes;
        writeln!(
            f,
            "{} in epoch {} at {} places: {} of {} copies of chunks, {} for masters and {} for copies",
            mb(self.bytes),
            self.epoch,
            self.places,
            self.copies.0,
            self.copies.1,
            mb(self.master_bytes),
            mb(self.copy_bytes)
        )?;
        if self.copies.1 == 0 {
            writeln!(
                f,
                "there is one place: the master serves it, and nothing is copied"
            )?;
        }
        if self.built_bytes > 0 {
            writeln!(
                f,
                "{} were copied in {} s, {} of it again after writes of {}",
                mb(self.built_bytes),
                decimals(self.build_seconds, 3),
                mb(self.recopied_bytes),
                mb(self.written_bytes)
            )?;
        }
        if let Some(share) = self.local_share() {
            writeln!(
                f,
                "of the reads that were counted {} % were local: {} from copies, {} from the master on the \
                 reader's node, {} from it on another",
                decimals(share * 100.0, 1),
                mb(self.local_bytes),
                mb(self.home_bytes),
                mb(self.remote_bytes)
            )?;
        }
        for sentence in self.refused.iter().chain(&self.verdict) {
            writeln!(f, "{sentence}")?;
        }
        if self.holders.1 > 0 {
            writeln!(
                f,
                "{} readers hold an earlier epoch: the next write waits for them",
                self.holders.1
            )?;
        }
        Ok(())
    }
}
