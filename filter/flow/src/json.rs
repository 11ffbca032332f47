//! The one reading of a request body: its canonical form, and where its members stand.
//!
//! A body is validated by `serde_json` and then walked once, without a tree. The canonical form has sorted members and no spaces;
//! strings and numbers stay as written, so that two numbers beyond a float's precision never count as one.

use memchr::memchr2;
use serde::Deserialize;
use serde::de::{Error, IgnoredAny};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// Deeper nesting is refused: providers refuse it too, and the walk recurses.
pub const MAX_DEPTH: usize = 128;

/// Why a body is not a usable JSON object.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not UTF-8, from this byte on.
    NotUtf8(usize),
    /// Not JSON; the text says where.
    NotJson(String),
    /// JSON, but no object.
    NotAnObject,
    /// Nested deeper than [`MAX_DEPTH`].
    TooDeep,
    /// An object names this member twice: two readers may see two different requests.
    DuplicateMember(String),
    /// This number is beyond a 64-bit float, the widest that JSON readers agree on.
    NumberTooLarge(String),
}

/// A walked body; by default none.
#[derive(Debug, Default)]
pub struct Document {
    /// The body as it came.
    pub text: String,
    /// The canonical form without the members left out.
    pub canonical: Vec<u8>,
    /// Images among the content.
    pub images: u64,
    /// Bytes of the canonical form that are image data or image addresses.
    pub image_bytes: usize,
    members: Vec<TopMember>,
}

#[derive(Debug)]
struct TopMember {
    name: String,
    /// Name and value in the body.
    whole: Range<usize>,
    /// The value in the body.
    value: Range<usize>,
    elements: Option<Elements>,
}

/// What an array holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elements {
    /// How many.
    pub count: usize,
    /// Each is an object.
    pub only_objects: bool,
}

impl Document {
    /// Walks `body`; the canonical form leaves out the top-level members named in `without`.
    ///
    /// # Errors
    /// A [`Fault`] for anything but one well-formed JSON object without duplicate members.
    pub fn read(body: Vec<u8>, without: &[&str]) -> Result<Self, Fault> {
        let text = String::from_utf8(body).map_err(|error| Fault::NotUtf8(error.utf8_error().valid_up_to()))?;
        serde_json::from_str::<IgnoredAny>(&text).map_err(|error| Fault::NotJson(error.to_string()))?;
        let mut walk = Walk { text: &text, at: 0, out: Vec::with_capacity(text.len()), images: 0, image_bytes: 0 };
        walk.skip_space();
        if walk.peek() != Some(b'{') {
            return Err(Fault::NotAnObject);
        }
        let members = walk.top_object(without)?;
        let Walk { out: canonical, images, image_bytes, .. } = walk;
        Ok(Self { text, canonical, images, image_bytes, members })
    }

    /// The literal text of a top-level member; `null` counts as absent.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&str> {
        self.span(name).and_then(|span| self.text.get(span)).filter(|text| *text != "null")
    }

    /// What a top-level member holds; `None` if it is no array.
    #[must_use]
    pub fn elements(&self, name: &str) -> Option<Elements> {
        self.members.iter().find(|member| member.name == name)?.elements
    }

    fn span(&self, name: &str) -> Option<Range<usize>> {
        self.members.iter().find(|member| member.name == name).map(|member| member.value.clone())
    }

    /// Gives the memory back once nothing more is made of the body.
    pub fn forget(&mut self) {
        self.text = String::new();
        self.canonical = Vec::new();
        self.members = Vec::new();
    }

    /// The body with top-level members set (`Some`, literal JSON) or left out (`None`). Where values are only replaced all else stays byte by
    /// byte; where members come or go, the space between members goes too.
    #[must_use]
    pub fn edited(&self, edits: &[(&str, Option<&str>)]) -> Vec<u8> {
        let edit = |name: &str| edits.iter().find(|(edited, _)| *edited == name).map(|(_, value)| *value);
        let same_members = edits.iter().all(|(name, value)| value.is_some() == self.span(name).is_some());
        let text = |range: Range<usize>| self.text.get(range).unwrap_or_default();
        if same_members {
            let (mut out, mut at) = (String::with_capacity(self.text.len()), 0);
            for member in &self.members {
                if let Some(Some(value)) = edit(&member.name) {
                    out.push_str(text(at..member.value.start));
                    out.push_str(value);
                    at = member.value.end;
                }
            }
            out.push_str(text(at..self.text.len()));
            return out.into_bytes();
        }
        let set = |name: &str, value: &str| format!("\"{name}\":{value}");
        let kept = self.members.iter().filter_map(|member| match edit(&member.name) {
            None => Some(Cow::Borrowed(text(member.whole.clone()))),
            Some(value) => value.map(|value| Cow::Owned(set(&member.name, value))),
        });
        let new =
            edits.iter().filter(|(name, _)| self.span(name).is_none()).filter_map(|(name, value)| Some(Cow::Owned(set(name, (*value)?))));
        let members: Vec<Cow<'_, str>> = kept.chain(new).collect();
        format!("{{{}}}", members.join(",")).into_bytes()
    }
}

