//! Detection of URLs with the wrong scheme: https for a port without TLS, or http for a port that requires TLS.

use std::error::Error as StdError;
use std::io;

/// Reason why a request to a URL with the wrong scheme has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemeMismatch {
    /// The URL begins with https, but the server does not respond with TLS.
    ServerLacksTls,
    /// The URL begins with http, but the server's response is not HTTP. Most servers that require TLS respond in this
    /// way.
    ServerLacksHttp,
}

/// Returns the scheme mismatch that is the probable reason for the error of a request, if any.
pub fn find_scheme_mismatch(error: &(dyn StdError + 'static)) -> Option<SchemeMismatch> {
    if let Some(rustls::Error::InvalidMessage(_)) = error.downcast_ref() {
        return Some(SchemeMismatch::ServerLacksTls);
    }
    if error.downcast_ref::<hyper::Error>().is_some_and(|error| error.is_parse() || error.is_incomplete_message()) {
        return Some(SchemeMismatch::ServerLacksHttp);
    }
    // If the server closes the connection during the handshake, tokio-rustls reports only this text.
    let closed =
        |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof && error.to_string() == "tls handshake eof";
    if error.downcast_ref::<io::Error>().is_some_and(closed) {
        return Some(SchemeMismatch::ServerLacksTls);
    }
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    inner.and_then(|inner| find_scheme_mismatch(inner)).or_else(|| find_scheme_mismatch(error.source()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::new_client;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use testing::http::{ResponseBehavior, Server};

    fn request(url: &str) -> Option<SchemeMismatch> {
        new_client().unwrap().get(url).send().err().and_then(|error| find_scheme_mismatch(&error))
    }

    #[test]
    fn server_without_tls_is_detected() {
        let server = Server::start(b"ok".to_vec(), |_| ResponseBehavior::default());
        assert_eq!(request(&server.url("")), None);
        assert_eq!(request(&server.url("").replace("http:", "https:")), Some(SchemeMismatch::ServerLacksTls));
    }

    #[test]
    fn server_that_sends_a_tls_alert_is_detected() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            // Fatal alert `decode_error` (RFC 8446, section 6).
            stream.write_all(&[0x15, 3, 3, 0, 2, 2, 50]).unwrap();
        });
        assert_eq!(request(&format!("http://{address}")), Some(SchemeMismatch::ServerLacksHttp));
        answering.join().unwrap();
    }

    #[test]
    fn closed_port_is_not_a_scheme_mismatch() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(request(&format!("http://{address}")), None);
        assert_eq!(request(&format!("https://{address}")), None);
    }
}
