//! A machine of QEMU, whose power a conductor switches.
//!
//! The conductor's own power interface is the one that it calls `fake`: it only keeps in mind what was switched. A thread asks for
//! that, and switches QEMU. What the machine boots is what the conductor has laid out for iPXE, and its own disks where that is nothing.

use super::conductor::{Ironic, built};
use reqwest::blocking::Client;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const OVMF_CODE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
const OVMF_VARS: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";

/// What an emulated kernel need not do (`qemu-tests/machine.rs`).
const SPARED: &str = "no_timer_check cryptomgr.notests=1 rodata=off mitigations=off rcupdate.rcu_expedited=1";

/// How the tiny OS says that it is up.
const UP: &str = "drophammer-facts: tiny";

/// How often the power and the consoles are looked at.
const POLL: Duration = Duration::from_millis(300);

pub struct Machine {
    hardware: Arc<Hardware>,
    patience: Duration,
    over: Arc<AtomicBool>,
    power: Option<JoinHandle<()>>,
}

struct Hardware {
    folder: PathBuf,
    /// Where the conductor lays out what is booted over the network.
    http_root: PathBuf,
    mac: String,
    /// This host's, in front of the agent's.
    port: u16,
    /// How this host is called in the machine.
    told: String,
    disks: Vec<&'static str>,
    running: Mutex<Running>,
}

/// A process, and which boot it is.
#[derive(Default)]
struct Running {
    qemu: Option<Child>,
    boots: usize,
    from_disk: bool,
    /// So much of the console was waited for already.
    heard: usize,
}

