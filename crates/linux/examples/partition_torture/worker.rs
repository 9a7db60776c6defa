//! A program of a partition: keeps a pattern in anonymous memory, looks again and again whether it
//! is still there, takes and gives memory back, and starts children that share its pages.

use crate::board::{Board, CHECKS, ERRORS};
use crate::chance::Chance;
use memmap2::MmapMut;

const PAGE: usize = 4096;

/// What a page holds: in every eighth cache line a word that depends on page and round.
fn word(seed: u64, page: usize, round: u8, line: usize) -> u64 {
    (seed ^ (page as u64) << 20 ^ line as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        ^ u64::from(round)
}

fn fill(memory: &mut [u8], seed: u64, page: usize, round: u8) {
    for line in (0..PAGE).step_by(512) {
        let at = page * PAGE + line;
        memory[at..at + 8].copy_from_slice(&word(seed, page, round, line).to_ne_bytes());
    }
}

fn holds(memory: &[u8], seed: u64, page: usize, round: u8) -> bool {
    (0..PAGE).step_by(512).all(|line| {
        let at = page * PAGE + line;
        memory[at..at + 8] == word(seed, page, round, line).to_ne_bytes()
    })
}

/// Never returns by itself, but for `rounds` of work where there is such a number.
pub fn work(board: &mut Board, slot: usize, pages: usize, seed: u64, rounds: Option<u64>) {
    let mut chance = Chance::new(seed);
    let mut memory = MmapMut::map_anon(pages * PAGE).expect("memory");
    let mut written = vec![0u8; pages];
    for page in 0..pages {
        fill(&mut memory, seed, page, 0);
    }
    let mut done = 0;
    while rounds.is_none_or(|most| done < most) {
        done += 1;
        for _ in 0..64 {
            let page = chance.below(pages as u64) as usize;
            if !holds(&memory, seed, page, written[page]) {
                board.add(slot, ERRORS, 1);
            }
            written[page] = written[page].wrapping_add(1);
            fill(&mut memory, seed, page, written[page]);
            board.add(slot, CHECKS, 1);
        }
        match chance.below(16) {
            // Memory that comes and goes.
            0 => {
                let mut more = MmapMut::map_anon(64 * PAGE).expect("memory");
                more.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
            }
            // A child that shares every page until one of the two writes.
            1 => fork_and_check(&memory, board, slot, seed, &written, &mut chance),
            _ => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    }
}

fn fork_and_check(
    memory: &[u8],
    board: &mut Board,
    slot: usize,
    seed: u64,
    written: &[u8],
    chance: &mut Chance,
) {
    // SAFETY: this program has one thread; the child only reads and writes memory, and leaves by
    // _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for _ in 0..64 {
            let page = chance.below(written.len() as u64) as usize;
            if !holds(memory, seed, page, written[page]) {
                board.add(slot, ERRORS, 1);
            }
        }
        // SAFETY: ends this process, and nothing else.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child, whose status goes into a variable of ours.
    unsafe { libc::waitpid(child, &mut status, 0) };
    if child < 0 || status != 0 {
        board.add(slot, ERRORS, 1);
    }
}
