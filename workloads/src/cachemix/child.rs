//! One program: a child of this process that does its task and tells what it did.
//!
//! Each has a pipe of its own: a word when it is ready, then its figures. A child that ends early closes its
//! pipe, so that nobody waits for it. All read the common start from one pipe more.

use super::figures::Latency;
use crate::cli::Failure;
use crate::memory::FirstNode;
use crate::ring::{PointerRing, UNROLL, Work};
use crate::team::{end_with, stay_on};
use std::io::{Error, PipeReader, PipeWriter, Read as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Figures are told for each half of a second.
pub const HALF_NS: u64 = 500_000_000;
/// Loads between two looks at the clock, where there is no plain work.
const STRETCH: u64 = 1 << 14;
/// What a child says when it is ready.
const READY: u64 = 1;

/// What a child is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// Walk all the time, with this work after each load.
    Walk(Work),
    /// Answer requests.
    Serve(Service),
}

/// Requests at even distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Of the walk, for each request.
    pub turns: u64,
    /// From one request to the next.
    pub every_ns: u64,
}

/// A child's name, memory and work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// As the kernel shows it.
    pub name: String,
    /// Its working set.
    pub bytes: usize,
    /// Where it starts.
    pub cpu: usize,
    /// Where it may run once all are ready.
    pub home: Vec<usize>,
    /// What orders its lines.
    pub seed: u64,
    /// How long it works.
    pub seconds: u64,
    /// What it does.
    pub job: Job,
}

/// What a child did.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Loads in each half second.
    Walked {
        /// In order.
        halves: Vec<u64>,
        /// Of its lines.
        checksum: u64,
    },
    /// Latencies of the last half of the run.
    Served {
        /// From when a request was due.
        latency: Latency,
        /// From when it was begun: without what its timer, or the request before, was late.
        service: Latency,
        /// Of its lines.
        checksum: u64,
    },
}

/// A child that was started. One that was not waited for is ended.
pub struct Child {
    task: Task,
    id: libc::pid_t,
    told: PipeReader,
    is_waited_for: bool,
}

impl Task {
    /// Does it answer requests?
    pub fn is_server(&self) -> bool {
        matches!(self.job, Job::Serve(_))
    }

    /// How many half seconds it works.
    fn halves(&self) -> usize {
        2 * self.seconds as usize
    }
}

impl Outcome {
    /// Of its lines.
    pub fn checksum(&self) -> u64 {
        match self {
            Self::Walked { checksum, .. } | Self::Served { checksum, .. } => *checksum,
        }
    }

    fn words(&self) -> Vec<u64> {
        match self {
            Self::Walked { halves, checksum } => [&halves[..], &[*checksum]].concat(),
            Self::Served {
                latency,
                service,
                checksum,
            } => [&latency.words()[..], &service.words(), &[*checksum]].concat(),
        }
    }

    /// `None` where the words are not as many as such a task's.
    fn from_words(words: &[u64], task: &Task) -> Option<Self> {
        let (&checksum, words) = words.split_last()?;
        match task.job {
            Job::Walk(_) if words.len() == task.halves() => Some(Self::Walked {
                halves: words.to_vec(),
                checksum,
            }),
            Job::Walk(_) => None,
            Job::Serve(_) => {
                let (latency, service) = words.split_first_chunk()?;
                Some(Self::Served {
                    latency: Latency::from_words(*latency),
                    service: Latency::from_words(service.try_into().ok()?),
                    checksum,
                })
            }
        }
    }
}

impl Child {
    /// Starts a child, which waits for the start on `go` when it is ready.
    pub fn start(task: &Task, go: &PipeReader) -> Result<Self, Failure> {
        let failed =
            |error: Error| Failure::Machine(format!("cannot start {}: {error}", task.name));
        let (told, tell) = std::io::pipe().map_err(failed)?;
        let parent = std::process::id();
        // SAFETY: this program has one thread, so that the child has all of it.
        let id = unsafe { libc::fork() };
        match id {
            -1 => Err(failed(Error::last_os_error())),
            0 => live(task, go, tell, parent),
            id => Ok(Self {
                task: task.clone(),
                id,
                told,
                is_waited_for: false,
            }),
        }
    }

