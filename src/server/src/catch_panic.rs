//! Panic handling: a request that panics is answered with 500, and the server continues. This requires a build with unwinding; the
//! ramdisk's agent, which cannot continue after a panic, has a separate profile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

#[cfg(panic = "abort")]
compile_error!("the server must survive a request that panics: build it with a profile that unwinds");

/// Marker for a request that panicked; the message is on standard error.
pub struct RequestPanicked;

pub struct CatchPanic<F>(Pin<Box<F>>);

impl<F: Future> CatchPanic<F> {
    pub fn new(future: F) -> CatchPanic<F> {
        CatchPanic(Box::pin(future))
    }
}

impl<F: Future> Future for CatchPanic<F> {
    type Output = Result<F::Output, RequestPanicked>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Self::Output> {
        // State left half-modified belongs to the request: shared state is in the database, or behind locks that ignore poisoning.
        match catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(RequestPanicked)),
        }
    }
}
