//! Receives the members of a tar from the worker, which parses the tar.

use super::capacity_limit::too_long_message;
use super::header_block_limit::too_much_message;
use super::member_frames::{HEAD_BYTES, MAXIMUM_FRAME_BYTES, MemberFrame, ParseProgress, decode_member};
use super::tar_member::TarMember;
use crate::pipeline::{BufferChunk, PacketParser, PipelineReader, StageClock};
use common::format::replace_hidden;
use std::io::{self, BufRead, Read};
use std::sync::Arc;

/// Minimum length of a header, in bytes.
const TAR_BLOCK_BYTES: u64 = 512;

/// Function that responds to the worker's request for its limits: the maximum length of the tar in bytes, and the
/// maximum number of header blocks.
pub(crate) type AnswerSender = Box<dyn Fn([u64; 2])>;

/// Receiver of members, each followed by the chunks of its content.
pub(crate) struct MemberReceiver {
    stream: PipelineReader,
    answers: AnswerSender,
    has_begun: bool,
    /// Maximum length of the tar, in bytes. A longer tar is treated as a decompression bomb.
    longest: u64,
    most_blocks: u64,
    /// Progress reported by the worker. A report must cover at least the data that the worker has already sent;
    /// otherwise the report is rejected.
    reached: ParseProgress,
    /// Unread content of the current member, in bytes.
    left: u64,
    /// Unread content in the current frame, in bytes.
    in_frame: u64,
}

/// Waits for the first frame, with which the worker accepts or rejects the stream. The stream is rejected if it does
/// not begin like a tree of files; the inner error is the reason.
///
/// # Errors
/// Returns the error of the stream.
pub(crate) fn check_beginning(stream: &mut PipelineReader) -> io::Result<Result<(), String>> {
    match MemberFrame::decode_head(stream.peek_bytes(HEAD_BYTES)?) {
        Some((MemberFrame::Accepted, _)) => Ok(Ok(())),
        Some((MemberFrame::Refused, length)) if length <= MAXIMUM_FRAME_BYTES => {
            let why = stream.peek_bytes(HEAD_BYTES + length)?.get(HEAD_BYTES..).unwrap_or_default();
            Ok(Err(replace_hidden(&String::from_utf8_lossy(why))))
        }
        _ => Err(protocol_error()),
    }
}

impl MemberReceiver {
    pub fn new(stream: PipelineReader, answers: AnswerSender) -> MemberReceiver {
        MemberReceiver {
            stream,
            answers,
            has_begun: false,
            longest: u64::MAX,
            most_blocks: u64::MAX,
            reached: ParseProgress::default(),
            left: 0,
            in_frame: 0,
        }
    }

    /// Returns the clock that records how long the reading thread waits.
    pub(crate) fn clock(&self) -> Arc<StageClock> {
        self.stream.clock()
    }

    /// Returns the number of bytes of the tar that were parsed so far.
    pub(crate) fn position(&self) -> u64 {
        self.reached.position
    }

