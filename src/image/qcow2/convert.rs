//! Conversion of the clusters of a qcow2, from any source, to a raw disk.

use super::header::{Codec, Entry, Header, numbers};
use super::wrong;
use flate2::{Decompress, FlushDecompress};
use std::io;
use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective, get_error_name};

/// Maximum window of zstd: clusters are no larger.
const WINDOW_LOG_MAX: u32 = 21;

/// The clusters of a qcow2 file, requested in disk order. `guest` is the current cluster of the disk.
pub trait Clusters {
    fn header(&self) -> &Header;

    /// Returns the used entries of the L1 table.
    ///
    /// # Errors
    /// Returns the error of the source, or an error if the file is too short or the offset has already passed.
    fn tables(&mut self) -> io::Result<Vec<u64>>;

    /// Returns the L2 table with this number, at this offset.
    ///
    /// # Errors
    /// Returns the same errors as [`Clusters::tables`].
    fn table(&mut self, number: usize, at: u64) -> io::Result<Vec<u8>>;

    /// Copies the beginning of a cluster to `sink`.
    ///
    /// # Errors
    /// Returns the same errors as [`Clusters::tables`].
    fn copy(&mut self, at: u64, bytes: usize, guest: u64, sink: &mut impl Sink) -> io::Result<()>;

    /// Returns compressed data; fewer bytes at the end of the file.
    ///
    /// # Errors
    /// Returns the error of the source, or an error if the offset has already passed.
    fn packed(&mut self, at: u64, bytes: usize, guest: u64) -> io::Result<Vec<u8>>;
}

/// Receiver of the raw disk, from its first byte to the last.
pub trait Sink {
    /// Returns the buffer for the next bytes, which is never empty.
    ///
    /// # Errors
    /// Returns the error of the sink.
    fn room(&mut self) -> io::Result<&mut [u8]>;

    /// Marks bytes of the buffer as filled.
    ///
    /// # Errors
    /// Returns the error of the sink.
    fn filled(&mut self, bytes: usize) -> io::Result<()>;

    /// Adds zeros.
    ///
    /// # Errors
    /// Returns the error of the sink.
    fn zeros(&mut self, bytes: u64) -> io::Result<()>;

    /// Returns whether the data is discarded, so that it need not be read.
    fn is_dry(&self) -> bool {
        false
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// Returns the error of the sink.
    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = self.room()?;
            let now = room.len().min(bytes.len());
            room[..now].copy_from_slice(&bytes[..now]);
            self.filled(now)?;
            bytes = &bytes[now..];
        }
        Ok(())
    }
}

/// Converts all clusters.
///
/// # Errors
/// Returns an error of the clusters or the sink, or an error if the image is damaged.
pub fn convert(clusters: &mut impl Clusters, sink: &mut impl Sink) -> io::Result<()> {
    let header = clusters.header().clone();
    let (entries, cluster_bytes) = (header.entries(), header.cluster_bytes() as u64);
    let mut unpacking = Unpacking::new(&header);
    for (number, table) in clusters.tables()?.into_iter().enumerate() {
        let first = number as u64 * entries;
        let left = header.size_bytes - first * cluster_bytes;
        let Some(at) = header.table(table)? else {
            sink.zeros(left.min(entries * cluster_bytes))?;
            continue;
        };
        let table = clusters.table(number, at)?;
        for (guest, entry) in (first..header.size_bytes.div_ceil(cluster_bytes)).zip(numbers(&table)) {
            let bytes = (header.size_bytes - guest * cluster_bytes).min(cluster_bytes);
            match header.entry(entry)? {
                Entry::Zeros => sink.zeros(bytes)?,
                Entry::At(at) => clusters.copy(at, bytes as usize, guest, sink)?,
                Entry::Packed { at, bytes: most } => {
                    let packed = clusters.packed(at, most, guest)?;
                    if !sink.is_dry() {
                        sink.put(&unpacking.unpack(&packed, guest)?[..bytes as usize])?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Decompressor of clusters.
struct Unpacking {
    codec: Codec,
    cluster: Vec<u8>,
    deflate: Decompress,
    zstd: DCtx<'static>,
}

impl Unpacking {
    fn new(header: &Header) -> Unpacking {
        let cluster = vec![0; header.cluster_bytes()];
        Unpacking { codec: header.codec, cluster, deflate: Decompress::new(false), zstd: DCtx::create() }
    }

    fn unpack(&mut self, packed: &[u8], guest: u64) -> io::Result<&[u8]> {
        let unpacked = match self.codec {
            Codec::Deflate => self.inflate(packed),
            Codec::Zstd => self.unzstd(packed),
        };
        // The rest of the last sector belongs to another cluster.
        match unpacked {
            Ok(bytes) if bytes == self.cluster.len() => Ok(&self.cluster),
            Ok(bytes) => {
                let whole = self.cluster.len();
                Err(wrong(format!(
                    "the qcow2 is damaged: cluster {guest} has {bytes} bytes when decompressed, not {whole}"
                )))
            }
            Err(why) => Err(wrong(format!("the qcow2 is damaged: cannot decompress cluster {guest}: {why}"))),
        }
    }

    fn inflate(&mut self, packed: &[u8]) -> Result<usize, String> {
        self.deflate.reset(false);
        // The data may have no end mark; only a full cluster counts.
        self.deflate.decompress(packed, &mut self.cluster, FlushDecompress::Finish).map_err(|why| why.to_string())?;
        Ok(self.deflate.total_out() as usize)
    }

    fn unzstd(&mut self, packed: &[u8]) -> Result<usize, String> {
        let said = |code| get_error_name(code).to_owned();
        self.zstd.reset(ResetDirective::SessionAndParameters).map_err(said)?;
        self.zstd.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(said)?;
        let (mut input, mut output) = (InBuffer::around(packed), OutBuffer::around(&mut self.cluster[..]));
        while output.pos() < output.capacity() {
            let before = (input.pos(), output.pos());
            self.zstd.decompress_stream(&mut output, &mut input).map_err(said)?;
            if (input.pos(), output.pos()) == before {
                break;
            }
        }
        Ok(output.pos())
    }
}
