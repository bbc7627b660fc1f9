//! Options of `mdadm --create` that a layout may set (mdadm(8); long_options in mdadm's ReadMe.c).
//!
//! mdadm would only report an invalid option after the disks were wiped, so all options are validated here.

use crate::layout::{Raid, RaidLevel};

pub(super) struct KnownOption {
    pub long: &'static str,
    short: Option<char>,
    /// True if it has a value, after `=` or in the next word.
    has_value: bool,
    pub meaning: Meaning,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Metadata,
    /// Allowed, for these levels and with these values.
    Free(Levels, Values),
    /// Not allowed, with the reason.
    Ours(&'static str),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Levels {
    All,
    Not(RaidLevel),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    None,
    /// Number with an optional suffix K, M, G or T.
    Size,
    SizeOrMax,
    Seconds,
    Bitmap,
    Policy,
    Layout,
}

/// Parsed option.
pub(super) struct Given<'a> {
    /// Index of its first word in the list, and number of words.
    pub at: usize,
    pub words: usize,
    pub known: &'static KnownOption,
    pub value: Option<&'a str>,
}

use Levels::{All, Not};
use Meaning::{Free, Metadata, Ours};
use RaidLevel::{Raid0, Raid1};

const MEMBERS: Meaning = Ours("it is derived from devices and spares");
const SPARES: Meaning = Ours("set spares in the layout instead");
const RUN: Meaning = Ours("it is always set");
const FORCE: Meaning = Ours("it would disable mdadm's safety checks");
const OUTSIDE: Meaning = Ours("it uses a device or file that is not in the layout");

const fn with_value(long: &'static str, short: Option<char>, meaning: Meaning) -> KnownOption {
    KnownOption { long, short, has_value: true, meaning }
}

const fn bare(long: &'static str, short: Option<char>, meaning: Meaning) -> KnownOption {
    KnownOption { long, short, has_value: false, meaning }
}

const OPTIONS: [KnownOption; 27] = [
    with_value("metadata", Some('e'), Metadata),
    with_value("level", Some('l'), Ours("set level in the layout instead")),
    with_value("raid-devices", Some('n'), MEMBERS),
    with_value("raid-disks", None, MEMBERS),
    with_value("spare-devices", Some('x'), SPARES),
    with_value("spare-disks", None, SPARES),
    with_value("uuid", Some('u'), Ours("the plan generates the UUID")),
    with_value("name", Some('N'), Ours("the name is derived from arrayname")),
    with_value("homehost", None, Ours("arrays are created for any host, so that they keep their names")),
    bare("run", Some('R'), RUN),
    bare("force", Some('f'), FORCE),
    bare("create", Some('C'), Ours("arrays are always created")),
    bare("readonly", Some('o'), Ours("the array must be writable")),
    with_value("write-journal", None, OUTSIDE),
    with_value("config", None, OUTSIDE),
    with_value("chunk", Some('c'), Free(Not(Raid1), Values::Size)),
    with_value("layout", Some('p'), Free(Not(Raid1), Values::Layout)),
    with_value("parity", None, Free(Not(Raid1), Values::Layout)),
    with_value("size", Some('z'), Free(All, Values::SizeOrMax)),
    with_value("data-offset", None, Free(All, Values::Size)),
    with_value("bitmap", Some('b'), Free(Not(Raid0), Values::Bitmap)),
    with_value("bitmap-chunk", None, Free(Not(Raid0), Values::Size)),
    with_value("consistency-policy", Some('k'), Free(Not(Raid0), Values::Policy)),
    with_value("delay", Some('d'), Free(Not(Raid0), Values::Seconds)),
    bare("assume-clean", None, Free(All, Values::None)),
    bare("failfast", None, Free(All, Values::None)),
    bare("verbose", Some('v'), Free(All, Values::None)),
];

impl Given<'_> {
    /// Returns the reason why this option is not allowed for this array.
    pub fn problem(&self, raid: &Raid) -> Option<String> {
        let long = self.known.long;
        let (levels, values) = match self.known.meaning {
            Ours(why) => return Some(format!("the create option --{long} is not allowed: {why}")),
            Free(levels, values) => (levels, values),
            Metadata => return None,
        };
        let level = raid.level;
        if levels == Not(level) {
            return Some(format!("the create option --{long} does not apply to {level}"));
        }
        let value = self.value.unwrap_or_default();
        values
            .usage(raid, value)
            .map(|usage| format!("the create option --{long} cannot be {value:?} for {level}: use {usage}"))
    }
}

