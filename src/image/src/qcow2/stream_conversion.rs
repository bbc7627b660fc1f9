//! Reads the clusters of a qcow2 from a stream. `qemu-img convert` writes the clusters in disk order, and each table
//! before the clusters that it describes. Therefore only a few clusters must be kept in memory after they were read,
//! for example a cluster whose end contains compressed data of later disk clusters. An image to which a running machine
//! has written is not in this order, and is rejected.

use super::cluster_conversion::{ClusterSource, DiskSink};
use super::header::{ClusterLocation, HEADER_BYTES, Qcow2Header, table_entries};
use super::{invalid_image, truncated_error};
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// Maximum size of all clusters and tables that are kept for later use, in bytes.
const MAXIMUM_CACHED_BYTES: usize = 32 << 20;

/// Maximum number of clusters that have not been read yet but are needed according to the tables read so far.
const MAXIMUM_MISSING_CLUSTERS: usize = 1 << 20;

/// Number of clusters with compressed data that are kept, because these clusters may contain further data that is
/// needed later. qemu-img fills one cluster at a time, and compressed data may extend into the next cluster.
const OPEN: usize = 2;

/// File that is read sequentially from its beginning to its end.
pub(crate) trait SequentialFile {
    /// Reads bytes until the buffer is full or the file ends.
    ///
    /// # Errors
    /// Returns the error of the stream.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Skips this number of bytes, or the rest of the file if fewer bytes are left.
    ///
    /// # Errors
    /// Returns the error of the stream.
    fn skip(&mut self, bytes: u64) -> io::Result<()>;
}

pub(crate) struct StreamClusters<S> {
    stream: S,
    header: Qcow2Header,
    /// Number of the next cluster of the file.
    next: u64,
    /// L2 tables that have not been read yet: cluster in the file and number of each table.
    tables: BTreeMap<u64, usize>,
    /// L2 tables that were read before they are needed, by table number.
    early: BTreeMap<usize, Vec<u8>>,
    wanted: BTreeMap<u64, ClusterUse>,
    kept: BTreeMap<u64, Vec<u8>>,
    open: VecDeque<u64>,
}

/// Cluster of the file that contains data for the disk and has not been used completely yet.
#[derive(Debug, Clone, Copy)]
struct ClusterUse {
    /// Number of the last cluster of the disk whose data is in this cluster of the file.
    last: u64,
    is_packed: bool,
}

impl<S: SequentialFile> StreamClusters<S> {
    /// Reads the header.
    ///
    /// # Errors
    /// Returns the error of the stream, or an error if the stream is not a supported qcow2.
    pub(crate) fn open_stream(mut stream: S) -> io::Result<StreamClusters<S>> {
        let mut head = [0; HEADER_BYTES];
        let got = stream.read(&mut head)?;
        let header = Qcow2Header::parse(&head[..got])?;
        stream.skip((header.cluster_bytes() - HEADER_BYTES) as u64)?;
        let (tables, early, wanted, kept) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(StreamClusters { stream, header, next: 1, tables, early, wanted, kept, open: VecDeque::new() })
    }

    /// Skips the rest of the stream.
    ///
    /// # Errors
    /// Returns the error of the stream.
    pub(crate) fn skip_rest(mut self) -> io::Result<()> {
        self.stream.skip(u64::MAX)
    }

    /// Advances to cluster `to` of the file. Keeps the skipped tables and clusters that are needed later.
    fn advance_to(&mut self, to: u64) -> io::Result<()> {
        if to < self.next {
            return Err(unordered_error(to));
        }
        while self.next < to {
            let table = self.tables.range(self.next..to).next().map(|(cluster, _)| *cluster);
            let wanted = self.wanted.range(self.next..to).next().map(|(cluster, _)| *cluster);
            let Some(stop) = table.into_iter().chain(wanted).min() else {
                self.skip_to(to)?;
                break;
            };
            self.skip_to(stop)?;
            match self.tables.remove(&stop) {
                Some(number) => {
                    let table = self.take_whole_cluster()?;
                    self.note_table(number, &table)?;
                    self.early.insert(number, table);
                }
                None => self.cache_cluster()?,
            }
            if (self.kept.len() + self.early.len()) * self.header.cluster_bytes() > MAXIMUM_CACHED_BYTES {
                return Err(unordered_error(stop));
            }
        }
        Ok(())
    }

