//! Golden tests for distributions whose programs cannot be run in the tests. For each distribution, a tree with the
//! files of its packages (testdata/distributions/NAME.files) is finished for a machine with two mirrored disks, once
//! with UEFI and once with BIOS. The result is compared with NAME.txt.

use super::distribution::Distribution;
use super::initramfs::cpio;
use super::metal_os_installer_settings::OsInstallerSettings;
use super::preserved_esps::PreservedEsps;
use super::testing::capture_log;
use super::{boot_setup, host_identity, machine_boot_requirements, network_config};
use crate::NewRoot;
use crate::chroot::TargetRunner;
use linux::process::{CommandError, ToolOutput};
use linux::storage::boot_loader_area::BiosBootLoader;
use model::allocation::Allocation;
use model::device_name::DevicePath;
use model::inventory::{FirmwareType, Nic};
use model::layout::RaidLevel;
use netconfig::NetworkConfig;
use operations::{
    BootDisk, ByteRange, Esp, FinishInputs, FinishedArray, MachineFiles, PlanAssignment, RequestedNetwork,
    SystemFilesystem,
};
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;
use tempfile::TempDir;
use uuid::Uuid;

fn place(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/distributions").join(name)
}

/// Creates files and symlinks from lines of the form `PATH`, `PATH: CONTENT` or `PATH -> TARGET`. The content `@512`
/// denotes a boot sector.
fn unpack(text: &str) -> (TempDir, NewRoot) {
    let dir = tempfile::tempdir().unwrap();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (path, content, target) = match (line.split_once(" -> "), line.split_once(": ")) {
            (Some((path, target)), None) => (path, "", Some(target)),
            (_, Some((path, content))) => (path, content, None),
            (None, None) => (line, "", None),
        };
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let sector = || [&[b'b'; 510][..], &[0x55, 0xaa]].concat();
        match target {
            Some(target) => symlink(target, path).unwrap(),
            None if content == "@512" => fs::write(path, sector()).unwrap(),
            None => fs::write(path, content.replace("\\n", "\n").replace("\\0", "\0")).unwrap(),
        }
    }
    let root = NewRoot::open(dir.path()).unwrap();
    (dir, root)
}

/// Mock of the target's programs: records each run, and creates the requested output file.
struct Tools<'a>(&'a NewRoot, Mutex<Vec<String>>);

impl TargetRunner for Tools<'_> {
    fn run_program(&self, program: &str, args: &[&str], _: Duration) -> Result<ToolOutput, CommandError> {
        self.1.lock().unwrap().push(format!("{program} {}", args.join(" ")));
        let has = ["lib/modules/ext4.ko", "lib/modules/raid1.ko", "sbin/mdadm"];
        let dracut = program.ends_with("dracut").then_some("lib/dracut/x");
        let initramfs = cpio(&has.into_iter().chain(dracut).map(|path| (path, "")).collect::<Vec<_>>());
        let made = args.iter().filter(|arg| arg.starts_with("/boot/"));
        for path in made.filter(|path| path.contains("init") || path.ends_with(".img") || path.ends_with(".efi")) {
            let content = if path.contains("init") { initramfs.clone() } else { vec![b'c'; 1000] };
            self.0.write_file(path, 0o600, &content).unwrap();
        }
        Ok(ToolOutput { stdout: String::new() })
    }

    fn write_bios_boot_loader(&self, disk: &DevicePath, loader: BiosBootLoader) -> common::error::Result<()> {
        self.1.lock().unwrap().push(format!("boot loader of {} bytes to {disk}", loader.core.len()));
        Ok(())
    }
}

