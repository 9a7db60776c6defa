//! Streams over backends that are slow, that fail, refuse and panic.

use super::*;
use crate::backend::{Action, Backend, Job, Outcome, OutcomeBuilder, Unavailable};
use crate::service::{Close, Config};
use hither_core::plan::Refusal;
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

type Uninit = MaybeUninit<u8>;

/// What a fake backend does besides copying.
#[derive(Clone, Copy, Debug)]
struct Habits {
    /// Longest delay before and after a copy, in us; below 20 it spins.
    delay_us: u64,
    /// Of 100 jobs: fail after copying half of the bytes.
    fails: u64,
    /// Of 100 jobs: refuse without a byte.
    refuses: u64,
    /// Of 100 calls: panic.
    panics: u64,
}

const PROMPT: Habits = Habits {
    delay_us: 0,
    fails: 0,
    refuses: 0,
    panics: 0,
};

/// Numbers by chance from a shared state, so that every worker and every replacement goes on.
#[derive(Clone)]
struct Chance(Arc<AtomicU64>);

impl Chance {
    fn below(&self, end: u64) -> u64 {
        let word = self
            .0
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (word ^ word >> 31) % end.max(1)
    }

    fn rest(&self, most_us: u64) {
        let time = Duration::from_micros(self.below(most_us + 1));
        if time > Duration::from_micros(20) {
            std::thread::sleep(time);
        } else {
            let end = std::time::Instant::now() + time;
            while std::time::Instant::now() < end {
                std::hint::spin_loop();
            }
        }
    }
}

struct Fake {
    habits: Habits,
    chance: Chance,
    /// Jobs that are being carried out.
    busy: Arc<AtomicUsize>,
}

impl Fake {
    fn one(&self, job: &Job<'_>) -> Outcome {
        let mut builder = OutcomeBuilder::new(job);
        let Action::Replicate { from, to, bytes } = job.action else {
            unreachable!("streams replicate")
        };
        let hap = self.chance.below(100);
        let copied = match hap {
            _ if hap < self.habits.fails => bytes / 2,
            _ if hap < self.habits.fails + self.habits.refuses => 0,
            _ => bytes,
        };
        self.chance.rest(self.habits.delay_us);
        let source = std::ptr::with_exposed_provenance::<Uninit>(from as usize);
        let target = std::ptr::with_exposed_provenance_mut::<Uninit>(to as usize);
        // SAFETY: a stream submits ranges that are its caller's, and that nobody writes meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(source, target, copied as usize) };
        self.chance.rest(self.habits.delay_us);
        if copied == bytes {
            builder.moved_many(to >> 12..((to + bytes - 1) >> 12) + 1);
        } else {
            builder.refused_many(Refusal::Busy, job.page_count());
        }
        builder.figures().bytes += copied;
        builder.took(1000);
        builder.finish()
    }
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn probe(&self) -> Result<(), Unavailable> {
        Ok(())
    }

    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        self.busy.fetch_add(1, Ordering::SeqCst);
        let panics = self.chance.below(100) < self.habits.panics;
        let outcomes = jobs.iter().map(|job| self.one(job)).collect();
        self.busy.fetch_sub(1, Ordering::SeqCst);
        if panics {
            // Without the message on standard error.
            std::panic::resume_unwind(Box::new("a backend's"));
        }
        outcomes
    }
}

struct World {
    mover: Mover,
    busy: Arc<AtomicUsize>,
}

fn world(habits: Habits, workers: usize, capacity: u16, seed: u64) -> World {
    let busy = Arc::new(AtomicUsize::new(0));
    let chance = Chance(Arc::new(AtomicU64::new(seed)));
    let config = Config {
        workers,
        capacity,
        batch_requests: 1,
        ..Config::default()
    };
    let shared = Arc::clone(&busy);
    let mover = Mover::open(config, move |_| {
        let (chance, busy) = (chance.clone(), Arc::clone(&shared));
        Box::new(Fake {
            habits,
            chance,
            busy,
        })
    });
    World {
        mover: mover.unwrap(),
        busy,
    }
}

