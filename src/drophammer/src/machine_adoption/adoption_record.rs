//! Record of an adoption, stored next to the install marker. `drophammer adopt --undo` removes exactly what the
//! record names.

use super::foreign_system::ForeignSystem;
use common::encoding::format_sha256;
use common::error::{Context, Phase, Result};
use common::output::to_json;
use model::install_marker::InstallMarker;
use serde::{Deserialize, Serialize};

/// Objects that `drophammer adopt` has created.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AdoptionRecord {
    /// Id of the machine.
    pub machine: String,
    /// Name of the machine.
    pub name: String,
    /// Id of the allocation.
    pub allocation: String,
    /// `sha256:HEX` of the install marker.
    pub marker_digest: String,
    /// True if the directory of the marker was created.
    #[serde(default)]
    pub created_directory: bool,
    /// URL of the server to which the registration was sent; `None` for a fleet without a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Id of the layout.
    pub layout: String,
    /// True if the layout was created at the server.
    #[serde(default)]
    pub created_layout: bool,
}

impl AdoptionRecord {
    /// Returns the record of a marker that is about to be written.
    pub(crate) fn new(system: &ForeignSystem, marker: &InstallMarker) -> Result<AdoptionRecord> {
        Ok(AdoptionRecord {
            machine: marker.machine.clone(),
            name: system.name.clone(),
            allocation: marker.allocation.clone(),
            marker_digest: format_sha256(format_marker(marker)?),
            layout: marker.layout.clone(),
            ..AdoptionRecord::default()
        })
    }

    pub(crate) fn to_text(&self) -> Result<String> {
        Ok(to_json(self)? + "\n")
    }
}

/// Returns the content of the marker file, in the format that installations write.
pub(crate) fn format_marker(marker: &InstallMarker) -> Result<String> {
    let text = serde_json::to_string_pretty(marker).context(Phase::Settings, || "format the install marker")?;
    Ok(text + "\n")
}
