//! Boots of a run: over the network, from disk, and to check that nothing can be booted.

use crate::expectation_check::RunObservations;
use crate::expectations::Outcome;
use crate::guest_facts::Facts;
use crate::host_tools::{Context, Result, write};
use crate::network_boot::{self, NetworkBootRun};
use crate::qemu_machine::{BootMethod, POLL, Vm, quick_ramdisk};
use crate::scenario::{BootFrom, Firmware};
use crate::scenario_run::RunContext;
use crate::server::{self, Server};
use crate::{discovered_layout, disk_files, file_control_plane, phase_times, reinstall};
use model::architecture::Architecture;
use std::fs;
use std::path::{Path, PathBuf};

/// Texts of OVMF if it finds no bootable disk, without and with its shell.
const NO_BOOTABLE_DISK_TEXTS: [&str; 2] = ["No bootable option", "UEFI Interactive Shell"];

impl RunContext<'_> {
    /// Orders the reinstall if the run requests it, switches the machine on, and handles events until the outcome is
    /// known.
    ///
    /// # Errors
    /// Fails if there is no outcome, or an unexpected one.
    pub fn network_boot(&self) -> Result<RunObservations> {
        let state = self.server_folder();
        let (mut server, proxy) = phase_times::measure_phase("harness: image, server", || self.start_server(&state))?;
        proxy.set_traps(network_boot::list_traps(&self.run.events));
        proxy.set_holds(network_boot::list_holds(&self.run.events));
        let tftp = self.create_tftp_folder(proxy.port)?;
        if self.run.adopted {
            reinstall::adopt_machine(proxy.port, &state, self.machine_id())?;
        }
        let ordered = match &self.run.reinstall {
            None => Ok(()),
            Some(button) => {
                reinstall::order_reinstall(&mut server, &proxy, &state, self.machine_id(), &self.system_id(), button)
            }
        };
        if self.run.expect.outcome == Outcome::Denied {
            return Ok(RunObservations {
                denied: Some(ordered.err().unwrap_or_default()),
                ..RunObservations::default()
            });
        }
        ordered?;
        if self.run.forget && self.run.expect.outcome == Outcome::Already {
            reinstall::adopt_machine(proxy.port, &state, self.machine_id())?;
        }
        let label = format!("{}-network", self.label);
        let vm = match self.run.boot {
            BootFrom::Pxe | BootFrom::Direct => self.over_network(&label, &tftp, proxy.port)?,
            BootFrom::Kexec => {
                let script = self.chassis.folder.join("script");
                write(&script, reinstall::build_script(proxy.port))?;
                Vm::start(self.chassis, &label, &BootMethod::DiskThen(&script))?
            }
        };
        let port = proxy.port;
        let mut boot_run = NetworkBootRun::new(self, server, proxy, tftp.clone(), vm);
        let over_network = boot_run.wait_for_outcome()?;
        if self.run.expect.discovered {
            discovered_layout::check_discovered_layout(port, &state, self.machine_id(), &self.read_layout()?)?;
        }
        let mut observed = boot_run.collect_observations()?;
        observed.report.iter().for_each(phase_times::record_stages);
        if observed.report.is_none() && self.run.expect.outcome == Outcome::Installed {
            observed.report = server::stored_report(&state, self.machine_id())?;
        }
        observed.over_network = over_network;
        if reinstall::asks_for_order(self.run) {
            observed.order_is_open = Some(server::order_is_open(&state, self.machine_id())?);
        }
        observed.image = reinstall::expected_image(self.run, &self.system_id(), self.installed.as_deref());
        Ok(observed)
    }

    /// Creates the folder from which the firmware boots. A machine for arm64 loads iPXE, which runs `autoexec.ipxe`.
    fn create_tftp_folder(&self, port: u16) -> Result<PathBuf> {
        let tftp = self.chassis.folder.join("tftp");
        fs::create_dir_all(&tftp).context(tftp.display())?;
        let script = server::start_script(port)?;
        if self.scenario.machine.architecture == Architecture::Arm64 && self.run.boot == BootFrom::Pxe {
            write(&tftp.join("autoexec.ipxe"), &script)?;
            let ipxe = self.artifacts.join("ipxe-arm64/ipxe-arm64.efi");
            fs::copy(&ipxe, tftp.join("ipxe-arm64.efi")).context(ipxe.display())?;
        }
        write(&tftp.join("start.ipxe"), script)?;
        Ok(tftp)
    }

    /// Cancels the order as the operator, without the proxy. The machine sends no requests meanwhile.
    ///
    /// # Errors
    /// Fails if the server refuses.
    pub fn cancel_order(&self, server: &Server) -> Result<()> {
        let port = server.port().ok_or("drophammer serve did not print its port")?;
        reinstall::cancel_order(port, &self.server_folder(), self.machine_id())
    }

    fn server_folder(&self) -> PathBuf {
        self.chassis.folder.join("serve")
    }

    /// Boots the machine over the network, with firmware and iPXE. With [`BootFrom::Direct`], the harness requests the
    /// boot script instead, and passes kernel and ramdisk to QEMU.
    ///
    /// # Errors
    /// Fails if QEMU does not start, or the server has no boot script.
    pub fn over_network(&self, label: &str, tftp: &Path, port: u16) -> Result<Vm> {
        if self.run.boot != BootFrom::Direct {
            return Vm::start(self.chassis, label, &BootMethod::Network(tftp));
        }
        // The identity that the firmware reports may differ from the identity in the server's machine file.
        let uuid = self.chassis.shown_uuid.as_ref().unwrap_or(&self.chassis.uuid);
        let mac = self.chassis.shown_macs.first().unwrap_or(&self.chassis.mac);
        let script = server::boot_script(port, uuid, mac, self.chassis.machine.architecture)?;
        let (kernel, mut initrd) = quick_ramdisk(&self.kernel_files(), self.chassis.machine);
        if script.as_ref().is_some_and(|script| script.with_luks) {
            initrd = self.with_luks(&initrd)?;
        }
        let script = script.map(|script| match self.run.fleet {
            Some(_) => file_control_plane::adapt_cmdline(&script.cmdline, port),
            None => script.cmdline,
        });
        let boot = match &script {
            Some(cmdline) => {
                BootMethod::Direct { kernel: &kernel, initrd: &initrd, cmdline, on_copy: false, network: true }
            }
            None => BootMethod::Disk,
        };
        Vm::start(self.chassis, label, &boot)
    }

    /// Returns the ramdisk with the additional archive for encrypted filesystems.
    fn with_luks(&self, ramdisk: &Path) -> Result<PathBuf> {
        let (part, whole) = (
            self.artifacts.join(self.chassis.machine.artifact("ramdisk")).join("luks"),
            self.chassis.folder.join("with-luks.initrd"),
        );
        let mut bytes = fs::read(ramdisk).context(ramdisk.display())?;
        bytes.extend(fs::read(&part).context(part.display())?);
        write(&whole, bytes)?;
        Ok(whole)
    }

    /// Boots from disk after a power cut, without a NIC. The installed system must start. Returns its facts and the
    /// console output.
    ///
    /// # Errors
    /// Fails if the system does not start.
    pub fn boot_from_disk(&self, label: &str, boot: &BootMethod) -> Result<(Facts, String)> {
        let mut vm = Vm::start(self.chassis, &format!("{}-{label}", self.label), boot)?;
        loop {
            if let Some(facts) = vm.facts(self.run.image.system.name()) {
                return Ok((facts, vm.console()));
            }
            vm.check_alive().context("boot from disk")?;
            std::thread::sleep(POLL);
        }
    }

    /// Checks after a failure that the firmware does not find an incomplete system. UEFI firmware reports that nothing
    /// is bootable. A BIOS does not report this, but runs the first sector of a disk, whose boot code must therefore be
    /// empty.
    ///
    /// # Errors
    /// Fails if something can be booted.
    pub fn check_nothing_boots(&self) -> Result<()> {
        if self.scenario.machine.firmware == Firmware::Uefi {
            return self.check_no_boot();
        }
        for disk in &self.scenario.machine.disks {
            if disk_files::has_boot_code(&self.chassis.disk_file(disk))? {
                return Err(format!("disk {} has boot code in its first sector after a failed install", disk.name));
            }
        }
        Ok(())
    }

    fn check_no_boot(&self) -> Result<()> {
        let mut vm = Vm::start(self.chassis, &format!("{}-futile", self.label), &BootMethod::Disk)?;
        loop {
            let console = vm.console();
            if NO_BOOTABLE_DISK_TEXTS.iter().any(|text| console.contains(text)) {
                return Ok(());
            }
            if console.contains("Linux version") || console.contains("GRUB") {
                return Err(format!("the disk boots after a failed install{}", vm.last_lines()));
            }
            vm.check_alive().context("boot from a disk that must not boot")?;
            std::thread::sleep(POLL);
        }
    }
}
