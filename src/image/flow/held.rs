//! A stream that is proven before anything is made of it: it is fetched whole into a file without a name, on the target's own
//! filesystem, and handed on from there once its digest is right. For what would replace somebody's files, or those of a
//! layer that is proven already.

use super::arriving::Digested;
use super::digest::Digest;
use super::reader::Reader;
use super::ring::{Pool, Sender};
use super::room::too_little_for;
use super::stages::Clock;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::thread;

/// Where a stream waits, and how long it is, as far as that is known.
pub struct Hold {
    pub file: File,
    pub size_bytes: Option<u64>,
}

/// Holds the stream back, and sends it on when both agree, in buffers of `pool`. What is given in place of the digest is right.
pub fn hold(
    hold: Hold,
    compressed: Reader,
    digest: Digested,
    promised: Digest,
    pool: Pool,
    sender: Sender,
) -> Digested {
    let clock = compressed.clock();
    Digested(thread::spawn(move || match prove(&hold, compressed, digest, &promised) {
        Ok(()) => {
            hand_on(&hold.file, &clock, &pool, sender);
            Ok(promised)
        }
        Err(error) => {
            sender.fail(io::Error::new(error.kind(), error.to_string()));
            Err(error)
        }
    }))
}

fn prove(hold: &Hold, mut compressed: Reader, digest: Digested, promised: &Digest) -> io::Result<()> {
    let mut file = &hold.file;
    if let Some(bytes) = hold.size_bytes
        && let Some(free) = too_little_for(file, bytes)?
    {
        let text = format!("{bytes} bytes wait in the target until their digest is right, and it has room for {free}");
        return Err(io::Error::new(io::ErrorKind::StorageFull, text));
    }
    while let Some(chunk) = compressed.take_chunk(usize::MAX)? {
        let unwritten = |error: io::Error| io::Error::new(error.kind(), format!("hold it until it is proven: {error}"));
        file.write_all(&chunk).map_err(unwritten)?;
    }
    let found = digest.join()?;
    if found != *promised {
        let text = format!("{promised} was expected, {found} came; nothing of it was unpacked");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    file.rewind()
}

fn hand_on(mut file: &File, clock: &Clock, pool: &Pool, sender: Sender) {
    loop {
        let mut filling = pool.take(clock);
        let got = match file.read(&mut filling) {
            Ok(0) => return sender.end(),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return sender.fail(error),
        };
        // Nobody decodes any more: why is said there.
        if sender.send(filling.filled(got), clock).is_err() {
            return;
        }
    }
}
