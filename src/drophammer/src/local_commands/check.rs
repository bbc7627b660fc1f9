//! `drophammer check`: checks layouts and the other files that operators write. Also checks that no two layouts match
//! the same size and image.

mod canonical_rewrite;
mod document_types;
#[cfg(test)]
mod malformed_file_tests;
mod summary;
mod unknown_template_steps;
mod value_corrections;

use super::{decode_layouts, format_located, problem_lines, read_bytes};
use clap::Args;
use common::command_outcome::CommandOutcome;
use common::diagnostic::Diagnostic;
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use common::format::metal_api_phrase_replacement::reword_metal_phrases;
use common::output::{print_text, to_json};
use document_types::DocumentReport;
pub(crate) use document_types::DocumentType;
use model::inventory::Nic;
use model::layout::layout_set::{DuplicateLayout, LayoutCollision, LayoutSet};
use model::layout::{self, ParsedLayout};
use serde::Serialize;
use serde_json::json;
use site::ganeti_os_definitions::is_definition_folder;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Options of `drophammer check`.
#[derive(Debug, Args)]
pub struct CheckOptions {
    /// Layouts in YAML or JSON, one or several per file. For a directory, all *.yaml, *.yml and *.json in it are
    /// read. Specify - to read standard input. All layouts together form one set, in which no two layouts may match
    /// the same size and image. Machine files, image files, sizes, deploy templates, Kubernetes volumes, OS
    /// definitions, image-states.yaml, registries.json and oidc.yaml are recognized by their names, fields and
    /// folders, and the directory of a server by its machines/ or layouts/.
    #[arg(required = true, value_name = "FILE|DIR")]
    pub files: Vec<PathBuf>,
    /// Print the findings as JSON.
    #[arg(long)]
    pub json: bool,
    /// Also list the valid files, not only the problems and the summary.
    #[arg(long, short, conflicts_with_all = ["json", "fix"])]
    pub verbose: bool,
    /// Print id and file of the layout that is selected for this size and image.
    #[arg(long, num_args = 2, value_names = ["SIZE", "IMAGE"])]
    pub select: Vec<String>,
    /// Output of `drophammer inventory`. The networks of machine files must match the NICs in this inventory.
    #[arg(long, value_name = "FILE", conflicts_with = "fix")]
    pub inventory: Option<PathBuf>,
    /// Treat notes (noncanonical spellings and probable mistakes) as problems.
    #[arg(long, conflicts_with = "fix")]
    pub strict: bool,
    /// Print one valid file in the canonical spelling. Comments and order are preserved if every value can be changed
    /// in place.
    #[arg(long, conflicts_with_all = ["json", "select"])]
    pub fix: bool,
    /// With --fix, write the canonical spelling to all specified files.
    #[arg(long, requires = "fix")]
    pub write: bool,
}

/// Findings about all files.
#[derive(Serialize)]
pub(crate) struct CheckReport {
    layouts: Vec<LayoutReport>,
    /// Files other than layouts, by type.
    #[serde(flatten)]
    documents: BTreeMap<DocumentType, Vec<DocumentReport>>,
    duplicates: Vec<CodedProblem<DuplicateLayout>>,
    collisions: Vec<CodedProblem<LayoutCollision>>,
    #[serde(skip)]
    set: LayoutSet,
    /// True if notes are treated as problems (`--strict`).
    #[serde(skip)]
    is_strict: bool,
    /// True if valid files are also listed (`--verbose`).
    #[serde(skip)]
    is_verbose: bool,
}

/// Problem that concerns several layouts, with its code.
#[derive(Serialize)]
struct CodedProblem<T> {
    #[serde(flatten)]
    problem: T,
    code: ErrorCode,
}

impl<T> CodedProblem<T> {
    fn list(problems: Vec<T>, code: ErrorCode) -> Vec<CodedProblem<T>> {
        problems.into_iter().map(|problem| CodedProblem { problem, code }).collect()
    }
}

impl<T: std::fmt::Display> std::fmt::Display for CodedProblem<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.code.annotate(reword_metal_phrases(&self.problem.to_string())))
    }
}

/// Findings about one layout. A file may contain several layouts.
#[derive(Serialize)]
struct LayoutReport {
    file: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    valid: bool,
    problems: Vec<Diagnostic>,
    /// Notes about spellings that are not canonical, and about valid values that are probably mistakes.
    notes: Vec<Diagnostic>,
    /// Parsed layout; `None` if it is invalid.
    #[serde(skip)]
    parsed: Option<ParsedLayout>,
}

/// Prints the output that the options request: all problems, the selected layout, or the canonical spelling.
///
/// # Errors
/// Returns an error if a file or directory cannot be read or written, or a directory contains no layout.
pub fn run_check(options: &CheckOptions) -> Result<CommandOutcome> {
    if let [dir] = &options.files[..]
        && is_site_directory(dir)
    {
        return check_site_directory(dir, options);
    }
    let (text, outcome) = check_output(options)?;
    print_text(&text)?;
    Ok(outcome)
}

