//! Accepted commands, oldest first, with their results. Only one runs at a time.
//!
//! A conductor evaluates only the last command of the list, so the list contains neither rejected commands nor internal ones.

use super::wire::{CommandResult, Fault, Kind, Status};
use serde_json::{Map, Value};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use uuid::Uuid;

/// Ironic's kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepsOf {
    Clean,
    Deploy,
    Service,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    GetSteps(StepsOf),
    ExecuteStep(StepsOf),
    PowerOff,
    /// Reboots into the installed image.
    RunImage,
    Sync,
    GetPartitionUuids,
    InstallBootloader,
    CollectSystemLogs,
    FinalizeRescue,
    Lockdown,
}

/// Command that a conductor can send.
struct Known {
    extension: &'static str,
    name: &'static str,
    command: Command,
    /// Whether the command is asynchronous.
    runs_on: bool,
}

const fn known(extension: &'static str, name: &'static str, command: Command, runs_on: bool) -> Known {
    Known { extension, name, command, runs_on }
}

/// All commands that a conductor of Ironic 39 sends.
static KNOWN: [Known; 14] = [
    known("clean", "get_clean_steps", Command::GetSteps(StepsOf::Clean), false),
    known("clean", "execute_clean_step", Command::ExecuteStep(StepsOf::Clean), true),
    known("deploy", "get_deploy_steps", Command::GetSteps(StepsOf::Deploy), false),
    known("deploy", "execute_deploy_step", Command::ExecuteStep(StepsOf::Deploy), true),
    known("service", "get_service_steps", Command::GetSteps(StepsOf::Service), false),
    known("service", "execute_service_step", Command::ExecuteStep(StepsOf::Service), true),
    known("standby", "power_off", Command::PowerOff, true),
    known("standby", "run_image", Command::RunImage, true),
    known("standby", "sync", Command::Sync, false),
    known("standby", "get_partition_uuids", Command::GetPartitionUuids, false),
    known("image", "install_bootloader", Command::InstallBootloader, true),
    known("log", "collect_system_logs", Command::CollectSystemLogs, false),
    known("rescue", "finalize_rescue", Command::FinalizeRescue, false),
    known("system", "lockdown", Command::Lockdown, false),
];

/// Executor of commands.
pub trait Work: Send + Sync {
    /// Executes a command.
    ///
    /// # Errors
    /// Returns the fault if it failed.
    fn perform(&self, command: Command, params: &Map<String, Value>) -> Result<Option<Value>, Fault>;

    /// Called after the result of a command has become available.
    fn acknowledged(&self, command: Command, succeeded: bool);
}

/// Reason why a command was rejected. Messages are those of Ironic's own agent, since a conductor searches for some of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    NoDot,
    Busy(&'static str),
    UnknownExtension(String),
    UnknownCommand(String),
}

impl Refused {
    pub fn answer(&self) -> (u16, String) {
        match self {
            Refused::NoDot => (400, "Invalid command: Command name must be of the form <extension>.<name>".to_owned()),
            Refused::Busy(running) => (409, format!("Agent is busy: executing command {running}")),
            Refused::UnknownExtension(name) => (404, format!("Not found: Extension with id {name} not found.")),
            Refused::UnknownCommand(name) => (400, format!("Invalid command: Unknown command: {name}")),
        }
    }
}

pub struct Commands {
    work: Arc<dyn Work>,
    list: Mutex<Vec<CommandResult>>,
    ended: Condvar,
}

impl Commands {
    pub fn new(work: Arc<dyn Work>) -> Arc<Commands> {
        Arc::new(Commands { work, list: Mutex::default(), ended: Condvar::new() })
    }

    /// Accepts the command `extension.name`. The result is final if the command is synchronous or `wait` is set.
    ///
    /// # Errors
    /// Rejects a command, which is then not listed.
    pub fn order(
        self: &Arc<Self>,
        name: &str,
        params: Map<String, Value>,
        wait: bool,
    ) -> Result<CommandResult, Refused> {
        let (known, id) = self.begin(name)?;
        if !known.runs_on {
            self.run(known, id, &params);
        } else {
            let commands = self.clone();
            thread::spawn(move || commands.run(known, id, &params));
        }
        Ok(if wait { self.wait(id) } else { self.find(id) }.unwrap_or_else(|| accepted(known, id)))
    }

    /// Returns the current result of a command.
    pub fn find(&self, id: Uuid) -> Option<CommandResult> {
        self.list().iter().find(|result| result.id == id).cloned()
    }

    pub fn all(&self) -> Vec<CommandResult> {
        self.list().clone()
    }

    /// Drops completed commands, because a new life cycle of the node begins.
    pub fn forget(&self) {
        self.list().retain(|result| result.command_status == Status::Running);
    }

    fn begin(&self, name: &str) -> Result<(&'static Known, Uuid), Refused> {
        let (extension, command) = name.split_once('.').ok_or(Refused::NoDot)?;
        let mut list = self.list();
        if let Some(last) = list.last().filter(|last| last.command_status == Status::Running) {
            return Err(Refused::Busy(last.command_name));
        }
        if !KNOWN.iter().any(|known| known.extension == extension) {
            return Err(Refused::UnknownExtension(extension.to_owned()));
        }
        let known = KNOWN.iter().find(|known| (known.extension, known.name) == (extension, command));
        let known = known.ok_or_else(|| Refused::UnknownCommand(command.to_owned()))?;
        let id = Uuid::new_v4();
        list.push(accepted(known, id));
        Ok((known, id))
    }

