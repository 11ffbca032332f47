//! Reading a tree of [`Node`]s with the path of every place, collecting faults instead of stopping at the first.
//!
//! A reading method returns `None` for what is absent and for what is wrong; the latter also adds a fault, and a catalog with any fault
//! is refused as a whole, so a caller may put its default in either case.

use super::Faults;
use super::node::Node;
use std::collections::BTreeSet;

/// A place in the file: its path, and the value there unless it is absent or null.
#[derive(Clone)]
pub(super) struct At<'a> {
    pub path: String,
    node: Option<&'a Node>,
}

impl<'a> At<'a> {
    pub fn root(node: &'a Node) -> Self {
        Self { path: String::new(), node: present(node) }
    }

    pub fn is_absent(&self) -> bool {
        self.node.is_none()
    }

    /// Adds a fault when nothing or an empty map is here; `hint` says what to write.
    pub fn required(self, hint: &str, faults: &mut Faults) -> Self {
        if self.node.is_none_or(|node| matches!(node, Node::Map(entries) if entries.is_empty())) {
            faults.add(&self.path, format!("is missing: {hint}"));
        }
        self
    }

    /// A map with known fields.
    pub fn table(&self, faults: &mut Faults) -> Option<Table<'a>> {
        self.map(faults).map(|entries| Table { path: self.path.clone(), entries, known: Vec::new() })
    }

    /// A map with free keys; empty when absent.
    pub fn entries(&self, faults: &mut Faults) -> Vec<(&'a str, At<'a>)> {
        let entries = self.map(faults).unwrap_or_default();
        entries.iter().map(|(key, node)| (key.as_str(), self.below(key, Some(node)))).collect()
    }

    /// A list.
    pub fn items(&self, faults: &mut Faults) -> Option<Vec<At<'a>>> {
        match self.node? {
            Node::List(items) => Some(
                items.iter().enumerate().map(|(index, node)| At { path: format!("{}[{index}]", self.path), node: present(node) }).collect(),
            ),
            other => self.wrong("a list like [a, b]", other, faults),
        }
    }

    /// A text.
    pub fn text(&self, faults: &mut Faults) -> Option<&'a str> {
        match self.node? {
            Node::Text(text) => Some(text),
            other => self.wrong("a text (write numbers in quotes)", other, faults),
        }
    }

    /// `true` or `false`.
    pub fn flag(&self, faults: &mut Faults) -> Option<bool> {
        match self.node? {
            Node::Bool(flag) => Some(*flag),
            other => self.wrong("true or false", other, faults),
        }
    }

    /// A text or a number, understood by `read`, whose error says what to write.
    pub fn read<T>(&self, faults: &mut Faults, read: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let text = match self.node? {
            Node::Text(text) | Node::Number(text) => text,
            other => return self.wrong("a single value", other, faults),
        };
        read(text).map_err(|fault| faults.add(&self.path, fault)).ok()
    }

    fn map(&self, faults: &mut Faults) -> Option<&'a [(String, Node)]> {
        let entries = match self.node? {
            Node::Map(entries) => entries,
            other => return self.wrong("a map like {name: value}", other, faults),
        };
        let mut seen = BTreeSet::new();
        for (key, _) in entries {
            if !seen.insert(key) {
                faults.add(&join(&self.path, key), "is written twice: keep one");
            }
        }
        Some(entries)
    }

    fn below(&self, key: &str, node: Option<&'a Node>) -> At<'a> {
        At { path: join(&self.path, key), node: node.and_then(present) }
    }

    fn wrong<T>(&self, wanted: &str, found: &Node, faults: &mut Faults) -> Option<T> {
        let found = match found {
            Node::Null => "nothing",
            Node::Bool(_) => "true or false",
            Node::Number(_) => "a number",
            Node::Text(_) => "a text",
            Node::List(_) => "a list",
            Node::Map(_) => "a map",
        };
        faults.add(&self.path, format!("must be {wanted}, not {found}"));
        None
    }
}

/// A map whose fields are known.
pub(super) struct Table<'a> {
    path: String,
    entries: &'a [(String, Node)],
    known: Vec<&'static str>,
}

impl<'a> Table<'a> {
    pub fn field(&mut self, name: &'static str) -> At<'a> {
        self.known.push(name);
        let node = self.entries.iter().find(|(key, _)| key == name).and_then(|(_, node)| present(node));
        At { path: join(&self.path, name), node }
    }

    /// Every field that nobody asked for is a fault.
    pub fn finish(self, faults: &mut Faults) {
        for (key, _) in self.entries {
            if !self.known.contains(&key.as_str()) {
                faults.add(&join(&self.path, key), format!("is not a field here; there are {}", self.known.join(", ")));
            }
        }
    }
}

fn present(node: &Node) -> Option<&Node> {
    (!matches!(node, Node::Null)).then_some(node)
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
