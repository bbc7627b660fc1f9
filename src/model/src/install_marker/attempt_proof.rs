//! Proof that an install marker was written by a particular attempt.
//!
//! Each attempt generates a secret. The control plane receives only its SHA-256, at the point of no return. The secret
//! itself is written into the install marker at the end of the attempt. The secret proves which attempt has written a
//! marker. Ids of machines, allocations and orders prove nothing, because they are public: a system that was
//! previously installed on the machine may have written a marker with these ids. However, such a system cannot have
//! known the secret of an attempt that started later.

use super::{InstallMarker, RecordedDisk};
use common::encoding::format_sha256;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::fmt;
use uuid::Uuid;

/// Prefix of a SHA-256 digest in text form.
const SHA256: &str = "sha256:";

/// Secret of one attempt: 64 hexadecimal digits.
#[derive(Clone, Default, PartialEq, Eq, Serialize)]
pub struct AttemptSecret(String);

impl AttemptSecret {
    /// Generates a secret from two random UUIDs, which `ids` returns.
    pub fn generate(ids: &mut dyn FnMut() -> Uuid) -> AttemptSecret {
        AttemptSecret(format!("{}{}", ids().simple(), ids().simple()))
    }

    /// Returns `sha256:HEX` of the secret; `None` if the secret is malformed.
    pub fn digest(&self) -> Option<String> {
        let is_plausible = self.0.len() == 64 && self.0.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_plausible.then(|| format_sha256(&self.0))
    }
}

/// Accepts any JSON value: an error would make the whole marker unreadable, and the marker would be treated as absent.
/// A value that is not text becomes a secret that matches no digest.
impl<'de> Deserialize<'de> for AttemptSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AttemptSecret, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(AttemptSecret(value.as_str().unwrap_or_default().to_owned()))
    }
}

/// Debug output that omits the secret, because debug output is written to logs.
impl fmt::Debug for AttemptSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AttemptSecret(concealed)")
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for AttemptSecret {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AttemptSecret".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}

/// Returns whether the text has the format of a secret's digest.
pub fn is_secret_digest(text: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.strip_prefix(SHA256).is_some_and(|hex| hex.len() == 64 && hex.bytes().all(is_hex))
}

/// Attempt that has passed its point of no return. The control plane stores this record and sends it to later boots.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct AttemptRecord {
    /// `sha256:HEX` of the attempt's secret.
    pub secret_digest: String,
    /// Id of the image that the attempt installs. Empty for a migration, which transfers the installed system instead
    /// of installing an image.
    #[serde(default, with = "common::empty_string_as_none", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub image: Option<String>,
}

/// Property of a marker that proves that the marker was not written by a particular attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkerMismatch {
    /// The marker contains no secret, or the secret of another attempt.
    Secret,
    Image {
        expected: String,
        found: String,
    },
    /// The marker does not contain the GUID of the partition table that the attempt created on the disk `device`, which
    /// is named as in the layout.
    Table {
        device: String,
    },
}

impl fmt::Display for MarkerMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MarkerMismatch::Secret => f.write_str(
                "the marker does not contain the secret of the recorded attempt, which passed the point of no return",
            ),
            MarkerMismatch::Image { expected, found } => {
                write!(f, "the marker contains image {found:?}, but the recorded attempt installs image {expected:?}")
            }
            MarkerMismatch::Table { device } => {
                write!(
                    f,
                    "the marker does not contain the GUID of the partition table that the attempt created on {device}"
                )
            }
        }
    }
}

impl InstallMarker {
    /// Checks that the attempt has written this marker. `disks` are the disks that the attempt announced to the control
    /// plane. The marker must contain the GUIDs of all partition tables that the attempt created on these disks. The
    /// disk of a raw image is announced without a GUID, because the image contains its own partition table.
    ///
    /// # Errors
    /// Returns the first property of the marker that proves that the attempt has not written the marker.
    pub fn check_attempt(&self, attempt: &AttemptRecord, disks: &[RecordedDisk]) -> Result<(), MarkerMismatch> {
        let digest = self.secret.as_ref().and_then(AttemptSecret::digest);
        if digest.as_ref() != Some(&attempt.secret_digest) {
            return Err(MarkerMismatch::Secret);
        }
        if let Some(expected) = attempt.image.as_ref().filter(|expected| **expected != self.image) {
            return Err(MarkerMismatch::Image { expected: expected.clone(), found: self.image.clone() });
        }
        let is_recorded =
            |new: &RecordedDisk| self.disks.iter().any(|disk| disk.device == new.device && disk.guid == new.guid);
        match disks_with_new_tables(disks).find(|new| !is_recorded(new)) {
            Some(new) => Err(MarkerMismatch::Table { device: new.device.clone() }),
            None => Ok(()),
        }
    }
}

