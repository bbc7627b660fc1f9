//! Receivers of the raw disk of a qcow2.

use super::convert::Sink;
use crate::image::flow::{Chunk, Clock, Filling, Outlet, Pool};
use std::io::{self, Write};

/// Sends the disk to the agent, in buffers of a pool.
pub struct Packets<'a, O> {
    out: &'a mut O,
    pool: &'a Pool,
    clock: &'a Clock,
    filling: Option<Filling>,
    filled: usize,
    /// Number of zeros that have not been sent.
    zeros: u64,
    /// A whole buffer of zeros, which is sent repeatedly.
    blank: Option<Chunk>,
}

impl<'a, O: Outlet> Packets<'a, O> {
    pub fn new(out: &'a mut O, pool: &'a Pool, clock: &'a Clock) -> Self {
        Packets { out, pool, clock, filling: None, filled: 0, zeros: 0, blank: None }
    }

    /// Sends what is left.
    ///
    /// # Errors
    /// Returns an error if the receiver is gone.
    pub fn end(mut self) -> io::Result<()> {
        self.settle()?;
        self.send()
    }

    fn settle(&mut self) -> io::Result<()> {
        while self.zeros > 0 {
            if self.filled == 0 {
                let blank = self.blank();
                if self.zeros >= blank.len() as u64 {
                    self.zeros -= blank.len() as u64;
                    self.out.content(blank)?;
                    self.out.flush()?;
                    continue;
                }
            }
            let zeros = self.zeros;
            let room = self.space();
            let now = room.len().min(usize::try_from(zeros).unwrap_or(usize::MAX));
            room[..now].fill(0);
            self.zeros -= now as u64;
            self.took(now)?;
        }
        Ok(())
    }

    fn blank(&mut self) -> Chunk {
        let (pool, clock) = (self.pool, self.clock);
        let make = || {
            let mut filling = pool.take(clock);
            filling.fill(0);
            let length = filling.len();
            filling.filled(length)
        };
        self.blank.get_or_insert_with(make).clone()
    }

    fn space(&mut self) -> &mut [u8] {
        let (pool, clock) = (self.pool, self.clock);
        &mut self.filling.get_or_insert_with(|| pool.take(clock))[self.filled..]
    }

    fn took(&mut self, bytes: usize) -> io::Result<()> {
        self.filled += bytes;
        match &self.filling {
            Some(filling) if self.filled == filling.len() => self.send(),
            _ => Ok(()),
        }
    }

    fn send(&mut self) -> io::Result<()> {
        let filled = std::mem::take(&mut self.filled);
        match self.filling.take() {
            Some(filling) if filled > 0 => {
                self.out.content(filling.filled(filled))?;
                self.out.flush()
            }
            _ => Ok(()),
        }
    }
}

impl<O: Outlet> Sink for Packets<'_, O> {
    fn room(&mut self) -> io::Result<&mut [u8]> {
        self.settle()?;
        Ok(self.space())
    }

    fn filled(&mut self, bytes: usize) -> io::Result<()> {
        self.took(bytes)
    }

    fn zeros(&mut self, bytes: u64) -> io::Result<()> {
        self.zeros += bytes;
        Ok(())
    }
}

/// Writes the disk to a writer.
pub struct Whole<W> {
    to: W,
    buffer: Vec<u8>,
}

impl<W: Write> Whole<W> {
    pub fn new(to: W) -> Whole<W> {
        Whole { to, buffer: vec![0; 1 << 20] }
    }
}

impl<W: Write> Sink for Whole<W> {
    fn room(&mut self) -> io::Result<&mut [u8]> {
        Ok(&mut self.buffer)
    }

    fn filled(&mut self, bytes: usize) -> io::Result<()> {
        self.to.write_all(&self.buffer[..bytes])
    }

    fn zeros(&mut self, bytes: u64) -> io::Result<()> {
        io::copy(&mut io::Read::take(io::repeat(0), bytes), &mut self.to).map(drop)
    }
}

/// Discards the disk contents.
pub struct Nowhere(pub Vec<u8>);

impl Sink for Nowhere {
    fn room(&mut self) -> io::Result<&mut [u8]> {
        Ok(&mut self.0)
    }

    fn filled(&mut self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn zeros(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn is_dry(&self) -> bool {
        true
    }
}
