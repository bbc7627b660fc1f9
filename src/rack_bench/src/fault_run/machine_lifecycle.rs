//! Life of a machine in a run with faults: an installation, a reinstall, and a final boot from the disk. The machine
//! uses the agent's client, and records its requests and the responses.

use super::history::{HistoryEvent, HistoryRecorder};
use super::reinstall_operator::ReinstallOperator;
use crate::simulated_machine::SimulatedMachine;
use control::{AttemptNotice, HttpMachineClient};
use linux::http;
use model::allocation::Allocation;
use model::install_marker::{AttemptSecret, InstallMarker};
use model::install_report::{
    BootInfo, DiskChanges, EventName, InstallOutcome, InstallResult, ProgressEvent, StageTime,
};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Stages that a machine reports. In the stage `image.burn`, it reports the progress of a transfer.
const STAGES: [&str; 4] = ["storage.wipe", "image.burn", "system.files", "system.boot"];
const EVENT_PAUSE: Duration = Duration::from_millis(500);
const LONG_POLL_DURATION: Duration = Duration::from_secs(60);
/// Time limit of the firmware for loading the boot script.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(3);
const SCRIPT_PAUSE: Duration = Duration::from_secs(1);
/// Pause between a failed installation and the next boot.
const RESTART_PAUSE: Duration = Duration::from_secs(2);
/// Time for which a machine without a file waits before its file is created.
const FILE_DELAY: Duration = Duration::from_secs(1);
/// Size of a group of consecutive machines. In each group, one machine waits for its machine file, and another machine
/// loses power during its reinstall.
const SPECIAL_MACHINE_INTERVAL: u32 = 10;

/// Properties that all machines of a run share.
pub struct LifecycleContext {
    pub boot: SocketAddr,
    pub api_url: String,
    pub transfer: Duration,
    /// Time after which a machine that is not installed counts as lost.
    pub patience: Duration,
    pub history: HistoryRecorder,
    pub operator: ReinstallOperator,
}

/// Returns whether the file of the machine is created only after the machine has started to wait for it.
pub fn waits_for_file(number: u32) -> bool {
    number % SPECIAL_MACHINE_INTERVAL == 3
}

/// Returns the address of the machine.
pub fn machine_address(number: u32) -> IpAddr {
    SimulatedMachine::new(number, false).address
}

pub struct MachineLifecycle {
    machine: SimulatedMachine,
    number: u32,
    run: Arc<LifecycleContext>,
    boots: u32,
    began: Instant,
}

/// Boot that runs the agent: its number, and its client, which may not have registered yet.
struct AgentBoot {
    number: u32,
    client: HttpMachineClient,
}

/// Installation that the server has sent to a machine, and the secret of this attempt.
struct ServedInstallation {
    allocation: Allocation,
    order: String,
    secret: AttemptSecret,
}

impl MachineLifecycle {
    pub fn new(number: u32, run: Arc<LifecycleContext>) -> MachineLifecycle {
        let machine = SimulatedMachine::new(number, waits_for_file(number));
        MachineLifecycle { machine, number, run, boots: 0, began: Instant::now() }
    }

    /// Installs and then reinstalls the machine.
    ///
    /// # Errors
    /// Returns the last failure if the machine is not installed in time.
    pub async fn live(mut self) -> Result<(), String> {
        let mut last = "the time limit for the machine has passed".to_owned();
        let mut is_ordered = false;
        while self.began.elapsed() < self.run.patience {
            match self.step(&mut is_ordered).await {
                Ok(true) => {
                    self.record(HistoryEvent::Finished);
                    return Ok(());
                }
                Ok(false) => {}
                Err(error) => {
                    self.record(HistoryEvent::BootEnded { boot: self.boots });
                    last = error;
                    tokio::time::sleep(RESTART_PAUSE).await;
                }
            }
        }
        Err(format!("machine {}: {last}", self.number))
    }

    /// Boots once, and follows the instructions of the server. Returns true if the machine has booted from its disk
    /// after the reinstall.
    async fn step(&mut self, is_ordered: &mut bool) -> Result<bool, String> {
        let boot = self.boot().await?;
        let is_installed = self.is_reported("");
        match (boot, *is_ordered) {
            (None, true) if self.is_finished() => return Ok(true),
            (None, true) => return Err("the ordered reinstall was not served".to_owned()),
            (None, false) if is_installed => {}
            (None, false) => return Err("the installation was not served".to_owned()),
            (Some(boot), _) => self.install(boot).await?,
        }
        if !*is_ordered && self.is_reported("") {
            let order = self.run.operator.place_order(&self.machine.id, self.run.patience).await?;
            self.record(HistoryEvent::OrderAcknowledged { order });
            *is_ordered = true;
        }
        Ok(false)
    }

