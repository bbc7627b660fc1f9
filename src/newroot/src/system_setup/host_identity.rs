//! Properties that must be unique to each machine: host name, machine-id, SSH host keys, random seed.

use super::distribution::Distribution;
use super::metal_os_installer_settings::{OsInstallerSettings, task};
use super::preserved_esps::PreservedEsps;
use crate::NewRoot;
use crate::chroot::TargetRunner;
use common::error::{Context, Phase, Result};
use std::io::ErrorKind;
use std::time::Duration;

const HOSTNAME: &str = "/etc/hostname";
const HOSTS: &str = "/etc/hosts";
const MACHINE_ID: &str = "/etc/machine-id";
const SSH: &str = "/etc/ssh";
const SSH_KEYGEN: &str = "/usr/bin/ssh-keygen";

/// Copy of the machine-id that D-Bus reads. If the copy is a symlink to /etc/machine-id, it is preserved.
const DBUS_MACHINE_ID: &str = "/var/lib/dbus/machine-id";

/// Random seeds of systemd, systemd-boot, sysvinit and OpenRC.
const SEEDS: [&str; 8] = [
    "/var/lib/systemd/random-seed",
    "/var/lib/random-seed",
    "/var/lib/urandom/random-seed",
    "/var/lib/misc/random-seed",
    "/var/lib/seedrng/seed.credit",
    "/boot/loader/random-seed",
    "/boot/efi/loader/random-seed",
    "/efi/loader/random-seed",
];

/// File whose presence shows systemd that it runs in a container.
const DOCKER: &str = "/.dockerenv";

const KEYGEN_DEADLINE: Duration = Duration::from_secs(120);

/// Removes the identity of the machine on which the image was built, and sets the host name if `hostname` is not empty.
/// Random seeds on preserved EFI system partitions belong to other systems, and are preserved.
///
/// # Errors
/// Returns an error if a file cannot be read, written or removed.
pub(crate) fn reset_identity(
    root: &NewRoot,
    hostname: &str,
    overrides: &OsInstallerSettings,
    preserved: &PreservedEsps,
) -> Result<()> {
    if !hostname.is_empty() && overrides.is_task_enabled(task::HOSTNAME) {
        root.rewrite_file(HOSTNAME, 0o644, format!("{hostname}\n").as_bytes())?;
    }
    if !hostname.is_empty() && overrides.is_task_enabled(task::HOSTS) {
        let hosts = match root.read_text(HOSTS) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            hosts => hosts.context(Phase::Target, || format!("read the image's {HOSTS}"))?,
        };
        root.rewrite_file(HOSTS, 0o644, add_host_name(&hosts, hostname).as_bytes())?;
    }
    // The file is emptied and not removed. At the first boot, systemd generates an ID; if the root is read-only,
    // systemd needs the file as a mount point for this ID.
    let forgets = overrides.is_task_enabled(task::MACHINE_ID);
    if forgets && (root.path_exists(MACHINE_ID) || root.path_exists("/usr/lib/systemd/systemd")) {
        root.rewrite_file(MACHINE_ID, 0o444, b"")?;
    }
    if forgets && root.read_text(DBUS_MACHINE_ID).is_ok_and(|id| !id.trim().is_empty()) {
        root.remove(DBUS_MACHINE_ID)?;
    }
    root.remove(DOCKER)?;
    SEEDS.into_iter().filter(|seed| !preserved.contains(seed)).try_for_each(|seed| root.remove(seed))?;
    list_host_keys(root).iter().try_for_each(|key| root.remove(key))
}

/// Generates the missing SSH host keys of the target.
///
/// # Errors
/// Returns an error if `ssh-keygen` of the image fails.
pub(crate) fn generate_host_keys(root: &NewRoot, run: &dyn TargetRunner) -> Result<()> {
    let ran = run.run_program(SSH_KEYGEN, &["-A"], KEYGEN_DEADLINE);
    ran.context(Phase::Target, || "generate the installed system's SSH host keys")?;
    root.sync_dir(SSH)
}

/// Returns whether the target has an SSH server but no service that generates host keys at boot, such as cloud-init.
pub(crate) fn needs_host_keys(root: &NewRoot, distribution: &Distribution, has_cloud_init: bool) -> bool {
    let has_server = root.path_exists("/usr/sbin/sshd") && root.path_exists(SSH_KEYGEN);
    let made = distribution.family.host_key_services.iter().any(|service| root.path_exists(service));
    has_server && !made && !has_cloud_init
}

fn list_host_keys(root: &NewRoot) -> Vec<String> {
    let names = root.list_names(SSH).unwrap_or_default();
    let is_key = |name: &str| {
        let name = name.strip_suffix(".pub").unwrap_or(name);
        name.starts_with("ssh_host_") && name.ends_with("_key")
    };
    names.into_iter().filter(|name| is_key(name)).map(|name| format!("{SSH}/{name}")).collect()
}

