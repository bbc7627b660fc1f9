//! Attempts of installations and migrations that pass their point of no return, after which the attempts may erase
//! data: the announcement that the boot sends, and the record that the server keeps.

use super::TokenHash;
use model::install_marker::{AttemptRecord, RecordedDisk};
use serde::{Deserialize, Serialize};

/// Maximum number of attempts of one reinstall order.
pub const ATTEMPTS: u32 = 3;

/// Attempt that has passed its point of no return, and may therefore have erased data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedAttempt {
    /// Hash of the token of the boot that makes the attempt.
    pub by: TokenHash,
    /// Record of the attempt's secret; `None` if the agent sent no digest of the secret. In that case, only the boot
    /// that makes the attempt can report the success.
    #[serde(default)]
    pub record: Option<AttemptRecord>,
}

/// Announcement that a boot sends before its attempt passes the point of no return.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptStart {
    /// Hash of the token of the boot that makes the attempt.
    pub by: TokenHash,
    pub disks: Vec<RecordedDisk>,
    pub secret_digest: Option<String>,
}

impl AttemptStart {
    /// Converts the announcement to the server's record of the attempt, which installs the given image.
    pub(crate) fn to_attempt(&self, image: Option<String>) -> StartedAttempt {
        let record = self.secret_digest.clone().map(|secret_digest| AttemptRecord { secret_digest, image });
        StartedAttempt { by: self.by, record }
    }
}
