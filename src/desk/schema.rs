//! `drophammer schema`: JSON Schema (draft 2020-12) of the files that operators write, for completion and checks in editors.
//!
//! Fields, types and descriptions are derived from the Rust types; [`rules`] adds constraints of the format and accepted alternative
//! spellings.

mod image;
mod machine;
mod manifest;
mod rules;
mod template;
#[cfg(test)]
mod tests;

use crate::allocation::Machine;
use crate::error::Result;
use crate::exit::Exit;
use crate::layout::Layout;
use crate::schema::without_widths;
use crate::stdout::{json, print};
use clap::{Args, ValueEnum};
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// Options of `drophammer schema`.
#[derive(Debug, Args)]
pub struct Options {
    /// The document to describe.
    pub of: Document,
}

/// Documents with a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Document {
    Layout,
    /// The document that an agent receives from its control plane.
    Allocation,
    /// A file of `machines/` of `drophammer serve`.
    Machine,
    /// A file of `images/` of `drophammer serve`.
    Image,
    /// The manifest that `image pack` writes next to an image.
    Manifest,
    /// A file of `deploy-templates/` of `drophammer serve`.
    Template,
}

/// Prints the schema.
///
/// # Errors
/// Standard output cannot be written.
pub fn schema(options: &Options) -> Result<Exit> {
    print(&(json(&of(options.of))? + "\n"))?;
    Ok(Exit::Good)
}

fn of(document: Document) -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let schema = match document {
        Document::Layout => generator.into_root_schema_for::<Layout>(),
        Document::Allocation => generator.into_root_schema_for::<Machine>(),
        Document::Machine => return machine::schema(),
        Document::Image => return image::schema(),
        Document::Manifest => return manifest::schema(),
        Document::Template => return template::schema(),
    };
    let mut schema = schema.to_value();
    without_widths(&mut schema);
    if document == Document::Layout {
        rules::layout(&mut schema);
    } else if let Some(layout) = schema.pointer_mut("/$defs/Layout") {
        rules::layout(layout);
    }
    if let Some(definitions) = schema.get_mut("$defs").and_then(Value::as_object_mut) {
        rules::definitions(definitions);
    }
    schema
}
