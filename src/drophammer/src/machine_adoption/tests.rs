//! Adoptions of recorded machines, in a directory in place of the root filesystem.

mod erased_contents;

use super::*;
use api::operator_api::MachineSummary;
use common::output_capture::recorded;
use model::allocation::AssignedMachine;
use serde_json::{Value, json};
use std::fs;
use std::sync::Mutex;
use tempfile::TempDir;
use testing::http::{ResponseBehavior, Server};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/foreign-installations/");
const MARKER: &str = "etc/metal/drophammer.json";

/// Root filesystem of a machine with Debian.
fn prepare_host() -> (TempDir, AdoptionHost) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("etc")).unwrap();
    fs::write(dir.path().join("etc/hostname"), "web-1.example.org\n").unwrap();
    fs::write(dir.path().join("etc/os-release"), "ID=debian\nVERSION_ID=\"13\"\n").unwrap();
    let mounts = "1 0 8:2 / / rw - ext4 /dev/sda2 rw\n".to_owned();
    let host = AdoptionHost { root: dir.path().to_owned(), mounts, is_privileged: true, is_interactive: false };
    (dir, host)
}

/// Options for a recorded machine. The command line accepts `--inventory` only with `--dry-run`.
fn options(machine: &str) -> MachineAdoptionOptions {
    let file = |name: &str| Some(PathBuf::from(format!("{FOLDER}{machine}/{name}")));
    MachineAdoptionOptions {
        inventory: file("inventory.json"),
        fstab: file("fstab"),
        ..MachineAdoptionOptions::default()
    }
}

fn fleet(machine: &str, dir: &TempDir) -> MachineAdoptionOptions {
    MachineAdoptionOptions {
        fleet: Some(dir.path().join("web-1.json")),
        yes: Some("web-1".to_owned()),
        ..options(machine)
    }
}

fn list_metal_files(host: &AdoptionHost) -> usize {
    fs::read_dir(host.root.join("etc/metal")).map_or(0, |entries| entries.count())
}

fn run(options: &MachineAdoptionOptions, host: &AdoptionHost) -> (String, CommandOutcome) {
    let mut outcome = None;
    let output = recorded(|| {
        let run = run_adopt_on(options, host);
        outcome = run.as_ref().ok().copied();
        run
    });
    (output, outcome.unwrap())
}

#[test]
fn a_preview_writes_nothing() {
    let (_dir, host) = prepare_host();
    let host = AdoptionHost { is_privileged: false, ..host };
    let (output, outcome) = run(&MachineAdoptionOptions { dry_run: true, ..options("almalinux-uefi") }, &host);
    assert_eq!(outcome, CommandOutcome::Good);
    for text in ["Machine web-1", "debian-13", "/dev/sdb /data", "Plan of a later reinstall:"] {
        assert!(output.contains(text), "{text}: {output}");
    }
    assert_eq!(list_metal_files(&host), 0);
}

#[test]
fn a_fleet_machine_is_adopted_and_the_adoption_is_removed() {
    let (dir, host) = prepare_host();
    let (output, outcome) = run(&fleet("debian-plain", &dir), &host);
    assert_eq!(outcome, CommandOutcome::Good, "{output}");
    assert!(output.contains("/etc/metal/drophammer.json was written"), "{output}");
    let marker: InstallMarker = serde_json::from_str(&fs::read_to_string(dir.path().join(MARKER)).unwrap()).unwrap();
    let file: AssignedMachine =
        serde_json::from_str(&fs::read_to_string(dir.path().join("web-1.json")).unwrap()).unwrap();
    let allocation = file.allocation.unwrap();
    assert!(allocation.succeeded && !allocation.reinstall);
    assert_eq!((&file.id, &allocation.id), (&marker.machine, &marker.allocation));
    assert_eq!((marker.image.as_str(), marker.layout.as_str()), ("debian-13", "web-1"));
    let layout = allocation.parse_layout().unwrap().layout;
    assert_eq!(marker.layout_digest, Some(model::layout::compute_digest(&layout)));

    // A second adoption is refused.
    let storage = MarkerStorage::new(&host.root);
    assert!(storage.find_obstacles(&host.mounts)[0].contains("has an install marker"));

    let undo = MachineAdoptionOptions { undo: true, ..MachineAdoptionOptions::default() };
    let (output, outcome) = run(&undo, &host);
    assert_eq!(outcome, CommandOutcome::Refused, "{output}");
    assert!(output.contains("add `--yes web-1`") && list_metal_files(&host) == 2, "{output}");
    let (output, outcome) = run(&MachineAdoptionOptions { yes: Some("web-1".to_owned()), ..undo }, &host);
    assert_eq!(outcome, CommandOutcome::Good, "{output}");
    assert!(!dir.path().join("etc/metal").exists());
}

