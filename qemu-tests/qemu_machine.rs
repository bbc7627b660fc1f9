//! QEMU process: its command line, its consoles, and its end.

mod boot_method;
mod qemu_options;

pub use boot_method::BootMethod;

use crate::console_input::ConsoleTypist;
use crate::guest_facts::Facts;
use crate::host_tools::{Context, Result, patience, tie_to_thread, write};
use crate::phase_times;
use crate::qemu_disks::{self, add_disks};
use crate::qemu_monitor::QemuMonitor;
use crate::scenario::{Disk, Firmware, Machine, TypedLine};
use crate::tpm::Tpm;
use crate::write_witness::WriteWitness;
use qemu_options::{add_basics, add_bmc, add_boot_method, add_facts_port, add_firmware, qemu_program};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Interval at which a machine is checked. A scenario has about ten waits; on average, each ends half an interval late.
pub const POLL: Duration = Duration::from_millis(50);

/// Kernel parameters for an emulated machine, which halve the time until `/init`. The kernel does not wait for a timer
/// that a busy host delivers late (which would cause a panic), does not test its ciphers, does not walk all page
/// tables, disables CPU mitigations, and expedites RCU grace periods.
pub const FAST_BOOT: &str = "no_timer_check cryptomgr.notests=1 rodata=off mitigations=off rcupdate.rcu_expedited=1";

/// Pause before the next disk is plugged in. The kernel names disks in the order in which it detects them, which may
/// take a moment.
const PLUG_PAUSE: Duration = Duration::from_secs(2);

/// Machine of a scenario: its identity, disks and files, which all of its boots share.
pub struct Chassis<'a> {
    pub machine: &'a Machine,
    /// UUID and MAC of the first NIC, as in the server's machine file.
    pub uuid: String,
    pub mac: String,
    /// UUID that the firmware reports and MACs of the NICs in their order, if a run has changed them.
    pub shown_uuid: Option<String>,
    pub shown_macs: Vec<String>,
    /// Folder of the disks, the firmware's variables and all logs.
    pub folder: &'a Path,
    /// Disks in the order in which they are plugged in, see [`in_order`].
    pub disks: Vec<&'a Disk>,
    /// Names of disks that are not plugged in.
    pub absent: Vec<String>,
    /// Number of times that a disk was replaced, by name of the disk.
    pub replaced: BTreeMap<String, u32>,
    /// True if the disks are qcow2 overlays of saved disks.
    pub overlays: bool,
    /// True if disks can be removed while the machine runs.
    pub hotplug: bool,
    /// Lines that are typed at the console.
    pub types: Vec<TypedLine>,
}

impl<'a> Chassis<'a> {
    /// Creates a machine with all its disks, and without an identity.
    pub fn new(machine: &'a Machine, folder: &'a Path) -> Chassis<'a> {
        Chassis {
            machine,
            uuid: String::new(),
            mac: String::new(),
            shown_uuid: None,
            shown_macs: vec![],
            folder,
            disks: in_order(&machine.disks, &[]),
            absent: vec![],
            replaced: BTreeMap::new(),
            overlays: false,
            hotplug: false,
            types: vec![],
        }
    }

    /// Returns whether the kernel assigns to the disks the names that the scenario specifies.
    pub fn is_as_listed(&self) -> bool {
        let listed = self.machine.disks.iter().map(|disk| &disk.name);
        self.disks.iter().map(|disk| &disk.name).eq(listed) && self.absent.is_empty() && !self.hotplug
    }

    /// Returns the file of a disk. All paths to a disk have the same file.
    pub fn disk_file(&self, disk: &Disk) -> PathBuf {
        let name = disk.path_of.as_ref().unwrap_or(&disk.name);
        self.folder.join(format!("{name}.{}", if self.overlays { "qcow2" } else { "raw" }))
    }
}

/// Starts QEMU, and connects to its monitor. QEMU's error messages are written to the file `errors`.
fn spawn_qemu(mut command: Command, errors: &Path) -> Result<(Child, QemuMonitor)> {
    let log = File::create(errors).context(errors.display())?;
    let mut process =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().context("QEMU does not start")?;
    let orders = process.stdin.take().ok_or("QEMU has no monitor")?;
    let answers = process.stdout.take().ok_or("QEMU has no monitor")?;
    Ok((process, QemuMonitor::new(orders, answers)))
}

