//! Files and services of the image that would configure the network, although another network manager was selected.

use super::super::file_search::{find_matching, is_file};
use crate::NewRoot;
use common::error::Result;
use linux::safe_open::{self, PathRestriction};
use netconfig::{DisplacedFiles, NetworkBackend};
use nix::fcntl::{OFlag, readlinkat};

const INTERFACES: &str = "/etc/network/interfaces";
const ONLY_LOOPBACK: &str = "# drophammer removed the image's interfaces: another program configures the network.\n\
                             auto lo\niface lo inet loopback\n";

/// Directories from which udev reads `.link` files, in addition to the directories below `/run`.
const LINK_FOLDERS: [&str; 4] =
    ["/etc/systemd/network", "/usr/local/lib/systemd/network", "/usr/lib/systemd/network", "/lib/systemd/network"];

/// Directory of systemd's links, whose subdirectories contain the links to enabled units.
const UNITS: &str = "/etc/systemd/system";
/// Directory of OpenRC, whose subdirectories contain the links to enabled init scripts.
const RUNLEVELS: &str = "/etc/runlevels";

/// Files of netplan that packages install, such as the file that selects the renderer.
const NETPLAN_VENDOR_FILES: [&str; 2] = ["/usr/lib/netplan/*.yaml", "/lib/netplan/*.yaml"];

/// Returns the configuration files of the image for this network manager.
pub(super) fn list_image_files(root: &NewRoot, system: NetworkBackend) -> Vec<String> {
    system.displaced_files().iter().flat_map(|files| list_displaced(root, files)).collect()
}

fn list_displaced(root: &NewRoot, files: &DisplacedFiles) -> Vec<String> {
    list_matching(root, files.folder, &|name| files.matches(name))
}

fn list_matching(root: &NewRoot, folder: &str, matches: &dyn Fn(&str) -> bool) -> Vec<String> {
    let names = root.list_names(folder).unwrap_or_default().into_iter().filter(|name| matches(name));
    names.map(|name| format!("{folder}/{name}")).filter(|path| is_file(root, path)).collect()
}

/// Removes the configuration of unused network managers, which would configure the same NICs if their services are
/// started. For example, if a NIC is in ifupdown's file, Debian's NetworkManager ignores this NIC, and udev may start
/// `ifup` for it.
pub(super) fn remove_files_of_others(root: &NewRoot, system: NetworkBackend, say: &dyn Fn(&str)) -> Result<()> {
    let mut files: Vec<String> =
        system.displaced_files_of_others().flat_map(|files| list_displaced(root, &files)).collect();
    files.iter().try_for_each(|file| root.remove(file))?;
    if system != NetworkBackend::Ifupdown && root.read_text(INTERFACES).is_ok_and(|text| configures_interfaces(&text)) {
        root.rewrite_file(INTERFACES, 0o644, ONLY_LOOPBACK.as_bytes())?;
        files.push(INTERFACES.to_owned());
    }
    log_removed_files(&files, "configuration for other network managers", say);
    Ok(())
}

fn log_removed_files(files: &[String], what: &str, say: &dyn Fn(&str)) {
    if !files.is_empty() {
        say(&format!("removed the image's {what}: {files}", files = files.join(", ")));
    }
}

/// Returns whether a file of ifupdown configures an interface other than the loopback interface.
fn configures_interfaces(text: &str) -> bool {
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    words.into_iter().any(|words| matches!(words.as_slice(), ["iface", name, ..] if *name != "lo"))
}

/// Removes `.link` files of the image that udev would apply instead of the `.link` files of this network manager.
pub(super) fn remove_link_files(root: &NewRoot, system: NetworkBackend, say: &dyn Fn(&str)) -> Result<()> {
    let mut removed = Vec::new();
    // The files of each directory are removed before the next directory is listed, because `/lib` may be a link to
    // `/usr/lib`.
    for folder in LINK_FOLDERS {
        let files = list_matching(root, folder, &|name| system.is_overridden_by_link_file(name));
        files.iter().try_for_each(|file| root.remove(file))?;
        removed.extend(files);
    }
    log_removed_files(
        &removed,
        ".link files, which would take precedence over the .link files of the selected network manager",
        say,
    );
    Ok(())
}

/// Disables the services of other network managers, as `systemctl disable` and `rc-update del` do. If cloud-init is
/// selected, no service is disabled, because cloud-init only writes files for one of these network managers.
pub(super) fn disable_services_of_others(root: &NewRoot, system: NetworkBackend, say: &dyn Fn(&str)) -> Result<()> {
    if system == NetworkBackend::CloudInit {
        return Ok(());
    }
    let vendor_files = NETPLAN_VENDOR_FILES.iter().flat_map(|pattern| find_matching(root, pattern));
    let vendor_files: Vec<String> = vendor_files.filter_map(|path| root.read_text(&path).ok()).collect();
    let running = system.running_manager(&vendor_files).name();
    let links: Vec<String> =
        list_enabling_links(root).into_iter().filter(|(_, name)| *name != running).map(|(path, _)| path).collect();
    links.iter().try_for_each(|link| root.remove(link))?;
    log_removed_files(&links, "links that enable other network managers", say);
    Ok(())
}

/// Unmasks this network manager's unit, because `systemctl enable` fails for a masked unit.
pub(super) fn remove_mask(root: &NewRoot, system: NetworkBackend, say: &dyn Fn(&str)) -> Result<()> {
    let unit = system.unit_name().map(|unit| format!("{UNITS}/{unit}"));
    let mask: Vec<String> = unit.into_iter().filter(|path| read_link(root, path).is_some_and(is_mask)).collect();
    mask.iter().try_for_each(|path| root.remove(path))?;
    log_removed_files(&mask, "link that masks the selected network manager", say);
    Ok(())
}

/// Returns the name of an unsupported network manager that the image starts at boot.
pub(super) fn find_enabled_unsupported(root: &NewRoot) -> Option<&'static str> {
    list_enabling_links(root).into_iter().map(|(_, name)| name).find(|name| netconfig::is_unsupported(name))
}

/// Returns the links that start network managers at boot, each with the name of the network manager. The name of the
/// link identifies the network manager. For an alias such as `network.service -> wicked.service`, the name of the
/// link's target identifies it.
fn list_enabling_links(root: &NewRoot) -> Vec<(String, &'static str)> {
    let subfolders = |folder: &str| {
        let names = root.list_names(folder).unwrap_or_default().into_iter();
        names.map(|name| format!("{folder}/{name}")).collect::<Vec<_>>()
    };
    let folders = [UNITS.to_owned()].into_iter().chain(subfolders(UNITS)).chain(subfolders(RUNLEVELS));
    let entries = folders.flat_map(|folder| subfolders(&folder));
    let manager = |path: &str| {
        let target = read_link(root, path).filter(|target| !is_mask(target))?;
        let names = [path, target.as_str()].map(|path| path.rsplit('/').next().unwrap_or_default());
        names.into_iter().find_map(netconfig::find_service_manager)
    };
    entries.filter_map(|path| manager(&path).map(|name| (path, name))).collect()
}

fn is_mask(target: impl AsRef<str>) -> bool {
    target.as_ref() == "/dev/null"
}

/// Returns the target of a symlink, or `None` for other files.
fn read_link(root: &NewRoot, path: &str) -> Option<String> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
    let link = safe_open::open_beneath(root.fd(), path, flags, PathRestriction::AsRoot).ok()?;
    readlinkat(&link, "").ok()?.into_string().ok()
}
