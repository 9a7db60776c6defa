//! Memory policies of threads, children and ranges: `set_mempolicy(2)`, `get_mempolicy(2)`,
//! `mbind(2)`, `set_mempolicy_home_node(2)`.

use super::check;
use hither_core::bind::{KernelPolicy, Mode};
use hither_core::ids::NodeId;
use hither_core::set::{CpuSet, NodeSet};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Highest node number plus one that a mask here holds: the kernel's own limit.
const MAX_NODES: usize = 1024;
/// Of `get_mempolicy(2)`: the node of an address, the policy of an address.
const MPOL_F_NODE: libc::c_ulong = 1 << 0;
const MPOL_F_ADDR: libc::c_ulong = 1 << 1;
/// Of `mbind(2)`: fail where pages are elsewhere; move those that this process alone maps.
const MPOL_MF_STRICT: libc::c_int = 1 << 0;
const MPOL_MF_MOVE: libc::c_int = 1 << 1;
/// Flags of a mode: NUMA balancing goes over bound memory (Linux 5.12); all flags there are.
const MPOL_F_NUMA_BALANCING: libc::c_int = 1 << 13;
const MODE_FLAGS: libc::c_int = 7 << 13;

/// Nodes as the kernel takes them. On the stack, as some callers must not allocate.
struct Mask([u64; MAX_NODES / 64]);

impl Mask {
    fn of(nodes: impl IntoIterator<Item = u32>) -> io::Result<Self> {
        let mut mask = Self([0; MAX_NODES / 64]);
        for node in nodes {
            let word = mask.0.get_mut(node as usize / 64);
            *word.ok_or(io::ErrorKind::InvalidInput)? |= 1 << (node % 64);
        }
        Ok(mask)
    }

    fn nodes(&self) -> NodeSet {
        let is_set = |node: &u32| self.0[*node as usize / 64] >> (node % 64) & 1 == 1;
        (0..MAX_NODES as u32).filter(is_set).map(NodeId).collect()
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// Pointer and bits of the mask: one more than it has, as the kernel reads one less than it is
    /// told. Modes without nodes take none.
    fn argument(&self) -> (*const u64, usize) {
        match self.is_empty() {
            true => (std::ptr::null(), 0),
            false => (self.0.as_ptr(), MAX_NODES + 1),
        }
    }
}

/// A policy as the kernel takes it.
fn argument(policy: &KernelPolicy) -> io::Result<(libc::c_int, Mask)> {
    let flag = match policy.is_balanced {
        true => MPOL_F_NUMA_BALANCING,
        false => 0,
    };
    let mask = Mask::of(policy.nodes.iter().map(|node| node.0))?;
    Ok((policy.mode as libc::c_int | flag, mask))
}

fn set(mode: libc::c_int, mask: &Mask) -> io::Result<()> {
    let (mask, bits) = mask.argument();
    // SAFETY: the mask has the bits announced, or there is none; it is only read.
    check(unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, bits) }).map(drop)
}

/// The policy by which the calling thread, and what it starts from now on, gets new pages.
///
/// `EINVAL`: the kernel is older than the mode, or may use none of the nodes.
pub fn set_own_policy(policy: &KernelPolicy) -> io::Result<()> {
    let (mode, mask) = argument(policy)?;
    set(mode, &mask)
}

/// The policy of the calling thread; nodes are those that are left after its cpuset.
///
/// # Errors
/// What the kernel says; `InvalidData` where this version does not know the mode.
pub fn own_policy() -> io::Result<KernelPolicy> {
    get_policy(0, 0)
}

/// The policy of an address of this process, as far as it has one of its own (else the thread's).
pub fn policy_at(address: u64) -> io::Result<KernelPolicy> {
    get_policy(address, MPOL_F_ADDR)
}

