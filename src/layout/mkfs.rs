//! Validation of mkfs options, parsed as the tool itself parses them: getopt's clusters (`-Fn`), values (`-b 4096`, `-b4096`, `--label=x`),
//! abbreviations (`--lab x`), and values with several parts (`-J size=16,device=…`).
//!
//! The tool would only report an invalid option after the disks were wiped, and some options use devices or files outside of the layout.

mod tables;

use super::{Filesystem, Format};
use tables::{KnownOption, Rule, Takes, Tool};

/// Parsed option.
struct Given<'a> {
    /// Word of the list: `-Fn`, `--uuid=x`.
    word: &'a str,
    /// Name of the option: `-n`, `--uuid`.
    name: String,
    known: &'static KnownOption,
    value: Option<&'a str>,
}

type Read<'a> = Result<Given<'a>, String>;

impl Filesystem {
    /// Returns the problems of the create options.
    pub fn option_problems(&self) -> Vec<String> {
        let words = &self.createoptions;
        let read = read(self.format, words).into_iter();
        let mut problems: Vec<String> =
            read.flat_map(|given| given.map_or_else(|why| vec![why], |given| given.problems(self.format))).collect();
        // No value of these tools is a device, so such a word is refused.
        for word in words.iter().filter(|word| word.contains("/dev/")) {
            let problem = refused(word, tables::DEVICE);
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        problems
    }

    /// Returns the value of a short option that the tool will use: the last one.
    pub fn create_option(&self, letter: char) -> Option<&str> {
        let read = read(self.format, &self.createoptions).into_iter().flatten();
        read.filter(|given| given.known.letter == Some(letter)).filter_map(|given| given.value).next_back()
    }
}

impl Given<'_> {
    fn problems(&self, format: Format) -> Vec<String> {
        match self.known.rule {
            Rule::Free => Vec::new(),
            Rule::Refused(why) => vec![refused(&self.in_word(), why)],
            Rule::Format if self.value == Some(format.name()) => Vec::new(),
            Rule::Format => vec![refused(&self.in_word(), "set format in the layout instead")],
            Rule::Parts(parts) => {
                let named = |part: &str| {
                    let name = name_of(part);
                    let found = parts.iter().find(|(refused, _)| *refused == name);
                    found.map(|(_, why)| refused(part, why))
                };
                // mke2fs also separates features at blanks.
                let is_between = |letter: char| letter == ',' || letter.is_whitespace();
                self.value.unwrap_or_default().split(is_between).filter_map(named).collect()
            }
        }
    }

    fn in_word(&self) -> String {
        let alone = self.word == self.name || self.word.starts_with("--");
        if alone { self.word.to_owned() } else { format!("{} of {}", self.name, self.word) }
    }
}

/// Returns the name of a part of a value in lower case. mke2fs parses the number of a feature with strtol(3): `FEATURE_I+03` is
/// `FEATURE_I3`.
fn name_of(part: &str) -> String {
    let name = part.split('=').next().unwrap_or_default().trim_start_matches('+').to_ascii_lowercase();
    let number = name.strip_prefix("feature_i").and_then(|number| number.parse::<u32>().ok());
    number.map_or(name, |number| format!("feature_i{number}"))
}

fn refused(option: &str, why: &str) -> String {
    format!("the create option {option} is not allowed: {why}")
}

/// Parses the options. The result is empty for a format that no tool creates.
fn read(format: Format, words: &[String]) -> Vec<Read<'_>> {
    let Some(tool) = tables::tool(format) else { return Vec::new() };
    let mut found = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let mut next = || rest.next().map(String::as_str);
        match word.strip_prefix("--") {
            Some(long) => found.push(tool.long(word, long, &mut next)),
            None => match word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
                Some(letters) => found.extend(tool.cluster(word, letters, &mut next)),
                None => found.push(Err(format!("{word} is not an option: mkfs would use it as the device"))),
            },
        }
    }
    found
}

impl Tool {
    /// Parses a cluster of letters after one `-`. The first option that requires a value uses the rest of the word, or the next word.
    fn cluster<'a>(&self, word: &'a str, letters: &'a str, next: &mut dyn FnMut() -> Option<&'a str>) -> Vec<Read<'a>> {
        let mut found = Vec::new();
        for (at, letter) in letters.char_indices() {
            let Some(known) = self.options.iter().find(|option| option.letter == Some(letter)) else {
                found.push(Err(self.unknown(&format!("-{letter}"), word)));
                break;
            };
            let name = format!("-{letter}");
            if known.takes == Takes::Nothing {
                found.push(Ok(Given { word, name, known, value: None }));
                continue;
            }
            let left = &letters[at + letter.len_utf8()..];
            let value = if left.is_empty() { next() } else { Some(left) };
            found.push(match value {
                Some(_) => Ok(Given { word, name, known, value }),
                None => Err(format!("the create option {word} requires a value")),
            });
            break;
        }
        found
    }

    fn long<'a>(&self, word: &'a str, long: &'a str, next: &mut dyn FnMut() -> Option<&'a str>) -> Read<'a> {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        let known = self.by_name(name).ok_or_else(|| self.unknown(word, word))?;
        let value = match (known.takes, value) {
            (Takes::Nothing, Some(_)) => {
                return Err(format!("the create option --{} does not take a value: remove it from {word}", known.long));
            }
            (Takes::Value, None) => Some(next().ok_or_else(|| format!("the create option {word} requires a value"))?),
            (_, value) => value,
        };
        Ok(Given { word, name: format!("--{}", known.long), known, value })
    }

    /// Returns the option with this name or unambiguous abbreviation.
    fn by_name(&self, name: &str) -> Option<&'static KnownOption> {
        let long = || self.options.iter().filter(|option| !option.long.is_empty() && !name.is_empty());
        let mut abbreviated = long().filter(|option| option.long.starts_with(name));
        let exact = long().find(|option| option.long == name);
        exact.or_else(|| abbreviated.next().filter(|_| abbreviated.next().is_none()))
    }

    fn unknown(&self, option: &str, word: &str) -> String {
        let place = if option == word { String::new() } else { format!(" of {word}") };
        format!("{option}{place} is not a supported option of {}", self.name)
    }
}

#[cfg(test)]
mod tests;
