//! Form that creates the machine file of a registered machine. If an image is selected, the new file triggers an
//! installation. The form then first shows the plan of the installation, and the operator must type the machine's name.

use super::allocate::show_image_fields;
use super::page_frame;
use super::plan_preview::{self, PlanPreview};
use super::session::LoggedIn;
use super::submitted_forms::{ChangeForm, SubmittedForm};
use api::AppState;
use api::base_url::BaseUrls;
use api::install_state_enrichment::read_full_state;
use api::machine_file_creation::{MachineFileRequest, PreparedMachineFile, prepare_machine_file, write_machine_file};
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use http_server::api_error::ApiError;
use maud::{Markup, html};
use std::sync::Arc;
use uuid::Uuid;

/// Reads the properties of the machine from a form. An empty field counts as absent. The id of the allocation is also a
/// field of the form: the digest of the plan depends on this id, so it must not change between preview and
/// confirmation.
fn parse_request(form: &SubmittedForm) -> MachineFileRequest {
    let given = |name: &str| Some(form.get(name).trim().to_owned()).filter(|text| !text.is_empty());
    let keys = form.get("ssh_key").lines().map(str::trim).filter(|key| !key.is_empty());
    MachineFileRequest {
        name: given("name").unwrap_or_default(),
        size: None,
        image: given("image"),
        allocation: given("image").map(|_| given("allocation").unwrap_or_else(|| Uuid::new_v4().to_string())),
        layout: given("layout"),
        ssh_pub_keys: keys.map(str::to_owned).collect(),
    }
}

/// Machine file, and the plan of the installation that the file would trigger. Without an image, there is no plan.
struct AddPreview {
    prepared: PreparedMachineFile,
    plan: Option<PlanPreview>,
}

impl AddPreview {
    /// Returns a digest of the plan. The file is not created if the digest has changed since the plan was shown.
    fn digest(&self) -> String {
        match &self.plan {
            Some(PlanPreview::Planned(planned, _)) => {
                planned.verdicts.as_ref().map_or("nothing".to_owned(), |verdicts| verdicts.digest())
            }
            _ => String::new(),
        }
    }
}

async fn preview_add(
    app: &AppState,
    base: &BaseUrls,
    id: &str,
    machine_file_request: &MachineFileRequest,
) -> Result<AddPreview, ApiError> {
    let prepared = prepare_machine_file(app, id, machine_file_request).await?;
    let machine = &prepared.machine;
    let plan = match &machine.allocation {
        None => None,
        Some(_) => {
            let install_state = read_full_state(app, machine, &app.directory().known).await?;
            Some(plan_preview::load_preview(app, base, machine, install_state, false).await?)
        }
    };
    Ok(AddPreview { prepared, plan })
}

