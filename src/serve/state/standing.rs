//! How far an allocation has come: what has begun, what is installed, what is ordered, how the last reinstall ended.

use super::proof::BegunAttempt;
use super::{Hash, State, confirmed, epoch, moves, now, strangers, unremembered};
use crate::error::Result;
use crate::facts::PreparedVolume;
use crate::layout::Layout;
use crate::marker::{AttemptRecord, FencingToken, MarkedDisk, Marker};
use crate::serve::approved::Approval;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// How far an allocation has come.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Standing {
    /// When the database first knew the allocation; empty before.
    pub created: String,
    pub succeeded: bool,
    /// The operator has reported it as installed, and the machine has not yet.
    pub adopted: bool,
    /// Install marker that the operator was shown when adopting the allocation.
    pub adopted_marker: Option<Marker>,
    /// The installation is known only from an adopted install marker: image, disks and volumes are claims of the disk.
    pub is_claimed: bool,
    /// Id of the installed image; databases of earlier versions do not have it.
    pub image: Option<String>,
    /// The installed layout, as it was handed out; databases of earlier versions have only its id.
    pub layout: Option<Value>,
    /// Id of the layout that was handed out last.
    pub layout_id: Option<String>,
    /// What was handed out last.
    pub handed_out: Option<Given>,
    pub marker: Option<Marker>,
    pub order: Option<Order>,
    pub outcome: Option<Outcome>,
    /// A first installation that has passed its point of no return and is not finished.
    pub first: Option<First>,
    /// A marker of this allocation that the machine has found and does not believe. It waits for the operator's word.
    pub waits: Option<Marker>,
    /// Volumes of Kubernetes that the last installation has reported.
    pub volumes: Vec<PreparedVolume>,
    /// The other machine id under which this allocation is installed. Then this machine must not have it.
    pub elsewhere: Option<String>,
    /// The allocation has been moved away from this machine, or something else has been copied over it: it is not to be had from its
    /// disks any more.
    pub barred: bool,
    /// The database was restored from a backup, and its record of the machine is not confirmed since.
    pub unconfirmed: bool,
    /// Fencing token of the first installation; none before it was handed out, and in databases of earlier versions.
    pub fencing: Option<FencingToken>,
    /// Ids that the machine had before.
    pub former: Vec<String>,
    /// An installation on the machine may have been forgotten with a lost database.
    pub unremembered: bool,
    /// The layout that a template makes of what the machine has registered, or why it cannot.
    pub generated: Option<Result<Layout, String>>,
    /// The approval of the machine's next installation, or why it cannot be used.
    pub approved: Option<Result<Arc<Approval>, String>>,
}

impl Standing {
    /// Is it installed, as the machine or the operator has reported?
    pub fn is_installed(&self) -> bool {
        self.succeeded || self.adopted
    }

    /// Returns the standing as the agent of an unconfirmed machine sees it: an order is withheld, and what is installed boots.
    pub fn without_unconfirmed_order(self) -> Standing {
        match self.unconfirmed && self.is_installed() {
            true => Standing { order: None, ..self },
            false => self,
        }
    }

    /// The layout that an installation has begun with. It goes on with it whatever the files say: it may be finished, its report
    /// lost.
    pub fn pinned(&self) -> Option<&Value> {
        let given = self.handed_out.as_ref()?;
        let begun = match &self.order {
            Some(order) => order.begun && given.order == order.id,
            None => !self.succeeded && self.first.as_ref().is_some_and(|first| !first.heard),
        };
        begun.then_some(&given.layout)
    }
}

/// A layout as it was handed out to a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    pub layout: Value,
    /// Id of the order that it was handed out for; empty for a first installation.
    pub order: String,
}

/// A first installation that has begun.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct First {
    pub disks: Vec<MarkedDisk>,
    /// Token of the boot that has begun last, as a hash.
    pub by: Hash,
    /// No earlier boot has begun.
    pub only: bool,
    /// That boot has reported that it has failed.
    pub heard: bool,
    /// Record of its secret; none from an agent that sends no digest, and in databases of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<AttemptRecord>,
}

impl First {
    /// Returns the attempt that has begun last.
    pub fn attempt(&self) -> BegunAttempt {
        BegunAttempt { by: self.by, record: self.record.clone() }
    }
}

/// What the operator's order says beyond the image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Words {
    #[serde(default)]
    pub without_marker: bool,
    #[serde(default)]
    pub change_promise: bool,
    #[serde(default)]
    pub give_up: Vec<String>,
    #[serde(default)]
    pub replace_newer: bool,
}

