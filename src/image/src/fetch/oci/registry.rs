//! Requests to a registry, with a token or password if the registry requires one.

use super::super::head_request::{HeadAnswer, ImageHead, request_head};
use super::super::retry::{DocumentAnswer, FetchRetryPolicy};
use super::manifest::accepted_types;
use super::reference::ImageReference;
use super::registry_authentication;
use crate::pipeline::{Digest, DigestKind, DigestReader};
use common::error::{Context, Error, Phase, Result};
use model::registry_auth::PullSecret;
use model::secret_text::SecretText;
use reqwest::blocking::{Client, Response};
use reqwest::header::{ACCEPT, AUTHORIZATION};
use reqwest::{StatusCode, Url};
use std::io;

/// Maximum length of a manifest, in bytes. Registries usually have the same limit.
const MANIFEST_BYTES: u64 = 4 << 20;

/// One repository of a registry.
pub(crate) struct RegistryRepository<'a> {
    pub client: &'a Client,
    pub reference: &'a ImageReference,
    /// Pull secret with the credentials for the registry, if one is configured.
    pub secret: Option<&'a PullSecret>,
    pub pace: &'a FetchRetryPolicy,
    /// `Authorization` header; `None` until the registry requires one.
    pub authorization: Option<SecretText>,
}

/// Manifest or index as received.
pub(crate) struct FetchedManifest {
    pub bytes: Vec<u8>,
    pub digest: Digest,
}

impl<'a> RegistryRepository<'a> {
    pub fn new(
        client: &'a Client,
        reference: &'a ImageReference,
        secret: Option<&'a PullSecret>,
        pace: &'a FetchRetryPolicy,
    ) -> Self {
        RegistryRepository { client, reference, secret, pace, authorization: None }
    }

    /// Fetches a manifest or index by tag or digest (`name`). Verifies its size and digest if the expected values are
    /// specified.
    ///
    /// # Errors
    /// Returns an error if the manifest is not available, or its size or digest differs.
    pub(crate) fn fetch_manifest(
        &mut self,
        name: &str,
        expected: Option<&Digest>,
        size: Option<u64>,
    ) -> Result<FetchedManifest> {
        let url = format!("{}/manifests/{name}", self.reference.base);
        let what = format!("the manifest {url}");
        match self.fetch_document(&url, MANIFEST_BYTES)? {
            DocumentAnswer::Document(bytes) => verify_document(&what, bytes, expected, size),
            DocumentAnswer::Other(response) => Err(fetch_error(&what, self.describe_rejection(response.status()))),
        }
    }

    /// Fetches the manifest with this tag; returns `None` if the registry responds with 404.
    ///
    /// # Errors
    /// Returns an error if the registry responds with anything other than a manifest or status 404.
    pub(crate) fn fetch_tagged(&mut self, tag: &str) -> Result<Option<Vec<u8>>> {
        let url = format!("{}/manifests/{tag}", self.reference.base);
        match self.fetch_document(&url, MANIFEST_BYTES)? {
            DocumentAnswer::Document(bytes) => Ok(Some(bytes)),
            DocumentAnswer::Other(response) if response.status() == StatusCode::NOT_FOUND => Ok(None),
            DocumentAnswer::Other(response) => {
                Err(fetch_error(&format!("the manifest {url}"), self.describe_rejection(response.status())))
            }
        }
    }

    /// Fetches a small blob of `size` bytes into memory, and verifies its size and digest.
    ///
    /// # Errors
    /// Returns an error if the blob is not available, or its size or digest differs.
    pub(crate) fn fetch_small_blob(&mut self, digest: &Digest, size: u64) -> Result<Vec<u8>> {
        let url = format!("{}/blobs/{digest}", self.reference.base);
        let what = format!("the blob {url}");
        match self.fetch_document(&url, size)? {
            DocumentAnswer::Document(bytes) => {
                verify_document(&what, bytes, Some(digest), Some(size)).map(|blob| blob.bytes)
            }
            DocumentAnswer::Other(response) => Err(fetch_error(&what, self.describe_rejection(response.status()))),
        }
    }

    fn describe_rejection(&self, status: StatusCode) -> String {
        let hint = match (status, self.secret) {
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, None) => {
                "; none of the pull secrets is for this registry"
            }
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, Some(_)) => {
                "; the registry does not accept the pull secret"
            }
            _ => "",
        };
        format!("cannot be fetched: the registry responded with {status}{hint}")
    }

    fn fetch_document(&mut self, url: &str, most_bytes: u64) -> Result<DocumentAnswer> {
        let answer = self.request_document(url, most_bytes)?;
        match &answer {
            DocumentAnswer::Other(refusal) if self.authorize(refusal)? => self.request_document(url, most_bytes),
            _ => Ok(answer),
        }
    }

    /// Returns size and ETag of the blob at this URL. Some registries require a token for blobs, but not for manifests.
    ///
    /// # Errors
    /// Returns an error if the blob is not available.
    pub(crate) fn head_blob(&mut self, url: &Url) -> Result<ImageHead> {
        let mut seen = request_head(self.client, url, self.authorization.as_ref(), self.pace)?;
        if let HeadAnswer::Refused(refusal) = &seen
            && self.authorize(refusal)?
        {
            seen = request_head(self.client, url, self.authorization.as_ref(), self.pace)?;
        }
        seen.into_head(url)
    }

    /// Obtains an `Authorization` header with a token or password if the registry responded with 401, and returns
    /// whether to repeat the request. Returns `false` if the registry has redirected the request to another host,
    /// because that host must not receive the credentials.
    fn authorize(&mut self, refusal: &Response) -> Result<bool> {
        let own = Url::parse(&self.reference.base).is_ok_and(|base| base.origin() == refusal.url().origin());
        if !own || refusal.status() != StatusCode::UNAUTHORIZED {
            return Ok(false);
        }
        let RegistryRepository { client, reference, secret, pace, .. } = self;
        self.authorization =
            Some(registry_authentication::answer_challenge(client, &reference.repository, refusal, *secret, pace)?);
        Ok(true)
    }

    fn request_document(&self, url: &str, most_bytes: u64) -> Result<DocumentAnswer> {
        self.pace.read_document(&format!("read {url}"), most_bytes, || {
            let request = self.client.get(url).header(ACCEPT, accepted_types());
            self.authorization.iter().fold(request, |request, value| request.header(AUTHORIZATION, value.reveal()))
        })
    }
}

fn fetch_error(what: &str, why: String) -> Error {
    Error::new(Phase::Image, format!("{what} {why}"))
}

/// Checks whether the document has the expected digest and size, if they are specified.
fn verify_document(
    what: &str,
    bytes: Vec<u8>,
    expected: Option<&Digest>,
    size: Option<u64>,
) -> Result<FetchedManifest> {
    if let Some(size) = size.filter(|size| *size != bytes.len() as u64) {
        return Err(fetch_error(what, format!("is {bytes} bytes, but {size} bytes are expected", bytes = bytes.len())));
    }
    let mut digesting = DigestReader::new(&bytes[..], expected.map_or(DigestKind::Sha256, |expected| expected.kind));
    io::copy(&mut digesting, &mut io::sink()).context(Phase::Image, || "compute the digest of a manifest")?;
    let digest = digesting.finish();
    match expected {
        Some(expected) if *expected != digest => {
            Err(fetch_error(what, format!("has the digest {digest}, but {expected} is expected")))
        }
        _ => Ok(FetchedManifest { bytes, digest }),
    }
}
