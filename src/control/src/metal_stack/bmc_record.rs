//! Record of the management controller (BMC) in metal-stack's database: address, credentials and FRU.
//!
//! A registration replaces the whole record, and thus erases all values that it omits. Therefore the agent first reads
//! the record from the control plane, and sends the values of this record back unchanged. Only missing values are read
//! from the BMC itself.

use common::format::untrusted_text_limits::sanitize_name;
use model::bmc::{FruInfo, InBandBmc};
use model::secret_text::SecretText;
use serde_json::Value;
use std::net::IpAddr;

/// Port that metal-stack's own agent registers for every BMC.
const PORT: u16 = 623;
/// `ipmitool` interface that metal-stack's own agent registers for every BMC.
const INTERFACE: &str = "lanplus";

/// Record of a BMC, with metal-stack's fields. Unknown fields are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BmcRecord {
    /// Host and port of the BMC.
    pub address: String,
    pub mac: String,
    pub user: String,
    pub password: SecretText,
    /// Interface (`-I`) with which `ipmitool` connects to the BMC.
    pub interface: String,
    pub version: String,
    pub power_state: String,
    pub fru: FruInfo,
}

/// Result of reading the control plane's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KnownBmc {
    Record(Box<BmcRecord>),
    /// The control plane has no record of this machine, so a registration cannot erase anything.
    Unregistered,
    /// The machine is not permitted to read the record. The value is the reason.
    Unreadable(String),
}

/// Names of those fields of the record whose names differ between the API versions.
pub(crate) struct RecordFields {
    pub version: &'static str,
    pub power_state: &'static str,
    /// True if the names of FRU fields are in camel case.
    pub camel_case: bool,
}

impl BmcRecord {
    /// Parses a record. A field may be absent or null.
    ///
    /// # Errors
    /// Returns an error if `bmc` or `fru` is not an object, or if a field is not a string. The message does not contain
    /// values.
    pub(crate) fn from_json(bmc: &Value, fru: &Value, fields: &RecordFields) -> Result<BmcRecord, String> {
        let text = |of: &Value, name: &str| match of {
            Value::Null => Ok(String::new()),
            Value::Object(object) => match object.get(name) {
                None | Some(Value::Null) => Ok(String::new()),
                Some(Value::String(text)) => Ok(text.clone()),
                Some(_) => Err(format!("{name} is not a string")),
            },
            _ => Err("the record of the BMC is not an object".to_owned()),
        };
        let part = |name: &str| text(fru, &if fields.camel_case { to_camel_case(name) } else { name.to_owned() });
        Ok(BmcRecord {
            address: text(bmc, "address")?,
            mac: text(bmc, "mac")?,
            user: text(bmc, "user")?,
            password: SecretText::new(text(bmc, "password")?),
            interface: text(bmc, "interface")?,
            version: text(bmc, fields.version)?,
            power_state: text(bmc, fields.power_state)?,
            fru: FruInfo {
                chassis_part_number: part("chassis_part_number")?,
                chassis_part_serial: part("chassis_part_serial")?,
                board_mfg: part("board_mfg")?,
                board_mfg_serial: part("board_mfg_serial")?,
                board_part_number: part("board_part_number")?,
                product_manufacturer: part("product_manufacturer")?,
                product_part_number: part("product_part_number")?,
                product_serial: part("product_serial")?,
            },
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == BmcRecord::default()
    }

    /// Fills empty fields with data from the BMC itself, which do not include credentials.
    fn fill_gaps(&mut self, bmc: &InBandBmc) {
        if let Some(address) = bmc.address.filter(|_| self.address.is_empty()) {
            self.address = match address {
                IpAddr::V4(address) => format!("{address}:{PORT}"),
                IpAddr::V6(address) => format!("[{address}]:{PORT}"),
            };
        }
        if self.interface.is_empty() && !self.address.is_empty() {
            INTERFACE.clone_into(&mut self.interface);
        }
        for (own, read) in [(&mut self.mac, &bmc.mac), (&mut self.version, &bmc.version)] {
            if own.is_empty() {
                own.clone_from(read);
            }
        }
        self.fru.fill_gaps(&bmc.fru);
    }
}

/// Returns the name of a field in protobuf's JSON.
pub(crate) fn to_camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        let (head, tail) = word.split_at_checked(1).unwrap_or(("", word));
        name + &head.to_ascii_uppercase() + tail
    })
}

