//! IPMI 2.0 over the network with `ipmitool`. The password is passed in the environment, which other users cannot read.
//! It is never passed as a command line argument.

mod boot_flags;

use super::{
    PowerAction, PowerState, READS, READS_AFTER_REJECTION, TargetMachine, Unguarded, WriteGuard, WriteKind,
    bmc_refusal, read_until,
};
use common::error::{Error, Phase, Result};
use common::format::untrusted_text_limits::sanitize_line;
use linux::process::{CommandError, ToolCommand};
use model::bmc::Bmc;
use model::machine_identity::{is_same_uuid, parse_usable_uuid};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::time::Duration;
use uuid::Uuid;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Parts of ipmitool's error messages if the controller does not support the cipher suite that ipmitool has selected.
const CIPHER_ERRORS: &[&str] =
    &["cipher suite", "authentication algorithm", "integrity algorithm", "confidentiality algorithm"];
/// Options that are tried in this order after a controller has rejected the session. Each item contains substrings of
/// error messages, and an option. The option is tried if the message contains one of the substrings. Old controllers
/// support only cipher suite 3 (SHA-1), and strict controllers only cipher suite 17 (SHA-256). ipmitool requests the
/// privilege level Administrator, which some users lack.
const FALLBACKS: [(&[&str], [&str; 2]); 3] =
    [(CIPHER_ERRORS, ["-C", "3"]), (CIPHER_ERRORS, ["-C", "17"]), (&["privilege", "invalid role"], ["-L", "OPERATOR"])];

/// Controller that is accessed with ipmitool.
struct IpmiController<'a> {
    program: &'a OsStr,
    bmc: &'a Bmc,
    host: &'a str,
    port: String,
    /// Options of [`FALLBACKS`] that this controller requires.
    options: RefCell<Vec<[&'static str; 2]>>,
    guard: &'a dyn WriteGuard,
}

/// Performs the action, and reads the resulting state back from the controller. Returns a warning if the controller
/// reports an unknown GUID, or does not report all of the resulting state. A controller that reports the UUID of
/// another known machine is refused before the first change.
pub(crate) fn perform_action(
    program: impl AsRef<OsStr>,
    bmc: &Bmc,
    (host, port): (&str, Option<u16>),
    (action, machine): (PowerAction, &TargetMachine),
    guard: &dyn WriteGuard,
) -> Result<Option<String>> {
    let (program, port) = (program.as_ref(), port.unwrap_or(623).to_string());
    let controller = IpmiController { program, bmc, host, port, options: RefCell::default(), guard };
    let differing_guid = controller.check_guid(machine)?;
    let warning = match action {
        PowerAction::On => controller.reach_state("on").map(|()| None),
        PowerAction::Off => controller.reach_state("off").map(|()| None),
        PowerAction::Cycle => controller.cycle_power().map(|()| None),
        PowerAction::Pxe => controller.boot_pxe(machine.firmware),
    }?;
    let warnings: Vec<String> = [warning, differing_guid].into_iter().flatten().collect();
    Ok((!warnings.is_empty()).then(|| warnings.join("; ")))
}

/// Returns the power state of the machine, and a warning if the controller reports the UUID of another machine.
pub(crate) fn read_power_state(
    program: impl AsRef<OsStr>,
    bmc: &Bmc,
    (host, port): (&str, Option<u16>),
    machine: &TargetMachine,
) -> Result<(PowerState, Option<String>)> {
    let (program, port) = (program.as_ref(), port.unwrap_or(623).to_string());
    let controller = IpmiController { program, bmc, host, port, options: RefCell::default(), guard: &Unguarded };
    let state = PowerState::from_name(&controller.read_power()?);
    let warning = controller.check_guid(machine).unwrap_or_else(|error| Some(error.to_string()));
    Ok((state, warning))
}

