//! Rows of rollouts and of their members. A rollout can have thousands of members, so a function reads only those that
//! its caller needs.

use super::{MemberState, Rollout, RolloutMember, RolloutState};
use crate::json_columns::{parse_column, to_json_column};
use crate::sql::{self, Connection, OptionalExtension, Row, Transaction, Value, params};

/// Maximum number of rows that one statement stores, or for which it searches. With PostgreSQL, one statement for each
/// row would take many times as long, and meanwhile the transaction excludes the other servers.
const ROWS_PER_STATEMENT: usize = 200;

/// Stores a member. Inserts a new member, or updates an existing one.
pub(super) fn store_member(
    transaction: &Transaction,
    rollout: i64,
    number: usize,
    member: &RolloutMember,
) -> sql::Result<()> {
    store_members(transaction, rollout, &[(number, member)])
}

/// Stores members, as [`store_member`] does.
pub(super) fn store_members(
    transaction: &Transaction,
    rollout: i64,
    members: &[(usize, &RolloutMember)],
) -> sql::Result<()> {
    for members in members.chunks(ROWS_PER_STATEMENT) {
        let mut values = Vec::new();
        let mut rows = Vec::new();
        for (number, member) in members {
            let first = values.len() + 1;
            rows.push(format!("({})", list_parameters(first..first + 5)));
            let number = i64::try_from(*number).unwrap_or(i64::MAX);
            let (state, document) = (to_json_column(&member.state)?, to_json_column(&member.record)?);
            values.extend(params![rollout, number, member.machine, state, document]);
        }
        let upsert = format!(
            "INSERT INTO rollout_members (rollout, number, machine, state, document) VALUES {rows}
             ON CONFLICT (rollout, number) DO UPDATE SET state = excluded.state, document = excluded.document",
            rows = rows.join(", ")
        );
        transaction.execute(&upsert, values)?;
    }
    Ok(())
}

/// Returns the parameters with these numbers: `?1, ?2`.
fn list_parameters(numbers: std::ops::Range<usize>) -> String {
    numbers.map(|number| format!("?{number}")).collect::<Vec<_>>().join(", ")
}

/// Parses a column that must contain a value.
pub(super) fn parse_required<T: serde::de::DeserializeOwned>(row: &Row, column: usize) -> sql::Result<T> {
    let missing = || sql::Error::Unsuitable(format!("column {column} of a rollout is empty"));
    parse_column(row, column)?.ok_or_else(missing)
}

/// Returns the state of a rollout.
pub(super) fn read_state(connection: &Connection, id: i64) -> sql::Result<Option<RolloutState>> {
    let select = "SELECT state FROM rollouts WHERE id = ?1";
    connection.query_row(select, [id], |row| parse_required(row, 0)).optional()
}

/// Returns a rollout with all its members.
pub(super) fn read_rollout(connection: &Connection, id: i64) -> sql::Result<Option<Rollout>> {
    let select = "SELECT state, document FROM rollouts WHERE id = ?1";
    let read = |row: &Row| {
        let (state, record) = (parse_required(row, 0)?, parse_required(row, 1)?);
        Ok(Rollout { id, state, record, members: Vec::new() })
    };
    let Some(mut rollout) = connection.query_row(select, [id], read).optional()? else { return Ok(None) };
    let select = "SELECT machine, state, document FROM rollout_members WHERE rollout = ?1 ORDER BY number";
    rollout.members = connection.prepare_cached(select)?.query_map([id], read_row)?.collect::<sql::Result<_>>()?;
    Ok(Some(rollout))
}

/// Returns a member.
pub(super) fn read_member(connection: &Connection, id: i64, number: usize) -> sql::Result<Option<RolloutMember>> {
    let select = "SELECT machine, state, document FROM rollout_members WHERE rollout = ?1 AND number = ?2";
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    connection.query_row(select, [id, number], read_row).optional()
}

fn read_row(row: &Row) -> sql::Result<RolloutMember> {
    Ok(RolloutMember { machine: row.get(0)?, state: parse_required(row, 1)?, record: parse_required(row, 2)? })
}

/// Returns the members in progress, with their numbers, in their order.
pub(super) fn list_members_in_progress(connection: &Connection, id: i64) -> sql::Result<Vec<(usize, RolloutMember)>> {
    let select = "SELECT machine, state, document, number FROM rollout_members
         WHERE rollout = ?1 AND state IN (?2, ?3) ORDER BY number";
    let read = |row: &Row| {
        let number = row.get::<_, i64>(3)?;
        Ok((usize::try_from(number).unwrap_or(usize::MAX), read_row(row)?))
    };
    let states = [to_json_column(&MemberState::Ordered)?, to_json_column(&MemberState::Installing)?];
    connection.prepare_cached(select)?.query_map(params![id, states[0], states[1]], read)?.collect()
}

/// Returns a machine of the list that is waiting or in progress in a rollout, and the id of this rollout.
pub(super) fn find_open_membership(transaction: &Transaction, machines: &[&str]) -> sql::Result<Option<(String, i64)>> {
    let open = [MemberState::Waiting, MemberState::Ordered, MemberState::Installing];
    let open = open.iter().map(to_json_column).collect::<sql::Result<Vec<String>>>()?;
    for machines in machines.chunks(ROWS_PER_STATEMENT) {
        let texts = open.iter().map(String::as_str).chain(machines.iter().copied());
        let values: Vec<Value> = texts.map(|text| Value::Text(text.to_owned())).collect();
        let select = format!(
            "SELECT machine, rollout FROM rollout_members WHERE state IN (?1, ?2, ?3) AND machine IN ({machines})",
            machines = list_parameters(open.len() + 1..values.len() + 1)
        );
        let memberships = transaction.prepare(&select)?.query_map(values, |row| Ok((row.get(0)?, row.get(1)?)))?;
        let memberships = memberships.collect::<sql::Result<Vec<(String, i64)>>>()?;
        if let Some(newest) = memberships.into_iter().max_by_key(|(_, rollout)| *rollout) {
            return Ok(Some(newest));
        }
    }
    Ok(None)
}

/// Returns the ids of rollouts, the newest first.
pub(super) fn list_ids(connection: &Connection, only_active: bool) -> sql::Result<Vec<i64>> {
    let select = match only_active {
        true => "SELECT id FROM rollouts WHERE active = 1 ORDER BY id DESC",
        false => "SELECT id FROM rollouts ORDER BY id DESC",
    };
    connection.prepare_cached(select)?.query_map([], |row| row.get(0))?.collect()
}

/// Transfers the memberships of a machine to its new id.
pub(crate) fn rename_member(transaction: &Transaction, old: &str, new: &str) -> sql::Result<()> {
    let update = "UPDATE rollout_members SET machine = ?2 WHERE machine = ?1";
    transaction.execute(update, [old, new]).map(drop)
}
