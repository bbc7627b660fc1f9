//! Asks a registry, with a token where it wants one.

use super::super::look::{Look, Seen, see};
use super::super::retry::{Answer, Pace};
use super::document::accepted;
use super::reference::Reference;
use super::token;
use crate::error::{Context, Error, Phase, Result};
use crate::image::flow::{Digest, Digesting, Kind};
use reqwest::blocking::{Client, Response};
use reqwest::header::{ACCEPT, AUTHORIZATION};
use reqwest::{StatusCode, Url};
use std::io;

/// What registries take at most, too.
const MANIFEST_BYTES: u64 = 4 << 20;

/// One repository of a registry.
pub struct Registry<'a> {
    pub client: &'a Client,
    pub reference: &'a Reference,
    pub pace: &'a Pace,
    /// Once the registry has wanted one.
    pub authorization: Option<String>,
}

/// A manifest or an index as it came.
pub struct Manifest {
    pub bytes: Vec<u8>,
    pub digest: Digest,
}

impl<'a> Registry<'a> {
    pub fn new(client: &'a Client, reference: &'a Reference, pace: &'a Pace) -> Self {
        Registry { client, reference, pace, authorization: None }
    }

    /// Asks for a manifest by tag or digest, and proves it.
    ///
    /// # Errors
    /// It cannot be had, or is not what was promised.
    pub fn manifest(&mut self, name: &str, expected: Option<&Digest>, size: Option<u64>) -> Result<Manifest> {
        let url = format!("{}/manifests/{name}", self.reference.base);
        let fail = |why: String| Error::new(Phase::Image, format!("the manifest {url} {why}"));
        let mut answer = self.ask(&url)?;
        if let Answer::Other(refusal) = &answer
            && self.authorize(refusal)?
        {
            answer = self.ask(&url)?;
        }
        let bytes = match answer {
            Answer::Document(bytes) => bytes,
            Answer::Other(response) => {
                return Err(fail(format!("cannot be had: the registry answers {}", response.status())));
            }
        };
        if let Some(size) = size.filter(|size| *size != bytes.len() as u64) {
            return Err(fail(format!("has {} bytes, its index says {size}", bytes.len())));
        }
        let mut digesting = Digesting::new(&bytes[..], expected.map_or(Kind::Sha256, |expected| expected.kind));
        io::copy(&mut digesting, &mut io::sink()).context(Phase::Image, || "digest of a manifest")?;
        let digest = digesting.finish();
        match expected {
            Some(expected) if *expected != digest => Err(fail(format!("has the digest {digest}"))),
            _ => Ok(Manifest { bytes, digest }),
        }
    }

    /// Whether a blob is there, and how large it is. Some registries show their manifests to all, and want a token only here.
    ///
    /// # Errors
    /// It cannot be had.
    pub fn blob(&mut self, url: &Url) -> Result<Look> {
        let mut seen = see(self.client, url, self.authorization.as_deref(), self.pace)?;
        if let Seen::Refused(refusal) = &seen
            && self.authorize(refusal)?
        {
            seen = see(self.client, url, self.authorization.as_deref(), self.pace)?;
        }
        seen.there(url)
    }

    /// Gets a token where the registry wants one; then it is worth while to ask again. What another host wants, that a
    /// request was led on to, is nothing that a token for the registry would help with: it goes to the registry alone.
    fn authorize(&mut self, refusal: &Response) -> Result<bool> {
        let own = Url::parse(&self.reference.base).is_ok_and(|base| base.origin() == refusal.url().origin());
        if !own || refusal.status() != StatusCode::UNAUTHORIZED {
            return Ok(false);
        }
        self.authorization = Some(token::token(self.client, &self.reference.repository, refusal, self.pace)?);
        Ok(true)
    }

    fn ask(&self, url: &str) -> Result<Answer> {
        self.pace.read(&format!("read {url}"), MANIFEST_BYTES, || {
            let request = self.client.get(url).header(ACCEPT, accepted());
            self.authorization.iter().fold(request, |request, value| request.header(AUTHORIZATION, value))
        })
    }
}
