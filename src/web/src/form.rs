//! Submitted forms.

use super::session::{LoggedIn, is_cross_site};
use api::AppState;
use api::agent_api::request_body::{EVENT_BYTES, read_body};
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use http_server::api_error::ApiError;
use http_server::quotas::ClientAddress;
use store::token;

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

    /// Reads a form that requests a change. Rejects forms from other sites or other sessions.
    pub(crate) async fn read_verified(
        app: &AppState,
        person: &LoggedIn,
        peer: ClientAddress,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<SubmittedForm, ApiError> {
        SubmittedForm::read_verified_up_to(app, person, peer, headers, body, EVENT_BYTES).await
    }

    /// Reads a form that requests a change and contains up to `limit` bytes.
    pub(crate) async fn read_verified_up_to(
        app: &AppState,
        person: &LoggedIn,
        peer: ClientAddress,
        headers: &HeaderMap,
        body: Body,
        limit: usize,
    ) -> Result<SubmittedForm, ApiError> {
        let form = SubmittedForm::read_up_to(app, peer, body, limit).await?;
        let is_ours = token::hashes_equal(&token::hash_token(form.get(TOKEN)), &token::hash_token(&person.form));
        match is_ours && !is_cross_site(headers) {
            true => Ok(form),
            false => Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "this form does not belong to your session: go back, reload the page, and submit it again",
            )),
        }
    }

    /// Parses a query string. No form token is needed, since a GET does not change anything.
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
