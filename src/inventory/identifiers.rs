//! Identifiers of a disk, without placeholders.

use super::Disk;
use crate::device::identifiers::{comparable_serial, comparable_wwn, is_same_serial, is_same_wwn};

impl Disk {
    /// Serial number in its comparable form; `None` if it is missing or a placeholder.
    pub fn comparable_serial(&self) -> Option<String> {
        comparable_serial(&self.serial)
    }

    /// World wide name in its comparable form; `None` if it is missing or a placeholder.
    pub fn comparable_wwn(&self) -> Option<String> {
        comparable_wwn(&self.wwn)
    }

    /// Returns whether the disk has a serial number or WWN that none of these disks has, itself apart.
    pub fn is_identified_among(&self, disks: &[Disk]) -> bool {
        self.has_own_serial(disks) || self.has_own_wwn(disks)
    }

    /// Returns whether the disk has a serial number that none of these disks has, itself apart.
    pub fn has_own_serial(&self, disks: &[Disk]) -> bool {
        is_unique(self, disks, Disk::comparable_serial)
    }

    /// Returns whether the text is the serial number, WWN or `by-path` link of the disk and of none of these other disks. A placeholder
    /// names no disk.
    pub fn is_named_by(&self, text: &str, disks: &[Disk]) -> bool {
        let is_serial = is_same_serial(text, &self.serial) == Some(true) && self.has_own_serial(disks);
        let is_wwn = is_same_wwn(text, &self.wwn) == Some(true) && self.has_own_wwn(disks);
        let with_path = disks.iter().filter(|other| !text.is_empty() && other.by_path == text).count();
        is_serial || is_wwn || (with_path == 1 && self.by_path == text)
    }

    /// Returns whether the disk has a world wide name that none of these disks has, itself apart.
    pub fn has_own_wwn(&self, disks: &[Disk]) -> bool {
        is_unique(self, disks, Disk::comparable_wwn)
    }
}

fn is_unique(disk: &Disk, disks: &[Disk], identifier: fn(&Disk) -> Option<String>) -> bool {
    let own = identifier(disk);
    own.is_some() && !disks.iter().any(|other| other.name != disk.name && identifier(other) == own)
}
