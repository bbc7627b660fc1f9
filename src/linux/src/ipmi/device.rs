//! Character device of the kernel's OpenIPMI driver (`ipmi_devintf`); the interface of this driver is declared in
//! linux/ipmi.h.

use super::{Command, IpmiTransport};
use nix::libc::{c_int, c_long, c_short, c_uchar, c_uint, c_ushort};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Address type for the BMC behind the system interface.
const SYSTEM_INTERFACE: c_int = 0x0c;
/// Channel of the BMC behind the system interface.
const BMC_CHANNEL: c_short = 0x0f;
/// Type of a received message that is the response to a command.
const RESPONSE: c_int = 1;
/// Maximum length of a message, in bytes.
const MESSAGE_BYTES: usize = 272;

/// `struct ipmi_system_interface_addr`.
#[repr(C)]
struct SystemInterfaceAddress {
    kind: c_int,
    channel: c_short,
    lun: c_uchar,
}

/// `struct ipmi_addr`. Its size is sufficient for the longest type of address.
#[repr(C)]
struct IpmiAddress {
    kind: c_int,
    channel: c_short,
    data: [c_uchar; 32],
}

/// `struct ipmi_msg`.
#[repr(C)]
struct IpmiMessage {
    network_function: c_uchar,
    command: c_uchar,
    data_bytes: c_ushort,
    data: *mut c_uchar,
}

mod ioctl {
    use super::*;

    /// `struct ipmi_req`.
    #[repr(C)]
    pub(super) struct IpmiRequest {
        pub(super) address: *mut SystemInterfaceAddress,
        pub(super) address_bytes: c_uint,
        pub(super) id: c_long,
        pub(super) message: IpmiMessage,
    }

    /// `struct ipmi_recv`.
    #[repr(C)]
    pub(super) struct IpmiReceived {
        pub(super) kind: c_int,
        pub(super) address: *mut IpmiAddress,
        pub(super) address_bytes: c_uint,
        pub(super) id: c_long,
        pub(super) message: IpmiMessage,
    }

    nix::ioctl_readwrite!(receive_message, b'i', 11, IpmiReceived);
    nix::ioctl_read!(send_command, b'i', 13, IpmiRequest);
}

/// Open system interface.
pub(super) struct IpmiDevice {
    file: File,
    /// Sequence number of the last command. The response to this command contains the same number.
    id: c_long,
}

impl IpmiDevice {
    /// Opens the device. Returns `None` if it does not exist.
    pub(super) fn open(path: &Path) -> io::Result<Option<IpmiDevice>> {
        let opened = OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_NONBLOCK).open(path);
        match opened {
            Ok(file) => Ok(Some(IpmiDevice { file, id: 0 })),
            // These errors mean that there is no device node, or that the driver has not found a system interface.
            Err(error)
                if matches!(error.raw_os_error(), Some(nix::libc::ENOENT | nix::libc::ENODEV | nix::libc::ENXIO)) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Queues a command.
    fn send(&mut self, (network_function, command): Command, data: &[u8]) -> io::Result<()> {
        let mut data = data.to_vec();
        let mut address = SystemInterfaceAddress { kind: SYSTEM_INTERFACE, channel: BMC_CHANNEL, lun: 0 };
        self.id += 1;
        let data_bytes = c_ushort::try_from(data.len()).map_err(io::Error::other)?;
        let mut request = ioctl::IpmiRequest {
            address: &raw mut address,
            address_bytes: size_of::<SystemInterfaceAddress>() as c_uint,
            id: self.id,
            message: IpmiMessage { network_function, command, data_bytes, data: data.as_mut_ptr() },
        };
        // SAFETY: request, address, and data live until the call has ended; the kernel copies them.
        unsafe { ioctl::send_command(self.file.as_raw_fd(), &raw mut request) }?;
        Ok(())
    }

    /// Receives a message. Returns `None` if the message is not the response to the last command, but a late response
    /// to an earlier command.
    fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        let mut data = [0; MESSAGE_BYTES];
        let mut address = IpmiAddress { kind: 0, channel: 0, data: [0; 32] };
        let mut received = ioctl::IpmiReceived {
            kind: 0,
            address: &raw mut address,
            address_bytes: size_of::<IpmiAddress>() as c_uint,
            id: 0,
            message: IpmiMessage {
                network_function: 0,
                command: 0,
                data_bytes: MESSAGE_BYTES as c_ushort,
                data: data.as_mut_ptr(),
            },
        };
        // SAFETY: the kernel writes at most `address_bytes` and `data_bytes` bytes to the buffers, which live until the
        // call has ended.
        unsafe { ioctl::receive_message(self.file.as_raw_fd(), &raw mut received) }?;
        let length = usize::from(received.message.data_bytes).min(MESSAGE_BYTES);
        Ok((received.kind == RESPONSE && received.id == self.id).then(|| data[..length].to_vec()))
    }
}

impl IpmiTransport for IpmiDevice {
    fn exchange(&mut self, command: Command, data: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
        let end = Instant::now() + patience;
        self.send(command, data)?;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut ready = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
            // The timeout is at least one millisecond, because the call would not wait with a timeout of zero.
            let timeout = PollTimeout::try_from(left.as_millis().max(1)).unwrap_or(PollTimeout::MAX);
            match poll(&mut ready, timeout) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => {}
                // The device reports an error instead of data, because the driver was removed.
                Ok(_) if !ready[0].revents().is_some_and(|events| events.contains(PollFlags::POLLIN)) => {
                    return Err(io::ErrorKind::NotConnected.into());
                }
                Ok(_) => match self.receive() {
                    Ok(Some(response)) => return Ok(response),
                    Ok(None) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                },
                Err(error) => return Err(error.into()),
            }
        }
    }
}
