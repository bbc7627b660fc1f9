//! Accepted commands with their results, the oldest first. Only one command runs at a time.
//!
//! A conductor evaluates only the last command of the list, so rejected and internal commands are not in the list.

use super::command_result::{CommandFault, CommandResult, CommandStatus, FaultKind};
use common::sync::lock_mutex;
use serde_json::{Map, Value};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use uuid::Uuid;

/// Type of a step in Ironic: cleaning, deploy or service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IronicStepKind {
    Clean,
    Deploy,
    Service,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IronicCommand {
    GetSteps(IronicStepKind),
    ExecuteStep(IronicStepKind),
    PowerOff,
    /// Reboot into the installed image.
    RunImage,
    Sync,
    GetPartitionUuids,
    InstallBootloader,
    CollectSystemLogs,
    FinalizeRescue,
    Lockdown,
}

/// Command that a conductor can send.
struct KnownCommand {
    extension: &'static str,
    name: &'static str,
    command: IronicCommand,
    /// True if the command continues in the background after it was accepted.
    runs_on: bool,
}

const fn known_command(
    extension: &'static str,
    name: &'static str,
    command: IronicCommand,
    runs_on: bool,
) -> KnownCommand {
    KnownCommand { extension, name, command, runs_on }
}

/// All commands that a conductor of Ironic 39 sends.
static KNOWN: [KnownCommand; 14] = [
    known_command("clean", "get_clean_steps", IronicCommand::GetSteps(IronicStepKind::Clean), false),
    known_command("clean", "execute_clean_step", IronicCommand::ExecuteStep(IronicStepKind::Clean), true),
    known_command("deploy", "get_deploy_steps", IronicCommand::GetSteps(IronicStepKind::Deploy), false),
    known_command("deploy", "execute_deploy_step", IronicCommand::ExecuteStep(IronicStepKind::Deploy), true),
    known_command("service", "get_service_steps", IronicCommand::GetSteps(IronicStepKind::Service), false),
    known_command("service", "execute_service_step", IronicCommand::ExecuteStep(IronicStepKind::Service), true),
    known_command("standby", "power_off", IronicCommand::PowerOff, true),
    known_command("standby", "run_image", IronicCommand::RunImage, true),
    known_command("standby", "sync", IronicCommand::Sync, false),
    known_command("standby", "get_partition_uuids", IronicCommand::GetPartitionUuids, false),
    known_command("image", "install_bootloader", IronicCommand::InstallBootloader, true),
    known_command("log", "collect_system_logs", IronicCommand::CollectSystemLogs, false),
    known_command("rescue", "finalize_rescue", IronicCommand::FinalizeRescue, false),
    known_command("system", "lockdown", IronicCommand::Lockdown, false),
];

/// Executor of the commands that a conductor sends.
pub(crate) trait CommandExecutor: Send + Sync {
    /// Executes an accepted command.
    ///
    /// # Errors
    /// Returns the fault if the command failed.
    fn execute_command(
        &self,
        command: IronicCommand,
        params: &Map<String, Value>,
    ) -> Result<Option<Value>, CommandFault>;

    /// Notifies the executor that the result of a command is available to the conductor.
    fn result_available(&self, command: IronicCommand, succeeded: bool);
}

/// Reason why a command was rejected. The messages are identical to those of Ironic's own agent, since a conductor
/// searches for some of these messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CommandRejection {
    NoDot,
    Busy(&'static str),
    UnknownExtension(String),
    UnknownCommand(String),
}

impl CommandRejection {
    pub(crate) fn http_response(&self) -> (u16, String) {
        match self {
            CommandRejection::NoDot => {
                (400, "Invalid command: Command name must be of the form <extension>.<name>".to_owned())
            }
            CommandRejection::Busy(running) => (409, format!("Agent is busy: executing command {running}")),
            CommandRejection::UnknownExtension(name) => {
                (404, format!("Not found: Extension with id {name} not found."))
            }
            CommandRejection::UnknownCommand(name) => (400, format!("Invalid command: Unknown command: {name}")),
        }
    }
}

pub(crate) struct CommandList {
    work: Arc<dyn CommandExecutor>,
    list: Mutex<Vec<CommandResult>>,
    ended: Condvar,
}

