//! What a backend is asked, what it answers, and what always holds between the two.

use hither_core::ids::{NodeId, Pid};
use hither_core::plan::{MoveOutcome, Refusal};
use std::fmt;
use std::ops::Range;

/// Why a backend cannot work here, and what would let it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// What is missing: half a sentence for a person.
    pub why: String,
    /// What would enable it: half a sentence for a person.
    pub remedy: String,
}

impl Unavailable {
    /// Both halves.
    pub fn new(why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.why, self.remedy)
    }
}

impl std::error::Error for Unavailable {}

/// Pages by virtual page number (address >> 12).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pages<'a> {
    /// Ascending, each once.
    Listed(&'a [u64]),
    /// All of them.
    Run(Range<u64>),
}

impl Pages<'_> {
    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        match self {
            Self::Listed(pages) => pages.len() as u64,
            Self::Run(run) => run.end.saturating_sub(run.start),
        }
    }

    /// One after the other, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        let (listed, run) = match self {
            Self::Listed(pages) => (*pages, 0..0),
            Self::Run(run) => (&[][..], run.clone()),
        };
        listed.iter().copied().chain(run)
    }
}

/// What to do when the program touches a page while it is on its way. The kernel's own moves
/// always block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Race {
    /// The access goes on at once, on the page where it was; the page is tried again and refused
    /// as busy if that does not help ("proceed and recover", memif section 5.2).
    #[default]
    Recover,
    /// The access goes on at once, the page stays, the rest of the request is not tried, and the
    /// outcome names address and thread ("proceed and fail").
    Fail,
    /// The access waits until the page has arrived.
    Block,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// Pages of the process to a node.
    Migrate {
        /// Which.
        pages: Pages<'a>,
        /// Where to.
        to: NodeId,
    },
    /// The bytes at one address of this process to another, as `memcpy` does. The two ranges must
    /// not overlap; accesses meanwhile see old or new bytes (memif section 3).
    Replicate {
        /// First byte read.
        from: u64,
        /// First byte written.
        to: u64,
        /// How many.
        bytes: u64,
    },
}

/// One move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job<'a> {
    /// Whose memory. A replication is always this process's own.
    pub pid: Pid,
    /// What to do.
    pub action: Action<'a>,
    /// What an access in between does.
    pub race: Race,
}

impl Job<'_> {
    /// Pages that its outcome must account for: those to migrate, or those that a replication
    /// writes to.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        match &self.action {
            Action::Migrate { pages, .. } => pages.count(),
            &Action::Replicate { bytes: 0, .. } => 0,
            // A range that passes the end of all addresses is refused, and counted first.
            &Action::Replicate { to, bytes, .. } => {
                (to.saturating_add(bytes - 1) >> 12) - (to >> 12) + 1
            }
        }
    }
}

/// Moves pages or bytes. Object-safe: its users hold a `Box<dyn Backend>`.
///
/// What always holds: no byte of a program's data is lost, whatever fails; every job gets exactly
/// one outcome; every page of a job is counted once in it, as moved, as already there or as
/// refused.
pub trait Backend {
    /// The word that names it in reports: `kernel`, `swap`, `copy`, `cuda`.
    fn name(&self) -> &'static str;

    /// Can it work here and now? Changes nothing.
    fn probe(&self) -> Result<(), Unavailable>;

    /// May the thread that submits such a job carry it out? Not where it could come upon memory that the job has
    /// taken away for a while: it would wait for itself.
    fn serves_submitters(&self, _: &Action<'_>) -> bool {
        false
    }

    /// Carries out the jobs in their order and returns their outcomes in the same order.
    /// What happens to pages and processes meanwhile is an outcome, never an error.
    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome>;

