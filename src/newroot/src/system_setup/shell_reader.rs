//! Reader of shell text: assignments of sh(1), and commands of GRUB's configuration. Commands are not run, so the
//! output of a command substitution is unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::str::Chars;

pub(crate) type ShellVariables = BTreeMap<String, String>;

/// Placeholder character for text that cannot be determined.
pub(crate) const UNKNOWN: char = '\0';

/// Maximum size of a word, in bytes. Assignments such as `A=$A$A` double the size of a value.
const MAX_WORD: usize = 64 << 10;

/// Maximum total size, in bytes, of the values that are expanded in one file.
const MAX_EXPANDED: usize = 1 << 20;

/// Maximum depth of nested expansions such as `${a:-${b:-c}}`.
const MAX_DEPTH: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShellSyntax {
    /// Assignments of sh(1), in which an unset variable is empty, and values are not split.
    Assignments,
    /// GRUB's scripts. Values of variables are split into words. An unset variable is unknown, because GRUB sets some
    /// variables itself.
    Grub,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct ShellWord {
    pub text: String,
    /// Whether the word contains the value of a variable.
    pub is_expanded: bool,
    is_quoted: bool,
}

pub(crate) struct ShellReader<'a> {
    rest: Peekable<Chars<'a>>,
    syntax: ShellSyntax,
    expanded_bytes: usize,
    /// Names of the unset variables that were read.
    pub unset: BTreeSet<String>,
}

