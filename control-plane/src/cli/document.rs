//! Documents made of flags.

use super::remote::Fault;
use serde_json::{Map, Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};

/// What every document can be made of, beside its own flags.
#[derive(clap::Args)]
pub struct Base {
    /// Start from the JSON document in this file (`-`: standard input); flags go before what it says.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A rule: the requested name (model, tier or `*`) and its chain. May be given several times.
    #[arg(long = "rule", value_name = "NAME=MODEL,…", value_parser = rule)]
    rules: Vec<(String, Vec<String>)>,
    /// Remove a field: `monthly_cap_usd`, `ceilings.calls_per_hour`, `rules.fast`. May be given several times.
    #[arg(long = "unset", value_name = "FIELD")]
    unset: Vec<String>,
}

/// Ceilings of a key or a sender.
#[derive(clap::Args)]
pub struct Ceilings {
    /// The most calls in an hour.
    #[arg(long)]
    calls_per_hour: Option<u64>,
    /// The most calls in a minute.
    #[arg(long)]
    requests_per_minute: Option<u64>,
    /// The most tokens in a minute.
    #[arg(long)]
    tokens_per_minute: Option<u64>,
    /// The most calls at once.
    #[arg(long)]
    max_parallel_calls: Option<u64>,
}

impl Ceilings {
    /// As parts of a document.
    pub fn set(&self, document: &mut Document) {
        document.set("ceilings.calls_per_hour", self.calls_per_hour);
        document.set("ceilings.requests_per_minute", self.requests_per_minute);
        document.set("ceilings.tokens_per_minute", self.tokens_per_minute);
        document.set("ceilings.max_parallel_calls", self.max_parallel_calls);
    }
}

/// A document in the making.
pub struct Document(Value);

impl Document {
    /// What `base` says.
    pub fn from(base: &Base) -> Result<Self, Fault> {
        let mut document = Self(match &base.json {
            Some(path) => serde_json::from_str(&read(path)?)
                .map_err(|error| Fault::Here(format!("{} is not a JSON document: {error}", path.display())))?,
            None => json!({}),
        });
        if !document.0.is_object() {
            return Err(Fault::Here("the document must be a JSON object".to_owned()));
        }
        for (name, chain) in &base.rules {
            document.put(&["rules", name], json!(chain));
        }
        for field in &base.unset {
            let (outer, inner) = field.split_once('.').map_or((None, field.as_str()), |(outer, inner)| (Some(outer), inner));
            document.put(&outer.into_iter().chain([inner]).collect::<Vec<_>>(), Value::Null);
        }
        Ok(document)
    }

    /// Sets a field (`ceilings.calls_per_hour`) if there is something to set.
    pub fn set(&mut self, field: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.put(&field.split('.').collect::<Vec<_>>(), value.into());
        }
    }

    fn put(&mut self, path: &[&str], value: Value) {
        let mut place = &mut self.0;
        for name in path {
            if !place.is_object() {
                *place = Value::Object(Map::new());
            }
            let Value::Object(members) = place else { return };
            place = members.entry(*name).or_insert(Value::Null);
        }
        *place = value;
    }

    /// As it stands.
    pub fn value(&self) -> &Value {
        &self.0
    }
}

/// A file's text; `-` is standard input.
pub fn read(path: &Path) -> Result<String, Fault> {
    let cannot = |error: std::io::Error| Fault::Here(format!("cannot read {}: {error}", path.display()));
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(cannot)?;
        return Ok(text);
    }
    std::fs::read_to_string(path).map_err(cannot)
}

fn rule(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, chain) = text.split_once('=').ok_or("write it as NAME=MODEL,MODEL")?;
    Ok((name.to_owned(), chain.split(',').map(|name| name.trim().to_owned()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_a_document_and_unset_becomes_null() {
        let base = Base {
            json: None,
            rules: vec![rule("fast=a, b").unwrap(), rule("gpt-4.1=c").unwrap()],
            unset: vec!["monthly_cap_usd".to_owned(), "rules.gpt-5.1".to_owned()],
        };
        let mut document = Document::from(&base).unwrap();
        document.set("name", Some("x"));
        document.set("cache.ttl_s", Some(60));
        document.set("reset_day", None::<u64>);
        let expected = json!({
            "name": "x", "cache": {"ttl_s": 60}, "monthly_cap_usd": null,
            "rules": {"fast": ["a", "b"], "gpt-4.1": ["c"], "gpt-5.1": null},
        });
        assert_eq!(*document.value(), expected);
    }
}
