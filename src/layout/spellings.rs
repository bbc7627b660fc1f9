//! Reads a layout from every spelling in use into the canonical types.
//!
//! Canonical are metal-api's names and kinds. What else is understood is in the tables of this file, and each use of
//! it is a note, never silence.

mod disks;
mod filesystems;
mod stacked;

use super::constraints;
use super::document::{self, Node, Value, marked};
use super::fields::{Field, Fields, Places, Reader, quoted};
use super::validate::validate_except;
use super::{Constraints, Layout};
use crate::problem::Problem;

const fn only(name: &'static str) -> Field {
    Field { name, also: &[] }
}

const LAYOUT: [Field; 9] = [
    only("id"),
    only("name"),
    only("description"),
    only("filesystems"),
    only("disks"),
    only("raid"),
    only("volumegroups"),
    only("logicalvolumes"),
    only("constraints"),
];
const CONSTRAINTS: [Field; 2] = [Field { name: "sizes", also: &["size"] }, only("images")];
const SIZE_MISSING: &str = "size is missing: MiB, or 0 for all that is left";

/// A layout that can be worked with, and what was unusual about its spelling.
#[derive(Debug, Clone)]
pub struct Parsed {
    pub layout: Layout,
    pub notes: Vec<Problem>,
    places: Places,
}

impl Parsed {
    /// Gives a problem that was found later (on this machine, say) its line and column in the file.
    pub fn locate(&self, problem: Problem) -> Problem {
        self.places.locate(problem)
    }
}

/// Reads and validates a layout from YAML (JSON is YAML too), with line and column in every problem.
///
/// # Errors
/// Every problem of the document: spelling, types, unknown fields, and the rules of [`super::validate`].
pub fn read_yaml(text: &str) -> Result<Parsed, Vec<Problem>> {
    let (root, problems) = document::from_yaml(text).map_err(|problem| vec![tidy(problem)])?;
    read(&root, problems)
}

/// Reads and validates a layout as it arrives inside an allocation.
///
/// # Errors
/// As [`read_yaml`], with places but no lines.
pub fn read_json(value: &serde_json::Value) -> Result<Parsed, Vec<Problem>> {
    let root = document::from_json(value).map_err(|problem| vec![tidy(problem)])?;
    read(&root, Vec::new())
}

fn read(root: &Node, problems: Vec<Problem>) -> Result<Parsed, Vec<Problem>> {
    let mut reader = Reader::new(problems);
    if let Some(layout) = layout(&mut reader, root) {
        let broken = validate_except(&layout, &reader.unread);
        let broken: Vec<Problem> = broken.into_iter().map(|problem| reader.places.locate(problem)).collect();
        reader.problems.extend(broken);
        if reader.problems.is_empty() {
            return Ok(Parsed { layout, notes: sorted(reader.notes), places: reader.places });
        }
    }
    Err(sorted(reader.problems))
}

fn sorted(problems: Vec<Problem>) -> Vec<Problem> {
    let mut problems: Vec<Problem> = problems.into_iter().map(tidy).collect();
    problems.sort_by_key(|problem| (problem.line, problem.column));
    problems
}

/// The document's own words go to consoles and reports: no control characters, no megabytes.
fn tidy(mut problem: Problem) -> Problem {
    for (text, most) in [(&mut problem.place, 200), (&mut problem.message, 1000)] {
        let plain = text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c });
        let longer = text.chars().nth(most).is_some();
        *text = plain.take(most).chain(longer.then_some('…')).collect();
    }
    problem
}

