//! Threads at work while a clock runs.
//!
//! Problem: threads that are started together neither begin nor end together, and what the last of
//! them does alone is not what was asked.
//!
//! Mechanism: each thread, on its CPU, does the same over and over and counts; the counts are read
//! at two moments while all of them work.

use crate::sys;
use hither_core::ids::CpuId;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest slice in which threads that were given no time are tried again.
const PATIENCE: Duration = Duration::from_secs(2);

/// In a line of its own: threads do not disturb each other.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Count(pub(super) AtomicU64);

struct Shared {
    stop: AtomicBool,
    /// What each thread has done so far; it alone writes its own.
    done: Vec<Count>,
}

/// A thread's place in its crew.
pub(super) struct Worker {
    shared: Arc<Shared>,
    index: usize,
    ready: mpsc::Sender<Option<io::Error>>,
}

impl Worker {
    /// Does some work and counts what it says that was, until the crew ends.
    pub(super) fn repeat(self, mut work: impl FnMut() -> u64) {
        // As in `Crew::start`.
        let _ = self.ready.send(None);
        let count = &self.shared.done[self.index].0;
        while !self.shared.stop.load(Relaxed) {
            count.store(count.load(Relaxed) + work(), Relaxed);
        }
    }
}

/// Threads at work; they end when it is dropped.
pub(super) struct Crew {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// What a thread counts at once, at most.
    most: u64,
}

impl Crew {
    /// Starts a thread on each CPU and waits until all of them work. There, `body` gets ready and
    /// calls [`Worker::repeat`].
    ///
    /// # Errors
    /// What the kernel said of CPUs or threads, and what `body` did.
    pub(super) fn start<B>(cpus: Vec<CpuId>, most: u64, body: B) -> io::Result<Self>
    where
        B: Fn(CpuId, Worker) -> io::Result<()> + Clone + Send + 'static,
    {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            done: cpus.iter().map(|_| Count::default()).collect(),
        });
        let mut crew = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            most,
        };
        let (sender, ready) = mpsc::channel();
        for (index, cpu) in cpus.into_iter().enumerate() {
            let worker = Worker {
                shared: Arc::clone(&shared),
                index,
                ready: sender.clone(),
            };
            let (sender, body) = (sender.clone(), body.clone());
            let run = move || {
                if let Err(error) = stay_on(cpu).and_then(|()| body(cpu, worker)) {
                    // The crew may be gone already, after another thread's error.
                    let _ = sender.send(Some(error));
                }
            };
            let thread = std::thread::Builder::new().name(format!("hither-probe{index}"));
            crew.threads.push(thread.spawn(run)?);
        }
        drop(sender);
        // A thread that is at work keeps its sender.
        if let Some(error) = ready.iter().take(crew.threads.len()).flatten().next() {
            return Err(error);
        }
        crew.settle();
        Ok(crew)
    }

    /// Waits until every thread has begun with what it was told last.
    pub(super) fn settle(&self) {
        let counts = || self.shared.done.iter().map(|count| count.0.load(Relaxed));
        let before: Vec<u64> = counts().collect();
        while counts()
            .zip(&before)
            .any(|(now, before)| now < before + 2 * self.most)
        {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn done(&self) -> u64 {
        let counts = self.shared.done.iter();
        counts.map(|count| count.0.load(Relaxed)).sum()
    }

    /// What all threads count per ns while something else goes on.
    pub(super) fn during(&self, other: impl FnOnce()) -> f64 {
        let (begin, before) = (Instant::now(), self.done());
        other();
        let (ns, after) = (begin.elapsed().as_nanos(), self.done());
        (after - before) as f64 / ns as f64
    }

    /// The same for a while. Where no thread was given time in it, as on a busy machine and in slices
    /// that are short for an emulator, it is tried again for twice as long; `None` where that does not
    /// help within [`PATIENCE`].
    pub(super) fn per_ns(&self, slice: Duration) -> Option<f64> {
        self.patient(slice, PATIENCE)
    }

    fn patient(&self, slice: Duration, most: Duration) -> Option<f64> {
        let slices = std::iter::successors(Some(slice), |slice| Some(*slice * 2));
        let mut slices = slices.take_while(|one| *one == slice || *one <= most);
        slices.find_map(|slice| {
            let figure = self.during(|| std::thread::sleep(slice));
            (figure > 0.0).then_some(figure)
        })
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// For tests: measures until the figure is above `least`, at most 2000 times. On a busy machine a
/// thread may be given hardly any time during a slice of a few milliseconds.
#[cfg(test)]
pub(super) fn above(least: f64, measure: impl Fn() -> Option<f64>) -> f64 {
    let mut tries = (0..2000).filter_map(|_| measure());
    let figure = tries.find(|&figure| figure > least);
    figure.expect("the threads stand still")
}

/// Keeps the calling thread on one CPU.
pub(super) fn stay_on(cpu: CpuId) -> io::Result<()> {
    sys::stay_on(&std::iter::once(cpu).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crew of one thread that counts once in so long, until it is to stand still.
    fn slow(each: Duration, stands: &Arc<AtomicBool>) -> Crew {
        let cpu = sys::allowed_cpus().unwrap().iter().next().unwrap();
        let stands = Arc::clone(stands);
        let body = move |_, worker: Worker| {
            worker.repeat(|| {
                std::thread::sleep(each);
                u64::from(!stands.load(Relaxed))
            });
            Ok(())
        };
        Crew::start(vec![cpu], 1, body).unwrap()
    }

    #[test]
    fn a_slice_without_any_work_done_is_tried_again() {
        let crew = slow(Duration::from_millis(20), &Arc::default());
        // Most slices of 1 ms see nothing of what is counted each 20 ms; a later one does.
        for _ in 0..5 {
            let figure = crew.per_ns(Duration::from_millis(1)).unwrap();
            assert!(figure > 0.0);
        }
    }

    #[test]
    fn threads_that_stand_still_have_no_figure() {
        let stands = Arc::default();
        let crew = slow(Duration::from_millis(1), &stands);
        stands.store(true, Relaxed);
        // What it was at then is over.
        while crew.during(|| std::thread::sleep(Duration::from_millis(10))) > 0.0 {}
        let most = Duration::from_millis(8);
        assert_eq!(crew.patient(Duration::from_millis(1), most), None);
    }
}
