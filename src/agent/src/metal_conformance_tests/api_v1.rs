//! Conformance test of API v1 against an independent gRPC server: grpcio from PyPI, with messages parsed by the
//! library of protobuf.

mod bmc_tests;
mod installation_record_tests;
mod reinstall_tests;
mod test_certificates;

use super::*;
use control::metal_stack::efi_variable_record::FirmwareRecord;
use control::metal_stack::pixie_config;
use control::metal_stack::v1::reinstall_attempt_record::ReinstallNoteStore;
use control::metal_stack::v1::{MetalApiV1, V1Timeouts};
use control::retry::RetryPolicy;
use model::install_report::{FailureSummary, InstallOutcome, InstallResult};
use std::net::TcpListener;
use tempfile::TempDir;
use test_certificates::certificates;

const QUICK: V1Timeouts = V1Timeouts {
    retries: RetryPolicy {
        patience: Duration::from_secs(3),
        first_pause: Duration::from_millis(50),
        longest_pause: Duration::from_millis(400),
    },
    pause: Duration::from_millis(50),
    silence: Duration::from_secs(30),
};

/// Process that serves as pixie, REST and gRPC server.
struct First {
    rack: Rack,
    folder: TempDir,
    ports: [u16; 2],
    /// Directory with the state that a machine stores between boots.
    memory: TempDir,
}

impl First {
    fn start() -> First {
        let folder = tempfile::tempdir().unwrap();
        certificates(folder.path());
        // Both listeners stay open until both ports are chosen, so the two ports differ.
        let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = free.map(|free| free.local_addr().unwrap().port());
        let rack = First::run(folder.path(), ports);
        First { rack, folder, ports, memory: tempfile::tempdir().unwrap() }
    }

    fn run(folder: &Path, [http, grpc]: [u16; 2]) -> Rack {
        let arguments = [folder.to_str().unwrap().to_owned(), http.to_string(), grpc.to_string()];
        Rack::run("first.py", &arguments, http)
    }

    /// Kills the server and restarts it later with the same allocation, as if the server had read the allocation from a
    /// database.
    fn restart(&mut self, after: Duration) {
        let knows = self.rack.log()["allocation"].clone();
        self.come_back(after, &knows);
    }

    fn come_back(&mut self, after: Duration, knows: &Value) {
        self.rack.end();
        thread::sleep(after);
        self.rack = First::run(self.folder.path(), self.ports);
        if !knows.is_null() {
            self.rack.steer("allocate", knows);
        }
    }

    fn config(&self) -> pixie_config::PixieConfig {
        pixie_config::fetch_config(&format!("{}/certs", self.rack.url), MACHINE_ID, control::retry::NO_RETRIES).unwrap()
    }

    /// Boots a machine like [`MetalControlPlane::new`], but with shorter timeouts.
    fn boots(&self) -> (Arc<MetalControlPlane>, ProgressReporter) {
        self.boots_with(QUICK)
    }

    fn boots_with(&self, pace: V1Timeouts) -> (Arc<MetalControlPlane>, ProgressReporter) {
        let (config, memory) = (self.config(), ReinstallNoteStore::new(self.memory.path()));
        let v1 =
            MetalApiV1::with_timeouts(&format!("{}/certs", self.rack.url), MACHINE_ID, &config, memory, pace).unwrap();
        let record = FirmwareRecord::new(self.memory.path());
        let control = MetalControlPlane::with_api(Box::new(v1), MACHINE_ID, &config.partition, record);
        let control = Arc::new(control.unwrap());
        (control.clone(), ProgressReporter::new(control))
    }

    fn calls(&self) -> Vec<String> {
        let log = self.rack.log();
        assert_eq!(log["wrong"], json!([]), "{log:#}");
        let calls = log["calls"].as_array().unwrap().iter();
        let calls = calls.map(|call| {
            let (name, event) =
                (call["call"].as_str().unwrap(), call["message"]["events"][0]["value"]["event"].as_str());
            event.map_or(name.to_owned(), |event| format!("{name} {event}"))
        });
        calls.collect()
    }
}

/// Returns an allocation as metal-api sends it, with this layout of mini-lab.
fn allocation(id: &str, layout: &str) -> Value {
    let text = std::fs::read_to_string(format!(
        "{}/testdata/metal/mini-lab-{layout}.json",
        concat!(env!("CARGO_MANIFEST_DIR"), "/../..")
    ))
    .unwrap();
    let layout =
        control::metal_stack::v2::omitted_layout_values::insert_omitted_values(serde_json::from_str(&text).unwrap());
    let layout = model::layout::read_json(&layout).unwrap().layout;
    json!({
        "allocationuuid": id, "name": "web", "project": "0d95cd70-0000-4000-8000-000000000001", "hostname": "web-1", "role": "machine",
        "created": "2026-11-24T09:00:00Z", "creator": "somebody", "description": null, "boot_info": null, "vpn": null,
        "image": {"id": "debian-12.0.20261101", "url": "http://images.example/img.tar.lz4", "name": "Debian", "features": ["machine"]},
        "filesystemlayout": layout, "reinstall": false, "succeeded": false, "ssh_pub_keys": [], "user_data": null,
        "networks": [{"networkid": "n-1", "prefixes": ["10.0.0.0/24"], "ips": ["10.0.0.1"], "vrf": 42, "asn": 4200003073u32,
                      "private": true, "underlay": false, "nat": false, "destinationprefixes": null, "networktype": "privateprimaryunshared"}],
    })
}

