//! Properties of the server's host and of its network. Tests replace these properties.

use super::health_check::{FreeSpace, read_free_space};
use api::source_port_check::FIRST_UNPRIVILEGED_PORT;
use linux::neighbor_table::{self, MacLookup};
use std::sync::Arc;
use std::time::Duration;

/// Interval at which the operator's directory is read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Properties of the host and its network.
pub(crate) struct HostEnvironment {
    pub look_every: Duration,
    /// See [`store::boot_activity::QUIET`].
    pub quiet: Duration,
    pub neighbours: MacLookup,
    pub free_space: FreeSpace,
    /// Lowest source port that an unprivileged process can bind.
    pub first_unprivileged_port: u16,
}

impl Default for HostEnvironment {
    fn default() -> HostEnvironment {
        HostEnvironment {
            look_every: LOOK_EVERY,
            quiet: store::boot_activity::QUIET,
            neighbours: Arc::new(neighbor_table::look_up_macs),
            free_space: Arc::new(read_free_space),
            first_unprivileged_port: FIRST_UNPRIVILEGED_PORT,
        }
    }
}