    /// Returns once it has its memory.
    pub fn wait_until_ready(&mut self) -> Result<(), Failure> {
        let mut word = [0; 8];
        match self.told.read_exact(&mut word) {
            Ok(()) if u64::from_le_bytes(word) == READY => Ok(()),
            _ => {
                let status = self.wait();
                Err(self.fault("is not ready", status))
            }
        }
    }

    /// What it did, once it has done it.
    pub fn outcome(mut self) -> Result<Outcome, Failure> {
        let mut bytes = Vec::new();
        let read = self.told.read_to_end(&mut bytes);
        let words: Vec<u64> = (bytes.as_chunks().0.iter())
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        let outcome = read
            .ok()
            .and_then(|_| Outcome::from_words(&words, &self.task));
        let status = self.wait();
        outcome.ok_or_else(|| self.fault("has told nothing", status))
    }

    fn fault(&self, what: &str, status: i32) -> Failure {
        Failure::Machine(format!(
            "{} {what}: it ended with status {status:#x}",
            self.task.name
        ))
    }

    fn wait(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: a child of this process that was not waited for, and a place for its status.
        while unsafe { libc::waitpid(self.id, &raw mut status, 0) } == -1 {
            if Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                break;
            }
        }
        self.is_waited_for = true;
        status
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_waited_for {
            // SAFETY: a child of this process that was not waited for: the number is still its own. One that has
            // ended already is none the worse.
            unsafe { libc::kill(self.id, libc::SIGKILL) };
            self.wait();
        }
    }
}

/// Nanoseconds of the clock that does not jump, the same in all children.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The life of a child. It must not return to what its parent was doing.
fn live(task: &Task, go: &PipeReader, mut tell: PipeWriter, parent: u32) -> ! {
    let life = AssertUnwindSafe(|| prepare_and_work(task, go, &mut tell, parent));
    let status = match catch_unwind(life) {
        Ok(Ok(())) => 0,
        Ok(Err(message)) => {
            eprintln!("{}: {message}", task.name);
            1
        }
        Err(_) => 101,
    };
    // SAFETY: ends this process at once, without what its parent would do at its own end.
    unsafe { libc::_exit(status) }
}

fn prepare_and_work(
    task: &Task,
    mut go: &PipeReader,
    tell: &mut PipeWriter,
    parent: u32,
) -> Result<(), String> {
    let said = |what: &'static str| move |error: Error| format!("{what}: {error}");
    end_with(parent).map_err(said("it cannot end with its parent"))?;
    let name = std::ffi::CString::new(task.name.as_str()).map_err(|error| error.to_string())?;
    // SAFETY: the kernel copies the name; the slack is a number.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        // Requests shall not wait for the kernel to put wake-ups together.
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
    }
    stay_on(&[task.cpu]).map_err(said("it cannot stay where it starts"))?;
    let ring = PointerRing::new(task.bytes, FirstNode::default(), task.seed);
    let mut ring = ring.map_err(|failure| format!("{failure:?}"))?;
    let checksum = ring.checksum();
    let ready = tell.write_all(&READY.to_le_bytes());
    ready.map_err(said("it cannot tell that it is ready"))?;
    let mut word = [0; 8];
    let read = go.read_exact(&mut word);
    read.map_err(said("it is not told to go"))?;
    let start = u64::from_le_bytes(word);
    stay_on(&task.home).map_err(said("it cannot leave where it starts"))?;
    let outcome = match task.job {
        Job::Walk(work) => Outcome::Walked {
            halves: walk(&mut ring, work, start, task.halves()),
            checksum,
        },
        Job::Serve(service) => {
            let end = start + task.seconds * 2 * HALF_NS;
            let (latency, service) = serve(&mut ring, service, start, end);
            Outcome::Served {
                latency,
                service,
                checksum,
            }
        }
    };
    if ring.checksum() != checksum {
        return Err("its lines are not as they were".to_owned());
    }
    let bytes: Vec<u8> = (outcome.words().iter())
        .flat_map(|word| word.to_le_bytes())
        .collect();
    tell.write_all(&bytes)
        .map_err(said("it cannot tell its figures"))
}

