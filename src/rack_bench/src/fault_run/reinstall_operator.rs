//! Operator in a run with faults. It orders reinstalls through the load balancer, and creates machine files in the
//! directories of both servers.

use common::error::{Context, Phase, Result};
use linux::http;
use reqwest::Client;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between attempts of the operator to place an order.
const ORDER_RETRY_INTERVAL: Duration = Duration::from_secs(1);
const LAYOUT: &str = "id: bench
filesystems:
- {path: /boot/efi, device: /dev/sda1, format: vfat, label: efi}
- {path: /, device: /dev/sda2, format: ext4, label: root}
disks:
- device: /dev/sda
  wipeonreinstall: true
  partitions: [{number: 1, label: efi, size: 500, gpttype: ef00}, {number: 2, label: root, size: 0, gpttype: \"8300\"}]
constraints: {sizes: [], images: {}}
";

pub struct ReinstallOperator {
    client: Client,
    api_url: String,
    token: String,
    directories: Vec<PathBuf>,
}

impl ReinstallOperator {
    /// Creates the operator for the servers with these directories.
    ///
    /// # Errors
    /// Returns an error if the operator's token cannot be read.
    pub fn new(api_url: &str, directories: Vec<PathBuf>) -> Result<ReinstallOperator> {
        let path = directories.first().cloned().unwrap_or_default().join("operator.token");
        let token = fs::read_to_string(&path).context(Phase::Control, || format!("read {}", path.display()))?;
        let (client, token) = (http::new_async_client(None)?, token.trim().to_owned());
        Ok(ReinstallOperator { client, api_url: api_url.to_owned(), token, directories })
    }

    /// Orders a reinstall, and repeats the request until it is acknowledged. Returns the id of the order.
    ///
    /// # Errors
    /// Returns the last failure if no request is acknowledged in time.
    pub async fn place_order(&self, machine: &str, patience: Duration) -> Result<String, String> {
        let began = Instant::now();
        loop {
            match self.request_order(machine).await {
                Ok(order) => return Ok(order),
                Err(error) if began.elapsed() > patience => return Err(format!("order a reinstall: {error}")),
                Err(_) => tokio::time::sleep(ORDER_RETRY_INTERVAL).await,
            }
        }
    }

    async fn request_order(&self, machine: &str) -> Result<String, String> {
        let url = format!("{}/v1/machine/{machine}/reinstall", self.api_url);
        let request = self.client.post(url).bearer_auth(&self.token).timeout(TIMEOUT);
        let response = request.json(&json!({"id": machine, "imageid": "bench"})).send().await;
        let response = response.map_err(|error| error.to_string())?;
        let status = response.status();
        let body = response.text().await.map_err(|error| error.to_string())?;
        if !status.is_success() {
            return Err(format!("{status}: {body}"));
        }
        let body: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
        let order = body.pointer("/order/id").and_then(Value::as_str);
        order.map(str::to_owned).ok_or_else(|| format!("the response has no order: {body}"))
    }

    /// Creates the file of a machine in the directories of both servers.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written.
    pub fn create_machine_file(&self, number: u32) -> Result<(), String> {
        self.directories.iter().try_for_each(|dir| write_machine_file(dir, number)).map_err(|error| error.to_string())
    }
}

/// Creates the directory of a server, with the files of these machines.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub fn create_directory(dir: &std::path::Path, token: &str, machines: impl Iterator<Item = u32>) -> Result<()> {
    let create = || {
        for name in ["machines", "layouts", "images", "boot"] {
            fs::create_dir_all(dir.join(name))?;
        }
        for name in ["vmlinuz", "initrd"] {
            fs::write(dir.join("boot").join(name), name)?;
        }
        fs::write(dir.join("images/bench.tar"), "0123456789\n")?;
        let image = format!("id: bench\nfile: bench.tar\ndigest: sha256:{:064}\n", 0);
        fs::write(dir.join("images/bench.yaml"), image)?;
        fs::write(dir.join("layouts/bench.yaml"), LAYOUT)?;
        fs::write(dir.join("operator.token"), token)?;
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(dir.join("operator.token"), fs::Permissions::from_mode(0o600))
    };
    create().context(Phase::Control, || format!("create {}", dir.display()))?;
    for number in machines {
        write_machine_file(dir, number)?;
    }
    Ok(())
}

fn write_machine_file(dir: &std::path::Path, number: u32) -> Result<()> {
    let machine = crate::simulated_machine::SimulatedMachine::new(number, false);
    let (id, mac) = (&machine.id, machine.mac());
    let text = format!(
        "id: {id}\nname: m{number}\nmacs: [\"{mac}\"]\nallocation:\n  id: a{number}\n  hostname: m{number}\n  image: bench\n  \
         filesystemlayout: bench\n"
    );
    // The file gets its final name only when it is complete, so that no server reads an incomplete file.
    let (new, path) = (dir.join(format!("m{number}.new")), dir.join(format!("machines/m{number}.yaml")));
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &path));
    written.context(Phase::Control, || format!("write {}", path.display()))
}
