//! The lab's exact counts, read from the Opium device through hither's own reader.

use super::{Result, doing};
use crate::measure::Counters;
use hither_core::opium::vcpu;
use hither_linux::opium::{OpiumDevice, VcpuCounters};
use hither_linux::root::Root;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The device, and the kernel's count of migrated pages.
#[derive(Debug)]
pub struct Meter {
    device: OpiumDevice,
    vmstat: File,
}

impl Meter {
    /// Opens both.
    pub fn open() -> Result<Self> {
        let device = OpiumDevice::open(&Root::host()).map_err(|error| error.to_string())?;
        let vmstat = File::open("/proc/vmstat").map_err(doing("opening /proc/vmstat"))?;
        Ok(Self { device, vmstat })
    }

    /// The device.
    pub fn device(&self) -> &OpiumDevice {
        &self.device
    }

    /// Counters since boot.
    pub fn read(&self) -> Counters {
        let mut sum = Counters {
            moved_pages: self.moved_pages(),
            ..Counters::default()
        };
        let mut block = VcpuCounters::default();
        for (index, &own) in self.device.vcpu_nodes().iter().enumerate() {
            self.device.read_vcpu(index, &mut block);
            sum.instructions_user += block.at(vcpu::INSTRUCTIONS_USER);
            sum.instructions_kernel += block.at(vcpu::INSTRUCTIONS_KERNEL);
            sum.latency_sum_ns += block.at(vcpu::LATENCY_SUM_NS);
            sum.demand_misses += block.at(vcpu::DEMAND_MISSES);
            for node in 0..self.device.node_ids().len() {
                let user = block.fills(0, node) + block.fills(1, node);
                sum.user_fills += user;
                sum.user_local_fills += if node == own { user } else { 0 };
                sum.kernel_fills += block.fills(2, node) + block.fills(3, node);
                sum.write_backs += block.at(vcpu::write_backs(node));
            }
        }
        for position in 0..self.device.node_ids().len() {
            let traffic = self.device.node_traffic(position);
            sum.node_bytes
                .push(traffic.read_bytes + traffic.write_bytes);
            sum.node_ppm_us.push(traffic.utilisation_integral);
        }
        for position in 0..self.device.link_count() {
            let traffic = self.device.link_traffic(position);
            sum.link_bytes.push(traffic.bytes);
            sum.link_ppm_us.push(traffic.utilisation_integral);
        }
        sum
    }

    fn moved_pages(&self) -> u64 {
        // The file is some 5 KiB; it is one read, so its lines are of one moment.
        let mut buffer = [0; 16 << 10];
        let count = self.vmstat.read_at(&mut buffer, 0).unwrap_or(0);
        parse_moved_pages(&String::from_utf8_lossy(&buffer[..count]))
    }
}

/// A line such as `pgmigrate_success 1234`, in base pages; 0 where the kernel counts none.
fn parse_moved_pages(text: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix("pgmigrate_success "))
        .and_then(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrated_pages_are_found_among_other_counters() {
        let text = "pgalloc_dma 5\npgmigrate_success 1234\npgmigrate_fail 7\n";
        assert_eq!(parse_moved_pages(text), 1234);
        assert_eq!(parse_moved_pages("pgmigrate_fail 7\n"), 0);
        assert_eq!(parse_moved_pages("pgmigrate_success x\n"), 0);
    }
}
