//! The clusters of a qcow2 that comes as a stream. `qemu-img convert` lays them down in the order of the disk, each table before what it is
//! about; compressed ones fill up an earlier cluster while others follow. So little of what goes by is needed once more, and that is
//! kept. An image that was written to by a machine has no order, and is refused.

use super::convert::{Clusters, Sink};
use super::header::{Entry, HEADER_BYTES, Header, numbers};
use super::wrong;
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// Of clusters that have gone by.
const MOST_KEPT_BYTES: usize = 32 << 20;

/// Clusters that are known to be needed, in all tables that were read ahead.
const MOST_WANTED: usize = 1 << 20;

/// Compressed clusters that later ones may still be packed into: qemu-img fills one at a time, and one of them may lie in two.
const OPEN: usize = 2;

/// A file that comes from its beginning to its end.
pub trait Stream {
    /// Fewer bytes only at the end.
    ///
    /// # Errors
    /// Its own.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// # Errors
    /// Its own.
    fn skip(&mut self, bytes: u64) -> io::Result<()>;
}

pub struct Arriving<S> {
    stream: S,
    header: Header,
    /// Number of the cluster that comes next.
    next: u64,
    /// Tables that have not come yet: the cluster, and which table it is.
    tables: BTreeMap<u64, usize>,
    /// Tables that came before their time.
    early: BTreeMap<usize, Vec<u8>>,
    wanted: BTreeMap<u64, Want>,
    kept: BTreeMap<u64, Vec<u8>>,
    open: VecDeque<u64>,
}

/// What is known of a cluster of the file.
#[derive(Debug, Clone, Copy)]
struct Want {
    /// The last cluster of the disk that is in it.
    last: u64,
    is_packed: bool,
}

impl<S: Stream> Arriving<S> {
    /// # Errors
    /// The stream's own; it is no qcow2 that can be read.
    pub fn open(mut stream: S) -> io::Result<Arriving<S>> {
        let mut head = [0; HEADER_BYTES];
        let got = stream.read(&mut head)?;
        let header = Header::parse(&head[..got])?;
        stream.skip((header.cluster_bytes() - HEADER_BYTES) as u64)?;
        let (tables, early, wanted, kept) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Arriving { stream, header, next: 1, tables, early, wanted, kept, open: VecDeque::new() })
    }

    /// To its end.
    ///
    /// # Errors
    /// The stream's own.
    pub fn skip_rest(mut self) -> io::Result<()> {
        self.stream.skip(u64::MAX)
    }

    /// The clusters up to this one go by.
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

    /// The next cluster, less what is behind the file's end.
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

    /// What a table is about will be needed. What of it has gone by already is not to be had.
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

    /// It was used for this cluster of the disk.
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
                return Err(wrong("the qcow2 is damaged: two of its tables are one"));
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
            // Nearly always: it goes by, and is the next one.
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
        "the clusters of the qcow2 do not come in the order of its disk (cluster {cluster} of the file), so that it cannot be \
         written as it comes: make a raw image of it with `drophammer image pack`"
    ))
}

fn cut() -> io::Error {
    wrong("the qcow2 ends before its last cluster")
}
