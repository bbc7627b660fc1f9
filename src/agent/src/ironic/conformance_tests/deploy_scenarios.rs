//! Simulated machines (`step_runner::tests::SimulatedMachine`): their disks are inventories from `testdata`, and
//! their executor records the stages. No code here can open a device, so the disks of the host are safe.

use super::super::step_runner::tests::{SimulatedMachine, elsewhere, machine, one_disk};
use super::super::*;
use super::ironic_process::{Ironic, PATIENCE, step};
use model::agent_kernel_arguments::ControlPlaneSource;
use model::inventory::{InventoryDisk, Nic};
use operations::StageName;
use serde_json::{Value, json};
use std::fs;
use std::thread::JoinHandle;

/// Simulated machine that is switched on.
pub(crate) struct Booted {
    pub simulated: Arc<SimulatedMachine>,
    pub run: JoinHandle<Result<IronicEnding>>,
}

pub(crate) fn boot(ironic: &Ironic, mac: &str, words: &str, change: impl FnOnce(&mut SimulatedMachine)) -> Booted {
    let mut inventory = machine("sata-1");
    inventory.nics = vec![Nic { name: "eth0".into(), mac: mac.into(), ..Nic::default() }];
    let mut simulated = SimulatedMachine::new(inventory.clone());
    change(&mut simulated);
    let simulated = Arc::new(simulated);
    let cmdline =
        format!("{} ipa-advertise-host=127.0.0.1 ipa-listen-port=0 BOOTIF={mac}", words.replace("IRONIC", &ironic.url));
    let actions = simulated.clone();
    let run = thread::spawn(move || {
        let ControlPlaneSource::Conductor(conductor) = AgentSettings::from_cmdline(&cmdline).unwrap().control else {
            panic!("{cmdline}")
        };
        let directory = tempfile::tempdir().unwrap();
        let agent = IronicAgent {
            conductor: &conductor,
            inventory: &inventory,
            directory: directory.path(),
            gap: HEARTBEAT_INTERVAL,
        };
        agent.serve_conductor(actions, &[])
    });
    Booted { simulated, run }
}

pub(crate) const API: &str = "ipa-api-url=IRONIC";

pub(crate) fn two_steps() -> Value {
    let image = json!({"image": "http://127.0.0.1:9/debian-12.0.20261101.tar.zst"});
    json!([step("apply_layout", 90, &json!({"layout": one_disk()})), step("burn_image", 80, &image)])
}

pub(crate) fn ran(booted: &Booted, stage: StageName) -> bool {
    booted.simulated.ran.lock().unwrap().contains(&stage)
}

/// Cleans automatically, and then deploys with the same agent, without a reboot. In between, the conductor forgets
/// the agent, so the agent repeats the lookup.
pub(crate) fn cleaning(ironic: &mut Ironic) -> String {
    let mac = ironic.enroll("cleaning", "fake", &json!({"cpu_arch": "x86_64"}));
    ironic.target("cleaning", "provide");
    let booted = boot(ironic, &mac, API, |_| ());
    let history = ironic.wait_for_state("cleaning", &["available"]);
    assert!(ran(&booted, StageName::StorageWipe) && !ran(&booted, StageName::StoragePartition));
    ironic.choose("cleaning", &two_steps());
    ironic.target("cleaning", "active");
    let again = ironic.wait_for_state("cleaning", &["active"]);
    assert_eq!(booted.run.join().unwrap().unwrap(), IronicEnding::PowerOff);
    format!("{history}; then {again}")
}

