//! Signed address of the receiver. The signature proves to the sender that the address and port come from a machine
//! with the shared secret, and were not replaced in transit. The format is that of Ganeti's remote import, so the
//! sender can also verify addresses that Ganeti has signed.

use super::shared_secret::{self, HmacSignature, SharedSecret};
use common::error::Result;

/// Length of a salt, in characters. The length is fixed because Ganeti's format does not separate salt and disk index.
/// If the length could vary, the same signature would also be valid for another index.
const SALT_LENGTH: usize = 16;

/// Address of the receiver, and the disks for which this address is valid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Destination<'d> {
    /// `HOST:PORT`; an IPv6 address is in brackets.
    pub address: &'d str,
    /// Names of the disks. The name of an unnamed disk is its index, as in Ganeti.
    pub disks: &'d [String],
    /// Magic that identifies the disk; empty if there is no magic.
    pub magic: &'d str,
}

impl Destination<'_> {
    /// Signs the destination.
    ///
    /// # Errors
    /// Fails if no random numbers are available.
    pub(crate) fn sign(&self, secret: &SharedSecret) -> Result<HmacSignature> {
        Ok(secret.sign_text(&shared_secret::generate_salt()?, &self.format_message()))
    }

    /// Verifies the signature of the destination.
    ///
    /// # Errors
    /// Fails if the signature was made with another secret, or for another destination.
    pub(crate) fn verify(&self, secret: &SharedSecret, signature: &HmacSignature) -> Result<(), String> {
        if signature.salt.len() == SALT_LENGTH && secret.verifies(signature, &self.format_message()) {
            return Ok(());
        }
        Err(format!(
            "signature of the destination {address} does not match: it was made with another secret, or for another address, port, magic or list of disks",
            address = self.address
        ))
    }

    /// Returns the text that Ganeti signs: `INDEX:HOST:PORT:MAGIC`. For several disks, the text contains the names of
    /// the disks in place of the index.
    fn format_message(&self) -> String {
        let (host, port) = self.address.rsplit_once(':').unwrap_or((self.address, ""));
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        format!("{}:{host}:{port}:{}", self.disks.join(","), self.magic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_signature_is_valid_for_one_destination() {
        let secret = SharedSecret::parse_secret("s").unwrap();
        let (zero, both) = (names(&["0"]), names(&["0", "1"]));
        let signed = Destination { address: "b.example:7700", disks: &zero, magic: "abcde" };
        let signature = signed.sign(&secret).unwrap();
        signed.verify(&secret, &signature.to_string().parse().unwrap()).unwrap();
        let other_secret = SharedSecret::parse_secret("t").unwrap();
        assert!(signed.verify(&other_secret, &signature).is_err());
        for other in [
            Destination { address: "c.example:7700", ..signed },
            Destination { address: "b.example:7701", ..signed },
            Destination { disks: &both, ..signed },
            Destination { magic: "abcdf", ..signed },
            Destination { magic: "", ..signed },
        ] {
            let why = other.verify(&secret, &signature).unwrap_err();
            assert!(why.contains(other.address) && why.contains("does not match"), "{why}");
        }
    }

    /// A digit that moves from the index to the salt does not change the signed bytes.
    #[test]
    fn shifted_salt_is_refused() {
        let secret = SharedSecret::parse_secret("s").unwrap();
        let (ten, zero) = (names(&["10"]), names(&["0"]));
        let signature = Destination { address: "b:1", disks: &ten, magic: "" }.sign(&secret).unwrap();
        let (salt, digest) = (signature.salt.clone() + "1", signature.to_string());
        let shifted = format!("{salt}/{}", digest.split_once('/').unwrap().1).parse().unwrap();
        assert!(Destination { address: "b:1", disks: &zero, magic: "" }.verify(&secret, &shifted).is_err());
    }

    #[test]
    fn signed_message_matches_ganeti() {
        let disks = names(&["1"]);
        for (address, message) in
            [("192.0.2.7:39000", "1:192.0.2.7:39000:abcde"), ("[2001:db8::7]:39000", "1:2001:db8::7:39000:abcde")]
        {
            assert_eq!(Destination { address, disks: &disks, magic: "abcde" }.format_message(), message);
        }
    }

    /// Signature of ganeti 3.0.2's `ComputeRemoteImportDiskInfo`.
    #[test]
    fn signature_of_ganeti_is_valid() {
        let secret = SharedSecret::parse_secret("0f0e0d0c0b0a09080706050403020100ffeeddcc").unwrap();
        let signature = "0123456789abcdef/ec688fbd86eab294f172d75a0fcfa747297ffb66".parse().unwrap();
        let disks = names(&["1"]);
        Destination { address: "192.0.2.7:39000", disks: &disks, magic: "abcde" }.verify(&secret, &signature).unwrap();
    }

    #[test]
    fn malformed_signatures_are_refused() {
        for text in ["", "/", "ab/", "/00", "a-b/00", "ab/0", "ab/xy", "ab"] {
            assert!(text.parse::<HmacSignature>().is_err(), "{text}");
        }
    }
}
