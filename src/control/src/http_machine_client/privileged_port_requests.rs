//! Registration from a privileged source port, and requests for secrets. The port proves to the server that a
//! privileged process of the machine registers. Only then does the server send secrets.

use super::HttpMachineClient;
use crate::agent_api_types::{REQUEST_ID, RegisterRequest};
use crate::retry::{RetryPolicy, RetrySchedule, TEN_MINUTE_RETRIES};
use ::http::Request;
use ::http::header::{AUTHORIZATION, CONTENT_TYPE};
use common::error::{Context, Phase, Result};
use common::sync::lock_mutex;
use linux::http;
use linux::http::privileged_port::send_privileged_from;
use model::allocation::{ReleasedSecrets, SecretField, SecretPurpose, SecretsRequest};
use reqwest::Method;
use std::time::Duration;

/// Id of the received allocation, and the names of its secret fields that the server sends only on separate request.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeparateSecretFields {
    pub allocation: String,
    pub fields: Vec<SecretField>,
}

impl HttpMachineClient {
    /// Sends the registration from a privileged source port.
    pub(super) async fn register_privileged(
        &self,
        register: &RegisterRequest,
        retries: RetryPolicy,
        patience: Duration,
    ) -> Result<()> {
        let body = serde_json::to_vec(register).context(Phase::Control, || "serialize the registration")?;
        let mut schedule = RetrySchedule::start(retries);
        loop {
            let (what, id) = self.next_request_id("register");
            let request = Request::post(format!("{}/v1/machine/register", self.url))
                .header(AUTHORIZATION, format!("Bearer {}", self.token))
                .header(CONTENT_TYPE, "application/json")
                .header(REQUEST_ID, id);
            let request = request.body(body.clone()).map_err(|error| self.unreachable_error(&what, error))?;
            let (error, pause) = match send_privileged_from(self.source, request, patience).await {
                Ok(answer) if answer.status().is_success() => return Ok(()),
                Ok(answer) => {
                    let refusal = self.status_error(&what, answer.status(), &String::from_utf8_lossy(answer.body()));
                    if !http::is_retryable(answer.status()) {
                        return Err(refusal);
                    }
                    (refusal, http::requested_pause(answer.headers()).unwrap_or_default())
                }
                Err(error) if http::is_untrusted_certificate(&error) => {
                    return Err(self.unreachable_error(&what, error));
                }
                Err(error) => (self.unreachable_error(&what, error), Duration::ZERO),
            };
            tokio::time::sleep(schedule.next_pause(error, pause)?).await;
        }
    }

    /// Fetches the secrets for this purpose. Returns `None` without sending a request if the allocation already
    /// contains these secrets, or has no such secrets.
    pub(super) async fn request_secrets(
        &self,
        purpose: SecretPurpose,
        patience: Duration,
    ) -> Result<Option<ReleasedSecrets>> {
        let separate = lock_mutex(&self.separate).clone();
        if !separate.fields.iter().any(|field| field.purpose() == purpose) {
            return Ok(None);
        }
        let what = "fetch the secrets of the allocation";
        let request = SecretsRequest { allocationuuid: separate.allocation, purpose };
        let send = || self.build_request(Method::POST, &self.machine_path("/secrets")).json(&request);
        let response = self.request_reregistering(TEN_MINUTE_RETRIES, what, patience, send).await?;
        let text = response.text().await.map_err(|error| self.unreachable_error(what, error.without_url()))?;
        serde_json::from_str(&text).map(Some).map_err(|error| self.parse_error(what, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ControlPlane;
    use crate::http_control_plane::tests::{control, lines};

    #[test]
    fn fetches_only_secrets_that_are_released_separately() {
        const MACHINE_JSON: &str = r#"{"id": "m-1", "allocation": {"allocationuuid": "a-1", "hostname": "h", "image": {"id": "i", "url": "u"},
            "filesystemlayout": {}, "separate_secrets": ["user_data", "console_password"]}}"#;
        let (control, server) =
            control(&[(200, MACHINE_JSON), (200, r#"{"user_data": "the-user-data"}"#), (409, "{}")]);
        assert_eq!(control.fetch_secrets(SecretPurpose::System).unwrap(), None, "no allocation was received");
        control.fetch_machine().unwrap();
        for purpose in [SecretPurpose::DiskKey, SecretPurpose::Image] {
            assert_eq!(control.fetch_secrets(purpose).unwrap(), None);
        }
        let released = control.fetch_secrets(SecretPurpose::System).unwrap().unwrap();
        assert_eq!(released.user_data.reveal(), "the-user-data");
        assert!(control.fetch_secrets(SecretPurpose::System).unwrap_err().is_denial());
        assert_eq!(lines(&server)[1..], ["POST /v1/machine/m-1/secrets"; 2]);
        assert_eq!(server.requests()[1].body, r#"{"allocationuuid":"a-1","purpose":"system"}"#);
    }
}
