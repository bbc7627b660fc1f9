//! Executor of a conductor's commands.

use super::command_result::{CommandFault, FaultKind};
use super::commands::{CommandExecutor, IronicCommand, IronicStepKind};
use super::deploy_args::IronicNode;
use super::log_collection::{self, StepLog};
use super::machine_actions::MachineActions;
use super::step_runner::{self, StepRunner};
use super::{HeartbeatSignal, rescue};
use common::error::Error;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::mpsc::Sender;

pub(crate) struct CommandWorker {
    actions: Arc<dyn MachineActions>,
    journal: Arc<StepLog>,
    steps: StepRunner,
    signals: Sender<HeartbeatSignal>,
}

impl CommandWorker {
    pub(crate) fn new(
        actions: Arc<dyn MachineActions>,
        consoles: &[String],
        signals: Sender<HeartbeatSignal>,
    ) -> CommandWorker {
        let journal = Arc::new(StepLog::default());
        let steps = StepRunner::new(actions.clone(), journal.clone(), consoles);
        CommandWorker { actions, journal, steps, signals }
    }

    /// Unmounts and stops everything that the steps have left active. Called when the conductor begins a new operation
    /// on the node.
    pub(crate) fn release_all(&self) {
        self.steps.release_all();
    }

    fn execute_step(&self, of: IronicStepKind, params: &Map<String, Value>) -> Result<Value, CommandFault> {
        let words = StepKindNames::for_kind(of);
        let given = params.get(words.version);
        if given.is_some_and(|given| *given != agent_version()) {
            let message =
                "The version of this agent differs from the version of the agent that listed the steps".to_owned();
            let details = format!(
                "agent version {listing_version} listed the steps, but this agent has version {own_version}",
                listing_version = given.unwrap_or(&Value::Null),
                own_version = agent_version()
            );
            return Err(CommandFault { kind: FaultKind::VersionMismatch, code: 409, message, details });
        }
        let nothing = Map::new();
        let step = params.get("step").cloned().unwrap_or_default();
        let text = |word: &str| step.get(word).and_then(Value::as_str).unwrap_or_default();
        let (interface, name) = (text("interface"), text("step"));
        let mut offers = model::deploy_steps::steps_for_kind(step_runner::step_kind(of));
        let Some(offer) = offers.find(|offer| (offer.interface, offer.step) == (interface, name)) else {
            let message = "Error finding the method of a step".to_owned();
            let details =
                format!("drophammer does not support the {step_type} step {interface}.{name}", step_type = words.kind);
            return Err(CommandFault { kind: FaultKind::HardwareManagerMethodNotFound, code: 500, message, details });
        };
        let node = IronicNode(params.get("node").and_then(Value::as_object).unwrap_or(&nothing));
        let args = step.get("args").and_then(Value::as_object).unwrap_or(&nothing);
        self.journal.append_text(&format!("{} step {interface}.{name}", words.kind));
        let result = self.steps.run_step(offer, &node, args).map_err(|error| words.step_fault(&error))?;
        // The result of a step includes a copy of the request, which identifies the completed step to the conductor.
        Ok(json!({ words.result: result, words.step: step }))
    }

    fn pack_logs(&self) -> Result<Value, CommandFault> {
        let mut files = vec![("agent.log", self.journal.text().into_bytes())];
        files.extend(self.actions.collect_logs());
        let archive = log_collection::pack_archive(&files)
            .map_err(|error| CommandFault::new_execution_fault(error.to_string()))?;
        Ok(json!({ "system_logs": archive }))
    }
}

