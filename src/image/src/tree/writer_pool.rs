//! Threads that write the content of files and set their attributes. The unpacking thread creates the files in archive
//! order. After that, files can be written in any order.
//!
//! The memory is bounded by the buffer pool to which the chunks belong, and the number of open files is bounded by the
//! length of the queues.

use super::attributes::set_on_file;
use super::tar_member::MemberAttributes;
use crate::pipeline::{BufferChunk, StageClock, StageClocks};
use common::sync::lock_mutex;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError, TrySendError};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::{io, mem};

const MAXIMUM_WRITERS: usize = 4;

// Maximum number of files in a batch of jobs for a writer. Jobs are sent in batches, because waking a thread costs as
// much as writing a small file.
const BATCH_FILES: usize = 32;
const BATCH_JOBS: usize = 256;
const BATCH_BYTES: usize = 256 * 1024;

/// Maximum number of open files in all batches together: the batch being filled, queued batches, and batches being
/// written.
const OPEN_FILES: usize = 512;

/// Cost of creating and finishing a file, expressed as the number of bytes that can be written in the same time.
const COST_OF_A_FILE: u64 = 16 * 1024;

/// Open file, or open directory whose attributes will be set. It is closed when the last job that refers to it is done.
pub(crate) struct OpenedFile {
    pub file: File,
    /// Path below the root, for error messages.
    pub path: PathBuf,
}

enum WriteJob {
    Write {
        to: Arc<OpenedFile>,
        offset: u64,
        bytes: BufferChunk,
    },
    Finish {
        file: Arc<OpenedFile>,
        attributes: MemberAttributes,
        length: Option<u64>,
    },
    /// Sends an acknowledgement when all earlier jobs of this writer are done.
    Acknowledge(mpsc::Sender<()>),
}

struct JobBatch {
    jobs: Vec<WriteJob>,
    cost: u64,
}

struct WriterThread {
    queue: SyncSender<JobBatch>,
    /// Cost of the batches that were sent to this writer, and are not done yet.
    load: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

/// First error of any writer or of the unpacking thread.
#[derive(Clone, Default)]
struct FirstError(Arc<Mutex<Option<io::Error>>>);

impl FirstError {
    fn set_if_empty(&self, error: io::Error) {
        lock_mutex(&self.0).get_or_insert(error);
    }

    fn take_error(&self) -> Option<io::Error> {
        lock_mutex(&self.0).take()
    }

    fn is_there(&self) -> bool {
        lock_mutex(&self.0).is_some()
    }
}

/// Writer threads, as used by the unpacking thread.
pub(crate) struct WriterPool {
    writers: Vec<WriterThread>,
    /// Index of the writer to which the next batch is sent.
    next_writer: usize,
    batch: JobBatch,
    /// Number of finished files in the current batch.
    files: usize,
    /// Memory that the jobs in the current batch take, in bytes: content, paths and attributes.
    bytes: usize,
    /// Whether the current file is incomplete. All jobs of a file are sent to the same writer.
    within: bool,
    first: FirstError,
    /// Records how long the unpacking thread waits for the writers.
    clock: Arc<StageClock>,
}

impl WriterPool {
    /// Starts the threads. `clock` records the waits of the unpacking thread.
    pub fn start(clock: Arc<StageClock>, stages: &StageClocks) -> WriterPool {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let count = cores.clamp(2, MAXIMUM_WRITERS);
        let first = FirstError::default();
        let depth = OPEN_FILES / BATCH_FILES / count - 2;
        let start = |_| WriterThread::start(depth, stages.add_clock("write"), first.clone());
        let writers = (0..count).map(start).collect();
        WriterPool { writers, next_writer: 0, batch: JobBatch::new(), files: 0, bytes: 0, within: false, first, clock }
    }

