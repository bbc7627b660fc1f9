//! `drophammer machine confirm`: confirms that the records of a restored server are up to date.

use super::options::Confirm;
use super::{Answer, Server, find, print_json, refused};
use crate::error::Result;
use crate::exit::Exit;
use crate::serve::operator::Listed;
use crate::stdout::print;
use crate::text::terminal::escape_line;
use reqwest::Method;

pub fn run(server: &Server, all: &[Listed], asked: &Confirm, json: bool) -> Result<Exit> {
    if asked.all {
        let request = server.request(Method::POST, "/v1/machines/confirm");
        return match server.ask::<Vec<Listed>>(request)? {
            Answer::Refused(why) => Ok(refused(&why)),
            Answer::Good(listed) if json => print_json(&listed),
            Answer::Good(listed) => print(&listed.iter().map(describe_next).collect::<String>()).map(|()| Exit::Good),
        };
    }
    // A machine that is not found is most likely a typing error: then no machine is confirmed.
    let machines: Result<Vec<&Listed>, String> = asked.machines.iter().map(|machine| find(all, machine)).collect();
    let machines = match machines {
        Ok(machines) => machines,
        Err(why) => return Ok(refused(&why)),
    };
    let (mut confirmed, mut outcome) = (Vec::new(), Exit::Good);
    for machine in machines {
        let path = format!("/v1/machine/{}/confirm", machine.id);
        match server.ask::<Listed>(server.request(Method::POST, &path))? {
            Answer::Refused(why) => outcome = refused(&why),
            Answer::Good(listed) => {
                if !json {
                    print(&describe_next(&listed))?;
                }
                confirmed.push(listed);
            }
        }
    }
    if json && !confirmed.is_empty() {
        print_json(&confirmed)?;
    }
    Ok(outcome)
}

/// Describes the next boot of a confirmed machine.
fn describe_next(machine: &Listed) -> String {
    let name = escape_line(if machine.name.is_empty() { &machine.id } else { &machine.name });
    let next = match (&machine.order, &machine.allocation, &machine.moving) {
        (_, _, Some(moving)) => format!("its migration continues ({})", moving.state),
        (Some(order), ..) => format!(
            "it is reinstalled with {} (`drophammer machine reinstall {name} --cancel` cancels an order that has not started)",
            order.image
        ),
        (None, Some(_), _) if machine.installed => "it boots its disk".to_owned(),
        (None, Some(allocation), _) => format!("allocation {allocation} is installed on it for the first time"),
        (None, None, _) => "it waits for an allocation".to_owned(),
    };
    format!("{name} is confirmed: at its next boot over PXE {next}.\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::operator::Order;

    #[test]
    fn what_happens_next_to_a_confirmed_machine_is_printed() {
        let order = serde_json::json!({"id": "o", "image": "debian-13", "created": "", "attempts": 0, "begun": false,
            "without_marker": false, "given_up": false});
        let order = Some(serde_json::from_value::<Order>(order).unwrap());
        let machine = Listed { id: "4c-1".to_owned(), name: "one".to_owned(), ..Listed::default() };
        let allocated = Listed { allocation: Some("a1".to_owned()), ..machine.clone() };
        let installed = Listed { installed: true, ..allocated.clone() };
        for (listed, words) in [
            (&machine, "it waits for an allocation"),
            (&allocated, "allocation a1 is installed on it for the first time"),
            (&installed, "it boots its disk"),
            (&Listed { order, ..installed.clone() }, "it is reinstalled with debian-13"),
        ] {
            assert!(describe_next(listed).starts_with(&format!("one is confirmed: at its next boot over PXE {words}")));
        }
    }
}
