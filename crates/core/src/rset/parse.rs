//! From text to [`Expression`].
//!
//! ```text
//! sum      = product { ( "+" | " - " ) product }
//! product  = factor { "&" factor }
//! factor   = "~" factor | "(" sum ")" | term
//! term     = "machine" | "allowed" | WORD ":" ARGUMENT
//! ```
//!
//! Recursive descent over bytes. Nesting and length have limits, because the expression is walked
//! by recursion later.

use super::expression::{Expression, Term, WORDS, What};
use super::resources::Level;
use crate::foreign::steers;
use crate::set::{IdSet, Numbered};
use crate::size::parse_bytes;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Most bytes of a text: far more than a person writes.
const MOST_BYTES: usize = 1024;
/// Most parentheses and complements within each other.
const MOST_NESTED: usize = 64;

/// What is wrong with an expression, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionFault {
    /// Bytes of the text; `None` where the whole is meant.
    pub at: Option<Range<usize>>,
    /// What is wrong and how to mend it, without a full stop.
    pub reason: String,
}

impl ExpressionFault {
    /// A fault of some bytes.
    pub(super) fn at(at: Range<usize>, reason: impl Into<String>) -> Self {
        Self {
            at: Some(at),
            reason: reason.into(),
        }
    }

    /// A fault of the whole.
    pub(super) fn whole(reason: impl Into<String>) -> Self {
        Self {
            at: None,
            reason: reason.into(),
        }
    }

    /// The reason, and below it the text it is about, marked where it is wrong.
    ///
    /// ```text
    /// there is no node 7; this machine has node 0-3
    ///   node:0 + node:7
    ///            ^^^^^^
    /// ```
    #[must_use]
    pub fn pointed(&self, text: &str) -> String {
        let Some(at) = &self.at else {
            return self.reason.clone();
        };
        // Control characters would break the line or shift the mark.
        let plain: String = text
            .chars()
            .map(|letter| if steers(letter) { ' ' } else { letter })
            .collect();
        let letters = |bytes: Range<usize>| text.get(bytes).map_or(0, |part| part.chars().count());
        let marks = "^".repeat(letters(at.clone()).max(1));
        let before = " ".repeat(letters(0..at.start));
        format!("{}\n  {plain}\n  {before}{marks}", self.reason)
    }
}

impl fmt::Display for ExpressionFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for ExpressionFault {}

impl FromStr for Expression {
    type Err = ExpressionFault;

    fn from_str(text: &str) -> Result<Self, ExpressionFault> {
        parse(text)
    }
}

/// Reads an expression.
///
/// # Errors
/// The first fault, with the bytes concerned.
pub fn parse(text: &str) -> Result<Expression, ExpressionFault> {
    // Without the spaces, which a printed set may have more of.
    let bytes = text.split_whitespace().map(str::len).sum::<usize>();
    if bytes > MOST_BYTES {
        return Err(ExpressionFault::whole(format!(
            "the set is written with {bytes} bytes, more than {MOST_BYTES}: shorten it"
        )));
    }
    let mut parser = Parser {
        text,
        at: 0,
        nested: 0,
    };
    let expression = parser.sum()?;
    match parser.peek() {
        None => Ok(expression),
        Some(')') => Err(parser.fault_here("this `)` has no `(`")),
        Some(letter) => Err(parser.fault_here(no_operator(letter))),
    }
}

/// May it stand in the name of a device? Names of network devices may hold more; who has such a
/// device can give its PCI address.
#[must_use]
pub fn is_device_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "_.:@-".contains(letter)
}

/// Letters of terms.
fn is_word_letter(letter: char) -> bool {
    is_device_letter(letter) || letter == ','
}

