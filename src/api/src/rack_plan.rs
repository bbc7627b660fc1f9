//! Predictions of the response that each machine would receive after a change, for `drophammer site plan` and for the
//! web page with the plans of all machines. `site plan` reads the files and the database directly, even if no server
//! is running. The web page uses the server's published snapshot. [`machine_rows`] plans the machines.

mod install_durations;
pub mod machine_rows;

use super::AppState;
use super::agent_api::wire_allocation::to_wire_allocation;
use super::deploy_templates::template_files;
use super::migration_requests::migration_assignment::{self, MigrationForecast};
use super::operator_api::reinstalls::find_reinstallable_layout;
use super::plan_input::{INPUT_NOT_READY, RegisteredInventory, parse_registration};
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use common::format::compare_natural;
use install_durations::InstallDurations;
use marked_yaml::{Span, Spanned};
use model::allocation;
use plan::ApprovalSummary;
use site::allocation_resolution::{
    find_differences, image_without_location, resolve_allocation, resolve_before_approval,
};
use site::ganeti_os_definitions::{OsDefinitions, VerifyCache};
use site::loader::SiteLoader;
use site::operator_files::{AllocationSpec, MachineSpec};
use site::snapshot::SiteSnapshot;
use site::{plan_approvals, requested_steps, yaml_folder};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::image_digest_cache::ImageDigests;
use store::{DATABASE, InstallState, ReinstallOrder, ReinstallOverrides, ServerState, now};

/// Base URL in the predicted responses; never contacted.
const URL: &str = "http://server";

/// Change whose effect is predicted: all machines would be installed or reinstalled with this image and layout. If no
/// field is set, the effect of the current files and open orders is predicted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RackChange {
    /// Id of an image for all machines.
    pub image: Option<String>,
    /// Id of a layout for all machines.
    pub layout: Option<String>,
    /// True if installed machines would be reinstalled with the images in their machine files.
    pub reinstall: bool,
}

impl RackChange {
    /// Returns whether installed machines would be reinstalled.
    pub fn reinstalls(&self) -> bool {
        self.reinstall || self.image.is_some() || self.layout.is_some()
    }
}

/// Current content of a server's directory.
pub struct RackSnapshot {
    /// Directory of the server, to which approvals are written.
    dir: PathBuf,
    directory: Arc<SiteSnapshot>,
    state: ServerState,
    /// Problems of the files. Machines whose files have problems may be missing from the snapshot.
    pub problems: Vec<String>,
    /// Remarks for the operator that are not problems.
    pub notes: Vec<String>,
    durations: InstallDurations,
}

/// Predicted response to a machine.
#[derive(Debug, Clone)]
pub enum MachineForecast {
    /// The machine would not be installed or changed, for this reason.
    NoAction(String),
    /// The installation would be refused, for this reason.
    Refused(String),
    /// The response cannot be predicted yet, for this reason.
    Unknown(String),
    Assigned(Box<allocation::AssignedMachine>),
}

/// Machine, and the response that is predicted for it.
#[derive(Debug, Clone)]
pub struct PredictedMachine {
    pub id: String,
    pub name: String,
    pub size: Option<String>,
    pub outlook: MachineForecast,
    pub registered: Option<RegisteredInventory>,
    /// Identifier of the last completed installation, which an approval records; see
    /// [`InstallState::last_installation`].
    pub installed: String,
    /// Expected duration in seconds: the duration of the machine's last installation or, if that duration is unknown,
    /// the median of all machines of its size.
    pub seconds: Option<f64>,
}