impl Values {
    /// Returns a description of the valid values if this value is not one of them.
    fn usage(self, raid: &Raid, value: &str) -> Option<&'static str> {
        let number = |text: &str| text.parse::<u32>().is_ok_and(|number| number > 0);
        let size = number(value.strip_suffix(['K', 'M', 'G', 'T']).unwrap_or(value));
        let (good, usage) = match self {
            Values::None => (true, ""),
            Values::Size => (size, "a number with an optional suffix K, M, G or T"),
            Values::SizeOrMax => (size || value == "max", "max, or a number with an optional suffix K, M, G or T"),
            Values::Seconds => (number(value), "a number of seconds"),
            Values::Bitmap => (matches!(value, "internal" | "none"), "internal or none"),
            Values::Policy if raid.level == RaidLevel::Raid5 => (matches!(value, "resync" | "ppl"), "resync or ppl"),
            Values::Policy => (value == "resync", "resync, or --bitmap=internal for a bitmap"),
            Values::Layout => layout(raid, value),
        };
        (!good).then_some(usage)
    }
}

/// Validates the layout of an array (md(4); tables of layouts in mdadm's maps.c).
fn layout(raid: &Raid, value: &str) -> (bool, &'static str) {
    const PARITY: [&str; 10] = [
        "left-symmetric",
        "left-asymmetric",
        "right-symmetric",
        "right-asymmetric",
        "ls",
        "la",
        "rs",
        "ra",
        "parity-first",
        "parity-last",
    ];
    match raid.level {
        RaidLevel::Raid0 => (matches!(value, "original" | "alternate"), "original or alternate"),
        RaidLevel::Raid1 => (false, "no layout"),
        RaidLevel::Raid5 | RaidLevel::Raid6 => {
            (PARITY.contains(&value), "left-symmetric or one of its variants, parity-first or parity-last")
        }
        RaidLevel::Raid10 => {
            let copies = value.strip_prefix(['n', 'f', 'o']).and_then(|number| number.parse::<usize>().ok());
            let good = copies.is_some_and(|copies| (2..=raid.active()).contains(&copies));
            (good, "n, f or o followed by the number of copies, from 2 to the number of devices")
        }
    }
}

/// Parses the words as mdadm's getopt_long does: `--chunk=64`, `--chunk 64`, `-c 64`, `-c64`, `--ch=64`.
pub(super) fn read(words: &[String]) -> Vec<Result<Given<'_>, String>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let given = read_one(words, at, word);
        at += given.as_ref().map_or(1, |given| given.words);
        found.push(given);
    }
    found
}

fn read_one<'a>(words: &'a [String], at: usize, word: &'a str) -> Result<Given<'a>, String> {
    let (known, value) = if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        (by_name(name).ok_or_else(|| unknown(word))?, value)
    } else if let Some(short) = word.strip_prefix('-') {
        let mut letters = short.chars();
        let letter = letters.next();
        let known = OPTIONS.iter().find(|option| letter.is_some() && option.short == letter);
        let rest = letters.as_str();
        (known.ok_or_else(|| unknown(word))?, (!rest.is_empty()).then_some(rest))
    } else {
        return Err(format!("{word} is not an option: mdadm would use it as a device; list members in devices"));
    };
    let (value, words) = match (known.has_value, value) {
        (true, None) => match words.get(at + 1) {
            Some(next) => (Some(next.as_str()), 2),
            None => return Err(format!("the create option {word} requires a value")),
        },
        (false, Some(_)) => {
            return Err(format!("the create option --{} does not take a value: remove it from {word}", known.long));
        }
        (_, value) => (value, 1),
    };
    Ok(Given { at, words, known, value })
}

/// Returns the option with this name or unambiguous abbreviation.
fn by_name(name: &str) -> Option<&'static KnownOption> {
    let mut abbreviated = OPTIONS.iter().filter(|option| !name.is_empty() && option.long.starts_with(name));
    let exact = OPTIONS.iter().find(|option| option.long == name);
    exact.or_else(|| abbreviated.next().filter(|_| abbreviated.next().is_none()))
}

fn unknown(word: &str) -> String {
    let free: Vec<String> = OPTIONS
        .iter()
        .filter(|option| matches!(option.meaning, Free(..)))
        .map(|option| format!("--{}", option.long))
        .collect();
    format!("{word} is not a supported option for creating arrays; supported: --metadata, {}", free.join(", "))
}
