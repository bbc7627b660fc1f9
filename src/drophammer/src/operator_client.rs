//! `drophammer machine`, `layout`, `volume`, `image list` and `image modify`: the operator's client of `drophammer serve`.

mod adopt;
mod boot_digest;
mod confirm;
pub mod images;
pub mod layouts;
mod machine_requests;
mod migration;
mod options;
mod power;
mod server;
pub mod volumes;

pub use options::{LayoutOptions, ListImagesOptions, MachineOptions, ModifyImageOptions, ServerOptions, VolumeOptions};
pub use server::{OperatorClient, OperatorResponse};

use ::server::create_machine::{CreatedMachineFile, MachineFileRequest};
use ::server::operator::reinstalls::ReinstallRequest;
use ::server::operator::{MachineSummary, ReinstallOrder, RenameRequest, WaitingMarker};
use common::encoding::percent_encode;
use common::error::Result;
use common::exit_code::CommandOutcome;
use common::format::{self, terminal::escape_line};
use common::output::{print_error, print_text, to_json};
use options::MachineCommand;
use reqwest::Method;
use serde::Serialize;

/// Performs the command and prints the result.
///
/// # Errors
/// The server cannot be reached, rejects the token, or fails.
pub fn run_machine_command(options: &MachineOptions) -> Result<CommandOutcome> {
    if let MachineCommand::Power(asked) = &options.command
        && let Some(done) = power::switch_directly(asked, options.json)
    {
        return done;
    }
    let server = OperatorClient::new(&options.of)?;
    let all: Vec<MachineSummary> = match server.send_json(server.request(Method::GET, "/v1/machines"))? {
        OperatorResponse::Good(all) => all,
        OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
    };
    match &options.command {
        MachineCommand::List if options.json => print_json(&all),
        MachineCommand::List => {
            print_text(&format_machines(&all))?;
            Ok(CommandOutcome::Good)
        }
        MachineCommand::Add(asked) => add_machine(&server, asked, options.json),
        MachineCommand::Rename(asked) => rename_machine(&server, asked, options.json),
        MachineCommand::Power(asked) => power::switch_through_server(&server, &all, asked, options.json),
        MachineCommand::Move(asked) => migration::run_move_command(&server, &all, asked, options.json),
        MachineCommand::Adopt(asked) => adopt::adopt_machines(&server, &all, asked, options.json),
        MachineCommand::BootDigest(asked) => {
            boot_digest::print_boot_digest(&server, &all, &asked.machine, asked.at.as_deref(), options.json)
        }
        MachineCommand::Confirm(asked) => confirm::confirm_machines(&server, &all, asked, options.json),
        MachineCommand::Reinstall(asked) => {
            let machine = match find_machine(&all, &asked.machine) {
                Ok(machine) => machine,
                Err(why) => return Ok(print_refusal(&why)),
            };
            let path = format!("/v1/machine/{}/reinstall", machine.id);
            let request = match &asked.image {
                None => server.request(Method::DELETE, &path),
                Some(image) => server.request(Method::POST, &path).json(&ReinstallRequest {
                    id: machine.id.clone(),
                    imageid: image.clone(),
                    without_marker: asked.without_marker,
                    change_promise: asked.change_promise,
                    give_up: asked.give_up.clone(),
                    replace_newer: asked.replace_newer,
                }),
            };
            match server.send_json::<MachineSummary>(request)? {
                OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
                OperatorResponse::Good(listed) => {
                    let command =
                        listed.order.as_ref().and_then(|_| boot_digest::reinstall_command_for(&server, &listed));
                    let text = describe_next_steps(machine, &listed, command.as_deref());
                    match options.json {
                        true => drop(print_json(&listed)?),
                        // The next lines list what the operator can do to start the reinstall, which `--now` does.
                        false if asked.now => print_text(&format!("{}\n", text.lines().next().unwrap_or_default()))?,
                        false => print_text(&text)?,
                    }
                    if asked.now {
                        power::power_cycle_now(&server, &listed, "reinstall", options.json)
                    } else {
                        Ok(CommandOutcome::Good)
                    }
                }
            }
        }
    }
}