impl RackSnapshot {
    /// Opens the state of the directory `dir`. If `new` is set, reads the operator's files from `new` instead.
    ///
    /// # Errors
    /// Returns an error if the directory does not exist, or no server has run in it.
    pub fn open_directory(dir: &Path, new: Option<&Path>) -> Result<RackSnapshot> {
        let files = new.unwrap_or(dir);
        if let Some(missing) = [dir, files].into_iter().find(|dir| !dir.is_dir()) {
            return Err(Error::refusal(Phase::Serve, format!("{} is not a directory", missing.display())));
        }
        if !yaml_folder::has_machine_files(files) {
            let message = format!("{folder}/machines does not contain a machine file", folder = files.display());
            return Err(Error::refusal(Phase::Serve, message));
        }
        let state = ServerState::open_to_read(&dir.join(DATABASE))?;
        let definitions = OsDefinitions::new(files.join("os"), VerifyCache::disabled());
        let loader = SiteLoader::new(files, ImageDigests::cached_only(state.clone()), definitions, state.clone());
        let mut loader = loader.without_approvals();
        let seen =
            loader.rescan().ok_or_else(|| Error::new(Phase::Serve, "the server's directory could not be read"))?;
        let (mut directory, mut notes) = (seen.directory, Vec::new());
        for (id, image) in &mut Arc::make_mut(&mut directory.known).images {
            if image.is_none() {
                notes.push(format!(
                    "the digest of image {id} is not known yet, so the manifest of the image is not checked"
                ));
                *image = Some(image_without_location(id.clone()));
            }
        }
        let durations = InstallDurations::read(&state, &directory)?;
        let (dir, directory) = (dir.to_owned(), Arc::new(directory));
        Ok(RackSnapshot { dir, directory, state, problems: seen.problems, notes, durations })
    }

