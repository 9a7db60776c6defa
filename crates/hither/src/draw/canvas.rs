//! What all figures are made of: text, lines, rectangles, and one set of colours for paper and screen.

use super::axis::Place;
use hither_core::foreign::steers;
use std::fmt::Write;

/// Width of every figure.
pub const WIDTH: f64 = 960.0;
/// Size of ordinary text.
const SIZE: f64 = 13.0;
/// Size of the title.
const TITLE_SIZE: f64 = 18.0;
/// Width of a letter as a share of the size of text: of a wide font, to be on the safe side.
const LETTER: f64 = 0.56;
/// Okabe and Ito's colours, which people with colour-blindness tell apart; the pale yellow is left
/// out, as it is lost on white. The second of each pair is for dark schemes.
pub const COLOURS: [(&str, &str); 7] = [
    ("#0072B2", "#3C96D8"),
    ("#D55E00", "#E8742A"),
    ("#009E73", "#1DB58A"),
    ("#CC79A7", "#D68DB5"),
    ("#E69F00", "#E69F00"),
    ("#56B4E9", "#A6DAF6"),
    ("#000000", "#FFFFFF"),
];
/// What was not measured, or left out.
pub const NONE: &str = "class=\"none\" fill=\"#d9d9d9\"";

/// A figure that is being drawn. Its height is known at the end.
#[derive(Default)]
pub struct Canvas {
    text: String,
}

impl Canvas {
    /// With title and subtitle.
    pub fn new(left: f64, title: &str, subtitle: &str) -> Self {
        let mut canvas = Self::default();
        let _ = writeln!(canvas.text, "<title>{}</title>", escaped(title));
        let heading = "class=\"heading\" font-size=\"18\" font-weight=\"bold\"";
        canvas.fitted((left, 30.0), heading, title, (WIDTH - left) / TITLE_SIZE);
        canvas.fitted((left, 52.0), QUIET, subtitle, (WIDTH - left) / SIZE);
        canvas
    }

    /// One line of text.
    pub fn text(&mut self, at: (f64, f64), attributes: &str, words: &str) {
        self.text_with_title(at, attributes, words, None);
    }

    /// The same, shortened to a width (in sizes of its letters); then the whole is shown where the
    /// pointer rests on it.
    pub fn fitted(&mut self, at: (f64, f64), attributes: &str, words: &str, width: f64) {
        let most = (width / LETTER) as usize;
        let short = shortened(words, most);
        let whole = (plain(words).count() > most).then_some(words);
        self.text_with_title(at, attributes, &short, whole);
    }

    fn text_with_title(
        &mut self,
        (x, y): (f64, f64),
        attributes: &str,
        words: &str,
        whole: Option<&str>,
    ) {
        let words = escaped(words);
        if words.is_empty() {
            return;
        }
        let space = if attributes.is_empty() { "" } else { " " };
        let _ = write!(
            self.text,
            "<text x=\"{x:.1}\" y=\"{y:.1}\"{space}{attributes}>{words}"
        );
        if let Some(whole) = whole {
            let _ = write!(self.text, "<title>{}</title>", escaped(whole));
        }
        self.text.push_str("</text>\n");
    }

    /// The title of the axis below.
    pub fn x_title(&mut self, (left, right): (f64, f64), y: f64, words: &str) {
        let middle = f64::midpoint(left, right);
        let attributes = "class=\"axis\" text-anchor=\"middle\"";
        self.fitted((middle, y), attributes, words, (right - left) / SIZE);
    }

    /// The title of an upright axis, read from below.
    pub fn y_title(&mut self, x: f64, (top, bottom): (f64, f64), words: &str) {
        let middle = f64::midpoint(top, bottom);
        let attributes =
            format!("class=\"axis\" text-anchor=\"middle\" transform=\"rotate(-90 {x} {middle})\"");
        self.fitted((x, middle), &attributes, words, (bottom - top) / SIZE);
    }

    /// Marks below `y`, as many as have room.
    pub fn x_ticks(&mut self, place: &Place, y: f64, ticks: &[(f64, String)]) {
        let mut free = f64::NEG_INFINITY;
        for (value, name) in ticks {
            let Some(x) = place.of(*value) else { continue };
            self.line((x, y), (x, y + 5.0), INK);
            let half = name.chars().count() as f64 * LETTER * SIZE / 2.0;
            if x - half >= free {
                self.text((x, y + 20.0), "text-anchor=\"middle\"", name);
                free = x + half + SIZE * LETTER;
            }
        }
    }

    /// A line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), attributes: &str) {
        let _ = writeln!(
            self.text,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {attributes}/>",
            from.0, from.1, to.0, to.1
        );
    }

    /// A rectangle.
    pub fn rectangle(&mut self, at: (f64, f64), size: (f64, f64), attributes: &str) {
        self.rectangle_with_title(at, size, attributes, "");
    }

    /// A rectangle that says something where the pointer rests on it.
    pub fn rectangle_with_title(
        &mut self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        attributes: &str,
        title: &str,
    ) {
        let _ = write!(
            self.text,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" {attributes}"
        );
        let _ = match title {
            "" => writeln!(self.text, "/>"),
            title => writeln!(self.text, "><title>{}</title></rect>", escaped(title)),
        };
    }

    /// Markup, taken as it is.
    pub fn raw(&mut self, markup: &str) {
        self.text.push_str(markup);
    }

    /// The figure as a file, and as a part of another: `y` of its upper edge there.
    pub fn finish(self, height: f64, y: f64) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"hither\" role=\"img\" y=\"{y}\" \
             width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"{SIZE}\" fill=\"#222\" color=\"#222\">\n\
             <style>{}</style>\n\
             <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
             {}</svg>\n",
            style(),
            self.text
        )
    }
}

