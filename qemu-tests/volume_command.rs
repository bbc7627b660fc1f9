//! End-to-end tests of the output and the exit codes of `drophammer volume`, with a running `drophammer serve`.

use crate::host_tools::{Result, tie_to_thread, write};
use crate::server::{Server, boot_script, send_json, write_object};
use model::architecture::Architecture;
use serde_json::{Value, json};
use std::fs::File;
use std::path::Path;
use std::process::Stdio;

const MACHINE_ID: &str = "00000000-0000-0000-0000-0000000000b1";
const MAC: &str = "52:54:00:00:00:b1";
const UID: &str = "9474cda7-0dbe-40fc-9842-3cb0404a7401";
const OTHER: &str = "9474cda7-0dbe-40fc-9842-3cb0404a7402";

/// Returns a list of volumes in the format of `kubectl get volumes,storageclasses -o yaml`.
fn list_volumes(names: &[(&str, &str)]) -> String {
    let volume = |(name, uid): &(&str, &str)| {
        format!(
            "- apiVersion: storage.metalk8s.scality.com/v1alpha1\n  kind: Volume\n  metadata: {{name: {name}, uid: {uid}}}\n  \
             spec: {{nodeName: h, storageClassName: fast, rawBlockDevice: {{devicePath: /dev/sdc}}}}\n"
        )
    };
    let volumes: String = names.iter().map(volume).collect();
    format!(
        "apiVersion: v1\nkind: List\nitems:\n{volumes}- apiVersion: storage.k8s.io/v1\n  kind: StorageClass\n  \
         metadata: {{name: fast}}\n  parameters: {{fsType: ext4}}\n"
    )
}

fn create_folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for folder in ["machines", "layouts", "images", "boot"] {
        std::fs::create_dir(dir.path().join(folder)).expect(folder);
    }
    let layout = "id: plain\ndisks: [{device: /dev/sda, wipe: true, partitions: [{number: 1, label: root, size: 0, type: GPTLinux}]}]\n\
                  filesystems: [{path: /, device: /dev/sda1, format: ext4, label: root}]\n";
    let machine = format!(
        "id: {MACHINE_ID}\nname: node\nmacs: ['{MAC}']\nsize: c1\nallocation:\n  id: a1\n  hostname: h\n  image: os\n  filesystemlayout: plain\n"
    );
    let bare = "id: 00000000-0000-0000-0000-0000000000b2\nname: bare\nmacs: ['52:54:00:00:00:b2']\n";
    for (kind, id, text) in [
        ("layouts", "plain", layout),
        ("machines", "node", &machine),
        ("machines", "bare", bare),
        ("images", "os", "id: os\nfile: os.tar\n"),
    ] {
        write_object(dir.path(), kind, id, text).expect(id);
    }
    for file in ["images/os.tar", "boot/vmlinuz", "boot/initrd"] {
        write(&dir.path().join(file), "x").expect(file);
    }
    dir
}