fn fast(bytes: usize) -> Vec<Uninit> {
    vec![MaybeUninit::uninit(); bytes]
}

/// Three arrays with values whose sums depend on the order of rounding.
fn arrays(length: usize) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let value = |index: usize, step: f64| 1.0 + index as f64 * step;
    let of = |step: f64| (0..length).map(|index| value(index, step)).collect();
    (of(0.1), of(0.7), of(1.3))
}

fn triad(part: StreamPart<'_, f64, f64, 2, 1>) {
    let ([b, c], [a]) = (part.inputs, part.outputs);
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        *a = b + 3.1 * c;
    }
}

/// As triad, and what was there counts.
fn update(part: StreamPart<'_, f64, f64, 2, 1>) {
    let ([b, c], [a]) = (part.inputs, part.outputs);
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        *a = *a * 0.9 + b + 3.1 * c;
    }
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn settings(block: usize, threads: usize, adapt: Adapt) -> StreamSettings {
    StreamSettings {
        threads,
        adapt,
        buffers: 4,
        ..StreamSettings::new(block)
    }
}

/// One run against the plain loop; checks results and that each element was computed once.
fn check(
    world: &World,
    settings: &StreamSettings,
    length: usize,
    rounds: usize,
) -> Vec<StreamReport> {
    let mut memory = fast(1 << 16);
    let mut stream = Stream::new(&world.mover, &mut memory, settings.clone()).unwrap();
    let (mut a, b, c) = arrays(length);
    let mut expected = a.clone();
    let updates = settings.results != StreamResults::Fast;
    let mut reports = Vec::new();
    for round in 0..rounds {
        for index in 0..length {
            let old = if updates { expected[index] * 0.9 } else { 0.0 };
            expected[index] = if updates {
                old + b[index] + 3.1 * c[index]
            } else {
                b[index] + 3.1 * c[index]
            };
        }
        let seen: Vec<AtomicUsize> = (0..length).map(|_| AtomicUsize::new(0)).collect();
        let report = stream.run([&b, &c], [&mut a], |part| {
            for element in &seen[part.first..part.first + part.inputs[0].len()] {
                element.fetch_add(1, Ordering::Relaxed);
            }
            assert_eq!(part.block, part.first / settings.block);
            assert!(part.thread < settings.threads);
            if updates { update(part) } else { triad(part) }
        });
        let report = report.unwrap();
        let once = seen.iter().all(|count| count.load(Ordering::Relaxed) == 1);
        assert!(once, "round {round}: {report:?}");
        assert_eq!(bits(&a), bits(&expected), "round {round}: {report:?}");
        assert_eq!(report.blocks, length.div_ceil(settings.block) as u64);
        assert!(report.fast_blocks <= report.blocks && report.overlap() <= 1.0);
        reports.push(report);
    }
    assert_eq!(
        world.busy.load(Ordering::SeqCst),
        0,
        "something is in flight"
    );
    reports
}

#[test]
fn every_way_gives_what_the_plain_loop_gives() {
    let world = world(PROMPT, 1, 64, 1);
    for results in [
        StreamResults::InPlace,
        StreamResults::Fast,
        StreamResults::FastUpdated,
    ] {
        for sharing in [TeamSharing::Together, TeamSharing::Whole] {
            for threads in [1, 3] {
                for adapt in [Adapt::Always, Adapt::Never, Adapt::Measure] {
                    let settings = StreamSettings {
                        results,
                        sharing,
                        ..settings(200, threads, adapt)
                    };
                    let reports = check(&world, &settings, 200 * 40 + 77, 3);
                    let used = reports.iter().any(|report| report.copied_bytes > 0);
                    assert!(adapt != Adapt::Never || !used, "{settings:?}");
                }
            }
        }
    }
}

