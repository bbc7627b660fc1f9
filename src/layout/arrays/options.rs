//! The options of `mdadm --create` that a layout may speak of (mdadm(8); long_options in mdadm's ReadMe.c).
//!
//! mdadm finds a wrong one when the disks are wiped already, so that all of it is understood here.

use crate::layout::{Raid, RaidLevel};

pub(super) struct KnownOption {
    pub long: &'static str,
    short: Option<char>,
    /// Has it a value, behind `=` or in the next word?
    has_value: bool,
    pub meaning: Meaning,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Metadata,
    /// For the layout to say, with these levels and values.
    Free(Levels, Values),
    /// Not for the layout to say, and why.
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
    /// A number with or without one of K, M, G, T.
    Size,
    SizeOrMax,
    Seconds,
    Bitmap,
    Policy,
    Layout,
}

/// One option of a list of create options, understood.
pub(super) struct Given<'a> {
    /// Position in the list of its first word, and how many words it takes.
    pub at: usize,
    pub words: usize,
    pub known: &'static KnownOption,
    pub value: Option<&'a str>,
}

use Levels::{All, Not};
use Meaning::{Free, Metadata, Ours};
use RaidLevel::{Raid0, Raid1};

const MEMBERS: Meaning = Ours("it follows from devices and spares");
const SPARES: Meaning = Ours("the layout says it with spares");
const RUN: Meaning = Ours("it is always given");
const FORCE: Meaning = Ours("it would let mdadm make what it takes for a mistake");
const OUTSIDE: Meaning = Ours("it names a device or file that the layout does not speak of");

const fn with_value(long: &'static str, short: Option<char>, meaning: Meaning) -> KnownOption {
    KnownOption { long, short, has_value: true, meaning }
}

const fn bare(long: &'static str, short: Option<char>, meaning: Meaning) -> KnownOption {
    KnownOption { long, short, has_value: false, meaning }
}

const OPTIONS: [KnownOption; 27] = [
    with_value("metadata", Some('e'), Metadata),
    with_value("level", Some('l'), Ours("the layout says it with level")),
    with_value("raid-devices", Some('n'), MEMBERS),
    with_value("raid-disks", None, MEMBERS),
    with_value("spare-devices", Some('x'), SPARES),
    with_value("spare-disks", None, SPARES),
    with_value("uuid", Some('u'), Ours("the plan chooses the UUID")),
    with_value("name", Some('N'), Ours("the name comes from arrayname")),
    with_value("homehost", None, Ours("arrays belong to any host, so that they keep their names")),
    bare("run", Some('R'), RUN),
    bare("force", Some('f'), FORCE),
    bare("create", Some('C'), Ours("arrays are always created")),
    bare("readonly", Some('o'), Ours("what lies on the array must be written")),
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
    /// Why this option cannot be given for this array.
    pub fn problem(&self, raid: &Raid) -> Option<String> {
        let long = self.known.long;
        let (levels, values) = match self.known.meaning {
            Ours(why) => return Some(format!("the create option --{long} is not for the layout to give: {why}")),
            Free(levels, values) => (levels, values),
            Metadata => return None,
        };
        let level = raid.level;
        if levels == Not(level) {
            return Some(format!("the create option --{long} means nothing for {level}"));
        }
        let value = self.value.unwrap_or_default();
        values
            .usage(raid, value)
            .map(|usage| format!("the create option --{long} cannot be {value:?} for {level}: {usage}"))
    }
}

impl Values {
    /// What the values are, if this is none of them.
    fn usage(self, raid: &Raid, value: &str) -> Option<&'static str> {
        let number = |text: &str| text.parse::<u32>().is_ok_and(|number| number > 0);
        let size = number(value.strip_suffix(['K', 'M', 'G', 'T']).unwrap_or(value));
        let (good, usage) = match self {
            Values::None => (true, ""),
            Values::Size => (size, "a number with or without one of K, M, G, T"),
            Values::SizeOrMax => (size || value == "max", "max, or a number with or without one of K, M, G, T"),
            Values::Seconds => (number(value), "seconds"),
            Values::Bitmap => (matches!(value, "internal" | "none"), "internal or none"),
            Values::Policy if raid.level == RaidLevel::Raid5 => (matches!(value, "resync" | "ppl"), "resync or ppl"),
            Values::Policy => (value == "resync", "resync; for a bitmap write --bitmap=internal"),
            Values::Layout => layout(raid, value),
        };
        (!good).then_some(usage)
    }
}

/// md(4), and the tables of layouts in mdadm's maps.c.
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
        RaidLevel::Raid1 => (false, "nothing"),
        RaidLevel::Raid5 | RaidLevel::Raid6 => {
            (PARITY.contains(&value), "left-symmetric or one of its kin, parity-first or parity-last")
        }
        RaidLevel::Raid10 => {
            let copies = value.strip_prefix(['n', 'f', 'o']).and_then(|number| number.parse::<usize>().ok());
            let good = copies.is_some_and(|copies| (2..=raid.active()).contains(&copies));
            (good, "n, f or o and the number of copies, at least 2 and no more than devices")
        }
    }
}

/// Reads the words as mdadm's getopt_long does: `--chunk=64`, `--chunk 64`, `-c 64`, `-c64`, `--ch=64`.
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
        return Err(format!("{word} is no option: mdadm would take it for a device; members belong into devices"));
    };
    let (value, words) = match (known.has_value, value) {
        (true, None) => match words.get(at + 1) {
            Some(next) => (Some(next.as_str()), 2),
            None => return Err(format!("the create option {word} has no value")),
        },
        (false, Some(_)) => return Err(format!("the create option --{} takes no value, found {word}", known.long)),
        (_, value) => (value, 1),
    };
    Ok(Given { at, words, known, value })
}

/// An exact name, or the beginning of only one.
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
    format!("{word} is no option for creating arrays; known here: --metadata, {}", free.join(", "))
}
