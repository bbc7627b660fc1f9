//! Handling of request bodies that a handler does not read to the end, for example because the path is unknown or the
//! token is wrong. Without this module, hyper would close the connection while the client is still sending, and the
//! kernel would send a TCP reset. The reset can discard the response before the client has read it.

use axum::body::Body;
use futures_util::StreamExt;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Maximum number of bytes that are read and discarded. If more bytes remain, the connection is closed.
const DRAINED_BYTES: usize = 64 << 10;
/// Timeout for reading the rest of a body.
const DRAINED_WITHIN: Duration = Duration::from_secs(5);

/// Request body. When this value is dropped, the unread rest of the body is read and discarded, within limits.
pub struct DrainedBody(Option<Incoming>);

impl DrainedBody {
    pub fn new(body: Incoming) -> DrainedBody {
        DrainedBody(Some(body))
    }
}

impl hyper::body::Body for DrainedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.0 {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(hyper::body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(SizeHint::default, hyper::body::Body::size_hint)
    }
}

impl Drop for DrainedBody {
    fn drop(&mut self) {
        let Some(body) = self.0.take().filter(|body| !hyper::body::Body::is_end_stream(body)) else { return };
        // If there is no runtime, the server is shutting down, and the body is not read.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(DRAINED_WITHIN, discard(body)));
        }
    }
}

async fn discard(body: Incoming) {
    let mut chunks = Body::new(body).into_data_stream();
    let mut discarded = 0;
    while let Some(Ok(chunk)) = chunks.next().await {
        discarded += chunk.len();
        if discarded > DRAINED_BYTES {
            return;
        }
    }
}
