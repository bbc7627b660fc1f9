//! Parser for the expressions of hints: `16`, `>= 16`, `s!= A`, `<in> A`, `<or> A <or> B`, `<range-in> [ 10 20 )`, `smallest`.

use super::{KNOWN, REMOVABLE, SMALLEST};
use crate::layout::nearest;

/// Longest operators first, because the first match is used.
const NUMBER_OPERATORS: [(&str, Comparison); 7] = [
    ("==", Comparison::Equal),
    ("!=", Comparison::NotEqual),
    ("<=", Comparison::AtMost),
    (">=", Comparison::AtLeast),
    // `=` means "at least", as in Ironic, which has it from Nova's scheduler.
    ("=", Comparison::AtLeast),
    ("<", Comparison::Less),
    (">", Comparison::More),
];
const TEXT_OPERATORS: [(&str, Comparison); 6] = [
    ("s==", Comparison::Equal),
    ("s!=", Comparison::NotEqual),
    ("s<=", Comparison::AtMost),
    ("s>=", Comparison::AtLeast),
    ("s<", Comparison::Less),
    ("s>", Comparison::More),
];
const IN: &str = "<in>";
const ALL_IN: &str = "<all-in>";
const OR: &str = "<or>";
const RANGE_IN: &str = "<range-in>";
/// Boolean values of oslo.utils.
const TRUE: [&str; 6] = ["true", "yes", "on", "1", "t", "y"];
const FALSE: [&str; 6] = ["false", "no", "off", "0", "f", "n"];

/// Parsed expression of a hint.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// `None` for `smallest` without another condition: any size matches.
    Size(Option<Number>),
    Flag(Flag),
    Text(Word),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flag(pub bool);

/// Condition on a size in whole GiB.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Number {
    Compared(Comparison, u64),
    OneOf(Vec<u64>),
    Within { low: u64, low_included: bool, high: u64, high_included: bool },
}

/// Condition on text in lower case.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word {
    Compared(Comparison, String),
    Differs(String),
    Contains(Vec<String>),
    OneOf(Vec<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    AtMost,
    More,
    AtLeast,
}

impl Comparison {
    pub fn holds<T: PartialOrd + ?Sized>(self, found: &T, wanted: &T) -> bool {
        match self {
            Comparison::Equal => found == wanted,
            Comparison::NotEqual => found != wanted,
            Comparison::Less => found < wanted,
            Comparison::AtMost => found <= wanted,
            Comparison::More => found > wanted,
            Comparison::AtLeast => found >= wanted,
        }
    }
}

impl Word {
    pub fn holds(&self, found: &str) -> bool {
        match self {
            Word::Compared(comparison, wanted) => comparison.holds(found, wanted.as_str()),
            Word::Differs(wanted) => found != wanted,
            Word::Contains(words) => words.iter().all(|word| found.contains(word.as_str())),
            Word::OneOf(words) => words.iter().any(|word| found == word),
        }
    }

    /// Returns whether the condition requires exactly this value.
    pub fn names(&self, found: &str) -> bool {
        match self {
            Word::Compared(Comparison::Equal, wanted) => found == wanted,
            Word::OneOf(words) => words.iter().any(|word| found == word),
            _ => false,
        }
    }
}

impl Condition {
    /// Parses the expression of a hint.
    ///
    /// # Errors
    /// The name of the hint or the expression is invalid.
    pub fn read(hint: &str, text: &str) -> Result<Condition, String> {
        if !KNOWN.contains(&hint) {
            let known = KNOWN.join(", ");
            return Err(match nearest(hint, KNOWN.map(|name| (name, name))) {
                Some(name) => format!("unknown hint {hint}; did you mean {name}?"),
                None => format!("unknown hint {hint}; supported: {known}"),
            });
        }
        let written = text.trim();
        let text = written.to_lowercase();
        if text.is_empty() {
            return Err(format!("the expression of the hint {hint} is empty"));
        }
        match hint {
            "size" => size(&text).map(Condition::Size),
            "rotational" | REMOVABLE => flag(&text).map(Condition::Flag),
            _ => word(&text).map(Condition::Text),
        }
        .map_err(|why| format!("invalid value {written:?} of the hint {hint}: {}", as_written(&why, written, &text)))
    }
}

/// Restores the original case of the text that a message quotes at its start; expressions are parsed in lower case.
fn as_written(why: &str, written: &str, lower: &str) -> String {
    let quoted =
        why.strip_prefix('"').and_then(|rest| Some(rest.split_once('"')?.0)).filter(|quoted| !quoted.is_empty());
    let found = quoted.and_then(|quoted| Some((quoted, written.get(lower.find(quoted)?..)?.get(..quoted.len())?)));
    match found {
        Some((quoted, own)) if own.eq_ignore_ascii_case(quoted) => why.replacen(quoted, own, 1),
        _ => why.to_owned(),
    }
}

