//! Tests that run the program as a process: closed pipes, paths that are not UTF-8, environment variables, and
//! responses of a server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use testing::http::{ResponseBehavior, Server};

const LAYOUT: &str = "id: default
disks: [{device: /dev/sda, wipe: true, partitions: [{number: 1, label: root, size: 0, type: GPTLinux}]}]
filesystems: [{path: /, device: /dev/sda1, format: ext4, label: root}]
";
const MACHINES: &str =
    r#"[{"id": "4c4c4544-0051-3010-8052-b4c04f4d0001", "name": "one", "installed": true, "attempts": 0}]"#;

/// Returns the command with an environment that contains no variables of drophammer and no configuration.
fn drophammer(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_drophammer"));
    let inherited: Vec<OsString> = std::env::vars_os().map(|(name, _)| name).collect();
    let ours = inherited.iter().filter(|name| name.to_string_lossy().starts_with("DROPHAMMER_"));
    ours.for_each(|name| {
        command.env_remove(name);
    });
    ["XDG_CONFIG_HOME", "all_proxy", "ALL_PROXY", "https_proxy", "HTTPS_PROXY"].iter().for_each(|name| {
        command.env_remove(name);
    });
    command.env("HOME", dir).current_dir(dir).stdin(Stdio::null());
    command
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns a directory with a layout, an inventory and a token.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("default.yaml", LAYOUT);
    write("inventory.json", include_str!("../../../testdata/inventories/five-sata.json"));
    write("operator.token", "secret\n");
    dir
}

/// Runs the command with a standard output whose reader has closed the pipe.
fn run_with_closed_pipe(mut command: Command) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(Stdio::from(writer)).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let dir = directory();
    let server = Server::start(MACHINES.into(), |_| ResponseBehavior::default());
    let url = server.url("").trim_end_matches('/').to_owned();
    let lists = ["table", "wide", "json", "yaml", "name"].map(|format| vec!["machine", "list", "-o", format]);
    let others = [
        vec!["machine", "list", "--json"],
        vec!["machine", "list", "--watch"],
        vec!["image", "list", "--watch"],
        vec!["check", "default.yaml"],
        vec!["check", "default.yaml", "--json"],
        vec!["check", "default.yaml", "--fix"],
        vec!["tree", "default.yaml"],
        vec!["tree", "default.yaml", "--svg"],
        vec!["plan", "--layout", "default.yaml", "--inventory", "inventory.json"],
        vec!["plan", "--layout", "default.yaml", "--inventory", "inventory.json", "--json"],
        vec!["schema", "machine"],
        vec!["explain"],
        vec!["explain", "DH-310"],
        vec!["config", "list"],
        vec!["completion", "bash"],
        vec!["--help"],
        vec!["machine", "--help"],
        vec!["--version"],
    ];
    for arguments in lists.into_iter().chain(others) {
        let mut command = drophammer(dir.path());
        command.args(&arguments);
        if arguments.contains(&"list") && arguments[0] != "config" {
            command.args(["--server", &url]);
        }
        let output = run_with_closed_pipe(command);
        let said = message(&output);
        assert!(!said.contains("panicked") && !said.contains("Broken pipe"), "{arguments:?}: {said}");
        // The plan for this inventory may be refused.
        assert!(matches!(output.status.code(), Some(0 | 2)), "{arguments:?}: {:?} {said}", output.status);
    }
}

#[test]
fn missing_verbs_and_single_dashes_are_explained() {
    let dir = directory();
    for (arguments, expected) in [
        (&["machine", "delete", "web-1"][..], "tip: `drophammer machine free` removes"),
        (&["plan", "-out=web-1.plan", "--machine", "web-1"], "a similar argument exists: '--out'"),
    ] {
        let output = drophammer(dir.path()).args(arguments).output().unwrap();
        let said = message(&output);
        assert!(output.status.code() == Some(64) && said.contains(expected), "{arguments:?}: {said}");
    }
}

