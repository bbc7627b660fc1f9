//! Ganeti's `import-export` protocol for one disk: a magic followed by the bytes of the disk, compressed as one stream. The stream has no
//! length or checksum, so only TLS's close_notify distinguishes a complete stream from a truncated one.

use super::link::Link;
use super::onto::Onto;
use crate::command::filter::Filter;
use crate::image::raw::{Aligned, HEAD_BYTES};
use clap::ValueEnum;
use flate2::Compression as Level;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use std::io::{self, ErrorKind, Read, Write};
use std::str::FromStr;
use std::sync::mpsc;
use std::thread;

/// Bytes per read or write.
const BLOCK_BYTES: usize = HEAD_BYTES;

/// Blocks buffered between the network and the disk.
const BLOCKS: usize = 8;

/// Compression of the stream, with Ganeti's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Compression {
    None,
    Gzip,
    GzipFast,
    GzipSlow,
    /// External program `lzop`.
    Lzop,
}

/// Magic that identifies the disk of a stream (ganeti's constants.IE_MAGIC_RE).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Magic(String);

impl FromStr for Magic {
    type Err = String;

    fn from_str(text: &str) -> Result<Magic, String> {
        let is_good = (5..=100).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        is_good
            .then(|| Magic(text.to_owned()))
            .ok_or_else(|| "a magic must have 5 to 100 characters of a-z, A-Z, 0-9, -, _ and .".to_owned())
    }
}

impl Magic {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the bytes that precede those of the disk.
    fn on_the_wire(&self) -> String {
        format!("M={}", self.0)
    }
}

/// Parameters on which both ends must agree.
#[derive(Debug, Clone)]
pub struct Terms {
    pub magic: Option<Magic>,
    pub compression: Compression,
    /// Expected size of the disk, if known.
    pub size_bytes: Option<u64>,
}

/// Sends a disk and returns its size in bytes. Success means that the peer closed TLS in order, so it accepted the certificate and read to
/// the end.
///
/// # Errors
/// Fails if the disk cannot be read or the peer rejects it.
pub fn send(link: &mut Link, disk: impl Read, terms: &Terms) -> io::Result<u64> {
    let magic = terms.magic.as_ref().map(Magic::on_the_wire).unwrap_or_default();
    let plain = magic.as_bytes().chain(disk);
    let sent = match terms.compression {
        Compression::None => copy(plain, link),
        Compression::Gzip | Compression::GzipFast => gzip(plain, link, Level::fast()),
        Compression::GzipSlow => gzip(plain, link, Level::default()),
        Compression::Lzop => through_lzop(plain, link),
    };
    // A peer that refuses sends an alert before it closes the connection.
    let sent = sent.map_err(|error| refusal(link).unwrap_or(error))?;
    link.close()?;
    // With TLS 1.3, the alert of a rejected certificate arrives only after everything has been sent.
    match link.read(&mut [0; 1]) {
        Ok(0) => Ok(sent - magic.len() as u64),
        Ok(_) => Err(io::Error::other("unexpected data from the peer after the end of the stream")),
        Err(error) => Err(error),
    }
}

/// Returns the pending alert, if any.
fn refusal(link: &mut Link) -> Option<io::Error> {
    match link.has_spoken() {
        true => link.read(&mut [0; 1]).err(),
        false => None,
    }
}

fn copy(mut from: impl Read, onto: &mut impl Write) -> io::Result<u64> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut copied = 0;
    loop {
        let read = from.read(&mut block)?;
        if read == 0 {
            return Ok(copied);
        }
        onto.write_all(&block[..read])?;
        copied += read as u64;
    }
}

fn gzip(plain: impl Read, link: &mut Link, level: Level) -> io::Result<u64> {
    let mut packed = GzEncoder::new(io::BufWriter::with_capacity(BLOCK_BYTES, link), level);
    let sent = copy(plain, &mut packed)?;
    packed.finish()?.flush()?;
    Ok(sent)
}

fn through_lzop(plain: impl Read, link: &mut Link) -> io::Result<u64> {
    let (lzop, mut input, output) = Filter::start(&["lzop", "-c"])?;
    let (fed, sent) = thread::scope(|scope| {
        let sending = scope.spawn(move || copy(output, link));
        let fed = copy(plain, &mut input);
        drop(input);
        (fed, sending.join().unwrap_or_else(|_| Err(io::Error::other("a thread has panicked"))))
    });
    // A broken connection terminates lzop, not the reverse, so its error comes first.
    sent?;
    lzop.finish()?;
    fed
}

