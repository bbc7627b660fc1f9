//! Tests with a directory instead of efivarfs: the logged lines, and the variables that are written.

use super::*;
use linux::efi::load_option::testing::{PCI, mac_node, option};
use linux::efi::variables::{self, testing, variable_path};
use model::allocation::BootOrder;
use operations::Esp;
use std::cell::RefCell;
use std::fs;

pub(super) fn esp(device: &str, guid: u128) -> Esp {
    Esp {
        disk: device.trim_end_matches(char::is_numeric).into(),
        device: device.into(),
        number: 1,
        guid: uuid::Uuid::from_u128(guid),
        first_lba: 2048,
        sectors: 532_480,
        ..Esp::default()
    }
}

fn planned() -> WriteBootEntries {
    let esps = vec![esp("/dev/sda1", 1), esp("/dev/sdb1", 2)];
    WriteBootEntries {
        label: "drophammer: web-1".into(),
        esps,
        order: BootOrder::Pxe,
        preserved: Vec::new(),
        unless_installer: false,
    }
}

fn wanted() -> Vec<BootEntryRequest> {
    let on = |esp| BootEntryRequest { esp, loader: r"\EFI\debian\shimx64.efi".into(), ..BootEntryRequest::default() };
    vec![on(0), on(1)]
}

fn write_logged(directory: &Path, planned: &WriteBootEntries, wanted: &[BootEntryRequest]) -> Vec<String> {
    let lines = RefCell::new(Vec::new());
    write_boot_entries(directory, planned, wanted, &|line| lines.borrow_mut().push(line.to_owned())).unwrap();
    lines.into_inner()
}

#[test]
fn entries_of_two_disks_are_added_only_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    testing::write(path, "BootOrder", &[0, 0, 1, 0]);
    testing::write(path, "BootCurrent", &[0, 0]);
    testing::write(path, "Boot0000", &option(1, "UEFI PXEv4", &[PCI, &mac_node([2, 0, 0, 0, 0, 1])]).to_bytes());
    testing::write(path, "Boot0001", &option(1, "drophammer: old", &[PCI]).to_bytes());
    let expected = [
        "BootCurrent: 0000",
        "BootOrder: 0000,0001,0002",
        "Boot0000* UEFI PXEv4  Pci(0x2,0x0)/MAC(020000000001,1)",
        r"Boot0001* drophammer: web-1  HD(1,GPT,00000000-0000-0000-0000-000000000001,0x800,0x82000)/File(\EFI\debian\shimx64.efi)",
        r"Boot0002* drophammer: web-1  HD(1,GPT,00000000-0000-0000-0000-000000000002,0x800,0x82000)/File(\EFI\debian\shimx64.efi)",
    ];
    assert_eq!(write_logged(path, &planned(), &wanted()), expected);
    let time = || fs::metadata(variable_path(path, "BootOrder")).unwrap().modified().unwrap();
    let before = time();
    let again = write_logged(path, &planned(), &wanted());
    assert_eq!(again[0], "boot entries: already up to date");
    assert_eq!(&again[1..], expected);
    assert_eq!(time(), before);
}

/// Another entry of drophammer belongs to a preserved system.
#[test]
fn numbers_of_stored_entries_are_returned() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    testing::write(path, "BootOrder", &[0, 0]);
    let other = LoadOption::for_file("drophammer: db-1", &esp("/dev/sdc1", 9), r"\EFI\debian\grubx64.efi", "").unwrap();
    testing::write(path, "Boot0000", &other.to_bytes());
    let planned = WriteBootEntries { preserved: vec![uuid::Uuid::from_u128(9)], ..planned() };
    let write = || write_boot_entries(path, &planned, &wanted(), &|_| ()).unwrap();
    assert_eq!(write(), [1, 2]);
    assert_eq!(write(), [1, 2], "the entries are already up to date");
    fs::remove_file(variable_path(path, "Boot0002")).unwrap();
    std::os::unix::fs::symlink("/dev/full", variable_path(path, "Boot0002")).unwrap();
    // The second entry gets another number, because the firmware lists a variable with this one.
    assert_eq!(write(), [1, 3]);
    assert_eq!(write_boot_entries(&path.join("no"), &planned, &wanted(), &|_| ()).unwrap(), Vec::<u16>::new());
}

