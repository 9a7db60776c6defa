//! Damaged sysfs and procfs texts: nothing panics, errors have a place, what is accepted holds
//! together.
//!
//! `HITHER_FUZZ_INPUTS` sets the number of inputs (5,000 by default), `HITHER_FUZZ_SEED` the seed,
//! which is printed. One input is one file of a captured machine with some mutations, given to
//! that file's parser; every 250th is written into a copy of its machine, which is read whole.

use hither_core::ids::{CpuId, NodeId};
use hither_core::rset::Level;
use hither_core::set::{CpuSet, NodeSet};
use hither_linux::error::Fault;
use hither_linux::parse;
use hither_linux::proc::{allowed, maps, numa_maps, stat};
use hither_linux::resources;
use hither_linux::root::Root;
use hither_linux::topology::{Topology, parse_switch};
use std::fs;
use std::path::{Path, PathBuf};

/// A small generator with a period of 2^64 (SplitMix64, Steele and others, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Texts that tend to break parsers.
const NASTY: &[&str] = &[
    "-1",
    "18446744073709551616",
    "4294967296",
    "0x10",
    "9999999999999999999999",
    "0-65535",
    "0-65536",
    "\0",
    "\u{feff}",
    "NaN",
    "1e9",
    " ",
    "\n",
    "\t",
    "-",
    ",",
    ",,",
    "0-",
    "-0",
    "kB",
    "K",
    "[",
    "]",
    "[]",
    "()",
    ")",
    "=",
    "N0=",
    "Node",
    "node",
    "٣",
];

fn mutate(random: &mut Random, seed: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = (at + random.below(12)).min(bytes.len());
        match random.below(8) {
            0 if !bytes.is_empty() => {
                let at = at.min(bytes.len() - 1);
                bytes[at] ^= 1 << random.below(8);
            }
            1 => drop(bytes.drain(at..end)),
            2 => drop(bytes.splice(at..at, NASTY[random.below(NASTY.len())].bytes())),
            3 => drop(bytes.splice(at..end, NASTY[random.below(NASTY.len())].bytes())),
            4 => {
                let copy = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            5 => bytes.truncate(at),
            6 => drop(bytes.splice(at..end, random.next().to_string().into_bytes())),
            _ => {
                let from = random.below(other.len() + 1);
                let to = (from + random.below(40)).min(other.len());
                drop(bytes.splice(at..end, other[from..to].iter().copied()));
            }
        }
    }
    bytes
}

/// Gives a text to the parser of a file of this name; what is accepted must hold together.
fn parse_file(path: &Path, text: &str) {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("");
    let place = |fault: Fault| {
        assert!(fault.line >= 1 && !fault.reason.is_empty(), "{fault:?}");
        assert!(
            fault.reason.len() < 1000,
            "a message of {} bytes",
            fault.reason.len()
        );
    };
    match name {
        "online" | "offline" | "present" | "possible" | "cpulist" | "shared_cpu_list"
        | "core_cpus_list" => {
            parse::list::<CpuId>(text).map_or_else(place, |set| {
                assert_eq!(set.to_string().parse::<CpuSet>().as_ref(), Ok(&set));
            });
        }
        "nodelist" | "has_memory" | "has_cpu" => {
            parse::list::<NodeId>(text).map_or_else(place, |set| {
                assert_eq!(set.to_string().parse::<NodeSet>().as_ref(), Ok(&set));
            });
        }
        "distance" => parse::distances(text).map_or_else(place, |distances| {
            assert!(
                distances
                    .iter()
                    .all(|distance| (10..=255).contains(distance))
            );
        }),
        "meminfo" => {
            parse::node_meminfo(text, 0).map_or_else(place, |m| assert!(m.free_kb <= m.total_kb));
            parse::proc_meminfo(text).map_or_else(place, |_| ());
        }
        "size" => parse::cache_size_kb(text).map_or_else(place, |size| assert!(size < 1 << 40)),
        "class" | "vendor" => parse::prefixed_hex(text).map_or_else(place, |_| ()),
        "status" => allowed::parse(text).map_or_else(place, |_| ()),
        "physical_package_id" | "numa_node" => parse::signed(text).map_or_else(place, |_| ()),
        "enabled" => parse::chosen(text).map_or_else(place, |word| assert!(text.contains(&word))),
        "auto" | "__auto_type" | "demotion_enabled" => {
            parse_switch(text).map_or_else(place, |_| ())
        }
        "numa_maps" => {
            numa_maps::parse(text).map_or_else(place, |maps| drop(numa_maps::totals(&maps)))
        }
        "maps" => maps::parse(text).map_or_else(place, |mappings| {
            assert!(mappings.is_sorted_by_key(|mapping| mapping.range.start));
        }),
        "stat" => stat::parse(text).map_or_else(place, |_| ()),
        _ => parse::number(text).map_or_else(place, |number| {
            assert_eq!(
                text.trim()
                    .trim_start_matches(['+', '0'])
                    .parse()
                    .unwrap_or(0),
                number
            );
        }),
    }
}

struct Seed {
    /// Below its machine's folder.
    path: PathBuf,
    machine: usize,
    bytes: Vec<u8>,
}