struct Parser<'a> {
    text: &'a str,
    /// Next byte.
    at: usize,
    /// Parentheses and complements that are open.
    nested: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip_spaces(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// The next character, or the end, is wrong.
    fn fault_here(&self, reason: impl Into<String>) -> ExpressionFault {
        let end = self.at + self.peek().map_or(0, char::len_utf8);
        ExpressionFault::at(self.at..end, reason)
    }

    fn sum(&mut self) -> Result<Expression, ExpressionFault> {
        let mut left = self.product()?;
        loop {
            let left_end = self.at;
            self.skip_spaces();
            match self.peek() {
                Some('+') => {
                    self.at += 1;
                    left = Expression::Union(Box::new(left), Box::new(self.product()?));
                }
                Some('-') => {
                    let is_apart =
                        left_end < self.at && self.rest()[1..].starts_with(char::is_whitespace);
                    if !is_apart {
                        return Err(self.fault_here(MINUS_NEEDS_SPACES));
                    }
                    self.at += 1;
                    left = Expression::Difference(Box::new(left), Box::new(self.product()?));
                }
                _ => return Ok(left),
            }
        }
    }

    fn product(&mut self) -> Result<Expression, ExpressionFault> {
        let mut left = self.factor()?;
        loop {
            let left_end = self.at;
            self.skip_spaces();
            if self.peek() != Some('&') {
                // Whether spaces stood before `-` is for the sum to see.
                self.at = left_end;
                return Ok(left);
            }
            self.at += 1;
            left = Expression::Intersection(Box::new(left), Box::new(self.factor()?));
        }
    }

    fn factor(&mut self) -> Result<Expression, ExpressionFault> {
        self.skip_spaces();
        match self.peek() {
            Some('~') => {
                self.open()?;
                let inner = self.factor()?;
                self.nested -= 1;
                Ok(Expression::Complement(Box::new(inner)))
            }
            Some('(') => {
                let opened = self.at;
                self.open()?;
                let inner = self.sum()?;
                self.skip_spaces();
                match self.peek() {
                    Some(')') => self.at += 1,
                    None => {
                        return Err(ExpressionFault::at(
                            opened..opened + 1,
                            "this `(` has no `)`",
                        ));
                    }
                    Some(letter) => return Err(self.fault_here(no_operator(letter))),
                }
                self.nested -= 1;
                Ok(inner)
            }
            Some(letter) if is_word_letter(letter) => self.term().map(Expression::Term),
            Some('!') => Err(self.fault_here("write ~ for the complement, as in ~node:0")),
            Some('+') if self.rest()[1..].starts_with(|c: char| c.is_ascii_digit()) => Err(self
                .fault_here(
                    "+ is the union of two sets; nodes are counted among the allowed ones as in \
                 allowed-node:0,2",
                )),
            Some(_) => Err(self.fault_here(format!("a set belongs here: {}", examples()))),
            None => Err(self.fault_here(format!("a set is missing here: {}", examples()))),
        }
    }

    /// Takes `(` or `~`.
    fn open(&mut self) -> Result<(), ExpressionFault> {
        if self.nested == MOST_NESTED {
            let reason = format!("more than {MOST_NESTED} levels of ( and ~: write it flatter");
            return Err(self.fault_here(reason));
        }
        self.nested += 1;
        self.at += 1;
        Ok(())
    }

    /// A list as numactl has it, with a sign before the numbers: `cpus:!0`, `node:+0,+2`.
    fn numactls_sign(&self) -> Option<ExpressionFault> {
        let rest = self.rest();
        let length = rest.find(|letter| !is_word_letter(letter))?;
        let word = rest[..length].strip_suffix(':')?;
        let sign = rest[length..].chars().next()?;
        let at = self.at + length..self.at + length + 1;
        match sign {
            '!' => Some(ExpressionFault::at(
                at,
                format!("write ~ before the name, as in ~{word}:0"),
            )),
            '+' => Some(ExpressionFault::at(
                at,
                "+ is the union; nodes are counted among the allowed ones as in allowed-node:0,2",
            )),
            _ => None,
        }
    }

    fn term(&mut self) -> Result<Term, ExpressionFault> {
        let rest = self.rest();
        if let Some(fault) = self.numactls_sign() {
            return Err(fault);
        }
        let length = rest
            .find(|letter| !is_word_letter(letter))
            .unwrap_or(rest.len());
        let at = self.at..self.at + length;
        let what =
            read_term(&rest[..length]).map_err(|reason| ExpressionFault::at(at.clone(), reason))?;
        self.at = at.end;
        Ok(Term { what, at })
    }
}

