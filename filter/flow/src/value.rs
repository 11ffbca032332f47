//! JSON that is written where it is needed, as by `serde_json::json!`, which puts the making of every member where it stands: 150 bytes of
//! wasm each. Here a member is a name and a value in an array, and one function makes the object.

use serde::Serialize;
use serde_json::{Map, Value};

/// As `serde_json::json!`.
macro_rules! json {
    (@members $done:tt) => { $crate::value::object(&mut $done) };
    (@members [$($done:tt)*] $name:tt : null $(, $($rest:tt)*)?) => {
        json!(@members [$($done)* (&$name, serde_json::Value::Null),] $($($rest)*)?)
    };
    (@members [$($done:tt)*] $name:tt : {$($inner:tt)*} $(, $($rest:tt)*)?) => {
        json!(@members [$($done)* (&$name, json!({$($inner)*})),] $($($rest)*)?)
    };
    (@members [$($done:tt)*] $name:tt : [$($inner:tt)*] $(, $($rest:tt)*)?) => {
        json!(@members [$($done)* (&$name, json!([$($inner)*])),] $($($rest)*)?)
    };
    (@members [$($done:tt)*] $name:tt : $value:expr $(, $($rest:tt)*)?) => {
        json!(@members [$($done)* (&$name, $crate::value::of(&$value)),] $($($rest)*)?)
    };
    (@elements [$($done:tt)*]) => { serde_json::Value::Array(vec![$($done)*]) };
    (@elements [$($done:tt)*] {$($inner:tt)*} $(, $($rest:tt)*)?) => { json!(@elements [$($done)* json!({$($inner)*}),] $($($rest)*)?) };
    (@elements [$($done:tt)*] $value:expr $(, $($rest:tt)*)?) => { json!(@elements [$($done)* $crate::value::of(&$value),] $($($rest)*)?) };
    ({$($members:tt)*}) => { json!(@members [] $($members)*) };
    ([$($elements:tt)*]) => { json!(@elements [] $($elements)*) };
    ($value:expr) => { $crate::value::of(&$value) };
}
pub(crate) use json;

/// An object of these members, which are taken.
pub(crate) fn object(members: &mut [(&str, Value)]) -> Value {
    let mut object = Map::new();
    for (name, value) in members {
        object.insert((*name).to_owned(), value.take());
    }
    Value::Object(object)
}

/// Its text, by the writer that all other JSON has: `Display` would be a second one.
pub(crate) fn written(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// A text as JSON.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// A value as JSON; null if it is none.
#[inline(never)]
pub(crate) fn of<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn it_writes_what_serde_json_writes() {
        let (name, text) = ("of a variable", String::from("é\"\n"));
        let ours = json!({
            "null": null, "text": text, "none": None::<u8>, name: 1, "empty": {}, "list": [], "sum": 1 + name.len(),
            "deep": {"a": {"b": [{"c": text}, 1.5, "d", true, null_of()],}, "e": -1},
        });
        let theirs = serde_json::json!({
            "null": null, "text": text, "none": None::<u8>, name: 1, "empty": {}, "list": [], "sum": 1 + name.len(),
            "deep": {"a": {"b": [{"c": text}, 1.5, "d", true, null_of()],}, "e": -1},
        });
        assert_eq!(ours, theirs);
        assert_eq!(json!("x"), serde_json::json!("x"));
    }

    fn null_of() -> Option<u8> {
        None
    }
}
