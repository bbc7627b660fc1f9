//! Frames of a compromised worker, which can do no more harm than a malicious tar.

use super::super::member_frames::encode_member;
use super::super::tar_member::{MemberAttributes, MemberKind};
use super::*;
use crate::testing::reader;
use std::cell::RefCell;
use std::rc::Rc;

#[derive(Default, Clone)]
struct WorkerFrames(Vec<u8>);

impl WorkerFrames {
    fn accepted() -> WorkerFrames {
        WorkerFrames::default().frame(MemberFrame::Accepted, &[])
    }

    fn frame(mut self, frame: MemberFrame, bytes: &[u8]) -> WorkerFrames {
        self.0.extend(frame.encode_head(bytes.len()));
        self.0.extend(bytes);
        self
    }

    fn member(self, kind: MemberKind, position: u64, blocks: u64) -> WorkerFrames {
        let attributes = MemberAttributes { mode: 0o644, uid: 0, gid: 0, mtime: (0, 0), xattrs: Vec::new() };
        let mut bytes = Vec::new();
        ParseProgress { position, blocks }.append_to(&mut bytes);
        encode_member(&TarMember { path: b"a".to_vec(), kind, attributes }, &mut bytes);
        self.frame(MemberFrame::Member, &bytes)
    }

    fn last(self, position: u64, blocks: u64) -> WorkerFrames {
        let mut bytes = Vec::new();
        ParseProgress { position, blocks }.append_to(&mut bytes);
        self.frame(MemberFrame::Last, &bytes)
    }

    fn heard(&self) -> MemberReceiver {
        MemberReceiver::new(reader(&self.0, 10), Box::new(|_| ()))
    }

    /// Returns the content of all members, and the progress at the end of the tar.
    fn read(&self) -> io::Result<(Vec<u8>, u64, u64)> {
        read(self.heard(), u64::MAX)
    }
}

fn read(mut members: MemberReceiver, most_blocks: u64) -> io::Result<(Vec<u8>, u64, u64)> {
    let mut content = Vec::new();
    while let Some(member) = members.next_member(&|| most_blocks)? {
        if let MemberKind::File { size } = member.kind {
            let end = content.len() as u64 + size;
            while (content.len() as u64) < end {
                content.extend_from_slice(&members.next_chunk(end - content.len() as u64)?);
            }
        }
    }
    Ok((content, members.position(), members.header_blocks()))
}

fn file(size: u64) -> MemberKind {
    MemberKind::File { size }
}

#[test]
fn members_are_received_with_their_content() {
    let said = WorkerFrames::accepted()
        .member(file(5), 512, 1)
        .frame(MemberFrame::Content, b"abc")
        .frame(MemberFrame::Content, b"de");
    let said = said.frame(MemberFrame::LogMessage, b"by the way").member(MemberKind::Fifo, 1536, 2).last(2560, 3);
    assert_eq!(said.read().unwrap(), (b"abcde".to_vec(), 2560, 3));
    let mut members = said.heard();
    members.next_member(&|| 9).unwrap();
    assert_eq!(&members.next_chunk(2).unwrap()[..], b"ab");
    // Content that was not read is skipped.
    assert_eq!(members.next_member(&|| 9).unwrap().map(|member| member.kind), Some(MemberKind::Fifo));
    assert!(members.next_member(&|| 9).unwrap().is_none());
}

#[test]
fn limit_requests_are_answered_with_the_current_limit() {
    let answers = Rc::new(RefCell::new(Vec::new()));
    let told = answers.clone();
    let said = WorkerFrames::accepted()
        .frame(MemberFrame::LimitRequest, &[])
        .member(file(1), 512, 1)
        .frame(MemberFrame::LimitRequest, &[]);
    let said = said.frame(MemberFrame::Content, b"x").last(1024, 2);
    let mut members = MemberReceiver::new(reader(&said.0, 3), Box::new(move |answer| told.borrow_mut().push(answer)));
    members.set_limit(5000);
    members.next_member(&|| 10).unwrap();
    members.set_limit(6000);
    read(members, 11).unwrap();
    assert_eq!(*answers.borrow(), [[5000, 10], [6000, 10]]);
}

