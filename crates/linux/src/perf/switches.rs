//! Time that a thread is on a CPU, from the moments at which the kernel switches to it and from it.
//!
//! What the kernel sums up itself (`schedstat`, `CLOCK_THREAD_CPUTIME_ID`) is as good as the clock of
//! its scheduler. Where that is not the clock of everything else, as in the laboratory (docs/lab.md),
//! what runs for less than a tick at a time is told several times too long; these are moments of
//! `CLOCK_MONOTONIC`.

use super::record::{HEADER_BYTES, RECORD_LOST, field};
use crate::sys::{EventAttribute, event_flag};

/// A type of records, and the bit of its mode that says from the thread (`linux/perf_event.h`).
const RECORD_SWITCH: u32 = 14;
const SWITCH_OUT: u16 = 1 << 13;

/// An event of one thread tells of switches too, from the start and in the kernel; its samples begin
/// with the time.
pub fn ask(attribute: &mut EventAttribute) {
    attribute.flags = event_flag::CLOCK | event_flag::SAMPLE_ID_ALL | event_flag::CONTEXT_SWITCH;
    attribute.sample_type |= field::TIME;
}

/// Sums up the records of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnCpu {
    /// It is on a CPU, and was counted until then.
    since_ns: Option<u64>,
}

impl OnCpu {
    /// Of a thread that is on a CPU now.
    #[must_use]
    pub fn now(now_ns: u64) -> Self {
        Self {
            since_ns: Some(now_ns),
        }
    }

    /// Takes any record of the event; time on a CPU that it ends. What was lost is not counted.
    pub fn add(&mut self, record: &[u8]) -> u64 {
        let Some((&[a, b, c, d, e, f, ..], body)) = record.split_first_chunk::<HEADER_BYTES>()
        else {
            return 0;
        };
        match u32::from_ne_bytes([a, b, c, d]) {
            RECORD_SWITCH => {
                let Some(time_ns) = body.first_chunk().map(|&time| u64::from_ne_bytes(time)) else {
                    return 0;
                };
                let passed_ns = self.until(time_ns);
                if u16::from_ne_bytes([e, f]) & SWITCH_OUT != 0 {
                    self.since_ns = None;
                    return passed_ns;
                }
                self.since_ns = Some(time_ns);
                0
            }
            RECORD_LOST => {
                self.since_ns = None;
                0
            }
            _ => 0,
        }
    }

    /// Time on a CPU until now that was not counted yet.
    pub fn until(&mut self, now_ns: u64) -> u64 {
        let Some(since_ns) = self.since_ns else {
            return 0;
        };
        self.since_ns = Some(now_ns.max(since_ns));
        now_ns.saturating_sub(since_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::ring::Ring;
    use crate::sys::{self, EventScope};

    fn record(kind: u32, mode: u16, time_ns: u64) -> Vec<u8> {
        let mut record = kind.to_ne_bytes().to_vec();
        record.extend(mode.to_ne_bytes());
        record.extend(16u16.to_ne_bytes());
        record.extend(time_ns.to_ne_bytes());
        record
    }

    #[test]
    fn time_between_switches_is_summed_up() {
        let mut on_cpu = OnCpu::default();
        let mut add = |kind, mode, time_ns| on_cpu.add(&record(kind, mode, time_ns));
        // It was on one since nobody knows when.
        assert_eq!(add(RECORD_SWITCH, SWITCH_OUT, 50), 0);
        assert_eq!(add(RECORD_SWITCH, 0, 100), 0);
        assert_eq!(add(9, 0, 120), 0);
        assert_eq!(add(RECORD_SWITCH, SWITCH_OUT, 130), 30);
        assert_eq!(add(RECORD_SWITCH, 0, 200), 0);
        assert_eq!(add(RECORD_LOST, 0, 220), 0);
        assert_eq!(add(RECORD_SWITCH, SWITCH_OUT, 300), 0);
        let mut on_cpu = OnCpu::now(1000);
        assert_eq!((on_cpu.until(1010), on_cpu.until(1010)), (10, 0));
        assert_eq!(on_cpu.until(900), 0);
        assert_eq!(on_cpu.add(&record(RECORD_SWITCH, SWITCH_OUT, 1015)), 5);
        assert_eq!(on_cpu.until(2000), 0);
        for cut in 0..16 {
            assert_eq!(on_cpu.add(&record(RECORD_SWITCH, 0, 1)[..cut]), 0);
        }
    }

    #[test]
    fn a_thread_that_sleeps_is_not_on_a_cpu() {
        // Where this user may, and the kernel does.
        let mut attribute = EventAttribute::of_user_mode(1, [9, 0, 0]);
        ask(&mut attribute);
        let Ok(event) = sys::open_event(&attribute, EventScope::Thread, None) else {
            return;
        };
        let Ok(mut ring) = Ring::new(&event, 8) else {
            return;
        };
        let begun_ns = sys::monotonic_ns();
        let mut on_cpu = OnCpu::now(begun_ns);
        std::thread::sleep(std::time::Duration::from_millis(50));
        let mut sum_ns = 0;
        ring.drain(|record| sum_ns += on_cpu.add(record));
        let now_ns = sys::monotonic_ns();
        sum_ns += on_cpu.until(now_ns);
        assert!(
            sum_ns > 0 && sum_ns <= now_ns - begun_ns - 50_000_000,
            "{sum_ns}"
        );
    }
}
