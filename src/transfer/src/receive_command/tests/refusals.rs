//! Transfers that are refused by the sender, the receiver or both, before anything is written.

use super::*;

#[test]
fn unsuitable_transfer_is_refused_on_both_ends_without_writes() {
    let directory = CertificateDirectory::new();
    let a = directory.file("a", &disk(2 * MIB));
    let magic = |word: &str| Some(word.parse().unwrap());
    for (bytes, own, their, words) in [
        (MIB, None, None, "0 is 2097152 bytes, but the destination is only 1048576"),
        (2 * MIB, magic("abcde"), None, "magic mismatch"),
        (2 * MIB, None, magic("abcde"), "magic mismatch"),
        (2 * MIB, magic("abcdx"), magic("abcde"), "magic mismatch"),
    ] {
        let b = directory.file("b", &vec![7; bytes]);
        let mut send = directory.send(&[path(&a)]);
        let mut receive = directory.receive(&[path(&b)]);
        (send.common.magic, receive.common.magic) = (own, their);
        let (sent, received) = directory.moved(send, &receive);
        // The error is a refusal, which determines the exit status.
        assert!(sent.unwrap_err().is_refusal());
        let error = received.unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains(words), "{error}");
        assert!(fs::read(&b).unwrap() == vec![7; bytes]);
    }
}

#[test]
fn refuses_size_that_differs_from_the_option() {
    let directory = CertificateDirectory::new();
    let (a, b) = (directory.file("a", &disk(MIB)), directory.file("b", &vec![7; 2 * MIB]));
    let receive = ReceiveOptions { size: Some(2 * MIB as u64), ..directory.receive(&[path(&b)]) };
    let (sent, received) = directory.moved(directory.send(&[path(&a)]), &receive);
    assert!(sent.unwrap_err().is_refusal());
    let error = received.unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("expected 2097152"), "{error}");
    assert!(fs::read(&b).unwrap() == vec![7; 2 * MIB]);
}

#[test]
fn unknown_peer_neither_receives_nor_sends_data() {
    let directory = CertificateDirectory::new();
    let a = directory.file("a", &disk(1000 * 512));
    // Three cases: the sender uses C's key, the receiver uses C's key, or the sender has pinned C's certificate.
    for (sender, senders_peer, receiver, receivers_peer) in
        [("c", "b", "b", "a"), ("a", "b", "c", "a"), ("a", "c", "b", "a")]
    {
        let b = directory.file("b", &vec![7; MIB]);
        let send = SendOptions { common: directory.common(sender, senders_peer), ..directory.send(&[path(&a)]) };
        let receive =
            ReceiveOptions { common: directory.common(receiver, receivers_peer), ..directory.receive(&[path(&b)]) };
        let (sent, received) = directory.moved(send, &receive);
        assert!(!sent.unwrap_err().is_refusal());
        let error = received.unwrap_err().to_string();
        assert!(error.contains("no connection from the sender for 3 s"), "{error}");
        assert!(fs::read(&b).unwrap() == vec![7; MIB]);
    }
}

#[test]
fn invalid_options_are_refused_before_connecting() {
    let directory = CertificateDirectory::new();
    let b = directory.file("b", &vec![7; MIB]);
    let begin = |change: &dyn Fn(&mut ReceiveOptions)| {
        let mut receive = directory.receive(&[path(&b)]);
        change(&mut receive);
        match crate::load_endpoints(&receive.common, None).and_then(|_| TransferReceiver::from_options(&receive)) {
            Ok(_) => panic!("it is not refused"),
            Err(error) => (error.is_refusal(), error.to_string()),
        }
    };
    let odd = directory.file("odd", &[7; 1000]);
    let folder = directory.0.path().to_owned();
    for (words, change) in [
        (
            "confirm with --overwrite",
            &(|receive: &mut ReceiveOptions| receive.overwrite = false) as &dyn Fn(&mut ReceiveOptions),
        ),
        ("at least 1048577 bytes are required", &|receive| receive.size = Some(MIB as u64 + 1)),
        ("a file whose length is a multiple of 512 bytes", &|receive| receive.disks = named(&[path(&odd)])),
        ("cannot be the destination", &|receive| receive.disks = named(&[path(&folder)])),
        ("No such file", &|receive| receive.disks = named(&["/nowhere/disk"])),
        ("two disks have the name x", &|receive| receive.disks = named(&["x=/a", "x=/b"])),
        ("does not belong to the certificate", &|receive| receive.common.key = directory.path("a.key")),
    ] {
        let (is_refusal, said) = begin(change);
        assert!(is_refusal && said.contains(words), "{words}: {said}");
    }
    assert!(fs::read(&b).unwrap() == vec![7; MIB]);
}

/// A retry would fail again.
#[test]
fn rejected_certificates_and_invalid_frames_are_not_retried() {
    let directory = CertificateDirectory::new();
    let port = ListeningPort::open("127.0.0.1:0").unwrap();
    for (own, bytes) in [("c", None), ("a", Some([99, 0, 0, 0, 0]))] {
        let failed = thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                let ends = crate::load_endpoints(&directory.common("b", "a"), None).unwrap();
                let tcp = loop {
                    match port.accept_next().unwrap() {
                        Some(tcp) => break tcp,
                        None => thread::sleep(POLL_INTERVAL),
                    }
                };
                TlsLink::accept(tcp, &ends).map(|mut link| receive_disk(&mut link, &[], ends.peer_certificate()))
            });
            let ends = crate::load_endpoints(&directory.common(own, "b"), None).unwrap();
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
