//! `drophammer site plan`: prints what a change would do to each machine in a server's directory. Like `drophammer plan
//! --machine`, the command plans each machine from its registered inventory, but it does not need a running server.

mod table;
#[cfg(test)]
mod tests;

use api::rack_plan::machine_rows::{NEVER_REGISTERED, RackOutcome, RackRow, RackSummary, plan_machine_row};
use api::rack_plan::{RackChange, RackSnapshot};
use clap::{Args, Subcommand};
use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::{Context, Error, Phase, Result};
use common::format::compare_natural;
use common::format::metal_api_phrase_replacement::reword_metal_phrases;
use common::output::{print_error, print_text, to_json};
use model::inventory::Inventory;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

pub(crate) const EXIT_CODES: &str = "\
Exit status: 0 no machine loses data, 3 some machines lose data, 2 some machines are refused or have an unknown outcome,
or a file is invalid (2 takes precedence over 3), 1 failed, 64 wrong usage.";

#[derive(Debug, Args)]
pub struct SitePlanArgs {
    #[command(subcommand)]
    pub command: RackCommand,
}

#[derive(Debug, Subcommand)]
pub enum RackCommand {
    /// Print for every machine which data would be lost and preserved, the reasons if the plan is refused, and the
    /// duration of the installation. Only --approve writes to the directory.
    ///
    /// Without --image, --layout and --reinstall, the plans follow the current files and the open reinstall orders.
    #[command(after_help = format!(
        "Examples: plan a new image; plan other files; approve a plan\n  \
        drophammer site plan /srv/drophammer --image debian-13.1.20261101\n  \
        drophammer site plan /srv/drophammer --dir checkout/\n  \
        drophammer site plan /srv/drophammer --image debian-13.1.20261101 --machine storage-7 --approve\n\n{}",
        EXIT_CODES
    ))]
    Plan(PlanOptions),
}

#[derive(Debug, Clone, Default, Args)]
pub struct PlanOptions {
    /// The server's directory. A running server may use this directory at the same time.
    pub dir: PathBuf,
    /// Directory whose machine files, layouts, images, OS definitions and deploy templates are used instead of those in
    /// the server's directory.
    #[arg(long = "dir", value_name = "NEW")]
    pub new: Option<PathBuf>,
    /// Plan as if this image were specified for each machine. For an installed machine, a reinstall with the image is
    /// planned.
    #[arg(long, value_name = "ID")]
    pub image: Option<String>,
    /// Plan as if this layout were specified for each machine. For an installed machine, a reinstall with
    /// --change-promise is planned.
    #[arg(long, value_name = "ID")]
    pub layout: Option<String>,
    /// Plan as if each installed machine were reinstalled with the image named in its machine file.
    #[arg(long)]
    pub reinstall: bool,
    /// Plan only this machine, by its id or name; can be specified several times.
    #[arg(long, value_name = "ID")]
    pub machine: Vec<String>,
    /// Directory of inventories as printed by `drophammer inventory`, in files ID.json or NAME.json. The inventory of a
    /// machine in this directory is used instead of its registered inventory.
    #[arg(long, value_name = "FOLDER")]
    pub inventories: Option<PathBuf>,
    /// Approve each plan that is not refused. The machine then carries out the approved plan once, and refuses any
    /// other plan.
    #[arg(long)]
    pub approve: bool,
    /// Print everything as JSON.
    #[arg(long)]
    pub json: bool,
}

/// JSON output of the command.
#[derive(Debug, Serialize)]
struct RackJson<'a> {
    machines: &'a [RackRow],
    problems: &'a [String],
    summary: &'a RackSummary,
}

/// Prints the plan of the rack.
///
/// # Errors
/// Returns an error if the directory cannot be read, or an approval cannot be written.
pub fn run_rack(options: &SitePlanArgs) -> Result<CommandOutcome> {
    let RackCommand::Plan(options) = &options.command;
    report_refusal(rack_output(options).and_then(|(text, exit)| print_text(&text).map(|()| exit)))
}

