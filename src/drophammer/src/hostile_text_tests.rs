//! Tests of commands that print hostile names, received from inventories, layouts, images, servers or management
//! controllers.

use crate::cli::{Cli, CliCommand, ImageArgs, ImageCommand};
use bmc::{PowerAction, TargetMachine, Unguarded, switch_power};
use clap::Parser;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::output_capture::{HOSTILE, first_hidden, recorded};
use model::bmc::{Bmc, BmcAddress};
use model::secret_text::SecretText;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::Path;
use testing::http::{ResponseBehavior, Server};
use testing::images::Tar;

fn run(arguments: &[&str]) -> String {
    let command = Cli::try_parse_from([&["drophammer"], arguments].concat()).unwrap().command;
    recorded(|| match &command {
        CliCommand::Plan(options) => crate::local_commands::run_plan(options),
        CliCommand::Check(options) => crate::local_commands::run_check(options),
        CliCommand::Tree(options) => crate::local_commands::run_tree(options),
        CliCommand::Machine(options) => crate::server_commands::run_machine_command(options),
        CliCommand::Layout(options) => crate::server_commands::layouts::run_layout_command(options),
        CliCommand::Volume(options) => crate::server_commands::volumes::run_volume_command(options),
        CliCommand::Image(ImageArgs { command: ImageCommand::List(options) }) => {
            crate::server_commands::images::list_images(options)
        }
        CliCommand::Image(ImageArgs { command: ImageCommand::Burn(options) }) => {
            agent::image_burn_command::run(options)
        }
        CliCommand::Image(ImageArgs { command: ImageCommand::Pack(options) }) => image::pack::run_pack(options),
        _ => panic!("{arguments:?}"),
    })
}

/// Checks that the output contains neither control characters nor a line that begins with injected text.
fn assert_tame(what: &str, output: &str) {
    assert!(!output.is_empty(), "{what}: no output");
    assert_eq!(first_hidden(output), None, "{what}: {output:?}");
    assert!(!output.lines().any(|line| line.starts_with("drophammer: forged")), "{what}: {output}");
}

/// Appends the hostile text to all strings, or only to those in the given fields.
fn poison(value: &mut Value, fields: &[&str]) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| poison(item, fields)),
        Value::Object(object) => object.iter_mut().for_each(|(name, value)| match value {
            Value::String(text) if fields.is_empty() || fields.contains(&name.as_str()) => text.push_str(HOSTILE),
            value => poison(value, fields),
        }),
        _ => {}
    }
}

fn testdata(name: &str) -> String {
    format!("{}/testdata/{name}", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn hostile_inventories_do_not_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("inventory.json");
    let mut reached = 0;
    for name in ["five-sata", "installed-default", "mirror-1.0-group", "orphans", "raid-lvm", "twin-groups"] {
        let text = std::fs::read(testdata(&format!("inventories/{name}.json"))).unwrap();
        for fields in [
            &["model", "vendor", "label", "firmware"][..],
            &["serial", "wwn", "name", "image", "allocation", "reason"],
            &[],
        ] {
            let mut inventory: Value = serde_json::from_slice(&text).unwrap();
            poison(&mut inventory, fields);
            std::fs::write(&file, inventory.to_string()).unwrap();
            for layout in ["default", "storage", "lvm"] {
                for more in [&[][..], &["--reinstall"], &["--json"]] {
                    let (layout, file) = (testdata(&format!("layouts/{layout}.yaml")), file.to_str().unwrap());
                    let output = run(&[&["plan", "--layout", &layout, "--inventory", file], more].concat());
                    assert_tame(&format!("{name} {fields:?} {layout} {more:?}"), &output);
                    reached += usize::from(output.contains("\\u{9b}31m") || output.contains("\\u009b31m"));
                }
            }
        }
    }
    assert!(reached > 50, "names are in only {reached} outputs");
}

#[test]
fn hostile_layout_names_do_not_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("layout.json");
    let good = "id: default\ndisks: [{device: /dev/sda, wipe: true, partitions: [{number: 1, label: root, size: 0, type: GPTLinux}]}]\n\
                filesystems: [{path: /, device: /dev/sda1, format: ext4, label: root}]\n";
    let names = ["id", "label", "device", "path", "format", "type"];
    for field in names {
        let quoted = serde_json::to_string(&format!("x{HOSTILE}")).unwrap();
        let text = good.replacen(&format!("{field}: "), &format!("{field}: {quoted} #"), 1).replace(" #", "\n#");
        std::fs::write(&file, &text).unwrap();
        for command in [&["check"][..], &["check", "--json"], &["tree"]] {
            assert_tame(field, &run(&[command, &[file.to_str().unwrap()]].concat()));
        }
    }
    let missing = format!("no{}", HOSTILE.replace('/', "_"));
    assert_tame("a file's name", &run(&["check", dir.path().join(missing).to_str().unwrap()]));
}

