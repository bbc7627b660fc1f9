//! ATA security feature set of disks (ACS-4 4.18), read through `hdparm -I`.

use crate::process::ToolCommand;
use model::inventory::EraseMethod;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

/// Time limit for hdparm, which sends a single command. A disk that needs more time is assumed to be failing.
const HDPARM_TIMEOUT: Duration = Duration::from_secs(5);

/// Security state of a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AtaSecurity {
    pub supported: bool,
    /// True if a user password is set.
    pub enabled: bool,
    /// True if access to the disk requires the password.
    pub locked: bool,
    /// True if security commands are rejected until the next power cycle. Most firmware freezes disks before it
    /// boots.
    pub frozen: bool,
    pub enhanced: bool,
    /// Duration of an erase in minutes, as estimated by the disk; 508 means "at least 508 minutes".
    pub erase_minutes: Option<u32>,
    pub enhanced_minutes: Option<u32>,
}

nix::ioctl_read_bad!(hdio_get_identity, 0x030d, IdentifyData);

/// IDENTIFY DEVICE data (ACS-4 7.13).
type IdentifyData = [u16; 256];

/// IDENTIFY word whose bit 0 indicates support of the security feature set.
const SECURITY_STATUS: usize = 128;

/// Reads the security state of a disk.
///
/// # Errors
/// Returns an error if the device is not an ATA disk, hdparm is missing, or the disk does not respond.
pub(crate) fn read_security(device: &Path) -> Result<AtaSecurity, String> {
    // The kernel's cached IDENTIFY data shows whether the disk has ATA security. hdparm is not run for a disk without
    // ATA security, because QEMU's emulated disk fails its next queued command after hdparm has run.
    let identity =
        read_cached_identity(device).map_err(|error| format!("cannot read the IDENTIFY data of the disk: {error}"))?;
    if u16::from_le(identity[SECURITY_STATUS]) & 1 == 0 {
        return Ok(AtaSecurity::default());
    }
    let output = ToolCommand::new("hdparm").arg("-I").arg(device).deadline(HDPARM_TIMEOUT).run();
    Ok(AtaSecurity::parse(&output.map_err(|error| error.to_string())?.stdout))
}

fn read_cached_identity(device: &Path) -> std::io::Result<IdentifyData> {
    let file = File::open(device)?;
    let mut identity = [0; 256];
    // SAFETY: HDIO_GET_IDENTITY writes the 512 bytes of IDENTIFY data (ATA_ID_WORDS) to the array.
    unsafe { hdio_get_identity(file.as_raw_fd(), &mut identity) }?;
    Ok(identity)
}

impl AtaSecurity {
    /// Parses the output of `hdparm -I`. For a disk without the security feature set, the output has no section about
    /// security.
    pub fn parse(text: &str) -> AtaSecurity {
        let lines = text.lines().skip_while(|line| line.trim_end() != "Security:").skip(1);
        let section = lines.take_while(|line| line.starts_with(char::is_whitespace));
        let mut security = AtaSecurity::default();
        for line in section {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (yes, what) = match words.split_first() {
                Some((&"not", rest)) => (false, rest.join(" ")),
                _ => (true, words.join(" ")),
            };
            match what.as_str() {
                "supported" => security.supported = yes,
                "enabled" => security.enabled = yes,
                "locked" => security.locked = yes,
                "frozen" => security.frozen = yes,
                "supported: enhanced erase" => security.enhanced = yes,
                _ => {
                    security.erase_minutes = parse_minutes(&what, "SECURITY ERASE UNIT").or(security.erase_minutes);
                    let enhanced = parse_minutes(&what, "ENHANCED SECURITY ERASE UNIT");
                    security.enhanced_minutes = enhanced.or(security.enhanced_minutes);
                }
            }
        }
        security
    }

    /// Returns the reason why the disk cannot currently be erased with security commands.
    pub(crate) fn find_obstacle(&self) -> Option<&'static str> {
        match self {
            AtaSecurity { supported: false, .. } => Some("the disk does not support ATA security"),
            AtaSecurity { locked: true, .. } => Some("the disk is locked by a password"),
            AtaSecurity { enabled: true, .. } => Some("a password is set on the disk"),
            AtaSecurity { frozen: true, .. } => Some("the firmware has frozen the disk's security settings"),
            _ => None,
        }
    }

    /// Returns the erase methods that are currently available.
    pub(crate) fn available_methods(&self) -> Vec<EraseMethod> {
        match (self.find_obstacle(), self.enhanced) {
            (Some(_), _) => Vec::new(),
            (None, true) => vec![EraseMethod::AtaEnhancedErase, EraseMethod::AtaErase],
            (None, false) => vec![EraseMethod::AtaErase],
        }
    }
}

