//! Bearer token of a request (RFC 6750).

use axum::http::{HeaderMap, header};
use store::token_hash;

/// Returns the hash of the request's bearer token.
pub(crate) fn bearer_hash(headers: &HeaderMap) -> Option<token_hash::TokenHash> {
    bearer_token(headers).map(token_hash::hash_token)
}

/// Returns the request's bearer token.
pub(crate) fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
