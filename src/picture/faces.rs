//! Text in the boxes of the diagram, line by line.

use super::words;
use crate::layout::tree::{Graph, Item};

/// Maximum number of characters in a line of a box; longer text is wrapped.
const LINE: usize = 30;

/// A box before its placement.
pub(super) struct Face {
    /// Device, group or mount point; usually one line.
    pub name: Vec<String>,
    pub lines: Vec<String>,
    /// Whether a reinstall erases the disk; `None` for other nodes.
    pub wipe: Option<bool>,
    /// Summary in one sentence, with the full path of the device.
    pub tooltip: String,
}

pub(super) fn face(graph: &Graph, node: usize) -> Face {
    let item = graph.nodes[node].item;
    let name = name(graph, node);
    let mut details = words::details(graph, node);
    let (wipe, unused) = match item {
        Item::Disk(disk) => (Some(disk.wipeonreinstall), true),
        Item::Filesystem(_) => (None, false),
        _ => (None, true),
    };
    let mut tooltip = vec![graph.nodes[node].name.to_string(), kind(item)];
    tooltip.extend(wipe.map(|wipe| words::on_reinstall(wipe).to_owned()));
    tooltip.extend(details.iter().cloned());
    if unused && graph.nodes[node].above.is_empty() {
        details.insert(0, "unused".to_owned());
    }
    let lines = std::iter::once(kind(item)).chain(joined(details)).filter(|line| !line.is_empty());
    Face {
        name: folded(&plain(&name)),
        lines: lines.flat_map(|line| folded(&plain(&line))).collect(),
        wipe,
        tooltip: plain(&tooltip.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")),
    }
}

fn name(graph: &Graph, node: usize) -> String {
    let Item::Filesystem(filesystem) = graph.nodes[node].item else {
        return words::short(graph.nodes[node].name.as_str()).to_owned();
    };
    match words::mount_point(filesystem) {
        nowhere if nowhere.is_empty() => "not mounted".to_owned(),
        point => point,
    }
}

fn kind(item: Item) -> String {
    match item {
        // The heading of the column shows the type.
        Item::Disk(_) | Item::Group(_) => String::new(),
        Item::Partition(_) | Item::Volume(_) => format!("{} · {}", words::node_size(item), words::kind(item)),
        _ => words::kind(item),
    }
}

/// Joins short details on one line.
fn joined(details: Vec<String>) -> Vec<String> {
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

/// Splits text into lines of at most [`LINE`] characters, at a blank, else after a component of a path or list, else anywhere.
fn folded(text: &str) -> Vec<String> {
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

/// Replaces control characters, which XML does not allow, not even escaped (XML 1.0, 2.2).
pub(super) fn plain(text: &str) -> String {
    let known = |c: char| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|c| if known(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}
