//! Context of the current request: its id, its client, its request permit, and further permits that are held until the
//! response is ready. The request id is part of the response, and of every log line that results from the request.

use crate::request_permits::RequestPermit;
use axum::http::{HeaderMap, HeaderValue};
use common::sync::lock_mutex;
use control::agent_api_types::REQUEST_ID;
use std::any::Any;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use tokio::task::JoinHandle;

/// Maximum length of a request id that a client may choose, in bytes.
const MAXIMUM_ID_BYTES: usize = 64;

tokio::task_local! {
    static REQUEST: Arc<RequestContext>;
}

/// Context of one request.
pub struct RequestContext {
    id: String,
    client: IpAddr,
    permit: RequestPermit,
    /// Permits that are released when the response is ready.
    held: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl RequestContext {
    pub fn new(id: String, client: IpAddr, permit: RequestPermit) -> RequestContext {
        RequestContext { id, client, permit, held: Mutex::default() }
    }
}

/// Returns the id of a request: the id that the client sent if that id is valid, otherwise a random id.
pub fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|given| given.to_str().ok()).filter(|given| is_safe_id(given));
    given.map_or_else(|| format!("{:016x}", fastrand::u64(..)), str::to_owned)
}

/// Returns whether a request id can be printed safely in log lines.
fn is_safe_id(id: &str) -> bool {
    (1..=MAXIMUM_ID_BYTES).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Runs the handler within the context of its request.
pub async fn run_in_context<T>(context: RequestContext, answer: impl Future<Output = T>) -> T {
    REQUEST.scope(Arc::new(context), answer).await
}

/// Runs `work` in a task within the context of the current request. The task runs to its end even if the client
/// disconnects, and holds the request permit until then.
pub fn spawn_in_context<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    match REQUEST.try_with(Arc::clone) {
        Ok(request) => tokio::spawn(REQUEST.scope(request, work)),
        Err(_) => tokio::spawn(work),
    }
}

/// Returns the id of the current request.
pub fn current_id() -> Option<String> {
    REQUEST.try_with(|request| request.id.clone()).ok()
}

/// Returns the client of the current request, or `None` outside of a request.
pub fn current_client() -> Option<IpAddr> {
    REQUEST.try_with(|request| request.client).ok()
}

/// Releases the request permit to other requests of the client, while `work` waits for something outside of the
/// server. The caller must not hold a lock: requests that wait for the lock could occupy all permits.
pub async fn yield_permit<T>(work: impl Future<Output = T>) -> T {
    match REQUEST.try_with(Arc::clone) {
        Ok(request) => request.permit.release_during(work).await,
        Err(_) => work.await,
    }
}

/// Holds a permit until the response to the current request is ready. Outside of a request, releases the permit
/// immediately.
pub fn hold_permit(permit: impl Any + Send) {
    let hold = |request: &Arc<RequestContext>| {
        lock_mutex(&request.held).push(Box::new(permit));
    };
    let _ = REQUEST.try_with(hold);
}

/// Adds the request id to the response.
pub fn add_id_header(headers: &mut HeaderMap, id: &str) {
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(REQUEST_ID, id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safe_request_id_of_the_caller_is_used() {
        let of =
            |given: &str| request_id(&HeaderMap::from_iter([(REQUEST_ID.parse().unwrap(), given.parse().unwrap())]));
        assert_eq!(of("5f0c2a91-17"), "5f0c2a91-17");
        for other in ["", "a b", "a\"b", "ä", &"x".repeat(65)] {
            let made = of(other);
            assert!(made.len() == 16 && is_safe_id(&made), "{other:?}: {made}");
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
