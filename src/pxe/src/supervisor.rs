//! Supervision of dnsmasq: it is started, restarted if it exits or the NIC changes, and stopped when the server ends.
//! Its log is forwarded.

use super::dnsmasq_config::{self, DnsmasqParameters};
use super::dnsmasq_directory::DnsmasqDirectory;
use super::nic::PxeNic;
use super::other_dhcp_servers::DhcpServerSearch;
use super::pxe_options::{AddressRange, DhcpOption, PxeOptions};
use super::{BootServer, CAPABILITIES, PxeLog, PxeMessage, binaries_url, script_url};
use linux::process::{BackgroundProcess, ToolCommand};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time until dnsmasq reports that it has started.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before the first restart. It is doubled before each further restart, up to [`LONGEST_PAUSE`].
const FIRST_RESTART_DELAY: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Command that starts dnsmasq, and the inputs of its configuration.
pub(crate) struct DnsmasqCommand {
    program: PathBuf,
    nic: String,
    range: Option<AddressRange>,
    dhcp_options: Vec<DhcpOption>,
    server: BootServer,
    port: u16,
    log: PxeLog,
}

impl DnsmasqCommand {
    pub(crate) fn new(
        pxe_options: &PxeOptions,
        server: &BootServer,
        port: u16,
        program: PathBuf,
        log: &PxeLog,
    ) -> DnsmasqCommand {
        let PxeOptions { nic, range, dhcp_options, .. } = pxe_options.clone();
        DnsmasqCommand { program, nic, range, dhcp_options, server: server.clone(), port, log: log.clone() }
    }

