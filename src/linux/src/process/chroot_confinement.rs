//! Processes confined to another root directory, with their own mount namespace. Such processes can use only the device
//! nodes that are provided for them.
//!
//! These processes still run as root and may mount filesystems (CAP_SYS_ADMIN), as installers do. A malicious program
//! can therefore mount a devtmpfs. The confinement protects other disks from mistakes of the confined programs, but not
//! from attacks. Attacks are not expected, because the programs come from images with a verified digest.

use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statvfs::{FsFlags, statvfs};
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Capabilities that are removed: CAP_SYS_PTRACE and CAP_MKNOD of linux/capability.h.
const REMOVED_CAPABILITIES: [libc::c_ulong; 2] = [19, 27];

/// Parameters of [`super::ToolCommand::confined`].
pub(crate) struct Confinement {
    pub root: PathBuf,
    /// Mount points below which device nodes cannot be used.
    pub no_devices: Vec<PathBuf>,
    /// Working directory, as a path inside the new root.
    pub folder: PathBuf,
}

impl Confinement {
    /// Returns the function to run between fork and exec.
    ///
    /// # Errors
    /// Returns an error if a mount point does not exist.
    pub(crate) fn prepare_child_setup(&self) -> io::Result<impl FnMut() -> io::Result<()> + Send + Sync + use<>> {
        let (root, folder) = (path_string(&self.root)?, path_string(&self.folder)?);
        let no_devices = self.no_devices.iter().map(|point| {
            // A remount clears each of these flags that is not passed again. The atime flags are preserved if none of
            // them is passed.
            let was = statvfs(point)?.flags();
            let flags = [
                (FsFlags::ST_RDONLY, MsFlags::MS_RDONLY),
                (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
                (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
            ];
            let flags = flags.into_iter().filter(|(is, _)| was.contains(*is)).map(|(_, flag)| flag);
            let no_devices = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NODEV;
            Ok((path_string(point)?, flags.fold(no_devices, MsFlags::union)))
        });
        let no_devices = no_devices.collect::<io::Result<Vec<(CString, MsFlags)>>>()?;
        let none = None::<&CStr>;
        Ok(move || {
            unshare(CloneFlags::CLONE_NEWNS)?;
            mount(none, c"/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
            for (point, flags) in &no_devices {
                mount(none, point.as_c_str(), none, *flags, none)?;
            }
            nix::unistd::chroot(root.as_c_str())?;
            nix::unistd::chdir(folder.as_c_str())?;
            for capability in REMOVED_CAPABILITIES {
                // SAFETY: PR_CAPBSET_DROP takes a number.
                nix::errno::Errno::result(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) })?;
            }
            Ok(())
        })
    }
}

fn path_string(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