/// Attributes of a line that matters.
pub const INK: &str = "stroke=\"currentColor\"";
/// Of one that guides the eye.
pub const GRID: &str = "class=\"grid\" stroke=\"#ddd\"";
/// Of text that matters less.
pub const QUIET: &str = "class=\"quiet\" fill=\"#555\"";

/// Opens a group of one of [`COLOURS`]; "currentColor" in it is that colour.
pub fn coloured(colour: usize) -> String {
    let index = colour % COLOURS.len();
    format!("<g class=\"c{index}\" color=\"{}\">", COLOURS[index].0)
}

/// What dark schemes change; without it, and on paper, the attributes hold.
fn style() -> String {
    let mut style = "@media screen and (prefers-color-scheme:dark){\
         svg:root{background:#1b1b1b}.hither{fill:#ddd;color:#ddd}.hither .paper{fill:#1b1b1b}.hither .quiet{fill:#aaa}\
         .hither .grid{stroke:#444}.hither .none{fill:#4a4a4a}"
        .to_owned();
    for (index, colour) in COLOURS.iter().enumerate() {
        let _ = write!(style, ".hither .c{index}{{color:{}}}", colour.1);
    }
    style.push('}');
    style
}

/// Text without what changes how the rest of a line is shown: control characters, which no XML may
/// hold and which steer terminals, and marks that turn the direction of writing.
pub fn plain(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(|&letter| {
        let is_character = !matches!(letter, '\u{FFFE}' | '\u{FFFF}');
        matches!(letter, '\n' | '\t') || !steers(letter) && is_character
    })
}

/// One line of at most so many letters. What has no room is left out in the middle, as names are
/// told apart by their ends: the line of a file, the last digits of an address.
pub fn shortened(text: &str, most: usize) -> String {
    let letters = plain(text).map(|letter| if letter.is_control() { ' ' } else { letter });
    let mut letters: Vec<char> = letters.collect();
    if letters.len() > most {
        let kept = most.saturating_sub(1);
        letters.splice(kept.div_ceil(2)..letters.len() - kept / 2, ['…']);
    }
    letters.into_iter().collect()
}

/// Text as XML and HTML hold it, between tags and in attributes.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in plain(text) {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ordinary values, and all that a number can be.
    pub fn values() -> impl Strategy<Value = f64> {
        prop_oneof![
            prop::num::f64::ANY,
            -1e6..1e6_f64,
            Just(0.0),
            Just(f64::NAN)
        ]
    }

    /// Every start tag has its end, and nothing but text and tags is there.
    pub fn is_balanced(markup: &str) -> bool {
        let mut open: Vec<&str> = Vec::new();
        for part in markup.split('<').skip(1) {
            let Some((tag, after)) = part.split_once('>') else {
                return false;
            };
            if after.contains('>') {
                return false;
            }
            let name = tag.split_whitespace().next().map_or(0, str::len);
            match tag.strip_prefix('/') {
                Some(end) if open.pop() != Some(end) => return false,
                None if !tag.ends_with('/') => open.push(&tag[..name]),
                _ => {}
            }
        }
        open.is_empty()
    }

    /// Is this a figure that every browser shows?
    pub fn is_sound(svg: &str) -> bool {
        is_balanced(svg)
            && svg.starts_with("<svg xmlns=")
            && svg.ends_with("</svg>\n")
            && !["NaN", "inf", "href", "url("]
                .iter()
                .any(|bad| svg.contains(bad))
    }

    #[test]
    fn balance_is_seen() {
        assert!(is_balanced("<a b=\"c\"><d/>e</a>"));
        for bad in ["<svg><g></svg>", "<a>b > c</a>", "<a>", "</a>", "<a"] {
            assert!(!is_balanced(bad), "{bad}");
        }
    }

    #[test]
    fn text_is_escaped_and_cannot_steer() {
        assert_eq!(escaped("a<b> &\"c'"), "a&lt;b&gt; &amp;&quot;c&apos;");
        assert_eq!(
            escaped("x\u{7}\u{1b}[31m\u{85}\u{202E}y\u{FFFF}\nz"),
            "x[31my\nz"
        );
    }

    #[test]
    fn what_has_no_room_is_shortened_and_said_whole() {
        let mut canvas = Canvas::new(80.0, "t", "");
        canvas.fitted((1.0, 2.0), "", "0123456789", 3.4);
        let svg = canvas.finish(100.0, 0.0);
        assert!(is_sound(&svg), "{svg}");
        assert!(
            svg.contains(">012…89<title>0123456789</title></text>"),
            "{svg}"
        );
        assert!(!svg.contains("quiet\" fill"), "no subtitle, no text: {svg}");
        assert_eq!([shortened("abc", 0), shortened("a\nb", 9)], ["…", "a b"]);
    }
}
