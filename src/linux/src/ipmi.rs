//! Management controller (BMC) of this machine, read in-band by IPMI 2.0 over the system interface (KCS). The kernel's
//! OpenIPMI driver provides this interface as `/dev/ipmi0`. No command in this module changes the BMC. Most virtual
//! machines have no BMC, so its absence is normal.

mod device;
mod fru;
mod lan;
#[cfg(test)]
mod tests;

use device::IpmiDevice;
use model::bmc::InBandBmc;
use std::fmt;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Device of the first system interface.
pub const DEVICE: &str = "/dev/ipmi0";

/// Timeout of a command. A command normally takes milliseconds. The driver itself retries a BMC that is busy.
const COMMAND_PATIENCE: Duration = Duration::from_secs(5);
/// Time limit for all commands together, so that a BMC that responds slowly does not delay the boot for long.
const TOTAL_PATIENCE: Duration = Duration::from_secs(20);

/// Maximum number of attempts to send a command if the BMC responds that it is busy.
const BUSY_ATTEMPTS: u32 = 5;
/// Pause between two attempts to send a command to a busy BMC.
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// Completion code of a successful command.
const COMPLETED: u8 = 0x00;
/// Completion code of a command that the BMC cannot execute because it is busy.
const NODE_BUSY: u8 = 0xc0;
/// Completion code of Read FRU Data while the FRU device is busy.
const FRU_BUSY: u8 = 0x81;

/// Command: network function and number.
type Command = (u8, u8);

const GET_DEVICE_ID: Command = (0x06, 0x01);

/// Sender of commands to a BMC.
trait IpmiTransport {
    /// Sends a command and returns the response: the completion code, then the data.
    fn exchange(&mut self, command: Command, data: &[u8], patience: Duration) -> io::Result<Vec<u8>>;
}

/// Reason why a command failed.
#[derive(Debug)]
enum IpmiError {
    /// The BMC refused the command with this completion code.
    Refused(u8),
    /// The response does not follow the specification.
    Malformed(&'static str),
    /// The BMC does not respond.
    Device(io::Error),
}

impl fmt::Display for IpmiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IpmiError::Refused(code) => write!(f, "the BMC rejected the command with completion code {code:#04x}"),
            IpmiError::Malformed(what) => f.write_str(what),
            IpmiError::Device(error) => write!(f, "the BMC does not respond: {error}"),
        }
    }
}

/// Connection to a BMC, with one deadline for all commands together.
struct Bmc<'a> {
    transport: &'a mut dyn IpmiTransport,
    end: Instant,
    /// Pause before a command is repeated because the BMC was busy.
    pause: Duration,
}

impl Bmc<'_> {
    /// Sends a command and returns the data of its response, without the completion code.
    fn call(&mut self, command: Command, data: &[u8]) -> Result<Vec<u8>, IpmiError> {
        for attempt in 1.. {
            let left = self.end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(IpmiError::Device(io::ErrorKind::TimedOut.into()));
            }
            let response = self.transport.exchange(command, data, left.min(COMMAND_PATIENCE));
            let response = response.map_err(IpmiError::Device)?;
            match response.split_first() {
                Some((&COMPLETED, data)) => return Ok(data.to_vec()),
                Some((&(NODE_BUSY | FRU_BUSY), _)) if attempt < BUSY_ATTEMPTS => thread::sleep(self.pause),
                Some((code, _)) => return Err(IpmiError::Refused(*code)),
                None => break,
            }
        }
        Err(IpmiError::Malformed("the response lacks a completion code"))
    }
}

/// Reads the BMC of this machine. Returns `None` if the machine has no BMC device.
///
/// # Errors
/// Returns an error if the device cannot be opened, or the BMC does not respond.
pub fn read_bmc(device: &Path) -> io::Result<Option<InBandBmc>> {
    let Some(mut device) = IpmiDevice::open(device)? else { return Ok(None) };
    read_from(&mut device, TOTAL_PATIENCE, BUSY_PAUSE).map(Some).map_err(io::Error::other)
}

/// Reads all data that the BMC returns. Missing LAN parameters and missing FRU data are reported as problems.
fn read_from(transport: &mut dyn IpmiTransport, patience: Duration, pause: Duration) -> Result<InBandBmc, String> {
    let mut bmc = Bmc { transport, end: Instant::now() + patience, pause };
    let id = bmc.call(GET_DEVICE_ID, &[]).map_err(|error| format!("Get Device ID: {error}"))?;
    let mut found = InBandBmc { version: format_version(&id), ..InBandBmc::default() };
    match lan::read_lan(&mut bmc) {
        Ok(lan) => (found.address, found.mac) = (lan.address, lan.mac),
        Err(why) => found.problems.push(format!("LAN: {why}")),
    }
    match fru::read_fru(&mut bmc, &mut found.problems) {
        Ok(fru) => found.fru = fru,
        Err(why) => found.problems.push(format!("FRU: {why}")),
    }
    Ok(found)
}

/// Formats the firmware revision: a major number, and a minor number in BCD. Returns an empty string if the response is
/// too short.
fn format_version(id: &[u8]) -> String {
    match id {
        [_, _, major, minor, ..] => format!("{}.{minor:02x}", major & 0x7f),
        _ => String::new(),
    }
}
