//! Disks of a machine as QEMU devices: buses, serial numbers, second paths, bad blocks, and hotplug.

use crate::qemu_machine::{BootMethod, Chassis};
use crate::scenario::{Bus, Disk};
use crate::write_log;
use crate::write_witness::WriteWitness;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Adds all disks of this boot. Disks that the witness watches have a log. In the inspection ramdisk, each disk exists
/// once and has no special properties, because this ramdisk must be able to read and write everything.
pub fn add_disks(command: &mut Command, chassis: &Chassis, boot: &BootMethod, witness: Option<&WriteWitness>) {
    let plain = boot.is_inspection();
    let first = chassis.disks.iter().position(|disk| disk.boot).unwrap_or(0);
    let is_stick = |disk: &Disk| disk.usb && !plain;
    if chassis.disks.iter().any(|disk| disk.bus == Bus::Scsi && !is_stick(disk)) {
        command.args(["-device", "virtio-scsi-pci,id=scsi"]);
    }
    if chassis.disks.iter().any(|disk| is_stick(disk)) {
        command.args(["-device", "qemu-xhci,id=usb"]);
    }
    let mut sata_ports = 0..6;
    for (index, disk) in chassis.disks.iter().enumerate() {
        let port = (chassis.hotplug && disk.bus == Bus::Virtio).then(|| port_option(disk));
        let model = match disk.usb && plain {
            true => scsi_options(chassis, disk),
            false => device_model(chassis, disk, port.as_deref(), &mut sata_ports),
        };
        if let Some(port) = &port {
            let number = index + 1;
            command.arg("-device").arg(format!("pcie-root-port,id={port},chassis={number},slot={number}"));
        }
        // The port of an absent disk stays empty.
        if chassis.absent.contains(&disk.name) || is_pulled(disk, boot) || (plain && disk.path_of.is_some()) {
            continue;
        }
        let log = witness.and_then(|witness| witness.find_log(&disk.name));
        let drive = drive_options(chassis, disk, boot, log);
        command.arg("-drive").arg(format!("if=none,id=drive{index},{drive}"));
        let mut device = format!("{model},drive=drive{index}");
        if chassis.hotplug {
            device += &format!(",id={}", device_id(disk));
        }
        // QEMU before 9.0 corrupts the log if a write of zeros overlaps another write ("Fix a bug in handling zero
        // writes"), so the guest must write zeros itself. A merged request may have 1024 segments (IOV_MAX), and fails
        // with the additional segment of the log.
        if log.is_some() && model.starts_with("virtio-blk") {
            device += ",write-zeroes=off,request-merging=off";
        }
        // If OVMF does not support one entry of the boot order, it ignores the whole order and tries the network first.
        // It does not support entries for these devices.
        if !model.starts_with("nvme-ns") {
            let boot_place = if index == first { 1 } else { index + 2 };
            device += &format!(",bootindex={boot_place}");
        }
        command.arg("-device").arg(device);
    }
}

/// Returns the options of a disk's drive: format, cache, limits, and file. The disk has a log if the witness watches
/// it.
fn drive_options(chassis: &Chassis, disk: &Disk, boot: &BootMethod, log: Option<&Path>) -> String {
    let plain = boot.is_inspection();
    let on_copy = matches!(boot, BootMethod::DiskWithout(_) | BootMethod::Direct { on_copy: true, .. });
    let snapshot = if on_copy { "on" } else { "off" };
    // Data that the machine has flushed must survive the end of QEMU. A raw file contains all writes, but the tables of
    // an overlay are only in QEMU's memory until a flush.
    let (format, cache) = if chassis.overlays { ("qcow2", "writeback") } else { ("raw", "unsafe") };
    let kind = log.map_or_else(|| format!("format={format}"), |log| write_log::blklogwrites_options(log, format));
    let mut drive = format!("{kind},cache={cache},discard=unmap,snapshot={snapshot}");
    if let Some(mib) = disk.throttle_mib {
        drive += &format!(",throttling.bps-total={}", mib * 1024 * 1024);
    }
    if disk.read_only && !plain {
        drive += ",readonly=on";
    }
    let child = if log.is_some() { "file.file" } else { "file" };
    format!("{drive},{}", describe_file(chassis, disk, plain, child))
}

