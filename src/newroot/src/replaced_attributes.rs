//! Extended attributes that a new file takes over from the file that it replaces. Without an SELinux label, a file that
//! was written in the ramdisk would be unreadable for an installed system with enforcing SELinux.

use nix::errno::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use xattr::FileExt;

/// Name of the extended attribute that contains the SELinux label.
pub(crate) const LABEL: &str = "security.selinux";
const ACL: &str = "system.posix_acl_access";

/// Label and ACL for a file. A file that replaces no other file gets the label of its directory, as the kernel would
/// assign it.
#[derive(Debug, Default)]
pub(crate) struct ReplacedAttributes {
    label: Option<Vec<u8>>,
    acl: Option<Vec<u8>>,
}

impl ReplacedAttributes {
    /// Reads label and ACL of the file with this name. If there is no such file, or the file has no label, reads the
    /// label of the directory instead.
    ///
    /// # Errors
    /// Returns an error if an attribute cannot be read.
    pub(crate) fn read(parent: &OwnedFd, name: &str) -> io::Result<ReplacedAttributes> {
        let path = entry_path(parent, name);
        let (label, acl) = (read_attribute(&path, LABEL)?, read_attribute(&path, ACL)?);
        let label = match label {
            None => read_attribute(&directory_path(parent).join("."), LABEL)?,
            label => label,
        };
        Ok(ReplacedAttributes { label, acl })
    }

    /// Sets the attributes of an open new file.
    ///
    /// # Errors
    /// Returns an error if an attribute cannot be set.
    pub(crate) fn set_on_file(&self, file: &File) -> io::Result<()> {
        for (name, value) in [(LABEL, &self.label), (ACL, &self.acl)] {
            if let Some(value) = value {
                ignore_unsupported(file.set_xattr(name, value))?;
            }
        }
        Ok(())
    }

    /// Sets the label of a new directory or symlink.
    ///
    /// # Errors
    /// Returns an error if the label cannot be set.
    pub(crate) fn set_by_name(&self, parent: &OwnedFd, name: &str) -> io::Result<()> {
        match &self.label {
            Some(label) => ignore_unsupported(xattr::set(entry_path(parent, name), LABEL, label)),
            None => Ok(()),
        }
    }
}

/// Returns a path of an open directory. The path is a symlink in procfs that refers to this directory even if the
/// directory is renamed.
fn directory_path(directory: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

fn entry_path(parent: &OwnedFd, name: &str) -> PathBuf {
    directory_path(parent).join(name)
}

/// Reads an attribute without following a symlink; `None` if the file or the attribute does not exist.
fn read_attribute(path: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    match xattr::get(path, OsStr::new(name)) {
        Err(error) if is_unsupported(&error) || error.kind() == io::ErrorKind::NotFound => Ok(None),
        value => value,
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32)
}

/// Ignores the error that is returned by filesystems without extended attributes, such as FAT.
fn ignore_unsupported(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if is_unsupported(&error) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use crate::NewRoot;
    use crate::fstab;
    use std::fs;

    /// ACL in the kernel's format: the owner may read and write, user 1 may read.
    const ACL: [u8; 44] = {
        let entries = [(1_u8, 6_u8, 0xff_u8), (2, 4, 1), (4, 4, 0xff), (16, 4, 0xff), (32, 4, 0xff)];
        let mut bytes = [0; 44];
        bytes[0] = 2;
        let mut at = 0;
        while at < entries.len() {
            let (tag, rights, id) = entries[at];
            let start = 4 + at * 8;
            (bytes[start], bytes[start + 2], bytes[start + 4]) = (tag, rights, id);
            let high = if id == 1 { 0 } else { 0xff };
            (bytes[start + 5], bytes[start + 6], bytes[start + 7]) = (high, high, high);
            at += 1;
        }
        bytes
    };

    #[test]
    #[ignore = "needs root"]
    fn root_rewritten_files_keep_their_label_and_acl() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let label = |name: &str| xattr::get(path(name), "security.selinux").unwrap();
        let etc = &b"system_u:object_r:etc_t:s0\0"[..];
        let fstab_label = &b"system_u:object_r:fstab_t:s0\0"[..];
        fs::create_dir(path("etc")).unwrap();
        fs::write(path("etc/fstab"), "# own\n").unwrap();
        xattr::set(path("etc"), "security.selinux", etc).unwrap();
        xattr::set(path("etc/fstab"), "security.selinux", fstab_label).unwrap();
        xattr::set(path("etc/fstab"), "system.posix_acl_access", &ACL).unwrap();
        let root = NewRoot::open(dir.path()).unwrap();
        fstab::extend_fstab(&root, &[]).unwrap();
        root.rewrite_file("/etc/fstab", 0o644, b"# new\n").unwrap();
        root.write_file("/etc/hostname", 0o644, b"h").unwrap();
        root.write_file("/etc/new/file", 0o644, b"f").unwrap();
        root.create_symlink("/etc/link", "hostname").unwrap();
        assert_eq!(label("etc/fstab").as_deref(), Some(fstab_label));
        assert_eq!(xattr::get(path("etc/fstab"), "system.posix_acl_access").unwrap().as_deref(), Some(&ACL[..]));
        for new in ["etc/hostname", "etc/new", "etc/new/file", "etc/link"] {
            assert_eq!(label(new).as_deref(), Some(etc), "{new}");
        }
        // In a directory without a label, a new file has none.
        root.write_file("/top", 0o644, b"").unwrap();
        assert_eq!(label("top"), None);
    }
}
