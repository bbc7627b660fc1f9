//! Diagram of a layout, for `drophammer tree --svg` and the web page of the server.

mod faces;
pub(crate) mod place;
mod svg;
pub mod words;

pub use svg::draw;
