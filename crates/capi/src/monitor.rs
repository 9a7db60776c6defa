//! The functions of the interface that watch: who asks for which part of the program's own memory, and a wait until that
//! is much.

use crate::calls::write_text;
use crate::constants::{
    HITHER_AT_NODE, HITHER_EINVAL, HITHER_MONITOR_SAMPLES, HITHER_OK, HITHER_TYPE_FILLS,
};
use crate::failure::{Failure, Outcome, missing, number};
use crate::handles::{Handles, Kind, locked};
use crate::structures::or;
use crate::types::{HitherArea, HitherReached, HitherTotals};
use crate::{lifetime, placement};
use hither_core::ids::NodeId;
use hither_linux::monitor::{Monitor, Sum, Wanted, WatchedArea, What};
use hither_linux::root::Root;
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

type Shared = Arc<Mutex<Monitor>>;

static OPEN: Handles<Mutex<Monitor>> = Handles::new(Kind {
    name: "monitor",
    made_by: "hither_monitor_open",
    ended_by: "hither_monitor_close",
});

/// What a grain is where nobody says.
const GRAIN: u64 = 4096;

/// Opens a monitor of this process's own memory. It counts by the laboratory's device where there is one and this
/// process may use it (root), else by samples of the processor's PMU, which are estimates (hither_monitor_describe() says
/// what they leave out). With HITHER_MONITOR_SAMPLES samples are taken in any case. The device counts for one process at
/// a time.
///
/// Returns a number above 0 for the other calls. Errors: HITHER_EINVAL (an unknown flag, or nothing here counts:
/// hither_last_error() has each reason), HITHER_ENOSYS (the kernel does not let this process), HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_monitor_open(flags: u32) -> c_int {
    number(|| {
        lifetime::begin()?;
        let wanted = match flags {
            0 => Wanted::Best,
            HITHER_MONITOR_SAMPLES => Wanted::Samples,
            other => {
                let text =
                    format!("flags has unknown bits {other:#x}: pass 0 or HITHER_MONITOR_SAMPLES");
                return Err(Failure::new(HITHER_EINVAL, text));
            }
        };
        let monitor = Monitor::open(&Root::host(), wanted).map_err(placement::failure)?;
        OPEN.keep(Mutex::new(monitor))
    })
}

/// Closes a monitor. What it counted is lost. Threads in hither_monitor_wait() for it are woken with HITHER_EBADF.
///
/// Returns 0. Errors: HITHER_EBADF, HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_monitor_close(monitor: c_int) -> c_int {
    number(|| stop(&OPEN.remove(monitor, |_| Ok(()))?))
}

/// Adds an area; `size` is sizeof(struct hither_area). Only while it does not count.
///
/// Returns the area's number, from 0 on. Errors: HITHER_EFAULT (area is NULL), HITHER_EINVAL (size, a field without
/// meaning, what samples cannot tell, 32 areas, or it counts), HITHER_EBADF, HITHER_EFORK.
///
/// # Safety
/// `area` is NULL or has `size` bytes. The memory that it names is not looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_monitor_add_area(
    monitor: c_int,
    area: *const HitherArea,
    size: usize,
) -> c_int {
    number(|| {
        let found = OPEN.find(monitor)?;
        if area.is_null() {
            return missing("area");
        }
        check_size::<HitherArea>(size, "hither_area")?;
        // SAFETY: not null, and the caller vouches for its size; it need not be aligned.
        let asked = unsafe { area.read_unaligned() };
        let start = asked.start.addr() as u64;
        let Some(end) = start.checked_add(asked.length) else {
            let text = "the area leaves the address space: mend start or length";
            return Err(Failure::new(HITHER_EINVAL, text));
        };
        let area = WatchedArea {
            addresses: start..end,
            grain_bytes: or(asked.grain, GRAIN),
            types: or(asked.types, HITHER_TYPE_FILLS),
            directions: asked.directions & !HITHER_AT_NODE,
            node: (asked.directions & HITHER_AT_NODE != 0).then_some(NodeId(asked.node)),
            threshold: asked.threshold,
        };
        let added = locked(&found).add_area(area);
        Ok(added.map_err(placement::failure)? as c_int)
    })
}

