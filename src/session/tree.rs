//! Image, and operations on the tree that it contains.

use super::{Session, disk, panicked};
use crate::allocation::{self, SecretPurpose};
use crate::boot::{efi, found, kexec};
use crate::definition::Chosen;
use crate::error::{Error, Phase, Result};
use crate::facts::{BootInfo, EntryWanted, Hidden};
use crate::image::{self, Beneath, Conflicts};
use crate::marker::Marker;
use crate::plan::{BootEntries, BurnDisk, Finishing, MachineFiles, Needs, RemoveVariables};
use crate::problem;
use crate::session::undo::Undo;
use crate::storage::writeback;
use crate::target::finish::{self, Boots};
use crate::target::{self, Root};
use crate::verify::{Verdict, verify};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use time::OffsetDateTime;

/// Timeout of `verify`, sufficient for an emulated machine.
const VERIFY_DEADLINE: Duration = Duration::from_secs(60);

impl Session {
    pub(super) fn reach_image(
        &mut self,
        name: &str,
        image: &allocation::Image,
        onto: Option<&BurnDisk>,
        needs: Option<&Needs>,
    ) -> Result<()> {
        let super::Trust { keys, minimum } = self.trust.clone();
        let allocation::Image { id, url, mirrors, digest, mut pull_secrets, .. } = image.clone();
        let released = self.control.secrets(SecretPurpose::Image)?;
        pull_secrets.extend(released.into_iter().flat_map(|released| released.pull_secrets));
        let digest = image::given_digest(digest.as_deref(), &url)?;
        let source = image::Source { url, id: Some(id), mirrors, digest, pull_secrets, keys, minimum };
        let reached = image::reach(&source)?;
        let size = reached.size_bytes().map_or("of unknown size".to_owned(), |bytes| format!("{bytes} bytes"));
        let signed = match (&reached.signed_by, &reached.signed_as) {
            (Some(key), Some(id)) => format!(", signed by {key} as {id}"),
            (Some(key), None) => {
                format!(", signed by {key} without a name, which does not rule out another image signed with that key")
            }
            (None, _) => String::new(),
        };
        self.say(&format!("{name}: {size}, {}{signed}", reached.digest));
        if let (Some(needs), Some(contents)) = (needs, reached.contents()) {
            let judgement = needs.judge(contents);
            if !judgement.refused.is_empty() {
                return Err(Error::refusal(Phase::Image, problem::lines(&judgement.refused)));
            }
            // If the control plane knew the contents, the plan has printed the warnings.
            if image.contents.is_none() {
                judgement.warnings.iter().for_each(|warning| self.say(&format!("WARNING: {warning}")));
            }
        }
        self.image = Some(match onto {
            Some(burn) => disk::arriving(reached, burn)?,
            None => {
                let mut incoming = image::Incoming::start(reached, image::Plain::Tar)?;
                incoming.require_tree()?;
                incoming
            }
        });
        Ok(())
    }

    /// Runs `verify` in the ramdisk too, since the server may have been unable to.
    pub(super) fn verify_definition(&self, os: &str, chosen: &Chosen) -> Result<()> {
        let refused = |why: String| Err(Error::refusal(Phase::Image, why));
        match verify(chosen, VERIFY_DEADLINE) {
            Verdict::Good => Ok(()),
            Verdict::Refused(why) => refused(format!("verify of {os} refuses its parameters: {why}")),
            Verdict::NotRun(why) => refused(format!("cannot run verify of {os} in this ramdisk: {why}")),
        }
    }

    /// Returns the image that an earlier stage has opened.
    pub(super) fn reached(&mut self, name: &str) -> Result<image::Incoming> {
        let not_reached =
            || Error::new(Phase::Image, format!("the plan writes {name} without an earlier stage that opens it"));
        self.image.take().ok_or_else(not_reached)
    }

    pub(super) fn burn_image(&mut self, name: &str, beneath: &Beneath, memory_bytes: u64) -> Result<()> {
        let incoming = self.reached(name)?;
        let reporter = &*self.reporter;
        writeback::start_early(memory_bytes);
        let began = Instant::now();
        let burned = incoming.burn(self.mounts.root(), beneath, &|progress| reporter.progress(progress))?;
        let figures = burned.figures(began.elapsed());
        self.say(&format!("{name}: {figures}"));
        self.facts.done.burn = Some(figures);
        let (bytes, entries, resumed) = (burned.bytes, burned.entries, burned.resumed);
        self.say(&format!("{name}: {entries} files from {bytes} bytes, connection resumed {resumed} times"));
        for Hidden { path, files } in &burned.hidden {
            self.say(&format!(
                "{path}: {files} files of the image will be hidden by the mount of the preserved filesystem"
            ));
        }
        let Conflicts { files, first } = burned.conflicts;
        if files > 0 {
            let places = first.join(", ");
            self.say(&format!(
                "{files} files of the image were skipped because preserved directories have the same names: {places}"
            ));
        }
        self.facts.done.hidden = burned.hidden;
        target::marker::forget(&self.root()?)
    }

