//! Ramdisk without the agent. It prepares the disks of a scenario with standard tools, and inspects them after a run.

use crate::expectations::DiskExpectations;
use crate::guest_facts::Facts;
use crate::host_tools::{Context, Result, write};
use crate::qemu_machine::{BootMethod, Chassis, FAST_BOOT, POLL, Vm};
use crate::ramdisk_archives::{join_lines, with_files};
use model::architecture::Architecture;
use std::path::{Path, PathBuf};

/// Text that the ramdisk prints after the script, in front of the exit code.
const PREPARED: &str = "drophammer-prepare: status ";

fn cmdline(chassis: &Chassis) -> String {
    let console = match chassis.machine.architecture {
        Architecture::Amd64 => "ttyS0",
        Architecture::Arm64 => "ttyAMA0",
    };
    format!("console={console} panic=-1 {FAST_BOOT}")
}

/// Returns the folder with the ramdisk.
fn ramdisk_folder(chassis: &Chassis, artifacts: &Path) -> PathBuf {
    artifacts.join(chassis.machine.artifact("ramdisk"))
}

/// Returns facts about the contents of the disks. The machine works on a copy of the disks, because even an inspection
/// replays journals.
///
/// # Errors
/// Fails if the ramdisk does not finish.
pub fn inspect_disks(chassis: &Chassis, artifacts: &Path, label: &str, inspect: &DiskExpectations) -> Result<Facts> {
    let built = ramdisk_folder(chassis, artifacts);
    let (kernel, initrd) = (built.join("vmlinux"), chassis.folder.join("inspect.initrd"));
    write(&initrd, with_files(chassis.folder, &built.join("inspect"), &list_requests(inspect))?)?;
    let boot = BootMethod::Direct {
        kernel: &kernel,
        initrd: &initrd,
        cmdline: &cmdline(chassis),
        on_copy: true,
        network: false,
    };
    let mut vm = Vm::start(chassis, label, &boot)?;
    wait_for_output(&mut vm, |vm| vm.facts("inspect"))
}

/// Returns the requests for the inspection as files with one request per line. They cannot be kernel parameters,
/// because paths may contain blanks and commas.
fn list_requests(inspect: &DiskExpectations) -> [(&'static str, String); 3] {
    let files = inspect.files.keys().map(String::as_str);
    [
        ("inspect.mount", join_lines(inspect.mount.iter().map(String::as_str))),
        ("inspect.files", join_lines(files)),
        ("inspect.fsck", join_lines(inspect.fsck_clean.iter().map(String::as_str))),
    ]
}

/// Runs the script of a scenario as root, with access to all disks. Returns its console output.
///
/// # Errors
/// Fails if the script fails. The error contains its output.
pub fn prepare_disks(chassis: &Chassis, artifacts: &Path, label: &str, script: &str) -> Result<String> {
    let initrd = chassis.folder.join("prepare.initrd");
    let files = [("prepare", script.to_owned())];
    let built = ramdisk_folder(chassis, artifacts);
    write(&initrd, with_files(chassis.folder, &built.join("inspect"), &files)?)?;
    let kernel = built.join("vmlinux");
    let boot = BootMethod::Direct {
        kernel: &kernel,
        initrd: &initrd,
        cmdline: &cmdline(chassis),
        on_copy: false,
        network: false,
    };
    let mut vm = Vm::start(chassis, label, &boot)?;
    let code = wait_for_output(&mut vm, |vm| find_status(&vm.console())).context("prepare")?;
    // The machine uses the disks until it is off.
    while vm.check_alive().is_ok() {
        std::thread::sleep(POLL);
    }
    if code == "0" {
        Ok(vm.console())
    } else {
        Err(format!("the script of `prepare` ended with {code}{}", vm.last_lines()))
    }
}

fn find_status(console: &str) -> Option<String> {
    let (_, rest) = console.rsplit_once(PREPARED)?;
    rest.split_once('\n').map(|(code, _)| code.to_owned())
}

/// Waits for output. Since the machine powers off after its last output, the output is read once more when the machine
/// is off.
fn wait_for_output<T>(vm: &mut Vm, find_output: impl Fn(&Vm) -> Option<T>) -> Result<T> {
    loop {
        let alive = vm.check_alive();
        if let Some(answer) = find_output(vm) {
            return Ok(answer);
        }
        alive.context("the inspection ramdisk")?;
        std::thread::sleep(POLL);
    }
}

/// Tests that the ramdisk receives paths unchanged.
pub fn self_test() {
    let text = "about: x\nfirmware: bios\nlayout: x\ndisks: []\nexpect:\n  inspect:\n    mount: ['vda1:/a b', 'vg/lv:/']\n    \
                files: {'/with blank, and comma': {}, '/b': {}}\n    fsck_clean: [vda1]\n";
    let scenario = crate::scenario_parser::parse(text, "x".into(), ".".into()).expect("a scenario");
    let [mounts, files, checks] = list_requests(&scenario.runs[0].expect.inspect);
    assert_eq!(mounts, ("inspect.mount", "vda1:/a b\nvg/lv:/\n".to_owned()));
    assert_eq!(files, ("inspect.files", "/b\n/with blank, and comma\n".to_owned()));
    assert_eq!(checks, ("inspect.fsck", "vda1\n".to_owned()));
}
