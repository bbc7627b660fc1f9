//! Queries of rollouts and members for the server.

use super::records::{list_ids, list_members_in_progress, parse_required, read_member, read_rollout};
use super::schedule::next_member;
use super::summary::read_summary;
use super::{MemberRecord, Rollout, RolloutMember, RolloutSummary};
use crate::ServerState;
use crate::sql::{self, Connection, OptionalExtension, Row};
use common::error::Result;
use std::collections::BTreeSet;

fn read_summaries(connection: &Connection, only_active: bool) -> sql::Result<Vec<RolloutSummary>> {
    let ids = list_ids(connection, only_active)?;
    ids.into_iter().filter_map(|id| read_summary(connection, id).transpose()).collect()
}

/// Adds the images of the members to the summary of a rollout that an earlier version has stored.
fn complete_images(connection: &Connection, mut rollout: RolloutSummary) -> sql::Result<RolloutSummary> {
    if rollout.record.images.is_empty() {
        let select = "SELECT document FROM rollout_members WHERE rollout = ?1";
        let read = |row: &Row| parse_required::<MemberRecord>(row, 0).map(|record| record.image);
        let images = connection.prepare_cached(select)?.query_map([rollout.id], read)?;
        rollout.record.images = images.collect::<sql::Result<BTreeSet<String>>>()?.into_iter().collect();
    }
    Ok(rollout)
}

impl ServerState {
    /// Returns all rollouts, the newest first.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn list_rollouts(&self) -> Result<Vec<RolloutSummary>> {
        self.read_committed(|connection| {
            let rollouts = read_summaries(connection, false)?.into_iter();
            rollouts.map(|rollout| complete_images(connection, rollout)).collect()
        })
        .await
    }

    /// Returns the rollouts whose members can start or are in progress, the newest first.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn list_active_rollouts(&self) -> Result<Vec<RolloutSummary>> {
        self.run_job(|connection| read_summaries(connection, true)).await
    }

    /// Returns the rollout with this id.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn find_rollout(&self, id: i64) -> Result<Option<Rollout>> {
        self.read_committed(move |connection| read_rollout(connection, id)).await
    }

    /// Returns the newest rollout of which the machine is a member, and the member.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn find_membership(&self, machine: &str) -> Result<Option<(RolloutSummary, RolloutMember)>> {
        let machine = machine.to_owned();
        self.read_committed(move |connection| {
            let select =
                "SELECT rollout, number FROM rollout_members WHERE machine = ?1 ORDER BY rollout DESC, number LIMIT 1";
            let read = |row: &Row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
            let Some((id, number)) = connection.query_row(select, [machine], read).optional()? else {
                return Ok(None);
            };
            let member = read_member(connection, id, usize::try_from(number).unwrap_or(usize::MAX))?;
            Ok(read_summary(connection, id)?.zip(member))
        })
        .await
    }

    /// Returns the machines of a rollout.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn list_rollout_machines(&self, id: i64) -> Result<Vec<String>> {
        self.read_committed(move |connection| {
            let select = "SELECT machine FROM rollout_members WHERE rollout = ?1";
            connection.prepare_cached(select)?.query_map([id], |row| row.get(0))?.collect()
        })
        .await
    }

    /// Returns the members of a rollout that are in progress, with their numbers.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn list_members_in_progress(&self, id: i64) -> Result<Vec<(usize, RolloutMember)>> {
        self.run_job(move |connection| list_members_in_progress(connection, id)).await
    }

    /// Returns the member of a rollout that may start next, with its number; `None` if no member may start now.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn find_due_member(&self, id: i64) -> Result<Option<(usize, RolloutMember)>> {
        let time = self.shared_time();
        self.run_job(move |connection| {
            let due = read_summary(connection, id)?.and_then(|rollout| next_member(&rollout, time));
            let Some(number) = due else { return Ok(None) };
            Ok(read_member(connection, id, number)?.map(|member| (number, member)))
        })
        .await
    }
}
