//! Contents of a reconstructed filesystem: its consistency after the journal was replayed, and its files. The tools
//! read a copy of the filesystem, which is not mounted.

use crate::host_tools::{Context, Result, limit_command, run_tool};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Digests of files and targets of links, by path.
pub type FileDigests = BTreeMap<String, String>;

/// Returns all files of the filesystem in the file `view`, or a description of its damage. The files are extracted to
/// `folder`, whose previous contents are removed.
///
/// # Errors
/// Fails if a tool is missing, or cannot read a filesystem that was found consistent.
pub fn read_files(format: &str, view: &Path, folder: &Path) -> Result<Result<FileDigests>> {
    // The folder may contain the files of an earlier state.
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).context(folder.display())?;
    let (image, to) = (view.to_string_lossy(), folder.to_string_lossy());
    if format == "btrfs" {
        if let Some(words) = check_btrfs(view)? {
            return Ok(Err(words));
        }
        run_tool(&["btrfs", "restore", "-S", &image, &to], Stdio::null())?;
    } else {
        if let Some(words) = check_ext4(view)? {
            return Ok(Err(words));
        }
        run_tool(&["debugfs", "-R", &format!("rdump / {to}"), &image], Stdio::null())?;
    }
    digest_tree(folder).map(Ok)
}

/// Replays the journal, and returns the damage that remains. `e2fsck -E journal_only` is not used, because it also
/// repairs other damage.
fn check_ext4(view: &Path) -> Result<Option<String>> {
    let run = |argv: &[&str]| limit_command(argv).arg(view).output().context(argv[0]);
    let replayed = run(&["debugfs", "-w", "-R", "journal_run"])?;
    let checked = run(&["e2fsck", "-f", "-n"])?;
    if checked.status.success() {
        return Ok(None);
    }
    let words = [replayed.stdout, replayed.stderr, checked.stdout, checked.stderr].concat();
    Ok(Some(one_line(&words)))
}

fn check_btrfs(view: &Path) -> Result<Option<String>> {
    let checked = limit_command(&["btrfs", "check", "--readonly"]).arg(view).output().context("btrfs")?;
    Ok((!checked.status.success()).then(|| one_line(&checked.stderr)))
}

fn one_line(words: &[u8]) -> String {
    String::from_utf8_lossy(words).trim().replace('\n', " | ")
}

fn digest_tree(folder: &Path) -> Result<FileDigests> {
    let mut found = FileDigests::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).context(next.display())? {
            let path = entry.context(next.display())?.path();
            let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
            let kind = fs::symlink_metadata(&path).context(path.display())?.file_type();
            if kind.is_dir() {
                found.insert(name, "a folder".to_owned());
                open.push(path);
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).context(path.display())?;
                found.insert(name, format!("-> {}", target.display()));
            } else if kind.is_file() {
                let bytes = fs::read(&path).context(path.display())?;
                found.insert(name, format!("{:x}", Sha256::digest(bytes)));
            }
        }
    }
    Ok(found)
}

/// Tests that the files of new filesystems are read, and that damage is detected. Filesystems whose tools are missing
/// are skipped.
pub fn self_test() {
    let folder = crate::write_log::test_folder("crash-files");
    let (root, view, out) = (folder.join("root"), folder.join("view"), folder.join("out"));
    fs::create_dir_all(root.join("deep")).expect("a folder");
    fs::write(root.join("deep/file"), "content").expect("written");
    std::os::unix::fs::symlink("deep/file", root.join("link")).expect("a link");
    fs::File::create(&view).and_then(|file| file.set_len(4 << 20)).expect("a file");
    let (from, image) = (root.to_string_lossy(), view.to_string_lossy());
    let made = Command::new("mkfs.ext4").args(["-q", "-d", &from, &image]).output();
    if made.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return;
    }
    let found = read_files("ext4", &view, &out).expect("the tools").expect("sound");
    assert_eq!(found.get("deep/file"), Some(&format!("{:x}", Sha256::digest("content"))));
    assert_eq!(found.get("link").map(String::as_str), Some("-> deep/file"));
    assert!(found.contains_key("lost+found") && !found.contains_key("file"));
    let mut bytes = fs::read(&view).expect("read");
    // This range contains the inode table and the root directory.
    bytes[8192..65536].fill(0xff);
    fs::write(&view, bytes).expect("written");
    let words = read_files("ext4", &view, &out).expect("the tools").expect_err("damaged");
    assert!(!words.is_empty() && !words.contains('\n'));
    fs::remove_dir_all(&folder).expect("removed");
}
