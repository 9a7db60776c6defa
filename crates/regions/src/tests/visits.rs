//! Visits through the interface: results, borrows, panics, nesting, endings.

use crate::{Config, Domain, Error, Region};
use hither_core::ids::CpuId;
use hither_linux::sys;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The CPUs of this process, the lowest first.
fn cpus() -> Vec<CpuId> {
    sys::allowed_cpus().unwrap().iter().collect()
}

/// Regions on single CPUs, in turns: more than the machine has caches.
pub(super) fn regions(count: usize) -> Vec<Region> {
    let cpus = cpus();
    let domain = |index: usize| Domain::of_cpus([cpus[index % cpus.len()]]).unwrap();
    (0..count)
        .map(|index| Region::new(domain(index)).unwrap())
        .collect()
}

#[test]
fn a_visit_runs_on_the_domain_and_borrows() {
    for cpu in cpus() {
        let region = Region::new(Domain::of_cpus([cpu]).unwrap()).unwrap();
        let mut values = vec![1, 2, 3];
        let (here, own) = (std::thread::current().id(), Cell::new(5));
        let own = own.get();
        let (seen, thread, sum) = region.run(|| {
            values.push(own);
            let sum: i32 = values.iter().sum();
            let thread = std::thread::current().id();
            (sys::allowed_cpus().unwrap(), thread, sum)
        });
        assert_eq!(seen, [cpu].into_iter().collect());
        assert_ne!(thread, here);
        assert_eq!((sum, values.len()), (11, 4));
        assert_eq!(region.counts().visits, 1);
        assert!(!region.is_here() && region.run(|| region.is_here()));
    }
}

/// A bound thread makes regions elsewhere.
#[test]
fn a_bound_thread_visits_other_cpus() {
    for cpu in cpus() {
        for other in cpus() {
            std::thread::spawn(move || {
                sys::stay_on(&[cpu].into_iter().collect()).unwrap();
                let region = Region::new(Domain::of_cpus([other]).unwrap()).unwrap();
                let seen = region.run(|| sys::allowed_cpus().unwrap());
                assert!(seen.contains(other) && seen.len() == 1);
            })
            .join()
            .unwrap();
        }
    }
}

#[test]
fn every_cache_of_the_machine_is_a_domain() {
    let caches = Domain::caches().unwrap();
    assert!(!caches.is_empty());
    let all: usize = caches.iter().map(|domain| domain.cpus().len()).sum();
    assert_eq!(all, cpus().len(), "{caches:?}");
    for domain in caches {
        let again = Domain::of_set(&domain.to_string()).unwrap();
        assert_eq!(again.cpus(), domain.cpus());
        let region = Region::new(domain).unwrap();
        let seen = region.run(|| sys::allowed_cpus().unwrap());
        assert_eq!(&seen, region.domain().cpus());
    }
}

#[test]
fn what_has_no_meaning_is_refused_with_a_remedy() {
    let said = |error: Error| error.to_string();
    let none = said(Domain::of_cpus([]).unwrap_err());
    assert!(none.contains("name one"), "{none}");
    let some = [cpus()[0], CpuId(8191)];
    for (list, word) in [(&some[..], "leave them out"), (&some[1..], "name CPUs")] {
        let domain = Domain::of_cpus(list.iter().copied()).unwrap();
        let missing = said(Region::new(domain).unwrap_err());
        assert!(
            missing.contains("8191") && missing.contains(word),
            "{missing}"
        );
    }
    let node = said(Domain::of_node(hither_core::ids::NodeId(1023)).unwrap_err());
    assert!(node.contains("no node 1023"), "{node}");
    let memory = Domain::of_set("mem:0").map_or_else(said, |domain| domain.to_string());
    assert!(memory.contains("has no CPUs"), "{memory}");
    let config = Config {
        workers: 0,
        ..Config::default()
    };
    let domain = Domain::of_cpus(cpus()).unwrap();
    let workers = said(Region::with(domain, &config).unwrap_err());
    assert!(workers.contains("workers is 0"), "{workers}");
}

