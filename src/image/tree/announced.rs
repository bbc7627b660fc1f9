//! Members of a tar, received from the worker that parses it.

use super::member::Member;
use super::record::{Frame, HEAD_BYTES, MOST_BYTES, Reached, take_member};
use super::space::too_long;
use super::work::too_much;
use crate::image::flow::{Chunk, Clock, Reader, Words};
use crate::text::clean;
use std::io::{self, BufRead, Read};
use std::sync::Arc;

/// Minimum length of a header, in bytes.
const BLOCK: u64 = 512;

/// Sends the answer to the worker's question: the maximum length of the tar, and the maximum number of header blocks.
pub type Answers = Box<dyn Fn([u64; 2])>;

/// Receiver of members. The chunks of a member's content follow the member.
pub struct Announced {
    stream: Reader,
    answers: Answers,
    has_begun: bool,
    /// Maximum length of the tar; a longer one is a decompression bomb.
    longest: u64,
    most_blocks: u64,
    /// Progress reported by the worker, never less than what was received.
    reached: Reached,
    /// Unread content of the current member, in bytes.
    left: u64,
    /// The part of it in the current frame.
    in_frame: u64,
}

/// Returns whether the stream begins like a tree of files, or why it is rejected. Waits for its first bytes.
///
/// # Errors
/// Returns the error of the stream.
pub fn begins(stream: &mut Reader) -> io::Result<Result<(), String>> {
    match Frame::of(stream.look_ahead(HEAD_BYTES)?) {
        Some((Frame::Begins, _)) => Ok(Ok(())),
        Some((Frame::Refused, length)) if length <= MOST_BYTES => {
            let why = stream.look_ahead(HEAD_BYTES + length)?.get(HEAD_BYTES..).unwrap_or_default();
            Ok(Err(clean(&String::from_utf8_lossy(why))))
        }
        _ => Err(nonsense()),
    }
}

impl Announced {
    pub fn new(stream: Reader, answers: Answers) -> Announced {
        Announced {
            stream,
            answers,
            has_begun: false,
            longest: u64::MAX,
            most_blocks: u64::MAX,
            reached: Reached::default(),
            left: 0,
            in_frame: 0,
        }
    }

    /// Returns the clock for the waits of this thread.
    pub fn clock(&self) -> Arc<Clock> {
        self.stream.clock()
    }

    /// Returns the number of bytes of the tar read so far.
    pub fn position(&self) -> u64 {
        self.reached.position
    }

    /// Sets the maximum length of the whole tar from now on.
    pub fn limit(&mut self, bytes: u64) {
        self.longest = bytes;
    }

    /// Returns the number of header blocks so far.
    pub fn blocks(&self) -> u64 {
        self.reached.blocks
    }

