//! `drophammer plan`: shows what an installation would do.

use super::templates::Templates;
use super::{problem_lines, read, read_layout, wants_colour};
use crate::assigned::preview::{placeholders, stop_using};
use crate::device::DevicePath;
use crate::error::{Context, Error, Phase, Result};
use crate::exit::{Exit, or_refused};
use crate::inventory::Inventory;
use crate::layout::Parsed;
use crate::marker::Marker;
#[cfg(feature = "serve")]
use crate::operator::OfServer;
use crate::plan::{self, Assigned, Claim, Mode, Request, Subject, Waiver};
use crate::stdout::{complain, json, print, print_styled};
use crate::steps::{Erase, Steps};
use clap::Args;
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Options of `drophammer plan`.
#[derive(Debug, Args)]
pub struct Options {
    /// The layout, YAML or JSON; - is standard input.
    #[cfg_attr(feature = "serve", arg(long, value_name = "FILE", required_unless_present_any = ["machine", "template"]))]
    #[cfg_attr(not(feature = "serve"), arg(long, value_name = "FILE", required_unless_present = "template"))]
    pub layout: Option<PathBuf>,
    /// Plan for a machine of a server, by its id or name: with the allocation that it would receive now, and the inventory that it has
    /// registered. --layout and --inventory replace these.
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "ID")]
    pub machine: Option<String>,
    #[cfg(feature = "serve")]
    #[command(flatten)]
    pub of: OfServer,
    /// The machine's allocation: its file from a server's machines/, or the document that its agent receives. Network, `finish` and kernel
    /// arguments are checked as the agent checks them.
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "FILE", conflicts_with = "machine")]
    pub allocation: Option<PathBuf>,
    /// Output of `drophammer inventory`; the default is this machine.
    #[arg(long, value_name = "FILE")]
    pub inventory: Option<PathBuf>,
    /// Method of erasing disks before they are recreated; with --machine, the server's value is used.
    #[arg(long, value_enum, default_value_t)]
    pub erase: Erase,
    /// A deploy template. The merged steps are shown with the template that each comes from. May be given several times; the order matters.
    /// A template with arrays generates the layout.
    #[arg(long, value_name = "FILE")]
    pub template: Vec<PathBuf>,
    /// Preview a reinstall: disks without wipeonreinstall are preserved, and their contents are shown.
    #[arg(long)]
    pub reinstall: bool,
    /// Plan as after a reboot into the agent: mounts and swap of the inventory are not in use. Always the case for a reinstall.
    #[arg(long)]
    pub at_rest: bool,
    /// Preview a reinstall that is ordered with --without-marker.
    #[arg(long, requires = "reinstall")]
    pub without_marker: bool,
    /// Print the plan as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Prints what an installation would do.
///
/// # Errors
/// A file cannot be read, or the inventory is invalid.
pub fn plan(options: &Options) -> Result<Exit> {
    let write = if wants_colour() { print_styled } else { print };
    or_refused(said(options).and_then(|(text, outcome)| write(&text).map(|()| outcome)))
}

/// Everything that a plan is made from.
pub(super) struct Asked {
    pub parsed: Parsed,
    pub inventory: Inventory,
    pub request: Request,
    /// Additional notes to print with the plan.
    pub notes: Vec<String>,
    /// Templates that the steps come from.
    pub templates: Templates,
}

/// Returns the output and the exit status.
pub(crate) fn said(options: &Options) -> Result<(String, Exit)> {
    match asked(options)? {
        Ok(asked) => planned(options, asked),
        Err(problems) => Ok((problems, Exit::Refused)),
    }
}

/// Collects the inputs of the plan. The inner error lists all problems of the layout's file.
fn asked(options: &Options) -> Result<std::result::Result<Asked, String>> {
    #[cfg(feature = "serve")]
    if let Some(machine) = &options.machine {
        return super::registered::asked(options, machine);
    }
    let inventory = match &options.inventory {
        Some(path) => read_inventory(path)?,
        #[cfg(feature = "survey")]
        None => crate::survey::read(crate::survey::Depth::Deep)?,
        #[cfg(not(feature = "survey"))]
        None => {
            return Err(Error::refusal(Phase::Inventory, "the inventory is missing: give it with --inventory FILE"));
        }
    };
    of_file(options, inventory)
}

