//! Text in the boxes of the diagram, as lines.

use super::node_text;
use model::layout::graph::{LayoutGraph, LayoutItem};

/// Maximum number of characters in a line of a box; longer text is wrapped.
const LINE: usize = 30;

/// Contents of a box, before its position is known.
pub(super) struct BoxContents {
    /// Name of the device or group, or the mount point; usually one line.
    pub name: Vec<String>,
    pub lines: Vec<String>,
    /// True if a reinstall erases the disk; `None` for a box that is not a disk.
    pub wipe: Option<bool>,
    /// Summary in one line, with the full path of the device.
    pub tooltip: String,
}

pub(super) fn build_box_contents(graph: &LayoutGraph, node: usize) -> BoxContents {
    let item = graph.nodes[node].item;
    let name = box_name(graph, node);
    let mut details = node_text::describe_details(graph, node);
    let (wipe, unused) = match item {
        LayoutItem::Disk(disk) => (Some(disk.wipeonreinstall), true),
        LayoutItem::Filesystem(_) => (None, false),
        _ => (None, true),
    };
    let mut tooltip = vec![graph.nodes[node].name.to_string(), type_line(item)];
    tooltip.extend(wipe.map(|wipe| node_text::reinstall_badge(wipe).to_owned()));
    tooltip.extend(details.iter().cloned());
    if unused && graph.nodes[node].above.is_empty() {
        details.insert(0, "unused".to_owned());
    }
    let lines = std::iter::once(type_line(item)).chain(join_details(details)).filter(|line| !line.is_empty());
    BoxContents {
        name: wrap_text(&strip_control_characters(&name)),
        lines: lines.flat_map(|line| wrap_text(&strip_control_characters(&line))).collect(),
        wipe,
        tooltip: strip_control_characters(
            &tooltip.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · "),
        ),
    }
}

fn box_name(graph: &LayoutGraph, node: usize) -> String {
    let LayoutItem::Filesystem(filesystem) = graph.nodes[node].item else {
        return node_text::strip_dev(graph.nodes[node].name.as_str()).to_owned();
    };
    match node_text::mount_point(filesystem) {
        nowhere if nowhere.is_empty() => "not mounted".to_owned(),
        point => point,
    }
}

fn type_line(item: LayoutItem) -> String {
    match item {
        // No type is written for disks and groups, because the heading of their column shows it.
        LayoutItem::Disk(_) | LayoutItem::Group(_) => String::new(),
        LayoutItem::Partition(_) | LayoutItem::Volume(_) => {
            format!("{} · {}", node_text::node_size(item), node_text::describe_type(item))
        }
        _ => node_text::describe_type(item),
    }
}

/// Joins successive details into one line, as long as they fit.
fn join_details(details: Vec<String>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for detail in details {
        match lines.last_mut() {
            Some(line) if line.chars().count() + detail.chars().count() + 3 <= LINE => {
                line.push_str(" · ");
                line.push_str(&detail);
            }
            _ => lines.push(detail),
        }
    }
    lines
}

/// Splits text into lines of at most [`LINE`] characters. Lines are split at blanks; a line without a blank is split
/// after a separator of a path or list, or else at any character.
fn wrap_text(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest: Vec<char> = text.chars().collect();
    while rest.len() > LINE {
        let blank = rest[1..=LINE].iter().rposition(|c| c.is_whitespace()).map(|at| at + 1);
        let part = rest[1..LINE].iter().rposition(|c| matches!(c, ',' | '/' | '-' | ':' | '=')).map(|at| at + 2);
        let next = rest.split_off(blank.or(part).unwrap_or(LINE));
        lines.push(rest.iter().collect::<String>().trim().to_owned());
        rest = next;
    }
    lines.push(rest.iter().collect::<String>().trim().to_owned());
    lines
}

/// Replaces control characters, because XML does not allow them even in escaped form (XML 1.0, 2.2).
pub(super) fn strip_control_characters(text: &str) -> String {
    let known = |c: char| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|c| if known(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}