    /// Queues bytes to be written at an offset of a file. [`WriterPool::finish_file`] must be called before another
    /// file is written.
    ///
    /// # Errors
    /// Returns an error if a writer has failed; [`WriterPool::join_writers`] returns the cause.
    pub(crate) fn write_chunk(&mut self, to: &Arc<OpenedFile>, offset: u64, bytes: BufferChunk) -> io::Result<()> {
        // The decoder may be waiting for the buffer that this batch holds, so a batch holds only one buffer.
        let held = self.batch.jobs.iter().rev().find_map(|job| match job {
            WriteJob::Write { bytes, .. } => Some(bytes),
            _ => None,
        });
        if held.is_some_and(|held| !held.is_same_buffer(&bytes)) {
            self.send_batch()?;
        }
        self.within = true;
        self.batch.cost += bytes.len() as u64;
        self.bytes += bytes.len();
        self.add_job(WriteJob::Write { to: to.clone(), offset, bytes })
    }

    /// Queues the end of a file: sets the attributes of the file. If a length is specified, first sets the length,
    /// because the file may end with a hole.
    ///
    /// # Errors
    /// Returns the same errors as [`WriterPool::write_chunk`].
    pub(crate) fn finish_file(
        &mut self,
        file: Arc<OpenedFile>,
        attributes: MemberAttributes,
        length: Option<u64>,
    ) -> io::Result<()> {
        self.within = false;
        self.batch.cost += COST_OF_A_FILE;
        self.files += 1;
        self.bytes += file.path.as_os_str().len() + attributes.memory_bytes();
        self.add_job(WriteJob::Finish { file, attributes, length })
    }

    fn add_job(&mut self, job: WriteJob) -> io::Result<()> {
        self.batch.jobs.push(job);
        let full = self.files >= BATCH_FILES || self.batch.jobs.len() >= BATCH_JOBS || self.bytes >= BATCH_BYTES;
        if full { self.send_batch() } else { Ok(()) }
    }

    fn send_batch(&mut self) -> io::Result<()> {
        if self.first.is_there() {
            return Err(stopped_error());
        }
        let batch = mem::replace(&mut self.batch, JobBatch::new());
        (self.files, self.bytes) = (0, 0);
        self.writers[self.next_writer].send_to_writer(batch, &self.clock)?;
        if !self.within {
            let loads = self.writers.iter().map(|writer| writer.load.load(Ordering::Relaxed));
            self.next_writer = loads.enumerate().min_by_key(|(_, load)| *load).map_or(0, |(number, _)| number);
        }
        Ok(())
    }

    /// Waits until all jobs queued so far are done.
    ///
    /// # Errors
    /// Returns the same errors as [`WriterPool::write_chunk`].
    pub(crate) fn wait_written(&mut self) -> io::Result<()> {
        self.send_batch()?;
        let (tell, told) = mpsc::channel();
        for writer in &self.writers {
            writer
                .send_to_writer(JobBatch { jobs: vec![WriteJob::Acknowledge(tell.clone())], cost: 0 }, &self.clock)?;
        }
        drop(tell);
        // Counting ends when each writer has dropped its sender: after it has acknowledged, or because it has ended
        // without an acknowledgement.
        let answers = self.clock.time_wait(|| told.iter().count());
        if answers == self.writers.len() { Ok(()) } else { Err(stopped_error()) }
    }

    /// Sends the last batch and waits for the threads to end. `parsed` is the result of the unpacking thread.
    ///
    /// # Errors
    /// Returns the first error of any writer or of the unpacking thread.
    pub(crate) fn join_writers(mut self, parsed: io::Result<()>) -> io::Result<()> {
        let parsed = parsed.and_then(|()| self.send_batch());
        if let Err(error) = parsed {
            // If a writer has already recorded an error, that error is preserved, because the error of the unpacking
            // thread is only a consequence of it.
            self.first.set_if_empty(error);
        }
        let WriterPool { writers, first, clock, .. } = self;
        let threads: Vec<_> = writers.into_iter().map(|writer| writer.thread).collect();
        for thread in threads {
            // The release build aborts on a panic, so this error occurs only in development and tests.
            if clock.time_wait(|| thread.join()).is_err() {
                first.set_if_empty(io::Error::other("a writer thread panicked; see the console for its message"));
            }
        }
        first.take_error().map_or(Ok(()), Err)
    }
}

impl JobBatch {
    fn new() -> JobBatch {
        JobBatch { jobs: Vec::with_capacity(2 * BATCH_FILES), cost: 0 }
    }
}

impl WriterThread {
    fn start(depth: usize, clock: Arc<StageClock>, first: FirstError) -> WriterThread {
        let (queue, batches) = mpsc::sync_channel(depth);
        let load = Arc::new(AtomicU64::new(0));
        let done = load.clone();
        let thread = thread::spawn(move || run_writer(&batches, &done, &clock, &first));
        WriterThread { queue, load, thread }
    }

