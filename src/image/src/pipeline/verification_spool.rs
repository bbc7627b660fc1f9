//! Verifies a stream before it is unpacked: the stream is downloaded completely into an unnamed file on the target's
//! filesystem, and passed on only after its digest matches. Used for a stream that would replace existing files, or
//! files of an already verified layer.

use super::buffer_pipe::{BufferPool, PipeSender};
use super::digest::Digest;
use super::download_and_decode::DigestThread;
use super::free_space::insufficient_space;
use super::pipe_reader::PipelineReader;
use super::stage_clock::StageClock;
use common::error::{Error, Phase};
use common::error_code::ErrorCode;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::thread;

/// File in which a stream is held back, and the length of the stream in bytes, if known.
pub(crate) struct HoldFile {
    pub file: File,
    pub size_bytes: Option<u64>,
}

/// Starts a thread that holds a stream back until its digest matches `promised`, and then sends it to `sender` in
/// buffers of `pool`. The thread returns the verified digest.
pub(crate) fn hold_until_verified(
    hold: HoldFile,
    compressed: PipelineReader,
    digest: DigestThread,
    promised: Digest,
    pool: BufferPool,
    sender: PipeSender,
) -> DigestThread {
    let clock = compressed.clock();
    DigestThread(thread::spawn(move || match verify_digest(&hold, compressed, digest, &promised) {
        Ok(()) => {
            send_file(&hold.file, &clock, &pool, sender);
            Ok(promised)
        }
        Err(error) => {
            sender.fail(io::Error::new(error.kind(), error.to_string()));
            Err(error)
        }
    }))
}

fn verify_digest(
    hold: &HoldFile,
    mut compressed: PipelineReader,
    digest: DigestThread,
    promised: &Digest,
) -> io::Result<()> {
    let mut file = &hold.file;
    if let Some(bytes) = hold.size_bytes
        && let Some(free) = insufficient_space(file, bytes)?
    {
        let text = format!(
            "the target stores the {bytes} bytes of the image until their digest is verified, but has only {free} \
                            bytes free"
        );
        return Err(io::Error::new(io::ErrorKind::StorageFull, text));
    }
    while let Some(chunk) = compressed.take_chunk(usize::MAX)? {
        let unwritten =
            |error: io::Error| io::Error::new(error.kind(), format!("write the temporary file of the image: {error}"));
        file.write_all(&chunk).map_err(unwritten)?;
    }
    let found = digest.join()?;
    if found != *promised {
        let text = format!("digest mismatch: expected {promised}, got {found}; nothing was unpacked");
        let mismatch = Error::new(Phase::Image, text).with_code(ErrorCode::DigestMismatch);
        return Err(io::Error::new(io::ErrorKind::InvalidData, mismatch));
    }
    file.rewind()
}

fn send_file(mut file: &File, clock: &StageClock, pool: &BufferPool, sender: PipeSender) {
    loop {
        let mut filling = pool.take_buffer(clock);
        let got = match file.read(&mut filling) {
            Ok(0) => return sender.end(),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return sender.fail(error),
        };
        // If sending fails, the decoder has ended, and reports its error itself.
        if sender.send(filling.into_chunk(got), clock).is_err() {
            return;
        }
    }
}
