//! CPU time of this thread, by switches.

use hither_linux::perf::ring::Ring;
use hither_linux::perf::switches::{self, OnCpu};
use hither_linux::sys::{self, EventAttribute, EventScope};
use std::fs::File;

/// `PERF_TYPE_SOFTWARE`, and its event that never comes.
const SOFTWARE: u32 = 1;
const DUMMY: u64 = 9;
const RING_PAGES: usize = 64;

/// CPU time of the thread that made it.
pub struct OwnCpu {
    _event: File,
    ring: Ring,
    on_cpu: OnCpu,
}

impl OwnCpu {
    pub fn new() -> Result<Self, String> {
        let mut attribute = EventAttribute::of_user_mode(SOFTWARE, [DUMMY, 0, 0]);
        switches::ask(&mut attribute);
        let event = sys::open_event(&attribute, EventScope::Thread, None);
        let event = event.map_err(|error| format!("perf_event_open: {error}"))?;
        let ring = Ring::new(&event, RING_PAGES).map_err(|error| error.to_string())?;
        Ok(Self {
            _event: event,
            ring,
            on_cpu: OnCpu::now(sys::monotonic_ns()),
        })
    }

    /// Since the last call.
    pub fn take(&mut self) -> u64 {
        let mut sum_ns = 0;
        let on_cpu = &mut self.on_cpu;
        self.ring.drain(|record| sum_ns += on_cpu.add(record));
        sum_ns + on_cpu.until(sys::monotonic_ns())
    }
}
