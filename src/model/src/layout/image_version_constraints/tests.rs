//! Comparison with metal-api and Masterminds/semver 3.4, as recorded in `testdata/constraints`, and with their rules.

use super::*;
use proptest::prelude::*;

const RECORDED: &str = include_str!("../../../../../testdata/constraints/metal-api.tsv");

fn rows(kind: &str) -> Vec<Vec<&'static str>> {
    let rows = RECORDED.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let rows: Vec<Vec<&str>> = rows.filter(|row| row[0] == kind).map(|row| row[1..].to_vec()).collect();
    assert!(!rows.is_empty(), "{kind}");
    rows
}

fn version(text: &str) -> ImageVersion {
    VersionPattern::parse(text).unwrap().version
}

#[test]
fn image_ids_match_the_recorded_results() {
    for row in rows("image") {
        let found = ImageId::parse(row[0]).map(|image| (image.os, image.version.to_string()));
        match row[2] {
            "" => assert!(found.is_err(), "{row:?}: {found:?}"),
            expected => assert_eq!(found, Ok((row[1], expected.to_owned()))),
        }
    }
    assert_eq!(
        ImageId::parse("debian").unwrap_err(),
        "invalid format for os image, expected <os>-<major>.<minor>[.<patch>]: debian"
    );
}

#[test]
fn constraints_match_the_recorded_results() {
    let versions = &rows("versions")[0];
    for row in rows("constraint") {
        let accepted = VersionSet::from_constraint(row[0]).unwrap();
        let found: Vec<&str> = versions.iter().copied().filter(|text| accepted.contains(version(text))).collect();
        assert_eq!(found, row[1..], "{}", row[0]);
    }
    for row in rows("refused") {
        assert!(VersionSet::from_constraint(row[0]).is_err(), "{}", row[0]);
    }
    for row in rows("match") {
        let image = ImageId::parse(row[1]).unwrap();
        assert_eq!(VersionSet::from_constraint(row[0]).unwrap().contains(image.version), row[2] == "yes", "{row:?}");
    }
}

/// Cases that are not in the recorded table, derived from Masterminds/semver's rules.
#[test]
fn zero_versions_and_prereleases_follow_semver_rules() {
    for (constraint, within, without) in [
        ("~ 0.0.0", &["0.0.0", "7.1.2"][..], &[][..]),
        ("~ 0.0", &["0.0.9"], &["0.1.0"]),
        ("~ 0", &["0.1.9"], &["1.0.0"]),
        ("= 0.0.0", &["0.0.0"], &["0.0.1"]),
        ("^ 0", &["0.7.1"], &["1.0.0"]),
        ("^ 0.0", &["0.0.7"], &["0.1.0"]),
        ("^ 0.0.3", &["0.0.3"], &["0.0.4", "0.0.2"]),
        ("^ 0.2.3", &["0.2.3", "0.2.9"], &["0.2.2", "0.3.0"]),
        ("< 0", &[], &["0.0.0"]),
        ("> 18446744073709551615", &[], &["18446744073709551615.0.1"]),
        (">= 10.0.1-rc.1", &["10.0.1"], &["10.0.0"]),
        ("> 10.0.1-rc.1", &["10.0.1"], &["10.0.0"]),
        ("<= 10.0.1-rc.1", &["10.0.0"], &["10.0.1"]),
        ("< 10.0.1-rc.1", &["10.0.0"], &["10.0.1"]),
        ("= 10.0.1-rc.1", &[], &["10.0.0", "10.0.1"]),
        ("!= 10.0.1-rc.1", &["10.0.0", "10.0.1"], &[]),
        ("~ 10.0.1-rc.1", &["10.0.1", "10.0.9"], &["10.0.0", "10.1.0"]),
        ("^ 0.0.3-rc.1", &["0.0.3"], &["0.0.4"]),
        ("!= 10-rc.1", &["9.9.9", "11.0.0"], &["10.1.1"]),
        ("!= 10.0-rc.1", &["10.0.1"], &[]),
        ("> 10.0-rc.1", &["10.1.0"], &["10.0.1"]),
        ("v10.0.1+build.7", &["10.0.1"], &["10.0.2"]),
    ] {
        let accepted = VersionSet::from_constraint(constraint).unwrap();
        assert!(within.iter().all(|text| accepted.contains(version(text))), "{constraint} {accepted:?}");
        assert!(!without.iter().any(|text| accepted.contains(version(text))), "{constraint} {accepted:?}");
    }
}