    /// Returns the state of a running server, with the files of a published snapshot. Blocks during the reads.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub fn of_server(app: &AppState, directory: Arc<SiteSnapshot>) -> Result<RackSnapshot> {
        let state = app.state.clone();
        let durations = InstallDurations::read(&state, &directory)?;
        let (problems, notes) = (directory.problems.clone(), Vec::new());
        Ok(RackSnapshot { dir: app.dir.clone(), directory, state, problems, notes, durations })
    }

    /// Returns the ids and names of all machines that have a machine file, sorted by name in natural order.
    pub fn list_machines(&self) -> Vec<(String, String)> {
        let all = self.directory.machines().map(|machine| (machine.id.clone(), machine.name.clone()));
        let mut all: Vec<_> = all.collect();
        all.sort_by(|one, other| compare_natural(&one.1, &other.1).then_with(|| one.0.cmp(&other.0)));
        all
    }

    /// Checks that the layout and the image of a change exist in the directory.
    ///
    /// # Errors
    /// Returns an error if the layout or the image does not exist.
    pub fn check_change(&self, change: &RackChange) -> Result<()> {
        check_change(&self.directory, change)
    }

    /// Returns the machine with the response that is predicted for it after the change.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub fn predict_machine(&self, id: &str, change: &RackChange) -> Result<PredictedMachine> {
        let Some(machine) = self.directory.find_machine(id) else {
            return Err(Error::new(Phase::Serve, format!("machine {id} not found in machines/")));
        };
        let mut seen = PredictedMachine {
            id: id.to_owned(),
            name: machine.name.clone(),
            size: machine.size.clone(),
            outlook: MachineForecast::NoAction("the machine file does not contain an allocation".to_owned()),
            registered: None,
            installed: String::new(),
            seconds: self.durations.estimate_seconds(id, machine.size.as_deref()),
        };
        if self.predict_migration(machine, &mut seen)? {
            return Ok(seen);
        }
        let Some(allocation) = &machine.allocation else { return Ok(seen) };
        let install_state = self.read_allocation_state(machine, allocation)?;
        seen.installed = install_state.last_installation();
        let is_installed = install_state.is_installed();
        seen.outlook = self.predict_allocation(machine.clone(), install_state, change);
        self.add_registration(&mut seen, is_installed)?;
        Ok(seen)
    }

    /// Sets the prediction and returns true if a migration determines the response to the machine. The [`RackChange`]
    /// then does not affect the machine.
    fn predict_migration(&self, machine: &MachineSpec, seen: &mut PredictedMachine) -> Result<bool> {
        let Some(migration) = self.state.find_live_migration_blocking(&machine.id)? else { return Ok(false) };
        let of = migration_assignment::find_source(&self.directory, &migration);
        let install_state = match of.and_then(|of| Some((of, of.allocation.as_ref()?))) {
            Some((of, allocation)) => self.read_allocation_state(of, allocation)?,
            None => InstallState::default(),
        };
        seen.outlook = match migration_assignment::forecast_for_machine(
            migration,
            &machine.id,
            install_state,
            None,
            &self.directory,
        ) {
            MigrationForecast::Unaffected => return Ok(false),
            MigrationForecast::NotWritten(why) => MachineForecast::NoAction(why),
            MigrationForecast::Unknown(why) => MachineForecast::Unknown(why),
            MigrationForecast::Assigned(given) => self.to_forecast(machine, given.into_wire(URL, false)),
        };
        self.add_registration(seen, false)?;
        Ok(true)
    }

    fn read_allocation_state(&self, machine: &MachineSpec, allocation: &AllocationSpec) -> Result<InstallState> {
        let install_state = self.state.read_install_state_blocking(&machine.id, &allocation.id)?;
        requested_steps::add_results_blocking(&self.state, machine, install_state, &self.directory.known)
    }

    fn to_forecast(&self, machine: &MachineSpec, allocation: allocation::Allocation) -> MachineForecast {
        MachineForecast::Assigned(Box::new(allocation::AssignedMachine {
            id: machine.id.clone(),
            name: machine.name.clone(),
            size: machine.size.clone().map(|id| allocation::IdReference { id }),
            allocation: Some(allocation),
            newest_move: None,
        }))
    }

    fn add_registration(&self, seen: &mut PredictedMachine, is_installed: bool) -> Result<()> {
        if matches!(seen.outlook, MachineForecast::Assigned(_))
            && let Some(row) = self.state.find_registration_blocking(&seen.id)?
        {
            match parse_registration(row, &seen.id, is_installed) {
                Ok(registered) => seen.registered = registered,
                Err(why) => seen.outlook = MachineForecast::Unknown(why),
            }
        }
        Ok(())
    }

    fn predict_allocation(
        &self,
        mut machine: MachineSpec,
        mut install_state: InstallState,
        change: &RackChange,
    ) -> MachineForecast {
        let known = &self.directory.known;
        let blank = |text: &String| Spanned::new(Span::new_blank(), text.clone());
        let mut file_says = String::new();
        if let Some(allocation) = &mut machine.allocation {
            file_says.clone_from(&allocation.image);
            if let Some(image) = change.image.as_ref().filter(|_| !install_state.is_installed()) {
                allocation.image = blank(image);
            }
            if let Some(layout) = &change.layout {
                allocation.filesystemlayout = Some(blank(layout));
            }
        }
        if install_state.is_installed()
            && let Some(forecast) = self.order_reinstall(&machine, &mut install_state, change, file_says)
        {
            return forecast;
        }
        // The approval in force applies to the present orders, but not to a reinstall that is only planned.
        let resolve = if change.reinstalls() { resolve_before_approval } else { resolve_allocation };
        match resolve(&machine, &install_state, known) {
            Err(why) => MachineForecast::Refused(ErrorCode::SiteFile.annotate_uncoded(why)),
            Ok(None) => MachineForecast::Unknown(INPUT_NOT_READY.to_owned()),
            Ok(Some(assigned)) => {
                let allocation = to_wire_allocation(&assigned, install_state, URL, false);
                self.to_forecast(&machine, allocation)
            }
        }
    }

    /// If the change requires a reinstall of an installed machine, adds the reinstall order to the machine's state.
    /// If the machine cannot be reinstalled, returns its forecast instead.
    fn order_reinstall(
        &self,
        machine: &MachineSpec,
        install_state: &mut InstallState,
        change: &RackChange,
        file_image: String,
    ) -> Option<MachineForecast> {
        if install_state.adopted {
            return Some(MachineForecast::Unknown(
                "the operator has recorded the machine as installed, but the machine has not yet reported its \
                installation"
                    .to_owned(),
            ));
        }
        match &install_state.order {
            Some(order) if order.started && !order.given_up => {}
            Some(order) if order.given_up && !change.reinstalls() => {
                let state = if order.started { "was abandoned" } else { "is suspended" };
                return Some(MachineForecast::Unknown(format!(
                    "the reinstall with {image} {state}: the machine waits for the operator",
                    image = order.image
                )));
            }
            Some(_) if !change.reinstalls() => {}
            None if !change.reinstalls() => {
                let runs = install_state.image.as_deref().unwrap_or("an unknown image");
                let why = format!("installed with {runs}; no reinstall is ordered");
                let notes = find_differences(machine, install_state, &self.directory.known);
                return Some(MachineForecast::NoAction([vec![why], notes].concat().join("\n")));
            }
            _ => {
                if let Some(why) = machine.explain_lock() {
                    let why = ErrorCode::MachineLocked.annotate(format!("the machine is {why}"));
                    return Some(MachineForecast::Refused(why));
                }
                let words =
                    ReinstallOverrides { change_promise: change.layout.is_some(), ..ReinstallOverrides::default() };
                if let Err(why) =
                    find_reinstallable_layout(machine, install_state.clone(), &self.directory.known, &words)
                {
                    let why = why.with_error_code(ErrorCode::ReinstallRefused);
                    return Some(MachineForecast::Refused(why.into_coded_message()));
                }
                let earlier = install_state.order.take().filter(|order| order.started);
                let image = change.image.clone().unwrap_or(file_image);
                install_state.order = Some(build_order(image, words, earlier));
            }
        }
        None
    }

    /// Writes the approval atomically to the file from which the server reads it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write_approval(&self, seen: &PredictedMachine, verdicts: &ApprovalSummary) -> Result<()> {
        let path = plan_approvals::approval_path(&self.dir, &seen.id);
        let text = plan_approvals::render_approval(verdicts, BTreeMap::new(), seen.installed.clone(), now());
        let text = text.map_err(|why| Error::refusal(Phase::Serve, why))?;
        // The file is readable by all users: the server may run as another user, and the approval contains no secrets.
        let readable = || fs::set_permissions(&path, Permissions::from_mode(0o644));
        template_files::write_file(&path, &text)
            .and_then(|()| readable())
            .context(Phase::Serve, || format!("write {}", path.display()))
    }
}

