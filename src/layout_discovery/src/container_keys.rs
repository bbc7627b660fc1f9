//! Keys of the LUKS containers whose content a reinstall preserves. A reinstall must not erase the only copy of such a
//! key.
//!
//! | key of a preserved container, according to crypttab | result |
//! |---|---|
//! | the crypttab was not read | refused |
//! | a file or a detached header on a filesystem that a reinstall renews | refused |
//! | a script, a device, or a file whose filesystem is unknown | refused |
//! | a line that names an absent device, without `nofail` or `noauto` | refused: the device may be a preserved container |
//! | a file on a preserved filesystem, a passphrase, or a security device | reported |
//! | no line | reported |

use crate::content_purposes::MachineContents;
use crate::crypttab::{CrypttabLine, InstalledCrypttab, KeyOrigin, parse_crypttab};
use crate::discovery_notes::DiscoveryNote;
use model::device_name::{DevicePath, KernelName};
use model::inventory::StackedDeviceKind;
use model::storage_graph::{StackUnit, all_units, device_references};

const LUKS: &str = "crypto_LUKS";

/// LUKS container with data.
struct DataContainer<'a> {
    name: KernelName,
    device: &'a DevicePath,
    unit: StackUnit<'a>,
}

/// Adds a note for each preserved container, and for each line of crypttab that may belong to one.
pub(crate) fn note_container_keys(
    machine: &MachineContents,
    crypttab: Option<&InstalledCrypttab>,
    notes: &mut Vec<DiscoveryNote>,
) {
    let containers = find_data_containers(machine);
    let Some(crypttab) = crypttab else {
        notes.extend(containers.iter().map(|container| {
            DiscoveryNote::obstacle(format!(
                "{device}: the key of the encrypted data may be in a file that a reinstall erases: specify the crypttab of the installed system with --crypttab",
                device = container.device
            ))
        }));
        return;
    };
    let lines = parse_crypttab(&crypttab.text);
    for container in &containers {
        let of_container = lines.iter().filter(|line| is_line_of(machine, line, container));
        let of_container: Vec<&CrypttabLine> = of_container.collect();
        if of_container.is_empty() {
            notes.push(DiscoveryNote::report(format!(
                "{device}: crypttab has no line for the encrypted data; before the reinstall, check that the system does not contain the only copy of its key",
                device = container.device
            )));
        }
        let keys = of_container.iter().flat_map(|line| {
            let key = line.key_origin(crypttab.key_files.as_deref());
            line.detached_header().into_iter().chain(std::iter::once(key))
        });
        notes.extend(keys.filter_map(|key| describe_key(machine, container.device, key)));
    }
    let is_lasting = |line: &CrypttabLine| line.key_origin(None) != KeyOrigin::Random;
    let absent = lines.iter().filter(|line| !line.is_optional() && is_lasting(line) && !is_present(machine, line));
    notes.extend(absent.map(|line| {
        DiscoveryNote::obstacle(format!(
            "crypttab names {}, but no device has this name: connect the disk, or remove the line",
            line.source
        ))
    }));
}

/// Returns the containers whose content is data. A container is recognized by its signature or, if its header is
/// detached, by its mapping.
fn find_data_containers<'a>(machine: &MachineContents<'a>) -> Vec<DataContainer<'a>> {
    let inventory = machine.inventory;
    let is_crypt = |name: &KernelName| matches!(machine.stack.find_unit(name), StackUnit::Stacked(stacked) if stacked.kind == StackedDeviceKind::Crypt);
    let all = all_units(inventory).map(|(device, unit)| {
        let name = machine.stack.kernel_name(device);
        DataContainer { name, device, unit }
    });
    let data = all.filter(|container| {
        let holders = machine.stack.holders(&container.name);
        let is_mapped = !holders.is_empty() && holders.iter().all(is_crypt);
        let is_luks = container.unit.signatures().iter().any(|found| found.kind == LUKS);
        // The signature of a container on a mirror may also be visible on the members of the mirror.
        (is_mapped || (is_luks && holders.is_empty())) && machine.purpose_of(&container.name).data
    });
    data.collect()
}

