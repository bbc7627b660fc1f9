//! Writes a stream to a disk with direct I/O and several writes in flight. Runs of zeros are written with a zeroing
//! command of the disk.

use super::disk_image_detection::{self, ImageRequirements};
use super::target::RawTarget;
use crate::pipeline::PipelineReader;
use common::sync::lock_mutex;
use linux::storage::aligned_buffer::AlignedBuffer;
use std::ops::Range;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::{io, thread};

/// Length of the beginning that is held back, in bytes. The beginning contains everything that a disk needs to boot:
/// boot sector, GPT with its entries, and GRUB's core image in the gap before the first partition.
pub const HEAD_BYTES: usize = 1 << 20;

/// Size of one write, in bytes: large enough to keep the disk busy, and small enough that a slow write does not delay
/// all others.
pub(super) const BUFFER_BYTES: usize = 1 << 20;
/// Number of buffers, 8 MiB in total.
const BUFFERS: usize = 8;
/// Number of writer threads, which is also the number of writes in flight.
const WRITERS: usize = 4;

/// Granularity of runs of zeros, in bytes. Shorter runs are written as data, because a zeroing command costs more than
/// writing a few zeros.
const BLOCK_BYTES: usize = 128 * 1024;

/// Maximum length of one zeroing ioctl, in bytes. The length is limited because an ioctl cannot be interrupted, and
/// because several threads can issue short ioctls in parallel.
pub(super) const ZEROS_BYTES: u64 = 256 << 20;

/// Image that was written except for its first MiB and the disk's last sector, which are held back.
pub struct HeldBackImage<'t> {
    target: &'t RawTarget,
    head: AlignedBuffer,
    head_bytes: usize,
    /// Data for the last sector of the disk; if `None`, that sector remains zero.
    tail: Option<AlignedBuffer>,
    /// Length of the whole image, in bytes.
    pub bytes: u64,
}

/// Writes a stream to the disk, except for the parts that are held back. Zeros in the image are also written, so that
/// the range of the image does not contain any old content.
///
/// # Errors
/// Returns the error of the stream, or an error if the image is rejected or is longer than the disk, or if the disk
/// cannot be written.
pub fn write_image<'t>(
    mut stream: PipelineReader,
    target: &'t RawTarget,
    expected: &ImageRequirements,
) -> io::Result<HeldBackImage<'t>> {
    let mut head = AlignedBuffer::new(HEAD_BYTES);
    let head_bytes = fill_from_stream(&mut stream, &mut head)?;
    disk_image_detection::check_disk_image(&head[..head_bytes], &target.disk, expected)?;
    if head_bytes as u64 > target.disk.size_bytes {
        return Err(disk_image_detection::too_long_error(&target.disk, Some(head_bytes as u64)));
    }
    target.zero_range(0..target.disk.size_bytes.min(HEAD_BYTES as u64))?;
    target.zero_range(target.last_sector_range())?;
    target.sync()?;
    let rest = WrittenRest { end: head_bytes as u64, tail: None };
    let WrittenRest { end, tail } = if head_bytes < HEAD_BYTES { rest } else { write_rest(&mut stream, target)? };
    target.sync()?;
    Ok(HeldBackImage { target, head, head_bytes, tail, bytes: end })
}

impl HeldBackImage<'_> {
    /// Writes the parts that were held back, which makes the disk bootable. The caller has verified the digest.
    ///
    /// # Errors
    /// Returns an error if the disk cannot be written.
    pub(crate) fn release(mut self) -> io::Result<()> {
        self.target.zero_after_image(self.bytes)?;
        if let Some(tail) = &self.tail {
            self.target.write_at(self.target.last_sector_range().start, tail)?;
        }
        self.head[self.head_bytes..].fill(0);
        let length = self.target.round_to_sectors(self.head_bytes);
        self.target.write_at(0, &self.head[..length])?;
        self.target.sync()
    }
}

