//! File with the operator's approval of the plan of one machine.

use common::type_errors::locate_json_error;
use model::allocation::ApprovedPlan;
use plan::{ApprovalSummary, approval_comparison};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Maximum size of an approval file, in bytes. The plan of a machine with a thousand disks fits into a file of this
/// size.
const MAX_BYTES: usize = 4 << 20;

const HEAD: &str = "# Written by `drophammer site plan --approve` or `machine reinstall --plan`. Only this plan is carried out on the machine; remove the file to withdraw the approval.\n";

/// Content of an approval file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ApprovalFile {
    /// Time of the approval, RFC 3339 in UTC.
    approved: String,
    /// Identifier of the allocation's last completed installation at the time of the approval; empty before the first
    /// installation.
    installed: String,
    sha256: String,
    verdicts: Value,
    /// Digests of the inputs of the plan; empty if the approval covers only the verdicts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    inputs: BTreeMap<String, String>,
}

/// Valid approval file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    file: ApprovalFile,
    pub verdicts: ApprovalSummary,
}

impl Approval {
    /// Returns whether the approved installation has completed. `installed` is the current identifier of the
    /// allocation's last completed installation.
    pub fn is_spent(&self, installed: &str) -> bool {
        self.file.installed != installed
    }

    /// Returns the digest of the approved plan.
    pub fn digest(&self) -> &str {
        &self.file.sha256
    }

    /// Returns the approval in the form that the agent receives.
    pub fn to_wire(&self) -> ApprovedPlan {
        let ApprovalFile { sha256, verdicts, .. } = self.file.clone();
        ApprovedPlan { sha256, verdicts, ..ApprovedPlan::default() }
    }

    /// Returns the digests of the approved inputs. Empty if the approval covers only the verdicts.
    pub fn inputs(&self) -> &BTreeMap<String, String> {
        &self.file.inputs
    }
}

/// Formats the approval as the text of an approval file.
///
/// # Errors
/// Returns an error if the text would be longer than [`parse_approval`] accepts.
pub fn render_approval(
    verdicts: &ApprovalSummary,
    inputs: BTreeMap<String, String>,
    installed: String,
    time: String,
) -> Result<String, String> {
    let value = serde_json::to_value(verdicts).map_err(|error| error.to_string())?;
    let file = ApprovalFile { approved: time, installed, sha256: verdicts.digest(), verdicts: value, inputs };
    let json = serde_json::to_string_pretty(&file).map_err(|error| error.to_string())?;
    let text = format!("{HEAD}{json}\n");
    match text.len() <= MAX_BYTES {
        true => Ok(text),
        false => Err(format!(
            "the approval file would be {bytes} bytes long; the limit is {MAX_BYTES} bytes",
            bytes = text.len()
        )),
    }
}

/// Parses and validates an approval file.
///
/// # Errors
/// Returns the reason why the file cannot be used.
pub fn parse_approval(text: &str) -> Result<Approval, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("the file is {bytes} bytes long; the limit is {MAX_BYTES} bytes", bytes = text.len()));
    }
    // The text after the comment is written and parsed as JSON, because a YAML parser would break lines at U+2028.
    let json: String = text.split_inclusive('\n').skip_while(|line| line.starts_with('#')).collect();
    let file: ApprovalFile = serde_json::from_str(&json)
        .map_err(|error| format!("this is not an approval: {}", locate_json_error(&error)))?;
    let verdicts = approval_comparison::parse_approval(&file.verdicts, &file.sha256)?;
    Ok(Approval { file, verdicts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InstallState;
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
            dismantled: Vec::new(),
            version: VERSION,
        }
    }

    proptest! {
        #[test]
        fn approval_with_any_serial_is_read_back(serial in any::<String>(), installed in any::<String>()) {
            let wanted = verdicts(&serial);
            let text = render_approval(&wanted, BTreeMap::new(), installed.clone(), "2026-01-01T00:00:00Z".to_owned()).unwrap();
            prop_assert!(text.starts_with("# Written by `drophammer site plan --approve` or"));
            let read = parse_approval(&text).unwrap();
            prop_assert_eq!(&read.verdicts, &wanted);
            prop_assert_eq!(read.file.installed, installed);
        }
    }

    #[test]
    fn approval_applies_to_one_installation() {
        let with = |installed: String| {
            parse_approval(&render_approval(&verdicts("S"), BTreeMap::new(), installed, String::new()).unwrap())
                .unwrap()
        };
        let marker = |time: &str, order: Option<&str>| {
            let order = order.map(str::to_owned);
            Some(InstallMarker { time: time.to_owned(), order, ..InstallMarker::default() })
        };
        let install_states = [
            InstallState::default(),
            InstallState { succeeded: true, ..InstallState::default() },
            InstallState { succeeded: true, marker: marker("1", None), ..InstallState::default() },
            InstallState { succeeded: true, marker: marker("2", Some("o1")), ..InstallState::default() },
            InstallState { succeeded: true, marker: marker("2", Some("o2")), ..InstallState::default() },
        ];
        for (one, then) in install_states.iter().enumerate() {
            let approval = with(then.last_installation());
            for (other, now) in install_states.iter().enumerate() {
                assert_eq!(approval.is_spent(&now.last_installation()), one != other, "{one} {other}");
            }
        }
        // A marker that waits for confirmation does not spend the approval.
        let waits = InstallState { waits: marker("9", None), adopted: true, ..InstallState::default() };
        assert!(!with(install_states[0].last_installation()).is_spent(&waits.last_installation()));
    }

    #[test]
    fn oversized_or_malformed_approvals_are_refused() {
        let long = verdicts(&"S".repeat(MAX_BYTES));
        assert!(
            render_approval(&long, BTreeMap::new(), String::new(), String::new()).unwrap_err().contains("the limit is")
        );
        let comment = "#".repeat(MAX_BYTES + 1);
        for (text, words) in [
            ("", "this is not an approval"),
            ("# only a comment", "this is not an approval"),
            ("{\"sha256\": \"\"}", "approved is missing"),
            (comment.as_str(), "the limit is"),
        ] {
            assert!(parse_approval(text).unwrap_err().contains(words), "{words}");
        }
    }
}
