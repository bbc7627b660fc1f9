//! Layout trees on a terminal: a line for each device, at most 100 columns if the names permit.
//!
//! An object on several devices is drawn under the first one; the others refer to it.

use crate::layout::tree::{Graph, Item};
use crate::layout::{Filesystem, Format};
use crate::picture::words;
use crate::text::terminal::Style;
use crate::text::{counted, padded, width};
use std::fmt::Write as _;

const COLUMNS: usize = 100;
/// Minimum width of the details column. With less room, details are printed on separate lines.
const LEAST_DETAILS: usize = 26;
/// Maximum width of a device name. A longer name is printed on a separate line.
const LONGEST_NAME: usize = 36;

const HEADINGS: [&str; 4] = ["size", "type", "becomes", "mounted at"];

const BOLD: Option<Style> = Some(Style::Bold);
const DIM: Option<Style> = Some(Style::Dim);
const WIPED: Option<Style> = Some(Style::BoldRed);
const KEPT: Option<Style> = Some(Style::BoldGreen);
const MOUNTED: Option<Style> = Some(Style::Cyan);

/// Returns the drawing, in colour for a terminal.
pub(super) fn draw(graph: &Graph, colour: bool) -> String {
    let mut painter = Painter { graph, drawn: vec![false; graph.nodes.len()], rows: Vec::new() };
    for root in graph.roots() {
        painter.subtree(root);
    }
    let mut text = title(graph, colour);
    text.push_str(&table(&painter.rows, colour));
    if !graph.layout.disks.is_empty() {
        text.push_str("\nA first installation erases every disk listed here, a reinstall those with WIPE.\n");
    }
    text
}

fn title(graph: &Graph, colour: bool) -> String {
    let layout = graph.layout;
    let mut text = paint(&plain(&format!("layout {}", layout.id)), BOLD, colour);
    for more in [&layout.name, &layout.description].into_iter().flatten() {
        let _ = write!(text, "  \"{}\"", plain(more));
    }
    let purpose = wrapped(&[plain(&words::purpose(graph))], COLUMNS - 4).join(
        "
    ",
    );
    format!("{text}\n{purpose}\n\n")
}

/// Line of a device.
struct Row {
    /// Tree lines before the name, and before its continuation lines.
    lines: String,
    lines_below: String,
    name: String,
    cells: [String; 4],
    details: Vec<String>,
}

struct Painter<'a> {
    graph: &'a Graph<'a>,
    drawn: Vec<bool>,
    rows: Vec<Row>,
}

/// Node waiting to be drawn, with the tree lines before it and before its children, and the disk that it is on.
struct Open {
    node: usize,
    lines: String,
    below: String,
    disk: String,
}

impl Painter<'_> {
    /// Draws a root and everything above it. Iterative, since a layout may stack a thousand arrays.
    fn subtree(&mut self, root: usize) {
        let graph = self.graph;
        let mut open = vec![Open { node: root, lines: String::new(), below: String::new(), disk: String::new() }];
        while let Some(Open { node, lines, below, disk }) = open.pop() {
            let becomes = self.becomes(node);
            let above = graph.nodes[node].above.iter().copied();
            let children: Vec<usize> = above.filter(|above| !self.drawn[*above] && !self.is_content(*above)).collect();
            let continued = if children.is_empty() { format!("{below}   ") } else { format!("{below}│  ") };
            self.rows.push(self.row(node, becomes, &lines, &continued, &disk));
            let disk = match graph.nodes[node].item {
                Item::Disk(_) => graph.nodes[node].name.as_str(),
                _ => "",
            };
            for (index, child) in children.iter().enumerate().rev() {
                self.drawn[*child] = true;
                let (corner, line) =
                    if index + 1 == children.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
                let (lines, below) = (format!("{below}{corner}"), format!("{below}{line}"));
                open.push(Open { node: *child, lines, below, disk: disk.to_owned() });
            }
        }
    }

    /// Returns whether the node is a filesystem that is shown in the line of its device.
    fn is_content(&self, node: usize) -> bool {
        matches!(self.graph.nodes[node].item, Item::Filesystem(filesystem) if filesystem.format != Format::Tmpfs)
    }

    fn row(&self, node: usize, becomes: String, lines: &str, lines_below: &str, disk: &str) -> Row {
        let item = self.graph.nodes[node].item;
        let own = match item {
            Item::Filesystem(filesystem) => Some(filesystem),
            _ => None,
        };
        let contents: Vec<&Filesystem> = own.into_iter().chain(self.contents(node)).collect();
        let joined =
            |words: Vec<String>| words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" + ");
        let mut details = words::details(self.graph, node);
        if own.is_none() {
            details.extend(contents.iter().flat_map(|filesystem| words::options(filesystem)));
        }
        let kind = if own.is_some() { "memory".to_owned() } else { words::kind(item) };
        let mounted = joined(contents.iter().map(|filesystem| words::mount_point(filesystem)).collect());
        Row {
            lines: lines.to_owned(),
            lines_below: lines_below.to_owned(),
            name: plain(&name(self.graph.nodes[node].name.as_str(), item, disk)),
            cells: [words::node_size(item), kind, becomes, mounted].map(|cell| plain(&cell)),
            details: details.iter().map(|detail| plain(detail)).collect(),
        }
    }

    fn contents(&self, node: usize) -> Vec<&Filesystem> {
        let above = self.graph.nodes[node].above.iter();
        let items = above.map(|above| self.graph.nodes[*above].item);
        items.filter_map(|item| if let Item::Filesystem(filesystem) = item { Some(filesystem) } else { None }).collect()
    }

    fn becomes(&self, node: usize) -> String {
        let items = || self.graph.nodes[node].above.iter().map(|above| self.graph.nodes[*above].item);
        let partitions = items().filter(|item| matches!(item, Item::Partition(_))).count();
        let volumes = items().filter(|item| matches!(item, Item::Volume(_))).count();
        let mut words = Vec::new();
        if let Item::Filesystem(filesystem) = self.graph.nodes[node].item {
            words.push(words::content(filesystem));
        }
        if partitions > 0 {
            words.push(counted(partitions, "partition", "partitions"));
        }
        if volumes > 0 {
            words.push(counted(volumes, "volume", "volumes"));
        }
        words.extend(self.graph.nodes[node].above.iter().filter_map(|above| self.becomes_part_of(node, *above)));
        if words.is_empty() { "unused".to_owned() } else { words.join(" + ") }
    }

    fn becomes_part_of(&self, node: usize, above: usize) -> Option<String> {
        let name = words::short(self.graph.nodes[above].name.as_str());
        let elsewhere = if self.drawn[above] { ", above" } else { "" };
        match self.graph.nodes[above].item {
            Item::Array(_) if self.graph.is_spare(above, node) => Some(format!("spare of {name}{elsewhere}")),
            Item::Array(_) => Some(format!("member of {name}{elsewhere}")),
            Item::Group(_) => Some(format!("PV of {name}{elsewhere}")),
            Item::Filesystem(filesystem) => Some(words::content(filesystem)),
            _ => None,
        }
    }
}

