//! Tests of a complete server on the loopback interface, over TCP.

mod address_ranges;
mod agent_requests;
mod attacks_on_running_installations;
mod audit_entries;
mod boot_digest;
mod boot_files;
mod boot_network_attackers;
mod connection_handling;
mod console_logs;
mod database_checks;
mod dhcp_config_examples;
mod disconnected_clients;
mod dns_rebinding;
mod documents;
mod engine;
mod failure_reasons;
mod forged_success;
mod freed_machines;
mod images;
mod impersonation_by_processes;
mod inspected_inventories;
mod kill_durability;
mod large_inventory;
mod layout_choice;
mod layout_commands;
mod layout_refusals;
mod layouts;
mod list_pages;
mod locks_during_order_checks;
mod lost_database;
mod machine_adoption;
mod machine_commands;
mod machine_creation;
mod machine_details;
mod machine_endpoints;
mod machine_identity;
mod machine_list_cache;
mod machine_lists;
mod machine_migration;
mod machine_rename;
mod metrics;
mod migration_approval;
mod migration_at_several_servers;
mod migration_plan;
mod migration_safety;
mod new_machines;
mod oidc_logins;
mod openapi;
mod operator_file_checks;
mod orders_with_refused_plans;
mod out_of_band;
mod outdated_documents;
mod past_attacks;
mod plan_approval;
mod plan_preview;
mod postgres_limits;
mod power_control;
mod preserved_allocation;
mod project_boundaries;
mod pxe_with_dnsmasq;
mod refusal_codes;
mod reinstall;
mod reinstall_orders;
mod rest_examples;
mod restored_database;
mod restored_migration;
mod retry_after;
mod rollout_runs;
mod rollouts;
mod saved_plans;
mod secret_release;
mod server_health;
mod several_servers;
mod shared_controllers;
mod site_check_report;
mod sizes;
mod start_options;
mod started_first_installs;
mod suspended_orders;
mod templates;
mod tls;
mod unauthenticated_costs;
mod unreadable_machine_files;
mod users;
mod verified_definitions;
mod version_compatibility;
mod viewer_messages;
mod volumes;
mod web_page;

