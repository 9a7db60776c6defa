//! The functions of the interface that place memory and threads on resource sets.

use crate::allocations;
use crate::calls::write_text;
use crate::constants::{
    HITHER_EINVAL, HITHER_ENOMEM, HITHER_ENOSYS, HITHER_HUGE, HITHER_MOVE, HITHER_OK,
    HITHER_POPULATE, HITHER_SMALL, HITHER_UNKNOWN,
};
use crate::failure::{Failure, Outcome, invalid, missing, number, pointer};
use crate::lifetime;
use crate::types::HitherResidency;
use hither_core::bind::{MemoryLayout, ThreadPolicy};
use hither_core::rset::{Resolved, Resources};
use hither_linux::bind::{self, Binding, Memory, PageSize, Team, range};
use hither_linux::sys::Present;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::str::FromStr;

/// How often a thread may be bound within another binding.
const MOST_NESTED: usize = 64;

thread_local! {
    /// What undoes this thread's bindings, the last one last.
    static BEFORE: RefCell<Vec<Binding>> = const { RefCell::new(Vec::new()) };
}

/// Writes to `text` what a resource set comes to for this process: a line with its CPUs and nodes,
/// and one for each thing that cpuset or affinity leave out of it. `set` is an expression such as
/// "node:0 + mem:2". At most `size` bytes are written, a final zero included; of a longer text the
/// beginning. `text` may be NULL where `size` is 0.
///
/// Returns the length of the whole text in bytes, without its final zero, as snprintf() does.
/// Errors: HITHER_EFAULT (set is NULL, or text is but size is not 0), HITHER_EINVAL (the set cannot
/// be read, names what is not there, or nothing is left of it; hither_last_error() marks where),
/// HITHER_EFORK.
///
/// # Safety
/// `set` is NULL or a text with a final zero; `text` is NULL or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_describe_set(
    set: *const c_char,
    text: *mut c_char,
    size: usize,
) -> c_int {
    number(|| {
        // SAFETY: as the caller of this function vouches.
        let (resolved, _) = unsafe { resolved(set)? };
        let (cpus, nodes) = (&resolved.set.cpus, &resolved.set.nodes);
        let mut described = match (cpus.is_empty(), nodes.is_empty()) {
            (false, false) => format!("CPUs {cpus}, memory of nodes {nodes}\n"),
            (false, true) => format!("CPUs {cpus}\n"),
            (true, _) => format!("memory of nodes {nodes}\n"),
        };
        for warning in &resolved.warnings {
            described += warning;
            described.push('\n');
        }
        // SAFETY: as the caller of this function vouches.
        unsafe { write_text(&described, text, size) }
    })
}

/// Allocates `bytes` of zeroed memory on the nodes of a resource set. A page comes into being on
/// its node when it is first written to, whichever thread does so. `memory` says how nodes are
/// chosen: "float", "local", "remote", "striped" (or "striped:16", 16 pages of a node at a time),
/// "bind" (or "bind@2", from node 2 first), "preferred" (or "preferred@2") or "weighted"; NULL is
/// "bind" where the set has memory, else "float". `flags` are HITHER_SMALL, HITHER_HUGE and
/// HITHER_POPULATE.
///
/// Returns an address, a multiple of 2 MiB, for hither_free(). NULL where it fails;
/// hither_last_code() is HITHER_EFAULT (set is NULL), HITHER_EINVAL (bytes is 0 or more than the
/// nodes have, a text cannot be read or does not go with the set, an unknown flag), HITHER_ENOMEM
/// (no memory, or no mappings left), HITHER_ENOSYS (the kernel cannot do it) or HITHER_EFORK then.
///
/// # Safety
/// `set` and `memory` are NULL or texts with a final zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_alloc(
    bytes: usize,
    set: *const c_char,
    memory: *const c_char,
    flags: u32,
) -> *mut c_void {
    pointer(|| {
        let pages = match flags & (HITHER_SMALL | HITHER_HUGE) {
            0 => PageSize::System,
            HITHER_SMALL => PageSize::Small,
            HITHER_HUGE => PageSize::Huge,
            _ => return invalid("flags has HITHER_SMALL and HITHER_HUGE: set one"),
        };
        known(flags, HITHER_SMALL | HITHER_HUGE | HITHER_POPULATE)?;
        // A lock of the allocations may be held at a fork.
        lifetime::begin()?;
        // SAFETY: as the caller of this function vouches.
        let (resolved, here) = unsafe { resolved(set)? };
        // SAFETY: as above.
        let layout = unsafe { layout(memory, &resolved)? };
        if bytes == 0 {
            return invalid("bytes is 0: ask for 1 at least");
        }
        let memory = Memory::new(bytes, &resolved.set, layout, pages, &here).map_err(failure)?;
        if flags & HITHER_POPULATE != 0 {
            memory.populate().map_err(failure)?;
        }
        Ok(allocations::keep(memory))
    })
}

