//! Table of a machine's Kubernetes volumes, with their states.

use api::metal_api::volumes::VolumeResponse;
use common::format::format_bytes;
use maud::{Markup, html};

pub(crate) fn show_volumes(all: &[VolumeResponse]) -> Markup {
    html! {
        @if !all.is_empty() {
            h2 { "Kubernetes volumes" }
            table {
                thead { tr { th { "volume" } th { "kind" } th { "state" } th { "size" } th { "path" } th { "message" } } }
                tbody {
                    @for volume in all {
                        tr {
                            td { (volume.name) }
                            td { (volume.kind) }
                            td { (volume.state) }
                            td { @if let Some(size) = volume.size_bytes { (format_bytes(size)) } }
                            td { code { (volume.path) } }
                            td.faint { (volume.message) }
                        }
                    }
                }
            }
        }
    }
}
