//! The functions as Rust sees them: what they refuse, and many threads at once. What only C can
//! pass, and fork, is in errors.c.

use hither::*;
use std::collections::HashSet;
use std::ffi::{CStr, c_int};
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Held by each test: hither_retrieve_completed() returns requests of every mover of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(config: &HitherConfig) -> c_int {
    // SAFETY: a whole configuration with its own size; its pointers are null or valid.
    unsafe { hither_open_config(config, size_of::<HitherConfig>()) }
}

fn said() -> String {
    // SAFETY: the text lives until this thread's next call.
    let text = unsafe { CStr::from_ptr(hither_last_error()) };
    text.to_str().unwrap().to_owned()
}

/// Fills a request with a copy of `from` to `to`.
fn fill(request: *mut HitherRequest, from: &[u8], to: &mut [u8], tag: u64) {
    // SAFETY: the request is this thread's.
    let request = unsafe { &mut *request };
    request.kind = HITHER_REPLICATE;
    request.src_base = from.as_ptr().cast();
    request.dst_base = to.as_mut_ptr().cast();
    request.length = from.len() as u64;
    request.tag = tag;
}

#[test]
fn configurations_out_of_range_are_refused_with_a_sentence() {
    let _alone = alone();
    let default = HitherConfig::default;
    let cpus = [u32::MAX];
    let refused = [
        (
            HitherConfig {
                flags: 16,
                ..default()
            },
            HITHER_EINVAL,
            "0x10",
        ),
        (
            HitherConfig {
                flags: 3,
                ..default()
            },
            HITHER_EINVAL,
            "EXCHANGE",
        ),
        (
            HitherConfig {
                capacity: 40_000,
                ..default()
            },
            HITHER_EINVAL,
            "32768",
        ),
        (
            HitherConfig {
                capacity: 65_536,
                ..default()
            },
            HITHER_EINVAL,
            "32768",
        ),
        (
            HitherConfig {
                workers: 300,
                ..default()
            },
            HITHER_EINVAL,
            "256",
        ),
        (
            HitherConfig {
                copiers: 300,
                ..default()
            },
            HITHER_EINVAL,
            "256",
        ),
        (
            HitherConfig {
                cpu_count: 5000,
                ..default()
            },
            HITHER_EINVAL,
            "4096",
        ),
        (
            HitherConfig {
                cpu_count: 1,
                ..default()
            },
            HITHER_EFAULT,
            "NULL",
        ),
        (
            HitherConfig {
                cpus: cpus.as_ptr(),
                ..default()
            },
            HITHER_EINVAL,
            "cpu_count",
        ),
        (
            HitherConfig {
                cpus: cpus.as_ptr(),
                cpu_count: 1,
                ..default()
            },
            HITHER_EINVAL,
            "CPUs",
        ),
        (
            HitherConfig {
                flags: HITHER_NO_SPIN,
                spin_us: 1,
                ..default()
            },
            HITHER_EINVAL,
            "spin_us",
        ),
        (
            HitherConfig {
                name: c"else".as_ptr(),
                ..default()
            },
            HITHER_ENOENT,
            "`else`",
        ),
    ];
    for (config, code, words) in &refused {
        assert_eq!(open(config), *code, "{config:?}: {}", said());
        assert_eq!(hither_last_code(), *code);
        assert!(
            said().to_lowercase().contains(&words.to_lowercase()),
            "{}",
            said()
        );
    }
}

#[test]
fn sizes_of_configurations_are_versions() {
    let _alone = alone();
    // SAFETY: null is allowed.
    assert_eq!(unsafe { hither_open_config(null(), 72) }, HITHER_EFAULT);
    let mut words = [0u64; 512];
    let config = words.as_ptr().cast();
    for size in [0, 8, 71, 4097, usize::MAX] {
        // SAFETY: a size that is refused is not read.
        assert_eq!(unsafe { hither_open_config(config, size) }, HITHER_EINVAL);
    }
    for size in [72, 73, 4096] {
        // SAFETY: the array has that many bytes, all zero.
        let handle = unsafe { hither_open_config(config, size) };
        assert!(handle >= 0, "{size}: {}", said());
        assert_eq!(hither_close(handle), HITHER_OK);
    }
    words[511] = 1;
    let config = words.as_ptr().cast();
    // SAFETY: as above.
    assert_eq!(unsafe { hither_open_config(config, 4096) }, HITHER_E2BIG);
    assert!(said().contains("byte 4088"), "{}", said());
    // A structure need not even be aligned.
    let bytes = words[..12].as_ptr().cast::<u8>().wrapping_add(1).cast();
    // SAFETY: within the array.
    let handle = unsafe { hither_open_config(bytes, 72) };
    assert!(handle >= 0);
    assert_eq!(hither_close_how(handle, HITHER_ABANDON), HITHER_OK);
}