fn get_policy(address: u64, flags: libc::c_ulong) -> io::Result<KernelPolicy> {
    let (mut mode, mut mask) = (0 as libc::c_int, Mask([0; MAX_NODES / 64]));
    // SAFETY: the call writes one integer and at most the bits announced of the mask.
    check(unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            mask.0.as_mut_ptr(),
            MAX_NODES + 1,
            address,
            flags,
        )
    })?;
    let known = Mode::of_number((mode & !MODE_FLAGS) as u32);
    let mode_known = known.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("memory policy {mode} is newer than this version of hither"),
        )
    })?;
    Ok(KernelPolicy {
        mode: mode_known,
        nodes: mask.nodes(),
        is_balanced: mode & MPOL_F_NUMA_BALANCING != 0,
    })
}

/// The node of the page at an address of this process, which is brought into memory if it is not.
pub fn node_at(address: u64) -> io::Result<NodeId> {
    get_node(address, MPOL_F_NODE | MPOL_F_ADDR)
}

/// The node from which an interleaving thread takes its next page. `EINVAL`: it does not
/// interleave.
pub fn next_interleaved() -> io::Result<NodeId> {
    get_node(0, MPOL_F_NODE)
}

fn get_node(address: u64, flags: libc::c_ulong) -> io::Result<NodeId> {
    let mut node = 0 as libc::c_int;
    // SAFETY: the call writes one integer; without a mask it writes none.
    check(unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            std::ptr::null::<u64>(),
            0,
            address,
            flags,
        )
    })?;
    Ok(NodeId(node as u32))
}

/// What becomes of pages of a range that are there when it gets a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Present {
    /// They stay where they are.
    Stay,
    /// They stay, and it is an error (`EIO`) if one is where the policy does not want it.
    Checked,
    /// Those that this process alone maps go where the policy wants them, as far as they can.
    Move,
}

/// Gives a range of this process's addresses a policy. `address` must be page-aligned.
pub fn bind_range(
    address: u64,
    bytes: u64,
    policy: &KernelPolicy,
    present: Present,
) -> io::Result<()> {
    let (mode, mask) = argument(policy)?;
    bind(address, bytes, mode, &mask, present)
}

/// Binds a range of this process's memory to one node, see [`bind_range`]; allocates nothing.
pub fn bind_memory(address: u64, bytes: u64, node: u32, present: Present) -> io::Result<()> {
    bind(
        address,
        bytes,
        Mode::Bind as i32,
        &Mask::of([node])?,
        present,
    )
}

/// Has pages of a range come from this node first, or those nearest to it: of a range whose policy
/// is `bind` or `prefer (many)`, all mapped. `ENOSYS`: the kernel is older than Linux 5.17.
///
/// Source: `set_mempolicy_home_node(2)`.
pub fn set_home_node(address: u64, bytes: u64, home: NodeId) -> io::Result<()> {
    let home = libc::c_ulong::from(home.0);
    // SAFETY: integers only; the call changes where pages will come from, and no content.
    let result =
        unsafe { libc::syscall(libc::SYS_set_mempolicy_home_node, address, bytes, home, 0) };
    check(result).map(drop)
}

fn bind(
    address: u64,
    bytes: u64,
    mode: libc::c_int,
    mask: &Mask,
    present: Present,
) -> io::Result<()> {
    let flags = match present {
        Present::Stay => 0,
        Present::Checked => MPOL_MF_STRICT,
        Present::Move => MPOL_MF_MOVE,
    };
    let (mask, bits) = mask.argument();
    // SAFETY: the mask has the bits announced, or there is none; the call changes the policy of the
    // range and where its pages are, and no content.
    check(unsafe { libc::syscall(libc::SYS_mbind, address, bytes, mode, mask, bits, flags) })
        .map(drop)
}

/// Runs `work` while this thread prefers pages on `node`; it has the default policy afterwards. An
/// error of the kernel's about the node means that `work` was not run. Allocates nothing.
pub fn with_preferred_node<T>(node: u32, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    set(Mode::Preferred as libc::c_int, &Mask::of([node])?)?;
    let done = work();
    // Fails only for want of memory, and whoever cares sets a policy before it gets pages.
    let _ = set(Mode::Default as libc::c_int, &Mask([0; MAX_NODES / 64]));
    done
}

