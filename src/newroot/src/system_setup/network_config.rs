//! Network configuration of the target, written for the network manager that the image contains.

mod cloud_init_removal;
mod competing_network_files;

use super::file_search::find_matching;
use crate::NewRoot;
use crate::chroot::TargetRunner;
use common::error::{Context, Error, Phase, Result};
use model::inventory::Nic;
use netconfig::{NetworkBackend, NetworkConfig, RenderedFile};
use operations::RequestedNetwork;
use std::time::Duration;

const ENABLE_DEADLINE: Duration = Duration::from_secs(60);

/// Routing daemon. metal-stack images that contain FRR configure `networks` of the allocation themselves.
const FRR: &str = "/usr/lib/frr/bgpd";
const UNROUTED_WARNING: &str = "WARNING: the image contains FRR, which drophammer does not configure: the image must configure the allocation's `networks` at its first boot";

/// Programs that rename NICs. In an image without any of them, such as Alpine, NICs have the kernel's names.
const UDEV: [&str; 3] = ["/usr/lib/systemd/systemd-udevd", "/lib/systemd/systemd-udevd", "/sbin/udevd"];

/// Paths of systemd's shared library, which exists in version 231 and later. Debian 12 and later use the third path, in
/// which the first `*` matches the architecture.
const SYSTEMD_LIBRARIES: [&str; 4] = [
    "/usr/lib/systemd/libsystemd-shared-*",
    "/lib/systemd/libsystemd-shared-*",
    "/usr/lib/*/systemd/libsystemd-shared-*",
    "/usr/lib64/systemd/libsystemd-shared-*",
];

const SUPPORTED: &str = "netplan, NetworkManager, ifupdown, systemd-networkd or cloud-init";

const SYSTEMCTL: [&str; 2] = ["/usr/bin/systemctl", "/bin/systemctl"];
const RC_UPDATE: [&str; 2] = ["/sbin/rc-update", "/usr/sbin/rc-update"];

/// Command that enables the network at boot: a program of the target and its arguments.
type EnableCommand = (&'static str, Vec<&'static str>);

/// Writes the network configuration, and removes the image's own network configuration. Returns the command that
/// enables the network at boot, if one is required.
///
/// # Errors
/// Returns an error if a file cannot be written or removed.
pub(crate) fn write_network_config(
    root: &NewRoot,
    wanted: &RequestedNetwork,
    nics: &[Nic],
    say: &dyn Fn(&str),
) -> Result<Option<EnableCommand>> {
    let has = |path: &str| root.path_exists(path);
    let Some(system) = NetworkBackend::detect(&has) else {
        return refuse_unsupported(netconfig::find_unsupported(&has), wanted, say).map(|()| None);
    };
    let Some(network) = choose_network(root, system, wanted, nics, say) else { return Ok(None) };
    let has_one_of = |paths: &[&str]| paths.iter().any(|path| has(path));
    let names_nothing = system == NetworkBackend::Ifupdown && !has_one_of(&UDEV);
    let network = if names_nothing { network.with_kernel_names(nics) } else { network };
    for file in competing_network_files::list_image_files(root, system) {
        root.remove(&file)?;
    }
    if *wanted != RequestedNetwork::Unsaid {
        competing_network_files::remove_files_of_others(root, system, say)?;
        competing_network_files::disable_services_of_others(root, system, say)?;
    }
    competing_network_files::remove_mask(root, system, say)?;
    if network.has_link_files(system, nics) {
        competing_network_files::remove_link_files(root, system, say)?;
    }
    let systemd = read_systemd_version(root);
    let cloud_files = root.list_names(netconfig::CLOUD_FOLDER).unwrap_or_default();
    let additional = network.render_additional_files(system, &has, &cloud_files);
    let files = network.render(system, nics).into_iter().chain(additional);
    for RenderedFile { path, mode, content } in files.map(|file| file.for_systemd(systemd)) {
        root.write_file(&path, mode, content.as_bytes())?;
    }
    say(&format!("the network is configured by {system}", system = system.name()));
    let by_systemd = |unit| ("systemctl", vec!["enable", unit]);
    let by_openrc = || (system == NetworkBackend::Ifupdown).then(|| ("rc-update", vec!["add", "networking", "boot"]));
    Ok(match has_one_of(&SYSTEMCTL) {
        true => system.unit_name().map(by_systemd),
        false => by_openrc().filter(|_| has_one_of(&RC_UPDATE)),
    })
}

