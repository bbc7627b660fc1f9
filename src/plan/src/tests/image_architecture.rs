//! Images for another architecture than the machine's, and arm64 machines without UEFI.

use super::image_finishing::{by, contents};
use super::*;
use common::error_code::ErrorCode;
use model::allocation::{AllocatedImage, Allocation, FinisherChoice};
use model::architecture::Architecture;
use model::image_boot_contents::BootContents;
use model::inventory::FirmwareType;
use operations::PlanAssignment;

const AMD64: Architecture = Architecture::Amd64;
const ARM64: Architecture = Architecture::Arm64;

fn planned(
    architecture: Architecture,
    firmware: FirmwareType,
    allocation: Allocation,
) -> Result<Plan, Box<PlanRefusal>> {
    let mut inventory = machine();
    inventory.system.architecture = architecture;
    inventory.system.firmware = firmware;
    let assigned = PlanAssignment { allocation, ..PlanAssignment::default() };
    let (mode, steps) = (InstallMode::Install, StepList::default());
    let request = PlanRequest { mode, steps, subject: subject(), assigned, claim: None };
    super::super::make_plan(&layout(), &inventory, request, &mut counting())
}

#[test]
fn image_for_another_architecture_is_refused() {
    let image = |stated: Option<Architecture>, found: Option<Architecture>| {
        let contents = Some(BootContents { architecture: found, ..contents() });
        let image = AllocatedImage { architecture: stated, contents, ..AllocatedImage::default() };
        Allocation { image, ..by(FinisherChoice::Auto) }
    };
    let file =
        "according to its image file, the image is for arm64, but this machine is amd64; select an image for amd64";
    let manifest =
        "according to its manifest, the image is for amd64, but this machine is arm64; select an image for arm64";
    for (machine, stated, found, expected) in [
        (AMD64, None, None, None),
        (AMD64, Some(AMD64), Some(AMD64), None),
        (ARM64, Some(ARM64), None, None),
        (ARM64, None, Some(ARM64), None),
        (AMD64, Some(ARM64), None, Some(file)),
        (ARM64, None, Some(AMD64), Some(manifest)),
        // The image file contradicts the manifest. A machine of either architecture refuses the image.
        (AMD64, Some(ARM64), Some(AMD64), Some(file)),
        (ARM64, Some(ARM64), Some(AMD64), Some(manifest)),
    ] {
        let made = planned(machine, FirmwareType::Uefi, image(stated, found));
        let problems = made.map_or_else(|refusal| refusal.problems, |_| Vec::new());
        let said: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
        assert_eq!(said, expected.as_slice(), "{machine} {stated:?} {found:?}");
        assert!(problems.iter().all(|problem| problem.code == Some(ErrorCode::ArchitectureMismatch)));
    }
}

#[test]
fn arm64_machine_without_uefi_is_refused() {
    for (firmware, finish, is_refused) in [
        (FirmwareType::Uefi, FinisherChoice::Builtin, false),
        (FirmwareType::Bios, FinisherChoice::Builtin, true),
        (FirmwareType::Bios, FinisherChoice::Auto, true),
        (FirmwareType::Bios, FinisherChoice::None, false),
    ] {
        let made = planned(ARM64, firmware, by(finish));
        assert_eq!(made.is_err(), is_refused, "{firmware:?} {finish:?}");
        if let Err(refusal) = made {
            assert!(refusal.problems[0].message.contains("without UEFI"), "{:?}", refusal.problems);
        }
    }
}
