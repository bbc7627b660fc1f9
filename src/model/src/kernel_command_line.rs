//! Syntax of kernel command lines, as Linux parses it (`next_arg` in `lib/cmdline.c`): words are separated by blanks
//! outside double quotes. There are no escapes: a backslash is an ordinary character.

/// Splits a command line into words. Their quotes are preserved.
pub fn split_words(line: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    let ends_word = move |c: char| {
        is_quoted ^= c == '"';
        !is_quoted && is_blank(c)
    };
    line.split(ends_word).filter(|word| !word.is_empty())
}

fn is_blank(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\u{b}'
}

/// Returns the name of a word's parameter.
pub fn parameter_name(word: &str) -> &str {
    let word = word.strip_prefix('"').unwrap_or(word);
    word.split('=').next().unwrap_or_default()
}

/// Returns the value of a word's parameter without its quotes; `None` if the parameter has no value.
pub fn parameter_value(word: &str) -> Option<String> {
    unquote_word(word).split_once('=').map(|(_, value)| value.to_owned())
}

/// Returns name and value of a word as one string without the quotes that Linux removes.
pub fn unquote_word(word: &str) -> String {
    let word = match word.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"').unwrap_or(rest),
        None => word,
    };
    match word.split_once("=\"") {
        Some((name, value)) if !name.contains('=') => format!("{name}={}", value.strip_suffix('"').unwrap_or(value)),
        _ => word.to_owned(),
    }
}

/// Formats an unquoted parameter, such as `NAME=VALUE`, as a word of a command line. If the parameter contains blanks,
/// adds quotes.
pub fn quote_word(text: &str) -> String {
    match text.split_once('=') {
        _ if text.contains('"') || !text.contains(is_blank) => text.to_owned(),
        Some((name, value)) if !name.contains(is_blank) => format!("{name}=\"{value}\""),
        _ => format!("\"{text}\""),
    }
}

/// Returns whether two parameters have the same name for Linux, which does not distinguish `-` from `_`.
pub fn is_same_name(one: &str, other: &str) -> bool {
    let plain = |name: &str| name.replace('-', "_");
    plain(one) == plain(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_separated_by_blanks_outside_double_quotes() {
        for (line, words) in [
            ("", &[][..]),
            ("  a\tb=c \n", &["a", "b=c"]),
            ("dyndbg=\"file x.c +p\" quiet", &["dyndbg=\"file x.c +p\"", "quiet"]),
            ("\"a b=c d\" e", &["\"a b=c d\"", "e"]),
            // A backslash does not escape a quote.
            (r#"a=\"b c\" d"#, &[r#"a=\"b c\""#, "d"]),
            ("a='b c'", &["a='b", "c'"]),
            ("a=\"b c", &["a=\"b c"]),
        ] {
            assert_eq!(split_words(line).collect::<Vec<_>>(), words, "{line}");
        }
    }

    #[test]
    fn names_and_values_lose_the_quotes_that_linux_removes() {
        for (word, name, value) in [
            ("quiet", "quiet", None),
            ("a=", "a", Some("")),
            ("a=b=c", "a", Some("b=c")),
            ("dyndbg=\"file x +p\"", "dyndbg", Some("file x +p")),
            ("\"dyndbg=file x +p\"", "dyndbg", Some("file x +p")),
            ("a=b=\"c\"", "a", Some("b=\"c\"")),
            ("a=\"b c", "a", Some("b c")),
        ] {
            assert_eq!((parameter_name(word), parameter_value(word).as_deref()), (name, value), "{word}");
        }
        assert_eq!(quote_word("a=b c"), "a=\"b c\"");
        assert_eq!(quote_word("a b=c"), "\"a b=c\"");
        assert_eq!(quote_word("a=\"b c\""), "a=\"b c\"");
        assert!(is_same_name("net-if_names", "net_if-names") && !is_same_name("boot", "BOOT"));
    }
}
