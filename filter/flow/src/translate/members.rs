//! Reading an object member by member, so that whatever was not read is known by name.

use crate::refusal::Refusal;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// An object's members as written. Each becomes null when it is read.
pub(super) struct Members<'a> {
    at: String,
    members: BTreeMap<String, &'a RawValue>,
}

impl<'a> Members<'a> {
    /// The members of an object that stands `at` this path (empty: the body itself).
    pub(super) fn read(text: &'a str, at: impl Into<String>) -> Result<Self, Refusal> {
        let at = at.into();
        match serde_json::from_str(text) {
            Ok(members) => Ok(Self { at, members }),
            Err(_) => Err(wrong(&at, "an object")),
        }
    }

    /// The path of a member.
    pub(super) fn path(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    /// Takes a member as written; `null` counts as absent.
    pub(super) fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        let value = std::mem::replace(self.members.get_mut(name)?, RawValue::NULL);
        (value.get() != "null").then_some(value)
    }

    /// There is such a member, unread.
    pub(super) fn has(&self, name: &str) -> bool {
        self.members.get(name).is_some_and(|value| value.get() != "null")
    }

    /// Takes a member of a type.
    pub(super) fn typed<T: Deserialize<'a>>(&mut self, name: &str, what: &str) -> Result<Option<T>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        serde_json::from_str(value.get()).map(Some).map_err(|_| wrong(&self.path(name), what))
    }

    /// Takes a string without copying it where it has no escapes: base64 data is long.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<Cow<'a, str>>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        string(value).map(Some).ok_or_else(|| wrong(&self.path(name), "a string"))
    }

    /// Takes a string that must be there.
    pub(super) fn required_text(&mut self, name: &str) -> Result<Cow<'a, str>, Refusal> {
        let path = self.path(name);
        self.text(name)?.ok_or_else(|| wrong(&path, "a string"))
    }

    /// Takes an object.
    pub(super) fn object(&mut self, name: &str) -> Result<Option<Members<'a>>, Refusal> {
        let path = self.path(name);
        self.take(name).map(|value| Members::read(value.get(), path)).transpose()
    }

    /// Takes an array; none if it is absent.
    pub(super) fn list(&mut self, name: &str) -> Result<Vec<&'a RawValue>, Refusal> {
        Ok(self.typed(name, "an array")?.unwrap_or_default())
    }

    /// Names what was not read and says something, each with `prefix` before it.
    pub(super) fn drop_rest(self, prefix: &str, dropped: &mut Dropped) {
        for (name, value) in self.members {
            if !matches!(value.get(), "null" | "[]" | "{}" | "\"\"") {
                dropped.add(&format!("{prefix}{name}"));
            }
        }
    }
}

/// A string's value; borrowed where its literal has no escapes.
pub(super) fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    let literal = value.get();
    let inside = literal.strip_prefix('"')?.strip_suffix('"')?;
    if inside.contains('\\') { serde_json::from_str(literal).ok().map(Cow::Owned) } else { Some(Cow::Borrowed(inside)) }
}

/// JSON text that is an object, kept as written.
pub(super) fn object_text(text: &str) -> Option<Box<RawValue>> {
    let text = text.trim();
    if !text.starts_with('{') || serde_json::from_str::<IgnoredAny>(text).is_err() {
        return None;
    }
    RawValue::from_string(text.to_owned()).ok()
}

pub(super) fn wrong(path: &str, what: &str) -> Refusal {
    Refusal::invalid(path, format!("`{path}` must be {what}."))
}

/// The refusal of content that the provider's dialect has no place for.
pub(super) fn cannot_carry(path: &str, what: &str) -> Refusal {
    Refusal::invalid(path, format!("`{path}`: {what} cannot be carried to the model's provider. Leave it out, or name another model."))
}

/// Names of what was left out.
#[derive(Default)]
pub(super) struct Dropped(BTreeSet<String>);

/// A client may invent any number of parameters of any length; a header line may not be as long.
const MAX_NAMES: usize = 64;
const MAX_NAME_BYTES: usize = 64;

impl Dropped {
    /// Names a parameter; characters that have no place in a header line become `_`.
    pub(super) fn add(&mut self, name: &str) {
        let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if self.0.len() < MAX_NAMES {
            self.0.insert(name.chars().take(MAX_NAME_BYTES).map(|c| if is_safe(c) { c } else { '_' }).collect());
        }
    }

    pub(super) fn into_names(self) -> Vec<String> {
        self.0.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn what_was_not_read_is_named_unless_it_says_nothing() {
        let mut members = Members::read(r#"{"a":1,"b":null,"c":[],"d":{"x":1},"e, f\r\n":true}"#, "").unwrap();
        members.take("a");
        let mut dropped = Dropped::default();
        members.drop_rest("p.", &mut dropped);
        assert_eq!(dropped.into_names(), ["p.d", "p.e__f__"]);
    }

    #[test]
    fn names_are_bounded_in_number_and_length() {
        let mut dropped = Dropped::default();
        for at in 0..1_000 {
            dropped.add(&format!("{}{at}", "x".repeat(at)));
        }
        let names = dropped.into_names();
        assert_eq!(names.len(), MAX_NAMES);
        assert!(names.iter().all(|name| name.len() <= MAX_NAME_BYTES));
    }

    #[test]
    fn a_string_is_read_with_and_without_escapes() {
        let read = |text: &str| string(&RawValue::from_string(text.into()).unwrap()).map(Cow::into_owned);
        assert_eq!(read(r#""plain""#).as_deref(), Some("plain"));
        assert_eq!(read(r#""a\/b\u00e9\"""#).as_deref(), Some("a/bé\""));
        assert_eq!(read(r#""""#).as_deref(), Some(""));
        assert_eq!(read("1"), None);
    }
}