impl CommandList {
    pub(crate) fn new(work: Arc<dyn CommandExecutor>) -> Arc<CommandList> {
        Arc::new(CommandList { work, list: Mutex::default(), ended: Condvar::new() })
    }

    /// Accepts and starts the command `extension.name`. If the command is synchronous or `wait` is set, the command has
    /// completed when this function returns, and the returned result is final.
    ///
    /// # Errors
    /// Returns the reason if the command is rejected. A rejected command does not appear in the list of commands.
    pub(crate) fn accept_command(
        self: &Arc<Self>,
        name: &str,
        params: Map<String, Value>,
        wait: bool,
    ) -> Result<CommandResult, CommandRejection> {
        let (known, id) = self.add_command(name)?;
        if !known.runs_on {
            self.run_command(known, id, &params);
        } else {
            let commands = self.clone();
            thread::spawn(move || commands.run_command(known, id, &params));
        }
        Ok(if wait { self.wait_for_result(id) } else { self.find_result(id) }
            .unwrap_or_else(|| accepted_result(known, id)))
    }

    /// Returns the current result of a command.
    pub(crate) fn find_result(&self, id: Uuid) -> Option<CommandResult> {
        self.lock_list().iter().find(|result| result.id == id).cloned()
    }

    pub(crate) fn all_results(&self) -> Vec<CommandResult> {
        self.lock_list().clone()
    }

    /// Removes completed commands from the list. Called when the conductor begins a new operation on the node.
    pub(crate) fn drop_completed(&self) {
        self.lock_list().retain(|result| result.command_status == CommandStatus::Running);
    }

    fn add_command(&self, name: &str) -> Result<(&'static KnownCommand, Uuid), CommandRejection> {
        let (extension, command) = name.split_once('.').ok_or(CommandRejection::NoDot)?;
        let mut list = self.lock_list();
        if let Some(last) = list.last().filter(|last| last.command_status == CommandStatus::Running) {
            return Err(CommandRejection::Busy(last.command_name));
        }
        if !KNOWN.iter().any(|known| known.extension == extension) {
            return Err(CommandRejection::UnknownExtension(extension.to_owned()));
        }
        let known = KNOWN.iter().find(|known| (known.extension, known.name) == (extension, command));
        let known = known.ok_or_else(|| CommandRejection::UnknownCommand(command.to_owned()))?;
        let id = Uuid::new_v4();
        list.push(accepted_result(known, id));
        Ok((known, id))
    }

    fn run_command(&self, known: &KnownCommand, id: Uuid, params: &Map<String, Value>) {
        let outcome = self.work.execute_command(known.command, params);
        let succeeded = outcome.is_ok();
        if let Some(result) = self.lock_list().iter_mut().find(|result| result.id == id) {
            match outcome {
                Ok(value) => {
                    result.command_status = CommandStatus::Succeeded;
                    result.command_result = value.or_else(|| known.runs_on.then(|| empty_result(known.name)));
                }
                Err(fault) => {
                    let mismatch = fault.kind == FaultKind::VersionMismatch;
                    result.command_status =
                        if mismatch { CommandStatus::CleanVersionMismatch } else { CommandStatus::Failed };
                    result.command_error = Some(fault);
                }
            }
        }
        self.ended.notify_all();
        self.work.result_available(known.command, succeeded);
    }

    fn wait_for_result(&self, id: Uuid) -> Option<CommandResult> {
        let is_running = |list: &mut Vec<CommandResult>| {
            list.iter().any(|result| result.id == id && result.command_status == CommandStatus::Running)
        };
        drop(self.ended.wait_while(self.lock_list(), is_running).unwrap_or_else(PoisonError::into_inner));
        self.find_result(id)
    }

    fn lock_list(&self) -> MutexGuard<'_, Vec<CommandResult>> {
        // A poisoned lock is ignored, because the list is consistent even if a thread panicked while it held the lock.
        lock_mutex(&self.list)
    }
}

fn accepted_result(known: &KnownCommand, id: Uuid) -> CommandResult {
    CommandResult {
        id,
        command_name: known.name,
        command_status: CommandStatus::Running,
        command_error: None,
        command_result: None,
    }
}

