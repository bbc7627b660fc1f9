//! Length limits for untrusted text from machines, controllers, registries, control planes, and previous owners of
//! disks. Each type of text has a function that truncates it, and replaces characters that are unsafe on a terminal.

use super::{replace_hidden, truncate_bytes};

/// Maximum length of ids, UUIDs, serial numbers, WWNs and MACs, in bytes.
pub const IDENTIFIER_BYTES: usize = 256;
/// Maximum length of names of stages, steps, labels and types, in bytes.
pub const NAME_BYTES: usize = 256;
/// Maximum length, in bytes, of any other single line, such as a kernel command line.
pub const LINE_BYTES: usize = 4 << 10;
/// Maximum length, in bytes, of a multi-line message, such as the error message of a tool.
pub(crate) const MESSAGE_BYTES: usize = 16 << 10;
/// Maximum length of plans, certificates and logs, in bytes.
pub(crate) const DOCUMENT_BYTES: usize = 1 << 20;

/// Mark that is appended to a truncated text.
const TRUNCATION_MARK: &str = "…";

/// Type of an untrusted text, which determines the maximum length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextKind {
    Identifier,
    Name,
    Line,
    Message,
    Document,
    /// Log or certificate. Since a signature may cover such a text, line ends are preserved, and no mark is appended to
    /// truncated text.
    Log,
}

impl TextKind {
    /// Truncates a text of this type, and replaces characters that are unsafe on a terminal.
    pub fn sanitize(self, text: &str) -> String {
        match self {
            TextKind::Identifier => sanitize_identifier(text),
            TextKind::Name => sanitize_name(text),
            TextKind::Line => sanitize_line(text),
            TextKind::Message => sanitize_message(text),
            TextKind::Document => sanitize_document(text),
            TextKind::Log => sanitize_log(text),
        }
    }
}

/// Sanitizes an identifier, and truncates it to [`IDENTIFIER_BYTES`].
pub(crate) fn sanitize_identifier(text: &str) -> String {
    replace_hidden(&truncate_with_mark(text, IDENTIFIER_BYTES))
}

/// Sanitizes a name, and truncates it to [`NAME_BYTES`].
pub fn sanitize_name(text: &str) -> String {
    replace_hidden(&truncate_with_mark(text, NAME_BYTES))
}

/// Sanitizes a single line, and truncates it to [`LINE_BYTES`].
pub fn sanitize_line(text: &str) -> String {
    replace_hidden(&truncate_with_mark(text, LINE_BYTES))
}

/// Sanitizes a message of one or more lines, and truncates it to [`MESSAGE_BYTES`] in total.
pub fn sanitize_message(text: &str) -> String {
    sanitize_lines(&truncate_with_mark(text, MESSAGE_BYTES))
}

/// Sanitizes a document of several lines, and truncates it to [`DOCUMENT_BYTES`] in total.
pub(crate) fn sanitize_document(text: &str) -> String {
    sanitize_lines(&truncate_with_mark(text, DOCUMENT_BYTES))
}

/// Sanitizes a part of a log, and truncates it to [`DOCUMENT_BYTES`]. Preserves whether the text ends with a line
/// break, because the last line may continue in the next part of the log.
pub fn sanitize_log(text: &str) -> String {
    let line = |line: &str| replace_hidden(line.trim_end_matches('\n')) + if line.ends_with('\n') { "\n" } else { "" };
    truncate_bytes(text, DOCUMENT_BYTES).split_inclusive('\n').map(line).collect()
}

/// Returns the first line of a string, sanitized, for use in messages that consist of one line.
pub fn first_line(text: &str) -> String {
    sanitize_line(text.lines().next().unwrap_or_default())
}

fn sanitize_lines(text: &str) -> String {
    text.lines().map(replace_hidden).collect::<Vec<_>>().join("\n")
}

/// Truncates a string that is longer than `bytes` bytes, and appends a mark.
pub fn truncate_with_mark(text: &str, bytes: usize) -> String {
    match text.len() <= bytes {
        true => text.to_owned(),
        false => truncate_bytes(text, bytes.saturating_sub(TRUNCATION_MARK.len())).to_owned() + TRUNCATION_MARK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_type_has_a_length_limit() {
        let long = "ä".repeat(DOCUMENT_BYTES);
        for (kind, bytes) in [
            (TextKind::Identifier, IDENTIFIER_BYTES),
            (TextKind::Name, NAME_BYTES),
            (TextKind::Line, LINE_BYTES),
            (TextKind::Message, MESSAGE_BYTES),
            (TextKind::Document, DOCUMENT_BYTES),
            (TextKind::Log, DOCUMENT_BYTES),
        ] {
            let bounded = kind.sanitize(&long);
            assert!(bounded.len() <= bytes && bounded.len() > bytes - 4, "{kind:?}: {}", bounded.len());
            assert_eq!(bounded.ends_with(TRUNCATION_MARK), kind != TextKind::Log, "{kind:?}");
            assert_eq!(kind.sanitize("as it is"), "as it is");
            assert!(!kind.sanitize("a\u{1b}[2Jb").contains('\u{1b}'), "{kind:?}");
        }
    }

    #[test]
    fn only_messages_and_logs_keep_line_breaks() {
        assert_eq!(sanitize_line("a\nb"), "a b");
        assert_eq!(sanitize_message("a\u{1b}[2J\nb\n"), "a [2J\nb");
        assert_eq!(sanitize_log("a \u{1b}b \n\nc"), "a  b\n\nc");
        assert_eq!(first_line("a\nb"), "a");
        assert_eq!(truncate_with_mark("äää", 5), "ä…");
        assert_eq!(truncate_with_mark("äää", 6), "äää");
    }
}
