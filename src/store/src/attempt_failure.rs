//! Reason why the last attempt to install an allocation has failed. The reason is deleted when an attempt succeeds,
//! the operator adopts the installation, or a reinstall is ordered.

use common::error_code;
use common::timestamp::now;
use control::agent_api_types::InstallReport;
use serde::{Deserialize, Serialize};

/// Failure of an attempt, as reported by the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AttemptFailure {
    /// Failed stage of the plan, such as `storage.wipe`. If the failure preceded the plan, the failed phase of the
    /// agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Code of the failure, such as `DH-310`; absent if the agent's version does not support codes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Error message of the tool, without the name of the stage.
    pub message: String,
    /// Time at which the report was received, as RFC 3339 in UTC.
    pub time: String,
    /// True if the machine has reported that every disk is unchanged.
    #[serde(default)]
    pub untouched: bool,
}

impl AttemptFailure {
    /// Returns the failure that the report describes, or `None` for a report of success.
    pub(crate) fn from_report(report: &InstallReport) -> Option<AttemptFailure> {
        (!report.success).then(|| AttemptFailure {
            stage: report.step.clone().filter(|step| !step.is_empty()),
            code: report.code.clone().filter(|code| error_code::is_code(code)),
            message: report.reason().to_owned(),
            time: now(),
            untouched: report.untouched,
        })
    }
}

/// Formats the failure as `storage.format: mkfs.ext4: no space left on device`.
impl std::fmt::Display for AttemptFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stage.iter().try_for_each(|stage| write!(f, "{stage}: "))?;
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stage_is_named_once() {
        let report = |message: &str, step: Option<&str>| InstallReport {
            message: message.to_owned(),
            step: step.map(str::to_owned),
            ..InstallReport::default()
        };
        for (message, step, expected) in [
            ("storage.format: mkfs.ext4: no", Some("storage.format"), "storage.format: mkfs.ext4: no"),
            ("mkfs.ext4: no", Some("storage.format"), "storage.format: mkfs.ext4: no"),
            ("storage.formatted: no", Some("storage.format"), "storage.format: storage.formatted: no"),
            ("no", Some(""), "no"),
            ("control.token: no", None, "control.token: no"),
        ] {
            let failure = AttemptFailure::from_report(&report(message, step)).unwrap();
            assert_eq!(failure.to_string(), expected);
        }
        assert_eq!(AttemptFailure::from_report(&InstallReport { success: true, ..report("m", None) }), None);
    }

    #[test]
    fn reports_of_older_and_newer_agents_are_understood() {
        let report = |json: &str| serde_json::from_str::<InstallReport>(json).unwrap();
        for (json, code) in [
            (r#"{"success": false, "message": "no"}"#, None),
            (r#"{"success": false, "message": "no", "code": "DH-310"}"#, Some("DH-310")),
            (r#"{"success": false, "message": "no", "code": "DH-999", "severity": 3}"#, Some("DH-999")),
            (r#"{"success": false, "message": "no", "code": "<b>"}"#, None),
        ] {
            let failure = AttemptFailure::from_report(&report(json)).unwrap();
            assert_eq!(failure.code.as_deref(), code, "{json}");
        }
        // The state of a server of an older version does not contain a code.
        let stored: AttemptFailure = serde_json::from_str(r#"{"message": "no", "time": ""}"#).unwrap();
        assert_eq!(stored.code, None);
        assert!(!serde_json::to_string(&stored).unwrap().contains("code"));
    }
}
