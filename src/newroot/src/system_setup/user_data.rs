//! Passes the allocation's user data to cloud-init or Ignition in the image.

use crate::NewRoot;
use crate::chroot::TargetRunner;
use common::error::{Context, Phase, Result};
use common::yaml;
use marked_yaml::LoaderOptions;
use operations::MachineFiles;
use serde_json::{Value, json};
use std::time::Duration;

/// Directory of the root filesystem in which cloud-init finds the seed of its data source NoCloud.
pub(crate) const SEED: &str = "/var/lib/cloud/seed/nocloud";
const CLOUD_INIT: [&str; 2] = ["/usr/bin/cloud-init", "/usr/local/bin/cloud-init"];
const CLOUD_CONFIG: &str = "/etc/cloud/cloud.cfg";
const DISABLED: &str = "/etc/cloud/cloud-init.disabled";

/// Configuration file that restricts cloud-init to the data source NoCloud. Without it, cloud-init probes the data
/// sources of all clouds, some of them over networks that are unavailable to this machine.
const SOURCES: (&str, &str) = ("/etc/cloud/cloud.cfg.d/99_drophammer.cfg", "datasource_list: [NoCloud, None]\n");

/// Paths of Ignition in distributions and metal-stack's images.
const IGNITION: [&str; 4] = [
    "/usr/bin/ignition",
    "/usr/sbin/ignition",
    "/usr/local/bin/ignition",
    "/usr/lib/dracut/modules.d/30ignition/ignition",
];
const IGNITION_CONFIG: &str = "/config.ign";
/// File in which Ignition lists services to enable.
const PRESETS: &str = "/etc/systemd/system-preset/20-ignition.preset";
const IGNITION_DEADLINE: Duration = Duration::from_secs(5 * 60);

/// Mode of files with passwords and keys.
const SECRET_FILE_MODE: u32 = 0o600;

pub(crate) fn has_cloud_init(root: &NewRoot) -> bool {
    CLOUD_INIT.into_iter().any(|path| root.path_exists(path))
}

/// Returns the programs of the target that process user data.
pub(crate) fn find_readers(root: &NewRoot) -> Vec<&'static str> {
    let found =
        [&CLOUD_INIT[..], &IGNITION].into_iter().filter_map(|paths| paths.iter().find(|path| root.path_exists(path)));
    found.copied().collect()
}

/// Returns the name of cloud-init's default user according to the image's configuration.
pub(crate) fn read_cloud_user(root: &NewRoot) -> Option<String> {
    let text = root.read_text(CLOUD_CONFIG).ok().filter(|_| has_cloud_init(root))?;
    let yaml = yaml::read_document(&text, LoaderOptions::default()).ok()?;
    let user = yaml.as_mapping()?.get_mapping("system_info")?.get_mapping("default_user")?;
    user.get_scalar("name").map(|name| name.as_str().to_owned())
}

/// Writes the seed for cloud-init, including the owner's keys, if the image contains cloud-init.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub(crate) fn write_cloud_init_seed(
    root: &NewRoot,
    files: &MachineFiles,
    user_data: &[u8],
    say: &dyn Fn(&str),
) -> Result<()> {
    if !has_cloud_init(root) {
        return Ok(());
    }
    let nothing = b"#cloud-config\n{}\n".as_slice();
    let for_it = !user_data.is_empty() && !is_for_ignition(user_data);
    root.write_file(&format!("{SEED}/meta-data"), SECRET_FILE_MODE, format_meta_data(files).as_bytes())?;
    root.write_file(&format!("{SEED}/user-data"), SECRET_FILE_MODE, if for_it { user_data } else { nothing })?;
    root.write_file(SOURCES.0, 0o644, SOURCES.1.as_bytes())?;
    match root.path_exists(DISABLED) {
        true => say(&format!("WARNING: the image contains {DISABLED}, so cloud-init will not read its seed")),
        false => say(&format!("the cloud-init seed was written to {SEED}")),
    }
    Ok(())
}

