//! Proxies of the environment: `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, in upper or lower case.
//!
//! These variables apply only to connections to the Internet. Connections between agents, install servers, control
//! planes and management controllers ignore the variables. Only clients with a [`ProxyScope`] use a proxy. Such a
//! client does not use a proxy for addresses of this host or of a private network.

use common::error::{Error, Phase};
use common::format::without_secrets;
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::blocking::ClientBuilder;
use reqwest::{Proxy, Url};
use std::env;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

static ENVIRONMENT: LazyLock<EnvironmentProxies> =
    LazyLock::new(|| EnvironmentProxies::read(&|name| env::var(name).ok()));

/// Scope of the requests that a client sends through the environment's proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyScope {
    /// Only requests over https, whose contents the proxy cannot read. Used by clients that send a token.
    Https,
    /// All requests, over http and https.
    All,
}

/// Environment variable with the URL of a proxy.
#[derive(Debug, Clone)]
struct ProxyVariable {
    name: &'static str,
    /// URL of the proxy, or the value of the variable if it is not the URL of an HTTP proxy.
    url: Result<Url, String>,
}

/// URL that is used as the proxy if the operator has specified an unsupported proxy. The host of this URL does not
/// exist, so requests fail instead of bypassing the specified proxy.
const UNSUPPORTED: &str = "http://unsupported-proxy.invalid";

/// Proxies of the environment.
#[derive(Debug, Clone)]
struct EnvironmentProxies {
    http: Option<ProxyVariable>,
    https: Option<ProxyVariable>,
    /// Matcher of the hosts that are not listed in `no_proxy`.
    listed: Arc<Matcher>,
}

/// Configures the client to use the proxies of the environment for the requests in this scope.
pub(crate) fn use_proxies(builder: ClientBuilder, scope: ProxyScope) -> ClientBuilder {
    ENVIRONMENT.clone().configure(builder, scope)
}

/// Configures an asynchronous client as [`use_proxies`] does.
pub(crate) fn use_async_proxies(builder: reqwest::ClientBuilder, scope: ProxyScope) -> reqwest::ClientBuilder {
    builder.proxy(ENVIRONMENT.clone().into_proxy(scope))
}

/// Checks that the proxy through which a client of this scope sends requests to the URL is supported.
///
/// # Errors
/// Returns an error if the environment specifies a SOCKS proxy, or an invalid proxy, for this URL.
pub fn check_proxy(url: &str, scope: ProxyScope) -> common::error::Result<()> {
    let why = url.parse().ok().and_then(|url| ENVIRONMENT.explain_unsupported(&url, scope));
    why.map_or(Ok(()), |why| Err(Error::refusal(Phase::Settings, why)))
}

/// Describes, for messages, the proxy through which a client of this scope sends requests to the URL: ` through the
/// proxy URL (from VARIABLE)`, or an empty string.
pub fn describe_proxy(url: &str, scope: ProxyScope) -> String {
    url.parse().map(|url| ENVIRONMENT.describe(&url, scope)).unwrap_or_default()
}

