use super::*;
use linux::storage::busy_device_users;
use linux::storage::test_loop_device::TestLoopDevice;
use model::ganeti_os_definition::{DefinitionFile, SelectedDefinition};
use operations::{BurnDisk, DiskIdentity};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;

const MINUTE: Duration = Duration::from_secs(60);

fn system(disk: &TestLoopDevice, script: &str) -> CreateSystem {
    let file = |executable: bool, text: String| DefinitionFile { executable, text };
    let files = [
        ("create".to_owned(), file(true, format!("#!/bin/bash\nset -eu\n. common.sh\n{script}\n"))),
        ("common.sh".to_owned(), file(false, "words=common\n".to_owned())),
    ];
    let environment =
        [("PATH", "/sbin:/bin:/usr/sbin:/usr/bin"), ("DISK_0_PATH", disk.path().as_str()), ("OSP_A", "b c")];
    CreateSystem {
        os: "raw+small".to_owned(),
        disks: vec![disk.path().clone()],
        onto: BurnDisk {
            name: "raw+small".to_owned(),
            device: disk.path().clone(),
            identity: DiskIdentity::default(),
            size_bytes: 64 << 20,
            sector_bytes: 512,
            grow: None,
            filesystems: Vec::new(),
            taken: BTreeMap::new(),
            added: None,
        },
        environment: environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        chosen: Box::new(SelectedDefinition {
            name: "raw".to_owned(),
            api: 20,
            files: files.into(),
            ..SelectedDefinition::default()
        }),
    }
}

