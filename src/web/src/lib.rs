//! The operator's web page: server-rendered HTML that works without JavaScript. Users log in with a token, or with
//! OpenID Connect.
//!
//! * Access: `session` and `oidc_login` log users in, and `submitted_forms` parses submitted forms and checks those
//!   that request a change.
//! * Frame: `page_frame` renders the frame of every page, `live_update_stream` sends events, and `assets` contains
//!   style sheet, script and icon.
//! * Machines: `machine_list` renders the list, which `machine_list_query` filters and sorts, also by
//!   `hardware_identifiers` and `static_addresses`. `rack_drawing` draws all machines as squares. `machine` renders the
//!   page of one machine, with `machine_hardware`, the drawings of `disk_drawings` and `installed_disks`, the last
//!   `install_report`, the `machine_events`, the plan from `plan_preview`, and the timeline from `machine_timeline`.
//!   `discovered_layout` returns the layout of a machine that another installer has installed.
//! * Changes of a machine: `power_lock_and_free_page` switches machines on and off, locks and frees them,
//!   `machine_file_editor` edits machine files, `allocate` adds allocations, and `add_machine` creates machine files.
//!   `machine_file_preview` checks edited files, and `machine_name_confirmation` renders the field for the name of
//!   the machine. `reinstall` orders reinstalls. `bulk_actions` carries out actions on several machines, whose effect
//!   on each machine `bulk_review` determines, and `bulk_pages` renders its pages.
//! * Overviews: `rack_plan` shows the plans of all machines, which `rack_plan_computation` computes. `rollouts` shows,
//!   halts and resumes rollouts. `layout_image_and_order_pages` renders layouts, images and orders, `audit` renders the
//!   audit log, and `size_template_and_volume_pages` renders sizes, templates and volumes.

mod add_machine;
mod allocate;
mod allocation_differences;
mod assets;
mod audit;
mod bulk_actions;
mod bulk_pages;
mod bulk_review;
mod discovered_layout;
mod disk_drawings;
mod hardware_identifiers;
mod install_report;
mod installed_disks;
mod layout_image_and_order_pages;
mod live_update_stream;
mod machine;
mod machine_console_log;
mod machine_events;
mod machine_file_editor;
mod machine_file_preview;
mod machine_hardware;
mod machine_list;
mod machine_list_query;
mod machine_name_confirmation;
mod machine_timeline;
mod oidc_login;
mod page_frame;
mod plan_preview;
mod power_lock_and_free_page;
mod rack_drawing;
mod rack_plan;
mod rack_plan_computation;
mod reinstall;
mod rollouts;
mod session;
mod size_template_and_volume_pages;
mod static_addresses;
mod submitted_forms;
mod volumes;

use api::base_url::BaseUrls;
use api::{AppState, deploy_templates};
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use hardware_identifiers::HardwareIdentifiers;
use rack_plan_computation::RackPlanRuns;
use session::LoggedIn;
pub use session::render_refusal;
use std::sync::Arc;

/// Returns the routes of the web page.
pub fn web_routes() -> Router<Arc<AppState>> {
    Router::new()
        .route("/", get(get_root))
        .route("/login", get(session::get_login).post(session::post_login))
        .route("/oidc/login", get(oidc_login::get_login))
        .route("/oidc/callback", get(oidc_login::get_callback))
        .route("/logout", post(session::post_logout))
        .route("/events", get(live_update_stream::get_events))
        .route("/bulk/review", post(bulk_actions::post_review))
        .route("/bulk/confirm", post(bulk_actions::post_confirm))
        .route("/machines/{id}", get(machine::get_machine))
        .route("/machines/{id}/actions", get(power_lock_and_free_page::get_actions))
        .route("/machines/{id}/power", post(power_lock_and_free_page::post_power))
        .route("/machines/{id}/lock", post(power_lock_and_free_page::post_lock))
        .route("/machines/{id}/free", post(power_lock_and_free_page::post_free))
        .route("/machines/{id}/file", get(machine_file_editor::get_file).post(machine_file_editor::post_file))
        .route("/machines/{id}/allocate", get(allocate::get_allocate).post(allocate::post_allocate))
        .route("/machines/{id}/add", get(add_machine::get_add).post(add_machine::post_add))
        .route("/machines/{id}/layout.svg", get(installed_disks::get_installed_diagram))
        .route("/machines/{id}/layout.yaml", get(discovered_layout::get_discovered_layout))
        .route("/machines/{id}/log", get(machine_console_log::show_log))
        .route("/machines/{id}/row", get(machine_list::get_row))
        .route("/machines/{id}/reinstall", get(reinstall::get_reinstall).post(reinstall::post_reinstall))
        .route("/machines/{id}/cancel", post(reinstall::post_cancel))
        .route("/layouts", get(layout_image_and_order_pages::get_layouts))
        .route("/layouts/{id}/picture.svg", get(layout_image_and_order_pages::get_diagram))
        .route("/images", get(layout_image_and_order_pages::get_images))
        .route("/sizes", get(size_template_and_volume_pages::get_sizes))
        .route("/templates", get(size_template_and_volume_pages::get_templates))
        .route("/volumes", get(size_template_and_volume_pages::get_volumes))
        .route("/orders", get(layout_image_and_order_pages::get_orders))
        .route("/rollouts", get(rollouts::get_rollouts))
        .route("/rollouts/{id}", get(rollouts::get_rollout))
        .route("/rollouts/{id}/halt", post(rollouts::post_halt))
        .route("/rollouts/{id}/resume", post(rollouts::post_resume))
        .route("/plan", get(rack_plan::get_plan))
        .route("/audit", get(audit::get_audit))
        .route("/page.css", get(assets::get_style))
        .route("/page.js", get(assets::get_script))
        .route("/page.svg", get(assets::get_icon))
        .layer(Extension(HardwareIdentifiers::default()))
        .layer(Extension(RackPlanRuns::default()))
}

/// Handles `GET /`: returns the web page to browsers, and the API versions to OpenStack clients.
async fn get_root(
    app: State<Arc<AppState>>,
    identifiers: Extension<HardwareIdentifiers>,
    base: BaseUrls,
    person: Result<LoggedIn, Response>,
    query: RawQuery,
    headers: HeaderMap,
) -> Response {
    if !page_frame::is_for_browser(&headers) {
        return deploy_templates::show_root(headers, base).await;
    }
    match person {
        Ok(person) => machine_list::get_machines(app, identifiers, person, query).await.into_response(),
        Err(response) => response,
    }
}