/// Returns whether the line unlocks this container, according to its device or to the name of its open mapping.
fn is_line_of(machine: &MachineContents, line: &CrypttabLine, container: &DataContainer) -> bool {
    let mapping = format!("/dev/mapper/{}", line.name);
    let is_mapping =
        |holder: &KernelName| machine.stack.find_unit(holder).device().is_some_and(|path| path.as_str() == mapping);
    let wanted = device_references::device_name(&line.source);
    let has_source =
        |name: String| device_references::has_name(&machine.stack, container.device, container.unit, &name);
    machine.stack.holders(&container.name).iter().any(is_mapping) || wanted.is_some_and(has_source)
}

/// Returns whether the machine has the device of the line. Returns true if the line does not name a device.
fn is_present(machine: &MachineContents, line: &CrypttabLine) -> bool {
    let mapping = format!("/dev/mapper/{}", line.name);
    let wanted = device_references::device_name(&line.source);
    all_units(machine.inventory).any(|(device, unit)| {
        let has_source = |name: &String| device_references::has_name(&machine.stack, device, unit, name);
        device.as_str() == mapping || wanted.as_ref().is_none_or(has_source)
    })
}

/// Returns the note about the key of a container; `None` if the container does not contain lasting data.
fn describe_key(machine: &MachineContents, device: &DevicePath, key: KeyOrigin) -> Option<DiscoveryNote> {
    let remedy = format!(
        "copy the key to another machine, add a passphrase (cryptsetup luksAddKey {device}), and write `none` in place of the key into crypttab"
    );
    let note = match key {
        KeyOrigin::Random => return None,
        KeyOrigin::File(path) if is_renewed(machine, &path) => DiscoveryNote::obstacle(format!(
            "{device}: a reinstall erases {path}, which unlocks the encrypted data: {remedy}"
        )),
        KeyOrigin::Other(what) => DiscoveryNote::obstacle(format!(
            "{device}: the encrypted data is unlocked by {what}, which a reinstall may erase: {remedy}"
        )),
        KeyOrigin::File(path) => DiscoveryNote::report(format!(
            "{device}: the encrypted data is unlocked by {path}, which is preserved; the new system asks for a passphrase instead, so add one (cryptsetup luksAddKey {device})"
        )),
        KeyOrigin::Token(option) => DiscoveryNote::report(format!(
            "{device}: the encrypted data is unlocked by a security device ({option}); the new system asks for a passphrase instead, so add one (cryptsetup luksAddKey {device})"
        )),
        KeyOrigin::Passphrase { unchecked: Some(path) } => DiscoveryNote::report(format!(
            "{device}: a reinstall requires the passphrase of the encrypted data; check that the system does not unlock the data with {path}, which a reinstall erases"
        )),
        KeyOrigin::Passphrase { unchecked: None } => {
            DiscoveryNote::report(format!("{device}: a reinstall requires the passphrase of the encrypted data"))
        }
    };
    Some(note)
}

/// Returns whether a reinstall renews the filesystem that contains this file. An unknown filesystem counts as renewed.
fn is_renewed(machine: &MachineContents, file: &str) -> bool {
    let contains = |path: &str| {
        let rest = file.strip_prefix(path.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.starts_with('/'))
    };
    let mounted = machine.contents.iter().flat_map(|content| {
        let paths = content.paths().filter(|path| contains(path));
        paths.map(|path| (path.len(), content.purpose))
    });
    let (_, purpose) = mounted.max_by_key(|(length, _)| *length).unwrap_or_default();
    purpose.system || !purpose.data
}

#[cfg(test)]
mod tests {
    use crate::{DiscoveredLayout, InstalledCrypttab, assess_reinstall, discover_layout_with_keys};
    use model::inventory::{DeviceSignature, DeviceUse, Inventory, StackedDevice, StackedDeviceKind};

    const UUID: &str = "5b9e2c74-1f0a-4c3b-9d52-7a1f0c3b9d52";

