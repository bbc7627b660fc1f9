//! `drophammer machine move`: orders, prints, approves, cancels or finishes the migration of a machine to the hardware
//! of another machine.

use super::machine_list::machine_name;
use super::subcommand_options::MoveOptions;
use super::{OperatorClient, OperatorResponse, find_machine, power, print_json, print_refusal};
use api::migration_requests::MigrationState;
use api::migration_requests::certificate_approval::{CertificateShown, CertificateTrust};
use api::migration_requests::operator_requests::{CertificateApproval, MigrationRequest, MigrationView};
use api::operator_api::MachineSummary;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format;
use common::output::print_text;
use reqwest::Method;
use reqwest::blocking::RequestBuilder;
use std::collections::BTreeMap;

pub(crate) fn run_move_command(
    server: &OperatorClient,
    all: &[MachineSummary],
    move_options: &MoveOptions,
    json: bool,
) -> Result<CommandOutcome> {
    let machine = match find_machine(all, &move_options.machine) {
        Ok(machine) => machine,
        Err(why) => return Ok(print_refusal(&why)),
    };
    let request = match build_request(server, all, machine, move_options) {
        Ok(request) => request,
        Err(why) => return Ok(print_refusal(&why)),
    };
    let shown = match server.send_json::<MigrationView>(request)? {
        OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
        OperatorResponse::Good(shown) => shown,
    };
    match json {
        true => drop(print_json(&shown)?),
        false => print_text(&describe_migration(all, &shown))?,
    }
    for id in [&shown.to, &shown.from].into_iter().filter(|_| move_options.now) {
        let Some(machine) = all.iter().find(|machine| machine.id == *id) else { continue };
        match power::power_cycle_now(server, machine, "move", json)? {
            CommandOutcome::Good => {}
            bad => return Ok(bad),
        }
    }
    Ok(CommandOutcome::Good)
}

/// Builds the request that the options specify: to order, cancel, finish, approve or print a migration.
fn build_request(
    server: &OperatorClient,
    all: &[MachineSummary],
    machine: &MachineSummary,
    move_options: &MoveOptions,
) -> Result<RequestBuilder, String> {
    let path = format!("/v1/machine/{}/move", machine.id);
    Ok(match (&move_options.to, move_options.cancel, move_options.finish) {
        (Some(to), ..) => {
            let order = MigrationRequest {
                to: find_machine(all, to)?.id.clone(),
                disks: parse_disks(&move_options.disks)?,
                allow_unapproved: move_options.allow_unapproved,
            };
            server.request(Method::POST, &path).json(&order)
        }
        (None, true, _) => match move_options.off.as_ref().map(|off| find_machine(all, off)).transpose()? {
            None => server.request(Method::DELETE, &path),
            Some(off) => server.request(Method::DELETE, &format!("{path}?off={}", off.id)),
        },
        (None, _, true) => server.request(Method::POST, &format!("{path}/finish")),
        (None, false, false) if !move_options.approve.is_empty() => {
            let approve = CertificateApproval { fingerprints: move_options.approve.clone() };
            server.request(Method::POST, &format!("{path}/approve")).json(&approve)
        }
        (None, false, false) => server.request(Method::GET, &path),
    })
}

/// Parses assignments of disks in the form `/dev/sda=S45NNE0M01`.
fn parse_disks(said: &[String]) -> Result<BTreeMap<String, String>, String> {
    let mut all = BTreeMap::new();
    for one in said {
        let both = one.split_once('=').filter(|(name, disk)| !name.is_empty() && !disk.is_empty());
        let (name, disk) =
            both.ok_or_else(|| format!("--disk {one:?} is not NAME=DISK, such as /dev/sda=S45NNE0M01"))?;
        if all.insert(name.to_owned(), disk.to_owned()).is_some() {
            return Err(format!("--disk is specified twice for {name}"));
        }
    }
    Ok(all)
}

/// Describes the state of a migration and the next steps of the operator.
fn describe_migration(all: &[MachineSummary], shown: &MigrationView) -> String {
    let [a, b] = [&shown.from, &shown.to].map(|id| format::terminal_escaping::escape_line(machine_name(all, id)));
    let stands = |stands: bool| if stands { "is ready in its ramdisk" } else { "does not wait in its ramdisk yet" };
    let mut text = format!("Migration of {a} to {b}: {state}; order {order}.\n", state = shown.state, order = shown.id);
    for disk in &shown.disks {
        let serial = if disk.serial.is_empty() {
            String::new()
        } else {
            format!(", serial {}", format::replace_hidden(&disk.serial))
        };
        text += &format!("  {} is {} of {b}{serial}\n", disk.device, format::format_bytes(disk.size_bytes));
    }
    if shown.state.is_open() && shown.state != MigrationState::Booting {
        text += &format!("{a} {}, {b} {}.\n", stands(shown.from_stands), stands(shown.to_stands));
    }
    text += &describe_certificates((&a, &shown.from_certificate), (&b, &shown.to_certificate));
    for (machine, says) in [(&a, &shown.from_says), (&b, &shown.to_says)] {
        if !says.is_empty() {
            text += &format!("{machine} reported: {}\n", format::replace_hidden(says));
        }
    }
    text += &match shown.state {
        MigrationState::Ordered | MigrationState::Planned | MigrationState::Copying => format!(
            "Both machines boot the ramdisk at their next boot over PXE. To cancel:\n  drophammer machine move {a} --cancel\n"
        ),
        MigrationState::Booting => format!(
            "{b} has received all data and boots the migrated system. {a} waits, and is free once {b} phones home, or after:\n  drophammer machine move {a} --finish\n\
             If {b} does not work, switch it off and run:\n  drophammer machine move {a} --cancel --off {b}\n"
        ),
        MigrationState::Done => format!("{b} has the allocation. {a} is free, and the disks of {a} are unchanged.\n"),
        MigrationState::Cancelled => format!("{a} keeps the allocation and boots from its disks. {b} is free.\n"),
        MigrationState::Refused => format!("Nothing was written. {a} keeps the allocation and boots from its disks.\n"),
    };
    text
}

