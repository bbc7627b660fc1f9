//! Verification of ID tokens (OpenID Connect Core, 3.1.3.7). A token is accepted only shortly after it was issued.

use crate::key_set::ProviderKeys;
use crate::ring_signatures::install_provider;
use crate::settings::OidcSettings;
use common::encoding::encode_hex;
use jsonwebtoken::errors::{Error as TokenError, ErrorKind};
use jsonwebtoken::{Algorithm, Validation, decode, decode_header, get_current_timestamp};
use ring::digest::{SHA256, digest};
use serde_json::{Map, Value};
use std::fmt;

/// Maximum length of an ID token, in bytes.
pub const TOKEN_BYTES: usize = 32 << 10;
/// Tolerated difference between the clocks of provider and server, in seconds.
const LEEWAY: u64 = 60;
/// Maximum age of a token, in seconds.
const MAXIMUM_AGE_SECONDS: u64 = 600;
/// Maximum length of a subject or another identifier in a token, in bytes.
const IDENTIFIER_BYTES: usize = 255;
/// Maximum number of groups of a user.
const MAXIMUM_GROUPS: usize = 2000;
/// Algorithms of signatures. Neither `none` nor algorithms with a shared secret are accepted.
const ALGORITHMS: [Algorithm; 4] = [Algorithm::RS256, Algorithm::PS256, Algorithm::ES256, Algorithm::EdDSA];

/// Login for which a token is accepted.
#[derive(Debug, Clone, Copy)]
pub struct TokenExpectation<'a> {
    /// Client to which the token must have been issued.
    pub client: &'a str,
    /// Expected value of the claim `nonce`. If it is `None`, a token with a nonce is refused, because a token with a
    /// nonce was issued for another login.
    pub nonce: Option<&'a str>,
}

/// Identity of a user, from a verified token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedIdentity {
    pub issuer: String,
    pub subject: String,
    /// Name of the user; `None` if the token contains no suitable claim.
    pub name: Option<String>,
    pub groups: Vec<String>,
    /// Time at which the token expires, in seconds since 1970.
    pub expires: u64,
    /// Hashes that identify the token. If an earlier login has used one of them, the token was replayed.
    pub marks: Vec<String>,
}

/// Reason why a token is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenFault {
    /// The provider's keys do not include the key that the token names. The fetched keys may be outdated.
    UnknownKey,
    Invalid(String),
}

impl fmt::Display for TokenFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenFault::UnknownKey => f.write_str("the token is not signed with a key of the identity provider"),
            TokenFault::Invalid(why) => f.write_str(why),
        }
    }
}

fn invalid<T>(why: impl Into<String>) -> Result<T, TokenFault> {
    Err(TokenFault::Invalid(why.into()))
}

/// Verifies a token, and returns the identity of its user.
///
/// # Errors
/// Returns the reason why the token is refused.
pub fn verify_id_token(
    token: &str,
    keys: &ProviderKeys,
    settings: &OidcSettings,
    expected: TokenExpectation,
) -> Result<VerifiedIdentity, TokenFault> {
    install_provider();
    if token.len() > TOKEN_BYTES {
        return invalid(format!("the token is {} bytes; at most {TOKEN_BYTES} are supported", token.len()));
    }
    let header = decode_header(token).map_err(|error| describe_fault(&error))?;
    if !ALGORITHMS.contains(&header.alg) {
        return invalid(format!("the token's algorithm {:?} is not accepted", header.alg));
    }
    // The type of the token is checked, because access tokens (RFC 9068) and logout tokens, which have other types,
    // must not be accepted.
    if header.typ.as_ref().is_some_and(|kind| !kind.eq_ignore_ascii_case("JWT")) {
        return invalid("the token's type is not that of an ID token");
    }
    let key = keys.find_key(header.alg, header.kid.as_deref()).ok_or(TokenFault::UnknownKey)?;
    let mut validation = Validation::new(header.alg);
    (validation.leeway, validation.validate_nbf) = (LEEWAY, true);
    validation.set_issuer(&[&settings.issuer]);
    validation.set_audience(&[expected.client]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    let claims: Map<String, Value> = decode(token, key, &validation).map_err(|error| describe_fault(&error))?.claims;
    check_claims(&claims, expected)?;
    read_identity(token, &claims, settings)
}

fn describe_fault(error: &TokenError) -> TokenFault {
    let why = match error.kind() {
        ErrorKind::InvalidSignature => "the token's signature is invalid",
        ErrorKind::InvalidIssuer => "the token was issued by another identity provider",
        ErrorKind::InvalidAudience => "the token was issued to another client",
        ErrorKind::ExpiredSignature => "the token has expired; check the clocks of server and provider",
        ErrorKind::ImmatureSignature => "the token is not valid yet; check the clocks of server and provider",
        ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => "the token's algorithm is not accepted",
        ErrorKind::MissingRequiredClaim(claim) => {
            return TokenFault::Invalid(format!("the token lacks the claim {claim}"));
        }
        ErrorKind::InvalidClaimFormat(claim) => {
            return TokenFault::Invalid(format!("the token's claim {claim} is invalid"));
        }
        ErrorKind::Json(_) if error.to_string().contains("unknown variant") => "the token's algorithm is not accepted",
        _ => "the token is not a valid JSON Web Token",
    };
    TokenFault::Invalid(why.to_owned())
}

fn text<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    claims.get(name).and_then(Value::as_str)
}

