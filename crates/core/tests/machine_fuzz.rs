//! Fuzzing of the machine-file reader: mutations of good files never panic, every refusal says
//! where, and whatever is accepted keeps its promises and survives being written down.
//!
//! `HITHER_FUZZ_INPUTS` sets the number of inputs (default 20000), `HITHER_FUZZ_SEED` the seed.

use hither_core::machine::Machine;
use hither_core::machine::parse::parse;
use hither_core::machine::scale::{scale, with_total_memory_mb};
use hither_core::machine::write::to_toml;
use proptest::prelude::*;

/// SplitMix64: small, seeded, good enough to choose mutations.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

fn good_files() -> Vec<String> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let texts = paths
        .into_iter()
        .map(|path| std::fs::read_to_string(path).unwrap());
    // Without their comments: else most mutations would hit one.
    let bare = |text: String| -> String {
        let lines = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or("").trim_end());
        lines
            .filter(|line| !line.is_empty())
            .map(|line| format!("{line}\n"))
            .collect()
    };
    let mut files: Vec<String> = texts.map(bare).collect();
    // The written form has what no file uses: listed domains, one-way links, routes.
    let written: Vec<String> = files
        .iter()
        .map(|text| to_toml(&parse(text).unwrap()))
        .collect();
    files.extend(written);
    files
}

const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1",
    "3",
    "1e308",
    "-1e308",
    "1e-320",
    "nan",
    "inf",
    "-inf",
    "0x10",
    "1_000",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775807",
    "4294967296",
    "0.5",
    "254",
    "65535",
    "true",
    "\"7\"",
    "[]",
    "[[1, 2]]",
    "{}",
    "1979-05-27",
    "[0, 0]",
    "[63, 1]",
];
const TOKENS: &[&str] = &[
    "=",
    "[",
    "]",
    "[[",
    "]]",
    "\"",
    "'",
    "'''",
    "{",
    "}",
    ",",
    ".",
    "#",
    "\n",
    "\r\n",
    "\0",
    "\u{7f}",
    "\u{feff}",
    "node",
    "[[node]]\n",
    "[[link]]\n",
    "[[domain]]\n",
    "[[route]]\n",
    "between = [0, 1]\n",
    "from = 1\n",
    "cpus = \"0-1023\"\n",
    "share = 0.5\n",
    "via = [1]\n",
    "route_split = 0.9\n",
    "distances = [[10]]\n",
    "id = 9\n",
    "tier = 0\n",
    "curve.n = 2\n",
];

