//! The clusters of a qcow2 stream. `qemu-img convert` writes them in disk order, each table before its clusters;
//! compressed clusters fill up the rest of an earlier one while others follow. So few of the clusters that have passed
//! are needed again, and those are kept. An image that was written to by a running machine has no such order, and is
//! rejected.

use super::convert::{Clusters, Sink};
use super::header::{Entry, HEADER_BYTES, Header, numbers};
use super::wrong;
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// Maximum size of clusters kept for later use, in bytes.
const MOST_KEPT_BYTES: usize = 32 << 20;

/// Maximum number of clusters known to be needed, over all tables read ahead.
const MOST_WANTED: usize = 1 << 20;

/// Number of compressed clusters that later data may still be packed into: qemu-img fills one at a time, and data may
/// span two.
const OPEN: usize = 2;

/// File read from its beginning to its end.
pub trait Stream {
    /// Reads bytes; fewer only at the end.
    ///
    /// # Errors
    /// Returns the error of the stream.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Skips bytes.
    ///
    /// # Errors
    /// Returns the error of the stream.
    fn skip(&mut self, bytes: u64) -> io::Result<()>;
}

pub struct Arriving<S> {
    stream: S,
    header: Header,
    /// Number of the next cluster.
    next: u64,
    /// Tables that have not passed yet: the cluster, and the number of the table.
    tables: BTreeMap<u64, usize>,
    /// Tables that have passed before they are needed.
    early: BTreeMap<usize, Vec<u8>>,
    wanted: BTreeMap<u64, Want>,
    kept: BTreeMap<u64, Vec<u8>>,
    open: VecDeque<u64>,
}

/// Further use of a cluster of the file.
#[derive(Debug, Clone, Copy)]
struct Want {
    /// The last cluster of the disk that is in it.
    last: u64,
    is_packed: bool,
}

