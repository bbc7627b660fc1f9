//! A system that comes from another machine.

use super::Session;
use super::undo::Undo;
use crate::boot::efi;
use crate::carried::{Moving, Said};
use crate::error::{Error, Phase, Result};
use crate::facts::{BootInfo, EntryWanted};
use crate::inventory::Firmware;
use crate::moving::whole::Device;
use crate::plan::{Finishing, Receive, Received};
use crate::target::finish::{self, Adapted, Came};
use crate::target::{self, Root};

impl Session {
    /// What stands there half is made unbootable when the run fails.
    pub(super) fn receive(&mut self, receive: &Receive) -> Result<()> {
        self.undo.extend(receive.devices.iter().map(|received| Undo::Made(received.device.clone())));
        let device = |received: &Received| Device { name: received.name.to_string(), path: received.device.clone() };
        let total_bytes = receive.devices.iter().map(|received| received.size_bytes).sum();
        let from = self.receive_devices(&receive.order, receive.devices.iter().map(device).collect(), total_bytes)?;
        self.received_from = Some(from.digest());
        Ok(())
    }

    /// While it was adapted nobody has asked. Once there is a marker the system may be booted.
    ///
    /// # Errors
    /// The move was taken back, or the other machine is in another boot: then the run fails, and the next one receives all anew.
    pub(super) fn move_stands(&self, order: &str) -> Result<()> {
        let machine = match self.control.machine() {
            Ok(machine) => machine,
            Err(error) => {
                self.say(&format!("{error}; whether the move still stands is asked with the report"));
                return Ok(());
            }
        };
        match machine.says_of(order) {
            Said::Done | Said::Over => Err(Error::denial(
                Phase::Move,
                "the control plane has ended the move: what was received is not to boot",
            )),
            Said::Part(Moving { peer: Some(peer), .. })
                if self.received_from.as_ref().is_some_and(|from| *from != peer.digest()) =>
            {
                Err(Error::new(
                    Phase::Move,
                    "the other machine has booted again since all of it was received, and its own system may have written in between: it has to be received anew",
                ))
            }
            Said::Part(_) | Said::Waits(_) | Said::Nothing => Ok(()),
        }
    }

    /// The other machine's marker goes first: what is half adapted is nobody's installation.
    pub(super) fn adapt_moved(&mut self, finishing: &Finishing) -> Result<()> {
        let root = self.root()?;
        target::marker::forget(&root)?;
        self.undo.push(Undo::EndProcesses);
        let came = self.loader_that_came(finishing);
        let with = Came { loader: came.is_some(), info: BootInfo::read(&root).is_ok() };
        let (reporter, root_uuid) = (&*self.reporter, self.root_uuid(&finishing.files));
        let adapted = finish::moved(&root, finishing, root_uuid, with, &|line| reporter.say(line))?;
        let info = self.boot_info(&root, &adapted, root_uuid)?;
        if let Some(info) = info {
            info.write(&root)?;
        }
        self.entries_wanted = match (adapted.entries.is_empty(), came) {
            (true, Some(loader)) => {
                self.say(&format!("what this firmware starts is {loader}, which came with the system"));
                let entry = |esp| EntryWanted { esp, loader: loader.clone(), arguments: String::new() };
                (0..finishing.esps.len()).map(entry).collect()
            }
            _ => adapted.entries,
        };
        Ok(())
    }

    /// On the first EFI system partition that is mounted; the others are copies of it.
    fn loader_that_came(&self, finishing: &Finishing) -> Option<String> {
        if finishing.firmware != Firmware::Uefi {
            return None;
        }
        let path = finishing.esps.iter().find_map(|esp| esp.path.as_deref())?;
        let esp = Root::open(&self.mounts.root().join(path.trim_start_matches('/'))).ok()?;
        efi::loader::find(&esp).ok()
    }

    /// What is booted from here, where that is not what is written down already.
    fn boot_info(&self, root: &Root, adapted: &Adapted, root_uuid: &str) -> Result<Option<BootInfo>> {
        if let Some(info) = &adapted.info {
            return Ok(Some(info.clone()));
        }
        self.say_what_boots(root)?;
        let before = BootInfo::read(root)?;
        let mut info = before.clone();
        if let Some((kernel, initrd)) = &adapted.newest
            && !root.has(&info.kernel)
        {
            self.say(&format!("{} is not there any more: {kernel} is booted", info.kernel));
            (info.kernel, info.initrd) = (kernel.clone(), initrd.clone());
        }
        info.cmdline = by_uuid(&info.cmdline, root_uuid);
        Ok(Some(info).filter(|info| *info != before))
    }
}

/// The disk of another machine is none of this one.
fn by_uuid(line: &str, root_uuid: &str) -> String {
    let words = line.split_whitespace().map(|word| match word.strip_prefix("root=/dev/") {
        Some(name) if !name.contains('/') && !name.starts_with("md") => format!("root=UUID={root_uuid}"),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_that_is_named_by_its_disk_is_named_by_its_uuid() {
        for (line, expected) in [
            ("root=/dev/sda2 ro quiet", "root=UUID=r ro quiet"),
            ("console=ttyS0 root=/dev/nvme0n1p2", "console=ttyS0 root=UUID=r"),
            ("root=UUID=1 ro", "root=UUID=1 ro"),
            ("root=/dev/mapper/vg-root ro", "root=/dev/mapper/vg-root ro"),
            ("root=/dev/vg/root", "root=/dev/vg/root"),
            ("root=/dev/md0", "root=/dev/md0"),
            ("", ""),
        ] {
            assert_eq!(by_uuid(line, "r"), expected, "{line}");
        }
    }
}
