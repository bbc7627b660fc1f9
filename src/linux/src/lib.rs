//! Access to the machine: its processes, devices, firmware variables, storage tools, kernel log, and network.
//!
//! [`probe`] reads what the machine contains and writes nothing. [`storage`] executes single operations of a plan, with
//! one file per tool, and makes no decisions. [`process`] is the only module that starts programs. Programs are started
//! without a shell, with an empty standard input unless data is passed, and with a deadline. Errors contain the
//! standard error of the program.

pub mod atomic_file;
pub mod clock;
pub mod console_log;
pub mod efi;
pub mod gpt;
pub mod http;
pub mod ipmi;
pub(crate) mod kernel_log;
pub mod neighbor_table;
pub mod pem_encoding;
pub mod probe;
pub mod process;
pub mod safe_open;
pub mod storage;
pub mod verify_program;

#[cfg(test)]
testing::workers!(crate::verify_program::WORKER => || -> std::io::Result<()> { crate::verify_program::worker::run_verify_worker() });
