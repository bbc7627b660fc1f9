//! Methods of erasing a disk.

use super::arrays_and_groups::{five, layout, operations};
use super::*;
use model::deploy_steps::EraseMode;
use operations::{DeviceOp, Operation, StageName, WipeDisk};

#[test]
fn erase_mode_selects_the_wipe_methods() {
    use model::inventory::EraseMethod::*;
    let mut inventory = five();
    inventory.disks[0].erase = vec![NvmeSanitizeCrypto, NvmeFormatCrypto, AtaErase, Discard];
    let cases = [
        (EraseMode::Quick, vec![NvmeFormatCrypto, Discard], false, 60, vec![]),
        (
            EraseMode::Secure,
            vec![NvmeSanitizeCrypto, NvmeFormatCrypto, AtaErase, Discard, WriteZeroes],
            true,
            14400,
            vec![WriteZeroes],
        ),
        (EraseMode::None, vec![Ends], false, 60, vec![Ends]),
    ];
    for (erase, methods, strict, budget_seconds, of_plain) in cases {
        let request = PlanRequest {
            mode: InstallMode::Install,
            steps: StepList::with_erase_mode(erase),
            subject: subject(),
            assigned: Default::default(),
            claim: None,
        };
        let plan = super::super::make_plan(&layout(), &inventory, request, &mut counting()).unwrap();
        let wipes: Vec<&WipeDisk> = operations(&plan, StageName::StorageWipe)
            .iter()
            .map(|operation| match operation {
                Operation::Device(DeviceOp::WipeDisk(wipe)) => wipe,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!((&wipes[0].methods, wipes[0].strict, wipes[0].budget_seconds), (&methods, strict, budget_seconds));
        assert_eq!(wipes[1].methods, of_plain);
        assert!(wipes.iter().all(|wipe| wipe.zero[0].start == 0));
    }
}