#[test]
fn few_blocks_none_and_more_buffers_than_blocks() {
    let world = world(PROMPT, 1, 64, 2);
    for length in [0, 1, 63, 64, 65, 199, 200, 201, 400] {
        for sharing in [TeamSharing::Together, TeamSharing::Whole] {
            let settings = StreamSettings {
                sharing,
                results: StreamResults::Fast,
                ..settings(200, 2, Adapt::Always)
            };
            let report = check(&world, &settings, length, 2)[1];
            assert_eq!(report.blocks, length.div_ceil(200) as u64);
        }
    }
}

#[test]
fn blocks_come_from_fast_memory_where_copies_are_quick() {
    let world = world(PROMPT, 1, 64, 3);
    let mut memory = fast(1 << 20);
    let settings = settings(1000, 1, Adapt::Always);
    let mut stream = Stream::new(&world.mover, &mut memory, settings).unwrap();
    let (mut a, b, c) = arrays(100_000);
    let fast_blocks = AtomicU64::new(0);
    let report = stream.run([&b, &c], [&mut a], |part| {
        fast_blocks.fetch_add(part.is_fast.into(), Ordering::Relaxed);
        triad(part);
        std::thread::sleep(Duration::from_micros(300));
    });
    let report = report.unwrap();
    assert_eq!(report.fast_blocks, fast_blocks.into_inner());
    assert!(report.hit_share() > 0.0, "{report:?}");
    // Each fill of two arrays took 1 us a piece, by the fake's word.
    assert!(report.copying_ns >= report.fast_blocks * 2000, "{report:?}");
    assert!(report.overlap() > 0.9, "{report:?}");
    assert!(report.copied_bytes >= report.fast_blocks * 16_000);
}

#[test]
fn what_is_refused_comes_from_slow_memory() {
    let refusing = Habits {
        refuses: 100,
        ..PROMPT
    };
    let world = world(refusing, 1, 64, 4);
    let settings = settings(200, 2, Adapt::Always);
    let report = check(&world, &settings, 20_000, 1)[0];
    assert_eq!((report.fast_blocks, report.copied_bytes), (0, 0));
    // Those of the end are cancelled instead.
    assert!(report.failed_fills + report.late_fills > 0, "{report:?}");
}

#[test]
fn results_that_cannot_be_copied_back_are_brought_by_the_team() {
    // Nothing to read: buffers are ready at once, and every copy brings results back.
    let failing = Habits {
        fails: 100,
        ..PROMPT
    };
    let world = world(failing, 1, 64, 5);
    let mut memory = fast(1 << 16);
    let settings = StreamSettings {
        results: StreamResults::Fast,
        ..settings(100, 1, Adapt::Always)
    };
    let mut stream: Stream<'_, '_, u8, u64, 0, 2> =
        Stream::new(&world.mover, &mut memory, settings).unwrap();
    let (mut one, mut two) = (vec![0u64; 5050], vec![0u64; 5050]);
    let report = stream.run([], [&mut one, &mut two], |part| {
        let [one, two] = part.outputs;
        for (index, (one, two)) in one.iter_mut().zip(two).enumerate() {
            (*one, *two) = (1 + (part.first + index) as u64, 7);
        }
    });
    let report = report.unwrap();
    assert!(
        report.fast_blocks > 0 && report.failed_returns > 0,
        "{report:?}"
    );
    assert_eq!(one, (1..=5050).collect::<Vec<u64>>());
    assert!(two.iter().all(|&value| value == 7));
}

#[test]
fn without_a_free_request_everything_comes_from_slow_memory() {
    // A block needs two requests.
    let world = world(PROMPT, 1, 1, 6);
    let report = check(&world, &settings(200, 2, Adapt::Always), 5000, 1)[0];
    assert_eq!((report.fast_blocks, report.failed_fills), (0, 0));
    // Others' requests count too; their completions are left to them.
    let world = self::world(PROMPT, 1, 2, 7);
    let held = world.mover.request().unwrap();
    let report = check(&world, &settings(200, 1, Adapt::Always), 5000, 1)[0];
    assert_eq!(report.fast_blocks, 0);
    drop(held);
}

