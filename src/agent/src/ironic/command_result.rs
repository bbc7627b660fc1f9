//! Responses of the agent to a conductor.

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

/// Accepted command, with its status.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct CommandResult {
    pub id: Uuid,
    /// Name of the command without its extension, such as `execute_deploy_step`.
    pub command_name: &'static str,
    pub command_status: CommandStatus,
    pub command_error: Option<CommandFault>,
    pub command_result: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum CommandStatus {
    Running,
    Succeeded,
    Failed,
    /// The command was rejected because the conductor uses a list of steps that it has received from another version of
    /// the agent. Although the name of this status contains the word "clean", Ironic also uses the status for deploy
    /// and service steps.
    CleanVersionMismatch,
}

/// Error of a command. Only `details` is shown as the node's last error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct CommandFault {
    #[serde(rename = "type")]
    pub kind: FaultKind,
    pub code: u16,
    pub message: String,
    pub details: String,
}

/// Exception names of Ironic's own agent. `TypeError` is not used, because a conductor would conclude from this name
/// that the agent uses another version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum FaultKind {
    CleaningError,
    DeploymentError,
    ServicingError,
    HardwareManagerMethodNotFound,
    VersionMismatch,
    CommandExecutionError,
}

impl CommandFault {
    pub(crate) fn new_execution_fault(details: impl Into<String>) -> CommandFault {
        let message = "Command execution failed".to_owned();
        CommandFault { kind: FaultKind::CommandExecutionError, code: 500, message, details: details.into() }
    }
}
