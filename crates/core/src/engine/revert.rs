//! Putting a harmful campaign's pages back to where the campaign found them.
//!
//! Reverts keep the capacity and rate budgets but not the cool-down. A page that is busy is tried
//! again a few times, as is one whose node is full; one that cannot go back is reported, not forgotten.

use super::efficacy::{MovedPage, Stage};
use super::{Engine, Pending, PendingPage};
use crate::explain::Event;
use crate::ids::{NodeId, Pid};
use crate::plan::{Mechanism, MoveRequest, Reason};
use crate::snapshot::{Evidence, Snapshot};
use std::collections::BTreeMap;

/// Pages that can go back in this step.
struct Due {
    campaign: u64,
    /// By process, node and number of the request.
    groups: BTreeMap<(Pid, NodeId, usize), Vec<PendingPage>>,
    /// Base pages in all groups.
    page_count: u64,
    /// Some page waits for rate or room.
    is_waiting: bool,
}

impl Engine {
    /// Requests for pages that wait to go back; ends the stage when none is left.
    pub(super) fn revert(
        &mut self,
        now_us: u64,
        snapshot: &Snapshot,
        room: &mut [u64],
    ) -> Vec<MoveRequest> {
        let rate_left = self.rate.available(&self.config, now_us);
        let Some(due) = self.due_reverts(snapshot, room, rate_left) else {
            return Vec::new();
        };
        self.rate.spend(due.page_count);
        if due.groups.is_empty() && self.pending.is_empty() && !due.is_waiting {
            self.end_revert(now_us);
            return Vec::new();
        }
        let mut requests = Vec::with_capacity(due.groups.len());
        for ((pid, to, _), pages) in due.groups {
            let reason = Reason {
                mechanism: Mechanism::Revert,
                because: format!("campaign {} was found harmful", due.campaign).into(),
            };
            let gain =
                Evidence::unknown("a revert undoes a loss that was measured, and predicts nothing");
            requests.push(self.request(now_us, due.campaign, pid, to, pages, reason, gain));
        }
        requests
    }

    /// Pages that can go back now, grouped to requests; `None` where nothing is being reverted.
    fn due_reverts(
        &mut self,
        snapshot: &Snapshot,
        room: &mut [u64],
        mut rate_left: u64,
    ) -> Option<Due> {
        let Stage::Reverting(campaign, queue) = &mut self.efficacy.stage else {
            return None;
        };
        let limit = self.config.request_pages.max(1) as u64;
        let mut due = Due {
            campaign: campaign.id,
            groups: BTreeMap::new(),
            page_count: 0,
            is_waiting: false,
        };
        let mut sizes: BTreeMap<(Pid, NodeId), u64> = BTreeMap::new();
        for (found, attempts) in queue.values_mut() {
            let page = PendingPage {
                page: found.page,
                huge: found.huge,
                from: found.from,
            };
            let size = page.base_pages();
            let Some(to) = snapshot.node_position(found.from) else {
                continue;
            };
            let Some(entry) = self.ledger.get(found.pid, found.page) else {
                continue;
            };
            let may_ask = !entry.is_pending && *attempts < self.config.revert_attempts;
            if !may_ask || entry.home == found.from {
                continue;
            }
            due.is_waiting |= rate_left < size || room[to] < size;
            if rate_left < size {
                continue;
            }
            *attempts += 1;
            if room[to] < size {
                continue;
            }
            room[to] -= size;
            rate_left -= size;
            due.page_count += size;
            let used = sizes.entry((found.pid, found.from)).or_default();
            let chunk = (*used / limit) as usize;
            *used += size;
            let now_at = PendingPage {
                from: entry.home,
                ..page
            };
            due.groups
                .entry((found.pid, found.from, chunk))
                .or_default()
                .push(now_at);
        }
        Some(due)
    }

    /// One page of a revert came back. A final refusal uses up its attempts.
    pub(super) fn put_back(
        &mut self,
        pending: &Pending,
        page: PendingPage,
        moved: bool,
        temporary: bool,
    ) {
        let limit = self.config.revert_attempts;
        let Stage::Reverting(_, queue) = &mut self.efficacy.stage else {
            return;
        };
        let key = (pending.pid, page.page);
        if let Some((_, attempts)) = queue.get_mut(&key)
            && !moved
            && !temporary
        {
            *attempts = limit;
        }
    }

    /// Pages of processes that have ended need not go back.
    pub(super) fn forget_reverts(&mut self, is_alive: impl Fn(Pid) -> bool) {
        if let Stage::Reverting(_, queue) = &mut self.efficacy.stage {
            queue.retain(|&(pid, _), _| is_alive(pid));
        }
    }

    fn end_revert(&mut self, now_us: u64) {
        let Stage::Reverting(campaign, queue) =
            std::mem::replace(&mut self.efficacy.stage, Stage::Moving(None))
        else {
            return;
        };
        let size = |found: &MovedPage| {
            PendingPage {
                page: found.page,
                huge: found.huge,
                from: found.from,
            }
            .base_pages()
        };
        let is_back = |found: &MovedPage| {
            self.ledger
                .get(found.pid, found.page)
                .is_none_or(|entry| entry.home == found.from)
        };
        let page_count = queue
            .values()
            .filter(|(found, _)| is_back(found))
            .map(|(found, _)| size(found))
            .sum();
        let left_count = queue
            .values()
            .filter(|(found, _)| !is_back(found))
            .map(|(found, _)| size(found))
            .sum();
        if let Some(row) = self
            .account
            .summary
            .campaigns
            .iter_mut()
            .find(|row| row.campaign == campaign.id)
        {
            row.reverted_count = page_count;
        }
        let event = Event::Reverted {
            campaign: campaign.id,
            page_count,
            left_count,
        };
        self.notes.push(event.to_string());
        self.log.push(now_us, event);
    }
}
