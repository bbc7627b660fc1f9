//! What a conductor reads in the agent's answers.

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

/// One command that was accepted, and what has become of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CommandResult {
    pub id: Uuid,
    /// Without its extension: `execute_deploy_step`.
    pub command_name: &'static str,
    pub command_status: Status,
    pub command_error: Option<Fault>,
    pub command_result: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    Running,
    Succeeded,
    Failed,
    /// The agent is another one than the one that has told its steps. Ironic has this word for every kind of step.
    CleanVersionMismatch,
}

/// Why a command has failed. Only `details` reaches the node's last error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    #[serde(rename = "type")]
    pub kind: Kind,
    pub code: u16,
    pub message: String,
    pub details: String,
}

/// The names are those of exceptions of Ironic's own agent. `TypeError` would mean to a conductor that it speaks another protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Kind {
    CleaningError,
    DeploymentError,
    ServicingError,
    HardwareManagerMethodNotFound,
    VersionMismatch,
    CommandExecutionError,
}

impl Fault {
    pub fn of_command(details: impl Into<String>) -> Fault {
        let message = "Command execution failed".to_owned();
        Fault { kind: Kind::CommandExecutionError, code: 500, message, details: details.into() }
    }
}
