//! Receives a disk over one connection. One thread reads from the connection; several threads decompress, verify and
//! write.

use super::frames::{
    self, DiskPiece, HelloAnswer, PieceEncoding, PieceOffer, PiecesDigest, ProtocolFrame, ReceiptFigures,
    ReceiverVerdict, TransferHello,
};
use super::receive_state::{ConnectionRejection, ReceiveState, ReceivedDisk, TransferSender};
use super::{BusyTime, CHUNK_BYTES, ConnectionEnd, worker_count};
use crate::destination_disk::TransferDestination;
use crate::ganeti_certificate::PeerCertificate;
use crate::tls_connection::TlsLink;
use common::encoding::encode_hex;
use common::sync::lock_mutex;
use linux::storage::aligned_buffer::AlignedBuffer;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};
use std::{io, thread};
use zstd::zstd_safe::DCtx;

/// Number of pieces that are buffered between the network and the disk.
const PIECES: usize = 8;

/// Time that the peer has to read the reason for a failure before the connection is closed.
const CLOSE_DELAY: Duration = Duration::from_secs(10);

/// Receives a disk over one connection. `from` is the certificate of the sender. Returns the name of the completed
/// disk.
///
/// # Errors
/// See [`ConnectionEnd`].
pub(crate) fn receive_disk(
    link: &mut TlsLink,
    disks: &[ReceivedDisk],
    from: &PeerCertificate,
) -> Result<String, ConnectionEnd> {
    let ProtocolFrame::Hello(hello) = frames::read_frame(link)? else {
        return Err(ConnectionEnd::Failed(
            "protocol error by the sender: the first frame is not the description of a disk".to_owned(),
        ));
    };
    let found = disks.iter().find(|disk| disk.name == hello.name);
    let found = found.ok_or_else(|| format!("disk {disk:?} is not expected here", disk = hello.name));
    match found.and_then(|disk| disk.check_offer(&hello).map(|()| disk)) {
        Err(why) => {
            frames::write_frame(link, &ProtocolFrame::Answer(HelloAnswer::Refused(why.clone())))?;
            link.close_gracefully(CLOSE_DELAY);
            Err(ConnectionEnd::Refused(why))
        }
        Ok(disk) => {
            let number = match disk.make_current(link.shutdown_handle()?, hello.run.as_ref().map(|run| run.id)) {
                Ok(number) => number,
                Err(ConnectionRejection::Cut(why)) => return Err(ConnectionEnd::Interrupted(io::Error::other(why))),
                Err(ConnectionRejection::Refused(why)) => {
                    frames::write_frame(link, &ProtocolFrame::Answer(HelloAnswer::Refused(why.clone())))?;
                    link.close_gracefully(CLOSE_DELAY);
                    return Err(ConnectionEnd::Interrupted(io::Error::other(why)));
                }
            };
            let mut state = lock_mutex(&disk.state);
            // While this thread waited for the lock of the state, another connection may have completed the disk, or
            // all disks.
            if !disk.is_current(number) {
                return Err(ConnectionEnd::Interrupted(io::Error::other(
                    "another connection has replaced this connection, or the receiver has finished",
                )));
            }
            let sender = TransferSender { certificate: from.clone(), run: hello.run.clone() };
            receive_after_hello(link, disk, &mut state, (sender, &hello)).map(|()| disk.name.clone())
        }
    }
}

