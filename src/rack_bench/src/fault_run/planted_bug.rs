//! Planted bugs: defects of the network or of the database that the checker must find. Each of them affects either the
//! machine [`AFFECTED_MACHINE`] or all machines.

use super::history_checker::HistoryInvariant;
use super::machine_lifecycle::machine_address;
use super::planted_false_acknowledgements::TamperedRequest;
use clap::ValueEnum;

/// Number of the machine that some planted bugs affect. This machine loses power during its reinstall, and a delayed
/// request of its first boot arrives after its second boot has passed the point of no return.
const AFFECTED_MACHINE: u32 = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlantedBug {
    /// The report of a reinstall is acknowledged without being stored.
    LostReport,
    /// A boot is permitted to pass the point of no return without asking the server, even if another boot has
    /// replaced it.
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

    /// Returns the request that the load balancer acknowledges without forwarding it; `None` if the bug is in the
    /// database.
    pub fn tampered_request(self) -> Option<TamperedRequest> {
        let request =
            |path, contains| Some(TamperedRequest { path, contains, client: machine_address(AFFECTED_MACHINE) });
        match self {
            PlantedBug::LostReport => request("/report", "\"success\":true"),
            PlantedBug::UnguardedStart => request("/point-of-no-return", ""),
            _ => None,
        }
    }

    /// Returns the SQL statements that create a trigger in the database; `None` if the bug is in the network.
    pub fn trigger(self) -> Option<String> {
        let machine = format!("machine LIKE '%-{AFFECTED_MACHINE:012}'");
        let (timing, table, condition, body) = match self {
            // The trigger runs when the first attempt is counted, which is after the order was acknowledged.
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
