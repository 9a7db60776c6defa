//! Captured address maps of programs with devices, and this machine's own rings.

use super::*;
use crate::backend::kernel::KernelBackend;
use crate::sys;
use hither_core::ids::{NodeId, Pid};
use hither_core::plan::Refusal;
use hither_mover::{Action, Backend, Job, Pages, Race};
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::symlink;

/// A guest of QEMU with a network card passed through, shortened.
const VFIO: &str = "\
55c7a2a00000-55c7a3200000 r-xp 00000000 08:01 1835130                    /usr/bin/qemu-system-x86_64
55c7a4e00000-55c7a6a00000 rw-p 00000000 00:00 0                          [heap]
7f1240000000-7f1640000000 rw-s 00000000 00:01 2051                       /memfd:memory-backend-memfd (deleted)
7f1700000000-7f1700004000 rw-s 2300000000000000 00:0d 1060               anon_inode:[vfio-device]
7f1800000000-7f1800021000 rw-p 00000000 00:00 0
7f1900000000-7f1900200000 r--p 00000000 08:01 1835200                    /usr/lib/libc.so.6
";

/// A program on a GPU, shortened.
const GPU: &str = "\
200000000-200200000 ---p 00000000 00:00 0
203000000-203200000 rw-s 00000000 00:06 412                              /dev/nvidiactl
203600000-203800000 rw-s 00000000 00:05 53301                            /dev/nvidia-uvm
204a00000-204c00000 rw-s 00000000 00:01 4097                             /dev/zero (deleted)
563ab0000000-563ab2000000 rw-p 00000000 00:00 0                          [heap]
7fa000000000-7fa040000000 rw-p 00000000 00:00 0
7fa100000000-7fa100400000 r-xp 00000000 08:01 99                         /usr/lib/libcuda.so.1
7fa200000000-7fa200001000 rw-s 00000000 00:06 420                        /dev/dri/renderD128
7fa200002000-7fa200003000 rw-s 00000000 00:06 421                        /dev/infiniband/uverbs0
";

fn facts(maps: &str, open: &[&str], pinned_kb: u64) -> Facts {
    Facts {
        mappings: maps::parse(maps).unwrap(),
        rings: Vec::new(),
        open: open
            .iter()
            .filter_map(|name| device::of_name(name))
            .collect(),
        pinned_kb,
    }
}

fn told(fixed: &Fixed) -> Vec<(u64, String)> {
    let line = |range: &Stays| (range.pages.start << 12, range.why.to_string());
    fixed.ranges.iter().map(line).collect()
}

#[test]
fn a_guest_with_a_device_passed_through_stays_as_a_whole() {
    // vfio's first IOMMU driver counts what it pins as locked: VmPin is 0.
    let fixed = decide(&facts(VFIO, &["/dev/vfio/vfio", "/dev/vfio/12"], 0));
    let may = "may be pinned for vfio, which passes a device through".to_owned();
    assert_eq!(
        told(&fixed),
        [
            (0x55c7_a4e0_0000, may.clone()),
            (0x7f12_4000_0000, may.clone()),
            (
                0x7f17_0000_0000,
                "a mapping of vfio, which passes a device through".to_owned()
            ),
            (0x7f18_0000_0000, may),
        ]
    );
    let page = |address: u64| address >> 12;
    assert!(fixed.contains(page(0x7f16_3fff_f000)) && !fixed.contains(page(0x7f16_4000_0000)));
    assert!(
        !fixed.contains(page(0x7f19_0000_0000)),
        "a library may move"
    );
    // A program that merely has the same mappings and no device.
    let without = VFIO.replace("anon_inode:[vfio-device]", "/srv/data");
    assert!(decide(&facts(&without, &[], 4 << 20)).is_empty());
}

#[test]
fn staging_of_gpus_stays_and_the_rest_where_memory_is_pinned() {
    let fixed = decide(&facts(GPU, &[], 0));
    let starts: Vec<u64> = told(&fixed).iter().map(|(start, _)| *start).collect();
    assert_eq!(
        starts,
        [
            0x2_0300_0000,
            0x2_0360_0000,
            0x7fa2_0000_0000,
            0x7fa2_0000_2000
        ]
    );
    assert!(
        told(&fixed)
            .iter()
            .all(|(_, why)| why.starts_with("a mapping of "))
    );
    let pinned = decide(&facts(GPU, &[], 1024));
    let heap = 0x563a_b000_0000 >> 12;
    assert!(!fixed.contains(heap) && pinned.contains(heap));
    assert!(pinned.contains(0x2_04a0_0000 >> 12) && pinned.contains(0x7fa0_0000_0000 >> 12));
    assert!(
        !pinned.contains(0x7fa1_0000_0000 >> 12),
        "a library may move"
    );
    assert_eq!((pinned.pinned_kb, pinned.unplaced_kb), (1024, 1024));
}