/// Returns an error if the image uses the unsupported network manager `name` and the allocation describes the network.
/// Otherwise only logs a warning: that `name` is not supported, or, if `name` is `None`, that the image contains no
/// supported network manager.
fn refuse_unsupported(name: Option<&str>, wanted: &RequestedNetwork, say: &dyn Fn(&str)) -> Result<()> {
    let Some(name) = name else {
        say(&format!("WARNING: the image does not contain a supported network manager ({SUPPORTED})"));
        return Ok(());
    };
    let why = format!("the image configures its network with {name}, which drophammer does not support");
    if matches!(wanted, RequestedNetwork::Described(_)) {
        let remedy = format!("use an image with {SUPPORTED}, or remove `network` from the allocation");
        return Err(Error::new(Phase::Target, format!("{why}: {remedy}")));
    }
    say(&format!("WARNING: {why}: the image's network configuration is preserved"));
    Ok(())
}

/// Writes the network configuration of a raw image for cloud-init, if a configuration is requested. Settings of the
/// image that would override this configuration are removed.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub(crate) fn write_cloud_init_network(
    root: &NewRoot,
    wanted: &RequestedNetwork,
    nics: &[Nic],
    say: &dyn Fn(&str),
) -> Result<()> {
    let RequestedNetwork::Described(network) = wanted else { return Ok(()) };
    cloud_init_removal::remove_network_settings(root, say)?;
    let files = network.render(NetworkBackend::CloudInit, nics).into_iter();
    files.into_iter().try_for_each(|file| root.write_file(&file.path, file.mode, file.content.as_bytes()))
}

/// Enables the network at boot.
///
/// # Errors
/// Returns an error if the program of the image fails.
pub(crate) fn enable_network((program, arguments): &EnableCommand, run: &dyn TargetRunner) -> Result<()> {
    let ran = run.run_program(program, arguments, ENABLE_DEADLINE);
    ran.map(drop).context(Phase::Target, || "enable the network at boot".to_owned())
}

/// Returns the network to configure, or `None` to preserve the image's configuration. If no network is requested, the
/// image's configuration is preserved if it exists, or if the image enables an unsupported network manager. Otherwise,
/// all NICs use DHCP.
fn choose_network(
    root: &NewRoot,
    system: NetworkBackend,
    wanted: &RequestedNetwork,
    nics: &[Nic],
    say: &dyn Fn(&str),
) -> Option<NetworkConfig> {
    let mut preserved = system.name();
    match wanted {
        RequestedNetwork::Described(network) => return Some(network.clone()),
        RequestedNetwork::Announced(network) if !root.path_exists(FRR) => return Some(network.clone()),
        RequestedNetwork::Announced(_) => say(UNROUTED_WARNING),
        RequestedNetwork::Unsaid => match competing_network_files::find_enabled_unsupported(root) {
            Some(name) => preserved = name,
            None if competing_network_files::list_image_files(root, system).is_empty() => {
                return Some(NetworkConfig::dhcp_on_all(nics));
            }
            None => {}
        },
    }
    say(&format!("the image's network configuration for {preserved} is preserved"));
    None
}

/// Reads the version of systemd from the name of its library, such as `libsystemd-shared-239.so`. Returns `None` for
/// systemd before version 231, which does not have this library.
fn read_systemd_version(root: &NewRoot) -> Option<u32> {
    let paths = SYSTEMD_LIBRARIES.iter().flat_map(|pattern| find_matching(root, pattern));
    let versions = paths.filter_map(|path| {
        let (_, rest) = path.rsplit_once("/libsystemd-shared-")?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    });
    versions.max()
}

#[cfg(test)]
mod tests;
