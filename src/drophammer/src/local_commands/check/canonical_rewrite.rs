//! `drophammer check --fix`: rewrites the values of layouts in canonical spelling, and preserves everything else.

use super::document_types::DocumentType;
use super::{TextFile, read_layouts, with_default_codes};
use crate::local_commands::{STDIN, is_json, problem_lines};
use common::command_outcome::CommandOutcome;
use common::diagnostic::Diagnostic;
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use common::output::to_json;
use linux::atomic_file;
use model::layout::{self, ParsedLayout, canonical_yaml};
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// Result of canonicalizing a file.
enum CanonicalizedFile {
    /// The file was already canonical.
    Canonical(String),
    /// The file was edited in place. Comments, order and line ends are preserved.
    Edited(String),
    /// The file was regenerated from the parsed layout, because a value cannot be edited in place. The comments in the
    /// file are lost.
    Regenerated(String),
    NotValid(Vec<Diagnostic>),
    /// The file contains several layouts, one of which cannot be edited in place, so it was not changed.
    ByHand,
}

/// If `write` is true, rewrites all layouts, and returns a message for each file. Otherwise, returns the canonical
/// spelling of the layout in `files`, which must contain exactly one layout. Files of other types are not changed.
pub(super) fn fix_files(files: &[TextFile], write: bool) -> Result<(String, CommandOutcome)> {
    if write {
        let fix = |file| describe_other_type(file).map_or_else(|| fix_file(file), |said| Ok((said, true)));
        let said: Vec<(String, bool)> = files.iter().map(fix).collect::<Result<_>>()?;
        let good = said.iter().all(|(_, good)| *good);
        return Ok((said.into_iter().map(|(said, _)| said).collect(), CommandOutcome::good_if(good)));
    }
    if let [file] = files
        && let Some(said) = describe_other_type(file)
    {
        return Ok((said, CommandOutcome::Refused));
    }
    let layouts: Vec<&TextFile> = files.iter().filter(|file| describe_other_type(file).is_none()).collect();
    let [file] = layouts[..] else {
        let what = format!(
            "--fix prints exactly one layout, but {count} are specified: specify one file, or add --write",
            count = layouts.len()
        );
        return Err(Error::refusal(Phase::Settings, what));
    };
    Ok(match canonicalize(file)? {
        CanonicalizedFile::Canonical(text) | CanonicalizedFile::Edited(text) | CanonicalizedFile::Regenerated(text) => {
            (text, CommandOutcome::Good)
        }
        CanonicalizedFile::NotValid(problems) => (problem_lines(&file.path, &problems), CommandOutcome::Refused),
        CanonicalizedFile::ByHand => (several_layouts_message(file), CommandOutcome::Refused),
    })
}

/// Returns a message about a file that is not a layout; `None` for a layout.
fn describe_other_type(file: &TextFile) -> Option<String> {
    let document_type = DocumentType::recognize(&file.path, file.text.as_ref().ok()?)?;
    Some(format!(
        "{file}: {document}, unchanged: --fix rewrites only layouts\n",
        file = file.path.display(),
        document = document_type.with_article()
    ))
}

/// Rewrites a file if it is valid and not canonical. Returns a message for the operator, and whether the file is now
/// canonical.
fn fix_file(file: &TextFile) -> Result<(String, bool)> {
    let name = file.path.display();
    if file.path.as_os_str() == STDIN {
        return Err(Error::refusal(Phase::Settings, "--write cannot change standard input: omit --write"));
    }
    Ok(match canonicalize(file)? {
        CanonicalizedFile::Canonical(_) => (format!("{name}: already canonical\n"), true),
        CanonicalizedFile::Edited(text) => {
            replace_file(&file.path, &text)?;
            (format!("{name}: rewritten in the canonical spelling\n"), true)
        }
        CanonicalizedFile::Regenerated(text) => {
            replace_file(&file.path, &text)?;
            (format!("{name}: regenerated in the canonical form, without its comments\n"), true)
        }
        CanonicalizedFile::NotValid(problems) => (
            format!("{problems}{name}: not valid, unchanged\n", problems = problem_lines(&file.path, &problems)),
            false,
        ),
        CanonicalizedFile::ByHand => (several_layouts_message(file), false),
    })
}

fn several_layouts_message(file: &TextFile) -> String {
    let name = file.path.display();
    format!(
        "{name}: cannot be edited in place, because it contains several layouts: edit the file manually; `drophammer check` prints the necessary changes as notes\n"
    )
}

fn canonicalize(file: &TextFile) -> Result<CanonicalizedFile> {
    let text = match &file.text {
        Ok(text) => text,
        Err(problems) => {
            return Ok(CanonicalizedFile::NotValid(with_default_codes(problems.clone(), ErrorCode::Layout)));
        }
    };
    let mut layouts = Vec::new();
    let mut problems = Vec::new();
    for found in read_layouts(text) {
        match found {
            Ok(parsed) => layouts.push(parsed),
            Err(more) => problems.extend(more),
        }
    }
    if !problems.is_empty() {
        return Ok(CanonicalizedFile::NotValid(problems));
    }
    if layouts.iter().all(ParsedLayout::is_canonical) {
        return Ok(CanonicalizedFile::Canonical(text.clone()));
    }
    let all: Vec<&ParsedLayout> = layouts.iter().collect();
    Ok(match (layout::respell_canonically(text, &all), &layouts[..]) {
        (Some(text), _) => CanonicalizedFile::Edited(text),
        (None, [one]) if is_json(&file.path) => CanonicalizedFile::Regenerated(to_json(&one.layout)? + "\n"),
        (None, [one]) => CanonicalizedFile::Regenerated(canonical_yaml(&one.layout)),
        (None, _) => CanonicalizedFile::ByHand,
    })
}

/// Replaces the content of the file atomically, so that a reader sees either the old or the new content.
fn replace_file(file: &Path, text: &str) -> Result<()> {
    let replace = || -> std::io::Result<()> {
        // If the file is a symbolic link, the target of the link is replaced, not the link.
        let file = file.canonicalize()?;
        let mut name = OsString::from(".");
        name.push(file.file_name().unwrap_or_default());
        name.push(".drophammer");
        let beside = file.with_file_name(name);
        atomic_file::replace_file(&file, &beside, text.as_bytes(), fs::metadata(&file)?.permissions())
    };
    replace().context(Phase::Settings, || format!("write {file}; the file is unchanged", file = file.display()))
}