    fn skip_to(&mut self, to: u64) -> io::Result<()> {
        let clusters = (to - self.next) as u128 * self.header.cluster_bytes() as u128;
        self.next = to;
        self.stream.skip(u64::try_from(clusters).unwrap_or(u64::MAX))
    }

    /// Reads the next cluster. The last cluster of the file may be shorter than the others.
    fn take_cluster(&mut self) -> io::Result<Vec<u8>> {
        let mut cluster = vec![0; self.header.cluster_bytes()];
        let got = self.stream.read(&mut cluster)?;
        cluster.truncate(got);
        self.next += 1;
        Ok(cluster)
    }

    fn take_whole_cluster(&mut self) -> io::Result<Vec<u8>> {
        let table = self.take_cluster()?;
        if table.len() == self.header.cluster_bytes() { Ok(table) } else { Err(truncated_error()) }
    }

    fn cache_cluster(&mut self) -> io::Result<()> {
        let number = self.next;
        let cluster = self.take_cluster()?;
        self.kept.insert(number, cluster);
        if self.wanted.get(&number).is_some_and(|want| want.is_packed) {
            self.open.push_back(number);
            if self.open.len() > OPEN
                && let Some(closed) = self.open.pop_front()
                && !self.wanted.contains_key(&closed)
            {
                self.kept.remove(&closed);
            }
        }
        Ok(())
    }

