//! Each request has an id: the caller's own, where it gives one. It is in the answer, and in every line that is said because of it.

use crate::control::wire::REQUEST_ID;
use axum::http::{HeaderMap, HeaderValue};

/// Of a caller's.
const LONGEST: usize = 64;

tokio::task_local! {
    static REQUEST: String;
}

/// The id of a request.
pub fn id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|given| given.to_str().ok()).filter(|given| is_plain(given));
    given.map_or_else(|| format!("{:016x}", fastrand::u64(..)), str::to_owned)
}

/// It goes into lines that people and programs read.
fn is_plain(id: &str) -> bool {
    (1..=LONGEST).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Answers it: what is said meanwhile has the id.
pub async fn within<T>(id: String, answer: impl Future<Output = T>) -> T {
    REQUEST.scope(id, answer).await
}

/// The request that is being answered.
pub fn current() -> Option<String> {
    REQUEST.try_with(String::clone).ok()
}

/// Puts it into the answer.
pub fn name(headers: &mut HeaderMap, id: &str) {
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(REQUEST_ID, id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_callers_where_it_is_plain() {
        let of = |given: &str| id(&HeaderMap::from_iter([(REQUEST_ID.parse().unwrap(), given.parse().unwrap())]));
        assert_eq!(of("5f0c2a91-17"), "5f0c2a91-17");
        for other in ["", "a b", "a\"b", "ä", &"x".repeat(65)] {
            let made = of(other);
            assert!(made.len() == 16 && is_plain(&made), "{other:?}: {made}");
        }
        assert_ne!(id(&HeaderMap::new()), id(&HeaderMap::new()));
    }
}
