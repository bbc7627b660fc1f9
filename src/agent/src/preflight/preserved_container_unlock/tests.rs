use super::*;
use crate::preflight::read_assembled_with;
use linux::storage::vm_test_disks::{TestDisks, fingerprints};
use linux::storage::{activation_rehearsal, lvm, mkfs};
use model::inventory;
use model::layout::{FilesystemFormat, LvmType, read_yaml};
use operations::{
    ActivateGroup, ActivationRehearsal, CreateGroup, CreateVolume, MakeFilesystem, MountFilesystem, RestoreOp,
};
use uuid::Uuid;

const KEY: &str = "0123456789abcdef0123456789abcdef";

const UUID: &str = "11111111-2222-4333-8444-555555555555";

fn layout() -> Layout {
    let text = "{id: x, constraints: {sizes: [], images: {}}, \
         disks: [{device: /dev/sda, wipeonreinstall: true, partitions: [{number: 1, size: 0}]}, {device: /dev/vda}, {device: /dev/vdb}], \
         volumegroups: [{name: vault, devices: [/dev/vda, /dev/vdb], encrypted: {key: server}}], \
         logicalvolumes: [{name: srv, volumegroup: vault, size: 1200, lvmtype: linear}], \
         filesystems: [{path: /, device: /dev/sda1, format: ext4}, {path: /srv, device: /dev/vault/srv, format: ext4}]}";
    read_yaml(text).unwrap().layout
}

fn container(device: &str, number: u128) -> LuksContainer {
    LuksContainer::new(device.into(), Uuid::from_u128(number), 512, KeySource::Server, SecretText::new(KEY))
}

/// Reads the inventory as the agent does before a plan.
fn look(key: &str) -> Inventory {
    let mut allocation = Allocation { reinstall: true, disk_key: SecretText::new(key), ..Allocation::default() };
    let layout = layout();
    let mut nobody = |question: &str, _| panic!("{question}");
    let mut opens = |inventory: &Inventory| unlock_preserved(&layout, inventory, &mut allocation, &mut nobody);
    read_assembled_with(Some(&mut opens)).unwrap()
}

/// Tests which locked containers are recorded as untried.
#[test]
fn untried_containers_are_recorded() {
    let signature = |kind: &str| vec![inventory::DeviceSignature { kind: kind.to_owned(), ..Default::default() }];
    let disk = |name: &str, kind: &str| inventory::InventoryDisk {
        name: name.into(),
        device: format!("/dev/{name}").into(),
        signatures: signature(kind),
        ..Default::default()
    };
    let open = inventory::StackedDevice {
        name: "dm-0".into(),
        device: "/dev/mapper/luks-1".into(),
        kind: StackedDeviceKind::Crypt,
        below: vec!["sdb".into()],
        signatures: signature("ext4"),
        ..Default::default()
    };
    let disks = ["sda", "sdb", "sdc", "sdd"].map(|name| disk(name, "crypto_LUKS")).into_iter();
    let mut inventory =
        Inventory { disks: disks.chain([disk("sde", "xfs")]).collect(), stacked: vec![open], ..Inventory::default() };
    let failed = |tried, why: &str| InspectionFailure { tried, why: why.to_owned() };
    let told = [
        failed(InspectionTarget::Container("/dev/sdc".into()), "no key"),
        failed(InspectionTarget::Sealed("/dev/sdd".into()), "another TPM"),
    ];
    inventory.failed.extend(told.clone());
    record_untried_containers(&mut inventory);
    let untried = failed(InspectionTarget::Container("/dev/sda".into()), "no key was tried");
    assert_eq!(inventory.failed, [told.as_slice(), &[untried]].concat());
}

