//! Length of texts that come from outside: from machines, controllers, registries, control planes, and disks of earlier owners. Each
//! kind of text has one function, which shortens it and makes it harmless for terminals.

use super::{clean, cut};

/// Ids, UUIDs, serial numbers, WWNs, MACs.
pub const IDENTIFIER_BYTES: usize = 256;
/// Names of stages, steps, labels, kinds.
pub const NAME_BYTES: usize = 256;
/// Everything else that is written in one line, such as a kernel command line.
pub const LINE_BYTES: usize = 4 << 10;
/// Several lines for people, such as the error message of a tool.
pub const MESSAGE_BYTES: usize = 16 << 10;
/// Plans, certificates and logs.
pub const DOCUMENT_BYTES: usize = 1 << 20;

/// Stands at the end of a text that was shortened.
const SHORTENED: &str = "…";

/// Kind of a text that comes from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextKind {
    Identifier,
    Name,
    Line,
    Message,
    Document,
    /// A document that is kept to its last line end: a signature may be over it.
    Log,
}

impl TextKind {
    /// Shortens a text of this kind and makes it harmless.
    pub fn bounded(self, text: &str) -> String {
        match self {
            TextKind::Identifier => identifier(text),
            TextKind::Name => name(text),
            TextKind::Line => line(text),
            TextKind::Message => message(text),
            TextKind::Document => document(text),
            TextKind::Log => log(text),
        }
    }
}

/// Returns an identifier of at most [`IDENTIFIER_BYTES`].
pub fn identifier(text: &str) -> String {
    clean(&shortened(text, IDENTIFIER_BYTES))
}

/// Returns a name of at most [`NAME_BYTES`].
pub fn name(text: &str) -> String {
    clean(&shortened(text, NAME_BYTES))
}

/// Returns one line of at most [`LINE_BYTES`].
pub fn line(text: &str) -> String {
    clean(&shortened(text, LINE_BYTES))
}

/// Returns lines of at most [`MESSAGE_BYTES`] together.
pub fn message(text: &str) -> String {
    lines(&shortened(text, MESSAGE_BYTES))
}

/// Returns lines of at most [`DOCUMENT_BYTES`] together.
pub fn document(text: &str) -> String {
    lines(&shortened(text, DOCUMENT_BYTES))
}

/// Returns at most [`DOCUMENT_BYTES`] of a log. Its last line may continue in the next part.
pub fn log(text: &str) -> String {
    let line = |line: &str| clean(line.trim_end_matches('\n')) + if line.ends_with('\n') { "\n" } else { "" };
    cut(text, DOCUMENT_BYTES).split_inclusive('\n').map(line).collect()
}

/// Returns the first line of a message, for one line of a log.
pub fn first_line(text: &str) -> String {
    line(text.lines().next().unwrap_or_default())
}

fn lines(text: &str) -> String {
    text.lines().map(clean).collect::<Vec<_>>().join("\n")
}

/// Returns at most so many bytes of a text; a mark at the end shows that it was shortened.
pub fn shortened(text: &str, bytes: usize) -> String {
    match text.len() <= bytes {
        true => text.to_owned(),
        false => cut(text, bytes.saturating_sub(SHORTENED.len())).to_owned() + SHORTENED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_text_has_its_length() {
        let long = "ä".repeat(DOCUMENT_BYTES);
        for (kind, bytes) in [
            (TextKind::Identifier, IDENTIFIER_BYTES),
            (TextKind::Name, NAME_BYTES),
            (TextKind::Line, LINE_BYTES),
            (TextKind::Message, MESSAGE_BYTES),
            (TextKind::Document, DOCUMENT_BYTES),
            (TextKind::Log, DOCUMENT_BYTES),
        ] {
            let bounded = kind.bounded(&long);
            assert!(bounded.len() <= bytes && bounded.len() > bytes - 4, "{kind:?}: {}", bounded.len());
            assert_eq!(bounded.ends_with(SHORTENED), kind != TextKind::Log, "{kind:?}");
            assert_eq!(kind.bounded("as it is"), "as it is");
            assert!(!kind.bounded("a\u{1b}[2Jb").contains('\u{1b}'), "{kind:?}");
        }
    }

    #[test]
    fn line_ends_are_kept_where_they_belong() {
        assert_eq!(line("a\nb"), "a b");
        assert_eq!(message("a\u{1b}[2J\nb\n"), "a [2J\nb");
        assert_eq!(log("a \u{1b}b \n\nc"), "a  b\n\nc");
        assert_eq!(first_line("a\nb"), "a");
        assert_eq!(shortened("äää", 5), "ä…");
        assert_eq!(shortened("äää", 6), "äää");
    }
}
