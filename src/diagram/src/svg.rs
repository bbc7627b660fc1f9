//! Output of the diagram as SVG. The columns of the diagram lead from the disks on the left to the mount points on the
//! right.
//!
//! The colors are the palette of Okabe and Ito, which color-blind people can distinguish, and no information is
//! conveyed by color alone. Text of the layout is written only to text nodes, because the crate `svg` does not escape
//! quotes in attributes.

use super::box_text_content::{BoxContents, build_box_contents, strip_control_characters};
use super::node_text;
use super::placement::{Connector, Rect, place_nodes};
use common::format::format_count;
use model::layout::FilesystemFormat;
use model::layout::graph::{LayoutGraph, LayoutItem};
use svg::Document;
use svg::node::element::{Circle, Description, Group, Path, Rectangle, Text, Title};

const SANS: &str = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif";
const MONO: &str = "'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace";
const INK: &str = "#1a1a1a";
const FAINT: &str = "#595959";
const MARGIN: f64 = 36.0;
const MINIMUM_WIDTH_PX: f64 = 620.0;
/// Height of a text line in a box, in pixels.
const LINE_HEIGHT: f64 = 17.0;
const PADDING: f64 = 9.0;
const BADGE_HEIGHT: f64 = 18.0;
/// Width of a character of the DejaVu fonts, in pixels. The other fonts of the diagram are narrower.
const MONO_WIDTH: f64 = 8.5;
const SANS_WIDTH: f64 = 6.9;

/// Appearance of a node type: column heading, and border and fill colors of the box.
struct BoxStyle {
    heading: &'static str,
    edge: &'static str,
    fill: &'static str,
}

const DISK: BoxStyle = BoxStyle { heading: "disks", edge: "#4d4d4d", fill: "#eeeeee" };

fn box_style(item: LayoutItem) -> BoxStyle {
    let (heading, edge, fill) = match item {
        LayoutItem::Disk(_) => return DISK,
        LayoutItem::Partition(_) => ("partitions", "#0072b2", "#e2f0fa"),
        LayoutItem::Array(_) => ("arrays", "#c77700", "#fdf0d8"),
        LayoutItem::Group(_) => ("volume groups", "#00795a", "#def3ea"),
        LayoutItem::Volume(_) => ("logical volumes", "#a8477f", "#f8e7f1"),
        LayoutItem::Filesystem(_) => ("filesystems", "#6b6100", "#fbf7d3"),
        LayoutItem::Missing => ("missing", "#b23a00", "#ffffff"),
    };
    BoxStyle { heading, edge, fill }
}

/// Draws the whole diagram, and returns the content of an SVG file.
pub fn draw_svg(graph: &LayoutGraph) -> String {
    let faces: Vec<BoxContents> = (0..graph.nodes.len()).map(|node| build_box_contents(graph, node)).collect();
    let sizes: Vec<(f64, f64)> = faces.iter().map(box_size).collect();
    let placed = place_nodes(graph, &sizes);
    let (head, top) = draw_head(graph);
    let foot = MARGIN + top + placed.height + 46.0;
    let width = (placed.width.max(MINIMUM_WIDTH_PX) + 2.0 * MARGIN).max(head_width(graph));
    let height = foot + 56.0;

    let mut drawing = Group::new().set("transform", format!("translate({MARGIN} {})", MARGIN + top));
    for (x, _, node) in &placed.columns {
        drawing = drawing.add(draw_heading(*x, &box_style(graph.nodes[*node].item)));
    }
    for line in &placed.lines {
        let spare = graph.is_spare(line.to, line.from);
        drawing = drawing.add(draw_connection(line, box_style(graph.nodes[line.from].item).edge, spare, "spare"));
    }
    for (node, face) in faces.iter().enumerate() {
        drawing = drawing.add(draw_box(face, &placed.boxes[node], &box_style(graph.nodes[node].item)));
    }
    let document = Document::new()
        .set("viewBox", format!("0 0 {width} {height}"))
        .set("width", width)
        .set("height", height)
        .set("role", "img")
        .set("aria-labelledby", "title description")
        .set("font-family", SANS)
        .set("fill", INK)
        .add(Title::new(strip_control_characters(&format!("Storage layout {}", graph.layout.id))).set("id", "title"))
        .add(Description::new().set("id", "description").add(svg::node::Text::new(describe_diagram(graph))))
        .add(Rectangle::new().set("width", width).set("height", height).set("fill", "#ffffff"))
        .add(head)
        .add(drawing)
        .add(draw_legend(graph).set("transform", format!("translate({MARGIN} {foot})")));
    document.to_string() + "\n"
}

fn text_element(x: f64, y: f64, size: f64, content: &str) -> Text {
    Text::new(content).set("x", x).set("y", y).set("font-size", size)
}

