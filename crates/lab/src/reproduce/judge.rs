//! How near a figure has come.
//!
//! A paper's figure is a number, a range or a bound. How near one has to come to a number is the project's digest's
//! (`facts/papers.md`); where it names nothing, a difference is told and not judged. A bound is the paper's own
//! ("at most", "more than", "up to") and leaves no room.

use std::fmt;

/// Room for what computing in binary loses, as a share.
const ROUNDING: f64 = 1e-9;

/// Letters of a figure that a paper prints, its point included.
const MOST_DIGITS: usize = 7;

/// What the paper says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// A number.
    Near(f64),
    /// From the one to the other.
    Between(f64, f64),
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
    /// The text speaks of it without a number; its drawing is lost.
    Unprinted,
}

/// How near ours has to come to a number, both ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// Share of the paper's figure, in %.
    Percent(f64),
    /// In the unit of the figure.
    Points(f64),
    /// The digest names none.
    Unstated,
}

/// How far ours is from the paper's: from its number, or from the end of the range that it misses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distance {
    /// In %, of the paper's figure.
    Percent(f64),
    /// In the unit of the figure.
    Points(f64),
}

/// A figure beside the paper's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowVerdict {
    /// Within the tolerance.
    Ok,
    /// Beyond it.
    Off(Distance),
    /// No tolerance is stated.
    Differs(Distance),
    /// There is no figure to compare with.
    Shown,
}

/// Ours beside the paper's.
#[must_use]
pub fn judge(figure: Figure, tolerance: Tolerance, ours: f64) -> RowVerdict {
    let slack = |value: f64| value.abs() * ROUNDING;
    let bound = |end: f64, is_held: bool| match is_held {
        true => RowVerdict::Ok,
        false => RowVerdict::Off(distance(end, ours)),
    };
    match figure {
        Figure::Unprinted => RowVerdict::Shown,
        Figure::AtMost(most) => bound(most, ours <= most + slack(most)),
        Figure::AtLeast(least) => bound(least, ours >= least - slack(least)),
        Figure::Between(least, _) if ours < least - slack(least) => bound(least, false),
        Figure::Between(_, most) => bound(most, ours <= most + slack(most)),
        Figure::Near(paper) => match tolerance {
            Tolerance::Unstated => RowVerdict::Differs(distance(paper, ours)),
            Tolerance::Points(points) if (ours - paper).abs() <= points + slack(paper) => {
                RowVerdict::Ok
            }
            Tolerance::Points(_) => RowVerdict::Off(Distance::Points(ours - paper)),
            Tolerance::Percent(percent) => {
                let room = paper.abs() * percent / 100.0;
                match (ours - paper).abs() <= room + slack(paper) {
                    true => RowVerdict::Ok,
                    false => RowVerdict::Off(distance(paper, ours)),
                }
            }
        },
    }
}

/// A share of nothing is none: then the difference itself.
fn distance(paper: f64, ours: f64) -> Distance {
    match paper == 0.0 {
        true => Distance::Points(ours),
        false => Distance::Percent((ours - paper) / paper.abs() * 100.0),
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Percent(percent) if percent.abs() < 1.0 => write!(to, "{percent:+.1} %"),
            Self::Percent(percent) => write!(to, "{percent:+.0} %"),
            Self::Points(points) => write!(
                to,
                "{}{}",
                if points < 0.0 { "" } else { "+" },
                number(points)
            ),
        }
    }
}

impl fmt::Display for RowVerdict {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => write!(to, "ok"),
            Self::Off(distance) => write!(to, "off by {distance}"),
            Self::Differs(distance) => write!(to, "differs by {distance}, no tolerance is stated"),
            Self::Shown => write!(to, "the text has no figure"),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Near(value) => write!(to, "{}", printed(value)),
            Self::Between(least, most) => write!(to, "{} to {}", printed(least), printed(most)),
            Self::AtMost(most) => write!(to, "at most {}", printed(most)),
            Self::AtLeast(least) => write!(to, "at least {}", printed(least)),
            Self::Unprinted => write!(to, "–"),
        }
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Percent(percent) => write!(to, "{} %", number(percent)),
            Self::Points(points) => write!(to, "{} points", number(points)),
            Self::Unstated => write!(to, "–"),
        }
    }
}

