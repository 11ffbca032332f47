//! A piece of JSON that grows by deltas. Numbers stay as written.

use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Deeper objects are kept whole: no delta is nested deeper, and the merge recurses.
const MAX_DEPTH: usize = 8;

/// Members of an object, unread.
pub(super) type Members<'a> = BTreeMap<String, &'a RawValue>;

/// A value that grows.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Node {
    /// Grows at its end.
    Text(String),
    /// Grows at its end.
    List(Vec<Box<RawValue>>),
    /// Grows member by member.
    Object(BTreeMap<String, Node>),
    /// The last one counts.
    Other(Box<RawValue>),
}

/// A delta that is no value of its kind, such as half a surrogate pair: the whole cannot be rebuilt.
#[derive(Debug)]
pub(super) struct Unreadable;

/// Bytes that a node grew by.
pub(super) type Grown = Result<usize, Unreadable>;

/// Reads the members of an object.
pub(super) fn members(raw: &str) -> Option<Members<'_>> {
    serde_json::from_str(raw).ok()
}

/// Grows a member of an object.
pub(super) fn merge(object: &mut BTreeMap<String, Node>, name: &str, raw: &RawValue) -> Grown {
    merge_at(object, name, raw, 0)
}

/// Sets a member of an object to its newest value; a null is none unless there is nothing else.
pub(super) fn replace(object: &mut BTreeMap<String, Node>, name: &str, raw: &RawValue) -> usize {
    if raw.get() == "null" && object.contains_key(name) {
        return 0;
    }
    let old = match object.insert(name.to_owned(), Node::Other(raw.to_owned())) {
        Some(Node::Other(old)) => old.get().len(),
        _ => 0,
    };
    raw.get().len().saturating_sub(old)
}

fn merge_at(object: &mut BTreeMap<String, Node>, name: &str, raw: &RawValue, depth: usize) -> Grown {
    // Labels come whole, some providers repeat them, and none is text that grows.
    if matches!(name, "role" | "type" | "id") {
        return Ok(replace(object, name, raw));
    }
    let Some(node) = object.get_mut(name) else {
        let (node, size) = Node::new(raw, depth)?;
        object.insert(name.to_owned(), node);
        return Ok(size + name.len());
    };
    let json = raw.get();
    match node {
        _ if json == "null" => Ok(0),
        Node::Text(text) if json.starts_with('"') => {
            let more: String = serde_json::from_str(json).map_err(|_| Unreadable)?;
            // A name comes whole, or whole again, or in pieces.
            if name == "name" && *text == more {
                return Ok(0);
            }
            text.push_str(&more);
            Ok(more.len())
        }
        Node::List(list) if json.starts_with('[') => {
            let more: Vec<Box<RawValue>> = serde_json::from_str(json).map_err(|_| Unreadable)?;
            list.extend(more);
            Ok(json.len())
        }
        Node::Object(inner) if json.starts_with('{') => {
            let mut grown = 0;
            for (name, raw) in members(json).ok_or(Unreadable)? {
                grown += merge_at(inner, &name, raw, depth + 1)?;
            }
            Ok(grown)
        }
        node => {
            let old = if let Node::Other(old) = node { old.get().len() } else { 0 };
            let (new, size) = Node::new(raw, depth)?;
            *node = new;
            Ok(size.saturating_sub(old))
        }
    }
}

impl Node {
    fn new(raw: &RawValue, depth: usize) -> Result<(Self, usize), Unreadable> {
        let json = raw.get();
        Ok(match json.as_bytes().first() {
            Some(b'"') => {
                let text: String = serde_json::from_str(json).map_err(|_| Unreadable)?;
                let size = text.len();
                (Self::Text(text), size)
            }
            Some(b'[') => (Self::List(serde_json::from_str(json).map_err(|_| Unreadable)?), json.len()),
            Some(b'{') if depth < MAX_DEPTH => {
                let mut inner = BTreeMap::new();
                let mut size = 2;
                for (name, raw) in members(json).ok_or(Unreadable)? {
                    size += merge_at(&mut inner, &name, raw, depth + 1)?;
                }
                (Self::Object(inner), size)
            }
            _ => (Self::Other(raw.to_owned()), json.len()),
        })
    }

    /// A value that does not grow.
    pub(super) fn of(value: &impl Serialize) -> Option<Self> {
        serde_json::value::to_raw_value(value).ok().map(Self::Other)
    }
}
