//! Image constraints: metal-api's version constraints, evaluated as exact sets of versions.

#[cfg(test)]
pub(super) mod tests;
mod version;

pub use version::{ImageId, Version, Written};

/// Operators of metal-api. A version without an operator is also valid.
const OPERATORS: [&str; 11] = ["=", "!=", ">", "<", ">=", "=>", "<=", "=<", "~", "~>", "^"];

/// Inserts the blank that metal-api requires into a constraint such as `>=10`, which the first proposal used; `None` for any other text.
pub(super) fn with_blank(constraint: &str) -> Option<String> {
    let version = constraint.trim_start_matches(['=', '!', '>', '<', '~', '^']);
    let operator = constraint.strip_suffix(version)?;
    (OPERATORS.contains(&operator) && Written::parse(version).is_some()).then(|| format!("{operator} {version}"))
}

/// Returns the problem of an image constraint. Valid are `*`, a version, and an operator followed by a blank and a version.
pub(super) fn syntax_error(constraint: &str) -> Option<String> {
    parse(constraint).err()
}

/// Parses a constraint into operator and version; `None` stands for `*`.
fn parse(constraint: &str) -> Result<Option<(&str, Written)>, String> {
    if constraint.trim() == "*" {
        return Ok(None);
    }
    let Some((operator, version)) = constraint.split_once(' ') else {
        let written = Written::parse(constraint).ok_or_else(|| {
            format!(
                "given imageconstraint:{constraint} is not valid, missing space between op and version? invalid semantic version"
            )
        })?;
        return Ok(Some(("=", written)));
    };
    if !OPERATORS.contains(&operator) {
        return Err(format!("given imageconstraint op:{operator} is not supported"));
    }
    let written = Written::parse(version).ok_or_else(|| {
        let several = match version.contains([',', '|']) || version.trim().contains(char::is_whitespace) {
            true => "; only one operator and one version are supported: ~ 10 is all of 10, ^ 10.1 is 10.1 and later versions of 10",
            false => "",
        };
        format!("given version:{version} is not valid:invalid semantic version{several}")
    })?;
    Ok(Some((operator, written)))
}

/// Set of all versions that a constraint accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted(Vec<Interval>);

/// Versions from `low` to `high`, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Interval {
    low: Version,
    high: Version,
}

impl Accepted {
    /// Evaluates a constraint.
    ///
    /// # Errors
    /// The constraint is invalid.
    pub fn by(constraint: &str) -> Result<Accepted, String> {
        let versions = match parse(constraint)? {
            None => span(Some(Version::MIN), Some(Version::MAX)),
            Some((operator, written)) => accepted(operator, written),
        };
        Ok(Accepted(versions))
    }

    pub fn contains(&self, version: Version) -> bool {
        self.0.iter().any(|interval| (interval.low..=interval.high).contains(&version))
    }

    /// Returns a plausible version that both accept: usually the lowest one.
    pub fn common(&self, other: &Accepted) -> Option<Version> {
        let pairs = self.0.iter().flat_map(|one| other.0.iter().map(move |other| (one, other)));
        let common = pairs.map(|(one, other)| (one.low.max(other.low), one.high.min(other.high)));
        let (low, high) = common.filter(|(low, high)| low <= high).min()?;
        // No image has version 0.0.0: the last major version is more plausible, or else the first one.
        let likely = Version::new(if high.major == u64::MAX { 1 } else { high.major }, 0, 0);
        Some(if low == Version::MIN && likely <= high { likely } else { low })
    }
}

fn span(low: Option<Version>, high: Option<Version>) -> Vec<Interval> {
    let interval = low.zip(high).filter(|(low, high)| low <= high);
    interval.map(|(low, high)| Interval { low, high }).into_iter().collect()
}

/// Returns the versions that a constraint accepts. A version stands for a range: `10` for 10.*, `10.0` for 10.0.*, `10.0.1` for itself. A
/// prerelease, which no image is, stands for an empty range at its position.
fn accepted(operator: &str, written: Written) -> Vec<Interval> {
    let Written { version: first, parts, prerelease } = written;
    let of_major = Version::new(first.major, u64::MAX, u64::MAX);
    let of_minor = Version::new(first.major, first.minor, u64::MAX);
    let last = match parts {
        1 => Some(of_major),
        2 => Some(of_minor),
        _ if prerelease => first.previous(),
        _ => Some(first),
    };
    let below = || span(Some(Version::MIN), first.previous());
    let above = || span(last.map_or(Some(first), Version::next), Some(Version::MAX));
    match operator {
        "<" => below(),
        "<=" | "=<" => span(Some(Version::MIN), last),
        ">" => above(),
        ">=" | "=>" => span(Some(first), Some(Version::MAX)),
        // Masterminds/semver: no release is equal to a prerelease of `10.0`, but one is equal to a prerelease of `10`.
        "!=" if parts == 2 && prerelease => span(Some(Version::MIN), Some(Version::MAX)),
        "!=" => [below(), above()].concat(),
        "~" | "~>" => span(Some(first), Some(tilde_end(&written, of_major, of_minor))),
        "^" => span(Some(first), Some(caret_end(&written, of_major, of_minor))),
        _ => span(Some(first), last),
    }
}

/// Returns the end of a `~` range: the major version is fixed, and the minor version if it is specified. `~ 0.0.0` accepts everything
/// (Masterminds/semver).
fn tilde_end(written: &Written, of_major: Version, of_minor: Version) -> Version {
    match written.parts {
        3 if written.version == Version::MIN => Version::MAX,
        1 => of_major,
        _ => of_minor,
    }
}

/// Returns the end of a `^` range: the first nonzero part is fixed.
fn caret_end(written: &Written, of_major: Version, of_minor: Version) -> Version {
    match (written.version, written.parts) {
        (Version { major: 1.., .. }, _) | (_, 1) => of_major,
        (Version { minor: 1.., .. }, _) | (_, 2) => of_minor,
        (exact, _) => exact,
    }
}
