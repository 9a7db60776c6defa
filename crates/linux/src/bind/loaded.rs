//! Programs of a run that did not load the preload shim, and why.
//!
//! Problem: what does not load it is not placed and not recorded, and nothing fails. Mechanism: the
//! mappings of a process tell whether it has the shim; its environment, which of the ways out it
//! took. Processes that end between two looks are not seen.

use crate::proc::{maps, stat};
use crate::root::Root;
use hither_core::foreign::Foreign;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Time to the first look, in us; each next one is twice as far, up to the last.
const FIRST_LOOK_US: u64 = 2_000;
const LAST_LOOK_US: u64 = 10_000_000;
/// Names that are told of each reason.
const MOST_NAMES: usize = 4;
/// Entry of the auxiliary vector (`getauxval(3)`): the program has more rights than who started it.
const AT_SECURE: u64 = 23;
/// Bytes of a program's head that are read: its header, and those of its segments.
const HEAD_BYTES: u64 = 4096;

/// Why a program did not load the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// Its environment has nothing of hither's.
    Cleared,
    /// Its environment has what the shim is told, and another `LD_PRELOAD`.
    Replaced,
    /// Nothing is preloaded into it: no dynamic linker runs.
    Static,
    /// It has rights of its own (setuid, file capabilities), or is another user's.
    Privileged,
    /// It has addresses of 32 bits.
    Narrow,
}

impl Why {
    /// One word, for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cleared => "environment",
            Self::Replaced => "ld_preload",
            Self::Static => "static",
            Self::Privileged => "privileged",
            Self::Narrow => "32-bit",
        }
    }

    /// Half a sentence about programs, with what to do.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Cleared => {
                "started with an environment of its own (env -i, sudo): start hither inside, or have \
                 env keep LD_PRELOAD and the variables HITHER_*"
            }
            Self::Replaced => {
                "started by somebody who set LD_PRELOAD anew: start hither inside, or have that append \
                 to it (LD_PRELOAD=$LD_PRELOAD:mine)"
            }
            Self::Static => "linked statically: nothing can be preloaded",
            Self::Privileged => {
                "setuid, of another user or with capabilities: nothing is preloaded"
            }
            Self::Narrow => "built for 32 bits: the shim is not",
        }
    }
}

/// Who did not load the shim, over a run.
#[derive(Debug, Default)]
pub struct Missed {
    names: BTreeMap<Why, BTreeSet<String>>,
    next_us: u64,
    pause_us: u64,
}

impl Missed {
    /// When to look next, in the time of [`Missed::turn`].
    #[must_use]
    pub fn next_us(&self) -> u64 {
        self.next_us.max(FIRST_LOOK_US)
    }

    /// Looks at processes if it is time. `variable` is that by which the shim is told what to do.
    pub fn turn(&mut self, now_us: u64, root: &Root, pids: &[i32], shim: &Path, variable: &str) {
        if now_us < self.next_us() {
            return;
        }
        for &pid in pids {
            if let Some(why) = look(root, pid, shim, variable)
                && let Some(stat) = stat::read(root, pid)
            {
                self.names.entry(why).or_default().insert(stat.name);
            }
        }
        self.pause_us = (2 * self.pause_us).clamp(FIRST_LOOK_US, LAST_LOOK_US);
        self.next_us = now_us + self.pause_us;
    }

    /// A sentence for each reason.
    #[must_use]
    pub fn told(&self) -> Vec<String> {
        let sentence = |(why, names): (&Why, &BTreeSet<String>)| {
            let first: Vec<String> = names
                .iter()
                .take(MOST_NAMES)
                .map(|name| name.shown().to_string())
                .collect();
            let more = match names.len().saturating_sub(MOST_NAMES) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!(
                "shim: not loaded by {}{more}, {}",
                first.join(", "),
                why.reason()
            )
        };
        self.names.iter().map(sentence).collect()
    }

    /// Reasons with the names of programs.
    pub fn names(&self) -> impl Iterator<Item = (Why, Vec<&str>)> {
        let all = self.names.iter();
        all.map(|(why, names)| (*why, names.iter().map(String::as_str).collect()))
    }
}

