//! Life of a simulated machine, with the requests of a real agent in their order: boot script, registration, wait,
//! allocation, point of no return, events, progress, parts of the console log, and the final report. The machine loads
//! no kernel, ramdisk or image.

use crate::machine_file_operator::Operator;
use crate::run_figures::RunFigures;
use control::{AttemptNotice, HttpMachineClient};
use linux::http;
use model::install_report::{
    BootInfo, DiskChanges, EventName, InstallOutcome, InstallResult, ProgressEvent, StageTime, TransferProgress,
};
use model::inventory::Inventory;
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Number of machines in a boot loop.
pub const LOOPING: u32 = 1000;
/// Time between two boots of a machine in a boot loop.
const LOOP_PAUSE: Duration = Duration::from_secs(5);
/// Duration for which a machine is off after it has lost power. It exceeds the server's `--restart-timeout`.
const POWER_OFF: Duration = Duration::from_secs(12);
/// Time within which all machines are powered on again after a power failure.
const RETURN_WITHIN: Duration = Duration::from_secs(1);
/// Interval between progress events, as in the agent.
const EVENT_PAUSE: Duration = Duration::from_millis(500);
/// Interval between parts of the log, as in the agent.
const LOG_PAUSE: Duration = Duration::from_secs(2);
/// Duration of one long poll for an allocation.
const LONG_POLL_DURATION: Duration = Duration::from_secs(60);
/// Interval between attempts of the firmware to load the boot script.
const FIRMWARE_PAUSE: Duration = Duration::from_secs(5);
/// Time after which a machine counts as lost if it has received no boot script.
const BOOT_SCRIPT_TIMEOUT: Duration = Duration::from_secs(900);

/// Stages of an installation. In the stage `image.burn`, the machine reports the progress of a transfer.
const STAGES: [&str; 9] = [
    "storage.wipe",
    "storage.partition",
    "storage.format",
    "storage.mount",
    "image.burn",
    "system.files",
    "system.boot",
    "storage.unmount",
    "firmware.entries",
];

/// Properties that all machines of a run share.
pub struct MachineRun {
    pub boot: SocketAddr,
    pub api: SocketAddr,
    pub transfer: Duration,
    /// True if each machine loses power once.
    pub loses_power: bool,
    pub figures: Arc<RunFigures>,
}

/// A simulated machine.
pub struct SimulatedMachine {
    number: u32,
    pub id: String,
    pub address: IpAddr,
    lacks_file: bool,
}

impl SimulatedMachine {
    pub fn new(number: u32, lacks_file: bool) -> SimulatedMachine {
        // The addresses 127.0.0.0/16 are reserved for the server.
        let address = IpAddr::V4(Ipv4Addr::from(0x7f01_0000 + number));
        SimulatedMachine { number, id: format!("4c4c4544-0051-3010-8052-{number:012}"), address, lacks_file }
    }

    fn allocation(&self) -> String {
        format!("a{}", self.number)
    }

    /// Returns the MAC of the machine's NIC.
    pub fn mac(&self) -> String {
        let [_, a, b, c] = self.number.to_be_bytes();
        format!("52:54:00:{a:02x}:{b:02x}:{c:02x}")
    }

    /// Boots and installs the machine. Returns the reason if the installation fails.
    pub async fn install(&self, run: &MachineRun, operator: &Operator) -> Result<(), String> {
        if run.loses_power {
            let powered = run.transfer.mul_f64(0.3 + 0.7 * fastrand::f64());
            if tokio::time::timeout(powered, self.install_once(run, operator)).await.is_ok_and(|done| done.is_ok()) {
                return Ok(());
            }
            tokio::time::sleep(POWER_OFF + RETURN_WITHIN.mul_f64(fastrand::f64())).await;
        }
        self.install_once(run, operator).await
    }

    async fn install_once(&self, run: &MachineRun, operator: &Operator) -> Result<(), String> {
        let client = self.boot(run).await?;
        self.send_event(run, &client, EventName::Registering, "registers").await;
        self.register(run, &client).await?;
        if self.lacks_file && !operator.has_requested(&self.id) {
            let waits = self.wait(run, operator, &client);
            let create = async {
                tokio::time::sleep(Duration::from_secs(2)).await;
                operator.create_machine_file(&self.id, &format!("m{}", self.number), &self.allocation()).await
            };
            tokio::try_join!(waits, create)?;
        } else {
            self.wait(run, operator, &client).await?;
        }
        let machine = run.figures.measure("fetch allocation", client.fetch_machine()).await.map_err(text)?;
        let given = machine.allocation.filter(|given| given.id == self.allocation() && !given.succeeded);
        let Some(given) = given else {
            run.figures.wrong.fetch_add(1, Ordering::Relaxed);
            return Err(format!("{}: the server has not sent allocation {}", self.id, self.allocation()));
        };
        let notice = AttemptNotice { allocation: &given.id, ..AttemptNotice::default() };
        let passed = client.announce_point_of_no_return(&notice);
        run.figures.measure("point of no return", passed).await.map_err(text)?;
        let timings = self.run_stages(run, &client).await;
        let result = self.result(timings);
        run.figures.measure("report", client.report_result(&result)).await.map_err(text)?;
        self.send_event(run, &client, EventName::BootingNewKernel, "boots the new system").await;
        Ok(())
    }

