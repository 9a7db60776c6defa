//! The node of what numactl can name in place of a number: `netdev:`, `ip:`, `file:`, `block:`,
//! `pci:`.
//!
//! Each kind looks where the kernel has it and nowhere else: interfaces in their class, disks by the
//! number of their device file, an address by the route that the kernel would take to it.

use hither_core::ids::NodeId;
use hither_core::rset::Resources;
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::topology::sysfs_device::{self, DevicePlace};
use std::fs;
use std::net::ToSocketAddrs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Names that are listed where none matches.
const MOST_NAMES: usize = 8;

/// The node of a place.
///
/// # Errors
/// There is no such place, or firmware gives it no node.
pub fn node(name: &str, resources: &Resources, root: &Root) -> Result<NodeId, String> {
    let (kind, name) = name.split_once(':').ok_or_else(|| {
        "nodes are numbers, all, same, or as in netdev:eth0, ip:10.0.0.1, file:/data, block:sda, \
         pci:3b:00.0"
            .to_owned()
    })?;
    let name = name.trim_start();
    let (device, entry) = match kind {
        "netdev" => in_class("net", name, root)?,
        "block" => disk(name, root)?,
        "pci" => {
            let address = pci_address(name);
            let address =
                address.ok_or_else(|| format!("{name} is no PCI address, as in 3b:00.0"))?;
            in_folder("sys/bus/pci/devices", &address, root)?
        }
        "file" => device_of(name, root)?,
        "ip" => interface(name, root)?,
        _ => return Err(format!("there are no places of kind `{kind}`")),
    };
    attached(&device, &entry, resources, root)
}

/// The node of a device, by its entry in sysfs.
fn attached(
    device: &str,
    entry: &str,
    resources: &Resources,
    root: &Root,
) -> Result<NodeId, String> {
    match sysfs_device::place(root, entry).map_err(|error| error.to_string())? {
        DevicePlace::Node(node) if resources.position(node).is_some() => Ok(node),
        DevicePlace::Node(node) => Err(format!(
            "`{device}` is attached to {node}, which is not online"
        )),
        DevicePlace::Untold => match &resources.nodes[..] {
            // The kernel gives no node on a machine with one: it can only be that.
            [only] => Ok(only.id),
            _ => Err(format!(
                "firmware does not say which node `{device}` is attached to; name the node"
            )),
        },
        DevicePlace::Nowhere => Err(format!(
            "`{device}` is on no bus of its own and so at no node; name what is below it, or the node"
        )),
    }
}

/// A device by its name in a class, and its entry.
fn in_class(class: &str, name: &str, root: &Root) -> Result<(String, String), String> {
    in_folder(&format!("sys/class/{class}"), name, root)
}

fn in_folder(folder: &str, name: &str, root: &Root) -> Result<(String, String), String> {
    let entry = format!("{folder}/{name}");
    let is_name = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
    if is_name && root.has(&entry) {
        return Ok((name.to_owned(), entry));
    }
    let mut names = root.names(folder).map_err(|error| error.to_string())?;
    let more = names.len().saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    let known = match (names.is_empty(), more) {
        (true, _) => "there is none of its kind".to_owned(),
        (false, 0) => format!("there are {}", names.join(", ")),
        (false, more) => format!("there are {} and {more} more (/{folder})", names.join(", ")),
    };
    Err(format!("there is no device `{name}`; {known}"))
}