#[test]
fn hostile_server_responses_do_not_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("operator.token");
    std::fs::write(&token, "token").unwrap();
    let text = || format!("n{HOSTILE}");
    let machine = json!([{ "id": text(), "name": text(), "size": text(), "allocation": text(), "image": text(), "wanted": text(),
        "layout": text(), "installed": true, "adopted": false, "attempts": 3, "locked": text(), "order": null, "last_seen": text(),
        "last_event": null, "outcome": { "order": text(), "image": text(), "success": false, "message": text(), "time": text() } }]);
    let layouts = json!([{ "id": text(), "description": text(), "constraints": { "sizes": [text()], "images": { "x": text() } }, "filesystems": [{ "path": text(), "device": text(), "format": text() }] }]);
    let images = json!([{ "id": text(), "name": text(), "version": text(), "url": text() }]);
    let volumes = json!([{ "machine": text(), "name": text(), "uid": text(), "kind": text(), "state": "failed", "message": text(), "path": text(), "size_bytes": 1 }]);
    let refusal = json!({ "statuscode": 409, "message": text() }).to_string();
    let answers =
        [(200, String::new()), (409, refusal.clone()), (500, refusal), (401, text()), (502, text()), (200, text())];
    for (status, body) in answers {
        let documents = [machine.clone(), layouts.clone(), images.clone(), volumes.clone()];
        let server = Server::start(Vec::new(), move |request| {
            let [machine, layouts, images, volumes] = &documents;
            let document = match request.path.as_str() {
                path if path.contains("volumes") => volumes,
                path if path.contains("layout") => layouts,
                path if path.contains("image") => images,
                _ => machine,
            };
            ResponseBehavior::respond(status, &if body.is_empty() { document.to_string() } else { body.clone() })
        });
        let (url, token) = (server.url(""), token.to_str().unwrap());
        for command in [
            &["machine", "list"][..],
            &["machine", "list", "--json"],
            &["machine", "reinstall", "n", "--image", "i"],
            &["machine", "boot-digest", "n"],
            &["layout", "list"],
            &["layout", "show", "n"],
            &["image", "list"],
            &["volume", "list"],
            &["volume", "list", "--manifests"],
        ] {
            let output = run(&[command, &["--server", &url, "--token-file", token]].concat());
            match command.contains(&"--manifests") {
                // Manifests span several lines, and their indentation is meaningful.
                true => assert_eq!(first_hidden(&output), None, "{output:?}"),
                false => assert_tame(&format!("{status} {command:?}"), &output),
            }
        }
    }
}

#[test]
fn hostile_bmc_responses_do_not_control_the_terminal() {
    let text = || format!("n{HOSTILE}");
    let systems = json!({ "Members": [{ "@odata.id": text() }, { "@odata.id": format!("/{HOSTILE}") }] }).to_string();
    let error = json!({ "error": { "message": text() } }).to_string();
    for (status, body) in [(200, systems), (400, error), (500, text()), (200, text())] {
        let server = Server::start(Vec::new(), move |_| ResponseBehavior::respond(status, &body));
        let url = server.url("").trim_end_matches('/').to_owned();
        let at = BmcAddress::Redfish { url, system: None };
        let bmc = Bmc { at, username: "u".to_owned(), password: SecretText::new("p"), insecure: false };
        let output = recorded(|| switch_power(&bmc, PowerAction::On, &TargetMachine::default(), &Unguarded));
        assert_tame(&format!("Redfish {status}"), &output);
    }
}

fn burn(tar: Tar) -> String {
    let dir = tempfile::tempdir().unwrap();
    let (image, target) = (dir.path().join("image.tar"), dir.path().join("target"));
    let bytes = tar.end();
    let digest = format!("sha256:{:x}", Sha256::digest(&bytes));
    std::fs::write(&image, bytes).unwrap();
    std::fs::create_dir(&target).unwrap();
    run(&["image", "burn", "--digest", &digest, &format!("file://{}", image.display()), target.to_str().unwrap()])
}

#[test]
fn hostile_image_members_do_not_control_the_terminal() {
    let short: String = HOSTILE.replace('/', "_").chars().take(30).collect();
    for (what, tar) in [
        ("a name that leads out", Tar::new().raw(&format!("../{short}"), b'0', b"x", |_| {})),
        ("a link that leads out", Tar::new().symlink(&short, &format!("/../../{short}"))),
        ("an unknown type", Tar::new().raw(&short, b'Z', b"", |_| {})),
        ("a link to nothing", Tar::new().hard_link(&short, &format!("missing{short}"))),
    ] {
        assert_tame(what, &burn(tar));
    }
}

#[test]
fn hostile_file_names_do_not_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let name: String = HOSTILE.replace('/', "_").chars().take(40).collect();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
    std::fs::rename(tree.join("socket"), tree.join(&name)).unwrap();
    let pack = |source: &Path| -> String {
        let image = dir.path().join("image.tar.zst");
        run(&["image", "pack", source.to_str().unwrap(), "--output", image.to_str().unwrap()])
    };
    assert_tame("a socket", &pack(&tree));
    assert_tame("a missing tree", &pack(&dir.path().join(&name)));
}

#[test]
fn agent_console_escapes_hostile_text() {
    linux::console_log::print_line(&format!("WARNING: {HOSTILE}"));
    let (_, said) = linux::console_log::CONSOLE_LOG.read_since(0, usize::MAX);
    assert_eq!(first_hidden(&said), None, "{said:?}");
    let done: Result<CommandOutcome> = Ok(CommandOutcome::Good);
    assert!(recorded(|| done).is_empty());
}