/// Returns the disks in the order of `names`, followed by all other disks.
pub fn in_order<'a>(disks: &'a [Disk], names: &[String]) -> Vec<&'a Disk> {
    let mut ordered: Vec<&Disk> = disks.iter().collect();
    ordered.sort_by_key(|disk| names.iter().position(|name| *name == disk.name).unwrap_or(names.len()));
    ordered
}

/// Running machine, which is switched off when this value is dropped.
pub struct Vm {
    process: Child,
    monitor: QemuMonitor,
    console: PathBuf,
    /// Length of the console file that was read so far, and its text. Only new output is read.
    shown: RefCell<(u64, String)>,
    facts: PathBuf,
    deadline: Instant,
    seconds: u64,
    /// Witness of the writes; only in boots with the agent.
    witness: Option<WriteWitness>,
    tpm: Option<Tpm>,
    _typist: Option<ConsoleTypist>,
    /// Watch of the console; only if times are measured.
    _watch: Option<phase_times::ConsoleWatch>,
}

impl Vm {
    /// Switches the machine on. `label` is part of the names of this boot's logs.
    ///
    /// # Errors
    /// Fails if QEMU or the firmware is missing.
    pub fn start(chassis: &Chassis, label: &str, boot: &BootMethod) -> Result<Vm> {
        let console = chassis.folder.join(format!("{label}.console.log"));
        let facts = chassis.folder.join(format!("{label}.facts.log"));
        let errors = chassis.folder.join(format!("{label}.qemu.log"));
        write(&console, "")?;
        write(&facts, "")?;
        let mut command = tie_to_thread(qemu_program(chassis.machine.architecture));
        add_basics(&mut command, chassis.machine);
        command
            .args(["-uuid", chassis.shown_uuid.as_ref().unwrap_or(&chassis.uuid)])
            .arg("-pidfile")
            .arg(chassis.folder.join("qemu.pid"));
        let typist =
            (!chassis.types.is_empty()).then(|| ConsoleTypist::attach_console(&mut command, &console, &chassis.types));
        if typist.is_none() {
            command.arg("-serial").arg(format!("file:{}", console.display()));
        }
        add_facts_port(&mut command, chassis.machine.architecture, &facts);
        // The inspection ramdisk starts faster with QEMU's default firmware, SeaBIOS.
        if chassis.machine.firmware == Firmware::Uefi && !boot.is_inspection() {
            add_firmware(&mut command, chassis.machine.architecture, chassis.folder)?;
        }
        let witness = WriteWitness::start(chassis, label, boot, &console)?;
        add_disks(&mut command, chassis, boot, witness.as_ref());
        // The inspection ramdisk runs without a TPM. With a TPM, its kernel would not find the ACPI tables, and could
        // not power off the machine.
        let has_tpm = chassis.machine.tpm && !boot.is_inspection();
        if chassis.machine.bmc {
            add_bmc(&mut command);
        }
        let tpm = has_tpm.then(|| Tpm::start(chassis.folder)).transpose()?;
        if let Some(tpm) = &tpm {
            tpm.add_device(&mut command);
        }
        add_boot_method(&mut command, chassis, boot)?;
        let (process, monitor) = spawn_qemu(command, &errors)?;
        let seconds = chassis.machine.deadline_seconds * patience();
        let deadline = Instant::now() + Duration::from_secs(seconds);
        let _watch = phase_times::watch_console(&console, boot.phases());
        let shown = RefCell::default();
        let _typist = typist;
        Ok(Vm { process, monitor, console, shown, facts, deadline, seconds, witness, tpm, _typist, _watch })
    }

    pub fn console(&self) -> String {
        let length = fs::metadata(&self.console).map_or(0, |file| file.len());
        let mut shown = self.shown.borrow_mut();
        if shown.0 != length {
            *shown = (length, read(&self.console));
        }
        shown.1.clone()
    }

    /// Returns the facts of `source` once they are complete and the console shows that all data is on the disks.
    pub fn facts(&self, source: &str) -> Option<Facts> {
        self.facts_after(0, source)
    }

    /// Returns the same facts as [`Vm::facts`], but of the system that starts after `others` other systems since
    /// power-on.
    pub fn facts_after(&self, others: usize, source: &str) -> Option<Facts> {
        let reported = self.console().matches(&format!("drophammer-facts: {source}")).count();
        let text = read(&self.facts);
        let (start, _) = text.match_indices(&format!("=== facts begin {source}")).nth(others)?;
        if reported > others { Facts::read(&text[start..], source) } else { None }
    }