    fn send_to_writer(&self, batch: JobBatch, clock: &StageClock) -> io::Result<()> {
        self.load.fetch_add(batch.cost, Ordering::Relaxed);
        match self.queue.try_send(batch) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(batch)) => clock.time_wait(|| self.queue.send(batch)).map_err(|_| stopped_error()),
            Err(TrySendError::Disconnected(_)) => Err(stopped_error()),
        }
    }
}

/// Runs a writer. After an error, the writer ends and discards queued batches; the unpacking thread detects this when
/// it sends the next batch.
fn run_writer(batches: &Receiver<JobBatch>, load: &AtomicU64, clock: &StageClock, first: &FirstError) {
    loop {
        let batch = match batches.try_recv() {
            Err(TryRecvError::Empty) => clock.time_wait(|| batches.recv()).ok(),
            other => other.ok(),
        };
        let Some(JobBatch { jobs, cost }) = batch else { return };
        for job in jobs {
            if let Err(error) = job.run_job() {
                return first.set_if_empty(error);
            }
        }
        load.fetch_sub(cost, Ordering::Relaxed);
    }
}

impl WriteJob {
    fn run_job(self) -> io::Result<()> {
        match self {
            WriteJob::Write { to, offset, bytes } => {
                to.file.write_all_at(&bytes, offset).map_err(|error| with_path(&to.path, &write_error(&error)))
            }
            WriteJob::Finish { file, attributes, length } => {
                let sized = length.map_or(Ok(()), |length| file.file.set_len(length));
                let finished = sized.map_err(|error| write_error(&error));
                finished
                    .and_then(|()| set_on_file(&file.file, &attributes))
                    .map_err(|error| with_path(&file.path, &error))
            }
            // An error is ignored, because the thread that waits for the acknowledgement may have ended.
            WriteJob::Acknowledge(tell) => {
                let _ = tell.send(());
                Ok(())
            }
        }
    }
}

/// Adds the path to an error.
pub(crate) fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn write_error(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("write: {error}"))
}

/// Returns the error for a writer that has ended. This error is never reported, because the writer has already recorded
/// its own error.
fn stopped_error() -> io::Error {
    io::Error::other("a writer has stopped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_count_towards_the_batch_size() {
        let xattrs = |count: usize, value: usize| vec![("user.a".into(), vec![0; value]); count];
        let long = PathBuf::from("x".repeat(BATCH_BYTES / 3 + 1));
        for (path, xattrs, files) in [
            (PathBuf::new(), xattrs(1, BATCH_BYTES / 3 + 1), 3),
            (PathBuf::new(), xattrs(1000, 0), 4),
            (long, Vec::new(), 3),
            (PathBuf::new(), Vec::new(), BATCH_FILES),
        ] {
            let stages = StageClocks::start();
            let mut writers = WriterPool::start(stages.add_clock("untar"), &stages);
            for number in 1..=files {
                let made = OpenedFile { file: tempfile::tempfile().unwrap(), path: path.clone() };
                let attributes =
                    MemberAttributes { mode: 0o600, uid: 0, gid: 0, mtime: (0, 0), xattrs: xattrs.clone() };
                writers.finish_file(Arc::new(made), attributes, None).unwrap();
                assert_eq!(writers.files, number % files, "{} {}", path.as_os_str().len(), xattrs.len());
            }
            // Not every filesystem supports these xattrs.
            let _ = writers.join_writers(Ok(()));
        }
    }
}
