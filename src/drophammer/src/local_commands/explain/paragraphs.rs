//! Formatting of Markdown paragraphs for a terminal.

use common::format::display_width;

/// Indentation of examples.
const EXAMPLE: &str = "    ";

/// Wraps paragraphs and list items between words. Examples and tables are not wrapped. Fenced examples are indented,
/// without their fences.
pub(super) fn wrap_paragraphs(text: &str, width: usize) -> String {
    let (mut lines, mut words) = (Vec::new(), String::new());
    let mut is_example = false;
    let flush = |words: &mut String, lines: &mut Vec<String>| lines.extend(wrap_words(&std::mem::take(words), width));
    for line in text.lines() {
        let is_fence = line.starts_with("```");
        let is_item = line.starts_with("* ");
        let is_fixed = is_example || line.starts_with(EXAMPLE) || line.starts_with('|') || line.is_empty();
        if is_fence || is_item || is_fixed {
            flush(&mut words, &mut lines);
        }
        match (is_fence, is_fixed) {
            (true, _) => is_example = !is_example,
            (false, true) if is_example => lines.push(format!("{EXAMPLE}{line}")),
            (false, true) => lines.push(line.to_owned()),
            (false, false) => {
                let gap = if words.is_empty() { "" } else { " " };
                words += gap;
                words += line.trim();
            }
        }
    }
    flush(&mut words, &mut lines);
    lines.join("\n") + "\n"
}

/// Wraps a paragraph. Continuation lines of a list item are indented.
fn wrap_words(text: &str, width: usize) -> Vec<String> {
    let indentation = if text.starts_with("* ") { "  " } else { "" };
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let is_first = lines.is_empty();
        match lines.last_mut().filter(|line| display_width(line) + 1 + display_width(word) <= width) {
            Some(line) => *line += &format!(" {word}"),
            None => lines.push(format!("{}{word}", if is_first { "" } else { indentation })),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_and_items_are_wrapped_between_words() {
        let text = "one two\nthree four\n\n* five six seven\n  eight\n* nine\n";
        assert_eq!(wrap_paragraphs(text, 14), "one two three\nfour\n\n* five six\n  seven eight\n* nine\n");
        assert_eq!(wrap_paragraphs(text, 100), "one two three four\n\n* five six seven eight\n* nine\n");
        assert_eq!(wrap_paragraphs("a-word-that-is-too-long b", 5), "a-word-that-is-too-long\nb\n");
    }

    #[test]
    fn examples_and_tables_are_not_wrapped() {
        let text = "see\n\n```text\n<file> is missing: machines\n\n    or not\n```\n\n    drophammer machine list\n\n| a | long row |\n";
        let expected = "see\n\n    <file> is missing: machines\n    \n        or not\n\n    drophammer machine list\n\n| a | long row |\n";
        assert_eq!(wrap_paragraphs(text, 5), expected);
    }
}
