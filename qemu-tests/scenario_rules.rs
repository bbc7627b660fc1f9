//! Rules for the consistency of the fields of a scenario.

use crate::expectations::Outcome;
use crate::scenario::{BootFrom, Bus, Disk, EventAction, Firmware, Machine, ResponseFate, ScenarioEvent, ScenarioRun};
use crate::scenario_image::{DeclaredDigest, OfferedImage};
use crate::tar_members;
use model::architecture::Architecture;

/// Checks a scenario.
///
/// # Errors
/// Returns the violated rule without a line number; the caller reports the first line of the file.
pub fn check_scenario(machine: &Machine, runs: &[ScenarioRun]) -> Result<(), String> {
    if runs.first().is_some_and(|run| run.reinstall.is_some() || run.boot == BootFrom::Kexec) {
        return Err("1: the first run cannot be a reinstall".to_owned());
    }
    arm64_fits(machine).map_err(|words| format!("1: {words}"))?;
    let disks = machine.disks.iter().map(|disk| disk_fits(machine, disk));
    let runs = runs.iter().zip(1..).map(|(run, number)| run_fits(machine, run, number));
    disks.chain(runs).find_map(|it| it.err()).map_or(Ok(()), |words| Err(format!("1: {words}")))
}

fn disk_fits(machine: &Machine, disk: &Disk) -> Result<(), String> {
    let name = &disk.name;
    if let Some(real) = &disk.path_of {
        let is_disk =
            |other: &Disk| other.name == *real && other.path_of.is_none() && other.bus == Bus::Scsi && !other.usb;
        if disk.bus != Bus::Scsi || disk.usb || !machine.disks.iter().any(is_disk) {
            return Err(format!("{name} is a second path: both are on bus scsi, and {real} is a disk"));
        }
        if disk.size_mib != 0 || disk.serial.is_some() || !disk.before.is_empty() || !disk.errors_at_mib.is_empty() {
            return Err(format!("{name} is a second path: size, serial and content match {real}"));
        }
    } else if disk.size_mib == 0 {
        return Err(format!("disk {name} has no size_mib"));
    }
    if disk.usb && disk.bus != Bus::Scsi {
        return Err(format!("{name}: a USB disk requires bus scsi"));
    }
    if disk.read_only && (disk.usb || !matches!(disk.bus, Bus::Virtio | Bus::Scsi)) {
        return Err(format!("{name}: only disks of virtio and scsi can be write-protected"));
    }
    let is_controller = |disk: &&Disk| disk.bus == Bus::Nvme && disk.serial.is_some() && disk.name.ends_with("n1");
    let namespaces = machine.disks.iter().filter(is_controller).filter(|other| other.serial == disk.serial).count();
    if is_controller(&disk) && namespaces > 1 {
        return Err(format!(
            "{name}: the kernel uses only the first of two NVMe controllers with the same serial number"
        ));
    }
    Ok(())
}

/// Checks the fields that QEMU's machine for arm64 does not support.
fn arm64_fits(machine: &Machine) -> Result<(), String> {
    if machine.architecture != Architecture::Arm64 {
        return Ok(());
    }
    match machine {
        Machine { full: false, .. } => {
            Err("arm64 requires `full: true`, because the machine is always emulated".to_owned())
        }
        Machine { firmware: Firmware::Bios, .. } => Err("arm64 requires `firmware: uefi`".to_owned()),
        Machine { tpm: true, .. } | Machine { bmc: true, .. } | Machine { vlan: Some(_), .. } => {
            Err("arm64 supports neither tpm, bmc nor vlan".to_owned())
        }
        _ if machine.disks.iter().any(|disk| disk.bus == Bus::Sata) => {
            Err("arm64 does not support SATA disks".to_owned())
        }
        _ => Ok(()),
    }
}

