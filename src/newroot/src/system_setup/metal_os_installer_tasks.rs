//! Tasks of metal-stack's `os-installer` that drophammer performs if the image does not contain os-installer.

use super::metal_os_installer_files::{FIREWALL, write_machine_files};
use super::metal_os_installer_settings::task;
use super::{LogSink, TargetProperties, metal_os_installer, metal_user};
use crate::NewRoot;
use common::error::{Context, Phase, Result};
use model::allocation::{ServerKind, normalize_servers};
use operations::{FinishInputs, RequestedNetwork};
use serde_json::Value;
use time::OffsetDateTime;

const RESOLV_CONF: &str = "/etc/resolv.conf";
const TIMESYNCD: &str = "/etc/systemd/timesyncd.conf";
const CHRONY: [&str; 2] = ["/etc/chrony/chrony.conf", "/etc/chrony.conf"];
const UNCONFIGURED_FIREWALL_WARNING: &str = "WARNING: this machine is a firewall, but its routing, rules and services are not configured, because the image does not contain os-installer";

/// Performs the tasks of os-installer that are specific to metal-stack's images.
///
/// # Errors
/// Returns an error if a file cannot be read or written.
pub(crate) fn perform_os_installer_tasks(
    root: &NewRoot,
    finishing: &FinishInputs,
    tree: &TargetProperties,
    now: OffsetDateTime,
    say: LogSink,
) -> Result<()> {
    let (files, overrides) = (&*finishing.files, tree.overrides);
    let allocation = &files.assigned.allocation;
    if overrides.is_task_enabled(task::PERSIST) {
        write_machine_files(root, files, tree.root_uuid, "")?;
    }
    metal_os_installer::write_lvm_settings(root)?;
    let name_servers = server_names(ServerKind::Dns, &allocation.dns_servers);
    let is_described = matches!(finishing.network, RequestedNetwork::Described(_));
    if !is_described && !name_servers.is_empty() && overrides.is_task_enabled(task::RESOLV_CONF) {
        let lines: String = name_servers.iter().map(|ip| format!("nameserver {ip}\n")).collect();
        root.write_file(RESOLV_CONF, 0o644, lines.as_bytes())?;
    }
    let time_servers = server_names(ServerKind::Ntp, &allocation.ntp_servers).join(" ");
    if !time_servers.is_empty() && allocation.role != FIREWALL && overrides.is_task_enabled(task::NTP) {
        write_ntp(root, &time_servers)?;
    }
    if overrides.is_task_enabled(task::USER) {
        metal_user::create_metal_user(root, now, &|line| say(line))?;
    }
    if allocation.role == FIREWALL {
        say(UNCONFIGURED_FIREWALL_WARNING);
    }
    Ok(())
}

/// Returns the names of the servers in a list; empty if the list cannot be parsed. If drophammer itself finishes the
/// image, the list can be parsed, because the planner has already checked it.
fn server_names(kind: ServerKind, list: &Value) -> Vec<String> {
    let servers = normalize_servers(kind, list).unwrap_or_default();
    let names = servers.as_array().into_iter().flatten().filter_map(|server| server.get(kind.key())?.as_str());
    names.map(str::to_owned).collect()
}

/// Configures the image's NTP client to use these servers. If the image contains chrony, configures chrony and removes
/// its previous servers. Otherwise, configures systemd-timesyncd.
fn write_ntp(root: &NewRoot, servers: &str) -> Result<()> {
    let Some(path) = CHRONY.into_iter().find(|path| root.path_exists(path)) else {
        return root.write_file(TIMESYNCD, 0o644, format!("[Time]\nNTP={servers}\n").as_bytes());
    };
    let text = root.read_text(path).context(Phase::Target, || format!("read the image's {path}"))?;
    let is_source =
        |line: &&str| ["server ", "pool ", "sourcedir "].iter().any(|word| line.trim_start().starts_with(word));
    let preserved: String = text.lines().filter(|line| !is_source(line)).map(|line| format!("{line}\n")).collect();
    let own: String = servers.split(' ').map(|server| format!("server {server} iburst\n")).collect();
    root.rewrite_file(path, 0o644, (own + &preserved).as_bytes())
}
