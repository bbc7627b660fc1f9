//! Sandboxed process that decodes an image and parses its content. It has access only to the bytes of the image and a
//! socket.
//!
//! The process runs this program with the argument [`WORKER`](linux::process::worker_process::WORKER). The agent starts
//! one worker for each stream.

use super::pipeline::{PayloadKind, WorkerStart, pass_through};
use super::{qcow2, raw, tree};
use linux::process::privilege_drop;
use linux::process::worker_sandbox::{self, SandboxSupport};
use std::os::fd::AsFd;
use std::{io, process};

/// Limit on the worker's private memory, in bytes. A zstd window or an xz dictionary takes at most 128 MiB, and a
/// stream needs only one of the two.
const DATA_BYTES: u64 = 1 << 30;

/// Runs the worker: decodes the image received over the socket on standard input.
///
/// # Errors
/// Returns an error if the agent is gone or sends an invalid packet.
pub fn run_image_worker() -> io::Result<()> {
    privilege_drop::close_inherited_files()?;
    let inside = WorkerStart::receive_start(io::stdin().as_fd().try_clone_to_owned()?)?;
    match worker_sandbox::drop_privileges(DATA_BYTES) {
        Ok(SandboxSupport { landlock }) => process_image(inside, landlock),
        Err(error) => inside.report_error(&error),
    }
    Ok(())
}

fn process_image(inside: WorkerStart, landlock: bool) {
    let plain = inside.plain;
    inside.run(landlock, raw::require_tree, exit_without_agent, |mut stream, out, answers, pool| match plain {
        PayloadKind::AnyBytes => pass_through(stream, out),
        PayloadKind::Qcow2 => qcow2::convert_stream(stream, out, pool),
        PayloadKind::Qcow2Head => qcow2::list_tables(stream, out),
        PayloadKind::Qcow2Tables => qcow2::check_tables(stream),
        PayloadKind::Tar => {
            let refused = raw::require_tree(stream.peek_bytes(raw::DETECTION_BYTES)?).err();
            tree::send_members(stream, refused, out, answers)
        }
    });
}

/// Exits the process when the agent is gone. Otherwise threads that wait for one another would never end.
fn exit_without_agent() {
    process::exit(1);
}
