//! How much work an image may ask for. A few compressed bytes can be millions of headers, and each of them costs as much as one
//! that a file follows. So blocks of headers are counted, and have to be paid for with bytes of the image.

/// Each image may have so many, however small it is.
const FREE: u64 = 1 << 18;

/// And so many more for each byte that came, compressed. Empty files that are numbered through have been seen to take 1.5 bytes
/// each (zstd -19), and with PAX records they have three to five blocks.
const PER_BYTE: u64 = 4;

/// What the parts of one image have had so far that are done.
#[derive(Debug, Default)]
pub struct Work {
    blocks: u64,
    fetched_bytes: u64,
}

impl Work {
    /// How many blocks of headers the current part may have, now that so many bytes of it came.
    pub fn left(&self, fetched_bytes: u64) -> u64 {
        let paid = self.fetched_bytes.saturating_add(fetched_bytes).saturating_mul(PER_BYTE);
        FREE.saturating_add(paid).saturating_sub(self.blocks)
    }

    /// A part is done.
    pub fn add(&mut self, blocks: u64, fetched_bytes: u64) {
        self.blocks += blocks;
        self.fetched_bytes += fetched_bytes;
    }
}

/// What is said when it is too much.
pub fn too_much(blocks: u64) -> String {
    format!(
        "more than {blocks} blocks of headers in the tar, and so little of the image: {PER_BYTE} for each byte that comes, and {FREE} \
         besides, are more than any system has; make the image anew"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_paid_for_with_bytes_over_all_parts_of_an_image() {
        let mut work = Work::default();
        assert_eq!([0, 1000, u64::MAX].map(|bytes| work.left(bytes)), [FREE, FREE + 4000, u64::MAX]);
        work.add(FREE - 10, 2);
        assert_eq!([work.left(0), work.left(1)], [18, 22]);
        // What is free is free once.
        (0..512).for_each(|_| work.add(1000, 10));
        assert_eq!(work.left(10), 0);
    }
}
