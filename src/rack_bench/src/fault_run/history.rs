//! History of a run with faults: the requests of the machines and of the operator, and the responses that they
//! received, in the order in which the simulation observed them.

use common::sync::lock_mutex;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

/// Observation about one machine. `order` is the id of the reinstall order; it is empty for the first installation.
/// `boot` is the number of the machine's boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum HistoryEvent {
    /// The server has acknowledged the order of the operator.
    OrderAcknowledged { order: String },
    /// The machine has received an installation with its fencing token.
    InstallationServed { boot: u32, order: String, sequence: u64 },
    /// The server has permitted the boot to pass the point of no return.
    StartPermitted { boot: u32, order: String },
    /// The boot sends its report of success.
    SuccessReported { boot: u32, order: String },
    /// The server has acknowledged the report of success.
    SuccessAcknowledged { boot: u32, order: String },
    /// The machine has lost power, so this boot sends no further requests.
    BootEnded { boot: u32 },
    /// The machine waits for its machine file.
    WaitBegan,
    /// The machine has stopped waiting for its machine file.
    WokenUp,
    /// The machine is installed, and boots from its disk.
    Finished,
}

/// Observation with the number of its machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HistoryRecord {
    pub machine: u32,
    #[serde(flatten)]
    pub event: HistoryEvent,
}

/// Call of a machine's client, which may consist of several attempts.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRecord {
    pub machine: u32,
    /// Start of the call, in seconds since the start of the run.
    pub began: f64,
    pub ended: f64,
    pub is_acknowledged: bool,
}

/// Recorder that all machines of a run share.
pub struct HistoryRecorder {
    started: Instant,
    /// Observations about each machine, in their order.
    events: Mutex<BTreeMap<u32, Vec<HistoryEvent>>>,
    calls: Mutex<Vec<CallRecord>>,
}

impl HistoryRecorder {
    pub fn new() -> HistoryRecorder {
        HistoryRecorder { started: Instant::now(), events: Mutex::default(), calls: Mutex::default() }
    }

    /// Returns the seconds since the start of the run.
    pub fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    pub fn record(&self, machine: u32, event: HistoryEvent) {
        lock_mutex(&self.events).entry(machine).or_default().push(event);
    }

    /// Runs a call. Records its start, its end, and whether it was acknowledged.
    pub async fn record_call<T, E>(&self, machine: u32, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let began = self.elapsed();
        let result = call.await;
        let (ended, is_acknowledged) = (self.elapsed(), result.is_ok());
        lock_mutex(&self.calls).push(CallRecord { machine, began, ended, is_acknowledged });
        result
    }

    /// Returns whether any observation about the machine satisfies the condition.
    pub fn any(&self, machine: u32, is_wanted: impl Fn(&HistoryEvent) -> bool) -> bool {
        lock_mutex(&self.events).get(&machine).is_some_and(|events| events.iter().any(is_wanted))
    }

    /// Returns the observations so far, in their order for each machine.
    pub fn records(&self) -> Vec<HistoryRecord> {
        let events = lock_mutex(&self.events);
        let record = |(machine, events): (&u32, &Vec<HistoryEvent>)| {
            let machine = *machine;
            events.iter().map(move |event| HistoryRecord { machine, event: event.clone() }).collect::<Vec<_>>()
        };
        events.iter().flat_map(record).collect()
    }

    /// Returns the calls so far, sorted by their end.
    pub fn calls(&self) -> Vec<CallRecord> {
        let mut calls = lock_mutex(&self.calls).clone();
        calls.sort_by(|one, other| one.ended.total_cmp(&other.ended));
        calls
    }
}
