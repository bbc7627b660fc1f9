//! `drophammer uplink`: network configuration of the ramdisk for networks without DHCP. `/init` runs the printed
//! script.

use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine, alphabet};
use common::command_outcome::CommandOutcome;
use common::diagnostic::join_problems;
use common::error::{Context, Error, Phase, Result};
use common::output::print_text;
use linux::probe::{ProbeRoots, read_machine_identity};
use netconfig::NetworkConfig;
use serde_json::Value;

/// Prints a shell script for the ramdisk, derived from `drophammer.network=` and the NICs of the machine.
///
/// # Errors
/// Fails if the network configuration is missing, is invalid (with the position of the error), or contains a NIC that
/// does not exist.
pub(crate) fn run_uplink() -> Result<CommandOutcome> {
    let cmdline = std::fs::read_to_string("/proc/cmdline").context(Phase::Settings, || "read /proc/cmdline")?;
    let wrong = |what: String| Error::new(Phase::Settings, format!("kernel command line: drophammer.network=: {what}"));
    let document = parse_network_argument(&cmdline).map_err(wrong)?;
    let network = NetworkConfig::parse(&document).map_err(|problems| wrong(join_problems(&problems)))?;
    let (_, nics) = read_machine_identity(&ProbeRoots::default().sys)?;
    print_text(&network.ramdisk_script(&nics).map_err(wrong)?)?;
    Ok(CommandOutcome::Good)
}

/// Parses the kernel argument: JSON without blanks, or JSON encoded in base64.
fn parse_network_argument(cmdline: &str) -> Result<Value, String> {
    let mut given = cmdline.split_whitespace().filter_map(|word| word.strip_prefix("drophammer.network="));
    let text = given.next_back().ok_or("it is missing")?;
    if text.starts_with('{') {
        return serde_json::from_str(text).map_err(|error| format!("not valid JSON: {error}"));
    }
    let alphabet = if text.contains(['-', '_']) { alphabet::URL_SAFE } else { alphabet::STANDARD };
    let any_padding = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let decoded = GeneralPurpose::new(&alphabet, any_padding).decode(text);
    let bytes = decoded.map_err(|error| format!("not valid base64: {error}"))?;
    serde_json::from_slice(&bytes).map_err(|error| format!("the decoded base64 is not valid JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

    #[test]
    fn network_argument_is_json_or_base64() {
        let json = r#"{"version":2,"ethernets":{"a":{"addresses":["10.0.0.7/24"]}},"??>>":1}"#;
        let (plain, url_safe) = (STANDARD.encode(json), URL_SAFE_NO_PAD.encode(json));
        assert!(plain.contains('/') && url_safe.contains('_') && plain.ends_with('='), "{plain} {url_safe}");
        for value in [json, &plain, plain.trim_end_matches('='), &url_safe] {
            let cmdline = format!("quiet drophammer.network={value} panic=-1");
            assert_eq!(
                parse_network_argument(&cmdline).unwrap(),
                serde_json::from_str::<Value>(json).unwrap(),
                "{value}"
            );
        }
        for (cmdline, words) in [
            ("quiet", "it is missing"),
            ("drophammer.network={\"a\":", "not valid JSON: EOF"),
            ("drophammer.network=a*b", "not valid base64: Invalid symbol 42"),
            ("drophammer.network=YWJj", "the decoded base64 is not valid JSON"),
        ] {
            let said = parse_network_argument(cmdline).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
    }
}