/// The ESP lacks a boot loader at the fallback path, so the firmware can start the system only through an entry.
#[test]
fn unwritable_required_entry_is_an_error() {
    let stub = [BootEntryRequest { arguments: "root=UUID=1".into(), required: true, ..wanted()[0].clone() }];
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let write = || write_boot_entries(path, &planned(), &stub, &|_| ()).map_err(|error| error.to_string());
    let refused = |says: &str| {
        let error = write().unwrap_err();
        assert!(error.starts_with("boot entries: ") && error.contains(says), "{error}");
        assert!(
            error.ends_with(r"fallback path \EFI\BOOT; install GRUB or systemd-boot there in the image"),
            "{error}"
        );
    };
    refused("found no EFI variables in /");
    testing::write(path, "Timeout", &[5, 0]);
    std::os::unix::fs::symlink("/dev/null", variable_path(path, "BootOrder")).unwrap();
    refused("cannot read BootOrder");
    fs::remove_file(variable_path(path, "BootOrder")).unwrap();
    testing::write(path, "BootOrder", &[9, 0]);
    assert_eq!(write(), Ok(vec![0]));
}

#[test]
fn unwritable_entries_cause_one_warning() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for nothing in [path, &path.join("no")] {
        let lines = write_logged(nothing, &planned(), &wanted());
        assert!(lines.len() == 1 && lines[0].contains("no EFI variables in /"), "{lines:?}");
        assert!(lines[0].starts_with("WARNING: ") && lines[0].contains("boots from the fallback path"), "{lines:?}");
    }
    fs::write(variable_path(path, "BootOrder"), b"").unwrap();
    let lines = write_logged(path, &planned(), &wanted());
    assert!(lines.len() == 1 && lines[0].contains("cannot read BootOrder"), "{lines:?}");
    assert_eq!(fs::read_dir(path).unwrap().count(), 1);

    fs::remove_file(variable_path(path, "BootOrder")).unwrap();
    std::os::unix::fs::symlink("/dev/full", variable_path(path, "BootOrder")).unwrap();
    // The symlink makes the variable unreadable, so it is not changed.
    assert!(write_logged(path, &planned(), &wanted())[0].contains("cannot read BootOrder"));
    fs::remove_file(variable_path(path, "BootOrder")).unwrap();
    testing::write(path, "Timeout", &[5, 0]);
    let strange =
        [BootEntryRequest { esp: 7, loader: "x".into(), ..BootEntryRequest::default() }, BootEntryRequest::default()];
    let lines = write_logged(path, &planned(), &[&wanted()[..], &strange].concat());
    assert!(
        lines[0].contains("cannot create an entry for x: the entry is for the EFI system partition with the index 8, but the machine has only 2"),
        "{lines:?}"
    );
    assert!(lines[1].contains("cannot create an entry for  on ESP /dev/"), "{lines:?}");
    assert_eq!(lines[3], "BootOrder: 0000,0001");
}

fn efibootmgr(arguments: &[&str]) -> String {
    let stdout = linux::process::ToolCommand::new("efibootmgr").args(arguments).run().unwrap().stdout;
    println!("# efibootmgr {}\n{stdout}", arguments.join(" "));
    stdout
}

/// Returns the variables of a test machine's firmware, which does not contain entries of drophammer yet.
fn firmware() -> (&'static Path, BootVariables) {
    linux::storage::vm_test_disks::assert_test_machine();
    let path = Path::new(VARIABLES);
    let before = BootVariables::read(path).unwrap();
    assert!(!before.order.is_empty() && !before.to_string().contains("drophammer"), "{before}");
    (path, before)
}

/// Removes the entries that are not in `before`, and restores the boot order.
fn forget(path: &Path, before: &BootVariables) {
    let after = BootVariables::read(path).unwrap();
    let new = after.entries.keys().filter(|number| !before.entries.contains_key(number));
    new.for_each(|number| variables::remove_variable(path, &variables::entry_name(*number)).unwrap());
    let order: Vec<u8> = before.order.iter().flat_map(|number| number.to_le_bytes()).collect();
    variables::write_variable(path, "BootOrder", &order).unwrap();
    assert_eq!(&BootVariables::read(path).unwrap(), before);
}

