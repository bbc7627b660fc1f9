//! `drophammer machine add`: creates the file of a machine that has registered.

use super::{OperatorClient, OperatorResponse, print_json, print_refusal};
use ::api::machine_file_creation::{CreatedMachineFile, MachineFileRequest};
use ::api::operator_api::MachineSummary;
use clap::Args;
use common::command_outcome::CommandOutcome;
use common::error::{Context, Phase, Result};
use common::output::print_text;
use model::allocation::find_public_key_error;
use reqwest::Method;

#[derive(Debug, Args)]
pub struct AddOptions {
    /// Id of the machine; may be omitted if exactly one new machine waits.
    #[arg(value_name = "ID")]
    pub machine: Option<String>,
    /// Name of the machine, for machines/NAME.yaml in the server's directory.
    #[arg(long)]
    pub name: String,
    /// Size of the machine [default: the size in sizes/ whose constraints match the machine].
    #[arg(long)]
    pub size: Option<String>,
    /// Image to install. The disks of the layout are erased as soon as the machine runs the ramdisk; a machine that
    /// already waits there is installed at once.
    #[arg(long, value_name = "ID")]
    pub image: Option<String>,
    /// Layout [default: the layout for the machine's size and the image].
    #[arg(long, value_name = "ID", requires = "image")]
    pub layout: Option<String>,
    /// SSH public key for the installed system, or a file with public keys; can be specified several times.
    #[arg(long = "ssh-key", value_name = "KEY|FILE", requires = "image")]
    pub ssh_keys: Vec<String>,
}

pub(super) fn add_machine(
    server: &OperatorClient,
    all: &[MachineSummary],
    add_options: &AddOptions,
    json: bool,
) -> Result<CommandOutcome> {
    let id = match find_new_machine(all, add_options.machine.as_deref()) {
        Ok(id) => id,
        Err(why) => return Ok(print_refusal(&why)),
    };
    let request = server.request(Method::POST, &format!("/v1/machine/{id}/file"));
    let ssh_pub_keys = match read_keys(&add_options.ssh_keys)? {
        Ok(keys) => keys,
        Err(why) => return Ok(print_refusal(&format!("machine add: {why}"))),
    };
    let body = MachineFileRequest {
        name: add_options.name.clone(),
        size: add_options.size.clone(),
        image: add_options.image.clone(),
        allocation: None,
        layout: add_options.layout.clone(),
        ssh_pub_keys,
    };
    match server.send_json::<CreatedMachineFile>(request.json(&body))? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why.replace(LAYOUT_REMEDY, LAYOUT_OPTIONS))),
        OperatorResponse::Good(added) if json => print_json(&added),
        OperatorResponse::Good(added) => {
            print_text(&describe_added(&added))?;
            Ok(CommandOutcome::Good)
        }
    }
}

/// Remedy in the server's message about a machine file without a layout. The remedy is replaced by `LAYOUT_OPTIONS`,
/// which names the options of this command.
const LAYOUT_REMEDY: &str = "specify a filesystemlayout or a size";
const LAYOUT_OPTIONS: &str = "specify --layout ID or --size SIZE";
/// Maximum number of new machines that are listed in an error message.
const MAXIMUM_LISTED_MACHINES: usize = 10;

/// Returns the id of the machine to add: the given id, or the id of the only machine without a file.
///
/// # Errors
/// Returns an error if no id is given, and the number of machines without a file is not one.
fn find_new_machine(all: &[MachineSummary], given: Option<&str>) -> Result<String, String> {
    if let Some(id) = given {
        return Ok(id.to_lowercase());
    }
    let new: Vec<&MachineSummary> = all.iter().filter(|machine| machine.new).collect();
    match &new[..] {
        [machine] => Ok(machine.id.clone()),
        [] => Err("machine add: no machine without a machine file is waiting; boot a new machine over PXE first, or specify the id of a machine".to_owned()),
        several => {
            let lines = several.iter().take(MAXIMUM_LISTED_MACHINES).map(|machine| {
                let address = machine.address.as_deref().unwrap_or("unknown address");
                format!("\n  {}  {address}", machine.id)
            });
            let lines: String = lines.collect();
            let more = several.len().saturating_sub(MAXIMUM_LISTED_MACHINES);
            let more = if more > 0 {
                format!("\n  and {more} more: `drophammer machine list --filter phase=new`")
            } else {
                String::new()
            };
            Err(format!(
                "machine add: {count} new machines wait:{lines}{more}\nSpecify the id of one of them; `drophammer machine show ID` shows its hardware",
                count = several.len()
            ))
        }
    }
}

/// Returns the public keys. Each argument is a key, or the path of a file with one key per line. The inner error is the
/// reason why a line is not a public key. All lines are checked before any of them is sent, because a line may be part
/// of a private key.
pub(super) fn read_keys(given: &[String]) -> Result<Result<Vec<String>, String>> {
    let mut keys = Vec::new();
    for one in given {
        // A key consists of type, data and comment, separated by blanks. The path of a file rarely contains a blank,
        // and hardly ever one that is followed by such data.
        let text = match one.split_whitespace().nth(1).is_some_and(|data| data.starts_with("AAAA")) {
            true => one.clone(),
            false => {
                std::fs::read_to_string(one).context(Phase::Settings, || format!("cannot read the SSH key {one}"))?
            }
        };
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        keys.extend(lines.map(str::to_owned));
        if let Some(why) = keys.iter().find_map(|key| find_public_key_error(key)) {
            return Ok(Err(format!("--ssh-key {one}: {why}")));
        }
    }
    Ok(Ok(keys))
}

