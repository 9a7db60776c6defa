//! What only a real kernel can show: another user's process.

use hither_core::ids::{NodeId, Pid};
use hither_core::plan::Refusal;
use hither_linux::backend::kernel::KernelBackend;
use hither_linux::proc::tree::Tree;
use hither_linux::root::Root;
use hither_linux::sys;
use hither_mover::{Action, Backend, Job, Pages, Race};

/// The user that owns nothing.
const NOBODY: u32 = 65_534;

/// Runs a closure in a thread of another user; `None` where this user may not become that one.
fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    if sys::effective_uid() != 0 {
        return None;
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: three integers. The raw call changes the credentials of this thread alone
            // (the library's wrapper would change all), and the thread ends after the work.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(result, 0, "root may become anybody");
            work()
        });
        Some(thread.join().expect("the work does not panic"))
    })
}

fn job(pid: i32) -> Job<'static> {
    Job {
        pid: Pid(pid),
        action: Action::Migrate {
            pages: Pages::Listed(&[0x400, 0x401]),
            to: NodeId(0),
        },
        race: Race::Block,
    }
}

#[test]
fn another_users_pages_are_not_ours_to_move() {
    // Process 1 is root's, or at least not nobody's.
    let asked = as_nobody(|| KernelBackend::new().execute(&[job(1)]));
    let outcomes = asked.unwrap_or_else(|| KernelBackend::new().execute(&[job(1)]));
    assert_eq!(outcomes[0].refused, [(Refusal::NotOurs, 2)]);
}

#[test]
fn another_users_process_is_left_alone_with_a_sentence() {
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let base = std::process::id() as i32;
    let looked = as_nobody(|| {
        let mut tree = Tree::new(Root::host(), base);
        tree.refresh(0).unwrap();
        let without = tree
            .processes()
            .iter()
            .filter(|process| process.pagemap.is_none())
            .count();
        (without, tree.take_notes())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    if let Some((without, notes)) = looked {
        assert!(without >= 1, "{notes:?}");
        assert!(
            notes
                .iter()
                .any(|note| note.contains("left alone") && note.contains("as root")),
            "{notes:?}"
        );
    }
}
