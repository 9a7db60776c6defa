//! Leaving a program as it was found: where nothing is to be gained, pages go back that the kernel moved in the faults that
//! hither watches by.
//!
//! The kernel moves a page at its first hint faults to whoever touched it first. Of data that all nodes read that is a
//! lottery, in which all of it may come to one node: `cg`, whose vector is such data, once took 22 % longer after a look that found
//! nothing to do (that this was why is inferred: other runs, in which as many pages moved, took 2 to 4 % longer).
//! What is used by one node is fetched by its policy, or was moved to where it belongs: where the kernel moved much
//! of what was seen, nothing is put back.

use super::Turn;
use super::revert::Undo;
use super::scope::Scope;
use crate::plan::MoveRequest;
use crate::policy::PolicyActivity;
use crate::policy::carrefour::config::LOCAL;

/// Share of the pages seen that the kernel moved, above which they stay: as many were not local, so that Carrefour would have
/// brought pages to their users.
const MOST_MOVED: f64 = 1.0 - LOCAL;
/// Each time the next one is twice as far away, up to so many times: the kernel may move the pages again.
const MOST_DOUBLINGS: u32 = 10;

/// How far that is.
#[derive(Debug, Default)]
pub(super) struct Tidy {
    /// Pages go back.
    undo: Option<Undo>,
    /// Pages of samples, each as often as it was told.
    seen: u64,
    count: u32,
    /// Not again before this time.
    from_us: u64,
}

impl Tidy {
    /// Are pages on their way back?
    pub fn is_under_way(&self) -> bool {
        self.undo.is_some()
    }

    /// Those that wait.
    pub fn undo(&mut self) -> Option<&mut Undo> {
        self.undo.as_mut()
    }
}

impl Scope {
    /// Requests for such pages, while the policy has nothing to do.
    pub(super) fn tidy(
        &mut self,
        turn: &mut Turn<'_>,
        outlook: PolicyActivity,
    ) -> Vec<MoveRequest> {
        self.tidy.seen += turn.snapshot.pages.len() as u64;
        let is_wanted = matches!(outlook, PolicyActivity::Working | PolicyActivity::Pressed);
        let summary = &self.account.summary;
        if is_wanted
            || !summary.campaigns.is_empty()
            || !self.efficacy.is_idle()
            || self.undo.is_some()
            || self.is_paused
        {
            self.tidy.undo = None;
            return Vec::new();
        }
        let mut undo = match self.tidy.undo.take() {
            Some(undo) => undo,
            None => {
                // More are displaced where an earlier hither moved some.
                let displaced = self.ledger.displaced_count();
                let most = MOST_MOVED * self.tidy.seen as f64;
                let is_due = (1..=summary.kernel_pages).contains(&displaced)
                    && summary.kernel_pages as f64 <= most
                    && turn.now_us >= self.tidy.from_us
                    && self.attention.rests();
                if !is_due {
                    return Vec::new();
                }
                Undo::default()
            }
        };
        let due = undo.next(turn, &mut self.ledger);
        if undo.is_empty() && self.pending.is_empty() {
            let rest_us = turn.config.cooldown_us << self.tidy.count.min(MOST_DOUBLINGS);
            self.tidy.from_us = turn.now_us.saturating_add(rest_us);
            self.tidy.count += 1;
            // The only scope has no name.
            let of = match &*self.name() {
                "" => String::new(),
                name => format!(" for {name}"),
            };
            turn.note(format!(
                "nothing is to be gained{of}: of the pages that the kernel moved in the faults that hither watches by, \
                 {} are back",
                undo.page_count
            ));
            return Vec::new();
        }
        self.tidy.undo = Some(undo);
        let because =
            "the kernel moved it in a fault that hither watches by, and nothing is to be gained";
        self.ask_back(turn, 0, because, due)
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::world::{Loop, Pattern, World};
    use crate::policy;

    const PAGES: usize = 4096;

    /// A program whose pages are at hand, of which the kernel brings each of the first `count` to the first node, before and
    /// after so many steps.
    fn homes(count: usize, steps: usize) -> (Loop, Vec<usize>) {
        let mut world = World::new(Pattern::Striped, PAGES);
        world.place_well();
        let before = world.homes.clone();
        let elsewhere = (0..count).filter(|&page| before[page] != 0);
        world.kernel_moves = elsewhere.map(|page| (page, 0)).collect();
        let mut run = Loop::new(world, policy::by_name("carrefour").unwrap());
        run.run(steps);
        (run, before)
    }

    #[test]
    fn where_nothing_is_to_be_gained_all_is_as_it_was_found() {
        let (run, before) = homes(PAGES / 10, 60);
        assert!(run.world.kernel_moves.is_empty(), "all were seen");
        assert!(run.world.homes == before);
        let summary = run.summary();
        assert_eq!(summary.displaced_pages, 0, "{summary}");
        assert!(summary.kernel_pages > 0 && summary.campaigns.is_empty());
    }

    #[test]
    fn it_is_not_tidied_before_it_is_known_that_nothing_is_to_be_done() {
        let (run, before) = homes(PAGES / 10, 1);
        assert!(run.world.homes != before);
    }

    #[test]
    fn what_the_kernel_put_right_stays() {
        // Half of the pages were elsewhere, and are with their users now.
        let mut world = World::new(Pattern::Striped, PAGES);
        world.place_well();
        let after = world.homes.clone();
        for (page, &user) in after.iter().enumerate().take(PAGES / 2) {
            world.homes[page] = (user + 1) % 4;
            world.kernel_moves.insert(page, user);
        }
        let mut run = Loop::new(world, policy::by_name("none").unwrap());
        run.run(60);
        let world = &run.world;
        let seen = |page: &usize| !world.kernel_moves.contains_key(page);
        assert!((0..PAGES / 2).filter(seen).count() > PAGES / 3);
        let mut seen = (0..PAGES).filter(seen);
        assert!(seen.all(|page| world.homes[page] == after[page]));
    }
}
