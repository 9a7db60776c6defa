//! The queue against a world of our own, and the movers over it.

use super::*;
use crate::backend::{Action, Job, OutcomeBuilder, Unavailable};
use hither_core::ids::{NodeId, Pid, SpaceId};
use hither_core::snapshot::PAGE_BYTES;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Nodes with so much memory, and processes whose pages take so long each.
#[derive(Clone, Debug, Default)]
struct World {
    free: BTreeMap<NodeId, u64>,
    ns_per_page: BTreeMap<Pid, u64>,
    gone: BTreeSet<Pid>,
    /// Each so many pages one is busy; 0: none.
    busy_every: u64,
    at: BTreeMap<(Pid, u64), NodeId>,
    tried: Vec<(Pid, u64)>,
    slices: Vec<u64>,
}

impl World {
    fn job(&mut self, job: &Job<'_>) -> Outcome {
        let Action::Migrate { pages, to } = &job.action else {
            panic!("nobody asked for that");
        };
        let mut builder = OutcomeBuilder::new(job);
        for page in pages.iter() {
            self.tried.push((job.pid, page));
            let free = self.free.get(to).copied();
            let is_busy = self.busy_every > 0 && page % self.busy_every == 0;
            if self.gone.contains(&job.pid) {
                builder.refused(Refusal::ProcessGone);
            } else if self.at.get(&(job.pid, page)) == Some(to) {
                builder.already_there();
            } else if is_busy {
                builder.refused(Refusal::Busy);
            } else if free == Some(0) {
                builder.refused_page(page, Refusal::NoMemory);
            } else {
                self.at.insert((job.pid, page), *to);
                self.free.entry(*to).and_modify(|free| *free -= 1);
                builder.moved(page);
            }
        }
        let per_page = self.ns_per_page.get(&job.pid).copied().unwrap_or(1000);
        builder.took(pages.count() * per_page);
        builder.finish()
    }
}

impl Backend for World {
    fn name(&self) -> &'static str {
        "world"
    }
    fn probe(&self) -> Result<(), Unavailable> {
        Ok(())
    }
    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        self.slices.push(jobs.iter().map(Job::page_count).sum());
        jobs.iter().map(|job| self.job(job)).collect()
    }
}

fn task(id: u64, pid: i32, pages: Range<u64>, to: &[u32]) -> Task {
    Task {
        id,
        pid: Pid(pid),
        space: SpaceId(0),
        pages: vec![pages],
        to: to.iter().copied().map(NodeId).collect(),
    }
}

fn queue(tasks: Vec<Task>) -> Queue {
    let mut queue = Queue::new(Limits::default(), 0);
    for task in tasks {
        queue.submit(task).unwrap();
    }
    queue
}

fn run(queue: &mut Queue, world: &mut World) -> BTreeMap<u64, Outcome> {
    while queue.step(world, 0, &mut |_, _| {}) == ExecutorStep::Done {}
    queue.take_finished().into_iter().collect()
}

#[test]
fn small_tasks_of_a_process_share_a_slice_and_large_ones_are_cut() {
    let mut queue = queue(vec![
        task(1, 7, 0..10, &[1]),
        task(2, 7, 100..130, &[2]),
        task(3, 7, 1000..41_000, &[1]),
    ]);
    let mut world = World::default();
    let done = run(&mut queue, &mut world);
    // 40 and 16,344 pages to 16,384; the last boundary before page 17,344 is 16,896.
    assert_eq!(world.slices, [40 + 15_896, 16_384, 7720]);
    assert_eq!(done[&3].moved.len(), 40_000);
    assert_eq!(done[&2].moved, (100..130).collect::<Vec<u64>>());
    assert_eq!(queue.task_count(), 0);
}

#[test]
fn what_a_full_node_refuses_goes_to_the_next() {
    let mut queue = queue(vec![task(1, 7, 0..2000, &[2, 5])]);
    let mut world = World {
        free: BTreeMap::from([(NodeId(2), 700), (NodeId(5), 1000)]),
        busy_every: 1999,
        ..World::default()
    };
    let done = run(&mut queue, &mut world);
    assert_eq!(done[&1].moved.len(), 1700);
    // Pages 0 and 1999 are busy: tried once, as nobody says that another node would do.
    assert_eq!(
        done[&1].refused,
        [(Refusal::Busy, 2), (Refusal::NoMemory, 298)]
    );
    assert_eq!(world.slices, [2000, 1298]);
}

