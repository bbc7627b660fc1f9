//! `drophammer plan --machine`: plans a machine of a server from its registered inventory and the allocation that it would receive now.

use super::plan::{Asked, Options, of_file, possible, read_inventory};
use super::templates::Templates;
use crate::allocation::{Allocation, Order};
use crate::assigned::preview::stop_using;
use crate::assigned::{correct_begun, request};
use crate::error::{Error, Phase, Result};
use crate::inventory::Inventory;
use crate::operator::{Answer, Server, find};
use crate::plan::{Mode, Waiver};
use crate::problem;
use crate::serve::operator::Listed;
use crate::serve::preview::{Preview, Registered};
use reqwest::Method;
use serde::de::DeserializeOwned;

const FRESH: &str = "`drophammer inventory` on the machine prints a current one for --inventory FILE";

/// Collects the inputs of the plan that the machine's agent would make. The inner error lists all problems of a layout file.
///
/// # Errors
/// The server cannot be reached, lacks the inventory or the allocation, or the options contradict the machine's state.
pub fn asked(options: &Options, machine: &str) -> Result<std::result::Result<Asked, String>> {
    let server = Server::new(&options.of)?;
    let id = match uuid::Uuid::parse_str(machine) {
        Ok(id) => id.to_string(),
        Err(_) => {
            let all: Vec<Listed> = get(&server, "/v1/machines")?;
            find(&all, machine).map_err(refusal)?.id.clone()
        }
    };
    let preview: Preview = get(&server, &format!("/v1/machine/{id}/preview"))?;
    let (inventory, note) = match &options.inventory {
        Some(path) => (read_inventory(path)?, None),
        None => of_server(machine, preview.registered.as_ref())?,
    };
    let asked = match &options.layout {
        Some(_) => of_file(options, inventory)?,
        None => of_allocation(options, machine, &preview, inventory)?,
    };
    Ok(asked.map(|mut asked| {
        asked.notes.extend(note);
        asked
    }))
}

fn get<T: DeserializeOwned>(server: &Server, path: &str) -> Result<T> {
    match server.ask(server.request(Method::GET, path))? {
        Answer::Good(answer) => Ok(answer),
        Answer::Refused(why) => Err(refusal(why)),
    }
}

fn refusal(why: impl Into<String>) -> Error {
    Error::refusal(Phase::Inventory, why)
}

/// Returns the inventory stored by the server, and a note with its age.
fn of_server(machine: &str, registered: Option<&Registered>) -> Result<(Inventory, Option<String>)> {
    let Some(registered) = registered else {
        return Err(refusal(format!(
            "machine {machine} has never registered, so the server has no inventory of it: boot it over PXE once, which installs nothing \
             before it has an allocation; or {FRESH}"
        )));
    };
    let as_of = as_of(registered);
    if registered.outdated {
        return Err(refusal(format!(
            "the inventory of machine {machine} is {as_of}, and an installation has started since then: the contents of its disks have \
             changed. {FRESH}"
        )));
    }
    let what = || format!("the registered inventory of machine {machine} is invalid");
    let inventory = possible(registered.inventory.clone(), what)?;
    Ok((inventory, Some(format!("the inventory is {as_of}: later changes on the machine are not in this plan"))))
}

fn as_of(registered: &Registered) -> String {
    match registered.time.get(..16) {
        Some(minute) => format!("as of {} UTC, {}", minute.replace('T', " "), ago(registered.seconds_ago)),
        None => "of an unknown time".to_owned(),
    }
}

fn ago(seconds: u64) -> String {
    let (count, unit) = match seconds {
        ..120 => return "just now".to_owned(),
        120..7_200 => (seconds / 60, "minutes"),
        7_200..172_800 => (seconds / 3_600, "hours"),
        _ => (seconds / 86_400, "days"),
    };
    format!("{count} {unit} ago")
}

