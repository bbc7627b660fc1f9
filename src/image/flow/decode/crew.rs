//! Who decodes: parts that stand by themselves go to several threads, the rest is decoded where the stream is read. All of it
//! is sent on in the order in which it lies in the stream.
//!
//! No thread waits for one that waits for it: the buffer that a part is decoded into is taken before the part is handed out,
//! in the stream's order, so the part whose turn it is always has one.

use super::Format;
use super::barren::Barren;
use super::input::Input;
use super::lz4_blocks::{Block, Sum};
use super::outlet::{Item, Outlet};
use super::zstd_frames::{self, Whole};
use crate::image::flow::ring::{Chunk, Filling, Pool, Sender};
use crate::image::flow::stages::{Clock, Stages};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use zstd::zstd_safe::DCtx;

/// Most that may come out of a part. pzstd's frames are as large.
pub const MOST_BYTES: usize = 8 << 20;

/// Places for what comes out of parts, beside one for each thread.
pub const ROOMS_BESIDE: usize = 3;

/// Smaller parts are handed out together, until about so much comes out of them.
pub const TASK_BYTES: usize = 4 << 20;

/// And about so many of them: a part that nothing comes out of takes memory too. Ordinary tasks have 64 at most.
const MOST_PARTS: usize = 256;

/// lz4 frames that have begun and whose turn has not come: one without content holds no buffer.
const MOST_FRAMES: usize = 1024;

/// So many fetched buffers are held by a task in the making, and twice as many together with the frame that is looked over:
/// the fetch has 32 and must not run out of them.
const HELD: usize = 8;
const MOST_HELD: usize = 2 * HELD;

/// What can be decoded by itself.
pub enum Part {
    ZstdFrame(Vec<Chunk>),
    Lz4Block(Block),
}

/// Parts that follow each other, and the place for what comes out of them.
struct Task {
    parts: Vec<Piece>,
    room: Filling,
}

struct Piece {
    part: Part,
    most_bytes: usize,
    /// In the compressed stream.
    position: u64,
}

/// What a thread needs to decode with.
#[derive(Default)]
pub struct Tools {
    zstd: Option<DCtx<'static>>,
    scratch: Vec<u8>,
}

impl Tools {
    pub fn zstd(&mut self) -> &mut DCtx<'static> {
        self.zstd.get_or_insert_with(DCtx::create)
    }

    pub fn scratch(&mut self) -> &mut Vec<u8> {
        &mut self.scratch
    }
}

impl Task {
    fn run(self, tools: &mut Tools) -> io::Result<Chunk> {
        let (mut room, mut at) = (self.room, 0);
        for Piece { part, most_bytes, position } in self.parts {
            let place = room.get_mut(at..at + most_bytes).unwrap_or_default();
            at += match part {
                Part::ZstdFrame(pieces) => zstd_frames::decode_whole(tools.zstd(), &pieces, place)
                    .map_err(|fault| fault.explain(Format::Zstd, position)),
                Part::Lz4Block(block) => {
                    block.decode(0, place, &mut tools.scratch).map_err(|fault| fault.explain(Format::Lz4, position))
                }
            }?;
        }
        Ok(room.filled(at))
    }
}

/// What the threads share.
pub struct Shared {
    outlet: Outlet,
    tasks: Mutex<Tasks>,
    more: Condvar,
}

#[derive(Default)]
struct Tasks {
    queue: VecDeque<(u64, Task)>,
    closed: bool,
}

impl Shared {
    pub fn new(sender: Sender, barren: Arc<Barren>) -> Shared {
        Shared { outlet: Outlet::new(sender, barren), tasks: Mutex::default(), more: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, clock: &Clock) -> Option<(u64, Task)> {
        let mut tasks = self.lock();
        loop {
            match tasks.queue.pop_front() {
                None if tasks.closed => return None,
                None => tasks = clock.waiting(|| self.more.wait(tasks).unwrap_or_else(PoisonError::into_inner)),
                task => return task,
            }
        }
    }

    /// One thread's work.
    fn work(&self, clock: &Clock) {
        let _duty = Duty(&self.outlet);
        let mut tools = Tools::default();
        while let Some((number, task)) = self.next(clock) {
            if !self.outlet.stopped() {
                self.outlet.put(number, item(task.run(&mut tools)), clock);
            }
        }
    }
}

fn item(made: io::Result<Chunk>) -> Item {
    made.map_or_else(|error| Item::End(Err(error)), Item::Content)
}

/// Without it, a thread that panics would leave the others waiting for its part: a test would hang instead of failing. The
/// release aborts at a panic, and needs neither this nor [`Outlet::abandon`].
struct Duty<'a>(&'a Outlet);

impl Drop for Duty<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.abandon();
        }
    }
}

