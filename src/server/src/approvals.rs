//! Plans that the operator has approved: `approved/ID.yaml`, written by `drophammer rack plan --approve`, one for each machine.
//!
//! An approval applies to one installation, including all attempts that continue it. Once its success is reported, the machine has a new
//! install marker, and the approval is spent. Removing the file withdraws the approval. A file that cannot be used does not withdraw it:
//! the machine gets nothing to install until the operator has repaired or removed the file.

use super::api_error::ApiError;
use super::site::SiteSnapshot;
use super::site_folder::{YamlFolder, format_problem};
use super::state::InstallState;
use super::{AppState, requested_steps};
use model::allocation::ApprovedPlan;
use plan::{ApprovalSummary, approval};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub const FOLDER: &str = "approved";

/// Upper limit of a file. The approval of a machine with a thousand disks is smaller.
const MAX_BYTES: usize = 4 << 20;

const HEAD: &str = "# Written by `drophammer rack plan --approve`. Only this plan is carried out on the machine; remove the file to withdraw the approval.\n";

/// Content of an approval file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ApprovalFile {
    /// Time of the approval, RFC 3339 in UTC.
    approved: String,
    /// Last completed installation at that time; see [`last_installation`].
    installed: String,
    sha256: String,
    verdicts: Value,
}

/// Valid approval file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    file: ApprovalFile,
    pub verdicts: ApprovalSummary,
}

impl Approval {
    /// Returns whether the approved installation has completed. `standing` is that of its allocation.
    fn is_spent(&self, standing: &InstallState) -> bool {
        self.file.installed != last_installation(standing)
    }

    /// Returns the approval as it is sent to the agent.
    fn to_wire(&self) -> ApprovedPlan {
        let ApprovalFile { sha256, verdicts, .. } = self.file.clone();
        ApprovedPlan { sha256, verdicts }
    }
}

/// Returns an identifier of the last completed installation of an allocation; empty before the first one.
pub fn last_installation(standing: &InstallState) -> String {
    match (&standing.marker, standing.succeeded) {
        (_, false) => String::new(),
        (Some(marker), true) => format!("{} {}", marker.time, marker.order.as_deref().unwrap_or("first")),
        (None, true) => "without a marker".to_owned(),
    }
}

/// Returns the text of an approval file.
///
/// # Errors
/// The text would be too long to be read.
pub fn render_approval(verdicts: &ApprovalSummary, installed: String, time: String) -> Result<String, String> {
    let value = serde_json::to_value(verdicts).map_err(|error| error.to_string())?;
    let file = ApprovalFile { approved: time, installed, sha256: verdicts.digest(), verdicts: value };
    let json = serde_json::to_string_pretty(&file).map_err(|error| error.to_string())?;
    let text = format!("{HEAD}{json}\n");
    match text.len() <= MAX_BYTES {
        true => Ok(text),
        false => Err(format!("the approval would have {} bytes; the limit is {MAX_BYTES}", text.len())),
    }
}

/// Parses and validates an approval file.
///
/// # Errors
/// Describes why the file cannot be used.
pub fn parse_approval(text: &str) -> Result<Approval, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("the file has {} bytes; the limit is {MAX_BYTES}", text.len()));
    }
    // Parsed as JSON, as which it was written below its first line: YAML would break lines at U+2028, where JSON does not.
    let json: String = text.split_inclusive('\n').skip_while(|line| line.starts_with('#')).collect();
    let file: ApprovalFile =
        serde_json::from_str(&json).map_err(|error| format!("this is not an approval: {error}"))?;
    let verdicts = approval::parse_approval(&file.verdicts, &file.sha256)?;
    Ok(Approval { file, verdicts })
}

/// Approvals of all machines.
#[derive(Debug, Clone, Default)]
pub struct Approvals {
    /// Approvals by machine id.
    all: BTreeMap<String, Result<Arc<Approval>, String>>,
    /// Reason why the folder cannot be read. Any machine may then have an approval.
    unread: Option<String>,
    /// True if machines without an approval get nothing to install (`--approved-only`).
    pub only: bool,
}

impl Approvals {
    /// Collects the approvals of the folder, and reports those that cannot be used.
    pub fn new(folder: &YamlFolder<Approval>, only: bool, problems: &mut Vec<String>) -> Approvals {
        let before = problems.len();
        folder.report_unread(problems);
        let unread = problems.get(before).cloned();
        let mut all = BTreeMap::new();
        for (path, entry) in &folder.entries {
            let id = path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
            let read = entry
                .newest
                .as_ref()
                .map_err(ToString::to_string)
                .and_then(|read| check_machine_id(read, &id).map(|()| read));
            let read = read.map_err(|why| format_problem(path, &why, false));
            problems.extend(read.as_ref().err().cloned());
            all.insert(id, read.map(|read| Arc::new(read.clone())));
        }
        Approvals { all, unread, only }
    }

    /// Returns the allocation to which the machine's approval applies, if it is not this one.
    pub fn other_allocation(&self, machine: &str, allocation: &str) -> Option<String> {
        let approved = &self.all.get(machine)?.as_ref().ok()?.verdicts.allocation;
        (approved != allocation).then(|| approved.clone())
    }

    /// Returns the machine's approval unless it is spent. `standing` is that of the allocation to which the approval applies.
    pub fn find_in_force(&self, machine: &str, standing: &InstallState) -> Option<Result<Arc<Approval>, String>> {
        let approval = self.all.get(machine).cloned().or_else(|| self.unread.clone().map(Err))?;
        let is_spent = approval.as_ref().is_ok_and(|approval| approval.is_spent(standing));
        (!is_spent).then_some(approval)
    }

