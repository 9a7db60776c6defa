//! Which network interface leads to an address: the kernel's own decision, asked for by
//! `RTM_GETROUTE` of rtnetlink(7). Files such as `/proc/net/route` show the main table alone; rules,
//! other tables and the machine's own addresses count as well.

use super::check;
use std::ffi::CStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Kinds of message and attribute, and types of route, of `linux/netlink.h` and
/// `linux/rtnetlink.h`.
const NLMSG_ERROR: u16 = 2;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REQUEST: u16 = 1;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
/// Types of route that lead somewhere: to others, to this machine, to all, to one of many, to a
/// group.
const LEADING: std::ops::RangeInclusive<u8> = 1..=5;
const RTN_LOCAL: u8 = 2;
/// Bytes of `struct nlmsghdr` and of `struct rtmsg`.
const HEAD_BYTES: usize = 16;
const ROUTE_BYTES: usize = 12;

/// A route that the kernel would take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The interface, by the kernel's number.
    pub interface: u32,
    /// Is the address this machine's own?
    pub is_local: bool,
}

/// The route to an address, from this process and its network namespace.
///
/// # Errors
/// The kernel knows no way (`ENETUNREACH`, `EHOSTUNREACH`, and `EINVAL` or `EACCES` for routes that
/// forbid it), or refuses to tell.
pub fn route_to(address: SocketAddr) -> io::Result<Route> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: takes numbers alone; the descriptor is owned from here on.
    let socket = check(libc::c_long::from(unsafe {
        libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE)
    }))?;
    // SAFETY: just opened, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket as libc::c_int) };
    let request = request(address);
    // SAFETY: the bytes are those of the vector. An unconnected socket of netlink sends to the kernel.
    check(unsafe {
        libc::send(
            socket.as_raw_fd(),
            request.as_ptr().cast(),
            request.len(),
            0,
        ) as libc::c_long
    })?;
    let mut reply = [0u8; 8192];
    // SAFETY: the kernel writes at most the bytes of the array.
    let length = check(unsafe {
        libc::recv(
            socket.as_raw_fd(),
            reply.as_mut_ptr().cast(),
            reply.len(),
            0,
        ) as libc::c_long
    })?;
    parse(&reply[..length as usize])
}

/// The name of an interface of this network namespace.
///
/// # Errors
/// It is gone.
pub fn interface_name(interface: u32) -> io::Result<String> {
    let mut name = [0 as libc::c_char; libc::IF_NAMESIZE];
    // SAFETY: the array has the size that the call asks for.
    let found = unsafe { libc::if_indextoname(interface, name.as_mut_ptr()) };
    if found.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has written a name with a NUL at its end.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Ok(name.to_string_lossy().into_owned())
}

