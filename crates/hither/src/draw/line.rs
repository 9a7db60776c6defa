//! Charts as SVG: one file, no script, no font or style from elsewhere, so that a browser without
//! network shows it.

use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 540.0;
/// Edges of the plotting area.
const LEFT: f64 = 80.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 470.0;
/// Lines that the vertical axis aims at.
const Y_LINES: f64 = 6.0;
/// Okabe and Ito's colours, which people with colour-blindness tell apart; the pale yellow is left
/// out, as it is lost on white.
const COLOURS: [&str; 7] = [
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
];

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

/// How values become places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences are equally far apart. A y axis has 0 on it.
    Linear,
    /// Equal ratios are equally far apart.
    Logarithmic,
}

/// An axis of a chart.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it shows, with its unit in parentheses.
    pub title: String,
    /// How its values become places.
    pub scale: Scale,
    /// Where it has marks, ascending, and what they say. Empty: at round values.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// With marks at round values.
    #[must_use]
    pub fn new(title: &str, scale: Scale) -> Self {
        Self {
            title: title.to_owned(),
            scale,
            ticks: Vec::new(),
        }
    }
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

impl LineChart {
    /// The file.
    #[must_use]
    pub fn svg(&self) -> String {
        let axes = self.axes();
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
             <title>{0}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n",
            escaped(&self.title)
        );
        text(
            &mut svg,
            (LEFT, 30.0),
            "font-size=\"18\" font-weight=\"bold\"",
            &self.title,
        );
        text(&mut svg, (LEFT, 52.0), "fill=\"#555\"", &self.subtitle);
        self.draw_axes(&mut svg, &axes);
        for series in &self.series {
            self.draw_line(&mut svg, &axes, series);
        }
        self.draw_legend(&mut svg);
        svg.push_str("</svg>\n");
        svg
    }

    fn axes(&self) -> Axes {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = points()
            .map(|point| point.0)
            .chain(self.x_ticks.iter().map(|tick| tick.0));
        let (low, high) = x.fold((f64::MAX, 0.0_f64), |(low, high), x| {
            (low.min(x), high.max(x))
        });
        let (low, high) = if high > low {
            (low, high)
        } else {
            (high.max(1.0) / 2.0, high.max(1.0) * 2.0)
        };
        let top = points().map(|point| point.1).fold(0.0, f64::max);
        let step = step(top);
        Axes {
            low: low.ln(),
            high: high.ln(),
            step,
            top: ((top / step).ceil() * step).max(step),
        }
    }

    fn draw_axes(&self, svg: &mut String, axes: &Axes) {
        let lines = (axes.top / axes.step).round() as usize;
        for line in 0..=lines {
            let value = line as f64 * axes.step;
            let y = axes.y(value);
            line_between(
                svg,
                (LEFT, y),
                (RIGHT, y),
                if line == 0 { "#222" } else { "#ddd" },
            );
            let shown = label(value, axes.step);
            text(svg, (LEFT - 8.0, y + 4.0), "text-anchor=\"end\"", &shown);
        }
        for (value, name) in &self.x_ticks {
            let x = axes.x(*value);
            line_between(svg, (x, BOTTOM), (x, BOTTOM + 5.0), "#222");
            text(svg, (x, BOTTOM + 20.0), "text-anchor=\"middle\"", name);
        }
        let middle = f64::midpoint(LEFT, RIGHT);
        text(
            svg,
            (middle, BOTTOM + 48.0),
            "text-anchor=\"middle\"",
            &self.x_title,
        );
        let middle = f64::midpoint(TOP, BOTTOM);
        let turned = format!("text-anchor=\"middle\" transform=\"rotate(-90 24 {middle})\"");
        text(svg, (24.0, middle), &turned, &self.y_title);
    }

    fn draw_line(&self, svg: &mut String, axes: &Axes, series: &Series) {
        let stroke = stroke(series);
        let at = |&(x, y): &(f64, f64)| (axes.x(x), axes.y(y));
        let path: Vec<String> = series
            .points
            .iter()
            .map(at)
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" {stroke}/>",
            path.join(" ")
        );
        for point in &series.points {
            let (x, y) = at(point);
            let tick = self.x_ticks.iter().find(|tick| tick.0 == point.0);
            let x_name = tick.map_or(point.0.to_string(), |tick| tick.1.clone());
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{}\">\
                 <title>{}: {}, {:.3}</title></circle>",
                colour(series),
                escaped(&series.name),
                escaped(&x_name),
                point.1,
            );
        }
    }

    fn draw_legend(&self, svg: &mut String) {
        for (row, series) in self.series.iter().enumerate() {
            let y = TOP + 10.0 + row as f64 * 24.0;
            let _ = writeln!(
                svg,
                "<line x1=\"{}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" {}/>",
                RIGHT + 20.0,
                RIGHT + 52.0,
                stroke(series)
            );
            text(svg, (RIGHT + 60.0, y + 4.0), "", &series.name);
        }
    }
}

/// From values to places in the picture.
struct Axes {
    /// Logarithms of the lowest and the highest x.
    low: f64,
    high: f64,
    /// Between two lines of the y axis.
    step: f64,
    top: f64,
}

