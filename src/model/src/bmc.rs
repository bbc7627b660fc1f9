//! Management controller (BMC) of a machine: its address and credentials, and the data that the machine reads from its
//! BMC.

use crate::secret_text::SecretText;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

/// Address and credentials of a management controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bmc {
    pub at: BmcAddress,
    pub username: String,
    pub password: SecretText,
    /// True if TLS certificates of the controller are accepted without verification.
    pub insecure: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BmcAddress {
    /// URL of the controller, such as `https://10.1.0.7`, and the path of the machine's system, such as
    /// `/redfish/v1/Systems/1`. The path is required only if the controller manages several systems.
    Redfish {
        url: String,
        system: Option<String>,
    },
    Ipmi {
        host: String,
        port: Option<u16>,
    },
}

/// Data that the machine reads from its own BMC without credentials. Unknown fields are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InBandBmc {
    /// Address of the LAN channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// MAC of the LAN channel, in lower case.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Firmware revision: `2.50`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    pub fru: FruInfo,
    /// Reasons why data is missing although the BMC responds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// Fields of the FRU (field replaceable unit) inventory, with part and serial numbers that are needed to order spare
/// parts. Unknown fields are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FruInfo {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub chassis_part_number: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub chassis_part_serial: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub board_mfg: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub board_mfg_serial: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub board_part_number: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub product_manufacturer: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub product_part_number: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub product_serial: String,
}

impl FruInfo {
    /// Returns the fields with metal-stack's names, in the order in which metal-stack's messages contain them.
    pub fn fields(&self) -> [(&'static str, &str); 8] {
        [
            ("chassis_part_number", &self.chassis_part_number),
            ("chassis_part_serial", &self.chassis_part_serial),
            ("board_mfg", &self.board_mfg),
            ("board_mfg_serial", &self.board_mfg_serial),
            ("board_part_number", &self.board_part_number),
            ("product_manufacturer", &self.product_manufacturer),
            ("product_part_number", &self.product_part_number),
            ("product_serial", &self.product_serial),
        ]
    }

    pub fn is_empty(&self) -> bool {
        self.fields().iter().all(|(_, value)| value.is_empty())
    }

    /// Sets the empty fields from `other`.
    pub fn fill_gaps(&mut self, other: &FruInfo) {
        let own = [
            &mut self.chassis_part_number,
            &mut self.chassis_part_serial,
            &mut self.board_mfg,
            &mut self.board_mfg_serial,
            &mut self.board_part_number,
            &mut self.product_manufacturer,
            &mut self.product_part_number,
            &mut self.product_serial,
        ];
        for (own, (_, other)) in own.into_iter().zip(other.fields()) {
            if own.is_empty() {
                other.clone_into(own);
            }
        }
    }
}

impl BmcAddress {
    /// Parses `https://HOST[:PORT][/redfish/v1/Systems/ID]` or `ipmi://HOST[:PORT]`.
    ///
    /// # Errors
    /// Fails if the text has another form. An `http://` URL is accepted only if its host is localhost.
    pub fn parse(text: &str) -> Result<BmcAddress, String> {
        let form = || "must be https://HOST[:PORT] for Redfish or ipmi://HOST[:PORT] for IPMI".to_owned();
        let (scheme, rest) = text.split_once("://").ok_or_else(form)?;
        let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:[]".contains(&byte);
        if host.is_empty() || host.starts_with('-') || !host.bytes().all(plain) {
            return Err(form());
        }
        // The path of a system is used as written, because some controllers respond only to paths with a trailing
        // slash.
        let is_root = ["", "/redfish/v1"].contains(&path.trim_end_matches('/'));
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
                (name, Some(port.parse::<u16>().map_err(|_| form())?))
            }
            _ => (host, None),
        };
        match scheme {
            // Without TLS, the password can be intercepted, so `http://` is allowed only for emulators on this host.
            "https" => {}
            "http" if ["127.0.0.1", "localhost", "[::1]"].contains(&name) => {}
            "http" => {
                return Err("Redfish over plain http would send the password unencrypted; use https://".to_owned());
            }
            "ipmi" if path.trim_end_matches('/').is_empty() => {
                return Ok(BmcAddress::Ipmi { host: name.trim_matches(['[', ']']).to_owned(), port });
            }
            _ => return Err(form()),
        }
        let system = (!is_root).then(|| path.to_owned());
        let is_system = |path: &String| {
            path.strip_prefix("/redfish/v1/Systems/").is_some_and(|id| !id.trim_matches('/').is_empty())
        };
        if system.as_ref().is_some_and(|path| !is_system(path)) {
            return Err(format!("{path} is not the path of a system: it must have the form /redfish/v1/Systems/ID"));
        }
        Ok(BmcAddress::Redfish { url: format!("{scheme}://{host}"), system })
    }

    /// Returns the protocol, host and port in a normalized form, such as `https://10.1.0.7:443`. Two addresses with the
    /// same endpoint belong to the same controller.
    pub fn endpoint(&self) -> String {
        let (scheme, host, port) = match self {
            BmcAddress::Ipmi { host, port } => ("ipmi", host.as_str(), port.unwrap_or(623)),
            BmcAddress::Redfish { url, .. } => {
                let (scheme, authority) = url.split_once("://").unwrap_or(("https", url));
                let default = if scheme == "http" { 80 } else { 443 };
                let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                match authority.rsplit_once(':').filter(|(_, port)| is_port(port)) {
                    Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                        (scheme, host, port.parse().unwrap_or(default))
                    }
                    _ => (scheme, authority, default),
                }
            }
        };
        let host = host.trim_matches(['[', ']']).trim_end_matches('.').to_lowercase();
        let host = host.parse::<IpAddr>().map_or(host, |address| address.to_string());
        format!("{scheme}://{host}:{port}")
    }
}

