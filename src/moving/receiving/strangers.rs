//! Limits on connections that are not yet authenticated.

use crate::moving::link::Cutter;
use crate::moving::own::awaited::lock;
use std::net::{IpAddr, TcpStream};
use std::sync::Mutex;

/// Limit per address, in addition to one connection per disk.
const OF_ONE_ADDRESS: usize = 8;

/// Limit over all addresses. A new connection replaces the oldest one: the expected peer completes its handshake within milliseconds.
const OF_ALL_ADDRESSES: usize = 256;

/// Unauthenticated connections, with their limits.
pub struct Strangers {
    of_one_address: usize,
    here: Mutex<Here>,
}

#[derive(Default)]
struct Here {
    /// Counter of connections.
    number: u64,
    places: Vec<(u64, IpAddr, Cutter)>,
}

/// Slot of an unauthenticated connection, freed on drop.
pub struct Place<'s> {
    strangers: &'s Strangers,
    number: u64,
}

impl Strangers {
    pub fn new(disks: usize) -> Strangers {
        Strangers { of_one_address: OF_ONE_ADDRESS + disks, here: Mutex::default() }
    }

    /// Allocates a slot. Returns `None` if the client has disconnected or its address has too many connections.
    pub fn place_for(&self, tcp: &TcpStream) -> Option<Place<'_>> {
        self.place(tcp.peer_addr().ok()?.ip(), Cutter::of(tcp).ok()?)
    }

    fn place(&self, address: IpAddr, cutter: Cutter) -> Option<Place<'_>> {
        let mut here = lock(&self.here);
        let same = here.places.iter().filter(|(_, other, _)| *other == address).count();
        (same < self.of_one_address).then(|| {
            here.number += 1;
            let number = here.number;
            if here.places.len() >= OF_ALL_ADDRESSES {
                let (_, _, oldest) = here.places.remove(0);
                oldest.cut();
            }
            here.places.push((number, address, cutter));
            Place { strangers: self, number }
        })
    }

    /// Closes all unauthenticated connections.
    pub fn cut(&self) {
        lock(&self.here).places.iter().for_each(|(_, _, cutter)| cutter.cut());
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        lock(&self.strangers.here).places.retain(|(number, ..)| *number != self.number);
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
        let strangers = Strangers::new(1);
        let place = |number: u32| strangers.place(IpAddr::from(number.to_be_bytes()), Cutter::of(&near).unwrap());
        let mut places: Vec<_> = (0..OF_ALL_ADDRESSES as u32).map(|number| place(number).unwrap()).collect();
        far.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
        assert!(far.read(&mut [0]).is_err(), "there was room for all");
        places.push(place(u32::MAX).unwrap());
        assert_eq!(lock(&strangers.here).places.len(), OF_ALL_ADDRESSES);
        assert_eq!(far.read(&mut [0]).unwrap(), 0, "the oldest one is cut");
        drop(places);
        assert!(lock(&strangers.here).places.is_empty());
    }

    #[test]
    fn one_address_has_not_all_places_and_who_is_known_gives_its_own_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        let strangers = Strangers::new(2);
        let of = |last| strangers.place(IpAddr::from([192, 0, 2, last]), Cutter::of(&near).unwrap());
        let mut ten: Vec<_> = (0..10).map(|_| of(1).unwrap()).collect();
        assert!(of(1).is_none() && of(2).is_some() && of(1).is_none());
        ten.remove(4);
        let known = of(1).unwrap();
        assert!(of(1).is_none());
        drop((ten, known));
        // Nobody is left whom this could cut.
        strangers.cut();
        far.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
        assert!(far.read(&mut [0]).is_err());
        let _place = strangers.place_for(&near).unwrap();
        strangers.cut();
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
    }
}
