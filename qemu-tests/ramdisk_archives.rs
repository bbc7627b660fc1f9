//! Files that tests add to a ramdisk as a further archive. The kernel unpacks consecutive archives.

use crate::host_tools::{Context, Result, run_tool, write};
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

/// Returns the ramdisk with additional files, which are pairs of path and content. Their directories must exist in the
/// ramdisk.
///
/// # Errors
/// Fails if the ramdisk is missing, or `cpio` fails.
pub fn with_files(scratch: &Path, ramdisk: &Path, files: &[(&str, String)]) -> Result<Vec<u8>> {
    let folder = scratch.join("ramdisk-files");
    fs::create_dir_all(&folder).context(folder.display())?;
    for (name, content) in files {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(&folder);
        fs::create_dir_all(parent).context(parent.display())?;
        write(&path, content)?;
    }
    let list = scratch.join("ramdisk-files.list");
    write(&list, files.iter().map(|(name, _)| format!("{name}\n")).collect::<String>())?;
    let stdin = Stdio::from(File::open(&list).context(list.display())?);
    let archive = run_tool(&["cpio", "--quiet", "-o", "-H", "newc", "-D", &folder.to_string_lossy()], stdin)?;
    let mut whole = fs::read(ramdisk).context(ramdisk.display())?;
    // An uncompressed archive must start at a multiple of four bytes (init/initramfs.c).
    whole.resize(whole.len().next_multiple_of(4), 0);
    whole.extend(archive);
    Ok(whole)
}

/// Joins lines, each with a line ending.
pub fn join_lines<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    lines.into_iter().map(|line| format!("{line}\n")).collect()
}

/// Tests that the original ramdisk comes first and is unchanged, and that the added archive can be unpacked.
pub fn self_test() {
    let folder = std::env::temp_dir().join(format!("drophammer-ramdisk-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let ramdisk = folder.join("initrd");
    write(&ramdisk, "first").expect("written");
    let files = [("before-agent", "swapon /dev/vdb\n".to_owned()), ("etc/inspect.files", join_lines(["/a b", "/c,d"]))];
    let whole = with_files(&folder, &ramdisk, &files).expect("a ramdisk");
    assert!(whole.starts_with(b"first\x00\x00\x00070701"));
    let archive = folder.join("archive");
    write(&archive, &whole[8..]).expect("written");
    let stdin = Stdio::from(File::open(&archive).expect("a file"));
    let content = run_tool(&["cpio", "--quiet", "-i", "--to-stdout", "etc/inspect.files"], stdin).expect("unpacked");
    assert_eq!(String::from_utf8_lossy(&content), "/a b\n/c,d\n");
    fs::remove_dir_all(&folder).expect("removed");
}