/// Returns the displayed name of a device. A partition of a disk with a long path is shown as its suffix.
fn name(device: &str, item: Item, disk: &str) -> String {
    match item {
        Item::Filesystem(_) => "tmpfs".to_owned(),
        Item::Partition(_) if disk.len() > 20 => match device.strip_prefix(disk) {
            Some(rest) => format!("…{rest}"),
            None => words::short(device).to_owned(),
        },
        _ => words::short(device).to_owned(),
    }
}

fn table(rows: &[Row], colour: bool) -> String {
    let long = |row: &Row| width(&row.lines) + width(&row.name) > LONGEST_NAME;
    let names = rows.iter().filter(|row| !long(row)).map(|row| width(&row.lines) + width(&row.name));
    let first = names.chain([width("device")]).max().unwrap_or_default();
    let mut widths = HEADINGS.map(width);
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(&row.cells) {
            *widest = (*widest).max(width(cell));
        }
    }
    let left = first + 2 + widths.iter().map(|width| width + 2).sum::<usize>();
    let beside = left + LEAST_DETAILS <= COLUMNS;
    let details_at = if beside { left } else { first + 2 + widths[0] + 2 };
    let table = Table { first, widths, beside, details_at, colour };
    let mut text = table.headings();
    for row in rows {
        table.row(&mut text, row, long(row));
    }
    text
}

struct Table {
    first: usize,
    widths: [usize; 4],
    /// Whether the details are printed in a column next to the others, and not on separate lines.
    beside: bool,
    details_at: usize,
    colour: bool,
}

impl Table {
    fn headings(&self) -> String {
        let mut line = padded("device", self.first) + "  ";
        for (heading, width) in HEADINGS.iter().zip(self.widths) {
            line += &(padded(heading, width) + "  ");
        }
        if self.beside {
            line.push_str("options");
        }
        paint(line.trim_end(), DIM, self.colour) + "\n"
    }

    fn row(&self, text: &mut String, row: &Row, long: bool) {
        let name = paint(&row.name, BOLD, self.colour);
        let mut line = format!("{}{name}", paint(&row.lines, DIM, self.colour));
        let mut at = width(&row.lines) + width(&row.name);
        if long {
            text.push_str(line.trim_end());
            text.push('\n');
            line = paint(&row.lines_below, DIM, self.colour);
            at = width(&row.lines_below);
        }
        line += &padded("", (self.first + 2).saturating_sub(at));
        for (index, (cell, width)) in row.cells.iter().zip(self.widths).enumerate() {
            let style = match (index, cell.rsplit_once("  ")) {
                (1, Some((_, "WIPE"))) => WIPED,
                (1, Some((_, "keep"))) => KEPT,
                (3, _) => MOUNTED,
                _ => None,
            };
            let padding = padded("", width + 2 - self::width(cell));
            line += &(paint(cell, style, self.colour) + &padding);
        }
        let mut details = wrapped(&row.details, COLUMNS - self.details_at.min(COLUMNS - LEAST_DETAILS)).into_iter();
        if self.beside
            && let Some(first) = details.next()
        {
            line.push_str(&first);
        }
        text.push_str(line.trim_end());
        text.push('\n');
        for more in details {
            let padding = padded("", self.details_at.saturating_sub(width(&row.lines_below)));
            let line = paint(&row.lines_below, DIM, self.colour) + &padding + &more;
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
}

fn paint(text: &str, style: Option<Style>, colour: bool) -> String {
    let style = style.filter(|_| colour && !text.is_empty());
    style.map_or_else(|| text.to_owned(), |style| style.paint(text))
}

/// Replaces control characters: a label must not move the cursor.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Wraps items into lines of at most `most` characters. Items are joined in a line; a longer item is broken at blanks.
fn wrapped(items: &[String], most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for item in items {
        let mut separator = " · ";
        let whole = [item.as_str()];
        let words: Vec<&str> = item.split(' ').filter(|word| !word.is_empty()).collect();
        for part in if width(item) <= most { &whole } else { words.as_slice() } {
            match lines.last_mut() {
                Some(line) if width(line) + width(separator) + width(part) <= most => {
                    line.push_str(separator);
                    line.push_str(part);
                }
                _ => lines.push((*part).to_owned()),
            }
            separator = " ";
        }
    }
    lines
}
