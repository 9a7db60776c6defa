//! memif's interface and mechanisms, one by one: built, with a test that fails without it, or not, with the reason.

/// A mechanism of the paper.
#[derive(Clone, Copy, Debug)]
pub struct MemifMechanism {
    /// What it is.
    pub name: &'static str,
    /// Section of the paper.
    pub source: &'static str,
    /// What became of it.
    pub state: MechanismState,
}

/// What became of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MechanismState {
    /// Here it is, and this test, a function in a file, shows it.
    Built(&'static str, &'static str, &'static str),
    /// Another one does its work, or it would do harm; why.
    Refused(&'static str),
}

use MechanismState::{Built, Refused};

const fn of(name: &'static str, source: &'static str, state: MechanismState) -> MemifMechanism {
    MemifMechanism {
        name,
        source,
        state,
    }
}

const SERVICE: &str = "crates/mover/tests/service.rs";
const LOOM: &str = "crates/mover/src/tests/loom.rs";
const SWAP: &str = "crates/linux/src/backend/swap/tests.rs";
const STREAM: &str = "crates/mover/src/stream/tests.rs";
const ENGINE: &str = "crates/lab/tests/engine.rs";
const PROGRAMS: &str = "crates/capi/tests/programs.rs";

/// In the order of the paper.
pub const ALL: &[MemifMechanism] = &[
    of(
        "MemifOpen, AllocRequest, SubmitRequest, RetrieveCompleted, poll, MemifClose: figure 2's program",
        "3, 4.1",
        Built(
            "libhither, `crates/capi/examples/figure2.c`",
            PROGRAMS,
            "the_papers_program_never_sleeps_for_ever",
        ),
    ),
    of(
        "replication and migration",
        "3",
        Built(
            "`Kind` of a request",
            SERVICE,
            "a_request_completes_with_its_figures",
        ),
    ),
    of(
        "submitting and retrieving never block",
        "3",
        Built(
            "`Mover::submit`, `retrieve`",
            SERVICE,
            "a_full_pool_says_so_and_retrieving_makes_room",
        ),
    ),
    of(
        "several threads use an instance at once",
        "3",
        Built("lists without locks", SERVICE, "many_threads_share_a_mover"),
    ),
    of(
        "poll() beside other descriptors",
        "4.1",
        Built(
            "`notify_fd`",
            SERVICE,
            "an_event_loop_polls_for_completions",
        ),
    ),
    of(
        "staging, submission and completion queues over one array, linked by index",
        "4.2",
        Built(
            "`crates/mover/src/layout.rs`",
            LOOM,
            "queue_hands_over_every_request_once",
        ),
    ),
    of(
        "completion as two queues, for moves that worked and for those that did not",
        "4.2",
        Built(
            "`retrieve` looks at both",
            SERVICE,
            "invalid_requests_come_back_with_a_reason",
        ),
    ),
    of(
        "free list",
        "4.2",
        Built(
            "`crates/mover/src/free_list.rs`",
            LOOM,
            "free_list_of_three",
        ),
    ),
    of(
        "queues shared with the kernel, in pinned pages, through a device file",
        "4.2",
        Refused(
            "without a kernel module there is no driver to share with: the service runs in the program's own process \
             (docs/mover.md, one process)",
        ),
    ),
    of(
        "one device for each process, indices validated by the server",
        "4.2, safety",
        Refused(
            "client and worker are threads of one process, so that neither gains by deceiving the other; after fork a child has no \
             service (docs/mover.md, one process)",
        ),
    ),
    of(
        "red-blue queue: colour and operation in one compare-and-swap",
        "4.3",
        Built("one word over a chain", LOOM, "colour_and_pushes_are_one"),
    ),
    of(
        "one kick for each change from blue to red",
        "4.4",
        Built(
            "`crates/mover/src/staging.rs`",
            LOOM,
            "one_kick_for_two_clients",
        ),
    ),
    of(
        "a busy service needs no system call to submit",
        "4.4",
        Built(
            "a submission is a push",
            "crates/mover/tests/no_system_calls.rs",
            "a_steady_stream_makes_no_system_call",
        ),
    ),
    of(
        "MOV_ONE: the caller carries out the first request itself",
        "4.2, 5.4",
        Built(
            "`Config::first_bytes`, where the program asks for it",
            SERVICE,
            "the_first_small_request_is_its_submitters_and_a_worker_goes_on",
        ),
    ),
    of(
        "gang look-up of pages: one walk for a request",
        "5.1",
        Built(
            "one PAGEMAP_SCAN or read of the page map for a request",
            "crates/linux/src/backend/swap/survey.rs",
            "entries_tell_what_the_scan_tells",
        ),
    ),
    of(
        "race detection in place of prevention, proceed and fail",
        "5.2",
        Built(
            "`Race::Fail`",
            SWAP,
            "a_store_on_the_way_is_kept_under_every_policy",
        ),
    ),
    of(
        "proceed and recover: a racing access gets the old page, the request ends as failed",
        "5.2",
        Built(
            "the page is brought back under every policy but `block`",
            "crates/linux/tests/torture.rs",
            "stores_to_pages_on_their_way_are_kept",
        ),
    ),
    of(
        "SEGFAULT to a program that races",
        "5.2",
        Refused(
            "a race is an outcome of the request; no byte is lost, so that there is nothing to punish",
        ),
    ),
    of(
        "semi-final page-table entries: one TLB flush for a page instead of two",
        "5.2",
        Refused(
            "a call of `UFFDIO_MOVE` leaves nothing at the address that it empties, so that a window has two calls and two flushes, each \
             for all of its pages together (docs/mover.md, what bounds a move)",
        ),
    ),
    of(
        "copying by a DMA engine",
        "5.3",
        Built(
            "a device of the laboratory (`crates/plugin/src/engine.rs`) and its driver in user space, backend `engine`; engines of \
             processors are not driven",
            ENGINE,
            "an_engine_copies_tells_of_faults_and_saves_the_cpu",
        ),
    ),
    of(
        "reuse of an engine's descriptors",
        "5.3",
        Built(
            "chains that transfers left are used again, a part of one too",
            "crates/plugin/src/engine/tests.rs",
            "elements_that_a_transfer_left_cost_less",
        ),
    ),
    of(
        "a thread that serves requests one by one until all queues are empty",
        "5.4",
        Built(
            "`crates/mover/src/worker.rs`",
            LOOM,
            "two_clients_hand_over_to_a_worker_about_to_sleep",
        ),
    ),
    of(
        "polling below a size and sleeping above it",
        "5.4",
        Built(
            "of the engine, above a size that is learned; a worker looks on after small requests, below a size that is set",
            "crates/linux/src/backend/engine/rule.rs",
            "late_sleeps_do_not_stop_sleeping",
        ),
    ),
    of(
        "streaming runtime: fast memory as an array of prefetch buffers, refilled at once",
        "6.6",
        Built(
            "`crates/mover/src/stream.rs`",
            STREAM,
            "blocks_come_from_fast_memory_where_copies_are_quick",
        ),
    ),
    of(
        "streaming runtime: slow memory where no buffer is ready",
        "6.6",
        Built("the same", STREAM, "a_fill_is_never_waited_for"),
    ),
    of(
        "streaming runtime in C and Python",
        "6.6",
        Built(
            "`hither_stream_run`, `crates/capi/examples/stream.c`; `hither.Stream`, python/tests/test_stream.py",
            PROGRAMS,
            "a_stream_in_c_computes_from_fast_memory",
        ),
    ),
    of(
        "huge pages",
        "6.2, emulated there",
        Built("moved whole", SWAP, "huge_pages_stay_huge"),
    ),
    of(
        "what memif leaves out: pages of files",
        "6.7",
        Refused(
            "the backend `swap` moves private anonymous memory; pages of files go to the kernel's own migration (docs/mover.md)",
        ),
    ),
    of(
        "what memif leaves out: several programs at once",
        "6.7",
        Refused(
            "each program has a service of its own; programs of others are moved by the daemon (docs/daemon.md)",
        ),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_test_that_is_named_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for mechanism in ALL {
            match mechanism.state {
                Built(what, file, test) => {
                    let text = std::fs::read_to_string(root.join(file))
                        .unwrap_or_else(|error| panic!("{file}: {error}"));
                    let is_there = text.contains(&format!("fn {test}("));
                    assert!(
                        is_there && !what.is_empty(),
                        "{}: {file} has no {test}",
                        mechanism.name
                    );
                }
                Refused(why) => {
                    assert!(why.len() > 10, "{}", mechanism.name)
                }
            }
        }
    }
}
