//! A parsed TOML document whose every value still knows its line and its path.
//!
//! The sections are read by hand and not through `serde`: an error shall name the line and the
//! full path of a field also when the value is well-typed but makes no sense (`serde` reports a
//! span only for values of a wrong type, and positions in arrays not at all).

use crate::foreign::{Foreign, steers};
use toml::de::{DeArray, DeTable, DeValue};

/// What is wrong with a machine file, where, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Line in the text, from 1.
    pub line: usize,
    /// Path of the field, like `node[2].idle_ns`; empty where the text is no TOML at all.
    pub field: String,
    /// What is wrong.
    pub problem: String,
    /// How to mend it.
    pub remedy: String,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: ", self.line)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}

impl std::error::Error for Error {}

/// Result of reading a part of the document.
pub(super) type Result<T> = std::result::Result<T, Error>;

/// A place in the text: what an error points at.
#[derive(Clone, Debug)]
pub(super) struct Place<'a> {
    text: &'a str,
    offset: usize,
    path: String,
}

impl Place<'_> {
    /// An error at this place.
    pub fn error(&self, problem: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error {
            line: line_at(self.text, self.offset),
            field: self.path.clone(),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    /// The same place, with the name of a part of it.
    pub fn at(&self, part: &str) -> Self {
        let path = if self.path.is_empty() {
            part.to_owned()
        } else if part.starts_with('[') {
            format!("{}{part}", self.path)
        } else {
            format!("{}.{part}", self.path)
        };
        Self {
            path,
            ..self.clone()
        }
    }
}

/// Line of a byte offset, from 1.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    1 + text
        .bytes()
        .take(offset)
        .filter(|&byte| byte == b'\n')
        .count()
}

/// A value with its place.
pub(super) struct Field<'a> {
    /// Where it stands.
    pub place: Place<'a>,
    value: &'a DeValue<'a>,
}

impl<'a> Field<'a> {
    /// A finite number in a closed range; whole numbers are welcome too.
    pub fn number(&self, low: f64, high: f64) -> Result<f64> {
        let text = match self.value {
            DeValue::Float(float) => float.as_str().to_owned(),
            DeValue::Integer(whole) if whole.radix() == 10 => whole.as_str().to_owned(),
            _ => return Err(self.wrong_type(&number_words(low, high))),
        };
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() && (low..=high).contains(&value) => Ok(value),
            _ => Err(self.place.error(
                format!("{} is out of range", clip(&text)),
                format!("write {}", number_words(low, high)),
            )),
        }
    }

    /// A whole number in a closed range.
    pub fn whole(&self, low: u64, high: u64) -> Result<u64> {
        let words = whole_words(low, high);
        let DeValue::Integer(whole) = self.value else {
            return Err(self.wrong_type(&words));
        };
        let digits = whole.as_str();
        match u64::from_str_radix(digits.strip_prefix('+').unwrap_or(digits), whole.radix()) {
            Ok(value) if (low..=high).contains(&value) => Ok(value),
            _ => Err(self.place.error(
                format!("{} is out of range", clip(digits)),
                format!("write {words}"),
            )),
        }
    }

    /// A text of one line.
    pub fn text(&self, most_bytes: usize) -> Result<&'a str> {
        let DeValue::String(text) = self.value else {
            return Err(self.wrong_type("a text in quotes"));
        };
        if text.chars().any(steers) {
            return Err(self.place.error(
                "the text has a line break or control character",
                "write it in one line",
            ));
        }
        if text.len() > most_bytes {
            return Err(self.place.error(
                format!("the text has {} bytes", text.len()),
                format!("shorten it to {most_bytes}"),
            ));
        }
        Ok(text)
    }

    /// The members of an array, at most `most` of them.
    pub fn array(&self, most: usize, example: &str) -> Result<Vec<Field<'a>>> {
        let DeValue::Array(array) = self.value else {
            return Err(self.wrong_type(&format!("a list like `{example}`")));
        };
        self.members(array, most)
    }

    /// Is it an array?
    pub fn is_array(&self) -> bool {
        matches!(self.value, DeValue::Array(_))
    }

    /// A table of which only `known` fields may be present.
    pub fn section(&self, known: &[&str]) -> Result<Section<'a>> {
        let DeValue::Table(table) = self.value else {
            return Err(self.wrong_type(&format!("a section [{}]", self.place.path)));
        };
        Section::open(self.place.clone(), table, known)
    }

    /// The tables of an array of tables, at most `most` of them.
    pub fn sections(&self, most: usize, known: &[&str]) -> Result<Vec<Section<'a>>> {
        let DeValue::Array(array) = self.value else {
            return Err(self.wrong_type(&format!("sections headed [[{}]]", self.place.path)));
        };
        self.members(array, most)?
            .iter()
            .map(|field| field.section(known))
            .collect()
    }

    fn members(&self, array: &'a DeArray<'a>, most: usize) -> Result<Vec<Field<'a>>> {
        if array.len() > most {
            return Err(self.place.error(
                format!("there are {} of them", array.len()),
                format!("the limit is {most}: leave some out"),
            ));
        }
        let member = |(position, value): (usize, &'a toml::Spanned<DeValue<'a>>)| Field {
            place: Place {
                offset: value.span().start,
                ..self.place.at(&format!("[{position}]"))
            },
            value: value.get_ref(),
        };
        Ok(array.iter().enumerate().map(member).collect())
    }

    fn wrong_type(&self, wanted: &str) -> Error {
        let (found, plain) = match self.value {
            DeValue::String(text) => (format!("the text \"{}\"", clip(text)), ""),
            DeValue::Integer(whole) if whole.radix() != 10 => {
                (format!("{whole}"), ", in plain decimal digits")
            }
            DeValue::Integer(whole) => (clip(whole.as_str()), ""),
            DeValue::Float(float) => (clip(float.as_str()), ""),
            DeValue::Boolean(value) => (value.to_string(), ""),
            DeValue::Datetime(_) => ("a date".to_owned(), ""),
            DeValue::Array(_) => ("a list".to_owned(), ""),
            DeValue::Table(_) => ("a section".to_owned(), ""),
        };
        self.place
            .error(format!("is {found}"), format!("write {wanted}{plain}"))
    }
}

