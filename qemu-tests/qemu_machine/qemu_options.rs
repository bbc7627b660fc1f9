//! Options for QEMU's command line: processor, memory, firmware, and NICs.

use super::{BootMethod, Chassis};
use crate::host_tools::{Context, Result};
use crate::scenario::Machine;
use crate::vlan_switch_port;
use model::architecture::Architecture;
use std::fs;
use std::path::Path;
use std::process::Command;

/// UEFI firmware: its code, the initial contents of its variables, and Debian's package that contains both. Of OVMF,
/// only the 4M build is maintained.
const OVMF: [&str; 3] = ["/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd", "ovmf"];
const AAVMF: [&str; 3] = ["/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd", "qemu-efi-aarch64"];

/// Returns the name of the program that emulates machines of this architecture.
pub(super) fn qemu_program(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Amd64 => "qemu-system-x86_64",
        Architecture::Arm64 => "qemu-system-aarch64",
    }
}

/// Returns the accelerators; QEMU uses the first one that works. `/dev/kvm` may exist even if the CPU does not support
/// it. QEMU's default CPU lacks RDRAND, which every server has. Without RDRAND, the kernel may need minutes for its
/// first random byte.
fn list_accelerators() -> &'static [&'static str] {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let virtual_machines = flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    if virtual_machines {
        &["-accel", "kvm", "-accel", "tcg", "-cpu", "max,la57=off"]
    } else {
        &["-accel", "tcg,thread=multi", "-cpu", "qemu64,+rdrand"]
    }
}

/// Adds the basic options. With `graphics=off`, SeaBIOS and its iPXE use the serial port. With `-no-reboot`, QEMU exits
/// after a panic.
///
/// A machine whose maximum number of CPUs is one is emulated without memory barriers (QEMU 7.2, `tcg_gen_mb`). QEMU's
/// own threads also read data that the CPU writes, so an NVMe disk then occasionally misses a doorbell, and the machine
/// hangs.
pub(super) fn add_basics(command: &mut Command, machine: &Machine) {
    command.args(["-nodefaults", "-display", "none", "-no-reboot"]);
    match machine.architecture {
        Architecture::Amd64 => command.args(["-machine", "q35,graphics=off"]).args(list_accelerators()),
        // Of the processors that QEMU 7.2 emulates, this is the newest without pointer authentication, whose emulation
        // is slow.
        Architecture::Arm64 => {
            command.args(["-machine", "virt,gic-version=3", "-accel", "tcg,thread=multi", "-cpu", "cortex-a72"])
        }
    };
    command.args(["-qmp", "stdio", "-m", &machine.memory_mib.to_string()]);
    if let Some(date) = &machine.clock {
        command.args(["-rtc", &format!("base={date}")]);
    }
    command.args(["-smp", &format!("{},maxcpus={}", machine.processors, machine.processors.max(2))]);
}

/// Adds the serial port for the facts: the second port of a PC. QEMU's machine for arm64 has only one port, so another
/// one is a PCI device.
pub(super) fn add_facts_port(command: &mut Command, architecture: Architecture, facts: &Path) {
    match architecture {
        Architecture::Amd64 => command.arg("-serial").arg(format!("file:{}", facts.display())),
        Architecture::Arm64 => {
            command.arg("-chardev").arg(format!("file,id=facts,path={}", facts.display()));
            command.args(["-device", "pci-serial,chardev=facts"])
        }
    };
}

pub(super) fn add_firmware(command: &mut Command, architecture: Architecture, folder: &Path) -> Result<()> {
    let [code, initial, package] = match architecture {
        Architecture::Amd64 => OVMF,
        Architecture::Arm64 => AAVMF,
    };
    let vars = folder.join("efivars.fd");
    if !vars.exists() {
        fs::copy(initial, &vars).context(format!("{initial} (package {package})"))?;
    }
    command.arg("-drive").arg(format!("if=pflash,format=raw,unit=0,readonly=on,file={code}"));
    command.arg("-drive").arg(format!("if=pflash,format=raw,unit=1,file={}", vars.display()));
    Ok(())
}

/// Adds QEMU's BMC simulator, with a FRU inventory and without a network connection.
pub(super) fn add_bmc(command: &mut Command) {
    let fru = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/bmc/server.fru");
    command.args(["-device", &format!("ipmi-bmc-sim,id=bmc,fwrev1=1,fwrev2=116,fruareasize=256,frudatafile={fru}")]);
    command.args(["-device", "isa-ipmi-kcs,bmc=bmc"]);
}

/// Adds the NICs. If `tftp` is set, the machine boots over one of them.
pub(super) fn add_nics(command: &mut Command, chassis: &Chassis, tftp: Option<&Path>) -> Result<()> {
    let boot_nic = chassis.machine.boot_nic;
    for (index, model) in chassis.machine.nics.iter().enumerate() {
        // QEMU's option ROMs are iPXE, which accepts a script as boot file. They do not contain iPXE for arm64, which
        // the firmware therefore loads; it runs the file autoexec.ipxe next to itself.
        let file = match chassis.machine.architecture {
            Architecture::Amd64 => "start.ipxe",
            Architecture::Arm64 => "ipxe-arm64.efi",
        };
        let boot = match tftp {
            _ if boot_nic != 0 && index != boot_nic => format!(",net=10.0.{}.0/24,restrict=on", 20 + index),
            Some(tftp) => format!(",tftp={},bootfile={file}", tftp.display()),
            None => String::new(),
        };
        match chassis.machine.vlan.filter(|_| index == 0) {
            Some(vlan) => vlan_switch_port::add_trunk(command, "net0", vlan)?,
            None => drop(command.arg("-netdev").arg(format!("user,id=net{index}{boot}"))),
        }
        let known = (index == boot_nic).then_some(&chassis.mac);
        let mac = chassis.shown_macs.get(index).or(known);
        let mut identity = mac.map(|mac| format!(",mac={mac}")).unwrap_or_default();
        if index == boot_nic && tftp.is_some() {
            identity += ",bootindex=0";
        }
        if tftp.is_none() || chassis.machine.architecture == Architecture::Arm64 {
            identity += ",romfile=";
        }
        command.arg("-device").arg(format!("{model},id=nic{index},netdev=net{index}{identity}"));
    }
    Ok(())
}

/// Adds the NICs and the files from which the machine boots.
///
/// # Errors
/// Fails if the NICs cannot be added.
pub(super) fn add_boot_method(command: &mut Command, chassis: &Chassis, boot: &BootMethod) -> Result<()> {
    match boot {
        BootMethod::Network(tftp) => add_nics(command, chassis, Some(tftp))?,
        BootMethod::DiskThen(script) => {
            add_nics(command, chassis, None)?;
            command.arg("-fw_cfg").arg(format!("name=opt/drophammer,file={}", script.display()));
        }
        BootMethod::Disk | BootMethod::DiskWithout(_) => drop(command.args(["-nic", "none"])),
        BootMethod::Direct { kernel, initrd, cmdline, network, .. } => {
            match network {
                true => add_nics(command, chassis, None)?,
                false => drop(command.args(["-nic", "none"])),
            }
            command.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
            command.args(["-append", cmdline]);
        }
    }
    Ok(())
}
