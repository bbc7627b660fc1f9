//! Properties of the server's host and its network. Tests replace these properties.

use super::server_health_monitor::{FreeSpace, read_free_space};
use api::source_port_check::FIRST_UNPRIVILEGED_PORT;
use linux::neighbor_table::{self, MacLookup};
use std::sync::Arc;
use std::time::Duration;

/// Interval at which the operator's directory is read.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// Properties of the host and its network.
pub(crate) struct HostEnvironment {
    pub scan_interval: Duration,
    /// Time after which a boot that has sent no request counts as silent; see
    /// [`store::boot_activity::ACTIVE_BOOT_TIMEOUT`].
    pub quiet: Duration,
    pub neighbors: MacLookup,
    pub free_space: FreeSpace,
    /// Lowest source port that an unprivileged process can bind.
    pub first_unprivileged_port: u16,
}

impl Default for HostEnvironment {
    fn default() -> HostEnvironment {
        HostEnvironment {
            scan_interval: SCAN_INTERVAL,
            quiet: store::boot_activity::ACTIVE_BOOT_TIMEOUT,
            neighbors: Arc::new(neighbor_table::look_up_macs),
            free_space: Arc::new(read_free_space),
            first_unprivileged_port: FIRST_UNPRIVILEGED_PORT,
        }
    }
}