/// The message that asks.
fn request(address: SocketAddr) -> Vec<u8> {
    let (family, bytes, scope) = match address {
        SocketAddr::V4(to) => (libc::AF_INET, to.ip().octets().to_vec(), 0),
        SocketAddr::V6(to) => (libc::AF_INET6, to.ip().octets().to_vec(), to.scope_id()),
    };
    let mut body = vec![0; ROUTE_BYTES];
    body[0] = family as u8;
    body[1] = bytes.len() as u8 * 8;
    let mut put = |kind: u16, value: &[u8]| {
        body.extend((value.len() as u16 + 4).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value);
    };
    put(RTA_DST, &bytes);
    // Of an address that only means something on one link (`fe80::1%eth0`).
    if scope != 0 {
        put(RTA_OIF, &scope.to_ne_bytes());
    }
    let mut message = ((HEAD_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend(RTM_GETROUTE.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// The first message of a reply: a header, a route, and attributes, each at a boundary of four bytes.
fn parse(reply: &[u8]) -> io::Result<Route> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "rtnetlink: a damaged reply");
    let word = |at: usize| {
        let bytes = reply.get(at..at + 4).ok_or_else(damaged)?;
        Ok::<_, io::Error>(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let half = |at: usize| {
        let bytes = reply.get(at..at + 2).ok_or_else(damaged)?;
        Ok::<_, io::Error>(u16::from_ne_bytes([bytes[0], bytes[1]]))
    };
    match half(4)? {
        NLMSG_ERROR => {
            let error = word(HEAD_BYTES)? as i32;
            return Err(io::Error::from_raw_os_error(error.wrapping_neg()));
        }
        RTM_NEWROUTE => {}
        _ => return Err(damaged()),
    }
    let end = reply.len().min(word(0)? as usize);
    let kind = *reply.get(HEAD_BYTES + 7).ok_or_else(damaged)?;
    if !LEADING.contains(&kind) {
        // IPv6 tells of a way that leads nowhere as of a route by `lo`.
        return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
    }
    let mut at = HEAD_BYTES + ROUTE_BYTES;
    while at + 4 <= end {
        let length = usize::from(half(at)?);
        if half(at + 2)? == RTA_OIF && length >= 8 {
            return Ok(Route {
                interface: word(at + 4)?,
                is_local: kind == RTN_LOCAL,
            });
        }
        // An attribute has its own header at least.
        at += length.max(4).next_multiple_of(4);
    }
    Err(damaged())
}

/// Does the error of [`route_to`] mean that no way leads there?
#[must_use]
pub fn is_unreachable(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    // EINVAL and EACCES: routes of the types `blackhole` and `prohibit`.
    let numbers = [
        libc::ENETUNREACH,
        libc::EHOSTUNREACH,
        libc::EINVAL,
        libc::EACCES,
    ];
    number.is_some_and(|number| numbers.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv6Addr, SocketAddrV6};

    /// Asked for 10.5.0.1, which a rule sends to a table of its own: the interface 2.
    const BY_RULE: &str = "6800000018000000000000005a500000 02200000fe00000100020000 \
        08000f00fe000000 080001000a050001 0800040002000000 080007000a020001 0800190000000000 \
        24000c0002000000000000000000000000000000000000000000000000000000000000 00";
    /// Asked for the machine's own 10.1.0.1: by `lo`.
    const OWN: &str = "6800000018000000000000005a500000 02200000fe00000200020080 \
        08000f00fe000000 080001000a010001 0800040001000000 080007000a010001 0800190000000000";
    /// Asked for fd00::2.
    const SIX: &str = "9c00000018000000000000005a500000 0a808000fe02000100020000 \
        08000f00fe000000 14000100fd000000000000000000000000000002 \
        14000200 00000000000000000000000000000000 14000700fd000000000000000000000000000001 \
        0800060000010000 0800040003000000";
    /// Asked for 2001::1, to which nothing leads: ENETUNREACH, and what was asked.
    const REFUSED: &str = "44000000 0200 0000 00000000 5a500000 9bffffff 30000000 1a000100 \
        00000000 00000000 0a80000000000000 00000000 14000100 20010000000000000000000000000001";

    fn bytes(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pairs = digits
            .chunks(2)
            .map(|pair| std::str::from_utf8(pair).unwrap());
        pairs
            .map(|pair| u8::from_str_radix(pair, 16).unwrap())
            .collect()
    }

    #[test]
    fn replies_of_the_kernel_are_read() {
        let read = |text| parse(&bytes(text));
        let route = |interface, is_local| Route {
            interface,
            is_local,
        };
        assert_eq!(read(BY_RULE).unwrap(), route(2, false));
        assert_eq!(read(OWN).unwrap(), route(1, true));
        assert_eq!(read(SIX).unwrap(), route(3, false));
        // Where nothing leads, older kernels tell of a route by `lo` of the type `unreachable`.
        let mut nowhere = bytes(SIX);
        nowhere[HEAD_BYTES + 7] = 7;
        for error in [read(REFUSED), parse(&nowhere)].map(Result::unwrap_err) {
            assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH));
            assert!(is_unreachable(&error));
        }
        // Cut anywhere, it is damaged or whole.
        let whole = bytes(BY_RULE);
        for length in 0..whole.len() {
            let cut = parse(&whole[..length]);
            assert!(cut.is_err() || cut.unwrap() == route(2, false), "{length}");
        }
        assert!(!is_unreachable(&parse(&whole[..40]).unwrap_err()));
    }

    #[test]
    fn a_request_says_family_address_and_link() {
        let link = "fe80::1".parse::<Ipv6Addr>().unwrap();
        let asked = request(SocketAddrV6::new(link, 0, 0, 7).into());
        assert_eq!(asked.len(), 16 + 12 + 20 + 8);
        assert_eq!(asked[..4], 56u32.to_ne_bytes());
        assert_eq!((asked[16], asked[17]), (libc::AF_INET6 as u8, 128));
        assert_eq!(asked[32..48], link.octets());
        assert_eq!(asked[52..], 7u32.to_ne_bytes());
        assert_eq!(request("10.0.0.1:0".parse().unwrap()).len(), 16 + 12 + 8);
    }

    #[test]
    fn this_machine_reaches_itself() {
        let route = route_to("127.0.0.1:0".parse().unwrap()).unwrap();
        assert!(route.is_local);
        assert_eq!(interface_name(route.interface).unwrap(), "lo");
        assert!(interface_name(u32::MAX).is_err());
    }
}
