//! Looks after a placed program while it runs: pins new threads, and looks where pages really go.

use hither_core::bind::KernelPolicy;
use hither_linux::bind::threads::Keeper;
use hither_linux::bind::whereabouts::{self, PolicyResidency};
use hither_linux::proc::tree::Tree;
use hither_linux::root::Root;
use hither_linux::sys;

/// Time to the first look at a program, in us; each next look is twice as far, up to the last.
const FIRST_LOOK_US: u64 = 50_000;
const LAST_LOOK_US: u64 = 10_000_000;
/// Of the time between looks one in so many parts is spent looking, at most.
const LOOK_SHARE: u64 = 100;
/// Time between two searches for new threads, in us.
const THREADS_US: u64 = 10_000;

/// Looks at the processes that there are, at a time in us; returns when it wants to do so again.
pub type UpkeepFn<'a> = Box<dyn FnMut(u64, &[i32]) -> u64 + 'a>;

/// Of the descendants of this process.
pub struct PlacementUpkeep<'a> {
    root: Root,
    tree: Tree,
    policy: Option<KernelPolicy>,
    keeper: Option<Keeper>,
    look: Option<UpkeepFn<'a>>,
    start_ns: u64,
    next_look_us: u64,
    attended: Attended,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Attended {
    /// The look with most pages; `None` where the program was gone before the first.
    pub seen: Option<PolicyResidency>,
    /// Looks that were taken.
    pub look_count: u64,
    /// Most threads that were kept on CPUs at once.
    pub kept_count: usize,
    /// Those that could not be.
    pub refused_count: usize,
}

impl<'a> PlacementUpkeep<'a> {
    /// `policy`: what pages are looked for, where it is known; `keeper`: who pins threads; `look`:
    /// who else wants to look at the processes.
    #[must_use]
    pub fn new(
        root: &Root,
        policy: Option<KernelPolicy>,
        keeper: Option<Keeper>,
        look: Option<UpkeepFn<'a>>,
    ) -> Self {
        Self {
            root: root.clone(),
            tree: Tree::new(root.clone(), std::process::id() as i32),
            // Without a policy to look for there is nothing to be seen.
            next_look_us: policy.as_ref().map_or(u64::MAX, |_| FIRST_LOOK_US),
            policy,
            keeper,
            look,
            start_ns: sys::monotonic_ns(),
            attended: Attended::default(),
        }
    }

    /// Places new threads, and looks at pages if it is time. Returns the time to sleep in us.
    pub fn turn(&mut self) -> u64 {
        let now_us = (sys::monotonic_ns() - self.start_ns) / 1000;
        // A tree that cannot be read now is read at the next turn.
        let _ = self.tree.refresh(now_us);
        let processes = self.tree.processes().iter();
        let pids: Vec<i32> = processes.map(|process| process.pid).collect();
        if let Some(keeper) = &mut self.keeper {
            keeper.turn(&self.root, pids.iter().copied());
        }
        let look = self.look.as_mut();
        let other_us = look.map_or(u64::MAX, |look| look(now_us, &pids));
        if now_us >= self.next_look_us {
            self.look_at_pages(now_us, pids);
        }
        match self.keeper {
            Some(_) => THREADS_US,
            None => {
                let next_us = self.next_look_us.min(other_us);
                next_us.saturating_sub(now_us).max(1000)
            }
        }
    }

    fn look_at_pages(&mut self, now_us: u64, pids: Vec<i32>) {
        let Some(policy) = &self.policy else {
            return;
        };
        let attended = &mut self.attended;
        let seen = whereabouts::look(&self.root, pids, policy);
        let most = attended
            .seen
            .as_ref()
            .map_or(0, PolicyResidency::page_count);
        if seen.page_count() >= most {
            attended.seen = Some(seen);
        }
        attended.look_count += 1;
        let then_us = (sys::monotonic_ns() - self.start_ns) / 1000;
        let pause_us = now_us
            .min(LAST_LOOK_US)
            .max(LOOK_SHARE * (then_us - now_us));
        self.next_look_us = then_us + pause_us;
    }

    /// What was seen.
    #[must_use]
    pub fn finish(mut self) -> Attended {
        if let Some(keeper) = &self.keeper {
            self.attended.kept_count = keeper.most_count();
            self.attended.refused_count = keeper.refused_count();
        }
        self.attended
    }
}
