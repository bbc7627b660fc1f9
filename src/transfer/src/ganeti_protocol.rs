//! Ganeti's `import-export` protocol for one disk: a magic followed by the bytes of the disk, compressed as one stream.
//! The stream has no length or checksum, so only TLS's close_notify distinguishes a complete stream from a truncated
//! one.

use super::destination_disk::TransferDestination;
use super::tls_connection::TlsLink;
use clap::ValueEnum;
use flate2::Compression as Level;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use image::raw::HEAD_BYTES;
use linux::process::filter_process::FilterProcess;
use linux::storage::aligned_buffer::AlignedBuffer;
use std::io::{self, ErrorKind, Read, Write};
use std::str::FromStr;
use std::sync::mpsc;
use std::thread;

/// Number of bytes per read or write.
const BLOCK_BYTES: usize = HEAD_BYTES;

/// Number of blocks that are buffered between the network and the disk.
const BLOCKS: usize = 8;

/// Compression of the stream. The names match Ganeti's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GanetiCompression {
    None,
    Gzip,
    GzipFast,
    GzipSlow,
    /// External program `lzop`.
    Lzop,
}

/// Magic at the start of a stream, which identifies the disk (ganeti's constants.IE_MAGIC_RE).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GanetiMagic(String);

impl FromStr for GanetiMagic {
    type Err = String;

    fn from_str(text: &str) -> Result<GanetiMagic, String> {
        let is_good = (5..=100).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        is_good
            .then(|| GanetiMagic(text.to_owned()))
            .ok_or_else(|| "a magic must have 5 to 100 characters of a-z, A-Z, 0-9, -, _ and .".to_owned())
    }
}

impl GanetiMagic {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the bytes that precede the content of the disk in the stream.
    fn wire_prefix(&self) -> String {
        format!("M={}", self.0)
    }
}

/// Parameters on which sender and receiver must agree.
#[derive(Debug, Clone)]
pub(crate) struct GanetiTerms {
    pub magic: Option<GanetiMagic>,
    pub compression: GanetiCompression,
    /// Expected size of the disk, if known.
    pub size_bytes: Option<u64>,
}

/// Sends a disk and returns its size in bytes. On success, the peer has closed the TLS connection with close_notify,
/// which proves that the peer has accepted the certificate and read the stream to its end.
///
/// # Errors
/// Fails if the disk cannot be read, or the peer rejects the certificate or aborts the transfer.
pub(crate) fn send_disk(link: &mut TlsLink, disk: impl Read, terms: &GanetiTerms) -> io::Result<u64> {
    let magic = terms.magic.as_ref().map(GanetiMagic::wire_prefix).unwrap_or_default();
    let plain = magic.as_bytes().chain(disk);
    let sent = match terms.compression {
        GanetiCompression::None => copy_blocks(plain, link),
        GanetiCompression::Gzip | GanetiCompression::GzipFast => send_gzip(plain, link, Level::fast()),
        GanetiCompression::GzipSlow => send_gzip(plain, link, Level::default()),
        GanetiCompression::Lzop => send_lzop(plain, link),
    };
    // A peer that rejects the certificate sends an alert before it closes the connection.
    let sent = sent.map_err(|error| read_pending_alert(link).unwrap_or(error))?;
    link.send_close_notify()?;
    // With TLS 1.3, the alert of a rejected certificate arrives only after everything has been sent.
    match link.read(&mut [0; 1]) {
        Ok(0) => Ok(sent - magic.len() as u64),
        Ok(_) => Err(io::Error::other("unexpected data from the peer after the end of the stream")),
        Err(error) => Err(error),
    }
}

/// Reads the TLS alert that the peer has sent, if any, and returns it as an error.
fn read_pending_alert(link: &mut TlsLink) -> Option<io::Error> {
    match link.has_pending_data() {
        true => link.read(&mut [0; 1]).err(),
        false => None,
    }
}

