//! Errors of an image that are detected in its first MiB before anything is written, and errors that are only detected
//! later.

use super::*;
use crate::raw::{TargetDisk, duplicate_uuids};
use linux::gpt::testing::crowded_image;
use linux::storage::image_table_adaptation;
use model::inventory::{DeviceSignature, DiskPartition, DiskTable};
use uuid::Uuid;

fn arriving(server: &Server) -> IncomingImage {
    arriving_as(server, PayloadKind::AnyBytes)
}

fn arriving_as(server: &Server, plain: PayloadKind) -> IncomingImage {
    let source =
        ImageSource { url: server.url("x"), digest: Some(Digest::of_bytes(b"another")), ..ImageSource::default() };
    let reached = resolve_image(&linux::http::new_client().unwrap(), &source, &pace()).unwrap();
    IncomingImage::start_at_pace(reached, plain, pace()).unwrap()
}

fn sda(sector_bytes: u32) -> TargetDisk {
    TargetDisk { name: "/dev/sda".into(), size_bytes: 8 * MIB as u64, sector_bytes }
}

#[test]
fn raw_image_is_refused_as_a_tree_before_writing() {
    let tar = Tar::new().file("etc/hostname", b"server").file("x", &noise(MIB)).end();
    let refused = Some("the image is a raw disk image; use a layout with image: true");
    for (bytes, says) in [
        (compress("zstd", &tar), None),
        (compress("gzip", b""), None),
        (compress("lz4", &image(3 * MIB)), refused),
        (compress("zstd", &crowded_image(4096, 500)), refused),
    ] {
        let server = Server::start(bytes, |_| ResponseBehavior::default());
        let said = arriving_as(&server, PayloadKind::Tar).require_tree().map_err(|error| error.to_string());
        match says {
            None => assert_eq!(said, Ok(())),
            Some(says) => assert!(said.as_ref().is_err_and(|error| error.contains(says)), "{said:?}"),
        }
    }
}

/// Returns `image` with the bytes at an offset replaced.
fn changed(mut image: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    image[at..at + bytes.len()].copy_from_slice(bytes);
    image
}

