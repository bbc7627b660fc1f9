use super::*;
use common::error::Error;
use control::fake_control_plane::FakeControl;
use model::agent_kernel_arguments::{AgentSettings, ControlPlaneSource};
use model::install_marker::{AttemptSecret, InstallMarker};
use model::inventory::FilesystemContents;
use std::cell::Cell;
use std::sync::Arc;

fn agent(control: &Arc<FakeControl>) -> InstallAgent {
    let settings = AgentSettings {
        control: ControlPlaneSource::Server { url: "http://127.0.0.1:9".into(), token: "t".into() },
        machine: None,
        keys: vec![],
        minimum: vec![],
        consoles: vec![],
    };
    InstallAgent::new(settings, "m".into(), control.clone())
}

/// Returns a control plane that allocates the machine after this number of waits.
fn control_after(waits: u32) -> FakeControl {
    let allocation = Some(Allocation { id: "a".into(), ..Allocation::default() });
    FakeControl { allocation, stores_inventory: true, waits: waits.into(), ..FakeControl::default() }
}

fn inspected() -> Inventory {
    let secret = Some(AttemptSecret::generate(&mut uuid::Uuid::new_v4));
    let contents = FilesystemContents {
        device: "/dev/sda2".into(),
        fstab: Some("UUID=a / ext4 defaults 0 1\n//nas/a\t/mnt cifs user=u,password=p4,ro 0 0\n".into()),
        marker: Some(InstallMarker { machine: "m".into(), secret, ..InstallMarker::default() }),
        ..FilesystemContents::default()
    };
    Inventory { filesystems: vec![contents], explored: true, ..Inventory::default() }
}

/// Waits for the allocation, and returns the number of inspections.
fn wait_with(control: FakeControl, inventory: impl Fn() -> Result<Inventory>) -> (u32, Vec<Inventory>) {
    let (control, count) = (Arc::new(control), Cell::new(0));
    let inspect = || {
        count.set(count.get() + 1);
        DiskInspection { inventory: inventory(), running: None }
    };
    let mut agent = agent(&control);
    let (_, allocation) = agent.await_allocation(&inspect).unwrap();
    assert_eq!(allocation.id, "a");
    agent.end_inspection().unwrap();
    (count.get(), control.registered.lock().unwrap().clone())
}

#[test]
fn contents_of_the_disks_are_registered_once_while_the_machine_waits() {
    let (count, registered) = wait_with(control_after(3), || Ok(inspected()));
    assert_eq!((count, registered.len()), (1, 1));
    let [contents] = &registered[0].filesystems[..] else { panic!("{registered:?}") };
    assert!(registered[0].explored && contents.marker.as_ref().is_some_and(|marker| marker.secret.is_none()));
    let expected = "UUID=a / ext4 defaults 0 1\n//nas/a\t/mnt cifs user=u,password=,ro 0 0\n";
    assert_eq!(contents.fstab.as_deref(), Some(expected));
}

#[test]
fn allocated_machine_is_not_inspected() {
    assert_eq!(wait_with(control_after(0), || panic!("the disks were inspected")), (0, vec![]));
}

/// Pool machines, and machines without a server, are not inspected.
#[test]
fn machine_whose_inventory_is_not_stored_is_not_inspected() {
    let control = FakeControl { stores_inventory: false, ..control_after(3) };
    assert_eq!(wait_with(control, || panic!("the disks were inspected")), (0, vec![]));
}

#[test]
fn failed_inspection_or_registration_does_not_end_the_wait() {
    let fails = || Err(Error::new(Phase::Storage, "lock /dev/sda"));
    assert_eq!(wait_with(control_after(3), fails), (1, vec![]));
    let control = control_after(3);
    control.refuses.store(true, std::sync::atomic::Ordering::Relaxed);
    let (count, _) = wait_with(control, || Ok(inspected()));
    assert_eq!(count, 1);
}
