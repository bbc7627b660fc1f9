use super::*;
use common::encoding::encode_hex;

fn back(frame: &ProtocolFrame) -> ProtocolFrame {
    let mut wire = Vec::new();
    write_frame(&mut wire, frame).unwrap();
    let mut rest = &wire[..];
    let read = read_frame(&mut rest).unwrap();
    assert!(rest.is_empty(), "{frame:?}");
    read
}

#[test]
fn every_frame_survives_encoding() {
    let sha256 = hash_bytes(b"x");
    let hello = TransferHello {
        name: "0".to_owned(),
        magic: None,
        size_bytes: 7,
        sector_bytes: 512,
        has_table: true,
        run: None,
    };
    let bytes = DiskPiece::Bytes { offset: 1 << 20, length: 3, encoding: PieceEncoding::Lz4, sha256 };
    for frame in [
        ProtocolFrame::Hello(hello),
        ProtocolFrame::Answer(HelloAnswer::From { position: 1 << 40, compare: true }),
        ProtocolFrame::Answer(HelloAnswer::Refused("no".to_owned())),
        ProtocolFrame::Piece(bytes, b"abc".to_vec()),
        ProtocolFrame::Piece(DiskPiece::Same { offset: 5 << 20, length: 65536, sha256 }, Vec::new()),
        ProtocolFrame::Piece(DiskPiece::Zero(0..1 << 40), Vec::new()),
        ProtocolFrame::Piece(DiskPiece::Unused(1 << 30..1 << 31), Vec::new()),
        ProtocolFrame::Offered(vec![
            PieceOffer { offset: 0, length: 9, sha256 },
            PieceOffer { offset: 65536, length: 1, sha256 },
        ]),
        ProtocolFrame::Wanted(vec![true, false, true]),
        ProtocolFrame::End(sha256),
        ProtocolFrame::Verdict(ReceiverVerdict::Received(ReceiptFigures {
            digest: encode_hex(sha256),
            disk_percent: 9,
        })),
        ProtocolFrame::Verdict(ReceiverVerdict::Failed("full".to_owned())),
    ] {
        assert_eq!(back(&frame), frame);
    }
}

#[test]
fn invalid_frames_are_refused_without_allocation() {
    let bad = |bytes: &[u8]| read_frame(&mut &bytes[..]).unwrap_err().kind();
    for wire in [
        &[0, 0, 0, 0, 0][..],
        &[99, 0, 0, 0, 0],
        // A piece of 4 GiB, and a string of 16 MiB.
        &[BYTES, 0xff, 0xff, 0xff, 0xff],
        &[HELLO, 1, 0, 0, 0],
        &[HELLO, 0, 0, 0, 2, b'{', b'}'],
        &[END, 0, 0, 0, 1, 0],
        &[ZERO, 0, 0, 0, 16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 9],
        &[OFFERED, 0, 0, 0, 3, 0, 0, 0],
        &[BYTES, 0, 0, 0, 3, 0, 0, 0],
    ] {
        assert_eq!(bad(wire), ErrorKind::InvalidData, "{wire:?}");
    }
    assert_eq!(bad(&[END, 0, 0, 0, 32, 1]), ErrorKind::UnexpectedEof);
}

#[test]
fn pieces_must_be_within_the_disk_and_a_chunk() {
    let sha256 = hash_bytes(b"");
    let bytes = |offset, length| DiskPiece::Bytes { offset, length, encoding: PieceEncoding::Plain, sha256 };
    let size = 5 * CHUNK_BYTES + 512;
    for good in [
        bytes(0, CHUNK_BYTES as u32),
        bytes(65536, 65536),
        bytes(5 * CHUNK_BYTES, 512),
        DiskPiece::Zero(65536..size),
        DiskPiece::Unused(0..size),
    ] {
        assert!(good.is_within(size), "{good:?}");
    }
    for bad in [
        bytes(0, 0),
        bytes(0, 100),
        bytes(512, 65536),
        bytes(65536, CHUNK_BYTES as u32),
        bytes(0, CHUNK_BYTES as u32 + 65536),
        bytes(5 * CHUNK_BYTES, 65536),
        bytes(u64::MAX - 65535, 65536),
        DiskPiece::Zero(0..size + 1),
        DiskPiece::Unused(65536..65536),
    ] {
        assert!(!bad.is_within(size), "{bad:?}");
    }
}

#[test]
fn digest_depends_on_offset_type_and_content() {
    let of = |pieces: &[DiskPiece]| {
        let mut sum = PiecesDigest::new();
        pieces.iter().for_each(|piece| sum.add_piece(piece));
        sum.current_digest()
    };
    let (one, other) = (hash_bytes(b"1"), hash_bytes(b"2"));
    let bytes = |sha256| DiskPiece::Bytes { offset: 0, length: 65536, encoding: PieceEncoding::Plain, sha256 };
    let sums = [
        of(&[]),
        of(&[bytes(one)]),
        of(&[bytes(other)]),
        of(&[DiskPiece::Zero(0..65536)]),
        of(&[DiskPiece::Unused(0..65536)]),
        of(&[DiskPiece::Zero(65536..131072)]),
        of(&[bytes(one), DiskPiece::Zero(65536..131072)]),
    ];
    for (at, sum) in sums.iter().enumerate() {
        assert!(!sums[..at].contains(sum), "{at}");
    }
    // The digest is the same whether the bytes were transmitted or already present.
    assert_eq!(of(&[bytes(one)]), of(&[DiskPiece::Same { offset: 0, length: 65536, sha256: one }]));
}