/// Fills the empty fields of the control plane's record with data from the BMC, and prints which values the
/// registration will erase. `in_band` is `None` if the machine has no BMC, or an error if the BMC does not respond.
pub(crate) fn combine(known: KnownBmc, in_band: Result<Option<InBandBmc>, String>, say: &dyn Fn(&str)) -> BmcRecord {
    let in_band = in_band.unwrap_or_else(|why| {
        say(&format!("the BMC cannot be read in-band: {why}"));
        None
    });
    if let Some(bmc) = &in_band {
        bmc.problems.iter().for_each(|problem| say(&format!("BMC: {}", sanitize_name(problem))));
    }
    let mut record = match &known {
        KnownBmc::Record(record) => record.as_ref().clone(),
        KnownBmc::Unregistered | KnownBmc::Unreadable(_) => BmcRecord::default(),
    };
    let own = in_band.as_ref().and_then(|bmc| bmc.address);
    if let Some(own) = own.filter(|own| !record.address.is_empty() && !has_host(&record.address, *own)) {
        let kept = sanitize_name(&record.address);
        say(&format!(
            "BMC: the address read from the BMC is {own}, but the control plane has recorded {kept}; the recorded address is sent back unchanged"
        ));
    }
    if let Some(bmc) = &in_band {
        record.fill_gaps(bmc);
    }
    if let KnownBmc::Unreadable(why) = known {
        let rest = match own {
            Some(own) => format!("the registration contains the address {own}, the MAC and the FRU data that were \
                read from the BMC itself"),
            None => "the registration also erases the BMC's address and MAC in the control plane, because the BMC was not found in-band"
                .to_owned(),
        };
        say(&format!(
            "WARNING: this registration ERASES user and password of this machine's BMC in the control plane; {rest}. Power commands fail until the \
             operator sets user and password again: docs/metal-stack.md, \"Before the first rack\". The record of the control plane cannot be read: {why}"
        ));
    }
    record
}