#[test]
fn without_confirmation_or_privileges_nothing_is_written() {
    let (dir, host) = prepare_host();
    let unconfirmed = [None, Some("web-2"), Some("bbca83d4-6259-55a9-898f-c6a3c90bd93e")];
    for yes in unconfirmed {
        let options = MachineAdoptionOptions { yes: yes.map(str::to_owned), ..fleet("debian-plain", &dir) };
        let (output, outcome) = run(&options, &host);
        assert!(outcome == CommandOutcome::Refused && output.contains("not confirmed"), "{output}");
    }
    let unprivileged = AdoptionHost { is_privileged: false, ..host };
    let (output, outcome) = run(&fleet("debian-plain", &dir), &unprivileged);
    assert!(outcome == CommandOutcome::Refused && output.contains("only root can write"), "{output}");
    assert!(list_metal_files(&unprivileged) == 0 && !dir.path().join("web-1.json").exists());
}

#[test]
fn machines_whose_reinstall_would_be_refused_are_not_adopted() {
    for (machine, expected) in [
        ("state-degraded-mirror", "degraded"),
        ("state-hibernation", "hibernat"),
        ("fedora", "contains the system and data in one filesystem"),
        ("proxmox-zfs", "(DH-"),
    ] {
        let (dir, host) = prepare_host();
        for dry_run in [true, false] {
            let (output, outcome) = run(&MachineAdoptionOptions { dry_run, ..fleet(machine, &dir) }, &host);
            assert_eq!(outcome, CommandOutcome::Refused, "{machine}: {output}");
            assert!(output.contains(expected), "{machine}: {output}");
        }
        assert!(list_metal_files(&host) == 0 && !dir.path().join("web-1.json").exists(), "{machine}");
    }
}

#[test]
fn the_result_is_printed_as_json() {
    let (dir, host) = prepare_host();
    let document = |options: &MachineAdoptionOptions| {
        let (output, _) = run(&MachineAdoptionOptions { json: true, ..options_of(options) }, &host);
        let end = output.rfind("\n}").unwrap_or_else(|| panic!("{output}"));
        serde_json::from_str::<Value>(&output[..end + 2]).unwrap_or_else(|error| panic!("{error}: {output}"))
    };
    let planned = document(&MachineAdoptionOptions { dry_run: true, ..options("debian-plain") });
    assert_eq!((&planned["state"], &planned["name"]), (&"planned".into(), &"web-1".into()));
    assert!(planned["plan"].is_string() && planned["obstacles"] == json!([]));
    assert_eq!(planned["layout"]["id"], "web-1");
    let refused = document(&MachineAdoptionOptions { dry_run: true, ..options("fedora") });
    assert!(refused["state"] == "refused" && !refused["obstacles"][0].is_null(), "{refused}");
    let adopted = document(&fleet("debian-plain", &dir));
    assert!(adopted["state"] == "adopted" && adopted["adoption"]["allocation"].is_string(), "{adopted}");
}

fn options_of(options: &MachineAdoptionOptions) -> MachineAdoptionOptions {
    MachineAdoptionOptions {
        inventory: options.inventory.clone(),
        fstab: options.fstab.clone(),
        fleet: options.fleet.clone(),
        yes: options.yes.clone(),
        dry_run: options.dry_run,
        ..MachineAdoptionOptions::default()
    }
}

#[test]
fn a_machine_without_a_usable_id_or_name_is_refused() {
    let (dir, host) = prepare_host();
    let text = fs::read_to_string(format!("{FOLDER}debian-plain/inventory.json")).unwrap();
    let file = dir.path().join("inventory.json");
    fs::write(&file, text.replace("bbca83d4-6259-55a9-898f-c6a3c90bd93e", "00000000-0000-0000-0000-000000000000"))
        .unwrap();
    let unidentified = MachineAdoptionOptions { inventory: Some(file), dry_run: true, ..options("debian-plain") };
    let (output, outcome) = run(&unidentified, &host);
    assert!(outcome == CommandOutcome::Refused && output.contains("--machine UUID"), "{output}");
    let (output, outcome) = run(&MachineAdoptionOptions { machine: Some(Uuid::from_u128(7)), ..unidentified }, &host);
    assert_eq!(outcome, CommandOutcome::Good, "{output}");
    fs::remove_file(dir.path().join("etc/hostname")).unwrap();
    let (output, outcome) = run(&MachineAdoptionOptions { dry_run: true, ..options("debian-plain") }, &host);
    assert!(outcome == CommandOutcome::Refused && output.contains("--name NAME"), "{output}");
}

