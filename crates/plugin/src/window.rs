//! Measuring windows: a program opens and closes one with a marker instruction, and the device
//! keeps what the whole machine did in between.

use crate::device::Device;
use hither_core::opium::{self, vcpu as block, window};
use std::sync::Mutex;

const SIMPLE: [(usize, &[usize]); 8] = [
    (
        window::INSTRUCTIONS,
        &[block::INSTRUCTIONS_USER, block::INSTRUCTIONS_KERNEL],
    ),
    (window::TLB_MISSES, &[block::TLB_MISSES]),
    (window::STALL_NS, &[block::STALL_NS]),
    (window::LATENCY_SUM_NS, &[block::LATENCY_SUM_NS]),
    (window::DEMAND_MISSES, &[block::DEMAND_MISSES]),
    (window::TRANSFERS, &[block::TRANSFERS]),
    (window::LLC_HITS, &[block::LLC_HITS]),
    (window::FLOPS, &[block::FLOPS]),
];

#[derive(Clone, Copy, Default)]
struct Totals {
    time_ns: u64,
    simple: [u64; SIMPLE.len()],
    /// User read fills, user write fills, write-backs, user local fills by node.
    by_node: [[u64; opium::MAX_NODES]; 4],
}

/// State at each window's opening.
#[derive(Default)]
pub struct Windows(Mutex<[Option<Totals>; opium::WINDOWS]>);

impl Windows {
    /// A marker was executed at `time_ns`. `nodes` is the node position of each vCPU. A window
    /// that is open already stays as it is; closing one that is not open does nothing.
    pub fn mark(&self, device: &Device, nodes: &[usize], word: u32, time_ns: u64) {
        let id = (word >> 4 & 0xf) as usize;
        let base = window::BASE + window::STRIDE * id;
        let mut open = self.0.lock().expect("no thread panics while holding it");
        match word & 0xf {
            opium::MARKER_OPEN if open[id].is_none() => {
                open[id] = Some(Totals {
                    time_ns,
                    ..totals(device, nodes)
                });
                device.add(base + window::OPENED, 1);
            }
            opium::MARKER_CLOSE => {
                let Some(before) = open[id].take() else {
                    return;
                };
                let after = totals(device, nodes);
                device.add(
                    base + window::TIME_NS,
                    time_ns.saturating_sub(before.time_ns),
                );
                for (index, (field, _)) in SIMPLE.iter().enumerate() {
                    device.add(
                        base + field,
                        after.simple[index].wrapping_sub(before.simple[index]),
                    );
                }
                let fields = [
                    window::USER_READ_FILLS,
                    window::USER_WRITE_FILLS,
                    window::WRITE_BACKS,
                    window::USER_LOCAL_FILLS,
                ];
                for (index, field) in fields.into_iter().enumerate() {
                    for node in 0..opium::MAX_NODES {
                        let by =
                            after.by_node[index][node].wrapping_sub(before.by_node[index][node]);
                        device.add(base + field + 8 * node, by);
                    }
                }
                device.add(base + window::CLOSED, 1);
            }
            _ => {}
        }
    }
}

fn totals(device: &Device, nodes: &[usize]) -> Totals {
    let mut totals = Totals::default();
    for (vcpu, &own) in nodes.iter().enumerate() {
        let base = block::BASE + block::STRIDE * vcpu;
        for (total, (_, fields)) in totals.simple.iter_mut().zip(SIMPLE) {
            *total += fields
                .iter()
                .map(|field| device.get(base + field))
                .sum::<u64>();
        }
        for node in 0..opium::MAX_NODES {
            let reads = device.get(base + block::fills(0, node));
            let writes = device.get(base + block::fills(1, node));
            totals.by_node[0][node] += reads;
            totals.by_node[1][node] += writes;
            totals.by_node[2][node] += device.get(base + block::write_backs(node));
            totals.by_node[3][node] += if node == own { reads + writes } else { 0 };
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker(id: u32, what: u32) -> u32 {
        opium::MARKER_MAGIC | id << 4 | what
    }

    #[test]
    fn a_window_keeps_differences_and_adds_up() {
        let device = Device::map(None).unwrap();
        let windows = Windows::default();
        let nodes = [0, 1];
        let fill = |vcpu: usize, node: usize, by: u64| {
            device.add(
                block::BASE + block::STRIDE * vcpu + block::fills(0, node),
                by,
            )
        };
        fill(0, 0, 100);
        windows.mark(&device, &nodes, marker(3, opium::MARKER_OPEN), 1_000);
        fill(0, 0, 5);
        fill(1, 0, 7);
        windows.mark(&device, &nodes, marker(3, opium::MARKER_CLOSE), 1_500);
        windows.mark(&device, &nodes, marker(3, opium::MARKER_CLOSE), 9_000);
        let base = window::BASE + window::STRIDE * 3;
        assert_eq!(device.get(base + window::TIME_NS), 500);
        assert_eq!(device.get(base + window::USER_READ_FILLS), 12);
        assert_eq!(device.get(base + window::USER_LOCAL_FILLS), 5);
        assert_eq!(
            (
                device.get(base + window::OPENED),
                device.get(base + window::CLOSED)
            ),
            (1, 1)
        );
    }
}
