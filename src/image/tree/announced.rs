//! The members of a tar, as the worker that reads it tells them.

use super::member::Member;
use super::record::{Frame, HEAD_BYTES, MOST_BYTES, Reached, take_member};
use super::space::too_long;
use super::work::too_much;
use crate::image::flow::{Chunk, Clock, Reader, Words};
use crate::text::clean;
use std::io::{self, BufRead, Read};
use std::sync::Arc;

/// No header is shorter.
const BLOCK: u64 = 512;

/// Answers what the worker asks: how long the tar may be, and how many blocks of headers it may have.
pub type Answers = Box<dyn Fn([u64; 2])>;

/// What the worker tells. The chunks of a member's content follow the member.
pub struct Announced {
    stream: Reader,
    answers: Answers,
    has_begun: bool,
    /// What is longer is a bomb.
    longest: u64,
    most_blocks: u64,
    /// As the worker says it, and never less than what was seen.
    reached: Reached,
    /// Content of the current member that was not read yet.
    left: u64,
    /// Of it, in the frame that has begun.
    in_frame: u64,
}

/// Whether the stream begins as a tree of files can, or why it is refused. Waits for that.
///
/// # Errors
/// The stream's own.
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

    /// What counts this thread's waits.
    pub fn clock(&self) -> Arc<Clock> {
        self.stream.clock()
    }

    /// Bytes of tar read so far.
    pub fn position(&self) -> u64 {
        self.reached.position
    }

    /// From here on the whole tar may have so many bytes.
    pub fn limit(&mut self, bytes: u64) {
        self.longest = bytes;
    }

    /// Blocks of headers so far.
    pub fn blocks(&self) -> u64 {
        self.reached.blocks
    }

    /// The next member; `None` after the last one. `most_blocks` says how many blocks of headers there may be in all by now.
    ///
    /// # Errors
    /// The tar is malformed, cut, or longer than it may be; the worker is gone, or says what cannot be.
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
            // More of the image may have come while this waited.
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

    /// The next piece of the content, up to `count` bytes.
    ///
    /// # Errors
    /// As [`Announced::next_member`]; the content has no more.
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

    /// What may come anywhere.
    fn other(&mut self, frame: Frame, bytes: &[u8]) -> io::Result<()> {
        match frame {
            Frame::Asks => (self.answers)([self.longest, self.most_blocks]),
            Frame::Says => tracing::warn!("{}", clean(&String::from_utf8_lossy(bytes))),
            _ => return Err(nonsense()),
        }
        Ok(())
    }

    /// It cannot have read less of the tar than what it has told of it.
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

/// It has ended without its last word.
fn cut(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof { nonsense() } else { error }
}

fn nonsense() -> io::Error {
    io::Error::other("the worker that reads the tar says what cannot be: it is not trusted any more")
}

/// As a worker in this process would tell them.
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