/// Plans the rack. Returns the output and the outcome.
pub fn rack_output(options: &PlanOptions) -> Result<(String, CommandOutcome)> {
    let mut rack = RackSnapshot::open_directory(&options.dir, options.new.as_deref())?;
    rack.problems.iter_mut().for_each(|problem| *problem = reword_metal_phrases(problem));
    let change =
        RackChange { image: options.image.clone(), layout: options.layout.clone(), reinstall: options.reinstall };
    rack.check_change(&change)?;
    let fresh = options.inventories.as_deref().map(read_inventories).transpose()?.unwrap_or_default();
    let machines = select_machines(rack.list_machines(), &options.machine)?;
    let rows = plan_rows(&rack, &change, &fresh, &machines, options.approve)?;
    let summary = RackSummary::from_rows(&rows);
    for line in rack.problems.iter().chain(&rack.notes).filter(|_| !options.json) {
        print_error(line);
    }
    let text = match options.json {
        true => to_json(&RackJson { machines: &rows, problems: &rack.problems, summary: &summary })? + "\n",
        false => table::format_table(&rows, &summary),
    };
    Ok((text, exit_code(&summary, &rack.problems)))
}

fn exit_code(summary: &RackSummary, problems: &[String]) -> CommandOutcome {
    match (summary.refused + summary.unknown + problems.len(), summary.erases) {
        (0, 0) => CommandOutcome::Good,
        (0, _) => CommandOutcome::Erases,
        _ => CommandOutcome::Refused,
    }
}

/// Returns the ids and names of the selected machines, or of all machines if none is selected.
fn select_machines(all: Vec<(String, String)>, wanted: &[String]) -> Result<Vec<(String, String)>> {
    if wanted.is_empty() {
        return Ok(all);
    }
    let mut chosen = Vec::new();
    for wanted in wanted {
        let named: Vec<_> = all
            .iter()
            .filter(|(id, name)| id.eq_ignore_ascii_case(wanted) || (name == wanted && !name.is_empty()))
            .collect();
        match named[..] {
            [one] => chosen.push(one.clone()),
            [] => return Err(Error::refusal(Phase::Plan, format!("machines/ contains no machine {wanted:?}"))),
            _ => {
                return Err(Error::refusal(Phase::Plan, format!("several machines are named {wanted:?}: use the id")));
            }
        }
    }
    chosen.sort_by(|one, other| compare_natural(&one.1, &other.1).then_with(|| one.0.cmp(&other.0)));
    chosen.dedup();
    Ok(chosen)
}

/// Reads the inventories in a directory. Returns them by file name, without `.json`.
fn read_inventories(folder: &Path) -> Result<BTreeMap<String, Inventory>> {
    let mut all = BTreeMap::new();
    let what = || format!("read {}", folder.display());
    for entry in std::fs::read_dir(folder).context(Phase::Inventory, what)? {
        let path = entry.context(Phase::Inventory, what)?.path();
        if path.extension().is_some_and(|end| end == "json") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            all.insert(name, super::plan::read_inventory(&path)?);
        }
    }
    Ok(all)
}

/// Plans all machines in parallel, with one thread for each processor.
fn plan_rows(
    rack: &RackSnapshot,
    change: &RackChange,
    fresh: &BTreeMap<String, Inventory>,
    machines: &[(String, String)],
    approve: bool,
) -> Result<Vec<RackRow>> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, RackRow)>> {
        let mut done = Vec::new();
        while let Some((index, (id, name))) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            machines.get(index).map(|machine| (index, machine))
        } {
            let seen = rack.predict_machine(id, change)?;
            let inventory = fresh.get(id).or_else(|| fresh.get(name));
            let (mut row, verdicts) = plan_machine_row(seen.clone(), inventory.cloned());
            if row.reasons == [NEVER_REGISTERED] {
                row.reasons = vec![format!("{NEVER_REGISTERED}, or provide its inventory with --inventories")];
            }
            if let Some(verdicts) = verdicts.filter(|_| approve) {
                rack.write_approval(&seen, &verdicts)?;
                row.approved = true;
            }
            done.push((index, row));
        }
        Ok(done)
    };
    let workers = thread::available_parallelism().map_or(1, usize::from).min(machines.len().max(1));
    let done = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join()).collect::<Vec<_>>()
    });
    let mut rows = Vec::new();
    for done in done {
        rows.extend(done.map_err(|_| Error::new(Phase::Plan, "planning a machine panicked"))??);
    }
    rows.sort_by_key(|(index, _)| *index);
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}
