//! Drivers of a kernel for the devices of [`crate::devices`]: from the kernel's own package, or from its
//! `linux-modules-RELEASE`, where Debian has parted them. They stay compressed, as the kernel reads them so.

use super::apt::{self, Apt};
use super::{Progress, Scratch, places};
use crate::cache::{About, Cache, Label, MODULES};
use crate::devices::Devices;
use crate::error::{Error, Result};
use hither_core::foreign::Foreign;
use std::fs;
use std::path::{Path, PathBuf};

/// Package of a kernel's drivers, where they are apart.
pub fn package(release: &str) -> String {
    format!("linux-modules-{release}")
}

/// Are they all there?
pub fn are_there(folder: &Path) -> bool {
    (Devices::all_modules().iter()).all(|name| {
        ["ko.xz", "ko"]
            .iter()
            .any(|end| folder.join(format!("{name}.{end}")).is_file())
    })
}

/// Copies the drivers of an unpacked package into a folder; false where not all are in it.
pub fn collect(tree: &Path, into: &Path) -> Result<bool> {
    let copying = || format!("keeping drivers in {}", into.shown());
    fs::create_dir_all(into).map_err(Error::io(copying()))?;
    let wanted = Devices::all_modules();
    // Older packages have `lib/modules`, newer ones `usr/lib/modules`.
    let mut folders: Vec<PathBuf> = ["lib/modules", "usr/lib/modules"]
        .map(|below| tree.join(below))
        .into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let kind = entry.file_type();
            if kind.as_ref().is_ok_and(fs::FileType::is_dir) {
                folders.push(entry.path());
                continue;
            }
            let name = entry.file_name();
            let Some((stem, "ko" | "ko.xz")) = name.to_str().and_then(|name| name.split_once('.'))
            else {
                continue;
            };
            if wanted.contains(&stem) {
                fs::copy(entry.path(), into.join(&name)).map_err(Error::io(copying()))?;
            }
        }
    }
    Ok(are_there(into))
}

/// Those of a kernel that is being fetched, into `into`: from its own package, unpacked in `tree`, or a second one.
/// A kernel without them is no failure: it lacks disk and network.
pub fn of_new(apt: &Apt, scratch: &Path, tree: &Path, about: &About, into: &Path) -> Result<()> {
    if collect(tree, into)? {
        return Ok(());
    }
    if let Ok((file, _)) = apt.download(&package(&about.release)) {
        let tree = apt::extract(scratch, &file)?;
        collect(&tree, into)?;
    }
    Ok(())
}

/// Fetches those of a kernel that is there without them, as of a set-up before they were needed.
pub fn fetch(cache: &Cache, label: Label, about: &About, progress: Progress<'_>) -> Result<()> {
    let own = about.package.split(' ').next().unwrap_or_default();
    let names = [package(&about.release), own.to_owned()];
    for place in places(label) {
        let scratch = Scratch::new(cache.root())?;
        let apt = Apt::prepare(&scratch.0, place)?;
        apt.update()?;
        for name in &names {
            progress(&format!(
                "kernel {}: looking for drivers in {name}",
                label.name()
            ));
            let Ok((file, _)) = apt.download(name) else {
                continue;
            };
            let tree = apt::extract(&scratch.0, &file)?;
            let staged = scratch.0.join(MODULES);
            if !collect(&tree, &staged)? {
                continue;
            }
            let target = cache.folder(label).join(MODULES);
            let _ = fs::remove_dir_all(&target);
            match fs::rename(&staged, &target) {
                // Another set-up was faster.
                Err(_) if are_there(&target) => return Ok(()),
                other => {
                    return other
                        .map_err(Error::io(format!("keeping drivers in {}", target.shown())));
                }
            }
        }
    }
    progress(&format!(
        "kernel {}: no drivers of {} are to be had any more, so that it lacks --disk and --network; `hither lab setup --refresh` fetches a newer kernel with them",
        label.name(),
        about.release
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_found_wherever_a_package_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let put = |below: &str| {
            let path = folder.path().join("tree").join(below);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, below).unwrap();
        };
        let into = folder.path().join("kept");
        put("usr/lib/modules/7.3/kernel/drivers/block/virtio_blk.ko.xz");
        put("usr/lib/modules/7.3/kernel/drivers/net/virtio_net.ko.xz");
        put("usr/lib/modules/7.3/kernel/drivers/net/virtio_net.ko.sig");
        put("usr/lib/modules/7.3/kernel/drivers/net/veth.ko.xz");
        assert!(!collect(&folder.path().join("tree"), &into).unwrap());
        put("lib/modules/7.3/kernel/net/core/failover.ko");
        put("lib/modules/7.3/kernel/drivers/net/net_failover.ko");
        assert!(collect(&folder.path().join("tree"), &into).unwrap());
        assert_eq!(fs::read_dir(into).unwrap().count(), 4);
    }
}