    /// Returns whether the server has acknowledged the report about this order.
    fn is_reported(&self, of: &str) -> bool {
        self.any_event(|event| matches!(event, HistoryEvent::SuccessAcknowledged { order, .. } if order == of))
    }

    fn is_finished(&self) -> bool {
        self.any_event(|event| matches!(event, HistoryEvent::SuccessAcknowledged { order, .. } if !order.is_empty()))
    }

    fn any_event(&self, is_wanted: impl Fn(&HistoryEvent) -> bool) -> bool {
        self.run.history.any(self.number, is_wanted)
    }

    fn record(&self, event: HistoryEvent) {
        self.run.history.record(self.number, event);
    }

    /// Loads the boot script, as firmware does. Returns `None` if the script boots the disk.
    async fn boot(&mut self) -> Result<Option<AgentBoot>, String> {
        self.boots += 1;
        let url = format!("http://{}/boot.ipxe?uuid={}&mac={}", self.run.boot, self.machine.id, self.machine.mac());
        let load = async {
            loop {
                let firmware = http::new_async_client(Some(self.machine.address)).map_err(text)?;
                let request =
                    async { firmware.get(&url).timeout(SCRIPT_TIMEOUT).send().await?.error_for_status()?.text().await };
                match request.await {
                    Ok(script) => return Ok::<String, String>(script),
                    Err(error) if self.began.elapsed() > self.run.patience => return Err(error.to_string()),
                    Err(_) => tokio::time::sleep(SCRIPT_PAUSE.mul_f64(0.5 + fastrand::f64())).await,
                }
            }
        };
        let script = self.run.history.record_call(self.number, load).await?;
        let token = script.split_once("drophammer.token=").and_then(|(_, rest)| rest.split_whitespace().next());
        let Some(token) = token else { return Ok(None) };
        let client = HttpMachineClient::new(&self.run.api_url, token, &self.machine.id, Some(self.machine.address));
        Ok(Some(AgentBoot { number: self.boots, client: client.map_err(text)? }))
    }

    /// Carries out the installation that the server sends to this boot. One of ten machines loses power during its
    /// first reinstall.
    async fn install(&mut self, boot: AgentBoot) -> Result<(), String> {
        let served = self.start(&boot).await?;
        let loses_power = self.number % SPECIAL_MACHINE_INTERVAL == 7
            && !served.order.is_empty()
            && !self.any_event(|event| matches!(event, HistoryEvent::BootEnded { .. }));
        if !loses_power {
            return self.complete(&boot, &served).await;
        }
        self.record(HistoryEvent::BootEnded { boot: boot.number });
        let Some(next) = self.boot().await? else { return Err("the started order was not served again".to_owned()) };
        let repeated = self.start(&next).await?;
        // Simulates a request of the first boot that was delayed in the network.
        if self.announce(&boot, &served).await.is_ok() {
            self.record(HistoryEvent::StartPermitted { boot: boot.number, order: served.order });
        }
        self.complete(&next, &repeated).await
    }

    /// Registers, waits for the allocation, and passes the point of no return.
    async fn start(&self, boot: &AgentBoot) -> Result<ServedInstallation, String> {
        let inventory = self.machine.inventory().map_err(|error| error.to_string())?;
        let register = boot.client.register_machine(&inventory);
        // After a power failure, the registration must wait until the previous boot counts as ended. This wait is not
        // a takeover, so the registration is not recorded as a call.
        match self.any_event(|event| matches!(event, HistoryEvent::BootEnded { .. })) {
            true => register.await.map_err(text)?,
            false => self.run.history.record_call(self.number, register).await.map_err(text)?,
        }
        self.wait(boot).await?;
        let history = &self.run.history;
        let machine = history.record_call(self.number, boot.client.fetch_machine()).await.map_err(text)?;
        let allocation = machine.allocation.ok_or("the machine has no allocation")?;
        let order = allocation.order.as_ref().map(|order| order.id.clone()).unwrap_or_default();
        if allocation.succeeded && order.is_empty() {
            return Err("there is nothing to install".to_owned());
        }
        let sequence = allocation.fencing.as_ref().map(|token| token.sequence).unwrap_or_default();
        self.record(HistoryEvent::InstallationServed { boot: boot.number, order: order.clone(), sequence });
        let secret = AttemptSecret::generate(&mut || uuid::Uuid::from_u128(fastrand::u128(..)));
        let served = ServedInstallation { allocation, order, secret };
        history.record_call(self.number, self.announce(boot, &served)).await?;
        self.record(HistoryEvent::StartPermitted { boot: boot.number, order: served.order.clone() });
        Ok(served)
    }