/// A paper's figure with all its digits; what was computed from several as ours are.
fn printed(value: f64) -> String {
    match value.to_string() {
        text if text.len() <= MOST_DIGITS => text,
        _ => number(value),
    }
}

/// With three digits at least, without zeros behind them.
#[must_use]
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    match text {
        "-0" => "0".to_owned(),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_ends_where_it_says() {
        let of = |ours| judge(Figure::Near(200.0), Tolerance::Percent(10.0), ours);
        assert_eq!(of(180.0), RowVerdict::Ok);
        assert_eq!(of(220.0), RowVerdict::Ok);
        // 7 % of 0.29 is not to be written in binary.
        assert_eq!(
            judge(Figure::Near(0.29), Tolerance::Percent(7.0), 0.29 * 1.07),
            RowVerdict::Ok
        );
        assert_eq!(of(179.0), RowVerdict::Off(Distance::Percent(-10.5)));
        assert_eq!(of(230.0).to_string(), "off by +15 %");
    }

    #[test]
    fn points_are_of_the_figures_unit() {
        let of = |ours| judge(Figure::Near(-6.5), Tolerance::Points(3.0), ours);
        assert_eq!(of(-9.5), RowVerdict::Ok);
        assert_eq!(of(-3.5), RowVerdict::Ok);
        assert_eq!(of(-3.4).to_string(), "off by +3.1");
        assert_eq!(of(-10.0).to_string(), "off by -3.5");
    }

    #[test]
    fn bounds_leave_no_room() {
        let most = |ours| judge(Figure::AtMost(20.0), Tolerance::Percent(50.0), ours);
        assert_eq!((most(20.0), most(-5.0)), (RowVerdict::Ok, RowVerdict::Ok));
        assert_eq!(most(21.0).to_string(), "off by +5 %");
        let least = |ours| judge(Figure::AtLeast(50.0), Tolerance::Unstated, ours);
        assert_eq!((least(50.0), least(70.0)), (RowVerdict::Ok, RowVerdict::Ok));
        assert_eq!(least(49.8).to_string(), "off by -0.4 %");
        let between = |ours| judge(Figure::Between(2.0, 3.0), Tolerance::Unstated, ours);
        assert_eq!(
            (between(2.0), between(3.0)),
            (RowVerdict::Ok, RowVerdict::Ok)
        );
        assert_eq!(between(1.5).to_string(), "off by -25 %");
        assert_eq!(between(3.3).to_string(), "off by +10 %");
        let none = judge(Figure::AtMost(0.0), Tolerance::Unstated, 0.5);
        assert_eq!(none.to_string(), "off by +0.5");
    }

    #[test]
    fn without_a_tolerance_nothing_is_judged() {
        let of = |ours| judge(Figure::Near(30.0), Tolerance::Unstated, ours);
        assert_eq!(
            of(33.0).to_string(),
            "differs by +10 %, no tolerance is stated"
        );
        assert_eq!(of(30.0), RowVerdict::Differs(Distance::Percent(0.0)));
        assert_eq!(
            judge(Figure::Unprinted, Tolerance::Unstated, 1.0),
            RowVerdict::Shown
        );
    }

    #[test]
    fn what_is_not_a_number_is_never_ok() {
        for figure in [
            Figure::Near(1.0),
            Figure::AtMost(1.0),
            Figure::AtLeast(1.0),
            Figure::Between(1.0, 2.0),
        ] {
            let verdict = judge(figure, Tolerance::Percent(1000.0), f64::NAN);
            assert_ne!(verdict, RowVerdict::Ok, "{figure:?}");
        }
    }

    #[test]
    fn a_papers_figure_keeps_its_digits() {
        for (value, text) in [
            (2384.1, "2384.1"),
            (16.85, "16.85"),
            (219_836.0, "219836"),
            (1.0 / 3.0, "0.333"),
        ] {
            assert_eq!(Figure::Near(value).to_string(), text);
        }
    }

    #[test]
    fn numbers_have_three_digits_and_no_empty_ones() {
        for (value, text) in [
            (2384.1, "2384"),
            (476.0, "476"),
            (16.85, "16.9"),
            (0.29, "0.29"),
            (0.155, "0.155"),
            (3.0, "3"),
            (-0.0, "0"),
            (219_836.0, "219836"),
            (9.834, "9.83"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