/// `[SEGMENT:]BUS:DEVICE[.FUNCTION]`, as sysfs writes it. Of three numbers with colons the first is
/// the segment, as with numactl; its manual has a colon before the function, which is one of four.
fn pci_address(text: &str) -> Option<String> {
    let (numbers, function) = match text.split_once('.') {
        Some((numbers, function)) => (numbers, Some(function)),
        None => (text, None),
    };
    let number = |part: &str| {
        let is_plain = part.chars().all(|letter| letter.is_ascii_hexdigit());
        u32::from_str_radix(part, 16).ok().filter(|_| is_plain)
    };
    let numbers: Vec<u32> = numbers.split(':').map(number).collect::<Option<_>>()?;
    let function = function.map_or(Some(0), number)?;
    let (segment, bus, device, function) = match numbers[..] {
        [segment, bus, device, by_colon] if function == 0 => (segment, bus, device, by_colon),
        [segment, bus, device] => (segment, bus, device, function),
        [bus, device] => (0, bus, device, function),
        _ => return None,
    };
    Some(format!("{segment:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

/// A disk or partition: by its name in sysfs, or by its device file, whose name may be another
/// (`/dev/disk/by-id/...`, `/dev/mapper/...`).
fn disk(name: &str, root: &Root) -> Result<(String, String), String> {
    let file = Path::new("/dev").join(name);
    let is_device_file = fs::metadata(&file).is_ok_and(|about| about.file_type().is_block_device());
    match is_device_file && name.contains('/') {
        true => device_of(&file.to_string_lossy(), root),
        false => in_class("block", name.strip_prefix("/dev/").unwrap_or(name), root),
    }
}

/// The device that a path leads to: a device file's own, else the disk of its file system.
fn device_of(path: &str, root: &Root) -> Result<(String, String), String> {
    let about = fs::metadata(path).map_err(|error| format!("{path}: {error}"))?;
    let (kind, number) = match about.file_type() {
        found if found.is_char_device() => ("char", about.rdev()),
        found if found.is_block_device() => ("block", about.rdev()),
        _ => ("block", about.dev()),
    };
    // As glibc's gnu_dev_major and gnu_dev_minor.
    let major = (number >> 8 & 0xfff) | (number >> 32 & !0xfff);
    let minor = (number & 0xff) | (number >> 12 & !0xff);
    let entry = format!("sys/dev/{kind}/{major}:{minor}");
    let link = fs::read_link(root.path(&entry)).ok();
    let name = link
        .as_deref()
        .and_then(|target| target.file_name()?.to_str());
    match (name, kind) {
        (Some(name), _) => Ok((name.to_owned(), entry)),
        (None, "char") => Err(format!(
            "{path} is no device that the kernel names ({major}:{minor})"
        )),
        (None, _) => Err(format!(
            "{path} is on no disk that the kernel names ({major}:{minor})"
        )),
    }
}

/// The network interface by which a host is reached.
fn interface(host: &str, root: &Root) -> Result<(String, String), String> {
    let found = (host, 0).to_socket_addrs();
    let mut found = found.map_err(|error| format!("{host}: {error}"))?;
    let address = found
        .next()
        .ok_or_else(|| format!("{host} has no address"))?;
    let to = address.ip();
    let route = sys::route_to(address).map_err(|error| match sys::is_unreachable(&error) {
        true => format!("no interface leads to {to} ({error})"),
        false => format!("the kernel does not tell the way to {to} ({error}); name the interface, as in netdev:eth0"),
    })?;
    if route.is_local {
        return Err(format!(
            "{to} is this machine's own address, which no device leads to; name the interface, as in \
             netdev:eth0"
        ));
    }
    let gone = |error| format!("the interface that leads to {to} is gone ({error})");
    let name = sys::interface_name(route.interface).map_err(gone)?;
    let entry = format!("sys/class/net/{name}");
    // In a network namespace of its own, sysfs may still show the interfaces of another.
    let shown = root.text(&format!("{entry}/ifindex")).unwrap_or_default();
    if shown.trim() != route.interface.to_string() {
        return Err(format!(
            "`{name}` leads to {to}, and /sys does not show this network namespace; mount sysfs anew \
             in it, or name the node"
        ));
    }
    Ok((name, entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_as_sysfs_writes_them() {
        for (text, expected) in [
            ("3b:00.0", Some("0000:3b:00.0")),
            ("3b:0", Some("0000:3b:00.0")),
            ("1:3b:1f", Some("0001:3b:1f.0")),
            ("0001:3b:1f.2", Some("0001:3b:1f.2")),
            ("0001:3b:1f:2", Some("0001:3b:1f.2")),
            ("10000:01:00.0", Some("10000:01:00.0")),
            ("3b", None),
            ("x:0", None),
            ("+3:0", None),
            ("3b:0.0.0", None),
            ("", None),
        ] {
            assert_eq!(pci_address(text).as_deref(), expected, "{text}");
        }
    }

    /// Names of one kind are not looked for among another's.
    #[test]
    fn each_kind_has_names_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path();
        for (entry, device, node) in [
            ("sys/class/net/same", "pci0/0000:01:00.0/net/same", 0),
            ("sys/class/block/same", "pci1/0000:02:00.0/block/same", 1),
            ("sys/class/net/eth0.7", "pci1/0000:02:00.0/net/eth0.7", 1),
            ("sys/class/net/only", "pci0/0000:01:00.0/net/only", 0),
            ("sys/class/net/bond0", "virtual/net/bond0", 0),
        ] {
            let device = Path::new("sys/devices").join(device);
            fs::create_dir_all(base.join(&device)).unwrap();
            if !device.starts_with("sys/devices/virtual") {
                let bus = base
                    .join(device.ancestors().nth(2).unwrap())
                    .join("numa_node");
                fs::write(bus, format!("{node}\n")).unwrap();
            }
            fs::create_dir_all(base.join(entry).parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(Path::new("../../..").join(&device), base.join(entry))
                .unwrap();
        }
        let sockets =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines/two-socket");
        let sockets = Root::new(sockets);
        let topology = hither_linux::topology::Topology::read(&sockets).unwrap();
        let resources = hither_linux::resources::read(&sockets, &topology).unwrap();
        let root = Root::new(base);
        for (name, expected) in [
            ("netdev:same", Ok(0)),
            ("netdev: same", Ok(0)),
            ("block:same", Ok(1)),
            ("block:/dev/same", Ok(1)),
            ("netdev:eth0.7", Ok(1)),
            ("block:only", Err("no device `only`; there are same")),
            ("netdev:../block/same", Err("no device")),
            ("netdev:bond0", Err("`bond0` is on no bus")),
            ("pci:0000:01:00.0", Err("none of its kind")),
        ] {
            match (node(name, &resources, &root), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found.0, expected, "{name}"),
                (Err(why), Err(part)) => assert!(why.contains(part), "{name}: {why}"),
                (found, _) => panic!("{name}: {found:?}"),
            }
        }
    }

    /// `/dev/null` has the number 1:3, as a RAM disk has among disks.
    #[test]
    fn device_files_are_looked_for_among_their_own_kind() {
        let root = Root::host();
        let (name, entry) = device_of("/dev/null", &root).unwrap();
        assert_eq!((&*name, &*entry), ("null", "sys/dev/char/1:3"));
        let why = device_of("/proc/self", &root).unwrap_err();
        assert!(
            why.contains("on no disk that the kernel names (0:"),
            "{why}"
        );
    }

    #[test]
    fn kinds_that_are_not_there_are_refused() {
        let root = Root::host();
        let topology = hither_linux::topology::Topology::read(&root).unwrap();
        let resources = hither_linux::resources::read(&root, &topology).unwrap();
        for (name, part) in [
            ("eth0", "netdev:eth0"),
            ("rack:1", "of kind `rack`"),
            ("netdev:none", "no device `none`"),
            ("netdev:", "no device ``"),
            ("block:/dev/null", "no device `null`"),
            ("pci:zz", "no PCI address"),
            ("file:/no/such", "No such file"),
            ("file:/dev/null", "`null` is on no bus"),
            ("ip:127.0.0.1", "this machine's own address"),
            ("ip:::1", "this machine's own address"),
        ] {
            let why = node(name, &resources, &root).unwrap_err();
            assert!(why.contains(part), "{name}: {why}");
        }
    }
}
