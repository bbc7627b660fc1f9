//! A volume of Kubernetes that was prepared is never prepared a second time while its data may exist.

use super::*;
use crate::inventory::{Failed, LogicalVolume, Tried};
use crate::marker::{MarkedDisk, Marker, RecordedVolume};

/// Sources of the record that a volume was prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recorder {
    /// `prepared_volumes` of the allocation.
    ControlPlane,
    /// The marker that the control plane remembers.
    Remembered,
    /// The marker in the machine.
    Disk,
}

const RECORDERS: [Recorder; 3] = [Recorder::ControlPlane, Recorder::Remembered, Recorder::Disk];

fn claim() -> Claim {
    super::super::identity::claim()
}

fn asked(mode: Mode, volumes: &[Value]) -> Request {
    request(mode, list(volumes), Some(claim()))
}

fn make(layout: &Layout, machine: &Inventory, request: Request) -> Result<Plan, Box<Refusal>> {
    crate::plan::make(layout, machine, request, &mut counting_from(7000))
}

/// What the marker records of an installation of these volumes.
fn records(volumes: &[Value]) -> Vec<RecordedVolume> {
    let claim = Claim { order: None, ..claim() };
    let plan = make(&layout(), &machine(), request(Mode::Install, list(volumes), Some(claim))).unwrap();
    let written = plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| match operation {
        Operation::Run(OfRun::WriteMarker(marker)) => Some(marker.clone()),
        _ => None,
    });
    written.unwrap().volumes.unwrap()
}

/// Puts the records where that recorder has them.
fn record(recorder: Recorder, records: &[RecordedVolume], request: &mut Request, machine: &mut Inventory) {
    let records = Some(records.to_vec());
    match recorder {
        Recorder::ControlPlane => {
            let bare = |record: &RecordedVolume| RecordedVolume {
                uid: record.uid.clone(),
                name: record.name.clone(),
                path: record.path.clone(),
                ..RecordedVolume::default()
            };
            request.assigned.allocation.prepared_volumes = records.map(|all| all.iter().map(bare).collect());
        }
        Recorder::Remembered => {
            let marker = super::super::identity::marker(machine);
            let remembered = Marker { disks: Vec::new(), volumes: records, ..marker };
            request.claim.as_mut().unwrap().installed = Some(remembered);
        }
        Recorder::Disk => {
            let mut markers = machine.filesystems.iter_mut().filter_map(|is| is.marker.as_mut());
            markers.next().unwrap().volumes = records;
        }
    }
}

/// The reinstall of a machine whose marker has these records.
fn reinstall(machine: &Inventory, volumes: &[Value], recorded: &[RecordedVolume]) -> Result<Plan, Box<Refusal>> {
    let (mut machine, mut request) = (machine.clone(), asked(Mode::Reinstall, volumes));
    record(Recorder::Disk, recorded, &mut request, &mut machine);
    make(&layout(), &machine, request)
}

fn blank(name: &str, size: u64) -> crate::inventory::Disk {
    crate::inventory::Disk { blank: true, serial: format!("spare {name}"), ..disk(name, size) }
}

fn ext4(uuid: &str) -> Signature {
    Signature { kind: "ext4".into(), usage: "filesystem".into(), uuid: uuid.into(), ..Signature::default() }
}

fn member() -> Signature {
    Signature { kind: "linux_raid_member".into(), usage: "raid".into(), uuid: "stale".into(), ..Signature::default() }
}

