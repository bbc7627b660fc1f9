//! Operation that writes files into an existing filesystem.

use crate::operation_text::{DeviceSizes, OperationLine, OperationText};
use crate::{Effect, PlannedOperation};
use common::format;
use serde::Serialize;

/// Operation that adds files to the mounted filesystem, or deletes files from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InjectFiles(pub Vec<InjectedFile>);

impl PlannedOperation for InjectFiles {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_injection(&self.0).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

fn describe_injection(files: &[InjectedFile]) -> OperationText {
    let line = |file: &InjectedFile| match &file.content {
        Some(content) => format!("{} with {}", file.path, format::format_bytes(content.len() as u64)),
        None => format!("{} deleted", file.path),
    };
    OperationText::after("write or delete these files:").with(files.iter().map(line).collect())
}

/// A file that is written into an existing filesystem, or deleted from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InjectedFile {
    /// Absolute path in the filesystem.
    pub path: String,
    /// Content of the file, which may be secret. If `None`, the file is deleted.
    #[serde(skip)]
    pub content: Option<Vec<u8>>,
    pub mode: u32,
    /// Name or number of the owner; root by default.
    #[serde(with = "common::empty_string_as_none")]
    pub owner: Option<String>,
    #[serde(with = "common::empty_string_as_none")]
    pub group: Option<String>,
}
