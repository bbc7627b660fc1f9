//! The OS definition of the image: its `verify` program runs before anything is destroyed, and the image's installer
//! receives its parameters.

use super::*;
use model::allocation::Allocation;
use model::ganeti_os_definition::{DefinitionFile, SelectedDefinition};
use model::inventory::Nic;
use operations::{CreateSystem, FindPrograms, Operation, PlanAssignment, SessionOp, StageName, WriteMarker};

fn chosen(verify: bool) -> SelectedDefinition {
    let file = DefinitionFile { executable: true, text: "#!/bin/sh\n".to_owned() };
    SelectedDefinition {
        name: "web".to_owned(),
        variant: "small".to_owned(),
        api: 20,
        parameters: [("ns1".to_owned(), "192.0.2.53".to_owned()), ("token".to_owned(), "s3cret".to_owned())].into(),
        files: verify.then(|| ("verify".to_owned(), file)).into_iter().collect(),
    }
}

fn planned(definition: SelectedDefinition, layout: &Layout) -> Result<Plan, Box<PlanRefusal>> {
    planned_on(machine(), InstallMode::Install, allocation(definition), layout)
}

fn allocation(definition: SelectedDefinition) -> Allocation {
    Allocation {
        id: "a-1".to_owned(),
        hostname: "web-1".to_owned(),
        created: "2026-11-23T00:00:00Z".to_owned(),
        definition: Some(definition),
        ..Allocation::default()
    }
}

fn planned_on(
    mut inventory: Inventory,
    mode: InstallMode,
    allocation: Allocation,
    layout: &Layout,
) -> Result<Plan, Box<PlanRefusal>> {
    inventory.nics = vec![Nic { name: "eno1".to_owned(), mac: "52:54:00:aa:00:01".to_owned(), ..Nic::default() }];
    let assigned = PlanAssignment { allocation, consoles: vec!["tty0".to_owned(), "ttyS0,115200n8".to_owned()] };
    let request = PlanRequest { mode, steps: StepList::default(), subject: subject(), assigned, claim: None };
    super::super::make_plan(layout, &inventory, request, &mut counting())
}

#[test]
fn verifies_definition_before_any_disk_is_written() {
    let plan = planned(chosen(true), &layout()).unwrap();
    let names: Vec<&str> = plan.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names[..3], ["image.reach", "definition.verify", "storage.identify"]);
    assert!(plan.point_of_no_return > 1);
    let text = plan.to_string();
    assert!(text.contains("definition.verify   `verify` of web+small accepts ns1, token"), "{text}");
    assert!(text.contains("/etc/metal/install.yaml, userdata, disk.json, os-parameters"), "{text}");
    for said in [text, serde_json::to_string(&plan).unwrap()] {
        assert!(!said.contains("s3cret") && !said.contains("192.0.2.53"), "{said}");
    }
    // Without a `verify` program, the plan has no stage for it.
    let plan = planned(chosen(false), &layout()).unwrap();
    assert!(plan.stages.iter().all(|stage| stage.name != StageName::DefinitionVerify));
}

#[test]
fn image_installer_receives_the_environment_of_create() {
    let mut layout = layout();
    layout.disks[1].wipeonreinstall = false;
    let plan = planned(chosen(true), &layout).unwrap();
    let mut operations = plan.stages.iter().flat_map(|stage| &stage.operations);
    let finishing = operations.find_map(|operation| match operation {
        Operation::Run(SessionOp::Finish(finishing)) => Some(finishing),
        _ => None,
    });
    let environment = &finishing.unwrap().environment;
    for (name, value) in [
        ("OS_NAME", "web"),
        ("OSP_TOKEN", "s3cret"),
        ("INSTANCE_NAME", "web-1"),
        ("INSTANCE_OS", "web+small"),
        ("INSTANCE_UUID", "a-1"),
        ("INSTANCE_CTIME", "1795392000.0"),
        ("INSTANCE_HV_serial_console", "True"),
        ("DISK_0_PATH", "/dev/sda"),
        ("DISK_0_ACCESS", "rw"),
        ("NIC_COUNT", "1"),
        ("NIC_0_MAC", "52:54:00:aa:00:01"),
        ("NIC_0_NAME", "eno1"),
    ] {
        assert_eq!(environment.get(name).map(String::as_str), Some(value), "{name}");
    }
    let disks: usize = environment["DISK_COUNT"].parse().unwrap();
    let made = plan.disks.iter().filter(|disk| matches!(disk.verdict, DiskVerdict::Wipe | DiskVerdict::Make)).count();
    assert_eq!(disks, made);
    assert!(!environment.contains_key("INSTANCE_REINSTALL"));
    assert!(!environment["DISK_0_UUID"].is_empty() && environment["DISK_0_SIZE"].parse::<u64>().unwrap() > 0);
}

/// The version in the marker shows whether the definition was changed later.
#[test]
fn marker_records_the_definition_with_its_version() {
    for (version, expected) in [(Some("3\nignored\n"), Some("3")), (None, None)] {
        let mut definition = chosen(true);
        let file = |text: &str| DefinitionFile { executable: false, text: text.to_owned() };
        definition.files.extend(version.map(|text| ("os_version".to_owned(), file(text))));
        let assigned = PlanAssignment { allocation: allocation(definition), consoles: Vec::new() };
        let claim = Some(InstallClaim { order: None, ..super::installation_identity::claim() });
        let (mode, steps, subject) = (InstallMode::Install, StepList::default(), subject());
        let request = PlanRequest { mode, steps, subject, assigned, claim };
        let plan = super::super::make_plan(&layout(), &machine(), request, &mut counting()).unwrap();
        let mut operations = plan.stages.iter().flat_map(|stage| &stage.operations);
        let marker = operations.find_map(|operation| match operation {
            Operation::Run(SessionOp::WriteMarker(WriteMarker(marker))) => Some(marker),
            _ => None,
        });
        let recorded = marker.unwrap().definition.as_ref().unwrap();
        assert_eq!((recorded.os.as_str(), recorded.os_version.as_deref()), ("web+small", expected));
    }
}

