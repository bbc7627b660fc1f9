//! The token that a registry wants even from those it does not know: its 401 says where to get one.

use super::super::retry::{Answer, Pace};
use crate::error::{Context, Error, Phase, Result};
use reqwest::Url;
use reqwest::blocking::{Client, Response};
use reqwest::header::{HeaderValue, WWW_AUTHENTICATE};
use serde::Deserialize;

const ANSWER_BYTES: u64 = 64 << 10;

/// A registry calls it by one name or the other.
#[derive(Deserialize)]
struct Given {
    token: Option<String>,
    access_token: Option<String>,
}

/// The value of the `Authorization` header that answers this 401.
///
/// # Errors
/// The registry wants a password, or there is no token to be had.
pub fn token(client: &Client, repository: &str, refusal: &Response, pace: &Pace) -> Result<String> {
    let fail = |why: &str| Error::new(Phase::Image, format!("the registry at {} {why}", refusal.url()));
    let challenges = refusal.headers().get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    let (bearer, others): (Vec<&str>, Vec<&str>) =
        challenges.partition(|one| words(one).0.eq_ignore_ascii_case("bearer"));
    let Some(challenge) = bearer.first() else {
        let kind = others.first().map_or("nothing that it names", |one| words(one).0);
        return Err(fail(&format!("wants a user and a password ({kind:.40}); only public images can be used")));
    };
    let parameters = parameters(words(challenge).1);
    let parameter = |name: &str| parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let realm = parameter("realm").and_then(|realm| Url::parse(realm).ok());
    let Some(mut url) = realm.filter(|url| matches!(url.scheme(), "http" | "https")) else {
        return Err(fail(&format!("does not say where its tokens are: `{challenge:.200}`")));
    };
    let scope = format!("repository:{repository}:pull");
    let service = parameter("service").map(|service| ("service", service));
    url.query_pairs_mut().extend_pairs(service).append_pair("scope", parameter("scope").unwrap_or(&scope));
    let what = format!("ask for a token at {url}");
    let bytes = match pace.read(&what, ANSWER_BYTES, || client.get(url.clone()))? {
        Answer::Document(bytes) => bytes,
        Answer::Other(response) => {
            return Err(Error::new(Phase::Image, format!("{what}: the answer is {}", response.status())));
        }
    };
    let given: Given = serde_json::from_slice(&bytes).context(Phase::Image, || what.clone())?;
    let token = given.token.or(given.access_token).filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| Error::new(Phase::Image, format!("{what}: there is none in the answer")))?;
    let value = format!("Bearer {token}");
    HeaderValue::from_str(&value).context(Phase::Image, || what)?;
    Ok(value)
}

/// A new token for a blob's URL, when the old one has expired on the way.
///
/// # Errors
/// As [`token`].
pub fn renewed(client: &Client, url: &str, refusal: &Response, pace: &Pace) -> Result<String> {
    let repository = url.split_once("/v2/").and_then(|(_, rest)| rest.split_once("/blobs/"));
    token(client, repository.map_or("", |(repository, _)| repository), refusal, pace)
}

/// The scheme of a challenge, and what follows it.
fn words(challenge: &str) -> (&str, &str) {
    challenge.trim().split_once(' ').unwrap_or((challenge.trim(), ""))
}

/// `key="value, with commas",other=word`.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text.trim();
    while let Some((key, after)) = rest.split_once('=') {
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        found.push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
        rest = after.trim_start_matches([',', ' ']);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameters_of_a_challenge() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let cases = [
            (
                "realm=\"https://a/token\",service=\"r.example\", Scope=\"repository:x:pull,push\"",
                vec![
                    pair("realm", "https://a/token"),
                    pair("service", "r.example"),
                    pair("scope", "repository:x:pull,push"),
                ],
            ),
            ("realm=https://a/token?x=y,error=e", vec![pair("realm", "https://a/token?x=y"), pair("error", "e")]),
            ("realm=\"https://a", vec![pair("realm", "https://a")]),
            ("", vec![]),
            ("nothing", vec![]),
        ];
        for (text, expected) in cases {
            assert_eq!(parameters(text), expected, "{text}");
        }
    }
}
