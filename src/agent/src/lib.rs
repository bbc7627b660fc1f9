//! Complete installation, from the registration to the boot of the installed system. Failures are handled in
//! `failure_handling`.
//!
//! A failure before the plan's point of no return leaves every disk unchanged. After a later failure, the executor
//! ensures that a partial installation is not bootable.

pub mod cli;
mod executor;
mod failure_handling;
pub mod image_burn_command;
pub(crate) mod inventory_command;
pub(crate) mod ironic;
#[cfg(test)]
mod metal_conformance_tests;
mod migration_approval;
mod migration_sender;
mod plan_refusal;
mod pool_machine_preparation;
mod pre_allocation_inspection;
pub(crate) mod preflight;
pub(crate) mod reinstall_command;
pub(crate) mod report;
pub(crate) mod uplink_command;

use crate::executor::{ImageTrust, PlanExecutor};
pub(crate) use crate::ironic::IronicNextAction;
use crate::preflight::{
    order_number_check, passphrase_prompt, preserved_container_unlock, reinstall_without_order, state_from_markers,
};
use crate::report::ProgressReporter;
use common::diagnostic;
use common::error::{Context, Error, Phase, Result};
use common::format::{CONSOLE_COLUMNS, fold_lines};
use control::{ControlPlane, FileControl, HttpControlPlane, MetalControlPlane, SignatureVerifier};
use failure_handling::InstallFailure;
use image::{MinimumVersions, SignatureKeys};
use linux::console_log::{self, print_line};
use linux::probe::{self, ProbeDepth};
use linux::storage::read_only_assembly::ReadOnlyAssembly;
use model::agent_kernel_arguments::{AgentSettings, ControlPlaneSource};
use model::allocation::{Allocation, AssignedMachine, OrderedReinstall, RecordSource, SecretPurpose};
use model::install_report::EventName;
use model::inventory::Inventory;
use model::inventory::lldp::NicNeighbors;
use model::layout::ParsedLayout;
use model::machine_migration::MigrationSide;
use model::pool_machine_disks::ConnectedDisk;
use operations::StageName;
use plan::Plan;
use plan::request_from_allocation::{build_request, clear_begun_if_intact, find_untrusted_marker};
use plan_refusal::print_refused_plan;
pub(crate) use pool_machine_preparation::add_lldp_neighbors;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer::machine_migration::IncomingMigration;
use uuid::Uuid;

/// Duration of a long poll for the allocation. Many proxies close a connection after a longer silence.
const WAIT: Duration = Duration::from_secs(60);

/// Time that the machine must have waited for its allocation before a refused request is attributed to an expired
/// token.
const TOKEN_IS_OLD: Duration = Duration::from_secs(60 * 60);

/// Request to the caller to reboot the machine at once, because the installation failed.
#[derive(Debug)]
pub(crate) struct RebootRequested;

/// Installs this machine according to its control plane, and boots the installed system. Does not return on success, or
/// if the machine boots its old system after a failed reinstall.
///
/// # Errors
/// Fails if the installation failed and the machine must wait at its console. The failure was reported if the control
/// plane was reachable.
pub(crate) fn run_agent() -> Result<IronicNextAction> {
    console_log::load_ramdisk_log();
    let cmdline = std::fs::read_to_string("/proc/cmdline").context(Phase::Settings, || "read /proc/cmdline")?;
    let settings = AgentSettings::from_cmdline(&cmdline)?;
    control::clock::set_clock_of_boot(&cmdline, &print_line);
    let inventory = probe::read_inventory(ProbeDepth::Deep)?;
    if let ControlPlaneSource::Conductor(conductor) = &settings.control {
        return ironic::run_ironic_agent(conductor, &settings, &inventory);
    }
    let machine = determine_machine_id(&settings, &inventory)?;
    let control = connect_control_plane(&settings, &machine, &inventory)?;
    let mut agent = InstallAgent::new(settings, machine, control);
    agent.reporter.start_phase(EventName::Preparing, concat!("drophammer ", env!("CARGO_PKG_VERSION")));

    let failure = match agent.prepare_install(inventory) {
        Ok(Some(ready)) => agent.run_install(ready),
        Ok(None) => return Ok(IronicNextAction::BootAgain),
        Err(failure) => *failure,
    };
    agent.report_and_act(failure).map(|RebootRequested| IronicNextAction::BootAgain)
}

