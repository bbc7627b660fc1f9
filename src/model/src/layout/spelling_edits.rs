//! Edits that replace alternative names and values in a document with the canonical ones. Comments, order and line
//! endings are preserved.

use super::yaml_document::SourceLocation;

/// Replacement of a value at a location of the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SpellingEdit {
    mark: SourceLocation,
    /// Old value without quotes, as the parser returns it.
    old: String,
    new: EditReplacement,
}

/// Text that replaces the old value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EditReplacement {
    /// Replacement for the text of the old value. Quotes around the old value are preserved.
    Text(String),
    /// Replacement text that already has its own quotes or brackets. It replaces the old value and the quotes around
    /// it.
    Raw(String),
    /// Several items that replace one item of a list.
    Items(Vec<String>),
    /// Removal of a field with its value. [`apply_edits`] fails for removals, because the end of the value in the text
    /// is unknown; the whole document is then rewritten.
    Removal,
}

impl SpellingEdit {
    /// Creates an edit. Returns `None` if the location is not known, as for JSON values.
    pub(crate) fn at_location(mark: Option<SourceLocation>, old: &str, new: EditReplacement) -> Option<SpellingEdit> {
        Some(SpellingEdit { mark: mark?, old: old.to_owned(), new })
    }
}

/// Applies all edits. Returns `None` if an edit cannot be applied, or if a value is not found at its location because
/// it spans several lines or contains escapes.
pub(super) fn apply_edits(text: &str, edits: &[SpellingEdit]) -> Option<String> {
    let (bom, body) = match text.strip_prefix('\u{feff}') {
        Some(body) => ("\u{feff}", body),
        None => ("", text),
    };
    let mut edits: Vec<(usize, &SpellingEdit)> =
        edits.iter().map(|edit| Some((offset_of_location(body, edit.mark)?, edit))).collect::<Option<_>>()?;
    edits.sort_by_key(|(at, _)| *at);
    let mut body = body.to_owned();
    // Edits are applied from the end of the text, so that the offsets of the remaining edits stay valid.
    for (at, edit) in edits.into_iter().rev() {
        let token = find_token(&body[at..], &edit.old)?;
        let new = match &edit.new {
            EditReplacement::Text(new) => token.replacen(&edit.old, new, 1),
            EditReplacement::Raw(new) => new.clone(),
            EditReplacement::Items(items) => items.join(&find_separator(&body, at)?),
            EditReplacement::Removal => return None,
        };
        body.replace_range(at..at + token.len(), &new);
    }
    Some(format!("{bom}{body}"))
}

fn offset_of_location(text: &str, mark: SourceLocation) -> Option<usize> {
    let start: usize = text.split_inclusive('\n').take(mark.line.checked_sub(1)?).map(str::len).sum();
    let line = text.get(start..)?.split('\n').next()?;
    let column = mark.column.checked_sub(1)?;
    let at = line.char_indices().map(|(at, _)| at).chain([line.len()]).nth(column)?;
    Some(start + at)
}

/// Returns the text of the value `old` at the start of `text`, including its quotes.
fn find_token<'a>(text: &'a str, old: &str) -> Option<&'a str> {
    for quote in ["\"", "'", ""] {
        let whole = format!("{quote}{old}{quote}");
        if text.starts_with(&whole) && !old.contains(['\n', '\\', '"', '\'']) {
            return text.get(..whole.len());
        }
    }
    None
}

/// Returns the separator between the items of the list that contains this offset: a comma within brackets, otherwise a
/// line break with a dash.
fn find_separator(text: &str, at: usize) -> Option<String> {
    let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let before = &text[line..at];
    if before.trim_end().ends_with(['[', ',']) {
        return Some(", ".to_owned());
    }
    let dash = before.rfind('-').filter(|dash| before[dash + 1..].trim().is_empty())?;
    let line_end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    Some(format!("{line_end}{}- ", " ".repeat(before[..dash].chars().count())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(line: usize, column: usize, old: &str, new: EditReplacement) -> SpellingEdit {
        SpellingEdit { mark: SourceLocation { line, column }, old: old.to_owned(), new }
    }

    #[test]
    fn edits_change_only_their_target() {
        let text = |new: &str| EditReplacement::Text(new.to_owned());
        let raw = |new: &str| EditReplacement::Raw(new.to_owned());
        let items = || EditReplacement::Items(vec!["\"-m\"".to_owned(), "\"1\"".to_owned()]);
        for (before, edits, after) in [
            ("a: 1 # é\r\nwipe: x\r\n", vec![edit(2, 1, "wipe", text("kept"))], "a: 1 # é\r\nkept: x\r\n"),
            ("{\"wipe\": true}", vec![edit(1, 2, "wipe", text("kept"))], "{\"kept\": true}"),
            ("é: 'ef00'", vec![edit(1, 4, "ef00", raw("\"ef00\""))], "é: \"ef00\""),
            (
                "a: 1\nb: 2\n",
                vec![edit(2, 4, "2", raw("\"2\"")), edit(1, 4, "1", raw("\"1\""))],
                "a: \"1\"\nb: \"2\"\n",
            ),
            ("[x, -m 1]", vec![edit(1, 5, "-m 1", items())], "[x, \"-m\", \"1\"]"),
            ("  - -m 1 # c\r\n", vec![edit(1, 5, "-m 1", items())], "  - \"-m\"\r\n  - \"1\" # c\r\n"),
            ("\u{feff}wipe: x", vec![edit(1, 1, "wipe", text("kept"))], "\u{feff}kept: x"),
        ] {
            assert_eq!(apply_edits(before, &edits).as_deref(), Some(after), "{before}");
        }
    }

    #[test]
    fn edits_of_absent_text_are_refused() {
        let new = || EditReplacement::Raw("y".to_owned());
        for (text, edit) in [
            ("a: \"\\x41\"\n", edit(1, 4, "A", new())),
            ("a: b\n", edit(2, 9, "b", new())),
            ("a: b\n", edit(9, 1, "b", new())),
            ("a: b\n", edit(1, 4, "c", new())),
        ] {
            assert_eq!(apply_edits(text, &[edit]), None, "{text}");
        }
    }
}
