//! `drophammer rack`: what a change would do to every machine of a server's directory, before it happens. Each machine is planned as
//! `drophammer plan --machine` does it, from what it has registered, without a server.

mod judge;
mod table;
#[cfg(test)]
mod tests;

use crate::assigned::preview::PlannedDisk;
use crate::error::{Context, Phase, Result};
use crate::exit::{Exit, or_refused};
use crate::inventory::Inventory;
use crate::plan::Mode;
use crate::serve::rack::{Change, Rack};
use crate::stdout::{complain, json, print};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

pub const EXIT_CODES: &str = "\
Exit status: 0 no machine loses data, 3 some do, 2 some are refused, or nobody can say yet what becomes of them,
or a file is wrong (2 goes before 3), 1 failed, 64 wrong usage.";

#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    pub command: RackCommand,
}

#[derive(Debug, Subcommand)]
pub enum RackCommand {
    /// Print for every machine what it would lose and keep, why it is refused, and how long it takes. Reads only, but for --approve.
    ///
    /// Without --image, --layout and --reinstall, what the files and the open orders ask for.
    #[command(after_help = format!(
        "Examples: what a new image would do, what other files would do, and the word to do it\n  \
        drophammer rack plan /srv/drophammer --image debian-13.1.20261101\n  \
        drophammer rack plan /srv/drophammer --dir checkout/\n  \
        drophammer rack plan /srv/drophammer --image debian-13.1.20261101 --machine storage-7 --approve\n\n{}",
        EXIT_CODES
    ))]
    Plan(PlanOptions),
}

#[derive(Debug, Clone, Default, Args)]
pub struct PlanOptions {
    /// The server's directory. A server may run in it.
    pub dir: PathBuf,
    /// Another directory with the files that there would be: machines/, layouts/, images/.
    #[arg(long = "dir", value_name = "NEW")]
    pub new: Option<PathBuf>,
    /// As if each machine got this image; those that are installed by a reinstall.
    #[arg(long, value_name = "ID")]
    pub image: Option<String>,
    /// As if each machine got this layout; those that are installed by a reinstall with --change-promise.
    #[arg(long, value_name = "ID")]
    pub layout: Option<String>,
    /// As if each installed machine were reinstalled with the image of its file.
    #[arg(long)]
    pub reinstall: bool,
    /// Only this machine, by its id or name; may be given several times.
    #[arg(long, value_name = "ID")]
    pub machine: Vec<String>,
    /// Fresh inventories: ID.json or NAME.json in it, as `drophammer inventory` prints them, go before what was registered.
    #[arg(long, value_name = "FOLDER")]
    pub inventories: Option<PathBuf>,
    /// Approve each plan that is not refused: the machine carries out that plan or none, once.
    #[arg(long)]
    pub approve: bool,
    /// All of it as JSON.
    #[arg(long)]
    pub json: bool,
}

/// What becomes of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It stays as it is.
    Nothing,
    /// It is installed, and nothing is on the disks that are wiped.
    Installs,
    /// It loses data.
    Erases,
    /// Nobody can say yet.
    Unknown,
    Refused,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub id: String,
    pub name: String,
    pub size: Option<String>,
    pub outcome: Outcome,
    pub mode: Option<Mode>,
    pub image: Option<String>,
    pub layout: Option<String>,
    /// Those that the layout names.
    pub disks: Vec<PlannedDisk>,
    pub lost_bytes: u64,
    /// Why it is refused, unknown or left alone; of others what a person must know.
    pub reasons: Vec<String>,
    /// When the inventory was registered.
    pub inventory: Option<String>,
    /// The disks have changed since: they hold what the last installation left, as far as anybody knows.
    pub foreseen: bool,
    /// About so many; `None`: nothing is known.
    pub minutes: Option<u64>,
    /// Of the verdicts, as an approval has it.
    pub sha256: Option<String>,
    pub approved: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    pub machines: usize,
    pub nothing: usize,
    pub installs: usize,
    pub erases: usize,
    pub unknown: usize,
    pub refused: usize,
    pub approved: usize,
    /// That lose data.
    pub disks: usize,
    pub lost_bytes: u64,
    /// Of the machine that takes longest, as far as anything is known.
    pub minutes: Option<u64>,
    /// Of so many that are installed nobody knows how long they take.
    pub of_unknown_length: usize,
}

