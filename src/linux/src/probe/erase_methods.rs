//! Erase methods that each disk supports, the best method first.

use super::sysfs::{ProbeRoots, read_attribute};

use super::{ata_security, device_contents, nvme};
use model::inventory::{EraseMethod, InventoryDisk};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Sets [`InventoryDisk::erase`]. Disks are queried in parallel, so that a slow disk does not delay the others.
pub(super) fn add_erase_methods(roots: &ProbeRoots, found: &mut [InventoryDisk]) {
    std::thread::scope(|scope| {
        for disk in found {
            scope.spawn(|| {
                let queue = roots.sys.join("block").join(disk.name.as_str()).join("queue");
                disk.erase = find_methods(&queue, &device_contents::device_node(roots, &disk.name), &disk.transport);
            });
        }
    });
}

fn find_methods(queue: &Path, node: &Path, transport: &str) -> Vec<EraseMethod> {
    let mut methods = match transport {
        "nvme" => nvme_methods(node),
        // USB disks are excluded: USB bridges forward only some commands, and a disk that loses power during a security
        // erase stays locked.
        "sata" => sata_methods(node),
        _ => Vec::new(),
    };
    if read_attribute(&queue.join("discard_max_bytes")).parse::<u64>().is_ok_and(|bytes| bytes > 0) {
        methods.push(EraseMethod::Discard);
    }
    methods
}

/// Returns the erase methods of an NVMe namespace. Returns an empty list if the namespace cannot be queried, for
/// example because privileges are missing.
fn nvme_methods(node: &Path) -> Vec<EraseMethod> {
    let namespace = std::fs::File::open(node).and_then(|file| nvme::read_namespace(&file));
    namespace.map(|namespace| namespace.methods).unwrap_or_else(|error| {
        tracing::debug!("{device}: cannot read the supported erase methods: {error}", device = node.display());
        Vec::new()
    })
}

fn sata_methods(node: &Path) -> Vec<EraseMethod> {
    if !std::fs::metadata(node).is_ok_and(|metadata| metadata.file_type().is_block_device()) {
        return Vec::new();
    }
    ata_security::read_security(node).map(|security| security.available_methods()).unwrap_or_else(|error| {
        tracing::debug!("{device}: cannot read the supported erase methods: {error}", device = node.display());
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use super::super::simulated_machine::FakeMachine;
    use super::super::{ProbeDepth, read_inventory_at};
    use super::*;

    const VIRTIO: &str = "pci0000:00/0000:00:05.0/virtio2/block/vda";
    const NVME: &str = "pci0000:00/0000:00:04.0/nvme/nvme0/nvme0n1";
    const SATA: &str = "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda";

    #[test]
    fn discard_support_is_read_from_sysfs() {
        for (content, expected) in
            [("2147450880\n", vec![EraseMethod::Discard]), ("0\n", vec![]), ("\n", vec![]), ("many\n", vec![])]
        {
            for place in [VIRTIO, NVME, SATA] {
                let tree = FakeMachine::new();
                tree.disk(place, "../..", 1 << 20);
                tree.write(&format!("sys/devices/{place}/queue/discard_max_bytes"), content);
                // The devices are files, so querying them fails, and no further methods are returned.
                let disk = read_inventory_at(&tree.roots(), ProbeDepth::Deep).unwrap().disks.remove(0);
                assert_eq!(disk.erase, expected, "{place} {content:?}");
            }
        }
    }

    #[test]
    fn unreadable_disk_offers_no_erase_method() {
        let tree = FakeMachine::new();
        tree.disk(SATA, "../..", 1 << 20);
        std::fs::remove_file(tree.path("dev/sda")).unwrap();
        assert_eq!(read_inventory_at(&tree.roots(), ProbeDepth::Deep).unwrap().disks[0].erase, []);
    }
}
