//! Encoding of members for the transfer from the worker, which parses the tar, to the agent.
//!
//! The stream consists of frames. Each frame consists of a type, a length, and as many bytes as the length specifies.
//! Frames are untrusted. The decoder accepts only members that a tar could contain.

use super::sparse::SparseMap;
use super::tar_member::{MemberAttributes, MemberKind, TarMember};
use crate::pipeline::{PacketParser, add_text};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemberFrame {
    /// First frame if the worker accepts the stream. The worker accepts streams that do not begin like a disk image.
    Accepted,
    /// First frame if the worker rejects the stream. Contains the reason.
    Refused,
    Member,
    /// Next part of the content of the current member.
    Content,
    /// Request for the current limits. The worker waits for the answer.
    LimitRequest,
    /// Message for the agent's log.
    LogMessage,
    /// Last frame, after the end of the archive and of the stream. Contains the progress.
    Last,
}

const FRAMES: [MemberFrame; 7] = [
    MemberFrame::Accepted,
    MemberFrame::Refused,
    MemberFrame::Member,
    MemberFrame::Content,
    MemberFrame::LimitRequest,
    MemberFrame::LogMessage,
    MemberFrame::Last,
];

/// Length of a frame's head (type and length), in bytes.
pub const HEAD_BYTES: usize = 5;

/// Maximum length of a frame, in bytes. The largest sparse map takes 4 MiB, and the longest names and attributes 3 MiB.
pub(crate) const MAXIMUM_FRAME_BYTES: usize = 8 << 20;

/// Progress of parsing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ParseProgress {
    /// Number of bytes of the tar parsed so far.
    pub position: u64,
    /// Number of header blocks parsed so far.
    pub blocks: u64,
}

impl MemberFrame {
    /// Encodes the head of a frame.
    pub(crate) fn encode_head(self, length: usize) -> [u8; HEAD_BYTES] {
        let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
        [self as u8, a, b, c, d]
    }

    /// Decodes the head of a frame into type and length; returns `None` if the head is invalid.
    pub(crate) fn decode_head(head: &[u8]) -> Option<(MemberFrame, usize)> {
        let mut words = PacketParser(head);
        let kind = words.take_u8()?;
        let frame = FRAMES.into_iter().find(|frame| *frame as u8 == kind)?;
        Some((frame, usize::try_from(words.take_u32()?).ok()?))
    }
}

impl ParseProgress {
    pub(crate) fn append_to(self, bytes: &mut Vec<u8>) {
        bytes.extend(self.position.to_le_bytes());
        bytes.extend(self.blocks.to_le_bytes());
    }

    pub(crate) fn decode(words: &mut PacketParser) -> Option<ParseProgress> {
        Some(ParseProgress { position: words.take_u64()?, blocks: words.take_u64()? })
    }
}

pub(crate) fn encode_member(member: &TarMember, bytes: &mut Vec<u8>) {
    let TarMember {
        path,
        kind,
        attributes: MemberAttributes { mode, uid, gid, mtime: (seconds, nanoseconds), xattrs },
    } = member;
    add_text(bytes, path);
    [mode, uid, gid, nanoseconds].into_iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes.extend(seconds.to_le_bytes());
    bytes.extend(u32::try_from(xattrs.len()).unwrap_or(u32::MAX).to_le_bytes());
    for (name, value) in xattrs {
        add_text(bytes, name.as_bytes());
        add_text(bytes, value);
    }
    let device = |bytes: &mut Vec<u8>, kind, numbers: [u32; 2]| {
        bytes.push(kind);
        numbers.into_iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    };
    match kind {
        MemberKind::File { size } => {
            bytes.push(0);
            bytes.extend(size.to_le_bytes());
        }
        MemberKind::Sparse(SparseMap { segments, file_size }) => {
            bytes.push(1);
            bytes.extend(file_size.to_le_bytes());
            for (offset, length) in segments {
                bytes.extend(offset.to_le_bytes());
                bytes.extend(length.to_le_bytes());
            }
        }
        MemberKind::Directory => bytes.push(2),
        MemberKind::Symlink(target) => {
            bytes.push(3);
            add_text(bytes, target);
        }
        MemberKind::HardLink(target) => {
            bytes.push(4);
            add_text(bytes, target);
        }
        MemberKind::CharacterDevice { major, minor } => device(bytes, 5, [*major, *minor]),
        MemberKind::BlockDevice { major, minor } => device(bytes, 6, [*major, *minor]),
        MemberKind::Fifo => bytes.push(7),
    }
}

/// Decodes a member, and returns it with the length of its content; returns `None` if the member is invalid or could
/// not occur in a tar.
pub(crate) fn decode_member(words: &mut PacketParser) -> Option<(TarMember, u64)> {
    let path = words.take_text()?.to_vec();
    let (mode, uid, gid, nanoseconds) =
        (words.take_u32()? & 0o7777, words.take_u32()?, words.take_u32()?, words.take_u32()?);
    // The highest id is rejected: chown(2) interprets this value as "do not change".
    if uid == u32::MAX || gid == u32::MAX || nanoseconds >= 1_000_000_000 {
        return None;
    }
    let mtime = (words.take_u64()?.cast_signed(), nanoseconds);
    let count = words.take_u32()?;
    // No memory is reserved for the declared count, which is untrusted: the vector grows with the data that is
    // received.
    let mut xattrs = Vec::new();
    for _ in 0..count {
        xattrs.push((OsString::from_vec(words.take_text()?.to_vec()), words.take_text()?.to_vec()));
    }
    let (kind, content) = decode_kind(words)?;
    Some((TarMember { path, kind, attributes: MemberAttributes { mode, uid, gid, mtime, xattrs } }, content))
}