fn has_host(address: &str, own: IpAddr) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_matches(['[', ']']).parse::<IpAddr>() == Ok(own) || address.parse::<IpAddr>() == Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::cell::RefCell;

    const V1: RecordFields = RecordFields { version: "bmcversion", power_state: "powerstate", camel_case: false };
    const V2: RecordFields = RecordFields { version: "version", power_state: "powerState", camel_case: true };

    fn known() -> BmcRecord {
        BmcRecord {
            address: "10.1.0.9:6230".into(),
            user: "metal".into(),
            password: SecretText::new("secret"),
            fru: FruInfo { product_serial: "S1".into(), ..FruInfo::default() },
            ..BmcRecord::default()
        }
    }

    fn in_band() -> InBandBmc {
        InBandBmc {
            address: Some("10.1.0.7".parse().unwrap()),
            mac: "0c:c4:7a:0a:0b:0c".into(),
            version: "1.74".into(),
            fru: FruInfo { product_serial: "S2".into(), board_mfg: "Supermicro".into(), ..FruInfo::default() },
            problems: vec![],
        }
    }

    fn combined(known: KnownBmc, in_band: Result<Option<InBandBmc>, String>) -> (BmcRecord, String) {
        let said = RefCell::new(String::new());
        let record = combine(known, in_band, &|line| *said.borrow_mut() += &format!("{line}\n"));
        (record, said.into_inner())
    }

    #[test]
    fn recorded_bmc_values_are_preserved_and_gaps_filled() {
        let (record, said) = combined(KnownBmc::Record(Box::new(known())), Ok(Some(in_band())));
        let filled = BmcRecord {
            mac: "0c:c4:7a:0a:0b:0c".into(),
            version: "1.74".into(),
            interface: "lanplus".into(),
            fru: FruInfo { board_mfg: "Supermicro".into(), ..known().fru },
            ..known()
        };
        assert_eq!(record, filled);
        assert_eq!(
            said,
            "BMC: the address read from the BMC is 10.1.0.7, but the control plane has recorded 10.1.0.9:6230; the recorded address is sent back unchanged\n"
        );
        for in_band in [Ok(None), Err("no".to_owned())] {
            assert_eq!(combined(KnownBmc::Record(Box::new(known())), in_band).0, known(), "sent back unchanged");
        }
        let same = BmcRecord { address: "10.1.0.7:623".into(), ..known() };
        let (record, said) = combined(KnownBmc::Record(Box::new(same)), Ok(Some(in_band())));
        assert_eq!((record.address.as_str(), said.as_str()), ("10.1.0.7:623", ""));
    }

    #[test]
    fn incomplete_bmc_registrations_are_reported() {
        let (record, said) = combined(KnownBmc::Unregistered, Ok(Some(in_band())));
        assert_eq!((record.address.as_str(), record.user.as_str(), said.as_str()), ("10.1.0.7:623", "", ""));
        let (record, said) = combined(KnownBmc::Unregistered, Ok(None));
        assert!(record.is_empty() && said.is_empty());
        let denied = || KnownBmc::Unreadable("permission_denied".to_owned());
        let (record, said) = combined(denied(), Ok(Some(in_band())));
        assert_eq!(record.mac, "0c:c4:7a:0a:0b:0c");
        assert!(
            said.starts_with("WARNING: this registration ERASES user and password")
                && said.contains("address 10.1.0.7")
        );
        let (record, said) = combined(denied(), Err("timed out\u{1b}".to_owned()));
        assert!(record.is_empty());
        for words in ["cannot be read in-band: timed out", "because the BMC was not found in-band", "permission_denied"]
        {
            assert!(said.contains(words), "{said}");
        }
        let v6 = InBandBmc { address: Some("fe80::1".parse().unwrap()), ..InBandBmc::default() };
        assert_eq!(combined(KnownBmc::Unregistered, Ok(Some(v6))).0.address, "[fe80::1]:623");
    }

    #[test]
    fn records_of_both_versions_are_read() {
        let fru = json!({"product_serial": "S1", "board_mfg": null});
        let first = json!({"address": "10.1.0.9:6230", "mac": "", "user": "metal", "password": "secret", "interface": null,
                           "bmcversion": "", "powerstate": "ON", "powermetric": {}, "last_updated": "0001-01-01T00:00:00Z"});
        let expected = BmcRecord { power_state: "ON".into(), ..known() };
        assert_eq!(BmcRecord::from_json(&first, &fru, &V1).unwrap(), expected);
        let second = json!({"address": "10.1.0.9:6230", "user": "metal", "password": "secret", "powerState": "ON"});
        assert_eq!(BmcRecord::from_json(&second, &json!({"productSerial": "S1"}), &V2).unwrap(), expected);
        assert!(BmcRecord::from_json(&Value::Null, &Value::Null, &V2).unwrap().is_empty());
        for (bmc, fru, words) in [
            (json!([]), json!({}), "not an object"),
            (json!({}), json!("x"), "not an object"),
            (json!({"password": 7}), json!({}), "password is not a string"),
            (json!({}), json!({"board_mfg": []}), "board_mfg is not a string"),
        ] {
            let why = BmcRecord::from_json(&bmc, &fru, &V1).unwrap_err();
            assert!(why.contains(words) && !why.contains('7'), "{why}");
        }
        assert!(!format!("{:?}", known()).contains("secret"));
    }
}
