//! Record of the BMC in API v2. The usual token of a machine permits none of the methods that return this record. The
//! record can be read if pixie issues a token with the additional permission
//! `metalstack.admin.v2.MachineService/GetBMC`.

use super::connect_rpc::ConnectFailure;
use super::{MetalApiV2, REQUEST_TIMEOUT};
use crate::metal_stack::bmc_record::{BmcRecord, KnownBmc, RecordFields};
use crate::retry::AttemptResult;
use common::error::{Error, Phase, Result};
use serde_json::Value;

const SERVICE: &str = "metalstack.admin.v2.MachineService";

const FIELDS: RecordFields = RecordFields { version: "version", power_state: "powerState", camel_case: true };

impl MetalApiV2 {
    /// Reads the record of the BMC, with retries, if the machine's token permits it.
    pub(super) fn read_known_bmc(&self) -> Result<KnownBmc> {
        self.pace.retries.run_attempts(|| {
            let client = self.current_client().with_service(SERVICE);
            match client.call_unary("GetBMC", &self.machine_id_message(), REQUEST_TIMEOUT) {
                Ok(answer) => match parse_record(&answer) {
                    Ok(record) => AttemptResult::Done(KnownBmc::Record(Box::new(record))),
                    Err(why) => AttemptResult::Permanent(Error::new(Phase::Control, format!("GetBMC: {why}"))),
                },
                Err(ConnectFailure::Denied(error) | ConnectFailure::Unknown(error)) => {
                    AttemptResult::Done(KnownBmc::Unreadable(error.to_string()))
                }
                Err(ConnectFailure::Missing(_)) => AttemptResult::Done(KnownBmc::Unregistered),
                Err(failure @ (ConnectFailure::Certificate(_) | ConnectFailure::Token(_))) => {
                    self.renew_client();
                    AttemptResult::Transient(failure.into_error())
                }
                Err(ConnectFailure::Transient(error)) => AttemptResult::Transient(error),
                Err(ConnectFailure::Permanent(error)) => AttemptResult::Permanent(error),
            }
        })
    }
}

/// Parses a response. In protobuf's JSON, empty messages are omitted.
fn parse_record(answer: &Value) -> Result<BmcRecord, String> {
    let details = answer.get("bmcDetails").ok_or("the response lacks the field `bmcDetails`")?;
    let report = details.get("bmcReport").ok_or("the response lacks the field `bmcReport`")?;
    let part = |name: &str| report.get(name).unwrap_or(&Value::Null);
    BmcRecord::from_json(part("bmc"), part("fru"), &FIELDS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metal_stack::efi_variable_record::FirmwareRecord;
    use crate::metal_stack::pixie_config::{ApiCredentials, PixieConfig, V2Credentials};
    use crate::metal_stack::v2::{PACE, V2Timeouts};
    use crate::retry::RetryPolicy;
    use std::path::Path;
    use std::time::Duration;
    use testing::http::Server;

    fn known(responses: &[(u16, &str)]) -> (Result<KnownBmc>, usize) {
        let server = Server::script(responses);
        let url = server.url("").trim_end_matches('/').to_owned();
        let api =
            ApiCredentials::V2(V2Credentials { url: url.clone(), token: "T".into(), ca_cert: None, identity: None });
        let config = PixieConfig { partition: "fra".into(), ntp_servers: vec![], logging: None, api, date: None };
        let short = Duration::from_millis(1);
        let retries = RetryPolicy { patience: Duration::from_secs(60), first_pause: short, longest_pause: short };
        let record = FirmwareRecord::new(Path::new("/proc/nonexistent"));
        let pace = V2Timeouts { retries, ..PACE };
        let api = MetalApiV2::with_timeouts("http://127.0.0.1:9", "m", &config, record, pace).unwrap();
        (api.read_known_bmc(), server.requests().len())
    }

    const RECORD: &str = r#"{"bmcDetails": {"uuid": "m", "bmcReport": {"bmc": {"address": "10.1.0.9:623", "mac": "0c:c4:7a:00:00:01",
        "user": "metal", "password": "secret", "interface": "lanplus", "version": "1.74", "powerState": "ON"},
        "fru": {"chassisPartSerial": "C1", "boardMfg": "B"}}}}"#;

    #[test]
    fn permitted_token_reads_the_bmc_record() {
        let (known, requests) = known(&[(503, ""), (200, RECORD)]);
        let KnownBmc::Record(record) = known.unwrap() else { panic!() };
        let texts =
            [&record.address, &record.user, &record.version, &record.power_state, &record.fru.chassis_part_serial];
        assert_eq!(texts, ["10.1.0.9:623", "metal", "1.74", "ON", "C1"]);
        assert_eq!((record.password.reveal(), requests), ("secret", 2));
    }

    #[test]
    fn denied_record_is_not_treated_as_absent() {
        for (status, body, is_unreadable) in [
            (403, r#"{"code": "permission_denied", "message": "not part of the token permissions"}"#, true),
            (501, r#"{"code": "unimplemented"}"#, true),
            (404, "404 page not found", true),
            (404, r#"{"code": "not_found", "message": "no machine"}"#, false),
        ] {
            match known(&[(status, body)]).0.unwrap() {
                KnownBmc::Unreadable(why) => assert!(is_unreadable && why.starts_with("GetBMC: "), "{why}"),
                KnownBmc::Unregistered => assert!(!is_unreadable, "{body}"),
                KnownBmc::Record(record) => panic!("{record:?}"),
            }
        }
    }

    /// If the response is malformed, the machine is not registered, because a registration would erase the record of
    /// the BMC.
    #[test]
    fn a_malformed_response_is_an_error() {
        for (status, body, words) in [
            (200, "{}", "lacks the field `bmcDetails`"),
            (200, r#"{"bmcDetails": {}}"#, "lacks the field `bmcReport`"),
            (200, r#"{"bmcDetails": {"bmcReport": {"bmc": {"password": 7700770077}}}}"#, "password is not a string"),
            (200, "<html>", "cannot parse the response"),
            (400, r#"{"code": "invalid_argument", "message": "uuid"}"#, "uuid"),
        ] {
            let error = known(&[(status, body)]).0.unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("7700770077"), "{error}");
        }
    }
}
