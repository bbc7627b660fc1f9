//! Filesystems filled by the kernel: copies of their used blocks must be complete and consistent.

use super::*;
use std::time::{Duration, Instant};

/// Mounted filesystem, which is unmounted when this value is dropped.
struct Mounted(PathBuf, String);

impl Mounted {
    fn new(image: &Path, options: &str) -> Mounted {
        let point = image.with_extension("mnt");
        fs::create_dir_all(&point).unwrap();
        run("mount", &["-o", options, image.to_str().unwrap(), point.to_str().unwrap()]);
        Mounted(point, image.to_str().unwrap().to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(120);
        let pause = || std::thread::sleep(Duration::from_millis(50));
        // Until its exec(2), a process that another test has forked keeps copies of the open files of this process.
        loop {
            let output = Command::new("umount").arg(&self.0).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            if output.status.success() {
                break;
            }
            assert!(said.contains("busy") && Instant::now() < end, "umount: {said}");
            pause();
        }
        // The filesystem may stay mounted in another mount namespace for a moment. It is clean only after the last
        // unmount.
        while !run("losetup", &["-j", &self.1]).is_empty() {
            assert!(Instant::now() < end, "{} stays mounted somewhere", self.1);
            pause();
        }
    }
}

/// Creates a filesystem, fills it, unmounts it and copies its used blocks. The copy is checked and mounted.
fn moves(name: &str, size: u64, mkfs: &[&str], check: &[&str], most_used: u64) {
    let dir = tempfile::tempdir().unwrap();
    let image = empty(dir.path(), "disk", size);
    let (made, mkfs_args) = (image.to_str().unwrap(), &mkfs[1..]);
    run(mkfs[0], &[mkfs_args, &[made]].concat());
    let before = {
        let mounted = Mounted::new(&image, "loop");
        fill(&mounted.0);
        contents(&mounted.0)
    };
    let used = used_of(&image);
    assert_eq!(used.what, name, "{mkfs:?}");
    assert!(bytes(&used) < most_used, "{name}: {} of {size} bytes are used", bytes(&used));
    let copy = copied(&image, &used);
    run(check[0], &[&check[1..], &[copy.to_str().unwrap()]].concat());
    fs::rename(&copy, &image).unwrap();
    let mounted = Mounted::new(&image, "loop,ro");
    let after = contents(&mounted.0);
    assert_eq!(before.len(), after.len());
    assert!(before == after, "{mkfs:?}: files have changed");
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_used_blocks_of_ext4_contain_all_its_data() {
    let check = ["e2fsck", "-f", "-n"];
    for options in [
        &["mkfs.ext4", "-q", "-F"][..],
        &["mkfs.ext4", "-q", "-F", "-b", "1024"],
        &["mkfs.ext4", "-q", "-F", "-O", "^flex_bg,^64bit,^metadata_csum"],
        &["mkfs.ext4", "-q", "-F", "-O", "^metadata_csum,uninit_bg,^resize_inode"],
        &["mkfs.ext3", "-q", "-F"],
        &["mkfs.ext2", "-q", "-F"],
    ] {
        moves("ext4", 512 * MIB, options, &check, 160 * MIB);
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_used_blocks_of_xfs_contain_all_its_data() {
    let check = ["xfs_repair", "-n", "-f"];
    for options in [
        &["mkfs.xfs", "-q", "-f"][..],
        &["mkfs.xfs", "-q", "-f", "-b", "size=1024"],
        &["mkfs.xfs", "-q", "-f", "-m", "rmapbt=0,reflink=0", "-d", "agcount=9"],
    ] {
        moves("xfs", 600 * MIB, options, &check, 250 * MIB);
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_used_blocks_of_btrfs_contain_all_its_data() {
    for options in [
        &["mkfs.btrfs", "-q", "-f"][..],
        &["mkfs.btrfs", "-q", "-f", "--mixed"],
        &["mkfs.btrfs", "-q", "-f", "-m", "single"],
    ] {
        moves("btrfs", 1024 * MIB, options, &["btrfs", "check", "--readonly", "--check-data-csum"], 100 * MIB);
    }
}

/// The journal contains changes that are not in the bitmaps yet.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_unclean_filesystem_is_used_completely() {
    for mkfs in [&["mkfs.ext4", "-q", "-F"][..], &["mkfs.xfs", "-q", "-f"]] {
        let dir = tempfile::tempdir().unwrap();
        let image = empty(dir.path(), "disk", 600 * MIB);
        run(mkfs[0], &[&mkfs[1..], &[image.to_str().unwrap()]].concat());
        assert!(bytes(&used_of(&image)) < 300 * MIB);
        let mounted = Mounted::new(&image, "loop");
        fill(&mounted.0);
        run("sync", &[]);
        // State of the filesystem after a power failure.
        let cut = dir.path().join("cut");
        fs::copy(&image, &cut).unwrap();
        let used = used_of(&cut);
        assert!(used.what.ends_with("(the whole disk)"), "{mkfs:?}: {}", used.what);
        assert_eq!(used.ranges, std::iter::once(0..600 * MIB).collect::<Vec<_>>());
        drop(mounted);
        assert!(bytes(&used_of(&image)) < 300 * MIB, "{mkfs:?}");
    }
}