    async fn wait(&self, boot: &AgentBoot) -> Result<(), String> {
        if !waits_for_file(self.number) || self.any_event(|event| *event == HistoryEvent::WaitBegan) {
            while !boot.client.wait_for_allocation(LONG_POLL_DURATION).await.map_err(text)? {}
            return Ok(());
        }
        self.record(HistoryEvent::WaitBegan);
        let create = async {
            tokio::time::sleep(FILE_DELAY).await;
            self.run.operator.create_machine_file(self.number)
        };
        let wait = async {
            while !boot.client.wait_for_allocation(LONG_POLL_DURATION).await.map_err(text)? {}
            self.record(HistoryEvent::WokenUp);
            Ok(())
        };
        tokio::try_join!(create, wait).map(drop)
    }

    async fn announce(&self, boot: &AgentBoot, served: &ServedInstallation) -> Result<(), String> {
        let digest = served.secret.digest();
        let notice = AttemptNotice {
            allocation: &served.allocation.id,
            order: Some(served.order.as_str()).filter(|order| !order.is_empty()),
            secret_digest: digest.as_deref(),
            ..AttemptNotice::default()
        };
        boot.client.announce_point_of_no_return(&notice).await.map_err(text)
    }

    /// Sends the events of all stages, and then reports the success.
    async fn complete(&self, boot: &AgentBoot, served: &ServedInstallation) -> Result<(), String> {
        let mut timings = Vec::new();
        for stage in STAGES {
            let began = Instant::now();
            self.send_event(boot, stage, None).await;
            while stage == "image.burn" && began.elapsed() < self.run.transfer {
                tokio::time::sleep(EVENT_PAUSE).await;
                self.send_event(boot, stage, None).await;
            }
            let seconds = began.elapsed().as_secs_f64();
            self.send_event(boot, stage, Some(seconds)).await;
            timings.push(StageTime { stage: stage.to_owned(), seconds });
        }
        let order = served.order.clone();
        self.record(HistoryEvent::SuccessReported { boot: boot.number, order: order.clone() });
        let result = self.result(served, timings);
        self.run.history.record_call(self.number, boot.client.report_result(&result)).await.map_err(text)?;
        self.record(HistoryEvent::SuccessAcknowledged { boot: boot.number, order });
        Ok(())
    }

    async fn send_event(&self, boot: &AgentBoot, stage: &str, seconds: Option<f64>) {
        let (event, stage) = (EventName::Installing, Some(stage.to_owned()));
        let event = ProgressEvent { event, message: "simulated".to_owned(), stage, seconds, progress: None };
        // An error is ignored: each event is sent only once, and the loss of an event is harmless.
        drop(self.run.history.record_call(self.number, boot.client.send_event(&event)).await);
    }

    fn result(&self, served: &ServedInstallation, timings: Vec<StageTime>) -> InstallResult {
        let ServedInstallation { allocation, order, secret } = served;
        let order = Some(order.clone()).filter(|order| !order.is_empty());
        let marker = InstallMarker {
            machine: self.machine.id.clone(),
            allocation: allocation.id.clone(),
            order: order.clone(),
            fencing: allocation.fencing.clone(),
            secret: Some(secret.clone()),
            image: allocation.image.id.clone(),
            layout: "bench".to_owned(),
            ..InstallMarker::default()
        };
        let [kernel, initrd] = ["/boot/vmlinuz", "/boot/initrd"].map(str::to_owned);
        let boot = BootInfo { kernel, initrd, cmdline: "quiet".to_owned(), bootloader_id: "debian".to_owned() };
        InstallResult {
            outcome: InstallOutcome::Succeeded { boot, marker: Some(marker) },
            message: "installed".to_owned(),
            allocation: allocation.id.clone(),
            order,
            plan: "the plan of a simulated machine\n".to_owned(),
            timings,
            peak_rss_bytes: Some(60 << 20),
            done: DiskChanges::default(),
        }
    }
}

fn text(error: common::error::Error) -> String {
    error.to_string()
}