fn add_machine(server: &OperatorClient, asked: &options::AddOptions, json: bool) -> Result<CommandOutcome> {
    let request = server.request(Method::POST, &format!("/v1/machine/{}/file", asked.machine.to_lowercase()));
    let body = MachineFileRequest { name: asked.name.clone(), size: asked.size.clone() };
    match server.send_json::<CreatedMachineFile>(request.json(&body))? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(added) if json => print_json(&added),
        OperatorResponse::Good(CreatedMachineFile { file, name, size, macs, omitted, .. }) => {
            let size = size.map(|size| format!(", size {size}")).unwrap_or_default();
            let omitted: String =
                omitted.iter().map(|omitted| format!("MAC {} {}: omitted.\n", omitted.mac, omitted.reason)).collect();
            print_text(&format!(
                "{file} in the server's directory describes {name} now: MACs {}{size}.\n{omitted}Add an `allocation` to it to install the machine.\n",
                if macs.is_empty() { "none".to_owned() } else { macs.join(" ") }
            ))?;
            Ok(CommandOutcome::Good)
        }
    }
}

/// Renames a machine. The ids are not looked up in the list: the old id may no longer have a file.
fn rename_machine(server: &OperatorClient, asked: &options::RenameOptions, json: bool) -> Result<CommandOutcome> {
    let (old, new) = (asked.old.to_lowercase(), asked.new.to_lowercase());
    let is_id = |text: &str| uuid::Uuid::parse_str(text).is_ok();
    if let Some(bad) = [&old, &new].into_iter().find(|text| !is_id(text)) {
        return Ok(print_refusal(&format!(
            "{bad:?} is not a machine id, which is a UUID; names cannot be renamed here, as they belong to the file"
        )));
    }
    let request =
        server.request(Method::POST, &format!("/v1/machine/{old}/rename")).json(&RenameRequest { id: new.clone() });
    match server.send_json::<MachineSummary>(request)? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(listed) if json => print_json(&listed),
        OperatorResponse::Good(_) => {
            print_text(&format!(
                "The records of {old} belong to {new} now. Its file in machines/ must have `id: {new}`.\n"
            ))?;
            Ok(CommandOutcome::Good)
        }
    }
}

/// Encodes a name as one segment of a path.
fn encode_segment(name: &str) -> String {
    format!("/{}", percent_encode(name, ""))
}

fn print_refusal(why: &str) -> CommandOutcome {
    print_error(&why);
    CommandOutcome::Refused
}

fn print_json(value: &impl Serialize) -> Result<CommandOutcome> {
    print_text(&(to_json(value)? + "\n"))?;
    Ok(CommandOutcome::Good)
}

/// Finds the machine with that id or that name.
pub fn find_machine<'a>(all: &'a [MachineSummary], wanted: &str) -> Result<&'a MachineSummary, String> {
    let by_id = all.iter().find(|machine| machine.id.eq_ignore_ascii_case(wanted));
    let by_name: Vec<&MachineSummary> =
        all.iter().filter(|machine| machine.name == wanted && !wanted.is_empty()).collect();
    match (by_id, &by_name[..]) {
        (Some(machine), _) => Ok(machine),
        (None, [machine]) => Ok(machine),
        (None, []) => {
            Err(format!("the server does not know machine {wanted:?}; `drophammer machine list` lists its machines"))
        }
        (None, several) => {
            let ids: Vec<&str> = several.iter().map(|machine| machine.id.as_str()).collect();
            Err(format!("{} machines are named {wanted:?}: use the id, {}", several.len(), ids.join(" or ")))
        }
    }
}

fn format_machines(all: &[MachineSummary]) -> String {
    let mut rows = vec![
        ["name", "id", "size", "image", "wanted", "reinstall", "last seen", "last event", "last reinstall"]
            .map(str::to_owned),
    ];
    let or_none = |text: Option<&str>| text.filter(|text| !text.is_empty()).unwrap_or("-").to_owned();
    rows.extend(all.iter().map(|machine| {
        let event = machine.last_event.as_ref().map(|event| match &event.stage {
            Some(stage) => format!("{} {stage}", event.event),
            None => event.event.to_string(),
        });
        [
            or_none(Some(&machine.name)),
            machine.id.clone(),
            or_none(machine.size.as_deref()),
            installed_image(machine),
            or_none(machine.wanted.as_deref()),
            or_none(Some(&describe_order(machine, all))),
            or_none(machine.last_seen.as_deref()),
            or_none(event.as_deref()),
            or_none(machine.outcome.as_ref().map(describe_outcome).as_deref()),
        ]
    }));
    format::format_columns(&rows)
}

