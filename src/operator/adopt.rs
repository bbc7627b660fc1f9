//! `drophammer machine adopt`: machines whose install marker names an installation that the server does not know, and their adoption by the
//! operator.

use super::options::Adopt;
use super::{Answer, Server, find, print_json, refused};
use crate::error::Result;
use crate::exit::Exit;
use crate::serve::operator::Listed;
use crate::stdout::print;
use crate::text;
use reqwest::Method;

pub fn adopt(server: &Server, all: &[Listed], asked: &Adopt, json: bool) -> Result<Exit> {
    if asked.waiting {
        let waiting: Vec<&Listed> = all.iter().filter(|machine| machine.waits.is_some()).collect();
        return match json {
            true => print_json(&waiting),
            false => print(&table(&waiting)).map(|()| Exit::Good),
        };
    }
    // A machine that is not found is most likely a typing error: then no machine is adopted.
    let machines: Result<Vec<&Listed>, String> = asked.machines.iter().map(|machine| find(all, machine)).collect();
    let machines = match machines {
        Ok(machines) => machines,
        Err(why) => return Ok(refused(&why)),
    };
    let (mut adopted, mut outcome) = (Vec::new(), Exit::Good);
    for machine in machines {
        let path = format!("/v1/machine/{}/adopt", machine.id);
        match server.ask::<Listed>(server.request(Method::POST, &path))? {
            Answer::Refused(why) => outcome = refused(&why),
            Answer::Good(listed) => {
                if !json {
                    print(&done(machine, &listed))?;
                }
                adopted.push(listed);
            }
        }
    }
    match &adopted[..] {
        [] => {}
        _ if !json => {}
        [one] if asked.machines.len() == 1 => drop(print_json(one)?),
        several => drop(print_json(&several)?),
    }
    Ok(outcome)
}

fn done(before: &Listed, now: &Listed) -> String {
    format!(
        "Allocation {} of {} is recorded as installed. At its next boot over PXE, the machine boots its disks and reports the installation.\n",
        now.allocation.as_deref().unwrap_or_default(),
        text::terminal::escape_line(if before.name.is_empty() { &before.id } else { &before.name })
    )
}

/// Lists the machines with their markers, and the command that adopts them: by id, so that exactly the listed machines are adopted.
fn table(waiting: &[&Listed]) -> String {
    if waiting.is_empty() {
        return "No machine waits with an install marker of its allocation. A machine reports that it waits after it has booted over PXE.\n".to_owned();
    }
    let mut rows = vec![["name", "id", "allocation", "marker: image", "marker: time"].map(str::to_owned)];
    rows.extend(waiting.iter().map(|machine| {
        let marker = machine.waits.clone().unwrap_or_default();
        let allocation = machine.allocation.clone().unwrap_or_default();
        [machine.name.clone(), machine.id.clone(), allocation, text::clean(&marker.image), text::clean(&marker.time)]
    }));
    let ids: Vec<&str> = waiting.iter().map(|machine| machine.id.as_str()).collect();
    format!(
        "{}\nThe disks of each machine have an install marker of its allocation, but the server has no record of that installation.\n\
         Markers can be forged: omit each machine of which you do not know that it was installed.\n  \
         drophammer machine adopt {}\n",
        text::columns(&rows),
        ids.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::operator::Waits;

    #[test]
    fn the_machines_that_wait_are_shown_with_the_command_that_adopts_them() {
        let machine = |id: &str, image: &str| Listed {
            id: id.to_owned(),
            name: format!("storage-{id}"),
            allocation: Some("a1".to_owned()),
            waits: Some(Waits { image: image.to_owned(), time: "2026-01-01T00:00:00Z".to_owned() }),
            ..Listed::default()
        };
        let (one, two) = (machine("4c-1", "debian-12"), machine("4c-2", "deb\u{1b}[2J"));
        let text = table(&[&one, &two]);
        assert!(text.ends_with("drophammer machine adopt 4c-1 4c-2\n"), "{text}");
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["storage-4c-1", "4c-1", "a1", "debian-12", "2026-01-01T00:00:00Z"]);
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert!(table(&[]).starts_with("No machine waits"));
    }
}