#[test]
fn completions_of_others_are_left_alone() {
    let world = world(PROMPT, 1, 64, 8);
    let (from, mut to) = ([5u8; 64], [0u8; 64]);
    let (source, target) = (from.as_ptr(), to.as_mut_ptr());
    let request = world.mover.request().unwrap().tag(77);
    let request = request.replicate(source.expose_provenance(), target.expose_provenance(), 64);
    let id = world.mover.submit(request).unwrap();
    check(&world, &settings(200, 2, Adapt::Always), 20_000, 2);
    let done = world.mover.wait(Some(Duration::from_secs(20))).unwrap();
    assert_eq!((done.id, done.tag), (id, 77));
    assert!(world.mover.close(Close::Drain).is_empty());
}

#[test]
fn a_panic_is_passed_on_and_leaves_nothing_in_flight() {
    let slow = Habits {
        delay_us: 300,
        ..PROMPT
    };
    for (seed, sharing) in [TeamSharing::Together, TeamSharing::Whole]
        .into_iter()
        .enumerate()
    {
        for threads in [1, 3] {
            let world = world(slow, 2, 64, 9 + seed as u64);
            let (mut a, b, c) = arrays(20_000);
            {
                let mut memory = fast(1 << 16);
                let settings = StreamSettings {
                    sharing,
                    results: StreamResults::Fast,
                    ..settings(200, threads, Adapt::Always)
                };
                let mut stream = Stream::new(&world.mover, &mut memory, settings).unwrap();
                let ended = AtomicBool::new(false);
                let run = || {
                    stream.run([&b, &c], [&mut a], |part| {
                        assert!(!ended.load(Ordering::Relaxed) || threads > 1);
                        if part.block == 30 {
                            ended.store(true, Ordering::Relaxed);
                            std::panic::resume_unwind(Box::new("the program's"));
                        }
                        triad(part);
                    })
                };
                let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
                assert_eq!(panic.downcast_ref::<&str>(), Some(&"the program's"));
                let depths = world.mover.statistics().depths;
                assert_eq!(world.busy.load(Ordering::SeqCst), 0);
                assert_eq!(depths.free, 64, "{depths:?}");
                // It can be used again.
                let report = stream.run([&b, &c], [&mut a], triad).unwrap();
                assert_eq!(report.blocks, 100);
            }
            let expected = b.iter().zip(&c).map(|(b, c)| b + 3.1 * c);
            assert_eq!(bits(&a), bits(&expected.collect::<Vec<f64>>()));
        }
    }
}

#[test]
fn a_panic_at_a_threads_start_is_passed_on_too() {
    let world = world(PROMPT, 1, 64, 12);
    let mut memory = fast(1 << 16);
    let start = |_| std::panic::resume_unwind(Box::new("a start's"));
    let settings = StreamSettings {
        start: Some(Arc::new(start)),
        ..settings(200, 2, Adapt::Always)
    };
    let mut stream = Stream::new(&world.mover, &mut memory, settings).unwrap();
    let (mut a, b, c) = arrays(2000);
    let run = || stream.run([&b, &c], [&mut a], triad);
    let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"a start's"));
}

#[test]
fn threads_compute_one_block_together() {
    let world = world(PROMPT, 1, 64, 13);
    let mut memory = fast(1 << 16);
    let settings = settings(1 << 10, 3, Adapt::Always);
    let mut stream = Stream::new(&world.mover, &mut memory, settings).unwrap();
    let (mut a, b, c) = arrays(5 << 10);
    // Passed only if all three are in the same block at once.
    let together = Barrier::new(3);
    let parts = Mutex::new(Vec::new());
    let run = stream.run([&b, &c], [&mut a], |part| {
        together.wait();
        parts.lock().unwrap().push((part.block, part.thread));
        triad(part);
    });
    run.unwrap();
    let mut parts = parts.into_inner().unwrap();
    assert!(
        parts
            .chunks(3)
            .all(|three| three.iter().all(|part| part.0 == three[0].0))
    );
    parts.sort_unstable();
    let expected = (0..5).flat_map(|block| (0..3).map(move |thread| (block, thread)));
    assert_eq!(parts, expected.collect::<Vec<_>>());
}

