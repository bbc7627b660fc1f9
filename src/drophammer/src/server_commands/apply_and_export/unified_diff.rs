//! Unified diff of two strings.

/// Number of unchanged lines that are displayed before and after a change.
const CONTEXT: usize = 3;
/// Maximum number of pairs of lines that are compared. The lines of longer strings are all displayed as removed and
/// added.
const PAIRS: usize = 4_000_000;

/// Line of a diff: unchanged, removed or added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiffLine<'a> {
    Same(&'a str),
    Removed(&'a str),
    Added(&'a str),
}

/// Returns the diff of two strings, without file names; empty if the strings are equal.
pub(super) fn format_diff(before: &str, after: &str) -> String {
    let lines = compare_lines(&before.lines().collect::<Vec<_>>(), &after.lines().collect::<Vec<_>>());
    let is_near = |index: usize| {
        let from = index.saturating_sub(CONTEXT);
        let to = lines.len().min(index + CONTEXT + 1);
        lines[from..to].iter().any(|line| !matches!(line, DiffLine::Same(_)))
    };
    let (mut text, mut old, mut new, mut in_hunk) = (String::new(), 1, 1, false);
    for (index, line) in lines.iter().enumerate() {
        let near = is_near(index);
        if near && !in_hunk {
            text += &format!("@@ -{old} +{new} @@\n");
        }
        in_hunk = near;
        let (sign, content) = match line {
            DiffLine::Same(content) => (' ', content),
            DiffLine::Removed(content) => ('-', content),
            DiffLine::Added(content) => ('+', content),
        };
        old += usize::from(!matches!(line, DiffLine::Added(_)));
        new += usize::from(!matches!(line, DiffLine::Removed(_)));
        if near {
            text += &format!("{sign}{content}\n");
        }
    }
    text
}

fn compare_lines<'a>(before: &[&'a str], after: &[&'a str]) -> Vec<DiffLine<'a>> {
    let start = before.iter().zip(after).take_while(|(one, other)| one == other).count();
    let (rest, other) = (&before[start..], &after[start..]);
    let end = rest.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count();
    let (removed, added) = (&rest[..rest.len() - end], &other[..other.len() - end]);
    let mut lines: Vec<DiffLine> = before[..start].iter().map(|line| DiffLine::Same(line)).collect();
    match removed.len().saturating_mul(added.len()) <= PAIRS {
        true => lines.extend(align_lines(removed, added)),
        false => {
            lines.extend(removed.iter().map(|line| DiffLine::Removed(line)));
            lines.extend(added.iter().map(|line| DiffLine::Added(line)));
        }
    }
    lines.extend(rest[rest.len() - end..].iter().map(|line| DiffLine::Same(line)));
    lines
}

/// Aligns lines by their longest common subsequence.
fn align_lines<'a>(before: &[&'a str], after: &[&'a str]) -> Vec<DiffLine<'a>> {
    let width = after.len() + 1;
    // `lengths[i * width + j]` is the length of the longest common subsequence of `before[i..]` and `after[j..]`.
    let mut lengths = vec![0_u32; (before.len() + 1) * width];
    for i in (0..before.len()).rev() {
        for j in (0..after.len()).rev() {
            lengths[i * width + j] = match before[i] == after[j] {
                true => lengths[(i + 1) * width + j + 1] + 1,
                false => lengths[(i + 1) * width + j].max(lengths[i * width + j + 1]),
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < before.len() || j < after.len() {
        let removes =
            j == after.len() || i < before.len() && lengths[(i + 1) * width + j] >= lengths[i * width + j + 1];
        if i < before.len() && j < after.len() && before[i] == after[j] {
            lines.push(DiffLine::Same(before[i]));
            (i, j) = (i + 1, j + 1);
        } else if i < before.len() && removes {
            lines.push(DiffLine::Removed(before[i]));
            i += 1;
        } else {
            lines.push(DiffLine::Added(after[j]));
            j += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_displayed_with_their_context() {
        let before = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n";
        let after = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n10\n11\n12\n13\n";
        let expected = "@@ -2 +2 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n@@ -10 +10 @@\n 10\n 11\n 12\n+13\n";
        assert_eq!(format_diff(before, after), expected);
        assert_eq!(format_diff("a\nb\n", "a\nx\nb\n"), "@@ -1 +1 @@\n a\n+x\n b\n");
        assert_eq!(format_diff("", "a\n"), "@@ -1 +1 @@\n+a\n");
        assert_eq!(format_diff("a\n", ""), "@@ -1 +1 @@\n-a\n");
        assert_eq!(format_diff("a\n", "a\n"), "");
    }

    #[test]
    fn long_texts_are_compared_within_bounds() {
        let text = |word: &str| (0..5000).map(|number| format!("{word}{number}\n")).collect::<String>();
        let diff = format_diff(&text("a"), &text("b"));
        assert_eq!(diff.lines().count(), 10_001);
    }
}