#[test]
#[ignore = "needs a machine of its own, with UEFI"]
fn vm_uefi_efibootmgr_reads_and_writes_the_same_entries() {
    let (path, before) = firmware();
    assert!(efibootmgr(&["-v"]).contains("BootOrder: "));
    write_logged(path, &planned(), &wanted()).iter().for_each(|line| println!("{line}"));
    let read = efibootmgr(&["-v"]);
    for guid in [1, 2].map(uuid::Uuid::from_u128) {
        let entry = format!("drophammer: web-1\tHD(1,GPT,{guid},0x800,0x82000)/File(\\EFI\\debian\\shimx64.efi)");
        assert!(read.contains(&entry), "{read}");
    }
    let after = BootVariables::read(path).unwrap();
    assert!(before.entries.iter().all(|(number, value)| after.entries.get(number) == Some(value)), "{after}");
    assert_eq!(after.entries.len(), before.entries.len() + 2);
    assert_eq!(write_logged(path, &planned(), &wanted())[0], "boot entries: already up to date");
    let disk = WriteBootEntries { order: BootOrder::Disk, ..planned() };
    write_logged(path, &disk, &wanted()[1..]);
    let one = BootVariables::read(path).unwrap();
    assert_eq!(one.entries.len(), before.entries.len() + 1);
    assert_eq!(one.order.len(), before.order.len() + 1);
    assert!(one.entries[&one.order[0]] == after.entries[&one.order[0]], "{one}");

    let disks = linux::storage::vm_test_disks::TestDisks::take("vda");
    disks.partition(&[64]);
    efibootmgr(&["-c", "-d", "/dev/vda", "-p", "1", "-L", "theirs", "-l", r"\EFI\debian\shimx64.efi"]);
    let theirs = BootVariables::read(path).unwrap();
    let sysfs = |name: &str| fs::read_to_string(format!("/sys/class/block/vda1/{name}")).unwrap();
    let guid = linux::process::ToolCommand::new("sfdisk").args(["--part-uuid", "/dev/vda", "1"]).run().unwrap().stdout;
    let esp = operations::Esp {
        guid: guid.trim().parse().unwrap(),
        first_lba: sysfs("start").trim().parse().unwrap(),
        sectors: sysfs("size").trim().parse().unwrap(),
        ..esp("/dev/vda1", 0)
    };
    let ours = LoadOption::for_file("theirs", &esp, r"\EFI\debian\shimx64.efi", "").unwrap();
    assert_eq!(theirs.entries[&theirs.order[0]], ours.to_bytes());
    forget(path, &before);
}

#[test]
#[ignore = "needs a machine of its own, with UEFI"]
fn vm_uefi_read_only_variables_cause_a_warning() {
    let (path, before) = firmware();
    let mount = |options| linux::process::ToolCommand::new("mount").args(["-o", options, VARIABLES]).run().unwrap();
    mount("remount,ro");
    let lines = write_logged(path, &planned(), &wanted());
    mount("remount,rw");
    println!("{}", lines[0]);
    assert!(lines[0].starts_with("WARNING: boot entries: write Boot"), "{}", lines[0]);
    assert!(lines[0].contains("Read-only file system") && lines[0].contains("efi=noruntime"), "{}", lines[0]);
    assert!(lines[0].ends_with(FALLBACK), "{}", lines[0]);
    assert_eq!(BootVariables::read(path).unwrap(), before);
}

/// This test must run last, and has a name that sorts last for this reason: the firmware frees the space of removed
/// variables only when it boots.
#[test]
#[ignore = "needs a machine of its own, with UEFI"]
fn vm_uefi_without_space_causes_a_warning_and_no_change() {
    let (path, before) = firmware();
    let filling = LoadOption::for_file("fill", &esp("/dev/vda1", 5), "a", &"x".repeat(500)).unwrap().to_bytes();
    let name = |number: u16| variables::entry_name(0x1000 + number);
    let refused =
        (0..1000).find_map(|number| Some((number, variables::write_variable(path, &name(number), &filling).err()?)));
    let (full, error) = refused.unwrap();
    println!("{full} entries of {} bytes fit: {error}", filling.len());
    let long = BootEntryRequest { loader: format!(r"\EFI\{}", "x".repeat(900)), ..wanted()[0].clone() };
    let lines = write_logged(path, &planned(), &[wanted()[1].clone(), long]);
    println!("{}", lines[0]);
    assert!(lines[0].starts_with("WARNING: boot entries: write Boot"), "{}", lines[0]);
    assert!(lines[0].contains("No space left on device") && lines[0].contains("efibootmgr -B"), "{}", lines[0]);
    let after = BootVariables::read(path).unwrap();
    assert!(before.entries.iter().all(|(number, value)| after.entries.get(number) == Some(value)), "{after}");
    assert!(after.order.iter().all(|number| after.entries.contains_key(number)), "{after}");
}
