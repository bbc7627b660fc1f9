//! Sender of a migration (see [`model::machine_migration`]). The disks of the sender are made read-only before they
//! are assembled, and no stage of a plan runs on the sender.
//!
//! | response of the control plane | action of the sender |
//! |---|---|
//! | the receiver has not started to erase its disks | checks the receiver's certificate and waits; refuses a certificate that is not trusted |
//! | the receiver has erased its disks; the response contains the receiver's address and certificate | sends everything, once per boot of the receiver |
//! | `booting`: the receiver has received everything | waits |
//! | `done` | waits: the sender has no allocation, and reboots when it is allocated again |
//! | `cancelled`, `refused`, or another migration | reboots: the disks of the sender are intact, and the control plane decides what the sender boots |
//! | the migration continues, but the response has no instructions for the sender | waits: the server may be unable to read the machine file |
//! | no information about the migration | waits, at most as long as [`ControlSilence`] allows, then reboots and asks again; this does not end the migration |

use super::InstallAgent;
use super::failure_handling::InstallFailure;
use super::migration_approval::describe_approval_wait;
use crate::preflight;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use common::sync::lock_mutex;
use common::{diagnostic, format};
use linux::console_log::print_line;
use model::allocation::{Allocation, AssignedMachine};
use model::device_name::KernelName;
use model::install_report::EventName;
use model::inventory::Inventory;
use model::machine_migration::{
    MigratedMachine, MigrationAnswer, MigrationOffer, MigrationPeer, MigrationReport, MigrationSide,
};
use model::storage_graph::DeviceStack;
use plan::SourceDevice;
use plan::request_from_allocation::build_request;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;
use transfer::machine_migration::{
    self, ControlSilence, IncomingMigration, OwnIdentity, SECRET_FILE, SilenceState, TransferDevice,
};

/// Interval at which the control plane is polled.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(3);

/// Delay before a failed transfer is retried.
const TRANSFER_RETRY_DELAY: Duration = Duration::from_secs(15);

impl InstallAgent {
    /// Sends the disks as long as the control plane requests the transfer, and then reboots the machine.
    pub(super) fn send_migration(
        &self,
        machine: &AssignedMachine,
        allocation: &Allocation,
        moving: &MigrationOffer,
    ) -> Result<(), Box<InstallFailure>> {
        let at = |step: &'static str| move |error| Box::new(InstallFailure::new_before_plan(step, error));
        preflight::require_tools().map_err(at("tools"))?;
        let refuse = |problems: &[_]| {
            Error::refusal(Phase::Plan, diagnostic::summarize_problems(problems)).with_code(ErrorCode::MigrationSource)
        };
        let layout = allocation.parse_layout().map_err(|problems| at("move.carry")(refuse(&problems)))?.layout;
        preflight::wait_for_layout_disks(&layout).map_err(at("move.carry"))?;
        // The locks are never released, so the disks stay read-only until the machine reboots.
        let (inventory, _locks) = preflight::read_locked_inventory().map_err(at("move.carry"))?;

        let claim = build_request(machine, &self.machine, allocation, &[]).claim.unwrap_or_default();
        let migrated_machine = plan::check_migration(&layout, &inventory, &claim);
        let (migrated_machine, from) = migrated_machine.map_err(|problems| at("move.carry")(refuse(&problems)))?;
        let own = OwnIdentity::generate_identity(Path::new(SECRET_FILE)).map_err(at("move.carry"))?;
        print_line(&format!(
            "\nThe disks of this machine will be sent to another machine. They are read, but not written.\n{trust}\n{devices}\n",
            trust = own.describe_trust(),
            devices = describe_devices(&from, &migrated_machine)
        ));
        let migration_report = MigrationReport {
            order: moving.order.clone(),
            certificate: own.certificate().to_owned(),
            port: None,
            carried: Some(migrated_machine),
            words: None,
            has_secret: own.has_secret(),
        };
        self.control.report_migration_state(&migration_report).map_err(at("control.move"))?;
        self.reporter.start_phase(EventName::Waiting, "for the receiving machine of the migration");
        self.send_until_over(&own, &migration_report, &group_by_shared_disks(&inventory, &from))
            .map_err(at("move.peer"))
    }