/// Each command reads or writes the file, or prints why it cannot.
#[test]
fn commands_accept_non_utf8_paths() {
    let dir = directory();
    let path = |name: &[u8]| dir.path().join(OsStr::from_bytes(name));
    let (layout, inventory, folder) = (path(b"\xff.yaml"), path(b"\xfe.json"), path(b"\xfd"));
    std::fs::copy(path(b"default.yaml"), &layout).unwrap();
    std::fs::copy(path(b"inventory.json"), &inventory).unwrap();
    let word = |text: &str| OsString::from(text);
    let (layout, inventory, folder) = (layout.into_os_string(), inventory.into_os_string(), folder.into_os_string());
    for (arguments, status) in [
        (vec![word("check"), layout.clone()], 0),
        (vec![word("check"), layout.clone(), word("--json")], 0),
        (vec![word("check"), word("--fix"), word("--write"), layout.clone()], 0),
        (vec![word("tree"), layout.clone()], 0),
        (vec![word("plan"), word("--layout"), layout.clone(), word("--inventory"), inventory.clone()], 0),
        (vec![word("plan"), layout.clone()], 1),
        (vec![word("serve"), word("--init"), folder.clone()], 0),
        (vec![word("site"), word("check"), folder.clone()], 0),
        (vec![word("check"), folder.clone()], 0),
        (vec![word("site"), word("plan"), folder.clone()], 0),
        (vec![word("serve"), word("backup"), folder.clone(), folder.clone()], 1),
        (vec![word("serve"), word("restore"), folder.clone(), layout.clone()], 1),
        (vec![word("image"), word("pack"), folder.clone(), word("-o"), layout.clone()], 0),
        (vec![word("image"), word("add"), layout.clone(), folder.clone(), word("--id"), word("debian-13")], 64),
        // The source of an image may be a URL, so its path must be UTF-8.
        (vec![word("image"), word("burn"), layout.clone(), folder.clone()], 64),
        (vec![word("man"), folder.clone()], 0),
        (vec![word("machine"), word("list"), word("--token-file"), folder.clone()], 1),
        (vec![word("login"), word("http://127.0.0.1:9"), word("--token-file"), folder.clone()], 1),
    ] {
        let output = drophammer(dir.path()).args(&arguments).output().unwrap();
        let said = message(&output);
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
        let code = output.status.code().unwrap();
        // Depending on the content of the files, a command is refused (2) or fails (1).
        assert!(code == status || (status != 64 && code == 2), "{arguments:?}: {code} {said}");
        assert!(status == 0 || !said.is_empty(), "{arguments:?}: no message");
    }
}

#[test]
fn an_address_in_use_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("site");
    let initialized =
        drophammer(dir.path()).args([OsStr::new("serve"), OsStr::new("--init"), folder.as_os_str()]).status();
    assert!(initialized.unwrap().success());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = drophammer(dir.path()).arg("serve").arg(&folder).args(["--listen", &address]).output().unwrap();
    let said = message(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&address) && said.contains("(DH-711)") && said.contains("--listen"), "{said}");
}

/// The environment variables of `serve` do not apply to its subcommands.
#[test]
fn databases_are_backed_up_although_variables_of_serve_are_set() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).into_os_string();
    let serve = |arguments: &[&OsStr]| {
        let variables = [
            ("DROPHAMMER_SERVE_LISTEN", "127.0.0.1:0"),
            ("DROPHAMMER_SERVE_JSON", "1"),
            ("DROPHAMMER_SERVE_CHECK", "0"),
        ];
        let output = drophammer(dir.path()).arg("serve").args(arguments).envs(variables).output().unwrap();
        (output.status.code(), message(&output))
    };
    let (site, copy) = (path("site"), path("copy"));
    let initialized = serve(&[OsStr::new("--init"), &site]);
    assert_eq!(initialized.0, Some(0), "{initialized:?}");
    drop(rusqlite::Connection::open(dir.path().join("site/state.sqlite")));
    for arguments in [[OsStr::new("backup"), &*site, &*copy], [OsStr::new("restore"), &*site, &*copy]] {
        let (code, said) = serve(&arguments);
        // The directory contains no usable database, which is not an error in the command line.
        assert!(code != Some(64) && !said.contains("Usage"), "{arguments:?}: {code:?} {said}");
    }
}

