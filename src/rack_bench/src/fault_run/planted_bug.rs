//! Planted bugs: defects of the network and of the database that the checker of the history must find. Each affects machine
//! [`VICTIM`], or all machines.

use super::history_checker::HistoryInvariant;
use super::machine_life::machine_address;
use super::tampering::TamperedRequest;
use clap::ValueEnum;

/// Machine that planted bugs affect: one that loses power during its reinstall, so that a delayed request of its first boot
/// arrives after its second boot has passed the point of no return.
const VICTIM: u32 = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlantedBug {
    /// The report of a reinstall is acknowledged without being stored.
    LostReport,
    /// Points of no return are permitted without asking the server, also to a boot that was replaced.
    UnguardedStart,
    /// An order is deleted after it was acknowledged.
    LostOrder,
    /// An order is recorded as complete when its first attempt is counted.
    ForgedCompletion,
    /// An order remains open after its completion, and is served again.
    RepeatedOrder,
    /// Fencing tokens no longer increase.
    RepeatedToken,
}

impl PlantedBug {
    /// Returns the invariant whose violation the checker must report.
    pub fn violated_invariant(self) -> HistoryInvariant {
        match self {
            PlantedBug::LostReport => HistoryInvariant::ReportKept,
            PlantedBug::UnguardedStart => HistoryInvariant::StartUnique,
            PlantedBug::LostOrder => HistoryInvariant::OrderKept,
            PlantedBug::ForgedCompletion => HistoryInvariant::CompletionReported,
            PlantedBug::RepeatedOrder => HistoryInvariant::InstalledOnce,
            PlantedBug::RepeatedToken => HistoryInvariant::FencingIncreases,
        }
    }

    /// Returns the request with which the load balancer tampers.
    pub fn tampered_request(self) -> Option<TamperedRequest> {
        let request = |path, contains| Some(TamperedRequest { path, contains, client: machine_address(VICTIM) });
        match self {
            PlantedBug::LostReport => request("/report", "\"success\":true"),
            PlantedBug::UnguardedStart => request("/point-of-no-return", ""),
            _ => None,
        }
    }

    /// Returns the statements that create a trigger in the database.
    pub fn trigger(self) -> Option<String> {
        let machine = format!("machine LIKE '%-{VICTIM:012}'");
        let (timing, table, condition, body) = match self {
            // The trigger runs when the first attempt is counted, after the order was acknowledged.
            PlantedBug::LostOrder => (
                "AFTER UPDATE",
                "orders",
                format!("NEW.{machine}"),
                "DELETE FROM orders WHERE id = NEW.id; RETURN NULL;",
            ),
            PlantedBug::ForgedCompletion => (
                "AFTER UPDATE",
                "orders",
                format!("NEW.{machine}"),
                "DELETE FROM orders WHERE id = NEW.id; INSERT INTO history (machine, time, entry) VALUES (NEW.machine, NEW.created, \
                 json_build_object('time', NEW.created, 'kind', 'installed', 'order', NEW.id)::text); RETURN NULL;",
            ),
            PlantedBug::RepeatedOrder => ("BEFORE DELETE", "orders", format!("OLD.{machine}"), "RETURN NULL;"),
            PlantedBug::RepeatedToken => {
                ("BEFORE UPDATE", "epoch", "true".to_owned(), "NEW.sequence := least(NEW.sequence, 4); RETURN NEW;")
            }
            PlantedBug::LostReport | PlantedBug::UnguardedStart => return None,
        };
        Some(format!(
            "CREATE FUNCTION planted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$; \
             CREATE TRIGGER planted {timing} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION planted()"
        ))
    }
}
