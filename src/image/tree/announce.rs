//! Tar reader of the worker: parses the tar and sends its members to the agent.

use super::member::Kind;
use super::members::Members;
use super::record::{Frame, HEAD_BYTES, Reached, add_member};
use crate::image::flow::{Outlet, Reader};
use std::cell::RefCell;
use std::io;
use std::sync::mpsc;

/// Sends all members of the stream to its end, or why it is `refused`. Limits are requested from the agent and received
/// through `answers`.
///
/// # Errors
/// Returns the error of the stream, or an error if the archive is malformed, truncated or too long, or the receiver is
/// gone.
pub fn announce(
    stream: Reader,
    refused: Option<io::Error>,
    out: &mut impl Outlet,
    answers: &mpsc::Receiver<[u64; 2]>,
) -> io::Result<()> {
    if let Some(why) = refused {
        tell(out, Frame::Refused, why.to_string().as_bytes())?;
        return Err(why);
    }
    tell(out, Frame::Begins, &[])?;
    out.flush()?;
    let out = RefCell::new(out);
    let asks = || {
        let mut out = out.borrow_mut();
        tell(&mut **out, Frame::Asks, &[])?;
        out.flush()?;
        answers.recv().map_err(io::Error::other)
    };
    let mut members = Members::asking(stream, Box::new(asks));
    let mut record = Vec::new();
    loop {
        // Send what there is before waiting: the agent can already process it.
        if !members.is_ready() {
            out.borrow_mut().flush()?;
        }
        let Some(member) = members.next_member()? else { break };
        if let Some(lost) = members.lost_acl.take() {
            tell(&mut **out.borrow_mut(), Frame::Says, lost.as_bytes())?;
        }
        record.clear();
        record.extend([0; HEAD_BYTES]);
        Reached { position: members.position(), blocks: members.blocks() }.add_to(&mut record);
        add_member(&member, &mut record);
        let length = record.len() - HEAD_BYTES;
        record[..HEAD_BYTES].copy_from_slice(&Frame::Member.head(length));
        out.borrow_mut().put(&record)?;
        let mut left = match member.kind {
            Kind::File { size } => size,
            Kind::Sparse(map) => map.segments.iter().map(|(_, length)| length).sum(),
            _ => 0,
        };
        while left > 0 {
            let chunk = members.chunk(left)?;
            left -= chunk.len() as u64;
            let mut out = out.borrow_mut();
            out.put(&Frame::Content.head(chunk.len()))?;
            out.content(chunk)?;
        }
    }
    record.clear();
    Reached { position: members.position(), blocks: members.blocks() }.add_to(&mut record);
    tell(&mut **out.borrow_mut(), Frame::Last, &record)
}

fn tell(out: &mut impl Outlet, frame: Frame, bytes: &[u8]) -> io::Result<()> {
    out.put(&frame.head(bytes.len()))?;
    out.put(bytes)
}