/// Adds a counter over `count` areas: of what these count, it counts `types` (HITHER_TYPE_*; 0: HITHER_TYPE_FILLS), and
/// hither_monitor_wait() tells where it reaches `threshold`, all nodes together (0: never). Only while the monitor does
/// not count.
///
/// Returns the sum's number, from 0 on. Errors: HITHER_EFAULT (areas is NULL), HITHER_EINVAL (no such area or type, 16
/// sums, or it counts), HITHER_EBADF, HITHER_EFORK.
///
/// # Safety
/// `areas` is NULL or has `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_monitor_add_sum(
    monitor: c_int,
    areas: *const c_int,
    count: usize,
    types: u32,
    threshold: u64,
) -> c_int {
    number(|| {
        let found = OPEN.find(monitor)?;
        if areas.is_null() {
            return missing("areas");
        }
        // More than there can be is refused by what is in them.
        let given = (0..count.min(64)).map(|index| {
            // SAFETY: the caller vouches for `count` entries.
            let area = unsafe { areas.add(index).read_unaligned() };
            usize::try_from(area).unwrap_or(usize::MAX)
        });
        let sum = Sum {
            areas: given.collect(),
            types: or(types, HITHER_TYPE_FILLS),
            threshold,
        };
        let added = locked(&found).add_sum(sum);
        Ok(added.map_err(placement::failure)? as c_int)
    })
}

/// Begins to count, all from 0 on. Pages count where they are now: one that moves, or comes into memory later, is counted
/// from the next start on.
///
/// Returns 0. Errors: HITHER_EINVAL (no area, no page of them in memory, it counts already, or areas of sums lie in more
/// pieces of physical memory than there are filters: use memory of huge pages), HITHER_EBADF, HITHER_EFORK.
#[unsafe(no_mangle)]
pub extern "C" fn hither_monitor_start(monitor: c_int) -> c_int {
    number(|| {
        let found = OPEN.find(monitor)?;
        let started = locked(&found).start();
        started.map(|()| HITHER_OK).map_err(placement::failure)
    })
}

/// Ends counting. What was counted can be read until the next start.
///
/// Returns 0. Errors: HITHER_EBADF, HITHER_EFORK, and where samples cannot be read HITHER_ENOSYS.
#[unsafe(no_mangle)]
pub extern "C" fn hither_monitor_stop(monitor: c_int) -> c_int {
    number(|| stop(&OPEN.find(monitor)?))
}

/// Reads an area: `counts[grain * nodes + node]` is set to what CPUs of the node (the kernel's number) asked for of the
/// grain since the start, for `grains` grains at most. `missed_pages` is set to how many of its pages were not in memory
/// at the start or have moved since, unless it is NULL.
///
/// Returns how many grains the area has. Errors: HITHER_EFAULT (counts is NULL but grains is not 0), HITHER_EINVAL (no
/// such area, or it was never started), HITHER_EBADF, HITHER_EFORK.
///
/// # Safety
/// `counts` is NULL or has `grains * nodes` entries; `missed_pages` is NULL or a pointer to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_monitor_read(
    monitor: c_int,
    area: c_int,
    counts: *mut u64,
    grains: usize,
    nodes: usize,
    missed_pages: *mut u64,
) -> c_int {
    number(|| {
        let found = OPEN.find(monitor)?;
        if counts.is_null() && grains > 0 {
            return missing("counts");
        }
        let area = usize::try_from(area).unwrap_or(usize::MAX);
        let mut held = locked(&found);
        let read = held.read_area(area).map_err(placement::failure)?;
        let ids = held.nodes();
        let all = read.counts.chunks(ids.len().max(1));
        let told = all.len();
        for (grain, of_grain) in all.take(grains).enumerate() {
            // SAFETY: the caller vouches for `grains * nodes` entries.
            unsafe { spread(of_grain, ids, counts.add(grain * nodes), nodes) };
        }
        if !missed_pages.is_null() {
            // SAFETY: the caller vouches for it.
            unsafe { missed_pages.write(read.missed_pages) };
        }
        Ok(c_int::try_from(told).unwrap_or(c_int::MAX))
    })
}

