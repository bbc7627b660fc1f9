//! Identity of ATA disks: IDENTIFY DEVICE data, which the kernel provides as vital product data.

use super::sysfs::to_printable;
use std::path::Path;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct AtaIdentity {
    pub model: String,
    pub serial: String,
}

/// Returns the identity of the disk with this sysfs directory; `None` if the disk is not an ATA disk, or if its
/// controller does not provide identity data.
pub(super) fn read_identity(disk: &Path) -> Option<AtaIdentity> {
    parse_identity(&std::fs::read(disk.join("device/vpd_pg89")).ok()?)
}

/// Parses VPD page 0x89 (SAT-4 12.4.2): the 512 bytes of IDENTIFY data start at byte 60.
fn parse_identity(page: &[u8]) -> Option<AtaIdentity> {
    let answer = page.get(60..572).filter(|_| page.get(1) == Some(&0x89))?;
    // Words 10 to 19 and 27 to 46 (ACS-4 7.13), each with two characters in swapped order.
    let text = |range| answer.get(range).map(|bytes: &[u8]| to_printable(&swap_word_bytes(bytes)));
    let identity = AtaIdentity { serial: text(20..40)?, model: text(54..94)? };
    Some(identity).filter(|identity| !identity.model.is_empty())
}

fn swap_word_bytes(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(2).flat_map(|pair| pair.iter().rev()).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_and_serial_number_are_parsed() {
        let mut page = vec![0; 572];
        page[1] = 0x89;
        page[60 + 20..60 + 40].copy_from_slice(&swap_word_bytes(b"    S3Z9NB0K123456  "));
        page[60 + 54..60 + 94].copy_from_slice(&swap_word_bytes(b"SAMSUNG MZ7LH480HAHQ-00005              "));
        let expected = AtaIdentity { model: "SAMSUNG MZ7LH480HAHQ-00005".into(), serial: "S3Z9NB0K123456".into() };
        assert_eq!(parse_identity(&page), Some(expected));
        for bad in [&page[..571], &[0; 572], &[], &[0x89]] {
            assert_eq!(parse_identity(bad), None);
        }
        page[60 + 54..60 + 94].fill(b' ');
        assert_eq!(parse_identity(&page), None);
    }
}
