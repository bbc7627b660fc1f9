//! Programs that messages and pages recommend in the rescue shell.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Programs that administrators use for disks. Busybox contains none of them.
const PROGRAMS: [&str; 21] = [
    "blkid",
    "btrfs",
    "dmsetup",
    "e2fsck",
    "efibootmgr",
    "hdparm",
    "lsblk",
    "lvchange",
    "lvm",
    "lvs",
    "mdadm",
    "nvme",
    "parted",
    "pvs",
    "sfdisk",
    "sgdisk",
    "smartctl",
    "vgchange",
    "vgs",
    "wipefs",
    "xfs_repair",
];

/// Returns the programs of the agent's ramdisk, with their additional names.
fn ramdisk_programs(root: &Path) -> BTreeSet<String> {
    let list = fs::read_to_string(root.join("initramfs/agent/files")).unwrap();
    let words = list.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace);
    words.map(|word| word.rsplit('/').next().unwrap_or_default().to_owned()).collect()
}

fn list_files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list_files(&path, extension, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

/// Returns the programs in lines near `rescue shell`.
fn recommended_programs(text: &str) -> BTreeSet<String> {
    let lines: Vec<&str> = text.lines().collect();
    let near = (0..lines.len()).filter(|line| lines[*line].contains("rescue shell"));
    let near = near.flat_map(|line| &lines[line.saturating_sub(1)..(line + 2).min(lines.len())]);
    let words = near.flat_map(|line| line.split(|letter: char| !letter.is_alphanumeric() && letter != '_'));
    words.filter(|word| PROGRAMS.contains(word)).map(str::to_owned).collect()
}

#[test]
fn recommended_programs_are_in_the_ramdisk() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut files, programs) = (Vec::new(), ramdisk_programs(&root));
    list_files(&root.join("src"), "rs", &mut files);
    list_files(&root.join("docs"), "md", &mut files);
    let mut recommended = BTreeSet::new();
    for file in files.iter().filter(|file| !file.ends_with("rescue_shell.rs")) {
        for program in recommended_programs(&fs::read_to_string(file).unwrap()) {
            assert!(programs.contains(&program), "{}: {program} is not in the agent's ramdisk", file.display());
            recommended.insert(program);
        }
    }
    assert!(recommended.contains("wipefs") && recommended.contains("lvchange"), "{recommended:?}");
}