fn mutate(random: &mut Random, text: &str, other: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    // Half of the inputs have one fault: with several, the first hides the others.
    let mutations = if random.below(2) == 0 {
        1
    } else {
        1 + random.below(4)
    };
    for _ in 0..mutations {
        let at = random.below(bytes.len());
        match random.below(10) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 => {
                let end = (at + random.below(30)).min(bytes.len());
                bytes.drain(at..end);
            }
            2 => drop(bytes.splice(at..at, random.pick(TOKENS).bytes())),
            3..=6 => edit_number(random, &mut bytes, at),
            7 => swap_lines(random, &mut bytes),
            8 => {
                let from = random.below(other.len());
                let piece = &other.as_bytes()[from..(from + random.below(200)).min(other.len())];
                bytes.splice(at..at, piece.iter().copied());
            }
            _ => edit_line(random, &mut bytes, at),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Replaces the number that follows `at`.
fn edit_number(random: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    let Some(start) = (at..bytes.len()).find(|&i| bytes[i].is_ascii_digit()) else {
        return;
    };
    let is_number = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let length = bytes[start..]
        .iter()
        .take_while(|byte| is_number(byte))
        .count();
    let number = match random.below(4) {
        0 => random.below(300).to_string(),
        1 => format!("{:.3}", random.below(4000) as f64 / 1000.0),
        2 => format!("{}", 1_u64 << random.below(40)),
        _ if random.below(3) == 0 => format!("{:?}", f64::from_bits(random.next())),
        _ => random.pick(NUMBERS).to_owned(),
    };
    bytes.splice(start..start + length, number.bytes());
}

fn swap_lines(random: &mut Random, bytes: &mut Vec<u8>) {
    let mut lines: Vec<Vec<u8>> = bytes
        .split(|&byte| byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect();
    let (a, b) = (random.below(lines.len()), random.below(lines.len()));
    lines.swap(a, b);
    *bytes = lines.join(&b'\n');
}

/// Deletes or doubles the line at `at`.
fn edit_line(random: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    let start = bytes[..at]
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |end| end + 1);
    let length = bytes[at..]
        .iter()
        .position(|&byte| byte == b'\n')
        .map_or(0, |end| end + 1);
    let line = bytes[start..at + length].to_vec();
    if random.below(2) == 0 {
        bytes.drain(start..at + length);
    } else {
        bytes.splice(start..start, line);
    }
}

/// Parses; checks the refusal or the machine. Says whether it was accepted.
fn check(text: &str) -> bool {
    match parse(text) {
        Err(error) => {
            assert!(error.line > 0, "{error}\n{text}");
            assert!(error.line <= text.lines().count() + 1, "{error}\n{text}");
            assert!(
                !error.field.is_empty() || error.problem.len() > 10,
                "{error}\n{text}"
            );
            assert!(!error.remedy.is_empty(), "{error}\n{text}");
            assert!(
                error.to_string().chars().all(|c| !c.is_control()),
                "{error:?}\n{text}"
            );
            false
        }
        Ok(machine) => {
            check_promises(&machine);
            assert_eq!(parse(&to_toml(&machine)).unwrap(), machine, "{text}");
            true
        }
    }
}

fn check_promises(machine: &Machine) {
    let nodes = machine.nodes.len();
    assert!(machine.cpu_count() > 0);
    assert!(machine.nodes.windows(2).all(|pair| pair[0].id < pair[1].id));
    let in_domains: usize = machine.domains.iter().map(|domain| domain.cpus.len()).sum();
    assert_eq!(in_domains, machine.cpu_count());
    for from in 0..nodes {
        for to in 0..nodes {
            let routes = &machine.routes[from][to];
            assert!((routes.iter().map(|route| route.share).sum::<f64>() - 1.0).abs() < 1e-5);
            for route in routes {
                let mut at = from;
                for &link in &route.links {
                    assert_eq!(machine.links[link].from, at);
                    at = machine.links[link].to;
                }
                assert_eq!(at, to);
            }
            assert_eq!(machine.distances[from][to] == 10, from == to);
            assert!(machine.idle_latency_ns(from, to).is_finite());
        }
    }
    for cpus in [1, 2, 5, 8, 16] {
        if let Ok(scaled) = scale(machine, cpus) {
            assert_eq!(scaled.cpu_count(), cpus);
            assert_eq!(parse(&to_toml(&scaled)).unwrap(), scaled);
            if let Ok(small) = with_total_memory_mb(&scaled, 4096) {
                assert_eq!(parse(&to_toml(&small)).unwrap(), small);
            }
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

#[test]
fn mutated_files_never_panic_and_refusals_say_where() {
    let (inputs, seed) = (
        setting("HITHER_FUZZ_INPUTS", 20_000),
        setting("HITHER_FUZZ_SEED", 1),
    );
    let files = good_files();
    let mut random = Random(seed);
    let mut accepted = 0_u64;
    for _ in 0..inputs {
        let (file, other) = (random.below(files.len()), random.below(files.len()));
        accepted += u64::from(check(&mutate(&mut random, &files[file], &files[other])));
    }
    println!("machine files: seed {seed}, {inputs} inputs, {accepted} accepted");
    // Fuzzing that accepts nothing, or refuses nothing, tests only half.
    assert!(
        accepted > inputs / 100 && accepted < inputs,
        "{accepted} of {inputs} accepted"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,400}") {
        check(&text);
    }

    #[test]
    fn arbitrary_replacements_never_panic(
        file in 0_usize..7,
        at in 0.0_f64..1.0,
        length in 0_usize..40,
        piece in "[\\PC\n]{0,40}",
    ) {
        let text: Vec<char> = good_files()[file].chars().collect();
        let start = (at * text.len() as f64) as usize;
        let end = (start + length).min(text.len());
        let mutated: String =
            text[..start].iter().copied().chain(piece.chars()).chain(text[end..].iter().copied()).collect();
        check(&mutated);
    }
}