/// Returns the configured control plane.
fn connect_control_plane(
    settings: &AgentSettings,
    machine: &str,
    inventory: &Inventory,
) -> Result<Arc<dyn ControlPlane>> {
    match &settings.control {
        ControlPlaneSource::Server { url, token } => Ok(Arc::new(HttpControlPlane::new(url, token, machine)?)),
        ControlPlaneSource::File { file, report } => {
            let keys = SignatureKeys::read(&settings.keys, Path::new(image::KEY_DIRECTORY))?;
            let verifier = (!keys.0.is_empty()).then(|| -> SignatureVerifier {
                Box::new(move |name, text, signature| keys.verify_signature(name, text, signature).map(drop))
            });
            Ok(Arc::new(FileControl::new(file, report.as_deref(), verifier, machine, inventory)?))
        }
        ControlPlaneSource::MetalStack { pixie } => {
            Ok(Arc::new(MetalControlPlane::new(pixie, machine, Path::new(linux::ipmi::DEVICE))?))
        }
        ControlPlaneSource::Conductor(_) => Err(Error::new(
            Phase::Settings,
            "this command queries a control plane, but the kernel command line specifies an Ironic conductor",
        )),
    }
}

fn determine_machine_id(settings: &AgentSettings, inventory: &Inventory) -> Result<String> {
    settings.machine.as_ref().or(inventory.system.uuid.as_ref()).cloned().ok_or_else(|| {
        let message = "this machine has no unique SMBIOS UUID: it reports none, or a default of its vendor; set drophammer.machine= on the \
             kernel command line";
        Error::new(Phase::Settings, message)
    })
}

struct InstallAgent {
    settings: AgentSettings,
    machine: String,
    control: Arc<dyn ControlPlane>,
    reporter: Arc<ProgressReporter>,
    /// LLDP neighbors of the network interfaces; empty unless the control plane requires them.
    leaves: Vec<NicNeighbors>,
    /// Disks that were erased during this boot for the next owner of a pool machine; `None` if no disk was erased.
    erased: Option<Vec<ConnectedDisk>>,
    /// Devices that the inspection of the disks has started and could not stop; `None` if no such devices are running.
    inspection: Option<ReadOnlyAssembly>,
}

/// Result of the preparation, before the first stage.
struct PreparedInstall {
    allocation: Allocation,
    plan: Plan,
    text: String,
    trust: ImageTrust,
    /// Receiver of a migration; set only on the target machine.
    incoming: Option<IncomingMigration>,
}

impl InstallAgent {
    fn new(settings: AgentSettings, machine: String, control: Arc<dyn ControlPlane>) -> InstallAgent {
        let reporter = Arc::new(ProgressReporter::new(control.clone()));
        InstallAgent { settings, machine, control, reporter, leaves: Vec::new(), erased: None, inspection: None }
    }

    /// Registers, waits for the allocation, fetches the allocation, and makes the plan. The disks are not written,
    /// except if the machine belongs to a pool and is not allocated: its disks are then erased. Returns `None` after
    /// the machine has sent its disks in a migration.
    fn prepare_install(&mut self, inventory: Inventory) -> Result<Option<PreparedInstall>, Box<InstallFailure>> {
        let at = |step: &'static str| move |error| Box::new(InstallFailure::new_before_plan(step, error));
        let (control, began) = (self.control.clone(), Instant::now());
        let (mut inventory, mut missing) = (inventory, Vec::new());
        if let Some(pool) = control.machine_pool() {
            self.leaves = self.detect_lldp_neighbors(&inventory).map_err(at("control.register"))?;
            (inventory, missing) = self.await_known_disks(pool, began).map_err(at("plan"))?;
        }
        self.reporter.start_phase(EventName::Registering, &self.machine);
        self.control.register_machine(&add_lldp_neighbors(inventory, &self.leaves)).map_err(at("control.register"))?;
        if let Some(pool) = control.machine_pool() {
            self.erase_for_next_owner(pool, &missing)?;
        }
        self.reporter.start_phase(EventName::Waiting, &pool_machine_preparation::describe_wait(&missing));
        let waiting = Instant::now();
        let (machine, mut allocation) = self.await_allocation(&preflight::inspect_disks).map_err(|error| {
            let has_ended = error.is_refusal() && waiting.elapsed() > TOKEN_IS_OLD;
            if has_ended { Box::new(InstallFailure::new_expired_token(error)) } else { at("control.wait")(error) }
        })?;
        if let Err(error) = self.end_inspection() {
            return Err(Box::new(InstallFailure { allocation, ..*at("plan")(error) }));
        }
        if let Some(moving) = allocation.moving.clone().filter(|moving| moving.part == MigrationSide::Source) {
            let given = self.send_migration(&machine, &allocation, &moving);
            return given.map(|()| None).map_err(|failure| Box::new(InstallFailure { allocation, ..*failure }));
        }
        self.reporter.start_phase(EventName::Installing, &describe_purpose(&allocation));
        match self.check_and_plan(&machine, &mut allocation) {
            Ok((trust, incoming, plan)) => {
                let text = plan.to_string();
                print_line(&format!("\n{}", fold_lines(&text, CONSOLE_COLUMNS)));
                Ok(Some(PreparedInstall { allocation, plan, text, trust, incoming }))
            }
            Err(failure) => Err(Box::new(InstallFailure { allocation, ..*failure })),
        }
    }