fn reinstall() -> Value {
    let mut allocation = installed();
    allocation["reinstall"] = json!(true);
    allocation
}

/// Returns an allocation that metal-hammer has installed and reported. For such an allocation, metal-api sets
/// `boot_info` but not `succeeded`.
fn installed() -> Value {
    let mut allocation = allocation(ONE, "default");
    allocation["boot_info"] = json!({
        "image_id": "debian-11.0.20251101", "primary_disk": "", "os_partition": "", "initrd": "/tmp/initrd.img", "cmdline": "ro",
        "kernel": "/tmp/vmlinuz", "bootloaderid": "metal-debian",
    });
    allocation
}

fn failed(outcome: fn(FailureSummary) -> InstallOutcome) -> InstallResult {
    InstallResult { outcome: outcome(FailureSummary::default()), allocation: ONE.into(), ..ended() }
}

/// Installs each of mini-lab's layouts, from the request for the password to the report. The allocation arrives late.
#[test]
#[ignore = "scripts/metal"]
fn judge_first_installations() {
    for layout in ["default", "raid", "lvm"] {
        let first = First::start();
        let (control, reporter) = first.boots();
        tell(&reporter, EventName::Preparing, "drophammer");
        tell(&reporter, EventName::Registering, MACHINE_ID);
        let there = machine();
        control.register_machine(&there).unwrap();
        assert!(!control.machine_pool().unwrap().is_allocated(true).unwrap());
        assert!(erasure(&there, None).is_some());
        tell(&reporter, EventName::Waiting, "for an allocation");
        assert!(!control.wait_for_allocation(Duration::from_secs(1)).unwrap(), "the stream stays open");
        let (url, client) = (format!("{}/judge/allocate", first.rack.url), first.rack.client.clone());
        let allocated = allocation(ONE, layout);
        let desk = thread::spawn(move || {
            thread::sleep(Duration::from_secs(2));
            client.post(url).json(&allocated).timeout(PATIENCE).send().unwrap().status().is_success()
        });
        while !control.wait_for_allocation(Duration::from_secs(1)).unwrap() {}
        assert!(desk.join().unwrap());
        tell(&reporter, EventName::Installing, layout);
        let machine = control.fetch_machine().unwrap();
        let allocation = machine.allocation.clone().unwrap();
        let plan = installation(&there, &machine, &allocation);
        println!("{plan}");
        plan.stages.iter().for_each(|one| reporter.run_stage(one.name.as_str(), || Ok(())).unwrap());
        control
            .announce_point_of_no_return(&AttemptNotice { allocation: &allocation.id, ..AttemptNotice::default() })
            .unwrap();
        control.report_result(&InstallResult { allocation: ONE.into(), ..ended() }).unwrap();
        tell(&reporter, EventName::BootingNewKernel, "leaving the ramdisk");
        let (calls, log) = (first.calls(), first.rack.log());
        println!("{layout}: {calls:#?}");
        let boot_info = json!({"image_id": "debian-12.0.20261101", "initrd": "/initrd", "cmdline": "ro", "kernel": "/vmlinuz",
                               "bootloader_id": "metal-debian"});
        assert_eq!((&log["report"]["boot_info"], &log["report"]["success"]), (&boot_info, &json!(true)));
        assert_eq!(log["report"]["console_password"].as_str(), Some(allocation.console_password.as_str()));
        let expected = [
            "Send Preparing",
            "Send Registering",
            "GET ipmi",
            "SuperUserPassword",
            "Register",
            "GET machine",
            "Send Waiting",
            // There is only one call of `Wait`, because the machine keeps its stream open from the first wait until it
            // receives the allocation.
            "Wait",
            "GET machine",
            "Send Installing",
            "GET machine",
            "Report",
            "Send Booting New Kernel",
        ];
        assert_eq!(calls, expected);
    }
}

/// Tests that the client first reports which certificate or key the server has rejected, and then fetches the
/// certificates and the key from pixie again.
#[test]
#[ignore = "scripts/metal"]
fn judge_first_certificates() {
    let first = First::start();
    let offered = || first.rack.log()["offered"].as_u64().unwrap();
    let register =
        |control: &MetalControlPlane| control.register_machine(&machine()).map_err(|error| error.to_string());
    let (control, _) = first.boots();
    first.rack.steer("show", &json!({"certificate": "stranger"}));
    let error = register(&control).unwrap_err();
    println!("{error}");
    assert!(error.contains("has a certificate from a CA that is not in pixie's configuration"), "{error}");
    first.rack.steer("show", &json!({"certificate": "server"}));
    register(&control).unwrap();
    for (client, words) in [("stranger", "certificate"), ("expired", "certificate")] {
        first.rack.steer("set", &json!({"client": client}));
        let (control, _) = first.boots();
        let error = register(&control).unwrap_err();
        println!("{client}: {error}");
        assert!(error.contains(words), "{error}");
        // Before the client tries again, the test provides pixie with a valid certificate.
        let before = offered();
        first.rack.steer("set", &json!({"client": "client"}));
        register(&control).unwrap();
        assert!(offered() > before, "no further request was sent to pixie");
    }
    first.rack.steer("set", &json!({"hmac": "another-key"}));
    let (control, _) = first.boots();
    let error = control.machine_pool().unwrap().is_allocated(true).unwrap_err().to_string();
    println!("{error}");
    assert!(error.contains("401") && error.contains("rejects the hmac of pixie's configuration"), "{error}");
    first.rack.steer("set", &json!({"hmac": "view-key"}));
    assert!(!control.machine_pool().unwrap().is_allocated(true).unwrap());
    first.calls();
}

