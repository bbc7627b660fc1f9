//! What Ironic tells an agent at boot: the `ipa-…` words that its own agent reads, and `BOOTIF=`.

use super::{bad, is_url};
use crate::error::Result;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

/// Where Ironic's agent listens.
const PORT: u16 = 9999;

/// How long Ironic's agent asks who it is.
const LOOKUP: Duration = Duration::from_secs(600);

/// A conductor is in charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conductor {
    /// `ipa-api-url=`: any number, the first that answers is asked. Without a trailing slash. None where only an inspection is wanted.
    pub api: Vec<String>,
    /// `ipa-inspection-callback-url=`: any number, the inventory is sent to the first that takes it.
    pub inspection: Vec<String>,
    /// `ipa-listen-port=`.
    pub listen_port: u16,
    /// `ipa-advertise-host=`: where the conductor reaches this machine; the address that Ironic is reached from when absent.
    pub advertise_host: Option<IpAddr>,
    /// `ipa-advertise-port=`; the port that it listens at when absent.
    pub advertise_port: Option<u16>,
    /// `ipa-lookup-timeout=`, in seconds.
    pub lookup: Duration,
    /// `ipa-agent-token=`: Ironic has made the token before the boot, and does not hand it out then.
    pub token: Option<String>,
    /// `BOOTIF=`: the MAC that the machine was booted through.
    pub boot_mac: Option<String>,
}

impl Conductor {
    pub(super) fn read(one: impl Fn(&str) -> Result<Option<String>>) -> Result<Conductor> {
        let port = |name: &str| number::<u16>(name, one(name)?);
        let advertise_host = match one("ipa-advertise-host")? {
            None => None,
            Some(host) => Some(
                host.trim_matches(['[', ']'])
                    .parse()
                    .map_err(|_| bad(format!("ipa-advertise-host={host} is no IP address")))?,
            ),
        };
        Ok(Conductor {
            api: urls("ipa-api-url", one("ipa-api-url")?)?,
            inspection: urls("ipa-inspection-callback-url", one("ipa-inspection-callback-url")?)?,
            listen_port: port("ipa-listen-port")?.unwrap_or(PORT),
            advertise_host,
            advertise_port: port("ipa-advertise-port")?,
            lookup: number("ipa-lookup-timeout", one("ipa-lookup-timeout")?)?.map_or(LOOKUP, Duration::from_secs),
            token: one("ipa-agent-token")?,
            boot_mac: one("BOOTIF")?.as_deref().and_then(mac),
        })
    }
}

fn urls(name: &str, list: Option<String>) -> Result<Vec<String>> {
    let list = list.unwrap_or_default();
    let urls: Vec<String> =
        list.split(',').map(|url| url.trim_end_matches('/').to_owned()).filter(|url| !url.is_empty()).collect();
    match urls.iter().find(|url| !is_url(url)) {
        Some(url) if url == "mdns" => Err(bad(format!("{name}=mdns is not understood: write the URL of Ironic there"))),
        Some(url) => Err(bad(format!("{name}={url} is neither http:// nor https://"))),
        None => Ok(urls),
    }
}

fn number<T: FromStr>(name: &str, text: Option<String>) -> Result<Option<T>> {
    match text {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| bad(format!("{name}={text} is no number that fits"))),
    }
}

/// With colons and in lower case. PXELINUX writes hyphens, and the hardware type before the address.
fn mac(text: &str) -> Option<String> {
    let text = text.to_lowercase().replace('-', ":");
    let is_mac = |text: &str| {
        let parts: Vec<&str> = text.split(':').collect();
        parts.len() == 6 && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    let without_type = text.strip_prefix("01:").filter(|rest| is_mac(rest)).map(str::to_owned);
    without_type.or_else(|| is_mac(&text).then_some(text))
}

#[cfg(test)]
mod tests {
    use crate::settings::{InCharge, Settings};
    use std::time::Duration;

    fn read(cmdline: &str) -> super::Conductor {
        match Settings::from_cmdline(cmdline).unwrap().control {
            InCharge::Conductor(conductor) => *conductor,
            other => panic!("{other:?}"),
        }
    }

    /// As a conductor writes it into its iPXE script.
    #[test]
    fn the_words_of_a_conductor_are_read() {
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
    fn everything_that_can_be_told_is_read() {
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
    fn what_cannot_be_used_is_named() {
        for (word, expected) in [
            ("ipa-api-url=mdns", "write the URL of Ironic there"),
            ("ipa-api-url=http://a,ftp://b", "ipa-api-url=ftp://b is neither http:// nor https://"),
            ("ipa-api-url=http://a ipa-advertise-host=here", "ipa-advertise-host=here is no IP address"),
            ("ipa-api-url=http://a ipa-advertise-port=65536", "ipa-advertise-port=65536 is no number that fits"),
            ("ipa-api-url=http://a ipa-lookup-timeout=-1", "ipa-lookup-timeout=-1 is no number that fits"),
        ] {
            let error = Settings::from_cmdline(word).unwrap_err().to_string();
            assert!(error.contains(expected), "{word}: {error}");
        }
        assert_eq!(read("ipa-api-url=http://a BOOTIF=eth0").boot_mac, None);
    }
}
