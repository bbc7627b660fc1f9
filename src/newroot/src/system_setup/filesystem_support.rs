//! Check that the image's kernel can mount the filesystems of the layout, and that the image's e2fsck can check them.

use super::LogSink;
use super::boot_kernel::MODULES;
use crate::NewRoot;
use common::error::{Error, Phase, Result};
use linux::probe::proc_mounts::{self, MountEntry};
use linux::storage::filesystem_features::Superblock;
use model::image_boot_contents::parse_linux_version;
use model::layout::FilesystemFormat;
use operations::FstabEntry;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Paths of e2fsck in an image.
const E2FSCK: [&str; 2] = ["/usr/sbin/e2fsck", "/sbin/e2fsck"];
/// Maximum number of bytes that are read from e2fsck's program file. A statically linked e2fsck is smaller than 2
/// MiB.
const E2FSCK_BYTES: u64 = 8 << 20;
/// Paths of systemd in an image.
const SYSTEMD: [&str; 2] = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"];

/// Checks that the filesystems of the target are supported by the newest kernel that has modules in the image, and by
/// the image's e2fsck. A check is omitted if the image does not contain the component to check: kernel modules or
/// e2fsck.
///
/// # Errors
/// Returns an error if the kernel does not support a feature of a filesystem, or if the system would stop at boot
/// because e2fsck does not support a feature. A filesystem with an unreadable superblock is not checked.
pub(super) fn require_filesystem_support(root: &NewRoot, fstab: &[FstabEntry], say: LogSink) -> Result<()> {
    let all = MODULES.iter().flat_map(|dir| root.list_names(dir).unwrap_or_default());
    let kernel = all.filter_map(|name| Some((parse_linux_version(&name)?, name))).max().map(|(_, kernel)| kernel);
    let e2fsck = read_e2fsck_version(root);
    if kernel.is_none() && e2fsck.is_none() {
        return Ok(());
    }
    for entry in fstab.iter().filter(|entry| entry.path.starts_with('/')) {
        // A filesystem whose superblock cannot be read is skipped, and does not cause the installation to fail.
        let superblock = match read_superblock(root, entry) {
            Ok(Some(superblock)) => superblock,
            Ok(None) => continue,
            Err(error) => {
                tracing::warn!("{path}: cannot read the filesystem's features: {error}", path = entry.path);
                continue;
            }
        };
        let mounts = |kernel: &String| superblock.explain_unsupported(entry.format, &entry.path, kernel);
        if let Some(why) = kernel.as_ref().and_then(mounts) {
            return Err(Error::new(Phase::Target, why));
        }
        let checks =
            |text: &String| superblock.explain_unchecked(entry.format, &entry.path, (text, parse_linux_version(text)?));
        match e2fsck.as_ref().filter(|_| entry.pass > 0).and_then(checks) {
            // systemd ignores the exit code 8 of e2fsck (src/fsck/fsck.c); other init systems stop at the prompt for
            // the password of root.
            Some(why) if SYSTEMD.iter().any(|path| root.path_exists(path)) => {
                say(&format!(
                    "WARNING: {why}. The installed system mounts {path} without running fsck",
                    path = entry.path
                ));
            }
            Some(why) => return Err(Error::new(Phase::Target, why)),
            None => {}
        }
    }
    Ok(())
}

/// Reads the superblock of the filesystem that is mounted in the target at the entry's path. Returns `None` if the
/// features of the filesystem's format are not known.
fn read_superblock(root: &NewRoot, entry: &FstabEntry) -> io::Result<Option<Superblock>> {
    if matches!(entry.format, FilesystemFormat::Tmpfs | FilesystemFormat::None) {
        return Ok(None);
    }
    let path = root.path().canonicalize()?.join(entry.path.trim_start_matches('/'));
    // The device is found in the list of mounts, because the device number of a file on btrfs is anonymous.
    let mounts = proc_mounts::parse_mounts(&std::fs::read_to_string("/proc/self/mountinfo")?);
    let is_here = |mount: &&MountEntry| Path::new(&mount.path) == path.components().as_path();
    let mount = mounts.iter().rev().find(is_here).ok_or_else(|| io::Error::other("the filesystem is not mounted"))?;
    Superblock::read(&File::open(&mount.source)?, entry.format)
}

