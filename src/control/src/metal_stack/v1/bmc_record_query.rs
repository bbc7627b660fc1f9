//! Record of the BMC in API v1: `GET /v1/machine/{id}/ipmi`, signed with the same key as the request for the machine.

use super::MetalApiV1;
use super::rest::{self, RestClient, RestFailure};
use crate::metal_stack::bmc_record::{BmcRecord, KnownBmc, RecordFields};
use crate::retry::AttemptResult;
use common::error::{Error, Phase, Result};
use serde::de::Error as _;
use serde_json::Value;

const FIELDS: RecordFields = RecordFields { version: "bmcversion", power_state: "powerstate", camel_case: false };

impl MetalApiV1 {
    /// Reads the record, with retries. Returns [`KnownBmc::Unregistered`] if the control plane has neither the record
    /// nor the machine.
    pub(super) fn read_known_bmc(&self) -> Result<KnownBmc> {
        let found = self.request_with_retries(|rest| optional(rest.fetch_bmc(&self.machine, parse_record)))?;
        if let Some((id, record)) = found {
            if !id.eq_ignore_ascii_case(&self.machine) {
                let message = format!(
                    "the response is for machine {id}, but this is machine {own_machine}",
                    own_machine = self.machine
                );
                return Err(Error::refusal(Phase::Control, message));
            }
            return Ok(KnownBmc::Record(Box::new(record)));
        }
        match self.request_with_retries(|rest| optional(rest.fetch_machine(&self.machine, rest::parse_machine)))? {
            None => Ok(KnownBmc::Unregistered),
            Some(_) => {
                Err(Error::new(Phase::Control, "the control plane has a record of this machine, but not of its BMC"))
            }
        }
    }

    /// Sends a REST request, with retries. If the server may have rejected the key, fetches a new configuration.
    pub(super) fn request_with_retries<T>(&self, request: impl Fn(&RestClient) -> Result<T, RestFailure>) -> Result<T> {
        self.pace.retries.run_attempts(|| self.attempt_request(&request))
    }

    /// Sends a REST request once.
    pub(super) fn attempt_request<T>(
        &self,
        request: impl Fn(&RestClient) -> Result<T, RestFailure>,
    ) -> AttemptResult<T> {
        match request(&self.current_connections().rest) {
            Ok(answer) => AttemptResult::Done(answer),
            Err(failure @ RestFailure::Signature(_)) => {
                self.renew_connections();
                AttemptResult::Transient(failure.into_error())
            }
            Err(RestFailure::Transient(error)) => AttemptResult::Transient(error),
            Err(RestFailure::Missing(error) | RestFailure::Permanent(error)) => AttemptResult::Permanent(error),
        }
    }
}