/// Formats the metadata. Each reinstall gets a new instance ID, so that cloud-init ignores its old state on preserved
/// disks.
fn format_meta_data(files: &MachineFiles) -> String {
    let allocation = &files.assigned.allocation;
    let id = if allocation.id.is_empty() { &files.machine } else { &allocation.id };
    let id = allocation.order_id().map_or_else(|| id.clone(), |order| format!("{id}-{order}"));
    let entries = [
        ("instance-id", json!(id)),
        ("local-hostname", json!(allocation.hostname)),
        ("public-keys", json!(allocation.ssh_pub_keys)),
    ];
    let is_given = |value: &Value| value.as_str() != Some("");
    // The values are written as JSON, which is also valid YAML.
    entries.iter().filter(|(_, value)| is_given(value)).map(|(key, value)| format!("{key}: {value}\n")).collect()
}

/// Returns the path of Ignition in the image if the user data is intended for Ignition. Logs a warning if the image
/// does not contain the program for which the user data is intended.
pub(crate) fn find_ignition(root: &NewRoot, user_data: &[u8], say: &dyn Fn(&str)) -> Option<&'static str> {
    let program = IGNITION.into_iter().find(|path| root.path_exists(path));
    let unread = "the user data is in /etc/metal/userdata, but no program of the installed system reads it";
    match (user_data.is_empty(), is_for_ignition(user_data)) {
        (true, _) => None,
        (false, true) => {
            if program.is_none() {
                say(&format!("WARNING: the user data is for Ignition, which the image does not contain: {unread}"));
            }
            program
        }
        (false, false) => {
            if !has_cloud_init(root) {
                say(&format!("WARNING: the image does not contain cloud-init: {unread}"));
            }
            None
        }
    }
}

/// Runs the stages of Ignition that write files and users. A failure of Ignition is only logged, because the system
/// boots without these files, and its owner can log in to investigate.
///
/// # Errors
/// Returns an error if the configuration cannot be written.
pub(crate) fn run_ignition(
    root: &NewRoot,
    program: &str,
    user_data: &[u8],
    run: &dyn TargetRunner,
    say: &dyn Fn(&str),
) -> Result<()> {
    root.write_file(IGNITION_CONFIG, SECRET_FILE_MODE, user_data)?;
    let version = run.run_program(program, &["-version"], IGNITION_DEADLINE).map(|output| output.stdout);
    // Before version 2, the option `-platform` was called `-oem`, and there was no separate stage that fetches the
    // configuration.
    let is_old = version.as_ref().is_ok_and(|version| parse_major_version(version) == Some(0));
    let stages: &[&[&str]] = match is_old {
        true => &[&["-oem", "file", "-stage", "files", "-log-to-stdout"]],
        false => &[
            &["-platform", "file", "-stage", "fetch", "-log-to-stdout"],
            &["-platform", "file", "-stage", "files", "-log-to-stdout"],
        ],
    };
    let ran = version
        .map(drop)
        .and_then(|()| stages.iter().try_for_each(|args| run.run_program(program, args, IGNITION_DEADLINE).map(drop)));
    match ran {
        Ok(()) => {
            say("Ignition applied the user data");
            apply_presets(root, run, say);
        }
        Err(error) => say(&format!("WARNING: Ignition failed to apply the user data: {error}")),
    }
    root.remove(IGNITION_CONFIG).context(Phase::Target, || "remove the Ignition configuration")
}

/// Applies Ignition's presets now, because systemd would apply presets only at the first boot, and only in a system
/// without a machine-id.
fn apply_presets(root: &NewRoot, run: &dyn TargetRunner, say: &dyn Fn(&str)) {
    let presets = root.read_text(PRESETS).unwrap_or_default();
    let units = presets.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        ["enable", "disable"].contains(&words.next()?).then(|| words.next()).flatten()
    });
    let args: Vec<&str> = std::iter::once("preset").chain(units).collect();
    if let [_, _, ..] = args[..]
        && let Err(error) = run.run_program("systemctl", &args, IGNITION_DEADLINE)
    {
        say(&format!("WARNING: cannot enable all services of the user data: {error}"));
    }
}

