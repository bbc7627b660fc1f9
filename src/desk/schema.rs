//! `drophammer schema`: the JSON Schema (draft 2020-12) of what people write, for editors that complete and check it.
//!
//! Fields, kinds and descriptions come from the types themselves; what the types do not say (rules of the format,
//! other spellings that are read) is in [`rules`].

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

/// What is asked for.
#[derive(Debug, Args)]
pub struct Options {
    /// What the schema is of.
    pub of: Document,
}

/// A document that people write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Document {
    Layout,
    /// What an agent gets from its control plane.
    Allocation,
    /// A file of `machines/` of `drophammer serve`.
    Machine,
    /// A file of `images/` of `drophammer serve`.
    Image,
    /// What `image pack` lays beside an image.
    Manifest,
    /// A file of `deploy-templates/` of `drophammer serve`.
    Template,
}

/// Prints the schema.
///
/// # Errors
/// It cannot be printed.
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