fn box_size(face: &BoxContents) -> (f64, f64) {
    let widest =
        |lines: &[String], width: f64| lines.iter().map(|line| line.chars().count() as f64 * width).fold(0.0, f64::max);
    let badge = if face.wipe.is_some() { BADGE_HEIGHT + 5.0 } else { 0.0 };
    let lines = (face.name.len() + face.lines.len()) as f64;
    let width = widest(&face.name, MONO_WIDTH).max(widest(&face.lines, SANS_WIDTH)) + 2.0 * PADDING + 8.0;
    (width.max(96.0 + badge * 2.0).round(), (lines * LINE_HEIGHT + badge + PADDING * 1.5).round())
}

/// Draws title, description and purpose of the layout. Also returns the total height of this text and the column
/// headings, in pixels.
fn draw_head(graph: &LayoutGraph) -> (Group, f64) {
    let mut group = Group::new().set("transform", format!("translate({MARGIN} {MARGIN})"));
    let mut y = 16.0;
    for (index, line) in head_lines(graph).iter().enumerate() {
        let (size, weight, color) = if index == 0 { (22.0, 700, INK) } else { (13.5, 400, FAINT) };
        group = group.add(text_element(0.0, y, size, line).set("font-weight", weight).set("fill", color));
        y += 22.0;
    }
    (group, y + 42.0)
}

fn head_lines(graph: &LayoutGraph) -> Vec<String> {
    let layout = graph.layout;
    let mut lines = vec![format!("Layout {}", layout.id)];
    lines.extend([&layout.name, &layout.description].into_iter().flatten().cloned());
    lines.push(node_text::describe_purpose(graph));
    lines.iter().map(|line| strip_control_characters(line)).collect()
}

fn head_width(graph: &LayoutGraph) -> f64 {
    let lines = head_lines(graph).into_iter().enumerate();
    let widths = lines.map(|(index, line)| line.chars().count() as f64 * if index == 0 { 14.0 } else { 7.2 });
    widths.fold(0.0, f64::max) + 2.0 * MARGIN
}

fn draw_heading(x: f64, look: &BoxStyle) -> Group {
    Group::new()
        .add(Rectangle::new().set("x", x).set("y", -31).set("width", 10).set("height", 10).set("fill", look.edge))
        .add(text_element(x + 16.0, -22.0, 12.0, look.heading).set("font-weight", 600).set("fill", FAINT))
}

fn draw_box(face: &BoxContents, rect: &Rect, look: &BoxStyle) -> Group {
    let Rect { x, y, height, .. } = *rect;
    let mut group = Group::new().add(Title::new(face.tooltip.as_str())).add(draw_frame(rect, look, face.wipe));
    let badge = if face.wipe.is_some() { BADGE_HEIGHT + 5.0 } else { 0.0 };
    let content = (face.name.len() + face.lines.len()) as f64 * LINE_HEIGHT + badge;
    let left = x + PADDING + 3.0;
    let mut base = y + (height - content) / 2.0 + 13.0;
    for line in &face.name {
        group = group.add(text_element(left, base, 13.5, line).set("font-family", MONO).set("font-weight", 700));
        base += LINE_HEIGHT;
    }
    for line in &face.lines {
        group = group.add(text_element(left, base, 12.0, line));
        base += LINE_HEIGHT;
    }
    match face.wipe {
        Some(wipe) => group.add(draw_badge(left, base - 10.0, wipe)),
        None => group,
    }
}

/// Draws the frame of a box. The frame is dashed for a disk that a reinstall erases, and double for a disk that a
/// reinstall preserves.
fn draw_frame(rect: &Rect, look: &BoxStyle, wipe: Option<bool>) -> Group {
    let outline = |inset: f64| {
        Rectangle::new()
            .set("x", rect.x + inset)
            .set("y", rect.y + inset)
            .set("width", rect.width - 2.0 * inset)
            .set("height", rect.height - 2.0 * inset)
            .set("rx", 5.0 - inset)
            .set("stroke", look.edge)
            .set("stroke-width", 1.2)
    };
    let outer = outline(0.0).set("fill", look.fill);
    match wipe {
        Some(false) => Group::new().add(outer).add(outline(3.0).set("fill", "none")),
        Some(true) => Group::new().add(outer.set("stroke-dasharray", "5 3")),
        None => Group::new().add(outer),
    }
}