const MINUS_NEEDS_SPACES: &str =
    "write the difference with a space on both sides of -, which stands in ranges too";

fn no_operator(letter: char) -> String {
    match letter {
        '|' => "write + for the union".to_owned(),
        '!' | '\\' | '^' => "write \" - \" for the difference, ~ for the complement".to_owned(),
        _ => {
            "an operator belongs here: + (union), & (intersection), \" - \" (difference)".to_owned()
        }
    }
}

fn examples() -> String {
    let all: Vec<&str> = WORDS.iter().map(|&(_, example)| example).collect();
    all.join(", ")
}

/// A term without spaces around it, or what is wrong with it.
fn read_term(text: &str) -> Result<What, String> {
    let Some((word, argument)) = text.split_once(':') else {
        return match text {
            "machine" => Ok(What::Machine),
            "allowed" => Ok(What::Allowed),
            "-" => Err(MINUS_NEEDS_SPACES.to_owned()),
            "all" => Err("`all` does not say of what; write machine or allowed".to_owned()),
            _ => Err(format!(
                "`{text}` does not say what it is; write {}",
                suggestion(text).unwrap_or_else(examples)
            )),
        };
    };
    let example = WORDS.iter().find(|(known, _)| *known == word);
    let Some(&(_, example)) = example else {
        return Err(format!("there is no `{word}:`; write {}", examples()));
    };
    if argument.is_empty() && example.contains(':') {
        return Err(format!(
            "`{text}` lacks what follows the colon, as in {example}"
        ));
    }
    let parts = |level| list(argument, example).map(|numbers| What::Parts(level, numbers));
    match word {
        "package" => parts(Level::Package),
        "node" => parts(Level::Node),
        "domain" => parts(Level::Domain),
        "core" => parts(Level::Core),
        "machine-node" => list(argument, example).map(What::MachineNodes),
        "allowed-node" => list(argument, example).map(What::AllowedNodes),
        "cpus" => list(argument, example).map(What::Cpus),
        "mem" => list(argument, example).map(What::Memory),
        "tier" => list(argument, example).map(What::Tiers),
        "local-to" => name(argument).map(What::LocalTo),
        "near" => name(argument).map(What::Near),
        "fastest" => size(argument, example).map(What::Fastest),
        _ => Err(format!("`{word}` stands alone, without a colon")),
    }
}

/// `2`, `0-3` and `node2` are what people write first.
fn suggestion(text: &str) -> Option<String> {
    if let Ok(numbers) = text.parse::<IdSet<u32>>() {
        return Some(format!("node:{numbers} or cpus:{numbers}"));
    }
    let digits = text.find(|letter: char| letter.is_ascii_digit())?;
    let (word, numbers) = text.split_at(digits);
    let word = match word {
        "cpu" => "cpus",
        word => word,
    };
    let known = WORDS
        .iter()
        .any(|(known, example)| *known == word && example.contains(':'));
    (known && numbers.parse::<IdSet<u32>>().is_ok()).then(|| format!("{word}:{numbers}"))
}

fn list<T: Numbered>(argument: &str, example: &str) -> Result<IdSet<T>, String> {
    if argument.ends_with('-') {
        return Err(MINUS_NEEDS_SPACES.to_owned());
    }
    argument.parse().map_err(|error| match argument {
        "all" => "for all there is machine, and for all that may be used allowed".to_owned(),
        _ => format!("{error}; write it as in {example}"),
    })
}

fn name(argument: &str) -> Result<String, String> {
    match argument.find(|letter| !is_device_letter(letter)) {
        None => Ok(argument.to_owned()),
        Some(_) => Err("names of devices hold letters, digits and _ . : @ - alone".to_owned()),
    }
}

fn size(argument: &str, example: &str) -> Result<u64, String> {
    match parse_bytes(argument) {
        Ok(0) => Err(format!("ask for more than no memory, as in {example}")),
        Ok(bytes) => Ok(bytes),
        Err(reason) => Err(format!("`{argument}` is no size: {reason}")),
    }
}