/// Files become seeds; links, which lead from names of devices to their places, are copied.
fn gather(folder: &Path, base: &Path, copy: &Path, machine: usize, seeds: &mut Vec<Seed>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(Result::unwrap).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            gather(&entry.path(), base, copy, machine, seeds);
        } else if kind.is_symlink() {
            let path = copy.join(entry.path().strip_prefix(base).unwrap());
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(fs::read_link(entry.path()).unwrap(), path).unwrap();
        } else if kind.is_file() && entry.file_name() != "topo.txt" {
            let bytes = fs::read(entry.path()).unwrap();
            seeds.push(Seed {
                path: entry.path().strip_prefix(base).unwrap().into(),
                machine,
                bytes,
            });
        }
    }
}

/// Seeds from procfs, which no captured machine holds.
fn process_seeds(seeds: &mut Vec<Seed>) {
    let texts: [(&str, &str); 4] = [
        (
            "status",
            "Name:\tcat\nCpus_allowed_list:\t0-1,4\nMems_allowed_list:\t0,8\n",
        ),
        (
            "numa_maps",
            "7f2c8c000000 default anon=33 dirty=33 N0=21 N1=12 kernelpagesize_kB=4\n7f2c94000000 bind:0 file=/a huge N0=2 kernelpagesize_kB=2048\n",
        ),
        (
            "maps",
            "55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0   [heap]\n7fff0000-7fff1000 r-xp 0 08:01 7 /bin/x\n",
        ),
        (
            "stat",
            "1234 (my (app) x) S 1 1234 1234 0 -1 4194304 99 0 0 0 12 3 0 0 20 0 1 0 8342 2457600 225 18446744073709551615 1 1\n",
        ),
    ];
    for (path, text) in texts {
        // Often enough to matter beside hundreds of sysfs files.
        for _ in 0..20 {
            seeds.push(Seed {
                path: path.into(),
                machine: usize::MAX,
                bytes: text.into(),
            });
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a whole number"))
}

/// The machine whose `seed` file holds `bytes` is read whole, and put right again.
fn read_whole(copies: &[tempfile::TempDir], seed: &Seed, bytes: &[u8]) -> bool {
    let folder = copies[seed.machine].path();
    let path = folder.join(&seed.path);
    fs::write(&path, bytes).unwrap();
    let root = Root::new(folder);
    let read = Topology::read(&root).and_then(|topology| {
        let resources = resources::read(&root, &topology)?;
        Ok((topology, resources))
    });
    let accepted = match read {
        Ok((topology, resources)) => {
            let machine = resources.machine();
            assert_eq!(machine.cpus, topology.online);
            for level in Level::ALL {
                for (number, part) in resources.parts(level) {
                    assert!(part.is_subset(&machine), "{level:?} {number}");
                }
            }
            let count = topology.nodes.len();
            assert!(
                topology.distances.len() == count
                    && topology.distances.iter().all(|row| row.len() == count)
            );
            for cpu in topology.online.iter() {
                // A CPU of no node is told by a note.
                let is_told = topology
                    .notes
                    .iter()
                    .any(|note| note.contains("in no node's"));
                assert!(topology.node_of_cpu(cpu).is_some() || is_told, "{cpu}");
                assert_eq!(
                    topology
                        .domains
                        .iter()
                        .filter(|d| d.cpus.contains(cpu))
                        .count(),
                    1,
                    "{cpu}"
                );
            }
            true
        }
        Err(error) => {
            assert!(
                error.to_string().starts_with(&folder.display().to_string()),
                "{error}"
            );
            assert!(!error.remedy.is_empty(), "{error}");
            false
        }
    };
    fs::write(&path, &seed.bytes).unwrap();
    accepted
}

#[test]
fn damaged_files_are_errors_and_never_panics() {
    let inputs = setting("HITHER_FUZZ_INPUTS", 5_000);
    let seed = setting("HITHER_FUZZ_SEED", 0x6869_7468_6572);
    println!("seed {seed}, {inputs} inputs");
    let machines = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines");
    let mut names: Vec<_> = fs::read_dir(&machines)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    names.sort();
    let mut seeds = Vec::new();
    let mut copies = Vec::new();
    for (machine, path) in names.iter().enumerate() {
        copies.push(tempfile::tempdir().unwrap());
        gather(path, path, copies[machine].path(), machine, &mut seeds);
    }
    for seed in &seeds {
        let path = copies[seed.machine].path().join(&seed.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &seed.bytes).unwrap();
    }
    let files = seeds.len();
    assert!(files > 300, "{files} seed files");
    process_seeds(&mut seeds);
    let mut random = Random(seed);
    let (mut whole, mut accepted) = (0, 0);
    for input in 0..inputs {
        let (chosen, other) = (random.below(seeds.len()), random.below(seeds.len()));
        let bytes = mutate(&mut random, &seeds[chosen].bytes, &seeds[other].bytes);
        parse_file(&seeds[chosen].path, &String::from_utf8_lossy(&bytes));
        if input % 250 == 0 && seeds[chosen].machine < copies.len() {
            whole += 1;
            accepted += u64::from(read_whole(&copies, &seeds[chosen], &bytes));
        }
    }
    println!("{whole} whole machines read, {accepted} of them accepted");
    assert!(
        inputs < 2_000 || whole > accepted,
        "some damage must be noticed"
    );
}
