//! The process that takes an image apart: it has the image's bytes and a socket, and no power over anything else.
//!
//! It is this program once more, which is called as [`WORKER`](crate::command::powerless::WORKER). The agent starts one for each stream.

use super::flow::{Inside, Plain, pass_on};
use super::{qcow2, raw, tree};
use crate::command::nobody;
use crate::command::power::{self, GivenUp};
use std::io;
use std::os::fd::AsFd;
use std::process;

/// Memory of its own. The largest windows of zstd and xz have 128 MiB, and there is one for each stream of them.
const DATA_BYTES: u64 = 1 << 30;

/// Decodes what comes through standard input, which is a socket of the agent.
///
/// # Errors
/// Nobody is there, or says something else.
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

/// The agent has gone. A thread that waits for another one would wait for ever.
fn alone() {
    process::exit(1);
}

#[cfg(test)]
mod tests;