    /// The same, but tells each outcome, with its job's index, once the job has ended: a job need
    /// not wait for those after it. Order is free; each job is told of once.
    fn execute_each(&mut self, jobs: &[Job<'_>], tell: &mut dyn FnMut(usize, Outcome)) {
        for (index, outcome) in self.execute(jobs).into_iter().enumerate() {
            tell(index, outcome);
        }
    }
}

/// Outcomes in the order of their jobs, of what tells them one by one: [`Backend::execute`] in
/// terms of [`Backend::execute_each`].
///
/// # Panics
/// Where a job was not told of.
pub fn collect(
    jobs: &[Job<'_>],
    execute: impl FnOnce(&mut dyn FnMut(usize, Outcome)),
) -> Vec<Outcome> {
    let mut outcomes: Vec<Option<Outcome>> = jobs.iter().map(|_| None).collect();
    execute(&mut |index, outcome| outcomes[index] = Some(outcome));
    let told = outcomes
        .into_iter()
        .map(|outcome| outcome.expect("each job is told of"));
    told.collect()
}

/// An access that met a page on its way, under [`Race::Fail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raced {
    /// Where.
    pub address: u64,
    /// Who: the kernel's thread number.
    pub thread: i32,
}

/// What became of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Pages now on the target that were elsewhere, ascending. Of a replication: pages written.
    pub moved: Vec<u64>,
    /// Pages that were on the target already.
    pub already_there: u64,
    /// Pages left where they were, by reason. A page of a huge page that moved whole counts as
    /// moved.
    pub refused: Vec<(Refusal, u64)>,
    /// Those of them that the target had no memory for, ascending, where the backend can tell.
    pub without_room: Vec<u64>,
    /// Bytes copied.
    pub bytes: u64,
    /// Time the move took, in ns.
    pub duration_ns: u64,
    /// Time that the program's threads waited for pages on their way, in ns, summed over threads.
    pub stall_ns: u64,
    /// Huge pages that arrived as such.
    pub huge_kept: u64,
    /// Huge pages that were split on the way.
    pub huge_split: u64,
    /// The access that ended it, under [`Race::Fail`].
    pub raced: Option<Raced>,
    /// Who did it, where a backend hands jobs on; `None`: the backend that was asked.
    pub backend: Option<&'static str>,
}

impl Outcome {
    /// Pages accounted for.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        let refused: u64 = self.refused.iter().map(|&(_, count)| count).sum();
        self.moved.len() as u64 + self.already_there + refused
    }

    /// Takes pages back that were counted as refused: somebody else accounts for them.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn retract(&mut self, refusal: Refusal, count: u64) {
        for (reason, refused) in &mut self.refused {
            if *reason == refusal {
                *refused -= count;
            }
        }
        self.refused.retain(|&(_, count)| count > 0);
    }

    /// Adds another's: of two jobs, what became of both.
    pub fn add(&mut self, other: Self) {
        self.moved.extend(other.moved);
        self.already_there += other.already_there;
        for (refusal, count) in other.refused.into_iter().filter(|&(_, count)| count > 0) {
            match self.refused.iter_mut().find(|(known, _)| *known == refusal) {
                Some((_, sum)) => *sum += count,
                None => self.refused.push((refusal, count)),
            }
        }
        self.without_room.extend(other.without_room);
        self.bytes += other.bytes;
        self.duration_ns += other.duration_ns;
        self.stall_ns += other.stall_ns;
        self.huge_kept += other.huge_kept;
        self.huge_split += other.huge_split;
        self.raced = self.raced.or(other.raced);
        self.backend = other.backend.or(self.backend);
    }

    /// As the engine takes it.
    #[must_use]
    pub fn of_request(self, request: u64) -> MoveOutcome {
        MoveOutcome {
            request,
            moved: self.moved,
            already_there: self.already_there,
            refused: self.refused,
            duration_ns: self.duration_ns,
        }
    }
}

/// Builds one outcome page by page, so that no backend counts a page twice or forgets one.
#[derive(Clone, Debug)]
pub struct OutcomeBuilder {
    outcome: Outcome,
    expected_count: u64,
}

impl OutcomeBuilder {
    /// For a job.
    #[must_use]
    pub fn new(job: &Job<'_>) -> Self {
        Self {
            outcome: Outcome::default(),
            expected_count: job.page_count(),
        }
    }

    /// The page was elsewhere and is on the target now.
    pub fn moved(&mut self, page: u64) {
        self.outcome.moved.push(page);
    }

    /// So were these.
    pub fn moved_many(&mut self, pages: Range<u64>) {
        self.outcome.moved.extend(pages);
    }

    /// The page was on the target already.
    pub fn already_there(&mut self) {
        self.already_there_many(1);
    }

    /// So were so many.
    pub fn already_there_many(&mut self, count: u64) {
        self.outcome.already_there += count;
    }

