//! Digests of those inputs of an installation that the verdicts of the plan do not cover: the content of the image, and
//! the fields of the allocation. An approval that `machine reinstall --plan` writes contains these digests. The server
//! withholds the allocation if an input has changed since the approval.

use crate::allocation_resolution::ResolvedAllocation;
use crate::operator_files::{ImageLocation, ImageSpec};
use common::error_code::ErrorCode;
use model::allocation::Allocation;
use model::secret_text::SecretText;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// Digest of each input, by the name of the field.
pub type InputDigests = BTreeMap<String, String>;

/// Returns the digests of all fields that are set. The console password and the disk key are not included: both are
/// secrets, and neither changes what is written to the disks.
pub fn digest_inputs(resolved: &ResolvedAllocation) -> InputDigests {
    let ResolvedAllocation { allocation, image, layout, steps, .. } = resolved;
    let definition = allocation.definition.for_machine(true);
    let told = Allocation {
        definition,
        filesystemlayout: layout.clone(),
        steps: steps.clone(),
        console_password: String::new(),
        disk_key: SecretText::default(),
        ..allocation.to_agent_allocation()
    };
    let mut fields = to_fields(&told);
    // Fields with default values are omitted. A field that a later version adds therefore does not change the digests
    // of allocations that do not use it.
    let defaults = to_fields(&Allocation::default());
    fields.retain(|name, value| defaults.get(name) != Some(value));
    fields.insert("image".to_owned(), describe_image(image));
    fields.into_iter().map(|(name, value)| (name, digest(&value))).collect()
}

fn to_fields(allocation: &Allocation) -> Map<String, Value> {
    match serde_json::to_value(allocation) {
        Ok(Value::Object(fields)) => fields,
        // This case does not occur, because an allocation is always serialized as an object.
        _ => Map::new(),
    }
}

/// Describes the image by its digest if the digest is known, and otherwise by its address.
fn describe_image(image: &ImageSpec) -> Value {
    let address = match (&image.digest, &image.at) {
        (Some(_), _) => "",
        (None, ImageLocation::Url(url)) => url,
        (None, ImageLocation::File(file)) => file,
    };
    let mut described = json!({ "id": image.id, "digest": image.digest, "address": address, "finish": image.finish,
        "contents": image.contents });
    // A missing architecture is omitted, so that the digests of images without an architecture are those of earlier
    // versions.
    if let Some(architecture) = image.architecture {
        described["architecture"] = json!(architecture);
    }
    described
}

fn digest(value: &Value) -> String {
    format!("sha256:{:x}", Sha256::digest(value.to_string()))
}

/// Returns the names of the inputs that differ. Returns no names if either map is empty, because earlier versions wrote
/// no digests.
pub fn list_changed_inputs(approved: &InputDigests, present: &InputDigests) -> Vec<String> {
    if approved.is_empty() || present.is_empty() {
        return Vec::new();
    }
    let names: BTreeSet<&String> = approved.keys().chain(present.keys()).collect();
    names.into_iter().filter(|name| approved.get(*name) != present.get(*name)).cloned().collect()
}

/// Describes a changed input for a message.
pub fn describe_changed_input(name: &str, image: &str) -> String {
    match name {
        "filesystemlayout" => "the layout has changed".to_owned(),
        "image" => format!("image {image} has changed"),
        _ => format!("the allocation's field {name} has changed"),
    }
}

/// Checks that the inputs have not changed since the operator approved the plan.
///
/// # Errors
/// Returns a message that names each changed input.
pub(crate) fn check_inputs(
    machine: &str,
    approved: Option<&InputDigests>,
    resolved: &ResolvedAllocation,
) -> Result<(), String> {
    let Some(approved) = approved.filter(|approved| !approved.is_empty()) else { return Ok(()) };
    let changed = list_changed_inputs(approved, &digest_inputs(resolved));
    if changed.is_empty() {
        return Ok(());
    }
    let changed: Vec<String> = changed.iter().map(|name| describe_changed_input(name, &resolved.image.id)).collect();
    let why = format!(
        "machine {machine} cannot carry out its approved plan: {}; revert the change, or cancel the reinstall \
         (`drophammer machine reinstall {machine} --cancel`), and save and order a new plan",
        changed.join("; ")
    );
    Err(ErrorCode::ApprovalMismatch.annotate(why))
}
