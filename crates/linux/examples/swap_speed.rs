//! scratch
use hither_core::ids::{NodeId, Pid};
use hither_linux::backend::{
    kernel::KernelBackend,
    swap::{Config, Limits, SwapBackend},
};
use hither_linux::sys;
use hither_mover::{Action, Backend, Job, Pages, Race};
use std::time::Instant;
fn cpu() -> u64 {
    let u = sys::own_usage();
    u.user_us + u.system_us
}
fn main() {
    let nodes: u32 = std::env::args().nth(1).map_or(1, |a| a.parse().unwrap());
    let total: u64 = std::env::args()
        .nth(2)
        .map_or(256 << 20, |a| a.parse::<u64>().unwrap() << 20);
    for huge in [false, true] {
        for size in [64u64 << 10, 1 << 20, 16 << 20] {
            if huge && size < (2 << 20) {
                continue;
            }
            let area = sys::Area::new((64 << 20).min(total), huge).unwrap();
            sys::with_preferred_node(0, || sys::fill(&area.range())).unwrap();
            let span = area.range();
            let mut swap = SwapBackend::new(Config {
                in_place: nodes == 1,
                limits: Limits {
                    stock_bytes: 256 << 20,
                    idle_ms: 20000,
                },
                ..Config::default()
            })
            .unwrap();
            let mut kernel = KernelBackend::new();
            let len = span.end - span.start;
            for node in 0..nodes {
                swap.warm(
                    NodeId(node),
                    if huge { 0 } else { size },
                    if huge { size } else { 0 },
                );
            }
            for way in ["both", "one"] {
                for name in ["swap", "kernel"] {
                    if name == "kernel" && nodes == 1 {
                        continue;
                    }
                    let backend: &mut dyn Backend = if name == "swap" {
                        &mut swap
                    } else {
                        &mut kernel
                    };
                    let mut moved = 0u64;
                    let mut failed = 0u64;
                    let mut to = 1 % nodes;
                    let (mut clock, mut used, mut count) = (0u128, 0u64, 0);
                    let mut offset = 0;
                    let mut done = 0;
                    while done < total + size {
                        if way == "one" && offset == 0 && to == 0 && nodes > 1 {
                            let job = Job {
                                pid: Pid(0),
                                action: Action::Migrate {
                                    pages: Pages::Run(span.start / 4096..span.end / 4096),
                                    to: NodeId(0),
                                },
                                race: Race::Block,
                            };
                            KernelBackend::new().execute(&[job]);
                            to = 1;
                        }
                        let at = span.start + offset;
                        let job = Job {
                            pid: Pid(0),
                            action: Action::Migrate {
                                pages: Pages::Run(at / 4096..(at + size) / 4096),
                                to: NodeId(to),
                            },
                            race: Race::Block,
                        };
                        let (c, t) = (cpu(), Instant::now());
                        let outcome = backend.execute(&[job]).remove(0);
                        if done > 0 {
                            clock += t.elapsed().as_nanos();
                            used += cpu() - c;
                            count += 1;
                            moved += outcome.moved.len() as u64;
                            failed += outcome.page_count() - outcome.moved.len() as u64;
                        }
                        done += size;
                        if way == "both" {
                            if to == 0 {
                                offset = (offset + size) % len;
                            }
                            to = (to + 1) % nodes;
                        } else {
                            offset = (offset + size) % len;
                            if offset == 0 {
                                to = (to + 1) % nodes;
                            }
                        }
                    }
                    println!(
                        "{} {way:5} {:6} KB {name:7} {:8.1} us/request {:6.2} GB/s cpu {:8.1} us/request n={count} failed {failed}",
                        if huge { "huge " } else { "small" },
                        size >> 10,
                        clock as f64 / 1e3 / count as f64,
                        moved as f64 * 4096.0 / clock as f64,
                        used as f64 / count as f64
                    );
                }
            }
        }
    }
    let (a, b) = (
        sys::Area::new(64 << 20, true).unwrap(),
        sys::Area::new(64 << 20, true).unwrap(),
    );
    sys::fill(&a.range()).unwrap();
    sys::with_preferred_node(1 % nodes, || sys::fill(&b.range())).unwrap();
    let t = Instant::now();
    // SAFETY: two areas of that size.
    unsafe {
        std::ptr::copy_nonoverlapping(
            a.range().start as *const u8,
            b.range().start as *mut u8,
            64 << 20,
        )
    };
    println!(
        "memcpy {:.2} GB/s",
        (64u64 << 20) as f64 / t.elapsed().as_nanos() as f64
    );
}
