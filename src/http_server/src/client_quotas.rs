//! Quotas of client addresses: the number of connections, and the memory of request bodies from their first byte
//! until the response. [`RequestPermits`] limits the requests that are handled at the same time.

use crate::client_address::{ClientAddress, ClientOrigin, ConnectionInfo};
use crate::request_permits::RequestPermits;
use axum::http::HeaderMap;
use common::sync::lock_mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;

/// Maximum memory of the request bodies of one address, in bytes. A request that a proxy forwards counts towards the
/// address of the proxy's client.
const BODIES_OF_ONE: u64 = 8 << 20;
/// Maximum memory of all request bodies, in bytes.
const BODIES_OF_ALL: u64 = 64 << 20;
/// Minimum size of a large request body, in bytes. Only a few large bodies are handled at the same time, since a parsed
/// body occupies a multiple of its size in memory.
pub const LARGE_BODY_BYTES: usize = 128 << 10;
/// Maximum number of requests with large bodies that are handled at the same time.
const MAXIMUM_LARGE_BODIES: usize = 2;
/// Lower bound of the connection limit per address. It applies even if the total limit is low.
const MINIMUM_CONNECTIONS_PER_ADDRESS: usize = 64;

/// Quotas and their current use. Cheap to clone.
#[derive(Clone)]
pub struct ClientQuotas {
    taken: Arc<Mutex<QuotaTable>>,
    pub request_permits: RequestPermits,
    /// Permits for large bodies.
    pub large_bodies: Arc<Semaphore>,
    connection_limit: usize,
    proxies: Arc<[IpAddr]>,
}

#[derive(Default)]
struct QuotaTable {
    addresses: HashMap<IpAddr, QuotaUse>,
    /// Memory of the request bodies of all addresses together, in bytes.
    body_bytes: u64,
}

#[derive(Default)]
struct QuotaUse {
    connections: usize,
    body_bytes: u64,
}

/// Share of a quota, which is released when this value is dropped.
pub struct QuotaShare {
    quotas: ClientQuotas,
    address: IpAddr,
    connections: usize,
    body_bytes: u64,
}

impl ClientQuotas {
    /// Creates quotas that limit each address to a quarter of all connections, but at least
    /// [`MINIMUM_CONNECTIONS_PER_ADDRESS`].
    pub fn new(connections: usize, proxies: &[IpAddr]) -> ClientQuotas {
        let connection_limit = (connections / 4).max(MINIMUM_CONNECTIONS_PER_ADDRESS);
        let proxies = proxies.iter().map(IpAddr::to_canonical).collect();
        let large_bodies = Arc::new(Semaphore::new(MAXIMUM_LARGE_BODIES));
        ClientQuotas {
            taken: Arc::default(),
            request_permits: RequestPermits::default(),
            large_bodies,
            connection_limit,
            proxies,
        }
    }

    /// Sets the maximum number of requests of one address that are handled at the same time.
    pub fn with_requests_per_address(self, requests: usize) -> ClientQuotas {
        ClientQuotas { request_permits: RequestPermits::new(requests), ..self }
    }

    /// Returns the client of a request: the remote address of the connection or, if that address is a proxy named with
    /// `--proxy`, the client that the proxy reports.
    pub fn find_origin(
        &self,
        ConnectionInfo { address, port, .. }: ConnectionInfo,
        headers: &HeaderMap,
    ) -> ClientOrigin {
        if !self.is_proxy(address) {
            return ClientOrigin { address, port: Some(port) };
        }
        let mut values = headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok());
        // Only the last element is trusted, because the proxy has added it. The client may have written the other
        // elements.
        let last = values.next_back().and_then(|value| value.rsplit(',').next());
        last.and_then(|element| ClientOrigin::parse_forwarded(element.trim()))
            .unwrap_or(ClientOrigin { address, port: None })
    }

    fn is_proxy(&self, address: IpAddr) -> bool {
        self.proxies.contains(&address)
    }

    /// Reserves a connection, or returns `None` if the address has reached its limit.
    pub fn reserve_connection(&self, address: IpAddr) -> Option<QuotaShare> {
        let mut all = lock_mutex(&self.taken);
        let taken = all.addresses.entry(address).or_default();
        if taken.connections >= self.connection_limit && !self.is_proxy(address) {
            return None;
        }
        taken.connections += 1;
        Some(QuotaShare { quotas: self.clone(), address, connections: 1, body_bytes: 0 })
    }

    /// Reserves memory for a request body. Returns `None` if the limit per address or the total limit is reached.
    pub fn reserve_body(&self, ClientAddress(address): ClientAddress, body_bytes: u64) -> Option<QuotaShare> {
        let mut all = lock_mutex(&self.taken);
        let of_one = all.addresses.get(&address).map_or(0, |taken| taken.body_bytes);
        if all.body_bytes + body_bytes > BODIES_OF_ALL || of_one + body_bytes > BODIES_OF_ONE {
            return None;
        }
        all.body_bytes += body_bytes;
        all.addresses.entry(address).or_default().body_bytes += body_bytes;
        Some(QuotaShare { quotas: self.clone(), address, connections: 0, body_bytes })
    }
}

impl Drop for QuotaShare {
    fn drop(&mut self) {
        let mut all = lock_mutex(&self.quotas.taken);
        all.body_bytes -= self.body_bytes;
        let Some(taken) = all.addresses.get_mut(&self.address) else { return };
        taken.connections -= self.connections;
        taken.body_bytes -= self.body_bytes;
        if taken.connections == 0 && taken.body_bytes == 0 {
            all.addresses.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_limit_one_address_but_not_a_proxy() {
        let [one, other, proxy]: [IpAddr; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|text| text.parse().unwrap());
        let quotas = ClientQuotas::new(400, &[proxy]);
        let taken: Vec<_> = (0..200).map_while(|_| quotas.reserve_connection(one)).collect();
        assert_eq!(taken.len(), 100);
        assert!(quotas.reserve_connection(other).is_some());
        assert_eq!((0..200).map_while(|_| quotas.reserve_connection(proxy)).collect::<Vec<_>>().len(), 200);
        drop(taken);
        assert!(quotas.reserve_connection(one).is_some());

        let bodies: Vec<_> = (0..10).map_while(|_| quotas.reserve_body(ClientAddress(one), 4 << 20)).collect();
        assert_eq!(bodies.len(), 2);
        let others = (4..100)
            .map_while(|last| quotas.reserve_body(ClientAddress(format!("10.0.0.{last}").parse().unwrap()), 4 << 20));
        let others: Vec<_> = others.collect();
        assert_eq!(others.len(), 14, "64 MiB in all");
        drop((bodies, others));
        let taken = lock_mutex(&quotas.taken);
        assert!(taken.addresses.is_empty() && taken.body_bytes == 0);
    }
}
