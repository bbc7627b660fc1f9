//! Names that were brought, in bounded memory: of a layer, or of a whole burn among somebody's files.

use super::sweep::Entry;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;

/// About 1.8 million names are remembered. The table is a power of two and at most seven eighths full: with these it takes
/// 19 MiB, and 28 while it grows to that. The next name would make it 38 MiB, and 57.
const MOST: usize = (2 << 20) / 8 * 7;

/// Of directory (device and inode number) and name; eight bytes each, as there may be a million. The key is random: nobody
/// can make two that are the same.
#[derive(Default)]
pub struct Names {
    hashes: HashSet<u64>,
    key: RandomState,
}

impl Names {
    /// # Errors
    /// These are more than can be remembered.
    pub fn insert(&mut self, entry: Entry) -> io::Result<()> {
        self.remember(self.key.hash_one(entry))
    }

    pub fn contains(&self, entry: Entry) -> bool {
        self.hashes.contains(&self.key.hash_one(entry))
    }

    fn remember(&mut self, hash: u64) -> io::Result<()> {
        if self.hashes.len() < MOST {
            self.hashes.insert(hash);
            return Ok(());
        }
        // To insert it again would make room for one more first.
        if self.hashes.contains(&hash) {
            return Ok(());
        }
        let text = format!("to remember more than {MOST} names of one layer takes more than 32 MiB");
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("{text}: cut it into several layers")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_layer_brings_takes_so_much_memory_and_no_more() {
        let mut names = Names::default();
        for hash in 0..MOST as u64 {
            names.remember(hash).unwrap();
        }
        // The same one again takes no more.
        names.remember(7).unwrap();
        let error = names.remember(u64::MAX).unwrap_err().to_string();
        let text =
            "to remember more than 1835008 names of one layer takes more than 32 MiB: cut it into several layers";
        assert_eq!((error.as_str(), names.hashes.len()), (text, MOST));
        // Eight bytes, and one of the table's own.
        assert!(names.hashes.capacity() * 8 / 7 * 9 <= 20 << 20, "{}", names.hashes.capacity());
    }
}
