//! Cookie that binds a login at the web page to the browser that has started it. `state`, `nonce` and the PKCE verifier
//! are derived from the random number in the cookie. Therefore any server with the same database can complete the
//! login, and the server stores nothing for logins that are not completed.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use common::encoding::{decode_hex, encode_hex};
use ring::{digest, hmac};

/// Name of the cookie.
pub const NAME: &str = "drophammer_oidc";
/// Time within which a login must be completed, in seconds.
pub const SECONDS: u64 = 600;

/// Login that has been started.
#[derive(Clone)]
pub struct LoginCookie {
    /// Time at which the login expires, in seconds since 1970.
    expires: u64,
    secret: [u8; 32],
}

impl LoginCookie {
    /// Creates a cookie. `secret` must be random.
    pub fn new(now: u64, secret: [u8; 32]) -> LoginCookie {
        LoginCookie { expires: now + SECONDS, secret }
    }

    /// Parses the value of a cookie. Returns `None` if the value is invalid or expired.
    pub fn parse_value(value: &str, now: u64) -> Option<LoginCookie> {
        let (expires, secret) = value.split_once('.')?;
        let (expires, secret) = (expires.parse().ok()?, decode_hex(secret)?.try_into().ok()?);
        // A browser cannot extend the expiry, because `state`, the nonce and the PKCE verifier are also derived from
        // the expiry.
        (expires > now && expires <= now + SECONDS).then_some(LoginCookie { expires, secret })
    }

    /// Returns the value of the cookie.
    pub fn to_value(&self) -> String {
        format!("{}.{}", self.expires, encode_hex(self.secret))
    }

    /// Returns the parameter `state` of the authorization request.
    pub fn state(&self) -> String {
        self.derive("state")
    }

    /// Returns whether the `state` of a callback belongs to this login.
    pub fn matches_state(&self, given: &str) -> bool {
        URL_SAFE_NO_PAD
            .decode(given)
            .is_ok_and(|given| hmac::verify(&self.key(), self.message("state").as_bytes(), &given).is_ok())
    }

    /// Returns the nonce, which the ID token must contain.
    pub fn nonce(&self) -> String {
        self.derive("nonce")
    }

    /// Returns the PKCE verifier (RFC 7636), which is sent with the authorization code.
    pub fn code_verifier(&self) -> String {
        self.derive("verifier")
    }

    /// Returns the PKCE challenge for the method S256.
    pub fn code_challenge(&self) -> String {
        URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, self.code_verifier().as_bytes()))
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.secret)
    }

    fn message(&self, purpose: &str) -> String {
        format!("{purpose} {}", self.expires)
    }

    fn derive(&self, purpose: &str) -> String {
        URL_SAFE_NO_PAD.encode(hmac::sign(&self.key(), self.message(purpose).as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_cookie_is_read_back() {
        let cookie = LoginCookie::new(1000, [7; 32]);
        let read = LoginCookie::parse_value(&cookie.to_value(), 1001).unwrap();
        assert_eq!((read.state(), read.nonce()), (cookie.state(), cookie.nonce()));
        assert!(read.matches_state(&cookie.state()));
        assert_eq!(read.code_verifier().len(), 43);
        let all = [cookie.state(), cookie.nonce(), cookie.code_verifier(), cookie.code_challenge()];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    }

    #[test]
    fn foreign_expired_and_extended_cookies_are_refused() {
        let cookie = LoginCookie::new(1000, [7; 32]);
        let value = cookie.to_value();
        assert!(LoginCookie::parse_value(&value, 1600).is_none(), "expired");
        assert!(LoginCookie::parse_value(&value, 999).is_none(), "valid for too long");
        for broken in ["", "1600", "1600.", "1600.07", "x.07", &value[1..], &format!("{value}00")] {
            assert!(LoginCookie::parse_value(broken, 1001).is_none(), "{broken}");
        }
        let extended = LoginCookie::parse_value(&value.replacen("1600", "1700", 1), 1200).unwrap();
        assert!(!extended.matches_state(&cookie.state()), "an extended cookie belongs to another state");
        let foreign = LoginCookie::new(1000, [8; 32]);
        for state in [foreign.state(), cookie.nonce(), String::new(), "%".to_owned()] {
            assert!(!cookie.matches_state(&state), "{state}");
        }
    }
}
