//! Devices that hold memory of programs by its physical address, in one table.

/// When memory that a program has given such a device is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Its mappings are its own; it is given no memory of programs, or takes it page by page.
    None,
    /// Always: all memory of a guest, at the latest when the guest starts.
    Always,
    /// Where the process has pinned memory that nothing else explains.
    WherePinned,
}

impl Reach {
    /// May it hold memory without telling which?
    #[must_use]
    pub fn is_any(self, unplaced_kb: u64) -> bool {
        match self {
            Self::None => false,
            Self::Always => true,
            Self::WherePinned => unplaced_kb > 0,
        }
    }
}

/// One kind of device.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    /// For a sentence: "a mapping of ...".
    pub words: &'static str,
    /// How names of its files begin, below `/dev` and as the kernel calls descriptors without a file.
    names: &'static [&'static str],
    /// What of the program's memory it may hold.
    pub reach: Reach,
}

/// All kinds. Sources: `drivers/vfio` and Documentation/driver-api/vfio.rst;
/// Documentation/userspace-api/iommufd.rst; Documentation/infiniband/user_verbs.rst; NVIDIA's driver
/// README ("device files"); Documentation/gpu/drm-uapi.rst; `drivers/gpu/drm/amd/amdkfd`;
/// Documentation/accel.
static TABLE: [Row; 6] = [
    Row {
        words: "vfio, which passes a device through",
        names: &["/dev/vfio/", "/dev/iommu", "anon_inode:[vfio"],
        reach: Reach::Always,
    },
    Row {
        words: "RDMA",
        names: &["/dev/infiniband/", "anon_inode:[infiniband"],
        reach: Reach::WherePinned,
    },
    Row {
        words: "a GPU (NVIDIA)",
        names: &["/dev/nvidia"],
        reach: Reach::WherePinned,
    },
    Row {
        words: "a GPU or accelerator",
        names: &[
            "/dev/dri/",
            "/dev/kfd",
            "/dev/accel/",
            "anon_inode:dmabuf",
            "/dmabuf:",
        ],
        reach: Reach::WherePinned,
    },
    Row {
        words: "io_uring's own rings",
        names: &["anon_inode:[io_uring]"],
        reach: Reach::None,
    },
    Row {
        words: "memory by physical address",
        names: &["/dev/mem", "/dev/uio"],
        reach: Reach::None,
    },
];

/// A kind of device: an index into the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PinningDevice(usize);

impl PinningDevice {
    /// What is known of it.
    #[must_use]
    pub fn row(self) -> &'static Row {
        &TABLE[self.0]
    }
}

/// The kind of device with a name, as `/proc/PID/maps` and the links in `/proc/PID/fd` have it.
#[must_use]
pub fn of_name(name: &str) -> Option<PinningDevice> {
    let is = |row: &Row| row.names.iter().any(|known| name.starts_with(known));
    TABLE.iter().position(is).map(PinningDevice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_known_and_others_are_not() {
        for (name, words) in [
            ("/dev/vfio/42", "vfio"),
            ("/dev/vfio/devices/vfio0", "vfio"),
            ("anon_inode:[vfio-device]", "vfio"),
            ("/dev/infiniband/uverbs0", "RDMA"),
            ("/dev/nvidia-uvm", "NVIDIA"),
            ("/dev/nvidia3", "NVIDIA"),
            ("/dev/dri/renderD128", "GPU"),
            ("/dev/kfd", "GPU"),
            ("anon_inode:[io_uring]", "rings"),
        ] {
            let device = of_name(name).unwrap_or_else(|| panic!("{name}"));
            assert!(device.row().words.contains(words), "{name}");
        }
        for name in [
            "",
            "/dev/zero (deleted)",
            "/dev/shm/x",
            "/srv/dev/vfio/1",
            "[heap]",
            "/memfd:nvidia",
        ] {
            assert_eq!(of_name(name), None, "{name}");
        }
    }
}
