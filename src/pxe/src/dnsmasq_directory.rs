//! Temporary directory with the files that dnsmasq reads and writes. It is removed when the server ends.

use super::dnsmasq_config::{ARM64, BINARIES};
use common::bounded_read::read_prefix;
use linux::process::privilege_drop::SANDBOX_ID;
use std::env;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Maximum size of the lease file, in bytes. A lease takes about a hundred bytes.
const LEASES_BYTES: u64 = 8 << 20;

pub(crate) struct DnsmasqDirectory {
    path: PathBuf,
    /// Copy of the leases in the server's directory, which preserves them between runs of the server.
    kept: PathBuf,
    /// Modification time of the lease file at the time of the last copy.
    written: Option<SystemTime>,
}

impl DnsmasqDirectory {
    /// Creates the directory, and copies iPXE's binaries and the leases of the previous run into it.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be created.
    pub(crate) fn create(ipxe: &Path, kept: PathBuf) -> Result<DnsmasqDirectory> {
        let parent = env::var_os("RUNTIME_DIRECTORY").map_or_else(env::temp_dir, PathBuf::from);
        let path = nix::unistd::mkdtemp(&parent.join("drophammer-pxe-XXXXXX"))?;
        let home = DnsmasqDirectory { path, kept, written: None };
        for folder in [home.path.clone(), home.tftp_directory(), home.writable_directory()] {
            // The first of these directories already exists, and contains the others.
            fs::create_dir_all(&folder)?;
            // All users can read the directory, because dnsmasq may run as another user. The files contain no secrets.
            fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
        }
        let arm64 = Some(ARM64).filter(|name| ipxe.join(name).is_file());
        for name in BINARIES.into_iter().chain(arm64) {
            let copy = home.tftp_directory().join(name);
            fs::copy(ipxe.join(name), &copy)?;
            fs::set_permissions(&copy, Permissions::from_mode(0o644))?;
        }
        match fs::copy(&home.kept, home.leases_file()) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(_) if nix::unistd::geteuid().is_root() => home.change_owner(&home.leases_file())?,
            _ => {}
        }
        if nix::unistd::geteuid().is_root() {
            home.change_owner(&home.writable_directory())?;
        }
        Ok(home)
    }

    /// Changes the owner of the path to the user to which dnsmasq switches after root has started it.
    fn change_owner(&self, path: &Path) -> Result<()> {
        chown(path, Some(SANDBOX_ID), Some(SANDBOX_ID))
    }

    /// Returns whether the directory contains the optional iPXE binary for arm64.
    pub(crate) fn has_arm64(&self) -> bool {
        self.tftp_directory().join(ARM64).is_file()
    }

    pub(crate) fn tftp_directory(&self) -> PathBuf {
        self.path.join("tftp")
    }

    /// Returns the subdirectory in which dnsmasq may write files.
    fn writable_directory(&self) -> PathBuf {
        self.path.join("own")
    }

    pub(crate) fn leases_file(&self) -> PathBuf {
        self.writable_directory().join("leases")
    }

    /// Writes the configuration, and returns its path.
    pub(crate) fn write_config(&self, text: &str) -> Result<PathBuf> {
        let path = self.path.join("dnsmasq.conf");
        fs::write(&path, text)?;
        fs::set_permissions(&path, Permissions::from_mode(0o644))?;
        Ok(path)
    }

    /// Copies the leases to the server's directory, even if the modification time of the lease file has not changed:
    /// the resolution of file times may be too coarse to show the last change.
    pub(crate) fn save_final_leases(&mut self) -> Result<()> {
        self.written = None;
        self.save_leases()
    }

    /// Copies the leases to the server's directory if the lease file has changed since the last copy.
    pub(crate) fn save_leases(&mut self) -> Result<()> {
        // A symbolic link is not followed, because a compromised dnsmasq may have created it.
        let opened =
            OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(self.leases_file());
        let file = match opened {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        let is = file.metadata()?;
        let written = is.modified()?;
        if self.written == Some(written) || !is.is_file() {
            return Ok(());
        }
        let text = read_prefix(file, LEASES_BYTES)?;
        let new = self.kept.with_extension("leases.new");
        fs::write(&new, text)?;
        fs::rename(&new, &self.kept)?;
        self.written = Some(written);
        Ok(())
    }
}

impl Drop for DnsmasqDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leases_survive_the_dnsmasq_directory() {
        let dir = tempfile::tempdir().unwrap();
        for name in BINARIES {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let kept = dir.path().join("dhcp.leases");
        let mut home = DnsmasqDirectory::create(dir.path(), kept.clone()).unwrap();
        let path = home.path.clone();
        assert_eq!(fs::read_to_string(home.tftp_directory().join("snponly.efi")).unwrap(), "snponly.efi");
        home.save_leases().unwrap();
        assert!(!kept.exists());
        fs::write(home.leases_file(), "one").unwrap();
        home.save_leases().unwrap();
        assert_eq!(fs::read_to_string(&kept).unwrap(), "one");
        drop(home);
        assert!(!path.exists());

        let mut home = DnsmasqDirectory::create(dir.path(), kept.clone()).unwrap();
        assert_eq!(fs::read_to_string(home.leases_file()).unwrap(), "one");
        fs::remove_file(home.leases_file()).unwrap();
        std::os::unix::fs::symlink(dir.path().join("snponly.efi"), home.leases_file()).unwrap();
        assert!(home.save_leases().is_err());
        assert_eq!(fs::read_to_string(&kept).unwrap(), "one");
    }
}
