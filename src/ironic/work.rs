//! Executor of a conductor's commands.

use super::Signal;
use super::commands::{Command, StepsOf, Work};
use super::hands::Hands;
use super::logs::{self, Journal};
use super::order::Node;
use super::rescue;
use super::steps::{self, Steps};
use super::wire::{Fault, Kind};
use crate::error::Error;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::mpsc::Sender;

pub struct Worker {
    hands: Arc<dyn Hands>,
    journal: Arc<Journal>,
    steps: Steps,
    signals: Sender<Signal>,
}

impl Worker {
    pub fn new(hands: Arc<dyn Hands>, consoles: &[String], signals: Sender<Signal>) -> Worker {
        let journal = Arc::new(Journal::default());
        let steps = Steps::new(hands.clone(), journal.clone(), consoles);
        Worker { hands, journal, steps, signals }
    }

    /// Releases everything, because a new life cycle of the node begins.
    pub fn leave(&self) {
        self.steps.leave();
    }

    fn execute(&self, of: StepsOf, params: &Map<String, Value>) -> Result<Value, Fault> {
        let words = Words::of(of);
        let given = params.get(words.version);
        if given.is_some_and(|given| *given != version()) {
            let message = "The version of the agent differs from the one that listed its steps".to_owned();
            let details =
                format!("the steps are those of {}, but this is {}", given.unwrap_or(&Value::Null), version());
            return Err(Fault { kind: Kind::VersionMismatch, code: 409, message, details });
        }
        let nothing = Map::new();
        let step = params.get("step").cloned().unwrap_or_default();
        let text = |word: &str| step.get(word).and_then(Value::as_str).unwrap_or_default();
        let (interface, name) = (text("interface"), text("step"));
        let mut offers = crate::steps::offered(steps::kind(of));
        let Some(offer) = offers.find(|offer| (offer.interface, offer.step) == (interface, name)) else {
            let message = "Error finding the method of a step".to_owned();
            let details = format!("drophammer has no {} step {interface}.{name}", words.kind);
            return Err(Fault { kind: Kind::HardwareManagerMethodNotFound, code: 500, message, details });
        };
        let node = Node(params.get("node").and_then(Value::as_object).unwrap_or(&nothing));
        let args = step.get("args").and_then(Value::as_object).unwrap_or(&nothing);
        self.journal.add(&format!("{} step {interface}.{name}", words.kind));
        let result = self.steps.run(offer, &node, args).map_err(|error| words.fault(&error))?;
        // The conductor identifies the completed step by this copy.
        Ok(json!({ words.result: result, words.step: step }))
    }

    fn logs(&self) -> Result<Value, Fault> {
        let mut files = vec![("agent.log", self.journal.text().into_bytes())];
        files.extend(self.hands.logs());
        let archive = logs::archive(&files).map_err(|error| Fault::of_command(error.to_string()))?;
        Ok(json!({ "system_logs": archive }))
    }
}

impl Work for Worker {
    fn perform(&self, command: Command, params: &Map<String, Value>) -> Result<Option<Value>, Fault> {
        match command {
            Command::GetSteps(of) => {
                let words = Words::of(of);
                Ok(Some(json!({
                    words.steps: { "drophammer": steps::offered(of) },
                    "hardware_manager_version": version(),
                })))
            }
            Command::ExecuteStep(of) => self.execute(of, params).map(Some),
            Command::PowerOff | Command::RunImage | Command::Lockdown => {
                self.steps.leave();
                Ok(None)
            }
            Command::Sync => {
                self.hands.sync();
                Ok(None)
            }
            Command::GetPartitionUuids => {
                let (root, esp) = self.steps.made().unwrap_or_default();
                Ok(Some(json!({ "root uuid": root, "efi system partition uuid": esp })))
            }
            Command::InstallBootloader => {
                let mode = params.get("target_boot_mode").and_then(Value::as_str);
                let installed = self.steps.install_bootloader(mode == Some("bios"));
                installed.map(|()| None).map_err(|error| Fault::of_command(error.to_string()))
            }
            Command::CollectSystemLogs => self.logs().map(Some),
            Command::FinalizeRescue => {
                let hash = rescue::hash(params)?;
                self.steps.leave();
                self.hands.rescue(hash).map_err(|error| Fault::of_command(error.to_string()))?;
                Ok(None)
            }
        }
    }

    fn acknowledged(&self, command: Command, succeeded: bool) {
        let signal = match command {
            Command::PowerOff if succeeded => Signal::End(super::Ending::PowerOff),
            Command::FinalizeRescue if succeeded => Signal::End(super::Ending::Rescue),
            Command::RunImage if succeeded => Signal::End(super::Ending::Reboot),
            Command::Lockdown if succeeded => Signal::End(super::Ending::Lockdown),
            Command::ExecuteStep(_) | Command::InstallBootloader | Command::PowerOff | Command::RunImage => {
                Signal::Beat
            }
            Command::GetSteps(_)
            | Command::Sync
            | Command::GetPartitionUuids
            | Command::CollectSystemLogs
            | Command::FinalizeRescue
            | Command::Lockdown => return,
        };
        // Fails if the agent is ending.
        let _ = self.signals.send(signal);
    }
}