/// The kernel gives the name of the disk that is not seen to a spare one.
#[test]
fn no_spare_disk_is_taken_for_a_volume_whose_disk_is_not_seen() {
    let volumes = [
        raw("data", 1, "Filesystem", "/dev/sdc"),
        raw("data", 1, "Block", "/dev/sdc"),
        discover("data", 1, json!({})),
        discover("data", 1, json!({"name": "/dev/sdc"})),
    ];
    for (volume, recorder) in volumes.iter().flat_map(|volume| RECORDERS.map(|recorder| (volume, recorder))) {
        let list = std::slice::from_ref(volume);
        let whole = installed(list);
        let mut gone = whole.clone();
        gone.disks[2] = blank("sdc", 500);
        let try_on = |machine: &Inventory, recorder: Option<Recorder>, give_up: &[&str]| {
            let (mut machine, mut request) = (machine.clone(), asked(Mode::Reinstall, list));
            request.claim.as_mut().unwrap().give_up = give_up.iter().map(|serial| (*serial).to_owned()).collect();
            if let Some(recorder) = recorder {
                record(recorder, &records(list), &mut request, &mut machine);
            }
            make(&layout(), &machine, request)
        };
        let said = reasons(try_on(&gone, Some(recorder), &[]));
        let was = match recorder {
            Recorder::ControlPlane => "it is listed as Available by the control plane".to_owned(),
            _ => "it was prepared on /dev/sdc, the disk with serial serial of sdc (315 GB)".to_owned(),
        };
        assert_eq!(said.len(), 1, "{said:?}");
        let start = format!(
            "volumes[data]: volume data cannot be prepared on /dev/sdc: {was}, and no device of this machine has its UUID {}",
            uid(1)
        );
        assert!(said[0].starts_with(&start), "{recorder:?}: {said:?}");
        assert!(
            said[0].ends_with("delete the resource in Kubernetes and list a new one, which has another UID"),
            "{said:?}"
        );
        // With its disk it stays, and a spare one is left alone.
        let mut both = whole;
        both.disks.push(blank("sde", 500));
        let plan = try_on(&both, Some(recorder), &[]).unwrap();
        assert!(shown(&plan)[0].ends_with(" keep sdc"), "{plan}");
        // What nobody has prepared is prepared now.
        assert_eq!(shown(&try_on(&gone, None, &[]).unwrap()), ["data /dev/sdc make sdc"]);
        if recorder != Recorder::ControlPlane {
            assert!(said[0].contains("--give-up serial of sdc"), "{said:?}");
            assert!(try_on(&gone, Some(recorder), &["spare sdc"]).is_err(), "that is another disk");
            let plan = try_on(&gone, Some(recorder), &["serial of sdc"]).unwrap();
            assert_eq!(shown(&plan), ["data /dev/sdc make sdc"]);
            assert!(plan.warnings.iter().any(|said| said.contains("the operator gives that up")), "{plan}");
        }
    }
}

/// The logical volume `csi/NAME` of an installed machine.
fn rename(machine: &mut Inventory, from: &str, to: &str) {
    let volume = machine.groups[0].volumes.iter_mut().find(|volume| volume.name == from).unwrap();
    to.clone_into(&mut volume.name);
    let (from, to) = (format!("/dev/mapper/csi-{from}"), format!("/dev/mapper/csi-{to}"));
    machine
        .stacked
        .iter_mut()
        .filter(|stacked| stacked.device == from)
        .for_each(|stacked| stacked.device = to.as_str().into());
}

fn deactivate(machine: &mut Inventory, name: &str) {
    let volume = machine.groups[0].volumes.iter_mut().find(|volume| volume.name == name).unwrap();
    let running = volume.running.take().unwrap();
    machine.stacked.retain(|stacked| stacked.name != running);
    machine.disks[1].uses.retain(|usage| *usage != Use::Holder(running.clone()));
}

fn remove(machine: &mut Inventory, name: &str) {
    deactivate(machine, name);
    machine.groups[0].volumes.retain(|volume| volume.name != name);
}

#[test]
fn a_logical_volume_that_was_renamed_is_kept() {
    let web = [in_group("web", 3, "Filesystem", "csi", "1Gi")];
    let recorded = records(&web);
    for known in [&recorded[..], &[]] {
        let mut machine = installed(&web);
        rename(&mut machine, "web", "old");
        let plan = reinstall(&machine, &web, known).unwrap();
        assert_eq!(shown(&plan), ["web /dev/mapper/csi-old keep sdb"]);
        assert_eq!(prepares(&plan), [""; 0]);
        let said = "volume web names /dev/csi/web, and is kept on /dev/mapper/csi-old, which has its UUID".to_owned();
        assert!(plan.warnings.contains(&said), "{plan}");
        assert_sound(&plan, &machine);
        // The same on a disk that the layout does not name.
        let mut machine = installed(&web);
        remove(&mut machine, "web");
        (machine.disks[2].signatures, machine.disks[2].blank) = (vec![ext4(&uid(3))], false);
        assert_eq!(shown(&reinstall(&machine, &web, known).unwrap()), ["web /dev/sdc keep sdc"]);
        // There is another volume of its name.
        let mut machine = installed(&web);
        rename(&mut machine, "web", "old");
        let mut other = machine.groups[0].volumes[0].clone();
        other.name = "web".into();
        other.size_bytes = 2 << 30;
        machine.groups[0].volumes.push(other);
        let said = reasons(reinstall(&machine, &web, known));
        assert!(said[0].contains("is to be /dev/csi/web, and its UUID is on /dev/mapper/csi-old"), "{said:?}");
    }
}

