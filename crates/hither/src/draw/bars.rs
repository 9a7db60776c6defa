//! Stacked bars: how a whole is made up, for names rather than numbers.

use super::axis::{Place, Scale, known, short};
use super::canvas::{Canvas, GRID, INK, WIDTH, coloured, shortened};

/// Edges of the plotting area.
const LEFT: f64 = 300.0;
const RIGHT: f64 = 780.0;
const TOP: f64 = 70.0;
/// From one bar to the next, and how thick it is.
const ROW: f64 = 26.0;
const THICK: f64 = 18.0;
const LEGEND_ROW: f64 = 24.0;
/// Below the axis.
const FOOT: f64 = 70.0;

/// One part of every bar.
#[derive(Clone, Debug)]
pub struct Part {
    /// For the legend.
    pub name: String,
    /// Which colour, as in [`Series`](super::Series).
    pub colour: usize,
    /// How much of each bar, in their order, from 0; what is not finite, or missing, has no length.
    pub values: Vec<f64>,
}

/// Bars from the left, one below the other.
#[derive(Clone, Debug)]
pub struct BarChart {
    /// Above the chart.
    pub title: String,
    /// Below the title, smaller.
    pub subtitle: String,
    /// What the bars are, such as "data area (file:line)".
    pub names_title: String,
    /// What their length is, with its unit: "bytes read (MB)".
    pub value_title: String,
    /// Names of the bars, from the top.
    pub names: Vec<String>,
    /// What they are made of, from the left and in the order of the legend.
    pub parts: Vec<Part>,
}

impl BarChart {
    /// The file.
    #[must_use]
    pub fn svg(&self) -> String {
        let rows = self.names.len().max(self.parts.len()).max(4) as f64;
        let bottom = TOP + 10.0 + rows * ROW;
        let mut canvas = Canvas::new(LEFT, &self.title, &self.subtitle);
        let sums = (0..self.names.len()).map(|bar| self.lengths(bar).map(|part| part.1).sum());
        let zero = std::iter::once(0.0);
        let place = Place::around(Scale::Linear, zero.chain(sums), (LEFT, RIGHT)).rounded();
        let ticks = place.ticks();
        for x in ticks.iter().filter_map(|tick| place.of(tick.0)) {
            canvas.line((x, TOP), (x, bottom), GRID);
        }
        for (bar, name) in self.names.iter().enumerate() {
            let y = TOP + 10.0 + bar as f64 * ROW;
            let at = (LEFT - 8.0, y + THICK / 2.0 + 4.0);
            canvas.fitted(at, "text-anchor=\"end\"", name, (LEFT - 16.0) / 13.0);
            self.draw_bar(&mut canvas, &place, bar, y);
        }
        canvas.line((LEFT, TOP), (LEFT, bottom), INK);
        canvas.x_ticks(&place, bottom, &ticks);
        canvas.x_title((LEFT, RIGHT), bottom + 48.0, &self.value_title);
        let attributes = "class=\"axis\" font-weight=\"bold\" text-anchor=\"end\"";
        let width = (LEFT - 16.0) / 13.0;
        canvas.fitted((LEFT - 8.0, TOP), attributes, &self.names_title, width);
        canvas.raw("<g class=\"legend\">\n");
        for (row, part) in self.parts.iter().enumerate() {
            let y = TOP + 10.0 + row as f64 * LEGEND_ROW;
            canvas.raw(&coloured(part.colour));
            canvas.rectangle((RIGHT + 24.0, y), (14.0, 14.0), "fill=\"currentColor\"");
            canvas.raw("</g>\n");
            let width = (WIDTH - RIGHT - 50.0) / 13.0;
            canvas.fitted((RIGHT + 46.0, y + 12.0), "", &part.name, width);
        }
        canvas.raw("</g>\n");
        canvas.finish(bottom + FOOT, 0.0)
    }

    /// Parts of a bar that have a length.
    fn lengths(&self, bar: usize) -> impl Iterator<Item = (&Part, f64)> {
        self.parts.iter().filter_map(move |part| {
            let value = part.values.get(bar).copied().and_then(known)?;
            (value > 0.0).then_some((part, value))
        })
    }

    fn draw_bar(&self, canvas: &mut Canvas, place: &Place, bar: usize, y: f64) {
        let mut from = 0.0;
        for (part, value) in self.lengths(bar) {
            let (Some(left), Some(right)) = (place.of(from), place.of(from + value)) else {
                return;
            };
            from += value;
            let name = shortened(&self.names[bar], 200);
            let title = format!("{name}, {}: {}", part.name, short(value));
            canvas.raw(&coloured(part.colour));
            let size = (right - left, THICK);
            canvas.rectangle_with_title((left, y), size, "fill=\"currentColor\"", &title);
            canvas.raw("</g>\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::canvas::tests::{is_sound, values};
    use super::*;
    use proptest::prelude::*;

    fn chart(names: &[&str], values: [&[f64]; 2]) -> BarChart {
        let part = |colour: usize| Part {
            name: format!("node{colour} <&>"),
            colour,
            values: values[colour].to_vec(),
        };
        BarChart {
            title: "Reads by data area".into(),
            subtitle: String::new(),
            names_title: "data area (file:line)".into(),
            value_title: "read (MB)".into(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            parts: vec![part(0), part(1)],
        }
    }

    #[test]
    fn parts_of_a_bar_follow_each_other() {
        let svg = chart(&["a.c:1", "b.c:2"], [&[30.0, 10.0], &[10.0, 0.0]]).svg();
        assert!(is_sound(&svg), "{svg}");
        // 480 pixels are 40: 30 and 10 of the first bar, 10 of the second, none of 0.
        for part in [
            "x=\"300.0\" y=\"80.0\" width=\"360.0\"",
            "x=\"660.0\" y=\"80.0\" width=\"120.0\"",
            "x=\"300.0\" y=\"106.0\" width=\"120.0\"",
            "a.c:1, node1 &lt;&amp;&gt;: 10.0",
        ] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        assert_eq!(svg.matches("height=\"18.0\"").count(), 3);
    }

    #[test]
    fn degenerate_data_are_charts() {
        for names in [&[][..], &["a"][..], &["a", "b", "c"][..]] {
            for values in [
                [&[][..], &[0.0]],
                [&[f64::NAN, 1e308], &[-1.0, f64::INFINITY]],
            ] {
                let svg = chart(names, values).svg();
                assert!(is_sound(&svg), "{svg}");
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_the_values_it_is_a_chart(
            one in prop::collection::vec(values(), 0..20),
            other in prop::collection::vec(values(), 0..20),
            count in 0..20_usize,
        ) {
            let svg = chart(&vec!["x"; count], [&one, &other]).svg();
            prop_assert!(is_sound(&svg), "{}", svg);
        }
    }
}
