//! A sender that lies.

use super::super::awaited::close_if_whole;
use super::super::frames::{Sha256, sha256};
use super::*;
use crate::moving::certificate::Certificate;
use crate::moving::tls::Ends;
use rcgen::{CertificateParams, KeyPair};
use std::fs;
use std::net::TcpListener;
use std::path::Path;

const SIZE: u64 = 3 << 20;

fn ends() -> (Ends, Ends) {
    let make = || {
        let key = KeyPair::generate().unwrap();
        let made = CertificateParams::default().self_signed(&key).unwrap();
        let pem = crate::pem::armored("PRIVATE KEY", &key.serialize_der());
        (pem, Certificate::of(made.der().clone()).unwrap())
    };
    let ((a, a_cert), (b, b_cert)) = (make(), make());
    (Ends::new(&a, &a_cert, b_cert.clone()).unwrap(), Ends::new(&b, &b_cert, a_cert).unwrap())
}

/// What the receiver comes to when it is sent these frames, and what it answers at the end.
fn told(path: &Path, frames: &[Frame]) -> (Result<String, Stop>, io::Result<Frame>) {
    let (a, b) = ends();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let disks = [Disk::open("0".to_owned(), (path.to_owned(), Onto::open), None, None, false).unwrap()];
    thread::scope(|scope| {
        let sending = scope.spawn(move || {
            let mut link = Link::connect(&address, &a, Duration::from_secs(5)).unwrap();
            frames.iter().for_each(|frame| frames::write(&mut link, frame).unwrap());
            let answer = frames::read(&mut link);
            match answer {
                Ok(Frame::Answer(Answer::From { .. })) if frames.len() > 1 => frames::read(&mut link),
                answer => answer,
            }
        });
        let mut link = Link::accept(listener.accept().unwrap().0, &b).unwrap();
        let received = receive(&mut link, &disks, b.peer());
        drop(link);
        (received, sending.join().unwrap())
    })
}

fn hello() -> Frame {
    Frame::Hello(Hello {
        name: "0".to_owned(),
        magic: None,
        size_bytes: SIZE,
        sector_bytes: 512,
        has_table: false,
        run: None,
    })
}

fn bytes(offset: u64, content: &[u8], sha256: Sha256) -> Frame {
    let piece = Piece::Bytes { offset, length: content.len() as u32, encoding: Encoding::Plain, sha256 };
    Frame::Piece(piece, content.to_vec())
}

fn end(frames: &[Frame]) -> Frame {
    let mut sum = Sum::new();
    for frame in frames {
        if let Frame::Piece(piece, _) = frame {
            sum.add(piece);
        }
    }
    Frame::End(sum.so_far())
}

#[test]
fn only_what_is_whole_and_what_it_says_it_is_becomes_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let (one, zero) = (vec![1; 1 << 20], |range| Frame::Piece(Piece::Zero(range), Vec::new()));
    let right = sha256(&one);
    let good = vec![hello(), bytes(0, &one, right), zero(1 << 20..SIZE)];
    let with_end = |frames: &[Frame]| joined(frames, &[end(frames)]);
    // As it should be.
    fs::write(&path, vec![7; SIZE as usize]).unwrap();
    let (received, answer) = told(&path, &with_end(&good));
    assert_eq!(received.unwrap(), "0");
    assert!(matches!(answer, Ok(Frame::Verdict(Verdict::Received(_)))), "{answer:?}");
    assert!(fs::read(&path).unwrap() == [&one[..], &vec![0; 2 << 20]].concat());
    for (what, frames) in [
        ("another digest", with_end(&[hello(), bytes(0, &one, sha256(b"x")), zero(1 << 20..SIZE)])),
        ("a gap", with_end(&[hello(), bytes(0, &one, right), zero(2 << 20..SIZE)])),
        ("the same again", with_end(&[hello(), bytes(0, &one, right), bytes(0, &one, right), zero(1 << 20..SIZE)])),
        ("behind the end", with_end(&[hello(), bytes(0, &one, right), zero(1 << 20..SIZE + 65536)])),
        ("too short", with_end(&[hello(), bytes(0, &one, right)])),
        ("another sum", joined(&good, &[Frame::End(right)])),
        ("a second hello", with_end(&[hello(), hello(), bytes(0, &one, right), zero(1 << 20..SIZE)])),
    ] {
        fs::write(&path, vec![7; SIZE as usize]).unwrap();
        let (received, answer) = told(&path, &frames);
        assert!(matches!(received, Err(Stop::Failed(_))), "{what}: {received:?}");
        assert!(matches!(answer, Ok(Frame::Verdict(Verdict::Failed(_)))), "{what}: {answer:?}");
        // Neither the old disk nor the new one.
        assert!(fs::read(&path).unwrap()[..1 << 20] == vec![0; 1 << 20], "{what}");
    }
}

#[test]
fn what_is_not_awaited_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    fs::write(&path, vec![7; SIZE as usize]).unwrap();
    let base =
        Hello { name: "0".to_owned(), magic: None, size_bytes: SIZE, sector_bytes: 512, has_table: false, run: None };
    for other in [
        Hello { name: "1".to_owned(), ..base.clone() },
        Hello { size_bytes: SIZE + 1, ..base.clone() },
        Hello { size_bytes: u64::MAX, ..base.clone() },
        Hello { sector_bytes: 4096, has_table: true, ..base.clone() },
        Hello { magic: Some("abcde".to_owned()), ..base },
    ] {
        let (received, answer) = told(&path, &[Frame::Hello(other.clone())]);
        assert!(matches!(received, Err(Stop::Refused(_))), "{other:?}: {received:?}");
        assert!(matches!(answer, Ok(Frame::Answer(Answer::Refused(_)))), "{other:?}: {answer:?}");
    }
    assert!(fs::read(&path).unwrap() == vec![7; SIZE as usize]);
}

