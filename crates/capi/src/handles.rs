//! What programs of C hold by number: each kind has a table of them, or lines of its own where the lock of a table
//! would cost more than the call.

use crate::constants::{HITHER_EAGAIN, HITHER_EBADF};
use crate::failure::{Failure, Outcome};
use crate::lifetime;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A kind of things with numbers, as its texts name it.
pub(crate) struct Kind {
    /// As "region".
    pub name: &'static str,
    /// The function that makes one.
    pub made_by: &'static str,
    /// The function that ends one.
    pub ended_by: &'static str,
}

impl Kind {
    /// The number is none of this process's.
    pub(crate) fn missing(&self, number: c_int) -> Failure {
        let Self {
            name,
            made_by,
            ended_by,
        } = self;
        let text = format!(
            "{number} is no {name} of this process: pass what {made_by}() returned, before {ended_by}()"
        );
        Failure::new(HITHER_EBADF, text)
    }
}

/// A lock whose holder never leaves things half done.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Things by number. A number is never used again.
pub(crate) struct Handles<T> {
    kind: Kind,
    /// And the last number given.
    kept: Mutex<(BTreeMap<c_int, Arc<T>>, c_int)>,
}

impl<T> Handles<T> {
    pub(crate) const fn new(kind: Kind) -> Self {
        Self {
            kind,
            kept: Mutex::new((BTreeMap::new(), 0)),
        }
    }

    /// Keeps one until it is removed; its number, from 1 on.
    pub(crate) fn keep(&self, one: T) -> Outcome<c_int> {
        let mut kept = locked(&self.kept);
        let Some(number) = kept.1.checked_add(1) else {
            let name = self.kind.name;
            let text = format!("no number for a {name} is left: keep each for longer");
            return Err(Failure::new(HITHER_EAGAIN, text));
        };
        kept.1 = number;
        kept.0.insert(number, Arc::new(one));
        Ok(number)
    }

    /// The one of a number.
    pub(crate) fn find(&self, number: c_int) -> Outcome<Arc<T>> {
        self.with(number, |one| Ok(Arc::clone(one)))
    }

    /// Acts on the one of a number, which is not removed meanwhile.
    pub(crate) fn with<R>(
        &self,
        number: c_int,
        act: impl FnOnce(&Arc<T>) -> Outcome<R>,
    ) -> Outcome<R> {
        lifetime::check()?;
        let kept = locked(&self.kept);
        act(kept.0.get(&number).ok_or_else(|| self.missing(number))?)
    }

    /// Removes the one of a number, if it may be. It is for the caller to drop, without the lock.
    pub(crate) fn remove(
        &self,
        number: c_int,
        check: impl FnOnce(&T) -> Outcome<()>,
    ) -> Outcome<Arc<T>> {
        lifetime::check()?;
        let mut kept = locked(&self.kept);
        let one = kept.0.get(&number).ok_or_else(|| self.missing(number))?;
        check(one)?;
        kept.0.remove(&number).ok_or_else(|| self.missing(number))
    }

    /// The number is none of these.
    pub(crate) fn missing(&self, number: c_int) -> Failure {
        self.kind.missing(number)
    }
}

/// Which of a fixed number of lines are free: those given back first, then those that were never used.
pub(crate) struct FreeLines {
    most: usize,
    given_back: Mutex<(Vec<usize>, usize)>,
}

impl FreeLines {
    pub(crate) const fn new(most: usize) -> Self {
        Self {
            most,
            given_back: Mutex::new((Vec::new(), 0)),
        }
    }

    /// A line, unless all are in use.
    pub(crate) fn take(&self) -> Option<usize> {
        let mut free = locked(&self.given_back);
        if let Some(index) = free.0.pop() {
            return Some(index);
        }
        let is_left = free.1 < self.most;
        free.1 += usize::from(is_left);
        is_left.then(|| free.1 - 1)
    }

    /// A line is free again.
    pub(crate) fn give_back(&self, index: usize) {
        locked(&self.given_back).0.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind {
        name: "thing",
        made_by: "make",
        ended_by: "end",
    };

    #[test]
    fn numbers_are_not_used_again() {
        let things = Handles::new(KIND);
        let numbers = [things.keep('a').unwrap(), things.keep('b').unwrap()];
        assert_eq!(numbers, [1, 2]);
        assert_eq!(*things.find(2).unwrap(), 'b');
        let busy = || Err(Failure::new(HITHER_EAGAIN, "busy"));
        assert!(things.remove(2, |_| busy()).is_err());
        assert_eq!(*things.remove(2, |_| Ok(())).unwrap(), 'b');
        for number in [2, 3, 0, -1] {
            let failure = things.find(number).unwrap_err();
            assert_eq!(failure.code, HITHER_EBADF);
        }
        assert_eq!(things.keep('c').unwrap(), 3);
    }

    #[test]
    fn lines_are_used_again() {
        let lines = FreeLines::new(2);
        assert_eq!(
            [lines.take(), lines.take(), lines.take()],
            [Some(0), Some(1), None]
        );
        lines.give_back(0);
        assert_eq!([lines.take(), lines.take()], [Some(0), None]);
    }
}
