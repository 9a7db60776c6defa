//! Devices and the node each is attached to, from `/sys/class` and `/sys/bus`.
//!
//! The kernel gives the node of a device on a bus (`numa_node`); what programs know by name, a
//! network interface or a disk, lies some folders below one. Every entry is a link into
//! `/sys/devices`, and the first `numa_node` on the way up from there is its place.

use crate::error::Result;
use crate::parse;
use crate::root::Root;
use hither_core::ids::NodeId;
use hither_core::rset::Device;
use hither_core::rset::parse::is_device_letter;
use std::collections::BTreeMap;
use std::path::Path;

/// Folders whose entries are devices. Where two of them hold a name, the first counts.
const FOLDERS: [&str; 9] = [
    "sys/class/net",
    "sys/class/block",
    "sys/class/nvme",
    "sys/class/infiniband",
    "sys/class/drm",
    "sys/class/accel",
    "sys/bus/dsa/devices",
    "sys/bus/cxl/devices",
    PCI,
];
const PCI: &str = "sys/bus/pci/devices";

/// Where a device of sysfs is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevicePlace {
    /// To this node.
    Node(NodeId),
    /// To a bus, and firmware does not tell of which node (-1).
    Untold,
    /// To no bus, as loopback, bridges and RAM disks are.
    Nowhere,
}

/// PCI classes of what computes: display controllers and processing accelerators.
const GPU_CLASSES: [u64; 2] = [0x03, 0x12];
/// Displays of server boards (ASPEED, Matrox) and virtual machines (QEMU, virtio, Cirrus, VMware,
/// Hyper-V): no GPUs that anybody computes on, and often first in the order of addresses.
const DISPLAY_VENDORS: [u64; 7] = [0x1a03, 0x102b, 0x1234, 0x1af4, 0x1013, 0x15ad, 0x1414];

/// Devices that have a place, ascending by name; `gpuN` besides, counted by PCI address.
pub fn read(root: &Root) -> Result<Vec<Device>> {
    let mut devices: BTreeMap<String, Option<NodeId>> = BTreeMap::new();
    let mut gpu_count = 0;
    for folder in FOLDERS {
        for name in root.names(folder)? {
            // Connectors of a display: `card0-DP-1`.
            let is_connector = folder.ends_with("drm") && name.contains('-');
            if is_connector || !name.chars().all(is_device_letter) {
                continue;
            }
            let entry = format!("{folder}/{name}");
            let node = match place(root, &entry)? {
                DevicePlace::Node(node) => Some(node),
                DevicePlace::Untold => None,
                DevicePlace::Nowhere => continue,
            };
            if folder == PCI && is_gpu(root, &entry)? {
                devices.entry(format!("gpu{gpu_count}")).or_insert(node);
                gpu_count += 1;
            }
            devices.entry(name).or_insert(node);
        }
    }
    let devices = devices.into_iter();
    Ok(devices.map(|(name, node)| Device { name, node }).collect())
}

/// The place of an entry, as in `sys/class/net/eth0`: the first `numa_node` on the way up from where
/// its link leads. A link that leads out of the root folder leads nowhere.
///
/// # Errors
/// A number that cannot be read, with place and remedy.
pub fn place(root: &Root, entry: &str) -> Result<DevicePlace> {
    let base = root.path("").canonicalize();
    let (Ok(base), Ok(found)) = (base, root.path(entry).canonicalize()) else {
        return Ok(DevicePlace::Nowhere);
    };
    let Ok(below) = found.strip_prefix(&base) else {
        return Ok(DevicePlace::Nowhere);
    };
    for folder in below.ancestors() {
        let file = folder.join("numa_node");
        let Some(file) = file.to_str().filter(|_| folder != Path::new("")) else {
            return Ok(DevicePlace::Nowhere);
        };
        if let Some(node) = root.parse_if_any(file, parse::signed)? {
            let node = u32::try_from(node).map(|node| DevicePlace::Node(NodeId(node)));
            return Ok(node.unwrap_or(DevicePlace::Untold));
        }
    }
    Ok(DevicePlace::Nowhere)
}

