//! `drophammer schema`: prints the JSON Schema (draft 2020-12) of files that operators write, for completion and checks
//! in editors.
//!
//! Fields, types and descriptions are derived from the Rust types. [`layout_rules`] adds restrictions of the format,
//! and accepted alternative spellings.

mod deploy_template;
mod image;
mod layout_rules;
mod machine;
mod manifest;
#[cfg(test)]
mod tests;

use clap::{Args, ValueEnum};
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::json_schema_cleanup::remove_nonstandard_formats;
use common::output::{print_text, to_json};
use model::allocation::AssignedMachine;
use model::layout::Layout;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// Options of `drophammer schema`.
#[derive(Debug, Args)]
pub struct SchemaOptions {
    /// The type of document whose schema is printed.
    pub of: SchemaDocument,
}

/// Documents for which a schema can be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchemaDocument {
    Layout,
    /// The document that an agent receives from its control plane.
    Allocation,
    /// A machine file, in `machines/` of a server's directory.
    Machine,
    /// An image file, in `images/` of a server's directory.
    Image,
    /// The manifest that `image pack` writes next to an image.
    Manifest,
    /// A deploy template, in `deploy-templates/` of a server's directory.
    Template,
}

/// Prints the schema.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn run_schema(options: &SchemaOptions) -> Result<CommandOutcome> {
    print_text(&(to_json(&generate_schema(options.of))? + "\n"))?;
    Ok(CommandOutcome::Good)
}

pub(crate) fn generate_schema(document: SchemaDocument) -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let schema = match document {
        SchemaDocument::Layout => generator.into_root_schema_for::<Layout>(),
        SchemaDocument::Allocation => generator.into_root_schema_for::<AssignedMachine>(),
        SchemaDocument::Machine => return machine::machine_schema(),
        SchemaDocument::Image => return image::image_schema(),
        SchemaDocument::Manifest => return manifest::manifest_schema(),
        SchemaDocument::Template => return deploy_template::template_schema(),
    };
    let mut schema = schema.to_value();
    remove_nonstandard_formats(&mut schema);
    if document == SchemaDocument::Layout {
        layout_rules::add_layout_rules(&mut schema);
    } else if let Some(layout) = schema.pointer_mut("/$defs/Layout") {
        layout_rules::add_layout_rules(layout);
    }
    if let Some(definitions) = schema.get_mut("$defs").and_then(Value::as_object_mut) {
        layout_rules::add_definition_rules(definitions);
    }
    schema
}
