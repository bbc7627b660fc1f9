//! What a form of a page sends.

use super::session::{Person, is_from_elsewhere};
use crate::serve::App;
use crate::serve::api::bodies::{EVENT_BYTES, bytes};
use crate::serve::api_error::ApiError;
use crate::serve::peers::Peer;
use crate::serve::token;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};

/// The name of the field with the session's form token.
pub const TOKEN: &str = "form";

/// Its fields, in their order.
#[derive(Debug, Clone, Default)]
pub struct Form(Vec<(String, String)>);

impl Form {
    /// With the bounds that calls have.
    pub async fn read(app: &App, peer: Peer, body: Body) -> Result<Form, ApiError> {
        let bytes = bytes(app, peer, body, EVENT_BYTES).await?;
        let fields = serde_urlencoded::from_bytes(&bytes);
        fields.map(Form).map_err(|error| ApiError::bad(format!("this is no form: {error}")))
    }

    /// One that changes something: it comes from a page of this session, and from no other site.
    pub async fn of(app: &App, person: &Person, peer: Peer, headers: &HeaderMap, body: Body) -> Result<Form, ApiError> {
        let form = Form::read(app, peer, body).await?;
        let is_ours = token::same(&token::hash(form.get(TOKEN)), &token::hash(&person.form));
        match is_ours && !is_from_elsewhere(headers) {
            true => Ok(form),
            false => Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "this form is not from a page of your session: go back, load the page again, and send it again",
            )),
        }
    }

    /// Of a query, which changes nothing.
    pub fn of_query(query: Option<&str>) -> Form {
        Form(serde_urlencoded::from_str(query.unwrap_or_default()).unwrap_or_default())
    }

    /// Empty when there is no such field.
    pub fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str()).unwrap_or_default()
    }
}