impl Axes {
    fn x(&self, value: f64) -> f64 {
        // A little room at both ends, so that marks do not lie on the edge.
        let share = (value.ln() - self.low) / (self.high - self.low);
        LEFT + 20.0 + share * (RIGHT - LEFT - 40.0)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - value / self.top * (BOTTOM - TOP)
    }
}

/// 1, 2 or 5 times a power of ten, for some [`Y_LINES`] lines up to `top`.
fn step(top: f64) -> f64 {
    if !top.is_finite() || top <= 0.0 {
        return 1.0;
    }
    let rough = top / Y_LINES;
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|&step| step >= rough * 0.999)
        .unwrap_or(10.0 * power)
}

/// A value of the y axis, with the digits that its step needs.
fn label(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).max(0.0) as usize;
    format!("{value:.digits$}")
}

fn colour(series: &Series) -> &'static str {
    COLOURS[series.colour % COLOURS.len()]
}

fn stroke(series: &Series) -> String {
    let dash = if series.is_dashed {
        " stroke-dasharray=\"7 4\""
    } else {
        ""
    };
    format!("stroke=\"{}\" stroke-width=\"2\"{dash}", colour(series))
}

fn text(svg: &mut String, (x, y): (f64, f64), attributes: &str, words: &str) {
    let space = if attributes.is_empty() { "" } else { " " };
    let words = escaped(words);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\"{space}{attributes}>{words}</text>"
    );
}

fn line_between(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
        from.0, from.1, to.0, to.1
    );
}

/// Text as XML holds it. Control characters, which no XML may hold, are left out.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            letter if letter.is_control() => {}
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(series: Vec<Series>) -> LineChart {
        LineChart {
            title: "a < b & \"c\"".into(),
            subtitle: "it's\u{7} here".into(),
            x_title: "size (bytes)".into(),
            y_title: "throughput (GB/s)".into(),
            x_ticks: vec![
                (4096.0, "4K".into()),
                (65536.0, "64K".into()),
                (1048576.0, "1M".into()),
            ],
            series,
        }
    }

    fn series(points: &[(f64, f64)], is_dashed: bool) -> Series {
        Series {
            name: "one <two>".into(),
            colour: 8,
            is_dashed,
            points: points.to_vec(),
        }
    }

    /// Every start tag has its end, and nothing but text and tags is there.
    fn is_balanced(svg: &str) -> bool {
        let mut open: Vec<&str> = Vec::new();
        for part in svg.split('<').skip(1) {
            let Some((tag, after)) = part.split_once('>') else {
                return false;
            };
            if after.contains('>') {
                return false;
            }
            let name = |tag: &'_ str| tag.split_whitespace().next().map(str::len);
            match tag.strip_prefix('/') {
                Some(end) if open.pop() != Some(end) => return false,
                None if !tag.ends_with('/') => open.push(&tag[..name(tag).unwrap_or(0)]),
                _ => {}
            }
        }
        open.is_empty()
    }

    #[test]
    fn every_word_is_escaped_and_every_tag_closed() {
        let svg = chart(vec![series(&[(4096.0, 1.0), (65536.0, 3.5)], true)]).svg();
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
        assert!(is_balanced(&svg), "{svg}");
        assert!(svg.contains(">a &lt; b &amp; &quot;c&quot;</text>"));
        assert!(svg.contains(">it&apos;s here</text>"));
        assert!(svg.contains("one &lt;two&gt;: 64K, 3.500"));
        assert!(svg.contains("stroke-dasharray") && svg.contains(COLOURS[1]));
        assert!(
            !svg.contains("href") && !svg.contains("url("),
            "nothing from elsewhere"
        );
        assert!(!is_balanced("<svg><g></svg>") && !is_balanced("<a>b > c</a>"));
    }

    #[test]
    fn equal_ratios_are_equally_far_apart() {
        let axes = chart(vec![series(&[(4096.0, 6.2)], false)]).axes();
        let x = [4096.0, 65536.0, 1048576.0].map(|value| axes.x(value));
        assert!(((x[1] - x[0]) - (x[2] - x[1])).abs() < 1e-6, "{x:?}");
        assert_eq!((x[0], x[2]), (LEFT + 20.0, RIGHT - 20.0));
        assert_eq!((axes.y(0.0), axes.step, axes.top), (BOTTOM, 2.0, 8.0));
        assert_eq!(axes.y(8.0), TOP);
    }

    #[test]
    fn no_points_and_one_point_are_charts() {
        let none = LineChart {
            x_ticks: Vec::new(),
            ..chart(Vec::new())
        };
        let one = LineChart {
            x_ticks: vec![(4096.0, "4K".into())],
            ..chart(vec![series(&[(4096.0, 0.0)], false)])
        };
        for chart in [none, one] {
            let svg = chart.svg();
            assert!(
                is_balanced(&svg) && !svg.contains("NaN") && !svg.contains("inf"),
                "{svg}"
            );
        }
    }

    #[test]
    fn steps_are_round() {
        for (top, expected) in [
            (6.0, 1.0),
            (11.0, 2.0),
            (0.3, 0.05),
            (40.0, 10.0),
            (100.0, 20.0),
        ] {
            assert!((step(top) - expected).abs() < 1e-9, "{top}: {}", step(top));
        }
        assert_eq!(step(0.0), 1.0);
        assert_eq!(label(0.15, 0.05), "0.15");
        assert_eq!(label(20.0, 10.0), "20");
    }
}
