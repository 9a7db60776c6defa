//! A report as one HTML file: no network, no script; light or dark as the reader's browser is set.

use super::canvas::escaped;
use std::fmt::Write;

/// Refuses whatever is not in the file, and all scripts: a name that slipped through could not act.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
/// How it looks. Figures carry their own dark colours; paper is always light. What does not fit a narrow
/// window is scrolled: words are broken only where one alone is wider than the window.
const STYLE: &str = "\
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:60rem;margin:0 auto;padding:1rem 1.5rem 3rem}
h1{font-size:1.7rem;line-height:1.25}
h1,h2,p{overflow-wrap:break-word}
h2{font-size:1.25rem;margin-top:2.2rem;padding-bottom:.2rem;border-bottom:1px solid #ccc}
figure{margin:1rem 0;overflow-x:auto}
figure svg{display:block;max-width:100%;height:auto}
.wide{overflow-x:auto;margin:1rem 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .8rem .25rem 0;text-align:left;vertical-align:top;font-weight:normal}
thead th{font-weight:bold;border-bottom:2px solid #888}
tbody tr{border-bottom:1px solid #ddd}
.right{text-align:right}
td.right{white-space:nowrap}
pre{overflow-x:auto;padding:.7rem 1rem;background:#f3f3f3;border-radius:4px;font-size:.875rem}
@media screen and (max-width:40rem){
body{padding:1rem 1rem 3rem}
figure svg{min-width:40rem}
}
@media screen and (prefers-color-scheme:dark){
body{color:#ddd;background:#1b1b1b}
h2{border-color:#555}
thead th{border-color:#888}
tbody tr{border-color:#3a3a3a}
pre{background:#2a2a2a}
}
@media print{
body{max-width:none;padding:0;font-size:11pt}
h2{break-after:avoid}
figure,tr{break-inside:avoid}
pre{white-space:pre-wrap;border:1px solid #ccc}
}
";

/// A page.
#[derive(Clone, Debug)]
pub struct Page {
    /// Of the window, and the first heading.
    pub title: String,
    /// From the top.
    pub sections: Vec<Section>,
}

/// A heading and what is below it.
#[derive(Clone, Debug)]
pub struct Section {
    /// Plain text.
    pub heading: String,
    /// From the top.
    pub body: Vec<Block>,
}

/// A part of a section. All text is plain and is escaped here.
#[derive(Clone, Debug)]
pub enum Block {
    /// Running text.
    Paragraph(String),
    /// Rows of cells; the first cell of a row names it.
    Table {
        /// Names of the columns.
        head: Vec<String>,
        /// Their cells; what is missing stays empty.
        rows: Vec<Vec<String>>,
        /// Of each column; left where there is none.
        alignment: Vec<Alignment>,
    },
    /// A figure as this module draws it, taken as it is.
    Svg(String),
    /// Commands and output, with its line breaks.
    Code(String),
}

/// How a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

impl Page {
    /// The file.
    #[must_use]
    pub fn html(&self) -> String {
        let title = escaped(&self.title);
        let mut html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
             <h1>{}</h1>\n",
            flowing(&self.title)
        );
        for section in &self.sections {
            let heading = escaped(&section.heading);
            let _ = writeln!(html, "<section>\n<h2>{}</h2>", flowing(&section.heading));
            for block in &section.body {
                block.write(&mut html, &heading);
            }
            html.push_str("</section>\n");
        }
        html.push_str("</main>\n</body>\n</html>\n");
        html
    }
}

impl Block {
    /// `heading` is the escaped one of its section.
    fn write(&self, html: &mut String, heading: &str) {
        let _ = match self {
            Self::Paragraph(text) => writeln!(html, "<p>{}</p>", flowing(text)),
            Self::Svg(svg) => writeln!(html, "<figure>\n{svg}</figure>"),
            // The first line break after the tag is not part of the text.
            Self::Code(text) => writeln!(
                html,
                "<pre tabindex=\"0\"><code>{}</code></pre>",
                escaped(text)
            ),
            Self::Table {
                head,
                rows,
                alignment,
            } => {
                // What may be scrolled must be reached from the keyboard too.
                let _ = writeln!(
                    html,
                    "<div class=\"wide\" role=\"region\" aria-label=\"{heading}\" tabindex=\"0\">\n\
                     <table>\n<thead>"
                );
                row(html, head.len(), head, alignment, |_| {
                    ("th", " scope=\"col\"")
                });
                html.push_str("</thead>\n<tbody>\n");
                for cells in rows {
                    row(html, head.len(), cells, alignment, |column| match column {
                        0 => ("th", " scope=\"row\""),
                        _ => ("td", ""),
                    });
                }
                writeln!(html, "</tbody>\n</table>\n</div>")
            }
        };
    }
}

/// Escaped text in which paths may go on in the next line behind a slash, and begin one: browsers break
/// neither there by themselves.
fn flowing(text: &str) -> String {
    let word = |word: &str| {
        let word = escaped(word);
        match word.matches('/').count() {
            0 | 1 => word,
            _ if word.starts_with('/') => format!("<wbr/>{}", word.replace('/', "/<wbr/>")),
            _ => word.replace('/', "/<wbr/>"),
        }
    };
    let words: Vec<String> = text.split(' ').map(word).collect();
    words.join(" ")
}

/// One row; what is missing stays empty.
fn row(
    html: &mut String,
    count: usize,
    cells: &[String],
    alignment: &[Alignment],
    tag: impl Fn(usize) -> (&'static str, &'static str),
) {
    html.push_str("<tr>");
    for column in 0..count.max(cells.len()) {
        let (name, scope) = tag(column);
        let class = match alignment.get(column) {
            Some(Alignment::Right) => " class=\"right\"",
            Some(Alignment::Left) | None => "",
        };
        let text = cells
            .get(column)
            .map(|cell| flowing(cell))
            .unwrap_or_default();
        let _ = write!(html, "<{name}{scope}{class}>{text}</{name}>");
    }
    html.push_str("</tr>\n");
}

#[cfg(test)]
mod tests {
    use super::super::canvas::tests::is_balanced;
    use super::*;
    use proptest::prelude::*;

    /// Tags that have no end in HTML, and what is no markup, aside.
    fn is_sound(html: &str) -> bool {
        let (head, body) = html.split_once("<body>").unwrap_or_default();
        head.starts_with("<!DOCTYPE html>\n<html lang=\"en\">")
            && html.ends_with("</body>\n</html>\n")
            && is_balanced(&format!("<html><body>{body}"))
            && !["<script", "href", "http:", "https:", "url(", "@import"]
                .iter()
                .any(|bad| body.contains(bad))
    }

    fn page(body: Vec<Block>) -> Page {
        Page {
            title: "</title><script>alert(1)</script>".into(),
            sections: vec![Section {
                heading: "a \"b\" & 'c'".into(),
                body,
            }],
        }
    }

    fn table(head: &[&str], rows: &[&[&str]], alignment: &[Alignment]) -> Block {
        let owned = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        Block::Table {
            head: owned(head),
            rows: rows.iter().map(|row| owned(row)).collect(),
            alignment: alignment.to_vec(),
        }
    }

    #[test]
    fn every_word_is_escaped_and_every_tag_closed() {
        let html = page(vec![
            Block::Paragraph("<b>\u{1b}[1m".into()),
            Block::Code("# hither <move>\nline 2\0".into()),
            table(&["<x>"], &[&["\"><script>"]], &[]),
            Block::Svg("<svg></svg>\n".into()),
        ])
        .html();
        assert!(is_sound(&html), "{html}");
        for part in [
            "<title>&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;</title>",
            "<p>&lt;b&gt;[1m</p>",
            "<code># hither &lt;move&gt;\nline 2</code>",
            "aria-label=\"a &quot;b&quot; &amp; &apos;c&apos;\"",
            "&quot;&gt;&lt;script&gt;",
            "<figure>\n<svg></svg>\n</figure>",
        ] {
            assert!(html.contains(part), "{part} is not in {html}");
        }
    }

    #[test]
    fn paths_may_be_broken_behind_slashes_and_units_not() {
        assert_eq!(
            flowing("at 2 GB/s by /usr/bin/a <b>"),
            "at 2 GB/s by <wbr/>/<wbr/>usr/<wbr/>bin/<wbr/>a &lt;b&gt;"
        );
        for rule in [
            "td.right{white-space:nowrap}",
            "h1,h2,p{overflow-wrap:break-word}",
        ] {
            assert!(STYLE.contains(rule), "{rule}");
        }
        // It would let columns become so narrow that words are broken within.
        assert!(!STYLE.contains("overflow-wrap:anywhere"));
    }

    #[test]
    fn cells_name_their_row_and_column() {
        let rows: [&[&str]; 3] = [&["node0", "1"], &["node1"], &["node2", "3", "4"]];
        let alignment = [Alignment::Left, Alignment::Right];
        let html = page(vec![table(&["node", "GB"], &rows, &alignment)]).html();
        for part in [
            "<tr><th scope=\"col\">node</th><th scope=\"col\" class=\"right\">GB</th></tr>",
            "<tr><th scope=\"row\">node0</th><td class=\"right\">1</td></tr>",
            "<tr><th scope=\"row\">node1</th><td class=\"right\"></td></tr>",
            "<td class=\"right\">3</td><td>4</td></tr>",
        ] {
            assert!(html.contains(part), "{part} is not in {html}");
        }
    }

    #[test]
    fn an_empty_page_is_a_page() {
        let mut page = page(vec![table(&[], &[], &[]), table(&[], &[&[]], &[])]);
        assert!(is_sound(&page.html()), "{}", page.html());
        page.sections.clear();
        assert!(is_sound(&page.html()));
    }

    proptest! {
        #[test]
        fn whatever_the_words_it_is_a_page(words in prop::collection::vec(any::<String>(), 4)) {
            let html = Page {
                title: words[0].clone(),
                sections: vec![Section {
                    heading: words[1].clone(),
                    body: vec![
                        Block::Paragraph(words[2].clone()),
                        Block::Code(words[3].clone()),
                        table(&[&words[3]], &[&[&words[2]]], &[Alignment::Right]),
                    ],
                }],
            }
            .html();
            let (_, body) = html.split_once("<body>").unwrap();
            prop_assert!(is_balanced(&format!("<html><body>{body}")), "{}", html);
        }
    }
}
