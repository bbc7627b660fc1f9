//! Parser of the HTTP requests that the proxy receives.

use std::io::BufRead;

/// Returns the path of a request target.
pub fn without_query(target: &str) -> &str {
    target.split('?').next().unwrap_or_default()
}

/// Removes the query from a recorded request.
pub fn drop_query(request: &str) -> String {
    request.split(' ').map(without_query).collect::<Vec<_>>().join(" ")
}

/// Returns the lines up to the first empty line, without line endings.
pub fn read_head(from: &mut impl BufRead) -> std::io::Result<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(lines);
        }
        lines.push(line.to_owned());
    }
}

/// Reads the body of a request with this head.
pub fn read_body(head: &[String], from: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let length = head.iter().find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    from.read_exact(&mut body)?;
    Ok(body)
}