/// Checks the behavior in four cases: a single leaf switch, a stream that ends with an error, a stream that is cut, and
/// a rejected report.
#[test]
#[ignore = "scripts/metal"]
fn judge_first_failures() {
    let first = First::start();
    let (control, _) = first.boots();
    let mut alone = machine();
    alone.nics[1].neighbors.clear();
    let error = control.register_machine(&alone).unwrap_err().to_string();
    println!("{error}");
    assert!(error.contains("is not connected to exactly two switches, found connections to 1 switches"), "{error}");
    let refusal = json!({"call": "Register", "code": "unavailable", "message": "is being started", "times": 2});
    first.rack.steer("refuse", &refusal);
    control.register_machine(&machine()).unwrap();
    let before = first.calls().len();
    for code in ["unavailable", "unknown", "resource_exhausted"] {
        first.rack.steer("refuse", &json!({"call": "Wait", "code": code, "message": "pings too often", "times": 1}));
        assert!(!control.wait_for_allocation(PATIENCE).unwrap());
    }
    first.rack.steer("set", &json!({"stream": 1.0}));
    assert!(!control.wait_for_allocation(PATIENCE).unwrap());
    first.rack.steer("set", &json!({"stream": 3600.0}));
    first.rack.steer("allocate", &allocation(ONE, "default"));
    assert!(control.wait_for_allocation(PATIENCE).unwrap());
    let calls = first.calls().split_off(before);
    assert_eq!(calls, ["Wait", "Wait", "Wait", "Wait", "Wait", "GET machine"], "the machine must not register again");
    let report = InstallResult { allocation: ONE.into(), ..ended() };
    first.rack.steer("refuse", &json!({"call": "Report", "code": "unknown", "message": "no database", "times": 2}));
    control.report_result(&report).unwrap();
    first.rack.steer("refuse", &json!({"call": "Report", "code": "unknown", "message": "no database", "times": 9999}));
    let error = control.report_result(&report).unwrap_err().to_string();
    assert!(error.ends_with("answered: no database (gRPC status 2)"), "{error}");
    let tried = first.calls().iter().filter(|call| *call == "Report").count();
    assert!((5..100).contains(&tried), "{tried}");
    first.rack.steer("refuse", &json!({"call": "Register", "code": "unimplemented", "message": "", "times": 9}));
    let error = control.register_machine(&machine()).unwrap_err().to_string();
    assert!(error.ends_with("does not have this method"), "{error}");
}

#[test]
#[ignore = "scripts/metal"]
fn judge_first_server_that_dies() {
    let mut first = First::start();
    // The client retries for a longer time, because the server may start late on a busy host.
    let (control, _) =
        first.boots_with(V1Timeouts { retries: RetryPolicy { patience: PATIENCE, ..QUICK.retries }, ..QUICK });
    control.register_machine(&machine()).unwrap();
    let waits = control.clone();
    let began = Instant::now();
    let waiting = thread::spawn(move || {
        let mut times = 0;
        while !waits.wait_for_allocation(PATIENCE).unwrap() {
            times += 1;
            assert!(began.elapsed() < PATIENCE);
        }
        times
    });
    thread::sleep(Duration::from_secs(1));
    first.restart(Duration::from_secs(2));
    first.rack.steer("allocate", &allocation(ONE, "default"));
    let times = waiting.join().unwrap();
    println!("the machine restarted its wait {times} times while the server was unreachable");
    assert!((1..1000).contains(&times));
    assert_eq!(
        first.calls().iter().filter(|call| *call == "Register").count(),
        0,
        "the machine must not register again"
    );
    // The server stores the report, and is killed before it responds.
    first.rack.steer("refuse", &json!({"call": "Report", "code": "unknown", "message": "", "times": 1, "die": true}));
    let reports = thread::spawn(move || control.report_result(&InstallResult { allocation: ONE.into(), ..ended() }));
    while first.rack.process.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(50));
    }
    first.come_back(Duration::from_millis(500), &allocation(ONE, "default"));
    reports.join().unwrap().unwrap();
    // The machine may send the report twice: the first report is rejected if the restarted server does not have its
    // data yet.
    let calls = first.calls();
    assert!(calls.len() <= 2 && calls.iter().all(|call| call == "Report"), "{calls:?}");
    assert!(!first.rack.log()["report"].is_null());
}
