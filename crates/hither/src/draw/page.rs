//! A report as one HTML file: no network, no script; light or dark as the reader's browser is set.

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

// To come: `Page::html(&self) -> String`.