/// Reads the version of e2fsck from its program file. This file contains the version as a string (`E2FSPROGS_VERSION`).
/// `None` if the image does not contain e2fsck, or the version is not found.
fn read_e2fsck_version(root: &NewRoot) -> Option<String> {
    let file = E2FSCK.iter().find_map(|path| root.open_file(path).ok())?;
    let mut program = Vec::new();
    file.take(E2FSCK_BYTES).read_to_end(&mut program).ok()?;
    let is_version = |text: &[u8]| {
        text.starts_with(b"1.4") && text.len() <= 16 && text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
    };
    let version = program.split(|byte| *byte == 0).find(|text| is_version(text))?;
    String::from_utf8(version.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system_setup::testing::{capture_log, tree};
    use linux::process::ToolCommand;

    fn entry(path: &str, format: FilesystemFormat, pass: u8) -> FstabEntry {
        FstabEntry { source: "x".into(), path: path.into(), format, options: Vec::new(), pass }
    }

    #[test]
    fn nothing_is_inspected_without_kernel_and_e2fsck() {
        let (_dir, bare) = tree(&[("etc/os-release", "ID=x\n")]);
        require_filesystem_support(&bare, &[entry("/", FilesystemFormat::Ext4, 1)], &|_| ()).unwrap();
        let (_dir, old) = tree(&[("lib/modules/3.10.0/modules.dep", "")]);
        require_filesystem_support(&old, &[entry("/tmp", FilesystemFormat::Tmpfs, 0)], &|_| ()).unwrap();
    }

    #[test]
    fn e2fsck_version_is_read_from_its_program() {
        for (program, expected) in [
            ("\x7fELF\u{0}1.5\u{0}x 1.42\u{0}1.42.9\u{0}28-Dec-2013\u{0}", Some("1.42.9")),
            ("\u{0}1.47.0\u{0}", Some("1.47.0")),
            ("\u{0}1.4 or so\u{0}", None),
        ] {
            let (_dir, root) = tree(&[("sbin/e2fsck", program)]);
            assert_eq!(read_e2fsck_version(&root).as_deref(), expected, "{program:?}");
        }
        let own = NewRoot::open(Path::new("/")).unwrap();
        assert!(read_e2fsck_version(&own).unwrap().starts_with("1.4"));
    }

    /// Mounts a filesystem at `/srv` of a tree, and checks the tree. Returns the result and the messages.
    fn check(format: FilesystemFormat, options: &[&str], files: &[(&str, &str)]) -> (Result<()>, Vec<String>) {
        let (dir, root) = tree(files);
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(400 << 20).unwrap();
        ToolCommand::new(format!("mkfs.{format}")).args(options).arg(image.path()).run().unwrap();
        let at = dir.path().join("srv");
        std::fs::create_dir(&at).unwrap();
        ToolCommand::new("mount").args(["-o", "loop"]).arg(image.path()).arg(&at).run().unwrap();
        let result = capture_log(|say| require_filesystem_support(&root, &[entry("/srv", format, 2)], say));
        ToolCommand::new("umount").arg(&at).run().unwrap();
        result
    }

    #[test]
    #[ignore = "needs root, mkfs.xfs, mkfs.btrfs and mkfs.ext4"]
    fn loop_unsupported_filesystems_are_refused() {
        let xfs = |options: &[&str], kernel: &str| {
            let modules = format!("lib/modules/{kernel}/modules.dep");
            check(FilesystemFormat::Xfs, options, &[(&modules, "")]).0
        };
        let error = xfs(&["-q"], "4.18.0-553.el8.x86_64").unwrap_err().to_string();
        assert!(error.contains("the image's kernel 4.18.0-553.el8.x86_64 cannot mount /srv (xfs)"), "{error}");
        xfs(&["-q"], "6.1.0-28-amd64").unwrap();
        xfs(&["-q", "-m", "bigtime=0,inobtcount=0"], "4.18.0-553.el8.x86_64").unwrap();

        let modules = [("lib/modules/3.10.0/modules.dep", "")];
        let error = check(FilesystemFormat::Btrfs, &["-q"], &modules).0.unwrap_err().to_string();
        assert!(error.contains("does not support no-holes, free-space-tree"), "{error}");

        let old = ("sbin/e2fsck", "\u{0}1.42.9\u{0}");
        let ext4 = |files: &[(&str, &str)]| check(FilesystemFormat::Ext4, &["-q", "-F", "-O", "metadata_csum"], files);
        let error = ext4(&[old]).0.unwrap_err().to_string();
        assert!(error.contains("the image's e2fsck 1.42.9 cannot check /srv (ext4)"), "{error}");
        let (result, messages) = ext4(&[old, ("usr/lib/systemd/systemd", "")]);
        result.unwrap();
        assert!(messages.iter().any(|line| line.starts_with("WARNING: the image's e2fsck 1.42.9")), "{messages:?}");
        let (result, messages) = ext4(&[("sbin/e2fsck", "\u{0}1.43\u{0}")]);
        result.unwrap();
        assert_eq!(messages, [""; 0]);
    }
}
