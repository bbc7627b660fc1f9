//! Set of names, with bounded memory: the names created by one layer, or the names created by one image in a root that
//! also contains another owner's files.

use super::remove_tree::DirectoryEntry;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;

/// Maximum number of names, about 1.8 million. The number of slots of the hash table is a power of two, and seven
/// eighths of the slots can be used. A table with this number of names occupies 19 MiB (28 MiB while it grows to this
/// size). With one more name, the table would occupy 38 MiB (57 MiB while it grows).
const MOST: usize = (2 << 20) / 8 * 7;

/// Hashes of directory (device and inode number) and name. Only hashes of eight bytes are stored, since there may be a
/// million names. The key of the hash function is random, so that an image cannot be crafted to cause collisions.
#[derive(Default)]
pub(crate) struct NameSet {
    hashes: HashSet<u64>,
    key: RandomState,
}

impl NameSet {
    /// Adds a name.
    ///
    /// # Errors
    /// Returns an error if the set already contains the maximum number of names.
    pub(crate) fn insert(&mut self, entry: DirectoryEntry) -> io::Result<()> {
        self.insert_hash(self.key.hash_one(entry))
    }

    pub(crate) fn contains(&self, entry: DirectoryEntry) -> bool {
        self.hashes.contains(&self.key.hash_one(entry))
    }

    fn insert_hash(&mut self, hash: u64) -> io::Result<()> {
        if self.hashes.len() < MOST {
            self.hashes.insert(hash);
            return Ok(());
        }
        // An existing hash must not be inserted again: the table would grow first.
        if self.hashes.contains(&hash) {
            return Ok(());
        }
        let text = format!("one layer contains more than {MOST} names, which would require more than 32 MiB of memory");
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("{text}; split it into several layers")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_layer_brings_takes_so_much_memory_and_no_more() {
        let mut names = NameSet::default();
        for hash in 0..MOST as u64 {
            names.insert_hash(hash).unwrap();
        }
        // Inserting an existing hash takes no additional memory.
        names.insert_hash(7).unwrap();
        let error = names.insert_hash(u64::MAX).unwrap_err().to_string();
        let text = "one layer contains more than 1835008 names, which would require more than 32 MiB of memory; split it into several layers";
        assert_eq!((error.as_str(), names.hashes.len()), (text, MOST));
        // Each slot takes eight bytes for the hash, and one control byte of the table.
        assert!(names.hashes.capacity() * 8 / 7 * 9 <= 20 << 20, "{}", names.hashes.capacity());
    }
}
