//! Parser for layouts. It converts all spellings that are in use to the canonical types.
//!
//! The canonical names and values come from metal-api. The tables in this module list alternative spellings. Each use
//! of an alternative spelling is reported as a note.

mod disks;
mod filesystems;
mod raid_lvm;

use super::field_name_spelling::normalize_name;
use super::field_reader::{FieldNames, LayoutFields, LayoutReader, SourceMap};
use super::spelling_edits::{self, EditReplacement, SpellingEdit};
use super::validation::validate_except;
use super::value_syntax::quote_words;
use super::yaml_document::{self, DocumentNode, NodeValue, located_problem};
use super::{Layout, LayoutConstraints, image_version_constraints};
use common::diagnostic::{Diagnostic, child_path};
use common::error_code::ErrorCode;

const fn plain_field(name: &'static str) -> FieldNames {
    FieldNames { name, also: &[] }
}

const LAYOUT: [FieldNames; 10] = [
    plain_field("id"),
    plain_field("name"),
    plain_field("description"),
    plain_field("filesystems"),
    plain_field("disks"),
    plain_field("raid"),
    plain_field("volumegroups"),
    plain_field("logicalvolumes"),
    plain_field("constraints"),
    plain_field("cleanfirmware"),
];
/// Field of a layout in metal-stack's v2 API that has no effect on disks: the creation time of the layout.
pub const LAYOUT_OF_V2: [&str; 1] = ["meta"];
/// Fields of a filesystem in metal-stack's v2 API that have no effect on disks.
pub const FILESYSTEM_OF_V2: [&str; 2] = ["name", "description"];
const CONSTRAINTS: [FieldNames; 2] = [FieldNames { name: "sizes", also: &["size"] }, plain_field("images")];
const SIZE_MISSING: &str = "size is missing: specify MiB, or 0 for the remaining space";

/// Key under which metal-stack's Ansible roles list layouts.
const ANSIBLE_KEY: &str = "metal_api_filesystemlayouts";

/// Valid layout, with notes about non-canonical names and values.
#[derive(Debug, Clone)]
pub struct ParsedLayout {
    pub layout: Layout,
    pub notes: Vec<Diagnostic>,
    edits: Vec<SpellingEdit>,
    source_map: SourceMap,
}

impl ParsedLayout {
    /// Adds line and column in the file to a problem that was found after parsing, for example on a machine.
    pub fn locate_problem(&self, problem: Diagnostic) -> Diagnostic {
        self.source_map.locate_problem(problem)
    }

    /// Returns advice about settings that are valid but probably not intended, each with line and column in the file.
    pub fn collect_advice(&self) -> Vec<Diagnostic> {
        sort_problems(self.layout.collect_advice().into_iter().map(|problem| self.locate_problem(problem)).collect())
    }

    /// Returns whether the document uses only canonical spellings.
    pub fn is_canonical(&self) -> bool {
        self.edits.is_empty()
    }
}

/// Parses and validates a layout in YAML or JSON. Each problem has line and column.
///
/// # Errors
/// Returns all problems of the document: spelling, types, unknown fields, and violated rules of [`super::validation`].
pub fn read_yaml(text: &str) -> Result<ParsedLayout, Vec<Diagnostic>> {
    let layouts = split_layouts(text).map_err(|problem| sort_errors(vec![problem]))?;
    match &layouts[..] {
        [(root, problems)] => read_node(root, problems.clone()),
        [] => Err(sort_errors(vec![Diagnostic::new("", "the list contains no layout")])),
        [_, (second, _), ..] => {
            let why = "a second layout starts here, but only one is supported: use a separate file for each";
            Err(sort_errors(vec![second.make_problem(why)]))
        }
    }
}

/// Parses all layouts of a file. The file consists of several YAML documents, of a list, or of a list under the key of
/// metal-stack's Ansible roles.
pub fn read_all_layouts(text: &str) -> Vec<Result<ParsedLayout, Vec<Diagnostic>>> {
    match split_layouts(text) {
        Ok(layouts) if layouts.is_empty() => {
            vec![Err(sort_errors(vec![Diagnostic::new("", "the list contains no layout")]))]
        }
        Ok(layouts) => layouts.into_iter().map(|(root, problems)| read_node(&root, problems)).collect(),
        Err(problem) => vec![Err(sort_errors(vec![problem]))],
    }
}

/// Returns the text of the document with canonical spellings. Comments, order and line endings are preserved. Returns
/// `None` if the text cannot be edited without regenerating it.
pub fn respell_canonically(text: &str, layouts: &[&ParsedLayout]) -> Option<String> {
    let edits: Vec<SpellingEdit> = layouts.iter().flat_map(|parsed| parsed.edits.clone()).collect();
    let new = spelling_edits::apply_edits(text, &edits)?;
    let again = read_all_layouts(&new);
    let is_same = |(again, before): (&Result<ParsedLayout, Vec<Diagnostic>>, &&ParsedLayout)| {
        again.as_ref().is_ok_and(|again| again.layout == before.layout && again.is_canonical())
    };
    (again.len() == layouts.len() && again.iter().zip(layouts).all(is_same)).then_some(new)
}

