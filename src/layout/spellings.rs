//! Parser for layouts that converts every spelling in use to the canonical types.
//!
//! The canonical names and values are those of metal-api. The tables of this module list the alternatives; each use of one is reported as a
//! note.

mod disks;
mod filesystems;
mod stacked;

use super::constraints;
use super::document::{self, Node, Value, marked};
use super::edit::{self, Edit, New};
use super::fields::{Field, Fields, Places, Reader};
use super::validate::validate_except;
use super::words::{plain, quoted};
use super::{Constraints, Layout};
use crate::order;
use crate::problem::Problem;

const fn only(name: &'static str) -> Field {
    Field { name, also: &[] }
}

const LAYOUT: [Field; 10] = [
    only("id"),
    only("name"),
    only("description"),
    only("filesystems"),
    only("disks"),
    only("raid"),
    only("volumegroups"),
    only("logicalvolumes"),
    only("constraints"),
    only("cleanfirmware"),
];
/// Fields of metal-stack's v2 API without effect on disks: creation time, names and descriptions.
pub const LAYOUT_OF_V2: [&str; 1] = ["meta"];
pub const FILESYSTEM_OF_V2: [&str; 2] = ["name", "description"];
const CONSTRAINTS: [Field; 2] = [Field { name: "sizes", also: &["size"] }, only("images")];
const SIZE_MISSING: &str = "size is missing: specify MiB, or 0 for the remaining space";

/// Key of the list of layouts in metal-stack's Ansible roles.
const ANSIBLE_KEY: &str = "metal_api_filesystemlayouts";

/// Valid layout, with notes about its spelling.
#[derive(Debug, Clone)]
pub struct Parsed {
    pub layout: Layout,
    pub notes: Vec<Problem>,
    edits: Vec<Edit>,
    places: Places,
}

impl Parsed {
    /// Returns a problem that was found later, for example on this machine, with its line and column in the file.
    pub fn locate(&self, problem: Problem) -> Problem {
        self.places.locate(problem)
    }

    /// Returns advice about settings that are valid but probably not intended, with line and column in the file.
    pub fn advice(&self) -> Vec<Problem> {
        sorted(self.layout.advice().into_iter().map(|problem| self.locate(problem)).collect())
    }

    /// Returns whether the whole document is spelt canonically.
    pub fn is_canonical(&self) -> bool {
        self.edits.is_empty()
    }
}

/// Parses and validates a layout in YAML or JSON. Problems have line and column.
///
/// # Errors
/// All problems of the document: spelling, types, unknown fields, and the rules of [`super::validate`].
pub fn read_yaml(text: &str) -> Result<Parsed, Vec<Problem>> {
    let layouts = layouts(text).map_err(|problem| vec![tidy(problem)])?;
    match &layouts[..] {
        [(root, problems)] => read(root, problems.clone()),
        [] => Err(vec![Problem::new("", "the list contains no layout")]),
        [_, (second, _), ..] => Err(vec![tidy(
            second.problem("a second layout starts here, but only one is supported: use a separate file for each"),
        )]),
    }
}

/// Parses all layouts of a file: several YAML documents, a list, or the list under the key of metal-stack's Ansible roles.
pub fn read_all(text: &str) -> Vec<Result<Parsed, Vec<Problem>>> {
    match layouts(text) {
        Ok(layouts) if layouts.is_empty() => vec![Err(vec![Problem::new("", "the list contains no layout")])],
        Ok(layouts) => layouts.into_iter().map(|(root, problems)| read(&root, problems)).collect(),
        Err(problem) => vec![Err(vec![tidy(problem)])],
    }
}

/// Returns the text with canonical spelling; comments, order and line endings are preserved. `None` if the text cannot be edited in this
/// way.
pub fn respelt(text: &str, layouts: &[&Parsed]) -> Option<String> {
    let edits: Vec<Edit> = layouts.iter().flat_map(|parsed| parsed.edits.clone()).collect();
    let new = edit::apply(text, &edits)?;
    let again = read_all(&new);
    let is_same = |(again, before): (&Result<Parsed, Vec<Problem>>, &&Parsed)| {
        again.as_ref().is_ok_and(|again| again.layout == before.layout && again.is_canonical())
    };
    (again.len() == layouts.len() && again.iter().zip(layouts).all(is_same)).then_some(new)
}

/// Splits the text into layouts, each with the problems of its part of the document.
fn layouts(text: &str) -> Result<Vec<(Node, Vec<Problem>)>, Problem> {
    let mut layouts = Vec::new();
    for (root, problems) in document::from_yaml(text)? {
        let items = match root.value {
            Value::List(items) => items,
            Value::Map(entries) if entries.iter().any(|entry| entry.key == ANSIBLE_KEY) => {
                let list = entries.into_iter().find(|entry| entry.key == ANSIBLE_KEY).map(|entry| entry.node);
                match list.map(|node| node.value) {
                    Some(Value::List(items)) => items,
                    _ => return Err(document::marked(ANSIBLE_KEY, root.mark, "must be a list of layouts")),
                }
            }
            _ => vec![root],
        };
        let of = |node: &Node| -> Vec<Problem> {
            let inside = |problem: &&Problem| problem.place.starts_with(&node.place);
            problems.iter().filter(inside).cloned().collect()
        };
        layouts.extend(items.into_iter().map(|node| {
            let problems = of(&node);
            (node, problems)
        }));
    }
    Ok(layouts)
}