fn copy_blocks(mut from: impl Read, onto: &mut impl Write) -> io::Result<u64> {
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

fn send_gzip(plain: impl Read, link: &mut TlsLink, level: Level) -> io::Result<u64> {
    let mut packed = GzEncoder::new(io::BufWriter::with_capacity(BLOCK_BYTES, link), level);
    let sent = copy_blocks(plain, &mut packed)?;
    packed.finish()?.flush()?;
    Ok(sent)
}

fn send_lzop(plain: impl Read, link: &mut TlsLink) -> io::Result<u64> {
    let (lzop, mut input, output) = FilterProcess::start(&["lzop", "-c"])?;
    let (fed, sent) = thread::scope(|scope| {
        let sending = scope.spawn(move || copy_blocks(output, link));
        let fed = copy_blocks(plain, &mut input);
        drop(input);
        (fed, sending.join().unwrap_or_else(|_| Err(io::Error::other("a thread has panicked"))))
    });
    // If the connection is broken, lzop also fails. The error of the connection is returned, because it is the
    // cause.
    sent?;
    lzop.finish()?;
    fed
}

/// Receives a disk and returns its size in bytes. Nothing is written before the magic is verified.
///
/// # Errors
/// Fails if the magic or the size does not match, the stream is truncated or cannot be decompressed, or a write fails.
pub(crate) fn receive_disk(link: &mut TlsLink, onto: &TransferDestination, terms: &GanetiTerms) -> io::Result<u64> {
    match terms.compression {
        GanetiCompression::None => receive_plain(link, onto, terms),
        GanetiCompression::Gzip | GanetiCompression::GzipFast | GanetiCompression::GzipSlow => {
            receive_plain(MultiGzDecoder::new(io::BufReader::with_capacity(BLOCK_BYTES, link)), onto, terms)
        }
        GanetiCompression::Lzop => receive_lzop(link, onto, terms),
    }
}

fn receive_lzop(link: &mut TlsLink, onto: &TransferDestination, terms: &GanetiTerms) -> io::Result<u64> {
    let (lzop, mut input, output) = FilterProcess::start(&["lzop", "-d", "-c"])?;
    let cutter = link.shutdown_handle()?;
    thread::scope(|scope| {
        let feeding = scope.spawn(move || copy_blocks(link, &mut input));
        // Only lzop's exit status shows that its whole input was valid, so the exit status is checked at the end of the
        // stream.
        let end = move || {
            feeding.join().unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")))?;
            lzop.finish()
        };
        let taken = receive_until(output, onto, terms, end);
        if taken.is_err() {
            // Stops the thread that feeds lzop, because the remaining input is not needed.
            cutter.shut_down();
        }
        taken
    })
}

fn receive_plain(plain: impl Read, onto: &TransferDestination, terms: &GanetiTerms) -> io::Result<u64> {
    receive_until(plain, onto, terms, || Ok(()))
}

fn receive_until(
    mut plain: impl Read,
    onto: &TransferDestination,
    terms: &GanetiTerms,
    end: impl FnOnce() -> io::Result<()>,
) -> io::Result<u64> {
    let wanted = terms.magic.as_ref().map(GanetiMagic::wire_prefix).unwrap_or_default();
    let mut magic = vec![0; wanted.len()];
    let other = || {
        io::Error::new(ErrorKind::InvalidInput, "magic mismatch: the peer transfers a disk other than the expected one")
    };
    if let Err(error) = plain.read_exact(&mut magic) {
        // If the connection or lzop has failed, that error is returned, because it is the cause of the missing magic.
        drop(plain);
        end()?;
        // If `read_exact` itself has created the UnexpectedEof (it has no inner error), the stream is shorter than the
        // magic.
        return Err(if error.get_ref().is_none() && error.kind() == ErrorKind::UnexpectedEof {
            other()
        } else {
            error
        });
    }
    if magic != wanted.as_bytes() {
        return Err(other());
    }
    onto.erase_head()?;
    let taken = receive_blocks(&mut plain, onto, terms.size_bytes)?;
    drop(plain);
    end()?;
    match terms.size_bytes {
        Some(size) if size != taken => Err(io::Error::other(format!("received {taken} bytes, expected {size}"))),
        _ => onto.write_head().map(|()| taken).map_err(io::Error::other),
    }
}

/// Receives the blocks of the disk and returns their total length. One thread reads from the network, another thread
/// writes to the disk.
fn receive_blocks(plain: &mut impl Read, onto: &TransferDestination, most: Option<u64>) -> io::Result<u64> {
    let (full, todo) = mpsc::sync_channel::<(u64, AlignedBuffer, usize)>(BLOCKS);
    let (empty, empties) = mpsc::channel();
    for _ in 0..BLOCKS {
        // Sending a block cannot fail, because the receiver of the channel still exists.
        let _ = empty.send(AlignedBuffer::new(BLOCK_BYTES));
    }
    thread::scope(|scope| {
        let writing = scope.spawn(move || {
            todo.into_iter().try_for_each(|(offset, mut block, length)| {
                match block[..length].iter().all(|byte| *byte == 0) {
                    true => onto.zero_range(offset..offset + length as u64)?,
                    false => onto.write_piece(offset, &mut block, length)?,
                }
                // An error is ignored: sending fails only after the end of the stream, when the block is no longer
                // needed.
                let _ = empty.send(block);
                Ok(())
            })
        });
        let mut offset = 0;
        let read = loop {
            // Receiving a buffer fails only if the writer has failed. The writer's error is returned below.
            let Ok(mut block) = empties.recv() else { break Ok(()) };
            let length = match fill_block(plain, &mut block) {
                Ok(0) => break Ok(()),
                Ok(length) => length,
                Err(error) => break Err(error),
            };
            if most.is_some_and(|most| offset + length as u64 > most) {
                break Err(io::Error::other(format!(
                    "received more than the expected {limit} bytes",
                    limit = most.unwrap_or(0)
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

fn fill_block(from: &mut impl Read, block: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < block.len() {
        match from.read(&mut block[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}
