//! A real Ironic in one process, and what an operator asks of it.

use super::super::*;
use nix::sys::signal::{Signal as ProcessSignal, killpg};
use nix::unistd::Pid;
use reqwest::Method;
use reqwest::blocking::Client;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command as Process};

/// A scenario takes seconds, one with a machine minutes; a busy host takes its time.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Where it listens, and where machines find it. QEMU takes what a machine sends to the second address for this host's 127.0.0.1.
pub struct Place {
    listens: &'static str,
    pub told: &'static str,
    pub patience: Duration,
}

pub const PAPER: Place = Place { listens: "127.0.0.1", told: "127.0.0.1", patience: PATIENCE };
pub const MACHINES: Place = Place { listens: "0.0.0.0", told: "192.0.2.1", patience: Duration::from_secs(3 * 600) };

/// One process with API and conductor, its files in a directory of its own.
pub struct Ironic {
    programs: PathBuf,
    pub directory: PathBuf,
    pub url: String,
    pub client: Client,
    pub place: Place,
    process: Child,
}

/// What `scripts/build-ramdisk` and `scripts/build-tiny` have built.
pub fn built(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target").join(path)
}

impl Ironic {
    pub fn start(place: Place) -> Ironic {
        let venv = PathBuf::from(std::env::var_os("DROPHAMMER_IRONIC").expect("scripts/ironic says where it is"));
        let programs = venv.join("bin");
        let directory = programs.parent().unwrap().with_file_name("run");
        let _ = fs::remove_dir_all(&directory);
        for folder in ["state", "http", "tftp", "certificates", "logs", "images", "locks"] {
            fs::create_dir_all(directory.join(folder)).unwrap();
        }
        fs::write(directory.join("kernel"), "kernel").unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        fs::write(directory.join("ironic.conf"), configuration(&directory, port, &place)).unwrap();
        let made =
            quiet(&programs.join("ironic-dbsync"), &directory, "dbsync.log").arg("create_schema").status().unwrap();
        assert!(made.success(), "see {}/dbsync.log", directory.display());
        let process = quiet(&programs.join("ironic"), &directory, "ironic.log").spawn().unwrap();
        let client = crate::http::client().unwrap();
        let ironic = Ironic { programs, directory, url: format!("http://127.0.0.1:{port}"), client, place, process };
        ironic.wait_for_conductor();
        ironic
    }

    fn wait_for_conductor(&self) {
        let end = Instant::now() + self.place.patience;
        let is_up = || {
            let answer = self
                .client
                .get(format!("{}/v1/conductors", self.url))
                .header("X-OpenStack-Ironic-API-Version", "1.110");
            let answer: Value = answer.timeout(Duration::from_secs(30)).send().ok()?.json().ok()?;
            answer["conductors"].as_array()?.iter().any(|one| one["alive"] == true).then_some(())
        };
        while is_up().is_none() {
            assert!(Instant::now() < end, "no conductor; see {}/ironic.log", self.directory.display());
            thread::sleep(Duration::from_millis(300));
        }
    }

    /// As a power cut ends it.
    pub fn kill(&mut self) {
        let _ = killpg(Pid::from_raw(self.process.id() as i32), ProcessSignal::SIGKILL);
        let _ = self.process.wait();
    }

    pub fn start_again(&mut self) {
        self.process = quiet(&self.programs.join("ironic"), &self.directory, "ironic.log").spawn().unwrap();
        self.wait_for_conductor();
    }

    pub fn ask(&self, method: Method, path: &str, body: &Value) -> Value {
        let request =
            self.client.request(method.clone(), format!("{}/v1/{path}", self.url)).timeout(self.place.patience);
        let request = request.header("X-OpenStack-Ironic-API-Version", "1.110");
        let request = if body.is_null() { request } else { request.json(body) };
        let answer = request.send().unwrap();
        let status = answer.status();
        let text = answer.text().unwrap();
        assert!(status.is_success(), "{method} {path}: {status} {text}");
        serde_json::from_str(&text).unwrap_or_default()
    }

    pub fn node(&self, name: &str) -> Value {
        self.ask(Method::GET, &format!("nodes/{name}"), &Value::Null)
    }

    pub fn target(&self, name: &str, target: &str) {
        self.wish(name, &json!({ "target": target }));
    }

    pub fn wish(&self, name: &str, wish: &Value) {
        // A node that is locked at this moment is asked again.
        let end = Instant::now() + self.place.patience;
        while !self.node(name)["reservation"].is_null() && Instant::now() < end {
            thread::sleep(Duration::from_millis(200));
        }
        self.ask(Method::PUT, &format!("nodes/{name}/states/provision"), wish);
    }