/// Frames are not cloned outside of tests.
fn joined(first: &[Frame], second: &[Frame]) -> Vec<Frame> {
    first.iter().chain(second).map(again).collect()
}

fn again(frame: &Frame) -> Frame {
    let mut wire = Vec::new();
    frames::write(&mut wire, frame).unwrap();
    frames::read(&mut &wire[..]).unwrap()
}

/// It has waited for the one before it, and meanwhile another run has brought all of the disk.
#[test]
fn a_connection_that_another_one_has_taken_the_place_of_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    fs::write(&path, vec![7; SIZE as usize]).unwrap();
    let disks = [Disk::open("0".to_owned(), (path.clone(), Onto::open), None, None, false).unwrap()];
    let ((a, b), listener) = (ends(), TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap().to_string();
    let Frame::Hello(hello) = hello() else { panic!() };
    let of = |id: u128| Some(frames::Run { id: uuid::Uuid::from_u128(id), disks: vec!["0".to_owned()] });
    let first = Hello { run: of(1), ..hello };
    thread::scope(|scope| {
        let mut state = lock(&disks[0].state);
        let receiving =
            scope.spawn(|| receive(&mut Link::accept(listener.accept().unwrap().0, &b).unwrap(), &disks, b.peer()));
        let mut link = Link::connect(&address, &a, Duration::from_secs(5)).unwrap();
        frames::write(&mut link, &Frame::Hello(first.clone())).unwrap();
        while !disks[0].is_current(1) {
            thread::sleep(Duration::from_millis(5));
        }
        disks[0].comes_by(link.cutter().unwrap(), Some(uuid::Uuid::from_u128(2))).unwrap();
        state.from = Some(Sender { certificate: b.peer().clone(), run: of(2) });
        (state.hello, state.is_whole) = (Some(Hello { run: of(2), ..first }), true);
        drop(state);
        assert!(matches!(receiving.join().unwrap(), Err(Stop::Again(_))));
    });
    assert!(lock(&disks[0].state).is_whole && fs::read(&path).unwrap() == vec![7; SIZE as usize]);
}

/// Another `send` has come while the last disk became whole.
#[test]
fn who_comes_after_all_was_judged_whole_is_told_so_and_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let Frame::Hello(hello) = hello() else { panic!() };
    let of = |id: u128| Some(frames::Run { id: uuid::Uuid::from_u128(id), disks: vec!["0".to_owned()] });
    let (first, second) = (Hello { run: of(1), ..hello.clone() }, Hello { run: of(2), ..hello });
    // How the wait has ended, and whether the second one had its place before that.
    for (is_whole, had_a_place) in [(true, false), (false, false), (false, true)] {
        let what = format!("whole {is_whole}, had a place {had_a_place}");
        fs::write(&path, vec![7; SIZE as usize]).unwrap();
        let disks = [Disk::open("0".to_owned(), (path.clone(), Onto::open), None, None, false).unwrap()];
        let ((a, b), listener) = (ends(), TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap().to_string();
        {
            let mut state = lock(&disks[0].state);
            let from = Sender { certificate: b.peer().clone(), run: of(1) };
            (state.hello, state.from, state.is_whole) = (Some(first.clone()), Some(from), true);
        }
        match is_whole {
            true => assert!(close_if_whole(&disks, b.peer()), "{what}"),
            false if had_a_place => {}
            false => disks[0].cut(),
        }
        thread::scope(|scope| {
            let at_work = lock(&disks[0].state);
            let receiving =
                scope.spawn(|| receive(&mut Link::accept(listener.accept().unwrap().0, &b).unwrap(), &disks, b.peer()));
            let mut link = Link::connect(&address, &a, Duration::from_secs(5)).unwrap();
            frames::write(&mut link, &Frame::Hello(second.clone())).unwrap();
            if had_a_place {
                while !disks[0].is_current(1) {
                    thread::sleep(Duration::from_millis(5));
                }
                assert!(!close_if_whole(&disks, b.peer()), "somebody is at work on it");
                disks[0].cut();
            }
            drop(at_work);
            let answer = frames::read(&mut link);
            drop(link);
            let stopped = receiving.join().unwrap();
            assert!(matches!(stopped, Err(Stop::Again(_))), "{what}: {stopped:?}");
            // Only the end that is for good is said.
            match answer {
                Ok(Frame::Answer(Answer::Refused(why))) => {
                    assert!(is_whole && why.contains("all disks are complete"), "{what}: {why}");
                }
                Ok(other) => panic!("{what}: {other:?}"),
                Err(_) => assert!(!is_whole, "{what}"),
            }
        });
        assert!(lock(&disks[0].state).is_whole && fs::read(&path).unwrap() == vec![7; SIZE as usize], "{what}");
        let alone = disks[0].take_alone(b.peer(), |_| panic!("{what}: Ganeti's end writes"));
        assert!(alone.unwrap_err().to_string().contains("the receiver has ended"), "{what}");
    }
}
