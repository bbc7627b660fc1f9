//! Requests to a registry, with a token or password if it requires one.

use super::super::look::{Look, Seen, see};
use super::super::retry::{Answer, Pace};
use super::document::accepted;
use super::reference::Reference;
use super::token;
use crate::error::{Context, Error, Phase, Result};
use crate::image::flow::{Digest, Digesting, Kind};
use crate::pull::{PullSecret, Secret};
use reqwest::blocking::{Client, Response};
use reqwest::header::{ACCEPT, AUTHORIZATION};
use reqwest::{StatusCode, Url};
use std::io;

/// Maximum length of a manifest, in bytes; registries have the same limit.
const MANIFEST_BYTES: u64 = 4 << 20;

/// One repository of a registry.
pub struct Registry<'a> {
    pub client: &'a Client,
    pub reference: &'a Reference,
    /// Credentials for the registry.
    pub secret: Option<&'a PullSecret>,
    pub pace: &'a Pace,
    /// `Authorization` header, once the registry has required one.
    pub authorization: Option<Secret>,
}

/// Manifest or index as received.
pub struct Manifest {
    pub bytes: Vec<u8>,
    pub digest: Digest,
}

impl<'a> Registry<'a> {
    pub fn new(client: &'a Client, reference: &'a Reference, secret: Option<&'a PullSecret>, pace: &'a Pace) -> Self {
        Registry { client, reference, secret, pace, authorization: None }
    }

    /// Fetches a manifest by tag or digest, and verifies it.
    ///
    /// # Errors
    /// Returns an error if it is not available or does not match.
    pub fn manifest(&mut self, name: &str, expected: Option<&Digest>, size: Option<u64>) -> Result<Manifest> {
        let url = format!("{}/manifests/{name}", self.reference.base);
        let what = format!("the manifest {url}");
        match self.document(&url, MANIFEST_BYTES)? {
            Answer::Document(bytes) => proven(&what, bytes, expected, size),
            Answer::Other(response) => Err(failed(&what, self.refused(response.status()))),
        }
    }

    /// Fetches the manifest with this tag; `None` if there is none.
    ///
    /// # Errors
    /// Returns an error if the registry does not answer the question.
    pub fn tagged(&mut self, tag: &str) -> Result<Option<Vec<u8>>> {
        let url = format!("{}/manifests/{tag}", self.reference.base);
        match self.document(&url, MANIFEST_BYTES)? {
            Answer::Document(bytes) => Ok(Some(bytes)),
            Answer::Other(response) if response.status() == StatusCode::NOT_FOUND => Ok(None),
            Answer::Other(response) => Err(failed(&format!("the manifest {url}"), self.refused(response.status()))),
        }
    }

    /// Fetches a small blob and verifies it.
    ///
    /// # Errors
    /// Returns an error if it is not available or does not match.
    pub fn small_blob(&mut self, digest: &Digest, size: u64) -> Result<Vec<u8>> {
        let url = format!("{}/blobs/{digest}", self.reference.base);
        let what = format!("the blob {url}");
        match self.document(&url, size)? {
            Answer::Document(bytes) => proven(&what, bytes, Some(digest), Some(size)).map(|blob| blob.bytes),
            Answer::Other(response) => Err(failed(&what, self.refused(response.status()))),
        }
    }

    fn refused(&self, status: StatusCode) -> String {
        let hint = match (status, self.secret) {
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, None) => "; no pull secret is configured for it",
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, Some(_)) => "; the pull secret is not accepted",
            _ => "",
        };
        format!("cannot be fetched: the registry answers {status}{hint}")
    }

    fn document(&mut self, url: &str, most_bytes: u64) -> Result<Answer> {
        let answer = self.ask(url, most_bytes)?;
        match &answer {
            Answer::Other(refusal) if self.authorize(refusal)? => self.ask(url, most_bytes),
            _ => Ok(answer),
        }
    }

    /// Returns the size of a blob. Some registries serve manifests without authentication and require a token only
    /// here.
    ///
    /// # Errors
    /// Returns an error if it is not available.
    pub fn blob(&mut self, url: &Url) -> Result<Look> {
        let mut seen = see(self.client, url, self.authorization.as_ref(), self.pace)?;
        if let Seen::Refused(refusal) = &seen
            && self.authorize(refusal)?
        {
            seen = see(self.client, url, self.authorization.as_ref(), self.pace)?;
        }
        seen.there(url)
    }

    /// Gets a token if the registry requires one, and returns whether to send the request again. A redirect may lead to
    /// another host: the registry's token is not sent there.
    fn authorize(&mut self, refusal: &Response) -> Result<bool> {
        let own = Url::parse(&self.reference.base).is_ok_and(|base| base.origin() == refusal.url().origin());
        if !own || refusal.status() != StatusCode::UNAUTHORIZED {
            return Ok(false);
        }
        let Registry { client, reference, secret, pace, .. } = self;
        self.authorization = Some(token::answer(client, &reference.repository, refusal, *secret, pace)?);
        Ok(true)
    }

    fn ask(&self, url: &str, most_bytes: u64) -> Result<Answer> {
        self.pace.read(&format!("read {url}"), most_bytes, || {
            let request = self.client.get(url).header(ACCEPT, accepted());
            self.authorization.iter().fold(request, |request, value| request.header(AUTHORIZATION, value.reveal()))
        })
    }
}

fn failed(what: &str, why: String) -> Error {
    Error::new(Phase::Image, format!("{what} {why}"))
}

/// Checks that the document matches what was expected.
fn proven(what: &str, bytes: Vec<u8>, expected: Option<&Digest>, size: Option<u64>) -> Result<Manifest> {
    if let Some(size) = size.filter(|size| *size != bytes.len() as u64) {
        return Err(failed(what, format!("has {} bytes, but the index lists {size}", bytes.len())));
    }
    let mut digesting = Digesting::new(&bytes[..], expected.map_or(Kind::Sha256, |expected| expected.kind));
    io::copy(&mut digesting, &mut io::sink()).context(Phase::Image, || "compute the digest of a manifest")?;
    let digest = digesting.finish();
    match expected {
        Some(expected) if *expected != digest => Err(failed(what, format!("has the digest {digest}"))),
        _ => Ok(Manifest { bytes, digest }),
    }
}