/// Returns whether the disk is removed. All paths to a removed disk are removed.
fn is_pulled(disk: &Disk, boot: &BootMethod) -> bool {
    matches!(boot, BootMethod::DiskWithout(name) if *name == disk.name || disk.path_of.as_deref() == Some(name))
}

/// Returns the file in QEMU's notation. Bad blocks require a filter in front of it. A disk with two paths requires that
/// QEMU does not lock the file. `child` is the name of the file in the options of the drive.
fn describe_file(chassis: &Chassis, disk: &Disk, plain: bool, child: &str) -> String {
    let file = chassis.disk_file(disk).display().to_string();
    let lock = |child: &str| match has_two_paths(chassis, disk) {
        true => format!(",{child}.locking=off"),
        false => String::new(),
    };
    if !disk.errors_at_mib.is_empty() && !plain {
        let rules = errors_file(chassis.folder, disk).display().to_string();
        let image = format!("{child}.image");
        let lock = lock(&image);
        return format!(
            "{child}.driver=blkdebug,{child}.config={rules},{image}.driver=file{lock},{image}.filename={file}"
        );
    }
    format!("{child}.driver=file{},{child}.filename={file}", lock(child))
}

/// Returns the path of the file with the rules of QEMU's filter.
pub fn errors_file(folder: &Path, disk: &Disk) -> PathBuf {
    folder.join(format!("{}.errors", disk.name))
}

/// Returns rules for QEMU's filter, by which reads and writes of one of these MiB fail. A discard succeeds, as on real
/// disks with bad blocks. A rule applies to one sector. One rule for each 4 KiB is sufficient, because the page cache
/// always requests at least 4 KiB.
pub fn error_rules(disk: &Disk) -> String {
    const SECTORS_OF_MIB: u64 = 2048;
    let sectors =
        disk.errors_at_mib.iter().flat_map(|mib| (mib * SECTORS_OF_MIB..(mib + 1) * SECTORS_OF_MIB).step_by(8));
    let rule = |sector: u64, what: &str| {
        format!("[inject-error]\nevent = \"none\"\niotype = \"{what}\"\nerrno = \"5\"\nsector = \"{sector}\"\n")
    };
    sectors.flat_map(|sector| ["read", "write", "write-zeroes"].map(|what| rule(sector, what))).collect()
}

/// Returns the disk to which a path leads. For a disk itself, returns the disk.
pub fn find_disk<'a>(chassis: &'a Chassis, disk: &'a Disk) -> &'a Disk {
    let named = |name: &String| chassis.machine.disks.iter().find(|other| other.name == *name);
    disk.path_of.as_ref().and_then(named).unwrap_or(disk)
}

fn has_two_paths(chassis: &Chassis, disk: &Disk) -> bool {
    let of = |other: &Disk| other.path_of.as_deref() == Some(disk.name.as_str());
    disk.path_of.is_some() || chassis.machine.disks.iter().any(of)
}

/// Returns the serial number. A new disk in the same slot has another serial number, unless it has none.
fn serial_number(chassis: &Chassis, disk: &Disk) -> String {
    let disk = find_disk(chassis, disk);
    let first = disk.serial.clone().unwrap_or_else(|| format!("DH-{}", disk.name.to_uppercase()));
    match chassis.replaced.get(&disk.name) {
        Some(count) if !first.is_empty() => format!("{first}-{}", count + 1),
        _ => first,
    }
}

/// Returns the serial number that the machine sees. An additional namespace has the serial number of its controller.
pub fn shown_serial(chassis: &Chassis, disk: &Disk) -> String {
    let first = disk.name.rsplit_once('n').map(|(controller, _)| format!("{controller}n1"));
    let is_first = |other: &&Disk| disk.bus == Bus::Nvme && first.as_ref() == Some(&other.name);
    serial_number(chassis, chassis.machine.disks.iter().find(is_first).unwrap_or(disk))
}

