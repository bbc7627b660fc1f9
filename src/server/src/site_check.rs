//! `drophammer serve --check`: reports all problems of a server's directory. The check runs the code of the server on a
//! copy of the database. It does not write to the directory, in which a server may be running.

use super::start_checks::{check_at_start, check_options, refuse_lost_database};
use super::{ServerConfig, listeners};
use api::accepted_host_names::describe_unresolvable_host;
use api::out_of_band;
use common::command_outcome::CommandOutcome;
use common::error::{Context, Phase, Result};
use common::error_code::ErrorCode;
use common::format::metal_api_phrase_replacement::reword_metal_phrases;
use common::format::os_error_messages::without_os_error_numbers;
use common::format::{format_columns, replace_hidden};
use common::output::{print_text, to_json};
use oidc::settings::OidcSettings;
use serde::Serialize;
use site::documents::SiteDocuments;
use site::loader::{SiteScan, scan_completely};
use site::operator_files::MachineSpec;
use site::snapshot::SiteSnapshot;
use site::yaml_folder::format_problem;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use store::store_address::PostgresAddress;
use store::{DATABASE, ServerState, backup, database_file, database_id};

/// Maximum number of management controllers that are checked at the same time.
const CONTROLLERS: usize = 16;

/// Result of checking a server's directory.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SiteCheckReport {
    pub directory: PathBuf,
    pub good: bool,
    pub machines: usize,
    pub layouts: usize,
    pub images: usize,
    pub problems: Vec<SiteProblem>,
    /// Remarks for the operator that do not describe problems.
    pub notes: Vec<SiteProblem>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct SiteProblem {
    /// Path of the file, relative to the directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// Description of the problem, with its error code at the end.
    pub message: String,
    /// Code of a problem; `None` for a note.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

impl SiteProblem {
    /// Appends the code to the message. A message without a code gets the general code for its file.
    fn with_code(self) -> SiteProblem {
        let general = match &self.file {
            Some(file) if file.starts_with("layouts/") => ErrorCode::Layout,
            Some(_) => ErrorCode::SiteFile,
            None => ErrorCode::Settings,
        };
        let message = general.annotate_uncoded(without_os_error_numbers(&self.message));
        let code = message.strip_suffix(')').and_then(|text| text.rsplit_once(" (")).map(|(_, code)| code.to_owned());
        SiteProblem { message, code, ..self }
    }
}

/// Checks a directory and prints the result. Returns [`CommandOutcome::Refused`] if there are problems.
///
/// # Errors
/// Returns an error if the database cannot be copied to a temporary directory.
pub(crate) fn check_site(options: &ServerConfig) -> Result<CommandOutcome> {
    let found = find_problems(options)?;
    match options.json {
        true => print_text(&(to_json(&found)? + "\n"))?,
        false => print_text(&format_report(&found))?,
    }
    Ok(CommandOutcome::good_if(found.good))
}

pub(crate) fn find_problems(options: &ServerConfig) -> Result<SiteCheckReport> {
    let dir = &options.dir;
    let mut all: Vec<String> = check_options(options).err().map(|error| error.to_coded_text()).into_iter().collect();
    let (mut seen, mut remarks) = (None, Vec::new());
    if dir.is_dir() {
        remarks.extend(options.url.as_deref().and_then(describe_unresolvable_host));
        check_certificates(options, &mut all, &mut remarks);
        all.extend(OidcSettings::read_file(dir).err().map(|error| error.to_coded_text()));
        all.extend(
            options
                .pxe
                .as_ref()
                .and_then(|pxe_options| pxe::check_pxe(pxe_options, &options.boot_server()).err())
                .map(|error| error.to_coded_text()),
        );
        let store = options.store.read_address();
        if matches!(store, Ok(None)) {
            all.extend(refuse_lost_database(dir).err().map(|error| error.to_coded_text()));
        }
        all.extend(check_at_start(options));
        let copy = DatabaseCopy::create_directory()?;
        let is_shared = matches!(store, Ok(Some(_)));
        let state = store
            .map_err(|error| error.to_string())
            .and_then(|store| copy.open_copy(store.as_ref(), dir))
            .unwrap_or_else(|why| {
                all.push(why);
                // A new directory has no database, and is checked with an empty one.
                copy.open_empty()
            });
        let mut scan = load_site(dir, state?, is_shared)?;
        check_controllers(&mut scan);
        seen = Some(scan);
    }
    let SiteScan { directory, problems, notes } = seen.unwrap_or_default();
    all.extend(problems);
    let problems: Vec<SiteProblem> = parse_problems(all, dir).into_iter().map(SiteProblem::with_code).collect();
    let notes = remarks.into_iter().chain(notes).chain(find_undecided_pairs(&directory)).collect();
    Ok(SiteCheckReport {
        // A path that is not UTF-8 is approximated, because JSON cannot contain it.
        directory: dir.to_string_lossy().into_owned().into(),
        good: problems.is_empty(),
        machines: directory.machines().count(),
        layouts: directory.known.layouts.len(),
        images: directory.known.images.len(),
        problems,
        notes: parse_problems(notes, dir),
    })
}

/// Adds a problem for each unusable certificate, and a remark for each certificate that expires soon.
fn check_certificates(options: &ServerConfig, problems: &mut Vec<String>, remarks: &mut Vec<String>) {
    match listeners::load_tls(options) {
        Ok(loaded) => {
            let found = loaded.iter().flat_map(|(tls, _, _)| tls.find_validity_problems());
            let (rejected, expiring): (Vec<_>, Vec<_>) = found.partition(|problem| problem.is_rejected);
            problems.extend(rejected.into_iter().map(|problem| problem.message));
            remarks.extend(expiring.into_iter().map(|problem| problem.message));
            problems.extend(loaded.and_then(|(_, _, problem)| problem));
        }
        Err(error) => problems.push(error.to_coded_text()),
    }
}

/// Returns a note for each pair of a size and an image that does not match exactly one layout. Allocations with such
/// a pair must specify a layout.
fn find_undecided_pairs(directory: &SiteSnapshot) -> Vec<String> {
    let known = &directory.known;
    let of_machines = directory.machines().filter_map(|machine| machine.size.as_deref());
    let sizes: BTreeSet<&str> = known.sizes.keys().map(String::as_str).chain(of_machines).collect();
    let undecided = known.set.find_undecided(sizes, known.images.keys().map(String::as_str));
    undecided.into_iter().map(|why| format!("layouts/: {}", why.message)).collect()
}

/// Returns the snapshot of the directory that a server would publish after all `verify` programs have exited. If
/// servers share the database, the documents are read from the copy of the database instead of the directory.
fn load_site(dir: &Path, state: ServerState, is_shared: bool) -> Result<SiteScan> {
    let documents = match is_shared {
        true => SiteDocuments::open_shared(dir, state.clone())?,
        false => SiteDocuments::of_directory(dir),
    };
    scan_completely(&documents, state).context(Phase::Serve, || "start the thread that runs verify programs")
}

/// Checks the Redfish services of the machines whose templates have Redfish steps. A service that cannot be reached
/// causes only a note, since the check may run on a host other than the server's.
fn check_controllers(scan: &mut SiteScan) {
    let SiteScan { directory, problems, notes } = scan;
    let machines: Vec<&MachineSpec> = directory.machines().collect();
    for machines in machines.chunks(CONTROLLERS) {
        let check = |machine: &MachineSpec| out_of_band::check_controller_blocking(machine, &directory.known);
        let results: Vec<_> = thread::scope(|scope| {
            let started: Vec<_> = machines.iter().map(|machine| scope.spawn(|| check(machine))).collect();
            started.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
        });
        for (machine, (unsupported, unreachable)) in machines.iter().zip(results) {
            let Some(path) = directory.machine_files.get(&machine.id) else { continue };
            problems.extend(unsupported.iter().map(|why| format_problem(path, why, false)));
            notes.extend(unreachable.map(|why| format_problem(path, &why, false)));
        }
    }
}

/// Temporary directory with a copy of the database.
struct DatabaseCopy(PathBuf);

impl DatabaseCopy {
    fn create_directory() -> Result<DatabaseCopy> {
        let template = std::env::temp_dir().join("drophammer-check-XXXXXX");
        nix::unistd::mkdtemp(&template)
            .map(DatabaseCopy)
            .context(Phase::Serve, || format!("make {}", template.display()))
    }

    /// Copies the database and opens the copy. The outer error is the reason why the database cannot be copied. In that
    /// case, the caller uses [`DatabaseCopy::open_empty`].
    fn open_copy(
        &self,
        store: Option<&PostgresAddress>,
        dir: &Path,
    ) -> std::result::Result<Result<ServerState>, String> {
        let (database, copy) = (dir.join(DATABASE), self.0.join(DATABASE));
        let told = |error: common::error::Error| {
            error.to_string().replace(&self.0.display().to_string(), &dir.display().to_string())
        };
        if store.is_some() || !database_file::is_new_database(&database).map_err(told)? {
            // The id file is copied before the database: the server may commit transactions between the two copies, and
            // a database that is older than its id file would be refused.
            let beside = database_id::id_path(&database);
            match fs::copy(&beside, database_id::id_path(&copy)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(format!("{}: {error}", beside.display()));
                }
                _ => {}
            }
            backup::copy_store(store, dir, &copy).map_err(told)?;
        }
        ServerState::open(&copy, store::boot_activity::ACTIVE_BOOT_TIMEOUT).map(Ok).map_err(told)
    }

    fn open_empty(&self) -> Result<ServerState> {
        ServerState::open(&self.0.join("fresh.sqlite"), store::boot_activity::ACTIVE_BOOT_TIMEOUT)
    }
}