impl CommandExecutor for CommandWorker {
    fn execute_command(
        &self,
        command: IronicCommand,
        params: &Map<String, Value>,
    ) -> Result<Option<Value>, CommandFault> {
        match command {
            IronicCommand::GetSteps(of) => {
                let words = StepKindNames::for_kind(of);
                Ok(Some(json!({
                    words.steps: { "drophammer": step_runner::list_steps(of) },
                    "hardware_manager_version": agent_version(),
                })))
            }
            IronicCommand::ExecuteStep(of) => self.execute_step(of, params).map(Some),
            IronicCommand::PowerOff | IronicCommand::RunImage | IronicCommand::Lockdown => {
                self.steps.release_all();
                Ok(None)
            }
            IronicCommand::Sync => {
                self.actions.sync_filesystems();
                Ok(None)
            }
            IronicCommand::GetPartitionUuids => {
                let (root, esp) = self.steps.root_and_esp_uuids().unwrap_or_default();
                Ok(Some(json!({ "root uuid": root, "efi system partition uuid": esp })))
            }
            IronicCommand::InstallBootloader => {
                let mode = params.get("target_boot_mode").and_then(Value::as_str);
                let installed = self.steps.install_bootloader(mode == Some("bios"));
                installed.map(|()| None).map_err(|error| CommandFault::new_execution_fault(error.to_string()))
            }
            IronicCommand::CollectSystemLogs => self.pack_logs().map(Some),
            IronicCommand::FinalizeRescue => {
                let hash = rescue::parse_password_hash(params)?;
                self.steps.release_all();
                self.actions
                    .enable_rescue(hash)
                    .map_err(|error| CommandFault::new_execution_fault(error.to_string()))?;
                Ok(None)
            }
        }
    }

    fn result_available(&self, command: IronicCommand, succeeded: bool) {
        let signal = match command {
            IronicCommand::PowerOff if succeeded => HeartbeatSignal::End(super::IronicEnding::PowerOff),
            IronicCommand::FinalizeRescue if succeeded => HeartbeatSignal::End(super::IronicEnding::Rescue),
            IronicCommand::RunImage if succeeded => HeartbeatSignal::End(super::IronicEnding::Reboot),
            IronicCommand::Lockdown if succeeded => HeartbeatSignal::End(super::IronicEnding::Lockdown),
            IronicCommand::ExecuteStep(_)
            | IronicCommand::InstallBootloader
            | IronicCommand::PowerOff
            | IronicCommand::RunImage => HeartbeatSignal::ReportNow,
            IronicCommand::GetSteps(_)
            | IronicCommand::Sync
            | IronicCommand::GetPartitionUuids
            | IronicCommand::CollectSystemLogs
            | IronicCommand::FinalizeRescue
            | IronicCommand::Lockdown => return,
        };
        // An error is ignored: sending fails only if the agent is about to exit.
        let _ = self.signals.send(signal);
    }
}

/// Version of the agent. The conductor receives this version with the list of steps, and sends the version back with
/// each step.
pub(crate) fn agent_version() -> Value {
    json!({ "drophammer": env!("CARGO_PKG_VERSION") })
}

/// Names of the JSON fields for one of Ironic's three step types.
struct StepKindNames {
    kind: &'static str,
    steps: &'static str,
    result: &'static str,
    step: &'static str,
    version: &'static str,
    fault: FaultKind,
    message: &'static str,
}

impl StepKindNames {
    fn for_kind(of: IronicStepKind) -> StepKindNames {
        match of {
            IronicStepKind::Clean => StepKindNames {
                kind: "clean",
                steps: "clean_steps",
                result: "clean_result",
                step: "clean_step",
                version: "clean_version",
                fault: FaultKind::CleaningError,
                message: "Clean step failed",
            },
            IronicStepKind::Deploy => StepKindNames {
                kind: "deploy",
                steps: "deploy_steps",
                result: "deploy_result",
                step: "deploy_step",
                version: "deploy_version",
                fault: FaultKind::DeploymentError,
                message: "Deploy step failed",
            },
            IronicStepKind::Service => StepKindNames {
                kind: "service",
                steps: "service_steps",
                result: "service_result",
                step: "service_step",
                version: "service_version",
                fault: FaultKind::ServicingError,
                message: "Service step failed",
            },
        }
    }

