//! Parser for hint expressions: `16`, `>= 16`, `s!= A`, `<in> A`, `<or> A <or> B`, `<range-in> [ 10 20 )`, `smallest`.

use super::{KNOWN, REMOVABLE, SMALLEST};
use crate::layout::find_nearest;

/// Operators on numbers. Longer operators precede shorter ones, because the first match is used.
const NUMBER_OPERATORS: [(&str, ComparisonOperator); 7] = [
    ("==", ComparisonOperator::Equal),
    ("!=", ComparisonOperator::NotEqual),
    ("<=", ComparisonOperator::AtMost),
    (">=", ComparisonOperator::AtLeast),
    // `=` means "at least", as in Ironic, which adopted this meaning from Nova's scheduler.
    ("=", ComparisonOperator::AtLeast),
    ("<", ComparisonOperator::Less),
    (">", ComparisonOperator::More),
];
const TEXT_OPERATORS: [(&str, ComparisonOperator); 6] = [
    ("s==", ComparisonOperator::Equal),
    ("s!=", ComparisonOperator::NotEqual),
    ("s<=", ComparisonOperator::AtMost),
    ("s>=", ComparisonOperator::AtLeast),
    ("s<", ComparisonOperator::Less),
    ("s>", ComparisonOperator::More),
];
const IN_OPERATOR: &str = "<in>";
const ALL_IN_OPERATOR: &str = "<all-in>";
const OR_OPERATOR: &str = "<or>";
const RANGE_IN: &str = "<range-in>";
/// Words that oslo.utils accepts as boolean values.
const TRUE: [&str; 6] = ["true", "yes", "on", "1", "t", "y"];
const FALSE: [&str; 6] = ["false", "no", "off", "0", "f", "n"];

/// Parsed expression of a hint.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HintCondition {
    /// Condition on the size; `None` if the expression is only `smallest`, which any size matches.
    Size(Option<SizeCondition>),
    Flag(FlagCondition),
    Text(TextCondition),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct FlagCondition(pub bool);

/// Condition on a size in whole GiB.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SizeCondition {
    Compared(ComparisonOperator, u64),
    OneOf(Vec<u64>),
    Within { low: u64, low_included: bool, high: u64, high_included: bool },
}

