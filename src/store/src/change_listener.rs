//! Notifications about changes that other servers have committed to a shared PostgreSQL database.

use crate::sql::postgres::session::{accepts_writes, connect};
use crate::store_address::PostgresAddress;
use common::error::{Context, Phase, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio_postgres::AsyncMessage;

/// Name of the PostgreSQL channel (`NOTIFY`) through which servers notify each other.
pub(crate) const CHANNEL: &str = "drophammer";
/// Delay before the connection is opened again.
const RETRY: Duration = Duration::from_secs(1);

/// Starts the thread that receives notifications. The number in the channel changes with each notification of another
/// server. The number also changes with each new connection, because notifications may have been missed while there was
/// no connection. Notifications whose text is `own` are ignored: this server has sent them, and has already woken its
/// own requests. The thread ends when all receivers are dropped.
///
/// # Errors
/// Returns an error if the thread cannot be started.
pub(crate) fn start_listener(address: PostgresAddress, own: String) -> Result<watch::Receiver<u64>> {
    let (changes, receiver) = watch::channel(0);
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

async fn listen_forever(address: &PostgresAddress, own: &str, changes: &Arc<watch::Sender<u64>>) {
    loop {
        let (told, own) = (changes.clone(), own.to_owned());
        let on_message = move |message| {
            if matches!(&message, AsyncMessage::Notification(notification) if notification.payload() != own) {
                told.send_modify(|number| *number += 1);
            }
        };
        if let Ok(client) = connect(address, on_message).await
            && client.batch_execute(&format!("LISTEN {CHANNEL}")).await.is_ok()
        {
            changes.send_modify(|number| *number += 1);
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
