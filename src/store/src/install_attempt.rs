//! Attempts at installations and migrations that pass their point of no return: as the boot announces them, and as they are recorded.

use super::TokenHash;
use model::install_marker::{AttemptRecord, RecordedDisk};
use serde::{Deserialize, Serialize};

/// Maximum number of attempts at one order.
pub const ATTEMPTS: u32 = 3;

/// Attempt that has passed its point of no return.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedAttempt {
    /// Hash of the token of its boot.
    pub by: TokenHash,
    /// Record of its secret; `None` from an agent that sends no digest. Then only the same boot can report its success.
    #[serde(default)]
    pub record: Option<AttemptRecord>,
}

/// Announcement of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptStart {
    /// Hash of the token of the boot.
    pub by: TokenHash,
    pub disks: Vec<RecordedDisk>,
    pub secret_digest: Option<String>,
}

impl AttemptStart {
    /// Returns the record of this attempt at an image.
    pub(crate) fn to_attempt(&self, image: Option<String>) -> StartedAttempt {
        let record = self.secret_digest.clone().map(|secret_digest| AttemptRecord { secret_digest, image });
        StartedAttempt { by: self.by, record }
    }
}
