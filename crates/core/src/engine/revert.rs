//! Putting pages back: a harmful campaign's to where the campaign found them, and, on leaving, all
//! to where they were before hither first moved them.
//!
//! Both keep the capacity and rate budgets but not the cool-down. A page that is busy is tried
//! again a few times, as is one whose node is full; one that cannot go back is told, not forgotten.

use super::Turn;
use super::config::EngineConfig;
use super::efficacy::{MovedPage, Stage};
use super::ledger::Ledger;
use super::scope::{Pending, PendingPage, Scope, is_temporary};
use crate::explain::Event;
use crate::ids::{NodeId, Pid};
use crate::plan::{Mechanism, MoveRequest, Reason, Refusal};
use crate::snapshot::{Evidence, base_pages};
use std::collections::BTreeMap;

/// Pages that wait to go back, each with the attempts made.
pub(super) type Queue = BTreeMap<(Pid, u64), (MovedPage, Attempts)>;

/// What was tried to put a page back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempts {
    count: u32,
    /// Why the last one failed, where it did.
    why: Option<Refusal>,
}

/// Pages that an undo looks after at once; the others wait in the ledger. 65,536: twice what the
/// rate lets move at once.
const UNDO_AT_ONCE: usize = 65_536;

/// Everything that a scope moved goes back.
#[derive(Clone, Debug, Default)]
pub(super) struct Undo {
    queue: Queue,
    pub(super) page_count: u64,
    left_count: u64,
    refused: BTreeMap<Refusal, u64>,
    is_done: bool,
}

/// Pages that can go back in this step.
#[derive(Default)]
pub(super) struct Due {
    /// By process, node and number of the request.
    groups: BTreeMap<(Pid, NodeId, usize), Vec<PendingPage>>,
    /// Some page waits for rate or room.
    is_waiting: bool,
}

impl Scope {
    /// Requests for pages of a harmful campaign; ends the stage when none is left.
    pub(super) fn revert(&mut self, turn: &mut Turn<'_>) -> Vec<MoveRequest> {
        let Stage::Reverting(campaign, queue) = &mut self.efficacy.stage else {
            return Vec::new();
        };
        let id = campaign.id;
        let due = due(queue, &self.ledger, turn);
        if due.groups.is_empty() && self.pending.is_empty() && !due.is_waiting {
            self.end_revert(turn);
            return Vec::new();
        }
        self.ask_back(turn, id, &format!("campaign {id} was found harmful"), due)
    }

    /// Requests for them.
    pub(super) fn ask_back(
        &mut self,
        turn: &mut Turn<'_>,
        campaign: u64,
        because: &str,
        due: Due,
    ) -> Vec<MoveRequest> {
        let mut requests = Vec::with_capacity(due.groups.len());
        for ((pid, to, _), pages) in due.groups {
            let reason = Reason {
                mechanism: Mechanism::Revert,
                because: because.to_owned().into(),
            };
            let gain =
                Evidence::unknown("a revert undoes a loss that was measured, and predicts nothing");
            requests.push(self.request(turn, campaign, pid, to, pages, reason, gain));
        }
        requests
    }

    /// One page could not go back just now. A final refusal uses up its attempts.
    pub(super) fn put_back(
        &mut self,
        config: &EngineConfig,
        pending: &Pending,
        page: PendingPage,
        refused: &[(Refusal, u64)],
    ) {
        let queue = match (&mut self.undo, &mut self.efficacy.stage, self.tidy.undo()) {
            (Some(undo), ..) => &mut undo.queue,
            (None, Stage::Reverting(_, queue), _) => queue,
            (None, _, Some(tidy)) => &mut tidy.queue,
            (None, _, None) => return,
        };
        let key = (pending.pid, page.page);
        if let Some((_, attempts)) = queue.get_mut(&key) {
            attempts.why = refused.first().map(|&(why, _)| why);
            if !is_temporary(refused) {
                attempts.count = config.revert_attempts;
            }
        }
    }

    fn end_revert(&mut self, turn: &mut Turn<'_>) {
        let Stage::Reverting(campaign, queue) =
            std::mem::replace(&mut self.efficacy.stage, Stage::Moving(None))
        else {
            return;
        };
        let (mut page_count, mut left_count) = (0, 0);
        for (found, _) in queue.values() {
            let entry = self.ledger.get(found.pid, found.page);
            match entry.is_none_or(|entry| entry.home == found.from) {
                true => page_count += found.base_pages(),
                false => left_count += found.base_pages(),
            }
        }
        let mut rows = self.account.summary.campaigns.iter_mut();
        if let Some(row) = rows.find(|row| row.campaign == campaign.id) {
            row.reverted_count = page_count;
        }
        turn.tell(Event::Reverted {
            campaign: campaign.id,
            page_count,
            left_count,
        });
    }

    /// From now on everything goes back and nothing else is moved; a campaign under way is not
    /// judged any more.
    pub(super) fn begin_undo(&mut self) {
        if self.undo.is_none() {
            self.drop_campaign();
            self.undo = Some(Undo::default());
        }
    }