/// Checks the files, or fixes them with `--fix`. Returns the output and the exit status.
pub(crate) fn check_output(options: &CheckOptions) -> Result<(String, CommandOutcome)> {
    if options.fix {
        return canonical_rewrite::fix_files(&read_files(&options.files)?, options.write);
    }
    let nics = read_nics(options)?;
    let checked = CheckReport {
        is_strict: options.strict,
        is_verbose: options.verbose,
        ..CheckReport::check_files_with_nics(&options.files, nics.as_deref())?
    };
    let (text, good) = match &options.select[..] {
        [size, image] => {
            (checked.format_selection(size, image, options.json)?, checked.set.select(size, image).is_ok())
        }
        _ if options.json => (to_json(&checked)? + "\n", checked.is_good()),
        _ => (checked.to_string(), checked.is_good()),
    };
    Ok((text, CommandOutcome::good_if(good)))
}

/// Returns the NICs in the inventory of `--inventory`, which the networks in machine files must match.
fn read_nics(options: &CheckOptions) -> Result<Option<Vec<Nic>>> {
    options.inventory.as_ref().map(|path| Ok(super::plan::read_inventory(path)?.nics)).transpose()
}

/// Returns whether a path is a server's directory.
fn is_site_directory(path: &Path) -> bool {
    path.join("machines").is_dir() || path.join("layouts").is_dir()
}

/// Checks a server's directory, as `drophammer site check` does.
fn check_site_directory(dir: &Path, options: &CheckOptions) -> Result<CommandOutcome> {
    let is_for_layouts = options.fix || options.strict || options.verbose;
    if is_for_layouts || !options.select.is_empty() || options.inventory.is_some() {
        let what = format!(
            "{0} is a server's directory: --fix, --strict, --verbose, --select and --inventory require {0}/layouts",
            dir.display()
        );
        return Err(Error::refusal(Phase::Settings, what));
    }
    super::site::check_directory(dir, options.json)
}

impl CheckReport {
    /// Checks all files, including those in directories, as one set.
    #[cfg(test)]
    pub(crate) fn check_files(paths: &[PathBuf]) -> Result<CheckReport> {
        CheckReport::check_files_with_nics(paths, None)
    }

    /// Checks all files, including those in directories, as one set. If NICs are given, the networks in machine files
    /// must match these NICs.
    fn check_files_with_nics(paths: &[PathBuf], nics: Option<&[Nic]>) -> Result<CheckReport> {
        let mut layouts = Vec::new();
        let mut documents = BTreeMap::<DocumentType, Vec<DocumentReport>>::new();
        for definition in paths.iter().filter_map(|path| DocumentReport::check_folder(path)) {
            documents.entry(definition.document_type).or_default().push(definition);
        }
        let files: Vec<&PathBuf> = paths.iter().filter(|path| !is_definition_folder(path)).collect();
        for file in read_files(&files)? {
            let document = match &file.text {
                Ok(text) => DocumentReport::check_text(&file.path, text, nics),
                Err(problems) => DocumentReport::from_unreadable(&file.path, problems),
            };
            if let Some(document) = document {
                documents.entry(document.document_type).or_default().push(document);
                continue;
            }
            let found = match file.text {
                Ok(text) => read_layouts(&text),
                Err(problems) => vec![Err(problems)],
            };
            layouts.extend(found.into_iter().map(|found| LayoutReport::new(&file.path, found)));
        }
        let set =
            LayoutSet::new(layouts.iter().filter_map(|one| Some((one.file.as_path(), &one.parsed.as_ref()?.layout))));
        let duplicates = CodedProblem::list(set.find_duplicates(), ErrorCode::Layout);
        let collisions = CodedProblem::list(set.find_collisions(), ErrorCode::AmbiguousLayout);
        let (is_strict, is_verbose) = (false, false);
        Ok(CheckReport { duplicates, collisions, layouts, documents, set, is_strict, is_verbose })
    }

    fn is_good(&self) -> bool {
        let is_good = |one: &LayoutReport| one.valid && (!self.is_strict || one.notes.is_empty());
        self.layouts.iter().all(is_good)
            && self.documents().all(|one| one.valid && (!self.is_strict || one.notes.is_empty()))
            && self.duplicates.is_empty()
            && self.collisions.is_empty()
    }

    /// Returns the files that are not layouts.
    fn documents(&self) -> impl Iterator<Item = &DocumentReport> {
        self.documents.values().flatten()
    }

    fn format_selection(&self, size: &str, image: &str, as_json: bool) -> Result<String> {
        let selected = self.set.select(size, image);
        if as_json {
            let value = match selected {
                Ok(chosen) => json!({ "id": chosen.id, "file": chosen.file.display().to_string() }),
                Err(why) => {
                    json!({ "message": why.message, "nearest": why.nearest, "code": ErrorCode::NoMatchingLayout })
                }
            };
            return Ok(to_json(&value)? + "\n");
        }
        let mut text = match selected {
            Ok(chosen) => format!("{}  {}\n", chosen.id, chosen.file.display()),
            Err(why) => {
                let printed = why.to_string();
                // The code is appended to the message itself, before the list of the nearest layouts.
                let (message, nearest) = printed.split_at(printed.find('\n').unwrap_or(printed.len()));
                format!("{}{nearest}\n", ErrorCode::NoMatchingLayout.annotate(message))
            }
        };
        for one in self.layouts.iter().filter(|one| !one.valid) {
            let _ = writeln!(
                text,
                "{file}: not valid, and therefore not compared with the other layouts",
                file = one.file.display()
            );
        }
        Ok(text)
    }
}