/// Loads in each half second from the start.
fn walk(ring: &mut PointerRing, work: Work, start: u64, count: usize) -> Vec<u64> {
    let mut halves = vec![0; count];
    // A round is about as long as a load that a cache answers, a division as ten.
    let turns = (STRETCH / UNROLL).div_ceil(1 + work.rounds + 10 * work.divisions);
    loop {
        match work == Work::default() {
            true => ring.walk(turns),
            false => ring.walk_and_work(turns, work),
        }
        let half = (now_ns().saturating_sub(start) / HALF_NS) as usize;
        match halves.get_mut(half) {
            Some(loads) => *loads += turns * UNROLL,
            None => return halves,
        }
    }
}

/// Latencies of the requests that were due in the second half of the time: from then, and from when they were begun.
fn serve(ring: &mut PointerRing, service: Service, start: u64, end: u64) -> (Latency, Latency) {
    let (mut took, mut served) = (Vec::new(), Vec::new());
    let middle = start + (end - start) / 2;
    let mut due = start;
    let mut late = 0;
    while due < end {
        let mut now = now_ns();
        if now < due {
            sleep_until(due);
            now = now_ns();
        }
        let counts = due >= middle;
        if now >= end {
            late += u64::from(counts);
        } else {
            ring.walk(service.turns);
            if counts {
                let done = now_ns();
                took.push(done - due);
                served.push(done - now);
            }
        }
        due += service.every_ns;
    }
    (Latency::of(took, late), Latency::of(served, late))
}

fn sleep_until(due: u64) {
    let until = libc::timespec {
        tv_sec: (due / 1_000_000_000) as libc::time_t,
        tv_nsec: (due % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the kernel reads one timespec. A signal ends the sleep early; no handler is installed.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &raw const until,
            std::ptr::null_mut(),
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(job: Job) -> Task {
        Task {
            name: "cachemix-0".to_owned(),
            bytes: 1 << 14,
            cpu: 0,
            home: vec![0],
            seed: 1,
            seconds: 1,
            job,
        }
    }

    fn ring() -> PointerRing {
        PointerRing::new(1 << 14, FirstNode::default(), 1).unwrap()
    }

    #[test]
    fn figures_come_back_as_they_were_told() {
        let walked = Outcome::Walked {
            halves: vec![5, 7],
            checksum: 9,
        };
        let walk = task(Job::Walk(Work::default()));
        assert_eq!(
            Outcome::from_words(&walked.words(), &walk),
            Some(walked.clone())
        );
        assert_eq!(Outcome::from_words(&walked.words()[1..], &walk), None);
        let served = Outcome::Served {
            latency: Latency::of(vec![1, 2, 3], 4),
            service: Latency::of(vec![1, 1, 2], 4),
            checksum: 9,
        };
        let service = Service {
            turns: 1,
            every_ns: 1,
        };
        let serve = task(Job::Serve(service));
        assert_eq!(
            Outcome::from_words(&served.words(), &serve),
            Some(served.clone())
        );
        assert_eq!(Outcome::from_words(&[], &serve), None);
    }

    #[test]
    fn a_walk_counts_from_the_start_to_the_last_half() {
        // It is 0.9 s late: the first half second has nothing, the second less than it could have.
        let work = Work {
            rounds: 1,
            divisions: 1,
        };
        let halves = walk(&mut ring(), work, now_ns() - 900_000_000, 2);
        assert_eq!(halves[0], 0);
        assert!(halves[1] > 0 && halves[1].is_multiple_of(UNROLL));
    }

    #[test]
    fn requests_count_from_when_they_were_due() {
        let start = now_ns();
        let service = Service {
            turns: 1,
            every_ns: 5_000_000,
        };
        let (latency, served) = serve(&mut ring(), service, start, start + 40_000_000);
        assert_eq!(latency.count + latency.late, 4);
        assert!(served.max <= latency.max && served.count == latency.count);
        // Begun 20 ms late: all of the last half wait for that.
        let start = now_ns() - 20_000_000;
        let (latency, _) = serve(&mut ring(), service, start, start + 21_000_000);
        assert!(
            latency.count == 0 || latency.max >= 5_000_000,
            "{latency:?}"
        );
        // The end has passed: none is served.
        let start = now_ns() - 50_000_000;
        let (latency, _) = serve(&mut ring(), service, start, start + 40_000_000);
        assert_eq!((latency.count, latency.late), (0, 4));
    }
}