    /// Starts dnsmasq, and waits until it is ready.
    fn start_process(&self, nic: &PxeNic, home: &DnsmasqDirectory) -> Result<BackgroundProcess, String> {
        let (script, ipxe) = (script_url(&self.server, nic, self.port), binaries_url(&self.server, nic, self.port));
        let (tftp, leases) = (home.tftp_directory(), home.leases_file());
        let forwards = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").is_ok_and(|text| text.trim() == "1");
        let (script, ipxe, tftp, leases) = (&script, &ipxe, &tftp, &leases);
        let text = dnsmasq_config::dnsmasq_config(&DnsmasqParameters {
            nic,
            range: self.range,
            dhcp_options: &self.dhcp_options,
            forwards,
            script,
            ipxe,
            has_arm64: home.has_arm64(),
            tftp,
            leases,
        });
        let file =
            home.write_config(&text).map_err(|error| format!("cannot write dnsmasq's configuration: {error}"))?;
        let (started, has_begun) = mpsc::channel();
        let log = self.log.clone();
        let command =
            ToolCommand::new(&self.program).arg("--keep-in-foreground").arg(format!("--conf-file={}", file.display()));
        let started = command.restrict_capabilities(CAPABILITIES).start_in_background(move |line| {
            if line.contains(": started, version") {
                let _ = started.send(());
            }
            if !line.contains("compile time options") {
                log(PxeMessage::Dnsmasq(remove_pid(line)));
            }
        });
        let mut running = started.map_err(|error| error.to_string())?;
        let began = Instant::now();
        while began.elapsed() < START_TIMEOUT {
            match has_begun.recv_timeout(Duration::from_millis(50)) {
                Ok(()) => return Ok(running),
                Err(RecvTimeoutError::Timeout) => {}
                // dnsmasq has closed its output, so the message that reports its readiness cannot arrive any longer.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let end = running.poll_exit().map(|error| error.to_string());
        Err(end
            .unwrap_or_else(|| format!("dnsmasq did not start within {seconds} s", seconds = START_TIMEOUT.as_secs())))
    }
}

/// Removes the process id from prefixes such as `dnsmasq-dhcp[123]: `, so that repeated messages can be recognized as
/// equal.
fn remove_pid(line: &str) -> String {
    match (line.find('['), line.find("]: ")) {
        (Some(from), Some(to)) if from < to => format!("{}{}", &line[..from], &line[to + 1..]),
        _ => line.to_owned(),
    }
}

pub(crate) struct DnsmasqSupervisor {
    dnsmasq: DnsmasqCommand,
    home: DnsmasqDirectory,
    running: Option<(BackgroundProcess, PxeNic)>,
    /// Earliest time of the next restart of dnsmasq.
    due: Instant,
    pause: Duration,
    /// Problem that was reported last. It is not reported again while it persists.
    reported_problem: Option<String>,
    search: DhcpServerSearch,
    /// True while this server may assign addresses.
    permission: Arc<AtomicBool>,
}

impl DnsmasqSupervisor {
    pub(crate) fn new(
        dnsmasq: DnsmasqCommand,
        home: DnsmasqDirectory,
        permission: Arc<AtomicBool>,
    ) -> DnsmasqSupervisor {
        DnsmasqSupervisor {
            dnsmasq,
            home,
            running: None,
            due: Instant::now(),
            pause: FIRST_RESTART_DELAY,
            reported_problem: None,
            search: DhcpServerSearch::default(),
            permission,
        }
    }

    /// Supervises dnsmasq until the sender of `ended` is dropped. Sends the result of the first start to `first`.
    pub(crate) fn supervise(
        mut self,
        log: &PxeLog,
        ended: &mpsc::Receiver<()>,
        first: &mpsc::Sender<Result<(), String>>,
    ) {
        let started = PxeNic::read_state(&self.dnsmasq.nic).and_then(|nic| self.start_process(nic));
        let is_good = started.is_ok();
        let _ = first.send(started);
        while is_good && ended.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            self.check_state(log);
            if let Some((_, nic)) = &self.running {
                self.search.start_if_due(nic, self.dnsmasq.range.is_some(), log);
            }
        }
        if let Some((running, _)) = self.running.take() {
            running.terminate(TERMINATION_TIMEOUT);
        }
        // The copied leases preserve the assigned addresses across restarts. An error is ignored, because dnsmasq
        // derives addresses from MACs, so most addresses stay the same even without the leases.
        let _ = self.home.save_final_leases();
    }

    fn start_process(&mut self, nic: PxeNic) -> Result<(), String> {
        let running = self.dnsmasq.start_process(&nic, &self.home)?;
        self.running = Some((running, nic));
        Ok(())
    }

    fn check_state(&mut self, log: &PxeLog) {
        if !self.permission.load(Ordering::SeqCst) {
            return self.running.take().into_iter().for_each(|(running, _)| running.terminate(TERMINATION_TIMEOUT));
        }
        if let Err(error) = self.home.save_leases() {
            self.report_once(log, format!("cannot save the leases of dnsmasq: {error}"));
        }
        let nic = match PxeNic::read_state(&self.dnsmasq.nic) {
            Ok(nic) => nic,
            Err(why) => {
                self.running.take().into_iter().for_each(|(running, _)| running.terminate(TERMINATION_TIMEOUT));
                return self
                    .report_once(log, format!("{why}. Machines cannot boot over PXE until this problem is solved"));
            }
        };
        match &mut self.running {
            Some((running, with)) if *with == nic => {
                let Some(end) = running.poll_exit() else { return };
                self.running = None;
                self.schedule_restart(log, &end.to_string());
            }
            Some(_) => {
                // dnsmasq does not notice changes of the NIC or of its address, so it must be restarted.
                self.running.take().into_iter().for_each(|(running, _)| running.terminate(TERMINATION_TIMEOUT));
                self.restart(log, nic);
            }
            None if Instant::now() >= self.due => self.restart(log, nic),
            None => {}
        }
    }

    fn restart(&mut self, log: &PxeLog, nic: PxeNic) {
        match self.start_process(nic) {
            Ok(()) => {
                self.reported_problem = None;
                log(PxeMessage::Note(format!("dnsmasq serves on {nic} again", nic = self.dnsmasq.nic)));
            }
            Err(why) => self.schedule_restart(log, &why),
        }
    }

    fn schedule_restart(&mut self, log: &PxeLog, why: &str) {
        // If dnsmasq has run for some time since its last restart, its exit is a new problem, so the pause before the
        // restart is reset.
        if self.due.elapsed() > LONGEST_PAUSE {
            self.pause = FIRST_RESTART_DELAY;
        }
        let seconds = self.pause.as_secs();
        log(PxeMessage::Problem(format!("machines cannot boot over PXE: {why}; restarting dnsmasq in {seconds} s")));
        self.due = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Reports a problem, unless it equals the last reported problem.
    fn report_once(&mut self, log: &PxeLog, what: String) {
        if self.reported_problem.as_ref() != Some(&what) {
            log(PxeMessage::Problem(what.clone()));
            self.reported_problem = Some(what);
        }
    }
}
