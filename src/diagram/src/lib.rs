//! Diagram of a layout, for `drophammer tree --svg` and the web page of the server.
//!
//! `placement` computes the positions of the boxes and lines, `node_text` and `box_text_content` determine the text
//! in the boxes, and `svg` writes the document. Equal layouts produce equal documents. Start with [`draw_svg`].

mod box_text_content;
pub mod node_text;
pub mod placement;
mod svg;

pub use svg::draw_svg;
