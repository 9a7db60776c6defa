//! A lock that survives the thread that held it.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

/// A mutex whose next owner learns that the last one died with it, as `PTHREAD_MUTEX_ROBUST`.
pub struct RobustMutex<T> {
    raw: Box<UnsafeCell<libc::pthread_mutex_t>>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by the owner of the lock only.
unsafe impl<T: Send> Send for RobustMutex<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for RobustMutex<T> {}

/// The right to the value.
pub struct RobustGuard<'a, T> {
    mutex: &'a RobustMutex<T>,
    /// The last owner died: the value may be half changed.
    pub owner_died: bool,
    /// It stays in its thread: the lock belongs to that.
    here: PhantomData<*const ()>,
}

impl<T> RobustMutex<T> {
    /// A free lock.
    pub fn new(value: T) -> Self {
        let mut attribute = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let mut raw = Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
        // SAFETY: attribute and mutex are initialised by these calls in this order; the mutex is
        // on the heap and never moves.
        let errors = unsafe {
            [
                libc::pthread_mutexattr_init(attribute.as_mut_ptr()),
                libc::pthread_mutexattr_setrobust(
                    attribute.as_mut_ptr(),
                    libc::PTHREAD_MUTEX_ROBUST,
                ),
                libc::pthread_mutex_init(raw.get_mut(), attribute.as_ptr()),
                libc::pthread_mutexattr_destroy(attribute.as_mut_ptr()),
            ]
        };
        assert_eq!(errors, [0; 4], "a robust mutex can always be made");
        Self {
            raw,
            value: UnsafeCell::new(value),
        }
    }

    /// The lock itself, to know where it is.
    pub fn raw(&self) -> &UnsafeCell<libc::pthread_mutex_t> {
        &self.raw
    }

    /// Waits for the lock.
    pub fn lock(&self) -> RobustGuard<'_, T> {
        // SAFETY: an initialised mutex.
        let error = unsafe { libc::pthread_mutex_lock(self.raw.get()) };
        let owner_died = error == libc::EOWNERDEAD;
        assert!(error == 0 || owner_died, "lock failed with {error}");
        if owner_died {
            // SAFETY: this thread owns the mutex now.
            unsafe { libc::pthread_mutex_consistent(self.raw.get()) };
        }
        RobustGuard {
            mutex: self,
            owner_died,
            here: PhantomData,
        }
    }
}

impl<T> Deref for RobustGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is the right to the value.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for RobustGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the right to the value.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for RobustGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: this thread owns the mutex.
        unsafe { libc::pthread_mutex_unlock(self.mutex.raw.get()) };
    }
}

impl<T> Drop for RobustMutex<T> {
    fn drop(&mut self) {
        // SAFETY: nobody holds it: that would need a reference.
        unsafe { libc::pthread_mutex_destroy(self.raw.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_next_owner_learns_of_the_death() {
        let mutex = Arc::new(RobustMutex::new(1));
        let in_thread = Arc::clone(&mutex);
        let handle = std::thread::spawn(move || {
            let mut guard = in_thread.lock();
            *guard = 2;
            // As a thread that is ended without unwinding: the lock stays held.
            std::mem::forget(guard);
        });
        handle.join().unwrap();
        let guard = mutex.lock();
        assert!(guard.owner_died);
        assert_eq!(*guard, 2);
        drop(guard);
        assert!(!mutex.lock().owner_died);
    }
}