    /// The page stays where it is.
    pub fn refused(&mut self, refusal: Refusal) {
        self.refused_many(refusal, 1);
    }

    /// This page stays where it is.
    pub fn refused_page(&mut self, page: u64, refusal: Refusal) {
        self.refused(refusal);
        if refusal == Refusal::NoMemory {
            self.outcome.without_room.push(page);
        }
    }

    /// Several pages stay where they are.
    pub fn refused_many(&mut self, refusal: Refusal, count: u64) {
        if count == 0 {
            return;
        }
        let known = self.outcome.refused.iter_mut().find(|(r, _)| *r == refusal);
        match known {
            Some((_, sum)) => *sum += count,
            None => self.outcome.refused.push((refusal, count)),
        }
    }

    /// Adds to the time that the move took, in ns.
    pub fn took(&mut self, duration_ns: u64) {
        self.outcome.duration_ns += duration_ns;
    }

    /// The figures beside the pages, to add to.
    pub fn figures(&mut self) -> &mut Outcome {
        &mut self.outcome
    }

    /// Pages accounted for so far.
    #[must_use]
    pub fn counted(&self) -> u64 {
        self.outcome.page_count()
    }

    /// Are all pages accounted for?
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.counted() >= self.expected_count
    }

    /// The outcome, pages ascending and reasons in a fixed order.
    ///
    /// # Panics
    /// Where a backend lost count of its pages: a programmer's error.
    #[must_use]
    pub fn finish(mut self) -> Outcome {
        assert_eq!(
            self.counted(),
            self.expected_count,
            "a backend lost count of its pages"
        );
        self.outcome.moved.sort_unstable();
        self.outcome.without_room.sort_unstable();
        self.outcome
            .refused
            .sort_unstable_by_key(|&(refusal, _)| refusal);
        self.outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(pages: &[u64]) -> Job<'_> {
        Job {
            pid: Pid(1),
            action: Action::Migrate {
                pages: Pages::Listed(pages),
                to: NodeId(0),
            },
            race: Race::default(),
        }
    }

    #[test]
    fn every_page_is_counted_once() {
        let mut builder = OutcomeBuilder::new(&job(&[1, 2, 3, 4]));
        builder.moved(4);
        builder.moved(1);
        builder.already_there();
        builder.refused(Refusal::Busy);
        builder.took(9);
        let outcome = builder.finish();
        assert_eq!(outcome.moved, [1, 4]);
        assert_eq!(outcome.already_there, 1);
        assert_eq!(outcome.refused, [(Refusal::Busy, 1)]);
        assert_eq!(outcome.duration_ns, 9);
        assert_eq!(outcome.of_request(7).request, 7);
    }

    #[test]
    #[should_panic(expected = "lost count")]
    fn a_forgotten_page_is_found() {
        let mut builder = OutcomeBuilder::new(&job(&[1, 2]));
        builder.refused_many(Refusal::Busy, 1);
        let _ = builder.finish();
    }

    #[test]
    fn pages_of_a_job() {
        let replicate = |to, bytes| Job {
            action: Action::Replicate { from: 0, to, bytes },
            ..job(&[])
        };
        assert_eq!(replicate(4095, 0).page_count(), 0);
        assert_eq!(replicate(4095, 1).page_count(), 1);
        assert_eq!(replicate(4095, 2).page_count(), 2);
        assert_eq!(replicate(u64::MAX, u64::MAX).page_count(), 1);
        assert_eq!(job(&[7, 9]).page_count(), 2);
        assert_eq!(Pages::Run(3..5).iter().collect::<Vec<_>>(), [3, 4]);
        assert_eq!(Pages::Listed(&[3, 9]).iter().collect::<Vec<_>>(), [3, 9]);
    }

    #[test]
    fn backends_are_object_safe() {
        struct Nothing;
        impl Backend for Nothing {
            fn name(&self) -> &'static str {
                "nothing"
            }
            fn probe(&self) -> Result<(), Unavailable> {
                Err(Unavailable::new("it moves nothing", "choose another"))
            }
            fn execute(&mut self, _: &[Job<'_>]) -> Vec<Outcome> {
                Vec::new()
            }
        }
        let backend: Box<dyn Backend> = Box::new(Nothing);
        assert_eq!(
            backend.probe().unwrap_err().to_string(),
            "it moves nothing; choose another"
        );
    }
}
