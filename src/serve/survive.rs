//! A request that panics is answered with 500, and the server goes on. It needs a build that unwinds: the ramdisk's agent, which has
//! nothing to go on with, has a profile of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

#[cfg(panic = "abort")]
compile_error!("the server must survive a request that panics: build it with a profile that unwinds");

/// It has panicked; what it said is on standard error.
pub struct Panicked;

pub struct Survive<F>(Pin<Box<F>>);

impl<F: Future> Survive<F> {
    pub fn new(future: F) -> Survive<F> {
        Survive(Box::pin(future))
    }
}

impl<F: Future> Future for Survive<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Self::Output> {
        // What it has left half done is its own: what requests share is in the database, or behind a lock that minds no panic.
        match catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(Panicked)),
        }
    }
}