impl IpmiController<'_> {
    /// Runs ipmitool with these arguments. If the controller rejects the session, repeats the command with further
    /// options, and uses the options that succeeded for all later commands.
    fn run(&self, words: &[&str]) -> Result<String> {
        let mut done = self.run_with(&self.options.borrow(), words);
        for (texts, option) in FALLBACKS {
            let Err(error) = &done else { break };
            if !contains_any(error, texts) || self.options.borrow().contains(&option) {
                continue;
            }
            let others =
                self.options.borrow().iter().copied().filter(|known| known[0] != option[0]).collect::<Vec<_>>();
            let options = [others, vec![option]].concat();
            done = self.run_with(&options, words);
            if !matches!(&done, Err(error) if contains_any(error, texts)) {
                *self.options.borrow_mut() = options;
            }
        }
        done.map_err(|error| explain_failure(self.host, error))
    }

    /// Runs a command that changes the machine, if the guard permits it.
    fn change(&self, write: WriteKind, words: &[&str]) -> Result<String> {
        self.guard.permit(write)?;
        let done = self.run(words);
        self.guard.confirm();
        done
    }

    fn run_with(&self, options: &[[&str; 2]], words: &[&str]) -> std::result::Result<String, CommandError> {
        let Bmc { username, password, .. } = self.bmc;
        // With `-E`, ipmitool reads the password from the environment. Without `-E`, it would prompt for the password
        // on the terminal.
        let who = ["-I", "lanplus", "-H", self.host, "-p", &self.port, "-U", username, "-E"];
        let command = ToolCommand::new(self.program).args(who).args(options.as_flattened()).args(words);
        command.env("IPMI_PASSWORD", password.reveal()).deadline(REQUEST_TIMEOUT).run().map(|output| output.stdout)
    }

    /// Returns the power state: `on` or `off`.
    fn read_power(&self) -> Result<String> {
        let output = self.run(&["chassis", "power", "status"])?;
        Ok(output.trim_end().rsplit(' ').next().unwrap_or_default().to_owned())
    }

    /// Switches the machine to the power state `on` or `off`, unless the machine is already in this state.
    fn reach_state(&self, state: &str) -> Result<()> {
        match self.read_power()? == state {
            true => Ok(()),
            false => self.await_state(state, self.change(WriteKind::Power, &["chassis", "power", state])),
        }
    }

    /// Waits until the controller reports the state. The request counts as successful if the machine reaches the state,
    /// even if the controller has rejected the request.
    fn await_state(&self, state: &str, requested: Result<String>) -> Result<()> {
        let reads = if requested.is_ok() { READS } else { READS_AFTER_REJECTION };
        let actual = read_until(reads, || self.read_power(), |actual| actual == state)?;
        match requested {
            _ if actual == state => Ok(()),
            Err(rejection) => Err(rejection),
            Ok(_) => {
                let what = format!("accepted the request, but reports power state {actual}, not {state}");
                Err(bmc_refusal(sanitize_line(&format!("management controller {} {what}", self.host))))
            }
        }
    }

    /// Power-cycles the machine, or switches it on if it is off, because most controllers refuse to power-cycle a
    /// machine that is off. If the controller cannot power-cycle the machine, switches it off and on.
    fn cycle_power(&self) -> Result<()> {
        if self.read_power()? == "off" {
            return self.reach_state("on");
        }
        match self.change(WriteKind::Power, &["chassis", "power", "cycle"]) {
            Ok(output) => self.await_state("on", Ok(output)),
            Err(_) => {
                self.reach_state("off")?;
                read_until(READS_AFTER_REJECTION, || self.reach_state("on"), |()| true)
            }
        }
    }

    /// Returns a warning if the controller reports a GUID other than the machine's UUID. A controller that reports no
    /// GUID causes no warning.
    ///
    /// # Errors
    /// Returns an error if the controller reports the UUID of another known machine.
    fn check_guid(&self, machine: &TargetMachine) -> Result<Option<String>> {
        let reported = self.run(&["mc", "guid"]).ok().and_then(|output| reported_guid(&output));
        let (Some(reported), wanted) = (reported, machine.usable_uuid()) else { return Ok(None) };
        if wanted.is_some_and(|wanted| is_same_guid(reported, wanted)) {
            return Ok(None);
        }
        if let Some(other) = machine.other_uuids.iter().find(|other| is_same_guid(reported, **other)) {
            return Err(machine.refuse_other_machine(self.host, *other));
        }
        Ok(wanted.map(|wanted| {
            format!(
                "management controller {host} reports the GUID {reported}, but the request was for machine {wanted}: check the controller's address. The address may be correct: on many models, the controller's GUID always differs from the UUID of the firmware", host = self.host)
        }))
    }
}

/// Returns whether an error message contains one of these substrings.
fn contains_any(error: &CommandError, texts: &[&str]) -> bool {
    let message = error.to_string().to_lowercase();
    texts.iter().any(|text| message.contains(text))
}

/// Returns the GUID in the output of `ipmitool mc guid`; `None` if the GUID is missing or a placeholder.
fn reported_guid(text: &str) -> Option<Uuid> {
    let line = text.lines().find(|line| line.trim_start().starts_with("System GUID"))?;
    parse_usable_uuid(line.split_once(':')?.1)
}

/// Returns whether the GUIDs are equal in RFC 4122 byte order, in SMBIOS byte order, or after reversing all bytes of
/// either (IPMI 2.0, 20.8).
fn is_same_guid(reported: Uuid, wanted: Uuid) -> bool {
    let mut bytes = *reported.as_bytes();
    bytes.reverse();
    is_same_uuid(reported, wanted) || is_same_uuid(Uuid::from_bytes(bytes), wanted)
}

fn explain_failure(host: &str, error: CommandError) -> Error {
    let missing = matches!(&error.end, linux::process::ProcessFailure::NotStarted(why) if why.kind() == std::io::ErrorKind::NotFound);
    match missing {
        true => bmc_refusal(
            "ipmitool is not installed on this host: run `apt-get install ipmitool`, or use Redfish with an https:// address"
                .to_owned(),
        ),
        false => Error::with_source(Phase::Control, format!("management controller {host}"), error),
    }
}

#[cfg(test)]
mod tests;