fn run_fits(machine: &Machine, run: &ScenarioRun, number: usize) -> Result<(), String> {
    let unchanged = run.expect.unchanged.as_ref();
    let regions = unchanged.into_iter().flat_map(|unchanged| &unchanged.regions);
    let named = run.absent.iter().chain(&run.replaced).chain(&run.disks_order).chain(&run.expect.untouched_disks);
    for name in named.chain(run.events.iter().flat_map(|event| &event.disks)).chain(regions.map(|region| &region.disk))
    {
        if !machine.disks.iter().any(|disk| disk.name == *name) {
            return Err(format!("the machine has no disk {name}"));
        }
    }
    if run.adopted && run.reinstall.is_none() {
        return Err(format!("run {number}: adopted requires reinstall"));
    }
    if run.new_tpm && !machine.tpm {
        return Err(format!("run {number}: the machine has no TPM"));
    }
    let is_path = |name: &&String| machine.disks.iter().any(|disk| disk.name == **name && disk.path_of.is_some());
    if let Some(path) = run.replaced.iter().find(is_path) {
        return Err(format!("{path} is a second path: replace its disk instead"));
    }
    if unchanged.is_some_and(|unchanged| unchanged.since_run == 0 || unchanged.since_run >= number) {
        return Err(format!("run {number}: unchanged since_run is the number of an earlier run, from 1"));
    }
    if run.expect.outcome == Outcome::InstalledOrRefused && run.reinstall.is_some() {
        return Err("a reinstall that is refused ends in old_system, not in installed_or_refused".to_owned());
    }
    if machine.tls && (run.boot == BootFrom::Kexec || !run.image.layers.is_empty()) {
        return Err(
            "tls is not supported here: the installed system does not trust the authority, and the test registry does not support TLS".to_owned()
        );
    }
    if machine.vlan.is_some() && run.boot != BootFrom::Direct {
        return Err("iPXE and the installed system do not support the vlan: use boot: direct".to_owned());
    }
    if run.fleet.is_some() && (machine.tls || run.boot != BootFrom::Direct || run.reinstall.is_some()) {
        return Err(
            "a machine without a control plane requires boot: direct, and does not support tls or reinstall".to_owned()
        );
    }
    run.events.iter().try_for_each(|event| event_fits(machine, event))?;
    image_fits(&run.image)
}

fn event_fits(machine: &Machine, event: &ScenarioEvent) -> Result<(), String> {
    if event.after > 0 && event.is_at_answer() {
        return Err("an event at a response cannot be delayed: remove `after`".to_owned());
    }
    if event.act == EventAction::Cancel && (!event.is_at_answer() || event.answer == ResponseFate::Lost) {
        return Err("cancel requires `at: request` and a response that is not lost".to_owned());
    }
    if event.act == EventAction::Cancel && machine.tls {
        return Err("cancel does not support tls".to_owned());
    }
    if (event.act == EventAction::Replug) == event.disks.is_empty() {
        return Err("`disks` is required for replug, and only supported there".to_owned());
    }
    let can_go = |disk: &Disk| {
        let odd = disk.usb || disk.read_only || disk.path_of.is_some() || !disk.errors_at_mib.is_empty();
        let has_path = machine.disks.iter().any(|other| other.path_of.as_ref() == Some(&disk.name));
        !odd && !has_path && matches!(disk.bus, Bus::Virtio | Bus::Scsi)
    };
    let buses =
        machine.disks.iter().filter(|disk| event.disks.contains(&disk.name)).map(|disk| (can_go(disk), disk.bus));
    let mut buses: Vec<(bool, Bus)> = buses.collect();
    buses.dedup();
    match buses[..] {
        [] | [(true, _)] => Ok(()),
        _ => Err("replug requires plain disks of one bus, virtio or scsi".to_owned()),
    }
}

/// Checks the image. Layers and packed images are made from a complete image, so they cannot be combined with fields
/// that change or describe its file.
fn image_fits(image: &OfferedImage) -> Result<(), String> {
    let of_the_file = image.missing
        || image.compress.is_some()
        || matches!(image.digest, DeclaredDigest::Original | DeclaredDigest::Md5);
    let layers = !image.layers.is_empty();
    if layers && (image.packed || image.signed.is_some()) {
        return Err("layers cannot be packed or signed".to_owned());
    }
    if of_the_file && (layers || image.packed) {
        let text = "layers and packed images do not support missing, compress and digest";
        return Err(text.to_owned());
    }
    if image.packed && !image.members.is_empty() {
        return Err("a packed image is not a tar: members are not supported".to_owned());
    }
    if let Some(member) = image.members.iter().find(|member| !tar_members::has_one_type(member)) {
        let kinds = "text, directory, symlink, hard_link, device";
        return Err(format!("member {} must be one of: {kinds}", member.path));
    }
    if image.cut_for_ever && image.cut_connection_at.is_empty() {
        return Err("cut_for_ever requires cut_connection_at".to_owned());
    }
    Ok(())
}

