//! Line charts.

use super::axis::{Axis, Place, Scale, short};
use super::canvas::{Canvas, GRID, INK, WIDTH, coloured, escaped};
use std::fmt::Write;

/// Edges of the plotting area.
const LEFT: f64 = 90.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 470.0;
/// Room at both ends of a logarithmic x axis, so that marks do not lie on the edge.
const ROOM: f64 = 20.0;
/// A linear x axis begins at 0 where its values begin at this share of the last or below.
const NEAR_ZERO: f64 = 0.25;
/// Height of a chart, if its legend does not need more.
const HEIGHT: f64 = 540.0;
const LEGEND_ROW: f64 = 24.0;
/// Points of a series that are marked one by one.
const MARKED_POINTS: usize = 60;
/// A line with more points is thinned to what can be seen.
const MOST_POINTS: usize = 2000;

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A line through the points.
    Line,
    /// A dashed one, to tell two lines of one colour apart.
    Dashed,
    /// The points alone: a program's place below a roofline.
    Points,
}

/// Points of a chart that belong together.
#[derive(Clone, Debug)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// Which colour; series with one number share it, and it starts again after seven.
    pub colour: usize,
    /// How it is drawn.
    pub shape: Shape,
    /// Points, ascending by x. One that is not finite interrupts the line: not measured. So does one
    /// at or below 0 on a logarithmic axis.
    pub points: Vec<(f64, f64)>,
}

/// Lines and points over two axes.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// Above the chart.
    pub title: String,
    /// Below the title, smaller.
    pub subtitle: String,
    /// Along the bottom.
    pub x: Axis,
    /// Along the left side.
    pub y: Axis,
    /// In the order of the legend.
    pub series: Vec<Series>,
}

/// Charts below each other, as one file.
#[must_use]
pub fn stacked(charts: &[LineChart]) -> String {
    if let [chart] = charts {
        return chart.svg();
    }
    let titles: Vec<&str> = charts.iter().map(|chart| chart.title.as_str()).collect();
    let height: f64 = charts.iter().map(LineChart::height).sum();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\">\n<title>{}</title>\n",
        escaped(&titles.join("; "))
    );
    let mut y = 0.0;
    for chart in charts {
        svg.push_str(&chart.drawn(y));
        y += chart.height();
    }
    svg.push_str("</svg>\n");
    svg
}

impl LineChart {
    /// The file.
    #[must_use]
    pub fn svg(&self) -> String {
        self.drawn(0.0)
    }

    fn height(&self) -> f64 {
        HEIGHT.max(TOP + LEGEND_ROW * (self.series.len() + 1) as f64)
    }

    fn drawn(&self, upper_edge: f64) -> String {
        let mut canvas = Canvas::new(LEFT, &self.title, &self.subtitle);
        let (x, y) = self.places();
        self.draw_axes(&mut canvas, &x, &y);
        for series in &self.series {
            canvas.raw(&coloured(series.colour));
            self.draw_series(&mut canvas, (&x, &y), series);
            canvas.raw("</g>\n");
        }
        self.draw_legend(&mut canvas);
        canvas.finish(self.height(), upper_edge)
    }

    fn places(&self) -> (Place, Place) {
        let points = || self.series.iter().flat_map(|series| &series.points);
        // A point that one axis cannot show has no say in the other.
        let has = |axis: &Axis, value: f64| match axis.scale {
            Scale::Linear => value.is_finite(),
            Scale::Logarithmic => value.is_finite() && value > 0.0,
        };
        let shown = || points().filter(|point| has(&self.x, point.0) && has(&self.y, point.1));
        let marks = |axis: &Axis| -> Vec<f64> { axis.ticks.iter().map(|tick| tick.0).collect() };
        let x = || shown().map(|point| point.0).chain(marks(&self.x));
        let (low, high) = Place::around(Scale::Linear, x(), (0.0, 1.0)).limits;
        let is_near_zero = low > 0.0 && low <= high * NEAR_ZERO;
        let x = x().chain(is_near_zero.then_some(0.0));
        // A logarithmic axis takes no notice of 0.
        let y = shown()
            .map(|point| point.1)
            .chain(marks(&self.y))
            .chain([0.0]);
        let room = match self.x.scale {
            Scale::Linear => 0.0,
            Scale::Logarithmic => ROOM,
        };
        (
            Place::around(self.x.scale, x, (LEFT + room, RIGHT - room)),
            Place::around(self.y.scale, y, (BOTTOM, TOP)).rounded(),
        )
    }