#[test]
fn a_fill_is_never_waited_for() {
    // The first copy goes on until computing has ended.
    struct Stuck(Arc<AtomicBool>);
    impl Backend for Stuck {
        fn name(&self) -> &'static str {
            "stuck"
        }
        fn probe(&self) -> Result<(), Unavailable> {
            Ok(())
        }
        fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
            while !self.0.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_micros(100));
            }
            let refuse = |job| {
                let mut builder = OutcomeBuilder::new(job);
                builder.refused_many(Refusal::Busy, job.page_count());
                builder.finish()
            };
            jobs.iter().map(refuse).collect()
        }
    }
    let ended = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&ended);
    let mover = Mover::open(Config::default(), move |_| {
        Box::new(Stuck(Arc::clone(&told)))
    });
    let mover = mover.unwrap();
    let mut memory = fast(1 << 16);
    let mut stream = Stream::new(&mover, &mut memory, settings(200, 1, Adapt::Always)).unwrap();
    let (mut a, b, c) = arrays(10_000);
    let computed = AtomicUsize::new(0);
    let report = stream.run([&b, &c], [&mut a], |part| {
        triad(part);
        if computed.fetch_add(1, Ordering::Relaxed) == 49 {
            ended.store(true, Ordering::Release);
        }
    });
    let report = report.unwrap();
    assert_eq!(
        (report.fast_blocks, report.late_fills),
        (0, 4),
        "{report:?}"
    );
}

#[test]
fn buffers_that_a_cache_would_hold_become_more() {
    let world = world(PROMPT, 1, 64, 15);
    let count = |cache_bytes, buffers, room: usize| {
        let mut memory = fast(room);
        let settings = StreamSettings {
            buffers,
            cache_bytes,
            ..settings(512, 1, Adapt::Always)
        };
        let stream = Stream::<'_, '_, f64, f64, 2, 1>::new(&world.mover, &mut memory, settings);
        stream.map(|stream| stream.buffer_count()).ok()
    };
    // 8 KiB a buffer.
    let room = 1 << 20;
    assert_eq!(count(0, 4, room), Some(4));
    assert_eq!(count(16 << 10, 4, room), Some(4));
    // 80 KiB past 64.
    assert_eq!(count(64 << 10, 4, room), Some(10));
    assert_eq!(count(64 << 10, 16, room), Some(16));
    // As many as there is room for.
    assert_eq!(count(64 << 10, 4, (6 << 13) + 64), Some(6));
    assert_eq!(count(64 << 10, 0, room), None);
}

#[test]
fn settings_that_do_not_fit_are_errors() {
    let world = world(PROMPT, 1, 64, 14);
    let mut memory = fast(4096);
    let mut new = |settings: StreamSettings| {
        Stream::<'_, '_, f64, f64, 2, 1>::new(&world.mover, &mut memory, settings).map(drop)
    };
    assert!(matches!(
        new(settings(0, 1, Adapt::Measure)),
        Err(StreamError::Block)
    ));
    assert!(matches!(
        new(settings(9, 0, Adapt::Measure)),
        Err(StreamError::Threads)
    ));
    // Two times 2056 bytes, rounded up to 2112.
    let large = new(settings(257, 1, Adapt::Measure)).unwrap_err();
    let text = "no buffer: one needs 4224 bytes, and fast memory has 4096";
    assert_eq!(large.to_string(), text);
    let none = StreamSettings {
        buffers: 0,
        ..settings(9, 1, Adapt::Measure)
    };
    assert!(matches!(new(none), Err(StreamError::NoBuffers { .. })));
    let absurd = new(settings(usize::MAX, 1, Adapt::Measure)).unwrap_err();
    assert!(matches!(
        absurd,
        StreamError::NoBuffers {
            needed: usize::MAX,
            ..
        }
    ));
    let mut stream = Stream::new(&world.mover, &mut memory, settings(9, 1, Adapt::Measure));
    let (mut a, b, c) = arrays(100);
    let stream = stream.as_mut().unwrap();
    let lengths = stream.run([&b, &c[..99]], [&mut a], triad).unwrap_err();
    assert!(
        matches!(lengths, StreamError::Lengths(100, 99)),
        "{lengths}"
    );
    let lengths = stream.run([&b, &c], [&mut a[..98]], triad).unwrap_err();
    assert!(
        matches!(lengths, StreamError::Lengths(100, 98)),
        "{lengths}"
    );
}

