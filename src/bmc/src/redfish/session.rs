//! Sessions, for controllers that do not accept Basic authentication. A dropped client closes its session, because
//! controllers limit the number of sessions.

use super::client::{RedfishClient, RedfishRequest};
use crate::bmc_refusal;
use common::error::Result;
use reqwest::Method;
use reqwest::header::{HeaderValue, LOCATION};
use serde_json::json;

/// Session that was opened at a controller.
pub(super) struct Session {
    pub token: HeaderValue,
    /// Link to the session; `None` if the controller has not returned a link.
    link: Option<String>,
}

impl RedfishClient<'_> {
    /// Opens a session. The new session replaces the expired session, if there is one.
    pub(super) fn open_session(&self) -> Result<()> {
        let path = self.find_sessions();
        let body = json!({ "UserName": self.bmc.username, "Password": self.bmc.password.reveal() });
        let request = RedfishRequest::new(Method::POST, &path);
        let response = self.send(&RedfishRequest { body: Some(&body), is_anonymous: true, ..request })?;
        let response = self.expect_success(response)?;
        let Some(mut token) = response.headers.get("X-Auth-Token").cloned() else {
            return Err(bmc_refusal(format!(
                "the response of {url}{path} does not contain a session token",
                url = self.url
            )));
        };
        token.set_sensitive(true);
        *self.session.borrow_mut() =
            Some(Session { token, link: response.header(LOCATION.as_str()).map(str::to_owned) });
        Ok(())
    }

    /// Reads the path of the session collection from the service root, which can be read without credentials.
    fn find_sessions(&self) -> String {
        let root = RedfishRequest { is_anonymous: true, ..RedfishRequest::new(Method::GET, "/redfish/v1/") };
        let root = self.send(&root).ok().and_then(|response| response.document());
        let link = root.as_ref().and_then(|root| root["Links"]["Sessions"]["@odata.id"].as_str());
        link.unwrap_or("/redfish/v1/SessionService/Sessions").to_owned()
    }
}

impl Drop for RedfishClient<'_> {
    fn drop(&mut self) {
        let link = self.session.borrow().as_ref().and_then(|session| session.link.clone());
        // An error is ignored: a session that is not deleted ends after a timeout.
        let _ = link.map(|link| self.send(&RedfishRequest::new(Method::DELETE, &link)));
    }
}