/// Walks JSON that is known to be well-formed; a surprise ends the walk early and harmlessly.
struct Walk<'a> {
    text: &'a str,
    at: usize,
    out: Vec<u8>,
    images: u64,
    image_bytes: usize,
}

/// What a value tells the object around it.
#[derive(Default)]
struct Seen {
    /// Bytes of strings inside.
    string_bytes: usize,
    /// It is a string that names an image part.
    is_image_type: bool,
    /// It is an array.
    elements: Option<Elements>,
}

const IMAGE_TYPES: [&str; 3] = ["\"image_url\"", "\"image\"", "\"input_image\""];

impl<'a> Walk<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// Steps over `byte` if it comes next.
    fn take(&mut self, byte: u8) -> bool {
        self.skip_space();
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    /// Steps over a string; its literal text, quotes included.
    fn string(&mut self) -> &'a str {
        let start = self.at;
        self.at += 1;
        while let Some(rest) = self.text.as_bytes().get(self.at..) {
            let Some(run) = memchr2(b'"', b'\\', rest) else { break };
            self.at += run + 1;
            if rest.get(run) == Some(&b'"') {
                break;
            }
            self.at += 1;
        }
        self.text.get(start..self.at).unwrap_or_default()
    }

    /// Steps over a number or a word.
    fn scalar(&mut self) -> &'a str {
        let start = self.at;
        while let Some(byte) = self.peek() {
            if matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t') {
                break;
            }
            self.at += 1;
        }
        self.text.get(start..self.at).unwrap_or_default()
    }

    fn value(&mut self, depth: usize) -> Result<Seen, Fault> {
        if depth > MAX_DEPTH {
            return Err(Fault::TooDeep);
        }
        self.skip_space();
        match self.peek() {
            Some(b'"') => {
                let literal = self.string();
                self.out.extend_from_slice(literal.as_bytes());
                Ok(Seen { string_bytes: literal.len(), is_image_type: IMAGE_TYPES.contains(&literal), elements: None })
            }
            Some(b'{') => {
                let mut members = Members::default();
                let seen = self.object(depth, &mut members, &[])?;
                members.sort_in(&mut self.out)?;
                Ok(seen)
            }
            Some(b'[') => self.array(depth),
            _ => {
                let literal = self.scalar();
                if literal.starts_with(|first: char| first == '-' || first.is_ascii_digit()) && number(literal).is_none() {
                    return Err(Fault::NumberTooLarge(literal.chars().take(40).collect()));
                }
                self.out.extend_from_slice(literal.as_bytes());
                Ok(Seen::default())
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Seen, Fault> {
        let mut seen = Seen::default();
        let mut elements = Elements { count: 0, only_objects: true };
        self.at += 1;
        self.out.push(b'[');
        while !self.take(b']') && self.at < self.text.len() {
            elements.count += 1;
            elements.only_objects &= self.peek() == Some(b'{');
            seen.string_bytes += self.value(depth + 1)?.string_bytes;
            if self.take(b',') {
                self.out.push(b',');
            }
        }
        self.out.push(b']');
        seen.elements = Some(elements);
        Ok(seen)
    }

    /// Writes `{`, the members in the order they came, and `}`; [`Members::sort_in`] finishes it.
    fn object(&mut self, depth: usize, members: &mut Members<'a>, without: &[&str]) -> Result<Seen, Fault> {
        let mut seen = Seen::default();
        let mut is_image = false;
        self.at += 1;
        self.out.push(b'{');
        members.start = self.out.len();
        while !self.take(b'}') && self.at < self.text.len() {
            self.skip_space();
            let start = self.at;
            let literal = self.string();
            let name = unescaped(literal);
            self.take(b':');
            self.skip_space();
            let (written, read) = (self.out.len(), self.at);
            self.out.extend_from_slice(literal.as_bytes());
            self.out.push(b':');
            let value = self.value(depth + 1)?;
            self.out.push(b',');
            seen.string_bytes += value.string_bytes;
            is_image |= name == "type" && value.is_image_type;
            if without.contains(&name.as_ref()) {
                self.out.truncate(written);
            }
            members.list.push(Member {
                name,
                written: written..self.out.len(),
                whole: start..self.at,
                read: read..self.at,
                elements: value.elements,
            });
            self.take(b',');
        }
        self.out.push(b'}');
        if is_image {
            self.images += 1;
            self.image_bytes += seen.string_bytes;
            seen.string_bytes = 0;
        }
        Ok(seen)
    }

    fn top_object(&mut self, without: &[&str]) -> Result<Vec<TopMember>, Fault> {
        let mut members = Members::default();
        self.object(1, &mut members, without)?;
        let top = |member: &Member<'_>| TopMember {
            name: member.name.to_string(),
            whole: member.whole.clone(),
            value: member.read.clone(),
            elements: member.elements,
        };
        let all = members.list.iter().map(top).collect();
        members.sort_in(&mut self.out)?;
        Ok(all)
    }
}

struct Member<'a> {
    name: Cow<'a, str>,
    /// In the canonical form, its closing comma included.
    written: Range<usize>,
    /// Its name and value in the body.
    whole: Range<usize>,
    /// Its value in the body.
    read: Range<usize>,
    elements: Option<Elements>,
}