/// Gives the child that `command` will start CPUs and a memory policy, as far as they are named.
pub fn place_child(
    command: &mut Command,
    cpus: Option<CpuSet>,
    policy: Option<&KernelPolicy>,
) -> io::Result<()> {
    let policy = policy.map(argument).transpose()?;
    let cpus = cpus.map(|cpus| super::process::cpu_mask(&cpus));
    let place = move || {
        if let Some(cpus) = &cpus {
            super::process::set_affinity(0, cpus)?;
        }
        if let Some((mode, mask)) = &policy {
            set(*mode, mask)?;
        }
        Ok(())
    };
    // SAFETY: two system calls, no allocation on success.
    unsafe { command.pre_exec(place) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::PrivateMemory;

    fn policy(text: &str) -> KernelPolicy {
        text.parse().unwrap()
    }

    #[test]
    fn what_a_thread_sets_is_what_it_has() {
        let worker = std::thread::spawn(|| {
            for text in [
                "bind:0",
                "interleave:0",
                "prefer:0",
                "local",
                "default",
                "bind=balancing:0",
            ] {
                set_own_policy(&policy(text)).unwrap();
                assert_eq!(own_policy().unwrap().to_string(), text);
            }
            assert_eq!(
                next_interleaved().unwrap_err().raw_os_error(),
                Some(libc::EINVAL)
            );
            set_own_policy(&policy("interleave:0")).unwrap();
            assert_eq!(next_interleaved().unwrap(), NodeId(0));
            let nowhere = set_own_policy(&policy("bind:1000")).unwrap_err();
            assert_eq!(nowhere.raw_os_error(), Some(libc::EINVAL));
            let beyond = set_own_policy(&policy("bind:1024")).unwrap_err();
            assert_eq!(beyond.kind(), io::ErrorKind::InvalidInput);
        });
        worker.join().unwrap();
        assert_eq!(own_policy().unwrap(), policy("default"), "only that thread");
    }

    #[test]
    fn a_range_has_a_policy_of_its_own() {
        let mut memory = PrivateMemory::new(8192, false).unwrap();
        let address = memory.address();
        bind_range(address, 4096, &policy("interleave:0"), Present::Stay).unwrap();
        memory.fill_pages(1);
        assert_eq!(policy_at(address).unwrap().to_string(), "interleave:0");
        assert_eq!(policy_at(address + 4096).unwrap().to_string(), "default");
        assert_eq!(node_at(address).unwrap(), NodeId(0));
        for present in [Present::Checked, Present::Move] {
            bind_memory(address, 8192, 0, present).unwrap();
        }
        assert_eq!(policy_at(address + 4096).unwrap().to_string(), "bind:0");
        bind_range(address, 8192, &policy("default"), Present::Stay).unwrap();
        assert_eq!(policy_at(address).unwrap().to_string(), "default");
        let refused = |node| bind_memory(address, 4096, node, Present::Stay).unwrap_err();
        assert_eq!(refused(1000).raw_os_error(), Some(libc::EINVAL));
        assert_eq!(refused(5000).kind(), io::ErrorKind::InvalidInput);
        let unaligned = bind_memory(address + 1, 4096, 0, Present::Stay).unwrap_err();
        assert_eq!(unaligned.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn a_child_is_placed() {
        let text = |cpus: Option<&str>, with: Option<&str>| {
            let mut command = Command::new("cat");
            command.args(["/proc/self/numa_maps", "/proc/self/status"]);
            let cpus = cpus.map(|list| list.parse().unwrap());
            place_child(&mut command, cpus, with.map(policy).as_ref()).unwrap();
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        let own = crate::sys::allowed_cpus().unwrap();
        let first = own.first().unwrap().0.to_string();
        let line = |cpus: &str| format!("Cpus_allowed_list:\t{cpus}\n");
        let placed = text(Some(&first), Some("interleave:0"));
        assert!(
            placed.contains("interleave:0") && placed.contains(&line(&first)),
            "{placed}"
        );
        let bound = text(None, Some("bind=balancing:0"));
        assert!(
            bound.contains("bind=balancing:0") && bound.contains(&line(&own.to_string())),
            "{bound}"
        );
        assert!(text(None, None).contains("default"));
    }
}