impl Drop for DatabaseCopy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Splits messages into lines, removes duplicates, and sorts the lines by file.
fn parse_problems(all: Vec<String>, dir: &Path) -> Vec<SiteProblem> {
    let all: Vec<String> = all.iter().map(|text| reword_metal_phrases(text)).collect();
    let lines = all.iter().flat_map(|text| text.lines()).filter(|line| !line.trim().is_empty());
    let problems: BTreeSet<SiteProblem> = lines.map(|line| parse_problem(line, dir)).collect();
    problems.into_iter().collect()
}

/// Parses `DIR/machines/a.yaml:9:3: why`. The position and the file may be absent.
fn parse_problem(line: &str, dir: &Path) -> SiteProblem {
    let nowhere = |message: &str| SiteProblem {
        file: None,
        line: None,
        column: None,
        message: replace_hidden(message),
        code: None,
    };
    let below = format!("{}/", dir.display().to_string().trim_end_matches('/'));
    let rest = match line.strip_prefix(&below) {
        Some(rest) => rest,
        None if line.starts_with("layouts/: ") => line,
        None => return nowhere(line),
    };
    let message = rest.replace(&below, "");
    let is_text = |name: &str| [".yaml", ".yml", ".json", "/"].iter().any(|ending| name.ends_with(ending));
    let (head, why) = match message.split_once(": ") {
        Some((head, why)) if !head.contains(' ') || is_text(split_position(head).0) => (head, why),
        _ => message.split_once(' ').unwrap_or((&message, "")),
    };
    let (file, line, column) = split_position(head);
    SiteProblem { file: Some(file.to_owned()), line, column, message: replace_hidden(why), code: None }
}