fn describe_added(added: &CreatedMachineFile) -> String {
    let CreatedMachineFile { file, name, size, macs, omitted, image, .. } = added;
    let size = size.as_ref().map(|size| format!(", size {size}")).unwrap_or_default();
    let omitted: String =
        omitted.iter().map(|omitted| format!("MAC {} {}: omitted.\n", omitted.mac, omitted.reason)).collect();
    let macs = if macs.is_empty() { "none".to_owned() } else { macs.join(" ") };
    let next = match image {
        // Without a size, no layout applies to the machine.
        None => format!(
            "To install the machine:\n  drophammer machine allocate {name} --image IMAGE{layout} --ssh-key FILE\n",
            layout = if size.is_empty() { " --layout LAYOUT" } else { "" }
        ),
        Some(image) => format!(
            "{name} will be installed with {image}: at once if it waits in the ramdisk, and otherwise at its next boot over PXE.\n\
             Watch the installation:\n  drophammer machine show {name}\n  drophammer machine logs -f {name}\n"
        ),
    };
    format!("{file} in the server's directory describes {name} now: MACs {macs}{size}.\n{omitted}{next}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f";

    fn machine(id: &str, new: bool) -> MachineSummary {
        MachineSummary { id: id.to_owned(), new, ..MachineSummary::default() }
    }

    #[test]
    fn the_id_is_needed_only_if_several_machines_are_new() {
        let all = [machine("4c-1", false), machine("4c-2", true)];
        assert_eq!(find_new_machine(&all, None).unwrap(), "4c-2");
        assert_eq!(find_new_machine(&all, Some("4C-3")).unwrap(), "4c-3");
        let why = find_new_machine(&all[..1], None).unwrap_err();
        assert!(
            why.contains("no machine without a machine file is waiting; boot a new machine over PXE first"),
            "{why}"
        );
        let why = find_new_machine(&[machine("4c-1", true), machine("4c-2", true)], None).unwrap_err();
        assert!(why.starts_with("machine add: 2 new machines wait:\n  4c-1  unknown address\n  4c-2  "), "{why}");
        assert!(
            why.ends_with("\nSpecify the id of one of them; `drophammer machine show ID` shows its hardware"),
            "{why}"
        );
        let many: Vec<MachineSummary> = (0..25).map(|number| machine(&format!("4c-{number}"), true)).collect();
        let why = find_new_machine(&many, None).unwrap_err();
        assert!(why.contains("25 new machines wait") && why.contains("\n  4c-9  ") && !why.contains("4c-10"), "{why}");
        assert!(why.contains("\n  and 15 more: `drophammer machine list --filter phase=new`\n"), "{why}");
    }

    #[test]
    fn ssh_keys_are_read_from_arguments_and_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("id.pub");
        std::fs::write(&file, format!("# mine\n{KEY} a@b\n\n{KEY} c\n")).unwrap();
        let given = [format!("{KEY} d"), file.display().to_string()];
        let keys = read_keys(&given).unwrap().unwrap();
        assert_eq!(keys, ["d", "a@b", "c"].map(|comment| format!("{KEY} {comment}")));
        let error = read_keys(&["/no/such/key.pub".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("read the SSH key /no/such/key.pub"), "{error}");
    }

    /// All lines of a file are checked before any of them is sent.
    #[test]
    fn key_file_with_invalid_line_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("id");
        for (text, words) in [
            (format!("{KEY} a\n-----BEGIN OPENSSH PRIVATE KEY-----\n"), "the text is a private key"),
            (format!("{KEY} a\nb3BlbnNzaC1rZXk\n"), "a public key begins with its type"),
        ] {
            std::fs::write(&file, text).unwrap();
            let why = read_keys(&[file.display().to_string()]).unwrap().unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn next_step_after_adding_depends_on_the_image() {
        let (name, file) = ("web-1".to_owned(), "machines/web-1.yaml".to_owned());
        let added = CreatedMachineFile { name, file, ..CreatedMachineFile::default() };
        assert!(
            describe_added(&added)
                .ends_with("\n  drophammer machine allocate web-1 --image IMAGE --layout LAYOUT --ssh-key FILE\n")
        );
        let sized = CreatedMachineFile { size: Some("c1-large".to_owned()), ..added.clone() };
        assert!(
            describe_added(&sized).ends_with("\n  drophammer machine allocate web-1 --image IMAGE --ssh-key FILE\n")
        );
        let text = describe_added(&CreatedMachineFile { image: Some("debian-13".to_owned()), ..added });
        assert!(
            text.contains("web-1 will be installed with debian-13: at once") && text.contains("logs -f web-1"),
            "{text}"
        );
    }
}
