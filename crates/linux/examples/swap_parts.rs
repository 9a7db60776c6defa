//! scratch: prices of the parts
use hither_linux::sys::{self, Userfault, feature};
use std::time::Instant;
fn t(name: &str, pages: u64, f: impl FnOnce()) {
    let s = Instant::now();
    f();
    let ns = s.elapsed().as_nanos() as f64;
    println!(
        "{name:28} {:9.1} us  {:8.1} ns/page",
        ns / 1e3,
        ns / pages as f64
    );
}
fn main() {
    let nodes: u32 = std::env::args().nth(1).map_or(1, |a| a.parse().unwrap());
    let traps = Userfault::new(
        feature::MOVE
            | feature::EVENT_FORK
            | feature::EVENT_REMAP
            | feature::EVENT_REMOVE
            | feature::THREAD_ID,
        false,
    )
    .unwrap();
    let recv = Userfault::new(feature::MOVE | feature::WRITE_PROTECT, true).unwrap();
    for cpu in [0usize, 7] {
        // SAFETY: scratch
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(
                cpu % std::thread::available_parallelism().unwrap().get(),
                &mut set,
            );
            libc::sched_setaffinity(0, size_of_val(&set), &set);
        }
        for huge in [false, true] {
            let b = 16u64 << 20;
            let n = b / 4096;
            println!("cpu {cpu} huge {huge}");
            let (r, p, d) = (
                sys::Area::new(b, huge).unwrap(),
                sys::Area::new(b, huge).unwrap(),
                sys::Area::new(b, huge).unwrap(),
            );
            recv.accept(&p.range()).unwrap();
            recv.accept(&d.range()).unwrap();
            t("fill R node 0", n, || {
                sys::with_preferred_node(0, || sys::fill(&r.range())).unwrap()
            });
            t("fill D target", n, || {
                sys::with_preferred_node(1 % nodes, || sys::fill(&d.range())).unwrap()
            });
            t("discard D", n, || sys::discard(&d.range()));
            t("fill D target", n, || {
                sys::with_preferred_node(1 % nodes, || sys::fill(&d.range())).unwrap()
            });
            let addresses: Vec<u64> = (r.range().start..r.range().end).step_by(4096).collect();
            let mut st = vec![0; addresses.len()];
            t("query", n, || {
                sys::query_pages(0, &addresses, &mut st).unwrap()
            });
            t("register", n, || traps.trap_missing(&r.range()).unwrap());
            // SAFETY: scratch
            unsafe {
                t("take", n, || {
                    assert_eq!(
                        recv.exchange(p.range().start, r.range().start, b).errno,
                        None
                    )
                });
                t("copy nt", n, || {
                    hither_linux::backend::copy::nontemporal(
                        p.range().start as *const u8,
                        d.range().start as *mut u8,
                        b as usize,
                    )
                });
                t("copy memcpy", n, || {
                    std::ptr::copy_nonoverlapping(
                        p.range().start as *const u8,
                        d.range().start as *mut u8,
                        b as usize,
                    )
                });
                t("copy nt", n, || {
                    hither_linux::backend::copy::nontemporal(
                        p.range().start as *const u8,
                        d.range().start as *mut u8,
                        b as usize,
                    )
                });
                t("put", n, || {
                    assert_eq!(
                        traps.exchange(r.range().start, d.range().start, b).errno,
                        None
                    )
                });
                t("unregister", n, || traps.unregister(&r.range()).unwrap());
                t("discard P", n, || sys::discard(&p.range()));
                t("register", n, || traps.trap_missing(&r.range()).unwrap());
                t("take in 16s", n, || {
                    for o in (0..b).step_by(65536) {
                        assert_eq!(
                            recv.exchange(
                                p.range().start + o,
                                r.range().start + o,
                                65536.max(if huge { 2 << 20 } else { 0 })
                            )
                            .errno
                            .is_none(),
                            true
                        );
                        if huge {
                            break;
                        }
                    }
                });
                if !huge {
                    t("UFFDIO_COPY", n, || {
                        sys::with_preferred_node(0, || {
                            assert_eq!(traps.copy(r.range().start, p.range().start, b).errno, None);
                            Ok(())
                        })
                        .unwrap();
                    });
                    t("take", n, || {
                        sys::discard(&p.range());
                        assert_eq!(
                            recv.exchange(p.range().start, r.range().start, b).errno,
                            None
                        );
                    });
                    t("put in 16s", n, || {
                        for o in (0..b).step_by(65536) {
                            assert_eq!(
                                traps
                                    .exchange(r.range().start + o, p.range().start + o, 65536)
                                    .errno,
                                None
                            );
                        }
                    });
                    let targets = vec![(1 % nodes) as i32; addresses.len()];
                    t("move_pages", n, || {
                        sys::move_pages(0, &addresses, &targets, &mut st).unwrap();
                    });
                    let targets = vec![0; addresses.len()];
                    t("move_pages", n, || {
                        sys::move_pages(0, &addresses, &targets, &mut st).unwrap();
                    });
                    t("move_pages", n, || {
                        for i in (0..addresses.len()).step_by(16) {
                            let targets = [(1 % nodes) as i32; 16];
                            sys::move_pages(0, &addresses[i..i + 16], &targets, &mut st[..16])
                                .unwrap();
                        }
                    });
                } else {
                    let targets = vec![(1 % nodes) as i32; addresses.len()];
                    traps.unregister(&r.range()).unwrap();
                    sys::fill(&r.range()).unwrap();
                    t("move_pages", n, || {
                        sys::move_pages(0, &addresses, &targets, &mut st).unwrap();
                    });
                }
            }
        }
    }
}