/// The side of the thread that reads the stream.
pub struct Crew<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    shared: &'env Shared,
    stages: &'env Stages,
    threads: usize,
    hired: bool,
    /// What waits here count on.
    clock: Arc<Clock>,
    /// For what is decoded here.
    pool: &'env Pool,
    filling: Option<(Filling, usize)>,
    pub tools: Tools,
    /// For what is decoded in one piece. The memory is taken as it is filled, and half of it seldom is.
    rooms: Pool,
    turns: Pool,
    /// The task that is being put together: what comes out of it, and how many buffers had been fetched when it began.
    parts: Vec<Piece>,
    parts_bytes: usize,
    began: usize,
    /// Of the next item.
    number: u64,
}

impl<'scope, 'env> Crew<'scope, 'env> {
    pub fn new(
        scope: &'scope Scope<'scope, 'env>,
        shared: &'env Shared,
        stages: &'env Stages,
        pool: &'env Pool,
        threads: usize,
        clock: Arc<Clock>,
    ) -> Self {
        Crew {
            scope,
            shared,
            stages,
            threads,
            hired: false,
            clock,
            pool,
            filling: None,
            tools: Tools::default(),
            rooms: pool.beside(threads + ROOMS_BESIDE, MOST_BYTES),
            turns: Pool::new(MOST_FRAMES, 0),
            parts: Vec::new(),
            parts_bytes: 0,
            began: 0,
            number: 0,
        }
    }

    /// Whether it is worth while to cut.
    pub fn is_several(&self) -> bool {
        self.threads > 1
    }

    /// Looks over the frame that begins here.
    ///
    /// # Errors
    /// The source's own.
    pub fn measure(&self, input: &mut Input) -> io::Result<Option<Whole>> {
        let held = if self.parts.is_empty() { 0 } else { (input.pulled() - self.began).min(HELD) };
        zstd_frames::measure(input, MOST_BYTES, MOST_HELD - held)
    }

    /// A part to decode, sooner or later.
    ///
    /// # Errors
    /// Nobody needs it any more.
    pub fn add(&mut self, input: &mut Input, part: Part, most_bytes: usize, position: u64) -> io::Result<()> {
        if self.parts_bytes + most_bytes > TASK_BYTES {
            self.hand_out(input)?;
        }
        if self.parts.is_empty() {
            self.began = input.pulled();
        }
        self.parts.push(Piece { part, most_bytes, position });
        self.parts_bytes += most_bytes;
        let full = self.parts.len() >= MOST_PARTS || input.pulled() - self.began >= HELD;
        if full { self.hand_out(input) } else { Ok(()) }
    }

    /// The parts that were added so far are decoded; what is decoded here comes after them.
    ///
    /// # Errors
    /// Nobody needs it any more.
    pub fn hand_out(&mut self, input: &mut Input) -> io::Result<()> {
        if self.parts.is_empty() {
            return Ok(());
        }
        self.flush()?;
        if self.is_several() && !self.hired {
            self.hire(input);
        }
        let (parts, room) = (std::mem::take(&mut self.parts), self.rooms.take(&self.clock));
        self.parts_bytes = 0;
        let task = Task { parts, room };
        if !self.hired {
            let made = task.run(&mut self.tools);
            return self.send(item(made));
        }
        let number = self.next_number()?;
        self.shared.lock().queue.push_back((number, task));
        self.shared.more.notify_one();
        Ok(())
    }

    /// This thread will do little but wait from now on: its clock goes to the first who works in its place.
    fn hire(&mut self, input: &mut Input) {
        self.hired = true;
        let mut first = Some(std::mem::take(&mut self.clock));
        input.count_on(self.clock.clone());
        for _ in 0..self.threads {
            let clock = first.take().unwrap_or_else(|| self.stages.clock("decode"));
            let shared = self.shared;
            self.scope.spawn(move || shared.work(&clock));
        }
    }

    /// Where the next bytes are decoded to, by this thread, and with what.
    pub fn room(&mut self) -> (&mut [u8], &mut Tools) {
        let (filling, filled) = self.filling.get_or_insert_with(|| (self.pool.take(&self.clock), 0));
        (&mut filling[*filled..], &mut self.tools)
    }