#[test]
fn a_logical_volume_that_is_gone_is_made_only_if_it_is_new() {
    for mode in ["Filesystem", "Block"] {
        let web = [in_group("web", 3, mode, "csi", "1Gi")];
        let recorded = records(&web);
        let mut machine = installed(&web);
        remove(&mut machine, "web");
        let said = reasons(reinstall(&machine, &web, &recorded));
        let expected =
            "volume web cannot be prepared on /dev/csi/web: it was prepared on /dev/csi/web, the disk with serial";
        assert!(said.len() == 1 && said[0].contains(expected), "{said:?}");
        assert_eq!(shown(&reinstall(&machine, &web, &[]).unwrap()), ["web /dev/csi/web extend sdb"]);
    }
    // Inactive and renamed: nobody sees its UUID.
    let web = [in_group("web", 3, "Filesystem", "csi", "1Gi")];
    let mut machine = installed(&web);
    rename(&mut machine, "web", "old");
    deactivate(&mut machine, "old");
    assert!(reasons(reinstall(&machine, &web, &records(&web)))[0].contains("it was prepared on /dev/csi/web"));
    assert_eq!(
        shown(&reinstall(&machine, &web, &[]).unwrap()),
        ["web /dev/csi/web extend sdb"],
        "the marker lists none"
    );
    let said = reasons(make(&layout(), &machine, asked(Mode::Reinstall, &web)));
    let expected =
        "it is not recorded whether it was prepared before, and volume csi/old, which is not active, may have it";
    assert!(said.len() == 1 && said[0].contains(expected), "{said:?}");
    let mut request = asked(Mode::Reinstall, &web);
    request.assigned.allocation.prepared_volumes = Some(Vec::new());
    assert!(make(&layout(), &machine, request).is_ok(), "the control plane lists none");
    remove_inactive(&mut machine, "old");
    assert!(make(&layout(), &machine, asked(Mode::Reinstall, &web)).is_ok(), "nothing is unread");
}

fn remove_inactive(machine: &mut Inventory, name: &str) {
    machine.groups[0].volumes.retain(|volume| volume.name != name);
}

/// A volume in `Block` mode has no UUID of Kubernetes. The record has that of LVM.
#[test]
fn a_block_volume_of_lvm_is_found_by_its_recorded_uuid() {
    let block = [in_group("bare", 3, "Block", "csi", "1Gi")];
    let mut machine = installed(&block);
    machine.groups[0].uuid = "g-g".into();
    let volumes = machine.groups[0].volumes.iter_mut();
    volumes.for_each(|volume| volume.uuid = format!("l-{}", volume.name));
    let mut recorded = records(&block);
    recorded[0].path = mapping_path("g-g", "l-bare");
    assert_eq!(shown(&reinstall(&machine, &block, &recorded).unwrap()), ["bare /dev/csi/bare keep sdb"]);
    rename(&mut machine, "bare", "old");
    let plan = reinstall(&machine, &block, &recorded).unwrap();
    assert_eq!(shown(&plan), ["bare /dev/csi/old keep sdb"]);
    assert_eq!(plan.volumes[0].path.as_deref(), Some(recorded[0].path.as_str()));
    // Another one that has its name by now is not it.
    let other =
        LogicalVolume { name: "bare".into(), uuid: "l-other".into(), size_bytes: 2 << 30, ..LogicalVolume::default() };
    machine.groups[0].volumes.push(other);
    assert_eq!(shown(&reinstall(&machine, &block, &recorded).unwrap()), ["bare /dev/csi/old keep sdb"]);
}

