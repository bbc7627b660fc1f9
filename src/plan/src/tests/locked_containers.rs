//! Containers that stay locked: the order must permit this, because the reinstall may erase the only copy of the key.

use super::luks::{crypttab, encrypted_by, locked, planned, request_with_key};
use super::*;
use model::allocation::OrderedReinstall;
use model::layout::KeySource;

/// Returns the UUIDs of the LUKS containers on disks and partitions.
pub(super) fn find_containers(inventory: &Inventory) -> Vec<String> {
    let found = inventory.all_signatures().flat_map(|(_, signatures)| signatures);
    found.filter(|found| found.kind == "crypto_LUKS").map(|found| found.uuid.clone()).collect()
}

/// Returns a request for a reinstall whose order lists these containers.
pub(super) fn request_leaving_locked(containers: &[String]) -> PlanRequest {
    let mut request = request_with_key(InstallMode::Reinstall);
    let leave_locked = containers.to_vec();
    request.assigned.allocation.order = Some(OrderedReinstall { leave_locked, ..OrderedReinstall::default() });
    request
}

pub(super) fn leave_locked(
    layout: &Layout,
    inventory: &Inventory,
    containers: &[String],
) -> Result<Plan, Box<PlanRefusal>> {
    crate::make_plan(layout, inventory, request_leaving_locked(containers), &mut counting())
}

/// Asserts that a reinstall is refused if its order does not list the locked containers.
pub(super) fn refuses_to_leave_locked(layout: &Layout, inventory: &Inventory) {
    for unrelated in [vec![], vec![Uuid::from_u128(99).to_string(), "sdb1".to_owned()]] {
        let refusal = leave_locked(layout, inventory, &unrelated).unwrap_err();
        let [problem] = &refusal.problems[..] else { panic!("{:?}", refusal.problems) };
        assert_eq!(problem.code, Some(ErrorCode::EncryptionLocked));
        assert!(problem.message.contains("may contain the only copy of the key"), "{problem}");
        assert!(problem.message.contains("order the reinstall again with --leave-locked"), "{problem}");
        for uuid in find_containers(inventory) {
            assert!(problem.message.contains(&format!("--leave-locked {uuid}")), "{problem}");
        }
    }
}

/// Adds a container to the unlisted disk sdc.
fn add_unlisted_container(inventory: &mut Inventory) {
    let uuid = Uuid::from_u128(7).to_string();
    inventory.disks[2].signatures =
        vec![DeviceSignature { kind: "crypto_LUKS".to_owned(), uuid, ..DeviceSignature::default() }];
    inventory.disks[2].blank = false;
}

/// The agent does not try to open containers that the layout does not list.
#[test]
fn warns_about_containers_that_are_not_encrypted_in_the_layout() {
    let warned = |plan: &Plan, device: &str| {
        let mut warnings = plan.warnings.iter();
        warnings.any(|said| said.starts_with(&format!("{device} contains a LUKS container")))
    };
    let mut inventory = installed();
    assert!(!warned(&planned(&layout(), &inventory, InstallMode::Reinstall).unwrap(), "/dev/sdc"));
    add_unlisted_container(&mut inventory);
    let plan = planned(&layout(), &inventory, InstallMode::Reinstall).unwrap();
    assert!(warned(&plan, "/dev/sdc"), "{plan}");
    // A container on a wiped disk does not stay.
    let mut listed = layout();
    listed.disks.push(DiskSpec { device: "/dev/sdc".into(), partitions: Vec::new(), ..listed.disks[0].clone() });
    let plan = planned(&listed, &inventory, InstallMode::Install).unwrap();
    assert!(!warned(&plan, "/dev/sdc"), "{plan}");
    // A preserved partition for which the layout does not list a filesystem.
    let mut raw = layout();
    raw.filesystems.retain(|filesystem| filesystem.path.as_deref() != Some("/srv"));
    let signature = inventory.disks[2].signatures.clone();
    inventory.disks[1].table.as_mut().unwrap().partitions[0].signatures = signature;
    inventory.disks[2].signatures.clear();
    let plan = planned(&raw, &inventory, InstallMode::Reinstall).unwrap();
    assert!(warned(&plan, "/dev/sdb1") && !warned(&plan, "/dev/sdc"), "{plan}");
}

#[test]
fn container_without_any_key_is_refused_or_remains_locked() {
    let why = "the machine has no TPM 2";
    let layout = encrypted_by(KeySource::Tpm2, &["noatime"]);
    let refusal = planned(&layout, &locked(&layout, Some(why)), InstallMode::Reinstall).unwrap_err();
    assert!(refusal.problems.len() == 1 && refusal.problems[0].message.contains(why), "{:?}", refusal.problems);
    let layout = encrypted_by(KeySource::Tpm2, &["nofail"]);
    let inventory = locked(&layout, Some(why));
    refuses_to_leave_locked(&layout, &inventory);
    let plan = leave_locked(&layout, &inventory, &find_containers(&inventory)).unwrap();
    assert!(plan.warnings.iter().any(|said| said.contains("stays LOCKED") && said.contains(why)), "{plan}");
    assert!(crypttab(&plan).is_empty(), "{plan}");
}
