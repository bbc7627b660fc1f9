//! Scenarios other than a plain deploy, with simulated machines: inspection, arrays, `direct`, rescue, service.

use super::super::step_runner::tests::{SimulatedMachine, machine};
use super::super::*;
use super::deploy_scenarios::{API, boot, ran, two_steps};
use super::ironic_process::{Ironic, step};
use model::inventory::FirmwareType;
use operations::StageName;
use reqwest::Method;
use serde_json::{Value, json};

pub(crate) fn inspection(ironic: &mut Ironic) -> String {
    let mac = ironic.enroll("inspected", "ipxe", &json!({}));
    ironic.target("inspected", "inspect");
    let booted = boot(ironic, &mac, "ipa-inspection-callback-url=IRONIC/v1/continue_inspection", |_| ());
    let history = ironic.wait_for_state("inspected", &["manageable"]);
    let found = ironic.ask(Method::GET, "nodes/inspected/inventory", &Value::Null);
    assert_eq!(found["inventory"]["interfaces"][0]["mac_address"], json!(mac));
    assert_eq!(found["inventory"]["disks"].as_array().unwrap().len(), booted.simulated.inventory.disks.len());
    history
}

fn arrays() -> Value {
    json!({"logical_disks": [
        {"size_gb": 10, "raid_level": "1", "controller": "software", "is_root_volume": true},
        {"size_gb": "MAX", "raid_level": "0", "controller": "software"},
    ]})
}

fn five_disks(simulated: &mut SimulatedMachine) {
    simulated.inventory.disks = machine("five-sata").disks;
}

/// Deploys on arrays that `raid.apply_configuration` creates. The conductor then stores the result of this step in the
/// node.
pub(crate) fn deploy_on_arrays(ironic: &mut Ironic) -> String {
    let step_of_raid = json!({"interface": "raid", "step": "apply_configuration", "priority": 95,
        "args": {"raid_config": arrays(), "delete_existing": true}});
    let image = json!({"image": "http://127.0.0.1:9/debian-12.0.20261101.tar.zst"});
    let mac = ironic.with_template("arrays", &json!([step_of_raid, step("burn_image", 80, &image)]));
    ironic.target("arrays", "active");
    let booted = boot(ironic, &mac, API, five_disks);
    let history = ironic.wait_for_state("arrays", &["active"]);
    assert!(ran(&booted, StageName::StorageRaid) && ran(&booted, StageName::TargetMarker));
    let node = ironic.node("arrays");
    assert_eq!(node["raid_config"]["logical_disks"], arrays()["logical_disks"]);
    assert!(node["properties"]["capabilities"].as_str().unwrap().contains("raid_level:1"), "{node}");
    history
}

/// Deploys on arrays with the step `deploy.create_configuration`, which was proposed for Ironic. Current versions of
/// Ironic do not have this step.
pub(crate) fn deploy_on_arrays_of_the_proposal(ironic: &mut Ironic) -> String {
    let args = json!({"logical_disks": [{"size_gb": "MAX", "raid_level": "1", "is_root_volume": true}],
        "delete_configuration": true});
    let image = json!({"image": "http://127.0.0.1:9/debian-12.0.20261101.tar.zst"});
    let steps = json!([step("create_configuration", 90, &args), step("burn_image", 80, &image)]);
    let mac = ironic.with_template("proposal", &steps);
    ironic.target("proposal", "active");
    let booted = boot(ironic, &mac, API, five_disks);
    let history = ironic.wait_for_state("proposal", &["active"]);
    assert!(ran(&booted, StageName::StorageRaid) && ran(&booted, StageName::TargetMarker));
    history
}

pub(crate) fn arrays_by_cleaning(ironic: &mut Ironic) -> String {
    let mac = ironic.enroll("raid-clean", "fake", &json!({"cpu_arch": "x86_64"}));
    ironic.ask(Method::PUT, "nodes/raid-clean/states/raid", &arrays());
    let steps = ["delete_configuration", "create_configuration"].map(|step| json!({"interface": "raid", "step": step}));
    ironic.wish("raid-clean", &json!({"target": "clean", "clean_steps": steps}));
    let booted = boot(ironic, &mac, API, five_disks);
    let history = ironic.wait_for_state("raid-clean", &["manageable"]);
    assert!(ran(&booted, StageName::StorageRaid));
    assert_eq!(ironic.node("raid-clean")["raid_config"]["logical_disks"], arrays()["logical_disks"]);
    history
}

/// Deploys with the interface for whole-disk images and a config drive.
pub(crate) fn direct(ironic: &mut Ironic) -> String {
    let server = testing::http::Server::start(vec![7; 1 << 20], |_| testing::http::ResponseBehavior::default());
    let mac = ironic.with_template("direct", &json!([step("erase_devices_metadata", 95, &json!({}))]));
    let patch = json!([
        {"op": "add", "path": "/deploy_interface", "value": "direct"},
        {"op": "add", "path": "/instance_info/image_source", "value": server.url("disk.raw")},
        {"op": "add", "path": "/instance_info/image_os_hash_algo", "value": "sha256"},
        {"op": "add", "path": "/instance_info/image_os_hash_value", "value": "0".repeat(64)},
        {"op": "add", "path": "/instance_info/image_type", "value": "whole-disk"},
        {"op": "add", "path": "/instance_info/image_disk_format", "value": "raw"},
        {"op": "add", "path": "/properties/capabilities", "value": "boot_mode:uefi"},
        // The text `drive`, compressed with gzip and encoded in base64.
        {"op": "add", "path": "/instance_info/configdrive", "value": "H4sIAAAAAAACA0spyixLBQCP9R1oBQAAAA=="},
    ]);
    ironic.ask(Method::PATCH, "nodes/direct", &patch);
    ironic.target("direct", "active");
    let booted = boot(ironic, &mac, API, |simulated| {
        simulated.inventory.system.firmware = FirmwareType::Uefi;
        simulated.brings = machine("installed-default").disks[0].table.clone();
    });
    let history = ironic.wait_for_state("direct", &["active"]);
    assert!(ran(&booted, StageName::ImageBurn) && !ran(&booted, StageName::TargetInstaller));
    // After the conductor has ordered the step that writes the image, it orders the step that installs a boot loader.
    assert!(ran(&booted, StageName::BootEntries));
    assert_eq!(booted.run.join().unwrap().unwrap(), IronicEnding::PowerOff);
    history
}