impl EnvironmentProxies {
    fn read(lookup: &dyn Fn(&str) -> Option<String>) -> EnvironmentProxies {
        let find = |names: [&'static str; 4]| names.into_iter().find_map(|name| parse_variable(name, &lookup(name)?));
        let no = ["NO_PROXY", "no_proxy"].into_iter().find_map(lookup).unwrap_or_default();
        EnvironmentProxies {
            http: find(["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]),
            https: find(["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]),
            listed: Arc::new(Matcher::builder().all("http://proxy").no(no).build()),
        }
    }

    fn configure(self, builder: ClientBuilder, scope: ProxyScope) -> ClientBuilder {
        builder.proxy(self.into_proxy(scope))
    }

    fn into_proxy(self, scope: ProxyScope) -> Proxy {
        let address = |variable: &ProxyVariable| match &variable.url {
            Ok(url) => url.to_string(),
            Err(_) => UNSUPPORTED.to_owned(),
        };
        Proxy::custom(move |url| self.select(url, scope).map(address))
    }

    /// Returns the proxy through which a client of this scope sends a request to this URL.
    fn select(&self, url: &Url, scope: ProxyScope) -> Option<&ProxyVariable> {
        self.find_variable(url).filter(|_| scope == ProxyScope::All || url.scheme() == "https")
    }

    /// Returns the proxy that the environment specifies for this URL. Returns `None` if the environment does not
    /// specify a proxy, if `no_proxy` lists the host, or if the host is this machine or is in a private network.
    fn find_variable(&self, url: &Url) -> Option<&ProxyVariable> {
        let variable = match url.scheme() {
            "https" => self.https.as_ref()?,
            "http" => self.http.as_ref()?,
            _ => return None,
        };
        let is_proxied = !is_local(url.host_str()?) && self.listed.intercept(&url.as_str().parse().ok()?).is_some();
        is_proxied.then_some(variable)
    }

    /// Returns the reason why the proxy for this URL cannot be used; `None` if it can be used, or no proxy is used.
    fn explain_unsupported(&self, url: &Url, scope: ProxyScope) -> Option<String> {
        let ProxyVariable { name, url: Err(value) } = self.select(url, scope)? else { return None };
        let host = url.host_str().unwrap_or_default();
        Some(format!(
            "{name}: cannot use the proxy {} for {host}: only http:// and https:// proxies are supported; specify an HTTP \
             proxy, or add {host} to no_proxy to connect directly",
            without_secrets(value)
        ))
    }

    fn describe(&self, url: &Url, scope: ProxyScope) -> String {
        match (self.select(url, scope), self.find_variable(url)) {
            (Some(ProxyVariable { name, url: Ok(url) }), _) => {
                format!(" through the proxy {proxy} (from {name})", proxy = url.origin().ascii_serialization())
            }
            (Some(ProxyVariable { name, .. }), _) => format!(" through the proxy of {name}, which is not supported"),
            (None, Some(ProxyVariable { name, .. })) => {
                format!(" (not through the proxy from {name}, which could read the token; use an https:// URL)")
            }
            (None, None) => String::new(),
        }
    }
}

/// Parses the value of a variable as the URL of a proxy. The URL may lack a scheme. Returns `None` if the value is
/// empty.
fn parse_variable(name: &'static str, value: &str) -> Option<ProxyVariable> {
    let text = Some(value.trim()).filter(|text| !text.is_empty())?;
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url = url.parse().ok().filter(|url: &Url| matches!(url.scheme(), "http" | "https"));
    Some(ProxyVariable { name, url: url.ok_or_else(|| text.to_owned()) })
}

/// Returns whether the host is this machine, or is in a private network. A host is assumed to be in a private network
/// if its name does not contain a domain, or its address is not routed on the Internet.
fn is_local(host: &str) -> bool {
    let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() else {
        let name = host.trim_end_matches('.');
        return !name.contains('.') || name.ends_with(".localhost");
    };
    let address = address.to_canonical();
    match address {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            let is_shared = first == 100 && second & 0xc0 == 64;
            let is_private = address.is_private() || address.is_link_local() || is_shared;
            is_private || address.is_loopback() || address.is_unspecified()
        }
        IpAddr::V6(address) => {
            let is_private = address.is_unique_local() || address.is_unicast_link_local();
            is_private || address.is_loopback() || address.is_unspecified()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;
    use testing::http::{ResponseBehavior, Server};

    fn proxies(variables: &[(&str, &str)]) -> EnvironmentProxies {
        let find = |name: &str| Some(variables.iter().find(|(key, _)| *key == name)?.1.to_owned());
        EnvironmentProxies::read(&find)
    }

    fn proxy() -> Server {
        Server::start(b"the proxy".to_vec(), |_| ResponseBehavior::default())
    }

    const NAMES: [&str; 4] = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];

    #[test]
    fn token_is_not_sent_to_a_proxy_over_http() {
        let (proxy, server) = (proxy(), Server::start(b"the server".to_vec(), |_| ResponseBehavior::default()));
        for name in NAMES {
            let builder = proxies(&[(name, &proxy.url(""))]).configure(client_builder(None), ProxyScope::Https);
            let client = builder.build().unwrap();
            let answer = client.get(server.url("/v1/machines")).bearer_auth("secret").send().unwrap();
            assert_eq!(answer.text().unwrap(), "the server", "{name}");
            // The host name does not resolve, and the request is not sent to the proxy.
            client.get("http://install.invalid:8080/v1/machines").bearer_auth("secret").send().unwrap_err();
        }
        assert_eq!(proxy.requests().len(), 0);
    }

    #[test]
    fn local_addresses_and_names_are_reached_directly() {
        let all = proxies(&[("all_proxy", "http://proxy.example:3128"), ("no_proxy", "example.net,192.0.2.0/24")]);
        for host in [
            "127.0.0.1",
            "127.1.2.3",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "localhost",
            "localhost.",
            "LOCALHOST",
            "a.localhost",
            "install",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.1.1",
            "100.64.0.1",
            "0.0.0.0",
            "[fd00::1]",
            "[fe80::1]",
            "install.example.net",
            "192.0.2.7",
        ] {
            for scheme in ["http", "https"] {
                let url = format!("{scheme}://{host}:8443/").parse().unwrap();
                assert!(all.select(&url, ProxyScope::All).is_none(), "{url}");
                assert_eq!(all.describe(&url, ProxyScope::All), "", "{url}");
            }
        }
        for host in ["images.example", "203.0.113.1", "[2001:db8::1]", "172.32.0.1", "100.128.0.1", "localhost.example"]
        {
            for (scheme, in_https) in [("http", false), ("https", true)] {
                let url = format!("{scheme}://{host}/").parse().unwrap();
                assert!(all.select(&url, ProxyScope::All).is_some(), "{url}");
                assert_eq!(all.select(&url, ProxyScope::Https).is_some(), in_https, "{url}");
            }
        }
    }

    #[test]
    fn downloads_use_the_proxy_and_control_planes_do_not() {
        let proxy = proxy();
        let builder = proxies(&[("http_proxy", &proxy.url(""))]).configure(client_builder(None), ProxyScope::All);
        let answer = builder.build().unwrap().get("http://images.invalid/debian.tar.zst").send().unwrap();
        assert_eq!(answer.text().unwrap(), "the proxy");
        assert!(proxy.requests()[0].line().contains("debian.tar.zst"), "{:?}", proxy.requests());
        let error = format!("{:?}", new_client().unwrap().get("http://images.invalid/").send().unwrap_err());
        assert!(error.contains("dns") || error.contains("lookup"), "{error}");
    }

    /// Runs the requests in a process whose environment specifies the proxy.
    #[test]
    fn environment_redirects_no_install_network_request() {
        const SERVER: &str = "DROPHAMMER_TEST_SERVER";
        if let Ok(server) = env::var(SERVER) {
            let stall = Duration::from_secs(10);
            let direct =
                [new_client(), new_client_without_redirects(), new_device_client(true), new_streaming_client(stall)];
            for client in direct.into_iter().chain([new_operator_client(), new_login_client()]) {
                let client = client.unwrap();
                assert_eq!(client.get(&server).bearer_auth("secret").send().unwrap().text().unwrap(), "the server");
                client.get("http://install.invalid/").bearer_auth("secret").send().unwrap_err();
            }
            let download = new_download_client(None).unwrap();
            assert_eq!(download.get(&server).send().unwrap().text().unwrap(), "the server");
            return assert_eq!(download.get("http://install.invalid/").send().unwrap().text().unwrap(), "the proxy");
        }
        for name in NAMES {
            let (proxy, server) = (proxy(), Server::start(b"the server".to_vec(), |_| ResponseBehavior::default()));
            let mut command = std::process::Command::new(env::current_exe().unwrap());
            command.args(["--exact", "http::proxies::tests::environment_redirects_no_install_network_request"]);
            for other in NAMES {
                command.env_remove(other);
            }
            let done = command.env(name, proxy.url("")).env(SERVER, server.url("")).output().unwrap();
            assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stdout));
            assert_eq!((server.requests().len(), proxy.requests().len()), (7, 1), "{name}");
        }
    }

    #[test]
    fn messages_name_the_variable_but_not_the_password() {
        let both = [("https_proxy", "http://user:secret@proxy.example:3128/"), ("HTTP_PROXY", "proxy.example:80")];
        let both = proxies(&both);
        let describe = |url: &str, scope| both.describe(&url.parse().unwrap(), scope);
        assert_eq!(
            describe("https://images.example/x", ProxyScope::Https),
            " through the proxy http://proxy.example:3128 (from https_proxy)"
        );
        assert_eq!(
            describe("http://images.example/x", ProxyScope::All),
            " through the proxy http://proxy.example (from HTTP_PROXY)"
        );
        assert_eq!(
            describe("http://install.example/x", ProxyScope::Https),
            " (not through the proxy from HTTP_PROXY, which could read the token; use an https:// URL)"
        );
        for ignored in ["", " "] {
            let none = proxies(&[("all_proxy", ignored)]);
            assert!(none.http.is_none() && none.https.is_none(), "{ignored:?}");
        }
    }

    #[test]
    fn unsupported_proxies_are_refused_instead_of_bypassed() {
        let server = Server::start(b"the server".to_vec(), |_| ResponseBehavior::default());
        for value in
            ["socks5://me:secret@proxy.example:1080", "socks5h://proxy.example", "http://", "ftp://proxy.example"]
        {
            let all = proxies(&[("all_proxy", value)]);
            let explain = |url: &str, scope| all.explain_unsupported(&url.parse().unwrap(), scope);
            let why = explain("https://images.example/x", ProxyScope::Https).unwrap();
            assert!(why.starts_with("all_proxy: cannot use the proxy "), "{why}");
            assert!(why.contains("for images.example: only http:// and https://") && !why.contains("secret"), "{why}");
            assert!(explain("http://images.example/x", ProxyScope::All).is_some());
            // These requests do not use a proxy.
            assert_eq!(explain("http://images.example/x", ProxyScope::Https), None);
            assert_eq!(explain(&server.url("/"), ProxyScope::All), None);
            let builder = all.configure(client_builder(None), ProxyScope::All);
            let client = builder.build().unwrap();
            assert_eq!(client.get(server.url("/")).send().unwrap().text().unwrap(), "the server");
            client.get("http://images.invalid/").send().unwrap_err();
        }
    }

    /// Runs the check in a process whose environment specifies the proxy.
    #[test]
    fn proxy_check_uses_the_environment() {
        const CHILD: &str = "DROPHAMMER_TEST_CHILD";
        if env::var_os(CHILD).is_some() {
            let error = check_proxy("https://images.example/x", ProxyScope::All).unwrap_err();
            assert!(error.is_refusal() && error.to_string().contains("socks5://proxy.example:1080"), "{error}");
            return check_proxy("https://10.0.0.1/x", ProxyScope::All).unwrap();
        }
        let mut command = std::process::Command::new(env::current_exe().unwrap());
        command.args(["--exact", "http::proxies::tests::proxy_check_uses_the_environment"]).env(CHILD, "1");
        ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"].iter().for_each(|name| {
            command.env_remove(name);
        });
        let done = command.env("all_proxy", "socks5://proxy.example:1080").output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    }
}
