//! Limits the work that one image requires. A few compressed bytes can expand to millions of headers, and each header
//! creates a file. Therefore the number of header blocks is limited in proportion to the length of the image.

/// Number of header blocks that any image may have, regardless of its length.
const FREE: u64 = 1 << 18;

/// Number of additional header blocks per compressed byte received. The highest ratio was measured for empty files with
/// consecutive numbers in their names. Each of these files takes 1.5 bytes (zstd -19), and has three to five header
/// blocks if it has PAX records.
const PER_BYTE: u64 = 4;

/// Header blocks and compressed bytes of the finished parts of one image.
#[derive(Debug, Default)]
pub(crate) struct HeaderBudget {
    blocks: u64,
    fetched_bytes: u64,
}

impl HeaderBudget {
    /// Returns the number of header blocks that the current part may have. `fetched_bytes` is the number of compressed
    /// bytes of this part that were fetched so far.
    pub(crate) fn left(&self, fetched_bytes: u64) -> u64 {
        let paid = self.fetched_bytes.saturating_add(fetched_bytes).saturating_mul(PER_BYTE);
        FREE.saturating_add(paid).saturating_sub(self.blocks)
    }

    /// Adds header blocks and compressed bytes of a finished part.
    pub(crate) fn add_part(&mut self, blocks: u64, fetched_bytes: u64) {
        self.blocks += blocks;
        self.fetched_bytes += fetched_bytes;
    }
}

/// Returns the error message for a tar with more than `blocks` header blocks.
pub(crate) fn too_much_message(blocks: u64) -> String {
    format!(
        "the tar archive has more than {blocks} header blocks, too many for the length of the image: the limit is \
         {FREE} plus {PER_BYTE} per received byte; recreate the image"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_budget_grows_with_bytes_over_all_layers() {
        let mut work = HeaderBudget::default();
        assert_eq!([0, 1000, u64::MAX].map(|bytes| work.left(bytes)), [FREE, FREE + 4000, u64::MAX]);
        work.add_part(FREE - 10, 2);
        assert_eq!([work.left(0), work.left(1)], [18, 22]);
        // The free blocks are granted only once per image, not once per part.
        (0..512).for_each(|_| work.add_part(1000, 10));
        assert_eq!(work.left(10), 0);
    }
}
