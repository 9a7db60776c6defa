//! `NAME=VALUE` words.

use std::collections::HashMap;

pub struct Options(HashMap<String, String>);

impl Options {
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let split = |word: &String| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        };
        let pair = |word| split(word).ok_or_else(|| format!("`{word}` is not NAME=VALUE"));
        words.iter().map(pair).collect::<Result<_, _>>().map(Self)
    }

    pub fn word<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.0.get(name).map_or(default, String::as_str)
    }

    pub fn number(&self, name: &str, default: f64) -> Result<f64, String> {
        Ok(self.numbers(name, &[default])?[0])
    }

    /// Numbers with commas between them; never none.
    pub fn numbers(&self, name: &str, default: &[f64]) -> Result<Vec<f64>, String> {
        let Some(text) = self.0.get(name) else {
            return Ok(default.to_vec());
        };
        let parse = |word: &str| {
            let number = word.parse().ok().filter(|number: &f64| number.is_finite());
            number.ok_or_else(|| format!("{name}: `{word}` is no number"))
        };
        text.split(',').map(parse).collect()
    }
}
