//! Console logs of machines, which agents send.

use super::AppState;
use super::machine_auth::{EventCaller, MachineCaller};
use super::request_body::read_body;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use common::format::untrusted_text_limits;
use common::type_errors::locate_json_error;
use control::agent_api_types::LogPart;
use http_server::api_error::ApiError;
use serde_json::{Value, json};
use std::sync::Arc;
use store::{LogChunk, now};

const MAXIMUM_CHUNK_BYTES: usize = 64 << 10;

/// `POST /v1/machine/{id}/log`: stores a chunk of the machine's console log.
pub(crate) async fn receive_log(
    State(app): State<Arc<AppState>>,
    EventCaller(MachineCaller { id, boot, peer }): EventCaller,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    // Any client can get a token, so the log of an unregistered boot must not replace the log of the machine.
    if boot.address.is_none() {
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, "the boot with this token has not registered"));
    }
    let sent = read_body(&app, peer, body, MAXIMUM_CHUNK_BYTES).await?;
    let LogPart { start, log } = serde_json::from_slice(&sent)
        .map_err(|error| ApiError::bad_request(format!("request body: {}", locate_json_error(&error))))?;
    let part = LogChunk {
        number: 0,
        boot: boot.hash,
        start,
        bytes: log.len() as u64,
        time: now(),
        text: untrusted_text_limits::sanitize_log(&log),
    };
    app.state.store_log_chunk(&id, part).await?;
    app.watch.live.record_log(&id);
    Ok(Json(json!({})))
}

/// Formats the log, with a line at the start of each boot, and a note for each gap.
pub fn format_log(log: &[LogChunk]) -> String {
    format_log_after(log, 0)
}

/// Formats the chunks that follow the chunk with this number.
pub(crate) fn format_log_after(log: &[LogChunk], number: i64) -> String {
    let mut text = String::new();
    let seen = log.partition_point(|part| part.number <= number && number > 0);
    let mut before = seen.checked_sub(1).and_then(|last| log.get(last));
    for part in log.iter().skip(seen) {
        let same = before.filter(|before| before.boot == part.boot);
        let said = same.map_or(0, LogChunk::end_offset);
        if same.is_none() {
            let time = part.time.get(..19).unwrap_or(&part.time).replace('T', " ");
            text += &format!("{}── {time} ──\n", if before.is_none() { "" } else { "\n" });
        }
        if part.start > said {
            text += &format!("[{} bytes are missing]\n", part.start - said);
        }
        text += &part.text;
        before = Some(part);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_marks_new_boots_and_missing_bytes() {
        let part = |boot: u8, start, text: &str, bytes| LogChunk {
            number: 0,
            boot: [boot; 32],
            start,
            bytes,
            time: "2026-11-24T10:00:00.5Z".to_owned(),
            text: text.to_owned(),
        };
        let log = [part(1, 0, "one\ntwo\n", 8), part(1, 100, "many\n", 5), part(2, 7, "again\n", 6)];
        let expected = "── 2026-11-24 10:00:00 ──\none\ntwo\n[92 bytes are missing]\nmany\n\n\
                        ── 2026-11-24 10:00:00 ──\n[7 bytes are missing]\nagain\n";
        assert_eq!(format_log(&log), expected);
        assert_eq!(format_log(&[]), "");
        let log: Vec<LogChunk> = (1..).zip(log).map(|(number, chunk)| LogChunk { number, ..chunk }).collect();
        assert_eq!(format_log_after(&log, 0), expected);
        assert_eq!(format_log_after(&log, 1), expected.strip_prefix("── 2026-11-24 10:00:00 ──\none\ntwo\n").unwrap());
        assert_eq!(format_log_after(&log, 2), "\n── 2026-11-24 10:00:00 ──\n[7 bytes are missing]\nagain\n");
        assert_eq!(format_log_after(&log, 3), "");
    }
}
