use super::*;
use crate::storage::vm_test_disks;
use model::layout::KeySource;
use model::secret_text::SecretText;
use std::fs;
use uuid::Uuid;

const KEY: &str = "0123456789abcdef0123456789abcdef";

fn container(device: &str, key: &str) -> LuksContainer {
    LuksContainer::new(device.into(), Uuid::from_u128(0x1d78810a), 512, KeySource::Server, SecretText::new(key))
}

#[test]
fn reports_missing_requirements_together_without_keys() {
    let said = check_requirements(&[container("/dev/sda3", ""), container("/dev/sdb1", KEY)]).unwrap_err().to_string();
    assert!(said.contains("/dev/sda3 is encrypted with `key: server`, but no such key was provided"), "{said}");
    assert!(!said.contains("/dev/sdb1 is encrypted") && !said.contains(KEY), "{said}");
    let typed = LuksContainer { source: KeySource::Prompt, ..container("/dev/sdc", "") };
    assert!(
        check_requirements(&[typed]).unwrap_err().to_string().contains(
            "/dev/sdc is encrypted with `key: prompt`, but the agent asks for passphrases only on the console"
        )
    );
    for source in [KeySource::Server, KeySource::Tpm2] {
        let told_before = LuksContainer { source, withheld: true, ..container("/dev/sdc", "") };
        let said = check_requirements(&[told_before]).unwrap_err().to_string();
        assert!(said.contains("/dev/sdc is encrypted") && said.contains("reboot the machine"), "{said}");
    }
    let container = container("/dev/sda3", KEY);
    assert!(!format!("{container:?}").contains(KEY));
    assert!(!serde_json::to_string(&container).unwrap().contains(KEY));
}

#[test]
fn tpm_container_requires_no_second_key() {
    let mut sealed = container("/dev/sda3", "");
    sealed.source = KeySource::Tpm2;
    let said = check_requirements(&[sealed, container("/dev/sdb1", "")]).unwrap_err().to_string();
    assert!(said.contains("/dev/sdb1 is encrypted") && !said.contains("/dev/sda3 is encrypted"), "{said}");
}

/// Reads the first 4 KiB of the mapping.
fn first_bytes(mapping: &DevicePath) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    std::io::Read::read_exact(&mut fs::File::open(mapping).unwrap(), &mut bytes).unwrap();
    bytes
}

#[test]
#[ignore = "needs a disk and the device mapper: scripts/vm-tests"]
fn vm_luks_container_is_created_closed_and_opened_without_writes() {
    let disks = vm_test_disks::TestDisks::take("vda");
    let mut container = container("/dev/vda", KEY);
    create_container(&container).unwrap();
    fs::write(&container.mapping, vec![0xA5; 4096]).unwrap();
    let size = fs::read_to_string(block_device::sysfs_path(&container.mapping).unwrap().join("size")).unwrap();
    assert_eq!(size.trim(), ((1 << 30) / 512 - DATA_OFFSET_BYTES / 512).to_string(), "as the plan reckons");
    close_mapping(&container.mapping).unwrap();
    assert!(!Path::new(&container.mapping).exists());
    close_mapping(&container.mapping).expect("closing twice is not an error");

    let before = vm_test_disks::fingerprints(disks.all());
    let reading = OpenContainer { container: container.clone(), read_only: true };
    open_container(&reading, &container.device).unwrap();
    assert_eq!(first_bytes(&container.mapping), vec![0xA5; 4096]);
    assert!(fs::write(&container.mapping, b"x").is_err(), "it is open for reading");
    close_mapping(&container.mapping).unwrap();
    container.key = SecretText::new("another key, which does not fit it");
    let refused = open_container(&OpenContainer { container: container.clone(), read_only: true }, &container.device);
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("No key available with this passphrase") && !said.contains("another key"), "{said}");
    assert_eq!(vm_test_disks::fingerprints(disks.all()), before, "not a byte has changed");
}

/// Returns the numbers of the key slots, and the types of the tokens.
fn slots_and_tokens(device: &str) -> (Vec<String>, Vec<String>) {
    let dump = ToolCommand::new(TOOL).args(["luksDump", "--dump-json-metadata", device]).run().unwrap();
    let header: serde_json::Value = serde_json::from_str(&dump.stdout).unwrap();
    let slots = header["keyslots"].as_object().unwrap().keys().cloned().collect();
    let tokens = header["tokens"].as_object().unwrap().values();
    (slots, tokens.map(|token| token["type"].as_str().unwrap().to_owned()).collect())
}

#[test]
#[ignore = "needs a disk, the device mapper and a TPM: scripts/vm-tests"]
fn vm_luks_tpm_opens_the_container_that_it_sealed() {
    let disks = vm_test_disks::TestDisks::take("vda");
    let mut sealed = container("/dev/vda", "");
    sealed.source = KeySource::Tpm2;
    check_requirements(std::slice::from_ref(&sealed)).unwrap();
    create_container(&sealed).unwrap();
    fs::write(&sealed.mapping, vec![0x5A; 4096]).unwrap();
    close_mapping(&sealed.mapping).unwrap();
    assert_eq!(slots_and_tokens("/dev/vda"), (vec!["1".to_owned()], vec!["systemd-tpm2".to_owned()]));

    let before = vm_test_disks::fingerprints(disks.all());
    open_container(&OpenContainer { container: sealed.clone(), read_only: true }, &sealed.device).unwrap();
    assert_eq!(first_bytes(&sealed.mapping), vec![0x5A; 4096]);
    assert!(fs::write(&sealed.mapping, b"x").is_err(), "it is open for reading");
    close_mapping(&sealed.mapping).unwrap();
    assert_eq!(vm_test_disks::fingerprints(disks.all()), before, "not a byte has changed");

    // The container has a second key, in slot 0.
    sealed.key = SecretText::new(KEY);
    create_container(&sealed).unwrap();
    close_mapping(&sealed.mapping).unwrap();
    assert_eq!(slots_and_tokens("/dev/vda").0, ["0", "1"]);
    let reading = OpenContainer { container: sealed.clone(), read_only: true };
    tpm::open_with_tpm(&reading, &sealed.device).unwrap();
    close_mapping(&sealed.mapping).unwrap();
    let left = fs::read_dir("/run").unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.ends_with(".key")).count(), 0, "no key file remains");

    // Without the token, the container cannot be opened, as on a board with another TPM.
    ToolCommand::new(TOOL).args(["token", "remove", "--token-id", "0", "/dev/vda"]).run().unwrap();
    let said = tpm::open_with_tpm(&reading, &sealed.device).unwrap_err().to_string();
    assert!(said.contains("open /dev/vda with this machine's TPM") && !said.contains(KEY), "{said}");
    open_container(&reading, &sealed.device).expect("the second key opens it");
    assert!(is_mapping_on_device(&sealed).unwrap());
    let elsewhere = LuksContainer { device: "/dev/vdb".into(), ..sealed.clone() };
    assert!(!is_mapping_on_device(&elsewhere).unwrap(), "the mapping is on another disk");
    close_mapping(&sealed.mapping).unwrap();
    sealed.key = SecretText::default();
    assert!(open_container(&OpenContainer { container: sealed.clone(), read_only: true }, &sealed.device).is_err());
}
