//! Settings for Ironic on the kernel command line: the `ipa-…` parameters of ironic-python-agent, and `BOOTIF=`.

use super::{cmdline_error, is_url};
use crate::machine_identity::parse_mac;
use common::error::Result;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

/// Default port of ironic-python-agent.
const PORT: u16 = 9999;

/// Default lookup timeout of ironic-python-agent.
const DEFAULT_LOOKUP_TIMEOUT: Duration = Duration::from_secs(600);

/// Settings of a machine that an Ironic conductor controls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConductorSettings {
    /// `ipa-api-url=`: URLs without a trailing slash. The first one that responds is used. Empty if only an inspection
    /// is requested.
    pub api: Vec<String>,
    /// `ipa-inspection-callback-url=`: URLs. The inventory is sent to the first one that accepts it.
    pub inspection: Vec<String>,
    /// `ipa-listen-port=`: port on which the agent accepts requests of the conductor.
    pub listen_port: u16,
    /// `ipa-advertise-host=`: address to which the conductor sends requests for this machine. The default is the local
    /// address of the route to Ironic.
    pub advertise_host: Option<IpAddr>,
    /// `ipa-advertise-port=`: port to which the conductor sends requests for this machine. The default is
    /// `listen_port`.
    pub advertise_port: Option<u16>,
    /// `ipa-lookup-timeout=`: time within which the lookup of this machine must succeed, in seconds.
    pub lookup: Duration,
    /// `ipa-agent-token=`: token that Ironic generated before the boot. Ironic does not return such a token at lookup.
    pub token: Option<String>,
    /// `BOOTIF=`: MAC address of the NIC from which the machine booted.
    pub boot_mac: Option<String>,
}

impl ConductorSettings {
    pub(super) fn parse_settings(one: impl Fn(&str) -> Result<Option<String>>) -> Result<ConductorSettings> {
        let port = |name: &str| parse_number::<u16>(name, one(name)?);
        let advertise_host = match one("ipa-advertise-host")? {
            None => None,
            Some(host) => Some(
                host.trim_matches(['[', ']'])
                    .parse()
                    .map_err(|_| cmdline_error(format!("ipa-advertise-host={host} is not an IP address")))?,
            ),
        };
        Ok(ConductorSettings {
            api: parse_urls("ipa-api-url", one("ipa-api-url")?)?,
            inspection: parse_urls("ipa-inspection-callback-url", one("ipa-inspection-callback-url")?)?,
            listen_port: port("ipa-listen-port")?.unwrap_or(PORT),
            advertise_host,
            advertise_port: port("ipa-advertise-port")?,
            lookup: parse_number("ipa-lookup-timeout", one("ipa-lookup-timeout")?)?
                .map_or(DEFAULT_LOOKUP_TIMEOUT, Duration::from_secs),
            token: one("ipa-agent-token")?,
            boot_mac: one("BOOTIF")?.as_deref().and_then(parse_bootif),
        })
    }
}

fn parse_urls(name: &str, list: Option<String>) -> Result<Vec<String>> {
    let list = list.unwrap_or_default();
    let urls: Vec<String> =
        list.split(',').map(|url| url.trim_end_matches('/').to_owned()).filter(|url| !url.is_empty()).collect();
    match urls.iter().find(|url| !is_url(url)) {
        Some(url) if url == "mdns" => {
            Err(cmdline_error(format!("{name}=mdns is not supported: specify the URL of Ironic instead")))
        }
        Some(url) => Err(cmdline_error(format!("{name}={url} must begin with http:// or https://"))),
        None => Ok(urls),
    }
}

fn parse_number<T: FromStr>(name: &str, text: Option<String>) -> Result<Option<T>> {
    match text {
        None => Ok(None),
        Some(text) => text
            .parse()
            .map(Some)
            .map_err(|_| cmdline_error(format!("{name}={text} is not a number within the supported range"))),
    }
}