fn describe_order(machine: &MachineSummary, all: &[MachineSummary]) -> String {
    if let Some(moving) = &machine.moving {
        return moving.describe(machine_name(all, &moving.other));
    }
    match (&machine.order, &machine.locked) {
        (Some(order), _) if order.given_up => format!("{} abandoned", order.image),
        (order, _) if machine.needs_confirmation => describe_unconfirmed(order.as_ref(), machine.on_disk.as_ref()),
        (Some(order), _) => {
            let begun = if order.begun { ", started" } else { "" };
            format!("{} attempt {} of {}{begun}", order.image, order.attempts, machine.attempts)
        }
        (None, Some(_)) => "locked".to_owned(),
        (None, None) if machine.not_clean => "not clean: boot it over PXE".to_owned(),
        (None, None) if machine.waits.is_some() => "waits with a marker".to_owned(),
        (None, None) if machine.allocation.is_some() && !machine.installed => "not installed".to_owned(),
        (None, None) => String::new(),
    }
}

/// Describes the record of a machine that needs confirmation, and the installation that its disks have instead.
fn describe_unconfirmed(order: Option<&ReinstallOrder>, on_disk: Option<&WaitingMarker>) -> String {
    let order = order.map(|order| format!("{} ", order.image)).unwrap_or_default();
    let on_disk =
        on_disk.map(|found| format!(", its disks have {}", format::replace_hidden(&found.image))).unwrap_or_default();
    format!("{order}needs confirmation{on_disk}")
}

/// Returns the name of the machine with that id, or the id if it is unnamed.
fn machine_name<'a>(all: &'a [MachineSummary], id: &'a str) -> &'a str {
    let named = all.iter().find(|machine| machine.id == id && !machine.name.is_empty());
    named.map_or(id, |machine| machine.name.as_str())
}

/// Returns one line of the report; the rest is in the server's output.
fn describe_outcome(outcome: &::server::operator::ReinstallOutcome) -> String {
    let how = if outcome.success { "done" } else { "FAILED" };
    let message: String = outcome.message.lines().next().unwrap_or_default().chars().take(60).collect();
    format!("{how} {}: {}", outcome.image, format::replace_hidden(&message))
}

/// Describes the next steps to the operator.
fn describe_next_steps(before: &MachineSummary, now: &MachineSummary, command: Option<&str>) -> String {
    let name = escape_line(if now.name.is_empty() { &now.id } else { &now.name });
    let Some(order) = &now.order else {
        return format!("The reinstall of {name} is cancelled. The machine is unchanged.\n");
    };
    let from = before.image.as_deref().map(|image| format!(" in place of {}", escape_line(image))).unwrap_or_default();
    let layout = now.layout.as_deref().unwrap_or("LAYOUT");
    let command = command.map_or_else(
        || format!("the output of `drophammer machine boot-digest {name} --at URL`; URL is the one at which machines reach the server"),
        str::to_owned,
    );
    format!(
        "{name} will be reinstalled with {}{from} at its next boot over PXE; order {}.\n\
         Start it in one of two ways:\n  \
         power-cycle it into PXE\n  \
         {command}\n    \
         on the machine, as root: the same, without waiting for the firmware\n\
         Show what it will do, disk by disk:\n  \
         drophammer plan --reinstall --layout FILE      on the machine; FILE contains the layout {layout:?}\n\
         Cancel it before it starts:\n  \
         drophammer machine reinstall {name} --cancel\n",
        escape_line(&order.image),
        escape_line(&order.id)
    )
}