fn receive_after_hello(
    link: &mut TlsLink,
    disk: &ReceivedDisk,
    state: &mut ReceiveState,
    (from, hello): (TransferSender, &TransferHello),
) -> Result<(), ConnectionEnd> {
    accept_hello(link, disk, state, (from, hello))?;
    frames::write_frame(
        link,
        &ProtocolFrame::Answer(HelloAnswer::From { position: state.position, compare: state.compare }),
    )?;
    let began = Instant::now();
    let pieces = receive_pieces(link, disk, state, hello.size_bytes);
    let received = pieces.and_then(|pieces| {
        if !state.is_whole {
            let onto = state.open_destination()?;
            pieces.busy.measure_time(|| onto.write_head()).map_err(permanent_failure)?;
        }
        Ok(ReceiptFigures {
            digest: pieces.digest,
            disk_percent: pieces.busy.busy_percent(began.elapsed(), worker_count()),
        })
    });
    match received {
        Ok(received) => {
            state.is_whole = true;
            frames::write_frame(link, &ProtocolFrame::Verdict(ReceiverVerdict::Received(received)))?;
            link.send_close_notify()?;
            Ok(())
        }
        Err(ConnectionEnd::Failed(why)) => {
            // An error is ignored: if the reason cannot be sent, the transfer has failed anyway.
            let _ = frames::write_frame(link, &ProtocolFrame::Verdict(ReceiverVerdict::Failed(why.clone())));
            link.close_gracefully(CLOSE_DELAY);
            Err(ConnectionEnd::Failed(why))
        }
        Err(other) => Err(other),
    }
}

/// Prepares the destination for the first connection, or for another run of the sender. Refuses a disk that differs
/// from the disk that the previous connection has described.
fn accept_hello(
    link: &mut TlsLink,
    disk: &ReceivedDisk,
    state: &mut ReceiveState,
    (from, hello): (TransferSender, &TransferHello),
) -> Result<(), ConnectionEnd> {
    match &state.hello {
        None => {
            state.open_destination()?.erase_head().map_err(permanent_failure)?;
            (state.hello, state.from) = (Some(hello.clone()), Some(from));
        }
        Some(before) if !before.is_same_disk(hello) => {
            let why = format!(
                "the disk offered as {disk} differs from the disk of the previous connection",
                disk = disk.name
            );
            frames::write_frame(link, &ProtocolFrame::Answer(HelloAnswer::Refused(why.clone())))?;
            return Err(ConnectionEnd::Failed(why));
        }
        Some(_) if state.from.as_ref() != Some(&from) => {
            disk.restart_transfer(state, from).map_err(permanent_failure)?
        }
        Some(_) => {}
    }
    Ok(())
}

fn permanent_failure(error: impl ToString) -> ConnectionEnd {
    ConnectionEnd::Failed(error.to_string())
}

/// Result of a connection over which all pieces were received and written.
struct ReceivedPieces {
    digest: String,
    busy: BusyTime,
}

/// Receives pieces until the end of the disk or of the connection. When this function returns, all received pieces
/// have been written to the disk, and `position` in the state has been updated.
fn receive_pieces(
    link: &mut TlsLink,
    disk: &ReceivedDisk,
    state: &mut ReceiveState,
    size_bytes: u64,
) -> Result<ReceivedPieces, ConnectionEnd> {
    let (jobs, todo) = mpsc::sync_channel(PIECES);
    let (onto, placed) = (state.open_destination()?, &disk.placed);
    let shared =
        ReceiveShared { onto, placed, todo: Mutex::new(todo), failed: Mutex::new(None), busy: BusyTime::default() };
    let mut sum = PiecesDigest::new();
    let mut position = state.position;
    let read = thread::scope(|scope| {
        for _ in 0..worker_count() {
            scope.spawn(|| shared.write_loop());
        }
        read_pieces(link, &shared, jobs, size_bytes, &mut position, &mut sum)
    });
    let (error, busy) = (lock_mutex(&shared.failed).take(), shared.busy);
    if let Some(error) = error {
        return Err(permanent_failure(error));
    }
    state.position = position;
    let digest = read?;
    Ok(ReceivedPieces { digest, busy })
}

