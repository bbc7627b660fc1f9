//! Layout tree on a terminal, with a line for each device. It is at most 100 columns wide if the names are short
//! enough.
//!
//! An object on several devices is drawn under the first of them. The rows of the other devices refer to the object.

use common::format::terminal_escaping::TextStyle;
use common::format::{display_width, format_count, pad_to_width};
use diagram::node_text;
use model::layout::graph::{LayoutGraph, LayoutItem};
use model::layout::{FilesystemFormat, FilesystemSpec};
use std::fmt::Write as _;

const COLUMNS: usize = 100;
/// Minimum width of the column with details, in characters. If less space remains, the details are printed in separate
/// lines.
const MINIMUM_DETAILS_WIDTH: usize = 26;
/// Maximum width of a device name in the tree, in characters. A longer name is printed in a separate line.
const LONGEST_NAME: usize = 36;

const HEADINGS: [&str; 4] = ["size", "type", "becomes", "mounted at"];

const BOLD: Option<TextStyle> = Some(TextStyle::Bold);
const DIM: Option<TextStyle> = Some(TextStyle::Dim);
const WIPED: Option<TextStyle> = Some(TextStyle::BoldRed);
const PRESERVED_STYLE: Option<TextStyle> = Some(TextStyle::BoldGreen);
const MOUNTED: Option<TextStyle> = Some(TextStyle::Cyan);

/// Returns the tree, in color if `colour` is true.
pub(super) fn draw_tree(graph: &LayoutGraph, color: bool) -> String {
    let mut painter = TreePainter { graph, drawn: vec![false; graph.nodes.len()], rows: Vec::new() };
    for root in graph.roots() {
        painter.draw_subtree(root);
    }
    let mut text = draw_title(graph, color);
    text.push_str(&draw_table(&painter.rows, color));
    if !graph.layout.disks.is_empty() {
        text.push_str(
            "\nA first installation erases every disk listed here; a reinstall erases only the disks marked WIPE.\n",
        );
    }
    text
}

fn draw_title(graph: &LayoutGraph, color: bool) -> String {
    let layout = graph.layout;
    let mut text = paint(&replace_control_chars(&format!("layout {}", layout.id)), BOLD, color);
    for more in [&layout.name, &layout.description].into_iter().flatten() {
        let _ = write!(text, "  \"{}\"", replace_control_chars(more));
    }
    let purpose = wrap_items(&[replace_control_chars(&node_text::describe_purpose(graph))], COLUMNS - 4).join(
        "
    ",
    );
    format!("{text}\n{purpose}\n\n")
}

/// Row of a device in the tree.
struct TreeRow {
    /// Tree lines in front of the name. `lines_below` are the tree lines in front of the continuation lines of the row.
    lines: String,
    lines_below: String,
    name: String,
    cells: [String; 4],
    details: Vec<String>,
}

struct TreePainter<'a> {
    graph: &'a LayoutGraph<'a>,
    drawn: Vec<bool>,
    rows: Vec<TreeRow>,
}

/// Node that must still be drawn, with the tree lines in front of it, the tree lines in front of its children, and its
/// disk.
struct PendingNode {
    node: usize,
    lines: String,
    below: String,
    disk: String,
}

