//! Encoding of members between the worker that parses the tar and the agent.
//!
//! The stream consists of frames: a type, a length, and that number of bytes. The agent does not trust them: the
//! decoded members can contain nothing that a tar could not.

use super::member::{Attributes, Kind, Member};
use super::sparse::Map;
use crate::image::flow::{Words, add_text};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// The first frame: the stream is not a disk image.
    Begins,
    /// Instead of the first frame: why the stream is rejected.
    Refused,
    Member,
    /// Content of the previous member; as long as the frame.
    Content,
    /// Request for the limits; the worker waits for the answer.
    Asks,
    /// Message for the console.
    Says,
    /// The last frame, after the end of the archive and the stream.
    Last,
}

const FRAMES: [Frame; 7] =
    [Frame::Begins, Frame::Refused, Frame::Member, Frame::Content, Frame::Asks, Frame::Says, Frame::Last];

/// Length of a frame's head: type and length.
pub const HEAD_BYTES: usize = 5;

/// Maximum length of a frame. The largest sparse map has 4 MiB, the longest names and attributes three more.
pub const MOST_BYTES: usize = 8 << 20;

/// Progress of parsing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reached {
    /// Bytes of the tar.
    pub position: u64,
    /// Header blocks.
    pub blocks: u64,
}

impl Frame {
    /// Encodes the head of a frame.
    pub fn head(self, length: usize) -> [u8; HEAD_BYTES] {
        let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
        [self as u8, a, b, c, d]
    }

    /// Decodes the head of a frame: its type and length; `None` if it is invalid.
    pub fn of(head: &[u8]) -> Option<(Frame, usize)> {
        let mut words = Words(head);
        let kind = words.u8()?;
        let frame = FRAMES.into_iter().find(|frame| *frame as u8 == kind)?;
        Some((frame, usize::try_from(words.u32()?).ok()?))
    }
}

impl Reached {
    pub fn add_to(self, bytes: &mut Vec<u8>) {
        bytes.extend(self.position.to_le_bytes());
        bytes.extend(self.blocks.to_le_bytes());
    }

    pub fn take(words: &mut Words) -> Option<Reached> {
        Some(Reached { position: words.u64()?, blocks: words.u64()? })
    }
}

pub fn add_member(member: &Member, bytes: &mut Vec<u8>) {
    let Member { path, kind, attributes: Attributes { mode, uid, gid, mtime: (seconds, nanoseconds), xattrs } } =
        member;
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
        Kind::File { size } => {
            bytes.push(0);
            bytes.extend(size.to_le_bytes());
        }
        Kind::Sparse(Map { segments, file_size }) => {
            bytes.push(1);
            bytes.extend(file_size.to_le_bytes());
            for (offset, length) in segments {
                bytes.extend(offset.to_le_bytes());
                bytes.extend(length.to_le_bytes());
            }
        }
        Kind::Directory => bytes.push(2),
        Kind::Symlink(target) => {
            bytes.push(3);
            add_text(bytes, target);
        }
        Kind::HardLink(target) => {
            bytes.push(4);
            add_text(bytes, target);
        }
        Kind::CharacterDevice { major, minor } => device(bytes, 5, [*major, *minor]),
        Kind::BlockDevice { major, minor } => device(bytes, 6, [*major, *minor]),
        Kind::Fifo => bytes.push(7),
    }
}

/// Decodes a member that a tar could contain, and the length of its content; `None` if it is invalid.
pub fn take_member(words: &mut Words) -> Option<(Member, u64)> {
    let path = words.text()?.to_vec();
    let (mode, uid, gid, nanoseconds) = (words.u32()? & 0o7777, words.u32()?, words.u32()?, words.u32()?);
    // The highest id means "do not change" to chown(2).
    if uid == u32::MAX || gid == u32::MAX || nanoseconds >= 1_000_000_000 {
        return None;
    }
    let mtime = (words.u64()?.cast_signed(), nanoseconds);
    let count = words.u32()?;
    // The vector grows with the data received, not with the declared count.
    let mut xattrs = Vec::new();
    for _ in 0..count {
        xattrs.push((OsString::from_vec(words.text()?.to_vec()), words.text()?.to_vec()));
    }
    let (kind, content) = take_kind(words)?;
    Some((Member { path, kind, attributes: Attributes { mode, uid, gid, mtime, xattrs } }, content))
}

