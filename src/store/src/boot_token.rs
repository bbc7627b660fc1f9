//! Tokens of requested boots. The server signs each token, and stores nothing until the boot registers. Therefore a
//! boot request requires no transaction, and cannot revoke the token of another boot.

use super::token_hash::{self, TokenHash};
use common::encoding::{decode_hex, encode_hex};
use common::error::{Context, Error, Phase, Result};
use ring::hmac;
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

/// Duration within which a requested boot must register. Ramdisks register within a few minutes.
const REGISTERS_WITHIN: Duration = Duration::from_secs(60 * 60);
/// Length of the signed data in bytes: the machine id, the time of the request in nanoseconds since 1970, a flag that
/// is set if another boot was active, and random bytes.
const PAYLOAD_BYTES: usize = 16 + 8 + 1 + 16;
const SIGNATURE_BYTES: usize = 32;
/// Prefix of the signed data. The prefix distinguishes boot tokens from other data that is signed with the same key.
const SIGNED_DATA_PREFIX: &[u8] = b"drophammer boot token 1";

/// Boot that was requested and has not registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedBoot {
    /// Id of the machine, a UUID.
    pub machine: String,
    pub created: OffsetDateTime,
    /// True if another boot of the machine was active at the time of the request.
    pub while_active: bool,
}

/// Key that signs the tokens of boots.
pub struct BootTokenKey(hmac::Key);

impl BootTokenKey {
    /// Derives the key from the hash of the operator's token. The hash is as secret as the token, and remains the same
    /// when the server restarts.
    pub fn of_operator(operator: &TokenHash) -> BootTokenKey {
        BootTokenKey(hmac::Key::new(hmac::HMAC_SHA256, operator))
    }

    /// Returns a new token, which is put on the kernel command line.
    ///
    /// # Errors
    /// Returns an error if the id of the machine is not a UUID, or the system returns no random bytes.
    pub fn issue_token(&self, boot: &RequestedBoot) -> Result<String> {
        let machine = Uuid::try_parse(&boot.machine);
        let machine =
            machine.context(Phase::Serve, || format!("issue a token for machine {machine}", machine = boot.machine))?;
        let nanoseconds = i64::try_from(boot.created.unix_timestamp_nanos());
        let nanoseconds =
            nanoseconds.map_err(|_| Error::new(Phase::Serve, "the clock of this host is out of range"))?;
        let random = token_hash::random_bytes::<16>()?;
        let flag = [u8::from(boot.while_active)];
        let payload = [&machine.as_bytes()[..], &nanoseconds.to_be_bytes(), &flag, &random].concat();
        let signature = hmac::sign(&self.0, &[SIGNED_DATA_PREFIX, &payload].concat());
        Ok(encode_hex([&payload[..], signature.as_ref()].concat()))
    }

    /// Returns the requested boot that a token describes, or `None` if this key has not signed the token within the
    /// last [`REGISTERS_WITHIN`]. `now` is the time of the servers' shared clock.
    pub fn verify_token(&self, token: &str, now: OffsetDateTime) -> Option<RequestedBoot> {
        let bytes = decode_hex(token).filter(|bytes| bytes.len() == PAYLOAD_BYTES + SIGNATURE_BYTES)?;
        let (payload, signature) = bytes.split_at_checked(PAYLOAD_BYTES)?;
        hmac::verify(&self.0, &[SIGNED_DATA_PREFIX, payload].concat(), signature).ok()?;
        let machine = Uuid::from_slice(payload.get(..16)?).ok()?.to_string();
        let nanoseconds = i64::from_be_bytes(payload.get(16..24)?.try_into().ok()?);
        let created = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds.into()).ok()?;
        let boot = RequestedBoot { machine, created, while_active: payload.get(24) == Some(&1) };
        (now - created < REGISTERS_WITHIN).then_some(boot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE_ID: &str = "4c4c4544-0051-3010-8052-b4c04f4d0001";

    fn requested(created: OffsetDateTime) -> RequestedBoot {
        RequestedBoot { machine: MACHINE_ID.to_owned(), created, while_active: true }
    }

    #[test]
    fn issued_tokens_are_verified_and_differ() {
        let key = BootTokenKey::of_operator(&[7; 32]);
        let boot = requested(OffsetDateTime::now_utc());
        let (one, other) = (key.issue_token(&boot).unwrap(), key.issue_token(&boot).unwrap());
        assert_ne!(one, other);
        assert_eq!(key.verify_token(&one, OffsetDateTime::now_utc()), Some(boot.clone()));
        // A restarted server derives the same key.
        assert_eq!(BootTokenKey::of_operator(&[7; 32]).verify_token(&other, OffsetDateTime::now_utc()), Some(boot));
        assert!(
            key.issue_token(&RequestedBoot { machine: "m".to_owned(), ..requested(OffsetDateTime::now_utc()) })
                .is_err()
        );
    }

    #[test]
    fn altered_foreign_and_old_tokens_are_refused() {
        let key = BootTokenKey::of_operator(&[7; 32]);
        let token = key.issue_token(&requested(OffsetDateTime::now_utc())).unwrap();
        for at in 0..token.len() {
            let digit = if &token[at..=at] == "0" { "1" } else { "0" };
            let altered = [&token[..at], digit, &token[at + 1..]].concat();
            assert_eq!(key.verify_token(&altered, OffsetDateTime::now_utc()), None, "{at}");
            assert_eq!(key.verify_token(&token[..at], OffsetDateTime::now_utc()), None, "{at}");
        }
        assert_eq!(key.verify_token(&format!("{token}00"), OffsetDateTime::now_utc()), None);
        assert_eq!(key.verify_token(&"é".repeat(token.len() / 2), OffsetDateTime::now_utc()), None);
        assert_eq!(BootTokenKey::of_operator(&[8; 32]).verify_token(&token, OffsetDateTime::now_utc()), None);
        let (old, recent) = (time::Duration::minutes(61), time::Duration::minutes(59));
        let of_age = |age| key.issue_token(&requested(OffsetDateTime::now_utc() - age)).unwrap();
        assert_eq!(key.verify_token(&of_age(old), OffsetDateTime::now_utc()), None);
        assert!(key.verify_token(&of_age(recent), OffsetDateTime::now_utc()).is_some());
    }
}