#[test]
fn a_node_takes_whole_huge_pages_while_it_has_room() {
    let mut queue = queue(vec![task(1, 7, 0..3000, &[2, 5])]);
    queue.set_room(NodeId(2), 1300);
    let mut world = World::default();
    run(&mut queue, &mut world);
    let on_first = world.at.values().filter(|node| node.0 == 2).count();
    assert_eq!(on_first, 1024);
}

#[test]
fn the_process_that_used_least_time_is_next() {
    // Pages of the first take a hundred times as long. With slices of 512 pages the second gets all
    // of its 60 slices in the time of one or two of the first.
    let mut queue = Queue::new(
        Limits {
            slice_pages: 512,
            ..Limits::default()
        },
        0,
    );
    queue.submit(task(1, 1, 0..51_200, &[1])).unwrap();
    queue.submit(task(2, 2, 0..30_720, &[1])).unwrap();
    let mut world = World {
        ns_per_page: BTreeMap::from([(Pid(1), 100_000), (Pid(2), 1000)]),
        ..World::default()
    };
    let mut order = Vec::new();
    for _ in 0..62 {
        queue.step(&mut world, 0, &mut |slice, _| order.push(slice.pid.0));
    }
    assert!(order.iter().filter(|&&pid| pid == 1).count() <= 2);
    // Who comes later does not catch up on the time before it came.
    queue.submit(task(3, 3, 0..51_200, &[1])).unwrap();
    queue.submit(task(4, 4, 0..51_200, &[1])).unwrap();
    order.clear();
    for _ in 0..40 {
        queue.step(&mut world, 0, &mut |slice, _| order.push(slice.pid.0));
    }
    let served = |pid| order.iter().filter(|&&served| served == pid).count();
    assert!(served(3).abs_diff(served(4)) <= 1, "{order:?}");
}