#[test]
fn a_retrieved_request_can_be_submitted_again() {
    let _alone = alone();
    let handle = open(&HitherConfig {
        capacity: 1,
        ..HitherConfig::default()
    });
    let request = hither_alloc_request(handle);
    assert!(hither_alloc_request(handle).is_null());
    assert_eq!(hither_last_code(), HITHER_EAGAIN);
    let (from, mut to) = (vec![1u8; 10_000], vec![0u8; 10_000]);
    fill(request, &from, &mut to, 77);
    for _ in 0..10 {
        assert_eq!(hither_submit_request(request), HITHER_OK);
        assert_eq!(hither_wait(handle, 20_000), request, "{}", said());
        // SAFETY: retrieved, so that it is ours.
        let result = unsafe { &*request };
        assert_eq!(
            (result.status, result.tag, result.bytes),
            (HITHER_DONE, 77, 10_000)
        );
        assert_eq!(result.refused, [0; HITHER_REFUSED_COUNT]);
        let name = hither_backend_name(handle, result.backend);
        // SAFETY: the name is never freed.
        assert_eq!(unsafe { CStr::from_ptr(name) }, c"copy");
    }
    assert_eq!(from, to);
    // A migration to where it is, and to a node that no machine of this test has.
    for (node, status) in [(0, HITHER_DONE), (1000, HITHER_FAILED)] {
        // SAFETY: ours.
        let asked = unsafe { &mut *request };
        asked.kind = HITHER_MIGRATE;
        asked.src_base = ((from.as_ptr().addr() + 4095) & !4095) as *const _;
        asked.length = 4096;
        asked.node = node;
        asked.flags = HITHER_RACE_BLOCK | HITHER_PRIORITY_HIGH;
        assert_eq!(hither_submit_request(request), HITHER_OK, "{}", said());
        assert_eq!(hither_wait(handle, 20_000), request);
        // SAFETY: ours again.
        let result = unsafe { &*request };
        assert_eq!(result.status, status, "{result:?}");
        let accounted = result.moved + result.already_there;
        let refused: u64 = result.refused.iter().copied().map(u64::from).sum();
        assert_eq!(accounted + refused, 1, "{result:?}");
    }
    assert_eq!(hither_free_request(request), HITHER_OK);
    assert_eq!(hither_close(handle), HITHER_OK);
}

/// Threads submit to two movers and retrieve from both, each request is retrieved once with its
/// own result, and movers come and go meanwhile.
#[test]
fn many_threads_lose_and_double_nothing() {
    let _alone = alone();
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 2_000;
    let config = HitherConfig {
        capacity: 64,
        workers: 2,
        ..HitherConfig::default()
    };
    let handles = [open(&config), open(&config)];
    assert!(handles.iter().all(|&handle| handle >= 0), "{}", said());
    let from: Vec<u8> = (0..512).map(|byte| byte as u8).collect();
    let retrieved = Mutex::new(HashSet::new());
    let stop = AtomicBool::new(false);
    let finished = AtomicUsize::new(0);
    let deadline = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (from, retrieved, finished) = (&from, &retrieved, &finished);
            scope.spawn(move || {
                let mut own = Vec::new();
                let mut submitted = 0;
                // Targets outlive every request: each is waited for below.
                let mut targets = vec![vec![0u8; 512]; ROUNDS as usize];
                while submitted < ROUNDS {
                    assert!(Instant::now() < deadline, "stuck");
                    let handle = handles[(submitted % 2) as usize];
                    let request = hither_alloc_request(handle);
                    if request.is_null() {
                        assert_eq!(hither_last_code(), HITHER_EAGAIN);
                    } else {
                        let target = &mut targets[submitted as usize];
                        fill(request, from, target, thread * ROUNDS + submitted);
                        assert_eq!(hither_submit_request(request), HITHER_OK, "{}", said());
                        submitted += 1;
                    }
                    take(&mut own);
                }
                finished.fetch_add(1, Ordering::SeqCst);
                let all = (THREADS * ROUNDS) as usize;
                loop {
                    assert!(Instant::now() < deadline, "stuck");
                    take(&mut own);
                    let mut known = retrieved.lock().unwrap();
                    for tag in own.drain(..) {
                        assert!(known.insert(tag), "{tag} came twice");
                    }
                    if known.len() == all {
                        break;
                    }
                    drop(known);
                    std::thread::yield_now();
                }
                assert!(targets.iter().all(|target| target == from));
            });
        }
        let stop = &stop;
        let comings = scope.spawn(move || {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) || count == 0 {
                // SAFETY: null is this process.
                let handle = unsafe { hither_open(null()) };
                assert!(handle >= 0, "{}", said());
                assert_eq!(hither_close(handle), HITHER_OK);
                count += 1;
            }
            count
        });
        while finished.load(Ordering::SeqCst) < THREADS as usize && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(comings.join().unwrap() > 0);
    });
    for handle in handles {
        assert_eq!(hither_close(handle), HITHER_OK);
        assert_eq!(hither_close(handle), HITHER_EBADF);
    }
}

