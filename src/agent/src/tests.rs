//! Tests of the agent's actions for an allocation.

use super::failure_handling::NextAction;
use super::*;
use control::ReportAcknowledgement;
use control::fake_control_plane::FakeControl;
use model::install_marker::{InstallMarker, RecordedDisk};
use model::inventory::{DeviceSignature, DiskPartition, DiskTable, FilesystemContents, InventoryDisk};
use plan::MarkerWaiver;
use plan::request_from_allocation::marker_waiver;

const LAYOUT: &str = "id: alone
disks: [{device: /dev/sda, wipeonreinstall: true, partitions: [{number: 1, size: 0}]}]
filesystems: [{path: /, device: /dev/sda1, format: ext4}]
";

fn inventory(marker: Option<InstallMarker>) -> Inventory {
    let part = DiskPartition { number: 1, device: "/dev/sda1".into(), ..DiskPartition::default() };
    let guid = Some(uuid::Uuid::from_u128(7));
    let table = Some(DiskTable { kind: "gpt".into(), guid, partitions: vec![part] });
    let disk = InventoryDisk { name: "sda".into(), device: "/dev/sda".into(), table, ..InventoryDisk::default() };
    let filesystem = FilesystemContents { device: "/dev/sda1".into(), marker, ..FilesystemContents::default() };
    Inventory { disks: vec![disk], filesystems: vec![filesystem], ..Inventory::default() }
}

/// The server has recorded the start of the first attempt, but its response was lost.
#[test]
fn attempt_with_untouched_disks_counts_as_not_started() {
    let layout = model::layout::read_yaml(LAYOUT).unwrap().layout;
    let guid = uuid::Uuid::from_u128(7).to_string();
    let disks = vec![RecordedDisk { device: "/dev/sda".into(), guid: Some(guid), ..RecordedDisk::default() }];
    let marker = InstallMarker {
        machine: "m".into(),
        allocation: "a".into(),
        order: Some("o-1".into()),
        disks,
        ..InstallMarker::default()
    };
    for (there, started) in [
        (Some(marker.clone()), false),
        (None, true),
        (Some(InstallMarker { disks: vec![], ..marker.clone() }), true),
        (Some(InstallMarker { order: Some("o-2".into()), ..marker }), true),
    ] {
        let order = Some(OrderedReinstall { id: "o-2".into(), started: true, ..OrderedReinstall::default() });
        let mut allocation = Allocation { id: "a".into(), order, reinstall: true, ..Allocation::default() };
        assert_eq!(clear_begun_if_intact("m", &mut allocation, &layout, &inventory(there.clone())), !started);
        let order = allocation.order.as_ref().unwrap();
        assert_eq!(
            (order.started, marker_waiver(order)),
            (started, started.then_some(MarkerWaiver::Begun)),
            "{there:?}"
        );
    }
}

#[test]
fn permanent_allocation_file_is_executed_once() {
    let layout = model::layout::read_yaml(LAYOUT).unwrap().layout;
    let marker = |order: &str| {
        let order = common::empty_string_as_none::non_empty(order.to_owned());
        Some(InstallMarker { machine: "m".into(), allocation: "a".into(), order, ..InstallMarker::default() })
    };
    for (there, order, is_done) in [
        (None, None, false),
        (marker(""), None, true),
        (marker(""), Some("1"), false),
        (marker("1"), Some("1"), true),
        (marker("9007199254740992"), Some("1"), false),
        (marker("2"), None, true),
    ] {
        let mut inventory = inventory(there);
        let table = inventory.disks[0].table.as_mut().unwrap();
        table.partitions[0].signatures = vec![DeviceSignature { kind: "ext4".into(), ..DeviceSignature::default() }];
        let order =
            order.map(|id| OrderedReinstall { id: id.into(), attempt: 1, attempts: 1, ..OrderedReinstall::default() });
        let mut allocation = Allocation { id: "a".into(), reinstall: order.is_some(), order, ..Allocation::default() };
        match allocation.reinstall {
            true => drop(order_number_check::compare_order("m", &mut allocation, &inventory).unwrap()),
            false => state_from_markers::complete_from_markers("m", &mut allocation, &inventory).unwrap(),
        }
        let request = build_request(&AssignedMachine::default(), "m", &allocation, &[]);
        let plan = plan::make_plan(&layout, &inventory, request, &mut Uuid::new_v4);
        let already = plan.is_ok_and(|plan| plan.already.is_some());
        assert_eq!(already, is_done, "{allocation:?} {inventory:?}");
    }
}