#[test]
fn refuses_invalid_definitions_from_the_allocation() {
    type Change = fn(&mut SelectedDefinition);
    let cases: [(Change, &str); 7] = [
        (|chosen| chosen.name = "../etc".to_owned(), "is not a valid OS definition name"),
        (|chosen| chosen.variant = "a b".to_owned(), "the variant name after the + is"),
        (|chosen| drop(chosen.parameters.insert("a=b".to_owned(), String::new())), "is not a valid parameter name"),
        (|chosen| drop(chosen.parameters.insert("a".to_owned(), "\0".to_owned())), "contains a NUL byte"),
        (
            |chosen| drop(chosen.files.insert("../etc/passwd".to_owned(), DefinitionFile::default())),
            "is not a valid path of a file",
        ),
        (
            |chosen| drop(chosen.files.insert("/etc/passwd".to_owned(), DefinitionFile::default())),
            "is not a valid path of a file",
        ),
        (
            |chosen| drop(chosen.files.insert("create".to_owned(), DefinitionFile::default())),
            "web+small has a create program",
        ),
    ];
    for (change, why) in cases {
        let mut chosen = chosen(true);
        change(&mut chosen);
        let refusal = planned(chosen, &layout()).unwrap_err().to_string();
        assert!(refusal.contains("allocation.definition: ") && refusal.contains(why), "{refusal}");
    }
}

/// Returns an OS definition whose `create` program creates the system.
fn creating() -> SelectedDefinition {
    let mut chosen = chosen(true);
    for (name, text) in [("create", "#!/bin/bash\n"), ("needs", "sfdisk\nmkfs.ext4\n")] {
        chosen.files.insert(name.to_owned(), DefinitionFile { executable: true, text: text.to_owned() });
    }
    chosen
}

fn system(plan: &Plan) -> &CreateSystem {
    let mut operations = plan.stages.iter().flat_map(|stage| &stage.operations);
    let found = operations.find_map(|operation| match operation {
        Operation::Run(SessionOp::CreateSystem(create)) => Some(create),
        _ => None,
    });
    found.unwrap()
}

#[test]
fn create_program_receives_only_recreated_disks() {
    let raw = super::raw_images::raw();
    let plan = planned(creating(), &raw).unwrap();
    let names: Vec<&str> = plan.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names[..2], ["definition.verify", "storage.identify"]);
    let find = SessionOp::FindPrograms(FindPrograms {
        os: "web+small".to_owned(),
        programs: ["/bin/bash", "sfdisk", "mkfs.ext4"].map(str::to_owned).to_vec(),
    });
    assert_eq!(plan.stages[0].operations[1], Operation::Run(find));
    let create = system(&plan);
    assert_eq!(create.disks, ["/dev/sda", "/dev/sdb"]);
    assert_eq!((create.onto.device.as_str(), create.onto.filesystems.len()), ("/dev/sda", 2));
    for (name, value) in
        [("DISK_COUNT", "2"), ("DISK_0_PATH", "/dev/sda"), ("DISK_1_PATH", "/dev/sdb"), ("OSP_TOKEN", "s3cret")]
    {
        assert_eq!(create.environment[name], value, "{name}");
    }
    let text = plan.to_string();
    for said in [
        "check that the ramdisk contains the programs that `create` of web+small needs: /bin/bash, sfdisk, mkfs.ext4",
        "image.burn          `create` of web+small onto sda, grow sda2",
        "the program may write sda, sdb; other disks are not visible to it",
        "sda2 must be ext4 \"root\"",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert!(!serde_json::to_string(&plan).unwrap().contains("s3cret") && !text.contains("s3cret"));

    // The create program gets neither the names of preserved disks nor access to them.
    let installed = after(&plan, machine());
    let again = Allocation { reinstall: true, ..allocation(creating()) };
    let plan = planned_on(installed, InstallMode::Reinstall, again, &raw).unwrap();
    assert_eq!(plan.disks[1].verdict, DiskVerdict::Keep);
    let create = system(&plan);
    assert_eq!(create.disks, ["/dev/sda"]);
    assert_eq!((&*create.environment["DISK_COUNT"], &*create.environment["INSTANCE_REINSTALL"]), ("1", "1"));
    assert!(!format!("{:?}", create.environment).contains("/dev/sdb"));
}

#[test]
fn create_program_requires_a_whole_disk_without_image() {
    let refusal = planned(creating(), &layout()).unwrap_err().to_string();
    assert!(refusal.contains("disks: the create program of web+small fills a whole disk"), "{refusal}");
    let mut with_image = allocation(creating());
    with_image.image.url = "http://10.0.0.1/i".to_owned();
    let raw = super::raw_images::raw();
    let refusal = planned_on(machine(), InstallMode::Install, with_image, &raw).unwrap_err().to_string();
    assert!(refusal.contains("allocation.image.url: the create program of web+small creates the system"), "{refusal}");
    let mut silent = creating();
    silent.files.remove("needs");
    let refusal = planned(silent, &raw).unwrap_err().to_string();
    assert!(refusal.contains("has a create program, but lacks the file needs"), "{refusal}");
}
