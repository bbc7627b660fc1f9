//! Power control and boot override through a machine's management controller (BMC), over Redfish or over IPMI with `ipmitool`.

mod ipmi;
pub(crate) mod redfish;

use common::error::{Error, Phase, Result};
use model::bmc::{Bmc, BmcAddress};
use serde::{Deserialize, Serialize};
use std::fmt;

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
    /// Boot over PXE at the next boot only.
    Pxe,
}

impl fmt::Display for PowerAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PowerAction::On => "switched on",
            PowerAction::Off => "switched off",
            PowerAction::Cycle => "switched off and on",
            PowerAction::Pxe => "boots over PXE next time",
        })
    }
}

/// Performs the action on the machine with this UUID. Returns as soon as the controller has accepted the request, with a warning if the
/// controller may belong to another machine.
///
/// # Errors
/// The controller cannot be reached, rejects the credentials, belongs to another machine, or does not support the action.
pub fn switch_power(bmc: &Bmc, action: PowerAction, machine: Option<&str>) -> Result<Option<String>> {
    match &bmc.at {
        BmcAddress::Redfish { url, system } => {
            redfish::perform_action(bmc, url, system.as_deref(), action, machine).map(|()| None)
        }
        BmcAddress::Ipmi { host, port } => ipmi::perform_action("ipmitool", bmc, (host, *port), action, machine),
    }
}

fn bmc_refusal(what: String) -> Error {
    Error::refusal(Phase::Control, what)
}