/// Starts a server that refuses the registration with status 409. `list` receives the allocation id in the refused
/// registration, and returns the server's response to later requests for the list of machines.
fn refusing_server(list: impl Fn(&str) -> ResponseBehavior + Send + Sync + 'static) -> Server {
    let requested = Mutex::new(String::new());
    Server::start(Vec::new(), move |request| match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/v1/machines") if request.nth == 0 => ResponseBehavior::respond(200, "[]"),
        ("GET", "/v1/machines") => list(&requested.lock().unwrap()),
        ("GET", _) => ResponseBehavior::respond(404, r#"{"message": "not found"}"#),
        ("PUT", path) if path.ends_with("/adopt") => {
            let body: Value = serde_json::from_str(&request.body).unwrap();
            *requested.lock().unwrap() = body["marker"]["allocation"].as_str().unwrap().to_owned();
            ResponseBehavior::respond(409, r#"{"message": "the machine is already recorded as installed"}"#)
        }
        _ => ResponseBehavior::respond(200, r#"{"machine": "", "allocation": ""}"#),
    })
}

fn registered(dir: &TempDir, server: &Server) -> MachineAdoptionOptions {
    let token = dir.path().join("token");
    fs::write(&token, "secret\n").unwrap();
    let of = ServerOptions { server: Some(server.url("")), token_file: Some(token), ..ServerOptions::default() };
    let (image, yes) = (Some("debian-12".to_owned()), Some("web-1".to_owned()));
    MachineAdoptionOptions { image, yes, of, ..options("debian-plain") }
}

fn list_machine(allocation: &str, installed: bool) -> ResponseBehavior {
    let machine = MachineSummary {
        id: "bbca83d4-6259-55a9-898f-c6a3c90bd93e".to_owned(),
        name: "web-1".to_owned(),
        allocation: Some(allocation.to_owned()),
        installed,
        ..MachineSummary::default()
    };
    ResponseBehavior::respond(200, &json!([machine]).to_string())
}

/// A proxy may repeat a registration whose response was lost, so a refusal does not prove that the machine is not
/// registered.
#[test]
fn the_marker_is_removed_only_if_the_server_has_not_registered_the_machine() {
    let adopt = |list: fn(&str) -> ResponseBehavior| {
        let (dir, host) = prepare_host();
        let server = refusing_server(list);
        let outcome = run_adopt_on(&registered(&dir, &server), &host);
        let has_deleted = server.requests().iter().any(|request| request.method == "DELETE");
        (outcome, list_metal_files(&host) == 2, has_deleted)
    };
    let (outcome, has_marker, has_deleted) = adopt(|allocation| list_machine(allocation, true));
    assert!(matches!(outcome, Ok(CommandOutcome::Good)) && has_marker && !has_deleted, "{outcome:?}");
    for not_registered in [(|_: &str| ResponseBehavior::respond(200, "[]")) as fn(&str) -> ResponseBehavior, |_| {
        list_machine("other", true)
    }] {
        let (outcome, has_marker, has_deleted) = adopt(not_registered);
        assert!(matches!(outcome, Ok(CommandOutcome::Refused)) && !has_marker && has_deleted, "{outcome:?}");
    }
    let unknown: [fn(&str) -> ResponseBehavior; 3] = [
        |_| ResponseBehavior::respond(500, "broken"),
        |_| ResponseBehavior::respond(403, r#"{"message": "denied"}"#),
        |allocation| list_machine(allocation, false),
    ];
    for list in unknown {
        let (outcome, has_marker, has_deleted) = adopt(list);
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("it is unknown whether the server has registered the machine"), "{error}");
        assert!(has_marker && !has_deleted);
    }
}

#[test]
fn an_adoption_is_not_removed_at_another_server() {
    let (dir, host) = prepare_host();
    let server = refusing_server(|allocation| list_machine(allocation, true));
    let other = Server::start(Vec::new(), |_| ResponseBehavior::respond(200, r#"{"machine": "", "allocation": ""}"#));
    let options = registered(&dir, &server);
    assert_eq!(run(&options, &host).1, CommandOutcome::Good);
    let undo = |of: ServerOptions| {
        let yes = Some("web-1".to_owned());
        run(&MachineAdoptionOptions { undo: true, yes, of, ..MachineAdoptionOptions::default() }, &host)
    };
    let (output, outcome) = undo(ServerOptions { server: Some(other.url("")), ..options.of.clone() });
    assert_eq!(outcome, CommandOutcome::Refused, "{output}");
    let urls = [&server, &other].map(|server| server.url("").trim_end_matches('/').to_owned());
    assert!(urls.iter().all(|url| output.contains(url)), "{output}");
    assert!(list_metal_files(&host) == 2 && other.requests().is_empty());
    let (output, outcome) = undo(options.of);
    assert_eq!(outcome, CommandOutcome::Good, "{output}");
    assert_eq!(list_metal_files(&host), 0);
}

const MIB: usize = 1 << 20;
/// Range of the root filesystem on the disk of [`root_an_adoption_changes_only_the_root_filesystem`], in bytes.
const ROOT_RANGE: std::ops::Range<usize> = MIB..25 * MIB;

fn run_tool(program: &str, arguments: &[&str]) {
    linux::process::ToolCommand::new(program).args(arguments).run().unwrap();
}

/// Runs the function while the root filesystem of the disk image is mounted at `point`.
fn with_mounted_root(image: &str, point: &Path, work: impl FnOnce()) -> Vec<u8> {
    let options = format!("loop,offset={},sizelimit={}", ROOT_RANGE.start, ROOT_RANGE.len());
    let point = point.to_str().unwrap();
    run_tool("mount", &["-o", &options, image, point]);
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    run_tool("umount", &[point]);
    done.unwrap();
    fs::read(image).unwrap()
}

/// The disk contains bytes that are not free, although no filesystem uses them: boot code, the gap before the first
/// partition, and the metadata at the end of another partition.
#[test]
#[ignore = "needs root and loop devices"]
fn root_an_adoption_changes_only_the_root_filesystem() {
    let dir = tempfile::tempdir().unwrap();
    let (image, point) = (dir.path().join("disk.img"), dir.path().join("mnt"));
    fs::create_dir(&point).unwrap();
    let pattern: Vec<u8> = (0..40 * MIB).map(|offset| (offset % 251) as u8 | 1).collect();
    fs::write(&image, &pattern).unwrap();
    let path = image.to_str().unwrap();
    run_tool("sgdisk", &["--clear", "--new=1:2048:51199", "--new=2:51200:71679", path]);
    let (offset, size) = (format!("offset={}", ROOT_RANGE.start), format!("{}k", ROOT_RANGE.len() >> 10));
    run_tool("mkfs.ext4", &["-q", "-F", "-E", &offset, path, &size]);
    let host = AdoptionHost {
        root: point.clone(),
        mounts: "1 0 8:2 / / rw - ext4 /dev/sda2 rw\n".to_owned(),
        is_privileged: true,
        is_interactive: false,
    };
    let is_outside_same = |one: &[u8], other: &[u8]| {
        one[..ROOT_RANGE.start] == other[..ROOT_RANGE.start] && one[ROOT_RANGE.end..] == other[ROOT_RANGE.end..]
    };
    let before = with_mounted_root(path, &point, || {
        fs::create_dir(point.join("etc")).unwrap();
        fs::write(point.join("etc/hostname"), "web-1\n").unwrap();
    });
    let adopted = with_mounted_root(path, &point, || {
        assert_eq!(run(&fleet("debian-plain", &dir), &host).1, CommandOutcome::Good);
    });
    assert!(is_outside_same(&before, &adopted) && before != adopted);
    let removed = with_mounted_root(path, &point, || {
        assert!(point.join(MARKER).is_file());
        let undo = MachineAdoptionOptions { undo: true, yes: Some("web-1".to_owned()), ..Default::default() };
        assert_eq!(run(&undo, &host).1, CommandOutcome::Good);
        assert!(!point.join("etc/metal").exists() && point.join("etc/hostname").is_file());
    });
    assert!(is_outside_same(&before, &removed));
}