    pub(super) fn write_machine_files(&self, files: &MachineFiles) -> Result<()> {
        let root = self.root()?;
        let files = &self.with_secrets(files);
        let allocation = &files.assigned.allocation;
        // If the image lacks its required installer, a later operation fails and reports it.
        let is_read = finish::Who::of(&root, allocation.finish()).is_ok_and(finish::Who::reads_password);
        let password = if is_read { allocation.console_password.as_str() } else { "" };
        target::files::write(&root, files, self.root_uuid(files), password, OffsetDateTime::now_utc())
    }

    /// Adds the secrets that the control plane has released separately to the files.
    fn with_secrets(&self, files: &MachineFiles) -> MachineFiles {
        let mut files = files.clone();
        files.assigned.allocation = self.secrets.complete(files.assigned.allocation);
        files
    }

    /// Adds the secrets to the files of an operation.
    pub(super) fn finishing_with_secrets(&self, finishing: &Finishing) -> Finishing {
        Finishing { files: Box::new(self.with_secrets(&finishing.files)), ..finishing.clone() }
    }

    pub(super) fn finish(&mut self, finishing: &Finishing) -> Result<()> {
        let finishing = &self.finishing_with_secrets(finishing);
        self.undo.push(Undo::EndProcesses);
        let (root, reporter) = (self.root()?, &*self.reporter);
        let root_uuid = self.root_uuid(&finishing.files);
        let now = OffsetDateTime::now_utc();
        // Programs of the image use one CPU, and the image's dirty pages must be written anyway.
        let mounts = &self.mounts;
        let boots = thread::scope(|scope| {
            let early = scope.spawn(|| mounts.write_early());
            let made = finish::tree(&root, finishing, root_uuid, now, &|line| reporter.say(line));
            let early = early.join().unwrap_or_else(|_| Err(panicked()));
            made.and_then(|boots| early.map(|()| boots))
        })?;
        match boots {
            Boots::Written => Ok(()),
            Boots::Made(booting) => {
                booting.info.write(&root)?;
                self.entries_wanted = booting.entries;
                Ok(())
            }
            Boots::Unsaid => self.say_what_boots(&root),
        }
    }

    pub(super) fn say_what_boots(&self, root: &Root) -> Result<()> {
        if let Some(from) = found::describe(root)? {
            self.say(&format!("boots what {from} specifies"));
        }
        Ok(())
    }

    /// Returns the UUID of the root filesystem. A raw image brings its own.
    pub(super) fn root_uuid<'a>(&'a self, files: &'a MachineFiles) -> &'a str {
        self.brought_root_uuid.as_ref().unwrap_or(&files.root_uuid)
    }

    /// Finds the boot loader that the image contains.
    pub(super) fn find_loader(&mut self) -> Result<()> {
        let loader = efi::loader::find(&self.root()?)?;
        self.say(&format!("boots {loader} of the image"));
        self.entries_wanted = vec![EntryWanted { esp: 0, loader, arguments: String::new() }];
        Ok(())
    }

    /// Writes boot entries, unless the image's installer does.
    pub(super) fn write_boot_entries(&self, planned: &BootEntries) {
        if self.entries_wanted.is_empty() {
            return self.say("boot entries: written by the image's installer");
        }
        efi::write(Path::new(efi::VARIABLES), planned, &self.entries_wanted, &|line| self.say(line));
    }

    pub(super) fn remove_variables(&self, removal: &RemoveVariables) -> Result<()> {
        efi::remove_variables(Path::new(efi::VARIABLES), removal, &|line| self.say(line))
    }

    pub(super) fn load_kernel(&mut self) -> Result<()> {
        let root = self.root()?;
        let boot = BootInfo::read(&root)?;
        self.say(&format!("{} {}", boot.kernel, boot.cmdline));
        self.undo.push(Undo::UnloadKernel);
        kexec::load(&root, &boot)?;
        self.facts.boot = Some(boot);
        Ok(())
    }

    /// Writes the install marker, after everything else is on the disks: a system with the marker is complete even after a power failure,
    /// and boots without journal replay.
    pub(super) fn write_marker(&mut self, marker: &Marker) -> Result<()> {
        self.mounts.write_back()?;
        let mut marker = Marker { received_from: self.received_from.clone(), ..marker.clone() };
        // LVM assigns the UUIDs of new volumes at their creation.
        for recorded in marker.volumes.iter_mut().flatten() {
            if let Some(done) = self.facts.done.volumes.iter().find(|done| done.uid == recorded.uid) {
                recorded.path.clone_from(&done.path);
            }
        }
        self.facts.marker = Some(target::marker::write(&self.root()?, &marker, OffsetDateTime::now_utc())?);
        self.mounts.write_back()
    }
}