#[test]
fn a_second_signature_hides_no_volume() {
    let volume = [discover("data", 1, json!({}))];
    let mut machine = installed(&volume);
    machine.disks[2].signatures.push(member());
    let said = reasons(reinstall(&machine, &volume, &[]));
    let expected = format!(
        "volumes[data]: volume data has its UUID on /dev/sdc, which has several signatures: {} and {}; remove the stale one in the rescue shell: wipefs --all --types linux_raid_member /dev/sdc, if that is it",
        display::signature(&machine.disks[2].signatures[0]),
        display::signature(&member())
    );
    assert_eq!(said, [expected]);
    // The other order of the same, on a logical volume that was renamed.
    let web = [in_group("web", 3, "Filesystem", "csi", "1Gi")];
    let mut machine = installed(&web);
    rename(&mut machine, "web", "old");
    machine.stacked.iter_mut().find(|is| is.device == "/dev/mapper/csi-old").unwrap().signatures.insert(0, member());
    let said = reasons(reinstall(&machine, &web, &[]));
    assert!(said[0].contains("has its UUID on /dev/mapper/csi-old, which has several signatures"), "{said:?}");
    // A partition that has the UUID of a volume in the other mode.
    let block = [raw("data", 1, "Block", "/dev/sdc")];
    let machine = installed(&block);
    let filesystem = [raw("data", 1, "Filesystem", "/dev/sdd")];
    let said = reasons(reinstall(&machine, &filesystem, &[]));
    assert!(said[0].contains("is on /dev/sdc1 in another mode"), "{said:?}");
}

/// Members of a mirror whose superblock is at the end show what is on the array.
#[test]
fn what_an_array_shows_is_no_second_copy() {
    let mut layout = layout();
    layout.disks.extend(["/dev/sdc", "/dev/sdd"].map(whole));
    layout.raid.push(raid("/dev/md/data", &["/dev/sdc", "/dev/sdd"], RaidLevel::Raid1, 0));
    let volume = [raw("array", 1, "Filesystem", "/dev/md/data")];
    let plan = super::planned(&layout, &machine(), Mode::Install, &volume).unwrap();
    let mut inventory = after(&plan, machine());
    mark(&mut inventory);
    inventory.disks[2..4].iter_mut().for_each(|disk| disk.signatures.push(ext4(&uid(1))));
    let again = super::planned(&layout, &inventory, Mode::Reinstall, &volume).unwrap();
    assert!(shown(&again)[0].contains(" keep sdc,sdd"), "{again}");
    // It does not run, and no layout names it.
    inventory.stacked.retain(|stacked| stacked.kind != inventory::StackedKind::Array);
    inventory.arrays[0].running = None;
    inventory.disks[2..4].iter_mut().for_each(|disk| disk.uses.clear());
    inventory.disks.push(blank("sde", 500));
    let said = reasons(reinstall(&inventory, &[discover("array", 1, json!({}))], &[]));
    assert!(said[0].contains("on several devices: /dev/sdc, /dev/sdd"), "{said:?}");
}

#[test]
fn a_copy_that_a_reinstall_wipes_is_refused_unless_it_is_given_up() {
    let mut layout = layout();
    layout.disks.push(Disk { wipeonreinstall: true, ..whole("/dev/sdc") });
    let volume = [raw("data", 1, "Filesystem", "/dev/sdd")];
    let mut machine = after(&super::planned(&layout, &machine(), Mode::Install, &volume).unwrap(), machine());
    mark(&mut machine);
    machine.disks[2].signatures.push(ext4(&uid(1)));
    let again = |give_up: &[&str]| {
        let mut request = asked(Mode::Reinstall, &volume);
        request.claim.as_mut().unwrap().give_up = give_up.iter().map(|serial| (*serial).to_owned()).collect();
        make(&layout, &machine, request)
    };
    let said = reasons(again(&[]));
    assert!(said[0].contains("has its UUID") && said[0].contains("on several devices: /dev/sdc, /dev/sdd"), "{said:?}");
    assert_eq!(shown(&again(&["serial of sdc"]).unwrap()), ["data /dev/sdd keep sdd"]);
}