use super::listeners::ServerFronts;
use super::*;
use model::allocation;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use store::ServerState;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const ONE: &str = "4c4c4544-0051-3010-8052-b4c04f4d0001";
const TWO: &str = "4c4c4544-0051-3010-8052-b4c04f4d0002";
const STRANGER: &str = "4c4c4544-0051-3010-8052-b4c04f4dffff";
/// Timeout of tests, long enough for a busy host. Successful tests never wait this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Log of the server so far.
#[derive(Clone, Default)]
pub(super) struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl CapturedLog {
    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

struct Running {
    dir: TempDir,
    address: SocketAddr,
    /// Address of the operator's listener, if it is separate.
    operators: Option<SocketAddr>,
    /// Address of the TLS listener.
    tls: Option<SocketAddr>,
    heard: CapturedLog,
    end: oneshot::Sender<()>,
    task: JoinHandle<Result<()>>,
    client_quotas: http_server::client_quotas::ClientQuotas,
    state: ServerState,
    /// Snapshots of the operator's files.
    directory: tokio::sync::watch::Receiver<Arc<site::snapshot::SiteSnapshot>>,
}

struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Answer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

const LAYOUT: &str = "id: default
disks: [{device: /dev/sda, wipe: true, partitions: [{number: 1, label: root, size: 0, type: GPTLinux}]}]
filesystems: [{path: /, device: /dev/sda1, format: ext4, label: root}]
";

fn directory() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["machines", "layouts", "images/deb", "boot"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("layouts/default.yaml", LAYOUT);
    write(
        "images/debian.yaml",
        "id: debian-12\nname: Debian\nfile: deb/debian 12.tar.zst\nmirrors: [http://m/d.tar]\n",
    );
    write("images/deb/debian 12.tar.zst", "0123456789");
    write("images/secret", "not served");
    write("boot/vmlinuz", "kernel");
    write("boot/initrd", "ramdisk");
    write("secret", "not served");
    write("machines/one.yaml", &machine_file(ONE, "one", "52:54:00:00:00:01", "a1", ""));
    write("machines/two.yaml", &format!("id: {TWO}\nname: two\nmacs: ['52:54:00:00:00:02']\nconsoles: [ttyS1]\n"));
    dir
}

/// Returns the registration that an agent sends for the machine with this id.
fn registration(id: &str) -> Value {
    json!({ "uuid": id, "hardware": { "memory": 1, "cpu_cores": 2, "disks": [], "nics": [] },
            "bios": { "vendor": "", "version": "", "date": "" } })
}

/// Returns the token in a boot script or kernel command line.
fn token_of(script: &str) -> String {
    let (_, rest) = script.split_once("drophammer.token=").unwrap_or_else(|| panic!("{script}"));
    rest.split(' ').next().unwrap().to_owned()
}

/// Returns the kernel arguments in a boot script, without the time.
fn kernel_arguments(script: &str) -> &str {
    let (_, rest) = script.split_once(" initrd=initrd drophammer.time=").unwrap_or_else(|| panic!("{script}"));
    let (time, rest) = rest.split_once(' ').unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(now.abs_diff(time.parse().unwrap()) < 3600, "{time}");
    rest.split_once(" || ").unwrap().0
}

fn machine_file(id: &str, name: &str, mac: &str, allocation: &str, more: &str) -> String {
    format!(
        "id: {id}\nname: {name}\nmacs: ['{mac}']\nsize: c1\nallocation:\n  id: {allocation}\n  hostname: h\n  \
         image: debian-12\n  filesystemlayout: default\n  networks: [{{asn: 42}}]\n{more}"
    )
}

fn options(dir: &Path) -> ServerConfig {
    ServerConfig {
        dir: dir.to_owned(),
        store: crate::store_options::StoreOptions::default(),
        listen: "127.0.0.1:0".parse().unwrap(),
        operator_listen: None,
        tls: None,
        proxies: Vec::new(),
        any_source_port: false,
        restart_timeout: store::boot_activity::SAME_ADDRESS_BOOT_TIMEOUT,
        hosts: ["h", "d", "install.rack"].map(str::to_owned).to_vec(),
        url: None,
        pxe: None,
        boot: None,
        cmdline: "quiet".to_owned(),
        approved_only: false,
        audit_log: None,
        audit_retention: crate::options::AUDIT_RETENTION,
        limits: LimitOptions::default(),
        json: true,
    }
}

/// Returns an environment in which each boot immediately counts as silent, so that the next boot can replace it, and in
/// which all source ports count as privileged.
fn silent() -> HostEnvironment {
    let (scan_interval, quiet) = (Duration::from_millis(20), Duration::ZERO);
    // All source ports count as privileged, because the tests run unprivileged.
    HostEnvironment { scan_interval, quiet, first_unprivileged_port: u16::MAX, ..HostEnvironment::default() }
}

async fn bind(dir: &TempDir, heard: &CapturedLog) -> Result<ControlServer> {
    let options = engine::with_engine(&options(dir.path()));
    ControlServer::bind_server(&options, ServerLog::json_into(heard.clone()), &silent(), 10_000).await
}

impl Running {
    async fn start() -> Running {
        Running::start_in(directory()).await
    }

    async fn start_in(dir: TempDir) -> Running {
        let options = options(dir.path());
        Running::start_with(dir, &options, &silent(), 10_000).await
    }

    async fn start_with(
        dir: TempDir,
        options: &ServerConfig,
        environment: &HostEnvironment,
        at_once: usize,
    ) -> Running {
        let (heard, options) = (CapturedLog::default(), engine::with_engine(options));
        let server = ControlServer::bind_server(&options, ServerLog::json_into(heard.clone()), environment, at_once)
            .await
            .unwrap();
        let at = |front: &http_server::connections::RoutedListener| front.listener.local_addr().unwrap();
        let ServerFronts { machines, tls, operators } = &server.fronts;
        let (address, tls, operators) = (at(machines), tls.as_ref().map(at), operators.as_ref().map(at));
        let (end, ended) = oneshot::channel();
        let (client_quotas, state) = (server.app.client_quotas.clone(), server.app.state.clone());
        let directory = server.app.directory.clone();
        let manager = ServiceManager::default();
        let task =
            tokio::spawn(async move { server.serve_connections(async move { drop(ended.await) }, &manager).await });
        Running { dir, address, operators, tls, heard, end, task, client_quotas, state, directory }
    }

    /// Stops the server, and returns its directory.
    async fn stop(self) -> TempDir {
        drop((self.end, self.state));
        self.task.await.unwrap().unwrap();
        self.dir
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    async fn raw(&self, request: &str) -> Answer {
        let work = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let answer = tokio::time::timeout(PATIENCE, work).await.unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let headers = head.lines().skip(1).filter_map(|line| line.split_once(": "));
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            headers: headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect(),
            body: answer[end + 4..].to_vec(),
        }
    }

    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "Host") {
            request += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        self.raw(&format!("{request}\r\n{body}")).await
    }

    async fn call(&self, token: &str, method: &str, path: &str, body: &Value) -> Answer {
        let bearer = format!("Bearer {token}");
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.ask(method, path, &[("Authorization", &bearer)], &text).await;
        openapi::agrees(method, path, body, &answer);
        answer
    }

    async fn boot(&self, query: &str) -> Answer {
        self.ask("GET", &format!("/boot.ipxe?{query}"), &[], "").await
    }

    /// Boots the machine over PXE and registers it. Returns its token.
    async fn token(&self, id: &str) -> String {
        let token = token_of(&self.boot(&format!("uuid={id}")).await.text());
        let answer = self.register(id, &token).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        token
    }

    async fn register(&self, id: &str, token: &str) -> Answer {
        self.call(token, "POST", "/v1/machine/register", &registration(id)).await
    }

    /// Waits until the machine is allocated. This takes a moment, because the server must first compute the digest of
    /// the image.
    async fn allocated(&self, id: &str, token: &str) -> allocation::AssignedMachine {
        let answer = self.call(token, "GET", &format!("/v1/machine/{id}/wait?seconds=60"), &Value::Null).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = self.call(token, "GET", &format!("/v1/machine/{id}"), &Value::Null).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }

    async fn heard(&self, words: &str) {
        self.wait_until(|| self.heard.text().contains(words), words).await;
    }

    async fn wait_until(&self, is_so: impl Fn() -> bool, what: &str) {
        let began = std::time::Instant::now();
        while !is_so() {
            assert!(began.elapsed() < PATIENCE, "never: {what}\n{}", self.heard.text());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Requests the point of no return for a first installation, as an agent that does not send a digest.
    async fn begins_first(&self, id: &str, token: &str, allocation: &str) -> u16 {
        let begins = json!({ "allocationuuid": allocation, "order": "" });
        self.call(token, "POST", &format!("/v1/machine/{id}/point-of-no-return"), &begins).await.status
    }

    /// Reports the end of a first installation. Before a report of success, requests the point of no return.
    async fn report(&self, id: &str, token: &str, allocation: &str, success: bool) {
        if success {
            self.begins_first(id, token, allocation).await;
        }
        let body =
            json!({ "success": success, "message": "m", "allocationuuid": allocation, "console_password": "s3cret" });
        let answer = self.call(token, "POST", &format!("/v1/machine/{id}/report"), &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}
