//! Tests with the inventories of machines that other installers have installed: compares the discovered layouts with
//! `expected.yaml`, which was written by hand from the documentation of the installer.

mod foreign_machine;
mod misassigned_contents;
mod recorded_installations;
mod unconfirmed_kernel_names;