#[test]
fn a_process_with_slices_on_their_way_leaves_the_next_mover_to_others() {
    let mut queue = queue(vec![
        task(1, 1, 0..100_000, &[1]),
        task(2, 2, 0..100_000, &[1]),
    ]);
    let pids: Vec<i32> = (0..4)
        .map(|_| match queue.next(0) {
            Next::Slice(slice) => slice.pid.0,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(pids, [1, 2, 1, 2]);
}

#[test]
fn of_a_process_that_is_gone_the_rest_is_dropped() {
    let mut queue = queue(vec![
        task(1, 1, 0..40_000, &[1]),
        task(2, 1, 50_000..50_010, &[1]),
        task(3, 2, 0..10, &[1]),
    ]);
    let mut world = World::default();
    world.gone.insert(Pid(1));
    let done = run(&mut queue, &mut world);
    assert_eq!(
        done[&1].refused,
        [
            (Refusal::ProcessGone, 16_384),
            (Refusal::Dropped, 40_000 - 16_384)
        ]
    );
    assert_eq!(done[&2].refused, [(Refusal::Dropped, 10)]);
    assert_eq!(done[&3].moved.len(), 10);
}

#[test]
fn a_full_queue_gives_the_task_back_and_an_empty_task_is_done() {
    let limits = Limits {
        tasks: 1,
        ..Limits::default()
    };
    let mut queue = Queue::new(limits, 0);
    queue.submit(task(9, 1, 5..5, &[1])).unwrap();
    assert_eq!(queue.take_finished(), [(9, Outcome::default())]);
    queue.submit(task(1, 1, 0..5, &[1])).unwrap();
    let second = task(2, 1, 0..5, &[1]);
    assert_eq!(queue.submit(second.clone()), Err(second));
}

/// What a test asks of the queue.
#[derive(Clone, Debug)]
enum Deed {
    Submit {
        pid: i32,
        first: u64,
        count: u64,
        to: Vec<u32>,
    },
    Begin,
    End(usize),
    Pass(u64),
    Cancel(i32),
    Room(u32, u64),
    Gone(i32),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let submit = (
        0..4i32,
        0..5000u64,
        0..4000u64,
        prop::collection::vec(0..3u32, 1..4),
    );
    let submit = submit.prop_map(|(pid, first, count, to)| Deed::Submit {
        pid,
        first,
        count,
        to,
    });
    let deed = prop_oneof![
        4 => submit,
        8 => Just(Deed::Begin),
        8 => (0..4usize).prop_map(Deed::End),
        4 => (0..2_000_000_000u64).prop_map(Deed::Pass),
        1 => (0..4i32).prop_map(Deed::Cancel),
        1 => (0..3u32, 0..5000u64).prop_map(|(node, pages)| Deed::Room(node, pages)),
        1 => (0..4i32).prop_map(Deed::Gone),
    ];
    prop::collection::vec(deed, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is asked, in whatever order slices end: every page of every task is accounted for
    /// once; nothing is handed out twice at a time, nor after its task was cancelled; the rate holds
    /// over every window; all ends.
    #[test]
    fn nothing_is_lost_and_the_rate_holds(
        deeds in deeds(),
        rate in prop::option::of(1u64 << 20..1 << 30),
        free in prop::collection::vec(0..6000u64, 3),
    ) {
        let limits = Limits::with_rate(rate);
        let slice_bytes = limits.slice_pages * PAGE_BYTES;
        let mut queue = Queue::new(limits, 0);
        let mut world = World {
            free: (0..).map(NodeId).zip(free).collect(),
            busy_every: 97,
            ..World::default()
        };
        let (mut now_ns, mut id) = (0u64, 0);
        let mut asked: BTreeMap<u64, u64> = BTreeMap::new();
        let mut flying: Vec<(Slice, u64, u64, u64)> = Vec::new();
        let mut cancelled: BTreeSet<u64> = BTreeSet::new();
        let mut done: BTreeMap<u64, Outcome> = BTreeMap::new();
        // In the order of handing out: when, how many bytes moved of it, and slices on their way then.
        let mut passed: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
        let mut handed_out = 0;
        let finish = Deed::End(0);
        // Afterwards everything is let go to its end.
        let rest = std::iter::repeat_with(|| [Deed::Pass(1 << 40), Deed::Begin, finish.clone()]);
        let rest = rest.take(4000).flatten();
        for deed in deeds.into_iter().chain(rest) {
            match deed {
                Deed::Submit { pid, first, count, to } => {
                    id += 1;
                    asked.insert(id, count);
                    queue.submit(task(id, pid, first..first + count, &to)).unwrap();
                }
                Deed::Begin => match queue.next(now_ns) {
                    Next::Slice(slice) => {
                        prop_assert!(slice.page_count() > 0);
                        prop_assert!(slice.page_count() * PAGE_BYTES <= slice_bytes);
                        let ids = slice.parts.iter().map(|part| part.task);
                        prop_assert!(ids.clone().all(|id| !cancelled.contains(&id)));
                        prop_assert!(ids.clone().all(|id| !done.contains_key(&id)));
                        for (other, ..) in flying.iter().filter(|(f, ..)| f.pid == slice.pid) {
                            for part in &slice.parts {
                                let same = other.parts.iter().filter(|p| p.task == part.task);
                                let pages: BTreeSet<u64> = same.flat_map(|p| p.pages.clone()).collect();
                                prop_assert!(part.pages.iter().all(|p| !pages.contains(p)));
                            }
                        }
                        let before = flying.len() as u64;
                        handed_out += 1;
                        flying.push((slice, handed_out, now_ns, before));
                    }
                    Next::Wait(wait_ns) => prop_assert!(wait_ns > 0 && rate.is_some()),
                    Next::Busy => prop_assert!(!flying.is_empty()),
                    Next::Idle => prop_assert!(flying.is_empty()),
                },
                Deed::End(which) if !flying.is_empty() => {
                    let (slice, number, begun_ns, before) = flying.remove(which % flying.len());
                    let outcomes = world.execute(&slice.jobs());
                    let moved: usize = outcomes.iter().map(|o| o.moved.len()).sum();
                    passed.insert(number, (begun_ns, moved as u64 * PAGE_BYTES, before));
                    queue.done(slice, outcomes);
                }
                Deed::End(_) => {}
                Deed::Pass(ns) => now_ns += ns,
                Deed::Cancel(pid) => {
                    queue.cancel(|ticket| {
                        let is_meant = ticket.pid == Pid(pid);
                        if is_meant {
                            cancelled.insert(ticket.id);
                        }
                        is_meant
                    });
                }
                Deed::Room(node, pages) => queue.set_room(NodeId(node), pages),
                Deed::Gone(pid) => {
                    world.gone.insert(Pid(pid));
                }
            }
            for (id, outcome) in queue.take_finished() {
                prop_assert_eq!(outcome.page_count(), asked[&id], "task {}: {:?}", id, outcome);
                prop_assert!(outcome.moved.is_sorted());
                prop_assert!(done.insert(id, outcome).is_none(), "task {} ended twice", id);
            }
            if queue.task_count() == 0 && now_ns >= 1 << 40 {
                break;
            }
        }
        prop_assert_eq!(done.len(), asked.len(), "all tasks end");
        prop_assert_eq!(queue.page_count(), 0);
        if let Some(rate) = rate {
            let passed: Vec<_> = passed.into_values().collect();
            for (at, &(from_ns, _, before)) in passed.iter().enumerate().step_by(7) {
                let mut bytes = 0;
                for &(until_ns, more, _) in &passed[at..] {
                    bytes += more;
                    let ns = u128::from(until_ns - from_ns);
                    // The bucket's content, a slice beyond it, and what slices from before the
                    // window gave back within it, as their pages had stayed.
                    let allowed = u128::from(rate) * ns / 1_000_000_000
                        + u128::from(rate) / 10 + u128::from(slice_bytes) * u128::from(before + 1) + 1;
                    prop_assert!(u128::from(bytes) <= allowed, "{} of {}", bytes, allowed);
                }
            }
        }
    }
}

/// Takes its time, and counts how many do at once.
struct Slow {
    at_once: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    panics: bool,
}

impl Backend for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }
    fn probe(&self) -> Result<(), Unavailable> {
        Ok(())
    }
    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        assert!(!self.panics, "a backend that panics");
        let now = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(2));
        self.at_once.fetch_sub(1, Ordering::SeqCst);
        let all = |job: &Job<'_>| {
            let mut builder = OutcomeBuilder::new(job);
            if let Action::Migrate { pages, .. } = &job.action {
                pages.iter().for_each(|page| builder.moved(page));
            }
            builder.finish()
        };
        jobs.iter().map(all).collect()
    }
}

