//! Attempts of installations and migrations that pass their point of no return, after which they may erase data.
//! Contains the announcement that the agent sends before that point, and the record that the server stores.

use super::TokenHash;
use super::operator_documents::ExpectedDocument;
use model::install_marker::{AttemptRecord, RecordedDisk};
use serde::{Deserialize, Serialize};

/// Maximum number of attempts of one reinstall order.
pub const ATTEMPTS: u32 = 3;
/// Maximum number of boots that are served in one attempt although no agent registers. Boots within three minutes count
/// as one, so a ramdisk that does not start its agent is served for about half an hour. Requests that the firmware
/// repeats while a server is slow or has failed count towards this limit, and do not use up the [`ATTEMPTS`].
pub const UNREGISTERED_BOOTS: u32 = 10;

/// Attempt that has passed its point of no return, and may therefore have erased data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedAttempt {
    /// Hash of the token of the boot that makes the attempt.
    pub by: TokenHash,
    /// Digest of the attempt's secret, and id of the image; `None` if the agent sent no digest of the secret. In that
    /// case, only the boot that makes the attempt can report the success.
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
    /// Digest of the approval with which the agent has compared its plan.
    pub approved: Option<String>,
    /// Documents in the database with which the server has decided that the installation is still requested.
    pub based_on: Vec<ExpectedDocument>,
}

impl AttemptStart {
    /// Converts the announced start of an attempt to the server's record. `image` is the id of the image that the
    /// attempt installs.
    pub(crate) fn to_attempt(&self, image: Option<String>) -> StartedAttempt {
        let record = self.secret_digest.clone().map(|secret_digest| AttemptRecord { secret_digest, image });
        StartedAttempt { by: self.by, record }
    }
}
