//! Receives devices from the source machine of a migration.

use super::PlanExecutor;
use common::error::{Error, Phase, Result};
use control::ControlPlane;
use model::install_report::TransferProgress;
use model::machine_migration::{MigrationAnswer, MigrationPeer};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use transfer::machine_migration::{ControlSilence, IncomingMigration, SilenceState, TransferDevice};

/// Interval at which the agent requests the sender's certificate from the control plane. The certificate changes when
/// the sender reboots.
const CERTIFICATE_POLL_INTERVAL: Duration = Duration::from_secs(5);

const PROGRESS_CHECK_INTERVAL: Duration = Duration::from_millis(500);

impl PlanExecutor {
    /// Sets the receiver of a migration.
    pub(crate) fn set_incoming(&mut self, incoming: IncomingMigration) {
        self.incoming = Some(incoming);
    }

    /// Receives devices with the given total size. Fails if the control plane ends the migration. Returns the machine
    /// that has sent all devices.
    pub(super) fn receive_devices(
        &mut self,
        order: &str,
        devices: Vec<TransferDevice>,
        total_bytes: u64,
    ) -> Result<MigrationPeer> {
        let not_there = || {
            Error::new(
                Phase::Move,
                "the plan contains devices of the source machine, but the control plane has not announced the source machine",
            )
        };
        let incoming = self.incoming.take().ok_or_else(not_there)?;
        let arriving = incoming.open_devices(order, devices)?;
        let (control, reporter, over) = (&*self.control, &*self.reporter, AtomicBool::new(false));
        let (began, is_over) = (Instant::now(), || over.load(Ordering::Relaxed));
        let show = || {
            while !is_over() {
                thread::sleep(PROGRESS_CHECK_INTERVAL);
                reporter.report_progress(transfer_progress(arriving.received_bytes(), total_bytes, began.elapsed()));
            }
        };
        // Polls the control plane in a separate thread, since requests to an unreachable control plane are retried.
        let ask = || {
            let (mut last_poll, mut following) = (Instant::now(), MigrationWatch::default());
            while !is_over() {
                thread::sleep(PROGRESS_CHECK_INTERVAL);
                if last_poll.elapsed() > CERTIFICATE_POLL_INTERVAL {
                    following.update_from_control(control, order, &incoming, &|line| reporter.print_line(line));
                    last_poll = Instant::now();
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(show);
            scope.spawn(ask);
            let whole = arriving.receive_all(&|line| reporter.print_line(line));
            over.store(true, Ordering::Relaxed);
            whole
        })
    }
}

fn transfer_progress(bytes: u64, total_bytes: u64, elapsed: Duration) -> TransferProgress {
    let bytes_per_second = (bytes as f64 / elapsed.as_secs_f64().max(1.0)) as u64;
    let seconds_left = total_bytes.saturating_sub(bytes).checked_div(bytes_per_second);
    TransferProgress { bytes, total_bytes: Some(total_bytes), bytes_per_second, seconds_left }
}

/// Last message about the status of the migration, and the time since which the responses of the control plane do not
/// mention the migration.
#[derive(Default)]
struct MigrationWatch {
    last_message: String,
    silence: ControlSilence,
}

impl MigrationWatch {
    /// Requests the current sender and the state of the migration from the control plane. Ends the transfer if a
    /// response reports the end of the migration, or if responses do not mention the migration for ten minutes. A
    /// request without a response does not end the transfer, and restarts the ten minutes.
    fn update_from_control(
        &mut self,
        control: &dyn ControlPlane,
        order: &str,
        incoming: &IncomingMigration,
        say: &dyn Fn(&str),
    ) {
        let machine = match control.fetch_machine() {
            Ok(machine) => machine,
            Err(error) => {
                self.silence.reset();
                return tracing::warn!("{error}; the transfer from the source machine continues");
            }
        };
        let answer = machine.migration_status(order);
        if answer != MigrationAnswer::Unmentioned {
            self.silence.reset();
        }
        let now = match answer {
            MigrationAnswer::Role(moving) => {
                moving.carried.iter().for_each(|migrated_machine| incoming.compare_inventory(migrated_machine));
                if let Some(Err(error)) = moving.peer.as_ref().map(|peer| incoming.set_peer(peer)) {
                    tracing::warn!("{error}");
                }
                String::new()
            }
            MigrationAnswer::Waiting(state) => format!(
                "the migration is {state}, but the control plane does not specify the sender, possibly because the control plane cannot read the machine file of this \
                 machine; the transfer continues"
            ),
            MigrationAnswer::Done | MigrationAnswer::Ended => {
                return incoming.end_transfer(
                    "the control plane has ended the migration; the system on this machine is incomplete",
                );
            }
            MigrationAnswer::Unmentioned => match self.silence.record_silence() {
                SilenceState::TimedOut => {
                    return incoming.end_transfer("the control plane has not reported the migration for ten minutes");
                }
                _ => "the control plane does not report the migration; the transfer continues for at most ten minutes"
                    .to_owned(),
            },
        };
        if now != self.last_message && !now.is_empty() {
            say(&now);
        }
        self.last_message = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::fake_control_plane::FakeControl;
    use model::allocation::Allocation;
    use model::layout::FilesystemFormat;
    use model::machine_migration::{
        MigratedFilesystem, MigratedMachine, MigratedNic, MigrationOffer, MigrationSide, MigrationStatus,
    };
    use std::path::Path;
    use std::sync::Mutex;
    use transfer::machine_migration::OwnIdentity;

    /// Returns the receiver, and the messages for the operator, after these responses of the control plane.
    fn after(answers: &[(Option<&str>, bool)]) -> (IncomingMigration, Vec<String>) {
        let incoming = IncomingMigration::open_port(
            OwnIdentity::generate_identity(Path::new("/there/is/no/secret")).unwrap(),
            None,
        )
        .unwrap();
        let (messages, mut following) = (Mutex::new(Vec::new()), MigrationWatch::default());
        for (state, with_part) in answers {
            let order = "o1".to_owned();
            let part = MigrationOffer {
                order: order.clone(),
                part: MigrationSide::Target,
                started: true,
                awaits_approval: false,
                peer: None,
                carried: None,
                disks: vec![],
            };
            let allocation = with_part.then(|| Allocation { moving: Some(part), ..Allocation::default() });
            let newest_move = state.map(|state| MigrationStatus { order, state: state.to_owned() });
            let control = FakeControl { allocation, newest_move, ..FakeControl::default() };
            following
                .update_from_control(&control, "o1", &incoming, &|line| messages.lock().unwrap().push(line.to_owned()));
        }
        (incoming, messages.into_inner().unwrap())
    }

    /// The plan depends on the source's filesystems: it writes their ids into fstab, and creates devices of the
    /// announced sizes.
    #[test]
    fn changed_filesystems_of_the_source_end_the_copy() {
        let filesystem = |uuid: &str, size_bytes| MigratedFilesystem {
            device: "/dev/sda2".into(),
            format: FilesystemFormat::Ext4,
            uuid: uuid.to_owned(),
            size_bytes,
            sector_bytes: 512,
        };
        let nic = |mac: &str| MigratedNic { name: "eth0".to_owned(), mac: mac.to_owned() };
        let carries = |filesystem, mac| MigratedMachine {
            filesystems: vec![filesystem],
            nics: vec![nic(mac)],
            ..MigratedMachine::default()
        };
        let planned = carries(filesystem("u1", 1 << 30), "m1");
        for (now, is_over) in [
            (planned.clone(), false),
            (carries(filesystem("u1", 1 << 30), "m2"), false),
            (carries(filesystem("u2", 1 << 30), "m1"), true),
            (carries(filesystem("u1", 2 << 30), "m1"), true),
            (MigratedMachine::default(), true),
        ] {
            let own = OwnIdentity::generate_identity(Path::new("/there/is/no/secret")).unwrap();
            let incoming = IncomingMigration::open_port(own, Some(planned.clone())).unwrap();
            let part = MigrationOffer {
                order: "o1".to_owned(),
                part: MigrationSide::Target,
                started: true,
                awaits_approval: false,
                peer: None,
                carried: Some(now.clone()),
                disks: vec![],
            };
            let allocation = Some(Allocation { moving: Some(part), ..Allocation::default() });
            let control = FakeControl { allocation, ..FakeControl::default() };
            MigrationWatch::default().update_from_control(&control, "o1", &incoming, &|_| ());
            assert_eq!(incoming.is_over(), is_over, "{now:?}");
        }
    }

    #[test]
    fn missing_answer_is_logged_once_and_copy_continues() {
        let (incoming, messages) =
            after(&[(Some("copying"), true), (Some("copying"), false), (Some("copying"), false)]);
        assert_eq!((incoming.is_over(), messages.len()), (false, 1), "{messages:?}");
        assert!(messages[0].contains("the migration is copying"), "{messages:?}");
        let (incoming, messages) = after(&[(None, true), (None, false), (None, false), (None, true), (None, false)]);
        assert_eq!((incoming.is_over(), messages.len()), (false, 2), "{messages:?}");
        for state in ["cancelled", "refused", "done"] {
            assert!(after(&[(Some("copying"), true), (Some(state), false)]).0.is_over(), "{state}");
        }
    }
}
