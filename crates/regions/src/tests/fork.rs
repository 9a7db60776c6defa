//! A forked child: visits run in place, its own regions work, and nothing waits for ever.

use super::visits::regions;
use crate::Region;
use std::process::Command;

/// Set in a process that runs one test alone.
const ALONE: &str = "HITHER_TEST_ALONE";

/// Runs `test` in a process where no other test does. glibc 2.36 leaves locks of the loader held in a child that is
/// forked while another thread starts one: of 20,000 such children that started a thread, three waited for ever.
fn alone(test: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let thread = std::thread::current();
    let own = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--test-threads=1", thread.name().unwrap()])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&own.stdout);
    assert!(said.contains("1 passed"), "{said}");
}

/// Runs `body` in a child; how that ended: its exit code, or the negative number of the signal.
fn in_child(body: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child calls what does not take locks that other threads may hold (this is what is tested), and
    // ends by _exit or a signal.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: a limit, so that a child that waits for ever is ended by SIGALRM; and no core file.
        unsafe {
            libc::alarm(20);
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        }
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: a child of ours, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    match libc::WIFSIGNALED(status) {
        true => -libc::WTERMSIG(status),
        false => libc::WEXITSTATUS(status),
    }
}

#[test]
fn a_child_visits_in_place_and_makes_its_own() {
    alone(|| {
        let regions = regions(2);
        let thread = || std::thread::current().id();
        assert_ne!(regions[0].run(thread), thread());
        let ended = in_child(|| {
            let in_place = regions[0].run(|| regions[1].run(thread)) == thread();
            let own = Region::new(regions[0].domain().clone()).unwrap();
            let handed = own.run(thread) != thread();
            // Children of children.
            let deeper = in_child(|| own.run(thread) == thread() && regions[0].run(|| true));
            in_place && handed && deeper == 0
        });
        assert_eq!(ended, 0);
        assert_ne!(regions[0].run(thread), thread());
    });
}

#[test]
fn a_child_may_drop_its_parents_regions() {
    alone(|| {
        let regions = regions(2);
        let ended = in_child(|| {
            // SAFETY: the child's copies, which are not used again: it ends by _exit.
            drop(unsafe { std::ptr::read(&raw const regions) });
            true
        });
        assert_eq!(ended, 0);
        assert_eq!(regions[1].run(|| 5), 5);
    });
}

#[test]
fn a_child_forked_in_a_visit_ends_in_it() {
    alone(|| {
        let regions = regions(2);
        let ended = regions[0].run(|| {
            in_child(|| {
                let nested = regions[1].run(|| regions[0].run(|| 3)) == 3;
                let own = Region::new(regions[1].domain().clone()).unwrap();
                nested && own.run(|| 4) == 4
            })
        });
        assert_eq!(ended, 0);
    });
}

/// Where it returns from the visit it is told, and does not wait for ever.
#[test]
fn a_child_that_returns_from_a_visit_is_ended() {
    alone(|| {
        let region = &regions(1)[0];
        let ended = in_child(|| {
            // A region of the child's own, whose worker is forked.
            let own = Region::new(region.domain().clone()).unwrap();
            let pid = own.run(|| {
                // SAFETY: the grandchild returns from the visit, where it is ended.
                unsafe { libc::fork() }
            });
            let mut status = 0;
            // SAFETY: a child of ours, and a place for its status.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            pid > 0 && waited == pid && libc::WTERMSIG(status) == libc::SIGABRT
        });
        assert_eq!(ended, 0);
    });
}

extern "C" fn fork_in_a_handler(_: i32) {
    // SAFETY: fork may be called in a handler; both go on from it.
    let pid = unsafe { libc::fork() };
    if pid > 0 {
        let mut status = 0;
        // SAFETY: a child of ours, and a place for its status.
        unsafe {
            libc::waitpid(pid, &raw mut status, 0);
            libc::_exit(libc::WTERMSIG(status));
        }
    }
}

/// A handler that forks while its thread waits for an answer, and returns in the child.
#[test]
fn a_child_of_a_handler_during_a_wait_is_ended() {
    alone(|| {
        let ended = in_child(|| {
            let own = regions(1).remove(0);
            let handler = fork_in_a_handler as extern "C" fn(i32) as libc::sighandler_t;
            // SAFETY: the handler above does what handlers may; with SA_RESTART.
            unsafe { libc::signal(libc::SIGUSR1, handler) };
            // SAFETY: asks for the calling thread's name.
            let caller = unsafe { libc::pthread_self() };
            own.run(move || {
                std::thread::sleep(std::time::Duration::from_millis(50));
                // SAFETY: the caller waits for this visit.
                unsafe { libc::pthread_kill(caller, libc::SIGUSR1) };
                std::thread::sleep(std::time::Duration::from_secs(15));
            });
            false
        });
        assert_eq!(ended, libc::SIGABRT);
    });
}
