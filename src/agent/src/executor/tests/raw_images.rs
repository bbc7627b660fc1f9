//! Tests of raw images, and of disks that already contain a system.

use super::*;
use operations::{LoadKernel, MountReadOnly};

/// Returns an unpartitioned disk with an ext4 filesystem that contains these files.
pub(super) fn installed(files: &[(&str, &str)]) -> TestLoopDevice {
    let disk = TestLoopDevice::new(16 << 20, 512);
    linux::process::ToolCommand::new("mkfs.ext4").args(["-q", disk.path().as_str()]).run().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut mounts = MountStack::new(dir.path());
    mounts.mount_filesystem(&root_on(&disk, &[])).unwrap();
    let root = NewRoot::open(dir.path()).unwrap();
    files.iter().for_each(|(path, text)| root.write_file(path, 0o644, text.as_bytes()).unwrap());
    drop(root);
    mounts.unmount_all().unwrap();
    disk
}

pub(super) fn root_on(disk: &TestLoopDevice, options: &[&str]) -> MountFilesystem {
    let options = options.iter().map(|option| (*option).to_owned()).collect();
    MountFilesystem {
        device: disk.path().clone(),
        path: "/".into(),
        format: FilesystemFormat::Ext4,
        options,
        others: vec![],
    }
}

