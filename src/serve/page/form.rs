//! Submitted forms.

use super::session::{Person, is_from_elsewhere};
use crate::serve::App;
use crate::serve::api::bodies::{EVENT_BYTES, bytes};
use crate::serve::api_error::ApiError;
use crate::serve::peers::Peer;
use crate::serve::token;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};

/// Name of the field with the session's form token.
pub const TOKEN: &str = "form";

/// Fields of a form, in their order.
#[derive(Debug, Clone, Default)]
pub struct Form(Vec<(String, String)>);

impl Form {
    /// Reads a form, with the size limit of API requests.
    pub async fn read(app: &App, peer: Peer, body: Body) -> Result<Form, ApiError> {
        let bytes = bytes(app, peer, body, EVENT_BYTES).await?;
        let fields = serde_urlencoded::from_bytes(&bytes);
        fields.map(Form).map_err(|error| ApiError::bad(format!("cannot parse the form: {error}")))
    }

    /// Reads a form that changes something: it must come from a page of this session, and not from another site.
    pub async fn of(app: &App, person: &Person, peer: Peer, headers: &HeaderMap, body: Body) -> Result<Form, ApiError> {
        let form = Form::read(app, peer, body).await?;
        let is_ours = token::same(&token::hash(form.get(TOKEN)), &token::hash(&person.form));
        match is_ours && !is_from_elsewhere(headers) {
            true => Ok(form),
            false => Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "this form does not belong to your session: go back, reload the page, and submit it again",
            )),
        }
    }

    /// Parses a query, which does not change anything.
    pub fn of_query(query: Option<&str>) -> Form {
        Form(serde_urlencoded::from_str(query.unwrap_or_default()).unwrap_or_default())
    }

    /// Returns the value of a field, or an empty string.
    pub fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str()).unwrap_or_default()
    }
}