/// A stream over blocks that take so many us in fast memory and in their place. The stream judges by
/// the clock, which a busy host misleads: it may try a few times until it decides as `expected`.
fn decided(fast_us: u64, plain_us: u64, expected: Decision) -> StreamReport {
    let cost = |is_fast| Duration::from_micros(if is_fast { fast_us } else { plain_us });
    let once = |seed| {
        let world = world(PROMPT, 1, 64, seed);
        let mut memory = fast(1 << 16);
        let mut stream =
            Stream::new(&world.mover, &mut memory, settings(200, 1, Adapt::Measure)).unwrap();
        let (mut a, b, c) = arrays(200 * 500);
        let report = stream.run([&b, &c], [&mut a], |part| {
            std::thread::sleep(cost(part.is_fast));
            triad(part);
        });
        report.unwrap()
    };
    let mut reports = (15..20).map(once);
    let first = reports.find(|report| report.decision == expected);
    first.unwrap_or_else(|| panic!("never {expected:?}"))
}

#[test]
fn where_copies_make_it_slower_it_goes_plain() {
    // Each fill takes the team's time: as on a machine without a spare CPU.
    let report = decided(400, 100, Decision::Plain);
    assert!(report.hit_share() < 0.1, "{report:?}");
}

#[test]
fn where_fast_memory_is_faster_it_stays_on() {
    let report = decided(100, 1500, Decision::Through);
    assert!(
        report.hit_share() > 0.0 && report.gain > Some(1.05),
        "{report:?}"
    );
}

/// Three bytes an element and five: sizes that no type has.
fn raw(results: StreamResults, fast: &mut [Uninit]) -> RawStream {
    let kind = |element_bytes, count| ArrayKind {
        element_bytes,
        align: 1,
        count,
    };
    let settings = StreamSettings {
        results,
        ..settings(100, 2, Adapt::Always)
    };
    RawStream::new(fast, kind(3, 2), kind(5, 1), settings).unwrap()
}

#[test]
fn sizes_may_be_known_only_when_the_program_runs() {
    let world = world(PROMPT, 1, 64, 21);
    for results in [StreamResults::InPlace, StreamResults::Fast] {
        let mut memory = fast(1 << 16);
        let mut stream = raw(results, &mut memory);
        let inputs = [vec![1u8; 3 * 10_050], vec![2u8; 3 * 10_050]];
        let mut output = vec![0u8; 5 * 10_050];
        let (from, to) = (inputs.each_ref().map(Vec::as_ptr), [output.as_mut_ptr()]);
        let run = |part: RawPart<'_>| {
            for element in 0..part.length {
                // SAFETY: within the part, of elements of three bytes.
                let sum: u8 = (0..2)
                    .map(|array| unsafe { *part.input(array).add(3 * element + 2) })
                    .sum();
                let number = (part.first + element).to_le_bytes();
                let value = [sum, number[0], number[1], 7, 7];
                // SAFETY: within the part, of elements of five bytes.
                unsafe {
                    part.output(0)
                        .add(5 * element)
                        .cast::<[u8; 5]>()
                        .write(value)
                };
            }
            std::thread::sleep(Duration::from_micros(100));
        };
        // SAFETY: arrays and fast memory are this function's, and as long as that.
        let report = unsafe { stream.run(&world.mover, &from, &to, 10_050, run) }.unwrap();
        assert_eq!(report.blocks, 101);
        assert!(report.fast_blocks > 0, "{report:?}");
        for (number, value) in output.chunks(5).enumerate() {
            let number = number.to_le_bytes();
            assert_eq!(value, [3, number[0], number[1], 7, 7]);
        }
    }
}