    /// Returns a machine whose second disk has a filesystem in a LUKS container, mounted at /data.
    fn encrypt_data() -> (Inventory, String) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/foreign-installations/almalinux-uefi");
        let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
        let mut inventory: Inventory = serde_json::from_str(&read("inventory.json")).unwrap();
        let disk = &mut inventory.disks[1];
        let signature = DeviceSignature { kind: "crypto_LUKS".to_owned(), uuid: UUID.to_owned(), ..Default::default() };
        let inside = std::mem::replace(&mut disk.signatures, vec![signature]);
        disk.uses = vec![DeviceUse::Holder("dm-7".into())];
        inventory.stacked.push(StackedDevice {
            name: "dm-7".into(),
            device: "/dev/mapper/vault".into(),
            kind: StackedDeviceKind::Crypt,
            below: vec![disk.name.clone()],
            size_bytes: disk.size_bytes - (16 << 20),
            signatures: inside,
            ..StackedDevice::default()
        });
        (inventory, read("fstab"))
    }

    fn discover(text: &str, key_files: Option<&[&str]>) -> (DiscoveredLayout, Vec<String>) {
        let (inventory, fstab) = encrypt_data();
        let key_files = key_files.map(|files| files.iter().map(|file| (*file).to_owned()).collect());
        let crypttab = InstalledCrypttab { text: text.to_owned(), key_files };
        let found = discover_layout_with_keys(&inventory, Some(&fstab), Some(&crypttab), "web");
        let obstacles = assess_reinstall(&found, &inventory).obstacles;
        (found, obstacles)
    }

    #[test]
    fn preserved_container_is_an_obstacle_until_crypttab_is_read() {
        let (inventory, fstab) = encrypt_data();
        let found = discover_layout_with_keys(&inventory, Some(&fstab), None, "web");
        let obstacles = assess_reinstall(&found, &inventory).obstacles;
        assert!(obstacles.len() == 1 && obstacles[0].contains("with --crypttab"), "{obstacles:?}");
        assert!(obstacles[0].starts_with("/dev/sdb: "), "{obstacles:?}");
    }

    #[test]
    fn keys_that_a_reinstall_may_erase_are_obstacles() {
        let default = "/etc/cryptsetup-keys.d/vault.key";
        for (key, erased) in [
            ("/root/vault.key luks,nofail", "/root/vault.key"),
            ("/boot/vault.key", "/boot/vault.key"),
            ("none luks", default),
            ("none luks,keyscript=/lib/cryptsetup/scripts/passdev", "the script /lib/cryptsetup/scripts/passdev"),
            ("/data/vault.key luks,header=/var/vault.header", "/var/vault.header"),
            ("/vault.key:LABEL=usb", "/vault.key:LABEL=usb"),
        ] {
            for source in [format!("UUID={UUID}"), "/dev/sdb".to_owned(), "/dev/disk/by-label/unknown".to_owned()] {
                // A line is recognized by the name of its mapping, even if its source is unknown.
                let (_, obstacles) = discover(&format!("vault {source} {key}\n"), Some(&["vault.key"]));
                let [one] = &obstacles[..] else { panic!("{key}: {obstacles:?}") };
                assert!(one.starts_with("/dev/sdb: ") && one.contains(erased), "{one}");
                assert!(one.contains("cryptsetup luksAddKey /dev/sdb"), "{one}");
            }
        }
        let (_, obstacles) =
            discover("gone UUID=7 none luks\nspare UUID=8 /root/k nofail\nvault /dev/sdb\n", Some(&[]));
        assert_eq!(
            obstacles,
            ["crypttab names UUID=7, but no device has this name: connect the disk, or remove the line"]
        );
    }

    #[test]
    fn other_keys_are_only_reported() {
        let no_files: Option<&[&str]> = Some(&[]);
        for (text, key_files, reported) in [
            ("vault /dev/sdb none luks", no_files, "a reinstall requires the passphrase of the encrypted data"),
            (
                "vault /dev/sdb -",
                None,
                "check that the system does not unlock the data with /etc/cryptsetup-keys.d/vault.key",
            ),
            ("vault /dev/sdb /data/vault.key", None, "by /data/vault.key, which is preserved"),
            ("vault /dev/sdb none tpm2-device=auto", no_files, "by a security device (tpm2-device=auto)"),
            ("", no_files, "crypttab has no line for the encrypted data"),
        ] {
            let (found, obstacles) = discover(text, key_files);
            assert!(obstacles.is_empty(), "{text}: {obstacles:?}");
            assert!(found.notes.iter().any(|note| note.text.contains(reported)), "{text}: {:#?}", found.notes);
        }
        let (found, obstacles) = discover("vault /dev/sdb /dev/urandom swap", None);
        assert!(obstacles.is_empty() && !found.notes.iter().any(|note| note.text.contains("passphrase")));
    }
}
