//! Rehearsals in a virtual machine with md, LVM and the device mapper: objects that are brought up, refusals, and disks
//! that do not change.

use super::*;
use crate::process::ToolCommand;
use crate::storage::vm_test_disks::{TestDisks, fingerprints};
use crate::storage::write_protection::WriteLocks;
use crate::storage::{block_device, signature_wipe};
use model::layout::RaidLevel;
use operations::{ArraySlot, CreateArray};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use uuid::Uuid;

mod added_volumes;

const MIB: u64 = 1 << 20;

fn ran(line: &str) -> String {
    let mut words = line.split(' ');
    let command =
        ToolCommand::new(words.next().unwrap()).args(words).env("DM_DISABLE_UDEV", "1").env("MDADM_NO_UDEV", "1");
    command.run().unwrap_or_else(|error| panic!("{error}")).stdout
}

fn mounting(device: &DevicePath, format: FilesystemFormat, options: &[&str]) -> MountFilesystem {
    let options = options.iter().map(|option| (*option).to_owned()).collect();
    MountFilesystem { device: device.clone(), path: "/srv".to_owned(), format, options, others: vec![] }
}

fn rehearsal(over: &[&DevicePath], operations: Vec<RestoreOp>) -> ActivationRehearsal {
    ActivationRehearsal { over: over.iter().map(|device| (*device).clone()).collect(), operations }
}

fn only(device: &DevicePath, format: FilesystemFormat, options: &[&str]) -> ActivationRehearsal {
    rehearsal(&[device], vec![RestoreOp::Mount(mounting(device, format, options))])
}

/// Rehearses while the disks are locked. Checks that they have not changed, and that no array or mapping remains.
fn unchanged(disks: &TestDisks, rehearse: impl FnOnce() -> Result<RehearsalResult>) -> Result<RehearsalResult> {
    let before = fingerprints(disks.all());
    let mut locks = WriteLocks::default();
    disks.all().iter().for_each(|disk| locks.lock_disk(disk).unwrap());
    let rehearsed = rehearse();
    // Wait, so that delayed writes of the kernel are noticed.
    std::thread::sleep(std::time::Duration::from_millis(500));
    locks.unlock_all().unwrap();
    assert_eq!(fingerprints(disks.all()), before, "{rehearsed:?}");
    let left: Vec<_> = fs::read_dir("/dev/mapper").unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["control"], "{rehearsed:?}");
    // Opening the node of a stopped array immediately creates an empty array, whose state is "clear" (md.rst).
    let state =
        |disk: fs::DirEntry| Some((fs::read_to_string(disk.path().join("md/array_state")).ok()?, disk.file_name()));
    let mut arrays = fs::read_dir("/sys/block").unwrap().flatten().filter_map(state);
    assert_eq!(arrays.find(|(state, _)| state.trim() != "clear"), None, "{rehearsed:?}");
    teardown::verify_unused(disks.all()).unwrap();
    rehearsed
}

/// Writes files and simulates a power failure: synchronized data is only in the journal.
fn cut_off(device: &DevicePath, make: &str, format: FilesystemFormat) {
    let copy = Path::new("/tmp/cut-off");
    ran(&format!("{make} {device}"));
    let mut mounts = MountStack::new(POINT);
    mounts.mount_filesystem(&MountFilesystem { path: "/".to_owned(), ..mounting(device, format, &[]) }).unwrap();
    for number in 0..40 {
        // The directories are far apart on the disk, so the journal contains many blocks.
        let directory = Path::new(POINT).join(format!("directory-{number}"));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("file");
        fs::write(&path, vec![number; 9000]).unwrap();
        File::open(path).unwrap().sync_all().unwrap();
    }
    block_device::flush_buffers(&File::open(device).unwrap()).unwrap();
    io::copy(&mut File::open(device).unwrap(), &mut File::create(copy).unwrap()).unwrap();
    mounts.unmount_all().unwrap();
    let (content, disk) = (fs::read(copy).unwrap(), fs::OpenOptions::new().write(true).open(device).unwrap());
    disk.write_all_at(&content, 0).unwrap();
    disk.sync_all().unwrap();
    fs::remove_file(copy).unwrap();
}

