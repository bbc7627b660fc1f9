//! Lines of a tree. Their number and depth are limited, so that the trees of a machine with very many devices remain
//! readable and can be stored.

/// Maximum number of lines of one tree. A disk with 800 logical volumes has about this number.
const MAXIMUM_LINES: usize = 2000;
/// Maximum total number of tree lines per machine.
const MAXIMUM_ALL_LINES: usize = 20_000;
/// Maximum depth of a tree. It also limits the recursion of the functions that draw the tree.
const MAXIMUM_DEPTH: usize = 64;

/// Lines of the current tree, and the number of lines of the previous trees.
#[derive(Debug, Default)]
pub(crate) struct TreeLines {
    lines: Vec<String>,
    /// Number of lines of the previous trees.
    earlier: usize,
    is_cut: bool,
}

impl TreeLines {
    /// Returns whether another line at this depth would exceed a limit. If so, records that the tree is incomplete.
    pub(crate) fn is_full(&mut self, depth: usize) -> bool {
        let maximum = MAXIMUM_LINES.min(MAXIMUM_ALL_LINES.saturating_sub(self.earlier));
        let is_full = depth > MAXIMUM_DEPTH || self.lines.len() >= maximum;
        self.is_cut |= is_full;
        is_full
    }

    /// Adds a line that consists of a name and details.
    pub(crate) fn push_line(&mut self, depth: usize, what: &str, parts: &[String]) {
        if !self.is_full(depth) {
            let rest = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(" · ")) };
            self.lines.push(format!("{}{what}{rest}", "  ".repeat(depth)));
        }
    }

    /// If the first line contains only this name, removes that line and moves all other lines one level up.
    pub(crate) fn flatten_first_line(&mut self, name: &str) {
        if self.lines.first().is_some_and(|line| line == name) {
            self.lines.remove(0);
            self.lines.iter_mut().for_each(|line| drop(line.drain(..2)));
        }
    }

    /// Returns the lines of the current tree, and starts a new tree.
    pub(crate) fn take_tree(&mut self) -> Vec<String> {
        self.earlier += self.lines.len();
        if std::mem::take(&mut self.is_cut) {
            self.lines.push("… more devices not shown".to_owned());
        }
        std::mem::take(&mut self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_limited_in_depth_and_lines() {
        let mut lines = TreeLines::default();
        lines.push_line(0, "sda", &[]);
        lines.push_line(1, "sda1", &["ext4".to_owned(), "mounted".to_owned()]);
        lines.flatten_first_line("sda");
        assert_eq!(lines.take_tree(), ["sda1: ext4 · mounted"]);
        lines.push_line(MAXIMUM_DEPTH, "deep", &[]);
        lines.push_line(MAXIMUM_DEPTH + 1, "too deep", &[]);
        let taken = lines.take_tree();
        assert!(taken[0].ends_with("  deep") && taken[1].contains("more devices not shown") && taken.len() == 2);
        let all: usize = (0..20)
            .map(|_| {
                (0..3 * MAXIMUM_LINES).for_each(|_| lines.push_line(0, "x", &[]));
                lines.take_tree().len()
            })
            .sum();
        assert_eq!(all, MAXIMUM_ALL_LINES - 2 + 20, "one more line for each truncated tree");
    }
}