/// Retrieves what is completed and frees it.
fn take(tags: &mut Vec<u64>) {
    loop {
        let request = hither_retrieve_completed();
        if request.is_null() {
            assert_eq!(hither_last_code(), HITHER_OK, "{}", said());
            return;
        }
        // SAFETY: retrieved by this thread.
        let result = unsafe { &*request };
        assert_eq!((result.status, result.bytes), (HITHER_DONE, 512));
        tags.push(result.tag);
        assert_eq!(hither_free_request(request), HITHER_OK);
    }
}

/// For the calling thread alone, and those that it starts: as containers refuse memory policies.
fn refuse_policies() {
    let filter = |code: u32, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let mut filters = vec![filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for call in [
        libc::SYS_get_mempolicy,
        libc::SYS_set_mempolicy,
        libc::SYS_mbind,
        libc::SYS_move_pages,
    ] {
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        filters.push(filter(equal, 1, call as u32));
        let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        filters.push(filter(libc::BPF_RET | libc::BPF_K, 0, refuse));
    }
    filters.push(filter(
        libc::BPF_RET | libc::BPF_K,
        0,
        libc::SECCOMP_RET_ALLOW,
    ));
    let program = libc::sock_fprog {
        len: filters.len() as u16,
        filter: filters.as_mut_ptr(),
    };
    // SAFETY: the filters live until the kernel has copied them.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) != 0
    };
    assert!(!failed, "{}", std::io::Error::last_os_error());
}

#[test]
fn where_policies_are_refused_threads_have_cpus_and_memory_says_why() {
    let _alone = alone();
    let alone = std::thread::spawn(|| {
        refuse_policies();
        // SAFETY: texts that end in a zero.
        unsafe {
            let float = c"float".as_ptr();
            assert_eq!(
                hither_bind_thread(c"allowed".as_ptr(), null()),
                HITHER_ENOSYS
            );
            assert!(said().contains("--cap-add SYS_NICE"), "{}", said());
            let cpus = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let cpus = cpus
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            let cpus = std::ffi::CString::new(format!("cpus:{}", cpus.unwrap().trim())).unwrap();
            assert_eq!(
                hither_place_thread(cpus.as_ptr(), c"fill".as_ptr(), 0),
                HITHER_OK
            );
            assert_eq!(hither_unbind_thread(), HITHER_OK);
            assert_eq!(hither_bind_thread(cpus.as_ptr(), null()), HITHER_OK);
            assert_eq!(hither_unbind_thread(), HITHER_OK);
            assert_eq!(hither_bind_thread(c"allowed".as_ptr(), float), HITHER_OK);
            assert_eq!(hither_unbind_thread(), HITHER_OK);
            assert!(hither_alloc(1 << 20, c"allowed".as_ptr(), null(), 0).is_null());
            assert!(said().contains("--cap-add SYS_NICE"), "{}", said());
        }
    });
    alone.join().unwrap();
}
