//! Writes files to EFI system partitions (ESPs). All ESPs receive the same files, so that the machine can boot from any
//! one of its disks.

use super::machine_boot_requirements::BootEsp;
use crate::NewRoot;
use common::error::{Context, Error, Phase, Result};
use linux::storage::mount::{INERT, MountStack};
use std::path::PathBuf;
use std::{fs, io};

/// File to write to each ESP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EspFile {
    /// Path relative to the root of the ESP: `/EFI/BOOT/BOOTX64.EFI`.
    pub path: String,
    pub content: EspContent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EspContent {
    Text(String),
    /// Copy of the file with this path in the target.
    Of(String),
}

impl EspFile {
    pub(crate) fn from_text(path: impl Into<String>, text: impl Into<String>) -> EspFile {
        EspFile { path: path.into(), content: EspContent::Text(text.into()) }
    }

    pub(crate) fn from_file(path: impl Into<String>, of: impl Into<String>) -> EspFile {
        EspFile { path: path.into(), content: EspContent::Of(of.into()) }
    }
}

/// Writes these files to each ESP. ESPs that are not mounted in the target are mounted temporarily.
///
/// # Errors
/// Returns an error if an ESP cannot be mounted, written or unmounted.
pub(crate) fn fill_esps(root: &NewRoot, esps: &[BootEsp], files: &[EspFile]) -> Result<()> {
    write_files(root, esps, files, "write files to the EFI system partition")
}

/// Writes files to vfat filesystems, like [`fill_esps`]. Error messages begin with `doing` and the device.
///
/// # Errors
/// As for [`fill_esps`].
pub(crate) fn write_files(root: &NewRoot, esps: &[BootEsp], files: &[EspFile], doing: &str) -> Result<()> {
    let mut done: Vec<&BootEsp> = Vec::new();
    for esp in esps {
        // The ESPs that are members of one array contain the same filesystem, which is written only once.
        if done.iter().any(|other| other.device == esp.device || (esp.path.is_some() && other.path == esp.path)) {
            continue;
        }
        done.push(esp);
        let what = || format!("{doing} {}", esp.device);
        match &esp.path {
            Some(path) => write_esp_files(root, root, path, files).context(Phase::Target, what)?,
            None => fill_unmounted(root, esp, files).context(Phase::Target, what)?,
        }
    }
    Ok(())
}

fn fill_unmounted(root: &NewRoot, esp: &BootEsp, files: &[EspFile]) -> Result<()> {
    // The mount point is next to the target's root and not inside it, because the image may contain a file at any path.
    let mut beside = root.path().as_os_str().to_owned();
    beside.push(".esp");
    let beside = PathBuf::from(beside);
    let mut mounts = MountStack::new(&beside);
    mounts.mount_at(esp.device.as_str(), "/", "vfat", INERT, "")?;
    let filled = NewRoot::open(&beside).and_then(|esp| write_esp_files(root, &esp, "", files));
    // If both writing and unmounting fail, the error of writing is returned, because it is more informative (for
    // example, that the partition is full).
    let unmounted = mounts.unmount_all();
    filled.and(unmounted)?;
    fs::remove_dir(&beside).context(Phase::Target, || format!("remove {}", beside.display()))
}

/// Writes files to one ESP, below the directory `mounted` of `on`. If the ESP is mounted in the target, `on` is the
/// target, and `mounted` is the mount point; otherwise `on` is the ESP itself, and `mounted` is empty.
fn write_esp_files(root: &NewRoot, on: &NewRoot, mounted: &str, files: &[EspFile]) -> Result<()> {
    for EspFile { path, content } in files {
        let to = format!("{mounted}{path}");
        let written = match content {
            EspContent::Text(text) => on.write_file(&to, 0o644, text.as_bytes()),
            // The file is already on the ESP. It may be the kernel, if the ESP is mounted at /boot, or a boot loader
            // that a package of the image has installed.
            EspContent::Of(from) if !mounted.is_empty() && *from == to => continue,
            EspContent::Of(from) => {
                let mut file = root.open_file(from).context(Phase::Target, || format!("read the image's {from}"))?;
                on.write_file_from(&to, 0o644, &mut file)
            }
        };
        written.map_err(|error| explain_full_disk(&on.path().join(mounted.trim_start_matches('/')), error))?;
    }
    Ok(())
}

