//! Planted bug of the network: some requests over plain HTTP are acknowledged instead of being forwarded.

use std::io;
use std::net::IpAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Type of request that is acknowledged instead of being forwarded. Requests about a first installation are always
/// forwarded.
#[derive(Debug, Clone, Copy)]
pub struct TamperedRequest {
    /// Last part of the request's path.
    pub path: &'static str,
    pub client: IpAddr,
    /// Text that the body must contain.
    pub contains: &'static str,
}

const ACKNOWLEDGEMENT: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{\"retry\":false}";
/// Text in the body of a request about a first installation.
const EMPTY_ORDER_TEXT: &str = "\"order\":\"\"";
/// Maximum size of a request, in bytes.
const REQUEST_BYTES: usize = 1 << 20;

impl TamperedRequest {
    /// Forwards the requests and responses of a connection, except requests that are tampered with.
    ///
    /// # Errors
    /// Returns an error if either side closes the connection during a request.
    pub async fn copy(self, mut client: TcpStream, mut server: TcpStream, peer: IpAddr) -> io::Result<()> {
        let (mut buffer, mut response) = (Vec::new(), vec![0; 16 << 10]);
        loop {
            tokio::select! {
                read = client.read_buf(&mut buffer) => if read? == 0 { return Ok(()) },
                read = server.read(&mut response) => match read? {
                    0 => return Ok(()),
                    length => client.write_all(response.get(..length).unwrap_or_default()).await?,
                },
            }
            while let Some(length) = request_length(&buffer) {
                let request: Vec<u8> = buffer.drain(..length).collect();
                if peer == self.client && self.applies_to(&request) {
                    client.write_all(ACKNOWLEDGEMENT).await?;
                } else {
                    server.write_all(&request).await?;
                }
            }
            if buffer.len() > REQUEST_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    fn applies_to(&self, request: &[u8]) -> bool {
        let text = String::from_utf8_lossy(request);
        let path = text.split(' ').nth(1).unwrap_or_default();
        path.ends_with(self.path) && text.contains(self.contains) && !text.contains(EMPTY_ORDER_TEXT)
    }
}

/// Returns the length of the first request, or `None` if it is incomplete.
fn request_length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(bytes.get(..head)?).to_lowercase();
    let body = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
    (bytes.len() >= head + body).then_some(head + body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_selected_request_is_tampered_with() {
        let request = b"POST /v1/machine/m/report HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello";
        let both = [request, &b"GET / HTTP/1.1\r\n\r\n"[..]].concat();
        assert_eq!(request_length(&both), Some(request.len()));
        assert_eq!(request_length(&request[..request.len() - 1]), None);
        assert_eq!(request_length(b"GET / HTTP/1.1\r\n\r\n"), Some(18));
        let tampered = |path, contains| {
            TamperedRequest { path, contains, client: IpAddr::from([127, 1, 0, 1]) }.applies_to(request)
        };
        assert!(tampered("/report", "hello"));
        let first = b"POST /report HTTP/1.1\r\n\r\n{\"order\":\"\"}";
        let report = TamperedRequest { path: "/report", contains: "", client: IpAddr::from([127, 1, 0, 1]) };
        assert!(!report.applies_to(first));
        assert!(!tampered("/event", "hello") && !tampered("/report", "other"));
    }
}