#[derive(Default)]
struct Members<'a> {
    start: usize,
    list: Vec<Member<'a>>,
}

impl Members<'_> {
    /// Puts the members just written to `out` in order, drops the last comma, and finds duplicates.
    fn sort_in(mut self, out: &mut Vec<u8>) -> Result<(), Fault> {
        let in_order = self.list.is_sorted_by(|a, b| a.name <= b.name);
        if !in_order {
            self.list.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        }
        if let Some(twice) = self.list.windows(2).find_map(|pair| match pair {
            [a, b] if a.name == b.name => Some(a),
            _ => None,
        }) {
            return Err(Fault::DuplicateMember(twice.name.chars().take(60).collect()));
        }
        if !in_order {
            let mut sorted = Vec::with_capacity(out.len() - self.start);
            for member in &self.list {
                sorted.extend_from_slice(out.get(member.written.clone()).unwrap_or_default());
            }
            out.truncate(self.start);
            out.extend_from_slice(&sorted);
            out.push(b'}');
        }
        if out.ends_with(b",}") {
            out.truncate(out.len() - 2);
            out.push(b'}');
        }
        Ok(())
    }
}

fn unescaped(literal: &str) -> Cow<'_, str> {
    if literal.contains('\\') {
        serde_json::from_str::<String>(literal).map_or_else(|_| Cow::Borrowed(literal), Cow::Owned)
    } else {
        Cow::Borrowed(literal.trim_matches('"'))
    }
}

/// Reads a JSON document. By way of text, as everything else here is read: `serde_json` has code of its own for bytes, and a type that is
/// read both ways is there twice.
///
/// # Errors
/// It is not UTF-8, or not a `T`.
pub fn parse<'a, T: Deserialize<'a>>(document: &'a [u8]) -> Result<T, serde_json::Error> {
    serde_json::from_str(std::str::from_utf8(document).map_err(Error::custom)?)
}

/// A finite number. By way of `serde_json`, which reads numbers in any case: the standard library's own reader is 15 KB of code and tables.
#[must_use]
pub fn number(text: &str) -> Option<f64> {
    serde_json::from_str(text).ok()
}