    fn draw_axes(&self, canvas: &mut Canvas, x: &Place, y: &Place) {
        let ticks = |axis: &Axis, place: &Place| match axis.ticks.is_empty() {
            true => place.ticks(),
            false => axis.ticks.clone(),
        };
        for (value, name) in ticks(&self.y, y) {
            let Some(at) = y.of(value) else { continue };
            canvas.line((LEFT, at), (RIGHT, at), GRID);
            canvas.text((LEFT - 8.0, at + 4.0), "text-anchor=\"end\"", &name);
        }
        canvas.line((LEFT, BOTTOM), (RIGHT, BOTTOM), INK);
        canvas.x_ticks(x, BOTTOM, &ticks(&self.x, x));
        canvas.x_title((LEFT, RIGHT), BOTTOM + 48.0, &self.x.title);
        canvas.y_title(24.0, (TOP, BOTTOM), &self.y.title);
    }

    fn draw_series(&self, canvas: &mut Canvas, (x, y): (&Place, &Place), series: &Series) {
        let at = |point: &(f64, f64)| Some((x.of(point.0)?, y.of(point.1)?));
        let mut places: Vec<Option<(f64, f64)>> = series.points.iter().map(at).collect();
        let is_marked = series.shape == Shape::Points || places.len() <= MARKED_POINTS;
        if places.len() > MOST_POINTS && series.shape != Shape::Points {
            places = thinned(&places);
        }
        for line in places.split(Option::is_none) {
            let points: Vec<(f64, f64)> = line.iter().copied().flatten().collect();
            match points[..] {
                // Alone between two that were not measured, it would not be seen.
                [point] if !is_marked => mark(canvas, point, ""),
                [_, _, ..] if series.shape != Shape::Points => {
                    let mut path = String::new();
                    for (x, y) in points {
                        let _ = write!(path, "{x:.1},{y:.1} ");
                    }
                    let stroke = stroke(series.shape);
                    let path = path.trim_end();
                    canvas.raw(&format!(
                        "<polyline points=\"{path}\" fill=\"none\" {stroke}/>\n"
                    ));
                }
                _ => {}
            }
        }
        if is_marked {
            for (point, place) in series.points.iter().zip(places) {
                let Some(place) = place else { continue };
                let tick = self.x.ticks.iter().find(|tick| tick.0 == point.0);
                let x = tick.map_or(short(point.0), |tick| tick.1.clone());
                let words = format!("{}: {x}, {}", series.name, short(point.1));
                mark(canvas, place, &words);
            }
        }
    }

    fn draw_legend(&self, canvas: &mut Canvas) {
        canvas.raw("<g class=\"legend\">\n");
        for (row, series) in self.series.iter().enumerate() {
            let y = TOP + 10.0 + row as f64 * LEGEND_ROW;
            canvas.raw(&coloured(series.colour));
            match series.shape {
                Shape::Points => mark(canvas, (RIGHT + 36.0, y), ""),
                shape => {
                    canvas.line((RIGHT + 20.0, y), (RIGHT + 52.0, y), &stroke(shape));
                }
            }
            canvas.raw("</g>\n");
            let width = (WIDTH - RIGHT - 65.0) / 13.0;
            canvas.fitted((RIGHT + 60.0, y + 4.0), "", &series.name, width);
        }
        canvas.raw("</g>\n");
    }
}

fn mark(canvas: &mut Canvas, (x, y): (f64, f64), words: &str) {
    let title = match words {
        "" => String::new(),
        words => format!("<title>{}</title>", escaped(words)),
    };
    canvas.raw(&format!(
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"currentColor\">{title}</circle>\n"
    ));
}

