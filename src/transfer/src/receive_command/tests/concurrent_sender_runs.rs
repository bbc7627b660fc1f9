//! Several concurrent or consecutive runs of a sender: disks that belong together must be received from the same run.

use super::*;
use crate::protocol::send::{SendResult, send_disk};
use crate::protocol::{SenderRun, TransferHello};
use crate::source_disk::TransferSource;

/// Sends a disk over one connection of a run. Connections are dropped after these numbers of bytes.
fn connection(
    directory: &CertificateDirectory,
    port: &str,
    run: &SenderRun,
    (name, file): (&str, &Path),
    cuts: &[usize],
) -> Result<SendResult, ConnectionEnd> {
    let (address, _) = wire(port, cuts);
    let ends = crate::load_endpoints(&directory.common("a", "b"), None).unwrap();
    let mut link = TlsLink::connect(&address, &ends, Duration::from_secs(5)).unwrap();
    let source = TransferSource::open_source(file, false).unwrap();
    let hello = TransferHello {
        name: name.to_owned(),
        magic: None,
        size_bytes: source.size_bytes,
        sector_bytes: source.sector_bytes,
        has_table: source.has_table(),
        run: Some(run.clone()),
    };
    send_disk(&mut link, &source, &hello)
}

fn run_of(disks: &[&str]) -> SenderRun {
    SenderRun { id: uuid::Uuid::new_v4(), disks: disks.iter().map(|&disk| disk.to_owned()).collect() }
}

/// Starts a receiver of the disks "a" and "b". While it runs, calls `happens` with the receiver's address and a
/// function that returns whether the receiver is still running.
fn while_two_are_awaited(directory: &CertificateDirectory, happens: impl FnOnce(&str, &dyn Fn() -> bool)) {
    let [b_a, b_b] = ["ba", "bb"].map(|name| directory.file(name, &vec![7; 25 * MIB]));
    let receive = directory.receive(&[&format!("a={}", path(&b_a)), &format!("b={}", path(&b_b))]);
    let waiting = TransferReceiver::from_options(&receive).unwrap();
    let port = ListeningPort::open(&receive.at).unwrap();
    let ends = crate::load_endpoints(&receive.common, None).unwrap();
    thread::scope(|scope| {
        let whole =
            scope.spawn(|| waiting.receive_all(&port, Duration::from_secs(20), &|_| Ok(()), || Ok(ends.clone())));
        let still_waits = || {
            thread::sleep(Duration::from_millis(300));
            !whole.is_finished()
        };
        happens(&port.address, &still_waits);
        whole.join().unwrap().unwrap();
    });
}

/// `send` has ended, its disks were modified, and `send` was started again with the same certificate.
#[test]
fn two_runs_of_a_sender_never_mix_two_states() {
    let directory = CertificateDirectory::new();
    let (mut whole, mut cut) = (disk(3 * MIB), disk(24 * MIB));
    cut[..8 * MIB].fill(0x55);
    let [a, b] = [directory.file("a", &whole), directory.file("b", &cut)];
    while_two_are_awaited(&directory, |port, _| {
        let first = run_of(&["a", "b"]);
        connection(&directory, port, &first, ("a", &a), &[]).unwrap();
        let stopped = connection(&directory, port, &first, ("b", &b), &[6 * MIB]).unwrap_err();
        assert!(matches!(stopped, ConnectionEnd::Interrupted(_)), "{stopped:?}");
        whole[2 * MIB] ^= 1;
        cut[3 * MIB..3 * MIB + 70_000].fill(0);
        cut[5 * MIB] ^= 1;
        let disks = [("a", directory.file("a", &whole)), ("b", directory.file("b", &cut))];
        let send = directory
            .send(&disks.each_ref().map(|(name, file)| format!("{name}={}", path(file))).each_ref().map(|s| &**s));
        assert_eq!(send_command::run_send(&SendOptions { to: port.to_owned(), ..send }).unwrap(), CommandOutcome::Good);
    });
    for (name, wanted) in [("ba", whole), ("bb", cut)] {
        assert!(fs::read(directory.path(name)).unwrap().starts_with(&wanted), "{name}");
    }
}

/// A second run starts while the first one is still running. The receiver must then refuse the first run; otherwise the
/// two runs would endlessly restart each other's transfer.
#[test]
fn replaced_sender_is_informed() {
    let directory = CertificateDirectory::new();
    let (first, second) = (disk(24 * MIB), disk(24 * MIB).into_iter().rev().collect::<Vec<_>>());
    let [one, other] = [directory.file("one", &first), directory.file("other", &second)];
    while_two_are_awaited(&directory, |port, still_waits| {
        let (earlier, later) = (run_of(&["a", "b"]), run_of(&["a", "b"]));
        for (run, file) in [(&earlier, &one), (&later, &other)] {
            let stopped = connection(&directory, port, run, ("a", file), &[2 * MIB]).unwrap_err();
            assert!(matches!(stopped, ConnectionEnd::Interrupted(_)), "{stopped:?}");
        }
        let stopped = connection(&directory, port, &earlier, ("a", &one), &[]).unwrap_err();
        assert!(matches!(&stopped, ConnectionEnd::Refused(why) if why.contains("another sender")), "{stopped:?}");
        assert!(still_waits());
        for name in ["a", "b"] {
            connection(&directory, port, &later, (name, &other), &[]).unwrap();
        }
    });
    for name in ["ba", "bb"] {
        assert!(fs::read(directory.path(name)).unwrap().starts_with(&second), "{name}");
    }
}

#[test]
fn runs_with_different_disks_are_complete_together() {
    let directory = CertificateDirectory::new();
    let file = directory.file("one", &disk(2 * MIB));
    let (of_a, of_b, of_both) = (run_of(&["a"]), run_of(&["b"]), run_of(&["a", "b"]));
    while_two_are_awaited(&directory, |port, still_waits| {
        connection(&directory, port, &of_a, ("a", &file), &[]).unwrap();
        assert!(still_waits());
        connection(&directory, port, &of_b, ("b", &file), &[]).unwrap();
    });
    while_two_are_awaited(&directory, |port, still_waits| {
        connection(&directory, port, &of_a, ("a", &file), &[]).unwrap();
        connection(&directory, port, &of_both, ("b", &file), &[]).unwrap();
        assert!(still_waits(), "the disk may have changed since, and must be received again");
        connection(&directory, port, &of_both, ("a", &file), &[]).unwrap();
    });
}
