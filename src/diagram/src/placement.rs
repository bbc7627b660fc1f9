//! Placement of the boxes and lines of the diagram. The boxes are arranged in columns, and the lines between them run
//! from left to right. Lines have few crossings and are as straight as possible.
//!
//! The result is a layered drawing (Sugiyama). A line that passes a column gets a cell in this column. The cells of
//! each column are ordered by the mean positions of their neighbors. Vertical positions are the least squares solution
//! under the condition that the boxes do not overlap.

use model::layout::graph::{LayoutGraph, LayoutItem};

/// Vertical distance between two boxes of one column, in pixels.
const BOX_SPACING_PX: f64 = 14.0;
/// Height of a cell through which a line passes a column, in pixels.
const BEND: f64 = 6.0;
/// Horizontal distance between two columns, in pixels.
const COLUMN_SPACING_PX: f64 = 72.0;
const SWEEPS: usize = 12;

/// Position and size of a box, in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rect {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

/// A line from a node to another node that is on top of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Connector {
    pub from: usize,
    pub to: usize,
    /// Points of the line from left to right. The line is curved between two columns, and straight within each column
    /// that it passes.
    pub points: Vec<(f64, f64)>,
}

/// Positions of all boxes and lines of the diagram.
#[derive(Debug, Clone)]
pub struct DiagramPlacement {
    /// Rectangle of each node.
    pub boxes: Vec<Rect>,
    pub lines: Vec<Connector>,
    /// For each column, its left edge, its width, and the index of any of its nodes.
    pub columns: Vec<(f64, f64, usize)>,
    pub width: f64,
    pub height: f64,
}

/// Cell of a column, which contains a node or a line that passes the column.
struct ColumnCell {
    node: Option<usize>,
    column: usize,
    height: f64,
    center: f64,
    left: Vec<usize>,
    right: Vec<usize>,
}

/// Places all nodes of the graph. `sizes` contains width and height of each node's box.
pub fn place_nodes(graph: &LayoutGraph, sizes: &[(f64, f64)]) -> DiagramPlacement {
    let (columns_of, count) = assign_columns(graph);
    let mut cells: Vec<ColumnCell> = (0..graph.nodes.len())
        .map(|node| {
            let lines = graph.nodes[node].below.len().max(graph.nodes[node].above.len());
            let height = sizes[node].1.max(lines as f64 * 5.0 + 12.0);
            ColumnCell { node: Some(node), column: columns_of[node], height, center: 0.0, left: vec![], right: vec![] }
        })
        .collect();
    let paths = connect_cells(graph, &mut cells);
    let order = order_columns(&cells, initial_order(&cells, count));
    center_cells(&mut cells, &order);

    let mut columns = Vec::new();
    let mut x = 0.0;
    for column in &order {
        let nodes = || column.iter().filter_map(|cell| cells[*cell].node);
        let width = nodes().map(|node| sizes[node].0).fold(0.0, f64::max);
        columns.push((x, width, nodes().next().unwrap_or_default()));
        x += width + COLUMN_SPACING_PX;
    }
    let boxes: Vec<Rect> = (0..graph.nodes.len())
        .map(|node| {
            let (x, width, _) = columns[cells[node].column];
            let ColumnCell { height, center, .. } = cells[node];
            Rect { x, y: (center - height / 2.0).round(), width, height }
        })
        .collect();
    let height = boxes.iter().map(|rect| rect.y + rect.height).fold(0.0, f64::max);
    let lines = route_lines(&cells, &columns, &boxes, &paths);
    DiagramPlacement { boxes, lines, columns, width: (x - COLUMN_SPACING_PX).max(0.0), height }
}

/// Returns the column of each node, and the number of columns. The column depends on the type of the node. An array on
/// other arrays is one column to the right of those arrays. There are no empty columns.
fn assign_columns(graph: &LayoutGraph) -> (Vec<usize>, usize) {
    let arrays = graph.layout.raid.len();
    let mut ranks: Vec<usize> = graph
        .nodes
        .iter()
        .map(|node| match node.item {
            LayoutItem::Disk(_) | LayoutItem::Missing => 0,
            LayoutItem::Partition(_) => 1,
            LayoutItem::Array(_) => 2,
            LayoutItem::Group(_) => arrays + 3,
            LayoutItem::Volume(_) => arrays + 4,
            LayoutItem::Filesystem(_) => arrays + 5,
        })
        .collect();
    // Arrays may be listed in any order. The number of rounds is sufficient for the longest possible chain of arrays.
    for _ in 0..arrays {
        for node in 0..ranks.len() {
            if matches!(graph.nodes[node].item, LayoutItem::Array(_)) {
                let below = graph.nodes[node].below.iter().map(|below| ranks[*below] + 1).max();
                ranks[node] = ranks[node].max(below.unwrap_or_default());
            }
        }
    }
    let mut used = ranks.clone();
    used.sort_unstable();
    used.dedup();
    let column = |rank: &usize| used.binary_search(rank).unwrap_or_default();
    (ranks.iter().map(column).collect(), used.len())
}