/// All that is printed.
#[derive(Debug, Serialize)]
struct Printed<'a> {
    machines: &'a [Row],
    problems: &'a [String],
    summary: &'a Summary,
}

/// Prints the plan of the rack.
///
/// # Errors
/// The directory cannot be read, or an approval cannot be written.
pub fn rack(options: &Options) -> Result<Exit> {
    let RackCommand::Plan(options) = &options.command;
    or_refused(said(options).and_then(|(text, exit)| print(&text).map(|()| exit)))
}

/// What is printed, and how it ends.
pub(crate) fn said(options: &PlanOptions) -> Result<(String, Exit)> {
    let rack = Rack::open(&options.dir, options.new.as_deref())?;
    let change = Change { image: options.image.clone(), layout: options.layout.clone(), reinstall: options.reinstall };
    rack.check(&change)?;
    let fresh = options.inventories.as_deref().map(fresh).transpose()?.unwrap_or_default();
    let machines = chosen(rack.machines(), &options.machine)?;
    let rows = rows(&rack, &change, &fresh, &machines, options.approve)?;
    let summary = summary(&rows);
    for line in rack.problems.iter().chain(&rack.notes).filter(|_| !options.json) {
        complain(line);
    }
    let text = match options.json {
        true => json(&Printed { machines: &rows, problems: &rack.problems, summary: &summary })? + "\n",
        false => table::table(&rows, &summary),
    };
    Ok((text, exit(&summary, &rack.problems)))
}

fn exit(summary: &Summary, problems: &[String]) -> Exit {
    match (summary.refused + summary.unknown + problems.len(), summary.erases) {
        (0, 0) => Exit::Good,
        (0, _) => Exit::Erases,
        _ => Exit::Refused,
    }
}

/// Those that are named; all when none is.
fn chosen(all: Vec<(String, String)>, wanted: &[String]) -> Result<Vec<(String, String)>> {
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
            [] => return Err(judge::refusal(format!("there is no machine {wanted:?} in machines/"))),
            _ => return Err(judge::refusal(format!("several machines are called {wanted:?}: say which by its id"))),
        }
    }
    chosen.sort_by(|one, other| (&one.1, &one.0).cmp(&(&other.1, &other.0)));
    chosen.dedup();
    Ok(chosen)
}

/// The inventories in a folder, by the names of their files.
fn fresh(folder: &Path) -> Result<BTreeMap<String, Inventory>> {
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

/// One for each machine, by as many threads as there are processors.
fn rows(
    rack: &Rack,
    change: &Change,
    fresh: &BTreeMap<String, Inventory>,
    machines: &[(String, String)],
    approve: bool,
) -> Result<Vec<Row>> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, Row)>> {
        let mut done = Vec::new();
        while let Some((index, (id, name))) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            machines.get(index).map(|machine| (index, machine))
        } {
            let seen = rack.see(id, change)?;
            let inventory = fresh.get(id).or_else(|| fresh.get(name));
            let (mut row, verdicts) = judge::judge(seen.clone(), inventory.cloned());
            if let Some(verdicts) = verdicts.filter(|_| approve) {
                rack.approve(&seen, &verdicts)?;
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
        rows.extend(done.map_err(|_| judge::failure("planning a machine has panicked"))??);
    }
    rows.sort_by_key(|(index, _)| *index);
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

fn summary(rows: &[Row]) -> Summary {
    let mut sum = Summary { machines: rows.len(), ..Summary::default() };
    for row in rows {
        match row.outcome {
            Outcome::Nothing => sum.nothing += 1,
            Outcome::Installs => sum.installs += 1,
            Outcome::Erases => sum.erases += 1,
            Outcome::Unknown => sum.unknown += 1,
            Outcome::Refused => sum.refused += 1,
        }
        sum.approved += usize::from(row.approved);
        if matches!(row.outcome, Outcome::Installs | Outcome::Erases) {
            sum.disks += row.disks.iter().filter(|disk| disk.lost_bytes > 0).count();
            sum.lost_bytes = sum.lost_bytes.saturating_add(row.lost_bytes);
            sum.minutes = sum.minutes.max(row.minutes);
            sum.of_unknown_length += usize::from(row.minutes.is_none());
        }
    }
    sum
}
