//! Tests that the ramdisk's kernel can mount filesystems with any feature that the ramdisk's mkfs can enable. If the
//! kernel did not support such a feature, an installation would fail after the old system was erased.

use super::mount::MountStack;
use super::signature_wipe;
use super::vm_test_disks::TestDisks;
use crate::process::ToolCommand;
use model::device_name::DevicePath;
use model::layout::FilesystemFormat;
use operations::MountFilesystem;
use std::fs;
use std::path::Path;

const POINT: &str = "/run/drophammer/features";

/// Options of mkfs.ext4. Each entry enables or disables one feature, together with the features that this feature
/// requires (ext4(5); mke2fs 1.47).
const EXT4: [&str; 36] = [
    "",
    "-O ^64bit",
    "-O bigalloc",
    "-O bigalloc -C 65536",
    "-O casefold",
    "-O casefold -E encoding=utf8",
    "-O ^dir_index",
    "-O ^dir_nlink",
    "-O ea_inode",
    "-O encrypt",
    "-O ^ext_attr",
    "-O ^extent,^64bit",
    "-O ^extra_isize",
    "-O fast_commit",
    "-O ^filetype",
    "-O ^flex_bg",
    "-O ^has_journal",
    "-O ^huge_file",
    "-O inline_data",
    "-O large_dir",
    "-O ^large_file",
    "-O meta_bg,^resize_inode",
    "-O ^metadata_csum",
    "-O ^metadata_csum,uninit_bg",
    "-O metadata_csum_seed",
    "-O mmp",
    "-O orphan_file",
    "-O quota",
    "-O quota,project",
    "-O quota -E quotatype=usrquota:grpquota:prjquota",
    "-O project,quota -I 256",
    "-O sparse_super2,^resize_inode",
    "-O ^sparse_super,^resize_inode",
    "-O stable_inodes",
    "-O verity -b 4096",
    "-b 1024 -I 128",
];

/// Options of mkfs.xfs, each with its requirements (mkfs.xfs(8) 6.1).
const XFS: [&str; 18] = [
    "",
    "-m crc=0",
    "-m crc=0 -n ftype=0",
    "-m finobt=0",
    "-m reflink=0",
    "-m rmapbt=1",
    "-m bigtime=0",
    "-m inobtcount=0,bigtime=0",
    "-i sparse=0",
    "-i nrext64=1",
    "-i size=2048",
    "-m crc=0 -i projid32bit=0",
    "-n version=ci",
    "-n size=64k",
    "-b size=1024",
    "-l su=32k",
    "-d agcount=2,su=64k,sw=2 -l size=64m",
    "-l size=64m",
];

/// Options of mkfs.btrfs, each with its requirements (mkfs.btrfs(8) 6.2).
const BTRFS: [&str; 16] = [
    "",
    "--csum crc32c",
    "--csum xxhash",
    "--csum sha256",
    "--csum blake2",
    "-M",
    "-O mixed-bg -n 4096",
    "-O ^extref",
    "-O raid56",
    "-O ^skinny-metadata",
    "-O ^no-holes",
    "-R quota",
    "-R ^free-space-tree",
    "-n 4096",
    "-n 65536",
    "-d dup -m single",
];

/// Options of mkfs.vfat (mkfs.fat(8)).
const VFAT: [&str; 7] = ["", "-F 16", "-F 32", "-F 32 -s 8", "-S 4096", "-a", "-f 1"];

fn made_and_mounted(
    device: &DevicePath,
    format: FilesystemFormat,
    options: &str,
    mount: &[&str],
) -> Result<(), String> {
    signature_wipe::wipe_ends(device).map_err(|error| error.to_string())?;
    let (tool, force) = match format {
        FilesystemFormat::Vfat => ("mkfs.vfat", None),
        FilesystemFormat::Xfs => ("mkfs.xfs", Some("-f")),
        FilesystemFormat::Btrfs => ("mkfs.btrfs", Some("-f")),
        _ => ("mkfs.ext4", Some("-F")),
    };
    let make = ToolCommand::new(tool).args(force).args(options.split_whitespace()).arg(device);
    make.run().map_err(|error| error.to_string())?;
    let options: Vec<String> = mount.iter().map(|option| (*option).to_owned()).collect();
    let mount = MountFilesystem { device: device.to_owned(), path: "/".to_owned(), format, options, others: vec![] };
    let mut mounts = MountStack::new(POINT);
    mounts.mount_filesystem(&mount).map_err(|error| error.to_string())?;
    fs::write(Path::new(POINT).join("file"), "content").map_err(|error| error.to_string())?;
    mounts.unmount_all().map_err(|error| error.to_string())
}

#[test]
#[ignore = "needs the ramdisk's tools and kernel: scripts/test vm runs it in a machine"]
fn vm_every_filesystem_created_in_the_ramdisk_can_be_mounted() {
    let disks = TestDisks::take("vda");
    let device = &disks.partition(&[400]).concat()[0];
    let cases = [
        (FilesystemFormat::Ext4, &EXT4[..]),
        (FilesystemFormat::Xfs, &XFS),
        (FilesystemFormat::Btrfs, &BTRFS),
        (FilesystemFormat::Vfat, &VFAT),
    ];
    let cases = cases.iter().flat_map(|(format, all)| all.iter().map(move |options| (*format, *options, &[][..])));
    // Mount options that an fstab may additionally contain.
    let more: [(FilesystemFormat, &str, &[&str]); 5] = [
        (FilesystemFormat::Ext4, "", &["usrjquota=aquota.user", "jqfmt=vfsv1"]),
        (FilesystemFormat::Ext4, "-O quota", &["usrquota", "grpquota"]),
        (FilesystemFormat::Ext4, "-O encrypt", &["discard", "journal_checksum"]),
        (FilesystemFormat::Xfs, "", &["uquota", "gquota", "pquota"]),
        (FilesystemFormat::Btrfs, "", &["compress=zstd", "autodefrag"]),
    ];
    let failures: Vec<String> = cases
        .chain(more)
        .filter_map(|(format, options, mount)| {
            let why = made_and_mounted(device, format, options, mount).err()?;
            Some(format!("{format} {options} {}: {why}", mount.join(",")))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
