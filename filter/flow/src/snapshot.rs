//! The catalog, indexed for look-ups.

use crate::json;
use proxium_wire::{Catalog, Endpoint, Model, Provider};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A model and its provider: what a plan is made of.
#[derive(Debug, PartialEq)]
pub struct Entry {
    /// The model.
    pub model: Model,
    /// Its provider.
    pub provider: Provider,
}

impl Entry {
    /// The model's catalog entry lists this endpoint.
    #[must_use]
    pub fn serves(&self, endpoint: Endpoint) -> bool {
        self.model.endpoints.contains(&endpoint.into())
    }
}

/// A catalog revision; calls in flight keep the one they began with.
#[derive(Debug)]
pub struct Snapshot {
    /// Names this revision.
    pub revision: String,
    /// The catalog's chains and settings.
    pub catalog: Catalog,
    entries: BTreeMap<String, Rc<Entry>>,
}

impl Snapshot {
    /// Indexes a catalog. A model whose provider is missing is left out.
    #[must_use]
    pub fn new(revision: String, mut catalog: Catalog) -> Self {
        let providers = json::map(catalog.providers.drain(..).map(|provider| (provider.name.clone(), provider)));
        let entry = |model: Model| {
            providers.get(&model.provider).map(|provider| (model.name.clone(), Rc::new(Entry { provider: provider.clone(), model })))
        };
        let entries = json::map(catalog.models.drain(..).filter_map(entry));
        Self { revision, catalog, entries }
    }

    /// The model of this catalog name.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Rc<Entry>> {
        self.entries.get(name)
    }

    /// Every model, by name.
    pub fn all(&self) -> impl Iterator<Item = &Rc<Entry>> {
        self.entries.values()
    }

    /// The model names of a default chain.
    #[must_use]
    pub fn chain(&self, name: &str) -> Option<&[String]> {
        self.catalog.chains.get(name).map(|chain| chain.names.as_slice())
    }
}
