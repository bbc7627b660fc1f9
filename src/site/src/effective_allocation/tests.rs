use super::*;
use crate::allocation_resolution::{find_differences, resolve_allocation};
use crate::operator_files::{MachineSpec, parse_machine};
use crate::site_objects::SiteObjects;
use serde_json::json;
use store::{InstalledAllocation, ReinstallOrder};

const IMAGE: &str = "  image: i\n";

fn machine(fields: &str) -> MachineSpec {
    let traits = "traits: [CUSTOM_A, CUSTOM_B]";
    parse_machine(&format!(
        "id: 4c4c4544-0051-3010-8031-b2c04f333633\n{traits}\nallocation:\n  id: a\n  hostname: h\n{fields}"
    ))
    .unwrap()
}

fn allocation(fields: &str) -> AllocationSpec {
    machine(&format!("{IMAGE}{fields}")).allocation.unwrap()
}

fn installed(fields: AllocationSpec) -> InstallState {
    let record = InstalledAllocation::from_fields(fields.to_fields());
    InstallState { succeeded: true, installed_allocation: Some(record), ..InstallState::default() }
}

fn order(apply_allocation: bool) -> Option<ReinstallOrder> {
    let order = json!({
        "id": "o", "image": "i", "created": "", "attempts": 1, "begun": false, "without_marker": false, "given_up": false,
        "apply_allocation": apply_allocation,
    });
    serde_json::from_value(order).unwrap()
}

fn effects(file: &AllocationSpec, install_state: &InstallState) -> Vec<(String, DifferenceEffect)> {
    find_allocation_differences(file, install_state).into_iter().map(|one| (one.field, one.effect)).collect()
}

#[test]
fn file_changes_installed_fields_only_if_ordered() {
    use DifferenceEffect::{Applied, Kept, Refused};
    for (before, after, without) in [
        ("  name: x\n", "  name: y\n", Kept),
        ("  project: x\n", "", Kept),
        ("", "  role: firewall\n", Kept),
        ("  requested_traits: [CUSTOM_A]\n", "  requested_traits: [CUSTOM_B]\n", Kept),
        ("  ssh_pub_keys: [ssh-rsa AAAA]\n", "  ssh_pub_keys: [ssh-rsa AAAA, ssh-rsa AAAA b]\n", Kept),
        ("", "  erase: secure\n", Kept),
        ("  finish: builtin\n", "", Kept),
        ("  kernel_arguments: [quiet]\n", "  kernel_arguments: [debug]\n", Kept),
        ("", "  boot_order: disk\n", Kept),
        ("  ntp_servers: [x]\n", "  ntp_servers: [y]\n", Kept),
        ("", "  networks: [{vrf: 3}]\n", Kept),
        ("", "  user_data: x\n", Kept),
        ("  user_data: x\n", "  user_data: y\n", Refused),
        ("  console_password: x\n", "", Refused),
        ("  vpn: {auth_key: x}\n", "  vpn: {auth_key: y}\n", Refused),
        ("", "  disk_key: '0123456789012345678901'\n", Applied),
        ("  disk_key: '0123456789012345678901'\n", "  disk_key: '1123456789012345678901'\n", Refused),
        ("", "  volumes: [{kind: StorageClass, metadata: {name: fast}}]\n", Applied),
    ] {
        let (before, after) = (allocation(before), allocation(after));
        let mut install_state = installed(before.clone());
        let found = effects(&after, &install_state);
        assert_eq!(found.iter().map(|one| one.1).collect::<Vec<_>>(), [without], "{found:?}");
        for order in [None, order(false)] {
            install_state.order = order;
            let effective = effective_allocation(&after, &install_state);
            assert_eq!(effective.problem.is_some(), without == Refused, "{found:?}");
            let expected = if without == Applied { &after } else { &before };
            assert_eq!(effective.allocation.to_fields() == expected.to_fields(), without != Refused, "{found:?}");
        }
        install_state.order = order(true);
        assert_eq!(effects(&after, &install_state)[0].1, Applied, "{found:?}");
        let effective = effective_allocation(&after, &install_state);
        assert_eq!((effective.allocation.to_fields(), effective.problem), (after.to_fields(), None));
    }
}

#[test]
fn file_applies_before_the_installation_or_without_a_record() {
    let (before, after) = (allocation("  user_data: x\n"), allocation("  user_data: y\n  name: n\n"));
    let first = InstallState { succeeded: false, ..installed(before.clone()) };
    let unrecorded = InstallState { installed_allocation: None, ..installed(before) };
    for install_state in [InstallState::default(), first, unrecorded.clone()] {
        let effective = effective_allocation(&after, &install_state);
        assert_eq!((effective.allocation.to_fields(), effective.problem), (after.to_fields(), None));
        assert_eq!(effects(&after, &install_state), []);
    }
    assert!(is_unrecorded(&unrecorded) && !is_unrecorded(&InstallState::default()));
}

