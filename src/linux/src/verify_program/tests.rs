use super::*;
use model::ganeti_os_definition::DefinitionFile;
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::time::Instant;

const SOON: Duration = Duration::from_secs(20);

fn chosen(verify: &str) -> SelectedDefinition {
    let file = |executable: bool, text: &str| DefinitionFile { executable, text: text.to_owned() };
    let files = [
        ("verify", file(true, verify)),
        ("common.sh", file(false, "words='of common.sh'\n")),
        ("hooks/one", file(true, "#!/bin/sh\necho of a hook\n")),
    ];
    let parameters = [("ns1", "192.0.2.53"), ("rootfs-size", "two\nlines"), ("empty", "")];
    SelectedDefinition {
        name: "web".to_owned(),
        variant: "small".to_owned(),
        api: 20,
        parameters: parameters.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        files: files.map(|(name, file)| (name.to_owned(), file)).into(),
    }
}

fn run(script: &str) -> VerifyVerdict {
    without_the_harness(run_verify(&chosen(script), SOON))
}

/// Removes the lines that the test harness prints.
fn without_the_harness(verdict: VerifyVerdict) -> VerifyVerdict {
    match verdict {
        VerifyVerdict::Refused(words) => {
            let words =
                words.replace("running 1 test | ", "").replace("test verify_program::worker::tests::worker ... ", "");
            VerifyVerdict::Refused(words)
        }
        other => other,
    }
}

/// Runs a script that rejects the parameters, and returns the message.
fn words(script: &str) -> String {
    match run(script) {
        VerifyVerdict::Refused(words) => words,
        other => panic!("{other:?}"),
    }
}

/// Returns whether the sandbox can be used; some systems deny namespaces to unprivileged users. Panics if the sandbox
/// cannot be used by root, because the tests would then check nothing.
fn can_run() -> bool {
    match run("#!/bin/sh\nexit 0\n") {
        VerifyVerdict::NotRun(why) => {
            assert!(!nix::unistd::geteuid().is_root(), "no sandbox here: {why}");
            eprintln!("no sandbox here: {why}");
            false
        }
        _ => true,
    }
}

#[test]
fn verify_program_accepts_or_refuses() {
    if !can_run() {
        return;
    }
    assert_eq!(run("#!/bin/sh\necho fine\n"), VerifyVerdict::Good);
    assert_eq!(run("#!/bin/bash\n[[ $OSP_NS1 == 192.* && $1 == parameters && $# == 1 ]]\n"), VerifyVerdict::Good);
    let said = words("#!/bin/sh\necho one\necho \"Invalid value '$OSP_NS1'\" >&2\nexit 3\n");
    assert!(said.starts_with("the program exited with 3, saying: "), "{said}");
    assert!(said.contains("one") && said.contains("Invalid value '192.0.2.53'"), "{said}");
    let own = words("#!/bin/sh\n. ./common.sh\necho $words; ./hooks/one; pwd; echo $0; cat; exit 1\n");
    assert!(own.ends_with("of common.sh | of a hook | /definition | /definition/verify"), "{own}");
    let killed = words("#!/bin/sh\nsh -c 'kill -9 $$'\nexit $?\n");
    assert!(killed.starts_with("the program exited with 137"), "{killed}");
    // Exit code 125 without the prefix of the worker is not an error of the sandbox.
    assert!(words("#!/bin/sh\nexit 125\n").starts_with("the program exited with 125"));
    assert_eq!(run_verify(&SelectedDefinition::default(), SOON), VerifyVerdict::Good);
}

#[test]
fn unstartable_verify_is_reported_with_its_first_line() {
    if !can_run() {
        return;
    }
    let VerifyVerdict::NotRun(why) = run("#!/usr/bin/no-such-shell\n") else { panic!("the program was run") };
    assert!(why.contains("#!/usr/bin/no-such-shell") && why.contains("cannot start `verify`"), "{why}");
}

