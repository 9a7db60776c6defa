//! The live view: roofs and points in the terminal.

use super::roofs::Roofs;
use super::show::Seen;
use crate::draw::around;
use crate::top::screen::Screen;
use ratatui::style::Color;
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType};
use std::io::{self, IsTerminal};

/// Colours of roofs and programs, in turn.
const COLOURS: [Color; 8] = [
    Color::Cyan,
    Color::Yellow,
    Color::Green,
    Color::Magenta,
    Color::Blue,
    Color::Red,
    Color::LightCyan,
    Color::LightYellow,
];
/// Points of a trail that are drawn.
const TRAIL: usize = 30;
/// Steps of a roof.
const STEPS: u32 = 200;

/// The terminal while it is drawn on.
pub struct Plot {
    screen: Screen,
}

impl Plot {
    /// Takes the terminal; `None` where output and input are none: lines are printed then.
    pub fn open() -> Option<Self> {
        let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
        let screen = is_terminal.then(Screen::open)?.ok()?;
        Some(Self { screen })
    }

    /// Draws what was seen so far. A terminal that fails is left as it is.
    pub fn draw(&mut self, roofs: &Roofs, seen: &Seen) {
        let Ok((drawing, area)) = self.screen.drawing() else {
            return;
        };
        let picture = Picture::of(roofs, seen);
        // What cannot be drawn now is drawn a second later.
        let _ = drawing.draw(|frame| frame.render_widget(picture.chart(), area));
    }
}

/// A roof, or a program's trail.
struct Set {
    name: String,
    colour: Color,
    kind: GraphType,
    points: Vec<(f64, f64)>,
}

/// Lines and points in powers of ten.
struct Picture {
    sets: Vec<Set>,
    x: [f64; 2],
    y: [f64; 2],
}

impl Picture {
    fn of(roofs: &Roofs, seen: &Seen) -> Self {
        let trails = seen.trails();
        let ridges = roofs.memories.iter().map(|(_, roof)| roof.ridge());
        let points = trails.iter().flat_map(|(_, trail)| trail.iter());
        let all: Vec<f64> = ridges.chain(points.map(|point| point.0)).collect();
        let (least, most) = match all.is_empty() {
            true => (0.01, 100.0),
            false => around(all.iter().copied()),
        };
        let x = [least.log10(), most.log10()];
        let mut sets = Vec::new();
        let mut colours = COLOURS.into_iter().cycle();
        for (node, roof) in &roofs.memories {
            let steps = (0..=STEPS).map(|step| {
                let at = x[0] + (x[1] - x[0]) * f64::from(step) / f64::from(STEPS);
                (at, roof.at(10f64.powf(at)).log10())
            });
            let name = format!("node{node} {:.0} GB/s", roof.gbs);
            let colour = colours.next().unwrap_or(Color::White);
            sets.push(Set {
                name,
                colour,
                kind: GraphType::Line,
                points: steps.collect(),
            });
        }
        for (name, trail) in trails {
            let first = trail.len().saturating_sub(TRAIL);
            let points = trail[first..].iter();
            let points = points.map(|(x, y)| (x.log10(), y.log10()));
            let points: Vec<(f64, f64)> = points.collect();
            let colour = colours.next().unwrap_or(Color::White);
            sets.push(Set {
                name,
                colour,
                kind: GraphType::Scatter,
                points,
            });
        }
        let heights = sets.iter().flat_map(|set| set.points.iter());
        let heights: Vec<f64> = heights
            .map(|point| point.1)
            .filter(|y| y.is_finite())
            .collect();
        let low = heights.iter().copied().fold(f64::MAX, f64::min);
        let high = heights.iter().copied().fold(f64::MIN, f64::max);
        let y = match heights.is_empty() {
            true => [-2.0, 2.0],
            false => [low - 0.2, high + 0.2],
        };
        Self { sets, x, y }
    }

    fn chart(&self) -> Chart<'_> {
        let sets = self.sets.iter().map(|set| {
            let marker = match set.kind {
                GraphType::Scatter => Marker::Dot,
                _ => Marker::Braille,
            };
            Dataset::default()
                .name(set.name.as_str())
                .marker(marker)
                .graph_type(set.kind)
                .style(set.colour)
                .data(&set.points)
        });
        let axis = |title: &'static str, bounds: [f64; 2]| {
            Axis::default()
                .title(title)
                .bounds(bounds)
                .labels(labels(bounds))
        };
        Chart::new(sets.collect())
            .block(Block::bordered().title(Line::from(
                "hither roofline: programs below the roofs of memories (Ctrl-C ends)",
            )))
            .x_axis(axis("FLOP/byte", self.x))
            .y_axis(axis("GFLOP/s", self.y))
    }
}

/// First, middle and last place of an axis in powers of ten.
fn labels([low, high]: [f64; 2]) -> Vec<Span<'static>> {
    let places = [low, f64::midpoint(low, high), high];
    let text = places.map(|place| {
        let value = 10f64.powf(place);
        Span::from(match value {
            ..0.1 => format!("{value:.4}"),
            ..10.0 => format!("{value:.2}"),
            _ => format!("{value:.0}"),
        })
    });
    text.into()
}

#[cfg(test)]
mod tests {
    use super::super::roofs::tests::roofs;
    use super::super::show::tests::seen;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    #[test]
    fn roofs_and_programs_are_named_and_within_the_axes() {
        let picture = Picture::of(&roofs(), &seen());
        assert_eq!(picture.sets.len(), 4);
        for Set { name, points, .. } in &picture.sets {
            for (x, y) in points {
                assert!((picture.x[0]..=picture.x[1]).contains(x), "{name} {x}");
                assert!((picture.y[0]..=picture.y[1]).contains(y), "{name} {y}");
            }
        }
        let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
        terminal
            .draw(|frame| frame.render_widget(picture.chart(), frame.area()))
            .unwrap();
        let text = terminal.backend().to_string();
        for word in ["node0 80 GB/s", "10 mg", "11 bt", "FLOP/byte", "•"] {
            assert!(text.contains(word), "{word}\n{text}");
        }
    }

    #[test]
    fn an_empty_machine_is_drawn() {
        let picture = Picture::of(&Roofs::default(), &Seen::default());
        let mut terminal = Terminal::new(TestBackend::new(60, 20)).unwrap();
        terminal
            .draw(|frame| frame.render_widget(picture.chart(), frame.area()))
            .unwrap();
        assert!(terminal.backend().to_string().contains("GFLOP/s"));
    }
}
