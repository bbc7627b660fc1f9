//! Shutdown of network interfaces before kexec, as in kexec(8). An active NIC would write to memory that belongs to the
//! new kernel. In addition, some drivers of active NICs have hung during the shutdown of the old kernel.

use nix::errno::Errno;
use nix::libc;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::{fs, io};

/// Takes every network interface down. Failures are logged.
pub fn take_interfaces_down() {
    let names = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name != "lo");
    for name in names {
        if let Err(error) = take_interface_down(&name) {
            tracing::warn!("cannot take network interface {name} down: {error}");
        }
    }
}

/// Takes one network interface down, by clearing its flag IFF_UP (netdevice(7)).
fn take_interface_down(name: &str) -> io::Result<()> {
    // The type of the socket does not matter for the ioctls below.
    let socket = UnixDatagram::unbound()?;
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte of the field must remain zero, because it terminates the name.
    if name.len() >= request.ifr_name.len() {
        return Err(Errno::ENAMETOOLONG.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    interface_ioctl(&socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: SIOCGIFFLAGS has filled in this member of the union.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags & !(libc::IFF_UP as libc::c_short);
    Ok(interface_ioctl(&socket, libc::SIOCSIFFLAGS, &mut request)?)
}

fn interface_ioctl(socket: &UnixDatagram, call: libc::c_ulong, request: &mut libc::ifreq) -> nix::Result<()> {
    // SAFETY: the socket is open, and both calls take a pointer to an ifreq, which outlives them.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), call as libc::Ioctl, request) };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_interface_is_an_error() {
        let error = |name| take_interface_down(name).unwrap_err().raw_os_error();
        assert_eq!(error("no-such-card"), Some(libc::ENODEV));
        assert_eq!(error("a-name-that-is-too-long"), Some(libc::ENAMETOOLONG));
    }
}