#[test]
fn unsuitable_disk_image_is_refused_before_writing() {
    let tar = Tar::new().file("etc/hostname", b"server").file("x", &noise(MIB)).end();
    let (large, small) = (crowded_image(4096, 500), crowded_image(512, 4000));
    let expected = |partitions: &[u32], grow| ImageRequirements {
        partitions: partitions.to_vec(),
        grow,
        ..ImageRequirements::default()
    };
    let cases = [
        (&tar, 512, expected(&[1], None), "the image is a tar archive, but the layout has image: true for /dev/sda"),
        (&b"no compression at all".to_vec(), 512, expected(&[1], None), "does not begin with a GPT or MBR"),
        (
            &small,
            4096,
            expected(&[1], None),
            "is for disks with a sector size of 512 bytes, but /dev/sda has a sector size of 4096",
        ),
        (
            &large,
            512,
            expected(&[1], None),
            "is for disks with a sector size of 4096 bytes, but /dev/sda has a sector size of 512",
        ),
        (
            &image(9 * MIB),
            512,
            expected(&[1], None),
            "(according to its partition table, it requires 9437184 bytes): /dev/sda is 8388608",
        ),
        (&gpt(2 * MIB, 1024, 0), 512, expected(&[1], None), "has a protective MBR but no GPT: it is damaged"),
        (&changed(small.clone(), 512 + 60, b"x"), 512, expected(&[1], None), "the header's checksum does not match"),
        (
            &changed(large.clone(), 2 * 4096 + 7, b"x"),
            4096,
            expected(&[1], None),
            "the checksum of the partition entries does not match",
        ),
        (
            &small,
            512,
            expected(&[128, 129], None),
            "a filesystem on /dev/sda129, but the image does not contain partition 129; it contains only 1, 2,",
        ),
        (
            &large,
            4096,
            expected(&[1], Some(129)),
            "partition 129 cannot grow: the image does not contain this partition",
        ),
        (
            &large,
            4096,
            expected(&[1], Some(127)),
            "does not fit /dev/sda: partition 127 cannot grow: partition 128 follows it",
        ),
        (&image(3 * MIB), 512, expected(&[1], Some(1)), "partition 1 cannot grow: the image does not contain a GPT"),
        (
            &image(3 * MIB),
            512,
            expected(&[2], None),
            "a filesystem on /dev/sda2, but the image does not contain partition 2; it contains only 1",
        ),
        (&image(3 * MIB), 512, expected(&[5], None), "partition 5; it contains only 1"),
        (&changed(image(3 * MIB), 450, &[5]), 512, expected(&[2, 5], None), "partition 2; it contains only 1"),
    ];
    for (image, sector, expected, says) in cases {
        let server = Server::start(compress("zstd", image), |_| ResponseBehavior::default());
        let error = arriving(&server).require_disk(&sda(sector), &expected).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
    let good = [
        (noise(MIB), 512, ImageRequirements::default()),
        (small, 512, expected(&[1, 128], Some(128))),
        (large, 4096, expected(&[128], Some(128))),
        (image(3 * MIB), 512, expected(&[1], None)),
        (changed(image(3 * MIB), 450, &[5]), 512, expected(&[1, 5], None)),
    ];
    for (image, sector, expected) in good {
        let server = Server::start(compress("zstd", &image), |_| ResponseBehavior::default());
        arriving(&server).require_disk(&sda(sector), &expected).unwrap();
    }
    let server = Server::start(compress("zstd", &image(MIB)), |_| ResponseBehavior::default());
    let mut layered = arriving(&server);
    layered.reached.parts.extend(layered.reached.parts.clone());
    let error = layered.require_disk(&sda(512), &ImageRequirements::default()).unwrap_err().to_string();
    assert!(error.contains("is not a raw disk image: it consists of 2 layers"), "{error}");
}

#[test]
fn image_with_ids_of_another_disk_is_refused_early() {
    let server = Server::start(compress("zstd", &crowded_image(512, 4000)), |_| ResponseBehavior::default());
    let uuid = |byte: u8| Uuid::from_bytes([byte; 16]).to_string();
    let taken = |taken: &[(u8, &str)]| ImageRequirements {
        partitions: vec![1],
        taken: taken.iter().map(|(byte, device)| (uuid(*byte), (*device).into())).collect(),
        ..ImageRequirements::default()
    };
    let other = taken(&[(0xf7, "/dev/sdb"), (0x22, "/dev/sdc9"), (0x21, "/dev/sdd")]);
    let error = arriving(&server).require_disk(&sda(512), &other).unwrap_err().to_string();
    let says = format!(
        "{} of /dev/sda is also the UUID of /dev/sdb, {} of /dev/sda1 is also the UUID of /dev/sdc9; ",
        uuid(0xf7),
        uuid(0x22)
    );
    assert!(error.contains(&says), "{error}");
    arriving(&server).require_disk(&sda(512), &taken(&[(0x21, "/dev/sdb")])).unwrap();
}

#[test]
fn filesystem_uuid_on_another_disk_is_reported_with_both() {
    let signature = |uuid: &str| DeviceSignature { uuid: uuid.to_owned(), ..DeviceSignature::default() };
    let partition = |number, uuids: &[&str]| DiskPartition {
        number,
        signatures: uuids.iter().map(|uuid| signature(uuid)).collect(),
        ..DiskPartition::default()
    };
    let partitions = vec![partition(1, &["1A2B-3C4D"]), partition(2, &["", "e5-f6"])];
    let table = DiskTable { partitions, ..DiskTable::default() };
    let check = |uuid: &str| {
        duplicate_uuids::check_duplicate_uuids(
            &table,
            &"/dev/nvme0n1".into(),
            &[(uuid.to_owned(), "/dev/sdb1".into())].into(),
        )
    };
    for (uuid, device) in [("1a2b-3c4d", "/dev/nvme0n1p1"), ("e5-f6", "/dev/nvme0n1p2")] {
        let error = check(uuid).unwrap_err().to_string();
        assert!(
            error.contains(&format!(
                "{uuid} of {device} is also the UUID of /dev/sdb1; detach or wipe the preserved disk"
            )),
            "{error}"
        );
    }
    check("e5-f7").unwrap();
}

#[test]
fn refuses_added_partition_without_a_gpt() {
    let added = operations::AddedPartition { name: "config-2".into(), guid: Uuid::nil(), content: vec![0] };
    let expected = ImageRequirements { added: Some(added), ..ImageRequirements::default() };
    for image in [noise(2 * MIB), image(2 * MIB)] {
        let server = Server::start(compress("zstd", &image), |_| ResponseBehavior::default());
        let error = arriving(&server).require_disk(&sda(512), &expected).unwrap_err().to_string();
        assert!(error.contains("cannot add partition config-2: the image does not contain a GPT"), "{error}");
    }
}

/// Errors in GPT entries after the first MiB are detected only when the table is fitted to the disk.
#[test]
fn table_beyond_the_first_mib_is_not_checked_early() {
    let image = crowded_image(512, 4000);
    let whole = image_table_adaptation::check_image_table(&image, 512, 8 * MIB as u64, None, None).unwrap().unwrap();
    assert_eq!(whole.guid, Some(Uuid::from_bytes([0xf7; 16])));
    let partitions: Vec<_> =
        whole.partitions.iter().map(|partition| (partition.number, partition.guid.unwrap().as_bytes()[0])).collect();
    assert_eq!(partitions, (1..=128).zip(34..).collect::<Vec<(u32, u8)>>());
    assert_eq!(
        image_table_adaptation::check_image_table(&image[..16 * 1024], 512, 8 * MIB as u64, None, None).unwrap(),
        None
    );
    assert_eq!(
        image_table_adaptation::check_image_table(&image[..600], 512, 8 * MIB as u64, Some(7), None).unwrap(),
        None
    );
}

#[test]
fn image_that_changes_during_inspection_is_inspected_again() {
    let (old, new) = (noise(3 * MIB), compress("zstd", &image(3 * MIB)));
    let changed = new.clone();
    let server = Server::start(old, move |request| match (request.method.as_str(), request.nth) {
        ("HEAD", _) => ResponseBehavior::default(),
        ("GET", 0) => ResponseBehavior::cut_after(MIB / 2),
        _ => ResponseBehavior {
            etag: Some("\"two\"".into()),
            body: Some(changed.clone()),
            ..ResponseBehavior::default()
        },
    });
    let mut incoming = arriving(&server);
    incoming.require_disk(&sda(512), &partitioned()).unwrap();
    let disk = file(10 * MIB);
    let error = incoming.burn_to_disk(&open(&disk), &partitioned(), &|_| ()).unwrap_err().to_string();
    assert!(error.contains(&format!("got {}", Digest::of_bytes(&new))), "{error}");

    let body = compress("zstd", &image(3 * MIB));
    let server = Server::start(body.clone(), move |request| match request.method.as_str() {
        "HEAD" => ResponseBehavior::default(),
        _ => ResponseBehavior { etag: Some(format!("\"{}\"", request.nth)), ..ResponseBehavior::cut_after(MIB / 2) },
    });
    let error = arriving(&server).require_disk(&sda(512), &partitioned()).unwrap_err().to_string();
    assert!(
        error.contains("could not be resumed. Last reason: the server resent the image from its beginning"),
        "{error}"
    );
}