/// A switch does not conflict with other options if its environment variable is false.
#[test]
fn false_switch_variable_does_not_conflict() {
    let dir = directory();
    let check = |value: &str| {
        let mut command = drophammer(dir.path());
        let output = command.args(["check", "--fix", "default.yaml"]).env("DROPHAMMER_CHECK_STRICT", value).output();
        output.unwrap().status.code()
    };
    for value in ["0", "false", "no", "off", ""] {
        assert_eq!(check(value), Some(0), "{value:?}");
    }
    assert_eq!(check("1"), Some(64));
}

#[test]
fn the_code_of_a_response_is_printed_once() {
    let dir = directory();
    for (status, code, printed) in [
        (409, "DH-643", "the plan was not approved (DH-643)"),
        (500, "DH-714", "the plan was not approved (DH-714)"),
        (503, "", "the plan was not approved (DH-600)"),
        (409, "DH-999", "the plan was not approved (DH-999)"),
        (401, "DH-101", "(DH-101)"),
    ] {
        let body =
            format!(r#"{{"statuscode": {status}, "message": "the plan was not approved", "error_code": "{code}"}}"#);
        let server = Server::start(Vec::new(), move |_| ResponseBehavior::respond(status, &body));
        let output =
            drophammer(dir.path()).args(["machine", "list", "--server", server.url("").trim_end_matches('/')]).output();
        let said = message(&output.unwrap());
        assert!(said.contains(printed) && said.matches("(DH-").count() == 1, "{status} {code}: {said}");
    }
}

#[test]
fn a_reworded_refusal_has_the_code_of_the_server() {
    let dir = directory();
    let server = Server::start(Vec::new(), |request| match request.line().as_str() {
        "GET /v1/machines" => ResponseBehavior::respond(200, "[]"),
        _ => {
            let body = r#"{"statuscode": 422, "message": "image d is in use by machines:[1]", "error_code": "DH-600"}"#;
            ResponseBehavior::respond(422, body)
        }
    });
    let url = server.url("");
    let output =
        drophammer(dir.path()).args(["image", "delete", "d", "--server", url.trim_end_matches('/')]).output().unwrap();
    assert_eq!(message(&output), "drophammer: image d is in use by 1 machine: 1 (DH-600)\n");
}

#[test]
fn wrong_tokens_and_paths_are_explained() {
    let dir = directory();
    let body = r#"{"statuscode": 404, "message": "no such endpoint"}"#;
    let server = Server::start(Vec::new(), move |_| ResponseBehavior::respond(404, body));
    let run = |token: &str| {
        let url = server.url("/path");
        message(
            &drophammer(dir.path())
                .args(["machine", "list", "--server", &url, "--token-file", token])
                .output()
                .unwrap(),
        )
    };
    let said = run("operator.token");
    assert!(said.contains("/path does not have this endpoint: check the path of the URL") && said.contains("(DH-102)"));
    let said = run("default.yaml");
    assert!(said.contains("is not a token: a token is one line") && said.contains("(DH-101)"), "{said}");
    assert_eq!(server.requests().len(), 1);
}

/// While the planner is busy, the server asks clients to try again later.
#[test]
fn a_busy_server_is_named() {
    let dir = directory();
    let body = r#"{"statuscode": 503, "message": "the planner is busy: try again in a few seconds"}"#;
    let server = Server::start(Vec::new(), move |_| ResponseBehavior::respond(503, body));
    let output =
        drophammer(dir.path()).args(["machine", "list", "--server", server.url("").trim_end_matches('/')]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        message(&output).contains("503") && message(&output).contains("the planner is busy"),
        "{}",
        message(&output)
    );
}

#[test]
fn a_socks_proxy_is_refused() {
    let dir = directory();
    let mut command = drophammer(dir.path());
    command.args(["machine", "list", "--server", "https://install.example:8443"]);
    let output =
        command.env("all_proxy", "socks5://proxy.example:1080").env_remove("no_proxy").env_remove("NO_PROXY").output();
    let said = message(&output.unwrap());
    assert!(said.contains("all_proxy: cannot use the proxy socks5://proxy.example:1080 for install.example"), "{said}");
    std::io::stderr().flush().unwrap();
}

/// Exit statuses of docs/adopt.md.
#[test]
fn machines_of_other_installers_have_the_documented_exit_statuses() {
    let dir = directory();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/foreign-installations");
    let status = |command: &[&str], machine: &str| {
        let (inventory, fstab) = (format!("{folder}/{machine}/inventory.json"), format!("{folder}/{machine}/fstab"));
        let output = drophammer(dir.path()).args(command).args(["--inventory", &inventory, "--fstab", &fstab]).output();
        let output = output.unwrap();
        (output.status.code().unwrap(), message(&output))
    };
    let preview = ["adopt", "--dry-run", "--name", "web-1"];
    for (command, machine, expected) in [
        (&["layout", "from-machine"][..], "almalinux-uefi", 0),
        (&["layout", "from-machine"], "fedora", 2),
        (&preview, "almalinux-uefi", 0),
        (&preview, "fedora", 2),
        // Without --dry-run, the inventory must be that of the machine itself.
        (&["adopt", "--image", "i", "--name", "web-1"], "almalinux-uefi", 64),
        (&["adopt", "--undo", "--dry-run"], "almalinux-uefi", 64),
    ] {
        let (code, text) = status(command, machine);
        assert_eq!(code, expected, "{command:?} {machine}: {text}");
    }
    let output = drophammer(dir.path()).args(["adopt", "--name", "web-1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64), "an image is required: {}", message(&output));
    let missing = drophammer(dir.path()).args(["adopt", "--dry-run", "--inventory", "nowhere.json"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(1), "{}", message(&missing));
}

/// The manual documents status 2 for refusals and invalid input, 1 for failures, and 64 for wrong usage.
#[test]
fn refusals_failures_and_wrong_usage_have_their_own_exit_status() {
    let dir = directory();
    let server = Server::start(MACHINES.into(), |_| ResponseBehavior::default());
    let url = server.url("").trim_end_matches('/').to_owned();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("broken.plan", "{\"version\": 1}");
    write("broken.yaml", "id: [\n");
    std::fs::write(dir.path().join("latin1.yaml"), b"id: \xe4\n").unwrap();
    for (arguments, status, words) in [
        (&["export", "."][..], 2, "the directory is not empty"),
        (&["machine", "reinstall", "--plan", "broken.plan"], 2, "was not written by `drophammer plan --out`"),
        (&["plan", "broken.plan"], 2, "(DH-201)"),
        (&["machine", "list", "--server", "http://h:99999"], 2, "(DH-102)"),
        (&["rollout", "list", "--server", "ftp://h"], 2, "(DH-102)"),
        (&["audit", "--server", "http://me:hunter2@h"], 2, "credentials in the URL are not supported"),
        (&["whoami", "--context", "rock"], 2, "(DH-102)"),
        (&["login", "ftp://h"], 2, "the scheme must be http or https"),
        (&["plan", "--layout", "default.yaml", "--inventory", "default.yaml"], 2, "(DH-202)"),
        (
            &["plan", "--layout", "default.yaml", "--allocation", "latin1.yaml", "--inventory", "inventory.json"],
            2,
            "utf-8",
        ),
        (&["check", "--fix", "default.yaml", "default.yaml"], 2, "--fix prints exactly one layout"),
        (&["machine", "list", "--server", "http://127.0.0.1:1"], 1, "(DH-"),
        (&["plan", "--layout", "missing.yaml", "--inventory", "inventory.json"], 1, "No such file or directory"),
        (&["machine", "lists"], 64, "unrecognized subcommand"),
    ] {
        let output = drophammer(dir.path()).env("DROPHAMMER_SERVER", &url).args(arguments).output().unwrap();
        let text = message(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
        assert!(text.contains(words) && !text.contains("hunter2"), "{arguments:?}: {text}");
    }
}

/// The commands of workstations print the same code for an invalid layout as the agent.
#[test]
fn invalid_layouts_have_the_same_code_in_all_commands() {
    let dir = directory();
    std::fs::write(dir.path().join("bad.yaml"), LAYOUT.replace("ext4", "ext9")).unwrap();
    let plan = ["plan", "--layout", "bad.yaml", "--inventory", "inventory.json"];
    let outputs = [&["check", "bad.yaml"][..], &["tree", "bad.yaml"], &plan].map(|arguments| {
        let output = drophammer(dir.path()).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", message(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().unwrap_or_default().to_owned()
    });
    assert!(outputs[0].contains("ext9") && outputs[0].ends_with("(DH-200)"), "{outputs:?}");
    assert!(outputs.iter().all(|text| *text == outputs[0]), "{outputs:?}");
}
