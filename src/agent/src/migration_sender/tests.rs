//! Tests of the sender's actions, its trust in receivers, and groups of devices.

use super::*;
use model::inventory::InventoryDisk;
use model::layout::FilesystemFormat;
use model::machine_migration::MigrationStatus;

fn answer(newest: Option<(&str, &str)>, allocation: Option<Allocation>) -> AssignedMachine {
    let newest = newest.map(|(order, state)| MigrationStatus { order: order.to_owned(), state: state.to_owned() });
    AssignedMachine { newest_move: newest, allocation, ..AssignedMachine::default() }
}

/// The sender keeps its system if a machine file is temporarily unreadable, or if the control plane has an earlier
/// version.
#[test]
fn missing_answer_is_awaited_and_an_end_is_reported() {
    let moving = MigrationOffer {
        order: "o1".to_owned(),
        part: MigrationSide::Source,
        started: true,
        awaits_approval: false,
        peer: None,
        carried: None,
        disks: Vec::new(),
    };
    let sends = Allocation { moving: Some(moving.clone()), ..Allocation::default() };
    let other = Allocation { id: "a9".to_owned(), ..Allocation::default() };
    let mut silence = ControlSilence::default();
    let mut after = |newest, allocation| choose_sender_action(&answer(newest, allocation), "o1", &mut silence);
    assert_eq!(after(Some(("o1", "copying")), Some(sends.clone())), SenderAction::Send(Box::new(moving.clone())));
    assert_eq!(after(None, Some(sends)), SenderAction::Send(Box::new(moving)), "a control plane of an earlier version");
    for (newest, words) in [
        (Some(("o1", "copying")), "the migration is copying"),
        (Some(("o1", "booting")), "not confirmed yet"),
        (Some(("o1", "done")), "this machine has no allocation"),
        (None, "for the control plane to report the migration"),
    ] {
        let SenderAction::Wait(what) = after(newest, None) else { panic!("{newest:?}") };
        assert!(what.contains(words), "{what}");
    }
    for (newest, allocation) in [
        (Some(("o1", "cancelled")), None),
        (Some(("o1", "refused")), Some(other.clone())),
        (Some(("o2", "ordered")), None),
        (Some(("o1", "done")), Some(other.clone())),
    ] {
        assert!(matches!(after(newest, allocation), SenderAction::Reboot(_)), "{newest:?}");
    }
    // An earlier version of the server does not report a status when the migration has ended. The sender also waits in
    // that case.
    assert!(matches!(after(None, Some(other)), SenderAction::Wait(_)));
}

/// Attack: a machine that impersonates the receiver requests the disks. The control plane may have been deceived,
/// or be malicious itself.
#[test]
fn nothing_is_sent_to_an_unapproved_machine() {
    let own = OwnIdentity::generate_identity(Path::new("/there/is/no/secret")).unwrap();
    let certificate =
        OwnIdentity::generate_identity(Path::new("/there/is/no/secret")).unwrap().certificate().to_owned();
    for (approved, started, is_sent_to) in
        [(false, true, false), (false, false, false), (true, false, false), (true, true, true)]
    {
        let peer = Some(MigrationPeer { certificate: certificate.clone(), address: String::new(), approved });
        let (order, part) = ("o1".to_owned(), MigrationSide::Source);
        let moving =
            MigrationOffer { order, part, started, awaits_approval: false, peer, carried: None, disks: Vec::new() };
        assert_eq!(find_trusted_receiver(&own, &moving, "").unwrap().is_some(), is_sent_to, "{approved} {started}");
    }
    // The signature with the secret replaces the approval.
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "the secret of both ramdisks\n").unwrap();
    let (own, other) = (
        OwnIdentity::generate_identity(secret.path()).unwrap(),
        OwnIdentity::generate_identity(secret.path()).unwrap(),
    );
    for (certificate, is_good) in [(other.certificate(), true), (certificate.as_str(), false)] {
        let peer = MigrationPeer { certificate: certificate.to_owned(), address: String::new(), approved: false };
        assert_eq!(own.check_peer(&peer).is_ok(), is_good);
    }
}

/// Once the other machine has erased its disks, an untrusted certificate no longer ends the migration.
#[test]
fn certificate_is_checked_before_the_receiver_starts() {
    let own = OwnIdentity::generate_identity(Path::new("/there/is/no/secret")).unwrap();
    let good = OwnIdentity::generate_identity(Path::new("/there/is/no/secret")).unwrap().certificate().to_owned();
    let of = |certificate: &str, started| {
        let peer = Some(MigrationPeer { certificate: certificate.to_owned(), address: String::new(), approved: true });
        let (order, part) = ("o1".to_owned(), MigrationSide::Source);
        let moving =
            MigrationOffer { order, part, started, awaits_approval: false, peer, carried: None, disks: Vec::new() };
        find_trusted_receiver(&own, &moving, "sent").map(|peer| peer.map(|peer| peer.certificate.clone()))
    };
    assert_eq!(of(&good, false).unwrap(), None);
    assert_eq!(of(&good, true).unwrap(), Some(good.clone()));
    assert_eq!(of("sent", true).unwrap(), None);
    assert_eq!(of("none", true).unwrap(), Some("none".to_owned()), "the transfer fails with an error, and is retried");
    let refused = of("none", false).unwrap_err();
    assert!(refused.is_refusal() && refused.to_string().contains("certificate of the other machine"), "{refused}");
}

#[test]
fn devices_that_share_a_disk_are_read_sequentially() {
    let disk = |name: &str| InventoryDisk {
        name: name.into(),
        device: format!("/dev/{name}").as_str().into(),
        ..InventoryDisk::default()
    };
    let inventory = Inventory { disks: vec![disk("sda"), disk("sdb")], ..Inventory::default() };
    let from =
        |device: &str| SourceDevice { name: device.into(), device: device.into(), format: FilesystemFormat::Ext4 };
    let groups = group_by_shared_disks(&inventory, &[from("/dev/sda"), from("/dev/sdb"), from("/dev/sda")]);
    let names: Vec<Vec<&str>> =
        groups.iter().map(|group| group.iter().map(|from| from.device.as_str()).collect()).collect();
    assert_eq!(names, [vec!["/dev/sdb"], vec!["/dev/sda", "/dev/sda"]]);
}