    /// Sends the devices until the migration ends.
    ///
    /// # Errors
    /// Fails if the certificate of the receiver is not trusted. In that case, the receiver has not erased anything.
    fn send_until_over(
        &self,
        own: &OwnIdentity,
        migration_report: &MigrationReport,
        groups: &[Vec<SourceDevice>],
    ) -> Result<()> {
        let order = migration_report.order.as_str();
        let messages = TransferMessages { agent: self, migration_report, last: Mutex::default() };
        let (mut sent_to, mut waits_for, mut silence) = (String::new(), String::new(), ControlSilence::default());
        let mut wait = |what: &str| {
            if waits_for != what {
                what.clone_into(&mut waits_for);
                self.reporter.start_phase(EventName::Waiting, what);
            }
        };
        loop {
            thread::sleep(POLL_INTERVAL);
            let machine = match self.poll_machine(&mut silence) {
                Ok(Some(machine)) => machine,
                Ok(None) => continue,
                // The control plane may have refused the request because the token has expired, which happens after a
                // day.
                Err(refusal) => {
                    self.announce_reboot(&format!("for a new token: {refusal}"));
                    return Ok(());
                }
            };
            let moving = match choose_sender_action(&machine, order, &mut silence) {
                SenderAction::Send(moving) => moving,
                SenderAction::Wait(what) => {
                    wait(&what);
                    continue;
                }
                SenderAction::Reboot(why) => {
                    self.announce_reboot(why);
                    return Ok(());
                }
            };
            let Some(peer) = find_trusted_receiver(own, &moving, &sent_to)? else {
                if moving.awaits_approval {
                    wait(&describe_approval_wait(own));
                }
                continue;
            };
            if self.send_groups(own, peer, order, groups, &messages) {
                sent_to.clone_from(&peer.certificate);
                messages.report("");
                wait("for the receiving machine: everything was sent and acknowledged");
            }
        }
    }

    /// Fetches the machine's assignment from the control plane. Returns `None` if the control plane is unreachable.
    ///
    /// # Errors
    /// Fails if the control plane refuses the request.
    fn poll_machine(&self, silence: &mut ControlSilence) -> Result<Option<AssignedMachine>> {
        match self.control.fetch_machine() {
            Err(error) if !error.is_refusal() => {
                silence.reset();
                self.reporter.print_line(&format!("{error}"));
                Ok(None)
            }
            fetched => fetched.map(Some),
        }
    }

    /// Sends all devices to the receiver. Returns true if the receiver has acknowledged all of them, and false after
    /// reporting an error.
    fn send_groups(
        &self,
        own: &OwnIdentity,
        peer: &MigrationPeer,
        order: &str,
        groups: &[Vec<SourceDevice>],
        messages: &TransferMessages,
    ) -> bool {
        self.reporter.print_line(&format!("to {}", peer.address));
        let groups: Vec<Vec<TransferDevice>> =
            groups.iter().map(|group| group.iter().map(to_transfer_device).collect()).collect();
        let say = |line: &str| self.reporter.print_line(line);
        let fails = |error: &Error| messages.report(&error.to_string());
        let Err(error) = machine_migration::send_devices(own, peer, order, &groups, &say, &fails) else { return true };
        // The same error may already have been reported for another group of devices.
        fails(&error);
        self.reporter.print_line(&format!("{error}; the transfer will be resumed"));
        thread::sleep(TRANSFER_RETRY_DELAY);
        false
    }

    /// Opens the port on which this machine receives the migration, and reports the port to the control plane. Returns
    /// `None` if no migration to this machine is ordered.
    pub(super) fn announce_receiver(&self, allocation: &Allocation) -> Result<Option<IncomingMigration>> {
        let Some(moving) = allocation.moving.as_ref().filter(|moving| moving.part == MigrationSide::Target) else {
            return Ok(None);
        };
        let incoming = IncomingMigration::open_port(
            OwnIdentity::generate_identity(Path::new(SECRET_FILE))?,
            moving.carried.clone(),
        )?;
        print_line(&format!(
            "\nThis machine replaces another machine, and receives the contents of that machine's disks over TLS: {trust}",
            trust = incoming.own().describe_trust()
        ));
        if let Some(peer) = &moving.peer {
            incoming.set_peer(peer)?;
        }
        let certificate = incoming.own().certificate().to_owned();
        let (order, has_secret) = (moving.order.clone(), incoming.own().has_secret());
        let migration_report =
            MigrationReport { order, certificate, port: incoming.port(), carried: None, words: None, has_secret };
        self.control.report_migration_state(&migration_report)?;
        Ok(Some(incoming))
    }
}

/// Reporter of the transfer's progress. The control plane displays the progress to operators.
struct TransferMessages<'a> {
    agent: &'a InstallAgent,
    migration_report: &'a MigrationReport,
    /// Message about the transfer that was reported last.
    last: Mutex<String>,
}

