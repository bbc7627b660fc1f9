//! Protocol between the agent and its worker: packets over a Unix socket of type SOCK_SEQPACKET, which preserves packet
//! boundaries.

use super::shared_memory::SharedRegion;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType, recv, recvmsg, send,
    sendmsg, shutdown, socketpair,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Maximum length of a packet, in bytes.
pub(crate) const PACKET_BYTES: usize = 32 << 10;

/// One end of the socket pair between agent and worker.
pub(crate) struct WorkerSocket(OwnedFd);

impl WorkerSocket {
    pub(crate) fn over(socket: OwnedFd) -> WorkerSocket {
        WorkerSocket(socket)
    }

    /// Creates the socket pair; the second descriptor is for the worker.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub(crate) fn create_pair() -> io::Result<(WorkerSocket, OwnedFd)> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (here, there) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((WorkerSocket(here), there))
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// Returns an error if the peer is gone.
    pub(crate) fn send(&self, packet: &[u8]) -> io::Result<()> {
        let flags = MsgFlags::MSG_NOSIGNAL;
        Ok(retry_interrupted(|| send(self.0.as_raw_fd(), packet, flags)).map(drop)?)
    }

    /// Sends a packet to which open files are attached.
    ///
    /// # Errors
    /// Returns an error if the peer is gone.
    pub(crate) fn send_with(&self, packet: &[u8], files: &[BorrowedFd]) -> io::Result<()> {
        let files: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
        let (rights, packet) = ([ControlMessage::ScmRights(&files)], [IoSlice::new(packet)]);
        let flags = MsgFlags::MSG_NOSIGNAL;
        Ok(retry_interrupted(|| sendmsg::<()>(self.0.as_raw_fd(), &packet, &rights, flags, None)).map(drop)?)
    }

    /// Receives a packet and returns its length in bytes; 0 if the peer has closed its end.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub(crate) fn receive(&self, packet: &mut [u8]) -> io::Result<usize> {
        loop {
            match retry_interrupted(|| recv(self.0.as_raw_fd(), packet, MsgFlags::empty())) {
                // The peer has closed its end without reading all packets. The kernel reports this once; packets that
                // the peer has sent can still be received.
                Err(Errno::ECONNRESET) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Receives a packet like [`WorkerSocket::receive`], with up to three attached files.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub(crate) fn receive_with(&self, packet: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let mut space = nix::cmsg_space!([RawFd; 3]);
        let mut packet = [IoSliceMut::new(packet)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(self.0.as_raw_fd(), &mut packet, Some(&mut space), flags)?;
        let mut files = Vec::new();
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(numbers) = control {
                // SAFETY: the kernel has just created these descriptors for this process, so they have no other owner.
                files.extend(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
            }
        }
        Ok((message.bytes, files))
    }

    /// Shuts the connection down, which wakes threads that wait at either end.
    pub(crate) fn close(&self) {
        // An error is ignored: it means that the connection is already closed.
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Both);
    }
}

fn retry_interrupted<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

/// Packet from the agent to the worker. `at` is an offset in a shared region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerRequest {
    /// A part of the image is available in the region [`SharedRegion::Packed`].
    Packed { at: u32, bytes: u32 },
    /// The image has been received completely.
    Whole,
    /// The rest of the image cannot be fetched.
    Broken,
    /// The agent has released the buffer at this offset.
    Freed { region: SharedRegion, at: u32 },
    /// Response to a request of the worker for its limits.
    Answer([u64; 2]),
    /// The worker must restart its time measurement.
    Restart,
}

impl WorkerRequest {
    pub(crate) fn to_packet(self) -> Vec<u8> {
        let (kind, one, two) = match self {
            WorkerRequest::Packed { at, bytes } => (0, at.into(), bytes.into()),
            WorkerRequest::Whole => (1, 0, 0),
            WorkerRequest::Broken => (2, 0, 0),
            WorkerRequest::Freed { region, at } => (3, region.number().into(), at.into()),
            WorkerRequest::Answer([one, two]) => (4, one, two),
            WorkerRequest::Restart => (5, 0, 0),
        };
        [&[kind][..], &u64::to_le_bytes(one), &u64::to_le_bytes(two)].concat()
    }