/// Frees memory of hither_alloc().
///
/// Returns 0. Errors: HITHER_EFAULT (NULL), HITHER_EINVAL (not an address that hither_alloc()
/// returned, or freed already), HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_free(memory: *mut c_void) -> c_int {
    number(|| {
        lifetime::check()?;
        allocations::free(memory).map(|()| HITHER_OK)
    })
}

/// Gives memory of this process that exists already a set and a memory policy, which are as those
/// of hither_alloc(). `address` and `bytes` are multiples of 4096. With HITHER_MOVE in `flags`
/// pages that are there go where the policy wants them, as far as no other process maps them and
/// the nodes have room: hither_where() tells.
///
/// Returns 0. Errors: HITHER_EFAULT (address or set is NULL), HITHER_EINVAL (the range is empty,
/// not of whole pages or not mapped, a text cannot be read or does not go with the set, an unknown
/// flag), HITHER_ENOMEM (no memory, or more stripes than the kernel allows mappings), HITHER_ENOSYS
/// (the kernel cannot do it), HITHER_EFORK.
///
/// # Safety
/// `set` and `memory` are NULL or texts with a final zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_bind_range(
    address: *mut c_void,
    bytes: usize,
    set: *const c_char,
    memory: *const c_char,
    flags: u32,
) -> c_int {
    number(|| {
        if address.is_null() {
            return missing("address");
        }
        known(flags, HITHER_MOVE)?;
        // SAFETY: as the caller of this function vouches.
        let (resolved, here) = unsafe { resolved(set)? };
        // SAFETY: as above.
        let layout = unsafe { layout(memory, &resolved)? };
        let laid = layout.on(&resolved.set, &here);
        let laid = laid.map_err(|why| Failure::new(HITHER_EINVAL, format!("memory: {why}")))?;
        let Some(end) = address.addr().checked_add(bytes) else {
            return invalid("the range leaves the address space: mend address or bytes");
        };
        let present = match flags & HITHER_MOVE {
            0 => Present::Stay,
            _ => Present::Move,
        };
        range::bind(address.addr() as u64..end as u64, &laid, present).map_err(failure)?;
        Ok(HITHER_OK)
    })
}

/// Binds the calling thread, and threads and children that it starts from now on, to a set: it runs
/// on its CPUs alone, and takes memory as `memory` says: a word of hither_alloc() without stride or
/// home node; NULL is "bind" where the set has memory, else nothing changes of memory. A set without
/// CPUs changes nothing of CPUs. hither_unbind_thread() undoes it.
///
/// Returns 0. Errors, after which the thread is as before: HITHER_EFAULT (set is NULL),
/// HITHER_EINVAL (a text cannot be read or does not go with the set, the kernel refuses it, or the
/// thread is bound 64 times), HITHER_ENOMEM, HITHER_ENOSYS, HITHER_EFORK.
///
/// # Safety
/// `set` and `memory` are NULL or texts with a final zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_bind_thread(set: *const c_char, memory: *const c_char) -> c_int {
    number(|| {
        // SAFETY: as the caller of this function vouches.
        let (resolved, here) = unsafe { resolved(set)? };
        let policy = match memory.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { parsed("memory", memory)? }),
        };
        hold(&Binding::on(&resolved.set, policy, &here).map_err(failure)?)
    })
}

/// Binds the calling thread as thread `index`, from 0, of a team on a set: to one CPU in the order
/// that `threads` says, "fill" (close together) or "round-robin:node" (apart; also package, domain,
/// core), the first CPU again after the last; or to all with "float". NULL is "fill". Of memory it
/// does what hither_bind_thread() does, and hither_unbind_thread() undoes it.
///
/// Returns 0. Errors: as hither_bind_thread().
///
/// # Safety
/// `set` and `threads` are NULL or texts with a final zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_place_thread(
    set: *const c_char,
    threads: *const c_char,
    index: u32,
) -> c_int {
    number(|| {
        // SAFETY: as the caller of this function vouches.
        let (resolved, here) = unsafe { resolved(set)? };
        let policy = match threads.is_null() {
            true => ThreadPolicy::Fill,
            // SAFETY: as above.
            false => unsafe { parsed("threads", threads)? },
        };
        let team = Team::new(&resolved.set, policy, &here).map_err(failure)?;
        hold(&team.binding(index as usize))
    })
}

/// Undoes the last hither_bind_thread() or hither_place_thread() of the calling thread that is not
/// undone yet.
///
/// Returns 0. Errors: HITHER_EINVAL (there is none, or the kernel refuses what the thread had),
/// HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_unbind_thread() -> c_int {
    number(|| {
        lifetime::check()?;
        let Some(before) = BEFORE.with_borrow_mut(Vec::pop) else {
            return invalid("this thread is not bound: call hither_bind_thread() before");
        };
        before.apply().map_err(failure)?;
        Ok(HITHER_OK)
    })
}

