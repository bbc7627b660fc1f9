//! Receivers of the raw disk image that is converted from a qcow2.

use super::cluster_conversion::DiskSink;
use crate::pipeline::{BufferChunk, BufferPool, StageClock, WorkerOutput, WritableBuffer};
use std::io::{self, Write};

/// Sink that sends the disk image to the agent, in buffers of a pool.
pub(crate) struct PacketSink<'a, O> {
    out: &'a mut O,
    pool: &'a BufferPool,
    clock: &'a StageClock,
    filling: Option<WritableBuffer>,
    filled: usize,
    /// Number of zero bytes that were added, but not sent yet.
    zeros: u64,
    /// Buffer full of zeros, which is sent repeatedly for long runs of zeros.
    blank: Option<BufferChunk>,
}

impl<'a, O: WorkerOutput> PacketSink<'a, O> {
    pub fn new(out: &'a mut O, pool: &'a BufferPool, clock: &'a StageClock) -> Self {
        PacketSink { out, pool, clock, filling: None, filled: 0, zeros: 0, blank: None }
    }

    /// Sends the data that has not been sent yet.
    ///
    /// # Errors
    /// Returns an error if the receiver is gone.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.flush_zeros()?;
        self.send_buffer()
    }

    fn flush_zeros(&mut self) -> io::Result<()> {
        while self.zeros > 0 {
            if self.filled == 0 {
                let blank = self.zero_chunk();
                if self.zeros >= blank.len() as u64 {
                    self.zeros -= blank.len() as u64;
                    self.out.content(blank)?;
                    self.out.flush()?;
                    continue;
                }
            }
            let zeros = self.zeros;
            let room = self.free_space();
            let now = room.len().min(usize::try_from(zeros).unwrap_or(usize::MAX));
            room[..now].fill(0);
            self.zeros -= now as u64;
            self.add_filled(now)?;
        }
        Ok(())
    }

    fn zero_chunk(&mut self) -> BufferChunk {
        let (pool, clock) = (self.pool, self.clock);
        let make = || {
            let mut filling = pool.take_buffer(clock);
            filling.fill(0);
            let length = filling.len();
            filling.into_chunk(length)
        };
        self.blank.get_or_insert_with(make).clone()
    }

    fn free_space(&mut self) -> &mut [u8] {
        let (pool, clock) = (self.pool, self.clock);
        &mut self.filling.get_or_insert_with(|| pool.take_buffer(clock))[self.filled..]
    }

    fn add_filled(&mut self, bytes: usize) -> io::Result<()> {
        self.filled += bytes;
        match &self.filling {
            Some(filling) if self.filled == filling.len() => self.send_buffer(),
            _ => Ok(()),
        }
    }

    fn send_buffer(&mut self) -> io::Result<()> {
        let filled = std::mem::take(&mut self.filled);
        match self.filling.take() {
            Some(filling) if filled > 0 => {
                self.out.content(filling.into_chunk(filled))?;
                self.out.flush()
            }
            _ => Ok(()),
        }
    }
}

impl<O: WorkerOutput> DiskSink for PacketSink<'_, O> {
    fn next_buffer(&mut self) -> io::Result<&mut [u8]> {
        self.flush_zeros()?;
        Ok(self.free_space())
    }

    fn advance(&mut self, bytes: usize) -> io::Result<()> {
        self.add_filled(bytes)
    }

    fn write_zeros(&mut self, bytes: u64) -> io::Result<()> {
        self.zeros += bytes;
        Ok(())
    }
}

/// Sink that writes the disk image to a writer.
pub(crate) struct WriterSink<W> {
    to: W,
    buffer: Vec<u8>,
}

impl<W: Write> WriterSink<W> {
    pub fn new(to: W) -> WriterSink<W> {
        WriterSink { to, buffer: vec![0; 1 << 20] }
    }
}

impl<W: Write> DiskSink for WriterSink<W> {
    fn next_buffer(&mut self) -> io::Result<&mut [u8]> {
        Ok(&mut self.buffer)
    }

    fn advance(&mut self, bytes: usize) -> io::Result<()> {
        self.to.write_all(&self.buffer[..bytes])
    }

    fn write_zeros(&mut self, bytes: u64) -> io::Result<()> {
        io::copy(&mut io::Read::take(io::repeat(0), bytes), &mut self.to).map(drop)
    }
}

/// Sink that discards the disk image, used to check the tables. The vector is the buffer that [`DiskSink::next_buffer`]
/// returns.
pub(crate) struct NullSink(pub Vec<u8>);

impl DiskSink for NullSink {
    fn next_buffer(&mut self) -> io::Result<&mut [u8]> {
        Ok(&mut self.0)
    }

    fn advance(&mut self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_zeros(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn is_dry(&self) -> bool {
        true
    }
}
