//! `drophammer check --fix`: layouts in their canonical form.

use super::{Checked, CheckedFile};
use crate::desk::{Outcome, json, problem_lines};
use crate::error::{Context, Error, Phase, Result};
use crate::layout::{Layout, canonical_yaml};
use std::ffi::OsString;
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::path::Path;

/// The canonical form of the one file to print, or what was done with each of the files.
pub(super) fn fix(checked: &Checked, write: bool) -> Result<(String, Outcome)> {
    match &checked.layouts[..] {
        all if write => {
            let said = all.iter().map(fix_file).collect::<Result<String>>()?;
            Ok((said, Outcome::good_if(all.iter().all(|one| one.valid))))
        }
        [one] => Ok(match &one.layout {
            Some(layout) => (canonical(&one.file, layout)?, Outcome::Good),
            None => (problem_lines(&one.file, &one.problems), Outcome::Refused),
        }),
        all => {
            let what = format!("--fix prints one layout, these are {}: give one file, or --write", all.len());
            Err(Error::new(Phase::Settings, what))
        }
    }
}

/// A file that is not valid, or needs nothing, stays as it is.
fn fix_file(one: &CheckedFile) -> Result<String> {
    let file = one.file.display();
    let Some(layout) = &one.layout else {
        return Ok(format!("{}{file}: not valid, left as it is\n", problem_lines(&one.file, &one.problems)));
    };
    if one.notes.is_empty() {
        return Ok(format!("{file}: canonical already\n"));
    }
    replace(&one.file, &canonical(&one.file, layout)?)?;
    Ok(format!("{file}: written anew in the canonical form, without its comments\n"))
}

/// A `.json` file stays JSON.
fn canonical(file: &Path, layout: &Layout) -> Result<String> {
    match file.extension() {
        Some(end) if end == "json" => Ok(json(layout)? + "\n"),
        _ => Ok(canonical_yaml(layout)),
    }
}

/// Puts `text` in the place of the file's content: at every moment, a reader finds all of the old or all of the new one.
fn replace(file: &Path, text: &str) -> Result<()> {
    let replace = || -> std::io::Result<()> {
        // A link stays one; what it points at is replaced.
        let file = file.canonicalize()?;
        let mut name = OsString::from(".");
        name.push(file.file_name().unwrap_or_default());
        name.push(".drophammer");
        let beside = file.with_file_name(name);
        let written = write_new(&beside, text, fs::metadata(&file)?.permissions());
        let replaced = written.and_then(|()| fs::rename(&beside, &file));
        if replaced.is_err() {
            let _ = fs::remove_file(&beside);
        }
        replaced
    };
    replace().context(Phase::Settings, || format!("write {}; it is as it was", file.display()))
}

fn write_new(path: &Path, text: &str, permissions: Permissions) -> std::io::Result<()> {
    let mut new = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    new.write_all(text.as_bytes())?;
    new.set_permissions(permissions)?;
    new.sync_all()
}
