//! XML as a tree of what hwloc's files hold, with the line of every element.
//!
//! Files come from elsewhere, so everything is bounded: size (by whoever reads the file), depth,
//! elements, attributes of one element. Entities are never defined by a file: a document type with
//! an inner part is refused, and hwloc writes none.

use crate::error::Fault;
use crate::parse::{Parsed, clip};
use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;
use std::str::FromStr;

/// Objects lie in objects: packages, dies, caches, bridges. Real machines stay below 20.
const MAX_DEPTH: usize = 128;
/// A machine with 8192 CPUs has some 100,000.
const MAX_ELEMENTS: usize = 1_000_000;
/// hwloc's have at most 15.
const MAX_ATTRIBUTES: usize = 64;

/// Attributes that are kept; the others cost nothing.
const ATTRIBUTES: [&str; 26] = [
    "version",
    "type",
    "os_index",
    "gp_index",
    "name",
    "value",
    "cpuset",
    "complete_cpuset",
    "allowed_cpuset",
    "nodeset",
    "allowed_nodeset",
    "local_memory",
    "size",
    "count",
    "depth",
    "cache_size",
    "cache_linesize",
    "cache_type",
    "pci_busid",
    "pci_type",
    "indexing",
    "kind",
    "target_obj_gp_index",
    "target_obj_type",
    "initiator_cpuset",
    "initiator_obj_gp_index",
];
/// Elements whose text is kept.
const WITH_TEXT: [&str; 2] = ["indexes", "u64values"];

/// An element.
#[derive(Debug)]
pub(super) struct Element {
    pub name: Box<str>,
    /// Counted from 1.
    pub line: usize,
    attributes: Vec<(&'static str, Box<str>)>,
    /// Empty but for those of [`WITH_TEXT`].
    pub text: String,
    pub children: Vec<Element>,
}

impl Element {
    /// A fault of this element.
    pub fn fault(&self, reason: impl Into<String>) -> Fault {
        Fault::new(self.line, reason)
    }

    pub fn attribute(&self, name: &str) -> Option<&str> {
        let mut attributes = self.attributes.iter();
        let found = attributes.find(|(kept, _)| *kept == name);
        found.map(|(_, value)| &**value)
    }

    pub fn required(&self, name: &str) -> Parsed<&str> {
        self.attribute(name)
            .ok_or_else(|| self.fault(format!("<{}> has no {name}", clip(&self.name))))
    }

    /// A whole number, where it is there.
    pub fn number<T: FromStr>(&self, name: &str) -> Parsed<Option<T>> {
        let parse = |text: &str| {
            let fail = || self.fault(format!("{name} `{}` is no fitting number", clip(text)));
            text.parse().map_err(|_| fail())
        };
        self.attribute(name).map(parse).transpose()
    }

    pub fn required_number<T: FromStr>(&self, name: &str) -> Parsed<T> {
        self.required(name)?;
        self.number(name)?
            .ok_or_else(|| self.fault(format!("<{}> has no {name}", clip(&self.name))))
    }

    pub fn children_named(&self, name: &str) -> impl Iterator<Item = &Element> {
        self.children
            .iter()
            .filter(move |child| &*child.name == name)
    }

    /// The value of an `<info>`.
    pub fn info(&self, name: &str) -> Option<&Element> {
        self.children_named("info")
            .find(|info| info.attribute("name") == Some(name))
    }
}

/// The root element of a document.
pub(super) fn parse(text: &str) -> Parsed<Element> {
    let mut reader = Reader::from_str(text);
    let mut open: Vec<Element> = Vec::new();
    let mut root: Option<Element> = None;
    let (mut line, mut counted, mut element_count) = (1, 0, 0);
    loop {
        let start = (reader.buffer_position() as usize).min(text.len());
        line += lines_between(text, counted, start);
        counted = start;
        let fail = |reason: &str| Err(Fault::new(line, reason));
        let event = match reader.read_event() {
            Ok(event) => event,
            Err(error) => {
                let place = (reader.error_position() as usize).min(text.len());
                let line = 1 + lines_between(text, 0, place);
                return Err(Fault::new(
                    line,
                    format!("is no XML: {}", clip_error(&error)),
                ));
            }
        };
        let is_empty = matches!(event, Event::Empty(_));
        match event {
            Event::Start(tag) | Event::Empty(tag) => {
                element_count += 1;
                if root.is_some() {
                    return fail("is no XML: an element follows the end of the first one");
                }
                if element_count > MAX_ELEMENTS {
                    return fail("has more than a million elements, and no machine has");
                }
                if open.len() >= MAX_DEPTH {
                    return fail("has elements 128 deep in one another, and no machine has");
                }
                open.push(element(&tag, line)?);
                if is_empty {
                    close(&mut open, &mut root);
                }
            }
            Event::End(_) => close(&mut open, &mut root),
            Event::Text(content) => keep_text(&mut open, &content.xml10_content(), line)?,
            Event::CData(content) => keep_text(&mut open, &content.xml10_content(), line)?,
            Event::GeneralRef(reference) => {
                let name = reference.xml10_content();
                let known = ["lt", "gt", "amp", "apos", "quot"].contains(&&*name);
                if !known && !matches!(reference.resolve_char_ref(), Ok(Some(_))) {
                    let reason = format!("entity `{}` is not defined", clip(&name));
                    return Err(Fault::new(line, reason));
                }
            }
            Event::DocType(content) => {
                if content.xml10_content().contains('[') {
                    return fail("defines a document type of its own, which hwloc never does");
                }
            }
            Event::Eof => break,
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) => {}
        }
    }
    if let Some(element) = open.last() {
        let name = clip(&element.name);
        let reason = format!("the file ends within <{name}> of line {}", element.line);
        return Err(Fault::new(line, reason));
    }
    root.ok_or_else(|| Fault::new(line, "has no XML element"))
}

