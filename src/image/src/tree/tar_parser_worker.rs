//! Worker that parses the tar in its sandbox, and sends the members to the agent.

use super::member_frames::{HEAD_BYTES, MemberFrame, ParseProgress, encode_member};
use super::tar_member::MemberKind;
use super::tar_parser::TarParser;
use crate::pipeline::{PipelineReader, WorkerOutput};
use std::cell::RefCell;
use std::io;
use std::sync::mpsc;

/// Sends all members of the stream to `out`. If `refused` contains an error, sends only this error as the reason for
/// rejecting the stream. The limits are requested from the agent, which sends them through `answers`.
///
/// # Errors
/// Returns the error of the stream, or an error if the archive is malformed, truncated or too long, or the receiver is
/// gone.
pub(crate) fn send_members(
    stream: PipelineReader,
    refused: Option<io::Error>,
    out: &mut impl WorkerOutput,
    answers: &mpsc::Receiver<[u64; 2]>,
) -> io::Result<()> {
    if let Some(why) = refused {
        send_frame(out, MemberFrame::Refused, why.to_string().as_bytes())?;
        return Err(why);
    }
    send_frame(out, MemberFrame::Accepted, &[])?;
    out.flush()?;
    let out = RefCell::new(out);
    let asks = || {
        let mut out = out.borrow_mut();
        send_frame(&mut **out, MemberFrame::LimitRequest, &[])?;
        out.flush()?;
        answers.recv().map_err(io::Error::other)
    };
    let mut members = TarParser::with_limits(stream, Box::new(asks));
    let mut record = Vec::new();
    loop {
        // The output so far is sent before the wait for more of the tar, so that the agent can process this output in
        // the meantime.
        if !members.is_ready() {
            out.borrow_mut().flush()?;
        }
        let Some(member) = members.next_member()? else { break };
        if let Some(lost) = members.lost_acl.take() {
            send_frame(&mut **out.borrow_mut(), MemberFrame::LogMessage, lost.as_bytes())?;
        }
        record.clear();
        record.extend([0; HEAD_BYTES]);
        ParseProgress { position: members.position(), blocks: members.header_blocks() }.append_to(&mut record);
        encode_member(&member, &mut record);
        let length = record.len() - HEAD_BYTES;
        record[..HEAD_BYTES].copy_from_slice(&MemberFrame::Member.encode_head(length));
        out.borrow_mut().put(&record)?;
        send_content(&mut members, &member.kind, &out)?;
    }
    record.clear();
    ParseProgress { position: members.position(), blocks: members.header_blocks() }.append_to(&mut record);
    send_frame(&mut **out.borrow_mut(), MemberFrame::Last, &record)
}

/// Sends the content of the current member.
fn send_content(
    members: &mut TarParser<'_>,
    kind: &MemberKind,
    out: &RefCell<&mut impl WorkerOutput>,
) -> io::Result<()> {
    let mut left = match kind {
        MemberKind::File { size } => *size,
        MemberKind::Sparse(map) => map.segments.iter().map(|(_, length)| length).sum(),
        _ => 0,
    };
    while left > 0 {
        let chunk = members.next_chunk(left)?;
        left -= chunk.len() as u64;
        let mut out = out.borrow_mut();
        out.put(&MemberFrame::Content.encode_head(chunk.len()))?;
        out.content(chunk)?;
    }
    Ok(())
}

fn send_frame(out: &mut impl WorkerOutput, frame: MemberFrame, bytes: &[u8]) -> io::Result<()> {
    out.put(&frame.encode_head(bytes.len()))?;
    out.put(bytes)
}