/// Parses the MAC address in `BOOTIF=`, and returns it in lower case with colons. PXELINUX writes the hardware type,
/// followed by the address, with hyphens: `01-52-54-00-aa-00-06`.
fn parse_bootif(text: &str) -> Option<String> {
    let without_type = text.strip_prefix("01").and_then(|rest| rest.strip_prefix([':', '-']));
    without_type.and_then(|rest| parse_mac(rest).ok()).or_else(|| parse_mac(text).ok())
}

#[cfg(test)]
mod tests {
    use crate::agent_kernel_arguments::{AgentSettings, ControlPlaneSource};
    use std::time::Duration;

    fn read(cmdline: &str) -> super::ConductorSettings {
        match AgentSettings::from_cmdline(cmdline).unwrap().control {
            ControlPlaneSource::Conductor(conductor) => *conductor,
            other => panic!("{other:?}"),
        }
    }

    /// Kernel command line as a conductor writes it into its iPXE script.
    #[test]
    fn kernel_command_line_of_ironic_is_parsed() {
        let conductor = read(
            "selinux=0 nofb vga=normal console=ttyS0 ipa-debug=1 ipa-api-url=http://10.0.0.1:6385 \
             ipa-global-request-id=req-7 BOOTIF=52:54:00:AA:00:06 initrd=deploy_ramdisk",
        );
        assert_eq!((conductor.api.len(), conductor.inspection.len()), (1, 0));
        assert_eq!((conductor.listen_port, conductor.advertise_port, conductor.advertise_host), (9999, None, None));
        assert_eq!((conductor.boot_mac.as_deref(), conductor.token), (Some("52:54:00:aa:00:06"), None));
        assert_eq!(conductor.lookup, Duration::from_secs(600));
    }

    #[test]
    fn every_ipa_setting_is_parsed() {
        let conductor = read(
            "ipa-api-url=http://a:6385/,https://b ipa-inspection-callback-url=http://a/v1/continue_inspection \
             ipa-advertise-host=[2001:db8::1] ipa-advertise-port=19999 ipa-listen-port=9990 ipa-lookup-timeout=30 \
             ipa-agent-token=t BOOTIF=01-52-54-00-aa-00-06",
        );
        assert_eq!(conductor.api, ["http://a:6385", "https://b"]);
        assert_eq!(conductor.inspection, ["http://a/v1/continue_inspection"]);
        assert_eq!(conductor.advertise_host, Some("2001:db8::1".parse().unwrap()));
        assert_eq!((conductor.advertise_port, conductor.listen_port), (Some(19999), 9990));
        assert_eq!((conductor.lookup, conductor.token.as_deref()), (Duration::from_secs(30), Some("t")));
        assert_eq!(conductor.boot_mac.as_deref(), Some("52:54:00:aa:00:06"));
        assert_eq!(read("ipa-inspection-callback-url=http://a").api, [""; 0]);
    }

    #[test]
    fn reports_unusable_settings_by_name() {
        for (word, expected) in [
            ("ipa-api-url=mdns", "specify the URL of Ironic instead"),
            ("ipa-api-url=http://a,ftp://b", "ipa-api-url=ftp://b must begin with http:// or https://"),
            ("ipa-api-url=http://a ipa-advertise-host=here", "ipa-advertise-host=here is not an IP address"),
            (
                "ipa-api-url=http://a ipa-advertise-port=65536",
                "ipa-advertise-port=65536 is not a number within the supported range",
            ),
            (
                "ipa-api-url=http://a ipa-lookup-timeout=-1",
                "ipa-lookup-timeout=-1 is not a number within the supported range",
            ),
        ] {
            let error = AgentSettings::from_cmdline(word).unwrap_err().to_string();
            assert!(error.contains(expected), "{word}: {error}");
        }
        assert_eq!(read("ipa-api-url=http://a BOOTIF=eth0").boot_mac, None);
    }
}
