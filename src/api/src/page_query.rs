//! Pages of lists, which clients may request and filter. Without parameters, a list is complete, as in metal-api.
//! `operator_api::machine_list` lists machines with further filters.

use crate::AppState;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use http_server::api_error::ApiError;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;

/// Parameters that select a page of a list.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub(crate) struct PageQuery {
    /// Maximum number of listed objects. If the response contains fewer objects, no further objects follow.
    limit: Option<usize>,
    /// Id of the last object on the previous page, after which this list begins.
    after: Option<String>,
    /// Text that a listed object contains. Case is ignored.
    q: Option<String>,
}

/// Decides which objects of a list belong to the requested page. The caller passes the objects in the order of the
/// list, and then calls [`PageSelection::finish`].
#[derive(Debug)]
pub(crate) struct PageSelection {
    /// Id of the last object on the previous page, until this object was passed.
    after: Option<String>,
    /// Filter in lower case.
    text: Option<String>,
    /// Number of objects that the page can still contain.
    room: usize,
}

impl PageSelection {
    fn new(query: PageQuery) -> Result<PageSelection, ApiError> {
        let PageQuery { limit, after, q } = query;
        match limit {
            Some(0) => Err(ApiError::bad_request("limit: must be at least 1")),
            limit => {
                Ok(PageSelection { after, text: q.map(|text| text.to_lowercase()), room: limit.unwrap_or(usize::MAX) })
            }
        }
    }

    /// Returns the id of the last object on the previous page.
    pub(crate) fn previous(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// Returns whether the page contains the next object of the list. The filter searches the id and the `texts` of the
    /// object.
    pub(crate) fn accepts<'t>(&mut self, id: &'t str, texts: impl IntoIterator<Item = &'t str>) -> bool {
        if let Some(after) = &self.after {
            if after == id {
                self.after = None;
            }
            return false;
        }
        let contains = |text: &String| {
            let mut all = std::iter::once(id).chain(texts);
            all.any(|searched| searched.to_lowercase().contains(text.as_str()))
        };
        if self.room == 0 || !self.text.as_ref().is_none_or(contains) {
            return false;
        }
        self.room -= 1;
        true
    }

    /// Returns whether the page is complete, so that no further objects need to be read.
    pub(crate) fn is_full(&self) -> bool {
        self.room == 0
    }

    /// Checks that the list contains the object after which the page begins.
    ///
    /// # Errors
    /// Returns an error if the list does not contain this object.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        let Some(after) = self.after else { return Ok(()) };
        let why = format!("`after`: the list does not contain {after:?}; request the list from the start");
        Err(ApiError::bad_request(why))
    }
}

impl FromRequestParts<Arc<AppState>> for PageSelection {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<AppState>) -> Result<PageSelection, ApiError> {
        let query = Query::try_from_uri(&parts.uri);
        let Query(query) = query.map_err(|error| ApiError::bad_request(error.to_string()))?;
        PageSelection::new(query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(query: &str) -> Result<Vec<&'static str>, String> {
        let uri = format!("/v1/image?{query}").parse().unwrap();
        let Query(query) = Query::try_from_uri(&uri).map_err(|error| error.to_string())?;
        let mut page = PageSelection::new(query).map_err(|error| error.parts().1)?;
        let all = [("a1", "Debian"), ("a2", "Ubuntu"), ("b1", "debian"), ("b2", "")];
        let selected = all.into_iter().filter(|(id, name)| page.accepts(id, [*name])).map(|(id, _)| id).collect();
        page.finish().map_err(|error| error.parts().1)?;
        Ok(selected)
    }

    #[test]
    fn pages_are_selected_in_the_order_of_the_list() {
        for (query, expected) in [
            ("", &["a1", "a2", "b1", "b2"][..]),
            ("limit=9", &["a1", "a2", "b1", "b2"]),
            ("limit=2", &["a1", "a2"]),
            ("limit=2&after=a2", &["b1", "b2"]),
            ("limit=2&after=b1", &["b2"]),
            ("after=b2", &[]),
            ("q=DEB", &["a1", "b1"]),
            ("q=B", &["a1", "a2", "b1", "b2"]),
            ("q=2", &["a2", "b2"]),
            ("q=debian&limit=1", &["a1"]),
            ("q=debian&limit=1&after=a1", &["b1"]),
            ("q=debian&after=a2", &["b1"]),
            ("q=none", &[]),
            ("hidden=true&limit=1", &["a1"]),
        ] {
            assert_eq!(select(query).as_deref(), Ok(expected), "{query}");
        }
        for (query, words) in [
            ("limit=0", "limit: must be at least 1"),
            ("limit=many", "limit"),
            ("after=c", "`after`: the list does not contain \"c\"; request the list from the start"),
            ("after=", "does not contain \"\""),
        ] {
            assert!(select(query).is_err_and(|why| why.contains(words)), "{query}");
        }
    }
}
