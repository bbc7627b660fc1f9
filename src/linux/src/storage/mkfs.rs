//! Creates filesystems with mkfs, using the UUID and label in the plan. Verifies the UUID, and links the device in
//! /dev/disk/by-uuid.

use super::{block_device, signature_wipe};
use crate::atomic_file::remove_if_present;
use crate::process::{CommandError, ToolCommand};
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use model::layout::FilesystemFormat;
use operations::MakeFilesystem;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::time::Duration;

/// Tools used by this module; all must be in `PATH`.
pub(crate) const TOOLS: &[&str] = &["mkfs.ext3", "mkfs.ext4", "mkfs.vfat", "mkfs.xfs", "mkfs.btrfs", "mkswap"];

/// Time limit for mkfs on a small device.
const SMALL_DEVICE_TIMEOUT: Duration = Duration::from_secs(300);
/// Additional time for each GiB of the device. ext3 does not support lazy initialization, so mkfs.ext3 writes all inode
/// tables, which take 1/64 of the disk.
const DEADLINE_PER_GIB: Duration = Duration::from_secs(1);

/// Offset of the first btrfs superblock.
const BTRFS: usize = 0x10000;

/// Size of the area at the start of a device that contains the superblocks of all formats.
const SUPERBLOCKS_BYTES: usize = BTRFS + 4096;

/// Creates the filesystem and the link to its device in `/dev/disk/by-uuid`. Does nothing for
/// [`FilesystemFormat::None`].
///
/// # Errors
/// Returns an error if the device is in use or unwritable, the tool fails, or the UUID on the device is not the
/// requested one.
pub fn make_filesystem(filesystem: &MakeFilesystem) -> Result<()> {
    let device = &filesystem.device;
    let what = || format!("create {} on {device}", filesystem.format);
    if filesystem.format == FilesystemFormat::None {
        return Ok(());
    }
    // Signatures in areas that mkfs does not write would remain, and blkid rejects a device with two signatures as
    // ambiguous.
    signature_wipe::wipe_signatures(device)?;
    let size =
        File::open(device).and_then(|file| Ok(block_device::read_size_bytes(&file)?)).context(Phase::Storage, what)?;
    let gib = u32::try_from(size >> 30).unwrap_or(u32::MAX);
    let made = run_mkfs(filesystem, SMALL_DEVICE_TIMEOUT + DEADLINE_PER_GIB * gib).context(Phase::Storage, what)?;
    made.context(Phase::Storage, what)?;
    verify_uuid(filesystem)?;
    link_by_uuid(device, &filesystem.uuid)
}

/// Runs mkfs on a device or a file.
///
/// # Errors
/// Returns an error if no tool creates this format. A failure of the tool is in the inner result.
pub(crate) fn run_mkfs(filesystem: &MakeFilesystem, deadline: Duration) -> io::Result<Result<(), CommandError>> {
    let (tool, args) = build_argv(filesystem)?;
    let mkfs = ToolCommand::new(tool).args(args).deadline(deadline);
    let path = filesystem.device.clone();
    let mkfs =
        mkfs.check_before_start(move || signature_wipe::open_exclusive(&path).map(drop).map_err(io::Error::other));
    Ok(mkfs.run().map(drop))
}

/// Verifies the UUID, because create options may override it.
///
/// # Errors
/// Returns an error if the device contains another UUID, or does not contain a filesystem of this format.
pub fn verify_uuid(filesystem: &MakeFilesystem) -> Result<()> {
    let MakeFilesystem { device, format, uuid, .. } = filesystem;
    let found = read_uuid(device, *format).context(Phase::Storage, || format!("create {format} on {device}"))?;
    if found.eq_ignore_ascii_case(uuid) {
        return Ok(());
    }
    let why = format!("{format} on {device} was created with UUID {found} instead of {uuid}");
    Err(Error::new(Phase::Storage, why))
}

/// Returns the tool and its arguments. The create options of the layout come first.
fn build_argv(filesystem: &MakeFilesystem) -> io::Result<(&'static str, Vec<String>)> {
    let uuid = filesystem.uuid.as_str();
    let (tool, label_flag, mut ours) = match filesystem.format {
        FilesystemFormat::Vfat => ("mkfs.vfat", "-n", vec!["-i".to_owned(), uuid.replace('-', "")]),
        FilesystemFormat::Ext3 => {
            ("mkfs.ext3", "-L", vec!["-F".to_owned(), "-q".to_owned(), "-U".to_owned(), uuid.to_owned()])
        }
        FilesystemFormat::Ext4 => {
            ("mkfs.ext4", "-L", vec!["-F".to_owned(), "-q".to_owned(), "-U".to_owned(), uuid.to_owned()])
        }
        FilesystemFormat::Xfs => {
            ("mkfs.xfs", "-L", vec!["-f".to_owned(), "-q".to_owned(), "-m".to_owned(), format!("uuid={uuid}")])
        }
        FilesystemFormat::Btrfs => {
            ("mkfs.btrfs", "-L", vec!["-f".to_owned(), "-q".to_owned(), "-U".to_owned(), uuid.to_owned()])
        }
        FilesystemFormat::Swap => ("mkswap", "-L", vec!["-f".to_owned(), "-U".to_owned(), uuid.to_owned()]),
        other @ (FilesystemFormat::Tmpfs | FilesystemFormat::None) => {
            return Err(io::Error::other(format!("cannot create {other} on a device")));
        }
    };
    if let Some(label) = &filesystem.label {
        ours.extend([label_flag.to_owned(), label.clone()]);
    }
    let mut args = filesystem.createoptions.clone();
    args.append(&mut ours);
    args.push(filesystem.device.to_string());
    Ok((tool, args))
}

