//! Conformance test against the published rules of metal-stack's API. `scripts/metal` installs a control plane that
//! enforces these rules, and runs this test.
//!
//! The machines are simulated: their disks are inventories from `testdata`, and their plans are not executed. No code
//! here can open a device, so the disks of the host are safe.

mod api_v1;

use super::*;
use crate::add_lldp_neighbors;
use crate::report::ProgressReporter;
use control::AttemptNotice;
use control::fake_control_plane::ended;
use control::metal_stack::MetalControlPlane;
use model::allocation::Allocation;
use model::install_marker::RecordedDisk;
use model::install_report::EventName;
use model::inventory::InventoryDisk;
use model::inventory::lldp::{LldpNeighbor, NicNeighbors};
use plan::{Plan, PlanSubject, PoolAllocation, request_from_allocation};
use reqwest::blocking::Client;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::thread;
use uuid::Uuid;

const MACHINE_ID: &str = "4c4c4544-0051-3010-8052-b4c04f4e4232";
const PATIENCE: Duration = Duration::from_secs(120);

/// Simulated rack: a process that is both pixie and control plane.
struct Rack {
    process: Child,
    url: String,
    client: Client,
}

impl Rack {
    fn start() -> Rack {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Rack::run("server.py", &[port.to_string()], port)
    }

    fn run(script: &str, arguments: &[String], port: u16) -> Rack {
        let venv =
            PathBuf::from(std::env::var_os("DROPHAMMER_METAL").expect("scripts/metal must set DROPHAMMER_METAL"));
        let mut process = Process::new(venv.join("bin/python"));
        process
            .arg(format!("{}/scripts/metal.d/{script}", concat!(env!("CARGO_MANIFEST_DIR"), "/../..")))
            .args(arguments)
            .stdout(Stdio::piped());
        let mut process = process.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Rack { process, url: format!("http://127.0.0.1:{port}"), client: linux::http::new_client().unwrap() }
    }

    fn steer(&self, what: &str, how: &Value) {
        let answer = self.client.post(format!("{}/judge/{what}", self.url)).json(how).timeout(PATIENCE).send().unwrap();
        assert!(answer.status().is_success(), "{what}: {}", answer.status());
    }

    fn log(&self) -> Value {
        self.client.get(format!("{}/judge/log", self.url)).timeout(PATIENCE).send().unwrap().json().unwrap()
    }

    /// Boots a machine. Returns its reporter, and its control plane with the address and certificates from pixie.
    fn boots(&self) -> (Arc<MetalControlPlane>, ProgressReporter) {
        let control =
            MetalControlPlane::new(&format!("{}/certs", self.url), MACHINE_ID, Path::new("/proc/nonexistent"));
        let control = Arc::new(control.unwrap_or_else(|error| panic!("{error}")));
        (control.clone(), ProgressReporter::new(control))
    }

    /// Returns the names of all calls and events, without their messages. Asserts that no call or event violated the
    /// rules.
    fn calls(&self) -> Vec<String> {
        let log = self.log();
        assert_eq!(log["wrong"], json!([]), "{log:#}");
        let calls = log["calls"].as_array().unwrap().iter();
        let calls = calls.map(|call| {
            let (name, event) = (call["call"].as_str().unwrap(), call["message"]["event"]["event"].as_str());
            let event = event.map(|event| event.trim_start_matches("MACHINE_PROVISIONING_EVENT_TYPE_"));
            event.map_or(name.to_owned(), |event| format!("{name} {event}"))
        });
        let mut calls: Vec<String> = calls.collect();
        calls.dedup();
        calls
    }
}

impl Rack {
    fn end(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        self.end();
    }
}

fn tell(reporter: &ProgressReporter, event: EventName, message: &str) {
    reporter.start_phase(event, message);
    reporter.wait_until_sent(PATIENCE);
}