    fn run(&self, known: &Known, id: Uuid, params: &Map<String, Value>) {
        let outcome = self.work.perform(known.command, params);
        let succeeded = outcome.is_ok();
        if let Some(result) = self.list().iter_mut().find(|result| result.id == id) {
            match outcome {
                Ok(value) => {
                    result.command_status = Status::Succeeded;
                    result.command_result = value.or_else(|| known.runs_on.then(|| nothing(known.name)));
                }
                Err(fault) => {
                    let mismatch = fault.kind == Kind::VersionMismatch;
                    result.command_status = if mismatch { Status::CleanVersionMismatch } else { Status::Failed };
                    result.command_error = Some(fault);
                }
            }
        }
        self.ended.notify_all();
        self.work.acknowledged(known.command, succeeded);
    }

    fn wait(&self, id: Uuid) -> Option<CommandResult> {
        let is_running = |list: &mut Vec<CommandResult>| {
            list.iter().any(|result| result.id == id && result.command_status == Status::Running)
        };
        drop(self.ended.wait_while(self.list(), is_running).unwrap_or_else(PoisonError::into_inner));
        self.find(id)
    }

    fn list(&self) -> MutexGuard<'_, Vec<CommandResult>> {
        // A panic while it was locked leaves no inconsistent state here.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn accepted(known: &Known, id: Uuid) -> CommandResult {
    CommandResult {
        id,
        command_name: known.name,
        command_status: Status::Running,
        command_error: None,
        command_result: None,
    }
}

/// Returns the result of an asynchronous command without a result, as Ironic's own agent encodes it.
fn nothing(name: &str) -> Value {
    serde_json::json!({ "result": format!("{name}: None") })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Runs as long as nobody lets it go.
    pub struct Held {
        gate: Mutex<Receiver<Result<Option<Value>, Fault>>>,
        acknowledged: Mutex<Vec<(Command, bool)>>,
    }

    pub fn held() -> (Arc<Held>, Sender<Result<Option<Value>, Fault>>) {
        let (sender, gate) = channel();
        (Arc::new(Held { gate: Mutex::new(gate), acknowledged: Mutex::default() }), sender)
    }

    impl Work for Held {
        fn perform(&self, _: Command, _: &Map<String, Value>) -> Result<Option<Value>, Fault> {
            self.gate.lock().unwrap().recv().unwrap_or(Ok(None))
        }

        fn acknowledged(&self, command: Command, succeeded: bool) {
            self.acknowledged.lock().unwrap().push((command, succeeded));
        }
    }

    #[test]
    fn one_runs_at_a_time_and_what_is_refused_leaves_no_trace() {
        let (work, gate) = held();
        let commands = Commands::new(work.clone());
        let order = |name: &str| commands.order(name, Map::new(), false);
        assert_eq!(order("deploy").unwrap_err(), Refused::NoDot);
        assert_eq!(order("bios.apply").unwrap_err().answer().0, 404);
        let unknown = (400, "Invalid command: Unknown command: prepare".to_owned());
        assert_eq!(order("standby.prepare").unwrap_err().answer(), unknown);
        assert_eq!(commands.all(), []);

        let running = order("deploy.execute_deploy_step").unwrap();
        assert_eq!((running.command_name, running.command_status), ("execute_deploy_step", Status::Running));
        let busy = (409, "Agent is busy: executing command execute_deploy_step".to_owned());
        for other in ["standby.sync", "standby.prepare", "bios.apply"] {
            assert_eq!(order(other).unwrap_err().answer(), busy, "{other}");
        }
        gate.send(Ok(None)).unwrap();
        let ended = commands.wait(running.id).unwrap();
        let words = serde_json::json!({"result": "execute_deploy_step: None"});
        assert_eq!((ended.command_status, ended.command_result), (Status::Succeeded, Some(words)));
        gate.send(Ok(None)).unwrap();
        let synced = order("standby.sync").unwrap();
        assert_eq!((synced.command_status, synced.command_result), (Status::Succeeded, None));
        assert_eq!(
            commands.all().iter().map(|one| one.command_name).collect::<Vec<_>>(),
            ["execute_deploy_step", "sync"]
        );
        assert_eq!(work.acknowledged.lock().unwrap().last(), Some(&(Command::Sync, true)));
    }

    #[test]
    fn a_fault_is_told_as_ironic_reads_it() {
        let (work, gate) = held();
        let commands = Commands::new(work);
        gate.send(Err(Fault::of_command("no"))).unwrap();
        let mismatch = Fault { kind: Kind::VersionMismatch, code: 409, message: "m".into(), details: "d".into() };
        gate.send(Err(mismatch)).unwrap();
        let failed = commands.order("clean.execute_clean_step", Map::new(), true).unwrap();
        let value = serde_json::to_value(&failed).unwrap();
        assert_eq!((&value["command_status"], &value["command_error"]["details"]), (&"FAILED".into(), &"no".into()));
        assert!(value["command_result"].is_null());
        let other = commands.order("clean.execute_clean_step", Map::new(), true).unwrap();
        assert_eq!(serde_json::to_value(&other).unwrap()["command_status"], "CLEAN_VERSION_MISMATCH");
        commands.forget();
        assert_eq!(commands.all(), []);
    }
}