/// Tests the message about each violation, and that valid scenarios are accepted.
pub fn self_test() {
    let head = "about: x\nfirmware: bios\nlayout: x\n";
    let disks = "disks:\n- {name: sda, bus: scsi, size_mib: 1, serial: ''}\n- {name: sdb, bus: scsi, path_of: sda}\n\
                 - {name: sdc, bus: scsi, size_mib: 1, usb: true}\n- {name: vda, bus: virtio, size_mib: 1, serial: A}\n\
                 - {name: vdb, bus: virtio, size_mib: 1, serial: A}\n- {name: vdc, bus: virtio, size_mib: 1, read_only: true}\n";
    let parse = |rest: &str| crate::scenario_parser::parse(&format!("{head}{rest}"), "x".into(), ".".into());
    let event = "expect: {}\nevents:\n- {at: {step: image.burn}, after: 2, do: ";
    parse(&format!("{disks}{event}replug, disks: [vda, vdb]}}\n")).expect("a scenario");
    parse(&format!("{disks}image: {{cut_connection_at: [7], cut_for_ever: true, lie: no_range}}\nexpect: {{}}\n"))
        .expect("one more");
    for (rest, words) in [
        ("reinstall: true\nexpect: {}\n", "cannot be a reinstall"),
        ("adopted: true\nexpect: {}\n", "adopted requires reinstall"),
        ("absent: [sdx]\nexpect: {}\n", "no disk sdx"),
        ("new_tpm: true\nexpect: {}\n", "has no TPM"),
        ("replaced: [sdb]\nexpect: {}\n", "replace its disk"),
        ("expect: {untouched_disks: [sdx]}\n", "no disk sdx"),
        ("expect: {unchanged: {since_run: 1}}\n", "an earlier run"),
        (
            "runs:\n- expect: {}\n- expect: {unchanged: {since_run: 1, regions: [{disk: x, at_mib: 0, mib: 1}]}}\n",
            "no disk x",
        ),
        ("runs:\n- expect: {}\n- {reinstall: true, expect: {outcome: installed_or_refused}}\n", "old_system"),
        (&format!("{event}replug}}\n"), "`disks` is required"),
        (&format!("{event}power_cut, disks: [vda]}}\n"), "only supported there"),
        (&format!("{event}replug, disks: [vda, vdc]}}\n"), "plain disks"),
        (&format!("{event}replug, disks: [sda]}}\n"), "plain disks"),
        ("expect: {}\nevents: [{at: {request: 'POST */report'}, do: power_cut, after: 1}]\n", "remove `after`"),
        (&format!("{event}cancel}}\n"), "requires `at: request`"),
        ("expect: {}\nevents: [{at: {request: 'POST */register'}, do: cancel, answer: lost}]\n", "that is not lost"),
        ("vlan: 42\nexpect: {}\n", "do not support the vlan"),
        ("tls: true\nimage: {layers: [{a: b}]}\nexpect: {}\n", "does not support TLS"),
        ("tls: true\nruns:\n- expect: {}\n- {reinstall: true, boot: kexec, expect: {}}\n", "trust the authority"),
        (
            "tls: true\nexpect: {}\nevents: [{at: {request: 'POST */register'}, do: cancel}]\n",
            "cancel does not support tls",
        ),
        ("image: {layers: [{a: b}], signed: one}\nexpect: {}\n", "cannot be packed or signed"),
        ("image: {packed: true, digest: md5}\nexpect: {}\n", "packed images do not support"),
        ("image: {packed: true, members: [{path: a, text: b}]}\nexpect: {}\n", "not a tar"),
        ("image: {members: [{path: a, text: b, symlink: c}]}\nexpect: {}\n", "member a must be one of"),
        ("image: {cut_for_ever: true}\nexpect: {}\n", "requires cut_connection_at"),
    ] {
        let error = parse(&format!("{disks}{rest}")).expect_err(rest);
        assert!(error.starts_with("1:") && error.contains(words), "{rest}: {error}");
    }
    for (disks, words) in [
        ("{name: sda, bus: sata}", "no size_mib"),
        ("{name: sda, bus: sata, size_mib: 1, read_only: true}", "virtio and scsi"),
        ("{name: sda, bus: sata, size_mib: 1, usb: true}", "requires bus scsi"),
        ("{name: sda, bus: scsi, path_of: sdb}", "second path"),
        ("{name: sda, bus: scsi, size_mib: 1}, {name: sdb, bus: scsi, size_mib: 1, path_of: sda}", "size, serial"),
        (
            "{name: nvme0n1, bus: nvme, size_mib: 1, serial: A}, {name: nvme1n1, bus: nvme, size_mib: 1, serial: A}",
            "NVMe",
        ),
    ] {
        let error = parse(&format!("disks: [{disks}]\nexpect: {{}}\n")).expect_err(disks);
        assert!(error.starts_with("1:") && error.contains(words), "{disks}: {error}");
    }
}