/// An order to reinstall that is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Order {
    pub id: String,
    /// Id of the image.
    pub image: String,
    pub created: String,
    /// Number of attempts that were counted.
    pub attempts: u32,
    /// An attempt has reported that it passes the point of no return. It may never have received the answer.
    pub begun: bool,
    pub without_marker: bool,
    /// The layout file counts, even if it promises other things of a disk than the installed layout.
    #[serde(default)]
    pub change_promise: bool,
    /// Serial numbers of disks whose data are given up.
    #[serde(default)]
    pub give_up: Vec<String>,
    /// The installation on the disks is replaced even if it is newer than the order.
    #[serde(default)]
    pub replace_newer: bool,
    /// Fencing token; not shown to people.
    #[serde(skip)]
    pub fencing: Option<FencingToken>,
    /// The operator has placed or confirmed it since the database was last restored; not shown to people.
    #[serde(skip)]
    pub confirmed: bool,
    /// The disks of the last attempt that has begun; not shown to people.
    #[serde(skip)]
    pub disks: Vec<MarkedDisk>,
    /// Attempt that has begun last; none if this server has seen none begin. Not shown to operators.
    #[serde(skip)]
    pub attempt: Option<BegunAttempt>,
    /// The order has begun and gets no further attempt: the machine waits for a person.
    pub given_up: bool,
    /// When the last attempt was counted, until a boot registers for it; not shown to people.
    #[serde(skip)]
    pub handed: Option<String>,
}

/// How the last reinstall ended, or its last attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Outcome {
    /// Id of the order.
    pub order: String,
    /// Id of the image.
    pub image: String,
    pub success: bool,
    pub message: String,
    /// RFC 3339, UTC.
    pub time: String,
}

impl Outcome {
    pub fn of(order: &Order, success: bool, message: impl Into<String>) -> Outcome {
        let Order { id, image, .. } = order.clone();
        Outcome { order: id, image, success, message: message.into(), time: now() }
    }
}

/// Record of an allocation that was handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedOutRecord {
    /// Time of the first record of the allocation, as RFC 3339 in UTC.
    pub created: String,
    /// Fencing token of its first installation.
    pub fencing: Option<FencingToken>,
}

/// What a machine is given to install.
pub struct HandedOut<'a> {
    pub layout_id: &'a str,
    pub layout: &'a Value,
    /// Id of the image.
    pub image: &'a str,
    /// Id of the order; empty for a first installation.
    pub order: &'a str,
}

impl State {
    /// How far the allocation has come.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn standing(&self, machine: &str, allocation: &str) -> Result<Standing> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        self.run(move |connection| read(connection, &machine, &allocation)).await
    }

    /// Of many machines with their allocations.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn standings(&self, all: Vec<(String, String)>) -> Result<Vec<Standing>> {
        self.run(move |connection| all.iter().map(|(machine, id)| read(connection, machine, id)).collect()).await
    }

    /// [`State::standing`] for threads.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub fn standing_blocking(&self, machine: &str, allocation: &str) -> Result<Standing> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        // As of one moment, also where another process writes.
        self.run_blocking(move |connection| {
            let moment = connection.transaction()?;
            read(&moment, &machine, &allocation)
        })
    }

    /// Remembers what was handed out last.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn handed_out(&self, machine: &str, allocation: &str, what: HandedOut<'_>) -> Result<HandedOutRecord> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        let (id, document, image) = (what.layout_id.to_owned(), what.layout.to_string(), what.image.to_owned());
        let order = what.order.to_owned();
        // The report of success makes this the installed layout. It must find it, even if the server's power fails in between.
        self.durably(move |transaction| {
            transaction.execute(
                "INSERT OR REPLACE INTO layouts (machine, allocation, layout, document, image, for_order)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![machine, allocation, id, document, image, order],
            )?;
            transaction.execute(
                "INSERT OR IGNORE INTO allocations (machine, id, created) VALUES (?1, ?2, ?3)",
                params![machine, allocation, now()],
            )?;
            // The machine's file may have come while the machine waited.
            strangers::is_known(transaction, &machine)?;
            let fencing = epoch::token_of_allocation(transaction, &machine, &allocation)?;
            let select = "SELECT created FROM allocations WHERE machine = ?1 AND id = ?2";
            let created = transaction.query_row(select, [&machine, &allocation], |row| row.get(0))?;
            Ok(HandedOutRecord { created, fencing })
        })
        .await
    }
}