/// Reads the UUID from the superblock, and returns it in blkid's format. The superblock is read from the device, and
/// not from a cache.
fn read_uuid(device: &DevicePath, format: FilesystemFormat) -> io::Result<String> {
    let file = File::open(device)?;
    if file.metadata()?.file_type().is_block_device() {
        block_device::flush_buffers(&file)?;
    }
    let mut start = vec![0; SUPERBLOCKS_BYTES];
    file.read_exact_at(&mut start, 0)?;
    parse_uuid(&start, format)
        .ok_or_else(|| io::Error::other(format!("{device} does not contain {format} although mkfs succeeded")))
}

/// Returns the UUID in the superblock of this format. The offsets match libblkid's
/// superblocks/{ext,vfat,swap,xfs,btrfs}.c; swap is supported with pages of 4 KiB.
fn parse_uuid(start: &[u8], format: FilesystemFormat) -> Option<String> {
    let start: &[u8; SUPERBLOCKS_BYTES] = start.try_into().ok()?;
    let uuid = |at: usize| Some(uuid::Uuid::from_slice(start.get(at..at + 16)?).ok()?.to_string());
    match format {
        FilesystemFormat::Ext3 | FilesystemFormat::Ext4 if start[1080..1082] == [0x53, 0xef] => uuid(1128),
        FilesystemFormat::Xfs if &start[..4] == b"XFSB" => uuid(32),
        FilesystemFormat::Btrfs if &start[BTRFS + 0x40..BTRFS + 0x48] == b"_BHRfS_M" => uuid(BTRFS + 0x20),
        FilesystemFormat::Swap if &start[4086..4096] == b"SWAPSPACE2" => uuid(1036),
        FilesystemFormat::Vfat => {
            let serial = |at: usize| {
                let number = u32::from_le_bytes(start[at..at + 4].try_into().ok()?);
                Some(format!("{:04X}-{:04X}", number >> 16, number & 0xffff))
            };
            match (&start[82..87], &start[54..57]) {
                (b"FAT32", _) => serial(67),
                (_, b"FAT") => serial(39),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Creates the link that udev would create. Without this link, grub-mkconfig writes `root=/dev/…` instead of
/// `root=UUID=…`.
fn link_by_uuid(device: &DevicePath, uuid: &str) -> Result<()> {
    let link = Path::new("/dev/disk/by-uuid").join(uuid);
    let what = || format!("link {} to {device}", link.display());
    let sysfs = block_device::sysfs_path(device)?;
    let name = sysfs.file_name().unwrap_or_default();
    fs::create_dir_all("/dev/disk/by-uuid").context(Phase::Storage, what)?;
    remove_if_present(&link).context(Phase::Storage, what)?;
    std::os::unix::fs::symlink(Path::new("../..").join(name), &link).context(Phase::Storage, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::test_loop_device::TestLoopDevice;

    const UUID: &str = "0d5c1a2e-7f6b-4c3d-9e8f-a1b2c3d4e5f6";

    fn filesystem(device: &str, format: FilesystemFormat, uuid: &str, createoptions: &[&str]) -> MakeFilesystem {
        MakeFilesystem {
            device: device.into(),
            format,
            label: Some("data".to_owned()),
            uuid: uuid.to_owned(),
            createoptions: createoptions.iter().map(|option| (*option).to_owned()).collect(),
        }
    }

    #[test]
    fn mkfs_command_lines_contain_uuid_label_and_options() {
        let cases = [
            (FilesystemFormat::Vfat, "1A2B-3C4D", &["-F", "32"][..], "mkfs.vfat -F 32 -i 1A2B3C4D -n data /dev/x1"),
            (FilesystemFormat::Ext3, UUID, &[], "mkfs.ext3 -F -q -U UUID -L data /dev/x1"),
            (FilesystemFormat::Ext4, UUID, &["-m", "0"], "mkfs.ext4 -m 0 -F -q -U UUID -L data /dev/x1"),
            (
                FilesystemFormat::Xfs,
                UUID,
                &["-i", "size=512"],
                "mkfs.xfs -i size=512 -f -q -m uuid=UUID -L data /dev/x1",
            ),
            (FilesystemFormat::Btrfs, UUID, &["-M"], "mkfs.btrfs -M -f -q -U UUID -L data /dev/x1"),
            (FilesystemFormat::Swap, UUID, &[], "mkswap -f -U UUID -L data /dev/x1"),
        ];
        for (format, uuid, createoptions, expected) in cases {
            let (tool, args) = build_argv(&filesystem("/dev/x1", format, uuid, createoptions)).unwrap();
            assert_eq!(format!("{tool} {}", args.join(" ")), expected.replace("UUID", UUID));
            assert!(TOOLS.contains(&tool));
        }
        let (_, args) =
            build_argv(&MakeFilesystem { label: None, ..filesystem("/dev/x1", FilesystemFormat::Swap, UUID, &[]) })
                .unwrap();
        assert!(!args.contains(&"-L".to_owned()));
        assert!(build_argv(&filesystem("/dev/x1", FilesystemFormat::Tmpfs, UUID, &[])).is_err());
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_each_format_has_its_uuid_and_no_second_signature() {
        let cases: [(FilesystemFormat, &str, u32, &[&str]); 11] = [
            (FilesystemFormat::Ext4, UUID, 512, &[]),
            (FilesystemFormat::Vfat, "1A2B-3C4D", 512, &["-F", "32"]),
            (FilesystemFormat::Swap, UUID, 512, &[]),
            (FilesystemFormat::Vfat, "00FF-0001", 512, &[]),
            (FilesystemFormat::Ext3, UUID, 512, &["-m", "0"]),
            (FilesystemFormat::Xfs, UUID, 512, &[]),
            // The UUID is unique, because mkfs.btrfs refuses a UUID that libblkid has seen on any disk, even if the
            // UUID is now only in libblkid's cache.
            (FilesystemFormat::Btrfs, "c3f0a7d2-51b4-4e0e-9d6a-7b8e0f1a2c3d", 512, &[]),
            (FilesystemFormat::Ext4, UUID, 512, &["-b", "1024"]),
            (FilesystemFormat::Vfat, "1A2B-3C4D", 4096, &[]),
            (FilesystemFormat::Xfs, UUID, 4096, &["-m", "reflink=0"]),
            (FilesystemFormat::Btrfs, "9f0f0f6e-5f0a-4c53-8f2c-3d1f2a7b9c10", 4096, &["--metadata", "single"]),
        ];
        // mkfs.xfs refuses smaller devices.
        let disks = [(512, TestLoopDevice::new(320 << 20, 512)), (4096, TestLoopDevice::new(320 << 20, 4096))];
        for (format, uuid, sector_bytes, options) in cases {
            let device = disks.iter().find(|(bytes, _)| *bytes == sector_bytes).unwrap().1.path();
            make_filesystem(&filesystem(device.as_str(), format, uuid, options)).unwrap();
            let found = ToolCommand::new("blkid").args(["-p", "-o", "export", device.as_str()]).run().unwrap().stdout;
            for expected in [format!("TYPE={format}"), format!("UUID={uuid}"), "LABEL=data".to_owned()] {
                assert!(found.lines().any(|line| line == expected), "{format}: {found}");
            }
            let link = Path::new("/dev/disk/by-uuid").join(uuid);
            assert_eq!(fs::canonicalize(&link).unwrap(), Path::new(device));
            fs::remove_file(link).unwrap();
        }
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_several_filesystems_are_created_concurrently() {
        let formats = [
            FilesystemFormat::Btrfs,
            FilesystemFormat::Xfs,
            FilesystemFormat::Ext4,
            FilesystemFormat::Btrfs,
            FilesystemFormat::Xfs,
            FilesystemFormat::Swap,
        ];
        let disks: Vec<_> = formats.iter().map(|format| (TestLoopDevice::new(320 << 20, 512), *format)).collect();
        std::thread::scope(|scope| {
            for (disk, format) in &disks {
                let uuid = uuid::Uuid::new_v4().to_string();
                scope.spawn(move || {
                    make_filesystem(&filesystem(disk.path().as_str(), *format, &uuid, &[])).unwrap();
                    fs::remove_file(Path::new("/dev/disk/by-uuid").join(uuid)).unwrap();
                });
            }
        });
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_error_contains_the_message_of_mkfs() {
        let disk = TestLoopDevice::new(16 << 20, 512);
        let error = make_filesystem(&filesystem(
            disk.path().as_str(),
            FilesystemFormat::Ext4,
            UUID,
            &["-O", "no_such_feature"],
        ))
        .unwrap_err()
        .to_string();
        assert!(
            error.starts_with(&format!("create ext4 on {}: `mkfs.ext4 -O no_such_feature", disk.path())),
            "{error}"
        );
        assert!(error.contains("Invalid filesystem option set: no_such_feature"), "{error}");
        let none = MakeFilesystem {
            format: FilesystemFormat::None,
            ..filesystem("/dev/no-such-disk", FilesystemFormat::None, "", &[])
        };
        make_filesystem(&none).unwrap();
    }
}
