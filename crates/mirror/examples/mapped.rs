//! A program for the laboratory: maps a file read-only, and reads a part of it again and again.
//!
//! usage: mapped make FILE MB CPU          append so much to it, from that CPU
//!        mapped read FILE CPU SHARE SETTLE_MS MEASURE_MS [own|apart]
//!
//! `read` reads the first 1/SHARE of the file, line by line, for the time of settling, then measures how
//! much it reads. `own`: a private copy, made by this process, in place of the mapping: first touch, warm.
//! `apart`: the part with the number of the CPU in place of the first.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Words of a cache line.
const LINE: usize = 8;

fn pin(cpu: usize) {
    // SAFETY: a set of this frame, which is written before it is read.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set),
            0
        );
    }
}

fn make(path: &str, mb: usize) {
    let mut file = File::options();
    let mut file = file
        .create(true)
        .append(true)
        .open(path)
        .expect("a file to write");
    for block in 0..mb as u64 {
        let words = (0..1 << 17).map(|word: u64| (block << 17 | word) * 0x9e37_79b9_7f4a_7c15);
        let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        file.write_all(&bytes).expect("room");
    }
}

fn mapped(path: &str) -> &'static [u64] {
    let file = File::open(path).expect("a file to read");
    let bytes = file.metadata().expect("its size").len() as usize;
    // SAFETY: a new mapping of a file that nobody shortens.
    unsafe {
        let null = std::ptr::null_mut();
        let address = libc::mmap(
            null,
            bytes,
            libc::PROT_READ,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(address, libc::MAP_FAILED);
        std::slice::from_raw_parts(address.cast(), bytes / 8)
    }
}

/// One word of each line.
fn sum(words: &[u64]) -> u64 {
    words
        .iter()
        .step_by(LINE)
        .fold(0, |sum, word| sum.wrapping_add(*word))
}

fn read(path: &str, share: usize, settle: Duration, measure: Duration, how: &str, number: usize) {
    let whole = mapped(path);
    let size = whole.len() / share;
    let at = if how == "apart" { number * size } else { 0 };
    let part = &whole[at..at + size];
    let copy;
    let words = match how == "own" {
        true => {
            copy = part.to_vec();
            &copy[..]
        }
        false => part,
    };
    let expected = sum(words);
    let start = Instant::now();
    while start.elapsed() < settle {
        assert_eq!(std::hint::black_box(sum(words)), expected);
    }
    let start = Instant::now();
    let mut rounds = 0u64;
    while start.elapsed() < measure {
        assert_eq!(std::hint::black_box(sum(words)), expected);
        rounds += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    let mbs = (rounds as usize * size_of_val(words)) as f64 / seconds / 1e6;
    println!("read {mbs:.1} MB/s in {seconds:.3} s, checksum {expected:016x}");
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<usize>().expect("a number");
    let time = |word: &str| Duration::from_millis(number(word) as u64);
    match words[..] {
        ["make", path, mb, cpu] => {
            pin(number(cpu));
            make(path, number(mb));
        }
        ["read", path, cpu, share, settle, measure, ref rest @ ..] => {
            pin(number(cpu));
            read(
                path,
                number(share),
                time(settle),
                time(measure),
                rest.first().copied().unwrap_or(""),
                number(cpu),
            );
        }
        _ => panic!(
            "mapped make FILE MB CPU | mapped read FILE CPU SHARE SETTLE_MS MEASURE_MS [own|apart]"
        ),
    }
}