/// Parses and validates a layout that is embedded in an allocation.
///
/// # Errors
/// As for [`read_yaml`]; problems have a path but no line.
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
            let Reader { notes, edits, places, .. } = reader;
            return Ok(Parsed { layout, notes: sorted(notes), edits, places });
        }
    }
    Err(sorted(reader.problems))
}

fn sorted(problems: Vec<Problem>) -> Vec<Problem> {
    let mut problems: Vec<Problem> = problems.into_iter().map(tidy).collect();
    order::by_key(&mut problems, |problem| (problem.line, problem.column));
    problems
}

/// Removes control characters and limits the length, because text of the document is printed to consoles and reports.
fn tidy(mut problem: Problem) -> Problem {
    for (text, most) in [(&mut problem.place, 200), (&mut problem.message, 1000)] {
        let plain = text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c });
        let longer = text.chars().nth(most).is_some();
        *text = plain.take(most).chain(longer.then_some('…')).collect();
    }
    problem
}

fn layout(reader: &mut Reader, root: &Node) -> Option<Layout> {
    let fields = reader.fields_of_v2(root, "", &LAYOUT, &LAYOUT_OF_V2)?;
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
                let message = "no constraints: the layout is only used if an allocation names it";
                reader.notes.push(marked("constraints", root.mark, message));
                Constraints::default()
            }
        },
        cleanfirmware: reader.flag(&fields, "cleanfirmware"),
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
        // metal-stack's proposal writes `images: []` in a layout for explicit use.
        Value::List(items) if items.is_empty() => {
            reader.respell(images, New::Raw("{}".to_owned()), "this must be a mapping: write {}");
        }
        _ => {
            let message = format!("must be a mapping of OS to version constraint, but is {}", images.kind());
            reader.unreadable(images, "constraints.images", message);
        }
    }
    Some(constraints)
}

fn image_constraint(reader: &mut Reader, node: &Node, place: &str) -> Option<String> {
    let constraint = reader.text(node, place)?;
    Some(match constraints::with_blank(&constraint) {
        Some(canonical) => {
            let message = format!("write a blank between operator and version: \"{canonical}\"");
            reader.respell(node, New::Raw(format!("{canonical:?}")), message);
            canonical
        }
        None => constraint,
    })
}

/// Reads create options. Since metal-hammer 0.11.7 each item is one argument; before that, `-F 32` in one item was common.
fn create_options(reader: &mut Reader, fields: &Fields) -> Vec<String> {
    let options = match reader.one_string(fields, "createoptions", at_blanks) {
        Some(options) => options,
        None => reader.items(fields, "createoptions", single_words).concat(),
    };
    if let Some(node) = fields.get("createoptions")
        && options.iter().any(|option| option.contains(['"', '\'']))
    {
        reader.problem(
            node,
            "remove the quotes from createoptions: no shell interprets them, the command would receive them literally",
        );
    }
    options
}

fn single_words(reader: &mut Reader, node: &Node, place: &str) -> Option<Vec<String>> {
    let text = reader.text(node, place)?;
    let words = at_blanks(&text);
    if words.is_empty() || words == [text.as_str()] {
        return Some(vec![text]);
    }
    let items = words.iter().map(|word| format!("{word:?}")).collect();
    reader.respell(node, New::Items(items), format!("write one word per item: {}", quoted(&words)));
    Some(words.into_iter().map(str::to_owned).collect())
}

fn at_blanks(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// Reads a required value from a list of valid ones; `called` is metal-api's name of the value in its error message.
pub(super) fn one_of<T: Copy>(
    reader: &mut Reader,
    fields: &Fields,
    name: &str,
    called: &str,
    known: &[(&str, T)],
) -> Option<T> {
    let node = reader.required(fields, name, &format!("{name} is missing"))?;
    let (text, _) = reader.scalar(node, &fields.at(name))?;
    let found = known.iter().find(|(spelling, _)| *spelling == text).or_else(|| {
        let found = known.iter().find(|(spelling, _)| *spelling == without_prefix(text, called))?;
        let quoted = if found.0.parse::<u8>().is_ok() {
            New::Raw(format!("{:?}", found.0))
        } else {
            New::Text(found.0.to_owned())
        };
        reader.respell(node, quoted, format!("the canonical value is \"{}\"", found.0));
        Some(found)
    });
    if found.is_none() {
        let all = known.iter().map(|(spelling, _)| *spelling).collect::<Vec<_>>().join(",");
        let message = format!("given {called}:{text} is not supported, but:{all}");
        reader.unreadable(node, &fields.at(name), message);
    }
    found.map(|(_, value)| *value)
}

/// Removes the prefix that metal-stack's v2 API adds: `FORMAT_EXT4` becomes `ext4`.
fn without_prefix(text: &str, called: &str) -> String {
    let plain = plain(text);
    plain.strip_prefix(called).map(str::to_owned).unwrap_or(plain)
}
