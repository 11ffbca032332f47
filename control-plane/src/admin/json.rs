//! JSON with numbers as they were written, so that money is exact, and without doubled members.

use serde::de::{Deserializer as _, Error, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;

/// Documents are flat; deeper is a mistake, or an attack.
const MAX_DEPTH: usize = 16;

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Flag(bool),
    /// A number, in the very letters it was written in.
    Number(String),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object.
    Object(BTreeMap<String, Json>),
}

impl Json {
    /// Reads a document.
    ///
    /// # Errors
    /// Says what is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let raw: &RawValue = serde_json::from_str(text).map_err(|error| error.to_string())?;
        read(raw, 0).map_err(|error| error.to_string())
    }

    /// Merges a patch as RFC 7396 says: objects member by member, null removes, all else replaces.
    pub fn merge(&mut self, patch: Self) {
        let Self::Object(patch) = patch else {
            *self = patch;
            return;
        };
        if !matches!(self, Self::Object(_)) {
            *self = Self::Object(BTreeMap::new());
        }
        let Self::Object(members) = self else { return };
        for (name, value) in patch {
            if value == Self::Null {
                members.remove(&name);
            } else {
                members.entry(name).or_insert(Self::Null).merge(value);
            }
        }
    }
}

fn read(raw: &RawValue, depth: usize) -> Result<Json, serde_json::Error> {
    if depth > MAX_DEPTH {
        return Err(serde_json::Error::custom(format_args!("nested deeper than {MAX_DEPTH} levels")));
    }
    let text = raw.get().trim();
    Ok(match text.bytes().next() {
        Some(b'{') => Json::Object(serde_json::Deserializer::from_str(text).deserialize_map(Members(depth))?),
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text)?;
            Json::List(items.into_iter().map(|item| read(item, depth + 1)).collect::<Result<_, _>>()?)
        }
        Some(b'"') => Json::Text(serde_json::from_str(text)?),
        Some(b't' | b'f') => Json::Flag(serde_json::from_str(text)?),
        Some(b'n') => Json::Null,
        _ => Json::Number(text.to_owned()),
    })
}

/// Reads the members of an object at some depth.
struct Members(usize);

impl<'de> Visitor<'de> for Members {
    type Value = BTreeMap<String, Json>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let mut members = BTreeMap::new();
        while let Some((name, raw)) = from.next_entry::<String, &RawValue>()? {
            if members.contains_key(&name) {
                return Err(A::Error::custom(format_args!("`{name}` is given twice")));
            }
            members.insert(name, read(raw, self.0 + 1).map_err(A::Error::custom)?);
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_letters() {
        let Ok(Json::Object(members)) = Json::parse(r#" {"a": 0.10000000000000000001, "b": [1e3, -0]} "#) else { panic!() };
        assert_eq!(members["a"], Json::Number("0.10000000000000000001".to_owned()));
        assert_eq!(members["b"], Json::List(vec![Json::Number("1e3".to_owned()), Json::Number("-0".to_owned())]));
    }

    #[test]
    fn what_is_not_one_document_is_refused() {
        for text in ["", "{", "{} {}", "nul", r#"{"a":1,"a":2}"#, r#"{"a":{"b":1,"b":1}}"#, "01", &"[".repeat(40), "{1:2}"] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
        assert!(Json::parse(&format!("{}{}", "[".repeat(200), "]".repeat(200))).unwrap_err().contains("deeper"));
    }

    #[test]
    fn a_patch_merges_objects_and_null_removes() {
        let mut document = Json::parse(r#"{"name":"a","rules":{"x":["1"],"y":["2"]},"cap":1}"#).unwrap();
        document.merge(Json::parse(r#"{"cap":null,"rules":{"x":null,"z":["3"]},"new":{"a":null,"b":1}}"#).unwrap());
        let expected = Json::parse(r#"{"name":"a","rules":{"y":["2"],"z":["3"]},"new":{"b":1}}"#).unwrap();
        assert_eq!(document, expected);
    }
}