fn decode_kind(words: &mut PacketParser) -> Option<(MemberKind, u64)> {
    let mut content = 0;
    let kind = match words.take_u8()? {
        0 => {
            let size = words.take_u64().filter(|size| i64::try_from(*size).is_ok())?;
            content = size;
            MemberKind::File { size }
        }
        1 => {
            let (file_size, mut segments) = (words.take_u64()?, Vec::new());
            while !words.0.is_empty() {
                segments.push((words.take_u64()?, words.take_u64()?));
            }
            content = segments.iter().try_fold(0_u64, |sum, (_, length)| sum.checked_add(*length))?;
            MemberKind::Sparse(SparseMap::new(segments, file_size, content).ok()?)
        }
        2 => MemberKind::Directory,
        3 => MemberKind::Symlink(words.take_text()?.to_vec()),
        4 => MemberKind::HardLink(words.take_text()?.to_vec()),
        5 => MemberKind::CharacterDevice { major: words.take_u32()?, minor: words.take_u32()? },
        6 => MemberKind::BlockDevice { major: words.take_u32()?, minor: words.take_u32()? },
        7 => MemberKind::Fifo,
        _ => return None,
    };
    words.0.is_empty().then_some((kind, content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_survive_encoding() {
        let attributes = MemberAttributes {
            mode: 0o4755,
            uid: 1,
            gid: 2,
            mtime: (-5, 999_999_999),
            xattrs: vec![("user.a".into(), b"\0\n".to_vec()), ("security.capability".into(), Vec::new())],
        };
        let map = SparseMap { segments: vec![(0, 512), (4096, 20)], file_size: 4116 };
        for (kind, content) in [
            (MemberKind::File { size: 7 }, 7),
            (MemberKind::Sparse(map), 532),
            (MemberKind::Sparse(SparseMap { segments: vec![(1, 0)], file_size: 1 }), 0),
            (MemberKind::Directory, 0),
            (MemberKind::Symlink(b"to".to_vec()), 0),
            (MemberKind::HardLink(Vec::new()), 0),
            (MemberKind::CharacterDevice { major: 1, minor: 3 }, 0),
            (MemberKind::BlockDevice { major: u32::MAX, minor: 0 }, 0),
            (MemberKind::Fifo, 0),
        ] {
            let member = TarMember { path: b"a/\xff".to_vec(), kind, attributes: attributes.clone() };
            let mut bytes = Vec::new();
            encode_member(&member, &mut bytes);
            let told = decode_member(&mut PacketParser(&bytes));
            assert_eq!(
                told.map(|(told, content)| (format!("{told:?}"), content)),
                Some((format!("{member:?}"), content))
            );
            // A truncated sparse map may still be a valid one; every other truncated member is rejected.
            for length in 0..bytes.len() {
                if let Some((other, _)) = decode_member(&mut PacketParser(&bytes[..length])) {
                    assert!(matches!(other.kind, MemberKind::Sparse(_)), "{member:?} cut at {length}");
                }
            }
            bytes.push(0);
            assert!(decode_member(&mut PacketParser(&bytes)).is_none());
        }
    }

    #[test]
    fn refuses_members_that_no_tar_can_contain() {
        let told = |kind, change: fn(&mut MemberAttributes)| {
            let mut attributes = MemberAttributes { mode: 0, uid: 0, gid: 0, mtime: (0, 0), xattrs: Vec::new() };
            change(&mut attributes);
            let mut bytes = Vec::new();
            encode_member(&TarMember { path: Vec::new(), kind, attributes }, &mut bytes);
            decode_member(&mut PacketParser(&bytes)).map(|(member, _)| member.attributes.mode)
        };
        assert_eq!(told(MemberKind::Fifo, |has| has.mode = 0o170_777), Some(0o777));
        assert_eq!(told(MemberKind::Fifo, |has| has.uid = u32::MAX), None);
        assert_eq!(told(MemberKind::Fifo, |has| has.gid = u32::MAX), None);
        assert_eq!(told(MemberKind::Fifo, |has| has.mtime.1 = 1_000_000_000), None);
        assert_eq!(told(MemberKind::File { size: 1 << 63 }, |_| ()), None);
        for segments in [vec![(5, 5), (0, 5)], vec![(0, 101)], vec![(0, u64::MAX), (0, 2)]] {
            assert_eq!(told(MemberKind::Sparse(SparseMap { segments, file_size: 100 }), |_| ()), None);
        }
    }

    #[test]
    fn frames_have_a_type_and_a_length() {
        for frame in FRAMES {
            assert_eq!(MemberFrame::decode_head(&frame.encode_head(70_000)), Some((frame, 70_000)));
        }
        assert_eq!(MemberFrame::decode_head(&[7, 0, 0, 0, 0]), None);
        assert_eq!(MemberFrame::decode_head(&[0, 0, 0, 0]), None);
    }
}
