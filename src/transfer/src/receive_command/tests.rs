//! Both ends in one process, over the loopback.

use super::super::options::{CommonOptions, NamedDisk, SendOptions};
use super::super::protocol::send::{SendResult, send_disk};
use super::super::protocol::{SenderRun, TransferHello};
use super::super::source::TransferSource;
use super::super::{key, send_command};
use super::*;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MIB: usize = 1 << 20;

/// A folder with the certificates of A, who sends, B, who receives, and C, who is a stranger.
struct Room(tempfile::TempDir);

impl Room {
    fn new() -> Room {
        let room = Room(tempfile::tempdir().unwrap());
        for who in ["a", "b", "c"] {
            key::write_files(&room.path(&format!("{who}.key")), &room.path(&format!("{who}.pem")), 1, None).unwrap();
        }
        room
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    fn common(&self, own: &str, peer: &str) -> CommonOptions {
        CommonOptions {
            key: self.path(&format!("{own}.key")),
            cert: self.path(&format!("{own}.pem")),
            peer: self.path(&format!("{peer}.pem")),
            secret: None,
            magic: None,
            compress: super::super::ganeti::GanetiCompression::None,
            wait: 3,
        }
    }

    fn receive(&self, disks: &[&str]) -> ReceiveOptions {
        let disks = named(disks);
        let common = self.common("b", "a");
        ReceiveOptions { at: "127.0.0.1:0".to_owned(), disks, common, size: None, resume: false, overwrite: true }
    }

    fn send(&self, disks: &[&str]) -> SendOptions {
        SendOptions { to: String::new(), disks: named(disks), common: self.common("a", "b"), whole: false, json: true }
    }

    /// How many bytes go to the receiver until the disk is whole, where the first connections are cut after so many.
    fn travels(&self, disk: &Path, receive: &ReceiveOptions, cuts: &[usize]) -> usize {
        let mut counted = Arc::default();
        let (sent, received) = self.moved_over(self.send(&[path(disk)]), receive, |port| {
            let (address, count) = wire(port, cuts);
            counted = count;
            address
        });
        received.unwrap();
        assert_eq!(sent.unwrap(), CommandOutcome::Good);
        counted.load(Ordering::Relaxed)
    }

    /// What both ends come to: the sender, the receiver.
    fn moved(&self, send: SendOptions, receive: &ReceiveOptions) -> (Result<CommandOutcome>, Result<()>) {
        self.moved_over(send, receive, |port| port.to_owned())
    }

    /// `wire` gets the receiver's address and tells where the sender goes.
    fn moved_over(
        &self,
        send: SendOptions,
        receive: &ReceiveOptions,
        wire: impl FnOnce(&str) -> String,
    ) -> (Result<CommandOutcome>, Result<()>) {
        let waiting = TransferReceiver::from_options(receive).unwrap();
        let port = ListeningPort::open(&receive.at).unwrap();
        let to = wire(&port.address);
        thread::scope(|scope| {
            let sending = scope.spawn(move || send_command::run_send(&SendOptions { to, ..send }));
            let ends = super::super::load_endpoints(&receive.common).unwrap();
            let received = waiting.receive_all(&port, receive.common.peer_timeout(), &|_| Ok(()), || Ok(ends.clone()));
            // A connection that nobody takes any more.
            drop(port);
            (sending.join().unwrap(), received)
        })
    }
}

fn named(disks: &[&str]) -> Vec<NamedDisk> {
    disks.iter().map(|disk| disk.parse().unwrap()).collect()
}

/// Noise, zeros and words.
fn disk(bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(bytes as u64);
    let mut disk = vec![0; bytes];
    for chunk in disk.chunks_mut(300_000) {
        match random.u8(0..3) {
            0 => random.fill(chunk),
            1 => chunk.iter_mut().enumerate().for_each(|(at, byte)| *byte = b"drophammer "[at % 11]),
            _ => {}
        }
    }
    disk
}

/// Passes on what the sender says, counts it, and cuts the first connections after so many bytes.
pub fn wire(to: &str, cuts: &[usize]) -> (String, Arc<AtomicUsize>) {
    let (to, cuts, counted) = (to.to_owned(), cuts.to_vec(), Arc::new(AtomicUsize::new(0)));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let count = counted.clone();
    thread::spawn(move || {
        for (number, near) in listener.incoming().enumerate() {
            let (mut near, mut far) = (near.unwrap(), TcpStream::connect(&to).unwrap());
            let (mut back_from, mut back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            thread::spawn(move || drop(std::io::copy(&mut back_from, &mut back_to)));
            let (mut left, count) = (cuts.get(number).copied().unwrap_or(usize::MAX), count.clone());
            thread::spawn(move || {
                let mut block = vec![0; 65536];
                while let Ok(read @ 1..) = near.read(&mut block) {
                    count.fetch_add(read, Ordering::Relaxed);
                    left = left.saturating_sub(read);
                    if left == 0 || far.write_all(&block[..read]).is_err() {
                        break;
                    }
                }
                let _ = (near.shutdown(std::net::Shutdown::Both), far.shutdown(std::net::Shutdown::Both));
            });
        }
    });
    (address, counted)
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn disks_arrive_whole_at_once_and_by_their_names() {
    let room = Room::new();
    for size in [512, MIB, 3 * MIB + 512, 9 * MIB] {
        let (one, other) = (disk(size), disk(size + 512));
        let (a1, a2) = (room.file("a1", &one), room.file("a2", &other));
        let (b1, b2) = (room.file("b1", &vec![7; size + 1024]), room.file("b2", &vec![7; size + 1024]));
        let send = room.send(&[&format!("root={}", path(&a1)), &format!("data={}", path(&a2))]);
        let receive = room.receive(&[&format!("data={}", path(&b2)), &format!("root={}", path(&b1))]);
        let (sent, received) = room.moved(send, &receive);
        received.unwrap();
        assert_eq!(sent.unwrap(), CommandOutcome::Good);
        assert!(fs::read(&b1).unwrap()[..size] == one[..], "{size}");
        assert!(fs::read(&b2).unwrap()[..size + 512] == other[..], "{size}");
    }
}

#[test]
fn zeros_replace_what_was_there_and_do_not_travel() {
    let room = Room::new();
    let mut content = vec![0; 64 * MIB];
    content[MIB + 5] = 1;
    let (a, b) = (room.file("a", &content), room.file("b", &vec![7; 64 * MIB]));
    let travelled = room.travels(&a, &room.receive(&[path(&b)]), &[]);
    assert!(fs::read(&b).unwrap() == content);
    assert!(travelled < 80_000, "{travelled}");
}

#[test]
fn a_cut_is_gone_on_after_with_what_was_verified() {
    let room = Room::new();
    let mut content = vec![0; 24 * MIB];
    fastrand::Rng::with_seed(1).fill(&mut content);
    let (a, b) = (room.file("a", &content), room.file("b", &vec![7; 24 * MIB]));
    let travelled = room.travels(&a, &room.receive(&[path(&b)]), &[5 * MIB, 9 * MIB, 1000]);
    assert!(fs::read(&b).unwrap() == content);
    // What was on the way when it was cut goes again: buffers, and not what came before.
    assert!((24 * MIB..36 * MIB).contains(&travelled), "{travelled}");
}

#[test]
fn what_an_earlier_run_has_brought_is_not_sent_again() {
    let room = Room::new();
    let mut content = vec![0; 24 * MIB];
    fastrand::Rng::with_seed(2).fill(&mut content);
    // As a power cut leaves it: the first MiB zero, then half, then what was there before; one piece is damaged.
    let mut part = content.clone();
    part[..MIB].fill(0);
    part[12 * MIB..].fill(7);
    part[5 * MIB + 9] ^= 1;
    let (a, b) = (room.file("a", &content), room.file("b", &part));
    let receive = ReceiveOptions { resume: true, ..room.receive(&[path(&b)]) };
    let travelled = room.travels(&a, &receive, &[]);
    assert!(fs::read(&b).unwrap() == content);
    assert!((14 * MIB..15 * MIB).contains(&travelled), "{travelled}");
}

#[test]
fn what_does_not_fit_or_was_not_meant_is_refused_at_both_ends_and_nothing_is_written() {
    let room = Room::new();
    let a = room.file("a", &disk(2 * MIB));
    let magic = |word: &str| Some(word.parse().unwrap());
    for (bytes, own, their, words) in [
        (MIB, None, None, "0 has 2097152 bytes, but the destination has only 1048576"),
        (2 * MIB, magic("abcde"), None, "magic mismatch"),
        (2 * MIB, None, magic("abcde"), "magic mismatch"),
        (2 * MIB, magic("abcdx"), magic("abcde"), "magic mismatch"),
    ] {
        let b = room.file("b", &vec![7; bytes]);
        let mut send = room.send(&[path(&a)]);
        let mut receive = room.receive(&[path(&b)]);
        (send.common.magic, receive.common.magic) = (own, their);
        let (sent, received) = room.moved(send, &receive);
        // A refusal is printed by the command, and is its exit status.
        assert!(sent.unwrap_err().is_refusal());
        let error = received.unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains(words), "{error}");
        assert!(fs::read(&b).unwrap() == vec![7; bytes]);
    }
}

#[test]
fn another_length_than_was_said_is_refused() {
    let room = Room::new();
    let (a, b) = (room.file("a", &disk(MIB)), room.file("b", &vec![7; 2 * MIB]));
    let receive = ReceiveOptions { size: Some(2 * MIB as u64), ..room.receive(&[path(&b)]) };
    let (sent, received) = room.moved(room.send(&[path(&a)]), &receive);
    assert!(sent.unwrap_err().is_refusal());
    let error = received.unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("expected 2097152"), "{error}");
    assert!(fs::read(&b).unwrap() == vec![7; 2 * MIB]);
}

#[test]
fn a_stranger_at_either_end_gets_nothing_and_brings_nothing() {
    let room = Room::new();
    let a = room.file("a", &disk(1000 * 512));
    // Who sends is C; who receives is C; each end knows the other by another name.
    for (sender, senders_peer, receiver, receivers_peer) in
        [("c", "b", "b", "a"), ("a", "b", "c", "a"), ("a", "c", "b", "a")]
    {
        let b = room.file("b", &vec![7; MIB]);
        let send = SendOptions { common: room.common(sender, senders_peer), ..room.send(&[path(&a)]) };
        let receive = ReceiveOptions { common: room.common(receiver, receivers_peer), ..room.receive(&[path(&b)]) };
        let (sent, received) = room.moved(send, &receive);
        assert!(!sent.unwrap_err().is_refusal());
        let error = received.unwrap_err().to_string();
        assert!(error.contains("no connection from the sender for 3 s"), "{error}");
        assert!(fs::read(&b).unwrap() == vec![7; MIB]);
    }
}

#[test]
fn what_is_wrong_before_there_is_a_connection_is_refused() {
    let room = Room::new();
    let b = room.file("b", &vec![7; MIB]);
    let begin = |change: &dyn Fn(&mut ReceiveOptions)| {
        let mut receive = room.receive(&[path(&b)]);
        change(&mut receive);
        match super::super::load_endpoints(&receive.common).and_then(|_| TransferReceiver::from_options(&receive)) {
            Ok(_) => panic!("it is not refused"),
            Err(error) => (error.is_refusal(), error.to_string()),
        }
    };
    let odd = room.file("odd", &[7; 1000]);
    let folder = room.0.path().to_owned();
    for (words, change) in [
        (
            "confirm with --overwrite",
            &(|receive: &mut ReceiveOptions| receive.overwrite = false) as &dyn Fn(&mut ReceiveOptions),
        ),
        ("at least 1048577 required", &|receive| receive.size = Some(MIB as u64 + 1)),
        ("a file with a multiple of 512 bytes", &|receive| receive.disks = named(&[path(&odd)])),
        ("cannot be the destination", &|receive| receive.disks = named(&[path(&folder)])),
        ("No such file", &|receive| receive.disks = named(&["/nowhere/disk"])),
        ("two disks have the name x", &|receive| receive.disks = named(&["x=/a", "x=/b"])),
        ("does not belong to the certificate", &|receive| receive.common.key = room.path("a.key")),
        ("certificate is not signed", &|receive| receive.common.secret = Some(room.file("secret", b"x\n"))),
    ] {
        let (is_refusal, said) = begin(change);
        assert!(is_refusal && said.contains(words), "{words}: {said}");
    }
    assert!(fs::read(&b).unwrap() == vec![7; MIB]);
}

/// A loop device until it is dropped.
struct Loop(String);

impl Loop {
    fn new(file: &Path) -> Loop {
        let attached = std::process::Command::new("losetup").args(["-f", "--show", path(file)]).output().unwrap();
        assert!(attached.status.success(), "{attached:?}");
        Loop(String::from_utf8(attached.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        assert!(std::process::Command::new("losetup").args(["-d", &self.0]).status().unwrap().success());
    }
}

/// The backup of the table goes to the end of the larger disk, and what is in use is refused.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_a_disk_with_a_table_goes_onto_a_larger_one() {
    let room = Room::new();
    let (a, b) = (room.file("a", &disk(40 * MIB)), room.file("b", &vec![7; 64 * MIB]));
    let table = std::process::Command::new("sgdisk").args(["-o", "-n", "1:2048:0", path(&a)]).output().unwrap();
    assert!(table.status.success(), "{table:?}");
    let before = fs::read(&a).unwrap();
    let (from, onto) = (Loop::new(&a), Loop::new(&b));
    let refused = TransferReceiver::from_options(&room.receive(&[path(&b)])).map(drop).unwrap_err();
    assert!(refused.is_refusal() && refused.to_string().contains("it is the backing file of loop"), "{refused}");
    let (sent, received) = room.moved(room.send(&[&from.0]), &room.receive(&[&onto.0]));
    received.unwrap();
    assert_eq!(sent.unwrap(), CommandOutcome::Good);
    drop((from, onto));
    let after = fs::read(&b).unwrap();
    // What lies between the two copies of the table.
    assert!(before[MIB..39 * MIB] == after[MIB..39 * MIB] && fs::read(&a).unwrap() == before);
    let said = std::process::Command::new("sgdisk").args(["-v", path(&b)]).output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("No problems found"), "{said}");
}

/// A connection of one run: what it brings of that disk, over a wire that is cut after so many bytes.
fn connection(
    room: &Room,
    port: &str,
    run: &SenderRun,
    (name, file): (&str, &Path),
    cuts: &[usize],
) -> Result<SendResult, ConnectionEnd> {
    let (address, _) = wire(port, cuts);
    let ends = super::super::load_endpoints(&room.common("a", "b")).unwrap();
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

/// What happens at the sender's end, while the receiver waits for "a" and "b".
fn while_two_are_awaited(room: &Room, happens: impl FnOnce(&str, &dyn Fn() -> bool)) {
    let [b_a, b_b] = ["ba", "bb"].map(|name| room.file(name, &vec![7; 25 * MIB]));
    let receive = room.receive(&[&format!("a={}", path(&b_a)), &format!("b={}", path(&b_b))]);
    let waiting = TransferReceiver::from_options(&receive).unwrap();
    let port = ListeningPort::open(&receive.at).unwrap();
    let ends = super::super::load_endpoints(&receive.common).unwrap();
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

/// `send` has ended, its disks were written, and it was started anew, with the same certificate.
#[test]
fn two_runs_of_a_sender_leave_no_mixture_of_two_states() {
    let room = Room::new();
    let (mut whole, mut cut) = (disk(3 * MIB), disk(24 * MIB));
    cut[..8 * MIB].fill(0x55);
    let [a, b] = [room.file("a", &whole), room.file("b", &cut)];
    while_two_are_awaited(&room, |port, _| {
        let first = run_of(&["a", "b"]);
        connection(&room, port, &first, ("a", &a), &[]).unwrap();
        let stopped = connection(&room, port, &first, ("b", &b), &[6 * MIB]).unwrap_err();
        assert!(matches!(stopped, ConnectionEnd::Again(_)), "{stopped:?}");
        whole[2 * MIB] ^= 1;
        cut[3 * MIB..3 * MIB + 70_000].fill(0);
        cut[5 * MIB] ^= 1;
        let disks = [("a", room.file("a", &whole)), ("b", room.file("b", &cut))];
        let send =
            room.send(&disks.each_ref().map(|(name, file)| format!("{name}={}", path(file))).each_ref().map(|s| &**s));
        assert_eq!(send_command::run_send(&SendOptions { to: port.to_owned(), ..send }).unwrap(), CommandOutcome::Good);
    });
    for (name, wanted) in [("ba", whole), ("bb", cut)] {
        assert!(fs::read(room.path(name)).unwrap().starts_with(&wanted), "{name}");
    }
}

/// It still runs somewhere, and another one was started: they would take the disk from each other for ever.
#[test]
fn a_sender_that_another_has_taken_the_place_of_is_told_so() {
    let room = Room::new();
    let (first, second) = (disk(24 * MIB), disk(24 * MIB).into_iter().rev().collect::<Vec<_>>());
    let [one, other] = [room.file("one", &first), room.file("other", &second)];
    while_two_are_awaited(&room, |port, still_waits| {
        let (earlier, later) = (run_of(&["a", "b"]), run_of(&["a", "b"]));
        for (run, file) in [(&earlier, &one), (&later, &other)] {
            let stopped = connection(&room, port, run, ("a", file), &[2 * MIB]).unwrap_err();
            assert!(matches!(stopped, ConnectionEnd::Again(_)), "{stopped:?}");
        }
        let stopped = connection(&room, port, &earlier, ("a", &one), &[]).unwrap_err();
        assert!(matches!(&stopped, ConnectionEnd::Refused(why) if why.contains("another sender")), "{stopped:?}");
        assert!(still_waits());
        for name in ["a", "b"] {
            connection(&room, port, &later, (name, &other), &[]).unwrap();
        }
    });
    for name in ["ba", "bb"] {
        assert!(fs::read(room.path(name)).unwrap().starts_with(&second), "{name}");
    }
}

#[test]
fn disks_of_two_runs_are_whole_where_neither_brings_both() {
    let room = Room::new();
    let file = room.file("one", &disk(2 * MIB));
    let (of_a, of_b, of_both) = (run_of(&["a"]), run_of(&["b"]), run_of(&["a", "b"]));
    while_two_are_awaited(&room, |port, still_waits| {
        connection(&room, port, &of_a, ("a", &file), &[]).unwrap();
        assert!(still_waits());
        connection(&room, port, &of_b, ("b", &file), &[]).unwrap();
    });
    while_two_are_awaited(&room, |port, still_waits| {
        connection(&room, port, &of_a, ("a", &file), &[]).unwrap();
        connection(&room, port, &of_both, ("b", &file), &[]).unwrap();
        assert!(still_waits(), "it may have changed since, and comes again");
        connection(&room, port, &of_both, ("a", &file), &[]).unwrap();
    });
}

/// They say one byte and nothing more.
#[test]
fn nobody_waits_for_strangers_when_all_is_there_or_the_wait_has_failed() {
    let room = Room::new();
    let a = room.file("a", &disk(3 * MIB));
    for (magic, is_good) in [(None, true), (Some("abcde".parse().unwrap()), false)] {
        let b = room.file("b", &vec![7; 4 * MIB]);
        let mut send = room.send(&[path(&a)]);
        send.common.magic = magic;
        let (mut strangers, began) = (Vec::new(), Instant::now());
        let (sent, received) = room.moved_over(send, &room.receive(&[path(&b)]), |port| {
            strangers.extend((0..5).map(|_| TcpStream::connect(port).unwrap()));
            strangers.iter_mut().for_each(|stranger| stranger.write_all(&[22]).unwrap());
            // All of them have their place before the sender comes.
            port.to_owned()
        });
        let took = began.elapsed();
        assert_eq!((sent.is_ok(), received.is_ok()), (is_good, is_good), "{sent:?} {received:?}");
        assert!(took < Duration::from_secs(8), "{took:?}");
    }
}

/// Passes all on, but of the first connection one byte, once a MiB has come: to the receiver or back.
fn damaging_wire(to: &str, is_back: bool) -> String {
    let (to, listener) = (to.to_owned(), TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (come, is_done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let pass = |mut from: TcpStream, mut onto: TcpStream, is_this_way: bool, is_forth: bool| {
            let mut block = vec![0; 65536];
            while let Ok(read @ 1..) = from.read(&mut block) {
                let come = come.fetch_add(if is_forth { read } else { 0 }, Ordering::Relaxed);
                if is_this_way && come > MIB && is_done.swap(1, Ordering::Relaxed) == 0 {
                    block[read - 1] ^= 1;
                }
                if onto.write_all(&block[..read]).is_err() {
                    break;
                }
            }
            let _ = (from.shutdown(std::net::Shutdown::Both), onto.shutdown(std::net::Shutdown::Both));
        };
        thread::scope(|scope| {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(&to).unwrap());
                let (back_from, back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
                scope.spawn(move || pass(back_from, back_to, is_back, false));
                scope.spawn(move || pass(near, far, !is_back, true));
            }
        });
    });
    address
}

#[test]
fn a_damaged_record_ends_its_connection_and_not_the_copy() {
    let room = Room::new();
    let mut content = vec![0; 24 * MIB];
    fastrand::Rng::with_seed(5).fill(&mut content);
    let a = room.file("a", &content);
    for is_back in [false, true] {
        let b = room.file("b", &vec![7; 24 * MIB]);
        // With it the receiver speaks in between too.
        let receive = ReceiveOptions { resume: true, ..room.receive(&[path(&b)]) };
        let (sent, received) = room.moved_over(room.send(&[path(&a)]), &receive, |port| damaging_wire(port, is_back));
        assert_eq!(sent.unwrap(), CommandOutcome::Good, "{is_back}");
        received.unwrap();
        assert!(fs::read(&b).unwrap() == content, "{is_back}");
    }
}

/// To try again would change nothing.
#[test]
fn a_certificate_that_is_not_taken_and_frames_that_are_none_stay_failures() {
    let room = Room::new();
    let port = ListeningPort::open("127.0.0.1:0").unwrap();
    for (own, bytes) in [("c", None), ("a", Some([99, 0, 0, 0, 0]))] {
        let failed = thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                let ends = super::super::load_endpoints(&room.common("b", "a")).unwrap();
                let tcp = loop {
                    match port.accept_next().unwrap() {
                        Some(tcp) => break tcp,
                        None => thread::sleep(PAUSE),
                    }
                };
                TlsLink::accept(tcp, &ends).map(|mut link| receive_disk(&mut link, &[], ends.peer_certificate()))
            });
            let ends = super::super::load_endpoints(&room.common(own, "b")).unwrap();
            let mut link = TlsLink::connect(&port.address, &ends, Duration::from_secs(5)).unwrap();
            if let Some(bytes) = bytes {
                link.write_all(&bytes).unwrap();
                return receiving.join().unwrap().unwrap().map(drop).unwrap_err();
            }
            let error = receiving.join().unwrap().map(drop).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
            ConnectionEnd::from(link.read(&mut [0]).unwrap_err())
        });
        assert!(matches!(failed, ConnectionEnd::Failed(_)), "{own}: {failed:?}");
    }
}