/// `GET /machines/{id}/add`: shows the form and, once its fields are submitted, the plan. Nothing is written.
pub(crate) async fn get_add(
    State(app): State<Arc<AppState>>,
    base: BaseUrls,
    person: LoggedIn,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Response> {
    let id = id.to_lowercase();
    let machine_file_request = parse_request(&SubmittedForm::parse_query(query.as_deref()));
    let (status, preview) = match machine_file_request.name.is_empty() {
        true => (StatusCode::OK, html! {}),
        false => match preview_add(&app, &base, &id, &machine_file_request).await {
            Ok(preview) => (StatusCode::OK, show_confirmation(&person, &id, &machine_file_request, &preview)),
            Err(error) => {
                let (status, why) = page_frame::named_words(&app, &person, error);
                (status, html! { p.problem.words role="alert" { strong { "Refused: " } (why) } })
            }
        },
    };
    let main = html! {
        p { a href={ "/machines/" (id) } { (id) } }
        h1 { "Add a machine" }
        (show_fields(&app, &machine_file_request))
        (preview)
    };
    let mut response = page_frame::render_page(&app, &person, "Add a machine", "", main);
    *response.status_mut() = status;
    Ok(response)
}

fn show_fields(app: &AppState, machine_file_request: &MachineFileRequest) -> Markup {
    let [image, layout] =
        [&machine_file_request.image, &machine_file_request.layout].map(|id| id.as_deref().unwrap_or_default());
    html! {
        form.stack method="get" {
            label for="name" { "Name" }
            input #name name="name" value=(machine_file_request.name) autocomplete="off" autocapitalize="off" spellcheck="false" required;
            (show_image_fields(&app.directory(), "none: only create the file", image, layout))
            label for="ssh_key" { "SSH public keys, one per line" }
            textarea #ssh_key name="ssh_key" rows="3" spellcheck="false" { (machine_file_request.ssh_pub_keys.join("\n")) }
            button { "Continue" }
        }
        p.faint { "Nothing is written yet." }
    }
}

/// Shows the plan and the form that creates the file. If the plan is refused, shows the reason instead of the form.
fn show_confirmation(
    person: &LoggedIn,
    id: &str,
    machine_file_request: &MachineFileRequest,
    preview: &AddPreview,
) -> Markup {
    let file = &preview.prepared.added.file;
    match &preview.plan {
        None => html! {
            p { (file) " will describe this machine. Nothing is installed." }
            (show_create_form(person, id, machine_file_request, preview))
        },
        Some(PlanPreview::Refused(why)) => html! {
            h2 { "Plan refused" }
            pre.problem tabindex="0" role="alert" { (why) }
            p { "This machine cannot be added with this image and layout." }
        },
        Some(PlanPreview::Unknown(why)) => html! {
            p.problem role="alert" { "The plan is unknown: " (why) "." }
            p { "As long as the plan is unknown, add the machine without an image, or on the command line: "
                code { "drophammer machine add " (id) " --name " (machine_file_request.name) } }
        },
        Some(PlanPreview::Planned(planned, registered)) => html! {
            p.problem { "The machine will be installed as soon as " (file) " exists: at once if the machine waits in the ramdisk, and otherwise at its next boot over PXE." }
            (plan_preview::show_inventory_source(registered))
            (plan_preview::show_plan(planned))
            (show_create_form(person, id, machine_file_request, preview))
        },
    }
}

fn show_create_form(
    person: &LoggedIn,
    id: &str,
    machine_file_request: &MachineFileRequest,
    preview: &AddPreview,
) -> Markup {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let fields = [
        ("name", machine_file_request.name.clone()),
        ("image", text(&machine_file_request.image)),
        ("allocation", text(&machine_file_request.allocation)),
        ("layout", text(&machine_file_request.layout)),
        ("ssh_key", machine_file_request.ssh_pub_keys.join("\n")),
        ("shown", preview.digest()),
    ];
    html! {
        form.stack method="post" action={ "/machines/" (id) "/add" } {
            (page_frame::form_token(person))
            @for (field, value) in &fields { input type="hidden" name=(field) value=(value); }
            @if let Some(image) = &machine_file_request.image {
                label for="typed" { "Type " strong { (machine_file_request.name) } " to confirm" }
                input #typed name="typed" data-name=(machine_file_request.name) autocomplete="off" autocapitalize="off" spellcheck="false" required;
                button.danger { "Add " (machine_file_request.name) " and install " (image) }
            } @else {
                button { "Add " (machine_file_request.name) }
            }
        }
    }
}

/// `POST /machines/{id}/add`: creates the file if the plan is still the plan that was shown. The checks are the same as
/// in the API.
pub(crate) async fn post_add(base: BaseUrls, change: ChangeForm) -> Response {
    let done = async {
        let ChangeForm { app, form, .. } = &change;
        let machine_file_request = parse_request(form);
        if machine_file_request.image.is_some() && form.get("typed").trim() != machine_file_request.name {
            let (typed, name) = (form.get("typed"), &machine_file_request.name);
            let message = format!("nothing was added: {typed:?} was typed, but the machine's name is {name:?}");
            return Err(ApiError::bad_request(message));
        }
        let preview = preview_add(app, &base, change.machine_id(), &machine_file_request).await?;
        let is_planned = matches!(&preview.plan, None | Some(PlanPreview::Planned(..)));
        if !is_planned || preview.digest() != form.get("shown") {
            let why = "nothing was added: the plan has changed since it was shown. Go back and review the plan";
            return Err(ApiError::new(StatusCode::CONFLICT, why));
        }
        write_machine_file(app, change.peer, preview.prepared).await
    };
    change.respond(done.await.map(|added| added.id))
}
