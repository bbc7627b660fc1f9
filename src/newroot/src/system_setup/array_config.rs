//! Configuration of mdadm and LVM in the target. Entries for arrays and devices of the machine on which the image was
//! built are removed.

use super::LogSink;
use super::machine_boot_requirements::{BootArray, BootRequirements};
use crate::NewRoot;
use common::error::{Context, Phase, Result};
pub(crate) use model::inventory::format_array_uuid as uuid_text;
use std::io::ErrorKind;

/// LVM's devices file, which restricts LVM to the devices listed in it (lvmdevices(8)).
const LVM_DEVICES: &str = "/etc/lvm/devices/system.devices";

/// LVM's configuration. Settings in the second file take precedence.
const LVM_CONFIGS: [&str; 2] = ["/etc/lvm/lvm.conf", "/etc/lvm/lvmlocal.conf"];

/// Settings that restrict LVM to some devices.
const LVM_FILTERS: [&str; 3] = ["filter", "global_filter", "devicesfile"];

/// Writes the layout's arrays to mdadm.conf, and removes LVM's devices file. The devices file lists only disks of the
/// machine on which the image was built, so LVM would ignore all volume groups of this machine.
///
/// # Errors
/// Returns an error if a file of the target cannot be read, written or removed.
pub(crate) fn write_array_config(root: &NewRoot, wants: &BootRequirements) -> Result<()> {
    root.remove(LVM_DEVICES)?;
    if wants.arrays.is_empty() {
        return Ok(());
    }
    let path = &wants.mdadm_conf;
    let own = match root.read_text(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        own => own.context(Phase::Target, || format!("read the image's {path}"))?,
    };
    root.write_file(path, 0o644, replace_arrays(&own, &wants.arrays).as_bytes())
}

/// Removes LVM's devices file if the layout has volume groups, because LVM ignores volume groups on devices that this
/// file does not list. Also logs a warning about LVM settings that may cause LVM to ignore these volume groups.
///
/// # Errors
/// Returns an error if the file cannot be removed.
pub(crate) fn expose_groups(root: &NewRoot, groups: &[String], say: LogSink) -> Result<()> {
    if groups.is_empty() {
        return Ok(());
    }
    let groups = groups.join(", ");
    if root.path_exists(LVM_DEVICES) {
        root.remove(LVM_DEVICES)?;
        say(&format!("removed {LVM_DEVICES} of the image, which restricted LVM to the disks of another machine"));
    }
    for path in LVM_CONFIGS {
        let settings = find_filters(&root.read_text(path).unwrap_or_default()).join(", ");
        if !settings.is_empty() {
            say(&format!("WARNING: {path} sets {settings}: LVM may ignore {groups}"));
        }
    }
    Ok(())
}

/// Returns the settings in LVM's configuration that restrict LVM to some devices.
fn find_filters(text: &str) -> Vec<&'static str> {
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches("devices/"));
    let names: Vec<&str> = lines.filter_map(|line| line.split_once('=')).map(|(name, _)| name.trim_end()).collect();
    LVM_FILTERS.into_iter().filter(|filter| names.contains(filter)).collect()
}

/// Replaces the arrays in the image's mdadm.conf and preserves other settings.
fn replace_arrays(own: &str, arrays: &[BootArray]) -> String {
    let mut text = String::new();
    let mut is_array = false;
    for line in own.lines() {
        // A line that begins with a blank continues the previous line (mdadm.conf(5)).
        let goes_on = line.starts_with([' ', '\t']);
        is_array = if goes_on { is_array } else { is_array_line(line) };
        if !is_array {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.push_str("# written by drophammer\n");
    for BootArray { device, uuid, metadata, .. } in arrays {
        text.push_str(&format!("ARRAY {device} metadata={metadata} UUID={}\n", uuid_text(*uuid)));
    }
    text
}

/// Returns whether the line begins with the keyword ARRAY, which is not case-sensitive and may be abbreviated to three
/// letters.
fn is_array_line(line: &str) -> bool {
    let word = line.split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
    word.len() >= 3 && "array".starts_with(&word)
}

/// Returns the UUIDs of the arrays in an mdadm.conf, in lower case.
pub(crate) fn listed_uuids(conf: &str) -> Vec<String> {
    let lines = conf.lines().filter(|line| is_array_line(line));
    let words = lines.flat_map(str::split_whitespace);
    words.filter_map(|word| word.to_ascii_lowercase().strip_prefix("uuid=").map(str::to_owned)).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use model::layout::RaidLevel;
    use uuid::Uuid;

    pub(crate) fn array(name: &str, is_beneath_system: bool) -> BootArray {
        BootArray {
            device: format!("/dev/md/{name}").into(),
            uuid: Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
            level: RaidLevel::Raid1,
            metadata: "1.2".into(),
            is_beneath_system,
        }
    }

    #[test]
    fn settings_of_mdadm_conf_are_kept_and_arrays_replaced() {
        let own =
            "# mine\nHOMEHOST <system>\nARRAY /dev/md0 UUID=1:2:3:4\n  devices=/dev/sda\nMAILADDR root\narr /dev/md1\n";
        let line = "ARRAY /dev/md/root metadata=1.2 UUID=01234567:89abcdef:01234567:89abcdef\n";
        let expected = format!("# mine\nHOMEHOST <system>\nMAILADDR root\n# written by drophammer\n{line}");
        assert_eq!(replace_arrays(own, &[array("root", true)]), expected);
        assert_eq!(listed_uuids(own), ["1:2:3:4"]);
        assert_eq!(listed_uuids(line), ["01234567:89abcdef:01234567:89abcdef"]);
        assert_eq!(listed_uuids("# ARRAY /dev/md0 UUID=1\n"), Vec::<String>::new());
    }

    /// Settings in EL 9's lvm.conf, most of which are comments there, and settings that OpenStack and Ceph recommend.
    #[test]
    fn lvm_device_filters_are_detected() {
        for (text, found) in [
            (
                "devices {\n\t# filter = [ \"a|.*|\" ]\n\t# global_filter = [ \"a|.*|\" ]\n\t# use_devicesfile = 1\n}\n",
                &[][..],
            ),
            ("devices {\n\tuse_devicesfile = 1\n\tscan_lvs = 0\n}\nactivation { volume_list = [ \"a\" ]\n}\n", &[]),
            ("devices {\n\tglobal_filter = [ \"a|/dev/sda|\", \"r|.*|\" ]\n}\n", &["global_filter"]),
            ("devices/filter=[\"r/.*/\"]\ndevices {\n devicesfile=\"own.devices\"\n}\n", &["filter", "devicesfile"]),
            ("", &[]),
        ] {
            assert_eq!(find_filters(text), found, "{text}");
        }
    }

    #[test]
    fn lvm_devices_file_is_removed_for_any_root_device() {
        let wants = crate::system_setup::boot_setup::tests::wants();
        assert_eq!(wants.groups, []);
        let (_dir, root) = crate::system_setup::testing::tree(&[
            ("etc/lvm/devices/system.devices", "IDTYPE=sys_wwid\n"),
            ("etc/lvm/lvm.conf", "config {}\n"),
        ]);
        write_array_config(&root, &wants).unwrap();
        assert!(!root.path_exists(LVM_DEVICES) && root.path_exists("/etc/lvm/lvm.conf"));
        // A missing devices file is not an error.
        write_array_config(&root, &wants).unwrap();
    }
}