    /// Sets the maximum length of the whole tar, in bytes.
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        self.longest = bytes;
    }

    /// Returns the number of header blocks that were parsed so far.
    pub(crate) fn header_blocks(&self) -> u64 {
        self.reached.blocks
    }

    /// Returns the next member; `None` after the last member. `most_blocks` returns the current limit on the total
    /// number of header blocks.
    ///
    /// # Errors
    /// Returns an error if the tar is malformed, truncated or too long, or the worker is gone or sends invalid frames.
    pub(crate) fn next_member(&mut self, most_blocks: &dyn Fn() -> u64) -> io::Result<Option<TarMember>> {
        while self.left > 0 {
            self.next_chunk(self.left)?;
        }
        loop {
            let (frame, length) = self.read_frame_head()?;
            if frame == MemberFrame::Content {
                return Err(protocol_error());
            }
            let bytes = self.read_frame_body(length)?;
            let mut words = PacketParser(&bytes);
            // The limit is updated, because more of the image may have been fetched in the meantime.
            self.most_blocks = most_blocks();
            match frame {
                MemberFrame::Accepted if !self.has_begun => self.has_begun = true,
                MemberFrame::Refused if !self.has_begun => {
                    let why = replace_hidden(&String::from_utf8_lossy(&bytes));
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
                MemberFrame::Member if self.has_begun => {
                    let reached = ParseProgress::decode(&mut words).ok_or_else(protocol_error)?;
                    let (member, content) = decode_member(&mut words).ok_or_else(protocol_error)?;
                    self.update_progress(reached, 1)?;
                    self.left = content;
                    return Ok(Some(member));
                }
                MemberFrame::Last if self.has_begun => {
                    self.update_progress(ParseProgress::decode(&mut words).ok_or_else(protocol_error)?, 0)?;
                    return if self.stream.fill_buf()?.is_empty() { Ok(None) } else { Err(protocol_error()) };
                }
                _ => self.handle_common_frame(frame, &bytes)?,
            }
        }
    }

    /// Returns the next part of the current member's content, at most `count` bytes.
    ///
    /// # Errors
    /// Returns the same errors as [`MemberReceiver::next_member`], or an error if there is no more content.
    pub(crate) fn next_chunk(&mut self, count: u64) -> io::Result<BufferChunk> {
        while self.in_frame == 0 {
            match self.read_frame_head()? {
                (MemberFrame::Content, length) if length as u64 <= self.left => self.in_frame = length as u64,
                (MemberFrame::Content, _) => return Err(protocol_error()),
                (frame, length) => {
                    let bytes = self.read_frame_body(length)?;
                    self.handle_common_frame(frame, &bytes)?;
                }
            }
        }
        let count = usize::try_from(count.min(self.in_frame)).unwrap_or(usize::MAX);
        let chunk = self.stream.take_chunk(count)?.ok_or_else(protocol_error)?;
        let bytes = chunk.len() as u64;
        self.reached.position = self.reached.position.saturating_add(bytes);
        (self.left, self.in_frame) = (self.left - bytes, self.in_frame - bytes);
        self.check_length()?;
        Ok(chunk)
    }

    fn read_frame_head(&mut self) -> io::Result<(MemberFrame, usize)> {
        let mut head = [0; HEAD_BYTES];
        self.stream.read_exact(&mut head).map_err(map_eof)?;
        MemberFrame::decode_head(&head).ok_or_else(protocol_error)
    }

    fn read_frame_body(&mut self, length: usize) -> io::Result<Vec<u8>> {
        if length > MAXIMUM_FRAME_BYTES {
            return Err(protocol_error());
        }
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).map_err(map_eof)?;
        Ok(bytes)
    }

    /// Handles a frame of a type that may occur at any position.
    fn handle_common_frame(&mut self, frame: MemberFrame, bytes: &[u8]) -> io::Result<()> {
        match frame {
            MemberFrame::LimitRequest => (self.answers)([self.longest, self.most_blocks]),
            MemberFrame::LogMessage => tracing::warn!("{}", replace_hidden(&String::from_utf8_lossy(bytes))),
            _ => return Err(protocol_error()),
        }
        Ok(())
    }

    /// Stores the progress reported by the worker, and checks the limits. `headers` is the minimum number of headers
    /// that the worker must have parsed since its previous report: 1 if it has sent a member, otherwise 0.
    fn update_progress(&mut self, reached: ParseProgress, headers: u64) -> io::Result<()> {
        let ParseProgress { position, blocks } = self.reached;
        let least = position.saturating_add(headers * TAR_BLOCK_BYTES);
        if reached.position < least || reached.blocks < blocks.saturating_add(headers) {
            return Err(protocol_error());
        }
        self.reached = reached;
        if reached.blocks > self.most_blocks {
            return Err(io::Error::new(io::ErrorKind::InvalidData, too_much_message(self.most_blocks)));
        }
        self.check_length()
    }

    fn check_length(&self) -> io::Result<()> {
        if self.reached.position <= self.longest {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, too_long_message(self.longest)))
    }
}

/// Converts an unexpected end of the stream to a protocol error, because the last frame is missing.
fn map_eof(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof { protocol_error() } else { error }
}

fn protocol_error() -> io::Error {
    io::Error::other(
        "the worker process that parses the tar archive sent an invalid frame, so its output is no longer trusted",
    )
}

/// Worker in this process, for tests.
#[cfg(test)]
pub(crate) mod here {
    use super::*;
    use crate::pipeline::{PipeSender, WorkerOutput, create_pipe};
    use crate::tree::tar_parser_worker::send_members;
    use std::sync::mpsc;
    use std::thread;

    struct PipeOutput(PipeSender);

    impl WorkerOutput for PipeOutput {
        fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
            let gone = |_| io::Error::other("the receiver has stopped");
            self.0.send(BufferChunk::from_vec(bytes.to_vec()), &StageClock::default()).map_err(gone)
        }

        fn content(&mut self, chunk: BufferChunk) -> io::Result<()> {
            self.put(&chunk)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns a receiver of the members of a tar.
    pub(crate) fn members_of(tar: PipelineReader) -> MemberReceiver {
        let (sender, receiver) = create_pipe(1);
        let (tell, answers) = mpsc::channel();
        let clock = tar.clock();
        thread::spawn(move || {
            let mut out = PipeOutput(sender);
            match send_members(tar, None, &mut out, &answers) {
                Ok(()) => out.0.end(),
                Err(error) => out.0.fail(error),
            }
        });
        let answer = move |answer| {
            // An error is ignored: a worker that has failed does not wait for the answer.
            let _ = tell.send(answer);
        };
        MemberReceiver::new(PipelineReader::new(receiver, clock), Box::new(answer))
    }
}

#[cfg(test)]
mod tests;