    /// Moves may be asked for again once all is back; says whether it is.
    pub(super) fn end_undo(&mut self) -> bool {
        let is_undone = self.is_undone();
        if is_undone {
            self.undo = None;
        }
        is_undone
    }

    /// Is nothing left of an undo, or was none begun?
    pub(super) fn is_undone(&self) -> bool {
        self.undo.as_ref().is_none_or(|undo| undo.is_done)
    }

    /// Requests for displaced pages while an undo is under way; ends it when none is left.
    pub(super) fn put_all_back(&mut self, turn: &mut Turn<'_>) -> Vec<MoveRequest> {
        if self.is_undone() {
            return Vec::new();
        }
        let mut undo = self.undo.take().unwrap_or_default();
        let due = undo.next(turn, &mut self.ledger);
        let mut requests = Vec::new();
        if undo.is_empty() && self.pending.is_empty() {
            undo.is_done = true;
            turn.tell(Event::Undone {
                page_count: undo.page_count,
                left_count: undo.left_count,
                refused: undo
                    .refused
                    .iter()
                    .map(|(&why, &count)| (why, count))
                    .collect(),
            });
        } else {
            requests = self.ask_back(turn, 0, "hither leaves and puts back what it moved", due);
        }
        self.undo = Some(undo);
        requests
    }
}

impl Undo {
    /// What can go back in this step of all that is displaced.
    pub(super) fn next(&mut self, turn: &mut Turn<'_>, ledger: &mut Ledger) -> Due {
        self.settle(turn.config, ledger);
        self.refill(ledger);
        due(&mut self.queue, ledger, turn)
    }

    /// Does nothing wait to go back?
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes out what is back, and gives up what was tried often enough.
    fn settle(&mut self, config: &EngineConfig, ledger: &mut Ledger) {
        let mut given_up = Vec::new();
        self.queue.retain(|_, (found, attempts)| {
            let Some(entry) = ledger.get(found.pid, found.page) else {
                return false;
            };
            if entry.is_pending {
                return true;
            }
            if entry.home == found.from {
                self.page_count += found.base_pages();
                return false;
            }
            if attempts.count >= config.revert_attempts {
                self.left_count += found.base_pages();
                let why = attempts.why.unwrap_or(Refusal::TargetForbidden);
                *self.refused.entry(why).or_default() += found.base_pages();
                given_up.push(found.unit());
                return false;
            }
            true
        });
        given_up.into_iter().for_each(|unit| ledger.give_up(unit));
    }

    /// Takes more displaced pages out of the ledger.
    fn refill(&mut self, ledger: &Ledger) {
        if self.queue.len() >= UNDO_AT_ONCE {
            return;
        }
        for (pid, pages, entry) in ledger.iter() {
            let Some(space) = ledger.space(pid) else {
                continue;
            };
            if !entry.is_displaced() || entry.is_pending || entry.is_given_up {
                continue;
            }
            let size = base_pages(entry.is_huge);
            for page in pages.step_by(size as usize) {
                let found = MovedPage {
                    pid,
                    space,
                    page,
                    huge: entry.is_huge,
                    from: entry.origin,
                };
                self.queue
                    .entry((pid, page))
                    .or_insert((found, Attempts::default()));
                if self.queue.len() >= UNDO_AT_ONCE {
                    return;
                }
            }
        }
    }
}

/// Pages that can go back now, grouped to requests, by what room and rate allow.
fn due(queue: &mut Queue, ledger: &Ledger, turn: &mut Turn<'_>) -> Due {
    let limit = turn.config.request_pages.max(1) as u64;
    let mut due = Due::default();
    // The request that is being filled, by its number, and the base pages in it.
    let mut open: BTreeMap<(Pid, NodeId), (usize, u64)> = BTreeMap::new();
    for (found, attempts) in queue.values_mut() {
        let size = found.base_pages();
        let Some(to) = turn.snapshot.node_position(found.from) else {
            // The node is gone.
            attempts.count = turn.config.revert_attempts;
            continue;
        };
        let Some(entry) = ledger.get(found.pid, found.page) else {
            continue;
        };
        let may_ask = !entry.is_pending && attempts.count < turn.config.revert_attempts;
        if !may_ask || entry.home == found.from {
            continue;
        }
        if turn.pages_left < size {
            due.is_waiting = true;
            turn.is_short = true;
            continue;
        }
        attempts.count += 1;
        if turn.room[to] < size {
            attempts.why = Some(Refusal::NoMemory);
            due.is_waiting = true;
            continue;
        }
        turn.room[to] -= size;
        turn.pages_left -= size;
        let (chunk, used) = open.entry((found.pid, found.from)).or_default();
        if *used > 0 && *used + size > limit {
            (*chunk, *used) = (*chunk + 1, 0);
        }
        *used += size;
        let page = PendingPage {
            page: found.page,
            huge: found.huge,
            from: entry.home,
        };
        let key = (found.pid, found.from, *chunk);
        due.groups.entry(key).or_default().push(page);
    }
    due
}
