//! Regions over several caches: CPUs stand for caches here. One test at a time, apart from those that take all CPUs.

use hither_linux::sys;
use hither_regions::{Domain, Error, RegionUse, Unified, UnifyState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What takes the CPUs for milliseconds makes a trial say no. So many of them are made until one says yes.
const TRIALS: usize = 10;

fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two CPUs as two caches of a megabyte, the calling thread on the first; `None` on a machine with one CPU.
fn two_caches() -> Option<Vec<Domain>> {
    let cpus: Vec<_> = sys::allowed_cpus().unwrap().iter().take(2).collect();
    sys::stay_on(&cpus.first().copied().into_iter().collect()).unwrap();
    let domain = |cpu| Domain::of_cpus([cpu]).unwrap().with_cache_bytes(1 << 20);
    (cpus.len() == 2).then(|| cpus.into_iter().map(domain).collect())
}

fn thread() -> std::thread::ThreadId {
    std::thread::current().id()
}

#[test]
fn visits_go_where_they_are_asked_to() {
    let _alone = alone();
    let Some(caches) = two_caches() else { return };
    let unified = Unified::new(caches, &[1000, 1000]).unwrap();
    // They fit one cache.
    assert_eq!(unified.state().reason.word(), "fit-one");
    let here = thread();
    let places = || [0, 1].map(|region| unified.run(region, || thread() == here));
    assert_eq!(places(), [true, true]);
    unified.set_use(RegionUse::Always);
    // The first region's cache is the caller's.
    assert_eq!(places(), [true, false]);
    assert!(unified.state().is_on);
    unified.set_use(RegionUse::Never);
    assert_eq!(places(), [true, true]);
    let mut sum = 0;
    unified.set_use(RegionUse::Always);
    for value in 1..=1000 {
        unified.run(value % 2, || sum += value);
    }
    assert_eq!(sum, 500_500);
}

/// Until something is decided. The first region's visits take no time, the second's so many ms.
fn settle(unified: &Unified, in_place: u64, handed_over: u64) -> UnifyState {
    let here = thread();
    for _ in 0..1000 {
        let state = unified.state();
        if state.is_settled {
            return state;
        }
        unified.run(0, || ());
        unified.run(1, || {
            let ms = match thread() == here {
                true => in_place,
                false => handed_over,
            };
            std::thread::sleep(Duration::from_millis(ms));
        });
    }
    panic!("nothing is decided: {:?}", unified.state());
}

#[test]
fn it_is_turned_on_where_hand_overs_are_faster_and_off_where_they_are_not() {
    let _alone = alone();
    let Some(caches) = two_caches() else { return };
    let new = || Unified::new(caches.clone(), &[1 << 19, 1 << 19]).unwrap();
    let here = thread();
    let faster = (0..TRIALS).find_map(|_| {
        let unified = new();
        settle(&unified, 20, 1).is_on.then_some(unified)
    });
    let faster = faster.expect("it gains, and is never turned on");
    let state = faster.state();
    assert_eq!(state.reason.word(), "gained", "{state:?}");
    assert!(state.visit_ns.is_some_and(|ns| ns > 5e6), "{state:?}");
    assert!(state.cost_ns.is_some_and(|ns| ns > 0.0), "{state:?}");
    assert!(faster.run(1, || thread() != here));
    // What no cache holds is not tried.
    faster.declare(0, 2 << 20);
    assert_eq!(faster.state().reason.word(), "too-large");
    assert!(faster.run(1, || thread() == here));
    let slower = new();
    let state = settle(&slower, 5, 10);
    let words = ["nothing-gained", "too-short"];
    assert!(words.contains(&state.reason.word()), "{state:?}");
    assert!(!state.is_on && slower.run(1, || thread() == here));
}

#[test]
fn short_visits_are_left_alone() {
    let _alone = alone();
    let Some(caches) = two_caches() else { return };
    let unified = Unified::new(caches, &[1 << 19, 1 << 19]).unwrap();
    let mut visits = 0u64;
    while !unified.state().is_settled {
        for region in [0, 1] {
            unified.run(region, || visits += 1);
        }
    }
    let state = unified.state();
    // A program that took the CPU in a window makes its visits look longer, and the trial says the same.
    let words = ["too-short", "nothing-gained"];
    assert!(words.contains(&state.reason.word()), "{state:?}");
    assert!(!state.is_on);
    let before = visits;
    for region in 0..1000 {
        unified.run(region % 2, || visits += 1);
    }
    assert_eq!(visits, before + 1000);
}

#[test]
fn several_threads_may_visit_while_it_decides() {
    let _alone = alone();
    let Some(caches) = two_caches() else { return };
    let unified = Unified::new(caches, &[1 << 19, 1 << 19]).unwrap();
    let done: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut done = 0;
                    for turn in 0..20_000 {
                        done += unified.run(turn % 2, || std::hint::black_box(1));
                    }
                    done
                })
            })
            .collect();
        unified.declare(1, (1 << 19) + 1);
        unified.set_use(RegionUse::Always);
        unified.set_use(RegionUse::Auto);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(done, 80_000);
}

#[test]
fn a_cache_without_a_size_and_no_regions_are_refused() {
    let said = |outcome: Result<Unified, Error>| outcome.unwrap_err().to_string();
    let cpus: Vec<_> = sys::allowed_cpus().unwrap().iter().collect();
    let domain = Domain::of_cpus(cpus).unwrap();
    let size = said(Unified::new(vec![domain.clone()], &[1]));
    assert!(size.contains("with_cache_bytes"), "{size}");
    let none = said(Unified::new(vec![domain.clone()], &[]));
    assert!(none.contains("declare one"), "{none}");
    let one = Unified::new(vec![domain.with_cache_bytes(1)], &[5, 5]).unwrap();
    assert_eq!(one.state().reason.word(), "one-cache");
    one.set_use(RegionUse::Always);
    assert!(!one.state().is_on);
    assert_eq!(one.run(1, || 3), 3);
}
