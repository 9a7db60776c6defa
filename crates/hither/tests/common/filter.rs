//! System calls that are refused to a program, by a real filter (seccomp), as container runtimes do.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What the default profiles of moby and containerd refuse a container without added capabilities,
/// of all that hither asks a kernel for.
pub const CONTAINER: &[libc::c_long] = &[
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_set_mempolicy_home_node,
    libc::SYS_mbind,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    libc::SYS_perf_event_open,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_mount,
    libc::SYS_setns,
    libc::SYS_unshare,
];

/// What a kernel without NUMA does not have.
pub const NUMA: &[libc::c_long] = &[
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_set_mempolicy_home_node,
    libc::SYS_mbind,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
];

/// Has these calls fail in the program, and in what it starts.
pub fn refuse(command: &mut Command, errno: i32, calls: &[libc::c_long]) {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    // The number of the call is the first word of what a filter is given.
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for &call in calls {
        filter.push(libc::sock_filter {
            jf: 1,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32)
        });
        let refuse = libc::SECCOMP_RET_ERRNO | errno as u32;
        filter.push(statement(libc::BPF_RET | libc::BPF_K, refuse));
    }
    filter.push(statement(
        libc::BPF_RET | libc::BPF_K,
        libc::SECCOMP_RET_ALLOW,
    ));
    let install = move || {
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_ptr().cast_mut(),
        };
        let mode = libc::SECCOMP_MODE_FILTER;
        // SAFETY: integers, and a program that lives through the call and is only read.
        let failed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) != 0
        };
        match failed {
            true => Err(io::Error::last_os_error()),
            false => Ok(()),
        }
    };
    // SAFETY: two system calls, and no allocation.
    unsafe { command.pre_exec(install) };
}
