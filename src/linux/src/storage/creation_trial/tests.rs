//! Trials with the real tools and kernel.

use super::*;
use operations::MountingKernel;
use std::path::Path;
use std::time::Instant;

const MIB: u64 = 1 << 20;

fn trial(format: FilesystemFormat, options: &str, mount: Option<&str>) -> TryFilesystem {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    // The kernel refuses to mount two btrfs with the same UUID, and tests run concurrently.
    let uuid = if format == FilesystemFormat::Vfat { "1A2B-3C4D".to_owned() } else { uuid::Uuid::new_v4().to_string() };
    let make = MakeFilesystem {
        device: "/dev/sdx2".into(),
        format,
        label: Some("data".to_owned()),
        uuid,
        createoptions: words(options),
    };
    TryFilesystem {
        make,
        size_bytes: 20 << 30,
        or_size_bytes: vec![],
        sector_bytes: 512,
        mount: mount.map(words),
        mounted_by: None,
    }
}

/// Returns the mounts and backing files of loop devices that trials of this process use.
fn used_resources() -> Vec<String> {
    let ours = format!("/run/drophammer/scratch-{}-", std::process::id());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts = mounts.split_whitespace().map(str::to_owned);
    let loops = fs::read_dir("/sys/block").unwrap().flatten();
    let backing = loops.filter_map(|entry| fs::read_to_string(entry.path().join("loop/backing_file")).ok());
    mounts.chain(backing).filter(|place| place.starts_with(&ours)).collect()
}

/// Waits until all current mounts and backing files are gone. Mounts and files of concurrent tests disappear; leaked
/// ones would remain.
fn assert_nothing_left() {
    let (mut left, began) = (used_resources(), Instant::now());
    while !left.is_empty() {
        assert!(began.elapsed() < Duration::from_secs(60), "{left:?}");
        std::thread::sleep(Duration::from_millis(50));
        let now = used_resources();
        left.retain(|place| now.contains(place));
    }
}

/// A single test contains all cases, so that it can check at its end that nothing remains.
#[test]
#[ignore = "needs root and loop devices"]
fn root_options_that_tool_or_kernel_refuses_fail_in_memory() {
    use FilesystemFormat::{Btrfs, Ext3, Ext4, Swap, Tmpfs, Vfat, Xfs};
    for (format, options, mount) in [
        (Ext4, "-O ^metadata_csum -m 0", Some("noatime data=ordered")),
        (Ext3, "-j -i 65536", None),
        (Vfat, "-F 32", None),
        (Swap, "-p 4096", None),
        (Tmpfs, "", Some("size=50% mode=1777 nosuid")),
    ] {
        for sector_bytes in [512, 4096] {
            let size_bytes = if format == Vfat { 500 * MIB } else { 20 << 30 };
            let trial = TryFilesystem { sector_bytes, size_bytes, ..trial(format, options, mount) };
            // A loop device in memory stores written zeros, unlike a plain file: 454 MiB for the first filesystem with
            // large sectors.
            let said = try_filesystem_within(&trial, 1024 * MIB)
                .unwrap_or_else(|error| panic!("{format} {sector_bytes}: {error}"));
            assert_eq!(said, None, "{format} {sector_bytes}");
        }
    }
    for (version, options, words) in [
        ("3.10.0-1160.el7.x86_64", "", Some("cannot mount /srv (xfs), because this kernel does not support reflink")),
        ("3.10.0-1160.el7.x86_64", "-m reflink=0,inobtcount=0,bigtime=0", None),
        ("6.1.0-31-amd64", "", None),
    ] {
        let kernel = MountingKernel { version: version.to_owned(), path: "/srv".to_owned() };
        let tried = TryFilesystem { mounted_by: Some(kernel), ..trial(Xfs, options, None) };
        let refused =
            try_filesystem_within(&tried, 256 * MIB).err().map(|error| (error.is_refusal(), error.to_string()));
        assert_eq!(refused.is_some(), words.is_some(), "{version} {options}: {refused:?}");
        assert!(refused.is_none_or(|(is_refusal, why)| is_refusal && why.contains(words.unwrap())), "{version}");
    }
    for (format, options, mount, words) in [
        (Ext4, "-O nosuch", Some(""), "ext4 for /dev/sdx2 (trial on an in-memory device): `mkfs.ext4"),
        (Ext4, "-O nosuch", None, "Invalid filesystem option set: nosuch"),
        (Vfat, "-F 33", None, "vfat for /dev/sdx2 (trial on an in-memory device)"),
        (Vfat, "-s 3", None, "mkfs.vfat -s 3"),
        (Xfs, "-m nosuch=1", None, "xfs for /dev/sdx2 (trial on an in-memory device)"),
        (Btrfs, "-O nosuch", None, "btrfs for /dev/sdx2 (trial on an in-memory device)"),
        (Swap, "-p 12345", None, "swap for /dev/sdx2 (trial on an in-memory device)"),
        (Ext4, "-b 1000", None, "mkfs.ext4 -b 1000"),
        (Ext4, "", Some("nosuch=1"), "ext4 for /dev/sdx2 with nosuch=1 (trial on an in-memory device)"),
        (Xfs, "", Some("logbufs=99"), "xfs for /dev/sdx2 with logbufs=99 (trial on an in-memory device)"),
        (Tmpfs, "", Some("size=x"), "tmpfs for /dev/sdx2 with size=x (trial on an in-memory device)"),
    ] {
        let error = try_filesystem_within(&trial(format, options, mount), 256 * MIB).unwrap_err().to_string();
        assert!(error.contains(words), "{format} {options}: {error}");
    }
    // Options that only a disk with large sectors refuses.
    let small_blocks = TryFilesystem { sector_bytes: 4096, ..trial(Ext4, "-b 1024", None) };
    let error = try_filesystem_within(&small_blocks, 256 * MIB).unwrap_err().to_string();
    assert!(error.contains("mkfs.ext4 -b 1024"), "{error}");
    assert_nothing_left();
}