fn read_pieces(
    link: &mut TlsLink,
    shared: &ReceiveShared<'_>,
    jobs: SyncSender<(DiskPiece, Vec<u8>)>,
    size_bytes: u64,
    position: &mut u64,
    sum: &mut PiecesDigest,
) -> Result<String, ConnectionEnd> {
    let mut scratch = AlignedBuffer::new(CHUNK_BYTES as usize);
    loop {
        if lock_mutex(&shared.failed).is_some() {
            return Err(ConnectionEnd::Failed("a write failed".to_owned()));
        }
        match frames::read_frame(link)? {
            ProtocolFrame::Piece(piece, bytes) if piece.is_within(size_bytes) && piece.range().start == *position => {
                *position = piece.range().end;
                shared.placed.store(*position, Ordering::Relaxed);
                sum.add_piece(&piece);
                // Sending to the workers cannot fail, because they exit only after this loop.
                let _ = jobs.send((piece, bytes));
            }
            ProtocolFrame::Offered(offers) => {
                let wanted =
                    offers.iter().map(|offer| !has_piece(shared.onto, offer, size_bytes, &mut scratch)).collect();
                frames::write_frame(link, &ProtocolFrame::Wanted(wanted))?;
            }
            ProtocolFrame::End(digest) if *position == size_bytes && digest == sum.current_digest() => {
                return Ok(encode_hex(digest));
            }
            ProtocolFrame::End(_) => {
                return Err(ConnectionEnd::Failed(
                    "the received data does not match the digest of the sender".to_owned(),
                ));
            }
            _ => return Err(ConnectionEnd::Failed("protocol error by the sender: unexpected frame".to_owned())),
        }
    }
}

/// Returns whether the disk already contains the offered piece, according to its digest. Pieces of the first MiB are
/// always missing, because the first MiB was zeroed.
fn has_piece(onto: &TransferDestination, offer: &PieceOffer, size_bytes: u64, scratch: &mut AlignedBuffer) -> bool {
    let PieceOffer { offset, length, sha256 } = *offer;
    let piece = DiskPiece::Same { offset, length, sha256 };
    let length = length as usize;
    offset >= CHUNK_BYTES
        && piece.is_within(size_bytes)
        && onto.read_back(offset, scratch, length).is_ok()
        && frames::hash_bytes(&scratch[..length]) == sha256
}

/// State shared by the worker threads and the thread that reads.
struct ReceiveShared<'d> {
    onto: &'d TransferDestination,
    placed: &'d AtomicU64,
    todo: Mutex<Receiver<(DiskPiece, Vec<u8>)>>,
    failed: Mutex<Option<io::Error>>,
    busy: BusyTime,
}

impl ReceiveShared<'_> {
    fn write_loop(&self) {
        let (mut buffer, mut zstd) = (AlignedBuffer::new(CHUNK_BYTES as usize), DCtx::create());
        loop {
            let job = lock_mutex(&self.todo).recv();
            let Ok((piece, bytes)) = job else { return };
            if let Err(error) = self.write_piece(&piece, &bytes, &mut buffer, &mut zstd) {
                lock_mutex(&self.failed).get_or_insert(error);
            }
        }
    }

    fn write_piece(
        &self,
        piece: &DiskPiece,
        bytes: &[u8],
        buffer: &mut AlignedBuffer,
        zstd: &mut DCtx<'_>,
    ) -> io::Result<()> {
        let onto = self.onto;
        match piece {
            DiskPiece::Unused(_) | DiskPiece::Same { .. } => Ok(()),
            DiskPiece::Zero(range) => self.busy.measure_time(|| onto.zero_range(range.clone())),
            DiskPiece::Bytes { offset, length, encoding, sha256 } => {
                let length = *length as usize;
                let unpacked = decompress_piece(*encoding, bytes, &mut buffer[..length], zstd);
                if !unpacked || frames::hash_bytes(&buffer[..length]) != *sha256 {
                    return Err(io::Error::other(format!("digest mismatch of the piece at byte {offset}")));
                }
                self.busy.measure_time(|| onto.write_piece(*offset, buffer, length))
            }
        }
    }
}

/// Decompresses the bytes into `onto`. Returns whether the output fills `onto` exactly.
fn decompress_piece(encoding: PieceEncoding, bytes: &[u8], onto: &mut [u8], zstd: &mut DCtx<'_>) -> bool {
    match encoding {
        PieceEncoding::Plain if bytes.len() == onto.len() => {
            onto.copy_from_slice(bytes);
            true
        }
        PieceEncoding::Plain => false,
        PieceEncoding::Zstd => zstd.decompress(onto, bytes).is_ok_and(|length| length == onto.len()),
        PieceEncoding::Lz4 => lz4_flex::block::decompress_into(bytes, onto).is_ok_and(|length| length == onto.len()),
    }
}

#[cfg(test)]
mod tests;