#[test]
fn what_registered_buffers_explain_pins_nothing_else() {
    let gpu = |pinned_kb| {
        let mut facts = facts(GPU, &[], pinned_kb);
        let pages = [0x7_fa00_0000..0x7_fa00_0004, 0x7_fa00_0004..0x7_fa00_0006];
        let buffers = Buffers {
            pages: pages.to_vec(),
            is_whole: false,
        };
        facts.rings.push((7, buffers));
        decide(&facts)
    };
    // Two buffers in one huge page, of which as much as all of it may be counted.
    let fixed = gpu(2048);
    assert_eq!((fixed.unplaced_kb, fixed.unseen_rings), (0, 1));
    let registered = "registered with io_uring (descriptor 7)".to_owned();
    assert!(told(&fixed).contains(&(0x7fa0_0000_0000, registered)));
    assert!(fixed.contains(0x7_fa00_0005) && !fixed.contains(0x7_fa00_0006));
    assert_eq!(
        fixed.split(&[0x7_f9ff_ffff..0x7_fa00_0002, 0x7_fa00_0005..0x7_fa00_0009]),
        (
            vec![0x7_f9ff_ffff..0x7_fa00_0000, 0x7_fa00_0006..0x7_fa00_0009],
            vec![0x7_fa00_0000..0x7_fa00_0002, 0x7_fa00_0005..0x7_fa00_0006]
        )
    );
    assert!(gpu(2052).contains(0x7_fa00_0006));
}

#[test]
fn a_captured_process_is_read_below_any_root() {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::new(folder.path());
    let put = |name: &str, text: &str| {
        let path = root.path(&format!("proc/7/{name}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put(
        "maps",
        VFIO.replace("anon_inode:[vfio-device]", "/x").as_str(),
    );
    put(
        "status",
        "Name:\tqemu\nVmLck:\t 4194304 kB\nVmPin:\t      16 kB\n",
    );
    put(
        "fdinfo/5",
        "UserBufs:\t1\n    0: 0x7f1800000000/16384\nPollList:\n",
    );
    fs::create_dir_all(root.path("proc/7/fd")).unwrap();
    symlink("anon_inode:[io_uring]", root.path("proc/7/fd/5")).unwrap();
    symlink("/var/log/x", root.path("proc/7/fd/6")).unwrap();
    let fixed = read(&root, 7).unwrap();
    assert_eq!(fixed.ranges.len(), 1, "locked memory may move: {fixed:?}");
    assert_eq!((fixed.pinned_kb, fixed.unplaced_kb), (16, 0));
    symlink("/dev/vfio/vfio", root.path("proc/7/fd/9")).unwrap();
    assert_eq!(read(&root, 7).unwrap().ranges.len(), 5);
    put("fdinfo/5", "UserBufs:\t1\n    0: 7f18/16384\n");
    let error = read(&root, 7).unwrap_err().to_string();
    assert!(error.contains("proc/7/fdinfo/5:2: "), "{error}");
    assert!(
        read(&root, 8)
            .unwrap_err()
            .to_string()
            .contains("no such process")
    );
}

/// A ring with a part of some memory registered; `None` where this user may have none.
fn registered(address: u64, bytes: u64) -> Option<OwnedFd> {
    let mut parameters = [0u32; 30];
    // SAFETY: `struct io_uring_params` is 120 bytes of plain numbers, which the call fills in.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
    if ring < 0 {
        return None;
    }
    // SAFETY: a new descriptor that nobody else owns.
    let ring = unsafe { OwnedFd::from_raw_fd(ring as i32) };
    let vector = libc::iovec {
        iov_base: address as *mut _,
        iov_len: bytes as usize,
    };
    // SAFETY: IORING_REGISTER_BUFFERS (0) with one vector of memory that outlives the ring.
    let done = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring.as_raw_fd(),
            0,
            &raw const vector,
            1,
        )
    };
    (done == 0).then_some(ring)
}

#[test]
fn registered_memory_is_refused_live() {
    let mut memory = sys::PrivateMemory::new(64 * 4096, false).unwrap();
    memory.fill_pages(1);
    let first = memory.address() >> 12;
    let Some(ring) = registered(memory.address() + 8 * 4096 + 100, 4 * 4096) else {
        println!("io_uring is not permitted here: the laboratory's test shows it");
        return;
    };
    let pid = std::process::id() as i32;
    let fixed = read(&Root::host(), pid).unwrap();
    let why = FixedReason::Registered(ring.as_raw_fd());
    let ours: Vec<&Stays> = fixed.ranges.iter().filter(|r| r.why == why).collect();
    assert_eq!(ours[0].pages, first + 8..first + 13);
    assert!(fixed.pinned_kb >= 20 && fixed.unplaced_kb == 0, "{fixed:?}");
    // On the node where it is: what is not refused is there already.
    let mut status = [0];
    sys::query_pages(0, &[memory.address()], &mut status).unwrap();
    let job = Job {
        pid: Pid(pid),
        action: Action::Migrate {
            pages: Pages::Run(first..first + 64),
            to: NodeId(status[0] as u32),
        },
        race: Race::Block,
    };
    let outcome = KernelBackend::new().execute(&[job]).remove(0);
    assert_eq!(outcome.refused, [(Refusal::Pinned, 5)]);
    assert_eq!(outcome.already_there, 59);
    drop(ring);
    let after = read(&Root::host(), pid).unwrap();
    assert!(after.ranges.iter().all(|range| range.why != why));
}
