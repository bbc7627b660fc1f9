//! Version constraints of metal-api for images, each converted to the exact set of versions that it accepts.

#[cfg(test)]
pub(super) mod tests;
mod version;

pub use version::{ImageId, ImageVersion, VersionPattern};

/// Operators that metal-api supports. A version without an operator is also a valid constraint.
const OPERATORS: [&str; 11] = ["=", "!=", ">", "<", ">=", "=>", "<=", "=<", "~", "~>", "^"];

/// Inserts the blank that metal-api requires between operator and version. Constraints without this blank, such as
/// `>=10`, occur in metal-stack's first proposal. Returns `None` for any other text.
pub(super) fn insert_blank(constraint: &str) -> Option<String> {
    let version = constraint.trim_start_matches(['=', '!', '>', '<', '~', '^']);
    let operator = constraint.strip_suffix(version)?;
    (OPERATORS.contains(&operator) && VersionPattern::parse(version).is_some()).then(|| format!("{operator} {version}"))
}

/// Returns the problem of an image constraint; `None` if it is valid. Valid constraints are `*`, a version, and an
/// operator followed by a blank and a version.
pub(super) fn find_syntax_error(constraint: &str) -> Option<String> {
    parse_constraint(constraint).err()
}

/// Parses a constraint into operator and version. Returns `None` for `*`.
fn parse_constraint(constraint: &str) -> Result<Option<(&str, VersionPattern)>, String> {
    if constraint.trim() == "*" {
        return Ok(None);
    }
    let Some((operator, version)) = constraint.split_once(' ') else {
        let written = VersionPattern::parse(constraint).ok_or_else(|| {
            format!(
                "given imageconstraint:{constraint} is not valid, missing space between op and version? invalid semantic version"
            )
        })?;
        return Ok(Some(("=", written)));
    };
    if !OPERATORS.contains(&operator) {
        return Err(format!("given imageconstraint op:{operator} is not supported"));
    }
    let written = VersionPattern::parse(version).ok_or_else(|| {
        let several = match version.contains([',', '|']) || version.trim().contains(char::is_whitespace) {
            true => "; only one operator and one version are supported: ~ 10 means all versions 10.x, ^ 10.1 means 10.1 and later versions 10.x",
            false => "",
        };
        format!("given version:{version} is not valid:invalid semantic version{several}")
    })?;
    Ok(Some((operator, written)))
}

/// Set of all versions that a constraint accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionSet(Vec<VersionInterval>);

/// Versions from `low` to `high`, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct VersionInterval {
    low: ImageVersion,
    high: ImageVersion,
}

impl VersionSet {
    /// Converts a constraint to the set of versions that it accepts.
    ///
    /// # Errors
    /// Fails if the constraint is invalid.
    pub(crate) fn from_constraint(constraint: &str) -> Result<VersionSet, String> {
        let versions = match parse_constraint(constraint)? {
            None => single_interval(Some(ImageVersion::MIN), Some(ImageVersion::MAX)),
            Some((operator, written)) => accepted_intervals(operator, written),
        };
        Ok(VersionSet(versions))
    }

    pub(crate) fn contains(&self, version: ImageVersion) -> bool {
        self.0.iter().any(|interval| (interval.low..=interval.high).contains(&version))
    }

    /// Returns a version that both sets contain, usually the lowest one; `None` if there is none.
    pub(crate) fn find_common(&self, other: &VersionSet) -> Option<ImageVersion> {
        let pairs = self.0.iter().flat_map(|one| other.0.iter().map(move |other| (one, other)));
        let common = pairs.map(|(one, other)| (one.low.max(other.low), one.high.min(other.high)));
        let (low, high) = common.filter(|(low, high)| low <= high).min()?;
        // No image has version 0.0.0. If the common range starts there, the highest common major version is a better
        // example, or 1.0.0 if the range has no upper limit.
        let likely = ImageVersion::new(if high.major == u64::MAX { 1 } else { high.major }, 0, 0);
        Some(if low == ImageVersion::MIN && likely <= high { likely } else { low })
    }
}

fn single_interval(low: Option<ImageVersion>, high: Option<ImageVersion>) -> Vec<VersionInterval> {
    let interval = low.zip(high).filter(|(low, high)| low <= high);
    interval.map(|(low, high)| VersionInterval { low, high }).into_iter().collect()
}

/// Returns the versions that a constraint accepts. A version in a constraint denotes a range: `10` denotes 10.*, `10.0`
/// denotes 10.0.*, and `10.0.1` denotes only this version. A prerelease denotes an empty range directly before its
/// version, because no image is a prerelease.
fn accepted_intervals(operator: &str, written: VersionPattern) -> Vec<VersionInterval> {
    let VersionPattern { version: first, parts, prerelease } = written;
    let of_major = ImageVersion::new(first.major, u64::MAX, u64::MAX);
    let of_minor = ImageVersion::new(first.major, first.minor, u64::MAX);
    let last = match parts {
        1 => Some(of_major),
        2 => Some(of_minor),
        _ if prerelease => first.predecessor(),
        _ => Some(first),
    };
    let below = || single_interval(Some(ImageVersion::MIN), first.predecessor());
    let above = || single_interval(last.map_or(Some(first), ImageVersion::successor), Some(ImageVersion::MAX));
    match operator {
        "<" => below(),
        "<=" | "=<" => single_interval(Some(ImageVersion::MIN), last),
        ">" => above(),
        ">=" | "=>" => single_interval(Some(first), Some(ImageVersion::MAX)),
        // As in Masterminds/semver, `!=` with a prerelease of `10.0` excludes no version.
        "!=" if parts == 2 && prerelease => single_interval(Some(ImageVersion::MIN), Some(ImageVersion::MAX)),
        "!=" => [below(), above()].concat(),
        "~" | "~>" => single_interval(Some(first), Some(end_of_tilde(&written, of_major, of_minor))),
        "^" => single_interval(Some(first), Some(end_of_caret(&written, of_major, of_minor))),
        _ => single_interval(Some(first), last),
    }
}

/// Returns the last version of a `~` range. The major version is fixed, and also the minor version if it is specified.
/// As in Masterminds/semver, `~ 0.0.0` accepts every version.
fn end_of_tilde(written: &VersionPattern, of_major: ImageVersion, of_minor: ImageVersion) -> ImageVersion {
    match written.parts {
        3 if written.version == ImageVersion::MIN => ImageVersion::MAX,
        1 => of_major,
        _ => of_minor,
    }
}

/// Returns the last version of a `^` range, in which the first nonzero part of the version is fixed.
fn end_of_caret(written: &VersionPattern, of_major: ImageVersion, of_minor: ImageVersion) -> ImageVersion {
    match (written.version, written.parts) {
        (ImageVersion { major: 1.., .. }, _) | (_, 1) => of_major,
        (ImageVersion { minor: 1.., .. }, _) | (_, 2) => of_minor,
        (exact, _) => exact,
    }
}