/// Returns the inventory of a virtual machine of mini-lab: one disk, two network interfaces, two leaf switches.
fn machine() -> Inventory {
    let text = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testdata/inventories/installed-default.json"
    ))
    .unwrap();
    let inventory: Inventory = serde_json::from_str(&text).unwrap();
    let nic = |number: u8| model::inventory::Nic {
        name: format!("eth{number}"),
        mac: format!("52:54:00:00:00:0{number}"),
        ..Default::default()
    };
    let disk = InventoryDisk {
        name: "vda".into(),
        device: "/dev/vda".into(),
        size_bytes: 6 << 30,
        sector_bytes: 512,
        serial: "V1".into(),
        blank: true,
        ..InventoryDisk::default()
    };
    let (system, cpus, memory_bytes) = (inventory.system, inventory.cpus, inventory.memory_bytes);
    let there =
        Inventory { system, cpus, memory_bytes, nics: vec![nic(0), nic(1)], disks: vec![disk], ..Inventory::default() };
    let heard = |number: u8| NicNeighbors {
        nic: format!("eth{number}"),
        speed: 25_000,
        neighbors: vec![LldpNeighbor {
            hostname: format!("leaf0{}", number + 1),
            chassis: format!("aa:00:00:00:00:0{number}"),
            port: "Ethernet4".into(),
            description: "mini-lab".into(),
            leaf: true,
        }],
    };
    add_lldp_neighbors(there, &[heard(0), heard(1)])
}

/// Returns an allocation as metal-apiserver sends it, with this layout of mini-lab.
fn allocation(id: &str, layout: &str) -> Value {
    let text = std::fs::read_to_string(format!(
        "{}/testdata/metal/mini-lab-{layout}.json",
        concat!(env!("CARGO_MANIFEST_DIR"), "/../..")
    ))
    .unwrap();
    json!({
        "uuid": id, "name": "web", "project": "0d95cd70-0000-4000-8000-000000000001", "hostname": "web-1",
        "image": {"id": "debian-12.0.20261101", "url": "http://images.example/img.tar.lz4", "name": "Debian"},
        "filesystemLayout": serde_json::from_str::<Value>(&text).unwrap(),
        "allocationType": "MACHINE_ALLOCATION_TYPE_MACHINE", "userdata": "#cloud-config",
        "networks": [{"network": "n-1", "prefixes": ["10.0.0.0/24"], "ips": ["10.0.0.1"], "vrf": "42", "asn": 4200003073u32,
                      "networkType": "NETWORK_TYPE_CHILD", "natType": "NAT_TYPE_NONE",
                      "project": "0d95cd70-0000-4000-8000-000000000001"}],
    })
}

const ONE: &str = "00000000-0000-4000-8000-000000000001";

fn erasure(inventory: &Inventory, allocation: Option<&Allocation>) -> Option<Plan> {
    let owner = match allocation {
        Some(of) => PoolAllocation::Allocated { allocation: &of.id, reinstall: of.reinstall, installed: of.succeeded },
        None => PoolAllocation::Unallocated,
    };
    let subject = PlanSubject { machine: MACHINE_ID.into(), image: "nothing".into(), ..PlanSubject::default() };
    plan::plan_emptying(inventory, owner, &[], subject).unwrap()
}