#[test]
fn a_panic_goes_on_in_the_caller_and_the_worker_lives() {
    let regions = regions(2);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        regions[0].run(|| regions[1].run(|| std::panic::panic_any(17)))
    }));
    assert_eq!(*caught.unwrap_err().downcast::<i32>().unwrap(), 17);
    assert_eq!(regions[1].run(|| regions[0].run(|| 4)), 4);
}

#[test]
fn the_same_region_runs_in_place_and_others_answer_meanwhile() {
    let regions = regions(3);
    let [one, two, three] = &regions[..] else {
        unreachable!()
    };
    let thread = || std::thread::current().id();
    let (outer, inner) = one.run(|| (thread(), one.run(thread)));
    assert_eq!(outer, inner);
    assert_eq!(one.counts().visits, 1);
    // Round and back to the first, whose worker waits beneath.
    let (first, back) = one.run(|| (thread(), two.run(|| three.run(|| one.run(thread)))));
    assert_eq!(first, back);
}

/// The depth of visits is that of calls.
#[test]
fn regions_call_each_other_deeply() {
    fn down(regions: &[Region], depth: usize) -> usize {
        match depth {
            0 => 0,
            _ => 1 + regions[depth % regions.len()].run(|| down(regions, depth - 1)),
        }
    }
    assert_eq!(down(&regions(3), 500), 500);
}

/// Threads that cross two regions from both sides, and a memory that only visits change.
#[test]
fn crossing_visits_end() {
    let regions = regions(2);
    // One worker each: visits need no lock.
    let counts = [AtomicU64::new(0), AtomicU64::new(0)];
    let add = |index: usize| {
        let value = counts[index].load(Ordering::Relaxed);
        counts[index].store(value + 1, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (regions, add) = (&regions, &add);
            scope.spawn(move || {
                let (one, two) = (thread % 2, 1 - thread % 2);
                for _ in 0..500 {
                    regions[one].run(|| {
                        add(one);
                        regions[two].run(|| add(two));
                    });
                }
            });
        }
    });
    assert_eq!(counts.map(AtomicU64::into_inner), [2000, 2000]);
}

#[test]
fn several_workers_answer_at_once() {
    let config = Config {
        workers: 3,
        ..Config::default()
    };
    let region = Region::with(Domain::of_cpus(cpus()).unwrap(), &config).unwrap();
    let barrier = std::sync::Barrier::new(3);
    // Three visits that wait for each other: none would end on fewer workers.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| region.run(|| barrier.wait()));
        }
    });
    assert_eq!(region.counts().visits, 3);
}

#[test]
fn long_visits_let_both_sides_sleep() {
    let region = &regions(1)[0];
    let before = sys::thread_cpu_ns();
    for _ in 0..5 {
        region.run(|| std::thread::sleep(Duration::from_millis(20)));
        std::thread::sleep(Duration::from_millis(5));
    }
    let spent = Duration::from_nanos(sys::thread_cpu_ns() - before);
    let counts = region.counts();
    assert!(counts.caller_sleeps >= 5, "{counts:?}");
    assert!(counts.worker_sleeps >= 4, "{counts:?}");
    assert!(spent < Duration::from_millis(20), "{spent:?}");
}

/// The last reference may go in another thread, or right after the last visit.
#[test]
fn regions_end_while_others_work() {
    let rest = Arc::new(Mutex::new(0));
    for round in 0..50 {
        let region = Arc::new(regions(1).remove(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (region, rest) = (Arc::clone(&region), Arc::clone(&rest));
                std::thread::spawn(move || {
                    region.run(|| *rest.lock().unwrap() += 1);
                    drop(region);
                })
            })
            .collect();
        drop(region);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*rest.lock().unwrap(), 3 * (round + 1));
    }
}

/// A region may be made, visited and dropped in a visit to another.
#[test]
fn a_region_ends_in_a_visit() {
    let outer = &regions(1)[0];
    let answer = outer.run(|| {
        let inner = regions(1).remove(0);
        inner.run(|| outer.run(|| 6))
    });
    assert_eq!(answer, 6);
}
