//! Operations on LUKS containers. The operations contain the keys of the containers; these keys are never printed.

use crate::operation_text::{DeviceSizes, MIB, OperationLine, strip_dev};
use crate::{Effect, PlannedOperation, UndoOperation};
use model::device_name::DevicePath;
use model::layout::KeySource;
use model::secret_text::SecretText;
use serde::Serialize;
use uuid::Uuid;

/// Offset of the data in a container, in bytes. The two headers and the key slots precede the data (LUKS2 On-Disk
/// Format, 2.2; default of cryptsetup).
pub const DATA_OFFSET_BYTES: u64 = 16 * MIB;

/// LUKS2 container on a whole device, and the source of its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LuksContainer {
    /// Disk, partition, array or logical volume, by its device name during the installation.
    pub device: DevicePath,
    /// UUID in the header of the container.
    pub uuid: Uuid,
    /// Path of the open container, `/dev/mapper/luks-UUID`.
    pub mapping: DevicePath,
    /// Sector size of the device.
    pub sector_bytes: u32,
    /// Source of the key.
    #[serde(rename = "key")]
    pub source: KeySource,
    /// Passphrase. For the key source `tpm2`, this is an additional passphrase, which may be empty.
    #[serde(skip)]
    pub key: SecretText,
    /// True if a key exists, but was not available to the planner. Either the plan was made offline, or the machine had
    /// already passed the point of no return in this boot, after which the control plane does not send the key again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub withheld: bool,
}

impl LuksContainer {
    pub fn new(device: DevicePath, uuid: Uuid, sector_bytes: u32, source: KeySource, key: SecretText) -> LuksContainer {
        let mapping = format!("/dev/mapper/luks-{uuid}").into();
        LuksContainer { device, uuid, mapping, sector_bytes, source, key, withheld: false }
    }
}

/// Operation that creates a container, and opens it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateLuksContainer(pub LuksContainer);

impl PlannedOperation for CreateLuksContainer {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_creation(&self.0).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::opening([&self.0.device]).undone_by([undo_by_closing(&self.0)])
    }
}

/// Describes a new container: `sda3: LUKS2, key: server, opened as luks-…`, `sda3: LUKS2, key: tpm2 and disk_key,
/// opened as luks-…`.
fn describe_creation(LuksContainer { device, mapping, source, key, withheld, .. }: &LuksContainer) -> String {
    let beside = match (source, key.is_empty() && !withheld) {
        (KeySource::Tpm2, true) => " only (no disk_key specified)",
        (KeySource::Tpm2, false) => " and disk_key",
        _ => "",
    };
    format!(
        "{device}: LUKS2, key: {source}{beside}, opened as {mapping}",
        device = strip_dev(device),
        mapping = strip_dev(mapping)
    )
}

/// Operation that opens a preserved container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OpenContainer {
    pub container: LuksContainer,
    /// True if the new system must not write to the container.
    pub read_only: bool,
}

impl PlannedOperation for OpenContainer {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        let OpenContainer { container, read_only } = self;
        let read_only = if *read_only { " read-only" } else { "" };
        format!(
            "open {device}{read_only}, key: {source}",
            device = strip_dev(&container.device),
            source = container.source
        )
        .into()
    }

    fn effect(&self) -> Effect<'_> {
        // When cryptsetup opens a container for writing, it repairs damaged headers, so the device is declared as
        // written.
        let written = (!self.read_only).then(|| self.container.device.clone());
        Effect::opening([&self.container.device]).writing(written).undone_by([undo_by_closing(&self.container)])
    }
}

fn undo_by_closing(container: &LuksContainer) -> UndoOperation {
    UndoOperation::CloseContainer(CloseContainer { mapping: container.mapping.clone() })
}

/// Operation that closes the mapping of a container, so that the kernel no longer holds the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CloseContainer {
    pub mapping: DevicePath,
}

impl PlannedOperation for CloseContainer {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        OperationLine::on_device("close ", self.mapping.as_str(), "")
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Operation that checks that the key of each container, and the program that opens the containers, are available.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckContainers(pub Vec<LuksContainer>);

impl PlannedOperation for CheckContainers {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_check(&self.0).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Describes the check: `cryptsetup and the keys of sda3 (server) are available`, `cryptsetup, a TPM 2 and the keys of
/// sda3 (tpm2) are available`.
fn describe_check(containers: &[LuksContainer]) -> String {
    let keys = containers.iter().map(|container| format!("{} ({})", strip_dev(&container.device), container.source));
    let by_tpm = containers.iter().any(|container| container.source == KeySource::Tpm2);
    let there = if by_tpm { "cryptsetup, a TPM 2 and" } else { "cryptsetup and" };
    format!("{there} the keys of {devices} are available", devices = keys.collect::<Vec<_>>().join(", "))
}
