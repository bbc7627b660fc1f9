//! Detection of the drivers that are required to access a disk: the drivers of all its parent devices in sysfs.

use model::device_name::DevicePath;
use std::fs;
use std::path::Path;

/// Returns the modules of the running kernel that drive these disks, without duplicates. The result does not contain
/// drivers that are built into the running kernel and have no parameters, because sysfs does not show them.
pub(crate) fn find_driver_modules(sys: &Path, disks: &[DevicePath]) -> Vec<String> {
    let mut modules = Vec::new();
    for disk in disks {
        let Ok(mut device) = fs::canonicalize(sys.join("class/block").join(disk.kernel_name().as_str())) else {
            continue;
        };
        while device.pop() && device.starts_with(sys) {
            let Ok(module) = fs::read_link(device.join("driver/module")) else { continue };
            let module = module.file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
            if !modules.contains(&module) {
                modules.push(module);
            }
        }
    }
    modules
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
}
