//! Drawing of all machines: a small square for each machine, whose color and pattern show the state of the machine.

use maud::{Markup, html};

/// Minimum number of machines for which the squares are small, so that the drawing of a large site fits the page.
const MANY: usize = 200;

/// Square that represents a machine.
pub(crate) struct MachineSquare<'a> {
    /// Path of the page that a click opens.
    pub path: String,
    pub name: &'a str,
    pub state: &'a str,
    /// CSS class of the state, such as `good`.
    pub class: &'a str,
    /// False if the filter of the page hides the machine. The square is then pale.
    pub matches: bool,
}

/// Draws the machines in the given order. The drawing is hidden from screen readers and skipped by the Tab key, because
/// the table below it contains the same machines.
pub(crate) fn draw_machines<'a>(squares: impl ExactSizeIterator<Item = MachineSquare<'a>>) -> Markup {
    let class = if squares.len() >= MANY { "rack many" } else { "rack" };
    html! {
        div #rack class=(class) aria-hidden="true" {
            @for MachineSquare { path, name, state, class, matches } in squares {
                a href=(path) tabindex="-1" title={ (name) ": " (state) } class={ (class) @if !matches { " pale" } } {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(count: usize) -> String {
        let square = |number: usize| MachineSquare {
            path: format!("/machines/{number}"),
            name: "a<b",
            state: "failed",
            class: "bad",
            matches: number == 0,
        };
        draw_machines((0..count).map(square)).0
    }

    #[test]
    fn a_square_links_to_its_machine_and_names_the_state() {
        let drawn = draw(2);
        let expected = r#"<a href="/machines/0" tabindex="-1" title="a&lt;b: failed" class="bad"></a>"#;
        assert!(drawn.contains(expected), "{drawn}");
        assert!(drawn.contains(r#"class="bad pale""#), "{drawn}");
    }

    #[test]
    fn squares_of_many_machines_are_small() {
        assert!(draw(MANY - 1).contains(r#"class="rack""#));
        assert!(draw(MANY).contains(r#"class="rack many""#));
    }
}