/// Checks that the layout and the image of a change exist in the directory.
///
/// # Errors
/// Returns an error if the layout or the image does not exist.
pub fn check_change(directory: &SiteSnapshot, change: &RackChange) -> Result<()> {
    let known = &directory.known;
    let layout = change.layout.as_ref().filter(|id| !known.layouts.contains_key(*id));
    let layout = layout.map(|id| known.explain_absent_layout(id));
    let is_made = |id: &str| {
        let all = directory.machines().filter_map(|machine| machine.allocation.as_ref());
        all.filter_map(|allocation| allocation.definition.created_os()).any(|os| os.to_string() == id)
    };
    let image = change.image.as_ref().filter(|id| !known.images.contains_key(*id) && !is_made(id));
    let image = image.map(|id| known.explain_absent_image(id));
    match layout.or(image) {
        None => Ok(()),
        Some(absent) => Err(Error::refusal(Phase::Serve, absent.reason).with_code(absent.code)),
    }
}

/// Id of a reinstall order that is planned, but not placed.
pub const PLANNED_ORDER: &str = "planned";

/// Returns the reinstall order that the server would store. `earlier` is the order that it would replace.
pub fn build_order(image: String, words: ReinstallOverrides, earlier: Option<ReinstallOrder>) -> ReinstallOrder {
    let ReinstallOverrides { without_marker, change_promise, give_up, leave_locked, .. } = words;
    let ReinstallOverrides { replace_newer, apply_allocation, layout_digest, .. } = words;
    ReinstallOrder {
        id: PLANNED_ORDER.to_owned(),
        image,
        created: now(),
        created_by: String::new(),
        attempts: 1,
        started: earlier.is_some(),
        without_marker,
        change_promise,
        give_up,
        leave_locked,
        replace_newer,
        apply_allocation,
        fencing: None,
        confirmed: true,
        disks: earlier.map(|earlier| earlier.disks).unwrap_or_default(),
        attempt: None,
        given_up: false,
        handed: None,
        unregistered: 0,
        is_final_boot: false,
        required_approval: None,
        layout_digest,
    }
}