fn mirror(device: &DevicePath, devices: &[DevicePath], metadata: &str) -> CreateArray {
    CreateArray {
        device: device.to_owned(),
        level: RaidLevel::Raid1,
        metadata: metadata.to_owned(),
        uuid: Uuid::new_v4(),
        devices: ArraySlot::parse_list(devices),
        spares: 0,
        createoptions: Vec::new(),
    }
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_rehearsed_journals_arrays_and_groups_change_no_disk() {
    let disks = TestDisks::take("vda vdb");
    let parts = disks.partition(&[64, 340, 140]);
    let array = mirror(&"/dev/md/data".into(), &parts[0], "1.2");
    mdadm::create_array(&array).unwrap();
    cut_off(&"/dev/md/data".into(), "mkfs.ext4 -q -F", FilesystemFormat::Ext4);
    mdadm::stop_array(&"/dev/md/data".into()).unwrap();
    ran(&format!("lvm vgcreate -y vg00 {} {}", parts[1][0], parts[1][1]));
    ran("lvm lvcreate -y -n srv -L 320m vg00");
    cut_off(&"/dev/vg00/srv".into(), "mkfs.xfs -q -f", FilesystemFormat::Xfs);
    ran("lvm vgchange -an vg00");
    cut_off(&parts[2][0], "mkfs.btrfs -q -f", FilesystemFormat::Btrfs);
    let all = disks.all().to_vec();
    // State in which the agent finds the disks.
    crate::storage::read_only_assembly::assemble_read_only(&all).unwrap().unlock_disks().unwrap();
    let assemble = RestoreOp::AssembleArray(AssembleArray {
        device: array.device.clone(),
        uuid: array.uuid,
        members: parts[0].clone(),
    });
    let (name, volumes) = ("vg00".to_owned(), vec!["srv".to_owned()]);
    let activate =
        RestoreOp::ActivateGroup(ActivateGroup { name, devices: parts[1].clone(), volumes: volumes.clone() });
    let mounts = [
        mounting(&"/dev/md/data".into(), FilesystemFormat::Ext4, &["noatime"]),
        mounting(&"/dev/vg00/srv".into(), FilesystemFormat::Xfs, &[]),
        mounting(&parts[2][0], FilesystemFormat::Btrfs, &["compress=zstd"]),
    ];
    let over: Vec<&DevicePath> = parts[..2].iter().flatten().chain(&parts[2][..1]).collect();
    let operations = [assemble, activate].into_iter().chain(mounts.iter().cloned().map(RestoreOp::Mount)).collect();
    let rehearsal = rehearsal(&over, operations);
    let RehearsalResult { filesystems, memory_bytes } = unchanged(&disks, || run_rehearsal(&rehearsal)).unwrap();
    assert_eq!(filesystems, 3);
    assert!((64 << 10..64 * MIB).contains(&memory_bytes), "{memory_bytes}");
    // The objects are then assembled on the disks themselves.
    mdadm::assemble_array(&array.device, array.uuid, &parts[0]).unwrap();
    lvm::activate_volumes("vg00", &volumes, &parts[1]).unwrap();
    for mount in &mounts {
        let mut mounted = MountStack::new(POINT);
        mounted.mount_filesystem(&MountFilesystem { path: "/".to_owned(), ..mount.clone() }).unwrap();
        assert_eq!(fs::read(Path::new(POINT).join("directory-39/file")).unwrap(), vec![39; 9000], "{mount:?}");
        mounted.unmount_all().unwrap();
    }
    lvm::deactivate_group("vg00", &parts[1]).unwrap();
    mdadm::stop_array(&"/dev/md/data".into()).unwrap();
}

#[test]
#[ignore = "needs LVM: scripts/test vm runs it in a machine"]
fn vm_rehearsed_failures_are_refused_with_the_kernel_message() {
    let disks = TestDisks::take("vda");
    let parts: Vec<DevicePath> = disks.partition(&[340]).concat();
    let part = &parts[0];
    let file = || fs::OpenOptions::new().read(true).write(true).open(part).unwrap();
    let refused = |rehearsal: &ActivationRehearsal, words: &[&str]| {
        let error = unchanged(&disks, || run_rehearsal(rehearsal)).unwrap_err();
        assert!(error.is_refusal(), "{error}");
        let said = error.to_string();
        assert!(said.starts_with("cannot activate the preserved data (rehearsal on in-memory snapshots): "), "{said}");
        words.iter().for_each(|word| assert!(said.contains(word), "{word}: {said}"));
        assert!(said.matches("kernel log: ").count() <= 1, "{said}");
    };

    // A feature with which this kernel can mount the filesystem only read-only.
    ran(&format!("mkfs.ext4 -q -F -O ^metadata_csum {part}"));
    let mut features = [0; 4];
    file().read_exact_at(&mut features, 1024 + 0x64).unwrap();
    file().write_all_at(&(u32::from_le_bytes(features) | 1 << 30).to_le_bytes(), 1024 + 0x64).unwrap();
    refused(
        &only(part, FilesystemFormat::Ext4, &["noatime"]),
        &["ext4 on /dev/vda1 for the mount point /srv", "kernel log: ", "unsupported optional features"],
    );

    // A journal that cannot be replayed.
    cut_off(part, "mkfs.ext4 -q -F", FilesystemFormat::Ext4);
    let dump = fs::read(part).unwrap();
    let magic = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4];
    let journal = (0..dump.len()).step_by(1024).find(|at| dump[*at..].starts_with(&magic)).unwrap();
    file().write_all_at(&[0x5a; 1024], journal as u64).unwrap();
    refused(&only(part, FilesystemFormat::Ext4, &[]), &["kernel log: ", "journal"]);

    // A mount option that the kernel does not support.
    ran(&format!("mkfs.ext4 -q -F {part}"));
    refused(&only(part, FilesystemFormat::Ext4, &["nosuch"]), &["with options nosuch); kernel log: ", "nosuch"]);
    unchanged(&disks, || run_rehearsal(&only(part, FilesystemFormat::Ext4, &["ro"]))).unwrap();

    // A damaged log.
    cut_off(part, "mkfs.xfs -q -f", FilesystemFormat::Xfs);
    let dump = fs::read(part).unwrap();
    let records: Vec<usize> = (0..dump.len() / 512)
        .map(|sector| sector * 512)
        .filter(|at| dump[*at..*at + 4] == [0xfe, 0xed, 0xba, 0xbe])
        .collect();
    records.iter().for_each(|at| file().write_all_at(&[0x5a; 200], *at as u64 + 12).unwrap());
    refused(&only(part, FilesystemFormat::Xfs, &[]), &["kernel log: ", "XFS"]);

    // An exported group.
    signature_wipe::wipe_ends(part).unwrap();
    ran(&format!("lvm vgcreate -y vg00 {part}"));
    ran("lvm lvcreate -y -n srv -L 320m vg00");
    ran("lvm vgchange -an vg00");
    ran("lvm vgexport vg00");
    let activate = RestoreOp::ActivateGroup(ActivateGroup {
        name: "vg00".into(),
        devices: vec![part.clone()],
        volumes: vec!["srv".into()],
    });
    refused(&rehearsal(&[part], vec![activate]), &["exported"]);
}

#[test]
#[ignore = "needs the device mapper: scripts/test vm runs it in a machine"]
fn vm_rehearsed_changes_beyond_the_memory_limit_are_refused() {
    let disks = TestDisks::take("vda");
    let parts: Vec<DevicePath> = disks.partition(&[64]).concat();
    cut_off(&parts[0], "mkfs.ext4 -q -F", FilesystemFormat::Ext4);
    let rehearsal = only(&parts[0], FilesystemFormat::Ext4, &[]);
    let error = unchanged(&disks, || run_rehearsal_within(&rehearsal, 64 << 10)).unwrap_err();
    assert!(error.is_refusal(), "{error}");
    let said = error.to_string();
    assert!(
        said.contains("changes to /dev/vda1, including those of the journal replay, do not fit into 65.5 kB of memory"),
        "{said}"
    );
    unchanged(&disks, || run_rehearsal_within(&rehearsal, 64 * MIB)).unwrap();
}