impl TransferMessages<'_> {
    /// Reports a message if it differs from the previous message.
    fn report(&self, words: &str) {
        let mut last = lock_mutex(&self.last);
        if *last != words {
            words.clone_into(&mut last);
            let migration_report = MigrationReport { words: Some(words.to_owned()), ..self.migration_report.clone() };
            if let Err(error) = self.agent.control.report_migration_state(&migration_report) {
                self.agent.reporter.print_line(&format!("{error}"));
            }
        }
    }
}

/// Returns the receiver if the data must be sent now. Until the receiver has erased its disks, only its certificate is
/// checked. Data is sent only to a receiver whose certificate is approved or signed with the secret. This also applies
/// to a second transfer, after the receiver has rebooted with another certificate.
fn find_trusted_receiver<'m>(
    own: &OwnIdentity,
    moving: &'m MigrationOffer,
    sent_to: &str,
) -> Result<Option<&'m MigrationPeer>> {
    let Some(peer) = moving.peer.as_ref().filter(|peer| own.may_trust(peer)) else { return Ok(None) };
    if !moving.started {
        own.check_peer(peer)?;
    }
    Ok(Some(peer).filter(|peer| moving.started && peer.certificate != sent_to))
}

/// Next action of the sender.
#[derive(Debug, PartialEq, Eq)]
enum SenderAction {
    Send(Box<MigrationOffer>),
    /// Wait for another response. Contains the reason.
    Wait(String),
    /// Reboot. Contains the reason.
    Reboot(&'static str),
}

fn choose_sender_action(machine: &AssignedMachine, order: &str, silence: &mut ControlSilence) -> SenderAction {
    let said = machine.migration_status(order);
    if said != MigrationAnswer::Unmentioned {
        silence.reset();
    }
    let waits = |what: &str| SenderAction::Wait(what.to_owned());
    match said {
        MigrationAnswer::Role(moving) => SenderAction::Send(Box::new(moving.clone())),
        MigrationAnswer::Waiting("booting") => waits(
            "for the receiving machine: it has received everything, but has not confirmed yet that it runs the system",
        ),
        MigrationAnswer::Waiting(state) => waits(&format!(
            "for instructions of the control plane: the migration is {state}; if this does not change, check that the server can read the file of this machine"
        )),
        MigrationAnswer::Done if machine.allocation.is_some() => {
            SenderAction::Reboot("for another allocation of this machine")
        }
        MigrationAnswer::Done => waits("the migration is complete, and this machine has no allocation"),
        MigrationAnswer::Ended => {
            SenderAction::Reboot("the migration has ended, and the disks of this machine are unchanged")
        }
        MigrationAnswer::Unmentioned => match silence.record_silence() {
            SilenceState::TimedOut => SenderAction::Reboot("the control plane no longer reports the migration"),
            _ => waits("for the control plane to report the migration, for at most ten minutes"),
        },
    }
}

fn to_transfer_device(from: &SourceDevice) -> TransferDevice {
    TransferDevice { name: from.name.to_string(), path: from.device.clone() }
}

/// Groups devices so that devices in different groups have no disk in common.
fn group_by_shared_disks(inventory: &Inventory, from: &[SourceDevice]) -> Vec<Vec<SourceDevice>> {
    let stack = DeviceStack::new(inventory);
    let mut groups: Vec<(BTreeSet<KernelName>, Vec<SourceDevice>)> = Vec::new();
    for device in from {
        let disks = stack.disks_below(&stack.kernel_name(&device.device));
        let (same, others) = groups.into_iter().partition(|(below, _)| !below.is_disjoint(&disks));
        groups = others;
        let mut group = (disks, Vec::new());
        for (below, devices) in same as Vec<(BTreeSet<KernelName>, Vec<SourceDevice>)> {
            group.0.extend(below);
            group.1.extend(devices);
        }
        group.1.push(device.clone());
        groups.push(group);
    }
    groups.into_iter().map(|(_, devices)| devices).collect()
}

fn describe_devices(from: &[SourceDevice], migrated_machine: &MigratedMachine) -> String {
    let size = |from: &SourceDevice| {
        let found = migrated_machine.filesystems.iter().find(|filesystem| filesystem.device == from.name);
        found.map_or_else(String::new, |filesystem| format::format_bytes(filesystem.size_bytes))
    };
    let line =
        |from: &SourceDevice| format!("  {:<24} {:<6} {:>10}  {}", from.name, from.format, size(from), from.device);
    from.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests;