    /// Marks the clusters to which an L2 table refers as needed. Fails if one of these clusters was already read from
    /// the stream and not kept.
    fn note_table(&mut self, number: usize, table: &[u8]) -> io::Result<()> {
        let first = number as u64 * self.header.clusters_per_table();
        let clusters = self.header.size_bytes.div_ceil(self.header.cluster_bytes() as u64);
        for (guest, entry) in (first..clusters).zip(table_entries(table)) {
            match self.header.parse_entry(entry)? {
                ClusterLocation::Zeros => {}
                ClusterLocation::At(at) => self.record_cluster_use(self.header.cluster_at(at), guest, false)?,
                ClusterLocation::Packed { at, bytes } => {
                    let end = self.header.cluster_at(at + bytes as u64 - 1);
                    for cluster in self.header.cluster_at(at)..=end {
                        self.record_cluster_use(cluster, guest, true)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn record_cluster_use(&mut self, cluster: u64, guest: u64, is_packed: bool) -> io::Result<()> {
        let has_gone = cluster < self.next && !self.kept.contains_key(&cluster);
        if has_gone || self.tables.contains_key(&cluster) || self.wanted.len() >= MAXIMUM_MISSING_CLUSTERS {
            return Err(unordered_error(cluster));
        }
        let want = self.wanted.entry(cluster).or_insert(ClusterUse { last: guest, is_packed });
        (want.last, want.is_packed) = (want.last.max(guest), want.is_packed || is_packed);
        Ok(())
    }

    /// Releases a cluster of the file that was used for cluster `guest` of the disk, if no later cluster of the disk
    /// needs it.
    fn release_cluster(&mut self, cluster: u64, guest: u64) {
        if self.wanted.get(&cluster).is_none_or(|want| want.last <= guest) {
            self.wanted.remove(&cluster);
            if !self.open.contains(&cluster) {
                self.kept.remove(&cluster);
            }
        }
    }

    fn load_cluster(&mut self, cluster: u64) -> io::Result<()> {
        if self.kept.contains_key(&cluster) {
            return Ok(());
        }
        self.advance_to(cluster)?;
        self.cache_cluster()
    }
}

impl<S: SequentialFile> ClusterSource for StreamClusters<S> {
    fn header(&self) -> &Qcow2Header {
        &self.header
    }

    fn read_l1_table(&mut self) -> io::Result<Vec<u64>> {
        let count = self.header.tables;
        if count > 0 {
            self.advance_to(self.header.cluster_at(self.header.tables_at))?;
        }
        let mut bytes = Vec::new();
        while bytes.len() < 8 * count {
            bytes.extend(self.take_whole_cluster()?);
        }
        let all: Vec<u64> = table_entries(&bytes).take(count).collect();
        for (number, entry) in all.iter().enumerate() {
            let Some(at) = self.header.table_offset(*entry)? else { continue };
            let cluster = self.header.cluster_at(at);
            if cluster < self.next {
                return Err(unordered_error(cluster));
            }
            if self.tables.insert(cluster, number).is_some() {
                return Err(invalid_image("the qcow2 is damaged: two of its tables are at the same offset"));
            }
        }
        Ok(all)
    }

    fn read_l2_table(&mut self, number: usize, at: u64) -> io::Result<Vec<u8>> {
        if let Some(table) = self.early.remove(&number) {
            return Ok(table);
        }
        let cluster = self.header.cluster_at(at);
        self.advance_to(cluster)?;
        self.tables.remove(&cluster);
        let table = self.take_whole_cluster()?;
        self.note_table(number, &table)?;
        Ok(table)
    }

    fn copy_cluster(&mut self, at: u64, bytes: usize, guest: u64, sink: &mut impl DiskSink) -> io::Result<()> {
        let cluster = self.header.cluster_at(at);
        let is_last = self.wanted.get(&cluster).is_none_or(|want| want.last <= guest && !want.is_packed);
        if self.kept.contains_key(&cluster) || !is_last {
            self.load_cluster(cluster)?;
            let kept = self.kept.get(&cluster).and_then(|kept| kept.get(..bytes)).ok_or_else(truncated_error)?;
            sink.write_bytes(kept)?;
        } else {
            // The usual case: the cluster is the next one and is not needed again.
            self.advance_to(cluster)?;
            let wanted = if sink.is_dry() { 0 } else { bytes };
            let mut left = wanted;
            while left > 0 {
                let room = sink.next_buffer()?;
                let now = room.len().min(left);
                if self.stream.read(&mut room[..now])? < now {
                    return Err(truncated_error());
                }
                sink.advance(now)?;
                left -= now;
            }
            self.stream.skip((self.header.cluster_bytes() - wanted) as u64)?;
            self.next += 1;
        }
        self.release_cluster(cluster, guest);
        Ok(())
    }

    fn read_compressed(&mut self, at: u64, bytes: usize, guest: u64) -> io::Result<Vec<u8>> {
        let (size, end) = (self.header.cluster_bytes() as u64, at + bytes as u64);
        let mut packed = Vec::with_capacity(bytes);
        for cluster in self.header.cluster_at(at)..=self.header.cluster_at(end - 1) {
            self.load_cluster(cluster)?;
            let kept = self.kept.get(&cluster).map(Vec::as_slice).unwrap_or_default();
            let begin = at.saturating_sub(cluster * size) as usize;
            let end = (end - cluster * size).min(kept.len() as u64) as usize;
            packed.extend_from_slice(kept.get(begin..end).unwrap_or_default());
        }
        for cluster in self.header.cluster_at(at)..=self.header.cluster_at(end - 1) {
            self.release_cluster(cluster, guest);
        }
        Ok(packed)
    }
}

fn unordered_error(cluster: u64) -> io::Error {
    invalid_image(format!(
        "the qcow2 cannot be converted while it is streamed, because its clusters are not in disk order (cluster \
         {cluster} of the file); convert it to a raw image with `drophammer image pack`"
    ))
}
