//! Malicious senders, and connections that are superseded.

use super::super::frames::{Sha256Bytes, hash_bytes};
use super::super::receive_state::close_if_complete;
use super::*;
use crate::ganeti_certificate::PeerCertificate;
use crate::tls::TlsEndpoints;
use rcgen::{CertificateParams, KeyPair};
use std::fs;
use std::net::TcpListener;
use std::path::Path;

const SIZE: u64 = 3 << 20;

fn ends() -> (TlsEndpoints, TlsEndpoints) {
    let make = || {
        let key = KeyPair::generate().unwrap();
        let made = CertificateParams::default().self_signed(&key).unwrap();
        let pem = linux::pem_encoding::encode_pem("PRIVATE KEY", &key.serialize_der());
        (pem, PeerCertificate::from_der(made.der().clone()).unwrap())
    };
    let ((a, a_cert), (b, b_cert)) = (make(), make());
    (TlsEndpoints::new(&a, &a_cert, b_cert.clone()).unwrap(), TlsEndpoints::new(&b, &b_cert, a_cert).unwrap())
}

/// Sends these frames to a receiver. Returns the receiver's result, and its last frame.
fn exchange_frames(
    path: &Path,
    frames: &[ProtocolFrame],
) -> (Result<String, ConnectionEnd>, io::Result<ProtocolFrame>) {
    let (a, b) = ends();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let disks = [ReceivedDisk::open_disk(
        "0".to_owned(),
        (path.to_owned(), TransferDestination::open_destination),
        None,
        None,
        false,
    )
    .unwrap()];
    thread::scope(|scope| {
        let sending = scope.spawn(move || {
            let mut link = TlsLink::connect(&address, &a, Duration::from_secs(5)).unwrap();
            frames.iter().for_each(|frame| frames::write_frame(&mut link, frame).unwrap());
            let answer = frames::read_frame(&mut link);
            match answer {
                Ok(ProtocolFrame::Answer(HelloAnswer::From { .. })) if frames.len() > 1 => {
                    frames::read_frame(&mut link)
                }
                answer => answer,
            }
        });
        let mut link = TlsLink::accept(listener.accept().unwrap().0, &b).unwrap();
        let received = receive_disk(&mut link, &disks, b.peer_certificate());
        drop(link);
        (received, sending.join().unwrap())
    })
}

fn hello() -> ProtocolFrame {
    ProtocolFrame::Hello(TransferHello {
        name: "0".to_owned(),
        magic: None,
        size_bytes: SIZE,
        sector_bytes: 512,
        has_table: false,
        run: None,
    })
}

fn bytes(offset: u64, content: &[u8], sha256: Sha256Bytes) -> ProtocolFrame {
    let piece = DiskPiece::Bytes { offset, length: content.len() as u32, encoding: PieceEncoding::Plain, sha256 };
    ProtocolFrame::Piece(piece, content.to_vec())
}

fn end(frames: &[ProtocolFrame]) -> ProtocolFrame {
    let mut sum = PiecesDigest::new();
    for frame in frames {
        if let ProtocolFrame::Piece(piece, _) = frame {
            sum.add_piece(piece);
        }
    }
    ProtocolFrame::End(sum.current_digest())
}

