//! Validation of mkfs options. The options are parsed in the same way as by the tool: clusters of getopt (`-Fn`),
//! values (`-b 4096`, `-b4096`, `--label=x`), abbreviations (`--lab x`), and values with several parts (`-J
//! size=16,device=…`).
//!
//! The options are validated here, because the tool would report an invalid option only after the disks had been
//! wiped. Some valid options must also be rejected, because they use devices or files that are not in the layout.

mod option_tables;

use super::{FilesystemFormat, FilesystemSpec};
use option_tables::{MkfsOption, MkfsTool, OptionArity, OptionRule};

/// Parsed option with its value.
struct MkfsArgument<'a> {
    /// The word of the create options that contains this option: `-Fn`, `--uuid=x`.
    word: &'a str,
    /// Name of the option: `-n`, `--uuid`.
    name: String,
    known: &'static MkfsOption,
    value: Option<&'a str>,
}

type ParsedArgument<'a> = Result<MkfsArgument<'a>, String>;

impl FilesystemSpec {
    /// Returns all problems of the create options.
    pub(crate) fn check_options(&self) -> Vec<String> {
        let words = &self.createoptions;
        let read = parse_arguments(self.format, words).into_iter();
        let mut problems: Vec<String> = read
            .flat_map(|given| given.map_or_else(|why| vec![why], |given| given.find_problems(self.format)))
            .collect();
        // Words with a device path are refused, because no valid value of an mkfs option contains a device path.
        for word in words.iter().filter(|word| word.contains("/dev/")) {
            let problem = describe_refusal(word, option_tables::DEVICE);
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        problems
    }

    /// Returns the value of a short option. If the option is specified several times, returns the last value, because
    /// the tool uses the last value.
    pub fn find_option_value(&self, letter: char) -> Option<&str> {
        let read = parse_arguments(self.format, &self.createoptions).into_iter().flatten();
        read.filter(|given| given.known.letter == Some(letter)).filter_map(|given| given.value).next_back()
    }
}

impl MkfsArgument<'_> {
    fn find_problems(&self, format: FilesystemFormat) -> Vec<String> {
        match self.known.rule {
            OptionRule::Free => Vec::new(),
            OptionRule::Refused(why) => vec![describe_refusal(&self.describe_in_word(), why)],
            OptionRule::Format if self.value == Some(format.name()) => Vec::new(),
            OptionRule::Format => vec![describe_refusal(&self.describe_in_word(), "set `format` in the layout")],
            OptionRule::Parts(parts) => {
                let named = |part: &str| {
                    let name = normalize_name(part);
                    let found = parts.iter().find(|(refused, _)| *refused == name);
                    found.map(|(_, why)| describe_refusal(part, why))
                };
                // mke2fs also separates features at blanks.
                let is_between = |letter: char| letter == ',' || letter.is_whitespace();
                self.value.unwrap_or_default().split(is_between).filter_map(named).collect()
            }
        }
    }

    fn describe_in_word(&self) -> String {
        let alone = self.word == self.name || self.word.starts_with("--");
        if alone { self.word.to_owned() } else { format!("{} of {}", self.name, self.word) }
    }
}

/// Returns the name in an item of a comma-separated value, such as `NAME=VALUE`, in lower case. mke2fs also accepts
/// features by bit number, such as `FEATURE_I3`, and parses this number with strtol(3). `FEATURE_I+03` is therefore
/// returned as `feature_i3`.
fn normalize_name(part: &str) -> String {
    let name = part.split('=').next().unwrap_or_default().trim_start_matches('+').to_ascii_lowercase();
    let number = name.strip_prefix("feature_i").and_then(|number| number.parse::<u32>().ok());
    number.map_or(name, |number| format!("feature_i{number}"))
}

fn describe_refusal(option: &str, why: &str) -> String {
    format!("the create option {option} is not allowed: {why}")
}

/// Parses the options. The result is empty for a format that no mkfs tool creates.
fn parse_arguments(format: FilesystemFormat, words: &[String]) -> Vec<ParsedArgument<'_>> {
    let Some(tool) = option_tables::find_tool(format) else { return Vec::new() };
    let mut found = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let mut next = || rest.next().map(String::as_str);
        match word.strip_prefix("--") {
            Some(long) => found.push(tool.parse_long(word, long, &mut next)),
            None => match word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
                Some(letters) => found.extend(tool.parse_cluster(word, letters, &mut next)),
                None => found.push(Err(format!("{word} is not an option: mkfs would use it as the device"))),
            },
        }
    }
    found
}

impl MkfsTool {
    /// Parses a cluster of letters after one `-`. The first option that requires a value ends the cluster: its value is
    /// the rest of the word, or the next word.
    fn parse_cluster<'a>(
        &self,
        word: &'a str,
        letters: &'a str,
        next: &mut dyn FnMut() -> Option<&'a str>,
    ) -> Vec<ParsedArgument<'a>> {
        let mut found = Vec::new();
        for (at, letter) in letters.char_indices() {
            let Some(known) = self.options.iter().find(|option| option.letter == Some(letter)) else {
                found.push(Err(self.describe_unknown(&format!("-{letter}"), word)));
                break;
            };
            let name = format!("-{letter}");
            if known.takes == OptionArity::NoValue {
                found.push(Ok(MkfsArgument { word, name, known, value: None }));
                continue;
            }
            let left = &letters[at + letter.len_utf8()..];
            let value = if left.is_empty() { next() } else { Some(left) };
            found.push(match value {
                Some(_) => Ok(MkfsArgument { word, name, known, value }),
                None => Err(format!("the create option {word} requires a value")),
            });
            break;
        }
        found
    }

    fn parse_long<'a>(
        &self,
        word: &'a str,
        long: &'a str,
        next: &mut dyn FnMut() -> Option<&'a str>,
    ) -> ParsedArgument<'a> {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        let known = self.find_long_option(name).ok_or_else(|| self.describe_unknown(word, word))?;
        let value = match (known.takes, value) {
            (OptionArity::NoValue, Some(_)) => {
                return Err(format!(
                    "the create option --{option} does not take a value: remove it from {word}",
                    option = known.long
                ));
            }
            (OptionArity::Value, None) => {
                Some(next().ok_or_else(|| format!("the create option {word} requires a value"))?)
            }
            (_, value) => value,
        };
        Ok(MkfsArgument { word, name: format!("--{}", known.long), known, value })
    }

    /// Returns the option with this name. An unambiguous abbreviation of the name is also accepted.
    fn find_long_option(&self, name: &str) -> Option<&'static MkfsOption> {
        let long = || self.options.iter().filter(|option| !option.long.is_empty() && !name.is_empty());
        let mut abbreviated = long().filter(|option| option.long.starts_with(name));
        let exact = long().find(|option| option.long == name);
        exact.or_else(|| abbreviated.next().filter(|_| abbreviated.next().is_none()))
    }

    fn describe_unknown(&self, option: &str, word: &str) -> String {
        let place = if option == word { String::new() } else { format!(" of {word}") };
        format!("{option}{place} is not a supported option of {tool}", tool = self.name)
    }
}

#[cfg(test)]
mod tests;
