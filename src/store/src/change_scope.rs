//! Machines whose records a change of the database affects. Servers that share a PostgreSQL database send each other
//! this scope with each notification, so that a change of one machine does not make all machines' requests read the
//! database.

use std::collections::BTreeSet;

/// Maximum length of a notification, in bytes. PostgreSQL refuses notifications of 8,000 bytes and more.
const MAXIMUM_PAYLOAD: usize = 7_900;

/// Machines that one or several changes of the database affect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeScope {
    /// Only records of these machines have changed.
    Machines(BTreeSet<String>),
    /// Any record may have changed.
    All,
}

impl Default for ChangeScope {
    fn default() -> ChangeScope {
        ChangeScope::Machines(BTreeSet::new())
    }
}

impl ChangeScope {
    pub(crate) fn from_machine(machine: impl Into<String>) -> ChangeScope {
        ChangeScope::Machines(BTreeSet::from([machine.into()]))
    }

    /// Adds the machines of another scope.
    pub(crate) fn extend(&mut self, other: ChangeScope) {
        match other {
            ChangeScope::Machines(machines) => {
                if let ChangeScope::Machines(own) = self {
                    own.extend(machines);
                }
            }
            ChangeScope::All => *self = ChangeScope::All,
        }
    }

    /// Returns the notification of the server with the id `origin`: this id, followed by the ids of the machines,
    /// separated by spaces. A notification without machines affects all machines. Earlier versions treat all
    /// notifications of other servers like this.
    pub(crate) fn to_payload(&self, origin: &str) -> String {
        let ChangeScope::Machines(machines) = self else { return origin.to_owned() };
        let payload = machines.iter().fold(origin.to_owned(), |text, machine| text + " " + machine);
        let is_separable = |machine: &String| !machine.is_empty() && !machine.contains(char::is_whitespace);
        match payload.len() <= MAXIMUM_PAYLOAD && machines.iter().all(is_separable) {
            true => payload,
            false => origin.to_owned(),
        }
    }

    /// Parses a notification. Returns `None` if the server with the id `own` has sent it.
    pub(crate) fn parse_payload(payload: &str, own: &str) -> Option<ChangeScope> {
        let mut words = payload.split(' ');
        if words.next() == Some(own) {
            return None;
        }
        let machines: BTreeSet<String> = words.map(str::to_owned).collect();
        Some(if machines.is_empty() { ChangeScope::All } else { ChangeScope::Machines(machines) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(machines: &[&str]) -> ChangeScope {
        ChangeScope::Machines(machines.iter().map(|machine| (*machine).to_owned()).collect())
    }

    #[test]
    fn notification_contains_the_machines_of_a_change() {
        let mut changed = ChangeScope::default();
        changed.extend(ChangeScope::from_machine("n"));
        changed.extend(ChangeScope::from_machine("m"));
        changed.extend(ChangeScope::from_machine("n"));
        assert_eq!(changed.to_payload("a"), "a m n");
        assert_eq!(ChangeScope::parse_payload("a m n", "b"), Some(scope(&["m", "n"])));
        assert_eq!(ChangeScope::parse_payload("a m n", "a"), None);
        changed.extend(ChangeScope::All);
        changed.extend(ChangeScope::from_machine("m"));
        assert_eq!((&changed, changed.to_payload("a")), (&ChangeScope::All, "a".to_owned()));
        assert_eq!(ChangeScope::parse_payload("a", "b"), Some(ChangeScope::All), "also sent by earlier versions");
        assert_eq!(ChangeScope::parse_payload("a", "a"), None);
    }

    #[test]
    fn notification_that_cannot_contain_the_machines_affects_all() {
        let ids: Vec<String> = (0..300).map(|number| format!("4c4c4544-0051-3010-8052-{number:012}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        assert!(scope(&ids[..200]).to_payload("a").len() < 8_000);
        for unsuitable in [&ids[..], &["m n"], &[""], &["m\n"], &[]] {
            assert_eq!(scope(unsuitable).to_payload("a"), "a", "{unsuitable:?}");
        }
    }
}
