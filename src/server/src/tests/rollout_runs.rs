//! Rollouts on twelve machines with simulated agents: one that runs to its end, one that stops after failures, and one
//! that is halted.

use super::*;
use common::command_outcome::CommandOutcome;

const PATH: &str = "/v1/rollouts/1";
const MACHINES: usize = 12;
/// Maximum number of machines in progress.
const WAVE: usize = 4;

/// Result that a simulated agent reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AgentResult {
    Installed,
    Failed,
}
use AgentResult::{Failed, Installed};

impl Running {
    /// Starts a server with twelve installed machines, and orders a rollout of all of them on the command line.
    async fn with_rollout(stop_after: &str) -> Running {
        let server = Running::with_several_installed(MACHINES, "").await;
        let select = ["reinstall", "--filter", "name=m*", "--image", "debian-13", "--yes", "12"];
        let limits = ["--at-most", "4", "--stop-after", stop_after];
        assert_eq!(server.machine(&[&select[..], &limits].concat()).await.unwrap(), CommandOutcome::Good);
        server
    }

    async fn view_rollout(&self) -> Value {
        self.v1("GET", PATH, &Value::Null).await.json()
    }

    /// Waits until the rollout has this state, and these numbers of members in each state.
    async fn until_counts(&self, state: &str, expected: &[(&str, u64)]) {
        let count = |view: &Value, name: &str| view["counts"][name].as_u64().unwrap();
        self.shows(PATH, |answer| {
            let view = answer.json();
            let current = count(&view, "ordered") + count(&view, "installing");
            assert!(current <= WAVE as u64, "{current} machines are in progress: {view}");
            view["state"] == state && counts(&view) == expected
        })
        .await;
    }

    /// Ends the reinstalls of these machines with this result.
    async fn end_members(&self, numbers: impl IntoIterator<Item = usize>, result: AgentResult) {
        for number in numbers {
            match result {
                Installed => self.installs_member(number).await,
                Failed => self.fails_member(number).await,
            }
        }
    }