#[test]
fn arrays_that_cannot_be_computed_in_blocks_are_refused() {
    let world = world(PROMPT, 1, 64, 22);
    let mut memory = fast(1 << 16);
    let buffers = memory.as_ptr().cast::<u8>();
    let mut stream = raw(StreamResults::InPlace, &mut memory);
    let mut array = vec![0u8; 1000];
    let (start, end) = (array.as_mut_ptr(), array.as_mut_ptr().wrapping_add(500));
    let mut refused = |inputs: [*const u8; 2], output, length| {
        // SAFETY: refused before anything is accessed, or of no element.
        let run = unsafe { stream.run(&world.mover, &inputs, &[output], length, |_| {}) };
        run.err().map(|error| error.to_string())
    };
    let told = |text: &str| Some(text.to_owned());
    let overlaps = told("output 0 overlaps input 1");
    assert_eq!(refused([end, start], start, 1), overlaps);
    assert_eq!(refused([end, start], start.wrapping_add(2), 1), overlaps);
    // Inputs may, and neighbours do not.
    assert_eq!(refused([start, start], end, 100), None);
    assert_eq!(refused([end, start], start, 0), None);
    let fast = told("input 0 overlaps fast memory");
    assert_eq!(refused([buffers.wrapping_add(640), start], end, 9), fast);
    let leaves = told("input 0 leaves the address space");
    assert_eq!(refused([start, start], end, usize::MAX / 3), leaves);
    assert_eq!(refused([start, start], end, usize::MAX), leaves);
    let last = std::ptr::without_provenance(usize::MAX - 1);
    assert_eq!(refused([last, start], end, 1), leaves);
    let none = ArrayKind::of::<u8>(0);
    let memory: *mut [Uninit] = &raw mut memory[..];
    for (inputs, outputs) in [(none, none), (ArrayKind::of::<()>(1), none)] {
        let made = RawStream::new(memory, inputs, outputs, settings(9, 1, Adapt::Always));
        assert!(matches!(made, Err(StreamError::Arrays)));
    }
}

#[test]
fn a_stream_tells_how_much_fast_memory_it_needs() {
    let (inputs, outputs) = (ArrayKind::of::<f64>(2), ArrayKind::of::<f64>(1));
    for (buffers, cache_bytes, count) in [(4, 0, 4), (4, 64 << 10, 10)] {
        let settings = StreamSettings {
            buffers,
            cache_bytes,
            ..settings(512, 1, Adapt::Always)
        };
        let bytes = RawStream::fast_bytes(inputs, outputs, &settings).unwrap();
        assert!(bytes <= count * 8192 + 64);
        let mut memory = fast(bytes);
        let stream = RawStream::new(&raw mut memory[..], inputs, outputs, settings).unwrap();
        assert_eq!(stream.buffer_count(), count);
    }
    let absurd = settings(usize::MAX, 1, Adapt::Always);
    let refused = RawStream::fast_bytes(inputs, outputs, &absurd);
    assert!(matches!(refused, Err(StreamError::NoBuffers { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn whatever_the_backend_does_every_block_is_computed_once(
        seed: u64,
        delay_us in prop_oneof![Just(0u64), 1..20u64, 20..300u64],
        fails in 0..40u64,
        refuses in 0..40u64,
        panics in 0..20u64,
        workers in 1..4usize,
        capacity in prop_oneof![2..12u16, Just(64u16)],
        threads in 1..4usize,
        whole: bool,
        results in 0..3usize,
        measured: bool,
        block in 1..300usize,
        blocks in 0..60usize,
        rest in 0..300usize,
    ) {
        let habits = Habits { delay_us, fails, refuses, panics };
        let world = world(habits, workers, capacity, seed);
        let settings = StreamSettings {
            sharing: if whole { TeamSharing::Whole } else { TeamSharing::Together },
            results: [StreamResults::InPlace, StreamResults::Fast, StreamResults::FastUpdated][results],
            ..settings(block, threads, if measured { Adapt::Measure } else { Adapt::Always })
        };
        check(&world, &settings, block * blocks + rest % block, 2);
    }
}