#[test]
fn verify_receives_only_the_environment_of_ganeti() {
    if !can_run() {
        return;
    }
    let said = words("#!/bin/sh\nenv\nexit 1\n");
    let said = said.split_once("saying: ").unwrap().1.replace(" | lines", "\nlines");
    let said: BTreeMap<String, String> = said
        .split(" | ")
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| !["PWD", "SHLVL", "_", "OLDPWD"].contains(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    assert_eq!(said, chosen("").verify_environment());
}

#[test]
fn hanging_verify_is_killed_with_its_children() {
    if !can_run() {
        return;
    }
    let began = Instant::now();
    let script =
        "#!/bin/bash\necho begun\ntrap '' TERM INT HUP\nsleep 86371 &\n(trap '' TERM; exec sleep 86372) &\nwait\n";
    let verdict = run_verify(&chosen(script), Duration::from_secs(2));
    let VerifyVerdict::Refused(words) = verdict else { panic!("{verdict:?}") };
    assert!(
        words.starts_with("the program did not end within 2 s and was killed, saying: ") && words.contains("begun"),
        "{words}"
    );
    assert!(began.elapsed() < Duration::from_secs(15));
    let end = Instant::now() + Duration::from_secs(5);
    while running("8637") && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!running("8637"));
    // The processes that `verify` leaves behind end together with it.
    assert_eq!(run("#!/bin/bash\nsleep 86381 >/dev/null 2>&1 &\nexit 0\n"), VerifyVerdict::Good);
    assert!(!running("86381"));
}

/// Returns whether a `sleep` process has this string in its arguments.
fn running(argument: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let own = std::process::id().to_string();
    processes.filter(|process| process.file_name() != *own).any(|process| {
        let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
        words.starts_with(b"sleep\0") && String::from_utf8_lossy(&words).contains(argument)
    })
}

#[test]
fn verify_cannot_write_files() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let beside = dir.path().join("beside");
    fs::write(&beside, "untouched").unwrap();
    let beside = beside.display();
    let script = format!(
        "#!/bin/bash\nfor path in /definition/x /definition/verify /x /dev/x /usr/x /usr/bin/x /etc/x /tmp/x /run/x /proc/x {beside} \
         /dev/shm/x; do\n  (echo written > $path) 2>/dev/null && echo wrote $path\ndone\n\
         mkdir /definition/d 2>/dev/null && echo made a folder\nrm -f /definition/common.sh 2>/dev/null && echo removed\n\
         chmod 777 /definition 2>/dev/null && echo changed\necho tried > /dev/null || echo no null\necho end\nexit 1\n"
    );
    assert_eq!(words(&script), "the program exited with 1, saying: end");
    assert_eq!(fs::read_to_string(dir.path().join("beside")).unwrap(), "untouched");
}

#[test]
fn verify_sees_only_the_definition_and_programs() {
    if !can_run() {
        return;
    }
    let said = words(
        "#!/bin/bash\nfor path in /* /dev/*; do echo $path; done\n[ -e /etc/passwd ] && echo passwd\nls /etc\nid -u; hostname; echo pid $$; exit 1\n",
    );
    let allowed = ["/bin", "/definition", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/sbin", "/usr", "alternatives"];
    let devices = ["/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"];
    let own = ["65432", "sandbox", "pid 1"];
    for seen in said.split_once("saying: ").unwrap().1.split(" | ") {
        let is_known = [&allowed[..], &devices, &own].concat().contains(&seen);
        assert!(is_known, "{seen}: {said}");
    }
    assert!(own.iter().all(|own| said.contains(own)), "{said}");
}

#[test]
fn verify_has_no_network() {
    if !can_run() {
        return;
    }
    let home = TcpListener::bind("127.0.0.1:0").unwrap();
    home.set_nonblocking(true).unwrap();
    let port = home.local_addr().unwrap().port();
    let script = format!(
        "#!/bin/bash\n(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo called\n\
         (echo x > /dev/udp/192.0.2.1/9) 2>/dev/null && echo sent\necho end\nexit 1\n"
    );
    assert_eq!(words(&script), "the program exited with 1, saying: end");
    assert!(home.accept().is_err());
}

#[test]
fn verify_cannot_regain_privileges() {
    if !can_run() {
        return;
    }
    let script = "#!/bin/bash\nfor try in 'unshare -U true' 'unshare -r true' 'mount -t tmpfs x /usr' 'umount /usr' 'chroot / true' \
                  'setsid true' 'mknod /definition/d b 8 0' 'kill -0 2' 'sh -c \"ulimit -c 1\"'; do\n  \
                  eval $try >/dev/null 2>&1 && echo could: $try\ndone\necho end\nexit 1\n";
    assert_eq!(words(script), "the program exited with 1, saying: end");
}