impl std::fmt::Display for CheckReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for one in &self.layouts {
            for note in &one.notes {
                writeln!(f, "{} (note)", format_located(&one.file, note))?;
            }
            if one.valid && self.is_verbose {
                let several = self.layouts.iter().filter(|other| other.file == one.file).count() > 1;
                let id = one.id.as_deref().filter(|_| several).map(|id| format!(" ({id})")).unwrap_or_default();
                writeln!(f, "{}: valid{id}", one.file.display())?;
            }
            f.write_str(&problem_lines(&one.file, &one.problems))?;
        }
        for one in self.documents() {
            for note in &one.notes {
                writeln!(f, "{} (note)", format_located(&one.file, note))?;
            }
            if one.valid && self.is_verbose {
                writeln!(f, "{}: valid ({})", one.file.display(), one.document_type.with_article())?;
            }
            f.write_str(&problem_lines(&one.file, &one.problems))?;
        }
        self.duplicates.iter().try_for_each(|duplicate| writeln!(f, "{duplicate}"))?;
        self.collisions.iter().try_for_each(|collision| writeln!(f, "{collision}"))?;
        writeln!(f, "{}", self.summarize())
    }
}

impl LayoutReport {
    fn new(file: &Path, found: std::result::Result<ParsedLayout, Vec<Diagnostic>>) -> LayoutReport {
        let file = printable_path(file);
        match found {
            Ok(parsed) => {
                let mut notes: Vec<Diagnostic> = parsed.notes.iter().cloned().chain(parsed.collect_advice()).collect();
                notes.sort_by_key(|note| (note.line, note.column));
                let id = Some(parsed.layout.id.clone());
                LayoutReport { file, id, valid: true, problems: Vec::new(), notes, parsed: Some(parsed) }
            }
            Err(problems) => {
                let problems = with_default_codes(problems, ErrorCode::Layout);
                LayoutReport { file, id: None, valid: false, problems, notes: Vec::new(), parsed: None }
            }
        }
    }
}

/// Returns the path with replacement characters in place of bytes that are not UTF-8, which JSON cannot contain.
fn printable_path(path: &Path) -> PathBuf {
    path.to_string_lossy().into_owned().into()
}

/// Adds the code to problems without a code.
pub(super) fn with_default_codes(problems: Vec<Diagnostic>, code: ErrorCode) -> Vec<Diagnostic> {
    problems.into_iter().map(|problem| problem.with_default_code(code)).collect()
}

/// Reads the layouts in the contents of a file. The returned problems contain suggestions and codes.
fn read_layouts(text: &str) -> Vec<std::result::Result<ParsedLayout, Vec<Diagnostic>>> {
    let found = layout::read_all_layouts(text).into_iter();
    found.map(|one| one.map_err(|problems| explain_layout_problems(text, problems))).collect()
}

/// Adds suggestions and codes to the problems of a layout.
pub(crate) fn explain_layout_problems(text: &str, mut problems: Vec<Diagnostic>) -> Vec<Diagnostic> {
    value_corrections::add_suggestions(text, &mut problems);
    with_default_codes(problems, ErrorCode::Layout)
}

/// Text of a file, or the problems that prevent reading it.
struct TextFile {
    path: PathBuf,
    text: std::result::Result<String, Vec<Diagnostic>>,
}

/// Reads the files, and the layout files in directories. It is an error if a file named on the command line does not
/// exist. An unreadable file in a directory, such as a dangling link, is reported as a problem of that file.
fn read_files<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<TextFile>> {
    let mut files = Vec::new();
    for given in paths.iter().map(AsRef::as_ref) {
        for path in list_layout_files(given)? {
            let text = match read_bytes(&path) {
                Ok(bytes) => decode_layouts(&path, &bytes),
                Err(error) if path == given => return Err(error),
                Err(error) => {
                    let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                    Err(vec![Diagnostic::new("", format!("cannot read the file: {why}"))])
                }
            };
            files.push(TextFile { path, text });
        }
    }
    Ok(files)
}

/// Returns the path itself if it is a file. For a directory, returns the layout files in it, but not in its
/// subdirectories, sorted by name.
fn list_layout_files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let read = || format!("read the directory {}", path.display());
    let entries = std::fs::read_dir(path)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<_>>>());
    let mut files = entries.context(Phase::Settings, read)?;
    files.retain(|file| is_layout_file(file));
    files.sort();
    if files.is_empty() {
        let what = format!("{folder} contains no layout file (*.yaml, *.yml or *.json)", folder = path.display());
        return Err(Error::refusal(Phase::Settings, what));
    }
    Ok(files)
}

fn is_layout_file(file: &Path) -> bool {
    let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    !hidden && file.extension().is_some_and(|end| ["yaml", "yml", "json"].iter().any(|known| end == *known))
}