/// Cleans manually, in the requested order. A disk that the node's owner preserves is not touched.
pub(crate) fn manual_cleaning(ironic: &mut Ironic) -> String {
    let properties = json!({"cpu_arch": "x86_64", "skip_block_devices": [{"serial": "KEEP"}]});
    let mac = ironic.enroll("manual", "fake", &properties);
    let steps = ["erase_devices", "erase_devices_metadata"].map(|step| json!({"interface": "deploy", "step": step}));
    ironic.wish("manual", &json!({"target": "clean", "clean_steps": steps}));
    let booted = boot(ironic, &mac, API, |simulated| {
        let kept = InventoryDisk {
            name: "sdb".into(),
            device: "/dev/sdb".into(),
            serial: "KEEP".into(),
            ..simulated.inventory.disks[0].clone()
        };
        simulated.inventory.disks.push(kept);
    });
    let history = ironic.wait_for_state("manual", &["manageable"]);
    let wipes = booted.simulated.ran.lock().unwrap().iter().filter(|stage| **stage == StageName::StorageWipe).count();
    assert_eq!(wipes, 2);
    assert_eq!(*booted.simulated.wiped.lock().unwrap(), ["/dev/sda", "/dev/sda"]);
    history
}

/// Aborts a deploy. Ironic does not notify the agent of the abort, so the running step completes. The next step is not
/// started.
pub(crate) fn abort(ironic: &mut Ironic) -> String {
    let mac = ironic.with_template("aborted", &two_steps());
    ironic.target("aborted", "active");
    let booted = boot(ironic, &mac, API, |simulated| simulated.pause = Duration::from_secs(12));
    let end = Instant::now() + PATIENCE;
    loop {
        let node = ironic.node("aborted");
        if node["deploy_step"]["step"] == "apply_layout" && node["provision_state"] == "wait call-back" {
            break;
        }
        assert!(Instant::now() < end, "{node}");
        thread::sleep(Duration::from_millis(200));
    }
    ironic.target("aborted", "abort");
    let history = ironic.wait_for_state("aborted", &["deploy failed"]);
    assert!(!ran(&booted, StageName::ImageBurn));
    history
}

pub(crate) fn deploy(ironic: &mut Ironic) -> String {
    let mac = ironic.with_template("deploy", &two_steps());
    ironic.target("deploy", "active");
    let booted = boot(ironic, &mac, API, |_| ());
    let history = ironic.wait_for_state("deploy", &["active"]);
    assert_eq!(booted.run.join().unwrap().unwrap(), IronicEnding::PowerOff);
    let ran = booted.simulated.ran.lock().unwrap();
    let place =
        |stage: StageName| ran.iter().position(|one| *one == stage).unwrap_or_else(|| panic!("{stage}: {ran:?}"));
    assert!(place(StageName::StorageFormat) < place(StageName::ImageReach));
    assert!(place(StageName::ImageBurn) < place(StageName::StorageUnmount));
    history
}

pub(crate) fn everything_in_one_step(ironic: &mut Ironic) -> String {
    let args =
        json!({"layout": one_disk(), "image": {"url": "http://127.0.0.1:9/a.tar.zst", "id": "debian-12.0.20261101"}});
    let mac = ironic.with_template("one-step", &json!([step("install", 90, &args)]));
    ironic.target("one-step", "active");
    let booted = boot(ironic, &mac, API, |_| ());
    let history = ironic.wait_for_state("one-step", &["active"]);
    assert!(ran(&booted, StageName::TargetMarker) && !ran(&booted, StageName::BootKexec));
    history
}

/// Checks that the operator receives the message of a failure, and that the logs are collected.
pub(crate) fn failing_step(ironic: &mut Ironic) -> String {
    let mac = ironic.with_template("failing", &two_steps());
    ironic.target("failing", "active");
    let booted =
        boot(ironic, &mac, API, |simulated| *simulated.fails_at.get_mut().unwrap() = Some(StageName::ImageBurn));
    let history = ironic.wait_for_state("failing", &["deploy failed"]);
    let error = ironic.node("failing")["last_error"].to_string();
    assert!(error.contains("image.burn fails on a simulated machine"), "{error}");
    let logs: Vec<_> = fs::read_dir(ironic.directory.join("logs")).unwrap().collect();
    assert!(!logs.is_empty(), "no logs were stored");
    drop(booted);
    history
}