/// Returns the property with the serial number. Without this property, QEMU generates a serial number for some devices,
/// and a SCSI disk reports the name of QEMU's drive.
fn serial_property(chassis: &Chassis, disk: &Disk) -> String {
    let serial = serial_number(chassis, disk);
    match (serial.is_empty(), disk.bus) {
        (true, Bus::Virtio) => String::new(),
        (true, Bus::Scsi) if !disk.usb => ",device_id=".to_owned(),
        _ => format!(",serial={serial}"),
    }
}

fn device_model(chassis: &Chassis, disk: &Disk, port: Option<&str>, sata_ports: &mut std::ops::Range<u32>) -> String {
    let (sectors, serial) = (sector_options(disk), serial_property(chassis, disk));
    let bus = port.map(|port| format!("bus={port},")).unwrap_or_default();
    match disk.bus {
        Bus::Virtio => format!("virtio-blk-pci,{bus}{sectors}{serial}"),
        Bus::Nvme => match disk.name.rsplit_once('n') {
            // An additional namespace has the serial number of its controller.
            Some((controller, number)) if number != "1" => format!("nvme-ns,bus={controller},nsid={number},{sectors}"),
            Some((controller, _)) => format!("nvme,id={controller},{sectors}{serial}"),
            None => format!("nvme,{sectors}{serial}"),
        },
        Bus::Scsi if disk.usb => format!("usb-storage,bus=usb.0,removable=on,{sectors}{serial}"),
        Bus::Scsi => scsi_options(chassis, disk),
        Bus::Sata => format!("ide-hd,bus=ide.{}{serial}", sata_ports.next().unwrap_or(6)),
    }
}

fn sector_options(disk: &Disk) -> String {
    format!("logical_block_size={0},physical_block_size={0}", disk.sector)
}

/// Returns the SCSI options. Both paths to a disk report the same serial number and world wide name; a new disk reports
/// different ones.
fn scsi_options(chassis: &Chassis, disk: &Disk) -> String {
    let mut paths = String::new();
    if has_two_paths(chassis, disk) {
        let real = find_disk(chassis, disk);
        let place = chassis.machine.disks.iter().position(|other| other.name == real.name).unwrap_or_default();
        let count = chassis.replaced.get(&real.name).copied().unwrap_or_default();
        paths = format!(",wwn=0x5000c500{place:04x}{count:04x},share-rw=on");
    }
    format!("scsi-hd,bus=scsi.0,{}{}{paths}", sector_options(disk), serial_property(chassis, disk))
}

fn port_option(disk: &Disk) -> String {
    format!("port-{}", disk.name)
}

pub fn device_id(disk: &Disk) -> String {
    format!("disk-{}", disk.name)
}