impl<S: Stream> Arriving<S> {
    /// Reads the header.
    ///
    /// # Errors
    /// Returns the error of the stream, or an error if it is not a supported qcow2.
    pub fn open(mut stream: S) -> io::Result<Arriving<S>> {
        let mut head = [0; HEADER_BYTES];
        let got = stream.read(&mut head)?;
        let header = Header::parse(&head[..got])?;
        stream.skip((header.cluster_bytes() - HEADER_BYTES) as u64)?;
        let (tables, early, wanted, kept) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Arriving { stream, header, next: 1, tables, early, wanted, kept, open: VecDeque::new() })
    }

    /// Skips the rest of the stream.
    ///
    /// # Errors
    /// Returns the error of the stream.
    pub fn skip_rest(mut self) -> io::Result<()> {
        self.stream.skip(u64::MAX)
    }

    /// Advances to this cluster, keeping tables and clusters that are needed later.
    fn advance(&mut self, to: u64) -> io::Result<()> {
        if to < self.next {
            return Err(no_order(to));
        }
        while self.next < to {
            let table = self.tables.range(self.next..to).next().map(|(cluster, _)| *cluster);
            let wanted = self.wanted.range(self.next..to).next().map(|(cluster, _)| *cluster);
            let Some(stop) = table.into_iter().chain(wanted).min() else {
                self.skip(to)?;
                break;
            };
            self.skip(stop)?;
            match self.tables.remove(&stop) {
                Some(number) => {
                    let table = self.whole()?;
                    self.learn(number, &table)?;
                    self.early.insert(number, table);
                }
                None => self.keep()?,
            }
            if (self.kept.len() + self.early.len()) * self.header.cluster_bytes() > MOST_KEPT_BYTES {
                return Err(no_order(stop));
            }
        }
        Ok(())
    }

    fn skip(&mut self, to: u64) -> io::Result<()> {
        let clusters = (to - self.next) as u128 * self.header.cluster_bytes() as u128;
        self.next = to;
        self.stream.skip(u64::try_from(clusters).unwrap_or(u64::MAX))
    }

    /// Takes the next cluster; fewer bytes at the end of the file.
    fn take(&mut self) -> io::Result<Vec<u8>> {
        let mut cluster = vec![0; self.header.cluster_bytes()];
        let got = self.stream.read(&mut cluster)?;
        cluster.truncate(got);
        self.next += 1;
        Ok(cluster)
    }

    fn whole(&mut self) -> io::Result<Vec<u8>> {
        let table = self.take()?;
        if table.len() == self.header.cluster_bytes() { Ok(table) } else { Err(cut()) }
    }

    fn keep(&mut self) -> io::Result<()> {
        let number = self.next;
        let cluster = self.take()?;
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

    /// Notes the clusters that a table needs. Fails if one of them has passed already.
    fn learn(&mut self, number: usize, table: &[u8]) -> io::Result<()> {
        let first = number as u64 * self.header.entries();
        let clusters = self.header.size_bytes.div_ceil(self.header.cluster_bytes() as u64);
        for (guest, entry) in (first..clusters).zip(numbers(table)) {
            match self.header.entry(entry)? {
                Entry::Zeros => {}
                Entry::At(at) => self.want(self.header.cluster(at), guest, false)?,
                Entry::Packed { at, bytes } => {
                    let end = self.header.cluster(at + bytes as u64 - 1);
                    for cluster in self.header.cluster(at)..=end {
                        self.want(cluster, guest, true)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn want(&mut self, cluster: u64, guest: u64, is_packed: bool) -> io::Result<()> {
        let has_gone = cluster < self.next && !self.kept.contains_key(&cluster);
        if has_gone || self.tables.contains_key(&cluster) || self.wanted.len() >= MOST_WANTED {
            return Err(no_order(cluster));
        }
        let want = self.wanted.entry(cluster).or_insert(Want { last: guest, is_packed });
        (want.last, want.is_packed) = (want.last.max(guest), want.is_packed || is_packed);
        Ok(())
    }

    /// Releases a cluster after its use for this cluster of the disk.
    fn release(&mut self, cluster: u64, guest: u64) {
        if self.wanted.get(&cluster).is_none_or(|want| want.last <= guest) {
            self.wanted.remove(&cluster);
            if !self.open.contains(&cluster) {
                self.kept.remove(&cluster);
            }
        }
    }

    fn load(&mut self, cluster: u64) -> io::Result<()> {
        if self.kept.contains_key(&cluster) {
            return Ok(());
        }
        self.advance(cluster)?;
        self.keep()
    }
}

impl<S: Stream> Clusters for Arriving<S> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn tables(&mut self) -> io::Result<Vec<u64>> {
        let count = self.header.tables;
        if count > 0 {
            self.advance(self.header.cluster(self.header.tables_at))?;
        }
        let mut bytes = Vec::new();
        while bytes.len() < 8 * count {
            bytes.extend(self.whole()?);
        }
        let all: Vec<u64> = numbers(&bytes).take(count).collect();
        for (number, entry) in all.iter().enumerate() {
            let Some(at) = self.header.table(*entry)? else { continue };
            let cluster = self.header.cluster(at);
            if cluster < self.next {
                return Err(no_order(cluster));
            }
            if self.tables.insert(cluster, number).is_some() {
                return Err(wrong("the qcow2 is damaged: two of its tables are at the same offset"));
            }
        }
        Ok(all)
    }

    fn table(&mut self, number: usize, at: u64) -> io::Result<Vec<u8>> {
        if let Some(table) = self.early.remove(&number) {
            return Ok(table);
        }
        let cluster = self.header.cluster(at);
        self.advance(cluster)?;
        self.tables.remove(&cluster);
        let table = self.whole()?;
        self.learn(number, &table)?;
        Ok(table)
    }

    fn copy(&mut self, at: u64, bytes: usize, guest: u64, sink: &mut impl Sink) -> io::Result<()> {
        let cluster = self.header.cluster(at);
        let is_last = self.wanted.get(&cluster).is_none_or(|want| want.last <= guest && !want.is_packed);
        if self.kept.contains_key(&cluster) || !is_last {
            self.load(cluster)?;
            let kept = self.kept.get(&cluster).and_then(|kept| kept.get(..bytes)).ok_or_else(cut)?;
            sink.put(kept)?;
        } else {
            // The usual case: the cluster is the next one and is not needed again.
            self.advance(cluster)?;
            let wanted = if sink.is_dry() { 0 } else { bytes };
            let mut left = wanted;
            while left > 0 {
                let room = sink.room()?;
                let now = room.len().min(left);
                if self.stream.read(&mut room[..now])? < now {
                    return Err(cut());
                }
                sink.filled(now)?;
                left -= now;
            }
            self.stream.skip((self.header.cluster_bytes() - wanted) as u64)?;
            self.next += 1;
        }
        self.release(cluster, guest);
        Ok(())
    }

    fn packed(&mut self, at: u64, bytes: usize, guest: u64) -> io::Result<Vec<u8>> {
        let (size, end) = (self.header.cluster_bytes() as u64, at + bytes as u64);
        let mut packed = Vec::with_capacity(bytes);
        for cluster in self.header.cluster(at)..=self.header.cluster(end - 1) {
            self.load(cluster)?;
            let kept = self.kept.get(&cluster).map(Vec::as_slice).unwrap_or_default();
            let begin = at.saturating_sub(cluster * size) as usize;
            let end = (end - cluster * size).min(kept.len() as u64) as usize;
            packed.extend_from_slice(kept.get(begin..end).unwrap_or_default());
        }
        for cluster in self.header.cluster(at)..=self.header.cluster(end - 1) {
            self.release(cluster, guest);
        }
        Ok(packed)
    }
}

fn no_order(cluster: u64) -> io::Error {
    wrong(format!(
        "the clusters of the qcow2 are not in disk order (cluster {cluster} of the file), so it cannot be converted \
         as a stream; convert it to a raw image with `drophammer image pack`"
    ))
}

fn cut() -> io::Error {
    wrong("the qcow2 ends before its last cluster")
}