/// Checks that a layout that does not fit is refused before the first write, and that all reasons are reported.
pub(crate) fn refused_layout(ironic: &mut Ironic) -> String {
    let wrong = elsewhere();
    let mac = ironic.with_template("refused", &json!([step("apply_layout", 90, &json!({"layout": wrong}))]));
    ironic.target("refused", "active");
    let booted = boot(ironic, &mac, API, |_| ());
    let history = ironic.wait_for_state("refused", &["deploy failed"]);
    let error = ironic.node("refused")["last_error"].to_string();
    assert!(error.contains("/dev/sdy"), "{error}");
    assert_eq!(*booted.simulated.ran.lock().unwrap(), []);
    history
}

pub(crate) fn unknown_step(ironic: &mut Ironic) -> String {
    let mac = ironic.with_template("unknown", &json!([step("apply_magic", 90, &json!({}))]));
    ironic.target("unknown", "active");
    let booted = boot(ironic, &mac, API, |_| ());
    let history = ironic.wait_for_state("unknown", &["deploy failed"]);
    let error = ironic.node("unknown")["last_error"].to_string();
    assert!(error.contains("apply_magic"), "{error}");
    assert_eq!(*booted.simulated.ran.lock().unwrap(), []);
    history
}

pub(crate) fn undeclared_argument(ironic: &mut Ironic) -> String {
    let args = json!({"layout": one_disk(), "colour": "red"});
    let mac = ironic.with_template("undeclared", &json!([step("apply_layout", 90, &args)]));
    ironic.target("undeclared", "active");
    let booted = boot(ironic, &mac, API, |_| ());
    let history = ironic.wait_for_state("undeclared", &["deploy failed"]);
    let error = ironic.node("undeclared")["last_error"].to_string();
    assert!(error.contains("colour"), "{error}");
    assert_eq!(*booted.simulated.ran.lock().unwrap(), []);
    history
}

/// Checks that clients without the token, or with an old TLS library, are rejected while a step runs, and that the
/// deploy continues.
pub(crate) fn wrong_token(ironic: &mut Ironic) -> String {
    let mac = ironic.with_template("stranger", &two_steps());
    ironic.target("stranger", "active");
    let booted = boot(ironic, &mac, API, |simulated| simulated.pause = Duration::from_secs(4));
    let end = Instant::now() + PATIENCE;
    let url = loop {
        let node = ironic.node("stranger");
        if let Some(url) = node["driver_internal_info"]["agent_url"].as_str() {
            break url.to_owned();
        }
        assert!(Instant::now() < end, "{node}");
        thread::sleep(Duration::from_millis(200));
    };
    let stranger = linux::http::client_builder(Some(PATIENCE)).danger_accept_invalid_certs(true).build().unwrap();
    let order = json!({"name": "standby.power_off", "params": {}});
    for token in ["", "******", "x"] {
        let answer = stranger.post(format!("{url}/v1/commands/?agent_token={token}")).json(&order).send().unwrap();
        assert_eq!(answer.status(), 401);
    }
    let old = linux::http::client_builder(Some(PATIENCE)).danger_accept_invalid_certs(true);
    let old = old.tls_version_max(reqwest::tls::Version::TLS_1_2).build().unwrap();
    assert!(old.get(&url).send().is_err(), "TLS 1.2 is answered");
    let history = ironic.wait_for_state("stranger", &["active"]);
    assert_eq!(booted.run.join().unwrap().unwrap(), IronicEnding::PowerOff);
    history
}

/// Kills the conductor while a step runs, and restarts it.
pub(crate) fn conductor_away(ironic: &mut Ironic) -> String {
    let mac = ironic.with_template("away", &two_steps());
    ironic.target("away", "active");
    let booted = boot(ironic, &mac, API, |simulated| simulated.pause = Duration::from_secs(6));
    let end = Instant::now() + PATIENCE;
    while ironic.node("away")["deploy_step"]["step"] != "apply_layout" {
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(200));
    }
    thread::sleep(Duration::from_secs(2));
    ironic.kill();
    thread::sleep(Duration::from_secs(8));
    ironic.start_again();
    let history = ironic.wait_for_state("away", &["active"]);
    assert_eq!(booted.run.join().unwrap().unwrap(), IronicEnding::PowerOff);
    history
}