    /// Returns the approval that is in force for the machine, as it is sent to the agent.
    ///
    /// # Errors
    /// The machine gets nothing to install: its approval cannot be used, or is required and missing.
    pub fn approval_for_agent(&self, machine: &str, standing: &InstallState) -> Result<Option<ApprovedPlan>, String> {
        match &standing.approved {
            Some(Ok(approval)) => Ok(Some(approval.to_wire())),
            Some(Err(why)) => Err(format!(
                "its approval cannot be used, and nothing is installed without it: {why}; approve its plan again: \
                 `drophammer rack plan DIR --machine {machine} --approve`"
            )),
            None if self.only => Err(format!(
                "its plan is not approved, and --approved-only requires that: approve it with `drophammer rack plan DIR --machine {machine} --approve`"
            )),
            None => Ok(None),
        }
    }
}

fn check_machine_id(approval: &Approval, id: &str) -> Result<(), String> {
    let machine = &approval.verdicts.machine;
    match machine == id {
        true => Ok(()),
        false => Err(format!("the plan is for machine {machine}, but the file is named after {id}")),
    }
}

/// Returns the path of a machine's approval.
pub fn approval_path(dir: &Path, machine: &str) -> std::path::PathBuf {
    dir.join(FOLDER).join(format!("{machine}.yaml"))
}

/// Checks that the agent has compared its plan with the approval in force. Agents of earlier versions compare nothing.
///
/// # Errors
/// The database cannot be read. The inner error is the reason why the agent must not pass the point of no return.
pub async fn check_compared(
    app: &AppState,
    directory: &SiteSnapshot,
    id: &str,
    allocation: &str,
    said: Option<&str>,
) -> Result<Result<(), String>, ApiError> {
    let standing = app.state.read_install_state(id, allocation).await?;
    let standing = requested_steps::add_approval(app, id, allocation, standing, &directory.known).await?;
    Ok(match (directory.known.approvals.approval_for_agent(id, &standing), said) {
        (Err(why), _) => Err(why),
        (Ok(None), _) => Ok(()),
        (Ok(Some(approved)), Some(said)) if approved.sha256 == said => Ok(()),
        (Ok(Some(approved)), Some(said)) => {
            Err(format!("the plan was compared with approval {said}, but approval {} is now in force", approved.sha256))
        }
        (Ok(Some(approved)), None) => Err(format!(
            "approval {} is in force, and the agent has not compared its plan with it: it was written after the plan was made, or the ramdisk is of an earlier version",
            approved.sha256
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::install_marker::InstallMarker;
    use plan::InstallMode;
    use plan::approval_summary::{ApprovedDisk, VERSION};
    use proptest::prelude::*;

    fn verdicts(serial: &str) -> ApprovalSummary {
        let disk = ApprovedDisk {
            contents: Some(vec!["table gpt".to_owned()]),
            partitions: vec!["1 root rest".to_owned()],
            serial: serial.to_owned(),
            size_bytes: 1,
            verdict: plan::DiskVerdict::Wipe,
            ..ApprovedDisk::default()
        };
        let text = |text: &str| text.to_owned();
        ApprovalSummary {
            allocation: text("a1"),
            disks: vec![disk],
            image: text("i"),
            layout: text("l"),
            layout_digest: text("sha256:1"),
            machine: text("m"),
            mode: InstallMode::Install,
            things: Vec::new(),
            torn: Vec::new(),
            version: VERSION,
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_whatever_a_disk_calls_itself(serial in any::<String>(), installed in any::<String>()) {
            let wanted = verdicts(&serial);
            let text = render_approval(&wanted, installed.clone(), "2026-01-01T00:00:00Z".to_owned()).unwrap();
            let read = parse_approval(&text).unwrap();
            prop_assert_eq!(&read.verdicts, &wanted);
            prop_assert_eq!(read.file.installed, installed);
        }
    }

    #[test]
    fn it_is_for_one_installation() {
        let with = |installed: String| {
            parse_approval(&render_approval(&verdicts("S"), installed, String::new()).unwrap()).unwrap()
        };
        let marker = |time: &str, order: Option<&str>| {
            let order = order.map(str::to_owned);
            Some(InstallMarker { time: time.to_owned(), order, ..InstallMarker::default() })
        };
        let standings = [
            InstallState::default(),
            InstallState { succeeded: true, ..InstallState::default() },
            InstallState { succeeded: true, marker: marker("1", None), ..InstallState::default() },
            InstallState { succeeded: true, marker: marker("2", Some("o1")), ..InstallState::default() },
            InstallState { succeeded: true, marker: marker("2", Some("o2")), ..InstallState::default() },
        ];
        for (one, then) in standings.iter().enumerate() {
            let approval = with(last_installation(then));
            for (other, now) in standings.iter().enumerate() {
                assert_eq!(approval.is_spent(now), one != other, "{one} {other}");
            }
        }
        // What the machine still waits with, or has begun, ends nothing.
        let waits = InstallState { waits: marker("9", None), adopted: true, ..InstallState::default() };
        assert!(!with(last_installation(&standings[0])).is_spent(&waits));
    }

    #[test]
    fn what_is_too_long_or_no_approval_is_refused() {
        let long = verdicts(&"S".repeat(MAX_BYTES));
        assert!(render_approval(&long, String::new(), String::new()).unwrap_err().contains("the limit is"));
        let comment = "#".repeat(MAX_BYTES + 1);
        for (text, words) in [
            ("", "this is not an approval"),
            ("# only a comment", "this is not an approval"),
            ("{\"sha256\": \"\"}", "missing field"),
            (comment.as_str(), "the limit is"),
        ] {
            assert!(parse_approval(text).unwrap_err().contains(words), "{words}");
        }
    }
}