    /// Boots and registers the machine in a loop, until the task is aborted.
    pub async fn boot_forever(&self, run: &MachineRun) {
        loop {
            if let Ok(client) = self.boot(run).await {
                // If the registration waits for the end of the previous boot, it is aborted, and the machine restarts.
                drop(tokio::time::timeout(LOOP_PAUSE, self.register(run, &client)).await);
            }
            tokio::time::sleep(LOOP_PAUSE.mul_f64(0.5 + fastrand::f64())).await;
        }
    }

    /// Loads the boot script on a new connection, as firmware does, and creates the agent's client from the kernel
    /// arguments in the script.
    async fn boot(&self, run: &MachineRun) -> Result<HttpMachineClient, String> {
        let url = format!("http://{}/boot.ipxe?uuid={}&mac={}", run.boot, self.id, self.mac());
        let began = Instant::now();
        let script = loop {
            let firmware = http::new_async_client(Some(self.address)).map_err(text)?;
            let load = async {
                firmware.get(&url).timeout(BOOT_SCRIPT_TIMEOUT).send().await?.error_for_status()?.text().await
            };
            match run.figures.measure("boot script", load).await {
                Ok(script) => break script,
                Err(error) if began.elapsed() > BOOT_SCRIPT_TIMEOUT => return Err(format!("boot script: {error}")),
                Err(_) => run.figures.delayed.fetch_add(1, Ordering::Relaxed),
            };
            tokio::time::sleep(FIRMWARE_PAUSE.mul_f64(0.5 + fastrand::f64())).await;
        };
        let argument = |name: &str| {
            let (_, rest) = script.split_once(name)?;
            rest.split_whitespace().next()
        };
        let token = argument("drophammer.token=").ok_or_else(|| format!("{}: no token in {script}", self.id))?;
        HttpMachineClient::new(&format!("https://{}", run.api), token, &self.id, Some(self.address)).map_err(text)
    }

    async fn register(&self, run: &MachineRun, client: &HttpMachineClient) -> Result<(), String> {
        let inventory = self.inventory().map_err(|error| error.to_string())?;
        run.figures.measure("register", client.register_machine(&inventory)).await.map_err(text)
    }

    async fn wait(&self, run: &MachineRun, operator: &Operator, client: &HttpMachineClient) -> Result<(), String> {
        let began = Instant::now();
        while !client.wait_for_allocation(LONG_POLL_DURATION).await.map_err(text)? {}
        match operator.take_time_since_request(&self.id) {
            // The measured time includes the creation of the machine file, so it is an upper bound.
            Some(passed) => run.figures.record_duration("wake-up", passed),
            None => run.figures.record("wait, allocated already", began),
        }
        Ok(())
    }

    /// Reports all stages, with the progress of the transfer and parts of the log.
    async fn run_stages(&self, run: &MachineRun, client: &HttpMachineClient) -> Vec<StageTime> {
        let (mut timings, mut log) = (Vec::new(), 0);
        for stage in STAGES {
            self.send_stage(run, client, stage, None).await;
            let began = Instant::now();
            if stage == "image.burn" {
                self.transfer(run, client, &mut log).await;
            }
            let seconds = began.elapsed().as_secs_f64();
            self.send_stage(run, client, stage, Some(seconds)).await;
            timings.push(StageTime { stage: stage.to_owned(), seconds });
        }
        self.upload_log(run, client, &mut log).await;
        timings
    }

    async fn transfer(&self, run: &MachineRun, client: &HttpMachineClient, log: &mut u64) {
        let (began, total) = (Instant::now(), 568_000_000);
        let mut logged = Instant::now();
        while began.elapsed() < run.transfer {
            tokio::time::sleep(EVENT_PAUSE).await;
            let share = (began.elapsed().as_secs_f64() / run.transfer.as_secs_f64()).min(1.0);
            let progress = TransferProgress {
                bytes: (total as f64 * share) as u64,
                total_bytes: Some(total),
                bytes_per_second: total / run.transfer.as_secs().max(1),
                seconds_left: Some(1),
            };
            let (event, message) = (EventName::Installing, progress.to_string());
            let stage = Some("image.burn".to_owned());
            let event = ProgressEvent { event, message, stage, seconds: None, progress: Some(progress) };
            self.deliver("progress", run, client, &event).await;
            if logged.elapsed() >= LOG_PAUSE {
                logged = Instant::now();
                self.upload_log(run, client, log).await;
            }
        }
    }

