//! What one sample costs the tracker in the steady state: `cargo bench -p hither-linux`.
//!
//! A fake `/proc` holds one process with 64 MiB; every interval brings 10,000 samples spread over
//! its pages, as at full sampling. Prints ns per sample and the share of one CPU that 100,000
//! samples a second would take.

use hither_core::ids::NodeId;
use hither_linux::proc::tree::Tree;
use hither_linux::root::Root;
use hither_linux::tracker::aggregate::{Access, Aggregator};
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::time::Instant;

const PAGES: u64 = 16_384;
const SAMPLES: u64 = 10_000;
const INTERVALS: u64 = 200;
const FIRST: u64 = 0x7_f000_0000;

fn main() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path();
    for (pid, children) in [(1, "50"), (50, "")] {
        let task = root.join(format!("proc/{pid}/task/{pid}"));
        fs::create_dir_all(&task).expect("a folder");
        fs::write(task.join("children"), children).expect("a file");
    }
    let stat = "50 (app) S 1 1 1 0 -1 0 0 0 0 0 5 6 0 0 20 0 1 0 777 4096 99 0\n";
    fs::write(root.join("proc/50/stat"), stat).expect("a file");
    let mut map = fs::File::create(root.join("proc/50/pagemap")).expect("a file");
    map.seek(SeekFrom::Start(FIRST * 8)).expect("a sparse file");
    let entries: Vec<u8> = (0..PAGES)
        .flat_map(|page| (1 << 63 | (page + 1)).to_ne_bytes())
        .collect();
    map.write_all(&entries).expect("the map");
    let mut tree = Tree::new(Root::new(root), 1);
    tree.refresh(0).expect("the fake process");
    let mut aggregator = Aggregator::new(true);
    let mut pages = Vec::new();
    let mut random = 1u64;
    let mut interval = |intervals: u64| {
        let start = Instant::now();
        for _ in 0..intervals {
            aggregator.begin(&mut pages);
            for time_ns in 0..SAMPLES {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let page = (random >> 33) % PAGES;
                let access = Access {
                    page: FIRST + page,
                    frame: page + 1,
                    from: (random >> 60 & 3) as usize,
                    home: NodeId((page & 3) as u32),
                    write: random & 1 << 40 != 0,
                    time_ns,
                };
                aggregator.add(&access, &mut pages);
            }
            let found = aggregator.finish(&mut tree, &mut pages, &mut Vec::new());
            assert_eq!(found.attributed, SAMPLES, "every sample is the process's");
        }
        start.elapsed().as_nanos() as f64 / (intervals * SAMPLES) as f64
    };
    let first_ns = interval(1);
    let steady_ns = interval(INTERVALS);
    println!("first interval {first_ns:.0} ns per sample, page maps read");
    println!("steady state {steady_ns:.0} ns per sample");
    println!(
        "100,000 samples a second: {:.2} % of one CPU",
        steady_ns * 1e5 / 1e9 * 100.0
    );
}
