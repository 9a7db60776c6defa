//! Texts that others wrote, changed: partition files, resource sets, lists of numactl and the files of
//! processes. Each is read or refused, and nothing panics.
//!
//! `HITHER_FUZZ_INPUTS` sets the number of inputs (1,000 by default), `HITHER_FUZZ_SEED` the seed.

use hither_core::partition::file;
use hither_core::rset::{Resources, parse as sets};
use hither_linux::proc::{allowed, cpu_times, maps, numa_maps, stat};
use hither_linux::resources;
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use std::path::Path;

const PARTITIONS: &str = r#"format = "hither.partitions/1"
interrupts = "rest"
workqueues = "leave"
unused = "rest"
[rest]
on = "node:0"
[[partition]]
name = "db"
on = "node:1-3"
kind = "root"
[partition.goal]
min_nodes = 1
max_nodes = 3
priority = 10
cpu_above = 0.9
schedule = [{ from = "22:00", to = "06:00", nodes = 3 }]
"#;

const MAPS: &str = "\
55d0c0000000-55d0c0800000 rw-p 00000000 08:01 1234  /usr/bin/a b (deleted)
7ffd1c000000-7ffd1c021000 rw-p 00000000 00:00 0     [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
";
const NUMA_MAPS: &str = "\
55d0c0000000 default file=/usr/bin/a\\040b mapped=3 mapmax=2 N0=2 N1=1 kernelpagesize_kB=4
7ffd1c000000 bind:0-1 heap anon=512 dirty=512 N0=512 huge kernelpagesize_kB=2048
";
const STAT: &str = "1234 (my (app) x) S 77 1234 1234 0 -1 4194304 99 0 0 0 12 3 40 2 20 0 1 0 8342 2457600 \
                    225 18446744073709551615 1 1\n";
const STATUS: &str = "Name:\tapp\nCpus_allowed:\tff,ffffffff\nCpus_allowed_list:\t0-39\n\
                      Mems_allowed:\t3\nMems_allowed_list:\t0-1\n";
const CPUS: &str = "cpu  10 20 30 40 50 60 70 0 0 0\ncpu0 1 2 3 4 5 6 7 0 0 0\nintr 1 2 3\n";
const SET: &str = "(node:0-1 + tier:0) & machine - cpus:3 + near:gpu0 + fastest:64G";

/// Words that break readers, put where others were.
const NASTY: [&str; 14] = [
    "-1",
    "18446744073709551616",
    "4294967295",
    "0xffffffffffffffff",
    "1e400",
    "nan",
    "\"",
    "((((((((",
    "[",
    "\u{0}",
    "\u{202e}",
    "\n",
    "-",
    "0-4294967295",
];

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit.max(1) as u64) as usize
    }
}

fn mutate(random: &mut Random, text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..1 + random.below(3) {
        let at = random.below(bytes.len());
        let end = (at + random.below(9)).min(bytes.len());
        match random.below(4) {
            0 => bytes.truncate(at),
            1 => drop(bytes.splice(at..end, NASTY[random.below(NASTY.len())].bytes())),
            2 => {
                let piece = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, piece);
            }
            _ => bytes[at] ^= 1 << random.below(8),
        }
        if bytes.is_empty() {
            bytes.push(b' ');
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn machine() -> Resources {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines");
    let root = Root::new(folder.join("four-node-hmat"));
    let topology = Topology::read(&root).unwrap();
    resources::read(&root, &topology).unwrap()
}

fn setting(name: &str, default: u64) -> u64 {
    let set = std::env::var(name);
    set.map_or(default, |text| text.parse().expect("a whole number"))
}

/// Was it read? A text to what came of it, as none of them may be refused by a panic.
type Reader<'a> = Box<dyn Fn(&str) -> bool + 'a>;

#[test]
fn texts_that_were_changed_are_read_or_refused() {
    let machine = machine();
    let readers: [(&str, &str, Reader<'_>); 7] = [
        (
            "partition files",
            PARTITIONS,
            Box::new(|text| match file::read(text, &machine) {
                Ok(_) => true,
                Err(fault) => {
                    assert!(fault.line >= 1 && !fault.reason.is_empty(), "{text}");
                    false
                }
            }),
        ),
        (
            "resource sets",
            SET,
            Box::new(|text| sets::parse(text).is_ok()),
        ),
        ("maps", MAPS, Box::new(|text| maps::parse(text).is_ok())),
        (
            "numa_maps",
            NUMA_MAPS,
            Box::new(|text| numa_maps::parse(text).is_ok()),
        ),
        ("stat", STAT, Box::new(|text| stat::parse(text).is_ok())),
        (
            "status",
            STATUS,
            Box::new(|text| allowed::parse(text).is_ok()),
        ),
        (
            "times of CPUs",
            CPUS,
            Box::new(|text| cpu_times::parse(text).is_ok()),
        ),
    ];
    let inputs = setting("HITHER_FUZZ_INPUTS", 1_000);
    let seed = setting("HITHER_FUZZ_SEED", 1);
    for (what, whole, reads) in readers {
        let mut random = Random(seed);
        assert!(reads(whole), "{what}: {whole}");
        let mut accepted = 0;
        for _ in 0..inputs {
            accepted += u64::from(reads(&mutate(&mut random, whole)));
        }
        println!("{what}: seed {seed}, {inputs} inputs, {accepted} accepted");
        assert!(accepted < inputs, "{what}: nothing was refused");
    }
}
