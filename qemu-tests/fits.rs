//! Do the fields of a scenario fit together? No single field can tell.

use crate::expect::Outcome;
use crate::members;
use crate::scenario::{Act, Answer, BootFrom, Bus, Disk, Event, Machine, Run};
use crate::served::{Digest, Image};

/// # Errors
/// What does not fit. It has no line of its own, so the first line is named.
pub fn fits(machine: &Machine, runs: &[Run]) -> Result<(), String> {
    if runs.first().is_some_and(|run| run.reinstall.is_some() || run.boot == BootFrom::Kexec) {
        return Err("1: the first run has nothing to reinstall".to_owned());
    }
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
            return Err(format!("{name} is a second path: size, serial and content are those of {real}"));
        }
    } else if disk.size_mib == 0 {
        return Err(format!("disk {name} has no size_mib"));
    }
    if disk.usb && disk.bus != Bus::Scsi {
        return Err(format!("{name}: the kernel sees a disk behind USB as one of bus scsi"));
    }
    if disk.read_only && (disk.usb || !matches!(disk.bus, Bus::Virtio | Bus::Scsi)) {
        return Err(format!("{name}: only disks of virtio and scsi can be write-protected"));
    }
    let is_controller = |disk: &&Disk| disk.bus == Bus::Nvme && disk.serial.is_some() && disk.name.ends_with("n1");
    let twins = machine.disks.iter().filter(is_controller).filter(|other| other.serial == disk.serial).count();
    if is_controller(&disk) && twins > 1 {
        return Err(format!("{name}: of two NVMe controllers with one serial number the kernel takes the first alone"));
    }
    Ok(())
}

fn run_fits(machine: &Machine, run: &Run, number: usize) -> Result<(), String> {
    let unchanged = run.expect.unchanged.as_ref();
    let regions = unchanged.into_iter().flat_map(|unchanged| &unchanged.regions);
    let named = run.absent.iter().chain(&run.replaced).chain(&run.disks_order).chain(&run.expect.untouched_disks);
    for name in named.chain(run.events.iter().flat_map(|event| &event.disks)).chain(regions.map(|region| &region.disk))
    {
        if !machine.disks.iter().any(|disk| disk.name == *name) {
            return Err(format!("the machine has no disk {name}"));
        }
    }
    if run.new_tpm && !machine.tpm {
        return Err(format!("run {number}: the machine has no TPM"));
    }
    let is_path = |name: &&String| machine.disks.iter().any(|disk| disk.name == **name && disk.path_of.is_some());
    if let Some(path) = run.replaced.iter().find(is_path) {
        return Err(format!("{path} is a second path: replace the disk"));
    }
    if unchanged.is_some_and(|unchanged| unchanged.since_run == 0 || unchanged.since_run >= number) {
        return Err(format!("run {number}: unchanged since_run is the number of an earlier run, from 1"));
    }
    if run.expect.outcome == Outcome::InstalledOrRefused && run.reinstall.is_some() {
        return Err("a reinstall that is refused ends in old_system, not in installed_or_refused".to_owned());
    }
    if machine.tls && (run.boot == BootFrom::Kexec || !run.image.layers.is_empty()) {
        return Err(
            "over tls: the installed system does not know the authority, and registries here have no TLS".to_owned()
        );
    }
    if machine.vlan.is_some() && run.boot != BootFrom::Direct {
        return Err("neither iPXE nor an installed system knows of the vlan: boot direct".to_owned());
    }
    if run.fleet.is_some() && (machine.tls || run.boot != BootFrom::Direct || run.reinstall.is_some()) {
        return Err(
            "a machine without a control plane boots direct, not over tls, and nobody presses a button".to_owned()
        );
    }
    run.events.iter().try_for_each(|event| event_fits(machine, event))?;
    image_fits(&run.image)
}

fn event_fits(machine: &Machine, event: &Event) -> Result<(), String> {
    if event.after > 0 && event.is_at_answer() {
        return Err("what happens at an answer does not happen later: no `after` there".to_owned());
    }
    if event.act == Act::Cancel && (!event.is_at_answer() || event.answer == Answer::Lost) {
        return Err("an order is taken back when a request is answered, and the answer is not lost".to_owned());
    }
    if event.act == Act::Cancel && machine.tls {
        return Err("an order is taken back past the wire, and not over tls".to_owned());
    }
    if (event.act == Act::Replug) == event.disks.is_empty() {
        return Err("replug names its disks, and nothing else does".to_owned());
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
        _ => Err("replug is for plain disks of one bus, virtio or scsi".to_owned()),
    }
}