/// By class and vendor.
///
/// ```text
/// 0x030200
/// ```
fn is_gpu(root: &Root, entry: &str) -> Result<bool> {
    let number = |name: &str| root.parse_if_any(&format!("{entry}/{name}"), parse::prefixed_hex);
    let class = number("class")?.unwrap_or(0) >> 16;
    let vendor = number("vendor")?.unwrap_or(0);
    Ok(is_gpu_class(class, vendor))
}

/// By PCI's base class (its highest byte) and vendor.
pub(super) fn is_gpu_class(class: u64, vendor: u64) -> bool {
    GPU_CLASSES.contains(&class) && !DISPLAY_VENDORS.contains(&vendor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn write(base: &Path, file: &str, text: &str) {
        let path = base.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(base: &Path, from: &str, to: &str) {
        let path = base.join(from);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let up = "../".repeat(from.matches('/').count());
        symlink(format!("{up}{to}"), path).unwrap();
    }

    #[test]
    fn devices_are_placed_by_the_bus_that_they_hang_on() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path();
        let bus = "sys/devices/pci0000:3a";
        for (address, class, vendor, node) in [
            ("0000:02:00.0", "0x030000", "0x1a03", "0"),
            ("0000:3b:00.0", "0x020000", "0x8086", "1"),
            ("0000:3c:00.0", "0x030200", "0x10de", "1"),
            ("0000:3d:00.0", "0x120000", "0x1002", "-1"),
        ] {
            for (name, text) in [("class", class), ("vendor", vendor), ("numa_node", node)] {
                write(
                    base,
                    &format!("{bus}/{address}/{name}"),
                    &format!("{text}\n"),
                );
            }
            link(
                base,
                &format!("{PCI}/{address}"),
                &format!("{bus}/{address}"),
            );
        }
        for (class, name, place) in [
            ("net", "eth0", "pci0000:3a/0000:3b:00.0/virtio1/net/eth0"),
            ("drm", "card1", "pci0000:3a/0000:3c:00.0/drm/card1"),
            (
                "drm",
                "card1-DP-1",
                "pci0000:3a/0000:3c:00.0/drm/card1/card1-DP-1",
            ),
            ("net", "lo", "virtual/net/lo"),
            ("net", "a+b", "pci0000:3a/0000:3b:00.0/net/a+b"),
        ] {
            fs::create_dir_all(base.join("sys/devices").join(place)).unwrap();
            link(
                base,
                &format!("sys/class/{class}/{name}"),
                &format!("sys/devices/{place}"),
            );
        }
        symlink("/sys/devices/system", base.join("sys/class/net/outside")).unwrap();
        let devices = read(&Root::new(base)).unwrap();
        let shown: Vec<String> = devices
            .iter()
            .map(|device| {
                let node = device
                    .node
                    .map_or("-".to_owned(), |node| node.0.to_string());
                format!("{}={node}", device.name)
            })
            .collect();
        assert_eq!(
            shown.join(" "),
            "0000:02:00.0=0 0000:3b:00.0=1 0000:3c:00.0=1 0000:3d:00.0=- \
             card1=1 eth0=1 gpu0=1 gpu1=-"
        );
    }

    #[test]
    fn a_damaged_number_has_its_place() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "sys/devices/pci0/numa_node", "one\n");
        link(
            folder.path(),
            &format!("{PCI}/0000:00:00.0"),
            "sys/devices/pci0",
        );
        let error = read(&Root::new(folder.path())).unwrap_err().to_string();
        assert!(
            error.contains("pci0/numa_node:1: `one` is no number"),
            "{error}"
        );
    }

    #[test]
    fn this_machine_can_be_read() {
        let devices = read(&Root::host()).unwrap();
        assert!(devices.iter().all(|device| device.name != "lo"));
    }
}
