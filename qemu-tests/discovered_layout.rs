//! Layout that `drophammer layout from-machine` derives from the inventory of a waiting machine.

use crate::host_tools::{Result, run_tool};
use model::layout::{Layout, read_yaml};
use std::path::Path;
use std::process::Stdio;

/// Checks that the layout of the waiting machine is the layout of the scenario.
///
/// # Errors
/// Fails if the layouts differ, or a reinstall with the derived layout would be refused.
pub fn check_discovered_layout(port: u16, state: &Path, machine: &str, scenario_layout: &str) -> Result<()> {
    let expected = parse_layout(scenario_layout)?;
    let (server, token) = (format!("http://127.0.0.1:{port}"), state.join("operator.token"));
    let token = token.to_string_lossy();
    let program = env!("CARGO_BIN_EXE_drophammer");
    let from: [&str; 7] = [program, "layout", "from-machine", "--machine", machine, "--id", &expected.id];
    let printed = run_tool(&[&from[..], &["--server", &server, "--token-file", &token]].concat(), Stdio::null())?;
    let printed = String::from_utf8_lossy(&printed);
    match parse_layout(&printed)? == expected {
        true => Ok(()),
        false => Err(format!("the derived layout differs from the scenario's layout:\n{printed}")),
    }
}

/// Parses a layout, and sorts its filesystems by their mount points: their order has no meaning, and depends on the
/// numbers that the kernel assigns to arrays.
fn parse_layout(text: &str) -> Result<Layout> {
    let mut layout = read_yaml(text).map_err(|problems| format!("the layout: {problems:?}"))?.layout;
    layout.filesystems.sort_by_key(|filesystem| (filesystem.path.clone(), filesystem.device.to_string()));
    Ok(layout)
}
