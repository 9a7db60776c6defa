//! On this machine's own kernel; one node is enough for everything but a move that succeeds.

use super::*;
use hither_core::ids::{NodeId, Pid};
use hither_mover::{Pages, Race};

fn job(pid: i32, pages: &[u64], to: u32) -> Job<'_> {
    Job {
        pid: Pid(pid),
        action: Action::Migrate {
            pages: Pages::Listed(pages),
            to: NodeId(to),
        },
        race: Race::Block,
    }
}

/// Memory of `count` whole pages, all touched, and the number of the first.
fn touched(count: usize) -> (Vec<u8>, u64) {
    let mut memory = vec![0u8; (count + 1) * 4096];
    let first = (memory.as_ptr() as u64).div_ceil(4096);
    let skip = (first * 4096 - memory.as_ptr() as u64) as usize;
    for page in 0..count {
        memory[skip + page * 4096] = page as u8 | 1;
    }
    (memory, first)
}

/// The node that holds a page of this process.
fn home(page: u64) -> u32 {
    let mut status = [UNTOLD];
    sys::query_pages(0, &[page << 12], &mut status).unwrap();
    u32::try_from(status[0]).expect("the page is mapped")
}

fn own_pid() -> i32 {
    std::process::id() as i32
}

#[test]
fn pages_that_are_there_stay_there() {
    // More than two chunks.
    let (memory, first) = touched(2 * CHUNK_PAGES + 7);
    let pages: Vec<u64> = (first..first + 2 * CHUNK_PAGES as u64 + 7).collect();
    let jobs = [
        job(own_pid(), &pages[..100], home(first)),
        job(own_pid(), &pages[100..], home(first)),
    ];
    let outcomes = KernelBackend::new().execute(&jobs);
    assert_eq!(outcomes.len(), 2);
    for (outcome, job) in outcomes.iter().zip(&jobs) {
        let there = outcome.already_there + outcome.moved.len() as u64;
        assert_eq!(there, job.page_count(), "{:?}", outcome.refused);
    }
    assert_eq!(
        memory[(first * 4096 - memory.as_ptr() as u64) as usize],
        1,
        "no byte is lost"
    );
}

#[test]
fn an_address_that_is_none_ends_each_batch() {
    let items: Vec<Item> = (0..2 * TOGETHER as u64 + 1)
        .map(|page| Item {
            job: 0,
            page,
            target: 0,
            status: UNTOLD,
        })
        .collect();
    let mut backend = KernelBackend::new();
    backend.load(&items, TOGETHER);
    assert_eq!(backend.addresses.len(), items.len() + 2);
    for (chunk, pages) in backend
        .addresses
        .chunks(TOGETHER + 1)
        .zip(items.chunks(TOGETHER))
    {
        let is_last = pages.len() < TOGETHER;
        assert_eq!(chunk.len(), pages.len() + usize::from(!is_last));
        assert_eq!(chunk.last() == Some(&NOWHERE), !is_last);
        assert!(
            chunk
                .iter()
                .zip(pages)
                .all(|(&address, item)| address == item.page << 12)
        );
    }
    // What the kernel says of it, and that it says the rest all the same.
    let (_memory, first) = touched(2);
    let addresses = [first << 12, NOWHERE, (first + 1) << 12];
    let (node, mut status) = (home(first) as i32, [UNTOLD; 3]);
    sys::move_pages(0, &addresses, &[node; 3], &mut status).unwrap();
    assert_eq!(status, [node, -libc::EFAULT, home(first + 1) as i32]);
}

#[test]
fn an_unmapped_page_is_refused_and_its_neighbours_are_not() {
    let (_memory, first) = touched(2);
    let pages = vec![1, first, first + 1];
    let outcome = KernelBackend::new()
        .execute(&[job(own_pid(), &pages, home(first))])
        .remove(0);
    assert_eq!(outcome.refused, [(Refusal::Unmapped, 1)]);
    assert_eq!(outcome.already_there + outcome.moved.len() as u64, 2);
}

#[test]
fn a_process_that_is_gone_is_an_outcome() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id() as i32;
    child.wait().unwrap();
    let outcomes =
        KernelBackend::new().execute(&[job(pid, &[1, 2, 3], 0), job(own_pid(), &[1], 0)]);
    assert_eq!(outcomes[0].refused, [(Refusal::ProcessGone, 3)]);
    assert_eq!(outcomes[1].refused, [(Refusal::Unmapped, 1)]);
}

#[test]
fn a_node_that_does_not_exist_is_forbidden() {
    let (_memory, first) = touched(3);
    let pages: Vec<u64> = (first..first + 3).collect();
    let outcome = KernelBackend::new()
        .execute(&[job(own_pid(), &pages, 1023)])
        .remove(0);
    assert_eq!(
        outcome.refused,
        [(Refusal::TargetForbidden, 3)],
        "{outcome:?}"
    );
}

#[test]
fn nothing_asked_nothing_done() {
    let mut backend = KernelBackend::new();
    assert!(backend.execute(&[]).is_empty());
    let outcome = backend.execute(&[job(own_pid(), &[], 0)]).remove(0);
    assert_eq!(outcome.page_count(), 0);
    assert_eq!(backend.probe(), Ok(()));
    assert_eq!(backend.name(), "kernel");
}

#[test]
fn error_numbers_have_one_meaning() {
    use Refusal::*;
    let page = [
        (libc::EACCES, Shared),
        (libc::EBUSY, Busy),
        (libc::EFAULT, Unmapped),
        (libc::ENOENT, Unmapped),
        (libc::EIO, Busy),
        (libc::ENOMEM, NoMemory),
    ];
    for (errno, refusal) in page {
        assert_eq!(classify(errno, false), refusal, "{errno}");
    }
    let call = [
        (libc::ESRCH, ProcessGone),
        (libc::EPERM, NotOurs),
        (libc::EACCES, TargetForbidden),
        (libc::ENODEV, TargetForbidden),
        (libc::ENOMEM, NoMemory),
    ];
    for (errno, refusal) in call {
        assert_eq!(classify(errno, true), refusal, "{errno}");
    }
}

#[test]
fn verdicts_after_a_call_that_stopped_early() {
    // Moved with an earlier page of its huge page: said busy, yet it is on the target.
    assert_eq!(verdict(true, -libc::EBUSY, None), Some(Verdict::Moved));
    // In the batch that failed, or behind it: nobody said anything, try again.
    assert_eq!(verdict(false, UNTOLD, None), None);
    assert_eq!(
        verdict(false, UNTOLD, Some(libc::ENOMEM)),
        Some(Verdict::Refused(Refusal::NoMemory))
    );
    assert_eq!(
        verdict(false, -libc::EACCES, None),
        Some(Verdict::Refused(Refusal::Shared))
    );
    assert_eq!(
        verdict(false, 2, None),
        Some(Verdict::Refused(Refusal::Busy))
    );
}