/// Reads a sum: `counts[node]` is set to what CPUs of the node asked for since the start, for `nodes` nodes.
///
/// Returns 0. Errors: HITHER_EFAULT (counts is NULL), HITHER_EINVAL (no such sum, or it was never started), HITHER_EBADF,
/// HITHER_EFORK.
///
/// # Safety
/// `counts` is NULL or has `nodes` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_monitor_read_sum(
    monitor: c_int,
    sum: c_int,
    counts: *mut u64,
    nodes: usize,
) -> c_int {
    number(|| {
        let found = OPEN.find(monitor)?;
        if counts.is_null() {
            return missing("counts");
        }
        let sum = usize::try_from(sum).unwrap_or(usize::MAX);
        let mut held = locked(&found);
        let read = held.read_sum(sum).map_err(placement::failure)?;
        // SAFETY: not null, and the caller vouches for `nodes` entries.
        unsafe { spread(&read, held.nodes(), counts, nodes) };
        Ok(HITHER_OK)
    })
}

/// Waits until a threshold is reached that was not told yet, up to `timeout_ms` milliseconds; -1 for ever, 0 not at all.
/// The calling thread looks every half millisecond (samples: every 10 ms). `reached` may be NULL.
///
/// Returns 1: `reached` says which; 0: the time is over. Errors: HITHER_EINVAL (a time below -1, or it does not count),
/// HITHER_EBADF (also when it is closed meanwhile), HITHER_EFORK.
///
/// # Safety
/// `reached` is NULL or a pointer to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_monitor_wait(
    monitor: c_int,
    timeout_ms: c_int,
    reached: *mut HitherReached,
) -> c_int {
    number(|| {
        let found = OPEN.find(monitor)?;
        let timeout = match timeout_ms {
            -1 => Duration::MAX,
            0.. => Duration::from_millis(timeout_ms.unsigned_abs().into()),
            _ => {
                let text = format!("timeout_ms is {timeout_ms}: it is -1, for ever, or more");
                return Err(Failure::new(HITHER_EINVAL, text));
            }
        };
        let Some(told) = wait(monitor, &found, timeout)? else {
            return Ok(0);
        };
        if !reached.is_null() {
            // SAFETY: the caller vouches for it.
            unsafe { reached.write(told) };
        }
        Ok(1)
    })
}

/// Looks again and again, and lets other threads use the monitor in between.
fn wait(monitor: c_int, found: &Shared, timeout: Duration) -> Outcome<Option<HitherReached>> {
    let end = Instant::now().checked_add(timeout);
    loop {
        let (told, is_running, pause) = {
            let mut held = locked(found);
            let told = held.poll().map_err(placement::failure)?;
            (told, held.is_running(), held.pause())
        };
        if let Some(told) = told {
            let (area, sum, grain) = match told.what {
                What::Grain { area, grain } => (area as c_int, -1, grain as u64),
                What::Sum(sum) => (-1, sum as c_int, 0),
            };
            return Ok(Some(HitherReached {
                area,
                sum,
                grain,
                node: told.node.0 as c_int,
                reserved: 0,
            }));
        }
        if !is_running {
            OPEN.find(monitor)?;
            let text =
                "the monitor does not count, so that nothing will be reached: start it first";
            return Err(Failure::new(HITHER_EINVAL, text));
        }
        match end.map(|end| end.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => return Ok(None),
            left => std::thread::sleep(pause.min(left.unwrap_or(pause))),
        }
    }
}

/// Tells what the whole machine did from the start to the stop, or now: packets between nodes and floating-point
/// operations. `size` is sizeof(struct hither_totals).
///
/// Returns 1; 0 where only samples tell, which leave that out. Errors: HITHER_EFAULT (totals is NULL), HITHER_EINVAL
/// (size), HITHER_EBADF, HITHER_EFORK.
///
/// # Safety
/// `totals` is NULL or has `size` bytes to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_monitor_totals(
    monitor: c_int,
    totals: *mut HitherTotals,
    size: usize,
) -> c_int {
    number(|| {
        let found = OPEN.find(monitor)?;
        if totals.is_null() {
            return missing("totals");
        }
        check_size::<HitherTotals>(size, "hither_totals")?;
        let Some(told) = locked(&found).totals() else {
            return Ok(0);
        };
        let told = HitherTotals {
            short_packets: told.short_packets,
            line_packets: told.line_packets,
            transactions: told.transactions,
            flops: told.flops,
        };
        // SAFETY: not null, and the caller vouches for its size.
        unsafe { totals.write_unaligned(told) };
        Ok(1)
    })
}