#[test]
fn equivalent_files_have_no_differences() {
    let install_state =
        installed(allocation("  user_data: ''\n  ssh_pub_keys: []\n  vpn: {auth_key: x}\n  erase: quick\n"));
    assert_eq!(effects(&allocation("  vpn:\n    auth_key: x\n  networks: []\n"), &install_state), []);
}

#[test]
fn os_definition_comes_from_the_file_or_is_omitted() {
    let with_os = |fields: &str| machine(&format!("  os: {fields}\n")).allocation.unwrap();
    let install_state = InstallState { order: order(false), ..installed(with_os("deb\n  os_parameters: [a=1]")) };
    for (file, is_refused) in [
        (with_os("deb\n  os_parameters: [a=1]"), false),
        (with_os("deb\n  os_parameters: [a=2]"), true),
        (with_os("deb"), true),
        (with_os("arch\n  os_parameters: [a=1]"), true),
        (allocation(""), true),
    ] {
        assert_eq!(effective_allocation(&file, &install_state).problem.is_some(), is_refused, "{:?}", file.os);
    }
    // If the installation had no parameters, parameters in the file cannot be ignored, since the definition was
    // verified with them.
    let install_state = InstallState { order: order(false), ..installed(with_os("deb")) };
    assert!(effective_allocation(&with_os("deb\n  os_parameters: [a=1]"), &install_state).problem.is_some());
    // The allocation was installed without a definition, so a reinstall uses none.
    let install_state = InstallState { order: order(false), ..installed(allocation("")) };
    let effective = effective_allocation(&with_os("deb\n  os_parameters: [a=1]"), &install_state);
    assert_eq!((effective.problem, effective.allocation.os.map(|os| os.to_string())), (None, None));
}

#[test]
fn layout_of_the_file_requires_change_promise() {
    let file = allocation("  filesystemlayout: other\n");
    let mut install_state = InstallState { layout: Some(json!({"id": "l"})), ..installed(allocation("")) };
    let named =
        |install_state: &InstallState| effective_allocation(&file, install_state).allocation.filesystemlayout.is_some();
    assert!(!named(&install_state));
    install_state.order = order(false).map(|order| ReinstallOrder { change_promise: true, ..order });
    assert!(named(&install_state));
    assert!(named(&InstallState { layout: None, order: None, ..install_state }));
}

#[test]
fn changed_secret_blocks_a_reinstall_but_not_a_boot() {
    let file = machine(&format!("{IMAGE}  user_data: y\n"));
    let layout = Some(json!({"id": "l"}));
    let install_state =
        InstallState { layout, image: Some("i".to_owned()), ..installed(allocation("  user_data: x\n")) };
    let known = SiteObjects::default();
    assert!(!resolve_allocation(&file, &install_state, &known).unwrap().unwrap().installs);
    let notes = find_differences(&file, &install_state, &known).join("\n");
    assert!(notes.starts_with("4:7: the file differs from the installed allocation in user_data; "), "{notes}");
    let why =
        resolve_allocation(&file, &InstallState { order: order(false), ..install_state.clone() }, &known).unwrap_err();
    assert!(why.starts_with("4:7: ") && why.contains("in user_data. The installed values cannot be kept"), "{why}");
    assert!(why.ends_with("`drophammer machine reinstall --apply-allocation`"), "{why}");
    // The order applies the machine file, so the image of the file must exist.
    let why = resolve_allocation(&file, &InstallState { order: order(true), ..install_state }, &known).unwrap_err();
    assert!(why.contains("a reinstall with image \"i\" is ordered, but images/ no longer contains it"), "{why}");
}

#[test]
fn differences_are_described_without_secrets() {
    let install_state = installed(allocation("  name: x\n  user_data: hunter2\n  ssh_pub_keys: [ssh-rsa AAAA]\n"));
    let long = "y".repeat(100);
    let file = allocation(&format!("  name: {long}\n  user_data: hunter3\n  console_password: hunter4\n"));
    let lines: Vec<String> =
        find_allocation_differences(&file, &install_state).iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            format!("name: stays \"x\"; the value in the machine file is ignored: \"{}…", "y".repeat(59)),
            "ssh_pub_keys: stays [\"ssh-rsa AAAA\"]; the value in the machine file is ignored: not set".to_owned(),
            "console_password: stays unset; the value in the machine file is ignored".to_owned(),
            "user_data: differs from the installed value, which cannot be kept".to_owned(),
        ]
    );
    let install_state = InstallState { order: order(true), ..install_state };
    let all = find_allocation_differences(&file, &install_state);
    assert_eq!(all[1].to_string(), "ssh_pub_keys: [\"ssh-rsa AAAA\"] becomes not set");
    assert_eq!(all[3].to_string(), "user_data: the value in the machine file replaces the installed value");
    assert!(!json!(all).to_string().contains("hunter"));
}