impl fmt::Display for BmcAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BmcAddress::Redfish { url, system } => write!(f, "{url}{}", system.as_deref().unwrap_or_default()),
            BmcAddress::Ipmi { host, port: Some(port) } => write!(f, "ipmi://{host}:{port}"),
            BmcAddress::Ipmi { host, port: None } => write!(f, "ipmi://{host}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_of_a_fru_are_filled_and_its_values_preserved() {
        let known = FruInfo { board_mfg: "A".into(), product_serial: "1".into(), ..FruInfo::default() };
        let other = FruInfo { board_mfg: "B".into(), board_part_number: "C".into(), ..FruInfo::default() };
        let mut filled = known.clone();
        filled.fill_gaps(&other);
        assert_eq!(filled, FruInfo { board_part_number: "C".into(), ..known });
        assert!(FruInfo::default().is_empty() && !filled.is_empty());
        let mut all = FruInfo::default();
        all.fill_gaps(&filled);
        assert_eq!(all, filled);
    }

    #[test]
    fn spellings_of_one_address_have_the_same_endpoint() {
        let endpoint = |text: &str| BmcAddress::parse(text).unwrap().endpoint();
        for (endpoint_text, spellings) in [
            ("ipmi://10.1.0.7:623", &["ipmi://10.1.0.7", "ipmi://10.1.0.7:623", "ipmi://10.1.0.7/"][..]),
            ("https://bmc-7:443", &["https://bmc-7", "https://BMC-7.:443", "https://bmc-7/redfish/v1/Systems/1"]),
            ("ipmi://fe80::1:623", &["ipmi://[fe80::1]", "ipmi://[FE80:0::1]:623"]),
            ("https://fe80::1:8443", &["https://[fe80::1]:8443", "https://[fe80:0:0::1]:8443/redfish/v1/"]),
            ("http://127.0.0.1:80", &["http://127.0.0.1"]),
        ] {
            spellings.iter().for_each(|spelling| assert_eq!(endpoint(spelling), endpoint_text, "{spelling}"));
        }
        assert_ne!(endpoint("ipmi://10.1.0.7"), endpoint("ipmi://10.1.0.7:9001"));
        for text in ["ipmi://bmc:9001", "ipmi://bmc", "https://bmc:8443/redfish/v1/Systems/2", "https://bmc"] {
            assert_eq!(BmcAddress::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn parses_redfish_and_ipmi_addresses() {
        let redfish = |url: &str, system: Option<&str>| {
            Ok(BmcAddress::Redfish { url: url.to_owned(), system: system.map(str::to_owned) })
        };
        let ipmi = |host: &str, port| Ok(BmcAddress::Ipmi { host: host.to_owned(), port });
        assert_eq!(BmcAddress::parse("https://10.1.0.7"), redfish("https://10.1.0.7", None));
        assert_eq!(BmcAddress::parse("https://bmc-7.rack:8443/redfish/v1/"), redfish("https://bmc-7.rack:8443", None));
        let system = "/redfish/v1/Systems/1";
        assert_eq!(BmcAddress::parse("https://h/redfish/v1/Systems/1"), redfish("https://h", Some(system)));
        let slash = "/redfish/v1/Systems/1/";
        assert_eq!(BmcAddress::parse("https://h/redfish/v1/Systems/1/"), redfish("https://h", Some(slash)));
        assert_eq!(BmcAddress::parse("http://127.0.0.1:8000"), redfish("http://127.0.0.1:8000", None));
        assert_eq!(BmcAddress::parse("ipmi://10.1.0.7"), ipmi("10.1.0.7", None));
        assert_eq!(BmcAddress::parse("ipmi://bmc:9001"), ipmi("bmc", Some(9001)));
        assert_eq!(BmcAddress::parse("ipmi://[fe80::1]"), ipmi("fe80::1", None));
        for (text, expected) in [
            ("10.1.0.7", "must be https://HOST"),
            ("https://", "must be https://HOST"),
            ("https://u:p@h", "must be https://HOST"),
            ("ipmi://-x", "must be https://HOST"),
            ("ipmi://h/x", "must be https://HOST"),
            ("ipmi://h:x", "must be https://HOST"),
            ("ftp://h", "must be https://HOST"),
            ("http://127.0.0.1.example.org", "would send the password"),
            ("http://10.1.0.7", "would send the password"),
            ("https://h/redfish/v1/Managers/1", "is not the path of a system"),
            ("https://h/redfish/v1/Systems/", "is not the path of a system"),
        ] {
            let why = BmcAddress::parse(text).unwrap_err();
            assert!(why.contains(expected), "{text}: {why}");
        }
    }
}
