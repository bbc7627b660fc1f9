//! Error message for members that cannot be reinstalled. A reason that many machines share is printed only once.

/// Maximum number of different reasons in a message.
const REASONS: usize = 10;
/// Maximum number of machines that are named for one reason.
const MACHINES: usize = 10;

/// Reason why the reinstall of a member cannot be ordered.
#[derive(Debug)]
pub(super) struct MemberRefusal {
    pub(super) machine: String,
    pub(super) reason: String,
}

/// Lists the reasons, each with its machines, in the order of their first machine.
pub(super) fn list_refusals(refused: &[MemberRefusal]) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for MemberRefusal { machine, reason } in refused {
        match groups.iter_mut().find(|(known, _)| known == reason) {
            Some((_, machines)) => machines.push(machine),
            None => groups.push((reason, vec![machine])),
        }
    }
    let shown = groups.iter().take(REASONS).map(|(reason, machines)| format!("{}: {reason}", list_machines(machines)));
    let shown: Vec<String> = shown.collect();
    let more: usize = groups.iter().skip(REASONS).map(|(_, machines)| machines.len()).sum();
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("{}{more}", shown.join("; "))
}

fn list_machines(machines: &[&str]) -> String {
    let shown = machines.iter().take(MACHINES).copied().collect::<Vec<_>>().join(", ");
    match machines.len().saturating_sub(MACHINES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(machine: &str, reason: &str) -> MemberRefusal {
        MemberRefusal { machine: machine.to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn a_shared_reason_is_printed_once() {
        let refused = [refusal("m1", "is locked"), refusal("m2", "no kernel"), refusal("m3", "is locked")];
        assert_eq!(list_refusals(&refused[..1]), "m1: is locked");
        assert_eq!(list_refusals(&refused), "m1, m3: is locked; m2: no kernel");
    }

    #[test]
    fn the_lists_of_machines_and_of_reasons_are_limited() {
        let shared: Vec<MemberRefusal> = (0..292).map(|number| refusal(&format!("m{number}"), "no kernel")).collect();
        assert_eq!(list_refusals(&shared), "m0, m1, m2, m3, m4, m5, m6, m7, m8, m9 and 282 more: no kernel");
        let different: Vec<MemberRefusal> =
            (0..300).map(|number| refusal(&format!("m{number}"), &number.to_string())).collect();
        let text = list_refusals(&different);
        assert!(text.starts_with("m0: 0; m1: 1; ") && text.ends_with("; m9: 9; and 290 more"), "{text}");
    }
}