/// A table with its place, whose fields were checked against the known ones.
pub(super) struct Section<'a> {
    /// Where it stands (its header).
    pub place: Place<'a>,
    table: &'a DeTable<'a>,
    defaults: Option<&'a Section<'a>>,
}

impl<'a> Section<'a> {
    /// The whole document.
    pub fn root(text: &'a str, table: &'a DeTable<'a>, known: &[&str]) -> Result<Self> {
        Self::open(
            Place {
                text,
                offset: 0,
                path: String::new(),
            },
            table,
            known,
        )
    }

    fn open(place: Place<'a>, table: &'a DeTable<'a>, known: &[&str]) -> Result<Self> {
        for key in table.keys() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let place = Place {
                    offset: key.span().start,
                    ..place.at(&clip(name))
                };
                return Err(place.error("there is no such field", suggest(name, known)));
            }
        }
        Ok(Self {
            place,
            table,
            defaults: None,
        })
    }

    /// Takes fields that are absent here from `defaults`.
    pub fn with_defaults(self, defaults: Option<&'a Section<'a>>) -> Self {
        Self { defaults, ..self }
    }

    /// The names of its own fields.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.table.keys().map(|key| &**key.get_ref())
    }

    /// Has it this field of its own?
    pub fn has_own(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    /// A field of its own or of the defaults.
    pub fn get(&self, name: &str) -> Option<Field<'a>> {
        match self.table.get(name) {
            Some(value) => Some(Field {
                place: Place {
                    offset: value.span().start,
                    ..self.place.at(name)
                },
                value: value.get_ref(),
            }),
            None => self.defaults.and_then(|defaults| defaults.get(name)),
        }
    }

    /// A field that must be there; `wanted` says what to write.
    pub fn need(&self, name: &str, wanted: &str) -> Result<Field<'a>> {
        self.get(name).ok_or_else(|| {
            self.place
                .at(name)
                .error("is missing", format!("add `{name} = ` with {wanted}"))
        })
    }

    /// A number that must be there, in a closed range.
    pub fn number(&self, name: &str, low: f64, high: f64) -> Result<f64> {
        self.need(name, &number_words(low, high))?.number(low, high)
    }

    /// A number that may be there, in a closed range.
    pub fn number_if_any(&self, name: &str, low: f64, high: f64) -> Result<Option<f64>> {
        self.get(name)
            .map(|field| field.number(low, high))
            .transpose()
    }

    /// A whole number that must be there, in a closed range.
    pub fn whole(&self, name: &str, low: u64, high: u64) -> Result<u64> {
        self.need(name, &whole_words(low, high))?.whole(low, high)
    }

    /// A section that must be there.
    pub fn section(&self, name: &str, known: &[&str]) -> Result<Section<'a>> {
        match self.get(name) {
            Some(field) => field.section(known),
            None => Err(self.place.at(name).error(
                "the section is missing",
                format!("add [{name}] with {}", known.join(", ")),
            )),
        }
    }
}

fn number_words(low: f64, high: f64) -> String {
    format!("a number from {low} to {high}")
}

fn whole_words(low: u64, high: u64) -> String {
    format!("a whole number from {low} to {high}")
}

/// Text of the file for an error message: short, printable.
pub(super) fn clip(text: &str) -> String {
    const MOST: usize = 40;
    let short: String = text.chars().take(MOST).collect();
    let mut short = short.shown().to_string();
    if text.chars().nth(MOST).is_some() {
        short.push_str("...");
    }
    short
}

/// The remedy for an unknown field: the closest known name, else all of them.
fn suggest(name: &str, known: &[&str]) -> String {
    // Longer names cannot be a slip of the pen of a known one, and the distance costs their
    // length.
    let near = if name.len() > 64 {
        None
    } else {
        known
            .iter()
            .map(|candidate| (edit_distance(name, candidate), *candidate))
            .filter(|&(distance, candidate)| distance <= 1 + candidate.len() / 3)
            .min()
    };
    match near {
        Some((_, candidate)) => format!("did you mean `{candidate}`?"),
        None => format!("delete it, the fields here are {}", known.join(", ")),
    }
}

/// Insertions, deletions and substitutions that turn one name into the other (Levenshtein).
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &b) in to.iter().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_gets_the_closest_known_one() {
        let known = ["idle_ns", "memory_mb", "tier"];
        assert_eq!(suggest("idle_nz", &known), "did you mean `idle_ns`?");
        assert_eq!(
            suggest("idl", &known),
            "delete it, the fields here are idle_ns, memory_mb, tier"
        );
        assert_eq!(suggest("memory", &known), "did you mean `memory_mb`?");
    }

    #[test]
    fn edit_distance_counts_single_changes() {
        // kitten -> sitten -> sittin -> sitting
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("abc", "abc"), 0);
    }

    #[test]
    fn lines_count_from_one() {
        assert_eq!(line_at("a\nb\nc", 0), 1);
        assert_eq!(line_at("a\nb\nc", 2), 2);
        assert_eq!(line_at("a\nb\nc", 99), 3);
    }
}