/// Parses the number of minutes that a command takes in `2min for SECURITY ERASE UNIT. more than 508min for ENHANCED
/// SECURITY ERASE UNIT.`
fn parse_minutes(text: &str, command: &str) -> Option<u32> {
    let sentences = text.split('.').filter_map(|sentence| sentence.trim().split_once("min for "));
    let time = sentences.filter(|(_, what)| *what == command).map(|(time, _)| time).next()?;
    time.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::EraseMethod::*;

    const SSD: &str = "
/dev/sda:

ATA device, with non-removable media
\tModel Number:       EXAMPLE SSD 480GB
\tSerial Number:      S45NNE0M0001
Standards:
\tSupported: 11 8 7 6 5
Capabilities:
\tLBA, IORDY(can be disabled)
Commands/features:
\tEnabled\tSupported:
\t   *\tSMART feature set
\t    \tSecurity Mode feature set
\t   *\tWrite cache
Security:
\tMaster password revision code = 65534
\t\tsupported
\tnot\tenabled
\tnot\tlocked
\tnot\tfrozen
\tnot\texpired: security count
\t\tsupported: enhanced erase
\t4min for SECURITY ERASE UNIT. 8min for ENHANCED SECURITY ERASE UNIT.
Logical Unit WWN Device Identifier: 5002538e40a5e5c5
Checksum: correct
";

    /// Output for QEMU's ide-hd. It has no section about security, because this disk does not support ATA security.
    const NONE: &str = "
/dev/sda:

ATA device, with non-removable media
\tModel Number:       QEMU HARDDISK
Commands/features:
\tEnabled\tSupported:
\t   *\tWrite cache
Logical Unit WWN Device Identifier: 0000000000000000
Checksum: correct
";

    fn methods(text: &str) -> Vec<EraseMethod> {
        AtaSecurity::parse(text).available_methods()
    }

    #[test]
    fn security_section_is_parsed() {
        let expected = AtaSecurity {
            supported: true,
            enhanced: true,
            erase_minutes: Some(4),
            enhanced_minutes: Some(8),
            ..AtaSecurity::default()
        };
        assert_eq!(AtaSecurity::parse(SSD), expected);
        assert_eq!(AtaSecurity::parse(SSD).available_methods(), [AtaEnhancedErase, AtaErase]);
    }

    #[test]
    fn no_erase_method_is_offered_with_an_obstacle() {
        let cases = [
            (NONE.to_owned(), "the disk does not support ATA security"),
            (String::new(), "the disk does not support ATA security"),
            (
                "/dev/sdb:\n HDIO_DRIVE_CMD(identify) failed: Invalid argument\n".into(),
                "the disk does not support ATA security",
            ),
            (SSD.replace("\t\tsupported\n", "\tnot\tsupported\n"), "the disk does not support ATA security"),
            (SSD.replace("not\tfrozen", "\tfrozen"), "the firmware has frozen the disk's security settings"),
            (SSD.replace("not\tenabled", "\tenabled"), "a password is set on the disk"),
            (
                SSD.replace("not\tenabled", "\tenabled").replace("not\tlocked", "\tlocked"),
                "the disk is locked by a password",
            ),
        ];
        for (text, obstacle) in cases {
            let security = AtaSecurity::parse(&text);
            assert_eq!(security.find_obstacle(), Some(obstacle), "{text}");
            assert_eq!(methods(&text), [], "{text}");
        }
    }

    #[test]
    fn disk_may_support_only_the_simple_erase() {
        assert_eq!(methods(&SSD.replace("\t\tsupported: enhanced", "\tnot\tsupported: enhanced")), [AtaErase]);
    }

    #[test]
    fn erase_times_are_parsed_in_all_formats() {
        let cases = [
            (
                "more than 508min for SECURITY ERASE UNIT. more than 508min for ENHANCED SECURITY ERASE UNIT.",
                (508, 508),
            ),
            ("2min for SECURITY ERASE UNIT. 2min for ENHANCED SECURITY ERASE UNIT. ", (2, 2)),
        ];
        let known = "4min for SECURITY ERASE UNIT. 8min for ENHANCED SECURITY ERASE UNIT.";
        for (line, (simple, enhanced)) in cases {
            let security = AtaSecurity::parse(&SSD.replace(known, line));
            assert_eq!((security.erase_minutes, security.enhanced_minutes), (Some(simple), Some(enhanced)), "{line}");
        }
        let security = AtaSecurity::parse(&SSD.replace(known, "20min for SECURITY ERASE UNIT."));
        assert_eq!((security.erase_minutes, security.enhanced_minutes), (Some(20), None));
        let security = AtaSecurity::parse(&SSD.replace(known, ""));
        assert_eq!((security.erase_minutes, security.enhanced_minutes), (None, None));
    }

    #[test]
    fn feature_list_is_not_the_security_section() {
        let text = SSD.replace("Security:\n", "Security\n");
        assert_eq!(AtaSecurity::parse(&text), AtaSecurity::default());
    }
}