/// Splits `a.yaml:9:3` into path, line and column.
fn split_position(head: &str) -> (&str, Option<u32>, Option<u32>) {
    let number = |text: &str| text.parse::<u32>().ok();
    let Some((before, last)) = head.rsplit_once(':') else { return (head, None, None) };
    let Some(last) = number(last) else { return (head, None, None) };
    match before.rsplit_once(':') {
        Some((file, line)) if number(line).is_some() => (file, number(line), Some(last)),
        _ => (before, Some(last), None),
    }
}

fn format_report(found: &SiteCheckReport) -> String {
    let mut text = format_table("file", &found.problems);
    if found.good {
        text += &format!("{} is valid: ", found.directory.display());
    } else {
        text += &format!("\n{} in {}: ", format_count(found.problems.len(), "problem"), found.directory.display());
    }
    let (machines, layouts) = (format_count(found.machines, "machine"), format_count(found.layouts, "layout"));
    text += &format!("{machines}, {layouts}, {}\n", format_count(found.images, "image"));
    if !found.notes.is_empty() {
        text += &format!("\n{}", format_table("notes", &found.notes));
    }
    text
}

fn format_count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn format_table(title: &str, all: &[SiteProblem]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut rows = vec![[title, "line", "message"].map(str::to_owned)];
    rows.extend(all.iter().map(|one| {
        let place = [one.line, one.column].into_iter().flatten().map(|number| number.to_string());
        let (file, place) = (one.file.clone().unwrap_or_default(), place.collect::<Vec<_>>().join(":"));
        [file, place, one.message.clone()].map(|cell| if cell.is_empty() { "-".to_owned() } else { cell })
    }));
    format_columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(file: Option<&str>, line: Option<u32>, column: Option<u32>, message: &str) -> SiteProblem {
        SiteProblem { file: file.map(str::to_owned), line, column, message: message.to_owned(), code: None }
    }

    #[test]
    fn problems_are_parsed_into_file_and_position() {
        let dir = Path::new("/srv/d/");
        for (line, expected) in [
            (
                "/srv/d/machines/a.yaml:9:3: there is no x: y",
                problem(Some("machines/a.yaml"), Some(9), Some(3), "there is no x: y"),
            ),
            ("/srv/d/machines/a b.yaml:9:3: no", problem(Some("machines/a b.yaml"), Some(9), Some(3), "no")),
            (
                "/srv/d/machines/a.yaml: machine m is in /srv/d/machines/b.yaml already",
                problem(Some("machines/a.yaml"), None, None, "machine m is in machines/b.yaml already"),
            ),
            (
                "/srv/d/images/i.yaml: /srv/d/images/i.tar: No such file",
                problem(Some("images/i.yaml"), None, None, "images/i.tar: No such file"),
            ),
            (
                "/srv/d/boot/vmlinuz is not there, so: no",
                problem(Some("boot/vmlinuz"), None, None, "is not there, so: no"),
            ),
            ("layouts/: a and b collide", problem(Some("layouts/"), None, None, "a and b collide")),
            (
                "/srv/d/machines/: unreadable since 2026: gone",
                problem(Some("machines/"), None, None, "unreadable since 2026: gone"),
            ),
            ("--url x: give another", problem(None, None, None, "--url x: give another")),
        ] {
            assert_eq!(parse_problem(line, dir), expected, "{line}");
        }
    }

    #[test]
    fn every_problem_has_one_code() {
        for (file, message, code) in [
            (Some("machines/a.yaml"), "no (DH-706)", "DH-706"),
            (Some("machines/a.yaml"), "no (at all)", "DH-705"),
            (Some("layouts/a.yaml"), "no", "DH-200"),
            (None, "no", "DH-100"),
        ] {
            let coded = problem(file, None, None, message).with_code();
            assert_eq!(coded.code.as_deref(), Some(code), "{message}");
            assert!(coded.message.ends_with(&format!("({code})")) && coded.message.matches("DH-").count() == 1);
        }
    }
}
