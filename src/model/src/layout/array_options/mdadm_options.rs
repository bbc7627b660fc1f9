//! Options of `mdadm --create` that a layout may set (mdadm(8); long_options in mdadm's ReadMe.c).
//!
//! All options are validated here, because mdadm would report an invalid option only after the disks had been wiped.

use crate::layout::{ArraySpec, RaidLevel};

pub(super) struct MdadmOption {
    pub long: &'static str,
    short: Option<char>,
    /// True if the option requires a value, after `=` or in the next word.
    has_value: bool,
    pub meaning: OptionPolicy,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OptionPolicy {
    Metadata,
    /// The option is allowed for the listed RAID levels, with the described values.
    Free(LevelFilter, ValueSyntax),
    /// The option is not allowed. Contains the reason.
    Reserved(&'static str),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LevelFilter {
    All,
    Not(RaidLevel),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueSyntax {
    None,
    /// Number with an optional suffix K, M, G or T.
    Size,
    SizeOrMax,
    Seconds,
    Bitmap,
    Policy,
    Layout,
}

/// Parsed option with its value.
pub(super) struct MdadmArgument<'a> {
    /// Index of the option's first word in the list of words. `words` is the number of words of the option.
    pub at: usize,
    pub words: usize,
    pub known: &'static MdadmOption,
    pub value: Option<&'a str>,
}

use LevelFilter::{All, Not};
use OptionPolicy::{Free, Metadata, Reserved};
use RaidLevel::{Raid0, Raid1};

const MEMBERS: OptionPolicy = Reserved("the value is derived from `devices` and `spares`");
const SPARES: OptionPolicy = Reserved("set `spares` in the layout instead");
const RUN: OptionPolicy = Reserved("the option is always set");
const FORCE: OptionPolicy = Reserved("the option would disable mdadm's safety checks");
const OUTSIDE: OptionPolicy = Reserved("the option uses a device or file that is not in the layout");

const fn value_option(long: &'static str, short: Option<char>, meaning: OptionPolicy) -> MdadmOption {
    MdadmOption { long, short, has_value: true, meaning }
}

const fn flag_option(long: &'static str, short: Option<char>, meaning: OptionPolicy) -> MdadmOption {
    MdadmOption { long, short, has_value: false, meaning }
}

const OPTIONS: [MdadmOption; 27] = [
    value_option("metadata", Some('e'), Metadata),
    value_option("level", Some('l'), Reserved("set `level` in the layout instead")),
    value_option("raid-devices", Some('n'), MEMBERS),
    value_option("raid-disks", None, MEMBERS),
    value_option("spare-devices", Some('x'), SPARES),
    value_option("spare-disks", None, SPARES),
    value_option("uuid", Some('u'), Reserved("the plan generates the UUID")),
    value_option("name", Some('N'), Reserved("the name is derived from `arrayname`")),
    value_option(
        "homehost",
        None,
        Reserved("the home host of every array is `any`, so that the array's name does not depend on the hostname"),
    ),
    flag_option("run", Some('R'), RUN),
    flag_option("force", Some('f'), FORCE),
    flag_option("create", Some('C'), Reserved("arrays are always created")),
    flag_option("readonly", Some('o'), Reserved("the array must be writable")),
    value_option("write-journal", None, OUTSIDE),
    value_option("config", None, OUTSIDE),
    value_option("chunk", Some('c'), Free(Not(Raid1), ValueSyntax::Size)),
    value_option("layout", Some('p'), Free(Not(Raid1), ValueSyntax::Layout)),
    value_option("parity", None, Free(Not(Raid1), ValueSyntax::Layout)),
    value_option("size", Some('z'), Free(All, ValueSyntax::SizeOrMax)),
    value_option("data-offset", None, Free(All, ValueSyntax::Size)),
    value_option("bitmap", Some('b'), Free(Not(Raid0), ValueSyntax::Bitmap)),
    value_option("bitmap-chunk", None, Free(Not(Raid0), ValueSyntax::Size)),
    value_option("consistency-policy", Some('k'), Free(Not(Raid0), ValueSyntax::Policy)),
    value_option("delay", Some('d'), Free(Not(Raid0), ValueSyntax::Seconds)),
    flag_option("assume-clean", None, Free(All, ValueSyntax::None)),
    flag_option("failfast", None, Free(All, ValueSyntax::None)),
    flag_option("verbose", Some('v'), Free(All, ValueSyntax::None)),
];

impl MdadmArgument<'_> {
    /// Returns the reason why this option is not allowed for this array; `None` if it is allowed.
    pub(crate) fn check_for_array(&self, raid: &ArraySpec) -> Option<String> {
        let long = self.known.long;
        let (levels, values) = match self.known.meaning {
            Reserved(why) => return Some(format!("the create option --{long} is not allowed: {why}")),
            Free(levels, values) => (levels, values),
            Metadata => return None,
        };
        let level = raid.level;
        if levels == Not(level) {
            return Some(format!("the create option --{long} does not apply to {level}"));
        }
        let value = self.value.unwrap_or_default();
        values
            .describe_if_invalid(raid, value)
            .map(|usage| format!("the create option --{long} cannot be {value:?} for {level}: use {usage}"))
    }
}

impl ValueSyntax {
    /// Returns a description of the valid values if this value is invalid; otherwise `None`.
    fn describe_if_invalid(self, raid: &ArraySpec, value: &str) -> Option<&'static str> {
        let number = |text: &str| text.parse::<u32>().is_ok_and(|number| number > 0);
        let size = number(value.strip_suffix(['K', 'M', 'G', 'T']).unwrap_or(value));
        let (good, usage) = match self {
            ValueSyntax::None => (true, ""),
            ValueSyntax::Size => (size, "a number with an optional suffix K, M, G or T"),
            ValueSyntax::SizeOrMax => (size || value == "max", "max, or a number with an optional suffix K, M, G or T"),
            ValueSyntax::Seconds => (number(value), "a number of seconds"),
            ValueSyntax::Bitmap => (matches!(value, "internal" | "none"), "internal or none"),
            ValueSyntax::Policy if raid.level == RaidLevel::Raid5 => {
                (matches!(value, "resync" | "ppl"), "resync or ppl")
            }
            ValueSyntax::Policy => (value == "resync", "resync (for a bitmap, use --bitmap=internal)"),
            ValueSyntax::Layout => check_layout_value(raid, value),
        };
        (!good).then_some(usage)
    }
}

