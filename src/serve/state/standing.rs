//! How far an allocation is: what is begun, what is installed, what is ordered, how the last reinstall ended.

use super::{Hash, State, now, strangers};
use crate::error::Result;
use crate::marker::{MarkedDisk, Marker};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How far an allocation has come.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Standing {
    /// When it was first asked for; empty before.
    pub created: String,
    pub succeeded: bool,
    /// The operator says that it is installed, and the machine has not said so yet.
    pub adopted: bool,
    /// Id of the image that is installed; databases of before do not know it.
    pub image: Option<String>,
    /// The layout that is installed, as it was handed out; databases of before know its id only.
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
    /// The marker of this allocation that the machine has on a disk and does not believe: it waits for the operator's word.
    pub waits: Option<Marker>,
    /// The other machine id under which this allocation is installed; then it is not for this one.
    pub elsewhere: Option<String>,
    /// Ids that the machine had before.
    pub former: Vec<String>,
}

impl Standing {
    /// By the machine's word or by the operator's.
    pub fn is_installed(&self) -> bool {
        self.succeeded || self.adopted
    }

    /// What has begun and may be finished, its report lost, goes on with the layout that it began with, whatever the files say.
    pub fn pinned(&self) -> Option<&Value> {
        let given = self.handed_out.as_ref()?;
        let begun = match &self.order {
            Some(order) => order.begun && given.order == order.id,
            None => !self.succeeded && self.first.as_ref().is_some_and(|first| !first.heard),
        };
        begun.then_some(&given.layout)
    }
}

/// A layout as a machine was given it.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    pub layout: Value,
    /// Id of the order that it was given for; empty for a first installation.
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
    /// That boot has said that it has failed.
    pub heard: bool,
}

/// What the operator says beyond the image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Words {
    #[serde(default)]
    pub without_marker: bool,
    #[serde(default)]
    pub change_promise: bool,
    #[serde(default)]
    pub give_up: Vec<String>,
}

/// An order to reinstall that is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub id: String,
    /// Id of the image.
    pub image: String,
    pub created: String,
    /// How often the ramdisk was handed out for it.
    pub attempts: u32,
    /// The point of no return has been passed; or was to be, and the machine never heard the answer.
    pub begun: bool,
    pub without_marker: bool,
    /// The layout's file counts, also where it promises other things than what is installed.
    #[serde(default)]
    pub change_promise: bool,
    /// Serial numbers of disks whose data are given up.
    #[serde(default)]
    pub give_up: Vec<String>,
    /// Those of the last attempt that has begun; not for people.
    #[serde(skip)]
    pub disks: Vec<MarkedDisk>,
    /// Begun, and every attempt is used up: the machine waits for a person.
    pub given_up: bool,
    /// When the last attempt was counted, as long as no boot has registered for it; not for people.
    #[serde(skip)]
    pub handed: Option<String>,
}

/// How the last reinstall ended, or its last attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// What a machine was given to install.
pub struct HandedOut<'a> {
    pub layout_id: &'a str,
    pub layout: &'a Value,
    /// Id of the image.
    pub image: &'a str,
    /// Id of the order; empty for a first installation.
    pub order: &'a str,
}

impl State {
    /// How far the allocation is.
    ///
    /// # Errors
    /// The database's.
    pub async fn standing(&self, machine: &str, allocation: &str) -> Result<Standing> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        self.run(move |connection| read(connection, &machine, &allocation)).await
    }

    /// [`State::standing`] for threads.
    ///
    /// # Errors
    /// The database's.
    pub fn standing_blocking(&self, machine: &str, allocation: &str) -> Result<Standing> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        self.run_blocking(move |connection| read(connection, &machine, &allocation))
    }

    /// Remembers what was handed out last, and when the allocation was handed out first, which it returns.
    ///
    /// # Errors
    /// The database's.
    pub async fn handed_out(&self, machine: &str, allocation: &str, what: HandedOut<'_>) -> Result<String> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        let (id, document, image) = (what.layout_id.to_owned(), what.layout.to_string(), what.image.to_owned());
        let order = what.order.to_owned();
        // The report that makes this the installed layout must find it, also when the server's power fails in between.
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
            // Its file may have come while it waited.
            strangers::is_known(transaction, &machine)?;
            let select = "SELECT created FROM allocations WHERE machine = ?1 AND id = ?2";
            transaction.query_row(select, [&machine, &allocation], |row| row.get(0))
        })
        .await
    }
}

/// As one picture: the caller holds the connection.
pub fn read(connection: &Connection, machine: &str, allocation: &str) -> rusqlite::Result<Standing> {
    let key = [machine, allocation];
    let select = "SELECT created, succeeded, a.image, a.layout, l.layout, marker, outcome, begun, document, for_order,
         adopted IS NOT NULL AND succeeded = 0, waits
         FROM allocations a LEFT JOIN layouts l ON l.machine = a.machine AND l.allocation = a.id
         WHERE a.machine = ?1 AND a.id = ?2";
    let standing = connection.query_row(select, key, |row| {
        Ok(Standing {
            created: row.get(0)?,
            succeeded: row.get(1)?,
            image: row.get(2)?,
            layout: parsed(row, 3)?,
            layout_id: row.get(4)?,
            marker: parsed(row, 5)?,
            outcome: parsed(row, 6)?,
            first: parsed(row, 7)?,
            adopted: row.get(10)?,
            waits: parsed(row, 11)?,
            handed_out: match parsed(row, 8)? {
                Some(layout) => Some(Given { layout, order: row.get::<_, Option<_>>(9)?.unwrap_or_default() }),
                None => None,
            },
            ..Standing::default()
        })
    });
    let mut standing = standing.optional()?.unwrap_or_default();
    if !standing.succeeded {
        let select = "SELECT machine FROM allocations WHERE id = ?2 AND machine <> ?1 AND succeeded = 1 LIMIT 1";
        standing.elsewhere = connection.query_row(select, key, |row| row.get(0)).optional()?;
    }
    let mut former = connection.prepare_cached("SELECT former FROM former WHERE machine = ?1 ORDER BY former")?;
    standing.former = former.query_map([machine], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let select =
        "SELECT id, image, created, attempts, begun, without_marker, given_up, disks, words, handed FROM orders
         WHERE machine = ?1 AND allocation = ?2";
    let order = connection.query_row(select, key, |row| {
        let Words { change_promise, give_up, .. } = parsed(row, 8)?.unwrap_or_default();
        Ok(Order {
            id: row.get(0)?,
            image: row.get(1)?,
            created: row.get(2)?,
            attempts: row.get(3)?,
            // Databases of before have the number of an attempt there.
            begun: row.get::<_, u32>(4)? > 0,
            without_marker: row.get(5)?,
            given_up: row.get(6)?,
            disks: parsed(row, 7)?.unwrap_or_default(),
            change_promise,
            give_up,
            handed: row.get(9)?,
        })
    });
    standing.order = order.optional()?;
    Ok(standing)
}

/// A column of JSON. What is there and cannot be read must not pass for absent: another layout would be used.
fn parsed<T: DeserializeOwned>(row: &Row, column: usize) -> rusqlite::Result<Option<T>> {
    let Some(text) = row.get::<_, Option<String>>(column)? else { return Ok(None) };
    let value = serde_json::from_str(&text);
    value.map(Some).map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}
