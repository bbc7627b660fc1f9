//! Download of kernel and ramdisk for a reinstall, into memory, so no filesystem of this system needs free space.

use ::http::Request;
use common::error::{Context, Error, Phase, Result};
use control::agent_api_types::{ErrorBody, NextBoot};
use linux::http::{self, privileged_port};
use model::architecture::Architecture;
use nix::sys::memfd::{MFdFlags, memfd_create};
use reqwest::StatusCode;
use reqwest::blocking::Client;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

/// Time after which a download fails if no data arrives.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Number of attempts to download a file. If all of them fail, the running system continues.
const DOWNLOADS: u32 = 3;
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Maximum size of kernel and ramdisk, in bytes. The size is limited because downloads are stored in memory, and the
/// server may be an impostor.
const DOWNLOAD_BYTES: u64 = 512 << 20;

/// Client of the control plane. The client requests the boot information without a token, from a privileged source
/// port.
#[derive(Debug)]
pub(crate) struct BootClient {
    client: Client,
    url: String,
}

pub(crate) enum BootResponse {
    Boot(NextBoot),
    /// No reinstall is ordered for this machine.
    NotOrdered {
        message: String,
    },
}

/// Kernel and ramdisk as open files, as required by kexec_file_load(2).
#[derive(Debug)]
pub(crate) struct BootFiles {
    pub names: NextBoot,
    pub kernel: File,
    pub initrd: File,
}

impl BootClient {
    /// Creates a client.
    ///
    /// # Errors
    /// Fails if the URL is neither http:// nor https://.
    pub(crate) fn new(url: &str) -> Result<BootClient> {
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Error::new(Phase::Settings, format!("--server {url} is neither http:// nor https://")));
        }
        Ok(BootClient { client: http::new_streaming_client(STALL_TIMEOUT)?, url: url.trim_end_matches('/').to_owned() })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Requests the boot information of this machine. Tries each MAC in turn, because the server may have recorded only
    /// one of them.
    ///
    /// # Errors
    /// Fails if the server does not respond, or its response cannot be parsed.
    pub(crate) fn request_boot(&self, machine: Option<&str>, macs: &[String]) -> Result<BootResponse> {
        let one = [String::new()];
        let macs = if macs.is_empty() { &one } else { macs };
        let mut refused = None;
        for mac in macs {
            let url = boot_url(&self.url, machine.unwrap_or_default(), mac);
            let what = || format!("request boot information from {url}", url = self.url);
            let request = Request::get(&url).body(Vec::new()).context(Phase::Control, what)?;
            let response = privileged_port::send_privileged(request, STALL_TIMEOUT).context(Phase::Control, what)?;
            let status = response.status();
            if status.is_success() {
                let boot = serde_json::from_slice(response.body());
                return Ok(BootResponse::Boot(
                    boot.context(Phase::Control, || format!("parse the response of {url}"))?,
                ));
            }
            let answer = read_refusal(&self.url, status, &String::from_utf8_lossy(response.body()));
            if !status.is_client_error() {
                return answer;
            }
            // If the responses for different MACs differ (nothing ordered, unknown NIC), "nothing ordered" is
            // returned, because it is more informative.
            if refused.is_none() || matches!(answer, Ok(BootResponse::NotOrdered { .. })) {
                refused = Some(answer);
            }
        }
        refused
            .unwrap_or_else(|| Err(Error::new(Phase::Control, format!("no request was sent to {url}", url = self.url))))
    }

    /// Downloads kernel and ramdisk completely.
    ///
    /// # Errors
    /// Fails if a file cannot be downloaded.
    pub(crate) fn fetch_files(&self, names: NextBoot) -> Result<BootFiles> {
        let kernel = self.download(&names.kernel)?;
        let initrd = self.download(&names.initrd)?;
        Ok(BootFiles { names, kernel, initrd })
    }

    fn download(&self, url: &str) -> Result<File> {
        for _ in 1..DOWNLOADS {
            match self.download_once(url) {
                Ok(file) => return Ok(file),
                Err(error) => tracing::warn!("{error}; retrying in {} s", RETRY_DELAY.as_secs()),
            }
            thread::sleep(RETRY_DELAY);
        }
        self.download_once(url)
    }

    fn download_once(&self, url: &str) -> Result<File> {
        let what = || format!("download {url}");
        let response = self.client.get(url).send().map_err(reqwest::Error::without_url);
        let mut response = response.context(Phase::Control, what)?;
        if response.status() != StatusCode::OK {
            return Err(Error::new(
                Phase::Control,
                format!("download {url}: the server responds {status}", status = response.status()),
            ));
        }
        let length = response.content_length();
        if let Some(length) = length.filter(|length| *length > DOWNLOAD_BYTES) {
            let message =
                format!("download {url}: the server announces {length} bytes; at most {DOWNLOAD_BYTES} are supported");
            return Err(Error::new(Phase::Control, message));
        }
        let mut file = File::from(memfd_create(c"drophammer", MFdFlags::MFD_CLOEXEC).context(Phase::Control, what)?);
        let got = io::copy(&mut response.by_ref().take(DOWNLOAD_BYTES + 1), &mut file).context(Phase::Control, what)?;
        if length != Some(got) || got == 0 {
            let promised = length.map_or("an unknown number".to_owned(), |length| length.to_string());
            return Err(Error::new(
                Phase::Control,
                format!("download {url}: received {got} bytes, expected {promised}"),
            ));
        }
        // kexec_file_load(2) fails with ETXTBSY if a writable descriptor of the file exists.
        File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).context(Phase::Control, what)
    }
}

