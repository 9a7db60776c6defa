//! Disk and network of the guest: drivers are loaded, the disk is mounted, the two cards get their addresses,
//! and the second one its network namespace.

use super::system;
use super::{Result, doing};
use crate::devices::{
    DISK_DEVICE, DISK_FOLDER, DISK_KIND, Devices, MACS, MODULES_FOLDER, OWN_ADDRESS, PEER_ADDRESS,
    PEER_NAMESPACE,
};
use crate::os::check;
use hither_core::foreign::Foreign;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// `MODULE_INIT_COMPRESSED_FILE` of Linux's `include/uapi/linux/module.h`.
const COMPRESSED: libc::c_int = 4;
/// Leading bits of an address that name the network.
const NETMASK: [u8; 4] = [255, 255, 255, 0];

/// Brings up what the job asks for.
pub fn bring_up(devices: Devices) -> Result<()> {
    load_modules()?;
    if devices.disk_mb.is_some() {
        fs::create_dir_all(DISK_FOLDER)
            .and_then(|()| system::mount(DISK_DEVICE, DISK_FOLDER, DISK_KIND, ""))
            .map_err(doing(format!("mounting {DISK_DEVICE}")))?;
    }
    if devices.network {
        network().map_err(doing("bringing the network up"))?;
    }
    Ok(())
}

/// Loads the packed modules in the order of their numbers.
fn load_modules() -> Result<()> {
    let Ok(entries) = fs::read_dir(MODULES_FOLDER) else {
        return Ok(());
    };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    for path in files {
        let loading = || doing(format!("loading the driver {}", path.shown()));
        let file = File::open(&path).map_err(loading())?;
        let is_compressed = path.extension().is_some_and(|end| end == "xz");
        let flags = if is_compressed { COMPRESSED } else { 0 };
        // SAFETY: an open file and a terminated string; flags are numbers.
        let result = unsafe {
            libc::syscall(
                libc::SYS_finit_module,
                file.as_raw_fd(),
                c"".as_ptr(),
                flags,
            )
        };
        check(result as libc::c_int).map_err(loading())?;
    }
    Ok(())
}

fn network() -> io::Result<()> {
    let [own, peer] = MACS.map(interface);
    let (own, peer) = (own?, peer?);
    std::thread::spawn(make_namespace)
        .join()
        .map_err(|_| io::Error::other("the thread in the namespace panicked"))??;
    let namespace = File::open(PEER_NAMESPACE)?;
    move_link(&peer, &namespace)?;
    configure(&own, OWN_ADDRESS)?;
    std::thread::spawn(move || {
        // SAFETY: an open descriptor; the thread ends in that namespace.
        check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })?;
        configure(&peer, PEER_ADDRESS)
    })
    .join()
    .map_err(|_| io::Error::other("the thread in the namespace panicked"))?
}