/// Machine with two disks, and root and ESP on mirrors.
fn finishing(firmware: FirmwareType) -> FinishInputs {
    let array = |name: &str, number, metadata: &str| FinishedArray {
        device: format!("/dev/md/{name}").into(),
        uuid: Uuid::from_u128(number),
        level: RaidLevel::Raid1,
        metadata: metadata.into(),
    };
    let esp = |device: &str| Esp {
        device: device.into(),
        array: Some("/dev/md/efi".into()),
        path: Some("/boot/efi".into()),
        ..Esp::default()
    };
    let disk = |device: &str| BootDisk {
        device: device.into(),
        gap: Some(ByteRange { start: 34 * 512, length: 2014 * 512 }),
        partly_kept: false,
    };
    let document = json!({"version": 2, "ethernets": {"lan": {"match": {"macaddress": "52:54:00:00:00:01"},
        "addresses": ["192.0.2.7/24"], "routes": [{"to": "default", "via": "192.0.2.1"}]}}});
    let nics = vec![Nic { name: "eth0".into(), mac: "52:54:00:00:00:01".into(), link: true, ..Nic::default() }];
    let allocation = Allocation { hostname: "web-1".into(), ..Allocation::default() };
    let assigned = PlanAssignment { allocation, consoles: vec!["ttyS0,115200n8".into()] };
    FinishInputs {
        firmware,
        root: SystemFilesystem {
            uuid: "r-uuid".into(),
            arrays: vec![Uuid::from_u128(1)],
            ..SystemFilesystem::default()
        },
        arrays: vec![array("root", 1, "1.2"), array("efi", 2, "1.0")],
        esps: if firmware == FirmwareType::Uefi { vec![esp("/dev/none1"), esp("/dev/none2")] } else { vec![] },
        boot_disks: vec![disk("/dev/none1"), disk("/dev/none2")],
        network: RequestedNetwork::Described(NetworkConfig::parse(&document).unwrap()),
        files: Box::new(MachineFiles { assigned, nics, ..MachineFiles::default() }),
        ..FinishInputs::default()
    }
}

fn files(dir: &Path, below: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(below).unwrap().flatten() {
        let path = entry.path();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files(dir, &path, found);
        } else if kind.is_file() {
            found.push((path.strip_prefix(dir).unwrap().display().to_string(), fs::read(&path).unwrap()));
        }
    }
}

fn all_files(root: &NewRoot) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    files(root.path(), root.path(), &mut found);
    found.sort();
    found
}

/// Returns a text report of all changes to the tree.
fn story(tree: &str, firmware: FirmwareType) -> String {
    let (_dir, root) = unpack(tree);
    let before = all_files(&root);
    let finishing = finishing(firmware);
    let (distribution, overrides) = (Distribution::detect(&root), OsInstallerSettings::read_settings(&root).unwrap());
    let wants = machine_boot_requirements::collect_boot_requirements(&finishing, &distribution, &overrides, "r-uuid");
    let tools = Tools(&root, Mutex::default());
    let (made, lines) = capture_log(|say| {
        let made = boot_setup::find_boot_components(&root, &wants, say)
            .and_then(|found| boot_setup::make_bootable(&root, &wants, found, &tools, say));
        host_identity::reset_identity(&root, "web-1", &overrides, &PreservedEsps::default()).unwrap();
        let enabling =
            network_config::write_network_config(&root, &finishing.network, &finishing.files.nics, say).unwrap();
        enabling.iter().for_each(|enabling| network_config::enable_network(enabling, &tools).unwrap());
        if host_identity::needs_host_keys(&root, &distribution, false) {
            host_identity::generate_host_keys(&root, &tools).unwrap();
        }
        made
    });
    let mut text = format!("{firmware:?}: {} {} {}\n", distribution.family.name, distribution.id, distribution.version);
    text.extend(distribution.doubt.iter().map(|doubt| format!("  doubt: {doubt}\n")));
    // The durations in the lines are removed, because they vary.
    text.extend(lines.iter().filter(|line| !line.contains(" took ")).map(|line| format!("  says: {line}\n")));
    text.extend(tools.1.lock().unwrap().iter().map(|line| format!("  runs: {line}\n")));
    match made {
        Err(error) => text.push_str(&format!("  fails: {error}\n")),
        Ok(made) => {
            let info = made.info;
            text.push_str(&format!("  boots: {} {}\n         {}\n", info.kernel, info.initrd, info.cmdline));
            let entries = made.entries.iter();
            text.extend(
                entries.map(|entry| format!("  entry: ESP {} {} {}\n", entry.esp, entry.loader, entry.arguments)),
            );
        }
    }
    let new = all_files(&root).into_iter().filter(|file| !before.contains(file));
    text.extend(new.map(|(path, content)| format!("  writes: /{path}, {} bytes\n", content.len())));
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[test]
fn setup_of_recorded_distributions_matches_golden_files() {
    for name in ["fedora", "almalinux", "opensuse", "arch", "arch-systemd-boot", "alpine"] {
        let tree = fs::read_to_string(place(&format!("{name}.files"))).unwrap();
        let found = [FirmwareType::Uefi, FirmwareType::Bios].map(|firmware| story(&tree, firmware)).join("\n");
        let file = place(&format!("{name}.txt"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&file, &found).unwrap();
        }
        let expected = fs::read_to_string(&file).unwrap_or_default();
        assert!(found == expected, "{name} is not up to date; UPDATE_GOLDEN=1 cargo test writes it\n{found}");
    }
}