fn layout(reader: &mut Reader, root: &Node) -> Option<Layout> {
    let fields = reader.fields(root, "", &LAYOUT)?;
    let id = reader.required(&fields, "id", "id should not be empty");
    let id = id.and_then(|node| reader.text(node, "id")).unwrap_or_default();
    Some(Layout {
        id,
        name: reader.optional_text(&fields, "name"),
        description: reader.optional_text(&fields, "description"),
        filesystems: reader.items(&fields, "filesystems", filesystems::filesystem),
        disks: reader.items(&fields, "disks", disks::disk),
        raid: reader.items(&fields, "raid", stacked::raid),
        volumegroups: reader.items(&fields, "volumegroups", stacked::volume_group),
        logicalvolumes: reader.items(&fields, "logicalvolumes", stacked::logical_volume),
        constraints: match fields.get("constraints") {
            Some(node) => read_constraints(reader, node).unwrap_or_default(),
            None => {
                let message = "no constraints: only an allocation that names this layout gets it";
                reader.notes.push(marked("constraints", root.mark, message));
                Constraints::default()
            }
        },
    })
}

fn read_constraints(reader: &mut Reader, node: &Node) -> Option<Constraints> {
    let fields = reader.fields(node, "constraints", &CONSTRAINTS)?;
    let sizes = reader.texts(&fields, "sizes");
    let mut constraints = Constraints { sizes, ..Constraints::default() };
    let Some(images) = fields.get("images") else { return Some(constraints) };
    match &images.value {
        Value::Map(entries) => {
            for entry in entries {
                let place = document::child("constraints.images", &entry.key);
                reader.place(&place, &entry.node);
                if let Some(constraint) = image_constraint(reader, &entry.node, &place) {
                    constraints.images.insert(entry.key.clone(), constraint);
                }
            }
        }
        // `images: []` is how the proposal speaks of a layout for explicit use.
        Value::List(items) if items.is_empty() => reader.note(images, "this is a mapping: write {}"),
        _ => {
            let message = format!("must be a mapping of OS to version constraint, found {}", images.kind());
            reader.unreadable(images, "constraints.images", message);
        }
    }
    Some(constraints)
}

fn image_constraint(reader: &mut Reader, node: &Node, place: &str) -> Option<String> {
    let constraint = reader.text(node, place)?;
    Some(match constraints::with_blank(&constraint) {
        Some(canonical) => {
            reader.note(node, format!("a blank belongs between operator and version: \"{canonical}\""));
            canonical
        }
        None => constraint,
    })
}

/// Since metal-hammer 0.11.7 each entry is one argument; before, `-F 32` in one entry was usual.
fn create_options(reader: &mut Reader, fields: &Fields) -> Vec<String> {
    let options = match reader.one_string(fields, "createoptions", at_blanks) {
        Some(options) => options,
        None => reader.items(fields, "createoptions", single_words).concat(),
    };
    if let Some(node) = fields.get("createoptions")
        && options.iter().any(|option| option.contains(['"', '\'']))
    {
        reader.problem(node, "quotes in createoptions would reach the command as they are: no shell reads them");
    }
    options
}

fn single_words(reader: &mut Reader, node: &Node, place: &str) -> Option<Vec<String>> {
    let text = reader.text(node, place)?;
    let words = at_blanks(&text);
    if words.is_empty() || words == [text.as_str()] {
        return Some(vec![text]);
    }
    reader.note(node, format!("one word per entry: {}", quoted(&words)));
    Some(words.into_iter().map(str::to_owned).collect())
}

fn at_blanks(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// A required value out of a few; `called` is metal-api's word for it in the refusal.
fn one_of<T: Copy>(reader: &mut Reader, fields: &Fields, name: &str, called: &str, known: &[(&str, T)]) -> Option<T> {
    let node = reader.required(fields, name, &format!("{name} is missing"))?;
    let (text, _) = reader.scalar(node, &fields.at(name))?;
    let found = known.iter().find(|(spelling, _)| *spelling == text);
    if found.is_none() {
        let all = known.iter().map(|(spelling, _)| *spelling).collect::<Vec<_>>().join(",");
        let message = format!("given {called}:{text} is not supported, but:{all}");
        reader.unreadable(node, &fields.at(name), message);
    }
    found.map(|(_, value)| *value)
}
