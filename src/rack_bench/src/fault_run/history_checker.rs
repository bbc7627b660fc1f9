//! Checker of a run's history: a pure function of the observations and the final database contents.

use super::history::{HistoryEvent, HistoryRecord};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Property that must hold for each history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryInvariant {
    OrderKept,
    ReportKept,
    StartUnique,
    CompletionReported,
    InstalledOnce,
    InstallationOrdered,
    FencingIncreases,
    MachineWoken,
    MachineFinished,
}

impl HistoryInvariant {
    pub const ALL: [HistoryInvariant; 9] = [
        HistoryInvariant::OrderKept,
        HistoryInvariant::ReportKept,
        HistoryInvariant::StartUnique,
        HistoryInvariant::CompletionReported,
        HistoryInvariant::InstalledOnce,
        HistoryInvariant::InstallationOrdered,
        HistoryInvariant::FencingIncreases,
        HistoryInvariant::MachineWoken,
        HistoryInvariant::MachineFinished,
    ];

    /// Returns a sentence that describes how the invariant is violated.
    pub fn describe_violation(self) -> &'static str {
        match self {
            HistoryInvariant::OrderKept => "acknowledged orders that were lost",
            HistoryInvariant::ReportKept => "acknowledged reports that were lost",
            HistoryInvariant::StartUnique => "duplicated points of no return",
            HistoryInvariant::CompletionReported => "orders that were reported as completed, but were not completed",
            HistoryInvariant::InstalledOnce => "installations that were repeated after their completion",
            HistoryInvariant::InstallationOrdered => "installations without an order",
            HistoryInvariant::FencingIncreases => "fencing tokens that do not increase",
            HistoryInvariant::MachineWoken => "waiting machines that were not woken",
            HistoryInvariant::MachineFinished => "machines that were lost",
        }
    }
}

/// Violation of an invariant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InvariantViolation {
    pub invariant: HistoryInvariant,
    pub machine: u32,
    pub detail: String,
}

/// Entry in the history of a machine that the database contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEntry {
    pub machine: u32,
    /// Type of the entry: `ordered`, `cancelled`, `installed` or `failed`.
    pub kind: String,
    /// Id of the order; empty for the first installation.
    pub order: String,
}

/// Records of the database at the end of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatabaseRecords {
    /// Entries, the oldest first.
    pub entries: Vec<StoredEntry>,
    /// Pairs of the number of a machine and the id of its open order.
    pub open_orders: BTreeSet<(u32, String)>,
    /// Machines and ids of the open orders that wait for the operator, because their attempts are used up.
    pub suspended_orders: BTreeSet<(u32, String)>,
    /// Machines whose first installation is complete.
    pub installed: BTreeSet<u32>,
}

/// Checks the history of the machines 0 to `machines` - 1. Returns all violations.
pub fn check_history(records: &[HistoryRecord], database: &DatabaseRecords, machines: u32) -> Vec<InvariantViolation> {
    let mut violations = Vec::new();
    let (mut events, mut entries) = (vec![Vec::new(); machines as usize], vec![Vec::new(); machines as usize]);
    for record in records {
        if let Some(events) = events.get_mut(record.machine as usize) {
            events.push(&record.event);
        }
    }
    for entry in &database.entries {
        if let Some(entries) = entries.get_mut(entry.machine as usize) {
            entries.push(entry);
        }
    }
    for (machine, (events, entries)) in (0..).zip(events.iter().zip(&entries)) {
        MachineHistory { machine, events, entries, database }.check(&mut violations);
    }
    check_fencing(records, &mut violations);
    violations
}

/// Observations and database records of one machine.
struct MachineHistory<'a> {
    machine: u32,
    events: &'a [&'a HistoryEvent],
    entries: &'a [&'a StoredEntry],
    database: &'a DatabaseRecords,
}

