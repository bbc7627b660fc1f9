//! Small images that cause much work. The work is counted in headers, because time depends on the machine.

use super::*;

/// Returns a tar with a large global header, followed by many members. The header must be processed again for each
/// member.
fn behind_a_large_global_header(what: impl Fn(Tar) -> Tar) -> Vec<u8> {
    let large = [b"comment=".to_vec(), vec![b'x'; 64_000]].concat();
    (0..2500).fold(Tar::new().pax(b'g', &[&large]), |tar, _| what(tar)).directory("last").end()
}

#[test]
fn header_budget_depends_on_the_image_size() {
    for tar in [
        behind_a_large_global_header(|tar| tar.directory("d")),
        behind_a_large_global_header(|tar| tar.pax(b'g', &[b"k1="])),
    ] {
        let image = compress("zstd", &tar);
        assert!(image.len() < 16 << 10, "{}", image.len());
        let root = tempfile::tempdir().unwrap();
        let error =
            burn_from(&Server::start(image.clone(), |_| ResponseBehavior::default()), &image, root.path()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("header blocks, too many for the length of the image"), "{error}");
        assert!(!root.path().join("last").exists());
        // Without compression, the tar is long enough for the same number of headers.
        burn_from(&Server::start(tar.clone(), |_| ResponseBehavior::default()), &tar, root.path()).unwrap();
        assert!(root.path().join("last").exists());
    }
}

/// Unpacks a tar while only `blocks` header blocks are left in the budget. Returns the error and the number of created
/// names.
fn with_blocks_left(blocks: u64, layered: bool, tar: Tar) -> (Option<String>, usize) {
    let root = tempfile::tempdir().unwrap();
    let mut counter = HiddenFileCounter::new(MountsBelow::default());
    counter.work.add_part(counter.work.left(0) - blocks, 0);
    let below = UnpackRoot::open(root.path(), Vec::new()).unwrap();
    let unpacked = untar(
        members_of(reader(&tar.end(), 1 << 16)),
        &below,
        &mut counter,
        layered,
        &DownloadState::default(),
        &StageClocks::start(),
    );
    (unpacked.err().map(|error| error.to_string()), names(root.path()).len())
}

#[test]
fn members_without_content_count_against_the_budget() {
    let files = |count: usize| (0..count).fold(Tar::new(), |tar, number| tar.file(&number.to_string(), b""));
    // The end of the tar is counted as another header block.
    assert_eq!(with_blocks_left(101, false, files(100)), (None, 100));
    let (error, count) = with_blocks_left(101, false, files(150));
    assert!(error.unwrap().starts_with("the tar archive has more than 101 header blocks") && count <= 101);
    // A longer header is counted as several blocks.
    let named = |tar: Tar| tar.pax(b'x', &[&[b"comment=".to_vec(), vec![b'x'; 2000]].concat()]).file("a", b"");
    let (error, _) = with_blocks_left(101, false, (0..20).fold(Tar::new(), |tar, _| named(tar)));
    assert!(error.unwrap().contains("header blocks"));
}

#[test]
fn implied_parent_directories_count_against_the_budget() {
    let deep = |number: usize| format!("{number}/{}file", "d/".repeat(300));
    let tar = |count: usize| {
        (0..count).fold(Tar::new(), |tar, number| {
            tar.pax(b'x', &[format!("path={}", deep(number)).as_bytes()]).file("a", b"")
        })
    };
    assert_eq!(with_blocks_left(10_000, false, tar(2)), (None, 2 * 302));
    let (error, count) = with_blocks_left(10_000, false, tar(30));
    assert!(error.unwrap().contains("header blocks") && count < 10_000 / 2, "{count}");
}

#[test]
fn entries_examined_by_whiteouts_count_against_the_budget() {
    let files = (0..1000).fold(Tar::new(), |tar, number| tar.file(&format!("d/{number}"), b""));
    let whiteouts = |count: usize| (0..count).fold(Tar(files.0.clone()), |tar, _| tar.file("d/.wh..wh..opq", b""));
    assert_eq!(with_blocks_left(10_000, true, whiteouts(5)), (None, 1001));
    let (error, _) = with_blocks_left(10_000, true, whiteouts(50));
    assert!(error.unwrap().contains("header blocks"));
}