/// Returns the result of an asynchronous command that has no return value, in the encoding of Ironic's own agent.
fn empty_result(name: &str) -> Value {
    serde_json::json!({ "result": format!("{name}: None") })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Executor whose commands run until the test sends their results.
    pub(crate) struct GatedExecutor {
        gate: Mutex<Receiver<Result<Option<Value>, CommandFault>>>,
        acknowledged: Mutex<Vec<(IronicCommand, bool)>>,
    }

    pub(crate) fn gated_executor() -> (Arc<GatedExecutor>, Sender<Result<Option<Value>, CommandFault>>) {
        let (sender, gate) = channel();
        (Arc::new(GatedExecutor { gate: Mutex::new(gate), acknowledged: Mutex::default() }), sender)
    }

    impl CommandExecutor for GatedExecutor {
        fn execute_command(&self, _: IronicCommand, _: &Map<String, Value>) -> Result<Option<Value>, CommandFault> {
            self.gate.lock().unwrap().recv().unwrap_or(Ok(None))
        }

        fn result_available(&self, command: IronicCommand, succeeded: bool) {
            self.acknowledged.lock().unwrap().push((command, succeeded));
        }
    }

    #[test]
    fn only_one_command_runs_at_a_time() {
        let (work, gate) = gated_executor();
        let commands = CommandList::new(work.clone());
        let order = |name: &str| commands.accept_command(name, Map::new(), false);
        assert_eq!(order("deploy").unwrap_err(), CommandRejection::NoDot);
        assert_eq!(order("bios.apply").unwrap_err().http_response().0, 404);
        let unknown = (400, "Invalid command: Unknown command: prepare".to_owned());
        assert_eq!(order("standby.prepare").unwrap_err().http_response(), unknown);
        assert_eq!(commands.all_results(), []);

        let running = order("deploy.execute_deploy_step").unwrap();
        assert_eq!((running.command_name, running.command_status), ("execute_deploy_step", CommandStatus::Running));
        let busy = (409, "Agent is busy: executing command execute_deploy_step".to_owned());
        for other in ["standby.sync", "standby.prepare", "bios.apply"] {
            assert_eq!(order(other).unwrap_err().http_response(), busy, "{other}");
        }
        gate.send(Ok(None)).unwrap();
        let ended = commands.wait_for_result(running.id).unwrap();
        let words = serde_json::json!({"result": "execute_deploy_step: None"});
        assert_eq!((ended.command_status, ended.command_result), (CommandStatus::Succeeded, Some(words)));
        gate.send(Ok(None)).unwrap();
        let synced = order("standby.sync").unwrap();
        assert_eq!((synced.command_status, synced.command_result), (CommandStatus::Succeeded, None));
        assert_eq!(
            commands.all_results().iter().map(|one| one.command_name).collect::<Vec<_>>(),
            ["execute_deploy_step", "sync"]
        );
        assert_eq!(work.acknowledged.lock().unwrap().last(), Some(&(IronicCommand::Sync, true)));
    }

    #[test]
    fn faults_are_serialized_as_ironic_expects() {
        let (work, gate) = gated_executor();
        let commands = CommandList::new(work);
        gate.send(Err(CommandFault::new_execution_fault("no"))).unwrap();
        let mismatch =
            CommandFault { kind: FaultKind::VersionMismatch, code: 409, message: "m".into(), details: "d".into() };
        gate.send(Err(mismatch)).unwrap();
        let failed = commands.accept_command("clean.execute_clean_step", Map::new(), true).unwrap();
        let value = serde_json::to_value(&failed).unwrap();
        assert_eq!((&value["command_status"], &value["command_error"]["details"]), (&"FAILED".into(), &"no".into()));
        assert!(value["command_result"].is_null());
        let other = commands.accept_command("clean.execute_clean_step", Map::new(), true).unwrap();
        assert_eq!(serde_json::to_value(&other).unwrap()["command_status"], "CLEAN_VERSION_MISMATCH");
        commands.drop_completed();
        assert_eq!(commands.all_results(), []);
    }
}
