//! Requests that read and change deploy templates: `/v1/deploy_templates` as in Ironic, and `/v1/deploy-templates` as
//! in the Ironic specification that proposed them.

mod api_description;
mod changes;
mod handlers;
mod ironic_response;
mod json_patch;
mod listing;
mod microversions;
mod representation;
pub(crate) mod template_files;

pub(crate) use api_description::{
    ironic_list_parameters, ironic_list_schema, ironic_template_parameters, list_parameters, patch_schema,
    proposed_list_schema, request_schema, template_parameters, template_schema, version_parameters,
};
pub(crate) use handlers::{handle_ironic, handle_proposed};
pub use handlers::{show_root, show_version_one};
pub use template_files::TemplateWriter;

use uuid::Uuid;

fn new_uuid() -> String {
    Uuid::new_v4().to_string()
}
