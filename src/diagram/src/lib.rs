//! Diagram of a layout, for `drophammer tree --svg` and the web page of the server.

mod box_text;
pub mod node_text;
pub mod placement;
mod svg;

pub use svg::draw_svg;
