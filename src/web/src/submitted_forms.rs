//! Submitted forms. [`ChangeForm`] is the extractor of all handlers that change something.

use super::page_frame;
use super::session::{LoggedIn, is_cross_site};
use api::AppState;
use api::metal_api::EditPermit;
use api::operator_api::find_machine;
use api::request_body::{EVENT_BYTES, read_body};
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use site::operator_files::MachineSpec;
use std::collections::HashMap;
use std::sync::Arc;
use store::token_hash;

/// Name of the form field that contains the session's form token.
pub(crate) const TOKEN: &str = "form";

/// Fields of a form, in the order of submission.
#[derive(Debug, Clone, Default)]
pub(crate) struct SubmittedForm(Vec<(String, String)>);

impl SubmittedForm {
    /// Reads a form, with the size limit of API requests.
    pub(crate) async fn read_body(app: &AppState, peer: ClientAddress, body: Body) -> Result<SubmittedForm, ApiError> {
        SubmittedForm::read_up_to(app, peer, body, EVENT_BYTES).await
    }

    async fn read_up_to(
        app: &AppState,
        peer: ClientAddress,
        body: Body,
        limit: usize,
    ) -> Result<SubmittedForm, ApiError> {
        let bytes = read_body(app, peer, body, limit).await?;
        let fields = serde_urlencoded::from_bytes(&bytes);
        fields.map(SubmittedForm).map_err(|error| ApiError::bad_request(format!("cannot parse the form: {error}")))
    }

    /// Parses a query string. No form token is required, because GET requests change nothing.
    pub(crate) fn parse_query(query: Option<&str>) -> SubmittedForm {
        SubmittedForm(serde_urlencoded::from_str(query.unwrap_or_default()).unwrap_or_default())
    }

    /// Returns the values of all fields with this name, in the order of submission.
    pub(crate) fn get_all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// Returns the value of a field, or an empty string.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str()).unwrap_or_default()
    }
}

/// Form of at most `BYTES` bytes that requests a change. As an extractor, it rejects clients that are not logged in,
/// and forms from other sessions or other sites.
pub(crate) struct ChangeForm<const BYTES: usize = EVENT_BYTES> {
    pub app: Arc<AppState>,
    pub person: LoggedIn,
    pub peer: ClientAddress,
    pub form: SubmittedForm,
    headers: HeaderMap,
    /// Id of the machine in the path, in lower case; empty if the path does not contain an id.
    id: String,
}

impl<const BYTES: usize> ChangeForm<BYTES> {
    /// Returns the machine whose id is in the path of the URL.
    ///
    /// # Errors
    /// Returns an error if the machine has no machine file.
    pub(crate) fn find_machine(&self) -> Result<MachineSpec, ApiError> {
        find_machine(&self.app, &self.id)
    }

    /// Returns the id of the machine in the path of the URL. This machine need not have a machine file.
    pub(crate) fn machine_id(&self) -> &str {
        &self.id
    }

    /// Waits for the permit to change files.
    pub(crate) async fn wait_for_permit(&self) -> EditPermit {
        EditPermit::wait_for_permit(&self.app, self.peer, self.headers.clone()).await
    }

    /// Returns the page that shows the error.
    pub(crate) fn show_error(&self, error: ApiError) -> Response {
        page_frame::render_error(&self.app, Some(&self.person), error)
    }

    /// Redirects to the page of the machine that was changed, or shows the error.
    pub(crate) fn respond(&self, changed: Result<String, ApiError>) -> Response {
        match changed {
            Ok(id) => Redirect::to(&format!("/machines/{id}")).into_response(),
            Err(error) => self.show_error(error),
        }
    }
}

impl<const BYTES: usize> FromRequest<Arc<AppState>> for ChangeForm<BYTES> {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Arc<AppState>) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let person = LoggedIn::from_request_parts(&mut parts, app).await?;
        let refused = |error: ApiError| page_frame::render_error(app, Some(&person), error);
        let peer = ClientAddress::from_request_parts(&mut parts, app).await.map_err(IntoResponse::into_response)?;
        let path: Path<HashMap<String, String>> =
            Path::from_request_parts(&mut parts, app).await.map_err(IntoResponse::into_response)?;
        let form = SubmittedForm::read_up_to(app, peer, body, BYTES).await.map_err(refused)?;
        let is_ours =
            token_hash::hashes_equal(&token_hash::hash_token(form.get(TOKEN)), &token_hash::hash_token(&person.form));
        if !is_ours || is_cross_site(&parts.headers) {
            let why = "this form does not belong to your session: go back, reload the page, and submit it again";
            return Err(refused(ApiError::new(StatusCode::FORBIDDEN, why).with_error_code(ErrorCode::ControlPlane)));
        }
        let id = path.get("id").map(|id| id.to_lowercase()).unwrap_or_default();
        Ok(ChangeForm { app: app.clone(), person, peer, form, headers: parts.headers, id })
    }
}
