//! Translations of addresses, emptied about as often as a processor replaces them.
//!
//! Problem: a processor sets a page's accessed bit when it walks page tables, and its TLB holds some 1,500 translations,
//! so that a page in use is walked for again within a millisecond or so. The emulator's TLB grows to tens of thousands
//! and is emptied at a switch of address spaces alone: a program that has a CPU for itself looks idle to who reads access
//! bits. Mechanism: on each CPU a thread of this process wakes every few milliseconds, which switches to its address
//! space and back. That takes the program some 0.1 % of its time.

use super::{Result, doing};
use hither_core::set::CpuSet;
use hither_linux::parse;
use hither_linux::root::Root;
use hither_linux::sys;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Shorter than the shortest time between two checks of DAMON, 5 ms.
const EVERY: Duration = Duration::from_millis(4);

/// Threads at work; they end when it is dropped.
#[derive(Debug)]
pub struct Emptied {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Emptied {
    /// Begins on every CPU.
    pub fn begin(root: &Root) -> Result<Self> {
        let online: CpuSet = root
            .parse("sys/devices/system/cpu/online", parse::list)
            .map_err(|error| error.to_string())?;
        let mut emptied = Self {
            is_over: Arc::default(),
            threads: Vec::new(),
        };
        for cpu in online.iter() {
            let is_over = Arc::clone(&emptied.is_over);
            let wake = move || {
                // The thread itself; where it may not be kept there it still wakes somewhere.
                let _ = sys::keep_thread_on(0, &[cpu].into_iter().collect());
                while !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(EVERY);
                }
            };
            let thread = std::thread::Builder::new().spawn(wake);
            let thread = thread.map_err(doing("starting a thread"))?;
            emptied.threads.push(thread);
        }
        Ok(emptied)
    }
}

impl Drop for Emptied {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It only sleeps: nothing in it can fail.
            let _ = thread.join();
        }
    }
}
