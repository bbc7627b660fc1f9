//! Notifications about changes that other servers have committed to a shared PostgreSQL database.

use crate::change_scope::ChangeScope;
use crate::sql::postgres::session::{accepts_writes, connect};
use crate::store_address::PostgresAddress;
use common::error::{Context, Phase, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio_postgres::AsyncMessage;

/// Name of the PostgreSQL channel (`NOTIFY`) through which servers notify each other.
pub(crate) const CHANNEL: &str = "drophammer";
/// Delay before the connection is opened again.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum number of changes of single machines that are stored for slow receivers.
const STORED_CHANGES: usize = 4096;

/// Changes that other servers have committed, in the order of their notifications.
#[derive(Debug, Default)]
pub(crate) struct ChangeFeed {
    /// Number of the latest change.
    latest: u64,
    /// Number of the latest change that may affect all machines.
    latest_of_all: u64,
    /// Machines of the later changes, each with the number of its change.
    machines: VecDeque<(u64, String)>,
}

impl ChangeFeed {
    fn append(&mut self, scope: ChangeScope) {
        self.latest += 1;
        let number = self.latest;
        match scope {
            ChangeScope::All => {
                self.latest_of_all = number;
                self.machines.clear();
            }
            ChangeScope::Machines(machines) => {
                self.machines.extend(machines.into_iter().map(|machine| (number, machine)));
            }
        }
        let excess = self.machines.len().saturating_sub(STORED_CHANGES);
        // A receiver that has not received the dropped changes does not know their machines.
        self.latest_of_all = self.machines.drain(..excess).map(|(number, _)| number).fold(self.latest_of_all, u64::max);
    }

    /// Returns the scope of the changes after the change with the number `seen`; `None` if there are none.
    fn scope_since(&self, seen: u64) -> Option<ChangeScope> {
        if self.latest_of_all > seen {
            return Some(ChangeScope::All);
        }
        let unseen = self.machines.iter().rev().take_while(|(number, _)| *number > seen);
        (self.latest > seen).then(|| ChangeScope::Machines(unseen.map(|(_, machine)| machine.clone()).collect()))
    }
}

/// Receiver of the changes that other servers have committed. A new receiver also receives earlier changes.
pub struct ChangeReceiver {
    feed: watch::Receiver<ChangeFeed>,
    /// Number of the last received change.
    seen: u64,
}

impl ChangeReceiver {
    pub(crate) fn new(feed: watch::Receiver<ChangeFeed>) -> ChangeReceiver {
        ChangeReceiver { feed, seen: 0 }
    }

    /// Waits for changes since the last call, and returns their scope. Never returns if no thread receives
    /// notifications.
    pub(crate) async fn receive(&mut self) -> ChangeScope {
        loop {
            if let Some(scope) = self.take_unseen() {
                return scope;
            }
            if self.feed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn take_unseen(&mut self) -> Option<ChangeScope> {
        let feed = self.feed.borrow_and_update();
        let scope = feed.scope_since(self.seen);
        self.seen = feed.latest;
        scope
    }
}

/// Starts the thread that receives notifications, and appends them to the returned feed. A change of all machines is
/// also appended for each new connection, because notifications may have been missed while there was no connection.
/// Notifications of the server with the id `own` are ignored: this server has sent them, and has already woken its own
/// requests. The thread ends when all receivers are dropped.
///
/// # Errors
/// Returns an error if the thread cannot be started.
pub(crate) fn start_listener(address: PostgresAddress, own: String) -> Result<watch::Receiver<ChangeFeed>> {
    let (changes, receiver) = watch::channel(ChangeFeed::default());
    let changes = Arc::new(changes);
    let what = || "start the thread that listens for changes of the database";
    let runtime = Builder::new_current_thread().enable_all().build().context(Phase::Serve, what)?;
    let run = move || {
        runtime.block_on(async {
            tokio::select! {
                () = changes.closed() => {}
                () = listen_forever(&address, &own, &changes) => {}
            }
        });
    };
    std::thread::Builder::new().name("state-changes".to_owned()).spawn(run).context(Phase::Serve, what)?;
    Ok(receiver)
}

async fn listen_forever(address: &PostgresAddress, own: &str, changes: &Arc<watch::Sender<ChangeFeed>>) {
    loop {
        let (feed, own) = (changes.clone(), own.to_owned());
        let on_message = move |message| {
            let AsyncMessage::Notification(notification) = message else { return };
            if let Some(scope) = ChangeScope::parse_payload(notification.payload(), &own) {
                feed.send_modify(|feed| feed.append(scope));
            }
        };
        if let Ok(client) = connect(address, on_message).await
            && client.batch_execute(&format!("LISTEN {CHANNEL}")).await.is_ok()
        {
            changes.send_modify(|feed| feed.append(ChangeScope::All));
            // If the connection is lost, the task that reads it ends, which closes the client. Keepalives detect a peer
            // that no longer responds. A host that no longer accepts writes does not send the notifications of the
            // other servers.
            while !client.is_closed() && accepts_writes(&client).await {
                tokio::time::sleep(RETRY).await;
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machines(machines: &[&str]) -> Option<ChangeScope> {
        Some(ChangeScope::Machines(machines.iter().map(|machine| (*machine).to_owned()).collect()))
    }

    #[test]
    fn receiver_gets_all_changes_since_its_last_call() {
        let (changes, receiver) = watch::channel(ChangeFeed::default());
        let change = |machine: &str| changes.send_modify(|feed| feed.append(ChangeScope::from_machine(machine)));
        let mut receiver = ChangeReceiver::new(receiver);
        assert_eq!(receiver.take_unseen(), None);
        change("m");
        assert_eq!(receiver.take_unseen(), machines(&["m"]));
        change("n");
        change("m");
        assert_eq!((receiver.take_unseen(), receiver.take_unseen()), (machines(&["m", "n"]), None));
        change("o");
        changes.send_modify(|feed| feed.append(ChangeScope::All));
        change("p");
        assert_eq!((receiver.take_unseen(), receiver.take_unseen()), (Some(ChangeScope::All), None));
        change("q");
        assert_eq!(receiver.take_unseen(), machines(&["q"]));
    }

    #[test]
    fn slow_receiver_assumes_that_all_machines_have_changed() {
        let (changes, receiver) = watch::channel(ChangeFeed::default());
        let [mut slow, mut fast] = [receiver.clone(), receiver].map(ChangeReceiver::new);
        for number in 0..=STORED_CHANGES {
            let machine = format!("m{number}");
            changes.send_modify(|feed| feed.append(ChangeScope::from_machine(&machine)));
            assert_eq!(fast.take_unseen(), machines(&[&machine]));
        }
        assert_eq!(slow.take_unseen(), Some(ChangeScope::All));
        assert_eq!(changes.borrow().machines.len(), STORED_CHANGES);
    }
}
