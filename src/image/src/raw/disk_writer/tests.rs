//! Raw images written to files and loop devices: complete, too long, damaged, and with runs of zeros.

use super::*;
use crate::fetch::resolve_image;
use crate::pipeline::{BufferPool, Digest, StageClock, create_pipe};
use crate::raw::disk_image_detection::is_disk_image;
use crate::testing::{Tar, compress, noise, pace, reader};
use crate::{ImageSource, IncomingImage, PayloadKind};
use linux::storage::test_loop_device::TestLoopDevice;
use proptest::prelude::*;
use std::fs;
use std::sync::Arc;
use tempfile::NamedTempFile;
use testing::filled_byte_check::is_filled_with;
use testing::http::{ResponseBehavior, Server};

const MIB: usize = 1 << 20;

mod download;
mod early_rejection;

/// Requirements that [`image`] meets.
fn partitioned() -> ImageRequirements {
    ImageRequirements { partitions: vec![1], ..ImageRequirements::default() }
}

/// Returns a file in place of a disk, filled with old content.
fn file(bytes: usize) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), vec![0xaa; bytes]).unwrap();
    file
}

fn open(file: &NamedTempFile) -> RawTarget {
    RawTarget::open(&file.path().to_str().unwrap().into()).unwrap()
}

/// Returns an image with an MBR and one partition up to the end of the image.
fn image(bytes: usize) -> Vec<u8> {
    let mut image = noise(bytes);
    image[446..510].fill(0);
    image[450] = 0x83;
    image[454..458].copy_from_slice(&1_u32.to_le_bytes());
    image[458..462].copy_from_slice(&((bytes / 512 - 1) as u32).to_le_bytes());
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    image
}

fn gpt(bytes: usize, sector: usize, backup_lba: u64) -> Vec<u8> {
    let mut image = image(bytes);
    image[450] = 0xee;
    image[sector..sector + 8].copy_from_slice(b"EFI PART");
    image[sector + 32..sector + 40].copy_from_slice(&backup_lba.to_le_bytes());
    image
}

/// Asserts that the disk begins with the image. After the image, the first MiB, the last sector of the image and the
/// last sector of the disk must contain zeros, and all other sectors their old content.
fn assert_written(found: &[u8], image: &[u8], sector: usize) {
    let (padded, last) = (image.len().next_multiple_of(sector).max(MIB), found.len() - sector);
    assert!(found[..image.len()] == *image, "the disk does not contain the image");
    assert!(is_filled_with(&found[image.len()..padded], 0));
    assert!(is_filled_with(&found[padded.min(last)..last], 0xaa));
    assert!(is_filled_with(&found[padded.max(last)..], 0));
}

#[test]
fn image_of_any_length_and_chunk_size_is_written() {
    for bytes in [512, 100_000, MIB, MIB + 1, MIB + 512, 2 * MIB, 3 * MIB - 100, 21 * MIB + 7] {
        for chunk in [7777, 65_536, MIB, 3 * MIB / 2] {
            let (disk, image) = (file(22 * MIB), image(bytes));
            let target = open(&disk);
            let held_back = write_image(reader(&image, chunk), &target, &partitioned()).unwrap();
            assert_eq!(held_back.bytes, bytes as u64);
            assert!(is_filled_with(&fs::read(disk.path()).unwrap()[..MIB], 0), "released too early");
            held_back.release().unwrap();
            assert_written(&fs::read(disk.path()).unwrap(), &image, 512);
        }
    }
}

/// The header of a backup GPT is in the disk's last sector.
#[test]
fn last_sector_is_written_together_with_the_first_mib() {
    for disk_bytes in [MIB, MIB + 512, 2 * MIB, 2 * MIB + 512, 8 * MIB - 512] {
        for short in [0, 1, 100, 511, 512, 513] {
            for zeros in [0, 1, 512, 3 * BLOCK_BYTES] {
                let (disk, mut image) = (file(disk_bytes), image(disk_bytes));
                image[disk_bytes - zeros..].fill(0);
                image.truncate(disk_bytes - short);
                let target = open(&disk);
                let held_back = write_image(reader(&image, 300_000), &target, &partitioned()).unwrap();
                assert_eq!(held_back.bytes, image.len() as u64);
                let found = fs::read(disk.path()).unwrap();
                assert!(is_filled_with(&found[disk_bytes - 512..], 0), "{disk_bytes} {short} {zeros}: too early");
                let end = (disk_bytes - 512).min(image.len());
                assert!(end <= MIB || found[MIB..end] == image[MIB..end], "{disk_bytes} {short} {zeros}");
                held_back.release().unwrap();
                assert_written(&fs::read(disk.path()).unwrap(), &image, 512);
            }
        }
    }
}