/// Parses the major version of `Ignition v2.15.0` or `Ignition 0.36.2`.
fn parse_major_version(version: &str) -> Option<u32> {
    let word = version.split_whitespace().find_map(|word| word.trim_start_matches('v').split_once('.'))?;
    word.0.parse().ok()
}

fn is_for_ignition(user_data: &[u8]) -> bool {
    serde_json::from_slice::<Value>(user_data).is_ok_and(|value| value.get("ignition").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system_setup::testing::{Programs, capture_log, tree};
    use model::allocation::{Allocation, OrderedReinstall};
    use operations::PlanAssignment;

    const IGN: &[u8] = br#"{"ignition": {"version": "3.0.0"}}"#;

    fn files() -> MachineFiles {
        let allocation = Allocation {
            id: "a-1".into(),
            hostname: "web-1".into(),
            ssh_pub_keys: vec!["ssh-ed25519 AAAA a: \"b\"".into()],
            ..Allocation::default()
        };
        MachineFiles { assigned: PlanAssignment { allocation, ..PlanAssignment::default() }, ..MachineFiles::default() }
    }

    #[test]
    fn cloud_init_gets_a_valid_seed() {
        let (_dir, root) = tree(&[("usr/bin/cloud-init", "")]);
        let (written, lines) =
            capture_log(|say| write_cloud_init_seed(&root, &files(), b"#cloud-config\npackages: [htop]\n", say));
        written.unwrap();
        assert_eq!(lines, ["the cloud-init seed was written to /var/lib/cloud/seed/nocloud"]);
        let meta = root.read_text("/var/lib/cloud/seed/nocloud/meta-data").unwrap();
        let yaml = marked_yaml::parse_yaml(0, &meta).unwrap();
        let yaml = yaml.as_mapping().unwrap();
        assert_eq!(yaml.get_scalar("instance-id").unwrap().as_str(), "a-1");
        assert_eq!(yaml.get_scalar("local-hostname").unwrap().as_str(), "web-1");
        let key = yaml.get_sequence("public-keys").unwrap().get_scalar(0).unwrap();
        assert_eq!(key.as_str(), "ssh-ed25519 AAAA a: \"b\"");
        assert_eq!(root.read_text(&format!("{SEED}/user-data")).unwrap(), "#cloud-config\npackages: [htop]\n");
        assert_eq!(root.read_text(SOURCES.0).unwrap(), "datasource_list: [NoCloud, None]\n");
        // A reinstall has another instance ID, and a machine without a host name keeps the name in its image.
        let mut again = files();
        again.assigned.allocation.order = Some(OrderedReinstall { id: "o-2".into(), ..OrderedReinstall::default() });
        again.assigned.allocation.hostname = String::new();
        let meta = format_meta_data(&again);
        assert!(meta.contains("instance-id: \"a-1-o-2\"\n") && !meta.contains("local-hostname"), "{meta}");
    }

    #[test]
    fn seed_without_user_data_has_an_empty_cloud_config() {
        for data in [b"".as_slice(), IGN] {
            let (_dir, root) = tree(&[("usr/bin/cloud-init", ""), ("etc/cloud/cloud-init.disabled", "")]);
            let (written, lines) = capture_log(|say| write_cloud_init_seed(&root, &files(), data, say));
            written.unwrap();
            assert_eq!(root.read_text(&format!("{SEED}/user-data")).unwrap(), "#cloud-config\n{}\n");
            assert!(lines[0].starts_with("WARNING: the image contains /etc/cloud/cloud-init.disabled"), "{lines:?}");
        }
        let (_dir, root) = tree(&[]);
        capture_log(|say| write_cloud_init_seed(&root, &files(), b"x", say)).0.unwrap();
        assert!(!root.path_exists("/var"));
    }

    #[test]
    fn default_user_of_cloud_init_is_read() {
        let cloud_init = ("usr/bin/cloud-init", "");
        let settings = "users: [default]\nsystem_info:\n  distro: debian\n  default_user:\n    name: debian\n";
        for (files, expected) in [
            (&[cloud_init, ("etc/cloud/cloud.cfg", settings)][..], Some("debian")),
            (&[("etc/cloud/cloud.cfg", settings)], None),
            (&[cloud_init, ("etc/cloud/cloud.cfg", "system_info: []\n")], None),
            (&[cloud_init, ("etc/cloud/cloud.cfg", "{% if x %}\n")], None),
            (&[cloud_init], None),
        ] {
            let (_dir, root) = tree(files);
            assert_eq!(read_cloud_user(&root).as_deref(), expected);
        }
    }

    #[test]
    fn unread_user_data_cause_a_warning() {
        let (cloud_init, ignition_there) = (("usr/bin/cloud-init", ""), ("usr/bin/ignition", ""));
        for (files, data, program, warning) in [
            (&[][..], b"".as_slice(), None, ""),
            (&[], b"#cloud-config\n", None, "WARNING: the image does not contain cloud-init: "),
            (&[ignition_there], b"#!/bin/sh\n", None, "WARNING: the image does not contain cloud-init: "),
            (&[cloud_init], b"#cloud-config\n", None, ""),
            (&[cloud_init], IGN, None, "WARNING: the user data is for Ignition, "),
            (&[cloud_init, ignition_there], IGN, Some("/usr/bin/ignition"), ""),
        ] {
            let (_dir, root) = tree(files);
            let (found, lines) = capture_log(|say| find_ignition(&root, data, say));
            assert_eq!(found, program);
            assert_eq!(lines.is_empty(), warning.is_empty(), "{lines:?}");
            assert!(lines.iter().all(|line| line.starts_with(warning)), "{lines:?}");
        }
    }

    #[test]
    fn ignition_arguments_depend_on_its_version() {
        for (version, expected) in [
            ("Ignition 0.36.2\n", &["-version", "-oem file -stage files -log-to-stdout"][..]),
            (
                "Ignition v2.15.0\n",
                &[
                    "-version",
                    "-platform file -stage fetch -log-to-stdout",
                    "-platform file -stage files -log-to-stdout",
                ],
            ),
        ] {
            let (_dir, root) = tree(&[]);
            let programs = Programs::saying(version);
            let (ran, lines) = capture_log(|say| run_ignition(&root, "/usr/bin/ignition", IGN, &programs, say));
            ran.unwrap();
            assert_eq!(lines, ["Ignition applied the user data"]);
            let expected: Vec<String> = expected.iter().map(|args| format!("/usr/bin/ignition {args}")).collect();
            assert_eq!(programs.ran(), expected);
            assert!(!root.path_exists(IGNITION_CONFIG));
        }
        let services = "enable own.service\n# more\ndisable apt-daily.timer\n";
        let (_dir, root) = tree(&[("etc/systemd/system-preset/20-ignition.preset", services)]);
        let programs = Programs::saying("Ignition 2.15.0\n");
        capture_log(|say| run_ignition(&root, "/usr/bin/ignition", IGN, &programs, say)).0.unwrap();
        assert_eq!(programs.ran().last().unwrap(), "systemctl preset own.service apt-daily.timer");

        let (_dir, root) = tree(&[]);
        let (ran, lines) = capture_log(|say| run_ignition(&root, "/usr/bin/ignition", IGN, &Programs::failing(), say));
        ran.unwrap();
        assert!(lines[0].starts_with("WARNING: Ignition failed to apply the user data: "), "{lines:?}");
    }
}
