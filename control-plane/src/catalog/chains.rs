//! Chains of chains to chains of models.

use super::reader::At;
use super::{Faults, scalar};
use std::collections::{BTreeMap, BTreeSet};

/// The longest chain: a plan takes four entries of it, after the key's allowed models have thinned it out.
const MAX_MODELS: usize = 64;

/// An item: its path and the name it holds.
type Item<'a> = (String, &'a str);

struct Chains<'a> {
    written: BTreeMap<&'a str, Vec<Item<'a>>>,
    models: &'a BTreeSet<&'a str>,
    flat: BTreeMap<&'a str, Vec<String>>,
}

/// Every chain as models in order, each once. A name that a model bears means the model, else the chain of that name.
pub(super) fn flatten(at: &At<'_>, models: &BTreeSet<&str>, faults: &mut Faults) -> BTreeMap<String, Vec<String>> {
    let mut written = BTreeMap::new();
    for (name, at) in at.entries(faults) {
        if let Err(fault) = if name == "*" { Ok(()) } else { scalar::model_name(name) } {
            faults.add(&at.path, fault.replace("model's", "chain's"));
        }
        let items = at.clone().required("list models or chains", faults).items(faults).unwrap_or_default();
        if items.is_empty() && !at.is_absent() {
            faults.add(&at.path, "must list at least one model or chain");
        }
        let names = items.into_iter().filter_map(|item| {
            let item = item.required("name a model or a chain", faults);
            item.text(faults).map(|name| (item.path, name))
        });
        written.insert(name, names.collect());
    }
    let names: Vec<&str> = written.keys().copied().collect();
    let mut chains = Chains { written, models, flat: BTreeMap::new() };
    for name in names {
        let flat = chains.of(name, &mut Vec::new(), faults);
        if flat.len() > MAX_MODELS {
            faults.add(&format!("chains.{name}"), format!("has {} models: at most {MAX_MODELS}", flat.len()));
        }
    }
    chains.flat.into_iter().map(|(name, models)| (name.to_owned(), models)).collect()
}

impl<'a> Chains<'a> {
    /// `open` holds the chains that are being flattened, outermost first.
    fn of(&mut self, name: &'a str, open: &mut Vec<&'a str>, faults: &mut Faults) -> Vec<String> {
        if let Some(flat) = self.flat.get(name) {
            return flat.clone();
        }
        open.push(name);
        let mut flat: Vec<String> = Vec::new();
        for (path, item) in self.written.get(name).cloned().unwrap_or_default() {
            let models = if self.models.contains(item) {
                vec![item.to_owned()]
            } else if open.contains(&item) {
                let around: Vec<&str> = open.iter().copied().skip_while(|chain| *chain != item).collect();
                faults.add(&path, format!("closes a circle: {} -> {item}; take one of them out", around.join(" -> ")));
                Vec::new()
            } else if item != "*" && self.written.contains_key(item) {
                self.of(item, open, faults)
            } else {
                faults.add(&path, format!("names `{item}`, which is neither a model nor a chain here"));
                Vec::new()
            };
            for model in models {
                if !flat.contains(&model) {
                    flat.push(model);
                }
            }
        }
        open.pop();
        self.flat.insert(name, flat.clone());
        flat
    }
}