    /// Returns the names of the machines with an open reinstall order, sorted by name.
    async fn ordered_machines(&self) -> Vec<String> {
        let all = self.v1("GET", "/v1/machines", &Value::Null).await.json();
        let ordered = all.as_array().unwrap().iter().filter(|machine| machine["order"].is_object());
        let mut names: Vec<String> = ordered.map(|machine| machine["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }
}

/// Returns the numbers of members in each state, such as `[("done", 11), ("failed", 1)]`.
fn counts(view: &Value) -> Vec<(&str, u64)> {
    let all = view["counts"].as_object().unwrap().iter();
    all.filter_map(|(name, count)| Some((name.as_str(), count.as_u64()?)).filter(|(_, count)| *count > 0)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollout_with_a_tolerated_failure_runs_to_its_end() {
    let server = Running::with_rollout("2").await;
    server.until_counts("running", &[("ordered", 4), ("waiting", 8)]).await;
    assert_eq!(server.ordered_machines().await, ["m1", "m2", "m3", "m4"], "in the order of the list");
    server.end_members([1, 2], Installed).await;
    server.end_members([3], Failed).await;
    server.end_members([4], Installed).await;
    server.until_counts("running", &[("done", 3), ("failed", 1), ("ordered", 4), ("waiting", 4)]).await;
    let (output, _) = server.rollout_output(&["show", "1"]).await;
    assert!(output.starts_with("rollout 1: running, 3 of 12 done, 4 in progress, 1 failed\n"), "{output}");
    assert!(output.contains("m3 ") && output.contains("no such disk"), "{output}");
    server.end_members(5..=8, Installed).await;
    server.until_counts("running", &[("done", 7), ("failed", 1), ("ordered", 4)]).await;
    server.end_members(9..=12, Installed).await;
    server.until_counts("finished", &[("done", 11), ("failed", 1)]).await;
    server.heard("rollout 1 has finished").await;
    let (output, outcome) = server.rollout_output(&["list"]).await;
    assert!(outcome == CommandOutcome::Good && output.contains("finished  11 of 12 done, 1 failed"), "{output}");
    assert_eq!(server.ordered_machines().await, [] as [&str; 0]);
    let machines = server.v1("GET", "/v1/machines", &Value::Null).await.json();
    let old = machines.as_array().unwrap().iter().filter(|machine| machine["image"] == "debian-12");
    assert_eq!(old.map(|machine| &machine["name"]).collect::<Vec<_>>(), ["m3"]);
    let (output, outcome) = server.rollout_output(&["resume", "1"]).await;
    assert!(outcome == CommandOutcome::Refused && output.contains("(DH-646)"), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollout_stops_after_two_failures_and_again_after_two_more() {
    let server = Running::with_rollout("2").await;
    server.until_counts("running", &[("ordered", 4), ("waiting", 8)]).await;
    server.end_members([1], Failed).await;
    server.until_counts("running", &[("failed", 1), ("ordered", 4), ("waiting", 7)]).await;
    server.end_members([2], Failed).await;
    server.until_counts("stopped", &[("failed", 2), ("ordered", 3), ("waiting", 7)]).await;
    server.end_members(3..=5, Installed).await;
    server.until_counts("stopped", &[("done", 3), ("failed", 2), ("waiting", 7)]).await;
    assert_eq!(server.ordered_machines().await, [] as [&str; 0], "no further reinstall is ordered");
    let (output, _) = server.rollout_output(&["show", "1"]).await;
    let head = "rollout 1: stopped, 3 of 12 done, 2 failed: 2 members have failed or were skipped, so no further";
    assert!(output.starts_with(head) && output.contains("drophammer rollout resume 1\n"), "{output}");

    let server = server.restarted().await;
    assert_eq!(server.rollout_output(&["resume", "1"]).await.1, CommandOutcome::Good);
    server.until_counts("running", &[("done", 3), ("failed", 2), ("ordered", 4), ("waiting", 3)]).await;
    server.end_members([6], Failed).await;
    server.until_counts("running", &[("done", 3), ("failed", 3), ("ordered", 4), ("waiting", 2)]).await;
    server.end_members([7], Failed).await;
    server.until_counts("stopped", &[("done", 3), ("failed", 4), ("ordered", 3), ("waiting", 2)]).await;
    assert_eq!(server.rollout_output(&["cancel", "1"]).await.1, CommandOutcome::Good);
    server.until_counts("canceled", &[("done", 3), ("failed", 4), ("skipped", 5)]).await;
    assert_eq!(server.ordered_machines().await, [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn halted_rollout_continues_after_it_is_resumed() {
    let server = Running::with_rollout("1").await;
    server.until_counts("running", &[("ordered", 4), ("waiting", 8)]).await;
    server.boots_member(1).await;
    let (output, outcome) = server.rollout_output(&["halt", "1"]).await;
    assert!(outcome == CommandOutcome::Good && output.starts_with("rollout 1: halted, "), "{output}");
    assert_eq!(server.ordered_machines().await.len(), WAVE, "machines in progress continue");
    server.end_members(1..=4, Installed).await;
    server.until_counts("halted", &[("done", 4), ("waiting", 8)]).await;
    let server = server.restarted().await;
    assert_eq!(server.view_rollout().await["state"], "halted", "a restart does not resume a rollout");
    assert_eq!(server.ordered_machines().await, [] as [&str; 0]);
    let (output, _) = server.rollout_output(&["list"]).await;
    assert!(output.contains("halted  4 of 12 done") && output.contains("halted by operator"), "{output}");

    assert_eq!(server.rollout_output(&["resume", "1"]).await.1, CommandOutcome::Good);
    server.until_counts("running", &[("done", 4), ("ordered", 4), ("waiting", 4)]).await;
    server.end_members(5..=8, Installed).await;
    server.until_counts("running", &[("done", 8), ("ordered", 4)]).await;
    // A rollout that is halted during its last wave has nothing left to resume.
    assert_eq!(server.rollout_output(&["halt", "1"]).await.1, CommandOutcome::Good);
    server.end_members(9..=12, Installed).await;
    server.until_counts("finished", &[("done", 12)]).await;
}