fn boot_url(server: &str, machine: &str, mac: &str) -> String {
    format!("{server}/boot.json?uuid={machine}&mac={mac}{}", architecture_query(Architecture::NATIVE))
}

/// Returns the part of the query with the architecture. It is omitted for amd64, which servers of earlier versions
/// assume.
fn architecture_query(architecture: Architecture) -> String {
    match architecture {
        Architecture::Amd64 => String::new(),
        Architecture::Arm64 => format!("&arch={architecture}"),
    }
}

fn read_refusal(server: &str, status: StatusCode, body: &str) -> Result<BootResponse> {
    let said = serde_json::from_slice::<ErrorBody>(body.as_bytes()).map(|body| body.message).unwrap_or(body.to_owned());
    let said = said.trim();
    if status == StatusCode::CONFLICT {
        let message = if said.is_empty() { "no reinstall is ordered for this machine" } else { said };
        return Ok(BootResponse::NotOrdered { message: message.to_owned() });
    }
    let said = if said.is_empty() { String::new() } else { format!(": {said}") };
    Err(Error::new(
        Phase::Control,
        format!("request boot information from {server}: the server responds {status}{said}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use testing::http::{ResponseBehavior, Server as Fake};

    /// Starts a server that answers each request with the first reply whose path is contained in the request's path.
    fn serve(replies: Vec<(&'static str, ResponseBehavior)>) -> Fake {
        Fake::start(Vec::new(), move |request| {
            let reply = replies.iter().find(|(part, _)| request.path.contains(part));
            reply.map_or_else(|| ResponseBehavior::status(404), |(_, act)| act.clone())
        })
    }

    fn paths(fake: &Fake) -> Vec<String> {
        fake.requests().into_iter().map(|request| request.path).collect()
    }

    fn macs() -> Vec<String> {
        ["52:54:00:00:00:01", "52:54:00:00:00:02"].map(str::to_owned).to_vec()
    }

    #[test]
    fn boot_request_has_the_url_of_ipxe() {
        let url = boot_url("http://10.0.0.1:8080", "4c4c4544-0051-3010-8052-b4c04f4d3132", "52:54:00:12:34:56");
        let expected = "http://10.0.0.1:8080/boot.json?uuid=4c4c4544-0051-3010-8052-b4c04f4d3132&mac=52:54:00:12:34:56";
        assert_eq!(url, expected);
        assert_eq!(BootClient::new("https://c/").unwrap().url(), "https://c");
        let error = BootClient::new("10.0.0.1:8080").unwrap_err().to_string();
        assert!(error.contains("--server 10.0.0.1:8080 is neither"), "{error}");
    }

    #[test]
    fn only_other_architectures_are_sent() {
        assert_eq!(architecture_query(Architecture::Amd64), "");
        assert_eq!(architecture_query(Architecture::Arm64), "&arch=arm64");
    }

    #[test]
    fn ordered_kernel_and_initrd_are_downloaded_completely() {
        let files = serve(vec![("/k", ResponseBehavior::body("kernel")), ("/i", ResponseBehavior::body("initrd"))]);
        let names = NextBoot { kernel: files.url("k"), initrd: files.url("i"), cmdline: "a b".to_owned() };
        let control = serve(vec![("/boot.json", ResponseBehavior::body(serde_json::to_vec(&names).unwrap()))]);
        let server = BootClient::new(&control.url("")).unwrap();
        let BootResponse::Boot(boot) = server.request_boot(Some("id"), &macs()).unwrap() else {
            panic!("something is ordered")
        };
        assert_eq!(boot, names);
        assert_eq!(paths(&control), ["/boot.json?uuid=id&mac=52:54:00:00:00:01"]);
        let mut fetched = server.fetch_files(boot).unwrap();
        for (file, content) in [(&mut fetched.kernel, "kernel"), (&mut fetched.initrd, "initrd")] {
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, content);
            assert!(file.write_all(b"x").is_err(), "it must be open for reading only");
        }
    }

    #[test]
    fn missing_order_is_reported_with_the_server_message() {
        let body = "{\"statuscode\":409,\"message\":\"no reinstall of storage-7 is ordered\"}";
        for (body, says) in
            [(body, "no reinstall of storage-7 is ordered"), ("", "no reinstall is ordered for this machine")]
        {
            let control = serve(vec![("mac=52:54:00:00:00:02", ResponseBehavior::respond(409, body))]);
            let BootResponse::NotOrdered { message } =
                BootClient::new(&control.url("")).unwrap().request_boot(None, &macs()).unwrap()
            else {
                panic!("nothing is ordered")
            };
            assert_eq!(message, says);
            // The first NIC is unknown: 404.
            assert_eq!(paths(&control).len(), 2);
        }
    }

    #[test]
    fn other_responses_are_errors_without_changes() {
        for (status, body, says) in [
            (404, "{\"statuscode\":404,\"message\":\"unknown machine\"}", "404 Not Found: unknown machine"),
            (500, "", "500 Internal Server Error"),
            (200, "<html>", "parse the response of http://"),
            (200, "{}", "is missing"),
        ] {
            let control = serve(vec![("/boot.json", ResponseBehavior::respond(status, body))]);
            let response = BootClient::new(&control.url("")).unwrap().request_boot(Some("id"), &[]);
            let Err(error) = response else { panic!("{says} must be an error") };
            assert!(error.to_string().contains(says), "{says}: {error}");
        }
        let Err(error) = BootClient::new("http://127.0.0.1:1").unwrap().request_boot(Some("id"), &[]) else {
            panic!("no server listens on this port")
        };
        assert!(error.to_string().starts_with("request boot information from http://127.0.0.1:1: "), "{error}");
    }

    #[test]
    fn incomplete_or_oversized_file_is_refused() {
        let huge = b"HTTP/1.1 200 OK\r\nContent-Length: 536870913\r\n\r\nx";
        for (act, says) in [
            (ResponseBehavior::status(404), "404 Not Found"),
            (ResponseBehavior { cut: Some(5), ..ResponseBehavior::body("short file") }, "download http://"),
            (
                ResponseBehavior { length: false, ..ResponseBehavior::body("no length") },
                "received 9 bytes, expected an unknown number",
            ),
            (ResponseBehavior::body(""), "received 0 bytes, expected 0"),
            (
                ResponseBehavior { wire: Some(huge.to_vec()), ..ResponseBehavior::default() },
                "at most 536870912 are supported",
            ),
        ] {
            let files = serve(vec![("/vmlinuz", act)]);
            let server = BootClient::new(&files.url("")).unwrap();
            let error = server.download_once(&files.url("vmlinuz")).unwrap_err().to_string();
            assert!(error.contains(says), "{says}: {error}");
        }
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_kernel_reads_the_downloaded_files() {
        let files = serve(vec![("/k", ResponseBehavior::body("kernel"))]);
        let kernel = BootClient::new(&files.url("")).unwrap().download_once(&files.url("k")).unwrap();
        let error = newroot::boot::kexec::load_kernel_files("k", &kernel, None, "").unwrap_err().to_string();
        assert!(!error.contains("Text file busy") && !error.contains("ETXTBSY"), "{error}");
    }
}