#[test]
fn zero_blocks_form_separate_ranges() {
    let block = BLOCK_BYTES;
    let bytes = [vec![0; block], noise(block), noise(block), vec![0; 2 * block], noise(5)].concat();
    for chunk in [1000, block, bytes.len()] {
        let mut buffer = vec![9; BUFFER_BYTES];
        let filled = fill_buffer(&mut reader(&bytes, chunk), &mut buffer).unwrap();
        let expected = FilledBuffer {
            bytes: 5 * block + 5,
            parts: vec![block..3 * block, 5 * block..5 * block + 5],
            zeros: vec![0..block, 3 * block..5 * block],
        };
        assert_eq!(filled, expected);
        assert!(is_filled_with(&buffer[5 * block + 5..6 * block], 0), "the last sector is incomplete");
    }
    for (at, length) in [(0, 1), (63, 64), (64, 65), (127, 128), (130, 131)] {
        let mut bytes = vec![0; length];
        assert!(is_zero(&bytes));
        bytes[at] = 1;
        assert!(!is_zero(&bytes), "{at} of {length}");
    }
}

#[test]
fn adjacent_zero_ranges_are_merged_up_to_a_limit() {
    let (jobs, done) = mpsc::sync_channel(10);
    let mut sending = WriterQueue { jobs, zeros: 0..0 };
    let mib = MIB as u64;
    for start in 0..300 {
        sending.add_zeros((1 + start) * mib..(2 + start) * mib);
    }
    sending.add_zeros(400 * mib..401 * mib);
    sending.flush();
    drop(sending);
    let ranges: Vec<_> = done
        .into_iter()
        .map(|job| match job {
            WriterJob::Zero(range) => (range.start / mib, range.end / mib),
            WriterJob::Write { .. } => panic!("a write job was queued, although the image is rejected"),
        })
        .collect();
    assert_eq!(ranges, [(1, 257), (257, 301), (400, 401)]);
}

#[test]
fn refuses_unsuitable_image_before_writing() {
    let tar = Tar::new().file("etc/hostname", b"server").end();
    let mut hybrid = gpt(2 * MIB, 4096, 511);
    hybrid[512] = b'E';
    let fat = [&[0xeb, 0x3c, 0x90][..], &noise(507), &[0x55, 0xaa], &noise(1000)].concat();
    let cases = [
        (tar.clone(), "the image is a tar archive, but the layout has image: true"),
        (noise(2 * MIB), "does not begin with a GPT or MBR"),
        (Vec::new(), "does not begin with a GPT or MBR"),
        (fat, "does not begin with a GPT or MBR"),
        (
            gpt(2 * MIB, 512, 8 * 2048),
            "the image is larger than the disk (according to its partition table, it requires 8389120 bytes)",
        ),
        (gpt(2 * MIB, 512, u64::MAX), "larger than the disk"),
        (
            image(9 * MIB)[..2 * MIB].to_vec(),
            "the image is larger than the disk (according to its partition table, it requires 9437184 bytes)",
        ),
        (hybrid, "is for disks with a sector size of 4096 bytes, but"),
        (gpt(2 * MIB, 1024, 0), "has a protective MBR but no GPT: it is damaged"),
    ];
    for (image, says) in cases {
        let disk = file(8 * MIB);
        let target = open(&disk);
        let error = write_image(reader(&image, MIB), &target, &partitioned()).err().unwrap().to_string();
        assert!(error.contains(says), "{says}: {error}");
        assert!(is_filled_with(&fs::read(disk.path()).unwrap(), 0xaa), "{says}: the disk was written nevertheless");
    }
    let disk = file(8 * MIB);
    let target = open(&disk);
    write_image(reader(&noise(2 * MIB), MIB), &target, &ImageRequirements::default()).unwrap().release().unwrap();
    let error = write_image(reader(&tar, MIB), &target, &ImageRequirements::default()).err().unwrap().to_string();
    assert!(error.contains("tar archive"), "{error}");
}

#[test]
fn disk_image_is_distinguished_from_a_tar() {
    let tar = Tar::new().file("boot.img", &image(4096)).end();
    let cases = [
        (&tar[..], false),
        (&image(4096)[..], true),
        (&gpt(4 * 4096, 512, 9)[..], true),
        (&gpt(4 * 4096, 4096, 9)[..], true),
        (&image(4096)[..511], false),
        (&[][..], false),
        (&noise(4096)[..], false),
    ];
    for (head, expected) in cases {
        assert_eq!(is_disk_image(head), expected);
    }
}

