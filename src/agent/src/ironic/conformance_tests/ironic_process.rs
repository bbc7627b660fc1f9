//! Real Ironic in one process, and the requests that the tests send to it as an operator.

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

/// Timeout of a scenario, which usually takes seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// Ironic process that contains both API and conductor. The files of the process are in a separate directory.
pub(crate) struct Ironic {
    programs: PathBuf,
    pub directory: PathBuf,
    pub url: String,
    client: Client,
    process: Child,
}

impl Ironic {
    pub(crate) fn start() -> Ironic {
        let venv =
            PathBuf::from(std::env::var_os("DROPHAMMER_IRONIC").expect("scripts/ironic must set DROPHAMMER_IRONIC"));
        let programs = venv.join("bin");
        let directory = programs.parent().unwrap().with_file_name("run");
        let _ = fs::remove_dir_all(&directory);
        for folder in ["state", "http", "tftp", "certificates", "logs", "images", "locks"] {
            fs::create_dir_all(directory.join(folder)).unwrap();
        }
        fs::write(directory.join("kernel"), "kernel").unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        fs::write(directory.join("ironic.conf"), configuration(&directory, port)).unwrap();
        let made =
            quiet(&programs.join("ironic-dbsync"), &directory, "dbsync.log").arg("create_schema").status().unwrap();
        assert!(made.success(), "see {}/dbsync.log", directory.display());
        let process = quiet(&programs.join("ironic"), &directory, "ironic.log").spawn().unwrap();
        let client = linux::http::new_client().unwrap();
        let ironic = Ironic { programs, directory, url: format!("http://127.0.0.1:{port}"), client, process };
        ironic.wait_for_conductor();
        ironic
    }

    fn wait_for_conductor(&self) {
        let end = Instant::now() + PATIENCE;
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

    /// Kills the process without a shutdown, to simulate a power failure.
    pub(crate) fn kill(&mut self) {
        let _ = killpg(Pid::from_raw(self.process.id() as i32), ProcessSignal::SIGKILL);
        let _ = self.process.wait();
    }

    pub(crate) fn start_again(&mut self) {
        self.process = quiet(&self.programs.join("ironic"), &self.directory, "ironic.log").spawn().unwrap();
        self.wait_for_conductor();
    }

    pub(crate) fn ask(&self, method: Method, path: &str, body: &Value) -> Value {
        let request = self.client.request(method.clone(), format!("{}/v1/{path}", self.url)).timeout(PATIENCE);
        let request = request.header("X-OpenStack-Ironic-API-Version", "1.110");
        let request = if body.is_null() { request } else { request.json(body) };
        let answer = request.send().unwrap();
        let status = answer.status();
        let text = answer.text().unwrap();
        assert!(status.is_success(), "{method} {path}: {status} {text}");
        serde_json::from_str(&text).unwrap_or_default()
    }

    pub(crate) fn node(&self, name: &str) -> Value {
        self.ask(Method::GET, &format!("nodes/{name}"), &Value::Null)
    }

    pub(crate) fn target(&self, name: &str, target: &str) {
        self.wish(name, &json!({ "target": target }));
    }

    pub(crate) fn wish(&self, name: &str, wish: &Value) {
        // Waits until no other request has locked the node.
        let end = Instant::now() + PATIENCE;
        while !self.node(name)["reservation"].is_null() && Instant::now() < end {
            thread::sleep(Duration::from_millis(200));
        }
        self.ask(Method::PUT, &format!("nodes/{name}/states/provision"), wish);
    }

    /// Waits for one of these states. Returns all intermediate states with their times.
    pub(crate) fn wait_for_state(&self, name: &str, states: &[&str]) -> String {
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
            assert!(began.elapsed() < PATIENCE, "{why}");
            assert!(!state.ends_with("failed") && state != "error", "{why}");
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Enrolls a node. Returns the MAC of its machine.
    pub(crate) fn enroll(&self, name: &str, boot: &str, properties: &Value) -> String {
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
        self.wait_for_state(name, &["manageable"]);
        mac
    }

    /// Enrolls a node that can be deployed without cleaning. Its trait selects a template.
    pub(crate) fn with_template(&self, name: &str, steps: &Value) -> String {
        let mac = self.enroll(name, "fake", &json!({"cpu_arch": "x86_64"}));
        self.ask(
            Method::PATCH,
            &format!("nodes/{name}"),
            &json!([{"op": "add", "path": "/automated_clean", "value": false}]),
        );
        self.target(name, "provide");
        self.wait_for_state(name, &["available"]);
        self.choose(name, steps);
        mac
    }

    /// Creates a template and selects it by a trait of the node.
    pub(crate) fn choose(&self, name: &str, steps: &Value) {
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

/// Prepares the command line of an Ironic program. The process will have low priority, belong to a separate process
/// group, and log to a file.
fn quiet(program: &Path, directory: &Path, log: &str) -> Process {
    let log = fs::OpenOptions::new().create(true).append(true).open(directory.join(log)).unwrap();
    let mut process = Process::new("nice");
    process.args(["-n", "5"]).arg(program).arg("--config-file").arg(directory.join("ironic.conf"));
    process.process_group(0).current_dir(directory).stdout(log.try_clone().unwrap()).stderr(log);
    process
}

fn configuration(directory: &Path, port: u16) -> String {
    let text = include_str!("../../../../../scripts/ironic.d/ironic.conf");
    let (directory, port) = (directory.display().to_string(), port.to_string());
    let words = [
        ("DIRECTORY", &*directory),
        ("RAMDISK", &*directory),
        ("LISTENS", "127.0.0.1"),
        ("TOLD", "127.0.0.1"),
        ("PORT", &port),
    ];
    words.iter().fold(text.to_owned(), |text, (word, value)| text.replace(word, value))
}

/// Returns a step of the interface `deploy` for a template.
pub(crate) fn step(name: &str, priority: u32, args: &Value) -> Value {
    json!({"interface": "deploy", "step": name, "priority": priority, "args": args})
}
