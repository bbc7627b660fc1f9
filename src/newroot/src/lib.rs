//! The system being installed, called the target: its files, boot configuration, fstab and install marker.

pub mod boot;
pub mod chroot;
pub mod crypttab;
pub mod etc_metal_files;
pub mod fstab;
pub(crate) mod image_installer;
pub mod injected_files;
pub mod k8s_volumes;
pub mod marker_file;
pub mod os_create_program;
mod replaced_attributes;
mod restricted_dev;
mod root_dir;
pub mod system_setup;
#[cfg(test)]
mod testing;

pub use root_dir::NewRoot;

#[cfg(test)]
::testing::workers!(linux::verify_program::WORKER => || -> std::io::Result<()> { linux::verify_program::worker::run_verify_worker() });