    async fn send_stage(&self, run: &MachineRun, client: &HttpMachineClient, stage: &str, seconds: Option<f64>) {
        let message = if seconds.is_some() { "done" } else { "begins" }.to_owned();
        let (event, stage) = (EventName::Installing, Some(stage.to_owned()));
        self.deliver("event", run, client, &ProgressEvent { event, message, stage, seconds, progress: None }).await;
    }

    async fn send_event(&self, run: &MachineRun, client: &HttpMachineClient, event: EventName, message: &str) {
        let message = message.to_owned();
        self.deliver(
            "event",
            run,
            client,
            &ProgressEvent { event, message, stage: None, seconds: None, progress: None },
        )
        .await;
    }

    async fn deliver(&self, name: &'static str, run: &MachineRun, client: &HttpMachineClient, event: &ProgressEvent) {
        if run.figures.measure(name, client.send_event(event)).await.is_err() {
            run.figures.undelivered.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn upload_log(&self, run: &MachineRun, client: &HttpMachineClient, start: &mut u64) {
        let lines: String = (0..8)
            .map(|line| format!("[{:>5}.{line}] image.burn: machine {} is simulated\n", *start, self.number))
            .collect();
        match run.figures.measure("log", client.upload_log(*start, &lines)).await {
            Ok(_) => *start += lines.len() as u64,
            Err(_) => drop(run.figures.undelivered.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn result(&self, timings: Vec<StageTime>) -> InstallResult {
        let boot = BootInfo {
            kernel: "/boot/vmlinuz".to_owned(),
            initrd: "/boot/initrd".to_owned(),
            cmdline: "quiet".to_owned(),
            bootloader_id: "debian".to_owned(),
        };
        InstallResult {
            outcome: InstallOutcome::Succeeded { boot, marker: None },
            message: "installed".to_owned(),
            allocation: self.allocation(),
            order: None,
            plan: "the plan of a simulated machine\n".repeat(60),
            timings,
            peak_rss_bytes: Some(60 << 20),
            done: DiskChanges::default(),
        }
    }

    /// Returns the inventory of a server with eight disks.
    ///
    /// # Errors
    /// Returns an error if the inventory is invalid.
    pub fn inventory(&self) -> serde_json::Result<Inventory> {
        let number = self.number;
        let disks = ["sda", "sdb", "sdc", "sdd", "sde", "sdf", "sdg", "sdh"].map(|name| {
            json!({"name": name, "device": format!("/dev/{name}"), "size_bytes": 960_197_124_096_u64, "sector_bytes": 512,
                "model": "MODEL 960", "vendor": "V", "serial": format!("S-{number}-{name}"),
                "wwn": format!("0x5000{number:08x}{name}"), "transport": "sata", "table": null,
                "by_path": format!("/dev/disk/by-path/pci-0000:00:17.0-{name}"), "signatures": [], "uses": [], "blank": true})
        });
        serde_json::from_value(json!({
            "system": {"uuid": self.id, "vendor": "Vendor", "product": "Product", "serial": number.to_string(), "firmware": "uefi"},
            "cpus": [{"vendor": "V", "model": "CPU", "cores": 64, "threads": 128}], "memory_bytes": 549_755_813_888_u64,
            "nics": [{"name": "eth0", "mac": self.mac()}], "disks": disks}))
    }
}

fn text(error: common::error::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn machines_differ_in_id_address_and_mac() {
        let all: Vec<_> = (0..70_000).map(|number| SimulatedMachine::new(number, false)).collect();
        let ids: HashSet<_> = all.iter().map(|machine| machine.id.clone()).collect();
        let addresses: HashSet<_> = all.iter().map(|machine| machine.address).collect();
        let macs: HashSet<_> = all.iter().map(SimulatedMachine::mac).collect();
        assert_eq!((ids.len(), addresses.len(), macs.len()), (70_000, 70_000, 70_000));
        assert!(addresses.iter().all(IpAddr::is_loopback));
        assert!(!addresses.contains(&IpAddr::from([127, 0, 0, 1])));
    }

    #[test]
    fn the_inventory_is_accepted_by_the_server() {
        let inventory = SimulatedMachine::new(7, false).inventory().unwrap();
        assert_eq!((inventory.disks.len(), inventory.nics.len()), (8, 1));
        assert_eq!(inventory.find_exceeded_limit(), None);
    }
}
