//! Both agents in one process, over the loopback, with files in place of devices.

use super::*;
use crate::storage::kernel;
use crate::storage::loopdev::LoopDevice;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const ORDER: &str = "0f1e2d3c-0000-4000-8000-000000000001";

struct Room(tempfile::TempDir);

impl Room {
    fn new() -> Room {
        Room(tempfile::tempdir().unwrap())
    }

    fn device(&self, name: &str, file: &str, content: &[u8]) -> Device {
        let path = self.0.path().join(file);
        fs::write(&path, content).unwrap();
        Device { name: name.to_owned(), path: path.to_str().unwrap().into() }
    }

    fn own(&self, secret: Option<&str>) -> Own {
        let file = self.0.path().join("secret");
        let _ = fs::remove_file(&file);
        if let Some(secret) = secret {
            fs::write(&file, secret).unwrap();
        }
        Own::make(&file).unwrap()
    }
}

fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut content[bytes / 3..]);
    content
}

fn at(incoming: &Incoming) -> Peer {
    let address = format!("127.0.0.1:{}", incoming.port().unwrap());
    Peer { certificate: incoming.own().certificate().to_owned(), address }
}

fn of(own: &Own) -> Peer {
    Peer { certificate: own.certificate().to_owned(), address: String::new() }
}

#[test]
fn all_devices_of_all_groups_arrive() {
    let room = Room::new();
    let (one, two, three) = (content(1, 3 << 20), content(2, 2_000_384), content(3, 70_144));
    let groups = vec![
        vec![room.device("/dev/sda2", "a1", &one), room.device("/dev/vg/home", "a2", &two)],
        vec![room.device("/dev/md/data", "a3", &three)],
    ];
    let larger = vec![0xff; 4 << 20];
    let onto = ["/dev/sda2", "/dev/vg/home", "/dev/md/data"];
    let onto: Vec<Device> =
        onto.iter().enumerate().map(|(n, name)| room.device(name, &format!("b{n}"), &larger)).collect();
    for secret in [None, Some("of both")] {
        let (sender, incoming) = (room.own(secret), Incoming::open(room.own(secret)).unwrap());
        incoming.hear(&of(&sender)).unwrap();
        let devices =
            onto.iter().map(|Device { name, path }| Device { name: name.clone(), path: path.clone() }).collect();
        let arriving = incoming.begin(ORDER, devices).unwrap();
        let peer = at(&incoming);
        thread::scope(|scope| {
            let sent = scope.spawn(|| send(&sender, &peer, ORDER, &groups, &|_| ()));
            arriving.until_whole(&|_| ()).unwrap();
            sent.join().unwrap().unwrap();
        });
        assert_eq!(arriving.bytes(), (one.len() + two.len() + three.len()) as u64);
        for (device, sent) in onto.iter().zip([&one, &two, &three]) {
            let came = fs::read(device.path.as_str()).unwrap();
            // Behind the first MiB, which is zero until all is there, nothing is touched that was not sent.
            let rest = &came[sent.len().max(1 << 20)..];
            assert!(came.starts_with(sent) && rest.iter().all(|byte| *byte == 0xff), "{}", device.name);
        }
    }
}

/// A guest's table: the kernel takes no partitions of a partition, and nothing of it is moved to a larger device's end.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_a_table_inside_of_a_device_stays_as_it_is() {
    let room = Room::new();
    let guest = room.device("g", "g", &content(6, 8 << 20));
    let made = std::process::Command::new("sgdisk").args(["-o", "-n", "1:2048:0", guest.path.as_str()]).output();
    assert!(made.as_ref().is_ok_and(|made| made.status.success()), "{made:?}");
    let wanted = fs::read(guest.path.as_str()).unwrap();
    let (disk, whole) = (LoopDevice::new(64 << 20, 512), LoopDevice::new(16 << 20, 512));
    let open = |device: &LoopDevice| fs::File::open(device.path()).unwrap();
    kernel::add_partition(&open(&disk), 1, 1 << 20, 16 << 20).unwrap();
    assert!(kernel::takes_partitions(disk.path()).unwrap() && !kernel::takes_partitions(&disk.partition(1)).unwrap());
    let path = guest.path.clone();
    let from = |name: &str| Device { name: name.to_owned(), path: path.clone() };
    let groups = vec![vec![from("/dev/sda1"), from("/dev/sdb")]];
    let (sender, incoming) = (room.own(None), Incoming::open(room.own(None)).unwrap());
    incoming.hear(&of(&sender)).unwrap();
    let onto = [("/dev/sda1", disk.partition(1)), ("/dev/sdb", whole.path().clone())];
    let devices = onto.clone().map(|(name, path)| Device { name: name.to_owned(), path });
    let arriving = incoming.begin(ORDER, devices.into()).unwrap();
    let peer = at(&incoming);
    thread::scope(|scope| {
        let sent = scope.spawn(|| send(&sender, &peer, ORDER, &groups, &|_| ()));
        arriving.until_whole(&|_| ()).unwrap();
        sent.join().unwrap().unwrap();
    });
    for (name, path) in onto {
        let came = fs::read(path.as_str()).unwrap();
        assert!(came.starts_with(&wanted) && came[wanted.len()..].iter().all(|byte| *byte == 0), "{name}");
    }
    assert!(kernel::partitions(whole.path()).unwrap().is_empty());
}