/// `None`: it has loaded the shim, is about to, or has ended.
fn look(root: &Root, pid: i32, shim: &Path, variable: &str) -> Option<Why> {
    let mappings = match maps::read(root, pid) {
        Ok(mappings) => mappings,
        Err(error) => {
            return matches!(error.errno(), Some(libc::EACCES | libc::EPERM))
                .then_some(Why::Privileged);
        }
    };
    let is_shim = |name: &str| Path::new(name) == shim;
    if mappings.is_empty() || mappings.iter().any(|mapping| is_shim(&mapping.name)) {
        return None;
    }
    let file = |name: &str| head(root, &format!("proc/{pid}/{name}"), 1 << 20);
    let environment = file("environ")?;
    // Neither: it is just being executed.
    if environment.is_empty() && file("cmdline")?.is_empty() {
        return None;
    }
    let of = |wanted: &str| {
        let mut words = environment.split(|byte| *byte == 0);
        words.find_map(|word| word.strip_prefix(wanted.as_bytes())?.strip_prefix(b"="))
    };
    let names_shim = |value: &[u8]| {
        let mut paths = value.split(|byte| matches!(byte, b':' | b' '));
        paths.any(|path| path == shim.as_os_str().as_bytes())
    };
    match (of(variable), of("LD_PRELOAD")) {
        (None, _) => Some(Why::Cleared),
        (Some(_), value) if !value.is_some_and(names_shim) => Some(Why::Replaced),
        _ if is_secure(&file("auxv")?) => Some(Why::Privileged),
        _ => by_program(&head(root, &format!("proc/{pid}/exe"), HEAD_BYTES)?),
    }
}

fn head(root: &Root, below: &str, most: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(root.path(below)).ok()?;
    file.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Pairs of numbers: what, and its value.
fn is_secure(auxiliary: &[u8]) -> bool {
    let word = |pair: &[u8], at: usize| {
        let bytes = pair.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_ne_bytes(bytes))
    };
    let mut pairs = auxiliary.chunks_exact(16);
    pairs.any(|pair| word(pair, 0) == Some(AT_SECURE) && word(pair, 8) != Some(0))
}

/// Why a program can preload nothing, by its head. Source: elf(5).
fn by_program(head: &[u8]) -> Option<Why> {
    const CLASS: usize = 4;
    const INTERPRETER: u32 = 3;
    if head.get(..4)? != b"\x7fELF" {
        return None;
    }
    if head.get(CLASS)? != &2 {
        return Some(Why::Narrow);
    }
    let half = |at: usize| Some(u16::from_ne_bytes(head.get(at..at + 2)?.try_into().ok()?));
    let start = u64::from_ne_bytes(head.get(32..40)?.try_into().ok()?) as usize;
    let (bytes, count) = (usize::from(half(54)?), usize::from(half(56)?));
    for segment in 0..count {
        let at = start.checked_add(segment * bytes)?;
        let kind = head.get(at..at.checked_add(4)?)?;
        if u32::from_ne_bytes(kind.try_into().ok()?) == INTERPRETER {
            // It may not have come to it yet.
            return None;
        }
    }
    Some(Why::Static)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_head_of_a_program_tells_who_loads_nothing() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(by_program(&own[..4096]), None);
        let mut static_one = own[..64].to_vec();
        static_one[56..58].copy_from_slice(&[0, 0]);
        assert_eq!(by_program(&static_one), Some(Why::Static));
        static_one[4] = 1;
        assert_eq!(by_program(&static_one), Some(Why::Narrow));
        for none in [&b"#!/bin/sh\n"[..], b"", b"\x7fELF"] {
            assert_eq!(by_program(none), None);
        }
        let secure: Vec<u8> = [6, 4096, 23, 1]
            .iter()
            .flat_map(|n: &u64| n.to_ne_bytes())
            .collect();
        assert!(is_secure(&secure) && !is_secure(&secure[..16]) && !is_secure(b""));
    }

    #[test]
    fn environments_tell_who_was_left_out() {
        let shim = Path::new("/opt/shim.so");
        let why = |change: &dyn Fn(&mut Command)| {
            let mut command = Command::new("sleep");
            command
                .arg("60")
                .env("HITHER_TEST", "1")
                .env("LD_PRELOAD", "");
            change(&mut command);
            let mut child = command.spawn().unwrap();
            let pid = child.id() as i32;
            // Until it is itself, it is a copy of this process.
            let words = format!("/proc/{pid}/cmdline");
            while std::fs::read(&words).is_ok_and(|words| !words.starts_with(b"sleep")) {
                std::thread::yield_now();
            }
            let why = look(&Root::host(), pid, shim, "HITHER_TEST");
            child.kill().unwrap();
            child.wait().unwrap();
            why
        };
        assert_eq!(
            why(&|command| {
                command.env_clear();
            }),
            Some(Why::Cleared)
        );
        assert_eq!(why(&|_| ()), Some(Why::Replaced));
        assert_eq!(
            why(&|command| {
                command.env("LD_PRELOAD", "/lib/x.so");
            }),
            Some(Why::Replaced)
        );
        // It has been told, and may come to it.
        assert_eq!(
            why(&|command| {
                command.env("LD_PRELOAD", "/a.so:/opt/shim.so");
            }),
            None
        );
        assert_eq!(look(&Root::host(), i32::MAX, shim, "HITHER_TEST"), None);
    }
}
