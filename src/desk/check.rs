//! `drophammer check`: layouts one by one, and as a set that chooses at most one for every size and image.

mod fix;

use super::{Outcome, json, print, problem_lines, read_layout};
use crate::cli;
use crate::error::{Context, Error, Phase, Result};
use crate::layout::Layout;
use crate::layout::set::{Collision, Duplicate, Set};
use crate::problem::Problem;
use serde::Serialize;
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// What was found in all files.
#[derive(Serialize)]
pub(crate) struct Checked {
    layouts: Vec<CheckedFile>,
    duplicates: Vec<Duplicate>,
    collisions: Vec<Collision>,
    #[serde(skip)]
    set: Set,
}

/// What was found in one file.
#[derive(Serialize)]
struct CheckedFile {
    file: PathBuf,
    valid: bool,
    problems: Vec<Problem>,
    notes: Vec<Problem>,
    /// What a valid file says.
    #[serde(skip)]
    layout: Option<Layout>,
}

/// Prints all that is wrong with the layouts, the one that is chosen of them, or their canonical form.
///
/// # Errors
/// A file or directory cannot be read or written, or a directory holds no layout.
pub fn check(options: &cli::Check) -> Result<Outcome> {
    let (text, outcome) = answer(options)?;
    print(&text)?;
    Ok(outcome)
}

/// What is printed, and how it ends.
pub(super) fn answer(options: &cli::Check) -> Result<(String, Outcome)> {
    let checked = Checked::read(&options.files)?;
    if options.fix {
        return fix::fix(&checked, options.write);
    }
    let (text, good) = match &options.select[..] {
        [size, image] => (checked.selection(size, image, options.json)?, checked.set.select(size, image).is_ok()),
        _ if options.json => (json(&checked)? + "\n", checked.is_good()),
        _ => (checked.to_string(), checked.is_good()),
    };
    Ok((text, Outcome::good_if(good)))
}

impl Checked {
    /// Reads all files, and the layouts in directories, as one set.
    pub(crate) fn read(paths: &[PathBuf]) -> Result<Checked> {
        let files = paths.iter().map(|path| layouts_at(path)).collect::<Result<Vec<_>>>()?.concat();
        let mut layouts = Vec::new();
        for file in files {
            let (problems, notes, layout) = match read_layout(&file)? {
                Ok(parsed) => (Vec::new(), parsed.notes, Some(parsed.layout)),
                Err(problems) => (problems, Vec::new(), None),
            };
            layouts.push(CheckedFile { file, valid: layout.is_some(), problems, notes, layout });
        }
        let set = Set::new(layouts.iter().filter_map(|one| Some((one.file.as_path(), one.layout.as_ref()?))));
        Ok(Checked { duplicates: set.duplicates(), collisions: set.collisions(), layouts, set })
    }

    fn is_good(&self) -> bool {
        self.layouts.iter().all(|one| one.valid) && self.duplicates.is_empty() && self.collisions.is_empty()
    }

    /// `3 layouts, all good: …`, or how many of what were found.
    fn summary(&self) -> String {
        let invalid = self.layouts.iter().filter(|one| !one.valid).count();
        let mut parts = vec![counted(self.layouts.len(), "layout")];
        match (invalid, self.is_good()) {
            (0, true) if self.layouts.len() > 1 => {
                parts.push("all good, at most one for every size and image".to_owned());
            }
            (0, true) => parts.push("good".to_owned()),
            (0, false) => parts.push("each of them valid".to_owned()),
            (invalid, _) => parts.push(format!("{invalid} not valid and not compared with the others")),
        }
        let more = [(self.duplicates.len(), "id given twice"), (self.collisions.len(), "collision")];
        parts.extend(more.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| counted(count, what)));
        parts.join(", ")
    }

    fn selection(&self, size: &str, image: &str, as_json: bool) -> Result<String> {
        let selected = self.set.select(size, image);
        if as_json {
            let value = match selected {
                Ok(chosen) => json!({ "id": chosen.id, "file": chosen.file }),
                Err(why) => json!({ "message": why.message, "nearest": why.nearest }),
            };
            return Ok(json(&value)? + "\n");
        }
        let mut text = match selected {
            Ok(chosen) => format!("{}  {}\n", chosen.id, chosen.file.display()),
            Err(why) => format!("{why}\n"),
        };
        for one in self.layouts.iter().filter(|one| !one.valid) {
            let _ = writeln!(text, "{}: not valid, so it was not considered", one.file.display());
        }
        Ok(text)
    }
}

impl std::fmt::Display for Checked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for one in &self.layouts {
            for note in &one.notes {
                writeln!(f, "{}:{note} (note)", one.file.display())?;
            }
            if one.valid {
                writeln!(f, "{}: good", one.file.display())?;
            }
            f.write_str(&problem_lines(&one.file, &one.problems))?;
        }
        self.duplicates.iter().try_for_each(|duplicate| writeln!(f, "{duplicate}"))?;
        self.collisions.iter().try_for_each(|collision| writeln!(f, "{collision}"))?;
        writeln!(f, "{}", self.summary())
    }
}

fn counted(count: usize, what: &str) -> String {
    // Only the first word has a plural: layouts, ids given twice, collisions.
    let (word, rest) = what.split_once(' ').map_or((what, String::new()), |(word, rest)| (word, format!(" {rest}")));
    format!("{count} {word}{}{rest}", if count == 1 { "" } else { "s" })
}

/// The file itself, or the layouts directly in the directory, by name.
fn layouts_at(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let read = || format!("read the directory {}", path.display());
    let entries = std::fs::read_dir(path)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<_>>>());
    let mut files = entries.context(Phase::Settings, read)?;
    files.retain(|file| is_layout(file));
    files.sort();
    if files.is_empty() {
        let what = format!("{} holds no layout: no *.yaml, *.yml or *.json", path.display());
        return Err(Error::new(Phase::Settings, what));
    }
    Ok(files)
}

fn is_layout(file: &Path) -> bool {
    let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    !hidden && file.extension().is_some_and(|end| ["yaml", "yml", "json"].iter().any(|known| end == *known))
}
