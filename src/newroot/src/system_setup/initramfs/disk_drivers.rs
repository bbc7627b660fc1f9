//! Detection of the drivers that are required to access a disk: the drivers of all its parent devices in sysfs.

use model::device_name::DevicePath;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the modules of the running kernel that drive these disks, without duplicates. The result does not contain
/// drivers that are built into the running kernel and have no parameters, because sysfs does not show them.
pub(crate) fn find_driver_modules(sys: &Path, disks: &[DevicePath]) -> Vec<String> {
    let mut modules = Vec::new();
    for disk in disks {
        let Ok(device) = fs::canonicalize(sys.join("class/block").join(disk.kernel_name().as_str())) else {
            continue;
        };
        for mut device in list_nvme_controllers(&device).into_iter().chain([device]) {
            while device.pop() && device.starts_with(sys) {
                let Ok(module) = fs::read_link(device.join("driver/module")) else { continue };
                let module = module.file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
                if !modules.contains(&module) {
                    modules.push(module);
                }
            }
        }
    }
    modules
}

/// Returns the controllers of an NVMe disk with native multipath; empty for other disks. The directory of such a disk
/// is below `/sys/devices/virtual/nvme-subsystem`, so its parents have no drivers. The directory of its subsystem
/// contains links to the controllers.
fn list_nvme_controllers(disk: &Path) -> Vec<PathBuf> {
    let is_subsystem = |dir: &&Path| dir.parent().is_some_and(|parent| parent.ends_with("nvme-subsystem"));
    let entries = disk.parent().filter(is_subsystem).and_then(|subsystem| fs::read_dir(subsystem).ok());
    let entries = entries.into_iter().flatten().flatten();
    let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    let controllers = links.filter(|link| link.file_name().to_string_lossy().starts_with("nvme"));
    controllers.filter_map(|link| fs::canonicalize(link.path()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn finds_all_drivers_on_the_disk_path() {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path().canonicalize().unwrap();
        let disk = sys.join("devices/pci0/0000:00:1/virtio0/block/vda");
        fs::create_dir_all(&disk).unwrap();
        fs::create_dir_all(sys.join("class/block")).unwrap();
        symlink(&disk, sys.join("class/block/vda")).unwrap();
        for (device, bus, module) in
            [("0000:00:1", "virtio-pci", "virtio-pci"), ("0000:00:1/virtio0", "virtio_blk", "virtio_blk")]
        {
            let driver = sys.join("bus").join(bus);
            fs::create_dir_all(&driver).unwrap();
            symlink(Path::new("../../module").join(module), driver.join("module")).unwrap();
            symlink(&driver, sys.join("devices/pci0").join(device).join("driver")).unwrap();
        }
        let disks = ["/dev/vda", "/dev/vda", "/dev/none"].map(DevicePath::from);
        assert_eq!(find_driver_modules(&sys, &disks), ["virtio_blk", "virtio_pci"]);
    }

    #[test]
    fn finds_the_driver_of_an_nvme_disk_with_multipath() {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path().canonicalize().unwrap();
        let subsystem = sys.join("devices/virtual/nvme-subsystem/nvme-subsys0");
        let controller = sys.join("devices/pci0000:00/0000:00:04.0/nvme/nvme0");
        for directory in [&subsystem.join("nvme0n1"), &controller, &sys.join("class/block"), &sys.join("bus/nvme")] {
            fs::create_dir_all(directory).unwrap();
        }
        symlink(subsystem.join("nvme0n1"), sys.join("class/block/nvme0n1")).unwrap();
        symlink(&controller, subsystem.join("nvme0")).unwrap();
        symlink("../../class/nvme-subsystem", subsystem.join("subsystem")).unwrap();
        symlink("../../module/nvme", sys.join("bus/nvme/module")).unwrap();
        symlink(sys.join("bus/nvme"), sys.join("devices/pci0000:00/0000:00:04.0/driver")).unwrap();
        assert_eq!(find_driver_modules(&sys, &[DevicePath::from("/dev/nvme0n1")]), ["nvme"]);
    }
}