impl<'a> ShellReader<'a> {
    pub(crate) fn new(text: &'a str, syntax: ShellSyntax) -> ShellReader<'a> {
        ShellReader { rest: text.chars().peekable(), syntax, expanded_bytes: 0, unset: BTreeSet::new() }
    }

    /// Reads the words of the next command, which ends at a newline or semicolon; `None` at the end of the text.
    pub(crate) fn read_command(&mut self, variables: &ShellVariables) -> Option<Vec<ShellWord>> {
        self.rest.peek()?;
        let mut words = Vec::new();
        while let Some(&next) = self.rest.peek() {
            match next {
                '\n' | ';' => {
                    self.rest.next();
                    break;
                }
                '#' => while self.rest.next_if(|c| *c != '\n').is_some() {},
                _ if next.is_whitespace() => drop(self.rest.next()),
                _ => words.extend(self.read_word(variables)),
            }
        }
        Some(words)
    }

    fn read_word(&mut self, variables: &ShellVariables) -> Vec<ShellWord> {
        let (mut words, mut word) = (Vec::new(), ShellWord::default());
        while let Some(c) = self.rest.next_if(|c| !(c.is_whitespace() || *c == ';')) {
            match c {
                '\'' => {
                    word.is_quoted = true;
                    while let Some(c) = self.rest.next_if(|c| *c != '\'') {
                        push_text(&mut word.text, c.encode_utf8(&mut [0; 4]));
                    }
                    self.rest.next();
                }
                '"' => {
                    word.is_quoted = true;
                    let text = self.read_until('"', variables, 0);
                    push_text(&mut word.text, &text);
                }
                '$' => {
                    let value = self.read_expansion(variables, 0);
                    word.is_expanded = true;
                    if self.syntax == ShellSyntax::Grub {
                        append_split(&mut words, &mut word, &value);
                    } else {
                        push_text(&mut word.text, &value);
                    }
                }
                _ => {
                    let text = self.read_character(c);
                    push_text(&mut word.text, &text);
                }
            }
        }
        words.push(word);
        words.retain(|word| word.is_quoted || !word.text.is_empty());
        words
    }

    /// Reads the rest of an escape or command substitution that begins with this unquoted character. Returns any other
    /// character unchanged.
    fn read_character(&mut self, first: char) -> String {
        match first {
            '\\' => self.rest.next().filter(|c| *c != '\n').map(String::from).unwrap_or_default(),
            '`' if self.syntax == ShellSyntax::Assignments => self.skip_command('`'),
            _ => first.to_string(),
        }
    }

    /// Reads quoted text up to its end.
    fn read_until(&mut self, end: char, variables: &ShellVariables, depth: u32) -> String {
        let mut text = String::new();
        while let Some(c) = self.rest.next_if(|c| *c != end) {
            match c {
                '$' => {
                    let value = self.read_expansion(variables, depth);
                    push_text(&mut text, &value);
                }
                '\\' => match self.rest.next() {
                    Some('\n') | None => {}
                    Some(c @ ('$' | '"' | '\\' | '`')) => text.push(c),
                    Some(c) => text.extend(['\\', c]),
                },
                '`' if self.syntax == ShellSyntax::Assignments => text += &self.skip_command('`'),
                '"' if end == '}' => text += &self.read_until('"', variables, depth),
                _ => push_text(&mut text, c.encode_utf8(&mut [0; 4])),
            }
        }
        self.rest.next();
        text
    }

    /// Reads the expansion after a dollar sign. A dollar sign that does not begin an expansion is returned as a
    /// literal.
    fn read_expansion(&mut self, variables: &ShellVariables, depth: u32) -> String {
        match self.rest.peek() {
            Some('(') if self.syntax == ShellSyntax::Assignments => {
                self.rest.next();
                self.skip_command(')')
            }
            Some('{') => {
                self.rest.next();
                let name = self.read_name();
                self.read_braced(&name, variables, depth + 1)
            }
            Some(c) if c.is_ascii_alphabetic() || *c == '_' => {
                let name = self.read_name();
                self.look_up(&name, variables)
            }
            _ => "$".to_owned(),
        }
    }

    fn read_name(&mut self) -> String {
        std::iter::from_fn(|| self.rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_')).collect()
    }

    fn look_up(&mut self, name: &str, variables: &ShellVariables) -> String {
        match variables.get(name) {
            Some(value) if self.expanded_bytes + value.len() > MAX_EXPANDED => UNKNOWN.to_string(),
            Some(value) => {
                self.expanded_bytes += value.len();
                value.clone()
            }
            None => {
                self.unset.insert(name.to_owned());
                if self.syntax == ShellSyntax::Grub { UNKNOWN.to_string() } else { String::new() }
            }
        }
    }

    /// Reads the rest of `${name}`, or of an alternative such as `${name:-word}`.
    fn read_braced(&mut self, name: &str, variables: &ShellVariables, depth: u32) -> String {
        if self.rest.next_if_eq(&'}').is_some() {
            return self.look_up(name, variables);
        }
        if depth > MAX_DEPTH {
            while self.rest.next_if(|c| *c != '}').is_some() {}
            self.rest.next();
            return UNKNOWN.to_string();
        }
        let empty_counts = self.rest.next_if_eq(&':').is_some();
        let operator = self.rest.next();
        let alternative = self.read_until('}', variables, depth);
        let is_set = variables.get(name).is_some_and(|value| !(empty_counts && value.is_empty()));
        match (operator, is_set) {
            (Some('-'), false) | (Some('+'), true) => alternative,
            (Some('-'), true) => self.look_up(name, variables),
            (Some('+'), false) => String::new(),
            _ => UNKNOWN.to_string(),
        }
    }

    /// Skips a command substitution up to its end.
    fn skip_command(&mut self, end: char) -> String {
        let mut depth = 1;
        for c in self.rest.by_ref() {
            match c {
                _ if c == end => depth -= 1,
                '(' if end == ')' => depth += 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
        UNKNOWN.to_string()
    }
}

/// Appends a string, within the size limit of a word.
fn push_text(word: &mut String, text: &str) {
    if word.len() + text.len() <= MAX_WORD {
        word.push_str(text);
    } else if !word.ends_with(UNKNOWN) {
        word.push(UNKNOWN);
    }
}

/// Appends the value of an unquoted variable. Blanks in the value separate words.
fn append_split(words: &mut Vec<ShellWord>, word: &mut ShellWord, value: &str) {
    for (index, part) in value.split(char::is_whitespace).enumerate() {
        if index > 0 {
            words.push(std::mem::take(word));
            word.is_expanded = true;
        }
        push_text(&mut word.text, part);
    }
}

/// Evaluates the assignments of a file in the syntax of sh(1), such as `/etc/default/grub`. Conditions are ignored:
/// all known distributions use plain assignments.
pub(crate) fn read_assignments(text: &str) -> ShellVariables {
    let mut variables = ShellVariables::new();
    let mut reader = ShellReader::new(text, ShellSyntax::Assignments);
    while let Some(words) = reader.read_command(&variables) {
        let words = words.iter().map(|word| word.text.as_str()).skip_while(|word| ["export", "then"].contains(word));
        for (name, value) in words.map_while(|word| word.split_once('=')) {
            let (name, before) = match name.strip_suffix('+') {
                Some(name) => (name, variables.get(name).cloned().unwrap_or_default()),
                None => (name, String::new()),
            };
            let mut whole = before;
            push_text(&mut whole, value);
            variables.insert(name.to_owned(), whole);
        }
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grub_words(text: &str, variables: &[(&str, &str)]) -> Vec<String> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let command = ShellReader::new(text, ShellSyntax::Grub).read_command(&variables);
        command.unwrap_or_default().into_iter().map(|word| word.text).collect()
    }

    #[test]
    fn grub_words_are_parsed_with_quotes_escapes_and_variables() {
        let variables = [("k", "root=LABEL=r  ro "), ("empty", ""), ("x", "a b")];
        for (text, words) in [
            ("linux /k  'a b' \"c $x\" d\\ e # f", &["linux", "/k", "a b", "c a b", "d e"][..]),
            ("$k quiet; next", &["root=LABEL=r", "ro", "quiet"]),
            ("v$x${x}w", &["va", "ba", "bw"]),
            ("$empty \"$empty\" end", &["", "end"]),
            ("memmap=2M\\$1M memmap=2M$1M", &["memmap=2M$1M", "memmap=2M$1M"]),
            ("a=\"b\\\"c\\$x\\d\" $none", &["a=b\"c$x\\d", "\0"]),
            ("one \\\n two\nthree", &["one", "two"]),
            ("'open", &["open"]),
            ("\"open $", &["open $"]),
        ] {
            assert_eq!(grub_words(text, &variables), words, "{text}");
        }
    }

    #[test]
    fn assignments_are_parsed_as_by_sh() {
        for (text, value) in [
            ("A=b c", "b"),
            ("A=\"b \\\n  c\"\n", "b   c"),
            ("A=\"b\\\"c d\\\"\"", "b\"c d\""),
            ("# A=x\nexport A='b $c'", "b $c"),
            ("B=x\nA=\"$B ${B}y $none.\"", "x xy ."),
            ("A=b\nA+=\" c\"", "b c"),
            ("A=b\nA=\"${A:+$A }\\$tuned\"", "b $tuned"),
            ("A=\"${A:+$A }${B:-${C-d}}\"", "d"),
            ("A=`echo \"x\"` B=y", "\0"),
            ("A=\"a$(echo $(x)) b\"", "a\0 b"),
            ("A=${B%x}", "\0"),
            ("if true; then A=b; fi", "b"),
        ] {
            assert_eq!(read_assignments(text).get("A").map(String::as_str), Some(value), "{text}");
        }
    }

    #[test]
    fn hostile_text_is_parsed_within_limits() {
        let doubled = format!("A=aaaaaaaa\n{}", "A=$A$A\n".repeat(64));
        assert!(read_assignments(&doubled)["A"].len() <= 2 * MAX_WORD);
        let nested = format!("A={}x", "${B:-".repeat(100_000));
        assert!(read_assignments(&nested)["A"].len() < 10);
        read_assignments(&"A=$(".repeat(100_000));
        read_assignments(&"A=\"`".repeat(100_000));
    }
}