/// Creates a raw image file: a GPT with one ext4 filesystem.
fn raw_image(directory: &Path) -> image::ImageSource {
    let path = directory.join("disk.raw");
    let script = format!(
        "truncate -s 32M {0} && echo 'size=16M, uuid=5e1f0000-0000-4000-8000-000000000001' | sfdisk -q -X gpt {0} && \
         mkfs.ext4 -q -U {UUID} -E offset=1048576 {0} 16M && sha256sum {0} > {0}.sha256",
        path.display()
    );
    linux::process::ToolCommand::new("sh").args(["-c", &script]).run().unwrap();
    image::ImageSource { url: format!("file://{}", path.display()), ..image::ImageSource::default() }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_raw_image_with_uuids_of_another_disk_is_refused() {
    let (disk, directory) = (TestLoopDevice::new(64 << 20, 512), tempfile::tempdir().unwrap());
    let source = raw_image(directory.path());
    let root = ExpectedFilesystem {
        number: 1,
        device: disk.partition(1),
        path: "/".into(),
        format: FilesystemFormat::Ext4,
        label: None,
    };
    let burn = |taken: &str| BurnDisk {
        name: "debian".into(),
        device: disk.path().clone(),
        identity: identity(disk.path()),
        size_bytes: 64 << 20,
        sector_bytes: 512,
        grow: Some(1),
        filesystems: vec![root.clone()],
        taken: [(taken.to_owned(), "/dev/sdb1".into())].into(),
        added: None,
    };
    let bench = Bench::new();
    let burned = |burn: &BurnDisk| {
        let mut session = bench.session();
        session.image = Some(raw_image::start_raw_image(image::resolve_image(&source)?, burn)?);
        session.run_operation(&identify_operation(&disk))?;
        session.run_operation(&Operation::Run(SessionOp::BurnDisk(burn.clone()))).map(|()| session.brought_root_uuid)
    };
    let before = fs::read(disk.image()).unwrap();
    let error = burned(&burn("5e1f0000-0000-4000-8000-000000000001")).unwrap_err().to_string();
    assert!(error.contains(&format!("of {} is also the UUID of /dev/sdb1", disk.partition(1))), "{error}");
    let error = burned(&BurnDisk { sector_bytes: 4096, ..burn("") }).unwrap_err().to_string();
    assert!(error.contains("is for disks with a sector size of 512 bytes"), "{error}");
    assert!(before == fs::read(disk.image()).unwrap(), "the disk has changed");

    let error = burned(&burn(UUID)).unwrap_err().to_string();
    assert!(error.contains(&format!("{UUID} of {} is also the UUID of /dev/sdb1", disk.partition(1))), "{error}");
    // In a reinstall, UUIDs on the target disk itself are not duplicates.
    assert_eq!(burned(&burn("another")).unwrap().as_deref(), Some(UUID));
}

/// Tests that a config drive that a conductor sends can be found by its label and has the right content.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_filesystem_is_added_after_a_raw_image() {
    let (disk, directory) = (TestLoopDevice::new(64 << 20, 512), tempfile::tempdir().unwrap());
    let source = raw_image(directory.path());
    let drive = directory.path().join("drive");
    let make = format!("truncate -s 2M {0} && mkfs.ext4 -q -L config-2 {0}", drive.display());
    linux::process::ToolCommand::new("sh").args(["-c", &make]).run().unwrap();
    let content = fs::read(&drive).unwrap();
    let burn = BurnDisk {
        name: "debian".into(),
        device: disk.path().clone(),
        identity: identity(disk.path()),
        size_bytes: 64 << 20,
        sector_bytes: 512,
        grow: None,
        filesystems: Vec::new(),
        taken: Default::default(),
        added: Some(AddedPartition { name: "config-2".into(), guid: uuid::Uuid::new_v4(), content: content.clone() }),
    };
    let bench = Bench::new();
    let mut session = bench.session();
    session.image = Some(raw_image::start_raw_image(image::resolve_image(&source).unwrap(), &burn).unwrap());
    session.run_operation(&identify_operation(&disk)).unwrap();
    session.run_operation(&Operation::Run(SessionOp::BurnDisk(burn))).unwrap();
    let written = fs::read(disk.partition(2)).unwrap();
    assert!(written.starts_with(&content));
    let label = linux::process::ToolCommand::new("blkid").args(["-p", "-s", "LABEL", "-o", "value"]);
    assert_eq!(label.arg(disk.partition(2).as_str()).run().unwrap().stdout.trim(), "config-2");
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_existing_installation_is_never_written() {
    let boot_info = "kernel: /vmlinuz\ninitrd: ''\ncmdline: ro\nbootloader_id: b\n";
    let disk = installed(&[("/etc/metal/boot-info.yaml", boot_info), ("/vmlinuz", "no kernel")]);
    let before = fs::read(disk.image()).unwrap();
    let bench = Bench::new();
    let load = LoadKernel { installed_esps: Some(Vec::new()) };
    let stages = vec![
        (
            StageName::StorageMount,
            vec![Operation::Run(SessionOp::MountReadOnly(MountReadOnly(root_on(&disk, &["ro", "noload"]))))],
        ),
        (StageName::BootLoad, vec![Operation::Run(SessionOp::LoadKernel(load))]),
    ];
    let point_of_no_return = stages.len();
    let plan = Plan { point_of_no_return, ..plan(stages) };
    let dir = tempfile::tempdir().unwrap();
    let mut session = PlanExecutor { mounts: MountStack::new(dir.path()), ..bench.session() };
    session.undo.push(UndoOperation::WipeDeviceEnds(disk.path().clone()));
    session.run_stage(&plan.stages[0]).unwrap();
    let read_only = session.open_root().unwrap().write_file("/file", 0o600, b"").unwrap_err().to_string();
    assert!(read_only.contains("Read-only file system"), "{read_only}");
    let error = session.run_stage(&plan.stages[1]).unwrap_err().to_string();
    // Without support for kexec, the agent selects the boot entry of the system instead, which is missing here.
    let expected = match newroot::boot::kexec::is_supported() {
        true => "load /vmlinuz for kexec: ",
        false => "read /sys/firmware/efi/efivars",
    };
    assert!(error.starts_with(expected), "{error}");
    // Even devices that this session has created are not wiped, because the system is complete.
    session.leave_session(plan.state_after_failure(1));
    assert!(busy_device_users::list_mounts_below(dir.path()).is_empty());
    assert!(before == fs::read(disk.image()).unwrap(), "the disk has changed");
}
