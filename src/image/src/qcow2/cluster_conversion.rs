//! Converts the clusters of a qcow2, from any source, to a raw disk image.

use super::header::{ClusterCodec, ClusterLocation, Qcow2Header, table_entries};
use super::invalid_image;
use flate2::{Decompress, FlushDecompress};
use std::io;
use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective, get_error_name};

/// Base-2 logarithm of the maximum window of zstd: 2 MiB, the maximum size of a cluster.
const WINDOW_LOG_MAX: u32 = 21;

/// Source of the clusters of a qcow2 file. The clusters are requested in disk order. `at` is an offset in the file;
/// `guest` is the number of the disk cluster that is currently converted.
pub(crate) trait ClusterSource {
    fn header(&self) -> &Qcow2Header;

    /// Returns the used entries of the L1 table.
    ///
    /// # Errors
    /// Returns the error of the source, or an error if the file is too short, or if the source is a stream that was
    /// already read beyond the table.
    fn read_l1_table(&mut self) -> io::Result<Vec<u64>>;

    /// Returns the L2 table with this number, which is at offset `at`.
    ///
    /// # Errors
    /// Returns the same errors as [`ClusterSource::read_l1_table`].
    fn read_l2_table(&mut self, number: usize, at: u64) -> io::Result<Vec<u8>>;

    /// Copies the first `bytes` bytes of the cluster at offset `at` to `sink`.
    ///
    /// # Errors
    /// Returns the same errors as [`ClusterSource::read_l1_table`].
    fn copy_cluster(&mut self, at: u64, bytes: usize, guest: u64, sink: &mut impl DiskSink) -> io::Result<()>;

    /// Returns `bytes` bytes of compressed data at offset `at`, or fewer at the end of the file.
    ///
    /// # Errors
    /// Returns the error of the source, or an error if the source is a stream that was already read beyond the offset.
    fn read_compressed(&mut self, at: u64, bytes: usize, guest: u64) -> io::Result<Vec<u8>>;
}

/// Receiver of the raw disk image, in order from the first byte to the last.
pub(crate) trait DiskSink {
    /// Returns the buffer for the next bytes. The buffer is never empty.
    ///
    /// # Errors
    /// Returns the error of the sink.
    fn next_buffer(&mut self) -> io::Result<&mut [u8]>;

    /// Marks the next `bytes` bytes of the buffer as filled.
    ///
    /// # Errors
    /// Returns the error of the sink.
    fn advance(&mut self, bytes: usize) -> io::Result<()>;

    /// Adds `bytes` zero bytes.
    ///
    /// # Errors
    /// Returns the error of the sink.
    fn write_zeros(&mut self, bytes: u64) -> io::Result<()>;

    /// Returns whether the sink discards all data. If so, the clusters need not be read.
    fn is_dry(&self) -> bool {
        false
    }

    /// Adds the bytes of a slice.
    ///
    /// # Errors
    /// Returns the error of the sink.
    fn write_bytes(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = self.next_buffer()?;
            let now = room.len().min(bytes.len());
            room[..now].copy_from_slice(&bytes[..now]);
            self.advance(now)?;
            bytes = &bytes[now..];
        }
        Ok(())
    }
}

/// Converts all clusters in disk order.
///
/// # Errors
/// Returns an error of the source or the sink, or an error if the image is damaged.
pub(crate) fn convert_clusters(clusters: &mut impl ClusterSource, sink: &mut impl DiskSink) -> io::Result<()> {
    let header = clusters.header().clone();
    let (entries, cluster_bytes) = (header.clusters_per_table(), header.cluster_bytes() as u64);
    let mut unpacking = ClusterDecoder::new(&header);
    for (number, table) in clusters.read_l1_table()?.into_iter().enumerate() {
        let first = number as u64 * entries;
        let left = header.size_bytes - first * cluster_bytes;
        let Some(at) = header.table_offset(table)? else {
            sink.write_zeros(left.min(entries * cluster_bytes))?;
            continue;
        };
        let table = clusters.read_l2_table(number, at)?;
        for (guest, entry) in (first..header.size_bytes.div_ceil(cluster_bytes)).zip(table_entries(&table)) {
            let bytes = (header.size_bytes - guest * cluster_bytes).min(cluster_bytes);
            match header.parse_entry(entry)? {
                ClusterLocation::Zeros => sink.write_zeros(bytes)?,
                ClusterLocation::At(at) => clusters.copy_cluster(at, bytes as usize, guest, sink)?,
                ClusterLocation::Packed { at, bytes: most } => {
                    let packed = clusters.read_compressed(at, most, guest)?;
                    if !sink.is_dry() {
                        sink.write_bytes(&unpacking.decode(&packed, guest)?[..bytes as usize])?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Decompressor of clusters.
struct ClusterDecoder {
    codec: ClusterCodec,
    cluster: Vec<u8>,
    deflate: Decompress,
    zstd: DCtx<'static>,
}

impl ClusterDecoder {
    fn new(header: &Qcow2Header) -> ClusterDecoder {
        let cluster = vec![0; header.cluster_bytes()];
        ClusterDecoder { codec: header.codec, cluster, deflate: Decompress::new(false), zstd: DCtx::create() }
    }

    fn decode(&mut self, packed: &[u8], guest: u64) -> io::Result<&[u8]> {
        let unpacked = match self.codec {
            ClusterCodec::Deflate => self.inflate(packed),
            ClusterCodec::Zstd => self.decode_zstd(packed),
        };
        // Data after the compressed cluster is ignored, because the rest of the last sector belongs to another cluster.
        match unpacked {
            Ok(bytes) if bytes == self.cluster.len() => Ok(&self.cluster),
            Ok(bytes) => {
                let whole = self.cluster.len();
                Err(invalid_image(format!(
                    "the qcow2 is damaged: cluster {guest} decompresses to {bytes} bytes instead of {whole}"
                )))
            }
            Err(why) => Err(invalid_image(format!("the qcow2 is damaged: cannot decompress cluster {guest}: {why}"))),
        }
    }

    fn inflate(&mut self, packed: &[u8]) -> Result<usize, String> {
        self.deflate.reset(false);
        // The status of the decompression is ignored, because the data may lack an end mark. The caller checks that the
        // output is a full cluster.
        self.deflate.decompress(packed, &mut self.cluster, FlushDecompress::Finish).map_err(|why| why.to_string())?;
        Ok(self.deflate.total_out() as usize)
    }

    fn decode_zstd(&mut self, packed: &[u8]) -> Result<usize, String> {
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