#[test]
fn only_a_complete_and_verified_transfer_becomes_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let (one, zero) = (vec![1; 1 << 20], |range| ProtocolFrame::Piece(DiskPiece::Zero(range), Vec::new()));
    let right = hash_bytes(&one);
    let good = vec![hello(), bytes(0, &one, right), zero(1 << 20..SIZE)];
    let with_end = |frames: &[ProtocolFrame]| joined(frames, &[end(frames)]);
    // A valid sequence of frames.
    fs::write(&path, vec![7; SIZE as usize]).unwrap();
    let (received, answer) = exchange_frames(&path, &with_end(&good));
    assert_eq!(received.unwrap(), "0");
    assert!(matches!(answer, Ok(ProtocolFrame::Verdict(ReceiverVerdict::Received(_)))), "{answer:?}");
    assert!(fs::read(&path).unwrap() == [&one[..], &vec![0; 2 << 20]].concat());
    for (what, frames) in [
        ("another digest", with_end(&[hello(), bytes(0, &one, hash_bytes(b"x")), zero(1 << 20..SIZE)])),
        ("a gap", with_end(&[hello(), bytes(0, &one, right), zero(2 << 20..SIZE)])),
        ("the same again", with_end(&[hello(), bytes(0, &one, right), bytes(0, &one, right), zero(1 << 20..SIZE)])),
        ("after the end", with_end(&[hello(), bytes(0, &one, right), zero(1 << 20..SIZE + 65536)])),
        ("too short", with_end(&[hello(), bytes(0, &one, right)])),
        ("another sum", joined(&good, &[ProtocolFrame::End(right)])),
        ("a second hello", with_end(&[hello(), hello(), bytes(0, &one, right), zero(1 << 20..SIZE)])),
    ] {
        fs::write(&path, vec![7; SIZE as usize]).unwrap();
        let (received, answer) = exchange_frames(&path, &frames);
        assert!(matches!(received, Err(ConnectionEnd::Failed(_))), "{what}: {received:?}");
        assert!(matches!(answer, Ok(ProtocolFrame::Verdict(ReceiverVerdict::Failed(_)))), "{what}: {answer:?}");
        // The first MiB remains zero, so the disk is neither the old nor the new one.
        assert!(fs::read(&path).unwrap()[..1 << 20] == vec![0; 1 << 20], "{what}");
    }
}

#[test]
fn unexpected_transfer_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    fs::write(&path, vec![7; SIZE as usize]).unwrap();
    let base = TransferHello {
        name: "0".to_owned(),
        magic: None,
        size_bytes: SIZE,
        sector_bytes: 512,
        has_table: false,
        run: None,
    };
    for other in [
        TransferHello { name: "1".to_owned(), ..base.clone() },
        TransferHello { size_bytes: SIZE + 1, ..base.clone() },
        TransferHello { size_bytes: u64::MAX, ..base.clone() },
        TransferHello { sector_bytes: 4096, has_table: true, ..base.clone() },
        TransferHello { magic: Some("abcde".to_owned()), ..base },
    ] {
        let (received, answer) = exchange_frames(&path, &[ProtocolFrame::Hello(other.clone())]);
        assert!(matches!(received, Err(ConnectionEnd::Refused(_))), "{other:?}: {received:?}");
        assert!(matches!(answer, Ok(ProtocolFrame::Answer(HelloAnswer::Refused(_)))), "{other:?}: {answer:?}");
    }
    assert!(fs::read(&path).unwrap() == vec![7; SIZE as usize]);
}

/// Concatenates two sequences of frames. Frames do not implement `Clone`, because only tests copy them.
fn joined(first: &[ProtocolFrame], second: &[ProtocolFrame]) -> Vec<ProtocolFrame> {
    first.iter().chain(second).map(again).collect()
}

fn again(frame: &ProtocolFrame) -> ProtocolFrame {
    let mut wire = Vec::new();
    frames::write_frame(&mut wire, frame).unwrap();
    frames::read_frame(&mut &wire[..]).unwrap()
}

/// While the connection waited for the previous one, another run has sent the whole disk.
#[test]
fn replaced_connection_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    fs::write(&path, vec![7; SIZE as usize]).unwrap();
    let disks = [ReceivedDisk::open_disk(
        "0".to_owned(),
        (path.clone(), TransferDestination::open_destination),
        None,
        None,
        false,
    )
    .unwrap()];
    let ((a, b), listener) = (ends(), TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap().to_string();
    let ProtocolFrame::Hello(hello) = hello() else { panic!() };
    let of = |id: u128| Some(frames::SenderRun { id: uuid::Uuid::from_u128(id), disks: vec!["0".to_owned()] });
    let first = TransferHello { run: of(1), ..hello };
    thread::scope(|scope| {
        let mut state = lock_mutex(&disks[0].state);
        let receiving = scope.spawn(|| {
            receive_disk(&mut TlsLink::accept(listener.accept().unwrap().0, &b).unwrap(), &disks, b.peer_certificate())
        });
        let mut link = TlsLink::connect(&address, &a, Duration::from_secs(5)).unwrap();
        frames::write_frame(&mut link, &ProtocolFrame::Hello(first.clone())).unwrap();
        while !disks[0].is_current(1) {
            thread::sleep(Duration::from_millis(5));
        }
        disks[0].make_current(link.shutdown_handle().unwrap(), Some(uuid::Uuid::from_u128(2))).unwrap();
        state.from = Some(TransferSender { certificate: b.peer_certificate().clone(), run: of(2) });
        (state.hello, state.is_whole) = (Some(TransferHello { run: of(2), ..first }), true);
        drop(state);
        assert!(matches!(receiving.join().unwrap(), Err(ConnectionEnd::Interrupted(_))));
    });
    assert!(lock_mutex(&disks[0].state).is_whole && fs::read(&path).unwrap() == vec![7; SIZE as usize]);
}

