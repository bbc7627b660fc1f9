//! Limits compressed input that produces no output: skippable frames, padding, empty frames and blocks. Without this
//! limit, a server could send such input forever, because neither the check for slow connections nor the limits on the
//! output would stop it.

use super::error::damaged_error;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum length of consecutive input without output, in bytes. Valid images stay below this maximum: their longest
/// input without output is the seek table, with 4 MiB per TiB of image. The counter can also include the data in flight
/// between download and output (16 MiB), and the input whose output has not filled an output buffer yet.
pub(crate) const MAXIMUM_EMPTY_INPUT_BYTES: u64 = 64 << 20;

/// Number of input bytes that each output byte subtracts from the counter. The number is small enough that an
/// occasional output byte does not reset the counter, and large enough that frames and blocks with only one byte of
/// content are accepted.
const INPUT_BYTES_PER_OUTPUT_BYTE: u64 = 32;

/// Counter of one stream, which is increased by input and decreased by output.
pub(crate) struct EmptyInputLimit {
    bytes: AtomicU64,
    most: u64,
}

impl EmptyInputLimit {
    pub(crate) fn with_limit(most: u64) -> EmptyInputLimit {
        EmptyInputLimit { bytes: AtomicU64::new(0), most }
    }

    /// Adds bytes of compressed input to the counter.
    ///
    /// # Errors
    /// Returns an error if the counter exceeds its maximum: too much consecutive input has produced almost no output.
    pub(crate) fn add_input(&self, bytes: usize) -> io::Result<()> {
        let bytes = bytes as u64;
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.most {
            return Ok(());
        }
        let limit = self.most >> 20;
        let text =
            "the file is not a valid image, or was crafted so that its decompression never ends; recreate the image";
        Err(damaged_error(format!(
            "more than {limit} MiB of consecutive compressed data decompress to almost nothing: {text}"
        )))
    }

    /// Decreases the counter by bytes of decompressed output.
    pub(crate) fn add_output(&self, bytes: usize) {
        let less = |unproductive: u64| {
            Some(unproductive.saturating_sub(INPUT_BYTES_PER_OUTPUT_BYTE.saturating_mul(bytes as u64)))
        };
        // The result is ignored: it is always `Ok`, because the closure always returns a value.
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}