impl TreePainter<'_> {
    /// Draws a device and everything on top of it. The function is not recursive, because a layout may stack a thousand
    /// arrays.
    fn draw_subtree(&mut self, root: usize) {
        let graph = self.graph;
        let mut open =
            vec![PendingNode { node: root, lines: String::new(), below: String::new(), disk: String::new() }];
        while let Some(PendingNode { node, lines, below, disk }) = open.pop() {
            let becomes = self.describe_use(node);
            let above = graph.nodes[node].above.iter().copied();
            let children: Vec<usize> = above.filter(|above| !self.drawn[*above] && !self.is_content(*above)).collect();
            let continued = if children.is_empty() { format!("{below}   ") } else { format!("{below}│  ") };
            self.rows.push(self.build_row(node, becomes, &lines, &continued, &disk));
            let disk = match graph.nodes[node].item {
                LayoutItem::Disk(_) => graph.nodes[node].name.as_str(),
                _ => "",
            };
            for (index, child) in children.iter().enumerate().rev() {
                self.drawn[*child] = true;
                let (corner, line) =
                    if index + 1 == children.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
                let (lines, below) = (format!("{below}{corner}"), format!("{below}{line}"));
                open.push(PendingNode { node: *child, lines, below, disk: disk.to_owned() });
            }
        }
    }

    /// Returns whether the node is a filesystem on a device, which is drawn in the row of the device.
    fn is_content(&self, node: usize) -> bool {
        matches!(self.graph.nodes[node].item, LayoutItem::Filesystem(filesystem) if filesystem.format != FilesystemFormat::Tmpfs)
    }

    fn build_row(&self, node: usize, becomes: String, lines: &str, lines_below: &str, disk: &str) -> TreeRow {
        let item = self.graph.nodes[node].item;
        let own = match item {
            LayoutItem::Filesystem(filesystem) => Some(filesystem),
            _ => None,
        };
        let contents: Vec<&FilesystemSpec> = own.into_iter().chain(self.filesystems_on(node)).collect();
        let joined =
            |words: Vec<String>| words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" + ");
        let mut details = node_text::describe_details(self.graph, node);
        if own.is_none() {
            details.extend(contents.iter().flat_map(|filesystem| node_text::describe_options(filesystem)));
        }
        let kind = if own.is_some() { "memory".to_owned() } else { node_text::describe_type(item) };
        let mounted = joined(contents.iter().map(|filesystem| node_text::mount_point(filesystem)).collect());
        TreeRow {
            lines: lines.to_owned(),
            lines_below: lines_below.to_owned(),
            name: replace_control_chars(&display_name(self.graph.nodes[node].name.as_str(), item, disk)),
            cells: [node_text::node_size(item), kind, becomes, mounted].map(|cell| replace_control_chars(&cell)),
            details: details.iter().map(|detail| replace_control_chars(detail)).collect(),
        }
    }

    fn filesystems_on(&self, node: usize) -> Vec<&FilesystemSpec> {
        let above = self.graph.nodes[node].above.iter();
        let items = above.map(|above| self.graph.nodes[*above].item);
        items
            .filter_map(|item| if let LayoutItem::Filesystem(filesystem) = item { Some(filesystem) } else { None })
            .collect()
    }

    fn describe_use(&self, node: usize) -> String {
        let items = || self.graph.nodes[node].above.iter().map(|above| self.graph.nodes[*above].item);
        let partitions = items().filter(|item| matches!(item, LayoutItem::Partition(_))).count();
        let volumes = items().filter(|item| matches!(item, LayoutItem::Volume(_))).count();
        let mut words = Vec::new();
        if let LayoutItem::Filesystem(filesystem) = self.graph.nodes[node].item {
            words.push(node_text::describe_content(filesystem));
        }
        if partitions > 0 {
            words.push(format_count(partitions, "partition", "partitions"));
        }
        if volumes > 0 {
            words.push(format_count(volumes, "volume", "volumes"));
        }
        words.extend(self.graph.nodes[node].above.iter().filter_map(|above| self.describe_parent(node, *above)));
        if words.is_empty() { "unused".to_owned() } else { words.join(" + ") }
    }

    fn describe_parent(&self, node: usize, above: usize) -> Option<String> {
        let name = node_text::strip_dev(self.graph.nodes[above].name.as_str());
        let elsewhere = if self.drawn[above] { ", above" } else { "" };
        match self.graph.nodes[above].item {
            LayoutItem::Array(_) if self.graph.is_spare(above, node) => Some(format!("spare of {name}{elsewhere}")),
            LayoutItem::Array(_) => Some(format!("member of {name}{elsewhere}")),
            LayoutItem::Group(_) => Some(format!("PV of {name}{elsewhere}")),
            LayoutItem::Filesystem(filesystem) => Some(node_text::describe_content(filesystem)),
            _ => None,
        }
    }
}

/// Returns the name of a device in the tree. For a partition of a disk with a long path, `…` replaces this path.
fn display_name(device: &str, item: LayoutItem, disk: &str) -> String {
    match item {
        LayoutItem::Filesystem(_) => "tmpfs".to_owned(),
        LayoutItem::Partition(_) if disk.len() > 20 => match device.strip_prefix(disk) {
            Some(rest) => format!("…{rest}"),
            None => node_text::strip_dev(device).to_owned(),
        },
        _ => node_text::strip_dev(device).to_owned(),
    }
}