/// Adds an explanation and a remedy to an error if the ESP is full, since some ESPs are too small for kernel and
/// initramfs.
fn explain_full_disk(directory: &std::path::Path, error: Error) -> Error {
    let free = nix::sys::statvfs::statvfs(directory).map(|stat| stat.blocks_available() * stat.fragment_size());
    match free.map_err(io::Error::from) {
        Ok(free) if free < 1 << 20 => {
            Error::with_source(Phase::Target, "the partition is full: increase its size in the layout", error)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::super::file_search::tests::tree;
    use super::*;
    use linux::process::ToolCommand;
    use linux::storage::vm_test_disks::TestDisks;

    fn esp(device: &str, path: Option<&str>) -> BootEsp {
        BootEsp { device: device.into(), path: path.map(str::to_owned) }
    }

    #[test]
    fn esp_files_are_copied_once_per_filesystem() {
        let (_dir, root) = tree(&[("boot/vmlinuz", "kernel"), ("boot/efi/EFI/own", "own"), ("usr/lib/grub", "grub")]);
        let files = [
            EspFile::from_text("/loader/loader.conf", "timeout 1\n"),
            EspFile::from_file("/EFI/BOOT/BOOTX64.EFI", "/usr/lib/grub"),
            EspFile::from_file("/EFI/own", "/boot/efi/EFI/own"),
        ];
        let members = [esp("/dev/sda1", Some("/boot/efi")), esp("/dev/sdb1", Some("/boot/efi"))];
        fill_esps(&root, &members, &files).unwrap();
        assert_eq!(root.read_text("/boot/efi/EFI/BOOT/BOOTX64.EFI").unwrap(), "grub");
        assert_eq!(root.read_text("/boot/efi/loader/loader.conf").unwrap(), "timeout 1\n");
        assert_eq!(root.read_text("/boot/efi/EFI/own").unwrap(), "own");
        // The kernel is already in place if the ESP is mounted at /boot.
        fill_esps(&root, &[esp("/dev/sda1", Some("/boot"))], &[EspFile::from_file("/vmlinuz", "/boot/vmlinuz")])
            .unwrap();
        assert_eq!(root.read_text("/boot/vmlinuz").unwrap(), "kernel");
        let error = fill_esps(&root, &members, &[EspFile::from_file("/x", "/none")]).unwrap_err().to_string();
        assert!(
            error.starts_with("write files to the EFI system partition /dev/sda1: read the image's /none: "),
            "{error}"
        );
    }

    #[test]
    #[ignore = "needs the ramdisk's kernel, because not every host has a vfat driver: scripts/test vm runs it in a machine"]
    fn vm_esp_without_mount_point_gets_the_same_files() {
        let disks = TestDisks::take("vda");
        let [large, small] = &disks.partition(&[64, 2]).concat()[..] else { panic!("two partitions") };
        for device in [large, small] {
            ToolCommand::new("mkfs.vfat").arg(device).run().unwrap();
        }
        let (_dir, root) = tree(&[("usr/lib/grub", "grub")]);
        root.write_file("/boot/vmlinuz", 0o644, &vec![b'k'; 4 << 20]).unwrap();
        let files = [
            EspFile::from_file("/EFI/BOOT/BOOTX64.EFI", "/usr/lib/grub"),
            EspFile::from_file("/debian/vmlinuz", "/boot/vmlinuz"),
        ];
        let beside = PathBuf::from(format!("{}.esp", root.path().display()));
        // Writing the files again succeeds.
        for _ in 0..2 {
            fill_esps(&root, &[esp(large.as_str(), None)], &files).unwrap();
            assert!(!beside.exists());
        }
        let mut mounts = MountStack::new(&beside);
        mounts.mount_at(large.as_str(), "/", "vfat", INERT, "").unwrap();
        assert_eq!(fs::read_to_string(beside.join("EFI/BOOT/BOOTX64.EFI")).unwrap(), "grub");
        assert_eq!(fs::metadata(beside.join("debian/vmlinuz")).unwrap().len(), 4 << 20);
        mounts.unmount_all().unwrap();

        let error = fill_esps(&root, &[esp(small.as_str(), None)], &files).unwrap_err().to_string();
        assert!(error.contains("the partition is full: increase its size in the layout"), "{error}");
        // Removing the directory succeeds only if nothing is mounted there.
        fs::remove_dir(&beside).unwrap();
    }
}