/// Returns whether `value` is a valid layout for this array, and a description of the valid layouts (md(4); tables of
/// layouts in mdadm's maps.c).
fn check_layout_value(raid: &ArraySpec, value: &str) -> (bool, &'static str) {
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
            let good = copies.is_some_and(|copies| (2..=raid.count_active()).contains(&copies));
            (good, "n, f or o followed by the number of copies, from 2 to the number of devices")
        }
    }
}

/// Parses words like mdadm, which uses getopt_long: `--chunk=64`, `--chunk 64`, `-c 64`, `-c64`, `--ch=64`.
pub(super) fn parse_arguments(words: &[String]) -> Vec<Result<MdadmArgument<'_>, String>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let given = parse_argument(words, at, word);
        at += given.as_ref().map_or(1, |given| given.words);
        found.push(given);
    }
    found
}

fn parse_argument<'a>(words: &'a [String], at: usize, word: &'a str) -> Result<MdadmArgument<'a>, String> {
    let (known, value) = if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        (find_option(name).ok_or_else(|| describe_unknown(word))?, value)
    } else if let Some(short) = word.strip_prefix('-') {
        let mut letters = short.chars();
        let letter = letters.next();
        let known = OPTIONS.iter().find(|option| letter.is_some() && option.short == letter);
        let rest = letters.as_str();
        (known.ok_or_else(|| describe_unknown(word))?, (!rest.is_empty()).then_some(rest))
    } else {
        return Err(format!(
            "{word} is not an option: mdadm would use it as a device; list members in the field `devices`"
        ));
    };
    let (value, words) = match (known.has_value, value) {
        (true, None) => match words.get(at + 1) {
            Some(next) => (Some(next.as_str()), 2),
            None => return Err(format!("the create option {word} requires a value")),
        },
        (false, Some(_)) => {
            return Err(format!(
                "the create option --{option} does not take a value: remove it from {word}",
                option = known.long
            ));
        }
        (_, value) => (value, 1),
    };
    Ok(MdadmArgument { at, words, known, value })
}

/// Returns the option with this name. An unambiguous abbreviation of the name is also accepted.
fn find_option(name: &str) -> Option<&'static MdadmOption> {
    let mut abbreviated = OPTIONS.iter().filter(|option| !name.is_empty() && option.long.starts_with(name));
    let exact = OPTIONS.iter().find(|option| option.long == name);
    exact.or_else(|| abbreviated.next().filter(|_| abbreviated.next().is_none()))
}

fn describe_unknown(word: &str) -> String {
    let free: Vec<String> = OPTIONS
        .iter()
        .filter(|option| matches!(option.meaning, Free(..)))
        .map(|option| format!("--{}", option.long))
        .collect();
    format!(
        "{word} is not a supported option for creating arrays; supported: --metadata, {options}",
        options = free.join(", ")
    )
}
