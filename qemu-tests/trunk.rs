//! The port of a switch that a machine's first card is plugged into, where frames of one VLAN go through and nothing else: on the
//! machine's side with that tag, on the network's side without one.

use crate::host::{Context, Result};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;

/// Two MAC addresses come before a tag.
const ADDRESSES: usize = 12;
const TAG: [u8; 2] = [0x81, 0x00];
/// The number without the priority.
const NUMBER: u16 = 0x0FFF;
/// QEMU's frames are not larger.
const MOST_BYTES: u32 = 68 * 1024;

/// Adds the network `id` to a machine: QEMU's own one, behind such a port. It ends with QEMU.
///
/// # Errors
/// No port of this host can be listened on.
pub fn add(command: &mut Command, id: &str, vlan: u16) -> Result<()> {
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
    thread::spawn(move || switch(&tagged, &plain, vlan));
    Ok(())
}

/// Until one side is gone.
fn switch(tagged: &TcpListener, plain: &TcpListener, vlan: u16) -> std::io::Result<()> {
    let ((tagged, _), (plain, _)) = (tagged.accept()?, plain.accept()?);
    let (from_machine, to_network) = (tagged.try_clone()?, plain.try_clone()?);
    thread::spawn(move || pass(from_machine, to_network, |frame| without_tag(frame, vlan)));
    pass(plain, tagged, |frame| with_tag(frame, vlan))
}

/// Frames as QEMU writes them, each behind its length.
fn pass(mut from: TcpStream, mut to: TcpStream, through: impl Fn(&[u8]) -> Option<Vec<u8>>) -> std::io::Result<()> {
    loop {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length).min(MOST_BYTES);
        let mut frame = vec![0; length as usize];
        from.read_exact(&mut frame)?;
        if let Some(frame) = through(&frame) {
            let length = u32::try_from(frame.len()).unwrap_or_default().to_be_bytes();
            to.write_all(&[&length[..], &frame].concat())?;
        }
    }
}

fn without_tag(frame: &[u8], vlan: u16) -> Option<Vec<u8>> {
    let (addresses, rest) = frame.split_at_checked(ADDRESSES)?;
    let rest = rest.strip_prefix(&TAG)?;
    let (number, rest) = rest.split_first_chunk::<2>()?;
    (u16::from_be_bytes(*number) & NUMBER == vlan).then(|| [addresses, rest].concat())
}

fn with_tag(frame: &[u8], vlan: u16) -> Option<Vec<u8>> {
    let (addresses, rest) = frame.split_at_checked(ADDRESSES)?;
    Some([addresses, &TAG, &vlan.to_be_bytes(), rest].concat())
}

/// What goes through.
pub fn self_test() {
    let plain = [&[7; ADDRESSES][..], &[8, 0, 1, 2, 3]].concat();
    let tagged = with_tag(&plain, 42).expect("a frame");
    assert_eq!(tagged[ADDRESSES..], [0x81, 0, 0, 42, 8, 0, 1, 2, 3]);
    assert_eq!(without_tag(&tagged, 42), Some(plain.clone()));
    assert_eq!((without_tag(&tagged, 43), without_tag(&plain, 42)), (None, None));
    // With a priority it is the same one.
    let urgent: Vec<u8> = [&tagged[..ADDRESSES], &[0x81, 0, 0xE0, 42], &tagged[16..]].concat();
    assert_eq!(without_tag(&urgent, 42), Some(plain));
    assert_eq!((with_tag(&[1, 2], 42), without_tag(&[0; 13], 42)), (None, None));
}
