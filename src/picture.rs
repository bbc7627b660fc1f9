//! The picture of a layout: for `drophammer tree --svg`, and for the server's page.

mod faces;
pub(crate) mod place;
mod svg;
pub mod words;

pub use svg::draw;