/// Checks the claims that the library `jsonwebtoken` does not check.
fn check_claims(claims: &Map<String, Value>, expected: TokenExpectation) -> Result<(), TokenFault> {
    // The claim must be a single text, because the library would also accept a list of issuers.
    if !claims.get("iss").is_some_and(Value::is_string) {
        return invalid("the token's claim iss is invalid");
    }
    let now = get_current_timestamp();
    let Some(issued) = claims.get("iat").and_then(Value::as_f64).filter(|issued| *issued >= 0.0) else {
        return invalid("the token lacks the claim iat");
    };
    let issued = issued as u64;
    if issued > now + LEEWAY {
        return invalid("the token was issued in the future; check the clocks of server and provider");
    }
    if issued + MAXIMUM_AGE_SECONDS + LEEWAY < now {
        return invalid("the token was issued more than 10 minutes ago; log in again");
    }
    let has_several = claims.get("aud").and_then(Value::as_array).is_some_and(|all| all.len() > 1);
    match claims.get("azp") {
        Some(party) if party.as_str() != Some(expected.client) => {
            return invalid("the token was issued to another client");
        }
        None if has_several => return invalid("the token has several audiences, but no authorized party"),
        _ => {}
    }
    match (expected.nonce, claims.get("nonce")) {
        (Some(nonce), Some(given)) if given.as_str() == Some(nonce) => Ok(()),
        (None, None) => Ok(()),
        (Some(_), _) => invalid("the token's nonce is not that of this login"),
        (None, Some(_)) => invalid("the token has a nonce, so it was issued for a login at a web page"),
    }
}

fn read_identity(
    token: &str,
    claims: &Map<String, Value>,
    settings: &OidcSettings,
) -> Result<VerifiedIdentity, TokenFault> {
    let subject = text(claims, "sub").unwrap_or_default();
    let is_usable = |name: &str| !name.is_empty() && name.len() <= IDENTIFIER_BYTES;
    if !is_usable(subject) {
        return invalid("the token's claim sub is empty or too long");
    }
    let expires = claims.get("exp").and_then(Value::as_f64).unwrap_or_default() as u64 + LEEWAY;
    // The signature is not part of the hash, because an ECDSA signature can be converted to another valid one.
    let signed = token.rsplit_once('.').map_or(token, |(signed, _)| signed);
    let hash = |name: &str, value: &str| {
        encode_hex(digest(&SHA256, format!("{name}\n{}\n{value}", settings.issuer).as_bytes()))
    };
    let mut marks = vec![hash("token", signed)];
    marks.extend(text(claims, "jti").map(|id| hash("jti", id)));
    marks.extend(text(claims, "nonce").map(|nonce| hash("nonce", nonce)));
    // The email address is used only if it is verified, because many providers let users enter any address.
    let is_trusted = |claim: &str| claim != "email" || claims.get("email_verified") == Some(&Value::Bool(true));
    let mut names = settings.user_claims.iter().filter(|claim| is_trusted(claim));
    let name = names.find_map(|claim| text(claims, claim)).filter(|name| is_usable(name));
    Ok(VerifiedIdentity {
        issuer: settings.issuer.clone(),
        subject: subject.to_owned(),
        name: name.map(str::to_owned),
        groups: read_groups(claims.get(&settings.groups_claim))?,
        expires,
        marks,
    })
}

fn read_groups(claim: Option<&Value>) -> Result<Vec<String>, TokenFault> {
    match claim {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(group)) => Ok(vec![group.clone()]),
        Some(Value::Array(groups)) if groups.len() <= MAXIMUM_GROUPS => {
            let names = groups.iter().map(|group| group.as_str().map(str::to_owned));
            names
                .collect::<Option<_>>()
                .ok_or_else(|| TokenFault::Invalid("the token's groups are not text".to_owned()))
        }
        Some(Value::Array(groups)) => {
            invalid(format!("the token contains {} groups; at most {MAXIMUM_GROUPS} are supported", groups.len()))
        }
        Some(_) => invalid("the token's groups are not a list"),
    }
}

#[cfg(test)]
mod tests;