/// Name of the interface with this hardware address.
fn interface(mac: &str) -> io::Result<String> {
    for entry in fs::read_dir("/sys/class/net")?.flatten() {
        let address = fs::read_to_string(entry.path().join("address")).unwrap_or_default();
        if address.trim() == mac {
            return Ok(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Err(io::Error::other(format!("there is no card {mac}")))
}

/// Leaves this thread's network for a new one, and keeps that under its name.
fn make_namespace() -> io::Result<()> {
    // SAFETY: a plain system call; it is about this thread alone.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    if let Some(folder) = Path::new(PEER_NAMESPACE).parent() {
        fs::create_dir_all(folder)?;
    }
    File::create(PEER_NAMESPACE)?;
    system::bind_mount("/proc/thread-self/ns/net", PEER_NAMESPACE)?;
    system::loopback_up()
}

/// Gives an interface its address and brings it up.
fn configure(name: &str, address: [u8; 4]) -> io::Result<()> {
    system::with_socket(libc::AF_INET, libc::SOCK_DGRAM, 0, |socket| {
        for (request, value) in [
            (libc::SIOCSIFADDR, address),
            (libc::SIOCSIFNETMASK, NETMASK),
        ] {
            let mut wish = system::named_request(name);
            wish.ifr_ifru.ifru_addr = socket_address(value);
            // SAFETY: the request reads the structure, which lives through the call.
            check(unsafe { libc::ioctl(socket, request as _, &raw mut wish) })?;
        }
        system::interface_up(socket, name)
    })
}

/// An IPv4 address as the requests take it.
fn socket_address(address: [u8; 4]) -> libc::sockaddr {
    // SAFETY: plain data, for which zeroes are valid.
    let mut socket = unsafe { std::mem::zeroed::<libc::sockaddr>() };
    socket.sa_family = libc::AF_INET as libc::sa_family_t;
    // struct sockaddr_in: the port's two bytes, then the address.
    for (to, from) in socket.sa_data[2..6].iter_mut().zip(address) {
        *to = from as libc::c_char;
    }
    socket
}

/// Moves an interface into a namespace, which rtnetlink(7) alone can.
fn move_link(name: &str, namespace: &File) -> io::Result<()> {
    let index = fs::read_to_string(format!("/sys/class/net/{name}/ifindex"))?;
    let index: i32 = index.trim().parse().map_err(io::Error::other)?;
    let message = move_message(index, namespace.as_raw_fd());
    system::with_socket(
        libc::AF_NETLINK,
        libc::SOCK_RAW,
        libc::NETLINK_ROUTE,
        |socket| {
            let mut answer = [0_u8; 512];
            // SAFETY: both buffers live through their calls, with their lengths.
            let count = unsafe {
                let sent = libc::send(socket, message.as_ptr().cast(), message.len(), 0);
                check(sent as libc::c_int)?;
                libc::recv(socket, answer.as_mut_ptr().cast(), answer.len(), 0)
            };
            check(count as libc::c_int)?;
            match answer_error(&answer[..count as usize]) {
                Some(0) => Ok(()),
                Some(error) => Err(io::Error::from_raw_os_error(error)),
                None => Err(io::Error::other("the kernel's answer is not understood")),
            }
        },
    )
}

/// RTM_NEWLINK for interface `index`, with IFLA_NET_NS_FD.
fn move_message(index: i32, namespace: i32) -> Vec<u8> {
    const IFLA_NET_NS_FD: u16 = 28;
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    let mut message = Vec::new();
    // struct nlmsghdr: length, type, flags, sequence, port.
    message.extend(40_u32.to_ne_bytes());
    message.extend(libc::RTM_NEWLINK.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    // struct ifinfomsg: family and padding, type, index, flags, change mask.
    message.extend([0; 4]);
    message.extend(index.to_ne_bytes());
    message.extend([0; 8]);
    // struct rtattr: length and type, then the descriptor.
    message.extend(8_u16.to_ne_bytes());
    message.extend(IFLA_NET_NS_FD.to_ne_bytes());
    message.extend(namespace.to_ne_bytes());
    message
}

/// The error number of an NLMSG_ERROR; 0 is the acknowledgement.
fn answer_error(answer: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let error = i32::from_ne_bytes(answer.get(16..20)?.try_into().ok()?);
    (i32::from(kind) == libc::NLMSG_ERROR).then_some(-error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_length_that_it_says() {
        let message = move_message(3, 9);
        assert_eq!(message.len(), 40);
        assert_eq!(message[..4], 40_u32.to_ne_bytes());
        assert_eq!(message[20..24], 3_i32.to_ne_bytes());
        assert_eq!(message[36..], 9_i32.to_ne_bytes());
    }

    #[test]
    fn an_answer_is_an_error_an_acknowledgement_or_neither() {
        let answer = |kind: u16, error: i32| {
            let mut bytes = vec![0; 36];
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes[16..20].copy_from_slice(&error.to_ne_bytes());
            bytes
        };
        assert_eq!(answer_error(&answer(2, 0)), Some(0));
        assert_eq!(answer_error(&answer(2, -19)), Some(19));
        assert_eq!(answer_error(&answer(16, 0)), None);
        assert_eq!(answer_error(&[0; 10]), None);
    }

    #[test]
    fn addresses_and_names_are_as_the_kernel_reads_them() {
        let address = socket_address([10, 77, 0, 200]);
        let bytes = address.sa_data.map(|byte| byte as u8);
        assert_eq!(bytes[..8], [0, 0, 10, 77, 0, 200, 0, 0]);
        let name = system::named_request("a-name-that-is-too-long").ifr_name;
        assert_eq!((name[14] as u8, name[15]), (b'-', 0));
    }
}
