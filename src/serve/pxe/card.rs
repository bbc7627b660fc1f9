//! The network card on which machines boot: what it has now, and whether its ports are free.

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::sockopt::BindToDevice;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

/// No program takes longer to start.
const STARTING: Duration = Duration::from_secs(2);

/// A card with its first IPv4 address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    pub name: String,
    /// A card that was taken away and put back has another one.
    pub index: u32,
    pub address: Ipv4Addr,
    pub netmask: Ipv4Addr,
}

impl Card {
    /// # Errors
    /// There is no such card, it is down, or it has no address.
    pub fn look(name: &str) -> Result<Card, String> {
        let all = getifaddrs().map_err(|error| format!("the network cards cannot be listed: {error}"))?;
        let all: Vec<_> = all.collect();
        let own: Vec<_> = all.iter().filter(|one| one.interface_name == name).collect();
        let Some(first) = own.first() else {
            let others: BTreeSet<&str> = all.iter().map(|one| one.interface_name.as_str()).collect();
            let others = others.into_iter().collect::<Vec<_>>().join(", ");
            return Err(format!("there is no network card {name:?}; there is {others}"));
        };
        if !first.flags.contains(InterfaceFlags::IFF_UP) {
            return Err(format!("the network card {name} is down: `ip link set {name} up`"));
        }
        if first.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
            return Err(format!("{name} is the loopback: no machine boots there"));
        }
        let address =
            own.iter().find_map(|one| Some((*one.address?.as_sockaddr_in()?, *one.netmask?.as_sockaddr_in()?)));
        let Some((address, netmask)) = address else {
            return Err(format!("the network card {name} has no IPv4 address, which DHCP needs"));
        };
        let index = if_nametoindex(name).map_err(|error| format!("the network card {name}: {error}"))?;
        Ok(Card { name: name.to_owned(), index, address: address.ip(), netmask: netmask.ip() })
    }

    pub fn network(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() & self.netmask.to_bits())
    }

    pub fn broadcast(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() | !self.netmask.to_bits())
    }

    /// Listens on a UDP port of the card for a moment. dnsmasq itself would share it with another dnsmasq, and each of the two would hear
    /// half of what machines say.
    ///
    /// # Errors
    /// Somebody has it.
    pub fn is_free(&self, port: u16, what: &str) -> Result<(), String> {
        let open = || {
            let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
            setsockopt(&socket, BindToDevice, &OsString::from(&self.name))?;
            bind(socket.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, port))
        };
        let mut found = open();
        // A process that is being started has all our sockets until it is another program, also the one of the last look.
        let until = Instant::now() + STARTING;
        while found == Err(Errno::EADDRINUSE) && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
            found = open();
        }
        found.map_err(|error| match error {
            Errno::EADDRINUSE => format!(
                "UDP port {port} ({what}) of {} is taken by another program on this host: `ss -ulpn 'sport = {port}'` says which",
                self.name
            ),
            error => format!("UDP port {port} ({what}) of {} cannot be listened on: {error}", self.name),
        })
    }
}
