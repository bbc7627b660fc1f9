//! Power control, boot devices and BIOS settings of a machine, through its management controller (BMC): over Redfish,
//! or over IPMI with `ipmitool`.
//!
//! After each change, the state is read back until the controller reports the requested state. Before the first
//! change, the UUID or GUID that the controller reports is compared with that of the machine. A controller that
//! reports the UUID of another known machine is refused. Any other difference is refused over Redfish, unless the
//! address contains the path of the system, and causes a warning over IPMI. `redfish::test_double` simulates the
//! quirks of real Redfish services in tests. Start with [`switch_power`] and [`redfish::RedfishMachine`].

mod ipmi;
pub mod redfish;
mod write_guard;

pub use write_guard::{Unguarded, WriteGuard, WriteKind};

use common::error::{Error, Phase, Result};
use model::bmc::{Bmc, BmcAddress};
use model::inventory::FirmwareType;
use model::machine_identity::parse_usable_uuid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Power or boot action on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[derive(schemars::JsonSchema)]
pub enum PowerAction {
    /// Switch the machine on.
    On,
    /// Switch the machine off immediately, without a shutdown.
    Off,
    /// Power-cycle the machine, or switch it on if it is off.
    Cycle,
    /// Boot over PXE at the next boot, but not at later boots.
    Pxe,
}

impl fmt::Display for PowerAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PowerAction::On => "switched on",
            PowerAction::Off => "switched off",
            PowerAction::Cycle => "switched off and on",
            PowerAction::Pxe => "boots over PXE at the next boot",
        })
    }
}

/// Power state that a management controller reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PowerState {
    On,
    Off,
    /// The machine is being switched on or off.
    Changing,
    /// The controller reports no power state, or a state that is not supported.
    Unknown,
}

impl PowerState {
    /// Returns the state with this name, as Redfish (`PowerState` of ComputerSystem) and ipmitool spell it.
    fn from_name(name: &str) -> PowerState {
        match name.to_ascii_lowercase().as_str() {
            "on" => PowerState::On,
            "off" => PowerState::Off,
            "poweringon" | "poweringoff" => PowerState::Changing,
            _ => PowerState::Unknown,
        }
    }
}

impl fmt::Display for PowerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PowerState::On => "on",
            PowerState::Off => "off",
            PowerState::Changing => "changing",
            PowerState::Unknown => "unknown",
        })
    }
}

/// Machine on which an action is performed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetMachine {
    /// UUID that the machine's firmware reports. It is compared with the UUID that the controller reports for the
    /// machine.
    pub uuid: Option<String>,
    /// Firmware type in the machine's last registration, which determines the boot mode.
    pub firmware: Option<FirmwareType>,
    /// UUIDs of the firmware of all other known machines. A controller that reports one of them is refused.
    pub other_uuids: Vec<Uuid>,
    /// True if the Redfish service must report the UUID of the machine, because the files of several machines contain
    /// the address of the service.
    pub must_match_uuid: bool,
}

impl TargetMachine {
    /// Returns the UUID; `None` if it is missing or a placeholder.
    fn usable_uuid(&self) -> Option<Uuid> {
        self.uuid.as_deref().and_then(parse_usable_uuid)
    }

    /// Refuses a controller that reports the UUID `other`, which belongs to another machine.
    fn refuse_other_machine(&self, controller: &str, other: Uuid) -> Error {
        let own = self.uuid.as_deref().map(|own| format!(", not to {own}")).unwrap_or_default();
        bmc_refusal(format!(
            "management controller {controller} belongs to machine {other}{own}: power state and boot device were not \
             changed. Correct the controller's address"
        ))
    }
}

/// Performs the action on the machine, and reads the resulting state from the controller. Returns a warning if the
/// controller may belong to another machine, or if the resulting state deviates harmlessly from the requested state.
///
/// # Errors
/// Returns an error if the controller cannot be reached, rejects the credentials, belongs to another machine, does not
/// support the action, or reports a state other than the requested one. Also returns an error if `guard` refuses a
/// request.
pub fn switch_power(
    bmc: &Bmc,
    action: PowerAction,
    machine: &TargetMachine,
    guard: &dyn WriteGuard,
) -> Result<Option<String>> {
    match &bmc.at {
        BmcAddress::Redfish { .. } => redfish::perform_action(bmc, action, machine, guard),
        BmcAddress::Ipmi { host, port } => {
            ipmi::perform_action("ipmitool", bmc, (host, *port), (action, machine), guard)
        }
    }
}

/// Returns the machine's power state, and a warning if the controller may belong to another machine.
///
/// # Errors
/// The controller cannot be reached, rejects the credentials, or belongs to another machine.
pub fn read_power_state(bmc: &Bmc, machine: &TargetMachine) -> Result<(PowerState, Option<String>)> {
    match &bmc.at {
        BmcAddress::Redfish { .. } => redfish::read_power_state(bmc, machine).map(|state| (state, None)),
        BmcAddress::Ipmi { host, port } => ipmi::read_power_state("ipmitool", bmc, (host, *port), machine),
    }
}

/// Maximum number of times that the state is read until it is the requested state. Many controllers report the previous
/// state for some seconds.
const READS: u32 = 60;
/// Maximum number of times that the state is read after the controller has rejected the request. In this case, the
/// state is also read, because the machine may already be in the requested state.
const READS_AFTER_REJECTION: u32 = 5;
const READ_INTERVAL: Duration = Duration::from_millis(if cfg!(any(test, feature = "testing")) { 2 } else { 1000 });
/// Maximum duration of all reads together, for a controller that responds slowly or not at all.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// Reads the state repeatedly until it is the requested state, or a limit is reached. Returns the last state. Failed
/// reads are also repeated, because some controllers do not respond while the power state changes.
///
/// # Errors
/// Returns the error of the last read if that read has failed.
fn read_until<T>(reads: u32, read: impl Fn() -> Result<T>, is_reached: impl Fn(&T) -> bool) -> Result<T> {
    let started = Instant::now();
    let mut last = read();
    for _ in 1..reads {
        if last.as_ref().is_ok_and(&is_reached) || started.elapsed() > READ_TIMEOUT {
            break;
        }
        thread::sleep(READ_INTERVAL);
        last = read();
    }
    last
}

fn bmc_refusal(what: String) -> Error {
    Error::refusal(Phase::Control, what)
}