/// Draws the badge of a disk: `WIPE on reinstall` in white on a dark background, or `keep on reinstall` in a dark
/// color on white.
fn draw_badge(x: f64, y: f64, wipe: bool) -> Group {
    let (fill, ink) = if wipe { ("#a33500", "#ffffff") } else { ("#ffffff", INK) };
    let pill = Rectangle::new()
        .set("x", x)
        .set("y", y)
        .set("width", 118)
        .set("height", BADGE_HEIGHT)
        .set("rx", 9)
        .set("fill", fill)
        .set("stroke", if wipe { "#a33500" } else { INK });
    let word = text_element(x + 59.0, y + 13.0, 11.0, node_text::reinstall_badge(wipe));
    Group::new().add(pill).add(word.set("fill", ink).set("font-weight", 600).set("text-anchor", "middle"))
}

fn draw_connection(line: &Connector, color: &str, spare: bool, word: &str) -> Group {
    let mut data = String::new();
    for (index, (x, y)) in line.points.iter().enumerate() {
        // The segment that ends at a point with an odd index is a curve; a segment that ends at a point with an even
        // index is straight.
        data += &match index {
            0 => format!("M{x} {y}"),
            _ if index % 2 == 0 => format!(" L{x} {y}"),
            _ => {
                let (from_x, from_y) = line.points[index - 1];
                let middle = (from_x + x) / 2.0;
                format!(" C{middle} {from_y} {middle} {y} {x} {y}")
            }
        };
    }
    let mut path = Path::new().set("d", data).set("fill", "none").set("stroke", color).set("stroke-width", 1.6);
    if spare {
        path = path.set("stroke-dasharray", "4 4");
    }
    let mut group = Group::new().add(path);
    if let Some((x, y)) = line.points.last() {
        group = group.add(Circle::new().set("cx", *x).set("cy", *y).set("r", 3).set("fill", color));
    }
    if let ([(x, y), (_, next), ..], true) = (line.points.as_slice(), spare) {
        let beside = if next < y { y + 13.0 } else { y - 5.0 };
        group = group.add(text_element(x + 7.0, beside, 11.0, word).set("fill", FAINT));
    }
    group
}

fn draw_legend(graph: &LayoutGraph) -> Group {
    let mut entries = Vec::new();
    for (wipe, words) in [(true, "a reinstall erases the disk"), (false, "a reinstall preserves the disk")] {
        if graph.layout.disks.iter().any(|disk| disk.wipeonreinstall == wipe) {
            entries.push((draw_frame(&Rect { x: 0.0, y: 0.0, width: 26.0, height: 16.0 }, &DISK, Some(wipe)), words));
        }
    }
    if graph.layout.raid.iter().any(|raid| raid.spares > 0) {
        let line = Connector { from: 0, to: 0, points: vec![(0.0, 8.0), (26.0, 8.0)] };
        entries.push((draw_connection(&line, DISK.edge, true, ""), "from a spare to its array"));
    }
    let mut group = Group::new();
    let mut x = 0.0;
    for (sample, words) in entries {
        let entry = Group::new().set("transform", format!("translate({x} -12)"));
        group = group.add(entry.add(sample).add(text_element(34.0, 12.0, 12.0, words).set("fill", FAINT)));
        x += 58.0 + words.chars().count() as f64 * SANS_WIDTH;
    }
    group.add(text_element(0.0, 26.0, 12.0, "A first installation erases every disk of the layout.").set("fill", FAINT))
}

/// Describes the diagram as text, for people who cannot see it.
fn describe_diagram(graph: &LayoutGraph) -> String {
    let count = |is: fn(&LayoutItem) -> bool| graph.nodes.iter().filter(|node| is(&node.item)).count();
    let mut parts = vec![format_count(count(|item| matches!(item, LayoutItem::Disk(_))), "disk", "disks")];
    for (number, one, many) in [
        (count(|item| matches!(item, LayoutItem::Partition(_))), "partition", "partitions"),
        (count(|item| matches!(item, LayoutItem::Array(_))), "array", "arrays"),
        (count(|item| matches!(item, LayoutItem::Group(_))), "volume group", "volume groups"),
        (count(|item| matches!(item, LayoutItem::Volume(_))), "logical volume", "logical volumes"),
    ] {
        if number > 0 {
            parts.push(format_count(number, one, many));
        }
    }
    let mounts = graph.layout.filesystems.iter().map(|filesystem| {
        let what = format!(
            "{} on {}",
            node_text::describe_content(filesystem),
            node_text::strip_dev(filesystem.device.as_str())
        );
        match (filesystem.format, node_text::mount_point(filesystem)) {
            (FilesystemFormat::Swap | FilesystemFormat::None, _) => what,
            (_, point) if point.starts_with('/') => format!("{what} at {point}"),
            (_, otherwise) => format!("{what}, {otherwise}"),
        }
    });
    strip_control_characters(&format!("{}. {}.", parts.join(", "), mounts.collect::<Vec<_>>().join("; ")))
}
