//! Sends the packed segments of a connection in order, without the bytes of pieces that the receiver already has.

use super::{OFFERS, PackedPart, PackedSegment, SentBytes};
use crate::protocol::frames::{
    self, DiskPiece, PieceOffer, PiecesDigest, ProtocolFrame, ReceiptFigures, ReceiverVerdict,
};
use crate::protocol::{BusyTime, ConnectionEnd};
use crate::tls_connection::TlsLink;
use linux::storage::aligned_buffer::AlignedBuffer;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};

/// Writer of a connection. Only the writer's thread uses `link`.
pub(super) struct PieceWriter<'l> {
    pub(super) link: &'l mut TlsLink,
    pub(super) wire: &'l BusyTime,
    pub(super) sum: PiecesDigest,
    /// Zero or unused range that is not sent yet, because the next piece may extend it.
    pub(super) pending: Option<DiskPiece>,
    pub(super) batch: Vec<PackedSegment>,
    pub(super) compare: bool,
    pub(super) empty: Sender<AlignedBuffer>,
    pub(super) sent_bytes: SentBytes,
    pub(super) traveled: u64,
}

impl PieceWriter<'_> {
    pub(super) fn write_all_pieces(
        &mut self,
        ready: Receiver<(usize, io::Result<PackedSegment>)>,
        queued: &AtomicUsize,
    ) -> Result<ReceiptFigures, ConnectionEnd> {
        let (mut early, mut next) = (BTreeMap::new(), 0);
        for (number, packed) in ready {
            early.insert(number, packed);
            while let Some(packed) = early.remove(&next) {
                next += 1;
                queued.fetch_sub(1, Ordering::Relaxed);
                // An error of a worker means that the disk cannot be read. A retry would also fail.
                let packed = packed.map_err(|error| ConnectionEnd::Failed(error.to_string()))?;
                self.batch.push(packed);
                if !self.compare || self.batch.len() == OFFERS {
                    self.flush_batch()?;
                }
            }
        }
        self.flush_batch()?;
        self.put_pending()?;
        let digest = self.sum.current_digest();
        let wire = self.wire;
        wire.measure_time(|| {
            frames::write_frame(self.link, &ProtocolFrame::End(digest))?;
            self.read_verdict()
        })
    }

    /// Sends all pieces of the batch. If the receiver may already have pieces from an earlier run, offers the pieces
    /// first.
    fn flush_batch(&mut self) -> Result<(), ConnectionEnd> {
        if self.link.has_pending_data() {
            return self.read_verdict().and(Err(ConnectionEnd::Failed(
                "protocol error by the receiver: completion reported too early".to_owned(),
            )));
        }
        let wanted = self.offer_batch()?;
        let mut wanted = wanted.into_iter();
        for PackedSegment { buffer, parts } in std::mem::take(&mut self.batch) {
            for PackedPart { piece, plain, packed } in parts {
                let piece = match piece {
                    DiskPiece::Bytes { offset, length, sha256, .. } if self.compare && wanted.next() != Some(true) => {
                        DiskPiece::Same { offset, length, sha256 }
                    }
                    piece => piece,
                };
                self.put_piece(piece, packed.as_deref().unwrap_or(&buffer[plain]))?;
            }
            // Receiving fails if the workers have exited.
            let _ = self.empty.send(buffer);
        }
        Ok(())
    }

    /// Offers the pieces of the batch to the receiver, and returns for each piece whether the receiver needs it.
    fn offer_batch(&mut self) -> Result<Vec<bool>, ConnectionEnd> {
        let offer = |part: &PackedPart| match part.piece {
            DiskPiece::Bytes { offset, length, sha256, .. } => Some(PieceOffer { offset, length, sha256 }),
            _ => None,
        };
        let offers: Vec<PieceOffer> =
            self.batch.iter().flat_map(|packed| packed.parts.iter().filter_map(offer)).collect();
        if !self.compare || offers.is_empty() {
            return Ok(Vec::new());
        }
        let (count, wire) = (offers.len(), self.wire);
        wire.measure_time(|| {
            frames::write_frame(self.link, &ProtocolFrame::Offered(offers))?;
            match frames::read_frame(self.link)? {
                ProtocolFrame::Wanted(wanted) if wanted.len() == count => Ok(wanted),
                ProtocolFrame::Verdict(ReceiverVerdict::Failed(why)) => Err(ConnectionEnd::Failed(why)),
                _ => Err(ConnectionEnd::Failed(
                    "protocol error by the receiver: no answer to the offered pieces".to_owned(),
                )),
            }
        })
    }

    fn put_piece(&mut self, piece: DiskPiece, bytes: &[u8]) -> Result<(), ConnectionEnd> {
        let joined = match (&mut self.pending, &piece) {
            (Some(DiskPiece::Zero(before)), DiskPiece::Zero(more))
            | (Some(DiskPiece::Unused(before)), DiskPiece::Unused(more)) => {
                before.end = more.end;
                true
            }
            _ => false,
        };
        if joined {
            return Ok(());
        }
        self.put_pending()?;
        match piece {
            DiskPiece::Zero(_) | DiskPiece::Unused(_) => {
                self.pending = Some(piece);
                Ok(())
            }
            piece => self.send_piece(&piece, if matches!(piece, DiskPiece::Same { .. }) { &[] } else { bytes }),
        }
    }

    fn put_pending(&mut self) -> Result<(), ConnectionEnd> {
        self.pending.take().map_or(Ok(()), |piece| self.send_piece(&piece, &[]))
    }

    fn send_piece(&mut self, piece: &DiskPiece, bytes: &[u8]) -> Result<(), ConnectionEnd> {
        let range = piece.range();
        let sent_bytes = match piece {
            DiskPiece::Bytes { .. } => &mut self.sent_bytes.sent,
            DiskPiece::Same { .. } => &mut self.sent_bytes.same,
            DiskPiece::Zero(_) => &mut self.sent_bytes.zero,
            DiskPiece::Unused(_) => &mut self.sent_bytes.unused,
        };
        *sent_bytes += range.end - range.start;
        self.traveled += bytes.len() as u64;
        self.sum.add_piece(piece);
        let wire = self.wire;
        match wire.measure_time(|| frames::write_piece(self.link, piece, bytes)) {
            Ok(()) => Ok(()),
            // If unread data is available, the receiver may have sent the reason before it closed the connection.
            Err(error) if self.link.has_pending_data() => self
                .read_verdict()
                .map_err(|said| match said {
                    ConnectionEnd::Interrupted(_) => ConnectionEnd::Interrupted(error),
                    said => said,
                })
                .map(drop),
            Err(error) => Err(error.into()),
        }
    }

    fn read_verdict(&mut self) -> Result<ReceiptFigures, ConnectionEnd> {
        match frames::read_frame(self.link)? {
            ProtocolFrame::Verdict(ReceiverVerdict::Received(received)) => Ok(received),
            ProtocolFrame::Verdict(ReceiverVerdict::Failed(why)) => Err(ConnectionEnd::Failed(why)),
            _ => Err(ConnectionEnd::Failed("protocol error by the receiver: unexpected frame".to_owned())),
        }
    }
}
