//! Safe output of untrusted text on a terminal. Control characters, invisible characters, and characters that change
//! the writing direction are escaped. All commands and logs write their output through this module (`crate::output`,
//! `linux::console_log`), so escape sequences in the output come only from the program's own [`TextStyle`]s.

use std::borrow::Cow;
use std::fmt::Write;

/// Style of text on a terminal: a color or an intensity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextStyle {
    Bold,
    Dim,
    Red,
    BoldRed,
    BoldGreen,
    Cyan,
    Green,
    Yellow,
}

/// Styles and the parameters of their Select Graphic Rendition sequences (ECMA-48, 8.3.117). The index of a style
/// determines its mark; see [`FIRST_MARK`].
const STYLES: [(TextStyle, &str); 8] = [
    (TextStyle::Bold, "1"),
    (TextStyle::Dim, "2"),
    (TextStyle::Red, "31"),
    (TextStyle::BoldRed, "1;31"),
    (TextStyle::BoldGreen, "1;32"),
    (TextStyle::Cyan, "36"),
    (TextStyle::Green, "32"),
    (TextStyle::Yellow, "33"),
];

/// Character that marks the start of text in the first style of [`STYLES`]. The next characters mark the other styles.
/// All marks are Unicode noncharacters, which do not occur in ordinary text. [`render_styles`] replaces them by escape
/// sequences.
const FIRST_MARK: u32 = 0xfdd0;
const END_MARK: char = '\u{fdef}';

impl TextStyle {
    /// Escapes the text, and encloses it in the marks of this style. [`render_styles`] replaces the marks by escape
    /// sequences.
    pub fn paint_text(self, text: &str) -> String {
        format!("{}{}{END_MARK}", self.style_mark(), escape_hidden(text))
    }

    fn style_mark(self) -> char {
        let index = STYLES.iter().position(|(style, _)| *style == self).unwrap_or_default();
        u32::try_from(index).ok().and_then(|index| char::from_u32(FIRST_MARK + index)).unwrap_or(END_MARK)
    }
}

/// Returns whether a character controls the terminal, is invisible, or changes the display of the text around it.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fdd0}'..='\u{fdef}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Escapes hidden characters as `\u{1b}`, but preserves line breaks and tabs. Names must be escaped with
/// [`escape_line`].
pub fn escape_hidden(text: &str) -> Cow<'_, str> {
    escape_except(text, &['\n', '\t'])
}

/// Escapes hidden characters, line breaks and tabs, so that a name cannot imitate lines or columns of a table.
pub fn escape_line(text: &str) -> Cow<'_, str> {
    escape_except(text, &[])
}

fn escape_except<'a>(text: &'a str, kept: &[char]) -> Cow<'a, str> {
    let is_escaped = |c: char| is_hidden(c) && !kept.contains(&c);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !is_escaped(c) => escaped.push(c),
            '\n' | '\r' | '\t' => escaped.extend(c.escape_default()),
            c => escaped.extend(c.escape_unicode()),
        }
    }
    Cow::Owned(escaped)
}

/// Escapes hidden characters, and replaces the marks of [`TextStyle::paint_text`] by escape sequences.
pub fn render_styles(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for part in text.split_inclusive(is_mark) {
        let mark = part.chars().next_back().filter(|c| is_mark(*c));
        shown += &escape_hidden(mark.map_or(part, |mark| &part[..part.len() - mark.len_utf8()]));
        if let Some(mark) = mark {
            let index = (mark as u32).wrapping_sub(FIRST_MARK) as usize;
            // The result is ignored, because writing to a string does not fail.
            let _ = write!(shown, "\u{1b}[{}m", STYLES.get(index).map_or("0", |(_, parameters)| parameters));
        }
    }
    shown
}

fn is_mark(c: char) -> bool {
    c == END_MARK || (c as u32).checked_sub(FIRST_MARK).is_some_and(|index| (index as usize) < STYLES.len())
}

/// Escapes hidden characters in a JSON document. The value of the document does not change: hidden characters occur
/// only in strings, in which a JSON escape represents the same character.
pub fn escape_json(document: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| is_hidden(c) && !matches!(c, '\n' | '\r' | '\t');
    if !document.contains(is_escaped) {
        return Cow::Borrowed(document);
    }
    let mut escaped = String::with_capacity(document.len() + 16);
    for c in document.chars() {
        if !is_escaped(c) {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // The result is ignored, because writing to a string does not fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    Cow::Owned(escaped)
}

/// Escapes hidden characters in a message, and indents all lines after the first, so that none of these lines can be
/// mistaken for a separate message.
pub fn escape_message(text: &str) -> String {
    escape_hidden(text.trim_end()).replace('\n', "\n    ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output_capture::{HOSTILE, first_hidden};

    #[test]
    fn escaped_text_contains_no_control_characters() {
        for c in (0..=0x10_ffff).filter_map(char::from_u32).filter(|c| is_hidden(*c)) {
            let text = format!("a{c}b");
            assert_eq!(first_hidden(&escape_line(&text)), None, "{:x}", c as u32);
            assert!(!escape_line(&text).contains(['\n', '\t']));
            assert_eq!(first_hidden(&escape_hidden(&text)), None, "{:x}", c as u32);
        }
        assert_eq!(escape_line("a\n\tb\r\u{1b}[2J\u{9b}\u{202e}"), "a\\n\\tb\\r\\u{1b}[2J\\u{9b}\\u{202e}");
        assert_eq!(escape_hidden("a\n\tb\rc"), "a\n\tb\\rc");
        assert_eq!(first_hidden(&escape_hidden(HOSTILE)), None);
    }

    #[test]
    fn ordinary_text_is_not_changed() {
        for text in ["", "sda  3.84 TB · ext4 \"root\"", "データ 한글 é e\u{301} 💾 −·… «»", "── point\n\tof"]
        {
            assert!(matches!(escape_hidden(text), Cow::Borrowed(same) if same == text), "{text}");
            assert_eq!(render_styles(text), text);
            assert_eq!(escape_json(text), text);
        }
    }

    #[test]
    fn only_own_styles_become_escape_sequences() {
        let text = format!(
            "a {} \u{1b}[8mb {}",
            TextStyle::BoldRed.paint_text("WI\u{1b}PE"),
            TextStyle::Dim.paint_text("x\u{fdd3}")
        );
        assert_eq!(render_styles(&text), "a \u{1b}[1;31mWI\\u{1b}PE\u{1b}[0m \\u{1b}[8mb \u{1b}[2mx\\u{fdd3}\u{1b}[0m");
        assert_eq!(escape_hidden(&TextStyle::Bold.paint_text("x")), "\\u{fdd0}x\\u{fdef}");
    }

    #[test]
    fn escaped_json_preserves_its_value() {
        let value = serde_json::json!({ HOSTILE: [HOSTILE, "\u{e0041}", "plain é"], "n": 1 });
        for document in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let escaped = escape_json(&document);
            assert_eq!(first_hidden(&escaped), None);
            assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
        }
    }

    #[test]
    fn continuation_lines_of_messages_are_indented() {
        assert_eq!(escape_message("one\ndrophammer: two\n\u{1b}[A\n"), "one\n    drophammer: two\n    \\u{1b}[A");
    }
}