/// Returns the condition after `smallest` in the expression of a size; `None` if the expression does not begin with it.
pub(super) fn smallest(text: &str) -> Option<&str> {
    let start = text.trim_start().get(..SMALLEST.len())?;
    start.eq_ignore_ascii_case(SMALLEST).then(|| text.trim_start()[SMALLEST.len()..].trim())
}

fn size(text: &str) -> Result<Option<Number>, String> {
    match smallest(text) {
        Some("") => Ok(None),
        Some(condition) => number(condition).map(Some),
        None => number(text).map(Some),
    }
}

fn number(text: &str) -> Result<Number, String> {
    if let Some(rest) = text.strip_prefix(OR) {
        return Ok(Number::OneOf(rest.split(OR).map(gib).collect::<Result<_, _>>()?));
    }
    if let Some(rest) = text.strip_prefix(RANGE_IN) {
        return range(rest);
    }
    if text.starts_with(IN) || text.starts_with(ALL_IN) || text.starts_with(['s', '!']) && !text.starts_with("!=") {
        return Err(format!("sizes support the operators {}, {OR} and {RANGE_IN}", operators(&NUMBER_OPERATORS)));
    }
    for (operator, comparison) in NUMBER_OPERATORS {
        if let Some(rest) = text.strip_prefix(operator) {
            return Ok(Number::Compared(comparison, gib(rest)?));
        }
    }
    Ok(Number::Compared(Comparison::Equal, gib(text)?))
}

fn gib(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let positive = text.parse::<u64>().ok().filter(|gib| *gib > 0 && text.bytes().all(|c| c.is_ascii_digit()));
    positive.ok_or_else(|| format!("{text:?} is not a positive integer of GiB"))
}

/// Parses `[ 10 20 )`: a square bracket includes its bound, a round one excludes it.
fn range(text: &str) -> Result<Number, String> {
    let usage = || format!("a range must be written as {RANGE_IN} [ 10 20 ], with a round bracket to exclude a bound");
    let text = text.trim();
    let inner = text.strip_prefix(['[', '(']).and_then(|inner| inner.strip_suffix([']', ')'])).ok_or_else(usage)?;
    let mut ends = inner.split_whitespace();
    let (Some(low), Some(high), None) = (ends.next(), ends.next(), ends.next()) else { return Err(usage()) };
    let (low, high) = (gib(low)?, gib(high)?);
    let (low_included, high_included) = (text.starts_with('['), text.ends_with(']'));
    if low > high || (low == high && !(low_included && high_included)) {
        return Err("the range is empty".to_owned());
    }
    Ok(Number::Within { low, low_included, high, high_included })
}

fn flag(text: &str) -> Result<Flag, String> {
    if TRUE.contains(&text) {
        Ok(Flag(true))
    } else if FALSE.contains(&text) {
        Ok(Flag(false))
    } else {
        Err("it must be true or false".to_owned())
    }
}

fn word(text: &str) -> Result<Word, String> {
    if let Some(rest) = text.strip_prefix(OR) {
        return Ok(Word::OneOf(rest.split(OR).map(value).collect::<Result<_, _>>()?));
    }
    if let Some(rest) = text.strip_prefix(ALL_IN) {
        return Ok(Word::Contains(value(rest)?.split_whitespace().map(str::to_owned).collect()));
    }
    if let Some(rest) = text.strip_prefix(IN) {
        return Ok(Word::Contains(vec![value(rest)?]));
    }
    for (operator, comparison) in TEXT_OPERATORS {
        if let Some(rest) = text.strip_prefix(operator) {
            let wanted = value(rest)?;
            return Ok(match comparison {
                Comparison::NotEqual => Word::Differs(wanted),
                _ => Word::Compared(comparison, wanted),
            });
        }
    }
    let stray = NUMBER_OPERATORS.iter().any(|(operator, _)| text.starts_with(operator)) || text.starts_with(['!', '~']);
    if stray || text.starts_with("s=") {
        let words = operators(&TEXT_OPERATORS);
        return Err(format!(
            "text supports the operators {words}, {IN}, {ALL_IN} and {OR}; text without an operator must be equal"
        ));
    }
    Ok(Word::Compared(Comparison::Equal, value(text)?))
}

fn value(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("a value is missing after the operator".to_owned());
    }
    match [OR, IN, ALL_IN, RANGE_IN].iter().find(|operator| text.contains(**operator)) {
        Some(operator) => Err(format!("{operator} must be at the beginning")),
        None => Ok(text.to_owned()),
    }
}

fn operators(table: &[(&str, Comparison)]) -> String {
    table.iter().map(|(operator, _)| *operator).collect::<Vec<_>>().join(" ")
}
