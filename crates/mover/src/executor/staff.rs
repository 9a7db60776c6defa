//! How many movers work, and on which CPUs they and the loop that decides run.
//!
//! Problem: a thread that is kept on one CPU cannot give way. Who moves pages there takes its time from
//! it, and from all that wait for it at a barrier: 40 ms of moving cost 5 to 7 % of a run in which
//! eight threads on eight CPUs waited for each other.
//!
//! Terms: a CPU is *held* where threads are kept on it: there are sets of CPUs that as many threads as
//! they have CPUs, or more, may not leave. Threads that may go anywhere hold nothing: the kernel
//! moves them out of the way.
//!
//! Rules: own threads stay off held CPUs. There are as many movers as CPUs without work, and one at
//! least. Where every CPU is held, somebody has to wait: own threads go round from turn to turn, so
//! that none waits for all of it, and one mover works. Where no CPU is left without work beside those
//! of the movers, the thread that decides gives way to them: a mover that loses its CPU to it for two
//! slices of the kernel's, 8 ms, has taken pages away that somebody may wait for.

use hither_core::ids::CpuId;
use hither_core::set::CpuSet;

/// Who works where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Staff {
    /// CPUs of each mover: [`super::Executor::place`].
    pub movers: Vec<Vec<CpuId>>,
    /// CPUs of the thread that decides.
    pub decider: Vec<CpuId>,
    /// Movers go before it.
    pub decider_gives_way: bool,
}

/// What is known for it.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// CPUs that hither may use.
    pub own: &'a CpuSet,
    /// CPUs of them that are held.
    pub held: &'a CpuSet,
    /// CPUs without work, estimated, of those that are not held.
    pub idle_cpus: f64,
    /// Most movers.
    pub most: usize,
    /// Grows by one each time.
    pub turn: usize,
}

/// Says who works where.
#[must_use]
pub fn staff(known: &Known<'_>) -> Staff {
    let free: Vec<CpuId> = known.own.difference(known.held).iter().collect();
    if free.is_empty() {
        let own: Vec<CpuId> = known.own.iter().collect();
        let nth = |at: usize| match own.is_empty() {
            true => Vec::new(),
            false => vec![own[at % own.len()]],
        };
        return Staff {
            movers: vec![nth(2 * known.turn)],
            decider: nth(2 * known.turn + 1),
            // Of an odd number the next seat may be where a slice still goes on.
            decider_gives_way: own.len() % 2 == 1,
        };
    }
    let idle_cpus = known.idle_cpus.clamp(0.0, free.len() as f64);
    let count = (idle_cpus as usize).min(known.most).max(1);
    Staff {
        movers: vec![free.clone(); count],
        decider: free,
        decider_gives_way: idle_cpus < count as f64 + 1.0,
    }
}

/// CPUs that are held, of what each thread may use: by threads that may not go wherever hither may.
#[must_use]
pub fn held(own: &CpuSet, threads: impl IntoIterator<Item = CpuSet>) -> CpuSet {
    let mut kept: Vec<(CpuSet, usize)> = Vec::new();
    for set in threads {
        match kept.iter_mut().find(|(known, _)| *known == set) {
            Some((_, count)) => *count += 1,
            None if own.is_subset(&set) => {}
            None => kept.push((set, 1)),
        }
    }
    let mut held = CpuSet::new();
    for (set, _) in &kept {
        let within = kept.iter().filter(|(other, _)| other.is_subset(set));
        if within.map(|(_, count)| count).sum::<usize>() >= set.len() {
            held = held.union(set);
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn told(own: &str, threads: &[&str], idle_cpus: f64, turn: usize) -> (String, Vec<String>) {
        let own = set(own);
        let held = held(&own, threads.iter().map(|text| set(text)));
        let staff = staff(&Known {
            own: &own,
            held: &held,
            idle_cpus,
            most: 3,
            turn,
        });
        let list = |cpus: &Vec<CpuId>| cpus.iter().copied().collect::<CpuSet>().to_string();
        (
            list(&staff.decider),
            staff.movers.iter().map(list).collect(),
        )
    }

    #[test]
    fn own_threads_keep_off_cpus_where_others_are_kept() {
        // Two threads on a CPU each; a third may go anywhere.
        let (decider, movers) = told("0-7", &["0", "2", "0-7"], 5.0, 0);
        assert_eq!(decider, "1,3-7");
        assert_eq!(movers, ["1,3-7"; 3]);
        // Three threads on four CPUs leave one to the kernel's choice; four hold all of them.
        assert_eq!(told("0-7", &["0-3"; 3], 5.0, 0).0, "0-7");
        assert_eq!(told("0-7", &["0-3"; 4], 4.0, 0).0, "4-7");
        // One on a CPU of a set, and one that may use all of a set of two: both are held.
        assert_eq!(told("0-3", &["0", "0-1"], 2.0, 0).0, "2-3");
    }

    #[test]
    fn there_are_as_many_movers_as_cpus_without_work_and_one_at_least() {
        assert_eq!(told("0-7", &[], 0.4, 0).1, ["0-7"]);
        assert_eq!(told("0-7", &[], 2.9, 0).1.len(), 2);
        assert_eq!(told("0-7", &[], 8.0, 0).1.len(), 3);
        assert_eq!(told("0-7", &["0-6"; 7], 8.0, 0).1, ["7"]);
    }

    #[test]
    fn who_decides_gives_way_where_movers_have_the_last_cpus_without_work() {
        let gives_way = |own: &str, held: &str, idle_cpus| {
            let known = Known {
                own: &set(own),
                held: &set(held),
                idle_cpus,
                most: 3,
                turn: 0,
            };
            staff(&known).decider_gives_way
        };
        assert!(gives_way("0-3", "0-2", 3.5), "one mover and no other CPU");
        assert!(
            gives_way("0-3", "0-1", 1.9),
            "one mover, and another works there"
        );
        assert!(!gives_way("0-3", "", 4.0), "three movers, and one CPU more");
        assert!(!gives_way("0-3", "0-3", 0.0), "they take turns");
        assert!(
            gives_way("2", "2", 0.0) && gives_way("2", "", 0.0),
            "there is one CPU"
        );
    }

    #[test]
    fn where_all_cpus_are_held_own_work_goes_round() {
        let threads = ["0", "1", "2", "3"];
        let turns: Vec<_> = (0..3)
            .map(|turn| told("0-3", &threads, 0.0, turn))
            .collect();
        let expected = [("1", "0"), ("3", "2"), ("1", "0")];
        let expected = expected.map(|(d, m)| (d.to_owned(), vec![m.to_owned()]));
        assert_eq!(turns, expected);
        assert_eq!(told("", &[], 0.0, 0), (String::new(), vec![String::new()]));
    }
}
