//! Disks with partition tables, for tests.

#![allow(clippy::unwrap_used)]

use super::*;
use std::fs;
use tempfile::NamedTempFile;

/// Creates a disk filled with 0xaa. The disk starts with an image that has a GPT of 128 partitions of one sector each.
/// If `backup_lba` is given, the primary header contains this LBA of the backup header instead of the correct one.
pub(crate) fn crowded(sector: u64, image_sectors: u64, more_sectors: u64, backup_lba: Option<u64>) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), vec![0xaa; ((image_sectors + more_sectors) * sector) as usize]).unwrap();
    let mut gpt = Gpt::new(sector, image_sectors, Uuid::from_bytes([0xf7; 16])).unwrap();
    for (number, lba) in (1..=ENTRIES).zip(gpt.first_usable()..) {
        let guid = Uuid::from_bytes([lba as u8; 16]);
        gpt.set_partition(&GptEntry { number, kind: guid, guid, sectors: lba..lba + 1 }, "");
    }
    let disk = File::options().write(true).open(file.path()).unwrap();
    gpt.write(&disk).unwrap();
    if let Some(lba) = backup_lba {
        gpt.write_header_fields(&[(BACKUP_LBA, lba)]);
        gpt.update_checksums();
        disk.write_all_at(&gpt.header, sector).unwrap();
    }
    file
}

/// Returns the bytes of the image with which a disk of [`crowded`] starts.
pub fn crowded_image(sector: u64, sectors: u64) -> Vec<u8> {
    fs::read(crowded(sector, sectors, 0, None).path()).unwrap()
}
