//! Machine file for a fleet without a server. The file contains `succeeded`, so it never causes an installation: a
//! reinstall must be ordered in the file.

use super::foreign_system::ForeignSystem;
use common::error::{Context, Phase, Result};
use common::output::to_json;
use layout_discovery::DiscoveredLayout;
use model::allocation::AssignedMachine;
use model::install_marker::InstallMarker;
use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Writes the machine file to a new file.
///
/// # Errors
/// Returns an error if the file exists already or cannot be written.
pub(crate) fn write_machine_file(
    path: &Path,
    system: &ForeignSystem,
    found: &DiscoveredLayout,
    marker: &InstallMarker,
) -> Result<()> {
    let what = || format!("write the machine file {}", path.display());
    let document = json!({
        "id": system.machine,
        "name": system.name,
        "allocation": {
            "allocationuuid": marker.allocation,
            "hostname": system.name,
            "image": {"id": marker.image, "url": ""},
            "filesystemlayout": found.layout,
            "succeeded": true,
        },
    });
    // The document is parsed as the agent will parse the file, so that a file that the agent rejects is never written.
    serde_json::from_value::<AssignedMachine>(document.clone()).context(Phase::Settings, what)?;
    let text = to_json(&document)? + "\n";
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let write = |mut file: std::fs::File| file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    file.and_then(write).context(Phase::Settings, what)
}