impl Machine {
    /// A machine with these empty disks, for a node that knows its ramdisk. It is off.
    pub fn new(ironic: &Ironic, name: &str, mac: String, port: u16, disks: &[(&'static str, u64)]) -> Machine {
        let folder = ironic.directory.join(name);
        fs::create_dir_all(&folder).unwrap();
        for (disk, gib) in disks {
            fs::File::create(folder.join(format!("{disk}.raw"))).unwrap().set_len(gib << 30).unwrap();
        }
        fs::copy(OVMF_VARS, folder.join("efivars.fd")).expect("Debian's package ovmf");
        let hardware = Arc::new(Hardware {
            folder,
            http_root: ironic.directory.join("http"),
            mac,
            port,
            told: ironic.place.told.to_owned(),
            disks: disks.iter().map(|(disk, _)| *disk).collect(),
            running: Mutex::default(),
        });
        let over = Arc::new(AtomicBool::new(false));
        let node = (ironic.client.clone(), format!("{}/v1/nodes/{name}", ironic.url));
        let (switched, ended) = (hardware.clone(), over.clone());
        let power = Some(thread::spawn(move || switched.follow(&node, &ended)));
        Machine { hardware, patience: ironic.place.patience, over, power }
    }

    pub fn disk(&self, name: &str) -> PathBuf {
        self.hardware.folder.join(format!("{name}.raw"))
    }

    /// Waits until the tiny OS is up from the machine's own disks, and returns what it has told.
    pub fn is_up(&self) -> String {
        self.until(|running| running.from_disk.then(|| self.console(running)).filter(|console| console.contains(UP)));
        let boots = self.hardware.running.lock().unwrap().boots;
        fs::read_to_string(self.hardware.log(boots, "facts")).unwrap_or_default()
    }

    /// Waits until this boot's console has `text`, after what was waited for before.
    pub fn says(&self, text: &str) {
        self.until(|running| {
            let console = self.console(running);
            running.heard += console.get(running.heard..)?.find(text)? + text.len();
            Some(())
        });
    }

    /// As somebody at the keyboard.
    pub fn types(&self, line: &str) {
        let mut keyboard = UnixStream::connect(self.hardware.folder.join("console")).unwrap();
        keyboard.write_all(format!("{line}\n").as_bytes()).unwrap();
        // QEMU reads what has arrived before the line is cut.
        thread::sleep(POLL);
    }

    fn console(&self, running: &Running) -> String {
        let bytes = fs::read(self.hardware.log(running.boots, "console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    fn until<T>(&self, wanted: impl Fn(&mut Running) -> Option<T>) -> T {
        let end = Instant::now() + self.patience;
        loop {
            let mut running = self.hardware.running.lock().unwrap();
            if let Some(found) = wanted(&mut running) {
                return found;
            }
            let console = self.console(&running);
            drop(running);
            let last: Vec<&str> = console.lines().rev().take(30).collect();
            assert!(Instant::now() < end, "the console's last lines, backwards: {last:#?}");
            thread::sleep(POLL);
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(power) = self.power.take() {
            let _ = power.join();
        }
        self.hardware.off(&mut self.hardware.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    }
}

impl Hardware {
    /// Every switch has a time of its own, also where the power is as it was.
    fn follow(&self, (client, url): &(Client, String), over: &AtomicBool) {
        let mut last = Value::Null;
        while !over.load(Ordering::Relaxed) {
            let asked = client.get(url).header("X-OpenStack-Ironic-API-Version", "1.110");
            let node: Option<Value> =
                asked.timeout(Duration::from_secs(30)).send().ok().and_then(|answer| answer.json().ok());
            if let Some(node) = node.filter(|node| node["target_power_state"].is_null()) {
                let when = &node["driver_internal_info"]["last_power_state_change"];
                if !when.is_null() && *when != last {
                    last = when.clone();
                    let mut running = self.running.lock().unwrap();
                    self.off(&mut running);
                    if node["power_state"] == "power on" {
                        self.on(&mut running);
                    }
                }
            }
            thread::sleep(POLL);
        }
    }

    fn off(&self, running: &mut Running) {
        if let Some(mut qemu) = running.qemu.take() {
            // Both fail only where it has ended by itself.
            let _ = qemu.kill();
            let _ = qemu.wait();
        }
    }

    fn log(&self, boot: usize, kind: &str) -> PathBuf {
        self.folder.join(format!("{boot}.{kind}.log"))
    }

    fn on(&self, running: &mut Running) {
        (running.boots, running.heard) = (running.boots + 1, 0);
        let (folder, boot) = (self.folder.display(), running.boots);
        let log = |kind| self.log(boot, kind).display().to_string();
        let mut command = Command::new("nice");
        command.args([
            "-n",
            "5",
            "qemu-system-x86_64",
            "-nodefaults",
            "-machine",
            "q35,graphics=off",
            "-display",
            "none",
        ]);
        command.args([
            "-no-reboot",
            "-m",
            "1024",
            "-smp",
            "1,maxcpus=2",
            "-accel",
            "kvm",
            "-accel",
            "tcg,thread=multi",
        ]);
        command.args(["-cpu", "qemu64,+rdrand", "-device", "virtio-scsi-pci,id=scsi"]);
        let mut add = |option: &str, value: String| {
            command.arg(option).arg(value);
        };
        add("-drive", format!("if=pflash,format=raw,unit=0,readonly=on,file={OVMF_CODE}"));
        add("-drive", format!("if=pflash,format=raw,unit=1,file={folder}/efivars.fd"));
        for (index, disk) in self.disks.iter().enumerate() {
            add("-drive", format!("if=none,id={disk},format=raw,cache=unsafe,discard=unmap,file={folder}/{disk}.raw"));
            add("-device", format!("scsi-hd,bus=scsi.0,scsi-id={index},serial=DH-{disk},drive={disk}"));
        }
        let net = format!("{}.0/24", self.told.rsplit_once('.').unwrap().0);
        add("-netdev", format!("user,id=net,net={net},host={},hostfwd=tcp:127.0.0.1:{}-:9999", self.told, self.port));
        add("-device", format!("virtio-net-pci,netdev=net,romfile=,mac={}", self.mac));
        add(
            "-chardev",
            format!("socket,id=console,path={folder}/console,server=on,wait=off,logfile={}", log("console")),
        );
        add("-serial", "chardev:console".to_owned());
        add("-serial", format!("file:{}", log("facts")));
        let network = self.network_boot();
        running.from_disk = network.is_none();
        if let Some((kernel, ramdisk, cmdline)) = network {
            add("-kernel", kernel.display().to_string());
            add("-initrd", ramdisk.display().to_string());
            add("-append", cmdline);
        }
        let errors = fs::File::create(self.log(boot, "qemu")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        running.qemu = Some(command.spawn().expect("Debian's package qemu-system-x86"));
    }

    /// Kernel, ramdisk and command line, as iPXE would read them.
    fn network_boot(&self) -> Option<(PathBuf, PathBuf, String)> {
        let script = self.http_root.join("pxelinux.cfg").join(self.mac.replace(':', "-"));
        let script = fs::read_to_string(script).ok()?;
        let line = |word: &str| script.lines().find_map(|line| line.strip_prefix(word)).map(str::to_owned);
        let file = |url: &str| self.http_root.join(url.splitn(4, '/').last().unwrap_or_default());
        let (kernel, ramdisk) = (line("kernel ")?, line("initrd ")?);
        let (kernel, cmdline) = kernel.split_once(" || ").map_or(kernel.as_str(), |(line, _)| line).split_once(' ')?;
        let cmdline = cmdline.replace("${mac}", &self.mac);
        Some((file(kernel), file(ramdisk.split(' ').next()?), cmdline))
    }
}

/// What the node needs to know for this machine: the ramdisk, and what is said on its kernel command line.
pub fn driver_info(port: u16) -> [(&'static str, String); 5] {
    let file = |name: &str| format!("file://{}", built("ramdisk").join(name).display());
    let words =
        format!("console=ttyS0,115200n8 panic=-1 {SPARED} ipa-advertise-host=127.0.0.1 ipa-advertise-port={port}");
    [
        ("deploy_kernel", file("vmlinuz")),
        ("deploy_ramdisk", file("quick")),
        ("rescue_kernel", file("vmlinuz")),
        ("rescue_ramdisk", file("quick")),
        ("kernel_append_params", words),
    ]
}

/// A web server for one folder, of Python: whatever it serves, none of it is ours.
pub struct Images {
    folder: PathBuf,
    base: String,
    process: Child,
}

impl Images {
    pub fn start(ironic: &Ironic) -> Images {
        let folder = ironic.directory.join("served");
        fs::create_dir_all(&folder).unwrap();
        let port = free_port();
        let log = fs::File::create(ironic.directory.join("images.log")).unwrap();
        let mut python = Command::new("python3");
        python.args(["-m", "http.server", "--bind", "0.0.0.0", "--directory"]).arg(&folder).arg(port.to_string());
        let process = python.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Images { folder, base: format!("http://{}:{port}", ironic.place.told), process }
    }

    /// The URL of what this shell command writes into its `$1`, and its sha256.
    pub fn made(&self, name: &str, command: &str) -> (String, String) {
        let file = self.folder.join(name);
        let told = shell(&format!("{command} && sha256sum \"$1\""), &file);
        (format!("{}/{name}", self.base), told.split(' ').next().unwrap().to_owned())
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What this command says of `$1`, in the folder of what was built.
pub fn shell(command: &str, file: &Path) -> String {
    let output = Command::new("sh").args(["-euc", command, "sh"]).arg(file).current_dir(built("")).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
