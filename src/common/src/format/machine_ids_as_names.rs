//! Replacement of machine ids in messages by the names of the machines.

/// Positions of the hyphens in a UUID.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];
const UUID_LENGTH: usize = 36;

/// Replaces ids by names in the phrase `machine ID` and in commands such as `drophammer machine move ID`. All other ids
/// are preserved: those in paths, those in messages about the id itself, and those in `drophammer machine rename`,
/// which accepts only ids. `name_of` returns the name of the machine with an id, or `None` to preserve the id.
pub fn replace_machine_ids(message: &str, name_of: impl Fn(&str) -> Option<String>) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in message.split(' ') {
        let id = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let before = |back: usize| words.len().checked_sub(back).map(|at| words[at].trim_start_matches(['`', '(']));
        let is_subject = before(1) == Some("machine");
        let is_command = before(2) == Some("machine") && before(3) == Some("drophammer");
        let is_argument = is_command && before(1) != Some("rename");
        let name = if (is_subject || is_argument) && is_uuid(id) { name_of(id) } else { None };
        words.push(name.map_or_else(|| word.to_owned(), |name| word.replacen(id, &name, 1)));
    }
    words.join(" ")
}

fn is_uuid(text: &str) -> bool {
    text.len() == UUID_LENGTH
        && text.bytes().enumerate().all(|(at, byte)| match HYPHENS.contains(&at) {
            true => byte == b'-',
            false => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4c4c4544-0051-3010-8052-b4c04f4d3132";

    #[test]
    fn ids_of_machines_become_names() {
        let name = |id: &str| (id == ID).then(|| "storage-7".to_owned());
        for (message, expected) in [
            ("machine ID is locked: no", "machine storage-7 is locked: no"),
            ("a1 of machine ID, which waits", "a1 of machine storage-7, which waits"),
            (
                "cancel it (`drophammer machine move ID --cancel`)",
                "cancel it (`drophammer machine move storage-7 --cancel`)",
            ),
            ("run `drophammer machine adopt ID`", "run `drophammer machine adopt storage-7`"),
        ] {
            assert_eq!(replace_machine_ids(&message.replace("ID", ID), name), expected);
        }
    }

    #[test]
    fn other_ids_are_not_replaced() {
        let name = |id: &str| (id == ID).then(|| "storage-7".to_owned());
        for message in [
            "",
            "the machine already has the id ID",
            "machines/ID.yaml: no",
            "machine m1 is locked",
            "run `drophammer machine rename ID 4c4c4544-0051-3010-8052-b4c04f4d3133`",
            "machine 4c4c4544-0051-3010-8052-b4c04f4d3133 is unknown",
            "machine 4c4c4544-0051-3010-8052-b4c04f4d313 is short",
            "machine 4c4c4544+0051-3010-8052-b4c04f4d3132 is malformed",
        ] {
            let message = message.replace("ID", ID);
            assert_eq!(replace_machine_ids(&message, name), message);
        }
    }
}