fn stroke(shape: Shape) -> String {
    let dash = match shape {
        Shape::Dashed => " stroke-dasharray=\"7 4\"",
        Shape::Line | Shape::Points => "",
    };
    format!("stroke=\"currentColor\" stroke-width=\"2\" stroke-linejoin=\"round\"{dash}")
}

/// Of each run of points that lie above the same pixel, the first, the lowest, the highest and the
/// last: nothing that can be seen is lost.
fn thinned(places: &[Option<(f64, f64)>]) -> Vec<Option<(f64, f64)>> {
    let pixel = |place: &Option<(f64, f64)>| place.map(|(x, _)| x as i64);
    let mut kept = Vec::new();
    for run in places.chunk_by(|one, other| pixel(one) == pixel(other)) {
        let Some(points) = run.iter().copied().collect::<Option<Vec<_>>>() else {
            kept.push(None);
            continue;
        };
        let extreme = |sign: f64| {
            let heights = points
                .iter()
                .enumerate()
                .map(|(index, point)| (index, sign * point.1));
            heights
                .max_by(|one, other| one.1.total_cmp(&other.1))
                .map(|(index, _)| index)
        };
        let mut indices = [
            Some(0),
            extreme(1.0),
            extreme(-1.0),
            points.len().checked_sub(1),
        ];
        indices.sort_unstable();
        let mut last = None;
        for index in indices.into_iter().flatten() {
            if last != Some(index) {
                kept.push(Some(points[index]));
            }
            last = Some(index);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::super::canvas::tests::{is_sound, values};
    use super::*;
    use proptest::prelude::*;

    fn chart(series: Vec<Series>) -> LineChart {
        LineChart {
            title: "a < b & \"c\"".into(),
            subtitle: "it's\u{7} here".into(),
            x: Axis {
                ticks: vec![
                    (4096.0, "4K".into()),
                    (65536.0, "64K".into()),
                    (1048576.0, "1M".into()),
                ],
                ..Axis::new("size (bytes)", Scale::Logarithmic)
            },
            y: Axis::new("throughput (GB/s)", Scale::Linear),
            series,
        }
    }

    fn series(points: &[(f64, f64)], shape: Shape) -> Series {
        Series {
            name: "one <two>".into(),
            colour: 8,
            shape,
            points: points.to_vec(),
        }
    }

    #[test]
    fn every_word_is_escaped_and_every_tag_closed() {
        let svg = chart(vec![series(
            &[(4096.0, 1.0), (65536.0, 3.5)],
            Shape::Dashed,
        )])
        .svg();
        assert!(is_sound(&svg), "{svg}");
        assert!(svg.contains(">a &lt; b &amp; &quot;c&quot;</text>"));
        assert!(svg.contains(">it&apos;s here</text>"));
        assert!(svg.contains("one &lt;two&gt;: 64K, 3.50"));
        assert!(
            svg.contains("stroke-dasharray") && svg.contains("<g class=\"c1\" color=\"#D55E00\">")
        );
    }

    #[test]
    fn equal_ratios_are_equally_far_apart() {
        let (x, y) = chart(vec![series(&[(4096.0, 6.2)], Shape::Line)]).places();
        let places = [4096.0, 65536.0, 1048576.0].map(|value| x.of(value).unwrap());
        assert!(
            ((places[1] - places[0]) - (places[2] - places[1])).abs() < 1e-6,
            "{places:?}"
        );
        assert_eq!((places[0], places[2]), (LEFT + 20.0, RIGHT - 20.0));
        assert_eq!(y.limits, (0.0, 8.0));
        assert_eq!((y.of(0.0), y.of(8.0)), (Some(BOTTOM), Some(TOP)));
    }

    #[test]
    fn time_is_linear_and_what_was_not_measured_interrupts_the_line() {
        let points = [
            (0.5, 1.0),
            (1.0, 2.0),
            (1.5, f64::NAN),
            (2.0, 4.0),
            (2.5, 3.0),
        ];
        let mut chart = LineChart {
            x: Axis::new("time (s)", Scale::Linear),
            ..chart(vec![series(&points, Shape::Line)])
        };
        let ends = |chart: &LineChart| chart.places().0.limits;
        assert_eq!(ends(&chart), (0.0, 2.5));
        chart.series[0].points[0].0 = 0.9;
        assert_eq!(ends(&chart), (0.9, 2.5), "0 is far away");
        assert!((chart.places().0.of(1.7).unwrap() - 395.0).abs() < 1e-9);
        let svg = chart.svg();
        assert!(is_sound(&svg), "{svg}");
        assert_eq!(
            (
                svg.matches("<polyline").count(),
                svg.matches("<circle").count()
            ),
            (2, 4)
        );
    }

    #[test]
    fn a_roofline_has_two_logarithmic_axes_and_points() {
        let chart = LineChart {
            x: Axis::new("intensity (flop/byte)", Scale::Logarithmic),
            y: Axis::new("speed (Gflop/s)", Scale::Logarithmic),
            ..chart(vec![
                series(&[(0.01, 0.2), (1.0, 20.0), (100.0, 20.0)], Shape::Line),
                series(&[(0.3, 4.0), (0.0, 4.0)], Shape::Points),
            ])
        };
        let (x, y) = chart.places();
        assert_eq!((x.limits, y.limits), ((0.01, 100.0), (0.2, 20.0)));
        let svg = chart.svg();
        assert!(
            is_sound(&svg) && svg.contains(">0.01</text>") && svg.contains(">10</text>"),
            "{svg}"
        );
        // Of the line three; the point that has a place, and the legend's.
        assert_eq!(svg.matches("<circle").count(), 5);
    }

    #[test]
    fn long_lines_are_thinned_and_keep_their_peaks() {
        let points: Vec<(f64, f64)> = (0..100_000)
            .map(|index| {
                (
                    f64::from(index),
                    if index == 77_777 {
                        50.0
                    } else {
                        f64::from(index % 7)
                    },
                )
            })
            .collect();
        let chart = LineChart {
            x: Axis::new("time (s)", Scale::Linear),
            ..chart(vec![series(&points, Shape::Line)])
        };
        let svg = chart.svg();
        assert!(svg.len() < 60_000, "{}", svg.len());
        assert!(svg.contains(&format!(",{TOP:.1} ")), "the peak is there");
    }

    #[test]
    fn many_series_have_room_in_the_legend() {
        let many = chart(vec![series(&[(4096.0, 1.0)], Shape::Line); 40]);
        assert!(many.height() > HEIGHT && is_sound(&many.svg()));
    }

    #[test]
    fn charts_below_each_other_are_one_file() {
        let one = chart(vec![series(&[(4096.0, 1.0)], Shape::Line)]);
        assert_eq!(stacked(std::slice::from_ref(&one)), one.svg());
        let svg = stacked(&[one.clone(), one]);
        assert!(is_sound(&svg), "{svg}");
        assert!(
            svg.contains("height=\"1080\"") && svg.contains("y=\"540\""),
            "{svg}"
        );
        assert!(is_sound(&stacked(&[])));
    }

    #[test]
    fn no_points_and_one_point_are_charts() {
        let mut none = chart(Vec::new());
        none.x.ticks.clear();
        let mut one = chart(vec![series(&[(4096.0, 0.0)], Shape::Line)]);
        one.x.ticks.truncate(1);
        for chart in [none, one] {
            assert!(is_sound(&chart.svg()), "{}", chart.svg());
        }
    }

    proptest! {
        #[test]
        fn whatever_the_points_it_is_a_chart(
            points in prop::collection::vec((values(), values()), 0..100),
            ticks in prop::collection::vec((values(), ".{0,5}"), 0..3),
            name in "\\PC*",
            scales in any::<(bool, bool)>(),
        ) {
            let axis = |is_linear| {
                Axis::new(&name, if is_linear { Scale::Linear } else { Scale::Logarithmic })
            };
            let mut chart = LineChart {
                x: axis(scales.0),
                y: axis(scales.1),
                ..chart(vec![series(&points, Shape::Line), series(&points, Shape::Points)])
            };
            chart.x.ticks = ticks;
            let svg = chart.svg().replace(&*escaped(&name), "");
            prop_assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}", svg);
        }
    }
}
