//! Write timeout of connections: a connection is closed if its peer does not read data for some time. Otherwise, a
//! client that never reads could keep an image file open forever. An agent whose disks stall for longer than the
//! timeout reconnects, and resumes the download.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

/// Duration after which a connection is closed if the peer has not accepted a single byte.
pub const STALLED_PEER_TIMEOUT: Duration = Duration::from_secs(60);

pub struct WriteTimeoutStream {
    stream: TcpStream,
    stalled: Duration,
    /// Timer that runs while the peer does not accept data.
    end: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeoutStream {
    pub fn new(stream: TcpStream, stalled: Duration) -> WriteTimeoutStream {
        WriteTimeoutStream { stream, stalled, end: None }
    }

    fn check_timeout<T>(&mut self, context: &mut Context, write: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if write.is_ready() {
            self.end = None;
            return write;
        }
        let after = self.stalled;
        let end = self.end.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + after)));
        ready!(end.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for WriteTimeoutStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context, to: &mut ReadBuf) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl AsyncWrite for WriteTimeoutStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_timeout(context, write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        bytes: &[io::IoSlice],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.check_timeout(context, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