/// Returns the commands that plug `disk` into the slot of `place`. The log of the disk is continued.
pub fn plug_in(chassis: &Chassis, disk: &Disk, place: &Disk, log: Option<&Path>) -> [(&'static str, Value); 2] {
    let node = format!("again-{}", disk.name);
    let kind = if chassis.overlays { "qcow2" } else { "raw" };
    let file = json!({"driver": "file", "filename": chassis.disk_file(disk)});
    let mut drive = json!({"driver": kind, "file": file});
    if let Some(log) = log {
        let (interval, append) = ("log-super-update-interval", "log-append");
        let log = json!({"driver": "file", "filename": log});
        drive = json!({"driver": "blklogwrites", "file": drive, "log": log, interval: 1, append: true});
    }
    drive["node-name"] = json!(node);
    drive["discard"] = json!("unmap");
    drive["cache"] = json!({"no-flush": true});
    // SATA ports do not support hotplug, so SATA disks are excluded.
    let model = device_model(chassis, disk, Some(&port_option(place)), &mut (0..0));
    let (driver, properties) = model.split_once(',').unwrap_or((&model, ""));
    let mut device: serde_json::Map<String, Value> = properties
        .split(',')
        .filter_map(|property| property.split_once('='))
        .map(|(k, v)| (k.into(), v.into()))
        .collect();
    device.extend([("driver", driver), ("id", &device_id(disk)), ("drive", &node)].map(|(k, v)| (k.into(), v.into())));
    [("blockdev-add", drive), ("device_add", device.into())]
}

/// Tests that each path has a separate log, and that neither locks the file.
fn two_paths_have_two_logs() {
    let odd = "- {name: sda, bus: scsi, size_mib: 9, serial: S, errors_at_mib: [3]}\n- {name: sdb, bus: scsi, path_of: sda}\n";
    let text = format!("about: x\nfirmware: bios\nlayout: x\nexpect: {{}}\ndisks:\n{odd}");
    let scenario = crate::scenario_parser::parse(&text, "x".into(), ".".into()).expect("a scenario");
    let folder = write_log::test_folder("plugs");
    let chassis = Chassis::new(&scenario.machine, &folder);
    let (boot, console) = (BootMethod::Network(&folder), folder.join("console"));
    crate::host_tools::write(&console, "").expect("written");
    let witness = WriteWitness::start(&chassis, "x", &boot, &console).expect("a witness");
    let mut command = Command::new("qemu");
    add_disks(&mut command, &chassis, &boot, witness.as_ref());
    let found: Vec<String> = command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let (found, at) = (found.join("\n"), folder.display());
    for words in [
        format!("log.filename={at}/x-sda.writes,"),
        format!("log.filename={at}/x-sdb.writes,"),
        format!("file.file.image.driver=file,file.file.image.locking=off,file.file.image.filename={at}/sda.raw"),
        format!("file.file.driver=file,file.file.locking=off,file.file.filename={at}/sda.raw"),
    ] {
        assert!(found.contains(&words), "{words}: {found}");
    }
    drop(witness);
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// Returns QEMU's arguments for a machine with these disks, one per line. `change` modifies the machine first.
fn build_arguments(disks: &str, boot: &BootMethod, change: impl Fn(&mut Chassis)) -> String {
    let text = format!("about: x\nfirmware: bios\nlayout: x\nexpect: {{}}\ndisks:\n{disks}");
    let scenario = crate::scenario_parser::parse(&text, "x".into(), ".".into()).expect("a scenario");
    let mut chassis = Chassis::new(&scenario.machine, Path::new("/f"));
    change(&mut chassis);
    let mut command = Command::new("qemu");
    add_disks(&mut command, &chassis, boot, None);
    command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect::<Vec<_>>().join("\n")
}

/// Tests the options for each type of disk, and that disks have no special properties in the inspection ramdisk.
pub fn self_test() {
    two_paths_have_two_logs();
    let neutral = BootMethod::Direct {
        kernel: Path::new("k"),
        initrd: Path::new("i"),
        cmdline: "",
        on_copy: false,
        network: false,
    };
    let none = "- {name: sda, bus: scsi, size_mib: 1, serial: ''}\n- {name: vda, bus: virtio, size_mib: 1, serial: ''}\n\
                - {name: sdb, bus: sata, size_mib: 1, serial: ''}\n- {name: nvme0n1, bus: nvme, size_mib: 1, serial: ''}\n";
    let found = build_arguments(none, &BootMethod::Disk, |chassis| {
        chassis.replaced.insert("vda".to_owned(), 1);
    });
    for words in [
        "scsi-hd,bus=scsi.0,logical_block_size=512,physical_block_size=512,device_id=,drive=drive0",
        "virtio-blk-pci,logical_block_size=512,physical_block_size=512,drive=drive1",
        "ide-hd,bus=ide.0,serial=,drive=drive2",
        "nvme,id=nvme0,logical_block_size=512,physical_block_size=512,serial=,drive=drive3",
    ] {
        assert!(found.contains(words), "{words}: {found}");
    }

    let odd = "- {name: sda, bus: scsi, size_mib: 9, serial: S, errors_at_mib: [3]}\n- {name: sdb, bus: scsi, path_of: sda}\n\
               - {name: sdc, bus: scsi, usb: true, size_mib: 1}\n- {name: vda, bus: virtio, size_mib: 1, read_only: true}\n";
    let found = build_arguments(odd, &BootMethod::Disk, |_| {});
    for words in [
        "file.driver=blkdebug,file.config=/f/sda.errors,file.image.driver=file,file.image.locking=off,file.image.filename=/f/sda.raw\n",
        "snapshot=off,file.driver=file,file.locking=off,file.filename=/f/sda.raw\n",
        "qemu-xhci,id=usb\n",
        "usb-storage,bus=usb.0,removable=on,logical_block_size=512,physical_block_size=512,serial=DH-SDC,drive=drive2",
        "snapshot=off,readonly=on,file.driver=file,file.filename=/f/vda.raw\n",
    ] {
        assert!(found.contains(words), "{words}: {found}");
    }
    assert_eq!(found.matches("serial=S,wwn=0x5000c50000000000,share-rw=on").count(), 2, "{found}");
    let looked_at = build_arguments(odd, &neutral, |_| {});
    for words in ["blkdebug", "usb-", "xhci", "readonly", "drive1"] {
        assert!(!looked_at.contains(words), "{words}: {looked_at}");
    }
    assert!(looked_at.contains("serial=DH-SDC,drive=drive2"), "{looked_at}");
    let pulled = build_arguments(odd, &BootMethod::DiskWithout("sda"), |_| {});
    assert!(!pulled.contains("sda.raw") && pulled.contains("sdc.raw"), "{pulled}");
    let one_path = build_arguments(odd, &BootMethod::Disk, |chassis| chassis.absent.push("sdb".to_owned()));
    assert!(one_path.contains("sda.raw") && !one_path.contains("drive1"), "{one_path}");

    let two = "- {name: vda, bus: virtio, size_mib: 1}\n- {name: vdb, bus: virtio, size_mib: 1, serial: B}\n";
    let found = build_arguments(two, &BootMethod::Disk, |chassis| chassis.hotplug = true);
    assert!(found.contains("pcie-root-port,id=port-vdb,chassis=2,slot=2\n"), "{found}");
    assert!(found.contains("virtio-blk-pci,bus=port-vdb,"), "{found}");
    assert!(found.contains("serial=B,drive=drive1,id=disk-vdb,bootindex=3"), "{found}");
    let text = format!("about: x\nfirmware: bios\nlayout: x\nexpect: {{}}\ndisks:\n{two}");
    let scenario = crate::scenario_parser::parse(&text, "x".into(), ".".into()).expect("a scenario");
    let chassis = Chassis::new(&scenario.machine, Path::new("/f"));
    let [(_, drive), (_, device)] = plug_in(&chassis, chassis.disks[1], chassis.disks[0], None);
    assert_eq!(drive["file"]["filename"], "/f/vdb.raw");
    let (bus, serial, id) = (&device["bus"], &device["serial"], &device["id"]);
    assert_eq!((bus, serial, id), (&json!("port-vda"), &json!("B"), &json!("disk-vdb")));
    assert_eq!(device["drive"], drive["node-name"]);

    let [(_, drive), _] = plug_in(&chassis, chassis.disks[1], chassis.disks[0], Some(Path::new("/f/x.writes")));
    assert_eq!(
        (&drive["file"]["file"]["filename"], &drive["log"]["filename"]),
        (&json!("/f/vdb.raw"), &json!("/f/x.writes"))
    );

    let spaces = "- {name: nvme0n1, bus: nvme, size_mib: 1, serial: N}\n- {name: nvme0n2, bus: nvme, size_mib: 1}\n\
                  - {name: sdn2, bus: scsi, size_mib: 1}\n";
    let scenario = format!("about: x\nfirmware: bios\nlayout: x\nexpect: {{}}\ndisks:\n{spaces}");
    let scenario = crate::scenario_parser::parse(&scenario, "x".into(), ".".into()).expect("a scenario");
    let chassis = Chassis::new(&scenario.machine, Path::new("/f"));
    let shown: Vec<String> = chassis.disks.iter().map(|disk| shown_serial(&chassis, disk)).collect();
    assert_eq!(shown, ["N", "N", "DH-SDN2"]);

    let rules = error_rules(chassis.disks[0]);
    assert_eq!(rules, "");
    let mut scenario = crate::scenario_parser::parse(&text, "x".into(), ".".into()).expect("a scenario");
    scenario.machine.disks[0].errors_at_mib.push(3);
    let rules = error_rules(&scenario.machine.disks[0]);
    assert!(rules.contains("\"read\"\nerrno = \"5\"\nsector = \"6144\"\n") && rules.contains("\"8184\""), "{rules}");
    assert!(!rules.contains("\"8192\"") && !rules.contains("\"6143\""));
    assert_eq!(rules.matches("[inject-error]").count(), 3 * 256);
}