fn take_kind(words: &mut Words) -> Option<(Kind, u64)> {
    let mut content = 0;
    let kind = match words.u8()? {
        0 => {
            let size = words.u64().filter(|size| i64::try_from(*size).is_ok())?;
            content = size;
            Kind::File { size }
        }
        1 => {
            let (file_size, mut segments) = (words.u64()?, Vec::new());
            while !words.0.is_empty() {
                segments.push((words.u64()?, words.u64()?));
            }
            content = segments.iter().try_fold(0_u64, |sum, (_, length)| sum.checked_add(*length))?;
            Kind::Sparse(Map::new(segments, file_size, content).ok()?)
        }
        2 => Kind::Directory,
        3 => Kind::Symlink(words.text()?.to_vec()),
        4 => Kind::HardLink(words.text()?.to_vec()),
        5 => Kind::CharacterDevice { major: words.u32()?, minor: words.u32()? },
        6 => Kind::BlockDevice { major: words.u32()?, minor: words.u32()? },
        7 => Kind::Fifo,
        _ => return None,
    };
    words.0.is_empty().then_some((kind, content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_told_as_they_are() {
        let attributes = Attributes {
            mode: 0o4755,
            uid: 1,
            gid: 2,
            mtime: (-5, 999_999_999),
            xattrs: vec![("user.a".into(), b"\0\n".to_vec()), ("security.capability".into(), Vec::new())],
        };
        let map = Map { segments: vec![(0, 512), (4096, 20)], file_size: 4116 };
        for (kind, content) in [
            (Kind::File { size: 7 }, 7),
            (Kind::Sparse(map), 532),
            (Kind::Sparse(Map { segments: vec![(1, 0)], file_size: 1 }), 0),
            (Kind::Directory, 0),
            (Kind::Symlink(b"to".to_vec()), 0),
            (Kind::HardLink(Vec::new()), 0),
            (Kind::CharacterDevice { major: 1, minor: 3 }, 0),
            (Kind::BlockDevice { major: u32::MAX, minor: 0 }, 0),
            (Kind::Fifo, 0),
        ] {
            let member = Member { path: b"a/\xff".to_vec(), kind, attributes: attributes.clone() };
            let mut bytes = Vec::new();
            add_member(&member, &mut bytes);
            let told = take_member(&mut Words(&bytes));
            assert_eq!(
                told.map(|(told, content)| (format!("{told:?}"), content)),
                Some((format!("{member:?}"), content))
            );
            // A sparse map may be shorter, and then another one comes out, or none that can be.
            for length in 0..bytes.len() {
                if let Some((other, _)) = take_member(&mut Words(&bytes[..length])) {
                    assert!(matches!(other.kind, Kind::Sparse(_)), "{member:?} cut at {length}");
                }
            }
            bytes.push(0);
            assert!(take_member(&mut Words(&bytes)).is_none());
        }
    }

    #[test]
    fn what_no_tar_can_say_is_not_taken() {
        let told = |kind, change: fn(&mut Attributes)| {
            let mut attributes = Attributes { mode: 0, uid: 0, gid: 0, mtime: (0, 0), xattrs: Vec::new() };
            change(&mut attributes);
            let mut bytes = Vec::new();
            add_member(&Member { path: Vec::new(), kind, attributes }, &mut bytes);
            take_member(&mut Words(&bytes)).map(|(member, _)| member.attributes.mode)
        };
        assert_eq!(told(Kind::Fifo, |has| has.mode = 0o170_777), Some(0o777));
        assert_eq!(told(Kind::Fifo, |has| has.uid = u32::MAX), None);
        assert_eq!(told(Kind::Fifo, |has| has.gid = u32::MAX), None);
        assert_eq!(told(Kind::Fifo, |has| has.mtime.1 = 1_000_000_000), None);
        assert_eq!(told(Kind::File { size: 1 << 63 }, |_| ()), None);
        for segments in [vec![(5, 5), (0, 5)], vec![(0, 101)], vec![(0, u64::MAX), (0, 2)]] {
            assert_eq!(told(Kind::Sparse(Map { segments, file_size: 100 }), |_| ()), None);
        }
    }

    #[test]
    fn frames_have_a_kind_and_a_length() {
        for frame in FRAMES {
            assert_eq!(Frame::of(&frame.head(70_000)), Some((frame, 70_000)));
        }
        assert_eq!(Frame::of(&[7, 0, 0, 0, 0]), None);
        assert_eq!(Frame::of(&[0, 0, 0, 0]), None);
    }
}