#[test]
fn oversized_or_truncated_stream_leaves_nothing_bootable() {
    let mut long = image(9 * MIB);
    long[458..462].copy_from_slice(&100_u32.to_le_bytes());
    for chunk in [MIB, 100_000] {
        let disk = file(8 * MIB);
        let target = open(&disk);
        let error = write_image(reader(&long, chunk), &target, &partitioned()).err().unwrap().to_string();
        let name = disk.path().display();
        assert_eq!(error, format!("the image is larger than the disk: {name} is {} bytes", 8 * MIB));
        assert!(is_filled_with(&fs::read(disk.path()).unwrap()[..MIB], 0));
    }
    let (sender, receiver) = create_pipe(9);
    let pool = BufferPool::new(9, MIB);
    for piece in image(3 * MIB).chunks(MIB) {
        let mut filling = pool.take_buffer(&StageClock::default());
        filling.copy_from_slice(piece);
        sender.send(filling.into_chunk(MIB), &StageClock::default()).unwrap();
    }
    sender.fail(io::Error::other("the network is gone"));
    let disk = file(8 * MIB);
    let target = open(&disk);
    let error = write_image(PipelineReader::new(receiver, Arc::default()), &target, &partitioned()).err().unwrap();
    assert_eq!(error.to_string(), "the network is gone");
    assert!(is_filled_with(&fs::read(disk.path()).unwrap()[..MIB], 0));
}

#[test]
fn write_failure_names_the_disk_and_offset() {
    let disk = file(32 * MIB);
    let mut target = open(&disk);
    target.reopen_read_only();
    let error = write_image(reader(&image(20 * MIB), MIB), &target, &partitioned()).err().unwrap().to_string();
    assert!(error.contains(&format!("at byte 0 of {}", disk.path().display())), "{error}");
}

#[test]
fn refuses_to_open_targets_other_than_disks() {
    let odd = file(1000);
    let directory = tempfile::tempdir().unwrap();
    for (path, says) in [
        (odd.path(), "neither a disk nor a file whose length is a multiple of 512 bytes"),
        (directory.path(), "neither a disk nor"),
        (std::path::Path::new("/dev/no-such-disk"), "No such file"),
    ] {
        let error = RawTarget::open(&path.to_str().unwrap().into()).err().unwrap().to_string();
        assert!(error.starts_with(&format!("open {} to write the raw image: ", path.display())), "{error}");
        assert!(error.contains(says), "{error}");
    }
}

/// Returns images that alternate between zeros and data, in runs of any length.
fn runs() -> impl Strategy<Value = Vec<u8>> {
    let run = (any::<bool>(), prop_oneof![1..5000_usize, 60_000..400_000_usize, Just(BLOCK_BYTES), Just(MIB)]);
    prop::collection::vec(run, 0..12).prop_map(|runs| {
        let data = noise(MIB);
        let run = |(zeros, length): (bool, usize)| if zeros { vec![0; length] } else { data[..length].to_vec() };
        [vec![image(4096)], runs.into_iter().map(run).collect()].concat().concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_image_is_written_unchanged(image in runs(), chunk in prop_oneof![3000..70_000_usize, Just(MIB)]) {
        let disk = file(13 * MIB);
        let target = open(&disk);
        write_image(reader(&image, chunk), &target, &partitioned()).unwrap().release().unwrap();
        assert_written(&fs::read(disk.path()).unwrap(), &image, 512);
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_images_with_zeros_and_odd_lengths_are_written_directly() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(10));
    for sector in [512, 4096] {
        let disk = TestLoopDevice::new(13 * MIB as u64, sector);
        let result = runner.run(&(runs(), 3000..2_000_000_usize), |(image, chunk)| {
            fs::write(disk.path(), vec![0xaa; 13 * MIB]).unwrap();
            let target = RawTarget::open(disk.path()).unwrap();
            assert_eq!((target.disk.size_bytes, target.disk.sector_bytes), (13 * MIB as u64, sector));
            let held_back = write_image(reader(&image, chunk), &target, &partitioned()).unwrap();
            // The file of the loop device contains what was written to the disk.
            assert!(is_filled_with(&fs::read(disk.image()).unwrap()[..MIB], 0));
            held_back.release().unwrap();
            assert_written(&fs::read(disk.image()).unwrap(), &image, sector as usize);
            Ok(())
        });
        result.unwrap();
    }
}