/// Returns the installed image. An image that only an adopted install marker names is marked as a claim.
fn installed_image(machine: &MachineSummary) -> String {
    let claim = if machine.claimed { " (claimed)" } else { "" };
    format!("{}{claim}", machine.image.as_deref().unwrap_or("-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::server::operator::ReinstallOutcome as Ended;

    fn machine(id: &str, name: &str) -> MachineSummary {
        let (allocation, image) = (Some("a1".to_owned()), Some("debian-12".to_owned()));
        let (size, wanted, last_seen) = (Some("c1".to_owned()), image.clone(), Some("2026-01-01T00:00:00Z".to_owned()));
        let (id, name, layout) = (id.to_owned(), name.to_owned(), Some("default".to_owned()));
        MachineSummary {
            id,
            name,
            size,
            allocation,
            image,
            wanted,
            last_seen,
            layout,
            installed: true,
            attempts: 3,
            ..MachineSummary::default()
        }
    }

    fn order() -> ReinstallOrder {
        let text = |text: &str| text.to_owned();
        let (id, image, created) = (text("o1"), text("debian-13"), text("2026-01-01T00:00:00Z"));
        ReinstallOrder {
            id,
            image,
            created,
            attempts: 2,
            begun: true,
            without_marker: false,
            change_promise: false,
            give_up: vec![],
            replace_newer: false,
            fencing: None,
            confirmed: true,
            disks: vec![],
            attempt: None,
            given_up: false,
            handed: None,
        }
    }

    #[test]
    fn machines_are_found_by_id_and_by_a_name_that_is_theirs_alone() {
        let all = [machine("4c-1", "one"), machine("4c-2", "two"), machine("4c-3", "two"), machine("4c-4", "")];
        assert_eq!(find_machine(&all, "4C-1").unwrap().name, "one");
        assert_eq!(find_machine(&all, "one").unwrap().id, "4c-1");
        assert_eq!(find_machine(&all, "two").unwrap_err(), "2 machines are named \"two\": use the id, 4c-2 or 4c-3");
        for none in ["three", ""] {
            assert!(find_machine(&all, none).unwrap_err().contains("`drophammer machine list` lists"), "{none}");
        }
    }

    #[test]
    fn no_name_is_more_than_one_step() {
        assert_eq!(
            (encode_segment("debian-12.0"), encode_segment("a/b ü")),
            ("/debian-12.0".to_owned(), "/a%2Fb%20%C3%BC".to_owned())
        );
    }

    #[test]
    fn the_list() {
        let outcome = |success, message: &str| {
            let (order, image) = ("o0".to_owned(), "debian-13".to_owned());
            Some(Ended { order, image, success, message: message.to_owned(), time: String::new() })
        };
        let given_up = ReinstallOrder { given_up: true, ..order() };
        let all = [
            MachineSummary {
                order: Some(order()),
                outcome: outcome(false, "image.burn:\u{1b}[2Jno\nmore"),
                ..machine("1", "one")
            },
            MachineSummary { order: Some(given_up), ..machine("2", "two") },
            MachineSummary { locked: Some("why".to_owned()), outcome: outcome(true, "fine"), ..machine("3", "three") },
            MachineSummary { installed: false, image: None, ..machine("4", "four") },
            MachineSummary { id: "5".to_owned(), ..MachineSummary::default() },
            MachineSummary { installed: false, waits: Some(Default::default()), ..machine("6", "six") },
            MachineSummary { needs_confirmation: true, ..machine("7", "seven") },
            MachineSummary {
                needs_confirmation: true,
                on_disk: Some(WaitingMarker { image: "debian-14".to_owned(), ..WaitingMarker::default() }),
                order: Some(order()),
                ..machine("8", "eight")
            },
        ];
        let table = format_machines(&all);
        let rows: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect())
            .collect();
        assert_eq!(
            rows[1],
            [
                "one",
                "1",
                "c1",
                "debian-12",
                "debian-12",
                "debian-13 attempt 2 of 3, started",
                "2026-01-01T00:00:00Z",
                "-",
                "FAILED debian-13: image.burn: [2Jno"
            ]
        );
        assert_eq!(rows[2][5], "debian-13 abandoned");
        assert_eq!(rows[7][5], "needs confirmation");
        assert_eq!(rows[8][5], "debian-13 needs confirmation, its disks have debian-14");
        assert_eq!((rows[3][5], rows[3][8]), ("locked", "done debian-13: fine"));
        assert_eq!((rows[4][3], rows[4][5]), ("-", "not installed"));
        assert_eq!(rows[5], ["-", "5", "-", "-", "-", "-", "-", "-", "-"]);
        assert_eq!(rows[6][5], "waits with a marker");
    }

    #[test]
    fn what_happens_next_is_said() {
        let before = machine("4c-1", "one");
        let text = describe_next_steps(
            &before,
            &MachineSummary { order: Some(order()), ..before.clone() },
            Some("drophammer reinstall --server U"),
        );
        for words in [
            "one will be reinstalled with debian-13 in place of debian-12 at its next boot over PXE; order o1.",
            "drophammer reinstall --server U\n",
            "drophammer plan --reinstall --layout FILE",
            "contains the layout \"default\"",
            "drophammer machine reinstall one --cancel",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(
            describe_next_steps(&before, &before, None),
            "The reinstall of one is cancelled. The machine is unchanged.\n"
        );
    }
}