/// Fills the buffer from the stream. Returns the number of bytes, which is smaller than the buffer only at the end of
/// the stream.
fn fill_from_stream(stream: &mut PipelineReader, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        let Some(chunk) = stream.take_chunk(buffer.len() - filled)? else { break };
        buffer[filled..filled + chunk.len()].copy_from_slice(&chunk);
        filled += chunk.len();
    }
    Ok(filled)
}

/// Job of a writer thread.
enum WriterJob {
    /// Writes these ranges (`parts`) of a buffer. The buffer's first byte belongs at `offset` on the disk.
    Write {
        buffer: AlignedBuffer,
        offset: u64,
        parts: Vec<Range<usize>>,
    },
    Zero(Range<u64>),
}

/// Result of writing everything that follows the first MiB.
struct WrittenRest {
    /// Length of the image, in bytes.
    end: u64,
    /// Data for the disk's last sector; `None` if the data is zero, or the image ends before this sector.
    tail: Option<AlignedBuffer>,
}

fn write_rest(stream: &mut PipelineReader, target: &RawTarget) -> io::Result<WrittenRest> {
    let (jobs, todo) = mpsc::sync_channel(BUFFERS);
    let (empty, empties) = mpsc::channel();
    for _ in 0..BUFFERS {
        // Sending a buffer cannot fail, because the receiver `empties` still exists.
        let _ = empty.send(AlignedBuffer::new(BUFFER_BYTES));
    }
    let todo = Mutex::new(todo);
    let failed = Mutex::new(None);
    let cut = thread::scope(|scope| {
        for _ in 0..WRITERS {
            let empty = empty.clone();
            scope.spawn(|| {
                let empty = empty;
                while let Ok(job) = next_job(&todo) {
                    let done = run_job(job, target, &empty);
                    if let Err(error) = done {
                        lock_mutex(&failed).get_or_insert(error);
                    }
                }
            });
        }
        let is_failed = || lock_mutex(&failed).is_some();
        dispatch_jobs(stream, target, &mut WriterQueue { jobs, zeros: 0..0 }, &empties, &is_failed)
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => cut,
    }
}

fn next_job(todo: &Mutex<mpsc::Receiver<WriterJob>>) -> Result<WriterJob, mpsc::RecvError> {
    lock_mutex(todo).recv()
}

fn run_job(job: WriterJob, target: &RawTarget, empty: &mpsc::Sender<AlignedBuffer>) -> io::Result<()> {
    match job {
        WriterJob::Zero(range) => target.zero_range(range),
        WriterJob::Write { buffer, offset, parts } => {
            let written =
                parts.into_iter().try_for_each(|part| target.write_at(offset + part.start as u64, &buffer[part]));
            // An error is ignored: at the end of the stream, the receiver no longer exists, and does not need the
            // buffer.
            let _ = empty.send(buffer);
            written
        }
    }
}

/// Splits the stream into jobs for the writers. Waits for the writers are not recorded on the clock, because the
/// writers belong to the same stage.
fn dispatch_jobs(
    stream: &mut PipelineReader,
    target: &RawTarget,
    sending: &mut WriterQueue,
    empties: &mpsc::Receiver<AlignedBuffer>,
    is_failed: &dyn Fn() -> bool,
) -> io::Result<WrittenRest> {
    let mut offset = HEAD_BYTES as u64;
    let mut preserved = None;
    let mut tail = None;
    loop {
        let mut buffer = match preserved.take() {
            Some(buffer) => buffer,
            None => empties.recv().map_err(io::Error::other)?,
        };
        if is_failed() {
            return Ok(WrittenRest { end: offset, tail });
        }
        let filled = fill_buffer(stream, &mut buffer)?;
        let end = offset + filled.bytes as u64;
        if end > target.disk.size_bytes {
            return Err(disk_image_detection::too_long_error(&target.disk, None));
        }
        let last = target.last_sector_range().start;
        if last < end && filled.parts.last().is_some_and(|part| part.end == filled.bytes) {
            tail = Some(hold_back_sector(&mut buffer[(last - offset) as usize..], target));
        }
        for zeros in filled.zeros {
            sending.add_zeros(offset + zeros.start as u64..offset + target.round_to_sectors(zeros.end) as u64);
        }
        let is_last = filled.bytes < BUFFER_BYTES;
        match filled.parts.is_empty() {
            true => preserved = Some(buffer),
            false => {
                let parts =
                    filled.parts.into_iter().map(|part| part.start..target.round_to_sectors(part.end)).collect();
                sending.send(WriterJob::Write { buffer, offset, parts });
            }
        }
        if is_last {
            sending.flush();
            return Ok(WrittenRest { end, tail });
        }
        offset = end;
    }
}

/// Replaces the first sector of `from` by zeros, and returns the data that the sector contained.
fn hold_back_sector(from: &mut [u8], target: &RawTarget) -> AlignedBuffer {
    let mut sector = AlignedBuffer::new(target.disk.sector_bytes as usize);
    let length = sector.len();
    sector.copy_from_slice(&from[..length]);
    from[..length].fill(0);
    sector
}

/// Queue of jobs for the writers. Consecutive ranges of zeros are combined into one job.
struct WriterQueue {
    jobs: SyncSender<WriterJob>,
    zeros: Range<u64>,
}

impl WriterQueue {
    fn send(&self, job: WriterJob) {
        // The receiver exists as long as the writers, which end only when this queue is dropped.
        let _ = self.jobs.send(job);
    }

    fn add_zeros(&mut self, range: Range<u64>) {
        if self.zeros.end == range.start && range.end - self.zeros.start <= ZEROS_BYTES {
            self.zeros.end = range.end;
        } else {
            self.flush();
            self.zeros = range;
        }
    }

    fn flush(&mut self) {
        let zeros = std::mem::take(&mut self.zeros);
        if !zeros.is_empty() {
            self.send(WriterJob::Zero(zeros));
        }
    }
}

/// Content of a filled buffer.
#[derive(Debug, Default, PartialEq)]
struct FilledBuffer {
    /// Number of bytes in the buffer. If the buffer is not full, the stream has ended.
    bytes: usize,
    /// Ranges with data to write; no two are adjacent.
    parts: Vec<Range<usize>>,
    /// Ranges of zeros. In these ranges, the buffer may contain old data.
    zeros: Vec<Range<usize>>,
}

fn fill_buffer(stream: &mut PipelineReader, buffer: &mut [u8]) -> io::Result<FilledBuffer> {
    let mut filled = FilledBuffer::default();
    while filled.bytes < buffer.len() {
        let start = filled.bytes;
        let block = &mut buffer[start..start + BLOCK_BYTES];
        let (got, is_zero) = fill_block(stream, block)?;
        if got == 0 {
            break;
        }
        // The last sector of the image is written completely, padded with zeros.
        block[got..].fill(0);
        filled.bytes = start + got;
        let ranges = if is_zero { &mut filled.zeros } else { &mut filled.parts };
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = filled.bytes,
            _ => ranges.push(start..filled.bytes),
        }
        if got < BLOCK_BYTES {
            break;
        }
    }
    Ok(filled)
}

/// Fills a block from the stream. Returns the number of bytes, and whether all of them are zero. If a single chunk of
/// zeros covers the whole block, the chunk is not copied, and the block keeps its old data.
fn fill_block(stream: &mut PipelineReader, block: &mut [u8]) -> io::Result<(usize, bool)> {
    let Some(chunk) = stream.take_chunk(block.len())? else { return Ok((0, true)) };
    if chunk.len() == block.len() && is_zero(&chunk) {
        return Ok((block.len(), true));
    }
    let first = chunk.len();
    block[..first].copy_from_slice(&chunk);
    drop(chunk);
    let got = first + fill_from_stream(stream, &mut block[first..])?;
    Ok((got, is_zero(&block[..got])))
}

fn is_zero(bytes: &[u8]) -> bool {
    // The bytes are compared in arrays of 64: the compiler compares such arrays several words at a time, even if it
    // optimizes for size.
    let (arrays, rest) = bytes.as_chunks::<64>();
    arrays.iter().all(|array| *array == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests;
