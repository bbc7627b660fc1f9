//! Maximum sizes of filesystems. On a device that exceeds the maximum, the tools fail or leave the rest of the device
//! unused.

use super::{FilesystemFormat, FilesystemSpec};

/// Maximum number of blocks, sectors or pages, which the formats store in 32 bits.
const MAX_COUNT: u64 = u32::MAX as u64;
/// Size in bytes of a block in ext filesystems of more than 512 MiB (mke2fs.conf(5)). It is also the size of a memory
/// page.
const BLOCK_BYTES: u64 = 4096;

/// Returns the maximum size of the filesystem in bytes, and the reason for this maximum. Returns `None` if no device
/// exceeds the maximum.
pub fn max_filesystem_bytes(filesystem: &FilesystemSpec, sector_bytes: u32) -> Option<(u64, &'static str)> {
    let option = |short: char| filesystem.find_option_value(short);
    let number = |short: char| option(short).and_then(|text| text.parse::<u64>().ok());
    let has_32_bits = match filesystem.format {
        FilesystemFormat::Ext3 => option('O').is_none_or(|features| !features.split(',').any(|name| name == "64bit")),
        FilesystemFormat::Ext4 => option('O').is_some_and(|features| features.split(',').any(|name| name == "^64bit")),
        _ => false,
    };
    match filesystem.format {
        FilesystemFormat::Ext3 | FilesystemFormat::Ext4 => {
            let bytes = MAX_COUNT.saturating_mul(number('b').unwrap_or(BLOCK_BYTES));
            has_32_bits.then_some((bytes, "the block numbers of this filesystem have 32 bits; use ext4 or xfs"))
        }
        FilesystemFormat::Vfat => {
            let sector = number('S').unwrap_or(u64::from(sector_bytes));
            Some((MAX_COUNT.saturating_mul(sector), "mkfs.vfat leaves the space beyond this maximum unused"))
        }
        FilesystemFormat::Swap => Some((MAX_COUNT * BLOCK_BYTES, "mkswap leaves the space beyond this maximum unused")),
        FilesystemFormat::Xfs | FilesystemFormat::Btrfs | FilesystemFormat::Tmpfs | FilesystemFormat::None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maximum_filesystem_size_depends_on_format_options_and_sector() {
        const TIB: u64 = 1 << 40;
        for (format, options, sector_bytes, expected) in [
            (FilesystemFormat::Ext3, &[][..], 512, Some(16 * TIB - 4096)),
            (FilesystemFormat::Ext3, &["-b", "1024"], 512, Some(4 * TIB - 1024)),
            (FilesystemFormat::Ext3, &["-b4096", "-m", "0"], 4096, Some(16 * TIB - 4096)),
            (FilesystemFormat::Ext3, &["-O", "64bit"], 512, None),
            (FilesystemFormat::Ext4, &[], 512, None),
            (FilesystemFormat::Ext4, &["-O", "^has_journal,^64bit"], 512, Some(16 * TIB - 4096)),
            (FilesystemFormat::Ext4, &["-O", "^metadata_csum"], 512, None),
            (FilesystemFormat::Vfat, &["-F", "32"], 512, Some(2 * TIB - 512)),
            (FilesystemFormat::Vfat, &[], 4096, Some(16 * TIB - 4096)),
            (FilesystemFormat::Vfat, &["-S", "4096"], 512, Some(16 * TIB - 4096)),
            (FilesystemFormat::Swap, &[], 512, Some(16 * TIB - 4096)),
            (FilesystemFormat::Xfs, &[], 512, None),
            (FilesystemFormat::Btrfs, &[], 512, None),
        ] {
            let filesystem = FilesystemSpec {
                path: None,
                device: "/dev/sda1".into(),
                format,
                label: None,
                mountoptions: Vec::new(),
                createoptions: options.iter().map(|option| (*option).to_owned()).collect(),
                reinstall: Default::default(),
                grow: false,
                encrypted: None,
                preserve: false,
            };
            let most = max_filesystem_bytes(&filesystem, sector_bytes).map(|(bytes, _)| bytes);
            assert_eq!(most, expected, "{format} {options:?} {sector_bytes}");
        }
    }
}