/// Connects the two ends of each line. A line that passes columns gets a new cell in each of these columns. Returns the
/// cells along each line.
fn connect_cells(graph: &LayoutGraph, cells: &mut Vec<ColumnCell>) -> Vec<Vec<usize>> {
    let mut paths = Vec::new();
    for from in 0..graph.nodes.len() {
        for to in &graph.nodes[from].above {
            let mut path = vec![from];
            for column in cells[from].column + 1..cells[*to].column {
                cells.push(ColumnCell { node: None, column, height: BEND, center: 0.0, left: vec![], right: vec![] });
                path.push(cells.len() - 1);
            }
            path.push(*to);
            for pair in path.windows(2) {
                cells[pair[0]].right.push(pair[1]);
                cells[pair[1]].left.push(pair[0]);
            }
            paths.push(path);
        }
    }
    paths
}

/// Returns the cells of each column, in the order in which a walk from the disks of the layout reaches them.
fn initial_order(cells: &[ColumnCell], columns: usize) -> Vec<Vec<usize>> {
    let mut order = vec![Vec::new(); columns];
    let mut seen = vec![false; cells.len()];
    let roots = (0..cells.len()).filter(|cell| cells[*cell].left.is_empty());
    let mut open: Vec<usize> = roots.collect();
    open.reverse();
    while let Some(cell) = open.pop() {
        if !std::mem::replace(&mut seen[cell], true) {
            order[cells[cell].column].push(cell);
            open.extend(cells[cell].right.iter().rev());
        }
    }
    order
}

/// Repeatedly orders the cells of each column by the mean position of their neighbors, and returns the order with the
/// fewest crossings.
fn order_columns(cells: &[ColumnCell], first: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
    let mut best = (count_crossings(cells, &first), first.clone());
    let mut order = first;
    let mut places = vec![0.0; cells.len()];
    for sweep in 0..SWEEPS {
        let forward = sweep % 2 == 0;
        for step in 0..order.len() {
            for (place, cell) in order.iter().flat_map(|column| column.iter().enumerate()) {
                places[*cell] = place as f64;
            }
            let column = if forward { step } else { order.len() - 1 - step };
            let neighbors = |cell: usize| if forward { &cells[cell].left } else { &cells[cell].right };
            let wanted = |cell: &usize| mean_position(neighbors(*cell), &places).unwrap_or(places[*cell]);
            order[column].sort_by(|a, b| wanted(a).total_cmp(&wanted(b)));
        }
        let crossings = count_crossings(cells, &order);
        if crossings < best.0 {
            best = (crossings, order.clone());
        }
    }
    best.1
}

fn mean_position(cells: &[usize], places: &[f64]) -> Option<f64> {
    let sum: f64 = cells.iter().map(|cell| places[*cell]).sum();
    (!cells.is_empty()).then(|| sum / cells.len() as f64)
}

/// Returns the number of crossings between lines that connect the same two adjacent columns.
fn count_crossings(cells: &[ColumnCell], order: &[Vec<usize>]) -> usize {
    let mut places = vec![0; cells.len()];
    for (place, cell) in order.iter().flat_map(|column| column.iter().enumerate()) {
        places[*cell] = place;
    }
    let mut crossings = 0;
    for column in order {
        let mut lines: Vec<(usize, usize)> = column
            .iter()
            .flat_map(|cell| cells[*cell].right.iter().map(|right| (places[*cell], places[*right])))
            .collect();
        lines.sort_unstable();
        let crossed = |index: usize| lines[index + 1..].iter().filter(|other| other.1 < lines[index].1).count();
        crossings += (0..lines.len()).map(crossed).sum::<usize>();
    }
    crossings
}