/// Collects the inputs with the layout of a file, without a server's allocation.
pub(super) fn of_file(options: &Options, mut inventory: Inventory) -> Result<std::result::Result<Asked, String>> {
    let templates = match Templates::read(&options.template)? {
        Ok(templates) => templates,
        Err(problems) => return Ok(Err(problems)),
    };
    let merged = match templates.merge(Steps::erasing(options.erase).list()) {
        Ok(merged) => merged,
        Err(problems) => return Ok(Err(problems)),
    };
    let parsed = match (&options.layout, templates.layout(&merged, &inventory)) {
        (Some(_), Some(_)) => {
            return Err(Error::refusal(
                Phase::Layout,
                "a template generates the layout: omit either --layout or that template",
            ));
        }
        (None, None) => return Err(Error::refusal(Phase::Layout, "the layout is missing: give it with --layout FILE")),
        (None, Some(made)) => match made {
            Ok(made) => made,
            Err(problems) => return Ok(Err(problems)),
        },
        (Some(path), None) => match read_layout(path)? {
            Ok(parsed) => parsed,
            Err(problems) => return Ok(Err(problem_lines(path, &problems))),
        },
    };
    let assigned = match assigned(options, &inventory)? {
        Ok(assigned) => assigned,
        Err(problems) => return Ok(Err(problems)),
    };
    let mode = if options.reinstall { Mode::Reinstall } else { Mode::Install };
    if mode == Mode::Reinstall || options.at_rest {
        stop_using(&mut inventory);
    }
    let image = Some(assigned.allocation.image.id.clone()).filter(|id| !id.is_empty());
    let subject = Subject {
        machine: inventory.system.uuid.clone().unwrap_or_default(),
        image: image.unwrap_or_else(|| "the image".to_owned()),
        url: "the image's server".to_owned(),
        ..Subject::default()
    };
    let claim = options.without_marker.then(|| waived(&inventory));
    let notes = installed(mode, &inventory);
    Ok(Ok(Asked {
        parsed,
        inventory,
        request: Request { mode, steps: merged.steps.into(), subject, assigned, claim },
        notes,
        templates,
    }))
}

/// Returns the allocation of a file, if one is given. The inner error lists all problems of that file.
fn assigned(options: &Options, inventory: &Inventory) -> Result<std::result::Result<Assigned, String>> {
    #[cfg(feature = "serve")]
    if let Some(path) = &options.allocation {
        let allocation = match super::machine::read(&read(path)?, Some(&inventory.nics)) {
            Ok(allocation) => allocation.unwrap_or_default(),
            Err(problems) => return Ok(Err(problem_lines(path, &problems))),
        };
        return Ok(Ok(Assigned { allocation, ..Assigned::default() }));
    }
    let _ = (options, inventory);
    Ok(Ok(Assigned::default()))
}

fn planned(options: &Options, asked: Asked) -> Result<(String, Exit)> {
    let Asked { parsed, inventory, request, notes, templates } = asked;
    let steps = request.steps.list().to_vec();
    let with_steps = |said: String, as_json: Result<String>| -> Result<String> {
        match (templates.is_empty(), options.json) {
            (true, true) => as_json,
            (true, false) => Ok(said),
            (false, false) => Ok(templates.shown(&steps) + &said),
            (false, true) => {
                let what = || "put the steps into the plan".to_owned();
                let mut whole: serde_json::Value = serde_json::from_str(&as_json?).context(Phase::Plan, what)?;
                whole["deploy_steps"] = templates.json(&steps);
                json(&whole)
            }
        }
    };
    match plan::make(&parsed.layout, &inventory, request, &mut placeholders()) {
        Ok(mut plan) => {
            plan.warnings.extend(notes);
            let end = if options.json { "\n" } else { "" };
            Ok((with_steps(in_colour(&plan), json(&plan))? + end, Exit::Good))
        }
        Err(refusal) => {
            let refusal = refusal.located(|problem| parsed.locate(problem));
            // A refusal has no field for notes.
            for note in notes {
                complain(&note);
            }
            Ok((with_steps(in_colour(&refusal), json(&refusal))? + "\n", Exit::Refused))
        }
    }
}

fn in_colour(said: &impl Display) -> String {
    if wants_colour() { format!("{said:#}") } else { said.to_string() }
}

/// Returns the claim of an order with `--without-marker`, for the machine of the inventory whatever its marker.
fn waived(inventory: &Inventory) -> Claim {
    let marker = inventory.filesystems.iter().find_map(|filesystem| filesystem.marker.as_ref());
    Claim {
        machine: marker.map(|marker| &marker.machine).or(inventory.system.uuid.as_ref()).cloned().unwrap_or_default(),
        allocation: marker.map(|marker| marker.allocation.clone()).unwrap_or_default(),
        waiver: Some(Waiver::Operator),
        ..Claim::default()
    }
}

/// Returns notes about existing installations. Without a server, it is unknown for which allocation the machine would ask.
fn installed(mode: Mode, inventory: &Inventory) -> Vec<String> {
    let marked = inventory.filesystems.iter().filter(|_| mode == Mode::Install);
    let marked = marked.filter_map(|filesystem| Some((&filesystem.device, filesystem.marker.as_ref()?)));
    let said = |(device, marker): (&DevicePath, &Marker)| {
        let (image, allocation) = (&marker.image, &marker.allocation);
        format!(
            "{device} contains {image}, installed for allocation {allocation}: for that allocation this plan is not carried out; the installed system is booted"
        )
    };
    marked.map(said).collect()
}