    /// Checks keys and tools of the ramdisk, then makes the plan. The checks run only after the allocation was fetched,
    /// because the report of a failed check must refer to this allocation.
    fn check_and_plan(
        &self,
        machine: &AssignedMachine,
        allocation: &mut Allocation,
    ) -> Result<(ImageTrust, Option<IncomingMigration>, Plan), Box<InstallFailure>> {
        let at = |step: &'static str| move |error| Box::new(InstallFailure::new_before_plan(step, error));
        let keys = SignatureKeys::read(&self.settings.keys, Path::new(image::KEY_DIRECTORY)).map_err(at("keys"))?;
        let minimum = MinimumVersions::read(&self.settings.minimum, Path::new(image::MINIMUM_FILE), &keys);
        let minimum = minimum.map_err(at("keys"))?;
        preflight::require_tools().map_err(at("tools"))?;
        let incoming = self.announce_receiver(allocation).map_err(at("control.move"))?;
        let plan = self.make_plan(machine, allocation)?;
        Ok((ImageTrust { keys, minimum }, incoming, plan))
    }

    fn make_plan(&self, machine: &AssignedMachine, allocation: &mut Allocation) -> Result<Plan, Box<InstallFailure>> {
        let failure = |error| Box::new(InstallFailure::new_before_plan("plan", error));
        let parsed = parse_layout(allocation).map_err(failure)?;
        preflight::wait_for_layout_disks(&parsed.layout).map_err(failure)?;
        preflight::register_preserved_partitions(&parsed.layout).map_err(failure)?;
        self.erase_newcomers(allocation)?;
        preserved_container_unlock::read_ramdisk_key(&parsed.layout, allocation).map_err(failure)?;
        self.fetch_disk_key(preserved_container_unlock::needs_disk_key(&parsed.layout), allocation).map_err(failure)?;
        let mut ask = |question: &str, until| self.prompt_at_console(question, until);
        let mut open = |inventory: &Inventory| {
            preserved_container_unlock::unlock_preserved(&parsed.layout, inventory, allocation, &mut ask)
        };
        let open: Option<&mut preflight::UnlockContainers> =
            if preserved_container_unlock::has_encryption(&parsed.layout) { Some(&mut open) } else { None };
        let mut inventory = add_lldp_neighbors(preflight::read_assembled_with(open).map_err(failure)?, &self.leaves);
        let adopted =
            reinstall_without_order::adopt_as_reinstall(&self.machine, allocation, &mut inventory).map_err(failure)?;
        adopted.iter().for_each(|said| print_line(said));
        if !self.control.records_installations() {
            self.complete_allocation_from_disks(allocation, &inventory).map_err(failure)?;
        }
        allocation.unremembered |= self.control.install_memory() == RecordSource::DisksOnly;
        if clear_begun_if_intact(&self.machine, allocation, &parsed.layout, &inventory) {
            print_line(
                "an earlier reinstall attempt passed its point of no return, but wrote nothing; the installed system is intact",
            );
        }
        let request = build_request(machine, &self.machine, allocation, &self.settings.consoles);
        if !self.control.records_installations() {
            state_from_markers::refuse_orphaning(&parsed.layout, &inventory, &request).map_err(failure)?;
        }
        let untrusted_marker = find_untrusted_marker(&request, &inventory).cloned();
        let make = |request| {
            plan::make_plan(&parsed.layout, &inventory, request, &mut Uuid::new_v4).map_err(|refusal| {
                let failure = InstallFailure::from_plan_refusal(&refusal);
                print_refused_plan(&refusal);
                Box::new(InstallFailure { marker: untrusted_marker.clone(), ..failure })
            })
        };
        let plan = make(request)?;
        if !plan::luks::needs_passphrase(&plan) {
            return Ok(plan);
        }
        let typed = passphrase_prompt::ask_new_passphrase(
            &passphrase_prompt::list_encrypted(&parsed.layout),
            &mut |question, until| self.prompt_at_console(question, until),
        );
        allocation.prompt_key = typed.map_err(failure)?;
        make(build_request(machine, &self.machine, allocation, &self.settings.consoles))
    }

