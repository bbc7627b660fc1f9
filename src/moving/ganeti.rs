//! One disk as Ganeti's `import-export` sends and takes it: a magic word and then the disk's bytes, compressed together, and nothing
//! that says whether all of it came. TLS's own end is all that tells a whole stream from a cut one.

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

/// One read or write.
const BLOCK_BYTES: usize = HEAD_BYTES;

/// Blocks between the wire and the disk.
const BLOCKS: usize = 8;

/// By Ganeti's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Compression {
    None,
    Gzip,
    GzipFast,
    GzipSlow,
    /// By the program of that name.
    Lzop,
}

/// Says which disk a stream is of (ganeti's constants.IE_MAGIC_RE).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Magic(String);

impl FromStr for Magic {
    type Err = String;

    fn from_str(text: &str) -> Result<Magic, String> {
        let is_good = (5..=100).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        is_good
            .then(|| Magic(text.to_owned()))
            .ok_or_else(|| "a magic is 5 to 100 of a-z, A-Z, 0-9, -, _ and .".to_owned())
    }
}

impl Magic {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As it stands before the disk's bytes.
    fn on_the_wire(&self) -> String {
        format!("M={}", self.0)
    }
}

/// What both ends must have been told alike.
#[derive(Debug, Clone)]
pub struct Terms {
    pub magic: Option<Magic>,
    pub compression: Compression,
    /// What comes must have exactly so many bytes, where that is known.
    pub size_bytes: Option<u64>,
}

/// Sends a disk; returns how many bytes it has. The other end has closed TLS in order when this is good: it took the certificate, and
/// read to the end.
///
/// # Errors
/// The disk cannot be read, or the other end does not take it.
pub fn send(link: &mut Link, disk: impl Read, terms: &Terms) -> io::Result<u64> {
    let magic = terms.magic.as_ref().map(Magic::on_the_wire).unwrap_or_default();
    let plain = magic.as_bytes().chain(disk);
    let sent = match terms.compression {
        Compression::None => copy(plain, link),
        Compression::Gzip | Compression::GzipFast => gzip(plain, link, Level::fast()),
        Compression::GzipSlow => gzip(plain, link, Level::default()),
        Compression::Lzop => through_lzop(plain, link),
    };
    // Who refuses has said why before it went.
    let sent = sent.map_err(|error| refusal(link).unwrap_or(error))?;
    link.close()?;
    // An alert, where the certificate was not taken: with TLS 1.3 that comes after all has been sent.
    match link.read(&mut [0; 1]) {
        Ok(0) => Ok(sent - magic.len() as u64),
        Ok(_) => Err(io::Error::other("the other end answers, where it has nothing to say")),
        Err(error) => Err(error),
    }
}

/// The alert that waits to be read, if there is one.
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
    // A wire that is cut ends lzop, and not the other way round.
    sent?;
    lzop.finish()?;
    fed
}

/// Takes a disk; returns how many bytes came. Nothing is written before the magic is the right one.
///
/// # Errors
/// It is another magic, another length, cut, not what was to be unpacked, or cannot be written.
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
        // The disk is not whole before lzop has said that all was good, so the end waits for that.
        let end = move || {
            feeding.join().unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")))?;
            lzop.finish()
        };
        let taken = take_until(output, onto, terms, end);
        if taken.is_err() {
            // What still comes is for nobody.
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
    let other =
        || io::Error::new(ErrorKind::InvalidInput, "the magic is another one: this is not the disk that is awaited");
    if let Err(error) = plain.read_exact(&mut magic) {
        // Its end says more: a wire that was cut is no other magic.
        drop(plain);
        end()?;
        // std's own words say that it is too short.
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
        Some(size) if size != taken => Err(io::Error::other(format!("{taken} bytes came, and it is to have {size}"))),
        _ => onto.finish().map(|()| taken).map_err(io::Error::other),
    }
}

/// Reads on one thread and writes on another.
fn blocks(plain: &mut impl Read, onto: &Onto, most: Option<u64>) -> io::Result<u64> {
    let (full, todo) = mpsc::sync_channel::<(u64, Aligned, usize)>(BLOCKS);
    let (empty, empties) = mpsc::channel();
    for _ in 0..BLOCKS {
        // The receiver is right above.
        let _ = empty.send(Aligned::new(BLOCK_BYTES));
    }
    thread::scope(|scope| {
        let writing = scope.spawn(move || {
            todo.into_iter().try_for_each(|(offset, mut block, length)| {
                match block[..length].iter().all(|byte| *byte == 0) {
                    true => onto.zero(offset..offset + length as u64)?,
                    false => onto.put(offset, &mut block, length)?,
                }
                // Nobody fills blocks any more when the stream has ended.
                let _ = empty.send(block);
                Ok(())
            })
        });
        let mut offset = 0;
        let read = loop {
            // The writer has failed, and says why below.
            let Ok(mut block) = empties.recv() else { break Ok(()) };
            let length = match fill(plain, &mut block) {
                Ok(0) => break Ok(()),
                Ok(length) => length,
                Err(error) => break Err(error),
            };
            if most.is_some_and(|most| offset + length as u64 > most) {
                break Err(io::Error::other(format!(
                    "more than the {} bytes come that it is to have",
                    most.unwrap_or(0)
                )));
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