/// The machine that sends was switched off and on: it has another key. What it sends then is taken when the control plane says so.
#[test]
fn a_sender_that_has_booted_again_is_taken_when_it_was_announced() {
    let room = Room::new();
    let wanted = content(4, 1 << 20);
    let groups = vec![vec![room.device("d", "a", &wanted)]];
    let (first, second) = (room.own(None), room.own(None));
    let incoming = Incoming::open(room.own(None)).unwrap();
    incoming.hear(&of(&first)).unwrap();
    let arriving = incoming.begin(ORDER, vec![room.device("d", "b", &vec![1; 1 << 20])]).unwrap();
    let peer = at(&incoming);
    thread::scope(|scope| {
        let whole = scope.spawn(|| arriving.until_whole(&|_| ()));
        let refused = send(&second, &peer, ORDER, &groups, &|_| ()).unwrap_err().to_string();
        assert!(refused.contains("connect to") || refused.contains("send"), "{refused}");
        incoming.hear(&of(&second)).unwrap();
        send(&second, &peer, ORDER, &groups, &|_| ()).unwrap();
        whole.join().unwrap().unwrap();
    });
    assert_eq!(fs::read(room.0.path().join("b")).unwrap(), wanted);
}

#[test]
fn another_order_is_refused_and_an_ended_one_ends() {
    let room = Room::new();
    let groups = vec![vec![room.device("d", "a", &content(5, 1 << 20))]];
    let sender = room.own(None);
    let incoming = Incoming::open(room.own(None)).unwrap();
    incoming.hear(&of(&sender)).unwrap();
    let before = vec![7; 1 << 20];
    let arriving = incoming.begin(ORDER, vec![room.device("d", "b", &before)]).unwrap();
    let peer = at(&incoming);
    let other = "0f1e2d3c-0000-4000-8000-000000000002";
    thread::scope(|scope| {
        let whole = scope.spawn(|| arriving.until_whole(&|_| ()));
        let refused = send(&sender, &peer, other, &groups, &|_| ()).unwrap_err();
        assert!(refused.is_refusal() && refused.to_string().contains("magic"), "{refused}");
        assert!(whole.join().unwrap().unwrap_err().is_refusal());
    });
    assert_eq!(fs::read(room.0.path().join("b")).unwrap(), before, "nothing was written");

    let arriving = incoming.begin(ORDER, vec![room.device("e", "e", &before)]).unwrap();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let whole = scope.spawn(|| {
            let whole = arriving.until_whole(&|_| ());
            ended.store(true, Ordering::Relaxed);
            whole
        });
        assert!(!ended.load(Ordering::Relaxed));
        incoming.end("the move was cancelled");
        let error = whole.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("the move was cancelled"), "{error}");
    });
}

#[test]
fn a_certificate_without_the_signature_of_the_secret_is_not_taken() {
    let room = Room::new();
    let (signed, plain) = (room.own(Some("s")), room.own(None));
    let other = room.own(Some("t"));
    let incoming = Incoming::open(signed).unwrap();
    for stranger in [&plain, &other] {
        assert!(incoming.hear(&of(stranger)).unwrap_err().is_refusal());
    }
    let began = Instant::now();
    assert!(send(&other, &at(&incoming), ORDER, &[], &|_| ()).unwrap_err().is_refusal());
    assert!(began.elapsed() < PATIENCE, "a wrong certificate is not waited for");
    incoming.hear(&of(&room.own(Some("s")))).unwrap();
}

#[test]
fn a_silence_is_said_once_and_ends_after_its_time() {
    let (mut silence, began) = (Silence::default(), Instant::now());
    let after = |silence: &mut Silence, seconds| silence.heard_at(began + Duration::from_secs(seconds));
    assert_eq!(
        [0, 3, 599, 600].map(|at| after(&mut silence, at)),
        [Silent::Begins, Silent::Lasts, Silent::Lasts, Silent::Ends]
    );
    silence.is_broken();
    assert_eq!([601, 1200, 1201].map(|at| after(&mut silence, at)), [Silent::Begins, Silent::Lasts, Silent::Ends]);
}
