//! What goes wrong.

/// Rates and probabilities. By default nothing does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Probability that a page is busy just when it is to move.
    pub busy: f64,
    /// Time for which a request may lie before it is begun, at most, in us.
    pub late_us: u64,
    /// Time for which the mover is kept off its CPU, for each that it works.
    pub slow: f64,
    /// Probability that a sample is lost.
    pub loses: f64,
    /// Probability that an interval cannot be observed at all.
    pub blind: f64,
    /// Forks, execs, ends and numbers used again, a second.
    pub events_per_s: f64,
    /// Processes beyond which nobody forks.
    pub most_processes: usize,
}
