//! Faulty responses with images. The proxy alters the head or the body of a response; the file itself is intact.

use crate::proxy::read_head;
use crate::scenario_image::ResponseFault;
use std::io::{BufReader, Read};

/// Altered response with an image, which the proxy sends instead of the server's response.
pub struct FaultyResponse<R> {
    fault: ResponseFault,
    from: BufReader<R>,
    /// Altered bytes that have not been read yet.
    ready: Vec<u8>,
    has_begun: bool,
    has_body: bool,
    /// Number of responses that were altered before this one.
    number: u32,
    /// Offset in the image of the next byte of the body, and offset of the byte in which a bit is flipped.
    offset: u64,
    wrong: Option<u64>,
    /// Remaining bytes of the body.
    left: u64,
}

/// Returns the request head for the server. If ranges are not supported, the Range header is removed.
pub fn adapt_request(fault: Option<ResponseFault>, head: &[String]) -> Vec<String> {
    let is_range = |line: &String| {
        let line = line.to_lowercase();
        line.starts_with("range:") || line.starts_with("if-range:")
    };
    head.iter().filter(|line| fault != Some(ResponseFault::NoRange) || !is_range(line)).cloned().collect()
}

impl<R: Read> FaultyResponse<R> {
    pub fn new(fault: ResponseFault, answer: R, has_body: bool, number: u32) -> FaultyResponse<R> {
        let from = BufReader::new(answer);
        FaultyResponse {
            fault,
            from,
            ready: vec![],
            has_begun: false,
            has_body,
            number,
            offset: 0,
            wrong: None,
            left: 0,
        }
    }

    /// Returns the altered head. The head of an error response is not altered.
    fn read_head(&mut self) -> std::io::Result<Vec<u8>> {
        let mut head = read_head(&mut self.from)?;
        let status = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
        let field = |name: &str| {
            let lines = head.iter().filter_map(|line| line.split_once(':'));
            lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned()).next()
        };
        self.left = field("content-length").and_then(|length| length.parse().ok()).unwrap_or_default();
        let range = field("content-range").unwrap_or_default();
        let bounds = range.trim_start_matches("bytes ").split_once('/');
        let total = bounds.map_or(Some(self.left), |(_, total)| total.parse().ok());
        self.offset = bounds.and_then(|(bounds, _)| bounds.split('-').next()?.parse().ok()).unwrap_or_default();
        let is_success = status == "200" || status == "206";
        let mut drop_field = |name: &str| {
            head.retain(|line| !line.split_once(':').is_some_and(|(key, _)| key.eq_ignore_ascii_case(name)));
        };
        match self.fault {
            ResponseFault::Chunked if is_success => {
                drop_field("content-length");
                head.push("Transfer-Encoding: chunked".to_owned());
            }
            ResponseFault::OneBit if is_success => self.wrong = total.map(|total| total / 2),
            ResponseFault::ChangingEtag if is_success => {
                drop_field("etag");
                drop_field("last-modified");
                head.push(format!("ETag: \"altered-{}\"", self.number));
            }
            ResponseFault::NoRange => drop_field("accept-ranges"),
            _ => self.has_body &= self.fault != ResponseFault::Chunked,
        }
        Ok(head.iter().map(|line| format!("{line}\r\n")).chain(["\r\n".to_owned()]).collect::<String>().into_bytes())
    }

    /// Returns the next block of the altered body; empty at the end of the body.
    fn read_body(&mut self) -> std::io::Result<Vec<u8>> {
        let mut piece = vec![0; 16 * 1024];
        let count = self.from.read(&mut piece)?;
        piece.truncate(count);
        let (began, end) = (self.offset, self.offset + count as u64);
        if let Some(wrong) = self.wrong.filter(|wrong| (began..end).contains(wrong)) {
            piece[(wrong - began) as usize] ^= 1;
        }
        self.offset = end;
        let was_whole = self.left == 0;
        self.left = self.left.saturating_sub(count as u64);
        if self.fault != ResponseFault::Chunked || !self.has_body {
            return Ok(piece);
        }
        Ok(match count {
            // The empty last chunk is sent only after a complete body.
            0 if was_whole => {
                self.has_body = false;
                b"0\r\n\r\n".to_vec()
            }
            0 => vec![],
            _ => [format!("{count:x}\r\n").as_bytes(), &piece, b"\r\n"].concat(),
        })
    }
}

impl<R: Read> Read for FaultyResponse<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.ready.is_empty() {
            self.ready = if self.has_begun { self.read_body()? } else { self.read_head()? };
            self.has_begun = true;
        }
        let count = self.ready.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.ready[..count]);
        self.ready.drain(..count);
        Ok(count)
    }
}

/// Tests each fault, for a complete image and for a partial response.
pub fn self_test() {
    let whole = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nETag: \"true\"\r\nAccept-Ranges: bytes\r\n\r\n0123456789";
    let rest = "HTTP/1.1 206 Partial Content\r\nContent-Length: 7\r\nContent-Range: bytes 3-9/10\r\n\r\n3456789";
    let error = "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone";
    let read_altered = |fault: ResponseFault, answer: &str, number: u32| {
        let mut text = String::new();
        let has_body = answer.split_once("\r\n\r\n").is_some_and(|(_, body)| !body.is_empty());
        FaultyResponse::new(fault, answer.as_bytes(), has_body, number).read_to_string(&mut text).expect("an answer");
        text
    };
    let chunked = read_altered(ResponseFault::Chunked, whole, 0);
    assert!(chunked.ends_with("Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n"), "{chunked}");
    assert!(!chunked.contains("Content-Length"), "{chunked}");
    let cut = read_altered(ResponseFault::Chunked, &whole[..whole.len() - 4], 0);
    assert!(cut.ends_with("\r\n\r\n6\r\n012345\r\n"), "{cut}");
    let head = read_altered(ResponseFault::Chunked, whole.split_once("0123").expect("a body").0, 0);
    assert!(head.ends_with("chunked\r\n\r\n"), "{head}");
    assert!(read_altered(ResponseFault::OneBit, whole, 0).ends_with("\r\n\r\n0123446789"));
    assert!(read_altered(ResponseFault::OneBit, rest, 0).ends_with("\r\n\r\n3446789"));
    let (first, second) =
        (read_altered(ResponseFault::ChangingEtag, whole, 1), read_altered(ResponseFault::ChangingEtag, rest, 2));
    assert!(first.contains("ETag: \"altered-1\"\r\n") && !first.contains("true"), "{first}");
    assert!(second.contains("ETag: \"altered-2\"\r\n") && second.ends_with("\r\n\r\n3456789"), "{second}");
    assert!(!read_altered(ResponseFault::NoRange, whole, 0).contains("Accept-Ranges"));
    for fault in [ResponseFault::Chunked, ResponseFault::OneBit, ResponseFault::ChangingEtag, ResponseFault::NoRange] {
        assert_eq!(read_altered(fault, error, 0), error, "{fault:?}");
    }

    let request_lines = ["GET /images/a HTTP/1.1", "Range: bytes=3-", "if-range: \"true\""].map(str::to_owned).to_vec();
    assert_eq!(adapt_request(Some(ResponseFault::NoRange), &request_lines), request_lines[..1]);
    assert_eq!(adapt_request(Some(ResponseFault::Chunked), &request_lines), request_lines);
    assert_eq!(adapt_request(None, &request_lines), request_lines);
}
