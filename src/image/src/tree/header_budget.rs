//! Limit on the work that an image may cause. A few compressed bytes can contain millions of headers, each of which
//! costs as much as one that is followed by a file. So header blocks are counted, and their number is limited by the
//! length of the image.

/// Number of header blocks that any image may have, however small it is.
const FREE: u64 = 1 << 18;

/// Number of further header blocks for each compressed byte received. Empty files with consecutive numbers in their
/// names have been measured at 1.5 bytes each (zstd -19), and with PAX records they have three to five blocks.
const PER_BYTE: u64 = 4;

/// Work of the finished parts of one image.
#[derive(Debug, Default)]
pub(crate) struct HeaderBudget {
    blocks: u64,
    fetched_bytes: u64,
}

impl HeaderBudget {
    /// Returns how many header blocks the current part may have, given the bytes of it that were fetched.
    pub(crate) fn left(&self, fetched_bytes: u64) -> u64 {
        let paid = self.fetched_bytes.saturating_add(fetched_bytes).saturating_mul(PER_BYTE);
        FREE.saturating_add(paid).saturating_sub(self.blocks)
    }

    /// Adds a finished part.
    pub(crate) fn add_part(&mut self, blocks: u64, fetched_bytes: u64) {
        self.blocks += blocks;
        self.fetched_bytes += fetched_bytes;
    }
}

/// Returns the error message for too many header blocks.
pub(crate) fn too_much_message(blocks: u64) -> String {
    format!(
        "the tar has more than {blocks} header blocks, too many for the length of the image: {PER_BYTE} per byte \
         received and {FREE} in addition are more than any system has; recreate the image"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_paid_for_with_bytes_over_all_parts_of_an_image() {
        let mut work = HeaderBudget::default();
        assert_eq!([0, 1000, u64::MAX].map(|bytes| work.left(bytes)), [FREE, FREE + 4000, u64::MAX]);
        work.add_part(FREE - 10, 2);
        assert_eq!([work.left(0), work.left(1)], [18, 22]);
        // What is free is free once.
        (0..512).for_each(|_| work.add_part(1000, 10));
        assert_eq!(work.left(10), 0);
    }
}
