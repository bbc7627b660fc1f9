//! Compressed bytes that nothing comes out of: skippable frames, padding, empty frames and blocks. A server that sends them for
//! ever is never slow, and no bound on what comes out is ever reached.

use super::fault::damaged;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// In a row. More than the table of any seekable image, 4 MiB for each TiB, with what is under way between fetch and outlet
/// (16 MiB) and the last buffer that is not full yet.
pub const MOST_BYTES: u64 = 64 << 20;

/// One byte now and then does not make a row end: each makes up for so many. Frames and blocks of a single byte stay below.
const MADE_UP: u64 = 32;

/// Of one stream: the side that reads it counts up, the side where the content leaves counts down.
pub struct Barren {
    bytes: AtomicU64,
    most: u64,
}

impl Barren {
    pub fn up_to(most: u64) -> Barren {
        Barren { bytes: AtomicU64::new(0), most }
    }

    /// So many compressed bytes came.
    ///
    /// # Errors
    /// Too many, and next to nothing has come out of them.
    pub fn came(&self, bytes: usize) -> io::Result<()> {
        let bytes = bytes as u64;
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.most {
            return Ok(());
        }
        let limit = self.most >> 20;
        let text = "the image is not one, or was made to never end; make it anew";
        Err(damaged(format!("more than {limit} MiB in a row of the compressed stream hold next to nothing: {text}")))
    }

    /// So many bytes of content came out.
    pub fn made(&self, bytes: usize) {
        let less = |barren: u64| Some(barren.saturating_sub(MADE_UP.saturating_mul(bytes as u64)));
        // Always Ok: there is always a new value.
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}