/// The pairs include those for which metal-api's own check is wrong.
#[test]
fn common_versions_are_found_exactly() {
    for (one, other, common) in [
        (">= 10", ">= 10", Some("10.0.0")),
        (">= 10", ">= 11", Some("11.0.0")),
        (">= 10", "< 10", None),
        (">= 10", "<= 10", Some("10.0.0")),
        ("10.0.20210101", ">= 10", Some("10.0.20210101")),
        ("< 11", "<= 10", Some("10.0.0")),
        ("~ 10", "10.0.20210101", Some("10.0.20210101")),
        ("!= 10", ">= 10", Some("11.0.0")),
        ("!= 10", ">= 11", Some("11.0.0")),
        ("^ 10", "> 10", None),
        ("> 10", "< 11", None),
        ("> 10", "= 10", None),
        (">= 10.20210101", "~ 10.0", None),
        ("*", "*", Some("1.0.0")),
        ("*", ">= 1", Some("1.0.0")),
        ("< 1", "*", Some("0.0.0")),
        ("= 10.0.1-rc.1", "*", None),
        ("> 10.0.1", "<= 10.0.2", Some("10.0.2")),
    ] {
        let [one, other] = [one, other].map(|constraint| VersionSet::from_constraint(constraint).unwrap());
        assert_eq!(one.find_common(&other), common.map(version), "{one:?} {other:?}");
        assert_eq!(other.find_common(&one), common.map(version), "{other:?} {one:?}");
    }
}

/// Checks the table in docs/layout-selection.md.
#[test]
fn documented_constraints_have_the_documented_ranges() {
    let text = include_str!("../../../../../docs/layout-selection.md");
    let rows: Vec<(&str, &str)> =
        text.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | ")).collect();
    assert_eq!(rows.len(), 12);
    let span = |low: &str, high: Option<ImageVersion>| single_interval(Some(version(low)), high);
    let end = |major, minor| Some(ImageVersion::new(major, minor, u64::MAX));
    for (constraints, words) in rows {
        let expected = match words {
            "all versions" => span("0", Some(ImageVersion::MAX)),
            "all 10.x versions" => span("10", end(10, u64::MAX)),
            "all 10.0.x versions" => span("10", end(10, 0)),
            "exactly this version" => span("10.0.20261101", Some(version("10.0.20261101"))),
            "all 10.x versions, and all earlier versions" => span("0", end(10, u64::MAX)),
            "all versions before 10.0.0" => span("0", end(9, u64::MAX)),
            "all versions except 10.x" => [span("0", end(9, u64::MAX)), span("11", Some(ImageVersion::MAX))].concat(),
            "10.0.20261101 and later versions of 10.0" => span("10.0.20261101", end(10, 0)),
            "10.0.20261101 and later versions of 10" => span("10.0.20261101", end(10, u64::MAX)),
            other => span(other.strip_suffix(" and later").unwrap(), Some(ImageVersion::MAX)),
        };
        for constraint in constraints.split("`, `") {
            assert_eq!(VersionSet::from_constraint(constraint), Ok(VersionSet(expected.clone())), "{constraint}");
        }
    }
}

#[test]
fn successor_and_predecessor_are_inverse() {
    assert_eq!(ImageVersion::MAX.successor(), None);
    assert_eq!(ImageVersion::MIN.predecessor(), None);
    for (one, next) in [
        (ImageVersion::new(1, 2, 3), ImageVersion::new(1, 2, 4)),
        (ImageVersion::new(1, 2, u64::MAX), ImageVersion::new(1, 3, 0)),
        (ImageVersion::new(1, u64::MAX, u64::MAX), ImageVersion::new(2, 0, 0)),
    ] {
        assert_eq!((one.successor(), next.predecessor()), (Some(next), Some(one)));
    }
}

