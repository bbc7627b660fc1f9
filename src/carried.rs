//! What goes with a machine that is moved to another one's hardware: which filesystems, and the ids by which the system knows its
//! partitions and arrays. The machine that has them says it, the control plane hands it on, and the other machine's plan takes it.

use crate::device::LayoutPath;
use crate::layout::Format;
use crate::marker::{MarkedDisk, Marker};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A machine's part in a move, as the control plane tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Moving {
    /// Id of the order.
    pub order: String,
    pub part: Part,
    /// The receiving machine has passed its point of no return: bytes may travel.
    #[serde(default)]
    pub begun: bool,
    /// The certificate of at least one of the two machines is not released yet: neither by the operator, nor by a secret that the peer has.
    /// The receiving machine must not begin.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_approval: bool,
    /// The other machine, as it stands in its ramdisk now. It has another certificate after each boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Peer>,
    /// What comes; for the receiving machine alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub carried: Option<Carried>,
    /// Which disk of the receiving machine each name of the layout means; for that machine alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<MarkedDisk>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Its disks are read, and no byte of them changes.
    Send,
    Receive,
}

/// The newest move of which a machine is part, and how far it is. That nothing is told of a machine's part is no end of the move; this
/// says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Newest {
    /// Id of the order.
    pub order: String,
    /// `ordered`, `planned`, `copying`, `booting`, `done`, `cancelled` or `refused`.
    pub state: String,
}

/// What an answer of the control plane says to a machine that stands in its ramdisk for a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said<'m> {
    /// It goes on, and that is the machine's part.
    Part(&'m Moving),
    /// It is in this state, and the machine has nothing to do in it now.
    Waits(&'m str),
    /// The system runs on the other machine.
    Done,
    /// It was taken back or refused, or another move has come after it.
    Over,
    /// Nothing: a control plane of an earlier version, or one that has lost the order. That is no end.
    Nothing,
}

/// What those say of the move with that id. An end goes before all else: it stays one.
pub fn said<'m>(order: &str, part: Option<&'m Moving>, newest: Option<&'m Newest>) -> Said<'m> {
    let part = part.filter(|part| part.order == order);
    match (newest, part) {
        (Some(newest), _) if newest.order != order => Said::Over,
        (Some(newest), _) if newest.state == "done" => Said::Done,
        (Some(newest), _) if newest.state == "cancelled" || newest.state == "refused" => Said::Over,
        (_, Some(part)) => Said::Part(part),
        (Some(newest), None) => Said::Waits(&newest.state),
        (None, None) => Said::Nothing,
    }
}

/// The other end of the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Peer {
    /// PEM, with a signature before it where both ramdisks have a secret.
    pub certificate: String,
    /// `HOST:PORT` where it listens; empty for the one that sends.
    #[serde(default)]
    pub address: String,
    /// The operator approved this certificate, or ordered the migration without approvals. An agent without the secret uses no other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub approved: bool,
}

impl Peer {
    /// Names that boot of the machine.
    pub fn digest(&self) -> String {
        digest(&self.certificate)
    }
}

/// `sha256:HEX` of a certificate, as it is handed on.
pub fn digest(certificate: &str) -> String {
    let hex: Vec<String> = Sha256::digest(certificate).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{}", hex.concat())
}

/// Fingerprint of the first certificate in a PEM text: `sha256:` and the SHA-256 of its DER, as `openssl x509 -fingerprint -sha256` computes
/// it. `None` if the text contains no certificate.
#[cfg(any(feature = "agent", feature = "serve"))]
pub fn fingerprint(certificate: &str) -> Option<String> {
    use rustls::pki_types::pem::PemObject;
    let der = rustls::pki_types::CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?;
    let hex: Vec<String> = Sha256::digest(&der).iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("sha256:{}", hex.concat()))
}

/// What a machine in a move tells of itself, after each boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Standing {
    /// Id of the order.
    pub order: String,
    pub certificate: String,
    /// Where the receiving machine listens; its address is the one that it calls from.
    #[serde(default)]
    pub port: Option<u16>,
    /// Of the sending machine.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub carried: Option<Carried>,
    /// What went wrong, while all goes on as far as it can; empty when that is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
    /// The ramdisk has the secret of both machines, so that this machine verifies its peer without the operator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_secret: bool,
}

/// All that the sending machine's layout has, as it is on its disks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Of the installed system.
    pub marker: Marker,
    pub filesystems: Vec<CarriedFilesystem>,
    #[serde(default)]
    pub arrays: Vec<CarriedArray>,
    #[serde(default)]
    pub partitions: Vec<CarriedPartition>,
    /// Network cards, in the order of the inventory.
    #[serde(default)]
    pub nics: Vec<CarriedNic>,
}

impl Carried {
    /// Have those the same filesystems, arrays and partitions, by their ids and sizes? A plan that was made for one fits the other then.
    pub fn fits_as(&self, other: &Carried) -> bool {
        same(&self.filesystems, &other.filesystems)
            && same(&self.arrays, &other.arrays)
            && same(&self.partitions, &other.partitions)
    }
}

/// In whatever order.
fn same<T: PartialEq>(some: &[T], others: &[T]) -> bool {
    some.len() == others.len() && some.iter().all(|one| others.contains(one))
}

/// What is in one device of the layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedFilesystem {
    /// As the layout calls it.
    pub device: LayoutPath,
    pub format: Format,
    /// As blkid writes it; empty where it has none.
    #[serde(default)]
    pub uuid: String,
    /// Of the device that it lies on.
    pub size_bytes: u64,
    /// Logical sector of that device.
    pub sector_bytes: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedArray {
    pub device: LayoutPath,
    pub uuid: Uuid,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedPartition {
    pub device: LayoutPath,
    /// PARTUUID.
    pub guid: Uuid,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedNic {
    pub name: String,
    pub mac: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(order: &str) -> Moving {
        let order = order.to_owned();
        Moving {
            order,
            part: Part::Send,
            begun: true,
            awaits_approval: false,
            peer: None,
            carried: None,
            disks: Vec::new(),
        }
    }

    fn newest(order: &str, state: &str) -> Newest {
        Newest { order: order.to_owned(), state: state.to_owned() }
    }

    /// What both versions of a control plane may answer, and that a missing answer ends nothing.
    #[test]
    fn only_a_word_is_an_end() {
        let (own, other) = (part("o1"), part("o2"));
        for (part, state, means) in [
            (Some(&own), "copying", Said::Part(&own)),
            (Some(&own), "planned", Said::Part(&own)),
            // A file of the control plane that it cannot read.
            (None, "copying", Said::Waits("copying")),
            (None, "ordered", Said::Waits("ordered")),
            (None, "booting", Said::Waits("booting")),
            (None, "what a later version calls it", Said::Waits("what a later version calls it")),
            (None, "done", Said::Done),
            (None, "cancelled", Said::Over),
            (None, "refused", Said::Over),
            // It ended between the two looks of one answer.
            (Some(&own), "cancelled", Said::Over),
            (Some(&own), "done", Said::Done),
            (Some(&other), "copying", Said::Waits("copying")),
        ] {
            assert_eq!(said("o1", part, Some(&newest("o1", state))), means, "{state}");
        }
        assert_eq!(said("o1", Some(&other), Some(&newest("o2", "ordered"))), Said::Over);
        // A control plane of an earlier version has no word for it.
        assert_eq!(said("o1", Some(&own), None), Said::Part(&own));
        for part in [None, Some(&other)] {
            assert_eq!(said("o1", part, None), Said::Nothing);
        }
    }
}