/// Converts the error for a missing object to `None`.
fn optional<T>(answer: Result<T, RestFailure>) -> Result<Option<T>, RestFailure> {
    match answer {
        Err(RestFailure::Missing(_)) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Parses the id of the machine and the record. Fails if the document contains no record. If an empty record were
/// returned instead, the agent would send it back, and thus erase the record at the server.
fn parse_record(text: &[u8]) -> serde_json::Result<(String, BmcRecord)> {
    let document: Value = serde_json::from_slice(text)?;
    let record = document.get("ipmi").filter(|record| record.is_object());
    let record = record
        .ok_or_else(|| serde_json::Error::custom("the response lacks the record of the BMC (the field `ipmi`)"))?;
    let fru = record.get("fru").unwrap_or(&Value::Null);
    let record = BmcRecord::from_json(record, fru, &FIELDS).map_err(serde_json::Error::custom)?;
    Ok((document.get("id").and_then(Value::as_str).unwrap_or_default().to_owned(), record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ControlPlane;
    use crate::metal_stack::MetalApi;
    use crate::metal_stack::MetalControlPlane;
    use crate::metal_stack::efi_variable_record::FirmwareRecord;
    use crate::metal_stack::registration::MachineRegistration;
    use crate::metal_stack::v1::tests::v1;
    use model::inventory::Inventory;
    use testing::http::Server;

    const RECORD: &str = r#"{"id": "M", "name": null, "ipmi": {"address": "10.1.0.9:623", "mac": "", "user": "metal", "password": "secret",
        "interface": "lanplus", "fru": {"board_mfg": "B"}, "bmcversion": "1.74", "powerstate": "ON", "powermetric": null,
        "powersupplies": null, "last_updated": "2026-11-24T09:00:00Z"}}"#;

    fn known(responses: &[(u16, &str)]) -> (Result<KnownBmc>, Vec<String>) {
        let (server, memory) = (Server::script(responses), tempfile::tempdir().unwrap());
        let known = v1(&server.url("metal"), &memory).known_bmc();
        (known, server.requests().iter().map(|request| request.path.clone()).collect())
    }

    #[test]
    fn bmc_record_is_read_with_its_credentials() {
        let (known, paths) = known(&[(503, ""), (200, RECORD)]);
        let KnownBmc::Record(record) = known.unwrap() else { panic!() };
        let texts = [
            &record.address,
            &record.user,
            &record.interface,
            &record.version,
            &record.power_state,
            &record.fru.board_mfg,
        ];
        assert_eq!(texts, ["10.1.0.9:623", "metal", "lanplus", "1.74", "ON", "B"]);
        assert_eq!(record.password.reveal(), "secret");
        assert_eq!(paths, ["/metal/v1/machine/m/ipmi"; 2]);
    }

    #[test]
    fn machine_is_unregistered_only_if_unknown_everywhere() {
        const NOT_FOUND: &str = r#"{"statuscode": 404, "message": "no machine with id \"m\" found"}"#;
        let (unknown, paths) = known(&[(404, NOT_FOUND), (404, NOT_FOUND)]);
        assert_eq!(unknown.unwrap(), KnownBmc::Unregistered);
        assert_eq!(paths, ["/metal/v1/machine/m/ipmi", "/metal/v1/machine/m"]);
        // A proxy, for example, might not forward requests for this path.
        let error = known(&[(404, "404 page not found"), (200, r#"{"id": "m"}"#)]).0.unwrap_err().to_string();
        assert!(error.contains("has a record of this machine, but not of its BMC"), "{error}");
    }

    #[test]
    fn a_record_that_cannot_be_read_prevents_the_registration() {
        for (status, body, words) in [
            (401, r#"{"message": "wrong hmac"}"#, "rejects the hmac"),
            (500, "", "500 Internal Server Error"),
            (200, r#"{"id": "m"}"#, "the response lacks the record of the BMC (the field `ipmi`)"),
            (200, r#"{"id": "m", "ipmi": null}"#, "the response lacks the record of the BMC (the field `ipmi`)"),
            (200, r#"{"id": "m", "ipmi": {"password": 7744774477}}"#, "password is not a string"),
            (200, r#"{"id": "other", "ipmi": {}}"#, "is for machine other"),
            (200, "<html>", "cannot parse the response"),
        ] {
            let (server, memory) = (Server::script(&[(status, body); 300]), tempfile::tempdir().unwrap());
            let api = v1(&server.url("metal"), &memory);
            let control =
                MetalControlPlane::with_api(Box::new(api), "m", "fra", FirmwareRecord::new(memory.path())).unwrap();
            let error = control.register_machine(&Inventory::default()).unwrap_err().to_string();
            assert!(
                error.starts_with("not registered: a registration would erase the control plane's record of the BMC"),
                "{error}"
            );
            assert!(error.contains(words) && !error.contains("77447744"), "{error}");
        }
    }

    #[test]
    fn a_known_record_is_registered_unchanged() {
        let KnownBmc::Record(record) = known(&[(200, RECORD)]).0.unwrap() else { panic!() };
        let bmc = crate::metal_stack::bmc_record::combine(KnownBmc::Record(record.clone()), Ok(None), &|line| {
            panic!("{line}")
        });
        assert_eq!(MachineRegistration::new("m", "fra", &Inventory::default(), bmc).bmc, *record);
    }
}
