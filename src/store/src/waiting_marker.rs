//! Install markers that wait for their adoption, as the operator sees them.

use super::install_state::InstallState;
use common::encoding::format_sha256;
use common::format::untrusted_text_limits::sanitize_name;
use model::install_marker::InstallMarker;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Number of hexadecimal digits of a digest that are displayed, and with which the operator confirms a marker.
pub const SHORT_DIGEST_DIGITS: usize = 16;

/// Content of an install marker that the server has not verified.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct WaitingMarker {
    /// Id of the image.
    pub image: String,
    /// Time of the installation according to the machine's clock, RFC 3339 in UTC.
    pub time: String,
    /// Serial numbers of the disks in the marker. A disk without a serial number is represented by its device path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<String>,
    /// `sha256:HEX` of the whole marker; empty if the server is of an earlier version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
}

impl WaitingMarker {
    /// Returns the description of the marker.
    pub fn from_marker(marker: &InstallMarker) -> WaitingMarker {
        let name = |serial: &str, device: &str| if serial.is_empty() { device.to_owned() } else { serial.to_owned() };
        WaitingMarker {
            image: marker.image.clone(),
            time: marker.time.clone(),
            disks: marker.disks.iter().map(|disk| name(&disk.serial, &disk.device)).collect(),
            digest: format_sha256(serde_json::to_vec(marker).unwrap_or_default()),
        }
    }

    /// Returns the first digits of the digest; `None` if the server is of an earlier version.
    pub fn short_digest(&self) -> Option<&str> {
        self.digest.strip_prefix("sha256:")?.get(..SHORT_DIGEST_DIGITS)
    }
}

impl fmt::Display for WaitingMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disks = if self.disks.is_empty() { "no disks".to_owned() } else { self.disks.join(", ") };
        let [image, time, disks] = [&self.image, &self.time, &disks].map(|text| sanitize_name(text));
        write!(f, "image {image}, installed at {time} on {disks}, digest {digest}", digest = self.digest)
    }
}

/// Install marker that the operator has seen before the adoption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfirmedMarker {
    /// The machine had not reported a marker.
    Absent,
    /// [`WaitingMarker::digest`] of the marker.
    Digest(String),
}

/// Returns the reason why the adoption must not be recorded: the machine's install marker is not the one that the
/// operator has seen. A repeated adoption has no effect, so it is accepted with the adopted marker and without a
/// marker.
pub(crate) fn explain_other_marker(
    install_state: &InstallState,
    machine: &str,
    confirmed: &ConfirmedMarker,
) -> Option<String> {
    let present = if install_state.adopted { &install_state.adopted_marker } else { &install_state.waits };
    let remedy = "compare it with the machine's disks, and run `drophammer machine adopt --waiting` again";
    match (confirmed, present.as_ref().map(WaitingMarker::from_marker)) {
        (ConfirmedMarker::Absent, _) if install_state.adopted => None,
        (ConfirmedMarker::Absent, None) => None,
        (ConfirmedMarker::Digest(digest), Some(present)) if present.digest == *digest => None,
        (ConfirmedMarker::Absent, Some(present)) => {
            Some(format!("machine {machine} has reported an install marker in the meantime ({present}): {remedy}"))
        }
        (ConfirmedMarker::Digest(digest), Some(present)) => Some(format!(
            "the install marker of machine {machine} has changed since it was listed with digest {digest}: it is now of \
             {present}; {remedy}"
        )),
        (ConfirmedMarker::Digest(digest), None) => Some(format!(
            "machine {machine} no longer waits with the install marker that was listed with digest {digest}: run \
             `drophammer machine adopt --waiting` again"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::install_marker::RecordedDisk;

    fn marker(image: &str, serial: &str) -> InstallMarker {
        let disk = RecordedDisk { device: "/dev/sda".to_owned(), serial: serial.to_owned(), ..RecordedDisk::default() };
        InstallMarker { image: image.to_owned(), disks: vec![disk], ..InstallMarker::default() }
    }

    #[test]
    fn adoption_is_refused_if_the_marker_or_its_disks_have_changed() {
        let shown = marker("i1", "S1");
        let digest = ConfirmedMarker::Digest(WaitingMarker::from_marker(&shown).digest);
        let explain = |waits: Option<InstallMarker>, confirmed: &ConfirmedMarker| {
            explain_other_marker(&InstallState { waits, ..InstallState::default() }, "m", confirmed)
        };
        assert_eq!(explain(Some(shown), &digest), None);
        assert_eq!(explain(None, &ConfirmedMarker::Absent), None);
        for (present, expected) in [
            (marker("i1", "S2"), "image i1, installed at  on S2"),
            (marker("i2", "S1"), "image i2, installed at  on S1"),
        ] {
            let why = explain(Some(present.clone()), &digest).unwrap();
            assert!(why.contains("has changed since it was listed") && why.contains(expected), "{why}");
            let why = explain(Some(present), &ConfirmedMarker::Absent).unwrap();
            assert!(why.contains("in the meantime") && why.contains(expected), "{why}");
        }
        assert!(explain(None, &digest).unwrap().contains("no longer waits"));
    }

    #[test]
    fn repeated_adoption_is_accepted() {
        let shown = marker("i1", "S1");
        let digest = WaitingMarker::from_marker(&shown).digest;
        let adopted = InstallState { adopted: true, adopted_marker: Some(shown), ..InstallState::default() };
        for confirmed in [ConfirmedMarker::Absent, ConfirmedMarker::Digest(digest)] {
            assert_eq!(explain_other_marker(&adopted, "m", &confirmed), None);
        }
        assert!(explain_other_marker(&adopted, "m", &ConfirmedMarker::Digest("sha256:0".to_owned())).is_some());
    }
}