fn executor(movers: usize, mut panics: usize) -> (Executor, Arc<AtomicUsize>) {
    let (at_once, most) = (Arc::default(), Arc::<AtomicUsize>::default());
    let told = Arc::clone(&most);
    let limits = Limits {
        slice_pages: 512,
        ..Limits::default()
    };
    let factory = move |_| {
        let is_bad = panics > 0;
        panics = panics.saturating_sub(1);
        Box::new(Slow {
            at_once: Arc::clone(&at_once),
            most: Arc::clone(&most),
            panics: is_bad,
        }) as Box<dyn Backend + Send>
    };
    (
        Executor::start(limits, movers, Box::new(factory)).unwrap(),
        told,
    )
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn movers_work_beside_whoever_asks() {
    let (executor, most) = executor(3, 0);
    let tasks = (0..10).map(|id| task(id, id as i32 % 2, 0..2048, &[1]));
    assert!(executor.submit(tasks).is_empty());
    assert!(executor.wait(LONG));
    let done: BTreeMap<u64, Outcome> = executor.collect().into_iter().collect();
    assert_eq!(done.len(), 10);
    assert!(done.values().all(|outcome| outcome.moved.len() == 2048));
    assert!((2..=3).contains(&most.load(Ordering::SeqCst)));
    assert_eq!((executor.left(), executor.fault_count()), ((0, 0), 0));
}

#[test]
fn who_rests_takes_nothing_and_closing_leaves_nothing_behind() {
    let (executor, most) = executor(2, 0);
    executor.place(Vec::new());
    executor.submit([task(1, 1, 0..51_200, &[1])]);
    assert!(!executor.wait(Duration::from_millis(20)));
    assert_eq!(executor.left(), (1, 51_200));
    // One of the two, on the CPUs that it has.
    executor.place(vec![Vec::new()]);
    while executor.left().1 == 51_200 {
        std::thread::yield_now();
    }
    let done = executor.close();
    assert_eq!(most.load(Ordering::SeqCst), 1);
    let [(1, outcome)] = &done[..] else {
        panic!("{done:?}")
    };
    assert_eq!(outcome.page_count(), 51_200);
    let [(Refusal::Dropped, dropped)] = outcome.refused[..] else {
        panic!("{:?}", outcome.refused)
    };
    assert_eq!(dropped + outcome.moved.len() as u64, 51_200);
    assert!(!outcome.moved.is_empty());
}

#[test]
fn a_cancelled_task_ends_and_the_others_go_on() {
    let (executor, _) = executor(1, 0);
    executor.submit([task(1, 1, 0..512_000, &[1]), task(2, 2, 0..1024, &[1])]);
    executor.cancel(|ticket| ticket.pid == Pid(1));
    assert!(executor.wait(LONG));
    let done: BTreeMap<u64, Outcome> = executor.collect().into_iter().collect();
    assert_eq!(done[&1].page_count(), 512_000);
    assert_eq!(done[&2].moved.len(), 1024);
}

#[test]
fn a_backend_that_panics_is_replaced_and_its_pages_are_busy() {
    let (executor, _) = executor(1, 1);
    executor.submit([task(1, 1, 0..1024, &[1])]);
    assert!(executor.wait(LONG));
    let (_, outcome) = executor.collect().remove(0);
    assert_eq!(outcome.refused, [(Refusal::Busy, 512)]);
    assert_eq!((outcome.moved.len(), executor.fault_count()), (512, 1));
}
