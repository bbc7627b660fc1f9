//! Logins with OpenID Connect: the settings in `oidc.yaml`, the requests to the identity provider, and the verification
//! of ID tokens.
//!
//! * [`settings`] reads `oidc.yaml`, and [`role_mapping`] derives the role of a user from the groups of the user.
//! * [`provider`] fetches and caches the provider's metadata and keys, and redeems authorization codes.
//! * [`id_token`] verifies ID tokens with the keys of [`key_set`]. The crate `jsonwebtoken` parses and validates the
//!   tokens, and `ring_signatures` verifies their signatures with ring.
//! * [`login_cookie`] binds a login at the web page to a browser.
//!
//! Sessions, tokens and users are not part of this crate.

pub mod id_token;
pub mod key_set;
pub mod login_cookie;
pub mod provider;
mod ring_signatures;
pub mod role_mapping;
pub mod settings;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