impl MachineHistory<'_> {
    fn check(&self, violations: &mut Vec<InvariantViolation>) {
        let mut found = Vec::new();
        self.check_records(&mut found);
        self.check_completions(&mut found);
        self.check_starts(&mut found);
        self.check_liveness(&mut found);
        let machine = self.machine;
        violations.extend(found.into_iter().map(|(invariant, detail)| InvariantViolation {
            invariant,
            machine,
            detail,
        }));
    }

    fn has_entry(&self, kind: &str, order: &str) -> bool {
        self.entries.iter().any(|entry| entry.kind == kind && entry.order == order)
    }

    fn is_open(&self, order: &str) -> bool {
        self.database.open_orders.contains(&(self.machine, order.to_owned()))
    }

    /// Returns whether a later order has replaced this order.
    fn is_replaced(&self, order: &str) -> bool {
        let mut later = self.entries.iter().skip_while(|entry| entry.order != order);
        later.any(|entry| entry.kind == "ordered" && entry.order != order)
    }

    /// Checks that acknowledged orders and reports are in the database.
    fn check_records(&self, found: &mut Vec<(HistoryInvariant, String)>) {
        for event in self.events {
            match event {
                HistoryEvent::OrderAcknowledged { order } => {
                    let is_kept = self.is_open(order)
                        || self.has_entry("installed", order)
                        || self.has_entry("cancelled", order)
                        || self.is_replaced(order);
                    if !is_kept {
                        let detail = match self.has_entry("failed", order) {
                            true => format!("order {order} was abandoned after failed attempts"),
                            false => format!("order {order} is neither open nor completed"),
                        };
                        found.push((HistoryInvariant::OrderKept, detail));
                    }
                }
                HistoryEvent::SuccessAcknowledged { boot, order } => {
                    if !self.has_entry("installed", order) {
                        let detail = format!("the database lacks the report of boot {boot} about {}", name(order));
                        found.push((HistoryInvariant::ReportKept, detail));
                    }
                    if self.is_open(order) {
                        let detail = format!("order {order} remained open after its completion");
                        found.push((HistoryInvariant::InstalledOnce, detail));
                    }
                }
                _ => {}
            }
        }
    }

    /// Checks that each completion in the database was reported by its machine, and was recorded only once.
    fn check_completions(&self, found: &mut Vec<(HistoryInvariant, String)>) {
        let mut completed: BTreeMap<&str, u32> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.kind == "installed") {
            *completed.entry(&entry.order).or_default() += 1;
        }
        if self.database.installed.contains(&self.machine) {
            completed.entry("").or_insert(1);
        }
        for (order, count) in completed {
            let is_report = |event: &&&HistoryEvent| matches!(event, HistoryEvent::SuccessReported { order: of, .. } if of == order);
            if !self.events.iter().any(|event| is_report(&event)) {
                let detail = format!("the database contains a completion of {} without a report", name(order));
                found.push((HistoryInvariant::CompletionReported, detail));
            }
            if count > 1 {
                let detail = format!("{} was completed {count} times", name(order));
                found.push((HistoryInvariant::InstalledOnce, detail));
            }
        }
    }

    /// Checks that at most one boot at a time has permission to pass the point of no return, and only for an order that
    /// is not complete.
    fn check_starts(&self, found: &mut Vec<(HistoryInvariant, String)>) {
        let (mut ended, mut completed) = (BTreeSet::new(), BTreeSet::new());
        let mut ordered: BTreeSet<&str> = self.entries.iter().map(|entry| entry.order.as_str()).collect();
        ordered.insert("");
        let mut last: Option<(u32, &str)> = None;
        for event in self.events {
            match event {
                HistoryEvent::OrderAcknowledged { order } => drop(ordered.insert(order)),
                HistoryEvent::BootEnded { boot } => drop(ended.insert(*boot)),
                HistoryEvent::SuccessAcknowledged { order, .. } => drop(completed.insert(order.as_str())),
                HistoryEvent::StartPermitted { boot, order } => {
                    if completed.contains(order.as_str()) {
                        let detail = format!("boot {boot} started {} after its completion", name(order));
                        found.push((HistoryInvariant::InstalledOnce, detail));
                    }
                    if !ordered.contains(order.as_str()) {
                        let detail = format!("boot {boot} started the unknown order {order}");
                        found.push((HistoryInvariant::InstallationOrdered, detail));
                    }
                    let is_duplicate = |(other, of): (u32, &str)| {
                        *boot < other || (*boot > other && !ended.contains(&other) && !completed.contains(of))
                    };
                    if let Some((other, _)) = last.filter(|last| is_duplicate(*last)) {
                        let detail = format!("boots {other} and {boot} both passed the point of no return");
                        found.push((HistoryInvariant::StartUnique, detail));
                    }
                    if last.is_none_or(|(other, _)| other <= *boot) {
                        last = Some((*boot, order));
                    }
                }
                _ => {}
            }
        }
    }

    fn check_liveness(&self, found: &mut Vec<(HistoryInvariant, String)>) {
        let count = |wanted: &HistoryEvent| self.events.iter().filter(|event| **event == wanted).count();
        if count(&HistoryEvent::WokenUp) < count(&HistoryEvent::WaitBegan) {
            found.push((HistoryInvariant::MachineWoken, "the machine waits although it has a machine file".to_owned()));
        }
        if count(&HistoryEvent::Finished) == 0 {
            let last = self.events.last().map(|event| format!("{event:?}")).unwrap_or_default();
            let suspended = self.database.suspended_orders.iter().find(|(machine, _)| *machine == self.machine);
            let suspended = suspended.map(|(_, order)| format!("; order {order} is suspended")).unwrap_or_default();
            found.push((HistoryInvariant::MachineFinished, format!("the last observation is: {last}{suspended}")));
        }
    }
}

/// Checks that each installation has its own fencing token, and that the tokens of each machine increase.
fn check_fencing(records: &[HistoryRecord], violations: &mut Vec<InvariantViolation>) {
    let mut owners: HashMap<u64, (u32, &str)> = HashMap::new();
    let mut latest: HashMap<u32, (u64, &str)> = HashMap::new();
    for record in records {
        let HistoryEvent::InstallationServed { order, sequence, .. } = &record.event else { continue };
        let machine = record.machine;
        let owner = *owners.entry(*sequence).or_insert((machine, order));
        let before = latest.insert(machine, (*sequence, order));
        let detail = if owner != (machine, order) {
            format!("token {sequence} of {} was issued to machine {} before", name(order), owner.0)
        } else if let Some((older, of)) = before.filter(|(older, of)| of != order && older >= sequence) {
            format!("token {sequence} of {} follows token {older} of {}", name(order), name(of))
        } else {
            continue;
        };
        violations.push(InvariantViolation { invariant: HistoryInvariant::FencingIncreases, machine, detail });
    }
}

fn name(order: &str) -> String {
    if order.is_empty() { "the first installation".to_owned() } else { format!("order {order}") }
}

#[cfg(test)]
mod tests;
