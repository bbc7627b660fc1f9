//! Limits the number of connections that are not yet authenticated.

use crate::connection::ShutdownHandle;
use common::sync::lock_mutex;
use std::net::{IpAddr, TcpStream};
use std::sync::Mutex;

/// Maximum number of unauthenticated connections per client address, in addition to one connection per disk.
const OF_ONE_ADDRESS: usize = 8;

/// Maximum number of unauthenticated connections of all addresses. If the maximum is exceeded, the oldest connection is
/// closed. The oldest connection is hardly ever a connection of the expected peer, because the handshake of that peer
/// takes only milliseconds.
const OF_ALL_ADDRESSES: usize = 256;

/// Registry of unauthenticated connections, with their limits.
pub(crate) struct UnauthenticatedLimit {
    of_one_address: usize,
    here: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    /// Number of the last connection.
    number: u64,
    places: Vec<(u64, IpAddr, ShutdownHandle)>,
}

/// Slot of an unauthenticated connection. The slot is freed when this value is dropped.
pub(crate) struct UnauthenticatedSlot<'s> {
    strangers: &'s UnauthenticatedLimit,
    number: u64,
}

impl UnauthenticatedLimit {
    pub(crate) fn new(disks: usize) -> UnauthenticatedLimit {
        UnauthenticatedLimit { of_one_address: OF_ONE_ADDRESS + disks, here: Mutex::default() }
    }

    /// Allocates a slot for a connection. Returns `None` if the client has disconnected, or if too many connections
    /// come from the client's address.
    pub(crate) fn slot_for(&self, tcp: &TcpStream) -> Option<UnauthenticatedSlot<'_>> {
        self.allocate_slot(tcp.peer_addr().ok()?.ip(), ShutdownHandle::from_stream(tcp).ok()?)
    }

    fn allocate_slot(&self, address: IpAddr, cutter: ShutdownHandle) -> Option<UnauthenticatedSlot<'_>> {
        let mut here = lock_mutex(&self.here);
        let same = here.places.iter().filter(|(_, other, _)| *other == address).count();
        (same < self.of_one_address).then(|| {
            here.number += 1;
            let number = here.number;
            if here.places.len() >= OF_ALL_ADDRESSES {
                let (_, _, oldest) = here.places.remove(0);
                oldest.shut_down();
            }
            here.places.push((number, address, cutter));
            UnauthenticatedSlot { strangers: self, number }
        })
    }

    /// Closes all unauthenticated connections.
    pub(crate) fn close_all(&self) {
        lock_mutex(&self.here).places.iter().for_each(|(_, _, cutter)| cutter.shut_down());
    }
}

impl Drop for UnauthenticatedSlot<'_> {
    fn drop(&mut self) {
        lock_mutex(&self.strangers.here).places.retain(|(number, ..)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    #[test]
    fn many_addresses_together_have_not_more_places_than_there_are() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        let strangers = UnauthenticatedLimit::new(1);
        let place = |number: u32| {
            strangers.allocate_slot(IpAddr::from(number.to_be_bytes()), ShutdownHandle::from_stream(&near).unwrap())
        };
        let mut places: Vec<_> = (0..OF_ALL_ADDRESSES as u32).map(|number| place(number).unwrap()).collect();
        far.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
        assert!(far.read(&mut [0]).is_err(), "there was room for all");
        places.push(place(u32::MAX).unwrap());
        assert_eq!(lock_mutex(&strangers.here).places.len(), OF_ALL_ADDRESSES);
        assert_eq!(far.read(&mut [0]).unwrap(), 0, "the oldest one is cut");
        drop(places);
        assert!(lock_mutex(&strangers.here).places.is_empty());
    }

    #[test]
    fn one_address_has_not_all_places_and_who_is_known_gives_its_own_back() {
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