/// Another `send` connects when the last disk is being completed.
#[test]
fn late_sender_is_informed_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let ProtocolFrame::Hello(hello) = hello() else { panic!() };
    let of = |id: u128| Some(frames::SenderRun { id: uuid::Uuid::from_u128(id), disks: vec!["0".to_owned()] });
    let (first, second) = (TransferHello { run: of(1), ..hello.clone() }, TransferHello { run: of(2), ..hello });
    // Each case: whether the receiver has finished with all disks complete, and whether the second connection had
    // become the current one before the receiver finished.
    for (is_whole, had_a_place) in [(true, false), (false, false), (false, true)] {
        let what = format!("whole {is_whole}, had a place {had_a_place}");
        fs::write(&path, vec![7; SIZE as usize]).unwrap();
        let disks = [ReceivedDisk::open_disk(
            "0".to_owned(),
            (path.clone(), TransferDestination::open_destination),
            None,
            None,
            false,
        )
        .unwrap()];
        let ((a, b), listener) = (ends(), TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap().to_string();
        {
            let mut state = lock_mutex(&disks[0].state);
            let from = TransferSender { certificate: b.peer_certificate().clone(), run: of(1) };
            (state.hello, state.from, state.is_whole) = (Some(first.clone()), Some(from), true);
        }
        match is_whole {
            true => assert!(close_if_complete(&disks, b.peer_certificate()), "{what}"),
            false if had_a_place => {}
            false => disks[0].fail_transfer(),
        }
        thread::scope(|scope| {
            let at_work = lock_mutex(&disks[0].state);
            let receiving = scope.spawn(|| {
                receive_disk(
                    &mut TlsLink::accept(listener.accept().unwrap().0, &b).unwrap(),
                    &disks,
                    b.peer_certificate(),
                )
            });
            let mut link = TlsLink::connect(&address, &a, Duration::from_secs(5)).unwrap();
            frames::write_frame(&mut link, &ProtocolFrame::Hello(second.clone())).unwrap();
            if had_a_place {
                while !disks[0].is_current(1) {
                    thread::sleep(Duration::from_millis(5));
                }
                assert!(
                    !close_if_complete(&disks, b.peer_certificate()),
                    "another connection has locked the state of the disk"
                );
                disks[0].fail_transfer();
            }
            drop(at_work);
            let answer = frames::read_frame(&mut link);
            drop(link);
            let stopped = receiving.join().unwrap();
            assert!(matches!(stopped, Err(ConnectionEnd::Interrupted(_))), "{what}: {stopped:?}");
            // The peer receives a refusal only if all disks are complete.
            match answer {
                Ok(ProtocolFrame::Answer(HelloAnswer::Refused(why))) => {
                    assert!(is_whole && why.contains("all disks are complete"), "{what}: {why}");
                }
                Ok(other) => panic!("{what}: {other:?}"),
                Err(_) => assert!(!is_whole, "{what}"),
            }
        });
        assert!(lock_mutex(&disks[0].state).is_whole && fs::read(&path).unwrap() == vec![7; SIZE as usize], "{what}");
        let alone = disks[0].receive_at_once(b.peer_certificate(), |_| panic!("{what}: Ganeti's end writes"));
        assert!(alone.unwrap_err().to_string().contains("the receiver has finished"), "{what}");
    }
}