/// Condition on a string that was converted to lower case.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TextCondition {
    Compared(ComparisonOperator, String),
    Differs(String),
    Contains(Vec<String>),
    OneOf(Vec<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ComparisonOperator {
    Equal,
    NotEqual,
    Less,
    AtMost,
    More,
    AtLeast,
}

impl ComparisonOperator {
    pub(crate) fn compare<T: PartialOrd + ?Sized>(self, found: &T, wanted: &T) -> bool {
        match self {
            ComparisonOperator::Equal => found == wanted,
            ComparisonOperator::NotEqual => found != wanted,
            ComparisonOperator::Less => found < wanted,
            ComparisonOperator::AtMost => found <= wanted,
            ComparisonOperator::More => found > wanted,
            ComparisonOperator::AtLeast => found >= wanted,
        }
    }
}

impl TextCondition {
    pub(crate) fn matches_text(&self, found: &str) -> bool {
        match self {
            TextCondition::Compared(comparison, wanted) => comparison.compare(found, wanted.as_str()),
            TextCondition::Differs(wanted) => found != wanted,
            TextCondition::Contains(words) => words.iter().all(|word| found.contains(word.as_str())),
            TextCondition::OneOf(words) => words.iter().any(|word| found == word),
        }
    }

    /// Returns whether the condition requires a string to be equal to one of several values (or to a single value),
    /// and `found` is such a value.
    pub(crate) fn equals_text(&self, found: &str) -> bool {
        match self {
            TextCondition::Compared(ComparisonOperator::Equal, wanted) => found == wanted,
            TextCondition::OneOf(words) => words.iter().any(|word| found == word),
            _ => false,
        }
    }
}

impl HintCondition {
    /// Parses the expression of a hint.
    ///
    /// # Errors
    /// Fails if the name of the hint or the expression is invalid.
    pub fn parse(hint: &str, text: &str) -> Result<HintCondition, String> {
        if !KNOWN.contains(&hint) {
            let known = KNOWN.join(", ");
            return Err(match find_nearest(hint, KNOWN.map(|name| (name, name))) {
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
            "size" => parse_size(&text).map(HintCondition::Size),
            "rotational" | REMOVABLE => parse_flag(&text).map(HintCondition::Flag),
            _ => parse_text_condition(&text).map(HintCondition::Text),
        }
        .map_err(|why| {
            format!(
                "invalid value {written:?} of the hint {hint}: {reason}",
                reason = restore_case(&why, written, &text)
            )
        })
    }
}

/// Restores the original case of the text that is quoted at the start of a message. Expressions are converted to lower
/// case before they are parsed, so messages quote them in lower case.
fn restore_case(why: &str, written: &str, lower: &str) -> String {
    let quoted =
        why.strip_prefix('"').and_then(|rest| Some(rest.split_once('"')?.0)).filter(|quoted| !quoted.is_empty());
    let found = quoted.and_then(|quoted| Some((quoted, written.get(lower.find(quoted)?..)?.get(..quoted.len())?)));
    match found {
        Some((quoted, own)) if own.eq_ignore_ascii_case(quoted) => why.replacen(quoted, own, 1),
        _ => why.to_owned(),
    }
}

/// Returns the condition after `smallest` in a size expression; `None` if the text does not begin with `smallest`.
pub(super) fn strip_smallest(text: &str) -> Option<&str> {
    let start = text.trim_start().get(..SMALLEST.len())?;
    start.eq_ignore_ascii_case(SMALLEST).then(|| text.trim_start()[SMALLEST.len()..].trim())
}

fn parse_size(text: &str) -> Result<Option<SizeCondition>, String> {
    match strip_smallest(text) {
        Some("") => Ok(None),
        Some(condition) => parse_number(condition).map(Some),
        None => parse_number(text).map(Some),
    }
}

fn parse_number(text: &str) -> Result<SizeCondition, String> {
    if let Some(rest) = text.strip_prefix(OR_OPERATOR) {
        return Ok(SizeCondition::OneOf(rest.split(OR_OPERATOR).map(parse_gib).collect::<Result<_, _>>()?));
    }
    if let Some(rest) = text.strip_prefix(RANGE_IN) {
        return parse_range(rest);
    }
    if text.starts_with(IN_OPERATOR)
        || text.starts_with(ALL_IN_OPERATOR)
        || text.starts_with(['s', '!']) && !text.starts_with("!=")
    {
        return Err(format!(
            "sizes support the operators {operators}, {OR_OPERATOR} and {RANGE_IN}",
            operators = list_operators(&NUMBER_OPERATORS)
        ));
    }
    for (operator, comparison) in NUMBER_OPERATORS {
        if let Some(rest) = text.strip_prefix(operator) {
            return Ok(SizeCondition::Compared(comparison, parse_gib(rest)?));
        }
    }
    Ok(SizeCondition::Compared(ComparisonOperator::Equal, parse_gib(text)?))
}

fn parse_gib(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let positive = text.parse::<u64>().ok().filter(|gib| *gib > 0 && text.bytes().all(|c| c.is_ascii_digit()));
    positive.ok_or_else(|| format!("{text:?} is not a positive whole number of GiB"))
}

/// Parses a range such as `[ 10 20 )`. A square bracket includes the bound, and a parenthesis excludes the bound.
fn parse_range(text: &str) -> Result<SizeCondition, String> {
    let usage = || {
        format!(
            "a range must be written as {RANGE_IN} [ 10 20 ]; to exclude a bound, replace its bracket with a parenthesis"
        )
    };
    let text = text.trim();
    let inner = text.strip_prefix(['[', '(']).and_then(|inner| inner.strip_suffix([']', ')'])).ok_or_else(usage)?;
    let mut ends = inner.split_whitespace();
    let (Some(low), Some(high), None) = (ends.next(), ends.next(), ends.next()) else { return Err(usage()) };
    let (low, high) = (parse_gib(low)?, parse_gib(high)?);
    let (low_included, high_included) = (text.starts_with('['), text.ends_with(']'));
    if low > high || (low == high && !(low_included && high_included)) {
        return Err("the range is empty".to_owned());
    }
    Ok(SizeCondition::Within { low, low_included, high, high_included })
}

fn parse_flag(text: &str) -> Result<FlagCondition, String> {
    if TRUE.contains(&text) {
        Ok(FlagCondition(true))
    } else if FALSE.contains(&text) {
        Ok(FlagCondition(false))
    } else {
        Err("the value must be true or false".to_owned())
    }
}

fn parse_text_condition(text: &str) -> Result<TextCondition, String> {
    if let Some(rest) = text.strip_prefix(OR_OPERATOR) {
        return Ok(TextCondition::OneOf(rest.split(OR_OPERATOR).map(parse_value).collect::<Result<_, _>>()?));
    }
    if let Some(rest) = text.strip_prefix(ALL_IN_OPERATOR) {
        return Ok(TextCondition::Contains(parse_value(rest)?.split_whitespace().map(str::to_owned).collect()));
    }
    if let Some(rest) = text.strip_prefix(IN_OPERATOR) {
        return Ok(TextCondition::Contains(vec![parse_value(rest)?]));
    }
    for (operator, comparison) in TEXT_OPERATORS {
        if let Some(rest) = text.strip_prefix(operator) {
            let wanted = parse_value(rest)?;
            return Ok(match comparison {
                ComparisonOperator::NotEqual => TextCondition::Differs(wanted),
                _ => TextCondition::Compared(comparison, wanted),
            });
        }
    }
    let stray = NUMBER_OPERATORS.iter().any(|(operator, _)| text.starts_with(operator)) || text.starts_with(['!', '~']);
    if stray || text.starts_with("s=") {
        let words = list_operators(&TEXT_OPERATORS);
        return Err(format!(
            "the hint supports the operators {words}, {IN_OPERATOR}, {ALL_IN_OPERATOR} and {OR_OPERATOR}; without an operator, the text must equal the disk's attribute"
        ));
    }
    Ok(TextCondition::Compared(ComparisonOperator::Equal, parse_value(text)?))
}

fn parse_value(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("a value is missing after the operator".to_owned());
    }
    match [OR_OPERATOR, IN_OPERATOR, ALL_IN_OPERATOR, RANGE_IN].iter().find(|operator| text.contains(**operator)) {
        Some(operator) => Err(format!("the operator {operator} must be at the beginning of the expression")),
        None => Ok(text.to_owned()),
    }
}

fn list_operators(table: &[(&str, ComparisonOperator)]) -> String {
    table.iter().map(|(operator, _)| *operator).collect::<Vec<_>>().join(" ")
}