fn draw_table(rows: &[TreeRow], color: bool) -> String {
    let long = |row: &TreeRow| display_width(&row.lines) + display_width(&row.name) > LONGEST_NAME;
    let names = rows.iter().filter(|row| !long(row)).map(|row| display_width(&row.lines) + display_width(&row.name));
    let first = names.chain([display_width("device")]).max().unwrap_or_default();
    let mut widths = HEADINGS.map(display_width);
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(&row.cells) {
            *widest = (*widest).max(display_width(cell));
        }
    }
    let left = first + 2 + widths.iter().map(|width| width + 2).sum::<usize>();
    let beside = left + MINIMUM_DETAILS_WIDTH <= COLUMNS;
    let details_at = if beside { left } else { first + 2 + widths[0] + 2 };
    let table = TreeTable { first, widths, beside, details_at, color };
    let mut text = table.draw_headings();
    for row in rows {
        table.draw_row(&mut text, row, long(row));
    }
    text
}

struct TreeTable {
    first: usize,
    widths: [usize; 4],
    /// True if the details are in a column of the table, and false if they are in separate lines.
    beside: bool,
    details_at: usize,
    color: bool,
}

impl TreeTable {
    fn draw_headings(&self) -> String {
        let mut line = pad_to_width("device", self.first) + "  ";
        for (heading, width) in HEADINGS.iter().zip(self.widths) {
            line += &(pad_to_width(heading, width) + "  ");
        }
        if self.beside {
            line.push_str("options");
        }
        paint(line.trim_end(), DIM, self.color) + "\n"
    }

    fn draw_row(&self, text: &mut String, row: &TreeRow, long: bool) {
        let name = paint(&row.name, BOLD, self.color);
        let mut line = format!("{}{name}", paint(&row.lines, DIM, self.color));
        let mut at = display_width(&row.lines) + display_width(&row.name);
        if long {
            text.push_str(line.trim_end());
            text.push('\n');
            line = paint(&row.lines_below, DIM, self.color);
            at = display_width(&row.lines_below);
        }
        line += &pad_to_width("", (self.first + 2).saturating_sub(at));
        for (index, (cell, width)) in row.cells.iter().zip(self.widths).enumerate() {
            let style = match (index, cell.rsplit_once("  ")) {
                (1, Some((_, "WIPE"))) => WIPED,
                (1, Some((_, "keep"))) => PRESERVED_STYLE,
                (3, _) => MOUNTED,
                _ => None,
            };
            let padding = pad_to_width("", width + 2 - self::display_width(cell));
            line += &(paint(cell, style, self.color) + &padding);
        }
        let mut details =
            wrap_items(&row.details, COLUMNS - self.details_at.min(COLUMNS - MINIMUM_DETAILS_WIDTH)).into_iter();
        if self.beside
            && let Some(first) = details.next()
        {
            line.push_str(&first);
        }
        text.push_str(line.trim_end());
        text.push('\n');
        for more in details {
            let padding = pad_to_width("", self.details_at.saturating_sub(display_width(&row.lines_below)));
            let line = paint(&row.lines_below, DIM, self.color) + &padding + &more;
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
}

fn paint(text: &str, style: Option<TextStyle>, color: bool) -> String {
    let style = style.filter(|_| color && !text.is_empty());
    style.map_or_else(|| text.to_owned(), |style| style.paint_text(text))
}

/// Replaces control characters in a string, so that, for example, a label cannot move the cursor.
fn replace_control_chars(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Wraps items into lines of at most `most` characters. Items share a line if they fit. An item that is longer than a
/// line is wrapped at its spaces.
fn wrap_items(items: &[String], most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for item in items {
        let mut separator = " · ";
        let whole = [item.as_str()];
        let words: Vec<&str> = item.split(' ').filter(|word| !word.is_empty()).collect();
        for part in if display_width(item) <= most { &whole } else { words.as_slice() } {
            match lines.last_mut() {
                Some(line) if display_width(line) + display_width(separator) + display_width(part) <= most => {
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
