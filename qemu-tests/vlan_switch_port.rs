//! Switch port of a machine's first NIC. It forwards only frames of one VLAN, which are tagged on the side of the
//! machine, and untagged on the side of the network.

use crate::host_tools::{Context, Result};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;

/// Offset of the VLAN tag in a frame, after two MAC addresses.
const MAC_ADDRESSES_BYTES: usize = 12;
const TAG: [u8; 2] = [0x81, 0x00];
/// Mask of the VLAN id in the tag, without the priority.
const NUMBER: u16 = 0x0FFF;
/// Maximum size of a frame from QEMU.
const MAXIMUM_FRAME_BYTES: u32 = 68 * 1024;

/// Adds the network `id` to a machine: QEMU's user network behind such a switch port. The port is closed when QEMU
/// exits.
///
/// # Errors
/// Fails if no port of this host is free.
pub fn add_trunk(command: &mut Command, id: &str, vlan: u16) -> Result<()> {
    let listen = || TcpListener::bind("127.0.0.1:0").context("a port of the switch");
    let (tagged, plain) = (listen()?, listen()?);
    let port = |listener: &TcpListener| listener.local_addr().context("a port of the switch").map(|place| place.port());
    let (at_machine, at_network) = (port(&tagged)?, port(&plain)?);
    for netdev in [
        format!("socket,id={id},connect=127.0.0.1:{at_machine}"),
        format!("socket,id={id}-plain,connect=127.0.0.1:{at_network}"),
        format!("user,id={id}-lan"),
        format!("hubport,id={id}-hub0,hubid=0,netdev={id}-plain"),
        format!("hubport,id={id}-hub1,hubid=0,netdev={id}-lan"),
    ] {
        command.arg("-netdev").arg(netdev);
    }
    thread::spawn(move || forward_between(&tagged, &plain, vlan));
    Ok(())
}

/// Forwards frames until one side disconnects.
fn forward_between(tagged: &TcpListener, plain: &TcpListener, vlan: u16) -> std::io::Result<()> {
    let ((tagged, _), (plain, _)) = (tagged.accept()?, plain.accept()?);
    let (from_machine, to_network) = (tagged.try_clone()?, plain.try_clone()?);
    thread::spawn(move || forward_frames(from_machine, to_network, |frame| without_tag(frame, vlan)));
    forward_frames(plain, tagged, |frame| with_tag(frame, vlan))
}

/// Forwards frames in QEMU's format, in which the length precedes each frame.
fn forward_frames(
    mut from: TcpStream,
    mut to: TcpStream,
    through: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> std::io::Result<()> {
    loop {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length).min(MAXIMUM_FRAME_BYTES);
        let mut frame = vec![0; length as usize];
        from.read_exact(&mut frame)?;
        if let Some(frame) = through(&frame) {
            let length = u32::try_from(frame.len()).unwrap_or_default().to_be_bytes();
            to.write_all(&[&length[..], &frame].concat())?;
        }
    }
}

fn without_tag(frame: &[u8], vlan: u16) -> Option<Vec<u8>> {
    let (addresses, rest) = frame.split_at_checked(MAC_ADDRESSES_BYTES)?;
    let rest = rest.strip_prefix(&TAG)?;
    let (number, rest) = rest.split_first_chunk::<2>()?;
    (u16::from_be_bytes(*number) & NUMBER == vlan).then(|| [addresses, rest].concat())
}

fn with_tag(frame: &[u8], vlan: u16) -> Option<Vec<u8>> {
    let (addresses, rest) = frame.split_at_checked(MAC_ADDRESSES_BYTES)?;
    Some([addresses, &TAG, &vlan.to_be_bytes(), rest].concat())
}

/// Tests which frames are forwarded and which are dropped.
pub fn self_test() {
    let plain = [&[7; MAC_ADDRESSES_BYTES][..], &[8, 0, 1, 2, 3]].concat();
    let tagged = with_tag(&plain, 42).expect("a frame");
    assert_eq!(tagged[MAC_ADDRESSES_BYTES..], [0x81, 0, 0, 42, 8, 0, 1, 2, 3]);
    assert_eq!(without_tag(&tagged, 42), Some(plain.clone()));
    assert_eq!((without_tag(&tagged, 43), without_tag(&plain, 42)), (None, None));
    // A tag with a priority is also accepted.
    let urgent: Vec<u8> = [&tagged[..MAC_ADDRESSES_BYTES], &[0x81, 0, 0xE0, 42], &tagged[16..]].concat();
    assert_eq!(without_tag(&urgent, 42), Some(plain));
    assert_eq!((with_tag(&[1, 2], 42), without_tag(&[0; 13], 42)), (None, None));
}
