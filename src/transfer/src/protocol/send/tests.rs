use super::*;

const GRANULE: usize = GRANULE_BYTES as usize;

#[test]
fn zero_runs_are_split_at_granules() {
    let mut bytes = vec![0; 5 * GRANULE + 100];
    bytes[GRANULE] = 1;
    bytes[3 * GRANULE - 1] = 1;
    assert_eq!(
        split_zero_runs(&bytes),
        [(0..GRANULE, true), (GRANULE..3 * GRANULE, false), (3 * GRANULE..5 * GRANULE + 100, true)]
    );
    *bytes.last_mut().unwrap() = 1;
    assert_eq!(split_zero_runs(&bytes).last(), Some(&(5 * GRANULE..5 * GRANULE + 100, false)));
    assert_eq!(split_zero_runs(&[]), []);
}

#[test]
fn incompressible_data_are_sent_uncompressed() {
    let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(GRANULE).collect();
    let words = b"the same again ".repeat(5000);
    let lz4 = lz4_flex::block::compress;
    assert_eq!(keep_if_smaller(&noise, PieceEncoding::Lz4, lz4(&noise)), None);
    let (encoding, packed) = keep_if_smaller(&words, PieceEncoding::Lz4, lz4(&words)).unwrap();
    assert_eq!(encoding, PieceEncoding::Lz4);
    assert_eq!(lz4_flex::block::decompress(&packed, words.len()).unwrap(), words);
}

/// On a slower network, pieces are compressed more.
#[test]
fn queued_pieces_are_compressed_more() {
    let folder = tempfile::tempdir().unwrap();
    let (file, words) = (folder.path().join("disk"), b"word after word ".repeat(8192));
    std::fs::write(&file, &words).unwrap();
    let source = TransferSource::open_source(&file, true).unwrap();
    let (_empty, empties) = mpsc::channel();
    let shared = SendShared {
        source: &source,
        todo: Mutex::new((SegmentIter::from_source(&source, 0).enumerate(), empties)),
        queued: AtomicUsize::new(0),
        read: BusyTime::default(),
        pack: BusyTime::default(),
    };
    let mut zstd = CCtx::create();
    for (queued, wanted) in [
        (0, PieceEncoding::Plain),
        (1, PieceEncoding::Lz4),
        (ZSTD_QUEUE_LENGTH - 1, PieceEncoding::Lz4),
        (ZSTD_QUEUE_LENGTH, PieceEncoding::Zstd),
    ] {
        shared.queued.store(queued, Ordering::Relaxed);
        let part = shared.pack_part(0, &words, 0..words.len(), &mut zstd);
        let DiskPiece::Bytes { encoding, .. } = part.piece else { panic!("no bytes") };
        assert_eq!(encoding, wanted, "{queued}");
        let unpacked = match (encoding, part.packed) {
            (PieceEncoding::Zstd, Some(packed)) => zstd::bulk::decompress(&packed, words.len()).unwrap(),
            (PieceEncoding::Lz4, Some(packed)) => lz4_flex::block::decompress(&packed, words.len()).unwrap(),
            (_, packed) => packed.unwrap_or_else(|| words.clone()),
        };
        assert_eq!(unpacked, words);
    }
}