    /// Returns the next member; `None` after the last one. `most_blocks` returns the current limit of header blocks in
    /// total.
    ///
    /// # Errors
    /// Returns an error if the tar is malformed, truncated or too long, or the worker is gone or sends invalid frames.
    pub fn next_member(&mut self, most_blocks: &dyn Fn() -> u64) -> io::Result<Option<Member>> {
        while self.left > 0 {
            self.chunk(self.left)?;
        }
        loop {
            let (frame, length) = self.frame()?;
            if frame == Frame::Content {
                return Err(nonsense());
            }
            let bytes = self.bytes(length)?;
            let mut words = Words(&bytes);
            // More of the image may have been fetched meanwhile.
            self.most_blocks = most_blocks();
            match frame {
                Frame::Begins if !self.has_begun => self.has_begun = true,
                Frame::Refused if !self.has_begun => {
                    let why = clean(&String::from_utf8_lossy(&bytes));
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
                Frame::Member if self.has_begun => {
                    let reached = Reached::take(&mut words).ok_or_else(nonsense)?;
                    let (member, content) = take_member(&mut words).ok_or_else(nonsense)?;
                    self.reach(reached, 1)?;
                    self.left = content;
                    return Ok(Some(member));
                }
                Frame::Last if self.has_begun => {
                    self.reach(Reached::take(&mut words).ok_or_else(nonsense)?, 0)?;
                    return if self.stream.fill_buf()?.is_empty() { Ok(None) } else { Err(nonsense()) };
                }
                _ => self.other(frame, &bytes)?,
            }
        }
    }

    /// Returns the next piece of the content, up to `count` bytes.
    ///
    /// # Errors
    /// Returns the same errors as [`Announced::next_member`], or an error if there is no more content.
    pub fn chunk(&mut self, count: u64) -> io::Result<Chunk> {
        while self.in_frame == 0 {
            match self.frame()? {
                (Frame::Content, length) if length as u64 <= self.left => self.in_frame = length as u64,
                (Frame::Content, _) => return Err(nonsense()),
                (frame, length) => {
                    let bytes = self.bytes(length)?;
                    self.other(frame, &bytes)?;
                }
            }
        }
        let count = usize::try_from(count.min(self.in_frame)).unwrap_or(usize::MAX);
        let chunk = self.stream.take_chunk(count)?.ok_or_else(nonsense)?;
        let bytes = chunk.len() as u64;
        self.reached.position = self.reached.position.saturating_add(bytes);
        (self.left, self.in_frame) = (self.left - bytes, self.in_frame - bytes);
        self.check()?;
        Ok(chunk)
    }

    fn frame(&mut self) -> io::Result<(Frame, usize)> {
        let mut head = [0; HEAD_BYTES];
        self.stream.read_exact(&mut head).map_err(cut)?;
        Frame::of(&head).ok_or_else(nonsense)
    }

    fn bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        if length > MOST_BYTES {
            return Err(nonsense());
        }
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).map_err(cut)?;
        Ok(bytes)
    }

    /// Handles a frame that may come anywhere.
    fn other(&mut self, frame: Frame, bytes: &[u8]) -> io::Result<()> {
        match frame {
            Frame::Asks => (self.answers)([self.longest, self.most_blocks]),
            Frame::Says => tracing::warn!("{}", clean(&String::from_utf8_lossy(bytes))),
            _ => return Err(nonsense()),
        }
        Ok(())
    }

    /// Updates the progress. The worker cannot have read less of the tar than it has sent.
    fn reach(&mut self, reached: Reached, headers: u64) -> io::Result<()> {
        let Reached { position, blocks } = self.reached;
        let least = position.saturating_add(headers * BLOCK);
        if reached.position < least || reached.blocks < blocks.saturating_add(headers) {
            return Err(nonsense());
        }
        self.reached = reached;
        if reached.blocks > self.most_blocks {
            return Err(io::Error::new(io::ErrorKind::InvalidData, too_much(self.most_blocks)));
        }
        self.check()
    }

    fn check(&self) -> io::Result<()> {
        if self.reached.position <= self.longest {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, too_long(self.longest)))
    }
}

/// Returns the error for a stream that ended without its last frame.
fn cut(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof { nonsense() } else { error }
}

fn nonsense() -> io::Error {
    io::Error::other("the worker that parses the tar sent an invalid frame and is no longer trusted")
}

/// Members as a worker in this process would send them.
#[cfg(test)]
pub mod here {
    use super::*;
    use crate::image::flow::{Outlet, Sender, pipe};
    use crate::image::tree::announce::announce;
    use std::sync::mpsc;
    use std::thread;

    struct Here(Sender);

    impl Outlet for Here {
        fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
            let gone = |_| io::Error::other("nobody listens any more");
            self.0.send(Chunk::own(bytes.to_vec()), &Clock::default()).map_err(gone)
        }

        fn content(&mut self, chunk: Chunk) -> io::Result<()> {
            self.put(&chunk)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The members of a tar.
    pub fn members_of(tar: Reader) -> Announced {
        let (sender, receiver) = pipe(1);
        let (tell, answers) = mpsc::channel();
        let clock = tar.clock();
        thread::spawn(move || {
            let mut out = Here(sender);
            match announce(tar, None, &mut out, &answers) {
                Ok(()) => out.0.end(),
                Err(error) => out.0.fail(error),
            }
        });
        let answer = move |answer| {
            // Who has failed does not wait for it.
            let _ = tell.send(answer);
        };
        Announced::new(Reader::new(receiver, clock), Box::new(answer))
    }
}

#[cfg(test)]
mod tests;
