//! Limits the number of connections that are not yet authenticated.

use crate::tls_connection::ShutdownHandle;
use common::sync::lock_mutex;
use std::net::{IpAddr, TcpStream};
use std::sync::Mutex;

/// Maximum number of unauthenticated connections per client address, in addition to one connection per disk.
const MAXIMUM_PER_ADDRESS: usize = 8;

/// Maximum number of unauthenticated connections of all addresses. If the maximum is exceeded, the oldest connection is
/// closed. The oldest connection is hardly ever a connection of the expected peer, because the handshake of that peer
/// takes only milliseconds.
const MAXIMUM_TOTAL: usize = 256;

/// Registry of unauthenticated connections, with their limits.
pub(crate) struct UnauthenticatedLimit {
    of_one_address: usize,
    here: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    /// Number of the connection that was registered last.
    number: u64,
    connections: Vec<(u64, IpAddr, ShutdownHandle)>,
}

/// Slot of an unauthenticated connection. The slot is freed when this value is dropped.
pub(crate) struct UnauthenticatedSlot<'s> {
    strangers: &'s UnauthenticatedLimit,
    number: u64,
}

impl UnauthenticatedLimit {
    pub(crate) fn new(disks: usize) -> UnauthenticatedLimit {
        UnauthenticatedLimit { of_one_address: MAXIMUM_PER_ADDRESS + disks, here: Mutex::default() }
    }

    /// Allocates a slot for a connection. Returns `None` if the client has disconnected, or if too many connections
    /// come from the client's address.
    pub(crate) fn slot_for(&self, tcp: &TcpStream) -> Option<UnauthenticatedSlot<'_>> {
        self.allocate_slot(tcp.peer_addr().ok()?.ip(), ShutdownHandle::from_stream(tcp).ok()?)
    }

    fn allocate_slot(&self, address: IpAddr, cutter: ShutdownHandle) -> Option<UnauthenticatedSlot<'_>> {
        let mut here = lock_mutex(&self.here);
        let same = here.connections.iter().filter(|(_, other, _)| *other == address).count();
        (same < self.of_one_address).then(|| {
            here.number += 1;
            let number = here.number;
            if here.connections.len() >= MAXIMUM_TOTAL {
                let (_, _, oldest) = here.connections.remove(0);
                oldest.shut_down();
            }
            here.connections.push((number, address, cutter));
            UnauthenticatedSlot { strangers: self, number }
        })
    }

    /// Closes all unauthenticated connections.
    pub(crate) fn close_all(&self) {
        lock_mutex(&self.here).connections.iter().for_each(|(_, _, cutter)| cutter.shut_down());
    }
}

impl Drop for UnauthenticatedSlot<'_> {
    fn drop(&mut self) {
        lock_mutex(&self.strangers.here).connections.retain(|(number, ..)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    #[test]
    fn total_number_of_unauthenticated_connections_is_limited() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        let strangers = UnauthenticatedLimit::new(1);
        let place = |number: u32| {
            strangers.allocate_slot(IpAddr::from(number.to_be_bytes()), ShutdownHandle::from_stream(&near).unwrap())
        };
        let mut connections: Vec<_> = (0..MAXIMUM_TOTAL as u32).map(|number| place(number).unwrap()).collect();
        far.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
        assert!(far.read(&mut [0]).is_err(), "all connections were accepted");
        connections.push(place(u32::MAX).unwrap());
        assert_eq!(lock_mutex(&strangers.here).connections.len(), MAXIMUM_TOTAL);
        assert_eq!(far.read(&mut [0]).unwrap(), 0, "the oldest connection is closed");
        drop(connections);
        assert!(lock_mutex(&strangers.here).connections.is_empty());
    }

    #[test]
    fn connections_per_address_are_limited_until_authenticated() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        let strangers = UnauthenticatedLimit::new(2);
        let of = |last| {
            strangers.allocate_slot(IpAddr::from([192, 0, 2, last]), ShutdownHandle::from_stream(&near).unwrap())
        };
        let mut ten: Vec<_> = (0..10).map(|_| of(1).unwrap()).collect();
        assert!(of(1).is_none() && of(2).is_some() && of(1).is_none());
        ten.remove(4);
        let known = of(1).unwrap();
        assert!(of(1).is_none());
        drop((ten, known));
        // No unauthenticated connection is left to close.
        strangers.close_all();
        far.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
        assert!(far.read(&mut [0]).is_err());
        let _place = strangers.slot_for(&near).unwrap();
        strangers.close_all();
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
    }
}