    pub(crate) fn from_packet(packet: &[u8]) -> Option<WorkerRequest> {
        let mut words = PacketParser(packet);
        let (kind, one, two) = (words.take_u8()?, words.take_u64()?, words.take_u64()?);
        let small = |number: u64| u32::try_from(number).ok();
        Some(match kind {
            0 => WorkerRequest::Packed { at: small(one)?, bytes: small(two)? },
            1 => WorkerRequest::Whole,
            2 => WorkerRequest::Broken,
            3 => WorkerRequest::Freed { region: SharedRegion::from_number(u8::try_from(one).ok()?)?, at: small(two)? },
            4 => WorkerRequest::Answer([one, two]),
            5 => WorkerRequest::Restart,
            _ => return None,
        })
    }
}

/// Event in a packet from the worker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WorkerEvent<'a> {
    /// First event, which reports that the worker is sandboxed. `landlock` is `true` if Landlock restricts the worker's
    /// file access.
    Ready {
        landlock: bool,
    },
    /// The next bytes of the output, at offset `at` of a shared region. `buffer` is the offset of the buffer that
    /// contains them.
    SharedBuffer {
        region: SharedRegion,
        buffer: u32,
        at: u32,
        bytes: u32,
    },
    /// The next bytes of the output, contained in the packet itself.
    Inline(&'a [u8]),
    /// Successful end, with the busy time of each stage, in nanoseconds.
    End(Vec<(&'a str, u64)>),
    Failed {
        is_content: bool,
        text: String,
    },
}

const READY: u8 = 0;
const SHARED_BUFFER_EVENT: u8 = 1;
pub(crate) const INLINE: u8 = 2;
const END_EVENT: u8 = 3;
const FAILED: u8 = 4;

/// Maximum number of stages in [`WorkerEvent::End`].
const MAXIMUM_STAGES: u8 = 16;

impl<'a> WorkerEvent<'a> {
    /// Parses and removes the first event of a packet; returns `None` if the event is invalid.
    pub(crate) fn parse_front(packet: &mut &'a [u8]) -> Option<WorkerEvent<'a>> {
        let mut words = PacketParser(packet);
        let event = match words.take_u8()? {
            READY => WorkerEvent::Ready { landlock: words.take_u8()? != 0 },
            SHARED_BUFFER_EVENT => WorkerEvent::SharedBuffer {
                region: SharedRegion::from_number(words.take_u8()?)?,
                buffer: words.take_u32()?,
                at: words.take_u32()?,
                bytes: words.take_u32()?,
            },
            INLINE => WorkerEvent::Inline(words.take_text()?),
            END_EVENT => {
                let count = words.take_u8().filter(|count| *count <= MAXIMUM_STAGES)?;
                let busy = (0..count).map(|_| Some((std::str::from_utf8(words.take_text()?).ok()?, words.take_u64()?)));
                WorkerEvent::End(busy.collect::<Option<_>>()?)
            }
            FAILED => {
                let is_content = words.take_u8()? != 0;
                WorkerEvent::Failed { is_content, text: String::from_utf8_lossy(words.take_text()?).into_owned() }
            }
            _ => return None,
        };
        *packet = words.0;
        Some(event)
    }

    /// Appends the event to a packet.
    pub(crate) fn append_to(&self, packet: &mut Vec<u8>) {
        match self {
            WorkerEvent::Ready { landlock } => packet.extend([READY, u8::from(*landlock)]),
            WorkerEvent::SharedBuffer { region, buffer, at, bytes } => {
                packet.extend([SHARED_BUFFER_EVENT, region.number()]);
                [buffer, at, bytes].into_iter().for_each(|word| packet.extend(word.to_le_bytes()));
            }
            WorkerEvent::Inline(bytes) => {
                packet.push(INLINE);
                add_text(packet, bytes);
            }
            WorkerEvent::End(busy) => {
                packet.extend([END_EVENT, u8::try_from(busy.len()).unwrap_or(MAXIMUM_STAGES)]);
                for (name, nanoseconds) in busy.iter().take(MAXIMUM_STAGES.into()) {
                    add_text(packet, name.as_bytes());
                    packet.extend(nanoseconds.to_le_bytes());
                }
            }
            WorkerEvent::Failed { is_content, text } => {
                packet.extend([FAILED, u8::from(*is_content)]);
                add_text(packet, text.as_bytes());
            }
        }
    }
}

/// Appends a string, preceded by its length.
pub(crate) fn add_text(packet: &mut Vec<u8>, text: &[u8]) {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    packet.extend(length.to_le_bytes());
    packet.extend(&text[..length as usize]);
}

/// Parser of the numbers and strings in a packet. Its functions return `None` if too few bytes are left.
pub(crate) struct PacketParser<'a>(pub &'a [u8]);

impl<'a> PacketParser<'a> {
    fn take_bytes<const COUNT: usize>(&mut self) -> Option<[u8; COUNT]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    pub(crate) fn take_u8(&mut self) -> Option<u8> {
        self.take_bytes().map(u8::from_le_bytes)
    }

    pub(crate) fn take_u32(&mut self) -> Option<u32> {
        self.take_bytes().map(u32::from_le_bytes)
    }

    pub(crate) fn take_u64(&mut self) -> Option<u64> {
        self.take_bytes().map(u64::from_le_bytes)
    }

    /// Reads a string, preceded by its length.
    pub(crate) fn take_text(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.take_u32()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_events_survive_encoding() {
        let said = [
            WorkerRequest::Packed { at: 524_288, bytes: 7 },
            WorkerRequest::Whole,
            WorkerRequest::Broken,
            WorkerRequest::Freed { region: SharedRegion::Plain, at: u32::MAX },
            WorkerRequest::Answer([u64::MAX, 1]),
            WorkerRequest::Restart,
        ];
        for word in said {
            let packet = word.to_packet();
            assert_eq!(WorkerRequest::from_packet(&packet), Some(word));
            assert!((0..packet.len()).all(|length| WorkerRequest::from_packet(&packet[..length]).is_none()));
        }
        let events = || {
            [
                WorkerEvent::Ready { landlock: true },
                WorkerEvent::SharedBuffer { region: SharedRegion::Packed, buffer: 1, at: 2, bytes: 3 },
                WorkerEvent::Inline(b"bytes"),
                WorkerEvent::Failed { is_content: true, text: "why".to_owned() },
                WorkerEvent::End(vec![("decode", 12), ("untar", u64::MAX)]),
            ]
        };
        let mut packet = Vec::new();
        events().iter().for_each(|event| event.append_to(&mut packet));
        let mut left = &packet[..];
        assert!(
            events().iter().all(|event| WorkerEvent::parse_front(&mut left).as_ref() == Some(event)) && left.is_empty()
        );
        for event in events() {
            let mut packet = Vec::new();
            event.append_to(&mut packet);
            assert!(
                (0..packet.len()).all(|length| WorkerEvent::parse_front(&mut &packet[..length]).is_none()),
                "{event:?}"
            );
        }
    }

    #[test]
    fn packets_arrive_complete_with_files_and_an_end() {
        let (here, there) = WorkerSocket::create_pair().unwrap();
        let there = WorkerSocket::over(there);
        let file = tempfile::tempfile().unwrap();
        here.send_with(b"first", &[std::os::fd::AsFd::as_fd(&file)]).unwrap();
        here.send(b"second").unwrap();
        let mut packet = [0; 100];
        let (length, files) = there.receive_with(&mut packet).unwrap();
        assert_eq!((&packet[..length], files.len()), (&b"first"[..], 1));
        assert_eq!(there.receive(&mut packet).unwrap(), 6);
        here.close();
        assert_eq!(there.receive(&mut packet).unwrap(), 0);
        assert!(there.send(b"x").is_err());
    }

    #[test]
    fn last_packet_of_a_closed_peer_is_received() {
        let (here, there) = WorkerSocket::create_pair().unwrap();
        let there = WorkerSocket::over(there);
        there.send(b"the end").unwrap();
        here.send(b"and another thing").unwrap();
        drop(there);
        let mut packet = [0; 100];
        assert_eq!([(); 2].map(|()| here.receive(&mut packet).unwrap()), [7, 0]);
    }
}
