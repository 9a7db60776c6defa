//! scratch
use hither_core::ids::{NodeId, Pid};
use hither_linux::backend::swap::{Config, Limits, Step, SwapBackend};
use hither_linux::sys;
use hither_mover::{Action, Backend, Job, Pages, Race};
use std::sync::{Arc, Mutex};
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
    let times = Arc::new(Mutex::new((Instant::now(), [0u64; 10])));
    let inside = Arc::clone(&times);
    for huge in [false, true] {
        for size in [64u64 << 10, 1 << 20, 2 << 20, 16 << 20] {
            if huge && size < (2 << 20) || !huge && size == 2 << 20 {
                continue;
            }
            let area = sys::Area::new((64 << 20).min(total), huge).unwrap();
            sys::with_preferred_node(0, || sys::fill(&area.range())).unwrap();
            let span = area.range();
            let inside = Arc::clone(&inside);
            let mut swap = SwapBackend::new(Config {
                in_place: nodes == 1,
                limits: Limits {
                    stock_bytes: 256 << 20,
                    idle_ms: 20000,
                },
                hook: if std::env::args().nth(3).is_some() {
                    Some(Arc::new(move |step: Step| {
                        let mut t = inside.lock().unwrap();
                        let now = Instant::now();
                        let d = (now - t.0).as_nanos() as u64;
                        t.0 = now;
                        t.1[step as usize] += d;
                    }))
                } else {
                    None
                },
                ..Config::default()
            })
            .unwrap();
            let len = span.end - span.start;
            for node in 0..nodes {
                swap.warm(
                    NodeId(node),
                    if huge { 0 } else { size },
                    if huge { size } else { 0 },
                );
            }
            for way in ["both"] {
                for name in ["swap", "raw"] {
                    if name == "raw" && nodes == 1 {
                        continue;
                    }
                    let mut moved = 0u64;
                    let mut failed = 0u64;
                    let mut to = 1 % nodes;
                    let (mut clock, mut used, mut count) = (0u128, 0u64, 0);
                    let mut offset = 0;
                    let mut done = 0;
                    let mut status = vec![0i32; (size / 4096) as usize];
                    if let Ok(mut t) = times.lock() {
                        t.1 = [0; 10];
                    }
                    while done < total + 2 * size {
                        if way == "one" && offset == 0 && to == 0 && nodes > 1 {
                            let addresses: Vec<u64> =
                                (span.start..span.end).step_by(4096).collect();
                            let mut st = vec![0; addresses.len()];
                            sys::move_pages(0, &addresses, &vec![0; addresses.len()], &mut st)
                                .unwrap();
                            to = 1;
                        }
                        let at = span.start + offset;
                        let addresses: Vec<u64> = (at..at + size)
                            .step_by(if huge { 2 << 20 } else { 4096 })
                            .collect();
                        let targets = vec![to as i32; addresses.len()];
                        let job = Job {
                            pid: Pid(0),
                            action: Action::Migrate {
                                pages: Pages::Run(at / 4096..(at + size) / 4096),
                                to: NodeId(to),
                            },
                            race: Race::Block,
                        };
                        let (c, t) = (cpu(), Instant::now());
                        if let Ok(mut s) = times.lock() {
                            s.0 = t;
                        }
                        if name == "swap" {
                            let outcome = swap.execute(&[job]).remove(0);
                            let ns = t.elapsed().as_nanos();
                            if done > size {
                                clock += ns;
                                used += cpu() - c;
                                count += 1;
                                moved += outcome.moved.len() as u64;
                                failed += outcome.page_count() - outcome.moved.len() as u64;
                            }
                            if let Ok(mut s) = times.lock() {
                                s.1[9] += s.0.elapsed().as_nanos() as u64;
                            }
                        } else {
                            sys::move_pages(
                                0,
                                &addresses,
                                &targets,
                                &mut status[..addresses.len()],
                            )
                            .unwrap();
                            let ns = t.elapsed().as_nanos();
                            if done > size {
                                clock += ns;
                                used += cpu() - c;
                                count += 1;
                                moved += size / 4096;
                            }
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
                    if name == "swap" {
                        let t = times.lock().unwrap();
                        println!(
                            "   trapped {:.1} leaving {:.1} taken {:.1} away {:.1} copying {:.1} copied {:.1} arriving {:.1} arrived {:.1} closed {:.1} end {:.1}",
                            t.1[0] as f64 / 1e3 / count as f64,
                            t.1[1] as f64 / 1e3 / count as f64,
                            t.1[2] as f64 / 1e3 / count as f64,
                            t.1[3] as f64 / 1e3 / count as f64,
                            t.1[4] as f64 / 1e3 / count as f64,
                            t.1[5] as f64 / 1e3 / count as f64,
                            t.1[6] as f64 / 1e3 / count as f64,
                            t.1[7] as f64 / 1e3 / count as f64,
                            t.1[8] as f64 / 1e3 / count as f64,
                            t.1[9] as f64 / 1e3 / count as f64
                        );
                    }
                }
            }
        }
    }
}
