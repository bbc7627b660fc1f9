//! Cache of one document of the identity provider. At most one request for the document is sent at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// Time after a failed request during which no further request is sent. It is also the minimum time between requests
/// that tokens with unknown keys trigger.
pub(super) const REQUEST_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct FetchCache<T> {
    most_age: Duration,
    pause: Duration,
    state: Mutex<CacheState<T>>,
}

#[derive(Debug)]
struct CacheState<T> {
    document: Option<(Arc<T>, Instant)>,
    failure: Option<(String, Instant)>,
}

impl<T> FetchCache<T> {
    pub(super) fn new(most_age: Duration, pause: Duration) -> FetchCache<T> {
        FetchCache { most_age, pause, state: Mutex::new(CacheState { document: None, failure: None }) }
    }

    /// Returns the document, which is fetched if it is missing or older than `most_age`.
    ///
    /// # Errors
    /// Returns the reason why the document cannot be fetched.
    pub(super) async fn get_or_fetch<F: Future<Output = Result<T, String>>>(
        &self,
        fetch: impl FnOnce() -> F,
    ) -> Result<Arc<T>, String> {
        let mut state = self.state.lock().await;
        if let Some((document, _)) = state.document.as_ref().filter(|(_, at)| at.elapsed() < self.most_age) {
            return Ok(document.clone());
        }
        state.fetch_document(self.pause, fetch).await
    }

    /// Fetches the document again, unless it was fetched less than `pause` ago, or another caller has already replaced
    /// `outdated`.
    ///
    /// # Errors
    /// Returns the reason why the document cannot be fetched.
    pub(super) async fn refresh<F: Future<Output = Result<T, String>>>(
        &self,
        outdated: &Arc<T>,
        fetch: impl FnOnce() -> F,
    ) -> Result<Arc<T>, String> {
        let mut state = self.state.lock().await;
        if let Some((document, at)) = &state.document
            && (!Arc::ptr_eq(document, outdated) || at.elapsed() < self.pause)
        {
            return Ok(document.clone());
        }
        state.fetch_document(self.pause, fetch).await
    }
}

impl<T> CacheState<T> {
    async fn fetch_document<F: Future<Output = Result<T, String>>>(
        &mut self,
        pause: Duration,
        fetch: impl FnOnce() -> F,
    ) -> Result<Arc<T>, String> {
        if let Some((why, _)) = self.failure.as_ref().filter(|(_, at)| at.elapsed() < pause) {
            return Err(why.clone());
        }
        match fetch().await {
            Ok(document) => {
                let document = Arc::new(document);
                (self.document, self.failure) = (Some((document.clone(), Instant::now())), None);
                Ok(document)
            }
            Err(why) => {
                self.failure = Some((why.clone(), Instant::now()));
                Err(why)
            }
        }
    }
}
