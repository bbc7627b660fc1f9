//! `drophammer plan`: what an installation would do.

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

/// What is asked for.
#[derive(Debug, Args)]
pub struct Options {
    /// The layout, YAML or JSON; - is standard input.
    #[cfg_attr(feature = "serve", arg(long, value_name = "FILE", required_unless_present_any = ["machine", "template"]))]
    #[cfg_attr(not(feature = "serve"), arg(long, value_name = "FILE", required_unless_present = "template"))]
    pub layout: Option<PathBuf>,
    /// A machine of a server, by its id or name: what it would be told now, and the inventory that it has registered.
    /// With --layout that layout; with --inventory that inventory.
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "ID")]
    pub machine: Option<String>,
    #[cfg(feature = "serve")]
    #[command(flatten)]
    pub of: OfServer,
    /// What the machine is to become: its file of a server's machines/, or the document that its agent is given. Its network, its
    /// finish and its words are judged as the agent judges them.
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "FILE", conflicts_with = "machine")]
    pub allocation: Option<PathBuf>,
    /// What `drophammer inventory` printed; without it, this machine.
    #[arg(long, value_name = "FILE")]
    pub inventory: Option<PathBuf>,
    /// How thoroughly disks are erased before they are made anew; with --machine the server's word counts.
    #[arg(long, value_enum, default_value_t)]
    pub erase: Erase,
    /// A deploy template. The merged steps are shown, with the template that each comes from; may be given several times, in their
    /// order. One with arrays makes the layout.
    #[arg(long, value_name = "FILE")]
    pub template: Vec<PathBuf>,
    /// Preview a reinstall: disks without wipeonreinstall are kept, and what is on them is shown.
    #[arg(long)]
    pub reinstall: bool,
    /// As after a reboot into the agent: what the inventory shows as mounted, and its swap, is not in the way. A reinstall is
    /// always shown so.
    #[arg(long)]
    pub at_rest: bool,
    /// Preview a reinstall that is ordered with --without-marker.
    #[arg(long, requires = "reinstall")]
    pub without_marker: bool,
    /// The plan as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Prints what an installation would do.
///
/// # Errors
/// A file cannot be read, or the inventory is not one.
pub fn plan(options: &Options) -> Result<Exit> {
    let write = if wants_colour() { print_styled } else { print };
    or_refused(said(options).and_then(|(text, outcome)| write(&text).map(|()| outcome)))
}

/// A layout, what there is, and what is asked for.
pub(super) struct Asked {
    pub parsed: Parsed,
    pub inventory: Inventory,
    pub request: Request,
    /// What the plan should say besides.
    pub notes: Vec<String>,
    /// Whose word is in the steps.
    pub templates: Templates,
}

/// What is printed, and how it ends.
pub(crate) fn said(options: &Options) -> Result<(String, Exit)> {
    match asked(options)? {
        Ok(asked) => planned(options, asked),
        Err(problems) => Ok((problems, Exit::Refused)),
    }
}

/// The inner error is all that is wrong with the layout's file.
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
        None => return Err(Error::refusal(Phase::Inventory, "name the inventory: --inventory FILE")),
    };
    of_file(options, inventory)
}

/// With the layout of a file, for nobody's allocation.
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
                "a template makes the layout: leave --layout or that template out",
            ));
        }
        (None, None) => return Err(Error::refusal(Phase::Layout, "name the layout: --layout FILE")),
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

/// What the machine is to become, where a file says it. The inner error is all that is wrong with that file.
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
            // A refusal has no place for them.
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

/// As with an order that says `--without-marker`: for the machine of the inventory, whatever marker is there.
fn waived(inventory: &Inventory) -> Claim {
    let marker = inventory.filesystems.iter().find_map(|filesystem| filesystem.marker.as_ref());
    Claim {
        machine: marker.map(|marker| &marker.machine).or(inventory.system.uuid.as_ref()).cloned().unwrap_or_default(),
        allocation: marker.map(|marker| marker.allocation.clone()).unwrap_or_default(),
        waiver: Some(Waiver::Operator),
        ..Claim::default()
    }
}

/// On a desk nobody knows for which allocation the machine asks.
fn installed(mode: Mode, inventory: &Inventory) -> Vec<String> {
    let marked = inventory.filesystems.iter().filter(|_| mode == Mode::Install);
    let marked = marked.filter_map(|filesystem| Some((&filesystem.device, filesystem.marker.as_ref()?)));
    let said = |(device, marker): (&DevicePath, &Marker)| {
        let (image, allocation) = (&marker.image, &marker.allocation);
        format!(
            "{device} holds {image}, installed for allocation {allocation}: for that allocation nothing of this is done, and what is installed is booted"
        )
    };
    marked.map(said).collect()
}

pub(super) fn read_inventory(path: &Path) -> Result<Inventory> {
    let text = read(path)?;
    let what = || format!("{} is not an inventory as `drophammer inventory` prints it", path.display());
    let inventory: Inventory = serde_json::from_str(&text).context(Phase::Inventory, what)?;
    possible(inventory, what)
}

/// What no machine has would lead the plan astray.
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