#[test]
fn a_file_is_made_only_where_it_never_was() {
    let small = [sparse("small", 4, "Block", "10Mi")];
    let (recorded, whole) = (records(&small), installed(&small));
    let carrier = |machine: &mut Inventory| {
        machine.filesystems.iter().position(|is| is.device == "/dev/mapper/csi-varlib").unwrap()
    };
    assert!(shown(&reinstall(&whole, &small, &recorded).unwrap())[0].contains(" keep "));
    let mut gone = whole.clone();
    let at = carrier(&mut gone);
    let files = std::mem::take(&mut gone.filesystems[at].sparse);
    assert!(shown(&reinstall(&gone, &small, &[]).unwrap())[0].contains(" extend "));
    let said = reasons(reinstall(&gone, &small, &recorded));
    assert!(said[0].contains("and no device of this machine has its file"), "{said:?}");
    // It is in another filesystem.
    let mut moved = gone.clone();
    moved.filesystems.push(Inside { device: "/dev/sdc".into(), sparse: files, ..Inside::default() });
    for volume in [small[0].clone(), raw("small", 4, "Block", "/dev/sdd")] {
        let said = reasons(reinstall(&moved, &[volume], &[]));
        assert!(said[0].contains("is in the filesystem on /dev/sdc"), "{said:?}");
    }
    // Nobody could look.
    let mut unread = whole;
    unread.filesystems.remove(at);
    let said = reasons(reinstall(&unread, &small, &[]));
    assert!(said[0].contains("/dev/mapper/csi-varlib cannot be mounted: it was not looked into"), "{said:?}");
    unread.failed.push(Failed { tried: Tried::Filesystem("/dev/mapper/csi-varlib".into()), why: "bad magic".into() });
    let said = reasons(reinstall(&unread, &small, &[]));
    assert!(said.iter().any(|said| said.contains("cannot be mounted: bad magic")), "{said:?}");
    // On a desk, with an inventory that does not tell.
    unread.filesystems.clear();
    unread.failed.clear();
    let plan = super::planned(&layout(), &unread, Mode::Reinstall, &small).unwrap();
    assert!(plan.warnings.iter().any(|said| said.contains("when it mounts /var/lib")), "{plan}");
}

/// A kept disk that was replaced is made anew. Its volumes are not, before the operator says so.
#[test]
fn volumes_of_a_replaced_disk_are_made_when_they_are_given_up() {
    let web = [in_group("web", 3, "Filesystem", "csi", "1Gi")];
    let mut machine = installed(&web);
    (machine.groups, machine.stacked) = (Vec::new(), Vec::new());
    machine.filesystems.retain(|is| is.marker.is_some());
    machine.disks[1] = blank("sdb", machine.disks[1].size_bytes / 1_000_000_000);
    assert!(reinstall(&machine, &[], &[]).is_ok());
    assert_eq!(shown(&reinstall(&machine, &web, &[]).unwrap()), ["web /dev/csi/web make sdb"]);
    let recorded = RecordedVolume {
        disks: vec![MarkedDisk { serial: "serial of sdb".into(), ..records(&web)[0].disks[0].clone() }],
        ..records(&web)[0].clone()
    };
    let said = reasons(reinstall(&machine, &web, std::slice::from_ref(&recorded)));
    assert!(said.len() == 1 && said[0].contains("--give-up serial of sdb"), "{said:?}");
    let mut request = asked(Mode::Reinstall, &web);
    request.claim.as_mut().unwrap().give_up = vec!["serial of sdb".to_owned()];
    record(Recorder::Disk, &[recorded], &mut request, &mut machine);
    assert_eq!(shown(&make(&layout(), &machine, request).unwrap()), ["web /dev/csi/web make sdb"]);
}