    /// So many bytes were put there.
    ///
    /// # Errors
    /// Nobody needs them any more.
    pub fn wrote(&mut self, count: usize) -> io::Result<()> {
        let Some((filling, filled)) = &mut self.filling else { return Ok(()) };
        *filled += count;
        if *filled < filling.len() { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.filling.take() {
            Some((filling, filled)) => self.send(Item::Content(filling.filled(filled))),
            None => Ok(()),
        }
    }

    /// A place for what is decoded here in one piece.
    pub fn whole_room(&self) -> Filling {
        self.rooms.take(&self.clock)
    }

    /// An lz4 frame begins.
    ///
    /// # Errors
    /// Nobody needs it any more.
    pub fn begin(&mut self, input: &mut Input, sum: Sum) -> io::Result<()> {
        // What is in the making is handed out first: the turns that are taken may come after it.
        self.hand_out(input)?;
        let turn = self.turns.take(&self.clock);
        self.put(input, Item::Begins(sum, turn))
    }

    /// Sends something on, after all that came before it.
    ///
    /// # Errors
    /// Nobody needs it any more.
    pub fn put(&mut self, input: &mut Input, item: Item) -> io::Result<()> {
        self.hand_out(input)?;
        self.flush()?;
        self.send(item)
    }

    fn send(&mut self, item: Item) -> io::Result<()> {
        let number = self.next_number()?;
        self.shared.outlet.put(number, item, &self.clock);
        Ok(())
    }

    fn next_number(&mut self) -> io::Result<u64> {
        if self.shared.outlet.stopped() {
            return Err(io::Error::other("nobody needs the rest of the image"));
        }
        self.number += 1;
        Ok(self.number - 1)
    }
}

impl Drop for Crew<'_, '_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared.outlet.abandon();
        }
        self.shared.lock().closed = true;
        self.shared.more.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::Result;
    use super::super::lz4_blocks::Frame;
    use super::*;
    use crate::image::flow::reader::Reader;
    use crate::image::flow::ring::pipe;
    use crate::image::testing::source;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    /// The largest number of parts that ever waited to be handed out.
    fn most_parts(stream: &[u8], mut feed: impl FnMut(&mut Crew, &mut Input) -> Result<bool>) -> usize {
        let (sender, receiver) = pipe(4);
        let (shared, stages, pool) =
            (Shared::new(sender, Arc::new(Barren::up_to(u64::MAX))), Stages::start(), Pool::new(4, 100));
        thread::scope(|scope| {
            scope.spawn(|| io::copy(&mut Reader::new(receiver, Arc::default()), &mut io::sink()).unwrap());
            let mut input = Input::new(source(stream, 1 << 19, Ok(())));
            let mut crew = Crew::new(scope, &shared, &stages, &pool, 3, input.clock());
            let mut most = 0;
            while feed(&mut crew, &mut input).unwrap_or_else(|fault| panic!("{}", fault.explain(Format::Lz4, 0))) {
                most = most.max(crew.parts.len());
            }
            crew.put(&mut input, Item::End(Ok(()))).unwrap();
            most
        })
    }

    #[test]
    fn a_task_has_few_parts_however_small_they_are() {
        let empty = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0];
        let frames = most_parts(&empty.repeat(100_000), |crew, input| {
            let Some(whole) = crew.measure(input)? else { return Ok(false) };
            let part = Part::ZstdFrame(input.cut_off(whole.compressed_bytes)?);
            crew.add(input, part, whole.most_bytes, 0)?;
            Ok(true)
        });
        assert_eq!(frames, MOST_PARTS - 1);

        for block in [&[0, 0, 0, 0x80][..], &[1, 0, 0, 0x80, b'x']] {
            let head = [0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82];
            let stream = [&head[..], &block.repeat(10_000), &[0; 4]].concat();
            let mut frame = None;
            let blocks = most_parts(&stream, |crew, input| {
                let frame = match &mut frame {
                    None => frame.insert(Frame::begin(input)?),
                    Some(frame) => frame,
                };
                let Ok(block) = frame.next(input)? else { return Ok(false) };
                let most_bytes = block.most_bytes;
                crew.add(input, Part::Lz4Block(block), most_bytes, 0)?;
                Ok(true)
            });
            assert_eq!(blocks, MOST_PARTS - 1, "{block:?}");
        }
    }

    #[test]
    fn frames_without_content_wait_for_their_turn() {
        let empty = [0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82, 0, 0, 0, 0];
        let (sender, receiver) = pipe(4);
        let (shared, stages, pool) =
            (Shared::new(sender, Arc::new(Barren::up_to(u64::MAX))), Stages::start(), Pool::new(4, 100));
        let begun = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| io::copy(&mut Reader::new(receiver, Arc::default()), &mut io::sink()).unwrap());
            let mut input = Input::new(source(&empty.repeat(10 * MOST_FRAMES), 1 << 19, Ok(())));
            let mut crew = Crew::new(scope, &shared, &stages, &pool, 3, input.clock());
            // A part that somebody decodes.
            let number = crew.next_number().unwrap();
            let (begun, shared) = (&begun, &shared);
            scope.spawn(move || {
                while begun.load(Ordering::SeqCst) < MOST_FRAMES {
                    thread::yield_now();
                }
                thread::sleep(Duration::from_millis(50));
                let most = begun.load(Ordering::SeqCst);
                let part = Pool::new(1, 1).take(&Clock::default()).filled(0);
                shared.outlet.put(number, Item::Content(part), &Clock::default());
                assert_eq!(most, MOST_FRAMES);
            });
            for _ in 0..10 * MOST_FRAMES {
                let frame = Frame::begin(&mut input).ok().unwrap();
                crew.begin(&mut input, frame.sum()).unwrap();
                let Ok(Err(promise)) = frame.next(&mut input) else { panic!("it has a block") };
                crew.put(&mut input, Item::Ends(promise, 0)).unwrap();
                begun.fetch_add(1, Ordering::SeqCst);
            }
            crew.put(&mut input, Item::End(Ok(()))).unwrap();
        });
    }
}