/// Collects the inputs as the agent does: with the layout and the options that the server gives it, for its own allocation.
fn of_allocation(
    options: &Options,
    name: &str,
    preview: &Preview,
    mut inventory: Inventory,
) -> Result<std::result::Result<Asked, String>> {
    let templates = match Templates::read(&options.template)? {
        Ok(templates) => templates,
        Err(problems) => return Ok(Err(problems)),
    };
    let machine = &preview.machine;
    let Some(mut allocation) = machine.allocation.clone() else {
        let why = preview.withheld.as_deref().unwrap_or("the server does not offer an allocation");
        return Err(refusal(format!(
            "machine {name} has nothing to install: {why}. Use --layout FILE to plan with another layout"
        )));
    };
    what_if(options, name, &mut allocation)?;
    let told = request(machine, &machine.id, &allocation, &[]).steps;
    let merged = match templates.merge(told.list()) {
        Ok(merged) => merged,
        Err(problems) => return Ok(Err(problems)),
    };
    let parsed = allocation.layout().map_err(|problems| {
        refusal(format!("the server's layout for machine {name} is invalid:\n{}", problem::lines(&problems)))
    })?;
    let parsed = match templates.layout(&merged, &inventory) {
        Some(Ok(made)) => made,
        Some(Err(problems)) => return Ok(Err(problems)),
        None => parsed,
    };
    if allocation.reinstall || options.at_rest {
        stop_using(&mut inventory);
    }
    correct_begun(&machine.id, &mut allocation, &parsed.layout, &inventory);
    let mut request = request(machine, &machine.id, &allocation, &[]);
    if request.subject.url.is_empty() {
        "the image's server".clone_into(&mut request.subject.url);
    }
    let mut notes = Vec::new();
    if inventory.filesystems.is_empty() {
        let claim = request.claim.as_mut().filter(|claim| claim.waiver.is_none());
        match (request.mode, claim) {
            // The plan itself explains this case.
            (Mode::Reinstall, Some(claim)) => claim.waiver = Some(Waiver::Unseen),
            (Mode::Reinstall, None) => {}
            (Mode::Install, _) => notes.push(
                "the contents of filesystems are not in this inventory: the agent reads them, and refuses if it finds the install marker of an \
                 installation"
                    .to_owned(),
            ),
        }
    }
    // Steps that only a newer server knows remain a refusal.
    if !templates.is_empty() && told.wrong().is_empty() {
        request.steps = merged.steps.into();
    }
    Ok(Ok(Asked { parsed, inventory, request, notes, templates }))
}

/// Turns the allocation into a hypothetical reinstall if `--reinstall` is given and none is ordered.
fn what_if(options: &Options, name: &str, allocation: &mut Allocation) -> Result<()> {
    if !allocation.succeeded && options.reinstall {
        return Err(refusal(format!(
            "machine {name} is not installed and cannot be reinstalled: omit --reinstall to show the installation"
        )));
    }
    if allocation.succeeded && !allocation.reinstall {
        if !options.reinstall {
            return Err(refusal(format!(
                "machine {name} is installed with {} and boots it, as no reinstall is ordered. Use --reinstall to preview one",
                allocation.image.id
            )));
        }
        allocation.reinstall = true;
        allocation.order = Some(Order { id: "preview".to_owned(), attempt: 1, attempts: 1, ..Order::default() });
    }
    if let Some(order) = &mut allocation.order {
        order.without_marker |= options.without_marker;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_ago_that_was() {
        for (seconds, words) in [
            (0, "just now"),
            (150, "2 minutes ago"),
            (3 * 3600, "3 hours ago"),
            (47 * 3600, "47 hours ago"),
            (50 * 3600, "2 days ago"),
        ] {
            assert_eq!(ago(seconds), words);
        }
        let at = |time: &str| as_of(&Registered { time: time.to_owned(), seconds_ago: 7300, ..Registered::default() });
        assert_eq!(at("2026-11-22T10:11:12.123456789Z"), "as of 2026-11-22 10:11 UTC, 2 hours ago");
        assert_eq!(at(""), "of an unknown time");
    }
}
