//! Confirmation of an order for several machines by the number of machines.

use super::machine_list::name_or_id;
use crate::confirmation::read_confirmation;
use ::api::operator_api::MachineSummary;
use ::api::operator_api::reinstalls::ReinstallRequest;
use common::error::Result;
use common::format::{format_count, join_few};
use std::collections::BTreeSet;

/// Machines that an order reinstalls, as presented to the operator.
pub(super) struct OrderedMachines {
    count: usize,
    /// Names of the machines and ids of the images, such as `2 machines with debian-13: web-1, web-2`.
    description: String,
}

impl OrderedMachines {
    pub(super) fn new(all: &[MachineSummary], members: &[ReinstallRequest]) -> OrderedMachines {
        let name = |member: &ReinstallRequest| {
            let machine = all.iter().find(|machine| machine.id == member.id);
            machine.map_or(&*member.id, name_or_id).to_owned()
        };
        let names: Vec<String> = members.iter().map(name).collect();
        let images: BTreeSet<&str> = members.iter().map(|member| &*member.imageid).collect();
        let images: Vec<String> = images.into_iter().map(str::to_owned).collect();
        let description = format!(
            "{machines} with {images}: {names}",
            machines = format_count(members.len(), "machine", "machines"),
            images = join_few(&images, ", "),
            names = join_few(&names, ", ")
        );
        OrderedMachines { count: members.len(), description }
    }

    /// Requires that the operator has specified or types the number of machines. The inner error is the reason why
    /// nothing is ordered.
    ///
    /// # Errors
    /// Returns an error if standard input cannot be read.
    pub(super) fn confirm(
        &self,
        given: Option<usize>,
        is_interactive: bool,
    ) -> Result<std::result::Result<(), String>> {
        let OrderedMachines { count, description } = self;
        let prompt = format!("Reinstall {description}\nType the number of machines ({count}) to confirm:");
        let typed = read_confirmation(given.map(|given| given.to_string()), &prompt, is_interactive)?;
        Ok(match typed {
            Some(typed) if typed == count.to_string() => Ok(()),
            Some(typed) => Err(format!(
                "machine reinstall: not confirmed: {typed:?} is not the number of machines. The order would reinstall {description}. Nothing was ordered"
            )),
            None => Err(format!(
                "machine reinstall: not confirmed: the order would reinstall {description}; add `--yes {count}`. Nothing was ordered"
            )),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(count: usize) -> OrderedMachines {
        let machine = |number: usize| MachineSummary {
            id: format!("4c-{number}"),
            name: format!("web-{number}"),
            ..MachineSummary::default()
        };
        let request = |number: usize| ReinstallRequest {
            id: format!("4c-{number}"),
            imageid: "debian-13".to_owned(),
            ..ReinstallRequest::default()
        };
        let (all, members): (Vec<_>, Vec<_>) = (1..=count).map(|number| (machine(number), request(number))).unzip();
        OrderedMachines::new(&all, &members)
    }

    #[test]
    fn only_the_exact_number_confirms() {
        assert_eq!(ordered(2).confirm(Some(2), false).unwrap(), Ok(()));
        let why = ordered(2).confirm(Some(3), true).unwrap().unwrap_err();
        assert_eq!(
            why,
            "machine reinstall: not confirmed: \"3\" is not the number of machines. The order would reinstall 2 machines with debian-13: web-1, web-2. Nothing was ordered"
        );
        let why = ordered(2).confirm(None, false).unwrap().unwrap_err();
        assert!(why.ends_with("web-1, web-2; add `--yes 2`. Nothing was ordered"), "{why}");
    }

    #[test]
    fn a_long_list_of_machines_is_abbreviated() {
        let why = ordered(40).confirm(None, false).unwrap().unwrap_err();
        assert!(why.contains("40 machines with debian-13: web-1, ") && why.contains("web-32, 8 more; add"), "{why}");
    }
}