/// Describes the certificates, and the command that approves those that are not approved yet.
fn describe_certificates(a: (&str, &Option<CertificateShown>), b: (&str, &Option<CertificateShown>)) -> String {
    let (mut text, mut unapproved) = (String::new(), String::new());
    for (machine, certificate) in [a, b] {
        let Some(CertificateShown { fingerprint, trust }) = certificate else { continue };
        let fingerprint = format::replace_hidden(fingerprint);
        text += &format!("Certificate of {machine}: {fingerprint}, {trust}.\n", trust = trust.describe());
        if *trust == CertificateTrust::Unapproved {
            unapproved += &format!(" --approve {fingerprint}");
        }
    }
    if !unapproved.is_empty() {
        text += &format!(
            "Nothing is copied until both certificates are approved. Compare each fingerprint with the console of its machine, then run:\n  drophammer machine move {source}{unapproved}\n",
            source = a.0
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::install_marker::RecordedDisk;

    fn migration_in_state(state: MigrationState) -> MigrationView {
        let text = |text: &str| text.to_owned();
        let disk = RecordedDisk {
            device: text("/dev/sda"),
            serial: text("N\u{1b}1"),
            size_bytes: 1_000_000_000,
            ..RecordedDisk::default()
        };
        MigrationView {
            id: text("o1"),
            from: text("4c-1"),
            to: text("4c-2"),
            allocation: text("a1"),
            state,
            created: text("2026-01-01T00:00:00Z"),
            disks: vec![disk],
            from_stands: true,
            to_stands: false,
            failures: 0,
            from_says: String::new(),
            to_says: text("storage.partition: no"),
            from_certificate: None,
            to_certificate: None,
        }
    }

    #[test]
    fn migration_state_is_printed_with_possible_commands() {
        let one = MachineSummary { id: "4c-1".to_owned(), name: "one".to_owned(), ..MachineSummary::default() };
        for (state, words) in [
            (MigrationState::Ordered, "one is ready in its ramdisk, 4c-2 does not wait in its ramdisk yet."),
            (MigrationState::Copying, "drophammer machine move one --cancel\n"),
            (MigrationState::Booting, "drophammer machine move one --cancel --off 4c-2\n"),
            (MigrationState::Done, "one is free, and the disks of one are unchanged."),
            (MigrationState::Cancelled, "one keeps the allocation and boots from its disks. 4c-2 is free."),
            (MigrationState::Refused, "Nothing was written."),
        ] {
            let text = describe_migration(std::slice::from_ref(&one), &migration_in_state(state));
            assert!(text.starts_with(&format!("Migration of one to 4c-2: {state}; order o1.\n")), "{text}");
            assert!(text.contains(words) && text.contains("4c-2 reported: storage.partition: no\n"), "{text}");
            assert!(text.contains("  /dev/sda is 1.00 GB of 4c-2, serial N") && !text.contains('\u{1b}'), "{text:?}");
        }
    }

    #[test]
    fn unapproved_certificates_are_printed_with_the_approve_command() {
        let one = MachineSummary { id: "4c-1".to_owned(), name: "one".to_owned(), ..MachineSummary::default() };
        let with = |from, to| {
            let of = |fingerprint: &str, trust| Some(CertificateShown { fingerprint: fingerprint.to_owned(), trust });
            let shown = MigrationView {
                from_certificate: of("sha256:aa", from),
                to_certificate: of("sha256:b\u{1b}b", to),
                ..migration_in_state(MigrationState::Planned)
            };
            describe_migration(std::slice::from_ref(&one), &shown)
        };
        let text = with(CertificateTrust::Operator, CertificateTrust::Unapproved);
        assert!(text.contains("Certificate of one: sha256:aa, approved.\n"), "{text}");
        assert!(text.contains("  drophammer machine move one --approve sha256:b b\n"), "{text}");
        let text = with(CertificateTrust::Unapproved, CertificateTrust::Unapproved);
        assert!(text.contains(" one --approve sha256:aa --approve sha256:b b\n"), "{text}");
        for trust in [CertificateTrust::Operator, CertificateTrust::Secret, CertificateTrust::Order] {
            let text = with(trust, trust);
            assert!(!text.contains("--approve sha256") && text.contains(trust.describe()), "{text}");
        }
    }

    #[test]
    fn disk_mapping_requires_each_name_once() {
        let said = |all: &[&str]| parse_disks(&all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>());
        assert_eq!(said(&["/dev/sda=S1", "os=nvme0n1"]).unwrap().len(), 2);
        for (bad, words) in [
            (&["/dev/sda"][..], "is not NAME=DISK"),
            (&["=S1"], "is not NAME=DISK"),
            (&["a="], "is not NAME=DISK"),
            (&["a=1", "a=2"], "twice"),
        ] {
            assert!(said(bad).unwrap_err().contains(words), "{bad:?}");
        }
    }
}
