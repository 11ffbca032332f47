//! Reading those members of a JSON object that something is done with, as they are written. A type with `Deserialize` in its place is 1-3 KB
//! of wasm for each type; here one function reads for all.

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// The members of these names, of which one that is null is none, and of two that have the same name the last counts. `None`: no object.
pub(crate) fn members<'a, const N: usize>(json: &'a str, names: [&str; N]) -> Option<[Option<&'a RawValue>; N]> {
    let mut found = [None; N];
    let mut reader = serde_json::Deserializer::from_str(json);
    Members { names: &names, found: &mut found }.deserialize(&mut reader).ok()?;
    reader.end().ok()?;
    Some(found)
}

/// The same of a body.
pub(crate) fn body_members<'a, const N: usize>(body: &'a [u8], names: [&str; N]) -> Option<[Option<&'a RawValue>; N]> {
    members(std::str::from_utf8(body).ok()?, names)
}

/// The value of a member, if it is there. `None`: it is of another type.
pub(crate) fn optional<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<Option<T>> {
    raw.map(|raw| serde_json::from_str(raw.get())).transpose().ok()
}

/// The elements of an array, none if it is absent. `None`: no array.
pub(crate) fn list(raw: Option<&RawValue>) -> Option<Vec<&RawValue>> {
    optional(raw).map(Option::unwrap_or_default)
}

/// The same members of each object in an array, none if it is absent. `None`: no array of objects.
pub(crate) fn objects<'a, const N: usize>(raw: Option<&'a RawValue>, names: [&str; N]) -> Option<Vec<[Option<&'a RawValue>; N]>> {
    let Some(raw) = raw else { return Some(Vec::new()) };
    let mut found = Vec::new();
    serde_json::Deserializer::from_str(raw.get()).deserialize_seq(Objects { names: &names, found: &mut found }).ok()?;
    Some(found.as_chunks().0.to_vec())
}

struct Members<'n, 'a> {
    names: &'n [&'n str],
    found: &'n mut [Option<&'a RawValue>],
}

impl<'a> DeserializeSeed<'a> for Members<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for Members<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(at) = map.next_key_seed(Name(self.names))? {
            match at.and_then(|at| self.found.get_mut(at)) {
                Some(found) => *found = Some(map.next_value::<&RawValue>()?).filter(|raw| raw.get() != "null"),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

struct Objects<'n, 'a> {
    names: &'n [&'n str],
    /// As many for each object as there are names.
    found: &'n mut Vec<Option<&'a RawValue>>,
}

impl<'a> Visitor<'a> for Objects<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("objects")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut objects: A) -> Result<(), A::Error> {
        loop {
            let start = self.found.len();
            self.found.resize(start + self.names.len(), None);
            let found = self.found.get_mut(start..).unwrap_or_default();
            if objects.next_element_seed(Members { names: self.names, found })?.is_none() {
                self.found.truncate(start);
                return Ok(());
            }
        }
    }
}

/// Reads a name to its place among these.
struct Name<'n>(&'n [&'n str]);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().position(|known| *known == name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn ab(json: &str) -> Option<[Option<&str>; 2]> {
        members(json, ["a", "b"]).map(|found| found.map(|raw| raw.map(RawValue::get)))
    }

    #[test]
    fn members_are_found_as_written() {
        assert_eq!(ab(r#" {"x":{"a":1}, "b" : 1.0 ,"a":[ "\u00e9" ]} "#), Some([Some(r#"[ "\u00e9" ]"#), Some("1.0")]));
        assert_eq!(ab(r#"{"\u0061":1}"#), Some([Some("1"), None]));
        assert_eq!(ab("{}"), Some([None, None]));
    }

    #[test]
    fn null_is_none_and_the_last_of_a_name_counts() {
        assert_eq!(ab(r#"{"a":null,"b":1,"b":2}"#), Some([None, Some("2")]));
        assert_eq!(ab(r#"{"a":1,"a":null}"#), Some([None, None]));
    }

    #[test]
    fn what_is_no_object_is_none() {
        for json in ["", "[1,2]", "\"a\"", "null", r#"{"a":1"#, r#"{"a":1} x"#, r#"{"a":}"#, "<html>"] {
            assert_eq!(ab(json), None, "{json}");
        }
        assert_eq!(body_members(b"{\"a\":\"\xff\"}", ["a"]).map(|_| ()), None);
    }

    #[test]
    fn the_objects_of_an_array_are_read_alike() {
        fn read(json: &str) -> Option<Vec<[Option<&str>; 2]>> {
            let [list] = members(json, ["list"])?;
            Some(objects(list, ["a", "b"])?.into_iter().map(|found| found.map(|raw| raw.map(RawValue::get))).collect())
        }
        assert_eq!(read(r#"{"list":[{"b":2,"c":3}, {"a":[1],"b":null}]}"#), Some(vec![[None, Some("2")], [Some("[1]"), None]]));
        assert_eq!((read("{}"), read(r#"{"list":[]}"#)), (Some(Vec::new()), Some(Vec::new())));
        assert_eq!((read(r#"{"list":[{},1]}"#), read(r#"{"list":{}}"#)), (None, None));
    }

    #[test]
    fn a_member_may_be_absent_but_not_of_another_type() {
        let [a, b] = members(r#"{"a":"x"}"#, ["a", "b"]).unwrap();
        assert_eq!((optional::<String>(a), optional::<String>(b)), (Some(Some("x".into())), Some(None)));
        assert_eq!((optional::<u64>(a), list(a).map(|list| list.len()), list(b).map(|list| list.len())), (None, None, Some(0)));
    }
}
