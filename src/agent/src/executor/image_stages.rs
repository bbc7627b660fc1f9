//! Stages of the image: opening it, verifying its OS definition, and writing its file tree.

use super::{PlanExecutor, raw_image};
use common::diagnostic;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use image::{FileConflicts, MountsBelow};
use linux::storage::writeback;
use linux::verify_program::{VerifyVerdict, run_verify};
use model::allocation::{self, SecretPurpose};
use model::ganeti_os_definition::SelectedDefinition;
use model::install_report::HiddenFiles;
use operations::{BurnDisk, ImageNeeds};
use std::time::{Duration, Instant};

/// Timeout of the `verify` program of an OS definition. The program needs less time even on an emulated machine.
const VERIFY_DEADLINE: Duration = Duration::from_secs(60);

impl PlanExecutor {
    pub(super) fn open_image(
        &mut self,
        name: &str,
        image: &allocation::AllocatedImage,
        onto: Option<&BurnDisk>,
        needs: Option<&ImageNeeds>,
    ) -> Result<()> {
        let super::ImageTrust { keys, minimum } = self.trust.clone();
        let allocation::AllocatedImage { id, url, mirrors, digest, mut pull_secrets, .. } = image.clone();
        let released = self.control.fetch_secrets(SecretPurpose::Image)?;
        pull_secrets.extend(released.into_iter().flat_map(|released| released.pull_secrets));
        let digest = image::parse_given_digest(digest.as_deref(), &url)?;
        let source = image::ImageSource { url, id: Some(id), mirrors, digest, pull_secrets, keys, minimum };
        let reached = image::resolve_image(&source)?;
        let size = reached.size_bytes().map_or("unknown size".to_owned(), |bytes| format!("{bytes} bytes"));
        let signed = match (&reached.signed_by, &reached.signed_as) {
            (Some(key), Some(id)) => format!(", signed by {key} as {id}"),
            (Some(key), None) => {
                format!(
                    ", signed by {key} without an image name: the signature does not prove that this is the requested image"
                )
            }
            (None, _) => String::new(),
        };
        self.print_line(&format!("{name}: {size}, {}{signed}", reached.digest));
        if let (Some(needs), Some(contents)) = (needs, reached.contents()) {
            let judgement = needs.find_image_deficiencies(contents);
            if !judgement.refused.is_empty() {
                let code = judgement.refused.iter().find_map(|problem| problem.code);
                return Err(Error::refusal(Phase::Image, diagnostic::summarize_problems(&judgement.refused))
                    .with_code(code.unwrap_or(ErrorCode::ImageNotBootable)));
            }
            // If the control plane has sent the list of the image's contents, these warnings about the image were
            // already printed with the plan.
            if image.contents.is_none() {
                judgement.warnings.iter().for_each(|warning| self.print_line(&format!("WARNING: {warning}")));
            }
        }
        self.image = Some(match onto {
            Some(burn) => raw_image::start_raw_image(reached, burn)?,
            None => {
                let mut incoming = image::IncomingImage::start(reached, image::PayloadKind::Tar)?;
                incoming.require_tree()?;
                incoming
            }
        });
        Ok(())
    }

    /// Runs the `verify` program of an OS definition. The server may have been unable to run this program, so the agent
    /// runs it in the ramdisk in any case.
    pub(super) fn verify_definition(&self, os: &str, chosen: &SelectedDefinition) -> Result<()> {
        let refused = |why: String| Err(Error::refusal(Phase::Image, why).with_code(ErrorCode::VerifyProgram));
        match run_verify(chosen, VERIFY_DEADLINE) {
            VerifyVerdict::Good => Ok(()),
            VerifyVerdict::Refused(why) => refused(format!("the verify program of {os} rejects the parameters: {why}")),
            VerifyVerdict::NotRun(why) => {
                refused(format!("cannot run the verify program of {os} in this ramdisk: {why}"))
            }
        }
    }

    /// Returns the image that an earlier stage has opened.
    pub(super) fn take_image(&mut self, name: &str) -> Result<image::IncomingImage> {
        let not_reached = || {
            Error::new(
                Phase::Image,
                format!("internal error: the plan writes image {name}, which was not opened before"),
            )
        };
        self.image.take().ok_or_else(not_reached)
    }

    pub(super) fn write_image(&mut self, name: &str, beneath: &MountsBelow, memory_bytes: u64) -> Result<()> {
        let incoming = self.take_image(name)?;
        let reporter = &*self.reporter;
        writeback::limit_dirty_memory(memory_bytes);
        let began = Instant::now();
        let burned =
            incoming.burn_to_root(self.mounts.root(), beneath, &|progress| reporter.report_progress(progress))?;
        let figures = burned.to_figures(began.elapsed());
        self.print_line(&format!("{name}: {figures}"));
        self.facts.done.burn = Some(figures);
        let (bytes, entries, resumed) = (burned.bytes, burned.entries, burned.resumed);
        self.print_line(&format!(
            "image {name}: {entries} files from {bytes} bytes of image data; the connection was resumed {resumed} times"
        ));
        for HiddenFiles { path, files } in &burned.hidden {
            self.print_line(&format!(
                "{path}: {files} files of the image will be hidden by the preserved filesystem that is mounted at \
                this path"
            ));
        }
        let FileConflicts { files, first } = burned.conflicts;
        if files > 0 {
            let places = first.join(", ");
            self.print_line(&format!(
                "{files} files of the image were skipped, because preserved directories have the same paths: {places}"
            ));
        }
        self.facts.done.hidden = burned.hidden;
        newroot::marker_file::remove_marker(&self.open_root()?)
    }
}