fn element(tag: &BytesStart<'_>, line: usize) -> Parsed<Element> {
    let fail = |reason: String| Fault::new(line, reason);
    let mut attributes = Vec::new();
    // The limit also bounds the look for duplicates, which compares each with all before.
    for (index, attribute) in tag.attributes().enumerate() {
        if index == MAX_ATTRIBUTES {
            return Err(fail("an element has more than 64 attributes".to_owned()));
        }
        let attribute = attribute.map_err(|error| fail(format!("is no XML: {error}")))?;
        let key = attribute.key.as_ref();
        let value = attribute
            .normalized_value(XmlVersion::Implicit1_0)
            .map_err(|error| fail(format!("is no XML: {}", clip_error(&error))))?;
        if let Some(kept) = ATTRIBUTES.iter().find(|kept| **kept == key) {
            attributes.push((*kept, value.into()));
        }
    }
    Ok(Element {
        name: tag.name().as_ref().into(),
        line,
        attributes,
        text: String::new(),
        children: Vec::new(),
    })
}

/// The innermost open element is complete.
fn close(open: &mut Vec<Element>, root: &mut Option<Element>) {
    if let Some(done) = open.pop() {
        match open.last_mut() {
            Some(parent) => parent.children.push(done),
            None => *root = Some(done),
        }
    }
}

fn keep_text(open: &mut [Element], content: &str, line: usize) -> Parsed<()> {
    match open.last_mut() {
        Some(element) if WITH_TEXT.contains(&&*element.name) => element.text.push_str(content),
        None if !content
            .trim_matches(['\u{feff}', ' ', '\t', '\r', '\n'])
            .is_empty() =>
        {
            return Err(Fault::new(line, "is no XML: text outside of any element"));
        }
        _ => {}
    }
    Ok(())
}

fn lines_between(text: &str, from: usize, to: usize) -> usize {
    let bytes = text.as_bytes().get(from..to).unwrap_or_default();
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

/// A message of the library, which may quote the file at length.
fn clip_error(error: &quick_xml::Error) -> String {
    let text = error.to_string();
    let mut clipped: String = text
        .chars()
        .take(160)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(160).is_some() {
        clipped.push_str("...");
    }
    clipped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_know_their_lines() {
        let text = "<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n\
                    <topology version='2.0'>\n <!-- a\n b --><object type=\"a&amp;b\"\n \
                    secret='1'/>\n <indexes length='3'>0 1\n2</indexes>\n</topology>\n";
        let root = parse(text).unwrap();
        assert_eq!((root.line, root.attribute("version")), (3, Some("2.0")));
        let [object, indexes] = &root.children[..] else {
            panic!("{root:?}");
        };
        assert_eq!((object.line, object.attribute("type")), (5, Some("a&b")));
        assert_eq!(object.attribute("secret"), None);
        assert_eq!((indexes.line, &*indexes.text), (7, "0 1\n2"));
        assert_eq!(object.required("value").unwrap_err().line, 5);
    }

    #[test]
    fn what_is_no_xml_is_refused_with_its_line() {
        let deep = "<a>".repeat(200);
        let wide: String = (0..80).map(|index| format!(" a{index}='1'")).collect();
        let wide = format!("<a{wide}/>");
        let bomb = "<!DOCTYPE t [<!ENTITY a 'x'>]>\n<t type='&a;'/>";
        for (text, line, words) in [
            ("", 1, "no XML element"),
            ("\n\nhello", 1, "outside of any element"),
            ("<a>\n<b>\n</a>", 3, "expected `</b>`"),
            ("<a>\n<b>", 2, "ends within <b> of line 2"),
            ("<a>\n<b", 2, "not closed"),
            ("<a/>\n<b/>", 2, "follows the end"),
            ("<a>\n<b type=1/></a>", 2, "no XML"),
            ("<a type='1' type='2'/>", 1, "no XML"),
            ("<a>\n&b;</a>", 2, "entity `b` is not defined"),
            ("<a\ntype='&b;'/>", 1, "no XML"),
            (bomb, 1, "document type of its own"),
            (&deep, 1, "128 deep"),
            (&wide, 1, "64 attributes"),
        ] {
            let fault = parse(text).unwrap_err();
            assert!(fault.reason.contains(words), "{text}: {fault:?}");
            assert_eq!(fault.line, line, "{text}: {fault:?}");
        }
    }
}
