//! Microversions: the API version that a request specifies, and the response headers that contain the supported range.

use super::ironic_response::{IronicRefusal, TemplateResult};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;

/// Lowest and highest version that Ironic 39 supports.
pub(crate) const LOWEST: &str = "1.1";
pub(crate) const HIGHEST: &str = "1.115";
const LOWEST_MINOR: u32 = 1;
const HIGHEST_MINOR: u32 = 115;
/// Minor version of the first API version with deploy templates.
pub(crate) const FIRST_TEMPLATES_VERSION: u32 = 55;

pub(super) const VERSION_HEADER_NAME: &str = "x-openstack-ironic-api-version";
const COMMON_VERSION_HEADER: &str = "openstack-api-version";
const SERVICE: &str = "baremetal";

/// Returns the minor version that a request specifies, or the lowest minor version if the request specifies none.
pub(crate) fn requested_version(headers: &HeaderMap) -> TemplateResult<u32> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let of_service = |all: &str| {
        let mut each = all.split(',').filter_map(|one| one.trim().split_once(' '));
        each.find(|(service, _)| *service == SERVICE).map(|(_, version)| version.trim().to_owned())
    };
    let requested_version =
        text(COMMON_VERSION_HEADER).and_then(of_service).or_else(|| text(VERSION_HEADER_NAME).map(str::to_owned));
    let requested_version = requested_version.unwrap_or_else(|| LOWEST.to_owned());
    if requested_version.eq_ignore_ascii_case("latest") {
        return Ok(HIGHEST_MINOR);
    }
    let refused = |why: &str| {
        IronicRefusal::from_router(StatusCode::NOT_ACCEPTABLE, format!("version {requested_version} {why}"))
    };
    let number = |text: &str| text.parse::<u32>().ok();
    let Some((major, minor)) =
        requested_version.split_once('.').and_then(|(major, minor)| Some((number(major)?, number(minor)?)))
    else {
        return Err(refused("is invalid: use 1.55, or latest"));
    };
    match (major, minor) {
        (1, LOWEST_MINOR..=HIGHEST_MINOR) => Ok(minor),
        _ => Err(refused(&format!("is not supported: use a version from {LOWEST} to {HIGHEST}"))),
    }
}

/// Adds the supported versions to a response. Clients read these headers even from a response that refuses their
/// version.
pub(crate) fn add_version_headers(response: &mut Response, minor: Option<u32>) {
    let headers = response.headers_mut();
    headers.insert("x-openstack-ironic-api-minimum-version", HeaderValue::from_static(LOWEST));
    headers.insert("x-openstack-ironic-api-maximum-version", HeaderValue::from_static(HIGHEST));
    if let Some(value) = minor.and_then(|minor| HeaderValue::from_str(&format!("1.{minor}")).ok()) {
        headers.insert(VERSION_HEADER_NAME, value);
    }
}
