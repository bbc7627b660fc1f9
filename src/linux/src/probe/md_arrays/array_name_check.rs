//! Names of arrays, read from the superblocks of members (metadata 1.x, `struct mdp_superblock_1` in
//! linux/raid/md_p.h).
//!
//! `mdadm --examine` prints names unescaped. A name with a newline would inject lines, such as another role of the
//! member.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: [u8; 8] = [0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0];
const NAME_OFFSET: usize = 32;
const NAME_BYTES: usize = 32;
const SECTOR_BYTES: u64 = 512;

/// Checks that no superblock on the device contains an array name with control characters. Unreadable devices are
/// accepted here, because mdadm reports them.
///
/// # Errors
/// Returns the reason for the rejection, and the remedy for the operator.
pub(crate) fn require_plain_names(device: &Path) -> Result<(), String> {
    let Ok(mut file) = File::open(device) else { return Ok(()) };
    let Ok(size_bytes) = file.seek(SeekFrom::End(0)) else { return Ok(()) };
    for offset in superblock_offsets(size_bytes) {
        let name = read_name(&file, offset).unwrap_or_default();
        if name.iter().any(u8::is_ascii_control) {
            return Err(format!(
                "the array name in the superblock, \"{}\", contains control characters, which make mdadm's output \
                 ambiguous; remove the superblock with `mdadm --zero-superblock {}`",
                name.escape_ascii(),
                device.display()
            ));
        }
    }
    Ok(())
}

/// Returns the offsets of superblocks of the versions 1.1, 1.2 and 1.0.
fn superblock_offsets(size_bytes: u64) -> [u64; 3] {
    let last = (size_bytes / SECTOR_BYTES).saturating_sub(16) & !7;
    [0, 4096, last * SECTOR_BYTES]
}

/// Returns the array name in a superblock, without NUL padding; empty if there is no superblock.
fn read_name(file: &File, offset: u64) -> io::Result<Vec<u8>> {
    let mut bytes = [0; NAME_OFFSET + NAME_BYTES];
    file.read_exact_at(&mut bytes, offset)?;
    if !bytes.starts_with(&MAGIC) {
        return Ok(Vec::new());
    }
    Ok(bytes[NAME_OFFSET..].split(|byte| *byte == 0).next().unwrap_or_default().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn check(offset: u64, name: &[u8]) -> Result<(), String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(SIZE).unwrap();
        file.as_file().write_all_at(&MAGIC, offset).unwrap();
        file.as_file().write_all_at(name, offset + NAME_OFFSET as u64).unwrap();
        require_plain_names(file.path())
    }

    #[test]
    fn refuses_control_characters_in_array_names() {
        for offset in [0, 4096, SIZE - 8192] {
            for name in [&b"h:d\n  Device Role : spare"[..], b"a\rb", b"\x1b[2J", b"0123456789012345678901234567890\n"]
            {
                let error = check(offset, name).unwrap_err();
                assert!(error.contains("contains control characters") && !error.contains('\n'), "{error}");
            }
        }
    }

    #[test]
    fn accepts_ordinary_array_names_and_other_content() {
        for name in
            [&b""[..], b"any:root", "Größe".as_bytes(), b"plain\0\nbehind the end", b"01234567890123456789012345678901"]
        {
            check(4096, name).unwrap();
        }
        check(512, b"\n").unwrap();
        require_plain_names(Path::new("/no/such/device")).unwrap();
        require_plain_names(tempfile::NamedTempFile::new().unwrap().path()).unwrap();
    }
}
