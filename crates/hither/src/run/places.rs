//! The node of what numactl can name in place of a number: `netdev:`, `ip:`, `file:`, `block:`,
//! `pci:`.

use hither_core::ids::NodeId;
use hither_core::rset::Resources;
use hither_core::rset::resolve::device_position;
use hither_linux::root::Root;
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;

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
    let device = match kind {
        "netdev" => name.to_owned(),
        "block" => name.strip_prefix("/dev/").unwrap_or(name).to_owned(),
        "pci" => {
            pci_address(name).ok_or_else(|| format!("{name} is no PCI address, as in 3b:00.0"))?
        }
        "file" => block_device(name, root)?,
        "ip" => interface(name, root)?,
        _ => return Err(format!("there are no places of kind `{kind}`")),
    };
    device_position(resources, &device).map(|at| resources.nodes[at].id)
}

/// `[SEGMENT:]BUS:DEVICE[.FUNCTION]` (numactl also takes a colon before the function), as sysfs
/// writes it.
fn pci_address(text: &str) -> Option<String> {
    let numbers = text
        .split([':', '.'])
        .map(|part| u32::from_str_radix(part, 16).ok());
    let numbers: Vec<u32> = numbers.collect::<Option<_>>()?;
    let (segment, rest) = match numbers[..] {
        [segment, bus, device, function] => (segment, [bus, device, function]),
        [bus, device, function] => (0, [bus, device, function]),
        [bus, device] => (0, [bus, device, 0]),
        _ => return None,
    };
    let [bus, device, function] = rest;
    Some(format!("{segment:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

/// The disk or partition that a file is on.
fn block_device(path: &str, root: &Root) -> Result<String, String> {
    let about = std::fs::metadata(path).map_err(|error| format!("{path}: {error}"))?;
    // Of a device's own file the device, else that of the file system.
    let number = match about.rdev() {
        0 => about.dev(),
        own => own,
    };
    // As glibc's gnu_dev_major and gnu_dev_minor.
    let major = (number >> 8 & 0xfff) | (number >> 32 & !0xfff);
    let minor = (number & 0xff) | (number >> 12 & !0xff);
    let link = root.path(&format!("sys/dev/block/{major}:{minor}"));
    let found = std::fs::read_link(link).ok();
    let name = found
        .as_deref()
        .and_then(|target| target.file_name()?.to_str());
    name.map(str::to_owned)
        .ok_or_else(|| format!("{path} is on no disk that the kernel names ({major}:{minor})"))
}

/// The network interface by which a host is reached.
fn interface(host: &str, root: &Root) -> Result<String, String> {
    let mut found = (host, 0)
        .to_socket_addrs()
        .map_err(|error| format!("{host}: {error}"))?;
    let address = found
        .next()
        .ok_or_else(|| format!("{host} has no address"))?
        .ip();
    let (file, route): (_, fn(&str, IpAddr) -> Option<String>) = match address {
        IpAddr::V4(_) => ("proc/net/route", route4),
        IpAddr::V6(_) => ("proc/net/ipv6_route", route6),
    };
    let text = root.text(file).map_err(|error| error.to_string())?;
    route(&text, address).ok_or_else(|| format!("no interface leads to {address}"))
}

/// The interface of the longest prefix, the least metric first.
///
/// ```text
/// Iface   Destination Gateway  Flags RefCnt Use Metric Mask     MTU Window IRTT
/// eth0    00000000    0102A8C0 0003  0      0   100    00000000 0   0      0
/// ```
fn route4(text: &str, address: IpAddr) -> Option<String> {
    let IpAddr::V4(address) = address else {
        return None;
    };
    let address = u32::from(address);
    let routes = text.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // The file has them in the byte order of the network.
        let number = |at: usize| Some(u32::from_be(u32::from_str_radix(words.get(at)?, 16).ok()?));
        let (destination, mask) = (number(1)?, number(7)?);
        let metric: u32 = words.get(6)?.parse().ok()?;
        let leads = address & mask == destination;
        leads.then(|| (mask.count_ones(), u32::MAX - metric, words[0].to_owned()))
    });
    routes
        .max_by_key(|(length, metric, _)| (*length, *metric))
        .map(|route| route.2)
}

/// The same of the other family, whose lines are
///
/// ```text
/// DESTINATION LENGTH SOURCE LENGTH NEXT METRIC REFERENCES USE FLAGS INTERFACE
/// ```
fn route6(text: &str, address: IpAddr) -> Option<String> {
    let IpAddr::V6(address) = address else {
        return None;
    };
    let address = u128::from(address);
    let routes = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let destination = u128::from_str_radix(words.first()?, 16).ok()?;
        let length = u32::from_str_radix(words.get(1)?, 16).ok()?;
        let metric = u32::from_str_radix(words.get(5)?, 16).ok()?;
        let flags = u32::from_str_radix(words.get(8)?, 16).ok()?;
        let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
        // RTF_REJECT (0x200): leads nowhere.
        let leads = address & mask == u128::from(Ipv6Addr::from(destination)) && flags & 0x200 == 0;
        leads.then(|| {
            (
                length,
                u32::MAX - metric,
                words.last().map(|name| (*name).to_owned()),
            )
        })
    });
    routes
        .max_by_key(|(length, metric, _)| (*length, *metric))
        .and_then(|route| route.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_as_sysfs_writes_them() {
        for (text, expected) in [
            ("3b:00.0", Some("0000:3b:00.0")),
            ("3b:0", Some("0000:3b:00.0")),
            ("0001:3b:1f:2", Some("0001:3b:1f.2")),
            ("3b", None),
            ("x:0", None),
            ("", None),
        ] {
            assert_eq!(pci_address(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn the_longest_prefix_leads() {
        let text = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\n\
            eth0\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
            wlan0\t00000000\t0102A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
            eth1\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n\
            broken\n";
        let to = |host: &str| route4(text, host.parse().unwrap());
        assert_eq!(to("10.1.2.3").as_deref(), Some("eth1"));
        assert_eq!(to("8.8.8.8").as_deref(), Some("eth0"));
        assert_eq!(route4("", "8.8.8.8".parse().unwrap()), None);
        let text = "fe800000000000000000000000000000 40 00000000000000000000000000000000 00 \
            00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth0\n\
            00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
            00000000000000000000000000000000 ffffffff 00000001 00000000 00200200 lo\n";
        let to = |host: &str| route6(text, host.parse().unwrap());
        assert_eq!(to("fe80::1").as_deref(), Some("eth0"));
        assert_eq!(to("2001::1"), None);
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
            ("pci:zz", "no PCI address"),
            ("file:/no/such", "No such file"),
        ] {
            let why = node(name, &resources, &root).unwrap_err();
            assert!(why.contains(part), "{name}: {why}");
        }
    }
}