/// Splits the text into layouts, each with the syntax problems in its part of the document.
fn split_layouts(text: &str) -> Result<Vec<(DocumentNode, Vec<Diagnostic>)>, Diagnostic> {
    let mut layouts = Vec::new();
    for (root, problems) in yaml_document::parse_yaml(text)? {
        let items = match root.value {
            NodeValue::List(items) => items,
            NodeValue::Map(entries) if entries.iter().any(|entry| entry.key == ANSIBLE_KEY) => {
                let list = entries.into_iter().find(|entry| entry.key == ANSIBLE_KEY).map(|entry| entry.node);
                match list.map(|node| node.value) {
                    Some(NodeValue::List(items)) => items,
                    _ => {
                        return Err(yaml_document::located_problem(
                            ANSIBLE_KEY,
                            root.mark,
                            "must be a list of layouts",
                        ));
                    }
                }
            }
            _ => vec![root],
        };
        let of = |node: &DocumentNode| -> Vec<Diagnostic> {
            let inside = |problem: &&Diagnostic| problem.place.starts_with(&node.place);
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
/// Fails as [`read_yaml`] does. Problems have a path but no line.
pub fn read_json(value: &serde_json::Value) -> Result<ParsedLayout, Vec<Diagnostic>> {
    let root = yaml_document::convert_json(value).map_err(|problem| sort_errors(vec![problem]))?;
    read_node(&root, Vec::new())
}

fn read_node(root: &DocumentNode, problems: Vec<Diagnostic>) -> Result<ParsedLayout, Vec<Diagnostic>> {
    let mut reader = LayoutReader::new(problems);
    if let Some(layout) = read_layout(&mut reader, root) {
        let broken = validate_except(&layout, &reader.unread);
        let broken: Vec<Diagnostic> =
            broken.into_iter().map(|problem| reader.source_map.locate_problem(problem)).collect();
        reader.problems.extend(broken);
        if reader.problems.is_empty() {
            let LayoutReader { notes, edits, source_map, .. } = reader;
            return Ok(ParsedLayout { layout, notes: sort_problems(notes), edits, source_map });
        }
    }
    Err(sort_errors(reader.problems))
}

/// Sorts the problems for which a layout is refused. A problem without a code of its own receives the general code of
/// layouts, so that every program prints the same code.
fn sort_errors(problems: Vec<Diagnostic>) -> Vec<Diagnostic> {
    sort_problems(problems).into_iter().map(|problem| problem.with_default_code(ErrorCode::Layout)).collect()
}

fn sort_problems(problems: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let mut problems: Vec<Diagnostic> = problems.into_iter().map(sanitize_problem).collect();
    problems.sort_by_key(|problem| (problem.line, problem.column));
    problems
}

/// Replaces control characters in a problem and limits its length, because a problem contains text from the document
/// and is printed to consoles and reports.
fn sanitize_problem(mut problem: Diagnostic) -> Diagnostic {
    for (text, most) in [(&mut problem.place, 200), (&mut problem.message, 1000)] {
        let plain = text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c });
        let longer = text.chars().nth(most).is_some();
        *text = plain.take(most).chain(longer.then_some('…')).collect();
    }
    problem
}

fn read_layout(reader: &mut LayoutReader, root: &DocumentNode) -> Option<Layout> {
    let fields = reader.read_fields_with_ignored(root, "", &LAYOUT, &LAYOUT_OF_V2)?;
    let id = reader.read_required(&fields, "id", "id should not be empty");
    let id = id.and_then(|node| reader.read_text(node, "id")).unwrap_or_default();
    Some(Layout {
        id,
        name: reader.read_optional_text(&fields, "name"),
        description: reader.read_optional_text(&fields, "description"),
        filesystems: reader.read_items(&fields, "filesystems", filesystems::read_filesystem),
        disks: reader.read_items(&fields, "disks", disks::read_disk),
        raid: reader.read_items(&fields, "raid", raid_lvm::read_array),
        volumegroups: reader.read_items(&fields, "volumegroups", raid_lvm::read_volume_group),
        logicalvolumes: reader.read_items(&fields, "logicalvolumes", raid_lvm::read_logical_volume),
        constraints: match fields.get("constraints") {
            Some(node) => read_constraints(reader, node).unwrap_or_default(),
            None => {
                let message =
                    "the layout has no constraints, so it is used only by allocations that specify this layout";
                reader.notes.push(located_problem("constraints", root.mark, message));
                LayoutConstraints::default()
            }
        },
        cleanfirmware: reader.read_flag(&fields, "cleanfirmware"),
    })
}

fn read_constraints(reader: &mut LayoutReader, node: &DocumentNode) -> Option<LayoutConstraints> {
    let fields = reader.read_fields(node, "constraints", &CONSTRAINTS)?;
    let sizes = reader.read_texts(&fields, "sizes");
    let mut constraints = LayoutConstraints { sizes, ..LayoutConstraints::default() };
    let Some(images) = fields.get("images") else { return Some(constraints) };
    match &images.value {
        NodeValue::Map(entries) => {
            for entry in entries {
                let place = child_path("constraints.images", &entry.key);
                reader.record_location(&place, &entry.node);
                if let Some(constraint) = read_image_constraint(reader, &entry.node, &place) {
                    constraints.images.insert(entry.key.clone(), constraint);
                }
            }
        }
        // In metal-stack's proposal, `images: []` marks a layout that is used only by allocations that specify its id.
        NodeValue::List(items) if items.is_empty() => {
            reader.record_respelling(
                images,
                EditReplacement::Raw("{}".to_owned()),
                "the value must be a mapping: write {}",
            );
        }
        _ => {
            let message = format!(
                "must be a mapping of OS to version constraint, but is {actual}",
                actual = images.describe_type()
            );
            reader.report_unreadable(images, "constraints.images", message);
        }
    }
    Some(constraints)
}

fn read_image_constraint(reader: &mut LayoutReader, node: &DocumentNode, place: &str) -> Option<String> {
    let constraint = reader.read_text(node, place)?;
    Some(match image_version_constraints::insert_blank(&constraint) {
        Some(canonical) => {
            let message = format!("insert a space between operator and version: \"{canonical}\"");
            reader.record_respelling(node, EditReplacement::Raw(format!("{canonical:?}")), message);
            canonical
        }
        None => constraint,
    })
}

/// Reads create options. metal-hammer 0.11.7 and later versions require one argument per item. For earlier versions,
/// items with several arguments such as `-F 32` were common, so such items are split.
fn read_create_options(reader: &mut LayoutReader, fields: &LayoutFields) -> Vec<String> {
    let options = match reader.split_string(fields, "createoptions", split_at_blanks) {
        Some(options) => options,
        None => reader.read_items(fields, "createoptions", split_words).concat(),
    };
    if let Some(node) = fields.get("createoptions")
        && options.iter().any(|option| option.contains(['"', '\'']))
    {
        reader.report(
            node,
            "remove the quotes from createoptions: the options are not interpreted by a shell, so the command would receive the quotes",
        );
    }
    options
}

fn split_words(reader: &mut LayoutReader, node: &DocumentNode, place: &str) -> Option<Vec<String>> {
    let text = reader.read_text(node, place)?;
    let words = split_at_blanks(&text);
    if words.is_empty() || words == [text.as_str()] {
        return Some(vec![text]);
    }
    let items = words.iter().map(|word| format!("{word:?}")).collect();
    reader.record_respelling(
        node,
        EditReplacement::Items(items),
        format!("write one word per item: {words}", words = quote_words(&words)),
    );
    Some(words.into_iter().map(str::to_owned).collect())
}

fn split_at_blanks(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// Reads a required value that must be in the list `known`. `called` is the name of the value in metal-api's error
/// message.
pub(super) fn read_one_of<T: Copy>(
    reader: &mut LayoutReader,
    fields: &LayoutFields,
    name: &str,
    called: &str,
    known: &[(&str, T)],
) -> Option<T> {
    let node = reader.read_required(fields, name, &format!("{name} is missing"))?;
    let (text, _) = reader.read_scalar(node, &fields.path_of(name))?;
    let found = known.iter().find(|(spelling, _)| *spelling == text).or_else(|| {
        let found = known.iter().find(|(spelling, _)| *spelling == without_prefix(text, called))?;
        let quoted = if found.0.parse::<u8>().is_ok() {
            EditReplacement::Raw(format!("{:?}", found.0))
        } else {
            EditReplacement::Text(found.0.to_owned())
        };
        reader.record_respelling(node, quoted, format!("the canonical value is \"{value}\"", value = found.0));
        Some(found)
    });
    if found.is_none() {
        let all = known.iter().map(|(spelling, _)| *spelling).collect::<Vec<_>>().join(",");
        let message = format!("given {called}:{text} is not supported, but:{all}");
        reader.report_unreadable(node, &fields.path_of(name), message);
    }
    found.map(|(_, value)| *value)
}

/// Removes the prefix that metal-stack's v2 API adds to values: `FORMAT_EXT4` becomes `ext4`.
fn without_prefix(text: &str, called: &str) -> String {
    let plain = normalize_name(text);
    plain.strip_prefix(called).map(str::to_owned).unwrap_or(plain)
}
