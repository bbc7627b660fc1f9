//! Registration, which proves to the server that a privileged process registers, and the secrets released afterwards.

use super::HttpControl;
use crate::allocation::{ReleasedSecrets, SecretField, SecretPurpose, SecretsRequest};
use crate::control::retry::{Attempt, PATIENT, Retries};
use crate::control::wire::{REQUEST_ID, Register};
use crate::error::{Context, Phase, Result};
use crate::http;
use ::http::Request;
use ::http::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::Method;
use std::sync::PoisonError;
use std::time::Duration;

/// Id of the received allocation, with the fields that the server releases separately.
#[derive(Debug, Clone, Default)]
pub struct SeparateSecrets {
    pub allocation: String,
    pub fields: Vec<SecretField>,
}

impl HttpControl {
    /// Registers from a privileged source port.
    pub(super) fn enroll(&self, register: &Register, retries: Retries, patience: Duration) -> Result<()> {
        let body = serde_json::to_vec(register).context(Phase::Control, || "serialize the registration")?;
        retries.run(|| {
            let (what, id) = self.next_id("register");
            let request = Request::post(format!("{}/v1/machine/register", self.url))
                .header(AUTHORIZATION, format!("Bearer {}", self.token))
                .header(CONTENT_TYPE, "application/json")
                .header(REQUEST_ID, id);
            let request = match request.body(body.clone()) {
                Ok(request) => request,
                Err(error) => return Attempt::Never(self.unreachable(&what, error)),
            };
            match http::privileged::send(request, patience) {
                Ok(answer) if answer.status().is_success() => Attempt::Done(()),
                Ok(answer) => {
                    let refusal = self.refusal(&what, answer.status(), &String::from_utf8_lossy(answer.body()));
                    if http::is_passing(answer.status()) { Attempt::Again(refusal) } else { Attempt::Never(refusal) }
                }
                Err(error) if http::is_certificate(&error) => Attempt::Never(self.unreachable(&what, error)),
                Err(error) => Attempt::Again(self.unreachable(&what, error)),
            }
        })
    }

    /// Fetches the secrets for this purpose. Returns `None` if the allocation contains them or has none.
    pub(super) fn fetch_secrets(&self, purpose: SecretPurpose, patience: Duration) -> Result<Option<ReleasedSecrets>> {
        let separate = self.separate.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !separate.fields.iter().any(|field| field.purpose() == purpose) {
            return Ok(None);
        }
        let what = "fetch the secrets of the allocation";
        let request = SecretsRequest { allocationuuid: separate.allocation, purpose };
        let send = || self.request(Method::POST, &self.of_machine("/secrets")).json(&request);
        let response = self.ask(PATIENT, what, patience, send)?;
        let text = response.text().map_err(|error| self.unreachable(what, error.without_url()))?;
        serde_json::from_slice(text.as_bytes()).map(Some).map_err(|error| self.garbled(what, error))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{control, lines};
    use super::*;
    use crate::control::Control;

    #[test]
    fn secrets_are_fetched_only_if_the_control_plane_releases_them_separately() {
        const MACHINE: &str = r#"{"id": "m-1", "allocation": {"allocationuuid": "a-1", "hostname": "h", "image": {"id": "i", "url": "u"},
            "filesystemlayout": {}, "separate_secrets": ["user_data", "console_password"]}}"#;
        let (control, server) = control(&[(200, MACHINE), (200, r#"{"user_data": "the-user-data"}"#), (409, "{}")]);
        assert_eq!(control.secrets(SecretPurpose::System).unwrap(), None, "no allocation was received");
        control.machine().unwrap();
        for purpose in [SecretPurpose::DiskKey, SecretPurpose::Image] {
            assert_eq!(control.secrets(purpose).unwrap(), None);
        }
        let released = control.secrets(SecretPurpose::System).unwrap().unwrap();
        assert_eq!(released.user_data.reveal(), "the-user-data");
        assert!(control.secrets(SecretPurpose::System).unwrap_err().is_denial());
        assert_eq!(lines(&server)[1..], ["POST /v1/machine/m-1/secrets"; 2]);
        assert_eq!(server.requests()[1].body, r#"{"allocationuuid":"a-1","purpose":"system"}"#);
    }
}
