//! `drophammer reinstall` on the running machine: starts the agent by kexec. This avoids a boot through the firmware,
//! which takes minutes.
//!
//! The reinstall itself is the same as after a PXE boot, with the same order, plan and safety checks. If kexec is not
//! possible, the machine reboots over PXE.

mod boot_download;
mod boot_verification;
mod shutdown;

use boot_download::{BootClient, BootFiles, BootResponse};
use clap::Args;
use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::{Context, Error, Phase, Result};
use common::output;
use control::boot_digest::BootDigest;
use control::clock::BOOT_TIME;
use linux::probe;
use model::inventory::Nic;
use newroot::boot::{efi, kexec};
use shutdown::{NextKernel, StopMethod};
use std::path::Path;
use time::OffsetDateTime;
use uuid::Uuid;

/// Options of `drophammer reinstall`.
#[derive(Debug, Clone, Args)]
pub struct ReinstallOptions {
    /// URL of the control plane.
    #[arg(long, value_name = "URL")]
    pub server: String,
    /// Id of the machine [default: its SMBIOS UUID].
    #[arg(long, value_name = "UUID")]
    pub machine: Option<Uuid>,
    /// Start the kernel only if kernel, ramdisk and kernel command line together have this digest, which `drophammer
    /// machine boot-digest` prints. Over plain HTTP and without a digest, another host on the network can replace
    /// kernel and ramdisk.
    #[arg(long, value_name = "DIGEST")]
    pub boot_digest: Option<BootDigest>,
    /// Print what the command would do, but change nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// Fetches kernel and ramdisk, stops this system cleanly, and starts the fetched kernel. On success, this function
/// returns while the machine shuts down, or does not return.
///
/// # Errors
/// Fails if the server cannot be reached, or if the system cannot be stopped. The running system is unchanged until its
/// shutdown begins.
pub(crate) fn run_reinstall(options: &ReinstallOptions) -> Result<CommandOutcome> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::new(
            Phase::Settings,
            "drophammer reinstall: must run as root, because it shuts down the running system",
        ));
    }
    let server = BootClient::new(&options.server)?;
    let (machine, macs) = identify_machine(Path::new("/sys"), options.machine)?;
    let manner = StopMethod::detect();
    let shown = machine.as_deref().unwrap_or("without a UUID");
    output::print_line(&format!("machine {shown}  {}\nserver  {}", macs.join(" "), server.url()));
    let digest = options.boot_digest.as_ref();
    if let Some(warning) = boot_verification::plain_http_warning(server.url(), digest) {
        output::print_error(&warning);
    }
    if options.dry_run {
        output::print_line(&describe_dry_run(&manner, &find_network_entry(&macs)));
        return Ok(CommandOutcome::Good);
    }
    let boot = match server.request_boot(machine.as_deref(), &macs)? {
        BootResponse::Boot(boot) => boot,
        BootResponse::NotOrdered { message } => {
            output::print_note(&nothing_ordered_message(&message, machine.as_deref()));
            return Ok(CommandOutcome::Refused);
        }
    };
    let boot = server.fetch_files(boot)?;
    let verified = boot_verification::require_digest_or_tls(&boot, server.url(), digest);
    report_refusal(verified.and_then(|()| start_agent(&boot, &macs, &manner, digest)).map(|()| CommandOutcome::Good))
}

/// Returns the id and the MACs of the machine. MACs of NICs with a link come first. Without an id, the server
/// identifies the machine by a MAC.
fn identify_machine(sys: &Path, machine: Option<Uuid>) -> Result<(Option<String>, Vec<String>)> {
    let (system, mut nics) = probe::read_machine_identity(sys)?;
    nics.sort_by_key(|nic: &Nic| !nic.link);
    let macs: Vec<String> = nics.into_iter().map(|nic| nic.mac).filter(|mac| !mac.is_empty()).collect();
    let id = machine.map(|id| id.to_string()).or(system.uuid);
    if id.is_none() && macs.is_empty() {
        let message = "this machine has neither an SMBIOS UUID nor a NIC; specify its id with --machine";
        return Err(Error::new(Phase::Settings, message));
    }
    Ok((id, macs))
}