/// Sets the vertical positions of all cells. Each cell is as near to the mean position of its neighbors as the other
/// cells of its column permit.
fn center_cells(cells: &mut [ColumnCell], order: &[Vec<usize>]) {
    for column in order {
        spread_cells(cells, column, &vec![0.0; column.len()]);
    }
    for sweep in 0..SWEEPS {
        let forward = sweep % 2 == 0;
        for step in 0..order.len() {
            let column = &order[if forward { step } else { order.len() - 1 - step }];
            let places: Vec<f64> = cells.iter().map(|cell| cell.center).collect();
            let neighbors = |cell: usize| if forward { &cells[cell].left } else { &cells[cell].right };
            let wanted = |cell: &usize| mean_position(neighbors(*cell), &places).unwrap_or(places[*cell]);
            let wanted: Vec<f64> = column.iter().map(wanted).collect();
            spread_cells(cells, column, &wanted);
        }
    }
    // The cells of lines that pass a column are moved, so that the lines become straighter. The boxes keep their
    // positions.
    for column in order {
        let places: Vec<f64> = cells.iter().map(|cell| cell.center).collect();
        let straight =
            |cell: &usize| mean_position(&cells[*cell].left, &places).filter(|_| cells[*cell].node.is_none());
        let wanted: Vec<f64> = column.iter().map(|cell| straight(cell).unwrap_or(places[*cell])).collect();
        spread_cells(cells, column, &wanted);
    }
    let top = cells.iter().map(|cell| cell.center - cell.height / 2.0).fold(f64::INFINITY, f64::min);
    cells.iter_mut().for_each(|cell| cell.center -= top);
}

/// Sets the centers of a column's cells so that order and gaps are preserved and the sum of the squared distances to
/// `wanted` is minimal. The algorithm is pool adjacent violators.
fn spread_cells(cells: &mut [ColumnCell], column: &[usize], wanted: &[f64]) {
    let mut offset = 0.0;
    let mut offsets = Vec::new();
    for (index, cell) in column.iter().enumerate() {
        if index > 0 {
            let above = &cells[column[index - 1]];
            offset += (above.height + cells[*cell].height) / 2.0 + BOX_SPACING_PX;
        }
        offsets.push(offset);
    }
    // Runs of adjacent cells. Each entry contains the common position of the cells of a run, and the number of these
    // cells.
    let mut runs: Vec<(f64, usize)> = Vec::new();
    for (wanted, offset) in wanted.iter().zip(&offsets) {
        let mut run = (wanted - offset, 1);
        while let Some(above) = runs.pop_if(|above| above.0 > run.0) {
            let count = above.1 + run.1;
            run = ((above.0 * above.1 as f64 + run.0 * run.1 as f64) / count as f64, count);
        }
        runs.push(run);
    }
    let places = runs.iter().flat_map(|(place, count)| std::iter::repeat_n(*place, *count));
    for ((cell, offset), place) in column.iter().zip(&offsets).zip(places) {
        cells[*cell].center = place + offset;
    }
}

fn route_lines(
    cells: &[ColumnCell],
    columns: &[(f64, f64, usize)],
    boxes: &[Rect],
    paths: &[Vec<usize>],
) -> Vec<Connector> {
    let mut lines = Vec::new();
    for path in paths {
        let (Some(from), Some(to)) = (path.first(), path.last()) else { continue };
        let mut points = vec![(boxes[*from].x + boxes[*from].width, port_position(cells, *from, path[1], true))];
        for bend in &path[1..path.len() - 1] {
            let (x, width, _) = columns[cells[*bend].column];
            points.extend([(x, cells[*bend].center.round()), (x + width, cells[*bend].center.round())]);
        }
        points.push((boxes[*to].x, port_position(cells, *to, path[path.len() - 2], false)));
        if cells[*from].right.len() == 1 {
            level_end(&mut points, 0, 1);
        }
        if cells[*to].left.len() == 1 {
            let last = points.len() - 1;
            level_end(&mut points, last, last - 1);
        }
        lines.push(Connector { from: *from, to: *to, points });
    }
    lines
}

/// Makes the last segment of a line horizontal if its ends differ in height by only a few pixels. Such a small slope
/// would look like a mistake.
fn level_end(points: &mut [(f64, f64)], end: usize, next: usize) {
    if (points[end].1 - points[next].1).abs() <= 3.0 {
        points[end].1 = points[next].1;
    }
}

/// Returns the vertical position at which the line to `other` leaves the side of a box. The lines of a side are
/// sorted by the positions of their other ends.
fn port_position(cells: &[ColumnCell], cell: usize, other: usize, right: bool) -> f64 {
    let mut ends = if right { cells[cell].right.clone() } else { cells[cell].left.clone() };
    ends.sort_by(|a, b| cells[*a].center.total_cmp(&cells[*b].center));
    let place = ends.iter().position(|end| *end == other).unwrap_or_default() as f64;
    let between = (cells[cell].height / (ends.len() + 1) as f64).min(14.0);
    (cells[cell].center + (place - (ends.len() as f64 - 1.0) / 2.0) * between).round()
}
