//! Requests whose acknowledgement permits the agent to erase data or to boot the installed system.

use super::{HttpMachineClient, REQUEST_TIMEOUT};
use crate::retry::{RetryPolicy, RetrySchedule};
use common::error::{Error, Phase, Result};
use linux::http;
use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Map, Value};
use std::time::Duration;

impl HttpMachineClient {
    /// Calls [`Self::request_reregistering`], and returns the JSON object in the response. A response with another
    /// status than 200 or with another body is an error: it comes from a proxy or another server, which does not know
    /// whether the control plane has received the request.
    pub(super) async fn request_acknowledged(
        &self,
        retries: RetryPolicy,
        what: &str,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<Map<String, Value>> {
        let mut schedule = RetrySchedule::start(retries);
        loop {
            let response = self.request_reregistering(retries, what, REQUEST_TIMEOUT, &request).await?;
            let status = response.status();
            let error = match http::read_async_response(response).await {
                Ok(body) => return self.parse_acknowledgement(what, status, &body),
                Err(error) => self.parse_error(what, error),
            };
            tokio::time::sleep(schedule.next_pause(error, Duration::ZERO)?).await;
        }
    }

    fn parse_acknowledgement(&self, what: &str, status: StatusCode, body: &[u8]) -> Result<Map<String, Value>> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(answer)) if status == StatusCode::OK => Ok(answer),
            _ => Err(Error::new(
                Phase::Control,
                format!(
                    "{what}: control plane {url} answered {status} without an acknowledgement; expected status 200 and \
                     a JSON object. Check that the URL is that of the control plane itself",
                    url = self.url
                ),
            )),
        }
    }
}