    /// Returns whether the machine has switched itself off. A reboot also ends QEMU (`-no-reboot`).
    ///
    /// # Errors
    /// Fails if the state of QEMU cannot be determined.
    pub fn is_off(&mut self) -> Result<bool> {
        Ok(self.process.try_wait().context("QEMU")?.is_some())
    }

    /// Checks that the machine is running, and has not exceeded its time limit.
    ///
    /// # Errors
    /// Fails if the machine has switched itself off, or takes too long. The error contains the last console output.
    pub fn check_alive(&mut self) -> Result<()> {
        if let Some(status) = self.process.try_wait().context("QEMU")? {
            return Err(format!("the machine went off by itself ({status}){}", self.last_lines()));
        }
        if Instant::now() > self.deadline {
            return Err(format!("no result after {} s{}", self.seconds, self.last_lines()));
        }
        Ok(())
    }

    /// Connects or disconnects the cable of the first NIC.
    ///
    /// # Errors
    /// Fails if QEMU has exited.
    pub fn set_link(&mut self, up: bool) -> Result<()> {
        self.monitor.send_command(&json!({"execute": "set_link", "arguments": {"name": "nic0", "up": up}}))
    }

    /// Removes these disks, and plugs them in again in exchanged slots: the last disk in the slot of the first, and so
    /// on. The kernel assigns the first name to the disk that returns first.
    ///
    /// # Errors
    /// Fails if the machine does not release the disks.
    pub fn replug_disks(&mut self, chassis: &Chassis, names: &[String]) -> Result<()> {
        let named = |name: &String| chassis.disks.iter().copied().find(|disk| disk.name == *name);
        let disks: Vec<&Disk> = names.iter().filter_map(named).collect();
        for disk in &disks {
            let id = qemu_disks::device_id(disk);
            self.monitor.execute_command("device_del", &json!({"id": id}))?;
            self.monitor.wait_until_gone(&id)?;
        }
        for (disk, slot) in disks.iter().rev().zip(&disks) {
            std::thread::sleep(PLUG_PAUSE);
            let log = self.witness.as_ref().and_then(|witness| witness.find_log(&disk.name));
            for (command, arguments) in qemu_disks::plug_in(chassis, disk, slot, log) {
                self.monitor.execute_command(command, &arguments)?;
            }
        }
        Ok(())
    }

    /// Returns the writes so far that violate the announced extents. `acted` is true if the agent has sent an
    /// announcement or a report.
    ///
    /// # Errors
    /// Fails if a log cannot be read.
    pub fn finish_witness(&mut self, extents: Option<&Value>, acted: bool) -> Result<Vec<String>> {
        self.witness.as_mut().map_or(Ok(Vec::new()), |witness| witness.finish_watch(extents, acted))
    }

