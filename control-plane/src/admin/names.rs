//! Which names a path or a document may hold.

use super::json::Json;
use super::refusal::Refusal;
use crate::catalog::Catalog;
use crate::store::projects::Project;
use crate::store::record::Rules;
use std::collections::BTreeSet;

/// The names a document may point to: those of the catalog, and those that the record holds already, so that a model that left the
/// catalog does not stand in the way of changing something else.
pub struct Known<'a> {
    catalog: &'a Catalog,
    kept: BTreeSet<&'a str>,
    keeps_near: bool,
    keeps_classify: bool,
}

impl<'a> Known<'a> {
    /// The catalog's names.
    pub fn of(catalog: &'a Catalog) -> Self {
        Self { catalog, kept: BTreeSet::new(), keeps_near: false, keeps_classify: false }
    }

    /// And those in these rules and lists.
    pub fn and(mut self, rules: &'a Rules, names: &'a [String]) -> Self {
        self.kept.extend(rules.values().flatten().chain(names).map(String::as_str));
        self
    }

    /// And what this project has on.
    pub fn and_features(mut self, project: &Project) -> Self {
        self.keeps_near |= project.cache.near.enabled;
        self.keeps_classify |= project.auto_classify;
        self
    }

    /// Whether texts can be compared.
    pub fn embeddings(&self) -> bool {
        self.keeps_near || self.catalog.embeddings.is_some()
    }

    /// Whether `auto` can be classified.
    pub fn classifier(&self) -> bool {
        self.keeps_classify || self.catalog.classifier.is_some()
    }

    /// Whether it is a model.
    pub fn model(&self, name: &str) -> Result<(), String> {
        let known = self.catalog.models.contains_key(name) || self.kept.contains(name);
        if known { Ok(()) } else { Err(format!("the catalog has no model `{}`", shown(name))) }
    }

    /// Whether it is a model or a chain.
    pub fn model_or_chain(&self, name: &str) -> Result<(), String> {
        let known = self.catalog.chains.contains_key(name) || self.model(name).is_ok();
        if known { Ok(()) } else { Err(format!("the catalog has no model or chain `{}`", shown(name))) }
    }
}

/// No more of a name than an error needs.
fn shown(name: &str) -> String {
    name.chars().take(80).collect()
}

/// A project's id in a path. Names in Redis are made of it: another shape is no id of ours.
pub fn project(id: &str) -> Result<(), Refusal> {
    let is = (1..=40).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if is { Ok(()) } else { Err(Refusal::no_project(&shown(id))) }
}

/// A key's id in a path, its project's included.
pub fn key(project_id: &str, id: &str) -> Result<(), Refusal> {
    project(project_id)?;
    let is = (1..=40).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is { Ok(()) } else { Err(no_key(id)) }
}

/// There is no such key.
pub fn no_key(id: &str) -> Refusal {
    Refusal::NotFound(format!("there is no key `{}` in this project", shown(id)))
}

/// A sender's name in a path: what can stand in the header `x-proxium-source`.
pub fn source(project_id: &str, source: &str) -> Result<(), Refusal> {
    project(project_id)?;
    let is = (1..=128).contains(&source.len()) && source.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && source.trim() == source;
    if is { Ok(()) } else { Err(Refusal::field("source", "must be 1 to 128 visible ASCII characters, as in x-proxium-source")) }
}

/// A document in a body.
pub fn document(body: &[u8]) -> Result<Json, Refusal> {
    let text = std::str::from_utf8(body).map_err(|error| Refusal::NotJson(error.to_string()))?;
    Json::parse(text).map_err(Refusal::NotJson)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_an_id_is_not_found() {
        assert!(project("demo-1").is_ok());
        assert!(key("demo", "key_aB9").is_ok());
        for id in ["", "A", "a b", "a}", "a:b", "ä", &"a".repeat(41)] {
            assert!(matches!(project(id), Err(Refusal::NotFound(_))), "{id}");
            assert!(matches!(key(id, "key_a"), Err(Refusal::NotFound(_))), "{id}");
        }
        assert!(matches!(key("demo", "a:b"), Err(Refusal::NotFound(_))));
    }

    #[test]
    fn a_source_is_what_a_header_can_carry() {
        assert!(source("demo", "team a/42").is_ok());
        for name in ["", " a", "a ", "ä", "a\n", &"a".repeat(129)] {
            assert!(matches!(source("demo", name), Err(Refusal::Fields(_))), "{name}");
        }
    }
}
