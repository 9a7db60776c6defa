//! Devices that a guest gets on request: a disk, and a network with a peer. They are there so that the guest's
//! operating system has something to serve; without the options a boot is what it was.
//!
//! - **Disk.** `virtio-blk` over a memory file of the host with an ext4 file system, mounted at [`DISK_FOLDER`].
//!   It has two queues and one interrupt for both, as older controllers have: an interrupt per queue is *managed*,
//!   which the kernel lets nobody move.
//! - **Network.** Two `virtio-net` cards on a hub inside QEMU: no network of the host is touched. The first card
//!   is the guest's, with [`OWN_ADDRESS`]; the second lives in the network namespace [`PEER_NAMESPACE`] with
//!   [`PEER_ADDRESS`], and stands for another machine. Who enters that namespace is the peer.
//!
//! Neither device's time is modelled: requests take as long as the host takes, and what a device writes into
//! memory goes past the modelled caches without emptying them.

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::image::{self, Image};
use crate::os;
use hither_core::foreign::Foreign;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the disk is mounted.
pub const DISK_FOLDER: &str = "/disk";
/// The block device.
pub const DISK_DEVICE: &str = "/dev/vda";
/// Its file system.
pub const DISK_KIND: &str = "ext4";
/// The peer's network namespace, as `ip netns` keeps them.
pub const PEER_NAMESPACE: &str = "/run/netns/peer";
/// The guest's address, of 24 bits of network.
pub const OWN_ADDRESS: [u8; 4] = [10, 77, 0, 1];
/// The peer's.
pub const PEER_ADDRESS: [u8; 4] = [10, 77, 0, 2];
/// Cards by their hardware address: the guest's and the peer's.
pub const MACS: [&str; 2] = ["52:54:00:68:69:01", "52:54:00:68:69:02"];
/// Where the guest finds the modules, in the order of loading.
pub const MODULES_FOLDER: &str = "/hither/modules";

/// Drivers of the disk, each after those that it needs.
const DISK_MODULES: &[&str] = &["virtio_blk"];
/// Drivers of the network.
const NETWORK_MODULES: &[&str] = &["failover", "net_failover", "virtio_net"];
/// Smallest disk: ext4 with a journal.
const LEAST_MB: u64 = 16;
/// Largest one: it lies in the host's memory.
const MOST_MB: u64 = 65_536;

/// What a guest gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Devices {
    /// MiB of the disk.
    pub disk_mb: Option<u64>,
    /// The two cards.
    pub network: bool,
}

impl Devices {
    /// Names of modules, in the order of loading.
    #[must_use]
    pub fn modules(self) -> Vec<&'static str> {
        let mut modules = Vec::new();
        if self.disk_mb.is_some() {
            modules.extend(DISK_MODULES);
        }
        if self.network {
            modules.extend(NETWORK_MODULES);
        }
        modules
    }

    /// All modules that a kernel may be asked for.
    #[must_use]
    pub fn all_modules() -> Vec<&'static str> {
        [DISK_MODULES, NETWORK_MODULES].concat()
    }

    /// Can this be had, with this kernel? `host_mb`: the host's memory.
    ///
    /// # Errors
    /// What is missing, with what to do.
    pub fn check(self, cache: &Cache, kernel: &str, host_mb: u64) -> Result<()> {
        if let Some(mb) = self.disk_mb {
            if !(LEAST_MB..=MOST_MB).contains(&mb) || (host_mb > 0 && mb > host_mb / 2) {
                return Err(Error::bad(
                    format!("--disk {mb}: the disk lies in the host's memory of {host_mb} MiB"),
                    format!(
                        "give it {LEAST_MB} to {} MiB",
                        (host_mb / 2).clamp(LEAST_MB, MOST_MB)
                    ),
                ));
            }
            find_mkfs()?;
        }
        self.files(cache, kernel).map(drop)
    }

    /// The modules' files of a kernel.
    fn files(self, cache: &Cache, kernel: &str) -> Result<Vec<(&'static str, PathBuf)>> {
        let modules = self.modules();
        if modules.is_empty() {
            return Ok(Vec::new());
        }
        let Some(folder) = cache.modules(kernel) else {
            return Err(Error::bad(
                format!("--disk and --network need drivers, which --kernel {kernel} comes without"),
                "use --kernel newest or 6.12",
            ));
        };
        let find = |&name: &&'static str| {
            let ends = ["ko.xz", "ko"].map(|end| folder.join(format!("{name}.{end}")));
            let file = ends.into_iter().find(|file| file.is_file());
            file.map(|file| (name, file)).ok_or_else(|| {
                Error::missing(
                    format!("the driver {name} of the kernel `{kernel}` is not in {}", folder.shown()),
                    "run `hither lab setup`, which fetches it; where the mirror has it no more, `hither lab setup --refresh` fetches kernel and drivers together",
                )
            })
        };
        modules.iter().map(find).collect()
    }

    /// Packs the modules, so that their names sort as they are loaded.
    ///
    /// # Errors
    /// As [`Devices::check`].
    pub fn pack(self, cache: &Cache, kernel: &str, image: &mut Image) -> Result<()> {
        for (at, (_, file)) in self.files(cache, kernel)?.into_iter().enumerate() {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            image.add_as(&file, &format!("{MODULES_FOLDER}/{at}-{name}"))?;
        }
        Ok(())
    }

    /// QEMU's arguments, option and value by turns. `disk`: the path of [`disk`]'s file in QEMU.
    #[must_use]
    pub fn arguments(self, disk: Option<&str>) -> Vec<(&'static str, String)> {
        let mut arguments = Vec::new();
        if let (Some(_), Some(file)) = (self.disk_mb, disk) {
            let file = file.replace(',', ",,");
            arguments.push((
                "-drive",
                format!("if=none,id=disk,format=raw,file={file},file.locking=off"),
            ));
            arguments.push((
                "-device",
                "virtio-blk-pci,drive=disk,num-queues=2,vectors=2".to_owned(),
            ));
        }
        if self.network {
            for (at, mac) in MACS.iter().enumerate() {
                arguments.push(("-netdev", format!("hubport,id=net{at},hubid=0")));
                arguments.push((
                    "-device",
                    format!("virtio-net-pci,netdev=net{at},mac={mac}"),
                ));
            }
        }
        arguments
    }

    /// The disk, with a fresh file system.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn disk(self) -> Result<Option<File>> {
        let Some(mb) = self.disk_mb else {
            return Ok(None);
        };
        let making = || "making the guest's disk".to_owned();
        let file = os::memory_file(c"hither-disk").map_err(Error::io(making()))?;
        file.set_len(mb << 20).map_err(Error::io(making()))?;
        // The path stands for this process's descriptor, which a child without it can open, too.
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let output = Command::new(find_mkfs()?)
            .args(["-q", "-F", "-t", DISK_KIND, "-m", "0"])
            // Nothing is left for the guest to initialise beside the program.
            .args(["-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"])
            .arg(&path)
            .output()
            .map_err(Error::io(making()))?;
        if !output.status.success() {
            return Err(Error::missing(
                format!(
                    "mke2fs made no file system: {}",
                    String::from_utf8_lossy(&output.stderr).trim()
                ),
                "give the disk more room, or install a newer e2fsprogs",
            ));
        }
        Ok(Some(file))
    }
}