#[test]
fn constraint_syntax_follows_metal_api() {
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
        assert_eq!(find_syntax_error(right), None, "{right}");
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
        (
            ">= 10 < 12",
            "given version:10 < 12 is not valid:invalid semantic version; only one operator and one version are",
        ),
        (">= 10.x", "given version:10.x is not valid"),
        (">=  10", "given version: 10 is not valid"),
        (">= 10 ", "given version:10  is not valid"),
        (">= ", "given version: is not valid"),
        ("= *", "given version:* is not valid"),
        (">= 99999999999999999999", "given version:99999999999999999999 is not valid"),
    ] {
        let said = find_syntax_error(wrong).unwrap_or_default();
        assert!(said.contains(words), "{wrong}: {said}");
    }
}

#[test]
fn inserts_only_a_missing_blank() {
    assert_eq!(insert_blank(">=10").as_deref(), Some(">= 10"));
    assert_eq!(insert_blank("~>20.04").as_deref(), Some("~> 20.04"));
    for other in ["", "*", "10", ">= 10", ">=", "==10", ">=10.x", ">=firewall-2"] {
        assert_eq!(insert_blank(other), None, "{other}");
    }
}

/// Returns whether a version satisfies the constraint, by the rules for a single version.
pub(in crate::layout) fn kept(operator: &str, written: &VersionPattern, version: ImageVersion) -> bool {
    let VersionPattern { version: given, parts, prerelease } = *written;
    let begins_so = version.major == given.major && (parts < 2 || version.minor == given.minor);
    let begins_so = begins_so && (parts < 3 || (version.patch == given.patch && !prerelease));
    let before = version < given;
    match operator {
        "<" => before,
        ">=" | "=>" => !before,
        "=" => begins_so,
        "<=" | "=<" => before || begins_so,
        ">" => !before && !begins_so,
        "!=" => !begins_so || (parts == 2 && prerelease),
        "~" | "~>" if given == ImageVersion::MIN && parts == 3 => true,
        "~" | "~>" => !before && version.major == given.major && (parts == 1 || version.minor == given.minor),
        "^" if given.major > 0 || parts == 1 => !before && version.major == given.major,
        "^" if given.minor > 0 || parts == 2 => !before && (version.major, version.minor) == (0, given.minor),
        "^" => version == given,
        other => panic!("{other}"),
    }
}

/// Generates few different numbers, so that versions often match constraints, and the largest number.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..4u64, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

fn any_version() -> impl Strategy<Value = ImageVersion> {
    (number(), number(), number()).prop_map(|(major, minor, patch)| ImageVersion::new(major, minor, patch))
}

fn any_constraint() -> impl Strategy<Value = (&'static str, String)> {
    let operator = prop::sample::select(&OPERATORS[..]);
    let end = prop::sample::select(&["", "", "", "-rc.1", "+b"][..]);
    (operator, prop::collection::vec(number(), 1..=3), end).prop_map(|(operator, parts, end)| {
        let parts: Vec<String> = parts.iter().map(u64::to_string).collect();
        (operator, format!("{}{end}", parts.join(".")))
    })
}

proptest! {
    #[test]
    fn accepted_versions_satisfy_the_operator((operator, text) in any_constraint(), version in any_version()) {
        let accepted = VersionSet::from_constraint(&format!("{operator} {text}")).unwrap();
        let written = VersionPattern::parse(&text).unwrap();
        prop_assert_eq!(accepted.contains(version), kept(operator, &written, version));
        if operator == "=" {
            prop_assert_eq!(VersionSet::from_constraint(&text).unwrap(), accepted);
        }
    }

    #[test]
    fn common_version_satisfies_both_constraints_and_none_is_missed(
        (one, one_text) in any_constraint(), (other, other_text) in any_constraint(), version in any_version()
    ) {
        let [one, other] = [(one, one_text), (other, other_text)]
            .map(|(operator, text)| VersionSet::from_constraint(&format!("{operator} {text}")).unwrap());
        match one.find_common(&other) {
            Some(common) => prop_assert!(one.contains(common) && other.contains(common)),
            None => prop_assert!(!(one.contains(version) && other.contains(version))),
        }
    }

    #[test]
    fn any_text_is_a_constraint_or_a_syntax_error(text in "(?s).*|[<>=!~^]{0,2} ?v?[0-9.]{0,24}[-+a-z0-9.]{0,6}") {
        prop_assert_eq!(VersionSet::from_constraint(&text).err(), find_syntax_error(&text));
    }
}
