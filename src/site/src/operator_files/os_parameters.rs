//! Parameters of OS definitions: the parameters in an allocation, and those in `os/*.yaml`, which apply to all
//! machines that use the definition.

use super::yaml_node::{deserialize_node, format_at, format_position, parse_document};
use marked_yaml::{Node, Spanned};
use model::ganeti_os_definition::{OsSelector, ParameterChange};

/// Change of an OS parameter, with the position of the change in the file.
pub(crate) type SpannedChange = Spanned<ParameterChange>;

/// Content of `os/*.yaml`: parameters for all machines that use an OS definition, or one variant of it.
pub(crate) type OsParametersFile = Vec<(Spanned<String>, OsSelector, Vec<SpannedChange>)>;

/// Parses and validates a file in `os/`, without checking whether the definitions exist.
///
/// # Errors
/// Returns all problems, one per line, with line and column in front.
pub(crate) fn parse_site_parameters(text: &str) -> Result<OsParametersFile, String> {
    let Node::Mapping(mapping) = parse_document(text)? else {
        return Err("1:1: the file must be a mapping from OS definitions to lists of KEY=VALUE and -KEY".to_owned());
    };
    let (mut site, mut wrong) = (OsParametersFile::new(), Vec::new());
    for (key, value) in mapping.iter() {
        let os = OsSelector::parse(key.as_str()).map_err(|why| format!("{}{why}", format_position(key.span().start())));
        let given = os.and_then(|os| Ok((os, deserialize_node::<Vec<Spanned<String>>>(value)?)));
        match given.map(|(os, given)| (os, parse_changes(&given))) {
            Ok((os, (said, problems))) => {
                wrong.extend(problems);
                site.push((Spanned::new(*key.span(), key.as_str().to_owned()), os, said));
            }
            Err(why) => wrong.push(why),
        }
    }
    if wrong.is_empty() { Ok(site) } else { Err(wrong.join("\n")) }
}

/// Parses changes of OS parameters. Returns the valid changes, and the problems of the invalid changes.
pub(crate) fn parse_changes(given: &[Spanned<String>]) -> (Vec<SpannedChange>, Vec<String>) {
    let (mut said, mut wrong) = (Vec::<SpannedChange>::new(), Vec::new());
    for one in given {
        match ParameterChange::parse(one) {
            Err(why) => wrong.push(format_at(one, &why)),
            Ok(change) if said.iter().any(|other| other.has_same_parameter(&change)) => {
                wrong.push(format_at(
                    one,
                    &format!("{parameter:?} is listed twice for this definition", parameter = change.key()),
                ));
            }
            Ok(change) => said.push(Spanned::new(*one.span(), change)),
        }
    }
    (said, wrong)
}

/// Formats a message that begins with the position of the change.
pub(crate) fn format_at_change(said: &SpannedChange, message: &str) -> String {
    format!("{}{message}", format_position(said.span().start()))
}

#[cfg(test)]
mod tests {
    use super::super::parse_machine;
    use super::*;

    fn allocation(more: &str) -> String {
        format!("id: 4c4c4544-0051-3010-8031-b2c04f333633\nallocation:\n  id: a\n  hostname: h\n{more}\n")
    }

    #[test]
    fn allocation_may_specify_a_definition_and_parameters() {
        let text = "  os: web+small\n  os_parameters: [ns1=192.0.2.53, 'extra=a, b', -proxy, \"empty=\"]";
        let allocation = parse_machine(&allocation(text)).unwrap().allocation.unwrap();
        assert_eq!(allocation.os.as_deref().map(String::as_str), Some("web+small"));
        let said: Vec<&ParameterChange> = allocation.changes.iter().map(|said| &**said).collect();
        let set = |key: &str, value: &str| ParameterChange::Set(key.to_owned(), value.to_owned());
        let taken = ParameterChange::Unset("proxy".to_owned());
        assert_eq!(said, [&set("ns1", "192.0.2.53"), &set("extra", "a, b"), &taken, &set("empty", "")]);
    }

    #[test]
    fn invalid_parameters_are_reported_with_their_position() {
        for (text, expected) in [
            ("  os: we b", "5:7: \"we b\" is not a valid OS definition name"),
            ("  os: web+", "5:7: \"web+\": the variant name"),
            ("  os: web\n  image: debian-12", "5:7: the allocation has both `os` and `image`: specify one"),
            (
                "  image: i\n  os_parameters: [a=b]",
                "6:19: `os_parameters` require an `os`, which the allocation does not specify",
            ),
            ("  os: web\n  os_parameters: [a=b, c]", "6:24: \"c\" is neither KEY=VALUE nor -KEY"),
            ("  os: web\n  os_parameters: [a-b=1, A_B=2]", "6:26: \"A_B\" is listed twice for this definition"),
            ("  os: web\n  os_parameters: [a=1, -a]", "6:24: \"a\" is listed twice for this definition"),
            ("  os: web\n  os_parameters: {a: b}", "6:18: "),
            ("  os: web\n  os_parameters: a=b", "6:18: "),
            ("  os: web\n  os_parameters:\n    - \"a b=c\"", "7:7: \"a b\" is not a valid parameter name"),
            ("", "neither `os` nor `image`: specify one"),
            ("  os:", "neither `os` nor `image`: specify one"),
        ] {
            let why = parse_machine(&allocation(text)).unwrap_err();
            assert!(why.contains(expected), "{text}: {why}");
            assert_eq!(why.lines().count(), 1, "{why}");
        }
    }

    #[test]
    fn site_wide_parameters_are_parsed() {
        let said =
            parse_site_parameters("web: [a=1]\nweb+small:\n  - -a\n  - b=2\nnot-there-yet: [x=y]\nnone:\n").unwrap();
        let said: Vec<_> = said.iter().map(|(_, os, said)| (os.to_string(), said.len())).collect();
        assert_eq!(said, [("web".to_owned(), 1), ("web+small".to_owned(), 2), ("not-there-yet".to_owned(), 1)]);
        assert!(parse_site_parameters("").unwrap().is_empty());
        for (text, expected) in [
            ("- a\n", "1:1: the document must be a mapping"),
            ("web: a=b\n", "1:6: "),
            ("we b: []\n", "1:1: \"we b\" is not a valid OS definition name"),
            ("web: [a=1, b]\nold: [c]\n", "1:12: \"b\" is neither KEY=VALUE nor -KEY\n2:7: \"c\" is neither"),
            ("web: []\nweb: []\n", "2:1: the field \"web\" is specified twice"),
        ] {
            let why = parse_site_parameters(text).unwrap_err();
            assert!(why.contains(expected), "{text}: {why}");
        }
    }
}