/// Runs a command of drophammer with this standard input. Returns its exit code, its output and its error output.
fn run_command(port: u16, token: &Path, words: &[&str], input: Stdio) -> (Option<i32>, String, String) {
    let server = format!("http://127.0.0.1:{port}");
    let mut command = tie_to_thread(env!("CARGO_BIN_EXE_drophammer"));
    command.args(words).args(["--server", &server, "--token-file"]).arg(token).stdin(input);
    let output = command.output().expect("drophammer");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn run_volume(port: u16, token: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    run_command(port, token, &[&["volume"], words].concat(), Stdio::null())
}

/// Tests commands with the file `-`, which is standard input. Their messages contain positions in this input.
fn test_standard_input(port: u16, token: &Path, folder: &Path) {
    let run = |words: &[&str], text: &str| {
        let path = folder.join("standard-input");
        write(&path, text).expect("standard input");
        run_command(port, token, words, File::open(&path).expect("standard input").into())
    };
    let layout = "id: piped\ndisks: [{device: /dev/sda, partitions: [{number: 1, size: 0}]}]\n\
                  filesystems: [{path: /, device: /dev/sda1, format: ext4}]\n";
    for (words, text, code, expected) in [
        (&["layout", "create", "-"][..], layout, Some(0), "Layout piped was created."),
        (&["layout", "apply", "-"], layout, Some(0), "Layout piped was updated from the file."),
        (&["layout", "create", "-"], "id: piped\ndisks: 7\n", Some(2), "-:2:8: disks: "),
        (&["volume", "add", "node", "-"], &list_volumes(&[("db-1", UID)]), Some(0), "db-1"),
        (
            &["volume", "add", "node", "-"],
            &list_volumes(&[("db-1", "x")]),
            Some(2),
            "-:6:31: Volume db-1: metadata.uid: must be",
        ),
    ] {
        let (exit, printed, errors) = run(words, text);
        assert!(exit == code && (printed + &errors).contains(expected), "{words:?}: {exit:?} {errors}");
    }
}

/// Simulates an installation whose agent reports these volumes.
fn simulate_installation(port: u16, volumes: &Value) -> Result<()> {
    let script =
        boot_script(port, MACHINE_ID, MAC, Architecture::Amd64)?.ok_or("the server does not install the machine")?;
    let token = script.cmdline.split(' ').find_map(|word| word.strip_prefix("drophammer.token="));
    let token = token.ok_or("the agent receives no token")?;
    let registered = json!({"uuid": MACHINE_ID, "hardware": {"memory": 1, "cpu_cores": 2, "disks": [], "nics": []},
        "bios": {"vendor": "", "version": "", "date": ""}});
    let report = json!({"success": true, "message": "m", "allocationuuid": "a1", "volumes": volumes,
        "burn": {"bytes": 1, "seconds": 1.0, "shares": []}});
    let begins = json!({"allocationuuid": "a1", "order": ""});
    let machine = format!("/v1/machine/{MACHINE_ID}");
    for (method, path, body) in [
        ("POST", "/v1/machine/register", registered),
        ("GET", &format!("{machine}/wait?seconds=60"), Value::Null),
        ("GET", &machine, Value::Null),
        ("POST", &format!("{machine}/point-of-no-return"), begins),
        ("POST", &format!("{machine}/report"), report),
    ] {
        let (status, errors) = send_json(port, token, method, path, &body)?;
        if status != 200 {
            return Err(format!("{method} {path}: {status} {errors}"));
        }
    }
    Ok(())
}

/// Tests the commands from adding volumes to removing one, including all refusals.
pub fn self_test() {
    let dir = create_folder();
    let server = Server::start(dir.path(), &dir.path().join("boot"), "", None).expect("drophammer serve");
    let port = server.port().expect("its port");
    let token = dir.path().join("operator.token");
    let run = |words: &[&str]| run_volume(port, &token, words);
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        write(&path, text).expect(name);
        path.display().to_string()
    };
    // Returns the lines without the heading of the table, and with one blank between columns.
    let lines = |text: &str| -> Vec<String> {
        text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    let refused = |words: &[&str], expected: &str| {
        let (code, printed, errors) = run(words);
        assert_ne!(code, Some(0), "{words:?}: {printed}");
        assert!(printed.is_empty() && errors.contains(expected), "{words:?}: {printed} {errors}");
    };
    let good = |words: &[&str]| {
        let (code, printed, errors) = run(words);
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{words:?}: {printed}");
        printed
    };
    let (code, printed, errors) = run(&["list"]);
    assert_eq!((code, printed.as_str(), errors.as_str()), (Some(0), "", "No volumes.\n"));

    // A refused command does not change the machine file.
    let before = std::fs::read(dir.path().join("machines/node.yaml")).expect("the machine file");
    let list = file("list.yaml", &list_volumes(&[("db-1", UID)]));
    refused(&["add", "node", "/nowhere/list.yaml"], "read /nowhere/list.yaml");
    refused(&["add", "node", &file("bad.yaml", "items: [\n")], "bad.yaml:");
    refused(&["add", "node", &file("wrong.yaml", &list_volumes(&[("db-1", "x")]))], "must be a UUID");
    refused(&["add", "nobody", &list], "nobody");
    refused(&["add", "bare", &list], "is not allocated");
    refused(&["rm", "node", "db-1", "--persistent-volume", "none"], "db-1");
    assert_eq!(std::fs::read(dir.path().join("machines/node.yaml")).expect("the same"), before);

    let pending = "db-1 node Pending - - the pending installation prepares the volume".to_owned();
    assert_eq!(lines(&good(&["add", "node", &list])), std::slice::from_ref(&pending));
    assert_eq!(
        lines(&good(&["add", MACHINE_ID, &list])),
        std::slice::from_ref(&pending),
        "existing volumes are unchanged"
    );
    assert_eq!(lines(&good(&["ls"])), [pending]);
    test_standard_input(port, &token, dir.path());
    let empty: Value = parse_manifests(&good(&["list", "--manifests"]));
    assert_eq!(empty["items"], json!([]));

    let path = format!("/dev/disk/by-uuid/{UID}");
    simulate_installation(port, &json!([{"name": "db-1", "uid": UID, "path": path, "size_bytes": 134217728}]))
        .expect("installed");
    assert_eq!(lines(&good(&["list"])), [format!("db-1 node Available 134 MB {path} -")]);
    let shown: Value = serde_json::from_str(&good(&["list", "--json"])).expect("JSON");
    assert_eq!((&shown[0]["state"], &shown[0]["path"]), (&json!("Available"), &json!(path)));
    let made = parse_manifests(&good(&["list", "--manifests"]));
    let spec = &made["items"][0]["spec"];
    assert_eq!((&made["items"][0]["kind"], &spec["local"]["path"]), (&json!("PersistentVolume"), &json!(path)));
    assert!(spec["nodeAffinity"].to_string().contains("kubernetes.io/hostname"), "{spec}");

    // This volume is added too late for the current installation.
    let more = file("more.yaml", &list_volumes(&[("db-1", UID), ("db-2", OTHER)]));
    let two = lines(&good(&["add", "node", &more]));
    assert!(two[1].contains("db-2 node Pending - - the next reinstall prepares the volume"), "{two:?}");

    // These requests have the same order as in MetalK8s when it deletes a volume.
    refused(&["rm", "nobody", "db-1", "--persistent-volume", "none"], "nobody");
    refused(&["rm", "node", "db-9", "--persistent-volume", "none"], "db-9");
    refused(&["rm", "node", "db-1", "--persistent-volume", "lost"], "persistent_volume");
    refused(&["rm", "node", "db-1", "--persistent-volume", "bound"], "PersistentVolume that is bound");
    refused(&["rm", "node", "db-1", "--persistent-volume", "pending"], "PersistentVolume that is pending");
    refused(&["rm", "node", "db-2", "--persistent-volume", "released"], "db-2 cannot be deleted: it is Pending");
    refused(&["rm", "node", "db-1"], "--persistent-volume");
    good(&["rm", "node", "db-2", "--persistent-volume", "none"]);
    let left = lines(&good(&["rm", "node", "db-1", "--persistent-volume", "released"]));
    assert!(left.len() == 1 && left[0].starts_with("db-1 node Terminating 134 MB"), "{left:?}");
    assert_eq!(parse_manifests(&good(&["list", "--manifests"]))["items"], json!([]));
    let text = std::fs::read_to_string(dir.path().join("machines/node.yaml")).expect("the machine file");
    assert!(!text.contains(UID) && !text.contains(OTHER), "{text}");
    // Only the owner can read the token file.
    let other = file("other.token", &"0".repeat(64));
    let (code, printed, errors) = run_volume(port, Path::new(&other), &["list"]);
    assert!(code != Some(0) && printed.is_empty(), "{printed} {errors}");
}

/// Parses JSON after a comment, as `kubectl apply` does.
fn parse_manifests(text: &str) -> Value {
    let (comment, list) = text.split_once('\n').expect("two lines");
    assert!(comment.starts_with('#'), "{text}");
    serde_json::from_str(list).expect("a list")
}