    fn step_fault(&self, error: &Error) -> CommandFault {
        CommandFault { kind: self.fault, code: 500, message: self.message.to_owned(), details: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::step_runner::tests::{SimulatedMachine, elsewhere, machine};
    use super::*;
    use std::sync::mpsc::channel;

    fn worker() -> CommandWorker {
        let (signals, _) = channel();
        CommandWorker::new(Arc::new(SimulatedMachine::new(machine("sata-1"))), &[], signals)
    }

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn steps_are_listed_in_the_format_of_ironic() {
        for (of, key, first) in [
            (IronicStepKind::Clean, "clean_steps", Some("erase_devices_metadata")),
            (IronicStepKind::Deploy, "deploy_steps", Some("install")),
            (IronicStepKind::Service, "service_steps", Some("inject_files")),
        ] {
            let told = worker().execute_command(IronicCommand::GetSteps(of), &Map::new()).unwrap().unwrap();
            assert_eq!(told["hardware_manager_version"], agent_version());
            let steps = told[key]["drophammer"].as_array().unwrap();
            assert_eq!(steps.first().and_then(|step| step["step"].as_str()), first);
            for step in steps {
                assert!(step["interface"].is_string() && step["priority"].is_u64() && step["argsinfo"].is_object());
            }
        }
    }

    /// The conductor may change the priority of the step, and may add a field that the agent's step list does not
    /// contain.
    #[test]
    fn step_is_returned_as_received() {
        let step = json!({"interface": "deploy", "step": "erase_devices_metadata", "abortable": true, "priority": 10,
            "requires_ramdisk": true});
        let params = map(json!({"step": step, "node": {"uuid": "n"}, "ports": [], "clean_version": agent_version()}));
        let done =
            worker().execute_command(IronicCommand::ExecuteStep(IronicStepKind::Clean), &params).unwrap().unwrap();
        assert_eq!(done["clean_step"], step);
        assert!(done["clean_result"]["erased"].is_array());
    }

    #[test]
    fn failed_step_is_a_fault_with_details() {
        let run = |of: IronicStepKind, params: Value| {
            worker().execute_command(IronicCommand::ExecuteStep(of), &map(params)).unwrap_err()
        };
        let fault = run(IronicStepKind::Deploy, json!({"step": {"interface": "raid", "step": "delete_configuration"}}));
        assert_eq!((fault.kind, fault.code), (FaultKind::HardwareManagerMethodNotFound, 500));
        assert!(fault.details.contains("raid.delete_configuration"), "{fault:?}");
        let fault = run(IronicStepKind::Service, json!({"step": {"interface": "deploy", "step": "install"}}));
        assert_eq!(fault.kind, FaultKind::HardwareManagerMethodNotFound);
        let fault = run(IronicStepKind::Clean, json!({"step": {"step": "x"}, "clean_version": {"drophammer": "0"}}));
        assert_eq!((fault.kind, fault.code), (FaultKind::VersionMismatch, 409));
        let step = json!({"interface": "deploy", "step": "apply_layout", "args": {"layout": elsewhere()}});
        let fault = run(IronicStepKind::Deploy, json!({"step": step, "deploy_version": agent_version()}));
        assert_eq!((fault.kind, fault.message.as_str()), (FaultKind::DeploymentError, "Deploy step failed"));
        assert!(fault.details.contains("/dev/sdy"), "{fault:?}");
        assert!(run(IronicStepKind::Deploy, json!({})).details.contains("does not support the deploy step"));
    }

    #[test]
    fn logs_are_returned_and_unsupported_commands_refused() {
        let worker = worker();
        let told = worker.execute_command(IronicCommand::CollectSystemLogs, &Map::new()).unwrap().unwrap();
        assert!(told["system_logs"].as_str().unwrap().len() > 20);
        for command in [IronicCommand::FinalizeRescue, IronicCommand::InstallBootloader] {
            assert_eq!(
                worker.execute_command(command, &Map::new()).unwrap_err().kind,
                FaultKind::CommandExecutionError
            );
        }
        let uuids = worker.execute_command(IronicCommand::GetPartitionUuids, &Map::new()).unwrap().unwrap();
        assert_eq!(uuids, json!({"root uuid": "", "efi system partition uuid": null}));
        assert_eq!(worker.execute_command(IronicCommand::Sync, &Map::new()), Ok(None));
    }
}
