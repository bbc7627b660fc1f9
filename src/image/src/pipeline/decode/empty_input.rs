//! Limit on compressed input that produces no output: skippable frames, padding, empty frames and blocks. Without it, a
//! server could send such input forever: the download is never slow, and no limit on the output is ever reached.

use super::error::damaged_error;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum length of such input in a row. It exceeds the seek table of any seekable image, 4 MiB per TiB, plus what is
/// in flight between download and output (16 MiB) and the last buffer, which is not full yet.
pub(crate) const MOST_BYTES: u64 = 64 << 20;

/// Number of input bytes that one output byte accounts for, so that an occasional byte does not reset the counter.
/// Frames and blocks of a single byte stay below.
const MADE_UP: u64 = 32;

/// Counter of one stream: the reading side counts up, the output side counts down.
pub(crate) struct EmptyInputLimit {
    bytes: AtomicU64,
    most: u64,
}

impl EmptyInputLimit {
    pub(crate) fn with_limit(most: u64) -> EmptyInputLimit {
        EmptyInputLimit { bytes: AtomicU64::new(0), most }
    }

    /// Counts compressed input.
    ///
    /// # Errors
    /// Returns an error if there was too much of it with next to no output.
    pub(crate) fn add_input(&self, bytes: usize) -> io::Result<()> {
        let bytes = bytes as u64;
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.most {
            return Ok(());
        }
        let limit = self.most >> 20;
        let text = "the file is not a valid image or was crafted to never end; recreate it";
        Err(damaged_error(format!(
            "more than {limit} MiB in a row of the compressed stream produce next to no output: \
                             {text}"
        )))
    }

    /// Counts decompressed output.
    pub(crate) fn add_output(&self, bytes: usize) {
        let less = |barren: u64| Some(barren.saturating_sub(MADE_UP.saturating_mul(bytes as u64)));
        // The closure always returns a value, so this is always `Ok`.
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}