/// A group on two containers is created and closed. Unlocking it read-only, and rehearsing its preservation, must not
/// write to the disks.
#[test]
#[ignore = "needs disks and the device mapper: scripts/vm-tests"]
fn vm_luks_encrypted_group_is_inspected_and_rehearsed_without_writes() {
    let disks = TestDisks::take("vda vdb");
    let containers = [container("/dev/vda", 1), container("/dev/vdb", 2)];
    let devices: Vec<DevicePath> = containers.iter().map(|container| container.mapping.clone()).collect();
    containers.iter().for_each(|container| storage::luks::create_container(container).unwrap());
    let name = "vault".to_owned();
    lvm::create_group(&CreateGroup { name: name.clone(), devices: devices.clone(), tags: vec![] }).unwrap();
    // Both disks contain a physical volume of the group, so the group is on both.
    let (device, physical) = (DevicePath::from("/dev/vault/srv"), devices.clone());
    let volume = CreateVolume {
        name: "srv".to_owned(),
        group: name.clone(),
        device: device.clone(),
        physical,
        size: 1200_u64.into(),
        kind: LvmType::Linear,
    };
    lvm::create_volume(&volume).unwrap();
    let format = FilesystemFormat::Ext4;
    let make =
        MakeFilesystem { device: device.clone(), format, label: None, uuid: UUID.to_owned(), createoptions: vec![] };
    mkfs::make_filesystem(&make).unwrap();
    let close = || {
        lvm::deactivate_group(&name, &devices).unwrap();
        devices.iter().for_each(|mapping| storage::luks::close_mapping(mapping).unwrap());
    };
    close();
    assert!(!devices.iter().any(|mapping| Path::new(mapping).exists()));
    let before = fingerprints(disks.all());

    let inventory = look(KEY);
    assert_eq!(inventory.failed, []);
    let [group] = &inventory.groups[..] else { panic!("{:?}", inventory.groups) };
    let physical: Vec<&DevicePath> = group.present_devices().collect();
    assert!(physical.len() == 2 && devices.iter().all(|device| physical.contains(&device)), "{physical:?}");
    let running = group.volumes[0].running.as_ref().expect("the volume is active");
    let shown = inventory.stacked.iter().find(|stacked| stacked.name == *running).unwrap();
    assert_eq!(shown.signatures.iter().map(|signature| signature.uuid.as_str()).collect::<Vec<_>>(), [UUID]);
    assert!(fs::write(&shown.device, b"x").is_err(), "the volume is read-only");
    let inside =
        inventory.stacked.iter().filter(|stacked| stacked.kind == StackedDeviceKind::Crypt && stacked.assembled);
    assert_eq!(inside.count(), 2);
    assert_eq!(fingerprints(disks.all()), before, "an inspection does not write");

    // A second inspection closes the mappings of the first one and opens them again. With another key, no mapping is
    // opened.
    let again = look(KEY);
    assert!(again.groups.len() == 1 && again.groups[0].volumes[0].running.is_some(), "{:?}", again.groups);
    let locked = look("another key, which is not provided");
    assert!(locked.failed.len() == 2 && locked.groups.is_empty(), "{:?} {:?}", locked.failed, locked.groups);
    assert_eq!(fingerprints(disks.all()), before, "a second inspection does not write");

    let opens = containers.iter().map(|container| OpenContainer { container: container.clone(), read_only: false });
    let volumes = vec!["srv".to_owned()];
    let activate = ActivateGroup { name: name.clone(), devices: devices.clone(), volumes: volumes.clone() };
    let (path, options, others) = ("/srv".to_owned(), vec![], vec![]);
    let mount = MountFilesystem { device: device.clone(), path, format, options, others };
    let operations = opens.clone().map(RestoreOp::OpenContainer);
    let operations = operations.chain([RestoreOp::ActivateGroup(activate), RestoreOp::Mount(mount)]).collect();
    let over = disks.all().to_vec();
    let rehearsed = activation_rehearsal::run_rehearsal(&ActivationRehearsal { over, operations }).unwrap();
    assert_eq!(rehearsed.filesystems, 1);
    assert_eq!(fingerprints(disks.all()), before, "a rehearsal does not write");

    // Afterwards, the containers are opened for writing, as in the installation.
    opens.for_each(|open| storage::luks::open_container(&open, &open.container.device).unwrap());
    lvm::activate_volumes(&name, &volumes, &devices).unwrap();
    mkfs::verify_uuid(&make).unwrap();
    close();
}

/// Containers that an earlier inspection has opened are inspected again, since the key may have changed or be missing.
#[test]
#[ignore = "needs disks and the device mapper: scripts/vm-tests"]
fn vm_luks_second_inspection_requires_the_key_again() {
    let disks = TestDisks::take("vda vdb");
    let containers = [container("/dev/vda", 6), container("/dev/vdb", 7)];
    for container in &containers {
        storage::luks::create_container(container).unwrap();
        storage::luks::close_mapping(&container.mapping).unwrap();
    }
    let before = fingerprints(disks.all());
    assert_eq!(look(KEY).failed, []);
    assert_eq!(look(KEY).failed, []);
    for (key, why) in
        [("another key", "No key available with this passphrase"), ("", "no key was provided for `key: server`")]
    {
        let failed = look(key).failed;
        let tried: Vec<&InspectionTarget> = failed.iter().map(|failed| &failed.tried).collect();
        assert_eq!(
            tried,
            [&InspectionTarget::Container("/dev/vda".into()), &InspectionTarget::Container("/dev/vdb".into())]
        );
        assert!(failed.iter().all(|failed| failed.why.contains(why)), "{failed:?}");
    }
    assert_eq!(fingerprints(disks.all()), before);
    assert!(
        !containers.iter().any(|container| Path::new(&container.mapping).exists()),
        "a container that the key does not unlock is closed"
    );
}