#[test]
fn one_successful_size_suffices() {
    let tried = |good: &[u64], sizes: &[u64]| {
        let tried_sizes = std::cell::RefCell::new(Vec::new());
        let result = try_sizes(sizes.iter(), |size| {
            tried_sizes.borrow_mut().push(*size);
            let is_good = good.contains(size);
            if is_good { Ok(Some(size.to_string())) } else { Err(Error::new(Phase::Storage, format!("not {size}"))) }
        });
        (result.map_err(|error| error.to_string()), tried_sizes.into_inner())
    };
    for (good, sizes, expected, tried_sizes) in [
        (&[4][..], &[4, 9, 1][..], Ok(Some("4".to_owned())), &[4][..]),
        (&[1, 9], &[4, 9, 1], Ok(Some("9".to_owned())), &[4, 9]),
        (&[], &[4, 9, 1], Err("not 4".to_owned()), &[4, 9, 1]),
        (&[], &[4], Err("not 4".to_owned()), &[4]),
    ] {
        assert_eq!(tried(good, sizes), (expected, tried_sizes.to_vec()));
    }
}

/// An option such as `-b 10G` may be rejected for the first of several possible sizes of an array, but accepted for a
/// larger one.
#[test]
#[ignore = "needs root and loop devices"]
fn root_option_that_requires_a_larger_size_is_not_refused() {
    for (format, fits, wrong) in [
        (FilesystemFormat::Btrfs, "-b 10G", "-O nosuch"),
        (FilesystemFormat::Xfs, "-d size=10g", "-d size=30g"),
        (FilesystemFormat::Ext4, "-N 30000000", "-b 1000"),
        (FilesystemFormat::Vfat, "-F 16 -s 64", "-F 33"),
    ] {
        let guessed = |options| TryFilesystem { size_bytes: 4 << 30, ..trial(format, options, None) };
        let others = vec![20 << 30, 16 << 30, 1 << 30, 256 << 20, 64 << 20];
        let several = |options| TryFilesystem { or_size_bytes: others.clone(), ..guessed(options) };
        assert!(try_filesystem_within(&guessed(fits), 1024 * MIB).is_err(), "{format} {fits}");
        try_filesystem_within(&several(fits), 1024 * MIB).unwrap_or_else(|error| panic!("{format} {fits}: {error}"));
        let error = try_filesystem_within(&several(wrong), 1024 * MIB).unwrap_err().to_string();
        assert!(error.contains("(trial on an in-memory device)"), "{format} {wrong}: {error}");
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn root_trial_beyond_the_memory_limit_is_reduced() {
    // The log of such a large xfs is 2 GiB of zeros, which take memory in a tmpfs.
    let large = TryFilesystem { size_bytes: 8 << 40, ..trial(FilesystemFormat::Xfs, "-m reflink=0", None) };
    let said = try_filesystem_within(&large, 96 * MIB).unwrap().unwrap();
    assert!(
        said.starts_with("the creation of xfs on /dev/sdx2 was not tested with the full size: the test requires more than 96 MiB of memory"),
        "{said}"
    );
    // A wrong option is distinguished from a lack of memory.
    let wrong = TryFilesystem { size_bytes: 8 << 40, ..trial(FilesystemFormat::Xfs, "-m nosuch=1", None) };
    assert!(try_filesystem_within(&wrong, 96 * MIB).unwrap_err().to_string().contains("cannot create xfs"));
    assert!(trial_memory_bytes().unwrap() <= MAXIMUM_MEMORY_BYTES);
    assert!(Path::new("/run/drophammer").exists());
}

/// Trials of mdadm's options report its error messages, and leave no array behind.
#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_raid_options_are_tried_in_memory_and_leave_no_array() {
    use model::layout::RaidLevel::{self, Raid0, Raid1, Raid5, Raid6, Raid10};
    crate::storage::vm_test_disks::assert_test_machine();
    let trial = |level: RaidLevel, metadata: &str, members: &str, options: &str, sector_bytes| {
        let devices = ArraySlot::parse_list(members.split(' '));
        let size = |member: &ArraySlot| member.device().map_or(0, |_| 8 << 40);
        TryArray {
            member_bytes: devices.iter().map(size).collect(),
            make: CreateArray {
                device: "/dev/md/data".into(),
                level,
                metadata: metadata.to_owned(),
                uuid: uuid::Uuid::from_u128(7),
                devices,
                spares: 0,
                createoptions: options.split_whitespace().map(str::to_owned).collect(),
            },
            or_member_bytes: vec![],
            sector_bytes,
        }
    };
    // The first assumed member size is too small for the option, and the other one is sufficient.
    let guessed = trial(Raid1, "1.2", "/dev/vda /dev/vdb", "--size=10G", 512);
    let guessed = TryArray { member_bytes: vec![4 << 30; 2], ..guessed };
    assert!(try_array(&guessed).is_err());
    assert_eq!(try_array(&TryArray { or_member_bytes: vec![vec![20 << 30; 2]], ..guessed }).unwrap(), None);
    for (level, metadata, members, options) in [
        (Raid0, "1.2", "/dev/vda /dev/vdb", "--chunk=64"),
        (Raid1, "1.0", "/dev/vda missing", "--bitmap=internal --write-mostly"),
        (Raid5, "1.2", "/dev/vda /dev/vdb /dev/vdc", "--consistency-policy=ppl"),
        (Raid6, "1.1", "/dev/vda /dev/vdb /dev/vdc /dev/vdd", "--assume-clean --bitmap=none"),
        (Raid10, "1.2", "/dev/vda /dev/vdb", "--layout=f2"),
    ] {
        for sector_bytes in [512, 4096] {
            let tried = try_array(&trial(level, metadata, members, options, sector_bytes));
            let said = tried.unwrap_or_else(|error| panic!("{level} {options} {sector_bytes}: {error}"));
            assert_eq!(said, None, "{level} {options} {sector_bytes}");
        }
    }
    for (level, options, words) in [
        (Raid1, "--no-such-option", "unrecognized option"),
        (Raid5, "--chunk=3", "invalid chunk"),
        (Raid10, "--layout=f7", "layout"),
        (Raid1, "--size=20T", "device"),
    ] {
        let error = try_array(&trial(level, "1.2", "/dev/vda /dev/vdb", options, 512)).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("cannot create {level} for /dev/md/data (trial on an in-memory device)")),
            "{error}"
        );
        assert!(error.contains(words), "{options}: {error}");
    }
    assert_nothing_left();
    let running = fs::read_to_string("/proc/mdstat").unwrap();
    assert!(!running.contains("active"), "{running}");
}