/// Tells where the pages of a range are, without bringing any into memory: those that have a byte
/// of it are looked at. `nodes[n]` gets the number of pages on node n, for n below `node_count`;
/// `nodes` may be NULL where that is 0. `residency` gets the rest; it may be NULL.
///
/// Returns the highest node that has a page, plus 1; 0 where no page is in memory. Where that is
/// more than `node_count`, others have pages too. Errors: HITHER_EFAULT (address is NULL, or nodes
/// is but node_count is not 0), HITHER_EINVAL (the range is empty or not mapped), HITHER_ENOSYS
/// (the kernel does not tell), HITHER_EFORK.
///
/// # Safety
/// `nodes` is NULL or has `node_count` entries; `residency` is NULL or a structure to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_where(
    address: *const c_void,
    bytes: usize,
    nodes: *mut u64,
    node_count: usize,
    residency: *mut HitherResidency,
) -> c_int {
    number(|| {
        lifetime::check()?;
        if address.is_null() {
            return missing("address");
        }
        if nodes.is_null() && node_count > 0 {
            return missing("nodes");
        }
        let pages = range::pages_around(address.addr() as u64, bytes as u64).map_err(failure)?;
        let found = range::residency(pages).map_err(failure)?;
        for node in 0..node_count {
            let on = found.nodes.iter().find(|(id, _)| id.0 as usize == node);
            // SAFETY: the caller vouches for `node_count` entries.
            unsafe { nodes.add(node).write(on.map_or(0, |(_, count)| *count)) };
        }
        if !residency.is_null() {
            let told = HitherResidency {
                pages: found.page_count(),
                absent: found.absent,
                astray: found.astray,
                huge: found.huge.unwrap_or(HITHER_UNKNOWN),
            };
            // SAFETY: not null, and the caller vouches for it.
            unsafe { residency.write(told) };
        }
        Ok(found
            .nodes
            .last()
            .map_or(0, |(node, _)| node.0 as c_int + 1))
    })
}

fn hold(binding: &Binding) -> Outcome<c_int> {
    if BEFORE.with_borrow(Vec::len) >= MOST_NESTED {
        let text = format!("this thread is bound {MOST_NESTED} times: undo some");
        return invalid(text);
    }
    let before = binding.replace().map_err(failure)?;
    BEFORE.with_borrow_mut(|all| all.push(before));
    Ok(HITHER_OK)
}

/// # Safety
/// `set` is NULL or a text with a final zero.
unsafe fn resolved(set: *const c_char) -> Outcome<(Resolved, Resources)> {
    lifetime::check()?;
    // SAFETY: the caller vouches for the text.
    let text = unsafe { read("set", set)? };
    let here = bind::here().map_err(failure)?;
    let resolved = bind::resolve("set", &text, &here).map_err(failure)?;
    Ok((resolved, here))
}

/// # Safety
/// `memory` is NULL or a text with a final zero.
unsafe fn layout(memory: *const c_char, resolved: &Resolved) -> Outcome<MemoryLayout> {
    match memory.is_null() {
        true => Ok(MemoryLayout::usual(&resolved.set)),
        // SAFETY: the caller vouches for the text.
        false => unsafe { parsed("memory", memory) },
    }
}

/// # Safety
/// `pointer` is NULL or a text with a final zero.
unsafe fn parsed<T: FromStr<Err = String>>(name: &str, pointer: *const c_char) -> Outcome<T> {
    // SAFETY: the caller vouches for the text.
    let text = unsafe { read(name, pointer)? };
    text.parse()
        .map_err(|why| Failure::new(HITHER_EINVAL, format!("{name}: {why}")))
}

/// # Safety
/// `pointer` is NULL or a text with a final zero.
pub(crate) unsafe fn read(name: &str, pointer: *const c_char) -> Outcome<String> {
    if pointer.is_null() {
        return missing(name);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    Ok(unsafe { CStr::from_ptr(pointer) }
        .to_string_lossy()
        .into_owned())
}

fn known(flags: u32, all: u32) -> Outcome<()> {
    match flags & !all {
        0 => Ok(()),
        bits => invalid(format!("flags has unknown bits {bits:#x}: clear them")),
    }
}

pub(crate) fn failure(error: hither_linux::Error) -> Failure {
    let code = match error.source.as_ref().map(io::Error::kind) {
        Some(io::ErrorKind::OutOfMemory) => HITHER_ENOMEM,
        Some(io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied) => HITHER_ENOSYS,
        _ => HITHER_EINVAL,
    };
    Failure::new(code, error.to_string())
}
