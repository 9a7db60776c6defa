//! A request that its caller fills before submission.

use crate::backend::Race;
use crate::instance::Held;
use crate::record::{Asked, FLAG_HIGH, FLAG_MIGRATE, FLAG_RACE_BLOCK, FLAG_RACE_FAIL, Invalid};
use crate::region::Forked;
use crate::service::Mover;
use hither_core::ids::NodeId;
use std::fmt;
use std::ops::Range;

/// Whom the workers serve first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// In order of submission.
    #[default]
    Normal,
    /// Before all normal ones that have not begun.
    High,
}

/// A free place in the service, to be filled and submitted. Dropped unsubmitted, it is free again.
///
/// Its setters take and return it, so that a request is one expression; nothing is checked before
/// submission.
pub struct Request<'m> {
    pub(crate) mover: &'m Mover,
    pub(crate) held: Held,
    pub(crate) asked: Asked,
    is_asked: bool,
}

impl<'m> Request<'m> {
    #[inline]
    pub(crate) fn new(mover: &'m Mover, held: Held) -> Self {
        Self {
            mover,
            held,
            asked: Asked::default(),
            is_asked: false,
        }
    }

    /// Asks for the pages of this process in a range of addresses to be moved to a node. Both
    /// ends must be multiples of 4096.
    #[must_use]
    pub fn migrate(mut self, addresses: Range<usize>, to: NodeId) -> Self {
        self.asked.flags |= FLAG_MIGRATE;
        self.asked.from = addresses.start as u64;
        self.asked.bytes = addresses.end.saturating_sub(addresses.start) as u64;
        self.asked.to = to.0.into();
        self.is_asked = true;
        self
    }

    /// Asks for bytes to be copied from one address of this process to another. The ranges must
    /// not overlap; accesses meanwhile see old or new bytes (memif section 3). That the ranges are
    /// the caller's to read and write until completion is checked by nobody: a backend refuses
    /// what is not mapped, but cannot know what else lives there.
    #[must_use]
    pub fn replicate(mut self, from: usize, to: usize, bytes: usize) -> Self {
        self.asked.flags &= !FLAG_MIGRATE;
        self.asked.from = from as u64;
        self.asked.to = to as u64;
        self.asked.bytes = bytes as u64;
        self.is_asked = true;
        self
    }

    /// What an access to a page on its way does. [`Race::Recover`] unless set.
    #[must_use]
    pub fn race(mut self, race: Race) -> Self {
        self.asked.flags &= !(FLAG_RACE_FAIL | FLAG_RACE_BLOCK);
        self.asked.flags |= match race {
            Race::Recover => 0,
            Race::Fail => FLAG_RACE_FAIL,
            Race::Block => FLAG_RACE_BLOCK,
        };
        self
    }

    /// Whom it goes before. [`Priority::Normal`] unless set.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.asked.flags &= !FLAG_HIGH;
        if priority == Priority::High {
            self.asked.flags |= FLAG_HIGH;
        }
        self
    }

    /// A number of the caller's own, which the completion brings back.
    #[must_use]
    pub fn tag(mut self, tag: u64) -> Self {
        self.asked.tag = tag;
        self
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        if !self.is_asked {
            return Err(Invalid::NothingAsked);
        }
        self.asked.check()
    }

    /// Takes the slot out, so that dropping the request does not free it.
    #[inline]
    pub(crate) fn into_parts(self) -> (Held, Asked) {
        let parts = (self.held, self.asked);
        std::mem::forget(self);
        parts
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.mover.release(self.held);
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("slot", &self.held.index)
            .field("asked", &self.asked)
            .finish()
    }
}

/// Why a request was not submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// What it asks for cannot be done by anybody.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// It was made by another [`Mover`].
    #[error("the request belongs to another mover")]
    Foreign,
    /// This is a child after `fork`.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// A request that was not submitted, to be mended or dropped.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Rejected<'m> {
    /// The request, unchanged. `None` in a child after `fork`: it is the parent's.
    pub request: Option<Request<'m>>,
    /// What is wrong.
    pub reason: SubmitError,
}
