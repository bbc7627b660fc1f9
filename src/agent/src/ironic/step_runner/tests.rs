//! Tests of steps on inventories, with an executor that accesses no device.

mod arrays;
mod portable_disks;
mod simulated_machine;
mod whole_disk_images;

use super::*;
use model::agent_kernel_arguments::AgentSettings;
use model::install_marker::{InstallMarker, lineage};
use model::inventory::FilesystemContents;
use operations::StageName;
use proptest::prelude::*;
use proptest::{collection, sample};
pub use simulated_machine::SimulatedMachine;

pub(crate) fn machine(name: &str) -> Inventory {
    let path = format!("{}/testdata/inventories/{name}.json", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns a layout with the system on one disk.
pub(crate) fn one_disk() -> Value {
    json!({
        "id": "one",
        "disks": [
            {"device": "/dev/sda", "wipeonreinstall": true, "partitions": [
                {"number": 1, "label": "efi", "size": 500, "gpttype": "ef00"},
                {"number": 2, "label": "root", "size": 0, "gpttype": "8300"}]},
        ],
        "filesystems": [
            {"path": "/boot/efi", "device": "/dev/sda1", "format": "vfat", "label": "efi"},
            {"path": "/", "device": "/dev/sda2", "format": "ext4", "label": "root"},
        ],
    })
}

/// Returns the layout of [`one_disk`], but for a disk that the machine does not have.
pub(crate) fn elsewhere() -> Value {
    serde_json::from_str(&one_disk().to_string().replace("/dev/sda", "/dev/sdy")).unwrap()
}

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

struct Bench {
    actions: Arc<SimulatedMachine>,
    steps: StepRunner,
    node: Map<String, Value>,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(SimulatedMachine::new(machine("sata-1")))
    }

    fn with(simulated: SimulatedMachine) -> Bench {
        let actions = Arc::new(simulated);
        let steps = StepRunner::new(actions.clone(), Arc::default(), &["ttyS0".to_owned()]);
        Bench { actions, steps, node: map(json!({"uuid": "n-1", "name": "node-1", "instance_info": {}})) }
    }

    /// Runs a step, given as `interface.step`, or as `step` for the interface `deploy`.
    fn run(&self, step: &str, args: Value) -> Result<Value, String> {
        let (interface, step) = step.split_once('.').unwrap_or(("deploy", step));
        let offer =
            deploy_steps::OFFERED.iter().find(|offer| (offer.interface, offer.step) == (interface, step)).unwrap();
        self.steps.run_step(offer, &IronicNode(&self.node), &map(args)).map_err(|error| error.to_string())
    }

    fn ran(&self) -> Vec<StageName> {
        std::mem::take(&mut self.actions.ran.lock().unwrap())
    }
}

const IMAGE: &str = "http://h/debian-12.0.20261101.tar.zst";

#[test]
fn install_runs_every_stage_except_kexec() {
    let bench = Bench::new();
    let result = bench.run("install", json!({"layout": one_disk(), "image": IMAGE})).unwrap();
    assert_eq!(result["image"], "debian-12.0.20261101");
    assert_eq!(result["steps"].as_array().unwrap().len(), core_step_count());
    let ran = bench.ran();
    for stage in [StageName::StorageWipe, StageName::ImageBurn, StageName::TargetMarker, StageName::StorageUnmount] {
        assert!(ran.contains(&stage), "{stage}: {ran:?}");
    }
    for stage in [StageName::BootLoad, StageName::ReportFinal, StageName::BootKexec] {
        assert!(!ran.contains(&stage), "{stage}: {ran:?}");
    }
    assert!(bench.steps.is_complete_or_unstarted());
    let (root, esp) = bench.steps.root_and_esp_uuids().unwrap();
    assert!(root.len() == 36 && esp.is_some_and(|esp| esp.len() == 9), "{root}");
}

#[test]
fn deploy_steps_together_run_one_plan() {
    let whole = Bench::new();
    whole.run("install", json!({"layout": one_disk(), "image": IMAGE})).unwrap();
    let mut expected = whole.ran();
    expected.sort();

    let bench = Bench::new();
    bench.run("apply_layout", json!({"layout": one_disk()})).unwrap();
    assert!(!bench.steps.is_complete_or_unstarted() && bench.actions.left.lock().unwrap().is_empty());
    bench.run("burn_image", json!({"image": IMAGE})).unwrap();
    let mut ran = bench.ran();
    assert_eq!(
        ran.iter().position(|stage| *stage == StageName::ImageReach),
        Some(ran.iter().position(|stage| *stage == StageName::StorageFormat).unwrap() + 1)
    );
    ran.sort();
    assert_eq!(ran, expected);
    assert!(bench.steps.is_complete_or_unstarted());

    let bench = Bench::new();
    bench.run("apply_layout", json!({"layout": one_disk()})).unwrap();
    bench.run("burn_image", json!({"image": IMAGE, "alone": true})).unwrap();
    for step in ["write_files", "run_installer", "prepare_boot"] {
        bench.run(step, json!({})).unwrap();
        assert!(!bench.steps.is_complete_or_unstarted(), "{step}");
    }
    bench.run("finish", json!({})).unwrap();
    let mut ran = bench.ran();
    ran.sort();
    assert_eq!(ran, expected);
    assert_eq!(*bench.actions.left.lock().unwrap(), [true]);
}

#[test]
fn refuses_step_out_of_order() {
    let bench = Bench::new();
    for step in ["burn_image", "write_files", "finish"] {
        let error = bench.run(step, json!({"image": IMAGE})).unwrap_err();
        assert!(error.contains("the last completed step of this boot is nothing"), "{step}: {error}");
    }
    bench.run("apply_layout", json!({"layout": one_disk()})).unwrap();
    let error = bench.run("finish", json!({})).unwrap_err();
    assert!(
        error.contains("must follow the step deploy.prepare_boot") && error.contains("is deploy.apply_layout"),
        "{error}"
    );
    // A refused step does not discard the started deploy.
    assert!(bench.run("burn_image", json!({"image": 7})).is_err());
    bench.ran();
    bench.run("apply_layout", json!({"layout": one_disk()})).unwrap();
    assert!(bench.run("burn_image", json!({})).unwrap_err().contains("specifies an image"));
    bench.run("burn_image", json!({"image": IMAGE})).unwrap();
}

#[test]
fn unsuitable_layout_is_refused_with_every_reason() {
    let bench = Bench::new();
    let error = bench.run("install", json!({"layout": elsewhere(), "image": IMAGE})).unwrap_err();
    assert!(error.contains("/dev/sdy") && error.contains("nothing was written"), "{error}");
    let error = bench.run("install", json!({"layout": one_disk()})).unwrap_err();
    assert!(error.contains("specifies an image"), "{error}");
    assert_eq!(bench.ran(), []);
}

#[test]
fn failed_stage_ends_the_deploy() {
    let bench = Bench::new();
    *bench.actions.fails_at.lock().unwrap() = Some(StageName::ImageBurn);
    bench.run("apply_layout", json!({"layout": one_disk()})).unwrap();
    let error = bench.run("burn_image", json!({"image": IMAGE})).unwrap_err();
    assert_eq!(error, "image.burn fails on a simulated machine");
    *bench.actions.fails_at.lock().unwrap() = None;
    assert!(bench.run("burn_image", json!({"image": IMAGE})).unwrap_err().contains("is nothing"));
}

#[test]
fn power_off_during_a_deploy_leaves_nothing_bootable() {
    let bench = Bench::new();
    bench.steps.release_all();
    bench.run("apply_layout", json!({"layout": one_disk()})).unwrap();
    bench.steps.release_all();
    // The partial installation remains partial if a step is refused because of its arguments.
    bench.run("apply_layout", json!({"layout": one_disk()})).unwrap();
    assert!(bench.run("install", json!({"layout": 7})).is_err());
    bench.steps.release_all();
    assert_eq!(*bench.actions.left.lock().unwrap(), [true, false, false]);
}

#[test]
fn every_disk_is_erased_and_reported() {
    let bench = Bench::with(SimulatedMachine::new(machine("five-sata")));
    for step in ["erase_devices_metadata", "erase_devices"] {
        let result = bench.run(step, json!({})).unwrap();
        assert_eq!(result["erased"].as_array().unwrap().len(), 5);
        assert_eq!(bench.ran().last(), Some(&StageName::StorageWipe));
    }
    let mut bench = Bench::with(SimulatedMachine::new(machine("five-sata")));
    bench.node.insert("properties".into(), json!({"skip_block_devices": [{"name": "/dev/sda"}]}));
    let result = bench.run("erase_devices", json!({})).unwrap();
    assert_eq!((result["erased"].as_array().unwrap().len(), &result["left_alone"]), (4, &json!(["sda"])));
    bench.ran();
    let error = bench.run("apply_layout", json!({"layout": one_disk()})).unwrap_err();
    assert!(error.contains("skip_block_devices lists /dev/sda, which this step would recreate"), "{error}");
    assert_eq!(bench.ran(), []);
}

const REINSTALL: RequestedMode = RequestedMode::Reinstall { without_marker: false, leave_locked: Vec::new() };

/// Returns layouts of one disk that a reinstall wipes, except for a partition, a volume, or a group.
fn layouts_with_preserved_objects() -> Vec<model::layout::Layout> {
    let with = |change: &dyn Fn(&mut Value)| {
        let mut layout = one_disk();
        layout["disks"][0]["partitions"][1]["size"] = json!(8000);
        layout["disks"][0]["partitions"].as_array_mut().unwrap().push(json!({"number": 3, "label": "data", "size": 0}));
        change(&mut layout);
        model::layout::read_json(&layout).unwrap_or_else(|problems| panic!("{problems:?}")).layout
    };
    let group = json!([{"name": "vg", "devices": ["/dev/sda3"]}]);
    let volume = json!([{"name": "data", "volumegroup": "vg", "size": 1000, "lvmtype": "linear"}]);
    vec![
        with(&|layout| layout["disks"][0]["partitions"][2]["preserve"] = json!(true)),
        with(&|layout| {
            (layout["volumegroups"], layout["logicalvolumes"]) = (group.clone(), volume.clone());
            layout["logicalvolumes"][0]["preserve"] = json!(true);
        }),
        with(&|layout| {
            (layout["volumegroups"], layout["logicalvolumes"]) = (group.clone(), volume.clone());
            layout["volumegroups"][0]["preserve"] = json!(true);
        }),
    ]
}

/// If the node is installed, and the layout preserves a disk or an object, the arguments must contain the mode.
#[test]
fn refuses_to_erase_preserved_disks_without_explicit_mode() {
    let mut inventory = machine("installed-default");
    let marker = InstallMarker { machine: "n-1".into(), allocation: "a-1".into(), ..InstallMarker::default() };
    inventory.filesystems =
        vec![FilesystemContents { device: "/dev/sda2".into(), marker: Some(marker), ..FilesystemContents::default() }];
    let mut layout = model::layout::read_json(&one_disk()).unwrap().layout;
    let mut allocation = Allocation { id: "new".into(), ..Allocation::default() };
    assert!(decide_install_mode("n-1", RequestedMode::Unspecified, &layout, &inventory, &mut allocation).is_ok());
    for layout in layouts_with_preserved_objects() {
        let mode = RequestedMode::Unspecified;
        let error = decide_install_mode("n-1", mode, &layout, &inventory, &mut allocation).unwrap_err().to_string();
        assert!(error.contains("use `mode: reinstall`") && error.contains("nothing was written"), "{error}");
    }
    let kept = model::layout::DiskSpec { device: "/dev/sdb".into(), wipeonreinstall: false, ..layout.disks[0].clone() };
    layout.disks.push(kept);
    let error = decide_install_mode("n-1", RequestedMode::Unspecified, &layout, &inventory, &mut allocation)
        .unwrap_err()
        .to_string();
    assert!(error.contains("use `mode: reinstall`") && error.contains("nothing was written"), "{error}");
    assert!(decide_install_mode("n-1", RequestedMode::Install, &layout, &inventory, &mut allocation).is_ok());
    assert!(!allocation.reinstall);
    decide_install_mode("n-1", REINSTALL, &layout, &inventory, &mut allocation).unwrap();
    assert_eq!((allocation.reinstall, allocation.id.as_str()), (true, "a-1"));
    assert_eq!(allocation.order_id(), Some("new"));
    // Markers of other nodes have no effect here. The plan handles them.
    assert!(
        decide_install_mode("n-2", RequestedMode::Unspecified, &layout, &inventory, &mut Allocation::default()).is_ok()
    );
}

/// A reinstall must not select the wrong installation, even if the clock was wrong during one of them.
#[test]
fn reinstall_selects_the_superseding_installation() {
    let mut inventory = machine("installed-default");
    let layout = model::layout::read_json(&one_disk()).unwrap().layout;
    let marker = |allocation: &str, time: &str| InstallMarker {
        machine: "n-1".into(),
        allocation: allocation.into(),
        time: time.into(),
        ..InstallMarker::default()
    };
    let (old, new) = (marker("a-1", "2099-01-01T00:00:00Z"), marker("a-2", "1970-01-01T00:00:00Z"));
    let proven = InstallMarker { supersedes: lineage::collect_superseded(std::iter::once(&old)), ..new.clone() };
    for (new, expected) in [(proven, Some("a-2")), (new, None)] {
        let filesystem = |device: &str, marker: InstallMarker| FilesystemContents {
            device: device.into(),
            marker: Some(marker),
            ..FilesystemContents::default()
        };
        inventory.filesystems = vec![filesystem("/dev/sda2", old.clone()), filesystem("/dev/sdb1", new)];
        let mut allocation = Allocation { id: "new".into(), ..Allocation::default() };
        let decided = decide_install_mode("n-1", REINSTALL, &layout, &inventory, &mut allocation)
            .map_err(|error| error.to_string());
        match expected {
            Some(expected) => assert_eq!((decided, allocation.id.as_str()), (Ok(()), expected)),
            None => assert!(decided.unwrap_err().contains("several installations of this node")),
        }
    }
}

#[test]
fn executor_is_created_from_settings() {
    // Checks only that the executor can be created. Its operations belong to the session, and are tested there.
    let settings = AgentSettings::from_cmdline("ipa-api-url=http://h").unwrap();
    drop(super::super::machine_actions::MachineExecutor::new(&settings));
}

#[test]
fn files_are_injected_only_into_a_complete_system() {
    let bench = Bench::with(SimulatedMachine::new(machine("installed-default")));
    let files = json!({"files": [{"path": "/etc/motd", "partition": "/dev/sda2", "content": "aGVsbG8="}]});
    assert_eq!(bench.run("inject_files", files.clone()).unwrap(), json!({"filesystems": 1}));
    assert!(bench.ran().contains(&StageName::TargetFiles));
    for (place, why) in
        [(json!(null), "specify `partition` for each file"), (json!(9), "is not a disk, disk partition")]
    {
        let file = json!({"path": "/etc/motd", "partition": place, "content": ""});
        let error = bench.run("inject_files", json!({"files": [file]})).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    bench.run("apply_layout", json!({"layout": one_disk()})).unwrap();
    bench.ran();
    assert!(bench.run("inject_files", files).unwrap_err().contains("run the step `finish` first"));
    assert_eq!(bench.ran(), []);
}

#[test]
fn skipped_disk_is_preserved_by_a_reinstall() {
    let mut bench = Bench::with(SimulatedMachine::new(machine("five-sata")));
    bench.node.insert("properties".into(), json!({"skip_block_devices": [{"name": "/dev/sdb"}]}));
    let mut layout = one_disk();
    let data = json!({"device": "/dev/sdb", "wipeonreinstall": true, "partitions": []});
    layout["disks"].as_array_mut().unwrap().push(data);
    // Without a marker and a record, a disk with data is erased only if the layout does not select it by its name.
    layout["disks"][0]["hints"] = json!({"serial": "QM00001"});
    let told = |mode: &str| json!({"layout": layout, "mode": mode, "without_marker": mode == "reinstall"});
    let error = bench.run("apply_layout", told("install")).unwrap_err();
    assert!(error.contains("skip_block_devices lists /dev/sdb"), "{error}");
    bench.run("apply_layout", told("reinstall")).unwrap();
    assert_eq!(*bench.actions.wiped.lock().unwrap(), ["/dev/sda"]);
    assert_eq!(*bench.actions.opens.lock().unwrap(), [false, true], "a reinstall unlocks preserved containers");
}

/// Generates arbitrary JSON that contains names and values of arguments.
fn anything() -> impl Strategy<Value = Value> {
    let texts =
        vec!["/dev/sda", "install", "reinstall", "secure", "MAX", "1", "software", "http://h/i.tar.zst", "raw", "YQ=="];
    let keys = vec![
        "layout",
        "image",
        "erase",
        "mode",
        "without_marker",
        "alone",
        "raid_config",
        "logical_disks",
        "size_gb",
        "raid_level",
        "image_info",
        "urls",
        "os_hash_algo",
        "os_hash_value",
        "configdrive",
        "files",
        "path",
        "content",
        "deleted",
        "partition",
        "url",
        "id",
        "disks",
        "device",
        "partitions",
        "filesystems",
        "properties",
        "skip_block_devices",
        "root_device",
        "target_raid_config",
        "instance_info",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        sample::select(texts).prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, move |inner| {
        let fields = collection::btree_map(sample::select(keys.clone()), inner.clone(), 0..6);
        let object = fields.prop_map(|fields| fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect());
        prop_oneof![collection::vec(inner, 0..4).prop_map(Value::Array), object.prop_map(Value::Object)]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// With arbitrary arguments, a refused step has written nothing, and no step panics.
    #[test]
    fn step_with_invalid_arguments_writes_nothing(args in anything(), node in anything()) {
        for offer in &deploy_steps::OFFERED {
            let mut bench = Bench::new();
            bench.node = node.as_object().cloned().unwrap_or_default();
            let args = args.as_object().cloned().unwrap_or_default();
            let refused = bench.steps.run_step(offer, &IronicNode(&bench.node), &args).is_err();
            prop_assert!(!refused || bench.ran().is_empty(), "{}", offer.step);
        }
    }
}