/// Writes to `text` what counts for a monitor and what it leaves out. At most `size` bytes are written, a final zero
/// included; of a longer text the beginning. `text` may be NULL where `size` is 0.
///
/// Returns the length of the whole text in bytes, as snprintf() does. Errors: HITHER_EFAULT, HITHER_EBADF, HITHER_EFORK.
///
/// # Safety
/// `text` is NULL or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_monitor_describe(
    monitor: c_int,
    text: *mut c_char,
    size: usize,
) -> c_int {
    number(|| {
        let found = OPEN.find(monitor)?;
        let limits = locked(&found).limits();
        // SAFETY: as the caller of this function vouches.
        unsafe { write_text(&limits, text, size) }
    })
}

fn stop(found: &Shared) -> Outcome<c_int> {
    let stopped = locked(found).stop();
    stopped.map(|()| HITHER_OK).map_err(placement::failure)
}

/// Is it the size of this structure, which is `name` in C?
fn check_size<T>(size: usize, name: &str) -> Outcome<()> {
    if size == size_of::<T>() {
        return Ok(());
    }
    let text = format!("size is {size}: pass sizeof(struct {name})");
    Err(Failure::new(HITHER_EINVAL, text))
}

/// Writes counts by the kernel's numbers of nodes; nodes that there are not have none.
///
/// # Safety
/// `into` has `nodes` entries.
unsafe fn spread(counts: &[u64], ids: &[NodeId], into: *mut u64, nodes: usize) {
    for node in 0..nodes {
        let position = ids.iter().position(|id| id.0 as usize == node);
        let count = position.and_then(|position| counts.get(position));
        // SAFETY: the caller vouches for it.
        unsafe { into.add(node).write(count.copied().unwrap_or(0)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constants::HITHER_EBADF;
    use hither_core::opium::{filter, transaction};

    #[test]
    fn numbers_are_those_of_the_device() {
        use crate::constants::*;
        let types = [
            (HITHER_TYPE_READ, transaction::READ),
            (HITHER_TYPE_WRITE, transaction::WRITE),
            (HITHER_TYPE_PREFETCH, transaction::PREFETCH),
            (HITHER_TYPE_PREFETCH_WRITE, transaction::PREFETCH_WRITE),
            (HITHER_TYPE_WRITE_BACK, transaction::WRITE_BACK),
            (HITHER_TYPE_TRANSFER, transaction::TRANSFER),
            (HITHER_TYPE_TRANSFER_WRITE, transaction::TRANSFER_WRITE),
            (HITHER_TYPE_OWNERSHIP, transaction::OWNERSHIP),
            (HITHER_TYPE_FILLS, transaction::FILLS),
            (HITHER_INBOUND, filter::INBOUND),
            (HITHER_OUTBOUND, filter::OUTBOUND),
            (HITHER_LOCAL, filter::LOCAL),
            (HITHER_REMOTE, filter::REMOTE),
        ];
        for (ours, devices) in types {
            assert_eq!(ours, devices);
        }
    }

    #[test]
    fn counts_go_by_the_kernels_numbers() {
        let mut into = [9; 4];
        // SAFETY: four entries.
        unsafe { spread(&[5, 6], &[NodeId(2), NodeId(0)], into.as_mut_ptr(), 4) };
        assert_eq!(into, [6, 0, 5, 0]);
    }

    #[test]
    fn bad_calls_are_refused() {
        let unknown = c_int::MAX;
        // SAFETY: NULL is allowed everywhere.
        unsafe {
            assert_eq!(hither_monitor_open(2), HITHER_EINVAL);
            assert_eq!(hither_monitor_close(unknown), HITHER_EBADF);
            assert_eq!(hither_monitor_start(unknown), HITHER_EBADF);
            assert_eq!(hither_monitor_stop(0), HITHER_EBADF);
            assert_eq!(
                hither_monitor_add_area(-1, std::ptr::null(), 0),
                HITHER_EBADF
            );
            assert_eq!(
                hither_monitor_wait(unknown, 0, std::ptr::null_mut()),
                HITHER_EBADF
            );
        }
    }
}