    /// Waits for one of these states, and returns the way there with its times.
    pub fn until(&self, name: &str, states: &[&str]) -> String {
        let (began, mut history, mut last) = (Instant::now(), Vec::new(), String::new());
        loop {
            let node = self.node(name);
            let state = node["provision_state"].as_str().unwrap_or("available").to_owned();
            if state != last {
                history.push(format!("{state} {:.1} s", began.elapsed().as_secs_f64()));
                last.clone_from(&state);
            }
            if states.contains(&state.as_str()) {
                return history.join(" → ");
            }
            let why = format!("{name} is {state}: {history:?}, {}", node["last_error"]);
            assert!(began.elapsed() < self.place.patience, "{why}");
            assert!(!state.ends_with("failed") && state != "error", "{why}");
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// A node, and the MAC of its machine.
    pub fn enroll(&self, name: &str, boot: &str, properties: &Value) -> String {
        let kernel = format!("file://{}/kernel", self.directory.display());
        let node = self.ask(
            Method::POST,
            "nodes",
            &json!({
                "name": name, "driver": "fake-hardware", "power_interface": "fake", "management_interface": "noop",
                "network_interface": "noop", "boot_interface": boot, "deploy_interface": "custom-agent",
                "raid_interface": "agent", "inspect_interface": "agent", "properties": properties,
                "driver_info": {"deploy_kernel": kernel, "deploy_ramdisk": kernel},
            }),
        );
        let mac = format!("52:54:00:00:{:02x}:{:02x}", fastrand::u8(..), fastrand::u8(..));
        self.ask(Method::POST, "ports", &json!({"node_uuid": node["uuid"], "address": mac}));
        self.target(name, "manage");
        self.until(name, &["manageable"]);
        mac
    }

    /// A node that is ready for a deploy without cleaning, with a template that its trait chooses.
    pub fn with_template(&self, name: &str, steps: &Value) -> String {
        let mac = self.enroll(name, "fake", &json!({"cpu_arch": "x86_64"}));
        self.ask(
            Method::PATCH,
            &format!("nodes/{name}"),
            &json!([{"op": "add", "path": "/automated_clean", "value": false}]),
        );
        self.target(name, "provide");
        self.until(name, &["available"]);
        self.choose(name, steps);
        mac
    }

    /// A template that the node's trait chooses.
    pub fn choose(&self, name: &str, steps: &Value) {
        let chosen = format!("CUSTOM_{}", name.to_uppercase().replace('-', "_"));
        self.ask(Method::POST, "deploy_templates", &json!({"name": chosen, "steps": steps}));
        self.ask(Method::PUT, &format!("nodes/{name}/traits"), &json!({"traits": [chosen]}));
        let patch = json!([
            {"op": "add", "path": "/instance_info/traits", "value": [chosen]},
            {"op": "add", "path": "/instance_info/configdrive", "value": {"meta_data": {"hostname": name}}},
        ]);
        self.ask(Method::PATCH, &format!("nodes/{name}"), &patch);
    }
}

impl Drop for Ironic {
    fn drop(&mut self) {
        self.kill();
    }
}

/// In a group of its own, in the background, with its words in a file.
fn quiet(program: &Path, directory: &Path, log: &str) -> Process {
    let log = fs::OpenOptions::new().create(true).append(true).open(directory.join(log)).unwrap();
    let mut process = Process::new("nice");
    process.args(["-n", "5"]).arg(program).arg("--config-file").arg(directory.join("ironic.conf"));
    process.process_group(0).current_dir(directory).stdout(log.try_clone().unwrap()).stderr(log);
    process
}

fn configuration(directory: &Path, port: u16, place: &Place) -> String {
    let (dir, ramdisk, Place { listens, told, .. }) = (directory.display(), built("ramdisk"), place);
    let ramdisk = ramdisk.display();
    format!(
        "[DEFAULT]
auth_strategy = noauth
debug = true
host = judge
my_ip = 127.0.0.1
rpc_transport = none
state_path = {dir}/state
tempdir = {dir}/state
enabled_hardware_types = fake-hardware
enabled_boot_interfaces = fake,ipxe
enabled_deploy_interfaces = custom-agent,direct
enabled_power_interfaces = fake
enabled_management_interfaces = noop,fake
enabled_network_interfaces = noop
enabled_raid_interfaces = no-raid,agent
enabled_rescue_interfaces = no-rescue,agent
enabled_inspect_interfaces = agent,no-inspect
enabled_storage_interfaces = noop
enabled_vendor_interfaces = no-vendor
enabled_bios_interfaces = no-bios
enabled_console_interfaces = no-console
enabled_firmware_interfaces = no-firmware
[api]
host_ip = {listens}
port = {port}
[database]
connection = sqlite:///{dir}/state/ironic.sqlite
[oslo_messaging_notifications]
driver = noop
[oslo_concurrency]
lock_path = {dir}/locks
[oslo_policy]
enforce_scope = false
[conductor]
file_url_allowed_paths = {dir},{ramdisk}
[deploy]
http_url = http://127.0.0.1:9
http_root = {dir}/http
default_boot_mode = uefi
erase_devices_metadata_priority = 10
erase_devices_priority = 0
[agent]
certificates_path = {dir}/certificates
deploy_logs_local_path = {dir}/logs
command_wait_interval = 1
post_deploy_get_power_state_retries = 1
post_deploy_get_power_state_retry_interval = 1
[pxe]
tftp_root = {dir}/tftp
tftp_master_path = {dir}/images/tftp
images_path = {dir}/images
instance_master_path = {dir}/images/master
[service_catalog]
auth_type = none
endpoint_override = http://{told}:{port}
[inventory]
data_backend = database
[dhcp]
dhcp_provider = none
"
    )
}

/// A step of the interface `deploy`, as a template has it.
pub fn step(name: &str, priority: u32, args: &Value) -> Value {
    json!({"interface": "deploy", "step": name, "priority": priority, "args": args})
}