/// A map of these, the last of a name winning. `collect` and `from` would sort first, and each type's sort is 5 KB of code.
pub fn map<K: Ord, V>(members: impl IntoIterator<Item = (K, V)>) -> BTreeMap<K, V> {
    let mut map = BTreeMap::new();
    map.extend(members);
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn read(text: &str) -> Result<Document, Fault> {
        Document::read(text.as_bytes().to_vec(), &["model", "stream"])
    }

    fn canonical(text: &str) -> String {
        String::from_utf8(read(text).unwrap().canonical).unwrap()
    }

    #[test]
    fn members_are_sorted_and_spaces_go() {
        assert_eq!(
            canonical(" { \"b\" : [ 1 , { \"d\":true, \"c\" : null } ] ,\n\"a\":\"x \\\" }\" } "),
            r#"{"a":"x \" }","b":[1,{"c":null,"d":true}]}"#
        );
        assert_eq!(canonical("{}"), "{}");
        assert_eq!(canonical(r#"{"a":{},"b":[]}"#), r#"{"a":{},"b":[]}"#);
    }

    #[test]
    fn the_canonical_form_is_valid_json_with_the_same_value() {
        for text in [r#"{"z":[{"b":[[],{}],"a":{"y":1e3,"x":-0.5}}],"k":"\u00e9\\"}"#, r#"{"b":{"c":1},"a":{"c":2},"c":[{"c":3}]}"#] {
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::from_str::<serde_json::Value>(&canonical(text)).unwrap(), value);
        }
    }

    #[test]
    fn numbers_stay_as_written() {
        assert_eq!(canonical(r#"{"seed":18446744073709551617.0,"t":1.0}"#), r#"{"seed":18446744073709551617.0,"t":1.0}"#);
    }

    #[test]
    fn members_left_out_leave_no_trace_but_their_place() {
        let body = r#"{"stream":true,"messages":[{"model":"kept"}],"model":"m","z":null}"#;
        assert_eq!(canonical(body), r#"{"messages":[{"model":"kept"}],"z":null}"#);
        let document = read(body).unwrap();
        assert_eq!(document.member("model"), Some("\"m\""));
        assert_eq!(document.member("z"), None);
        assert_eq!(canonical(r#"{"model":"m","stream":false}"#), "{}");
    }

    #[test]
    fn an_edit_touches_only_what_it_names() {
        let document = read("{ \"a\" : 1.0 ,\n\"model\":\"m\", \"stream\" :true}").unwrap();
        let edited = |edits: &[(&str, Option<&str>)]| String::from_utf8(document.edited(edits)).unwrap();
        assert_eq!(edited(&[("model", Some("\"n\"")), ("stream", None)]), r#"{"a" : 1.0,"model":"n"}"#);
        assert_eq!(edited(&[("model", Some("\"long\"")), ("y", None)]), "{ \"a\" : 1.0 ,\n\"model\":\"long\", \"stream\" :true}");
        assert_eq!(edited(&[("x", Some("{}")), ("y", None)]), r#"{"a" : 1.0,"model":"m","stream" :true,"x":{}}"#);
        assert_eq!(read("{}").unwrap().edited(&[("x", Some("1"))]), b"{\"x\":1}");
    }

    #[test]
    fn a_member_named_with_escapes_is_the_same_member() {
        assert_eq!(read(r#"{"model":"a","mod\u0065l":"b"}"#).unwrap_err(), Fault::DuplicateMember("model".into()));
        assert_eq!(canonical(r#"{"mod\u0065l":"b"}"#), "{}");
    }

    #[test]
    fn duplicates_are_found_at_any_depth() {
        assert_eq!(read(r#"{"a":[{"b":1,"c":2,"b":3}]}"#).unwrap_err(), Fault::DuplicateMember("b".into()));
    }

    #[test]
    fn bad_bodies_are_told_apart() {
        assert_eq!(read("[1]").unwrap_err(), Fault::NotAnObject);
        assert_eq!(Document::read(vec![b'{', b'"', 0xff, b'"'], &[]).unwrap_err(), Fault::NotUtf8(2));
        assert!(matches!(read(r#"{"a":"#).unwrap_err(), Fault::NotJson(_)));
        assert!(matches!(read("{\"a\":\"\0\"}").unwrap_err(), Fault::NotJson(_)));
        assert!(matches!(read("").unwrap_err(), Fault::NotJson(_)));
        assert_eq!(read(r#"{"t":1e999}"#).unwrap_err(), Fault::NumberTooLarge("1e999".into()));
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(200), "]".repeat(200));
        assert_eq!(read(&deep).unwrap_err(), Fault::TooDeep);
    }

    #[test]
    fn image_data_is_not_text() {
        let url = format!("data:image/png;base64,{}", "A".repeat(3000));
        let document =
            read(&format!(r#"{{"messages":[{{"role":"user","content":[{{"type":"text","text":"hi"}},{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}]}}"#))
                .unwrap();
        assert_eq!(document.images, 1);
        assert!(document.canonical.len() - document.image_bytes < 150);
    }
}
