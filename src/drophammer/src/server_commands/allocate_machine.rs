//! `drophammer machine allocate`: adds an allocation to the files of free machines, which are then installed.

use super::add_machine::read_keys;
use super::machine_list::name_or_id;
use super::per_machine_requests::send_for_each;
use super::{OperatorClient, find_machine, print_json, print_refusal};
use ::api::operator_api::MachineSummary;
use clap::Args;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format::terminal_escaping::escape_line;
use reqwest::Method;
use serde_json::{Value, json};

#[derive(Debug, Args)]
pub struct AllocateOptions {
    /// Ids or names of free machines.
    #[arg(value_name = "ID", required = true)]
    pub machines: Vec<String>,
    /// Image to install. The disks of the layout are erased as soon as a machine runs the ramdisk; a machine that
    /// already waits there is installed at once.
    #[arg(long, value_name = "ID")]
    pub image: String,
    /// Layout [default: the layout for the machine's size and the image].
    #[arg(long, value_name = "ID")]
    pub layout: Option<String>,
    /// SSH public key for the installed system, or a file with public keys; can be specified several times.
    #[arg(long = "ssh-key", value_name = "KEY|FILE")]
    pub ssh_keys: Vec<String>,
}

/// Allocates the machines. The hostname of each machine is its name.
pub(super) fn allocate_machines(
    server: &OperatorClient,
    all: &[MachineSummary],
    allocate_options: &AllocateOptions,
    json: bool,
) -> Result<CommandOutcome> {
    if let Some(why) = allocate_options.machines.iter().find_map(|name| explain_obstacle(all, name)) {
        return Ok(print_refusal(&why));
    }
    let keys = match read_keys(&allocate_options.ssh_keys)? {
        Ok(keys) => keys,
        Err(why) => return Ok(print_refusal(&format!("machine allocate: {why}"))),
    };
    let build = |machine: &MachineSummary| {
        server.request(Method::POST, "/v1/machine/allocate").json(&allocation_request(machine, allocate_options, &keys))
    };
    let describe = |machine: &MachineSummary, _: &Value| describe_allocated(machine, &allocate_options.image);
    let describe = (!json).then_some(&describe as &dyn Fn(&_, &_) -> _);
    let (allocated, outcome) = send_for_each::<Value>(server, all, &allocate_options.machines, &build, describe)?;
    if json && !allocated.is_empty() {
        print_json(&allocated)?;
    }
    Ok(outcome)
}

/// Returns the reason why a machine cannot be allocated: it has no machine file, or it is already allocated.
fn explain_obstacle(all: &[MachineSummary], name: &str) -> Option<String> {
    let machine = find_machine(all, name).ok()?;
    let name = name_or_id(machine);
    match (machine.new, machine.allocation.is_some()) {
        (true, _) => Some(format!(
            "machine {name} cannot be allocated: it has no machine file; `drophammer machine add {name} --name NAME --image IMAGE` \
             creates the file with an allocation"
        )),
        (false, true) => Some(format!(
            "machine {name} is already allocated; `drophammer machine reinstall {name} --image IMAGE` installs another image, and \
             `drophammer machine free {name}` removes the allocation"
        )),
        (false, false) => None,
    }
}

fn allocation_request(machine: &MachineSummary, allocate_options: &AllocateOptions, keys: &[String]) -> Value {
    // A machine without a name gets the hostname that the server assigns by default.
    let hostname = Some(&machine.name).filter(|name| !name.is_empty());
    json!({"uuid": machine.id, "imageid": allocate_options.image, "filesystemlayoutid": allocate_options.layout, "hostname": hostname,
        "ssh_pub_keys": keys})
}

fn describe_allocated(machine: &MachineSummary, image: &str) -> String {
    let (name, image) = (escape_line(name_or_id(machine)), escape_line(image));
    format!(
        "{name} will be installed with {image}: at once if it waits in the ramdisk, and otherwise at its next boot over PXE.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str) -> MachineSummary {
        MachineSummary { id: "4c-1".to_owned(), name: name.to_owned(), ..MachineSummary::default() }
    }

    #[test]
    fn the_hostname_is_the_name_of_the_machine() {
        let allocate_options = AllocateOptions {
            machines: vec!["web-1".to_owned()],
            image: "debian-13".to_owned(),
            layout: Some("one-disk".to_owned()),
            ssh_keys: vec![],
        };
        let request = allocation_request(&machine("web-1"), &allocate_options, &["ssh-ed25519 AAAA".to_owned()]);
        assert_eq!(
            request,
            json!({"uuid": "4c-1", "imageid": "debian-13", "filesystemlayoutid": "one-disk", "hostname": "web-1",
                "ssh_pub_keys": ["ssh-ed25519 AAAA"]})
        );
        assert!(allocation_request(&machine(""), &allocate_options, &[])["hostname"].is_null());
        let text = describe_allocated(&machine("web-1"), "debian\u{1b}-13");
        assert!(text.starts_with("web-1 will be installed with debian") && !text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn only_free_machines_are_allocated() {
        let new = MachineSummary { new: true, ..machine("") };
        let free = MachineSummary { id: "4c-2".to_owned(), ..machine("web-2") };
        let allocated = MachineSummary { id: "4c-3".to_owned(), allocation: Some("a1".to_owned()), ..machine("web-3") };
        let all = [new, free, allocated];
        let why = explain_obstacle(&all, "4c-1").unwrap();
        assert!(why.contains("`drophammer machine add 4c-1 --name NAME --image IMAGE`"), "{why}");
        let why = explain_obstacle(&all, "4c-3").unwrap();
        assert!(why.starts_with("machine web-3 is already allocated; `drophammer machine reinstall web-3 "), "{why}");
        assert_eq!(explain_obstacle(&all, "web-2"), None);
        assert_eq!(explain_obstacle(&all, "web-4"), None);
    }
}
