//! Number of rollouts and of their members in each state, for metrics.

use super::records::parse_required;
use super::{MemberState, RolloutState};
use crate::ServerState;
use crate::sql::{self, Connection};
use common::error::Result;
use serde::de::DeserializeOwned;

/// Number of rollouts and members by state. States without rollouts or members are omitted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RolloutStatistics {
    pub rollouts: Vec<(RolloutState, i64)>,
    pub members: Vec<(MemberState, i64)>,
}

impl RolloutStatistics {
    /// Returns the number of rollouts in a state.
    pub fn count_rollouts(&self, state: RolloutState) -> i64 {
        self.rollouts.iter().find(|(counted, _)| *counted == state).map_or(0, |(_, count)| *count)
    }

    /// Returns the number of members in a state.
    pub fn count_members(&self, state: MemberState) -> i64 {
        self.members.iter().find(|(counted, _)| *counted == state).map_or(0, |(_, count)| *count)
    }
}

fn count_states<T: DeserializeOwned>(connection: &Connection, table: &str) -> sql::Result<Vec<(T, i64)>> {
    let select = format!("SELECT state, count(*) FROM {table} GROUP BY state");
    let counts = connection.prepare_cached(&select)?;
    counts.query_map([], |row| Ok((parse_required(row, 0)?, row.get(1)?)))?.collect()
}

impl ServerState {
    /// Counts the stored rollouts and their members.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn count_rollouts(&self) -> Result<RolloutStatistics> {
        self.read_committed(|connection| {
            let rollouts = count_states(connection, "rollouts")?;
            Ok(RolloutStatistics { rollouts, members: count_states(connection, "rollout_members")? })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollouts::{MemberRecord, RolloutChange, RolloutRecord};
    use std::time::Duration;

    #[tokio::test]
    async fn rollouts_and_members_are_counted_by_state() {
        let dir = tempfile::tempdir().unwrap();
        let state = ServerState::open(&dir.path().join("drophammer.sqlite"), Duration::ZERO).unwrap();
        assert_eq!(state.count_rollouts().await.unwrap(), RolloutStatistics::default());
        for (number, machines) in [["a", "b"], ["c", "d"]].into_iter().enumerate() {
            let members = machines.map(|machine| (machine.to_owned(), MemberRecord::default())).to_vec();
            state.create_rollout(RolloutRecord::default(), members).await.unwrap();
            if number == 0 {
                state.change_rollout(1, RolloutChange::Cancel("no".to_owned())).await.unwrap();
            }
        }
        let counted = state.count_rollouts().await.unwrap();
        assert_eq!(
            (counted.count_rollouts(RolloutState::Running), counted.count_members(MemberState::Waiting)),
            (1, 2)
        );
        assert_eq!(counted.count_members(MemberState::Skipped), 2);
        let all: i64 = RolloutState::ALL.into_iter().map(|state| counted.count_rollouts(state)).sum();
        let members: i64 = MemberState::ALL.into_iter().map(|state| counted.count_members(state)).sum();
        assert_eq!((all, members), (2, 4));
    }

    #[test]
    fn state_names_match_their_json() {
        for state in MemberState::ALL {
            assert_eq!(serde_json::json!(state), state.to_string());
        }
        for state in RolloutState::ALL {
            assert_eq!(serde_json::json!(state), state.to_string());
        }
    }
}