/// Formats the server's message that no reinstall is ordered, and appends the remedy.
fn nothing_ordered_message(message: &str, machine: Option<&str>) -> String {
    let machine = machine.unwrap_or("ID");
    format!(
        "drophammer: {message}\nNothing was changed. Order a reinstall first: drophammer machine reinstall {machine} --image IMAGE"
    )
}

/// Loads the new kernel and stops the system. Before the call of this function, the command has not changed anything.
fn start_agent(boot: &BootFiles, macs: &[String], manner: &StopMethod, digest: Option<&BootDigest>) -> Result<()> {
    // The time is passed on the command line, because the hardware clock, from which the new kernel reads the time, may
    // be wrong.
    let cmdline = format!("{} {BOOT_TIME}{}", boot.names.cmdline, OffsetDateTime::now_utc().unix_timestamp());
    let loaded = kexec::load_kernel_files(&boot.names.kernel, &boot.kernel, Some(&boot.initrd), &cmdline);
    let next = match loaded {
        Ok(()) => {
            output::print_line(&format!("kexec   {} and {} loaded", boot.names.kernel, boot.names.initrd));
            NextKernel::Loaded
        }
        Err(error) => {
            boot_verification::refuse_firmware_boot(digest, &error)?;
            output::print_line(&format!("kexec   cannot be used: {error}"));
            output::print_line(&format!("pxe     {}", set_firmware_boot(macs)));
            NextKernel::Firmware
        }
    };
    output::print_line(&format!("stop    {}", manner.describe(next)));
    let stopped = manner.stop(next);
    if stopped.is_err() && next == NextKernel::Loaded {
        // The loaded kernel is unloaded. Otherwise a later reboot would unexpectedly start the agent.
        kexec::unload_kernel();
    }
    stopped.context(Phase::Boot, || "stop this system (some of its services may already be stopped)")
}

/// Finds the firmware's boot entry for the network.
fn find_network_entry(macs: &[String]) -> std::result::Result<efi::NetworkEntry, String> {
    let variables = Path::new(efi::VARIABLES);
    if !variables.exists() {
        return Err("this machine was booted in BIOS mode".to_owned());
    }
    match efi::find_pxe_entry(variables, macs) {
        Ok(Some(entry)) => Ok(entry),
        Ok(None) => Err("the firmware does not have a network boot entry".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Sets the firmware's BootNext variable to the network entry, if possible. Returns a description of what the firmware
/// will boot.
fn set_firmware_boot(macs: &[String]) -> String {
    let told = find_network_entry(macs).and_then(|entry| {
        let set = efi::set_boot_next(Path::new(efi::VARIABLES), entry.number);
        set.map(|()| entry).map_err(|error| error.to_string())
    });
    match told {
        Ok(entry) => format!(
            "the next boot uses the firmware's entry Boot{number:04X} ({description}), and later boots follow the boot order",
            number = entry.number,
            description = entry.description
        ),
        Err(why) => {
            format!("{why}: the machine boots over PXE only if the firmware's boot order starts with a network entry")
        }
    }
}

fn describe_dry_run(manner: &StopMethod, network: &std::result::Result<efi::NetworkEntry, String>) -> String {
    let fallback = match network {
        Ok(entry) => format!(
            "the firmware would use the entry Boot{number:04X} ({description}) for the next boot",
            number = entry.number,
            description = entry.description
        ),
        Err(why) => format!("{why}: the firmware's boot order would determine the next boot"),
    };
    format!(
        "dry run: nothing is changed, and no request is sent to the server, because each response counts as an attempt\n\
         kexec   kernel and ramdisk from the server\n\
         stop    {}\n\
         else    if kexec is not possible, {fallback}; {}",
        manner.describe(NextKernel::Loaded),
        manner.describe(NextKernel::Firmware),
    )
}

#[cfg(test)]
mod tests;