    /// Cuts the power, but lets QEMU complete its files, so that an overlay contains all writes.
    ///
    /// # Errors
    /// Fails if QEMU does not end.
    pub fn shut_down(&mut self) -> Result<()> {
        self.monitor.send_command(&json!({"execute": "quit"}))?;
        let patience = Instant::now() + Duration::from_secs(30);
        while !self.is_off()? {
            if Instant::now() > patience {
                return Err("QEMU does not end".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Cuts the power.
    pub fn cut_power(&mut self) {
        // Both calls fail only if QEMU has already exited.
        let _ = self.process.kill();
        let _ = self.process.wait();
        self.tpm = None;
    }

    /// Returns the last 40 lines of the console, and the error messages of QEMU.
    pub fn last_lines(&self) -> String {
        let console = self.console();
        let lines: Vec<&str> = console.lines().filter(|line| !line.trim().is_empty()).collect();
        let tail = lines[lines.len().saturating_sub(40)..].join("\n    ");
        let qemu = read(&self.console.with_extension("").with_extension("qemu.log"));
        format!("; the console's last lines:\n    {tail}\n    {}", qemu.trim())
    }
}

/// Returns the kernel and ramdisk that start fastest under emulation, without firmware and iPXE. OVMF requires a kernel
/// with EFI stub. A kernel without its decompressor does not find the ACPI tables, which announce the TPM.
pub fn quick_ramdisk(folder: &Path, machine: &Machine) -> (PathBuf, PathBuf) {
    let kernel = if machine.firmware == Firmware::Uefi || machine.tpm { "vmlinuz" } else { "vmlinux" };
    (folder.join(kernel), folder.join("quick"))
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.cut_power();
    }
}

pub fn read(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\r', "")
}

/// Tests the assignment of disks to slots, with and without disks that are not plugged in.
pub fn self_test() {
    let text = "about: x\nfirmware: bios\nlayout: x\nexpect: {}\ndisks:\n- {name: sda, bus: sata, size_mib: 1, throttle_mib: 2}\n\
                - {name: sdb, bus: sata, size_mib: 1, boot: true}\n- {name: nvme0n1, bus: nvme, size_mib: 1}\n\
                - {name: nvme0n2, bus: nvme, size_mib: 1}\n";
    let scenario = crate::scenario_parser::parse(text, "x".into(), ".".into()).expect("a scenario");
    let machine = &scenario.machine;
    let with = |order: &[&str], absent: &[&str], boot: &BootMethod| {
        let order: Vec<String> = order.iter().map(|name| (*name).to_owned()).collect();
        let disks = in_order(&machine.disks, &order);
        let chassis = Chassis {
            disks,
            absent: absent.iter().map(|name| (*name).to_owned()).collect(),
            replaced: BTreeMap::from([("nvme0n1".to_owned(), 1)]),
            ..Chassis::new(machine, Path::new("/f"))
        };
        let mut command = Command::new("qemu");
        add_disks(&mut command, &chassis, boot, None);
        command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect::<Vec<_>>().join("\n")
    };
    let arguments = |order: &[&str], boot: &BootMethod| with(order, &[], boot);
    let as_listed = arguments(&[], &BootMethod::Disk);
    assert!(
        as_listed.contains("snapshot=off,throttling.bps-total=2097152,file.driver=file,file.filename=/f/sda.raw\n"),
        "{as_listed}"
    );
    assert!(as_listed.contains("bus=ide.1,serial=DH-SDB,drive=drive1,bootindex=1"), "{as_listed}");
    assert!(
        as_listed.contains("nvme,id=nvme0,")
            && as_listed.contains("serial=DH-NVME0N1-2")
            && as_listed.contains("nvme-ns,bus=nvme0,nsid=2,"),
        "{as_listed}"
    );
    let swapped = arguments(&["sdb", "sda"], &BootMethod::Disk);
    assert!(swapped.contains("bus=ide.0,serial=DH-SDB,drive=drive0,bootindex=1"), "{swapped}");
    assert!(swapped.contains("bus=ide.1,serial=DH-SDA,drive=drive1,bootindex=3"), "{swapped}");
    let pulled = arguments(&[], &BootMethod::DiskWithout("sda"));
    assert!(!pulled.contains("SDA") && pulled.contains("bus=ide.1,serial=DH-SDB"), "{pulled}");
    let absent = with(&[], &["sda"], &BootMethod::Disk);
    assert!(!absent.contains("SDA") && absent.contains("bus=ide.1,serial=DH-SDB"), "{absent}");
    assert!(pulled.contains("snapshot=on") && !pulled.contains("snapshot=off"), "{pulled}");

    let nics = "about: x\nfirmware: bios\nlayout: x\nexpect: {}\ndisks: []\nnics: [e1000, virtio-net-pci]\n";
    let scenario = crate::scenario_parser::parse(nics, "x".into(), ".".into()).expect("a scenario");
    let nic_options = |shown: &[&str]| {
        let mut chassis = Chassis::new(&scenario.machine, Path::new("/f"));
        (chassis.mac, chassis.shown_macs) = ("m0".to_owned(), shown.iter().map(|mac| (*mac).to_owned()).collect());
        let mut command = Command::new("qemu");
        qemu_options::add_nics(&mut command, &chassis, None).expect("NICs");
        command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect::<Vec<_>>().join("\n")
    };
    let known = nic_options(&[]);
    assert!(known.contains("e1000,id=nic0,netdev=net0,mac=m0,") && known.contains("netdev=net1,romfile="), "{known}");
    let other = nic_options(&["m1", "m2"]);
    assert!(!other.contains("m0") && other.contains("net0,mac=m1,") && other.contains("net1,mac=m2,"), "{other}");
}