/// Returns the announced disks on which the attempt creates a new partition table.
pub fn disks_with_new_tables(disks: &[RecordedDisk]) -> impl Iterator<Item = &RecordedDisk> {
    disks.iter().filter(|disk| disk.guid.is_some() && disk.guid != disk.guid_before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(number: u128) -> AttemptSecret {
        let mut next = number;
        AttemptSecret::generate(&mut || {
            next += 1;
            Uuid::from_u128(next)
        })
    }

    fn disk(device: &str, guid: Option<&str>, before: Option<&str>) -> RecordedDisk {
        let (guid, guid_before) = (guid.map(str::to_owned), before.map(str::to_owned));
        RecordedDisk { device: device.to_owned(), guid, guid_before, ..RecordedDisk::default() }
    }

    #[test]
    fn marker_matches_attempt_only_by_secret_image_and_tables() {
        let (own, other) = (draw(1), draw(7));
        let attempt = AttemptRecord { secret_digest: own.digest().unwrap(), image: Some("i".to_owned()) };
        let announced = [disk("/dev/sda", Some("new"), Some("old")), disk("/dev/sdb", Some("kept"), Some("kept"))];
        let marker = |secret: Option<&AttemptSecret>, image: &str, guid: &str| InstallMarker {
            secret: secret.cloned(),
            image: image.to_owned(),
            disks: vec![disk("/dev/sda", Some(guid), None), disk("/dev/sdb", Some("other"), None)],
            ..InstallMarker::default()
        };
        let table = MarkerMismatch::Table { device: "/dev/sda".to_owned() };
        let image = MarkerMismatch::Image { expected: "i".to_owned(), found: "j".to_owned() };
        for (marker, expected) in [
            (marker(Some(&own), "i", "new"), Ok(())),
            (marker(Some(&other), "i", "new"), Err(MarkerMismatch::Secret)),
            (marker(None, "i", "new"), Err(MarkerMismatch::Secret)),
            (marker(Some(&AttemptSecret(attempt.secret_digest.clone())), "i", "new"), Err(MarkerMismatch::Secret)),
            (marker(Some(&own), "j", "new"), Err(image)),
            (marker(Some(&own), "i", "old"), Err(table.clone())),
            (InstallMarker { disks: vec![], ..marker(Some(&own), "i", "new") }, Err(table)),
        ] {
            assert_eq!(marker.check_attempt(&attempt, &announced), expected, "{marker:?}");
            let any_image = AttemptRecord { image: None, ..attempt.clone() };
            let is_image = matches!(expected, Err(MarkerMismatch::Image { .. }));
            assert_eq!(marker.check_attempt(&any_image, &announced).is_ok(), expected.is_ok() || is_image);
        }
        // A record without a digest matches no marker, not even one without a usable secret.
        for secret in [None, Some(AttemptSecret::default())] {
            let unknown = InstallMarker { secret, ..InstallMarker::default() };
            assert_eq!(unknown.check_attempt(&AttemptRecord::default(), &[]), Err(MarkerMismatch::Secret));
        }
    }

    #[test]
    fn secrets_are_unique_and_not_logged() {
        let (one, other) = (draw(1), draw(3));
        assert_ne!(one.digest(), other.digest());
        assert!(is_secret_digest(&one.digest().unwrap()));
        let hex = "a".repeat(64);
        for wrong in ["", "sha256:", &hex, &format!("sha256:{}", "A".repeat(64)), &format!("sha256:{hex}0")] {
            assert!(!is_secret_digest(wrong), "{wrong}");
        }
        let marker = InstallMarker { secret: Some(one.clone()), ..InstallMarker::default() };
        assert!(!format!("{marker:?}").contains(&one.0));
        assert_eq!(serde_json::from_str::<InstallMarker>(&serde_json::to_string(&marker).unwrap()).unwrap(), marker);
    }

    #[test]
    fn marker_with_invalid_secret_is_parsed_and_proves_nothing() {
        for nonsense in ["5", "null", "[]", "{}", "\"\"", "\"g\"", "18446744073709551616"] {
            let text =
                format!(r#"{{"machine": "m", "allocation": "a", "image": "i", "layout": "l", "secret": {nonsense}}}"#);
            let marker: InstallMarker =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{nonsense}: {error}"));
            assert_eq!(marker.secret.and_then(|secret| secret.digest()), None, "{nonsense}");
        }
    }
}