/// The failure is reported for this order and ends it. The installed system is then booted.
#[test]
fn unreadable_key_ends_a_reinstall_before_the_first_write() {
    let order = Some(OrderedReinstall { id: "o-1".into(), attempt: 1, attempts: 3, ..OrderedReinstall::default() });
    let allocation = Some(Allocation { id: "a".into(), reinstall: true, order, ..Allocation::default() });
    let control: Arc<dyn ControlPlane> = Arc::new(FakeControl { allocation, ..FakeControl::default() });
    let server = ControlPlaneSource::Server { url: "http://127.0.0.1:9".into(), token: "t".into() };
    let settings = AgentSettings {
        control: server,
        machine: None,
        keys: vec!["no key".into()],
        minimum: vec![],
        consoles: vec![],
    };
    let mut agent = InstallAgent::new(settings, "m".into(), control);
    let failure = agent.prepare_install(Inventory::default()).err().expect("an invalid key was accepted");
    assert!(failure.error.to_string().contains("drophammer.key=no key"), "{failure:?}");
    assert_eq!((failure.step.as_str(), failure.allocation.order_id()), ("keys", Some("o-1")));
    assert_eq!(failure.choose_next_action(&ReportAcknowledgement::default()), NextAction::BootInstalled);
}

/// Tests the erasure of a pool machine without accessing the devices of this host.
#[test]
fn pool_machine_with_possibly_owned_data_is_not_erased() {
    let control = Arc::new(FakeControl::default());
    let settings = AgentSettings {
        control: ControlPlaneSource::MetalStack { pixie: "http://127.0.0.1:9".into() },
        machine: None,
        keys: vec![],
        minimum: vec![],
        consoles: vec![],
    };
    let agent = InstallAgent::new(settings, "m".into(), control);
    let marked = |allocation: &str, project: &str| {
        let (machine, allocation, project) = ("m".to_owned(), allocation.to_owned(), project.to_owned());
        inventory(Some(InstallMarker { machine, allocation, project, ..InstallMarker::default() }))
    };
    let mut unseen = inventory(None);
    unseen.disks[0].signatures = vec![DeviceSignature { kind: "ext4".into(), ..DeviceSignature::default() }];
    unseen.filesystems.clear();
    let layout = || serde_json::json!(model::layout::read_yaml(LAYOUT).unwrap().layout);
    let is = |id: &str| Allocation {
        id: id.into(),
        project: "p".into(),
        filesystemlayout: layout(),
        ..Allocation::default()
    };
    for (name, there, allocation, erases) in [
        ("the machine is not allocated", marked("a", "p"), None, Ok(true)),
        ("not allocated, with unreadable content", unseen.clone(), None, Ok(true)),
        ("this allocation is installed", marked("a", "p"), Some(is("a")), Ok(false)),
        ("another allocation is installed", marked("b", "p"), Some(is("a")), Ok(true)),
        (
            "another allocation of the owner is installed, and data is preserved",
            marked("b", "p"),
            Some(Allocation { keeps: true, ..is("a") }),
            Ok(false),
        ),
        ("data of another owner", marked("b", "q"), Some(Allocation { keeps: true, ..is("a") }), Ok(true)),
        (
            "another agent has installed it",
            inventory(None),
            Some(Allocation { succeeded: true, ..is("a") }),
            Err("another agent"),
        ),
        (
            "installed, and recorded by the control plane",
            marked("a", "p"),
            Some(Allocation { succeeded: true, ..is("a") }),
            Ok(false),
        ),
        (
            "another agent has installed it, and a reinstall is ordered",
            inventory(None),
            Some(Allocation { succeeded: true, reinstall: true, ..is("a") }),
            Ok(false),
        ),
        ("a reinstall", inventory(None), Some(Allocation { reinstall: true, ..is("a") }), Ok(false)),
        (
            "the unreadable content may be an installation",
            unseen.clone(),
            Some(is("a")),
            Err("the contents of ext4 on /dev/sda ("),
        ),
    ] {
        let found = agent.plan_erasure(&there, allocation.as_ref(), &[]).map(|plan| plan.is_some());
        match (found, erases) {
            (Ok(found), Ok(erases)) => assert_eq!(found, erases, "{name}"),
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{name}: {error}"),
            (found, _) => panic!("{name}: {found:?}"),
        }
    }
}
