//! Set of file and directory names, with bounded memory. It contains the names created by one layer or, if the root
//! also contains files that do not come from the image, all names created by the image.

use super::tree_removal::DirectoryEntry;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;

/// Maximum number of entries, about 1.8 million. The number of slots of the hash table is a power of two, and seven
/// eighths of the slots can be used. A table with this number of entries occupies 19 MiB (28 MiB while it grows to
/// this size). With one more entry, the table would occupy 38 MiB (57 MiB while it grows).
const MAXIMUM_NAMES: usize = (2 << 20) / 8 * 7;

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
        if self.hashes.len() < MAXIMUM_NAMES {
            self.hashes.insert(hash);
            return Ok(());
        }
        // If a full table already contains the hash, `insert` is not called, because `insert` would grow the table
        // before it detects the duplicate.
        if self.hashes.contains(&hash) {
            return Ok(());
        }
        let text = format!(
            "one layer creates more than {MAXIMUM_NAMES} files and directories, which would require more than 32 MiB of memory"
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("{text}; split it into several layers")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_layer_are_limited_in_memory() {
        let mut names = NameSet::default();
        for hash in 0..MAXIMUM_NAMES as u64 {
            names.insert_hash(hash).unwrap();
        }
        // Inserting an existing hash takes no additional memory.
        names.insert_hash(7).unwrap();
        let error = names.insert_hash(u64::MAX).unwrap_err().to_string();
        let text = "one layer creates more than 1835008 files and directories, which would require more than 32 MiB of memory; split it into several layers";
        assert_eq!((error.as_str(), names.hashes.len()), (text, MAXIMUM_NAMES));
        // Each slot takes eight bytes for the hash, and one control byte of the table.
        assert!(names.hashes.capacity() * 8 / 7 * 9 <= 20 << 20, "{}", names.hashes.capacity());
    }
}