#[test]
fn invalid_frames_are_detected() {
    let accepted = WorkerFrames::accepted;
    let content = |said: WorkerFrames, bytes: &[u8]| said.frame(MemberFrame::Content, bytes);
    let lies = [
        WorkerFrames::default().member(file(0), 512, 1),
        accepted().frame(MemberFrame::Accepted, &[]),
        accepted().frame(MemberFrame::Refused, b"late"),
        content(accepted(), b"of nobody"),
        content(accepted().member(file(3), 512, 1), b"more"),
        accepted().member(file(3), 512, 1).last(1024, 2),
        accepted().member(file(3), 512, 1).member(file(0), 1024, 2),
        // The reported progress is less than the data sent.
        accepted().member(file(0), 511, 1),
        accepted().member(file(0), 512, 0),
        content(accepted().member(file(3), 512, 1), b"abc").member(file(0), 1026, 2),
        accepted().member(file(0), 512, 1).last(511, 1),
        accepted().member(file(0), 512, 1).last(512, 0),
        accepted().member(file(0), 512, 1).last(1024, 2).frame(MemberFrame::LogMessage, b"after the end"),
        // The worker exits early.
        accepted(),
        accepted().member(file(3), 512, 1),
        WorkerFrames(accepted().0[..3].to_vec()),
        // Malformed frames.
        WorkerFrames([&accepted().0[..], &[99, 0, 0, 0, 0]].concat()),
        WorkerFrames([&accepted().0[..], &MemberFrame::Member.encode_head(usize::MAX)].concat()),
        accepted().frame(MemberFrame::Member, b"no member"),
        accepted().frame(MemberFrame::Last, b""),
    ];
    for (number, lie) in lies.iter().enumerate() {
        let error = lie.read().unwrap_err().to_string();
        assert!(error.ends_with("sent an invalid frame, so its output is no longer trusted"), "lie {number}: {error}");
    }
}

#[test]
fn limits_on_bytes_and_headers_are_enforced() {
    let said = WorkerFrames::accepted()
        .member(file(4), 512, 1)
        .frame(MemberFrame::Content, b"abcd")
        .member(file(0), 1536, 9)
        .last(2000, 10);
    for (longest, blocks, says) in [
        (511, 9, "the tar archive has more than 511 bytes"),
        (515, 9, "the tar archive has more than 515 bytes"),
        (1999, 99, "the tar archive has more than 1999 bytes"),
        (9999, 8, "the tar archive has more than 8 header blocks"),
    ] {
        let mut members = said.heard();
        members.set_limit(longest);
        let error = read(members, blocks).unwrap_err();
        assert!(error.kind() == io::ErrorKind::InvalidData && error.to_string().starts_with(says), "{error}");
    }
}

#[test]
fn refusal_is_known_before_anything_is_created() {
    let why = || WorkerFrames::default().frame(MemberFrame::Refused, b"it is a disk\x1b[2J");
    assert_eq!(why().read().unwrap_err().to_string(), "it is a disk [2J");
    assert_eq!(check_beginning(&mut reader(&why().0, 4)).unwrap(), Err("it is a disk [2J".to_owned()));
    let mut stream = reader(&WorkerFrames::accepted().last(1024, 2).0, 4);
    assert_eq!(check_beginning(&mut stream).unwrap(), Ok(()));
    read(MemberReceiver::new(stream, Box::new(|_| ())), 2).unwrap();
    check_beginning(&mut reader(b"", 4)).unwrap_err();
    check_beginning(&mut reader(&MemberFrame::Last.encode_head(0), 4)).unwrap_err();
}
