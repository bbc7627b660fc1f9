//! LAN parameters of the BMC (IPMI 2.0, 23.2): the address and the MAC of the first LAN channel that has an address.

use super::{Bmc, Command, IpmiError};
use std::net::{IpAddr, Ipv4Addr};
use std::thread;

const GET_CHANNEL_INFO: Command = (0x06, 0x42);
const GET_LAN_PARAMETERS: Command = (0x0c, 0x02);

/// Numbers of the channels that may be LAN channels. Channel 0 is excluded, because it is the IPMB.
const CHANNELS: std::ops::RangeInclusive<u8> = 1..=0x0b;
/// Number that identifies a LAN as the medium of a channel.
const MEDIUM_LAN: u8 = 4;

// Numbers of the LAN configuration parameters that are read.
const SET_IN_PROGRESS: u8 = 0;
const IP_ADDRESS: u8 = 3;
const MAC_ADDRESS: u8 = 5;

/// Maximum number of attempts to read parameters if the BMC reports that they are being changed.
const ATTEMPTS: u32 = 5;

/// LAN channel of the BMC, with its address and MAC.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LanChannel {
    pub address: Option<IpAddr>,
    pub mac: String,
}

/// Reads the first LAN channel that has an address. If no channel has an address, reads the first LAN channel that has
/// a MAC.
pub(super) fn read_lan(bmc: &mut Bmc) -> Result<LanChannel, String> {
    let (mut fallback, mut reason) = (None, "found no LAN channel".to_owned());
    for channel in CHANNELS {
        match is_lan(bmc, channel) {
            Ok(true) => {}
            Ok(false) | Err(IpmiError::Refused(_)) => continue,
            Err(error) => return Err(format!("channel {channel}: {error}")),
        }
        match read_channel(bmc, channel) {
            Ok(lan) if lan.address.is_some() => return Ok(lan),
            Ok(lan) if !lan.mac.is_empty() && fallback.is_none() => fallback = Some(lan),
            Ok(_) if fallback.is_none() => {
                reason = format!("channel {channel} has neither an IP address nor a MAC address")
            }
            Ok(_) => {}
            Err(error) => reason = format!("channel {channel}: {error}"),
        }
    }
    fallback.ok_or(reason)
}

fn is_lan(bmc: &mut Bmc, channel: u8) -> Result<bool, IpmiError> {
    match bmc.call(GET_CHANNEL_INFO, &[channel])?[..] {
        // The response must be about the requested channel, because some BMCs describe the same channel for all channel
        // numbers.
        [number, medium, ..] => Ok(number & 0x0f == channel && medium & 0x7f == MEDIUM_LAN),
        _ => Err(IpmiError::Malformed("the response to Get Channel Info is too short")),
    }
}

/// Reads the address and the MAC of a channel. Repeats the read if the parameters were being changed when the read
/// started or ended.
fn read_channel(bmc: &mut Bmc, channel: u8) -> Result<LanChannel, IpmiError> {
    for _ in 0..ATTEMPTS {
        if is_complete(bmc, channel)? {
            let address = read_parameter(bmc, channel, IP_ADDRESS)?;
            let mac = read_parameter(bmc, channel, MAC_ADDRESS)?;
            if is_complete(bmc, channel)? {
                return Ok(LanChannel { address: parse_address(&address), mac: parse_mac(&mac) });
            }
        }
        thread::sleep(bmc.pause);
    }
    Err(IpmiError::Malformed("another client is changing the LAN parameters"))
}

/// Returns whether no change of the LAN parameters is in progress. The parameter with this status is optional; if it is
/// missing, no change is assumed to be in progress.
fn is_complete(bmc: &mut Bmc, channel: u8) -> Result<bool, IpmiError> {
    match read_parameter(bmc, channel, SET_IN_PROGRESS) {
        Ok(state) => Ok(state.first().is_none_or(|state| state & 0x03 == 0)),
        Err(IpmiError::Refused(_)) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Returns the value of a parameter, without its revision.
fn read_parameter(bmc: &mut Bmc, channel: u8, parameter: u8) -> Result<Vec<u8>, IpmiError> {
    let response = bmc.call(GET_LAN_PARAMETERS, &[channel, parameter, 0, 0])?;
    match response.split_first() {
        Some((_, value)) => Ok(value.to_vec()),
        None => Err(IpmiError::Malformed("the response lacks the revision of the LAN parameter")),
    }
}

/// Parses an IPv4 address. Returns `None` if a BMC cannot have this address.
pub(super) fn parse_address(value: &[u8]) -> Option<IpAddr> {
    let address = Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?);
    let is_usable = !address.is_unspecified()
        && !address.is_broadcast()
        && !address.is_loopback()
        && !address.is_multicast()
        && address.octets()[0] != 0;
    is_usable.then_some(IpAddr::V4(address))
}

/// Returns a MAC in lower case; empty if the bytes are not the MAC of a network interface.
pub(super) fn parse_mac(value: &[u8]) -> String {
    match <[u8; 6]>::try_from(value) {
        Ok(mac) if mac != [0; 6] && mac[0] & 1 == 0 => mac.map(|byte| format!("{byte:02x}")).join(":"),
        _ => String::new(),
    }
}
