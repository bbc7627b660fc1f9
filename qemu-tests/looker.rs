//! The neutral ramdisk: prepares the disks for a scenario with other people's tools, and looks at them afterwards.

use crate::expect::Inspect;
use crate::facts::Facts;
use crate::host::{Context, Result, tool, write};
use crate::machine::{Boot, Chassis, POLL, SPARED, Vm};
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

/// What the ramdisk says after the script, with its exit code.
const PREPARED: &str = "drophammer-prepare: status ";

fn cmdline() -> String {
    format!("console=ttyS0 panic=-1 {SPARED}")
}

/// What the disks hold, told by a machine that only has a copy of them: even looking replays journals.
///
/// # Errors
/// The ramdisk does not come to an end.
pub fn look(chassis: &Chassis, artifacts: &Path, label: &str, inspect: &Inspect) -> Result<Facts> {
    let mounts: Vec<String> = inspect.mount.iter().map(|mount| format!("/dev/{mount}")).collect();
    let files: Vec<&str> = inspect.files.keys().map(String::as_str).collect();
    let [mounts, files, checks] = [mounts.join(","), files.join(","), inspect.fsck_clean.join(",")];
    let cmdline = format!("{} inspect.mount={mounts} inspect.files={files} inspect.fsck={checks}", cmdline());
    let (kernel, initrd) = (artifacts.join("ramdisk/vmlinux"), artifacts.join("ramdisk/inspect"));
    let boot = Boot::Direct { kernel: &kernel, initrd: &initrd, cmdline: &cmdline, on_copy: true, network: false };
    let mut vm = Vm::start(chassis, label, &boot)?;
    until(&mut vm, |vm| vm.facts("inspect"))
}

/// Runs the script of a scenario as root, with all disks; what the console showed.
///
/// # Errors
/// The script fails, with what it said.
pub fn prepare(chassis: &Chassis, artifacts: &Path, label: &str, script: &str) -> Result<String> {
    let initrd = chassis.folder.join("prepare.initrd");
    write(&initrd, with_script(chassis.folder, &artifacts.join("ramdisk/inspect"), script)?)?;
    let kernel = artifacts.join("ramdisk/vmlinux");
    let boot = Boot::Direct { kernel: &kernel, initrd: &initrd, cmdline: &cmdline(), on_copy: false, network: false };
    let mut vm = Vm::start(chassis, label, &boot)?;
    let code = until(&mut vm, |vm| status(&vm.console())).context("prepare")?;
    // The disks belong to the machine until it is off.
    while vm.check_alive().is_ok() {
        std::thread::sleep(POLL);
    }
    if code == "0" {
        Ok(vm.console())
    } else {
        Err(format!("the script of `prepare` ended with {code}{}", vm.last_lines()))
    }
}

/// The ramdisk with one more file, `/prepare`.
fn with_script(scratch: &Path, ramdisk: &Path, script: &str) -> Result<Vec<u8>> {
    let list = scratch.join("prepare.list");
    write(&scratch.join("prepare"), script)?;
    write(&list, "prepare\n")?;
    let stdin = Stdio::from(File::open(&list).context(list.display())?);
    let archive = tool(&["cpio", "--quiet", "-o", "-H", "newc", "-D", &scratch.to_string_lossy()], stdin)?;
    let mut whole = fs::read(ramdisk).context(ramdisk.display())?;
    // The kernel wants an archive that is not compressed to begin at a multiple of four (init/initramfs.c).
    whole.resize(whole.len().next_multiple_of(4), 0);
    whole.extend(archive);
    Ok(whole)
}

fn status(console: &str) -> Option<String> {
    let (_, rest) = console.rsplit_once(PREPARED)?;
    rest.split_once('\n').map(|(code, _)| code.to_owned())
}

/// It powers off when it has said everything: looks once more after it is gone.
fn until<T>(vm: &mut Vm, said: impl Fn(&Vm) -> Option<T>) -> Result<T> {
    loop {
        let alive = vm.check_alive();
        if let Some(answer) = said(vm) {
            return Ok(answer);
        }
        alive.context("the neutral ramdisk")?;
        std::thread::sleep(POLL);
    }
}
