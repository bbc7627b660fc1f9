//! Dropped connections, damaged data, and transfers that resume.

use super::*;

#[test]
fn interrupted_transfer_continues_from_verified_data() {
    let directory = CertificateDirectory::new();
    let mut content = vec![0; 24 * MIB];
    fastrand::Rng::with_seed(1).fill(&mut content);
    let (a, b) = (directory.file("a", &content), directory.file("b", &vec![7; 24 * MIB]));
    let traveled = directory.travels(&a, &directory.receive(&[path(&b)]), &[5 * MIB, 9 * MIB, 1000]);
    assert!(fs::read(&b).unwrap() == content);
    // After the interruption, only data in flight (the content of the buffers) is transmitted again.
    assert!((24 * MIB..36 * MIB).contains(&traveled), "{traveled}");
}

#[test]
fn data_of_an_earlier_run_are_not_sent_again() {
    let directory = CertificateDirectory::new();
    let mut content = vec![0; 24 * MIB];
    fastrand::Rng::with_seed(2).fill(&mut content);
    // State of the disk after a power failure: the first MiB is zero, followed by half of the data, and then the old
    // content. One piece is damaged.
    let mut part = content.clone();
    part[..MIB].fill(0);
    part[12 * MIB..].fill(7);
    part[5 * MIB + 9] ^= 1;
    let (a, b) = (directory.file("a", &content), directory.file("b", &part));
    let receive = ReceiveOptions { resume: true, ..directory.receive(&[path(&b)]) };
    let traveled = directory.travels(&a, &receive, &[]);
    assert!(fs::read(&b).unwrap() == content);
    assert!((14 * MIB..15 * MIB).contains(&traveled), "{traveled}");
}

/// Starts a proxy that changes one byte, after the first MiB of the first connection: on the way to the receiver or,
/// with `is_back`, on the way back. Returns its address.
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
fn damaged_record_ends_its_connection_but_not_the_copy() {
    let directory = CertificateDirectory::new();
    let mut content = vec![0; 24 * MIB];
    fastrand::Rng::with_seed(5).fill(&mut content);
    let a = directory.file("a", &content);
    for is_back in [false, true] {
        let b = directory.file("b", &vec![7; 24 * MIB]);
        // With `resume`, the receiver also sends data during the transfer.
        let receive = ReceiveOptions { resume: true, ..directory.receive(&[path(&b)]) };
        let (sent, received) =
            directory.moved_over(directory.send(&[path(&a)]), &receive, |port| damaging_wire(port, is_back));
        assert_eq!(sent.unwrap(), CommandOutcome::Good, "{is_back}");
        received.unwrap();
        assert!(fs::read(&b).unwrap() == content, "{is_back}");
    }
}
