//! The pipeline of one image: from its source through digest and decoder to the consumer, in constant memory. Each
//! stage is a thread; the stages are connected by pipes (`buffer_pipe`). A stream that would replace files is held back
//! before the decoder until its digest is verified (`verification_spool`). The decoder and the tar reader run in a
//! sandboxed process (`worker_client` and `worker_main`).
//!
//! This module does not depend on any other module of `image`. `fetch` provides a [`StreamSource`]; `tree` and `raw`
//! read the output. This module does not access servers or disks.
//!
//! This module provides [`Download`], a stream that is being downloaded; [`PipelineReader`], which reads the
//! decompressed stream; and [`WorkerStart`], the worker's side of the download. It also provides [`StageClocks`], which
//! measure how long stages wait for each other, [`ProgressMeter`], which reports the progress, and [`Digest`].

mod buffer_pipe;
mod decode;
mod digest;
mod download_and_decode;
mod free_space;
mod peer_held_buffers;
mod pipe_reader;
mod progress;
mod shared_memory;
mod stage_clock;
mod verification_spool;
mod worker_client;
mod worker_main;
mod worker_protocol;

pub(crate) use buffer_pipe::{BufferChunk, BufferPool, WritableBuffer};
#[cfg(test)]
pub(crate) use buffer_pipe::{PipeSender, create_pipe};
#[cfg(test)]
pub(crate) use decode::decode;
pub use decode::{CompressionFormat, PayloadKind};
pub use digest::{Digest, DigestKind, DigestReader};
pub(crate) use download_and_decode::{Download, DownloadState, StreamSource};
pub(crate) use free_space::insufficient_space;
pub(crate) use pipe_reader::PipelineReader;
pub(crate) use progress::{ProgressMeter, report_progress};
pub(crate) use stage_clock::{LoadAverage, StageClock, StageClocks};
pub(crate) use verification_spool::HoldFile;
pub(crate) use worker_main::{WorkerOutput, WorkerStart, pass_through};
pub(crate) use worker_protocol::{PacketParser, add_text};

/// Number of buffers for the compressed stream, 16 MiB in total. They are filled while the disks are still being
/// partitioned, and later absorb short delays of the decoder.
const BUFFERS: usize = 16;
/// Size of a buffer for the compressed stream, in bytes. A few large buffers cost less than many small ones, because
/// passing a buffer wakes a thread in the worker and one in the agent.
const BUFFER_BYTES: usize = 1 << 20;

/// Number of buffers between the decoder and the last stage, 24 MiB in total.
const PLAIN_BUFFERS: usize = 12;
/// Size of a buffer between the decoder and the last stage, in bytes.
const PLAIN_BUFFER_BYTES: usize = 2 << 20;