const ELSEWHERE: &str = "SELECT machine FROM allocations WHERE id = ?2 AND machine <> ?1 AND succeeded = 1 LIMIT 1";

/// Reads the standing as of one moment: the caller holds the connection.
pub fn read(connection: &Connection, machine: &str, allocation: &str) -> rusqlite::Result<Standing> {
    let key = [machine, allocation];
    let select = "SELECT created, succeeded, a.image, a.layout, l.layout, marker, outcome, begun, document, for_order,
         adopted IS NOT NULL, waits, volumes, fencing, adopted_marker
         FROM allocations a LEFT JOIN layouts l ON l.machine = a.machine AND l.allocation = a.id
         WHERE a.machine = ?1 AND a.id = ?2";
    let standing = connection.query_row(select, key, |row| {
        let (succeeded, is_adopted) = (row.get(1)?, row.get(10)?);
        Ok(Standing {
            created: row.get(0)?,
            succeeded,
            adopted: is_adopted && !succeeded,
            is_claimed: is_adopted && succeeded,
            adopted_marker: parsed(row, 14)?,
            image: row.get(2)?,
            layout: parsed(row, 3)?,
            layout_id: row.get(4)?,
            marker: parsed(row, 5)?,
            outcome: parsed(row, 6)?,
            first: parsed(row, 7)?,
            waits: parsed(row, 11)?,
            volumes: parsed(row, 12)?.unwrap_or_default(),
            fencing: parsed(row, 13)?,
            handed_out: match parsed(row, 8)? {
                Some(layout) => Some(Given { layout, order: row.get::<_, Option<_>>(9)?.unwrap_or_default() }),
                None => None,
            },
            ..Standing::default()
        })
    });
    let mut standing = standing.optional()?.unwrap_or_default();
    if !standing.succeeded {
        standing.elsewhere = connection.query_row(ELSEWHERE, key, |row| row.get(0)).optional()?;
    }
    standing.unremembered = unremembered::is_unremembered(connection, machine)?;
    standing.barred = moves::is_barred(connection, machine, allocation)?;
    standing.unconfirmed = confirmed::needs_confirmation(connection, machine)?;
    let mut former = connection.prepare_cached("SELECT former FROM former WHERE machine = ?1 ORDER BY former")?;
    standing.former = former.query_map([machine], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let select = "SELECT id, image, created, attempts, begun, without_marker, given_up, disks, words, handed, fencing,
             attempt
         FROM orders WHERE machine = ?1 AND allocation = ?2";
    let order = connection.query_row(select, key, |row| {
        let Words { change_promise, give_up, replace_newer, .. } = parsed(row, 8)?.unwrap_or_default();
        let fencing: Option<FencingToken> = parsed(row, 10)?;
        let database = fencing.as_ref().map(|token| token.database.as_str());
        Ok(Order {
            replace_newer,
            confirmed: confirmed::is_confirmed_order(connection, machine, database)?,
            fencing,
            id: row.get(0)?,
            image: row.get(1)?,
            created: row.get(2)?,
            attempts: row.get(3)?,
            // In databases of earlier versions, this column has the number of an attempt.
            begun: row.get::<_, u32>(4)? > 0,
            without_marker: row.get(5)?,
            given_up: row.get(6)?,
            disks: parsed(row, 7)?.unwrap_or_default(),
            attempt: parsed(row, 11)?,
            change_promise,
            give_up,
            handed: row.get(9)?,
        })
    });
    standing.order = order.optional()?;
    Ok(standing)
}

/// Parses a column of JSON. A value that cannot be parsed must not pass for absent: another layout would be used.
pub fn parsed<T: DeserializeOwned>(row: &Row, column: usize) -> rusqlite::Result<Option<T>> {
    let Some(text) = row.get::<_, Option<String>>(column)? else { return Ok(None) };
    let value = serde_json::from_str(&text);
    value.map(Some).map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::state::schema;

    /// Of a rack of ten thousand it is asked ten thousand times.
    #[test]
    fn no_allocation_is_looked_for_in_the_whole_table() {
        let mut connection = Connection::open_in_memory().unwrap();
        schema::bring_up_to_date(&mut connection).unwrap();
        let explain = format!("EXPLAIN QUERY PLAN {ELSEWHERE}");
        let how: String = connection.query_row(&explain, ["m", "a"], |row| row.get(3)).unwrap();
        assert_eq!(how, "SEARCH allocations USING INDEX allocations_by_id (id=?)");
    }
}