/// Adds a line for the host name to the text of /etc/hosts, with the address 127.0.1.1, which is reachable without a
/// network. Other lines are preserved.
fn add_host_name(hosts: &str, hostname: &str) -> String {
    let addresses: Vec<&str> = hosts.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let mut text = String::new();
    for (address, names) in [("127.0.0.1", "localhost"), ("::1", "localhost ip6-localhost ip6-loopback")] {
        if !addresses.contains(&address) {
            text.push_str(&format!("{address}\t{names}\n"));
        }
    }
    let others = hosts.lines().filter(|line| line.split_whitespace().next() != Some("127.0.1.1"));
    others.for_each(|line| text.push_str(&format!("{line}\n")));
    let short = hostname.split('.').next().filter(|short| *short != hostname);
    let names = short.map_or(hostname.to_owned(), |short| format!("{hostname} {short}"));
    text + &format!("127.0.1.1\t{names}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system_setup::preserved_esps;
    use crate::system_setup::testing::{names, tree};
    use std::os::unix::fs::symlink;

    #[test]
    fn identity_of_the_image_is_removed() {
        let (dir, root) = tree(&[
            ("etc/hostname", "builder\n"),
            ("etc/machine-id", "b08dfa6083e7567a1921a715000001fb\n"),
            ("etc/ssh/ssh_host_rsa_key", "secret"),
            ("etc/ssh/ssh_host_rsa_key.pub", "public"),
            ("etc/ssh/ssh_host_keys.md", "of a person"),
            ("etc/ssh/sshd_config", ""),
            ("var/lib/systemd/random-seed", "seed"),
            ("boot/efi/loader/random-seed", "seed"),
        ]);
        std::fs::create_dir_all(dir.path().join("var/lib/dbus")).unwrap();
        symlink("/etc/machine-id", dir.path().join("var/lib/dbus/machine-id")).unwrap();
        let overrides = OsInstallerSettings::default();
        let on_esp = "/boot/efi/loader/random-seed";
        reset_identity(&root, "web-1.example.org", &overrides, &preserved_esps::tests::at_boot_efi()).unwrap();
        assert!(root.path_exists(on_esp), "a seed on a preserved partition");
        reset_identity(&root, "web-1.example.org", &overrides, &PreservedEsps::default()).unwrap();
        assert_eq!(root.read_text(HOSTNAME).unwrap(), "web-1.example.org\n");
        assert_eq!(root.read_text(MACHINE_ID).unwrap(), "");
        assert_eq!(names(&root, SSH), ["ssh_host_keys.md", "sshd_config"]);
        assert!(!root.path_exists("/var/lib/systemd/random-seed") && !root.path_exists(on_esp));
        assert!(root.path_exists(DBUS_MACHINE_ID));
        // systemd would restore the old ID from a copy.
        root.write_file(DBUS_MACHINE_ID, 0o644, b"b08dfa6083e7567a1921a715000001fb\n").unwrap();
        reset_identity(&root, "", &overrides, &PreservedEsps::default()).unwrap();
        assert!(!root.path_exists(DBUS_MACHINE_ID));
        assert_eq!(root.read_text(HOSTNAME).unwrap(), "web-1.example.org\n");
    }

    #[test]
    fn hosts_file_keeps_existing_entries() {
        let usual = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";
        for (own, name, expected) in [
            ("", "web-1", format!("{usual}127.0.1.1\tweb-1\n")),
            ("", "web-1.example.org", format!("{usual}127.0.1.1\tweb-1.example.org web-1\n")),
            (
                "127.0.0.1 localhost\n127.0.1.1 builder\n::1 localhost\n10.0.0.1 mirror # ours",
                "a",
                "127.0.0.1 localhost\n::1 localhost\n10.0.0.1 mirror # ours\n127.0.1.1\ta\n".to_owned(),
            ),
        ] {
            assert_eq!(add_host_name(own, name), expected);
        }
    }

    #[test]
    fn host_keys_are_generated_if_no_boot_service_does() {
        let sshd = [("usr/sbin/sshd", ""), ("usr/bin/ssh-keygen", "")];
        let needs = |os: &str, service: &str, has_cloud_init| {
            let (_dir, root) = tree(&[&sshd[..], &[("etc/os-release", os), (service, "")]].concat());
            needs_host_keys(&root, &Distribution::detect(&root), has_cloud_init)
        };
        assert!(needs("ID=debian\n", "srv/none", false));
        assert!(!needs("ID=debian\n", "srv/none", true));
        assert!(!needs("ID=fedora\n", "usr/lib/systemd/system/sshd-keygen@.service", false));
        assert!(needs("ID=fedora\n", "srv/none", false));
        let (_dir, root) = tree(&[("etc/os-release", "ID=debian\n")]);
        assert!(!needs_host_keys(&root, &Distribution::detect(&root), false));
    }
}
