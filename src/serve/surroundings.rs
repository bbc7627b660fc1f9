//! Properties of the host and its network, which tests replace.

use super::neighbours::{self, Neighbours};
use super::proof::FIRST_UNPRIVILEGED_PORT;
use super::state;
use std::sync::Arc;
use std::time::Duration;

/// Interval in which the directory is read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Properties of the host and its network.
pub struct Surroundings {
    pub look_every: Duration,
    /// See [`state::boots::QUIET`].
    pub quiet: Duration,
    pub neighbours: Neighbours,
    /// First source port that does not prove a privileged process.
    pub first_unprivileged_port: u16,
}

impl Default for Surroundings {
    fn default() -> Surroundings {
        Surroundings {
            look_every: LOOK_EVERY,
            quiet: state::boots::QUIET,
            neighbours: Arc::new(neighbours::of_kernel),
            first_unprivileged_port: FIRST_UNPRIVILEGED_PORT,
        }
    }
}
