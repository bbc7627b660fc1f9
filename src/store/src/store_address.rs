//! Address of a PostgreSQL database, as the operator specifies it: `postgres://USER@HOST/DATABASE`. The password is
//! never part of a message.

use crate::sql;
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls_platform_verifier::BuilderVerifierExt;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const USER_TIMEOUT: Duration = Duration::from_secs(15);

/// URL parameter, as in libpq, that specifies the CA certificate file for verifying the PostgreSQL server.
const ROOT_CERTIFICATE: &str = "sslrootcert";

/// Address of a PostgreSQL database.
#[derive(Clone)]
pub struct PostgresAddress {
    config: Config,
    root_certificate: Option<PathBuf>,
}

impl PostgresAddress {
    /// Parses a URL of the form `postgres://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETERS`.
    ///
    /// # Errors
    /// Returns an error if the URL is invalid. The error does not contain the URL.
    pub fn parse(url: &str) -> Result<PostgresAddress> {
        let invalid = |why: String| {
            let message =
                format!("the address of the database is invalid: {why}; specify postgres://USER@HOST/DATABASE");
            Error::refusal(Phase::Serve, message).with_code(ErrorCode::DatabaseAddress)
        };
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(invalid("the URL does not start with postgres://".to_owned()));
        }
        let (url, root_certificate) = split_root_certificate(url.trim());
        let parsed: Result<Config, _> = url.parse();
        let mut config = parsed.map_err(|error| {
            // The error message of the parser may quote a secret parameter.
            let is_mode = url.contains("sslmode=") && error.to_string().contains("sslmode");
            invalid(
                if is_mode {
                    "unknown sslmode"
                } else {
                    "the text is not a URL of PostgreSQL, or the URL has an unknown parameter"
                }
                .to_owned(),
            )
        })?;
        if config.get_hosts().is_empty() {
            return Err(invalid("the URL does not contain a host".to_owned()));
        }
        if config.get_dbname().is_none() {
            return Err(invalid("the URL does not contain the name of a database".to_owned()));
        }
        let has_mode = url.contains("sslmode=");
        if !has_mode {
            let is_local = config.get_hosts().iter().all(is_local);
            config.ssl_mode(if is_local { SslMode::Disable } else { SslMode::Require });
        }
        config.application_name("drophammer").target_session_attrs(TargetSessionAttrs::ReadWrite);
        config.connect_timeout(CONNECT_TIMEOUT).tcp_user_timeout(USER_TIMEOUT);
        config
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3);
        Ok(PostgresAddress { config, root_certificate })
    }

    /// Reads the address from a file that contains only the URL.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or does not contain a valid URL.
    pub fn read_file(path: &Path) -> Result<PostgresAddress> {
        let what = || format!("read {}", path.display());
        let text = std::fs::read_to_string(path).context(Phase::Serve, what)?;
        PostgresAddress::parse(text.trim()).context(Phase::Serve, || path.display().to_string())
    }

    /// Returns whether the URL contains a password.
    pub fn has_password(&self) -> bool {
        self.config.get_password().is_some()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the TLS connector, which verifies the server's certificate.
    pub(crate) fn tls(&self) -> sql::Result<MakeRustlsConnect> {
        let unsuitable = |error: &dyn fmt::Display| sql::Error::Unsuitable(format!("TLS cannot be set up: {error}"));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| unsuitable(&error))?;
        let config = match &self.root_certificate {
            Some(path) => {
                let mut roots = rustls::RootCertStore::empty();
                let failed = |error: &dyn fmt::Display| {
                    sql::Error::Unsuitable(format!("cannot read {}: {error}", path.display()))
                };
                for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))? {
                    let certificate = certificate.map_err(|error| failed(&error))?;
                    roots.add(certificate).map_err(|error| failed(&error))?;
                }
                builder.with_root_certificates(roots).with_no_client_auth()
            }
            None if self.config.get_ssl_mode() == SslMode::Disable => {
                builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
            }
            None => builder.with_platform_verifier().map_err(|error| unsuitable(&error))?.with_no_client_auth(),
        };
        Ok(MakeRustlsConnect::new(config))
    }
}

impl fmt::Display for PostgresAddress {
    /// Writes the hosts and the name of the database.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.config.get_hosts().iter().map(describe_host).collect();
        write!(
            formatter,
            "PostgreSQL database {} on {}",
            self.config.get_dbname().unwrap_or_default(),
            hosts.join(", ")
        )
    }
}

impl fmt::Debug for PostgresAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

fn describe_host(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    }
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => matches!(name.as_str(), "localhost" | "127.0.0.1" | "::1"),
        Host::Unix(_) => true,
    }
}

/// Removes the parameter with the root certificate from the URL, because the client library does not support it.
fn split_root_certificate(url: &str) -> (String, Option<PathBuf>) {
    let Some((base, parameters)) = url.split_once('?') else { return (url.to_owned(), None) };
    let (mut kept, mut path) = (Vec::new(), None);
    for parameter in parameters.split('&') {
        match parameter.strip_prefix(ROOT_CERTIFICATE).and_then(|rest| rest.strip_prefix('=')) {
            Some(value) => path = Some(PathBuf::from(value)),
            None => kept.push(parameter),
        }
    }
    let base = if kept.is_empty() { base.to_owned() } else { format!("{base}?{}", kept.join("&")) };
    (base, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_shown_without_user_and_password() {
        let address =
            PostgresAddress::parse("postgres://me:geheim@db.example:5433/desk?sslrootcert=/etc/ca.pem").unwrap();
        assert_eq!(address.to_string(), "PostgreSQL database desk on db.example");
        assert!(address.has_password() && !format!("{address:?}").contains("geheim"));
        assert_eq!(address.root_certificate.as_deref(), Some(Path::new("/etc/ca.pem")));
        assert_eq!(address.config.get_ssl_mode(), SslMode::Require);
        let local = PostgresAddress::parse("postgres:///desk?host=/run/postgresql&user=me").unwrap();
        assert_eq!(local.to_string(), "PostgreSQL database desk on /run/postgresql");
        assert_eq!(local.config.get_ssl_mode(), SslMode::Disable);
        let plain = PostgresAddress::parse("postgres://me@db.example/desk?sslmode=disable").unwrap();
        assert_eq!(plain.config.get_ssl_mode(), SslMode::Disable);
    }

    #[test]
    fn invalid_addresses_are_refused_without_quoting_them() {
        for (url, why) in [
            ("mysql://me:geheim@h/d", "does not start with postgres://"),
            ("postgres://me:geheim@h", "does not contain the name of a database"),
            ("postgres:///desk", "does not contain a host"),
            ("postgres://me:geheim@h/d?geheim=1", "unknown parameter"),
            ("postgres://me:geheim@h:port/d", "not a URL"),
        ] {
            let error = PostgresAddress::parse(url).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("geheim"), "{url}: {error}");
        }
    }
}