    /// Fetches the key of encrypted filesystems if the control plane sends the key separately from the allocation.
    fn fetch_disk_key(&self, is_needed: bool, allocation: &mut Allocation) -> Result<()> {
        let released = if is_needed { self.control.fetch_secrets(SecretPurpose::DiskKey)? } else { None };
        if let Some(released) = released {
            allocation.disk_key = released.disk_key;
        }
        Ok(())
    }

    /// Completes the allocation from the install markers on the disks, if the control plane does not record
    /// installations.
    fn complete_allocation_from_disks(&self, allocation: &mut Allocation, inventory: &Inventory) -> Result<()> {
        let is_ordered_by_file = allocation.reinstall && self.control.install_memory() == RecordSource::DisksOnly;
        if !is_ordered_by_file {
            return state_from_markers::complete_from_markers(&self.machine, allocation, inventory);
        }
        let said = order_number_check::compare_order(&self.machine, allocation, inventory)?;
        said.iter().for_each(|said| print_line(said));
        Ok(())
    }

    /// Asks a question at the console, and reports to the control plane that the machine is waiting for input.
    fn prompt_at_console(&self, question: &str, until: Instant) -> Result<Option<String>> {
        self.reporter.start_phase(EventName::Installing, "waiting for a passphrase at the console");
        let line =
            console_log::hidden_input::read_hidden_line(Path::new(console_log::hidden_input::CONSOLE), question, until);
        line.context(Phase::Settings, || format!("ask at {}", console_log::hidden_input::CONSOLE))
    }

    fn run_install(&self, ready: PreparedInstall) -> InstallFailure {
        let PreparedInstall { allocation, plan, text, trust, incoming } = ready;
        if let Some(incoming) = &incoming
            && let Err(failure) = self.await_approval(&allocation, incoming)
        {
            return InstallFailure { allocation, plan: text, ..*failure };
        }
        let mut session = PlanExecutor::new(self.reporter.clone(), self.control.clone(), trust);
        incoming.into_iter().for_each(|incoming| session.set_incoming(incoming));
        let failure = match session.run_plan(&plan) {
            Err(failure) => failure,
            Ok(facts) => executor::StageFailure {
                stage: StageName::BootKexec,
                leaves: StageName::BootKexec.failure_state(),
                past_point_of_no_return: true,
                error: Error::new(
                    Phase::Boot,
                    "internal error: all stages of the plan have ended, but the new system was not started",
                ),
                done: Box::new(facts.done),
            },
        };
        InstallFailure::from_plan_failure(failure, allocation, text)
    }
}

/// Parses the layout of the allocation, and logs the notes about it.
fn parse_layout(allocation: &Allocation) -> Result<ParsedLayout> {
    let parsed = allocation.parse_layout().map_err(|problems| {
        let reasons = diagnostic::summarize_problems(&problems);
        Error::new(Phase::Layout, format!("invalid layout: {reasons}; nothing was written"))
    })?;
    parsed.notes.iter().for_each(|note| tracing::info!("layout: {note}"));
    Ok(parsed)
}

/// Describes the requested operation for operators.
fn describe_purpose(allocation: &Allocation) -> String {
    let install = format!("{} as {}", allocation.image.id, allocation.hostname);
    if allocation.moving.is_some() {
        return format!("{hostname}, migrated from another machine", hostname = allocation.hostname);
    }
    match &allocation.order {
        Some(OrderedReinstall { attempt, attempts, .. }) if allocation.reinstall => {
            format!("{install}: reinstall, attempt {attempt} of {attempts}")
        }
        _ if allocation.reinstall => format!("{install}: reinstall"),
        _ => install,
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
testing::workers!(linux::process::worker_process::USED_BLOCKS_WORKER => transfer::run_used_blocks_worker, linux::process::worker_process::WORKER => image::worker::run_image_worker, linux::verify_program::WORKER => || -> std::io::Result<()> { linux::verify_program::worker::run_verify_worker() });