/// If one of two containers has another key, the other one is also closed, and the group is not visible.
#[test]
#[ignore = "needs disks and the device mapper: scripts/vm-tests"]
fn vm_luks_group_is_opened_completely_or_not_at_all() {
    let disks = TestDisks::take("vda vdb");
    let (one, mut other) = (container("/dev/vda", 3), container("/dev/vdb", 4));
    other.key = SecretText::new("another key, which is not provided");
    for container in [&one, &other] {
        storage::luks::create_container(container).unwrap();
        storage::luks::close_mapping(&container.mapping).unwrap();
    }
    let before = fingerprints(disks.all());
    let inventory = look(KEY);
    let [failed, with_it] = &inventory.failed[..] else { panic!("{:?}", inventory.failed) };
    assert_eq!(failed.tried, InspectionTarget::Container("/dev/vdb".into()));
    assert_eq!(with_it.tried, InspectionTarget::Container("/dev/vda".into()));
    for failed in [failed, with_it] {
        assert!(failed.why.contains("No key available with this passphrase"), "{}", failed.why);
    }
    assert!(!inventory.stacked.iter().any(|stacked| stacked.kind == StackedDeviceKind::Crypt));
    assert!(!Path::new(&one.mapping).exists());
    assert_eq!(fingerprints(disks.all()), before);
}

/// A container on a logical volume is found as well.
#[test]
#[ignore = "needs disks and the device mapper: scripts/vm-tests"]
fn vm_luks_container_on_a_volume_is_found_without_writes() {
    let disks = TestDisks::take("vda");
    let (name, devices) = ("vg00".to_owned(), disks.all().to_vec());
    lvm::create_group(&CreateGroup { name: name.clone(), devices: devices.clone(), tags: vec![] }).unwrap();
    let volume = CreateVolume {
        name: "srv".to_owned(),
        group: name.clone(),
        device: "/dev/vg00/srv".into(),
        physical: devices.clone(),
        size: 200_u64.into(),
        kind: LvmType::Linear,
    };
    lvm::create_volume(&volume).unwrap();
    let inner = container("/dev/vg00/srv", 5);
    storage::luks::create_container(&inner).unwrap();
    let (device, format, uuid) = (inner.mapping.clone(), FilesystemFormat::Ext4, UUID.to_owned());
    mkfs::make_filesystem(&MakeFilesystem { device, format, label: None, uuid, createoptions: vec![] }).unwrap();
    storage::luks::close_mapping(&inner.mapping).unwrap();
    lvm::deactivate_group(&name, &devices).unwrap();
    let before = fingerprints(disks.all());
    let text = "{id: x, constraints: {sizes: [], images: {}}, \
         disks: [{device: /dev/sda, wipeonreinstall: true, partitions: [{number: 1, size: 0}]}, {device: /dev/vda}], \
         volumegroups: [{name: vg00, devices: [/dev/vda]}], \
         logicalvolumes: [{name: srv, volumegroup: vg00, size: 200, lvmtype: linear}], \
         filesystems: [{path: /, device: /dev/sda1, format: ext4}, {path: /srv, device: /dev/vg00/srv, format: ext4, encrypted: {key: server}}]}";
    let layout = read_yaml(text).unwrap().layout;
    let mut allocation = Allocation { reinstall: true, disk_key: SecretText::new(KEY), ..Allocation::default() };
    let mut nobody = |question: &str, _| panic!("{question}");
    let mut opens = |inventory: &Inventory| unlock_preserved(&layout, inventory, &mut allocation, &mut nobody);
    let inventory = read_assembled_with(Some(&mut opens)).unwrap();
    assert_eq!(inventory.failed, []);
    let inside = inventory.stacked.iter().find(|stacked| stacked.device == inner.mapping).unwrap();
    assert_eq!(inside.signatures.iter().map(|signature| signature.uuid.as_str()).collect::<Vec<_>>(), [UUID]);
    assert_eq!(fingerprints(disks.all()), before);
}
