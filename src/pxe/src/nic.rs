//! State of the NIC from which machines boot, and check of its UDP ports.

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::sockopt::BindToDevice;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time for which binding an occupied port is retried. A child process of this program may keep the port
/// occupied for a moment: it inherits all open sockets, which are closed only when it calls exec.
const BIND_RETRY_TIMEOUT: Duration = Duration::from_secs(2);

/// UDP port of TFTP.
pub(super) const TFTP_PORT: u16 = 69;

/// NIC with its first IPv4 address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PxeNic {
    pub name: String,
    /// Interface index. It changes if the NIC is removed and added again.
    pub index: u32,
    pub address: Ipv4Addr,
    pub netmask: Ipv4Addr,
}

impl PxeNic {
    /// Reads the current state of the NIC.
    ///
    /// # Errors
    /// Returns an error if the NIC does not exist, is down, or does not have an address.
    pub(crate) fn read_state(name: &str) -> Result<PxeNic, String> {
        let all = getifaddrs().map_err(|error| format!("cannot list the NICs: {error}"))?;
        let all: Vec<_> = all.collect();
        let own: Vec<_> = all.iter().filter(|one| one.interface_name == name).collect();
        let Some(first) = own.first() else {
            let others: BTreeSet<&str> = all.iter().map(|one| one.interface_name.as_str()).collect();
            let others = others.into_iter().collect::<Vec<_>>().join(", ");
            return Err(format!("there is no NIC {name:?}; the NICs are {others}"));
        };
        if !first.flags.contains(InterfaceFlags::IFF_UP) {
            return Err(format!("NIC {name} is down: run `ip link set {name} up`"));
        }
        if first.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
            return Err(format!("NIC {name} is the loopback interface, and other machines cannot be reached over it"));
        }
        let address =
            own.iter().find_map(|one| Some((*one.address?.as_sockaddr_in()?, *one.netmask?.as_sockaddr_in()?)));
        let Some((address, netmask)) = address else {
            return Err(format!("NIC {name} does not have an IPv4 address, which DHCP requires"));
        };
        let index = if_nametoindex(name).map_err(|error| format!("NIC {name}: {error}"))?;
        Ok(PxeNic { name: name.to_owned(), index, address: address.ip(), netmask: netmask.ip() })
    }

    /// Reads the MAC of the NIC.
    ///
    /// # Errors
    /// Returns an error if the NIC no longer exists, or does not have a MAC.
    pub(super) fn read_mac(&self) -> io::Result<[u8; 6]> {
        let own = getifaddrs()?.filter(|one| one.interface_name == self.name);
        let mac = own.filter_map(|one| one.address?.as_link_addr()?.addr()).next();
        mac.ok_or_else(|| io::Error::other("the NIC does not have a MAC address"))
    }

    pub(crate) fn network(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() & self.netmask.to_bits())
    }

    pub(crate) fn broadcast(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() | !self.netmask.to_bits())
    }

    /// Checks that a UDP port of the NIC is free, by binding it briefly. dnsmasq itself would not detect a conflict:
    /// two dnsmasq processes would share the port, and each would receive only some of the packets. As in dnsmasq, the
    /// TFTP port is bound only at the NIC's address, and other ports at all addresses, because DHCP clients send
    /// broadcasts.
    ///
    /// # Errors
    /// Returns an error if another process listens on the port.
    pub(crate) fn check_port(&self, port: u16, what: &str) -> Result<(), String> {
        let open = || {
            let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
            setsockopt(&socket, BindToDevice, &OsString::from(&self.name))?;
            let [a, b, c, d] = if port == TFTP_PORT { self.address } else { Ipv4Addr::UNSPECIFIED }.octets();
            bind(socket.as_raw_fd(), &SockaddrIn::new(a, b, c, d, port))
        };
        let mut found = open();
        // The attempt is repeated, because a child process of this program may briefly hold the socket of a previous
        // check.
        let until = Instant::now() + BIND_RETRY_TIMEOUT;
        while found == Err(Errno::EADDRINUSE) && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
            found = open();
        }
        found.map_err(|error| match error {
            Errno::EADDRINUSE => format!(
                "UDP port {port} ({what}) of {nic} is in use by another program on this host: `ss -ulpn 'sport = {port}'` shows that program", nic = self.name),
            error => format!("cannot listen on UDP port {port} ({what}) of {nic}: {error}", nic = self.name),
        })
    }
}