/// Tests a partition image. The conductor accepts the image, but the agent refuses it with an error that contains a
/// remedy.
pub(crate) fn direct_partition(ironic: &mut Ironic) -> String {
    let server = testing::http::Server::start(vec![7; 1 << 20], |_| testing::http::ResponseBehavior::default());
    let mac = ironic.with_template("partition", &json!([step("erase_devices_metadata", 95, &json!({}))]));
    let patch = json!([
        {"op": "add", "path": "/deploy_interface", "value": "direct"},
        {"op": "add", "path": "/instance_info/image_source", "value": server.url("root.raw")},
        {"op": "add", "path": "/instance_info/image_os_hash_algo", "value": "sha256"},
        {"op": "add", "path": "/instance_info/image_os_hash_value", "value": "0".repeat(64)},
        {"op": "add", "path": "/instance_info/image_type", "value": "partition"},
        {"op": "add", "path": "/instance_info/image_disk_format", "value": "raw"},
        {"op": "add", "path": "/instance_info/root_gb", "value": 10},
        {"op": "remove", "path": "/instance_info/configdrive"},
    ]);
    ironic.ask(Method::PATCH, "nodes/partition", &patch);
    ironic.target("partition", "active");
    let booted = boot(ironic, &mac, API, |_| ());
    let history = ironic.wait_for_state("partition", &["deploy failed"]);
    let error = ironic.node("partition")["last_error"].to_string();
    assert!(error.contains("this is a partition image; use a whole-disk image"), "{error}");
    assert!(!ran(&booted, StageName::ImageBurn));
    history
}

/// Boots the agent on a deployed machine for a rescue login, and then returns the machine to service.
pub(crate) fn rescue(ironic: &mut Ironic) -> String {
    let mac = ironic.with_template("rescued", &two_steps());
    let kernel = format!("file://{}/kernel", ironic.directory.display());
    let patch = json!([
        {"op": "add", "path": "/boot_interface", "value": "ipxe"},
        {"op": "add", "path": "/rescue_interface", "value": "agent"},
        {"op": "add", "path": "/instance_info/image_source", "value": "http://127.0.0.1:9/debian-12.0.20261101.tar.zst"},
        {"op": "add", "path": "/driver_info/rescue_kernel", "value": kernel},
        {"op": "add", "path": "/driver_info/rescue_ramdisk", "value": kernel},
    ]);
    ironic.ask(Method::PATCH, "nodes/rescued", &patch);
    ironic.target("rescued", "active");
    let booted = boot(ironic, &mac, API, |_| ());
    let deployed = ironic.wait_for_state("rescued", &["active"]);
    assert_eq!(booted.run.join().unwrap().unwrap(), IronicEnding::PowerOff);
    ironic.wish("rescued", &json!({"target": "rescue", "rescue_password": "correct horse"}));
    let booted = boot(ironic, &mac, API, |_| ());
    let rescued = ironic.wait_for_state("rescued", &["rescue"]);
    assert_eq!(booted.run.join().unwrap().unwrap(), IronicEnding::Rescue);
    let hash = booted.simulated.let_in.lock().unwrap().clone().unwrap();
    assert!(hash.starts_with("$5$") || hash.starts_with("$6$"), "{hash}");
    assert_eq!(*booted.simulated.ran.lock().unwrap(), []);
    ironic.target("rescued", "unrescue");
    format!("{deployed}; {rescued}; {}", ironic.wait_for_state("rescued", &["active"]))
}

/// Writes a file into the installed system of a deployed machine.
pub(crate) fn service(ironic: &mut Ironic) -> String {
    let mac = ironic.with_template("serviced", &two_steps());
    ironic.target("serviced", "active");
    let booted = boot(ironic, &mac, API, |_| ());
    ironic.wait_for_state("serviced", &["active"]);
    assert_eq!(booted.run.join().unwrap().unwrap(), IronicEnding::PowerOff);
    let files = json!([{"path": "/etc/motd", "partition": "/dev/sda2", "content": "aGVsbG8="}]);
    let step = json!({"interface": "deploy", "step": "inject_files", "args": {"files": files}});
    ironic.wish("serviced", &json!({"target": "service", "service_steps": [step]}));
    let booted = boot(ironic, &mac, API, |simulated| simulated.inventory.disks = machine("installed-default").disks);
    let history = ironic.wait_for_state("serviced", &["active"]);
    assert!(ran(&booted, StageName::TargetFiles) && !ran(&booted, StageName::StorageWipe));
    history
}