pub(super) fn read_inventory(path: &Path) -> Result<Inventory> {
    let text = read(path)?;
    let what = || format!("{} is not an inventory as printed by `drophammer inventory`", path.display());
    let inventory: Inventory = serde_json::from_str(&text).context(Phase::Inventory, what)?;
    possible(inventory, what)
}

/// Refuses an inventory with impossible values, which would mislead the planner.
pub(super) fn possible(inventory: Inventory, what: impl FnOnce() -> String) -> Result<Inventory> {
    match inventory.impossible() {
        Some(why) => Err(Error::refusal(Phase::Inventory, format!("{}: {why}", what()))),
        None => Ok(inventory),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Use;

    #[test]
    fn the_preview_of_a_running_machine_is_that_of_the_machine_at_rest() {
        let mut running = read_inventory(&testdata("inventories/installed-default.json")).unwrap();
        let disk = running.disks.iter_mut().find(|disk| disk.table.is_some()).unwrap();
        let [efi, root, varlib, ..] = &mut disk.table.as_mut().unwrap().partitions[..] else {
            panic!("three partitions")
        };
        efi.uses.push(Use::Mounted("/boot/efi".to_owned()));
        root.uses.push(Use::Mounted("/".to_owned()));
        varlib.uses.extend([Use::Mounted("/var/lib".to_owned()), Use::Swap]);
        let dir = tempfile::tempdir().unwrap();
        let (path, layout) = (dir.path().join("running.json"), dir.path().join("layout.yaml"));
        std::fs::write(&path, serde_json::to_string(&running).unwrap()).unwrap();
        let text = std::fs::read_to_string(testdata("layouts/default.yaml")).unwrap();
        let outcome = |text: &str, reinstall, at_rest| {
            std::fs::write(&layout, text).unwrap();
            let (layout, inventory) = (Some(layout.clone()), Some(path.clone()));
            plan(&Options { layout, inventory, reinstall, at_rest, ..options() }).unwrap()
        };
        assert_eq!(outcome(&text, true, false), Exit::Good);
        // Who holds a disk that is wiped is still in the way, unless the machine is at rest by then.
        assert_eq!(outcome(&text, false, false), Exit::Refused);
        assert_eq!(outcome(&text, false, true), Exit::Good);
        let disk = running.disks.iter_mut().find(|disk| disk.table.is_some()).unwrap();
        disk.uses.push(Use::Holder("dm-7".into()));
        std::fs::write(&path, serde_json::to_string(&running).unwrap()).unwrap();
        assert_eq!(outcome(&text, true, false), Exit::Refused);
        assert_eq!(outcome(&text, false, true), Exit::Refused);
    }

    fn options() -> Options {
        Options {
            layout: Some(testdata("layouts/default.yaml")),
            inventory: Some(testdata("inventories/installed-default.json")),
            #[cfg(feature = "serve")]
            machine: None,
            #[cfg(feature = "serve")]
            of: OfServer::default(),
            #[cfg(feature = "serve")]
            allocation: None,
            erase: Erase::Quick,
            template: Vec::new(),
            reinstall: false,
            at_rest: false,
            without_marker: false,
            json: true,
        }
    }

    fn testdata(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
    }

    /// `drophammer plan` with an inventory that is changed in one way.
    fn planned_with(change: impl Fn(&mut serde_json::Value), options: Options) -> Exit {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("changed.json");
        let mut inventory = serde_json::from_str(&read(options.inventory.as_ref().unwrap()).unwrap()).unwrap();
        change(&mut inventory);
        std::fs::write(&path, inventory.to_string()).unwrap();
        plan(&Options { inventory: Some(path), ..options }).unwrap()
    }

    #[test]
    fn an_order_without_marker_is_previewed_as_such() {
        // Somebody has looked inside, and there is no marker.
        let looked = |inventory: &mut serde_json::Value| {
            inventory["filesystems"] = serde_json::json!([{"device": "/dev/sda2", "size_bytes": 1, "used_bytes": 1}]);
        };
        let reinstall = || Options { reinstall: true, ..options() };
        assert_eq!(planned_with(looked, reinstall()), Exit::Refused);
        assert_eq!(planned_with(looked, Options { without_marker: true, ..reinstall() }), Exit::Good);
    }

    #[test]
    fn an_inventory_that_no_machine_has_is_refused() {
        let sectors = |inventory: &mut serde_json::Value| inventory["disks"][0]["sector_bytes"] = 0.into();
        assert_eq!(planned_with(|_| {}, options()), Exit::Good);
        assert_eq!(planned_with(sectors, options()), Exit::Refused);
    }
}