fn installation(inventory: &Inventory, machine: &AssignedMachine, allocation: &Allocation) -> Plan {
    let layout = allocation.parse_layout().unwrap_or_else(|problems| panic!("{problems:?}")).layout;
    let request = request_from_allocation::build_request(machine, MACHINE_ID, allocation, &["ttyS0".to_owned()]);
    let plan = plan::make_plan(&layout, inventory, request, &mut Uuid::new_v4);
    plan.unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// Installs each of mini-lab's layouts, from the first boot to the report. The allocation arrives late, and the machine
/// must open a new stream each time the server ends one.
#[test]
#[ignore = "scripts/metal"]
fn judge_installations() {
    for layout in ["default", "raid", "lvm"] {
        let rack = Rack::start();
        rack.steer("set", &json!({"stream": 1.0}));
        let (control, reporter) = rack.boots();
        tell(&reporter, EventName::Preparing, "drophammer");
        tell(&reporter, EventName::Registering, MACHINE_ID);
        let there = machine();
        control.register_machine(&there).unwrap();
        assert!(control.machine_pool().is_some_and(|_| erasure(&there, None).is_some()));
        tell(&reporter, EventName::Waiting, "for an allocation");
        assert!(!control.wait_for_allocation(PATIENCE).unwrap(), "the stream ends after a second");
        let allocated = allocation(ONE, layout);
        let (url, client) = (format!("{}/judge/allocate", rack.url), rack.client.clone());
        let desk = thread::spawn(move || {
            thread::sleep(Duration::from_secs(2));
            client.post(url).json(&allocated).timeout(PATIENCE).send().unwrap().status().is_success()
        });
        while !control.wait_for_allocation(PATIENCE).unwrap() {}
        assert!(desk.join().unwrap(), "the allocation breaks the published rules");
        tell(&reporter, EventName::Installing, layout);
        let machine = control.fetch_machine().unwrap();
        let allocation = machine.allocation.clone().unwrap();
        let plan = installation(&there, &machine, &allocation);
        println!("{plan}");
        let stage = |name: &str| reporter.run_stage(name, || Ok(()));
        plan.stages.iter().for_each(|one| stage(one.name.as_str()).unwrap());
        control
            .announce_point_of_no_return(&AttemptNotice { allocation: &allocation.id, ..AttemptNotice::default() })
            .unwrap();
        control.report_result(&ended()).unwrap();
        tell(&reporter, EventName::BootingNewKernel, "leaving the ramdisk");
        let calls = rack.calls();
        println!("{layout}: {calls:#?}");
        let log = rack.log();
        assert_eq!(log["installed"].as_str(), Some(allocation.console_password.as_str()));
        let expected = [
            "SendEvent PREPARING",
            "SendEvent REGISTERING",
            "GetBMC",
            "Register",
            "SendEvent WAITING",
            "Wait",
            "SendEvent INSTALLING",
            "Wait",
            "InstallationSucceeded",
            "SendEvent BOOTING_NEW_KERNEL",
        ];
        assert_eq!(calls, expected);
    }
}

/// Checks that an unallocated machine plans to erase its disks. Then allocates the machine, and checks that disks on
/// which this allocation is installed are not erased.
#[test]
#[ignore = "scripts/metal"]
fn judge_a_pool() {
    let rack = Rack::start();
    rack.steer("set", &json!({"stream": 60.0}));
    let (control, _) = rack.boots();
    let pool = control.machine_pool().unwrap();
    let began = Instant::now();
    assert!(!pool.is_allocated(false).unwrap());
    println!("machine unallocated after {:.1} s", began.elapsed().as_secs_f64());
    let plan = erasure(&machine(), None).unwrap();
    println!("{plan}");
    rack.steer("allocate", &allocation(ONE, "default"));
    assert!(pool.is_allocated(true).unwrap());
    let found = control.fetch_machine().unwrap().allocation.unwrap();
    let marker = RecordedDisk::default();
    let marker = model::install_marker::InstallMarker {
        machine: MACHINE_ID.into(),
        allocation: ONE.into(),
        disks: vec![marker],
        ..Default::default()
    };
    let filesystem = model::inventory::FilesystemContents { marker: Some(marker), ..Default::default() };
    let installed = Inventory { filesystems: vec![filesystem], ..machine() };
    assert_eq!(erasure(&installed, Some(&found)), None);
    assert_eq!(rack.calls(), ["Wait", "SuperUserPassword", "Wait"]);
}

/// Tests that a registration replaces the record of the BMC. If the machine's token has the additional permission to
/// read the record, the machine sends the known record back.
#[test]
#[ignore = "scripts/metal"]
fn judge_a_bmc() {
    let rack = Rack::start();
    let known = rack.log()["bmc"].clone();
    assert_eq!(known["password"], json!("bmc-password-1"));
    rack.steer("set", &json!({"reads_bmc": true}));
    let (control, _) = rack.boots();
    control.register_machine(&machine()).unwrap();
    assert_eq!((&rack.log()["bmc"], &rack.log()["erased"]), (&known, &json!([])));
    rack.steer("refuse", &json!({"call": "GetBMC", "code": "unavailable", "message": "is being started", "times": 2}));
    control.register_machine(&machine()).unwrap();
    assert_eq!(rack.log()["bmc"], known);
    // A record that version 1 of metal-bmc has created has no MAC. The published rules require a MAC, so the machine
    // sends a MAC of zeros.
    let mut created = known.clone();
    for name in ["mac", "user", "password", "interface", "bmc_version", "power_state"] {
        created[name] = json!("");
    }
    rack.steer("set", &json!({"bmc": created}));
    control.register_machine(&machine()).unwrap();
    assert_eq!(
        (&rack.log()["bmc"]["address"], &rack.log()["bmc"]["mac"]),
        (&known["address"], &json!("00:00:00:00:00:00"))
    );
    // If reading the record is permitted but fails, the machine does not register.
    rack.steer("set", &json!({"bmc": known.clone()}));
    rack.steer("refuse", &json!({"call": "GetBMC", "code": "invalid_argument", "message": "no", "times": 1}));
    let error = control.register_machine(&machine()).unwrap_err().to_string();
    println!("{error}");
    assert!(
        error.starts_with("not registered: a registration would erase the control plane's record of the BMC"),
        "{error}"
    );
    let registered = || rack.calls().iter().filter(|call| *call == "Register").count();
    assert_eq!((registered(), &rack.log()["bmc"]), (3, &known));
    rack.steer("set", &json!({"reads_bmc": false}));
    control.register_machine(&machine()).unwrap();
    let log = rack.log();
    println!("fields of the BMC record that a registration without the permission erases: {}", log["erased"]);
    assert_eq!((&log["bmc"]["password"], log["erased"].as_array().unwrap().len()), (&json!(""), 15));
    // A machine that is unknown to the control plane.
    rack.steer("set", &json!({"reads_bmc": true, "bmc": null, "erased": []}));
    control.register_machine(&machine()).unwrap();
    rack.calls();
}

/// Checks the behavior in four cases: an expired token, an unavailable server, a single leaf switch, and a canceled
/// allocation.
#[test]
#[ignore = "scripts/metal"]
fn judge_failures() {
    let rack = Rack::start();
    rack.steer("set", &json!({"stream": 5.0}));
    let (control, reporter) = rack.boots();
    rack.steer("expire", &json!({}));
    rack.steer(
        "refuse",
        &json!({"call": "Register", "code": "unavailable", "message": "is being started", "times": 2}),
    );
    control.register_machine(&machine()).unwrap();
    let mut alone = machine();
    alone.nics[1].neighbors.clear();
    let error = control.register_machine(&alone).unwrap_err().to_string();
    println!("{error}");
    assert!(error.contains("is not connected to exactly two switches, found connections to 1 switches"), "{error}");
    rack.steer("allocate", &allocation(ONE, "default"));
    assert!(control.wait_for_allocation(PATIENCE).unwrap());
    rack.steer("allocate", &allocation("00000000-0000-4000-8000-000000000002", "default"));
    let error = control
        .announce_point_of_no_return(&AttemptNotice { allocation: ONE, ..AttemptNotice::default() })
        .unwrap_err()
        .to_string();
    assert!(error.contains("the machine has another allocation"), "{error}");
    rack.steer("free", &json!({}));
    let error = control.report_result(&ended()).unwrap_err().to_string();
    assert!(error.ends_with("the machine is not allocated"), "{error}");
    // The server is too old to support this call.
    rack.steer("set", &json!({"events": false}));
    tell(&reporter, EventName::Crashed, "no");
    rack.calls();
}
