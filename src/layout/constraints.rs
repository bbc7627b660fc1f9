//! Which sizes and images a layout is for: the syntax of its constraints.

/// As metal-api lists them, besides a bare version.
const OPERATORS: [&str; 11] = ["=", "!=", ">", "<", ">=", "=>", "<=", "=<", "~", "~>", "^"];

/// `>=10`, as the first proposal spells it, with the blank that metal-api demands; `None` for any other text.
pub(super) fn with_blank(constraint: &str) -> Option<String> {
    let version = constraint.trim_start_matches(['=', '!', '>', '<', '~', '^']);
    let operator = constraint.strip_suffix(version)?;
    (OPERATORS.contains(&operator) && is_version(version)).then(|| format!("{operator} {version}"))
}

/// What is wrong with an image constraint: `*`, a version, or operator, blank and version are right.
pub(super) fn syntax_error(constraint: &str) -> Option<String> {
    if constraint.trim() == "*" {
        return None;
    }
    match constraint.split_once(' ') {
        None if is_version(constraint) => None,
        None => Some(format!(
            "given imageconstraint:{constraint} is not valid, missing space between op and version? invalid semantic version"
        )),
        Some((operator, _)) if !OPERATORS.contains(&operator) => {
            Some(format!("given imageconstraint op:{operator} is not supported"))
        }
        Some((_, version)) if is_version(version) => None,
        Some((_, version)) => Some(format!("given version:{version} is not valid:invalid semantic version")),
    }
}

/// A semantic version as Masterminds/semver reads it loosely: `v` before it and minor and patch may be missing.
fn is_version(text: &str) -> bool {
    let text = text.strip_prefix('v').unwrap_or(text);
    let (text, metadata) = text.split_once('+').unwrap_or((text, "0"));
    let (numbers, prerelease) = text.split_once('-').unwrap_or((text, "a"));
    let word = |word: &str| !word.is_empty() && word.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-');
    numbers.split('.').count() <= 3
        && numbers.split('.').all(|number| number.bytes().all(|c| c.is_ascii_digit()) && number.parse::<u64>().is_ok())
        && prerelease.split('.').all(word)
        && metadata.split('.').all(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_follow_metal_api() {
        for right in [
            "*",
            " * ",
            "10",
            "v10",
            "20.04",
            "10.0.20210101",
            "= 10",
            "!= 10",
            "> 10",
            "< 10",
            ">= 10.20210101",
            "=> 10",
            "<= 10.0",
            "=< 10",
            "~ 10",
            "~> 10.0",
            "^ 10.0.20210101",
            ">= 10.0.1-rc.1",
        ] {
            assert_eq!(syntax_error(right), None, "{right}");
        }
        for (wrong, words) in [
            ("", "given imageconstraint: is not valid, missing space between op and version? invalid semantic version"),
            (">=10", "given imageconstraint:>=10 is not valid, missing space between op and version?"),
            ("10.x", "given imageconstraint:10.x is not valid"),
            ("1.2.3.4", "given imageconstraint:1.2.3.4 is not valid"),
            ("==10", "given imageconstraint:==10 is not valid"),
            ("== 10", "given imageconstraint op:== is not supported"),
            ("around 10", "given imageconstraint op:around is not supported"),
            (" 10", "given imageconstraint op: is not supported"),
            (">= 10, < 11", "given version:10, < 11 is not valid:invalid semantic version"),
            (">= 10 || < 9", "given version:10 || < 9 is not valid"),
            (">= 10.x", "given version:10.x is not valid"),
            (">=  10", "given version: 10 is not valid"),
            (">= 10 ", "given version:10  is not valid"),
            (">= ", "given version: is not valid"),
            ("= *", "given version:* is not valid"),
            (">= 99999999999999999999", "given version:99999999999999999999 is not valid"),
        ] {
            let said = syntax_error(wrong).unwrap_or_default();
            assert!(said.contains(words), "{wrong}: {said}");
        }
    }

    #[test]
    fn only_a_missing_blank_is_put_in() {
        assert_eq!(with_blank(">=10").as_deref(), Some(">= 10"));
        assert_eq!(with_blank("~>20.04").as_deref(), Some("~> 20.04"));
        for other in ["", "*", "10", ">= 10", ">=", "==10", ">=10.x", ">=firewall-2"] {
            assert_eq!(with_blank(other), None, "{other}");
        }
    }
}
