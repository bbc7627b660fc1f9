//! Operations: the actions of a plan. The executor performs them one after the other.
//!
//! One type defines all properties of an operation: its data, its text, the devices that it opens and writes, and how
//! it is undone ([`PlannedOperation`]). It contains all inputs of the operation, so the executor looks nothing up. A
//! new operation is a data type that implements [`PlannedOperation`], and a line in [`DeviceOp`] or [`SessionOp`]. The
//! compiler then reports each place in which the executor must handle it.
//!
//! The planner creates operations. The crates that execute operations do not depend on the planner. Start with
//! [`Operation`], and with [`StageName`], the stages of a run.

mod activation_rehearsal;
mod array_slot;
mod arrays;
mod boot_setup;
mod boot_setup_inputs;
mod control_plane_report;
mod crypttab;
mod disk_protection;
mod effect;
mod etc_metal_files;
mod existing_filesystem_files;
mod extents;
mod filesystem_growth;
mod filesystems;
mod firmware;
mod fstab;
mod holder_release;
mod image;
mod image_bootability;
mod k8s_volume_files;
mod k8s_volumes;
mod kexec;
mod luks;
mod lvm;
mod migration;
mod mounts;
mod operation;
mod operation_lines;
pub mod operation_text;
mod os_definition_programs;
mod partition_table;
mod partition_table_edit;
mod preservation_proof;
mod range_clearing;
mod raw_image;
mod stage;
mod stage_error_code;
mod wipe;

pub use activation_rehearsal::{ActivationRehearsal, RestoreOp};
pub use array_slot::ArraySlot;
pub use arrays::{AssembleArray, CreateArray, StopArray, TryArray};
pub use boot_setup::AdaptImage;
pub use boot_setup_inputs::{
    BootDisk, BootFilesystem, Esp, FinishInputs, FinishedArray, RequestedNetwork, SeedFilesystem, SystemFilesystem,
    SystemVolume,
};
pub use control_plane_report::{AnnouncePointOfNoReturn, FinalReport};
pub use crypttab::{CrypttabEntry, WriteCrypttab};
pub use disk_protection::{DiskIdentity, FlushDisks, LockDisk, UnlockDisk};
pub use effect::{Effect, PlannedOperation, UndoOperation};
pub use etc_metal_files::{MachineFiles, PlanAssignment, WriteMachineFiles, WriteMarker};
pub use existing_filesystem_files::{InjectFiles, InjectedFile};
pub use extents::{ByteRange, DiskExtents, StageExtents};
pub use filesystem_growth::GrowFilesystem;
pub use filesystems::{MakeFilesystem, MountingKernel, TryFilesystem};
pub use firmware::{FindBootLoader, OWN_PREFIX, RemoveVariables, VariableRemoval, WriteBootEntries};
pub use fstab::{ExtendFstab, FstabEntry, WriteFstab};
pub use holder_release::{AssertFree, DiskHolder, ReleaseDiskHolder, StopInspectedDevices};
pub use image::{BurnImage, ResolveImage};
pub use image_bootability::{ImageFindings, ImageNeeds, explain_mismatch};
pub use k8s_volume_files::{ManifestVolume, SparseVolume, VolumePath, WriteK8sVolumeFiles};
pub use k8s_volumes::{
    CreateK8sVolume, InitialVolumeContent, array_partition_link, logical_volume_link, spanning_partition_bytes,
};
pub(crate) use kexec::Kexec;
pub use kexec::LoadKernel;
pub use luks::{CheckContainers, CloseContainer, CreateLuksContainer, DATA_OFFSET_BYTES, LuksContainer, OpenContainer};
pub use lvm::{
    ActivateGroup, CreateGroup, CreateVolume, DeactivateGroup, ExpectedVolume, PhysicalRange, RemoveVolumes,
};
pub use migration::{AdaptMoved, CheckMigrationCanceled, ReceiveMigration, ReceivedDevice};
pub use mounts::{MountFilesystem, MountReadOnly, Unmount};
pub use operation::{DeviceOp, Operation, PlanStage, SessionOp};
pub use operation_lines::operation_lines;
pub use os_definition_programs::{CreateSystem, FindPrograms, VerifyDefinition};
pub use partition_table::{NewPartition, PartitionTable};
pub use partition_table_edit::{ExpectedEntry, TableEdit};
pub use preservation_proof::{ObjectLocator, PreservedObject, ProvePreserved, StableDevice};
pub use range_clearing::ClearRanges;
pub use raw_image::{AddedPartition, BurnDisk, ExpectedFilesystem};
pub use stage::{FailureState, StageName};
pub use wipe::{ProveZeros, WipeDisk, ZeroProof, label_copy_ranges};
