//! Sandboxed process that decodes an image and parses its content: it has the bytes of the image and a socket, and no
//! other privileges.
//!
//! It is this program, called with [`WORKER`](crate::command::powerless::WORKER). The agent starts one for each stream.

use super::flow::{Inside, Plain, pass_on};
use super::{qcow2, raw, tree};
use crate::command::nobody;
use crate::command::power::{self, GivenUp};
use std::io;
use std::os::fd::AsFd;
use std::process;

/// Limit on private memory, in bytes. The largest windows of zstd and xz have 128 MiB, and there is one for each of
/// their streams.
const DATA_BYTES: u64 = 1 << 30;

/// Decodes the image received over the socket on standard input.
///
/// # Errors
/// Returns an error if the agent is gone or sends an invalid packet.
pub fn run() -> io::Result<()> {
    nobody::close_others()?;
    let inside = Inside::open(io::stdin().as_fd().try_clone_to_owned()?)?;
    match power::give_up(DATA_BYTES) {
        Ok(GivenUp { landlock }) => work(inside, landlock),
        Err(error) => inside.fail(&error),
    }
    Ok(())
}

fn work(inside: Inside, landlock: bool) {
    let plain = inside.plain;
    inside.work(landlock, raw::require_tree, alone, |mut stream, out, answers, pool| match plain {
        Plain::AnyBytes => pass_on(stream, out),
        Plain::Qcow2 => qcow2::convert(stream, out, pool),
        Plain::Qcow2Head => qcow2::list(stream, out),
        Plain::Qcow2Tables => qcow2::check(stream),
        Plain::Tar => {
            let refused = raw::require_tree(stream.look_ahead(raw::KIND_BYTES)?).err();
            tree::announce(stream, refused, out, answers)
        }
    });
}

/// Exits when the agent is gone: a thread that waits for another one would wait forever.
fn alone() {
    process::exit(1);
}

#[cfg(test)]
mod tests;
