//! Installation of GRUB in the gap between a GPT and the first partition. GRUB's own tool uses this gap only on disks
//! with an MBR. On a disk with a GPT, the tool requires a BIOS boot partition if the menu is on an array or in a volume
//! group, and fails if the disk has no such partition. Layouts do not have BIOS boot partitions.

use super::super::loader_context::LoaderContext;
use crate::NewRoot;
use common::bounded_read::read_prefix;
use common::error::{Context, Phase, Result};
use linux::storage::boot_loader_area::BiosBootLoader;
use model::device_name::DevicePath;
use operations::ByteRange;
use std::io;

const SECTOR: usize = 512;

/// Size of the boot code at the beginning of a disk's first sector. The disk signature and the partition entries follow
/// the boot code (UEFI specification 5.2.1).
const CODE_BYTES: usize = 440;

/// Offset in boot.img at which the number of core.img's first sector is stored (GRUB 2.12,
/// include/grub/i386/pc/boot.h).
const CORE_SECTOR: usize = 0x5c;
/// Offset in boot.img of a jump that skips the check of the BIOS drive number.
const DRIVE_CHECK: usize = 0x66;
const NOP_INSTRUCTION: u8 = 0x90;

/// Offset in core.img at which the sector number of its second sector is stored. This number is in the block list entry
/// of twelve bytes at the end of the first sector.
const REST_SECTOR: usize = SECTOR - 12;

/// Maximum size of boot.img or core.img in bytes. A larger core.img does not fit before the first partition of any
/// layout.
const MAXIMUM_IMAGE_BYTES: u64 = 1 << 20;

/// Writes boot.img and core.img of the target to a disk.
///
/// # Errors
/// Returns an error if the images are invalid, do not fit, or cannot be written.
pub(crate) fn write_to_gap(
    start: &LoaderContext,
    directory: &str,
    boot: &str,
    disk: &DevicePath,
    gap: ByteRange,
) -> Result<()> {
    let LoaderContext { root, run, .. } = start;
    let what = || format!("install GRUB on {disk}");
    let core = format!("{directory}/core.img");
    let images = read_image(root, boot)
        .and_then(|boot| relocate_images(boot, read_image(root, &core)?, gap))
        .context(Phase::Target, what)?;
    run.write_bios_boot_loader(disk, BiosBootLoader { boot_code: &images.boot, core: &images.core, gap })
}

fn read_image(root: &NewRoot, path: &str) -> io::Result<Vec<u8>> {
    read_prefix(root.open_file(path)?, MAXIMUM_IMAGE_BYTES + 1)
}

#[derive(Debug, PartialEq, Eq)]
struct GrubImages {
    boot: [u8; CODE_BYTES],
    /// core.img, padded to whole sectors.
    core: Vec<u8>,
}

/// Writes the sector numbers of core.img into the images: boot.img contains the number of core.img's first sector, and
/// that sector contains the number of the second sector.
fn relocate_images(mut boot: Vec<u8>, mut core: Vec<u8>, gap: ByteRange) -> io::Result<GrubImages> {
    if boot.len() != SECTOR || boot[SECTOR - 2..] != [0x55, 0xaa] {
        return Err(io::Error::other("the image's boot.img is invalid"));
    }
    if core.len() <= SECTOR {
        return Err(io::Error::other("core.img is invalid"));
    }
    core.resize(core.len().next_multiple_of(SECTOR), 0);
    if core.len() as u64 > gap.length {
        let (wanted, free) = (core.len(), gap.length);
        return Err(io::Error::other(format!(
            "core.img is {wanted} bytes, but only {free} are available before the first partition"
        )));
    }
    let sector = gap.start / SECTOR as u64;
    boot[CORE_SECTOR..][..8].copy_from_slice(&sector.to_le_bytes());
    boot[DRIVE_CHECK..][..2].fill(NOP_INSTRUCTION);
    core[REST_SECTOR..][..8].copy_from_slice(&(sector + 1).to_le_bytes());
    let mut code = [0; CODE_BYTES];
    code.copy_from_slice(&boot[..CODE_BYTES]);
    Ok(GrubImages { boot: code, core })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: ByteRange = ByteRange { start: 34 * 512, length: 3 * 512 };

    fn boot() -> Vec<u8> {
        [&[7; 510][..], &[0x55, 0xaa]].concat()
    }

    #[test]
    fn each_grub_image_contains_the_sector_of_the_next() {
        let images = relocate_images(boot(), vec![8; 1025], GAP).unwrap();
        assert_eq!((images.boot.len(), images.core.len()), (440, 1536));
        assert_eq!(images.boot[0x5b..0x69], [7, 34, 0, 0, 0, 0, 0, 0, 0, 7, 7, 0x90, 0x90, 7]);
        assert_eq!(images.core[499..510], [8, 35, 0, 0, 0, 0, 0, 0, 0, 8, 8]);
        assert_eq!(images.core[1024..1026], [8, 0]);
    }

    #[test]
    fn refuses_invalid_or_oversized_grub_images() {
        for (boot, core, says) in [
            (vec![7; 512], vec![8; 1024], "the image's boot.img is invalid"),
            (boot()[..511].to_vec(), vec![8; 1024], "the image's boot.img is invalid"),
            (boot(), vec![8; 512], "core.img is invalid"),
            (boot(), vec![8; 1537], "core.img is 2048 bytes, but only 1536 are available before the first partition"),
        ] {
            let error = relocate_images(boot, core, GAP).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