/// Version that is sent with the list of steps, and returned with each step.
pub fn version() -> Value {
    json!({ "drophammer": env!("CARGO_PKG_VERSION") })
}

/// Field names of the three kinds of steps.
struct Words {
    kind: &'static str,
    steps: &'static str,
    result: &'static str,
    step: &'static str,
    version: &'static str,
    fault: Kind,
    message: &'static str,
}

impl Words {
    fn of(of: StepsOf) -> Words {
        match of {
            StepsOf::Clean => Words {
                kind: "clean",
                steps: "clean_steps",
                result: "clean_result",
                step: "clean_step",
                version: "clean_version",
                fault: Kind::CleaningError,
                message: "Clean step failed",
            },
            StepsOf::Deploy => Words {
                kind: "deploy",
                steps: "deploy_steps",
                result: "deploy_result",
                step: "deploy_step",
                version: "deploy_version",
                fault: Kind::DeploymentError,
                message: "Deploy step failed",
            },
            StepsOf::Service => Words {
                kind: "service",
                steps: "service_steps",
                result: "service_result",
                step: "service_step",
                version: "service_version",
                fault: Kind::ServicingError,
                message: "Service step failed",
            },
        }
    }

    fn fault(&self, error: &Error) -> Fault {
        Fault { kind: self.fault, code: 500, message: self.message.to_owned(), details: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::steps::tests::{Paper, elsewhere, machine};
    use super::*;
    use std::sync::mpsc::channel;

    fn worker() -> Worker {
        let (signals, _) = channel();
        Worker::new(Arc::new(Paper::new(machine("sata-1"))), &[], signals)
    }

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn the_steps_are_told_in_ironics_shape() {
        for (of, key, first) in [
            (StepsOf::Clean, "clean_steps", Some("erase_devices_metadata")),
            (StepsOf::Deploy, "deploy_steps", Some("install")),
            (StepsOf::Service, "service_steps", Some("inject_files")),
        ] {
            let told = worker().perform(Command::GetSteps(of), &Map::new()).unwrap().unwrap();
            assert_eq!(told["hardware_manager_version"], version());
            let steps = told[key]["drophammer"].as_array().unwrap();
            assert_eq!(steps.first().and_then(|step| step["step"].as_str()), first);
            for step in steps {
                assert!(step["interface"].is_string() && step["priority"].is_u64() && step["argsinfo"].is_object());
            }
        }
    }

    /// The conductor sends its own priority, and a word of its own.
    #[test]
    fn a_step_is_echoed_as_it_was_received() {
        let step = json!({"interface": "deploy", "step": "erase_devices_metadata", "abortable": true, "priority": 10,
            "requires_ramdisk": true});
        let params = map(json!({"step": step, "node": {"uuid": "n"}, "ports": [], "clean_version": version()}));
        let done = worker().perform(Command::ExecuteStep(StepsOf::Clean), &params).unwrap().unwrap();
        assert_eq!(done["clean_step"], step);
        assert!(done["clean_result"]["erased"].is_array());
    }

    #[test]
    fn what_cannot_run_is_a_fault_with_our_words_as_details() {
        let run = |of: StepsOf, params: Value| worker().perform(Command::ExecuteStep(of), &map(params)).unwrap_err();
        let fault = run(StepsOf::Deploy, json!({"step": {"interface": "raid", "step": "delete_configuration"}}));
        assert_eq!((fault.kind, fault.code), (Kind::HardwareManagerMethodNotFound, 500));
        assert!(fault.details.contains("raid.delete_configuration"), "{fault:?}");
        let fault = run(StepsOf::Service, json!({"step": {"interface": "deploy", "step": "install"}}));
        assert_eq!(fault.kind, Kind::HardwareManagerMethodNotFound);
        let fault = run(StepsOf::Clean, json!({"step": {"step": "x"}, "clean_version": {"drophammer": "0"}}));
        assert_eq!((fault.kind, fault.code), (Kind::VersionMismatch, 409));
        let step = json!({"interface": "deploy", "step": "apply_layout", "args": {"layout": elsewhere()}});
        let fault = run(StepsOf::Deploy, json!({"step": step, "deploy_version": version()}));
        assert_eq!((fault.kind, fault.message.as_str()), (Kind::DeploymentError, "Deploy step failed"));
        assert!(fault.details.contains("/dev/sdy"), "{fault:?}");
        assert!(run(StepsOf::Deploy, json!({})).details.contains("no deploy step"));
    }

    #[test]
    fn logs_are_told_and_what_is_not_there_is_refused() {
        let worker = worker();
        let told = worker.perform(Command::CollectSystemLogs, &Map::new()).unwrap().unwrap();
        assert!(told["system_logs"].as_str().unwrap().len() > 20);
        for command in [Command::FinalizeRescue, Command::InstallBootloader] {
            assert_eq!(worker.perform(command, &Map::new()).unwrap_err().kind, Kind::CommandExecutionError);
        }
        let uuids = worker.perform(Command::GetPartitionUuids, &Map::new()).unwrap().unwrap();
        assert_eq!(uuids, json!({"root uuid": "", "efi system partition uuid": null}));
        assert_eq!(worker.perform(Command::Sync, &Map::new()), Ok(None));
    }
}