fn find_mkfs() -> Result<PathBuf> {
    let usual = ["/sbin/mke2fs", "/usr/sbin/mke2fs"].map(Path::new);
    let found = usual.into_iter().find(|path| path.is_file());
    match found {
        Some(path) => Ok(path.to_owned()),
        None => image::find_program("mke2fs").map_err(|_| {
            Error::missing(
                "mke2fs, which makes the disk's file system, is not installed",
                "as root: apt-get install -y e2fsprogs",
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(folder: &Path) -> Cache {
        let folder = folder.as_os_str().to_owned();
        Cache::from_variables(&|name| (name == "HITHER_CACHE").then(|| folder.clone())).unwrap()
    }

    #[test]
    fn nothing_is_there_that_was_not_asked_for() {
        let none = Devices::default();
        assert_eq!((none.modules().len(), none.arguments(None).len()), (0, 0));
        let folder = tempfile::tempdir().unwrap();
        none.check(&cache(folder.path()), "/any/vmlinuz", 0)
            .unwrap();
        assert!(none.disk().unwrap().is_none());
    }

    #[test]
    fn drivers_come_in_the_order_of_loading_and_are_asked_for_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        let all = Devices {
            disk_mb: None,
            network: true,
        };
        let own = all.check(&cache, "/boot/vmlinuz", 0).unwrap_err();
        assert!(own.to_string().contains("--kernel newest"), "{own}");
        let missing = all.check(&cache, "6.12", 0).unwrap_err().to_string();
        assert!(
            missing.contains("the driver failover of the kernel `6.12`"),
            "{missing}"
        );
        let modules = cache.modules("6.12").unwrap();
        std::fs::create_dir_all(&modules).unwrap();
        for name in ["failover.ko", "net_failover.ko.xz", "virtio_net.ko.xz"] {
            std::fs::write(modules.join(name), name).unwrap();
        }
        all.check(&cache, "6.12", 0).unwrap();
        let mut image = Image::new();
        all.pack(&cache, "6.12", &mut image).unwrap();
        let packed: Vec<&str> = image
            .paths()
            .filter(|path| path.contains("modules/"))
            .collect();
        let wanted = [
            "0-failover.ko",
            "1-net_failover.ko.xz",
            "2-virtio_net.ko.xz",
        ];
        assert_eq!(
            packed,
            wanted.map(|name| format!("{MODULES_FOLDER}/{name}"))
        );
    }

    #[test]
    fn a_disk_that_memory_cannot_hold_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let disk = |mb| Devices {
            disk_mb: Some(mb),
            network: false,
        };
        for mb in [0, 15, 600, 1 << 40] {
            let error = disk(mb)
                .check(&cache(folder.path()), "newest", 1000)
                .unwrap_err();
            assert!(error.to_string().contains("16 to 500 MiB"), "{error}");
        }
    }

    #[test]
    fn cards_share_a_hub_and_the_disk_has_one_interrupt() {
        let all = Devices {
            disk_mb: Some(64),
            network: true,
        };
        let arguments = all.arguments(Some("/proc/self/fd/9"));
        let text: Vec<String> = (arguments.iter())
            .map(|(option, value)| format!("{option} {value}"))
            .collect();
        assert_eq!(
            text,
            [
                "-drive if=none,id=disk,format=raw,file=/proc/self/fd/9,file.locking=off",
                "-device virtio-blk-pci,drive=disk,num-queues=2,vectors=2",
                "-netdev hubport,id=net0,hubid=0",
                "-device virtio-net-pci,netdev=net0,mac=52:54:00:68:69:01",
                "-netdev hubport,id=net1,hubid=0",
                "-device virtio-net-pci,netdev=net1,mac=52:54:00:68:69:02",
            ]
        );
    }
}