/// Runs the script, and returns its result and the lines that it printed.
fn run_here(create: &CreateSystem, deadline: Duration) -> (Result<()>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().canonicalize().unwrap().join("create");
    let lines = Mutex::new(Vec::new());
    let result = run_create_at(&place, create, deadline, &|line| lines.lock().unwrap().push(line.to_owned()));
    assert_eq!(busy_device_users::list_mounts_below(&place), Vec::<std::path::PathBuf>::new());
    (result, lines.into_inner().unwrap())
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_create_program_sees_only_its_disks() {
    let (disk, other) = (TestLoopDevice::new(64 << 20, 512), TestLoopDevice::new(16 << 20, 512));
    let script = format!(
        "echo $words $OSP_A $0 $PWD $#; env | sed 's/=.*//' | sort | xargs\n\
         [ -b $DISK_0_PATH ]\n[ ! -e {} ]\n\
         for path in /usr/x /etc/x /bin/x; do if (: > $path) 2>/dev/null; then echo wrote $path; fi; done\n\
         : > /tmp/x; : > /var/tmp/x\n\
         for node in $(find /dev -type b); do echo block $node; done\n\
         if mknod /tmp/node b 7 0 2>/dev/null; then echo made a node; fi\n",
        other.path()
    );
    let (result, lines) = run_here(&system(&disk, &script), MINUTE);
    result.unwrap();
    // bash sets the last three variables itself.
    let told = "DISK_0_PATH OSP_A PATH PWD SHLVL _".to_owned();
    assert_eq!(
        lines,
        ["common b c /definition/create /definition 0".to_owned(), told, format!("block {}", disk.path())]
    );
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_new_partitions_get_device_nodes() {
    let disk = TestLoopDevice::new(64 << 20, 512);
    let script = "printf 'size=16M\\nsize=16M\\n' | sfdisk -q --no-reread --no-tell-kernel -X gpt $DISK_0_PATH\n\
                  partx -a $DISK_0_PATH\n\
                  second=${DISK_0_PATH}p2\n\
                  until [ -b $second ]; do sleep 0.1; done\n\
                  mkfs.ext4 -q -L root $second\n\
                  mkdir /tmp/m; mount $second /tmp/m; echo made > /tmp/m/file; umount /tmp/m\n\
                  partx -d --nr 1 $DISK_0_PATH\n\
                  while [ -e ${DISK_0_PATH}p1 ]; do sleep 0.1; done; echo gone";
    let (result, lines) = run_here(&system(&disk, script), MINUTE);
    result.unwrap();
    assert_eq!(lines, ["gone"]);
    let label = linux::process::ToolCommand::new("blkid").args([
        "-p",
        "-s",
        "LABEL",
        "-o",
        "value",
        disk.partition(2).as_str(),
    ]);
    assert_eq!(label.run().unwrap().stdout.trim(), "root");
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_failed_create_program_is_quoted_and_cleaned_up() {
    let disk = TestLoopDevice::new(64 << 20, 512);
    let (result, _) =
        run_here(&system(&disk, "mkdir /tmp/m; mount -t tmpfs x /tmp/m; echo no debootstrap >&2; exit 3"), MINUTE);
    let error = result.unwrap_err().to_string();
    assert!(
        error.starts_with("run `create` of raw+small: `/definition/create` exited with 3: no debootstrap"),
        "{error}"
    );
    let (result, lines) = run_here(&system(&disk, "echo begun; sleep 600 &\nsleep 600"), Duration::from_secs(3));
    let error = result.unwrap_err().to_string();
    assert!(error.contains("did not end within 3 s and was killed: begun"), "{error}");
    assert_eq!(lines[0], "begun");
}

/// Returns the files of a definition that `scripts/compare-ganeti` has unpacked.
fn debians(name: &str) -> model::ganeti_os_definition::DefinitionFiles {
    let folder = std::path::PathBuf::from(std::env::var("DROPHAMMER_DEFINITIONS").unwrap()).join(name);
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        let executable = fs::metadata(&path).unwrap().mode() & 0o100 != 0;
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, DefinitionFile { executable, text: fs::read_to_string(&path).unwrap() })
    };
    fs::read_dir(folder).unwrap().map(read).collect()
}

fn as_ganeti_tells(disk: &TestLoopDevice, name: &str) -> CreateSystem {
    let files = debians(name);
    let chosen =
        Box::new(SelectedDefinition { name: name.to_owned(), api: 20, files, ..SelectedDefinition::default() });
    let instance = model::ganeti_os_definition::GanetiInstance {
        name: "web-1".to_owned(),
        hypervisor: "none".to_owned(),
        disks: vec![model::ganeti_os_definition::GanetiDisk { path: disk.path().to_string(), ..Default::default() }],
        ..Default::default()
    };
    let environment = chosen.create_environment(&instance);
    CreateSystem { os: name.to_owned(), environment, chosen, ..system(disk, "") }
}

/// For this test, `scripts/compare-ganeti` stores a system in the cache of Debian's `create` script. It also configures
/// this script not to partition the disk, because the kernel of the host may not be able to map partitions.
#[test]
#[ignore = "needs root, and Debian's packages: scripts/compare-ganeti"]
fn debians_own_create_makes_its_system() {
    let disk = TestLoopDevice::new(600 << 20, 512);
    let (result, lines) = run_here(&as_ganeti_tells(&disk, "noop"), MINUTE);
    result.unwrap();
    assert_eq!(lines, Vec::<String>::new());
    let (result, lines) = run_here(&as_ganeti_tells(&disk, "debootstrap"), MINUTE);
    println!("debootstrap: create: {result:?} {lines:?}");
    result.unwrap();
    let there = tempfile::tempdir().unwrap();
    let mut mounts = MountStack::new(there.path());
    mounts.mount_at(disk.path().as_str(), "/", "ext4", MountFlags::RDONLY, "").unwrap();
    let read = |path: &str| fs::read_to_string(there.path().join(path)).unwrap();
    assert_eq!((read("etc/hostname").as_str(), read("of-the-cache").as_str()), ("web-1\n", "yes\n"));
    println!("debootstrap: fstab: {}", read("etc/fstab").lines().find(|line| line.starts_with("UUID=")).unwrap());
    mounts.unmount_all().unwrap();
}
