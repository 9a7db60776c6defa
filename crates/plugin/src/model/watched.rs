//! What filters of the device count besides fills and transfers: write-backs, and lines that become a CPU's own.

use super::{Access, FOUR_GB, Model};
use crate::regions::Transaction;
use crate::vcpu::Vcpu;
use hither_core::opium::transaction;

impl Model {
    /// Physical address of a line: the inverse of [`Model::locate`].
    pub(super) fn address(&self, line: u64) -> u64 {
        match line << self.line_shift {
            low if low < self.low_bytes => low,
            high => high - self.low_bytes + FOUR_GB,
        }
    }

    /// Counts a line that is written to memory.
    #[inline(always)]
    pub(super) fn watch_write_back(&self, vcpu: &Vcpu, line: u64, node: usize) {
        vcpu.watch(&self.device, || Transaction {
            paddr: self.address(line),
            kind: transaction::WRITE_BACK,
            kernel: false,
            home: node,
            requester: vcpu.node,
        });
    }

    /// Counts a line of another node that was held and becomes the CPU's own.
    pub(super) fn watch_ownership(&self, vcpu: &Vcpu, access: &Access, node: usize) {
        vcpu.watch(&self.device, || Transaction {
            paddr: access.paddr,
            kind: transaction::OWNERSHIP,
            kernel: access.kernel,
            home: node,
            requester: vcpu.node,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::guest::Executed;
    use crate::vcpu::Score;
    use hither_core::machine::parse::parse;
    use hither_core::opium::{self, COUNTER_BASE, MAX_NODES, control, filter};
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn addresses_of_lines_are_those_that_they_were_located_by() {
        for memory_mb in [512, 4096] {
            let mut machine = parse(include_str!("../../../../machines/opteron8385.toml")).unwrap();
            machine
                .nodes
                .iter_mut()
                .for_each(|node| node.memory_mb = memory_mb / 4);
            let model = Model::new(machine, Device::map(None).unwrap(), 10_000, || ());
            for paddr in [0x1000, 0x1234_5640, 0x1_1234_5640] {
                if let Some((line, _)) = model.locate(paddr) {
                    assert_eq!(model.address(line), paddr);
                }
            }
        }
    }

    /// Four times what the cache holds is stored to: what was written comes back to memory, each line once.
    #[test]
    fn lines_that_are_written_back_are_counted_where_they_belong() {
        let model = super::super::races::model(8);
        let mut vcpu = Vcpu::new(&model.machine, 0);
        vcpu.prices.latency_ps[..8].fill(100_000);
        let cache = &model.machine.domains[0].cache;
        let bytes = 4 * (cache.size_kb << 10);
        let put = |field: usize, value: u32| {
            model
                .device
                .u32(control::FILTERS + field)
                .store(value, Relaxed);
        };
        put(filter::SHIFT, model.line_shift);
        put(filter::TYPES, transaction::WRITE_BACK);
        put(filter::NODE, filter::ANY_NODE);
        put(filter::FLAGS, filter::ENABLED);
        model.device.set(control::FILTERS + filter::END, bytes);
        model.device.u32(control::FILTER_SEQ).store(1, Relaxed);
        vcpu.control(&model.device, &model.regions, model.machine.line_bytes);
        for line in 0..bytes >> model.line_shift {
            let address = line << model.line_shift;
            let access = Access {
                vaddr: address,
                paddr: address,
                pc: 0x40_0000,
                executed: &Executed::default,
                value: &|| 0,
                store: true,
                kernel: false,
            };
            model.access(&mut vcpu, &Score::default(), &access);
        }
        let counts: Vec<u32> = (0..(bytes >> model.line_shift) as usize)
            .map(|line| {
                model
                    .device
                    .u32(COUNTER_BASE + line * MAX_NODES * 4)
                    .load(Relaxed)
            })
            .collect();
        let written: u64 = (0..opium::MAX_NODES)
            .map(|node| {
                model
                    .device
                    .get(opium::vcpu::BASE + opium::vcpu::write_backs(node))
            })
            .sum();
        assert!(counts.iter().all(|&count| count <= 1));
        assert_eq!(
            counts.iter().map(|&count| u64::from(count)).sum::<u64>(),
            written
        );
        // The cache keeps a quarter; where it hashes, a little more or less.
        assert!(written * 10 > (bytes >> model.line_shift) * 7, "{written}");
    }
}
