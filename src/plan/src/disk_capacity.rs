//! Comparison of a layout's partitions with the sizes of a machine's disks, before a plan is made.

use super::partition_placement;
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::inventory::Inventory;
use model::layout::Layout;
use model::storage_graph::disk_lookup;

/// Returns a problem for each disk of the layout that the machine does not have, or that is too small for its
/// partitions and both copies of the partition table. The planner refuses an installation on such a disk with the
/// same message.
pub fn find_capacity_problems(layout: &Layout, inventory: &Inventory) -> Vec<Diagnostic> {
    let mut problems = Vec::new();
    for (index, listed) in layout.disks.iter().enumerate() {
        let place = format!("disks[{index}]");
        match disk_lookup::find_disk(listed, inventory) {
            Err(why) => problems.push(Diagnostic::new(place, why).with_code(ErrorCode::DiskMissing)),
            Ok(disk) => {
                let placed =
                    partition_placement::place_partitions(&listed.partitions, disk.size_bytes, disk.sector_bytes);
                if let Err(small) = placed {
                    problems.push(
                        Diagnostic::new(format!("{place}.partitions"), small.explain(&listed.device))
                            .with_code(ErrorCode::TooSmall),
                    );
                }
            }
        }
    }
    problems
}