/// Receives a disk and returns its size in bytes. Writes nothing until the magic is verified.
///
/// # Errors
/// Fails if the magic or the size does not match, the stream is truncated or cannot be decompressed, or a write fails.
pub fn receive(link: &mut Link, onto: &Onto, terms: &Terms) -> io::Result<u64> {
    match terms.compression {
        Compression::None => take(link, onto, terms),
        Compression::Gzip | Compression::GzipFast | Compression::GzipSlow => {
            take(MultiGzDecoder::new(io::BufReader::with_capacity(BLOCK_BYTES, link)), onto, terms)
        }
        Compression::Lzop => from_lzop(link, onto, terms),
    }
}

fn from_lzop(link: &mut Link, onto: &Onto, terms: &Terms) -> io::Result<u64> {
    let (lzop, mut input, output) = Filter::start(&["lzop", "-d", "-c"])?;
    let cutter = link.cutter()?;
    thread::scope(|scope| {
        let feeding = scope.spawn(move || copy(link, &mut input));
        // Only lzop's exit status proves that all of its input was valid, so the end waits for it.
        let end = move || {
            feeding.join().unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")))?;
            lzop.finish()
        };
        let taken = take_until(output, onto, terms, end);
        if taken.is_err() {
            // Stops the feeding thread: the remaining input is not needed.
            cutter.cut();
        }
        taken
    })
}

fn take(plain: impl Read, onto: &Onto, terms: &Terms) -> io::Result<u64> {
    take_until(plain, onto, terms, || Ok(()))
}

fn take_until(
    mut plain: impl Read,
    onto: &Onto,
    terms: &Terms,
    end: impl FnOnce() -> io::Result<()>,
) -> io::Result<u64> {
    let wanted = terms.magic.as_ref().map(Magic::on_the_wire).unwrap_or_default();
    let mut magic = vec![0; wanted.len()];
    let other = || io::Error::new(ErrorKind::InvalidInput, "magic mismatch: this is not the expected disk");
    if let Err(error) = plain.read_exact(&mut magic) {
        // The error of the source is more precise: a broken connection is not a magic mismatch.
        drop(plain);
        end()?;
        // An UnexpectedEof created by std means that the stream was too short.
        return Err(if error.get_ref().is_none() && error.kind() == ErrorKind::UnexpectedEof {
            other()
        } else {
            error
        });
    }
    if magic != wanted.as_bytes() {
        return Err(other());
    }
    onto.begin()?;
    let taken = blocks(&mut plain, onto, terms.size_bytes)?;
    drop(plain);
    end()?;
    match terms.size_bytes {
        Some(size) if size != taken => Err(io::Error::other(format!("{taken} bytes received, expected {size}"))),
        _ => onto.finish().map(|()| taken).map_err(io::Error::other),
    }
}

/// Receives the blocks: one thread reads, another one writes.
fn blocks(plain: &mut impl Read, onto: &Onto, most: Option<u64>) -> io::Result<u64> {
    let (full, todo) = mpsc::sync_channel::<(u64, Aligned, usize)>(BLOCKS);
    let (empty, empties) = mpsc::channel();
    for _ in 0..BLOCKS {
        // Cannot fail: the receiver exists.
        let _ = empty.send(Aligned::new(BLOCK_BYTES));
    }
    thread::scope(|scope| {
        let writing = scope.spawn(move || {
            todo.into_iter().try_for_each(|(offset, mut block, length)| {
                match block[..length].iter().all(|byte| *byte == 0) {
                    true => onto.zero(offset..offset + length as u64)?,
                    false => onto.put(offset, &mut block, length)?,
                }
                // Fails after the end of the stream, when no block is needed.
                let _ = empty.send(block);
                Ok(())
            })
        });
        let mut offset = 0;
        let read = loop {
            // The writer has failed; its error is returned below.
            let Ok(mut block) = empties.recv() else { break Ok(()) };
            let length = match fill(plain, &mut block) {
                Ok(0) => break Ok(()),
                Ok(length) => length,
                Err(error) => break Err(error),
            };
            if most.is_some_and(|most| offset + length as u64 > most) {
                break Err(io::Error::other(format!("more than the expected {} bytes received", most.unwrap_or(0))));
            }
            if full.send((offset, block, length)).is_err() {
                break Ok(());
            }
            offset += length as u64;
        };
        drop(full);
        writing.join().unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")))?;
        read.map(|()| offset)
    })
}

fn fill(from: &mut impl Read, block: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < block.len() {
        match from.read(&mut block[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}