/// A new allocation erases all listed disks, and with them what was prepared there. Other disks may have the rest.
#[test]
fn an_installation_makes_again_what_it_erases() {
    let mut machine = installed(&four());
    let fresh = |machine: &Inventory| {
        let (mut machine, mut request) = (machine.clone(), asked(Mode::Install, &four()));
        record(Recorder::Disk, &records(&four()), &mut request, &mut machine);
        let claim = request.claim.as_mut().unwrap();
        (claim.allocation, claim.order) = ("a-2".to_owned(), None);
        make(&layout(), &machine, request)
    };
    let verdicts = shown(&fresh(&machine).unwrap());
    for (line, verdict) in verdicts.iter().zip(["keep", "keep", "make", "make"]) {
        assert!(line.contains(&format!(" {verdict} ")), "{verdicts:?}");
    }
    machine.disks[3] = blank("sdd", 500);
    let said = reasons(fresh(&machine));
    let expected =
        "volume block cannot be prepared on /dev/sdd: it was prepared on /dev/sdd, the disk with serial serial of sdd";
    assert!(said.len() == 1 && said[0].contains(expected) && !said[0].contains("--give-up"), "{said:?}");
}

#[test]
fn what_an_attempt_has_begun_is_not_begun_on_another_disk() {
    let volume = [discover("data", 1, json!({}))];
    let claim = Claim { order: None, ..claim() };
    let first = make(&layout(), &machine(), request(Mode::Install, list(&volume), Some(claim.clone()))).unwrap();
    let [Operation::Run(OfRun::TellPointOfNoReturn { disks, .. })] =
        super::super::stacks::operations(&first, StageName::ReportBegin)
    else {
        panic!("{first}")
    };
    let again = |machine: &Inventory| {
        let claim = Claim { begun_on: disks.clone(), ..claim.clone() };
        make(&layout(), machine, request(Mode::Install, list(&volume), Some(claim)))
    };
    let mut there = machine();
    there.disks[..2].iter_mut().for_each(|disk| disk.serial = format!("serial of {}", disk.name));
    let known = |machine: &Inventory| again(machine).map(|plan| shown(&plan));
    let ours = disks.iter().filter(|disk| disk.making.is_empty()).all(|disk| disk.serial.is_empty());
    let there = if ours { machine() } else { there };
    assert_eq!(known(&there).unwrap(), ["data /dev/sdc make sdc"]);
    let mut gone = there;
    gone.disks[2] = blank("sdc", 500);
    let said = reasons(again(&gone));
    assert!(
        said.iter().any(|said| said.contains("an attempt was cut off that was about to prepare it on /dev/sdc")),
        "{said:?}"
    );
}

/// Records outlive the list: a volume that is taken out of it may come back.
#[test]
fn the_marker_records_what_was_ever_prepared_and_not_erased() {
    let recorded = records(&four());
    let names: Vec<(&str, &str)> = recorded.iter().map(|is| (is.name.as_str(), is.device.as_str())).collect();
    assert_eq!(names[..3], [("data", "/dev/sdc"), ("block", "/dev/sdd"), ("web", "/dev/csi/web")]);
    assert_eq!(recorded[0].disks[0].serial, "serial of sdc");
    assert_eq!(recorded[0].path, format!("/dev/disk/by-uuid/{}", uid(1)));
    let machine = installed(&four());
    let marker = |plan: &Plan| {
        plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| match operation {
            Operation::Run(OfRun::WriteMarker(marker)) => marker.volumes.clone(),
            _ => None,
        })
    };
    let plan = reinstall(&machine, &four()[..1], &recorded).unwrap();
    let names: Vec<String> = marker(&plan).unwrap().into_iter().map(|is| is.name).collect();
    assert_eq!(names, ["data", "block", "web", "small"]);
    // What is erased on purpose is forgotten.
    let mut layout = layout();
    layout.disks.push(Disk { wipeonreinstall: true, ..whole("/dev/sdc") });
    let (mut machine, mut request) = (machine, asked(Mode::Reinstall, &four()[1..]));
    record(Recorder::Disk, &recorded, &mut request, &mut machine);
    request.claim.as_mut().unwrap().change_promise = true;
    let plan = make(&layout, &machine, request).unwrap();
    let names: Vec<String> = marker(&plan).unwrap().into_iter().map(|is| is.name).collect();
    assert_eq!(names, ["block", "web", "small"]);
}