/// Layers and what is packed are made of the whole image; what changes or describes its file says nothing about them.
fn image_fits(image: &Image) -> Result<(), String> {
    let of_the_file =
        image.missing || image.compress.is_some() || matches!(image.digest, Digest::Original | Digest::Md5);
    let layers = !image.layers.is_empty();
    if layers && (image.packed || image.signed.is_some()) {
        return Err("layers are neither packed nor signed".to_owned());
    }
    if of_the_file && (layers || image.packed) {
        let text = "layers and a packed image are not missing, compressed anew, or known by a digest of the file";
        return Err(text.to_owned());
    }
    if image.packed && !image.members.is_empty() {
        return Err("a packed image is no tar that could get members".to_owned());
    }
    if let Some(member) = image.members.iter().find(|member| !members::fits(member)) {
        let kinds = "text, directory, symlink, hard_link, device";
        return Err(format!("member {} is one of: {kinds}", member.path));
    }
    if image.cut_for_ever && image.cut_connection_at.is_empty() {
        return Err("cut_for_ever is about the last number of cut_connection_at".to_owned());
    }
    Ok(())
}

/// Each misfit with its words, and what is right beside it.
pub fn self_test() {
    let head = "about: x\nfirmware: bios\nlayout: x\n";
    let disks = "disks:\n- {name: sda, bus: scsi, size_mib: 1, serial: ''}\n- {name: sdb, bus: scsi, path_of: sda}\n\
                 - {name: sdc, bus: scsi, size_mib: 1, usb: true}\n- {name: vda, bus: virtio, size_mib: 1, serial: A}\n\
                 - {name: vdb, bus: virtio, size_mib: 1, serial: A}\n- {name: vdc, bus: virtio, size_mib: 1, read_only: true}\n";
    let parse = |rest: &str| crate::reader::parse(&format!("{head}{rest}"), "x".into(), ".".into());
    let event = "expect: {}\nevents:\n- {at: {step: image.burn}, after: 2, do: ";
    parse(&format!("{disks}{event}replug, disks: [vda, vdb]}}\n")).expect("a scenario");
    parse(&format!("{disks}image: {{cut_connection_at: [7], cut_for_ever: true, lie: no_range}}\nexpect: {{}}\n"))
        .expect("one more");
    for (rest, words) in [
        ("reinstall: true\nexpect: {}\n", "nothing to reinstall"),
        ("absent: [sdx]\nexpect: {}\n", "no disk sdx"),
        ("new_tpm: true\nexpect: {}\n", "has no TPM"),
        ("replaced: [sdb]\nexpect: {}\n", "replace the disk"),
        ("expect: {untouched_disks: [sdx]}\n", "no disk sdx"),
        ("expect: {unchanged: {since_run: 1}}\n", "an earlier run"),
        (
            "runs:\n- expect: {}\n- expect: {unchanged: {since_run: 1, regions: [{disk: x, at_mib: 0, mib: 1}]}}\n",
            "no disk x",
        ),
        ("runs:\n- expect: {}\n- {reinstall: true, expect: {outcome: installed_or_refused}}\n", "old_system"),
        (&format!("{event}replug}}\n"), "names its disks"),
        (&format!("{event}power_cut, disks: [vda]}}\n"), "nothing else does"),
        (&format!("{event}replug, disks: [vda, vdc]}}\n"), "plain disks"),
        (&format!("{event}replug, disks: [sda]}}\n"), "plain disks"),
        ("expect: {}\nevents: [{at: {request: 'POST */report'}, do: power_cut, after: 1}]\n", "no `after`"),
        (&format!("{event}cancel}}\n"), "taken back when a request"),
        ("expect: {}\nevents: [{at: {request: 'POST */register'}, do: cancel, answer: lost}]\n", "is not lost"),
        ("vlan: 42\nexpect: {}\n", "knows of the vlan"),
        ("tls: true\nimage: {layers: [{a: b}]}\nexpect: {}\n", "have no TLS"),
        ("tls: true\nruns:\n- expect: {}\n- {reinstall: true, boot: kexec, expect: {}}\n", "know the authority"),
        ("tls: true\nexpect: {}\nevents: [{at: {request: 'POST */register'}, do: cancel}]\n", "not over tls"),
        ("image: {layers: [{a: b}], signed: one}\nexpect: {}\n", "neither packed nor signed"),
        ("image: {packed: true, digest: md5}\nexpect: {}\n", "a packed image"),
        ("image: {packed: true, members: [{path: a, text: b}]}\nexpect: {}\n", "no tar"),
        ("image: {members: [{path: a, text: b, symlink: c}]}\nexpect: {}\n", "member a is one of"),
        ("image: {cut_for_ever: true}\nexpect: {}\n", "the last number"),
    ] {
        let error = parse(&format!("{disks}{rest}")).expect_err(rest);
        assert!(error.starts_with("1:") && error.contains(words), "{rest}: {error}");
    }
    for (disks, words) in [
        ("{name: sda, bus: sata}", "no size_mib"),
        ("{name: sda, bus: sata, size_mib: 1, read_only: true}", "virtio and scsi"),
        ("{name: sda, bus: sata, size_mib: 1, usb: true}", "behind USB"),
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
