//! Who changed what, for people: a stream of all changes made through the admin API and the console. No secrets.

use super::spend::Record;
use super::{StoreError, name};
use fred::prelude::*;
use serde::Serialize;
use serde_json::{Map, Value};

/// About this many of the newest entries are kept.
const KEPT: i64 = 100_000;

/// What something was and is. Of two records only the members that differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    before: Map<String, Value>,
    after: Map<String, Value>,
}

impl Change {
    /// Something new.
    pub fn made(after: &impl Serialize) -> Self {
        Self { before: Map::new(), after: members(after) }
    }

    /// Something that goes.
    pub fn gone(before: &impl Serialize) -> Self {
        Self { before: members(before), after: Map::new() }
    }

    /// From one record to another.
    pub fn between<T: Serialize>(before: &T, after: &T) -> Self {
        let (mut before, mut after) = (members(before), members(after));
        before.retain(|name, value| match after.get(name) {
            Some(other) if other == value => {
                after.remove(name);
                false
            }
            _ => true,
        });
        Self { before, after }
    }
}

/// What has no members is told by the entry's words alone.
fn members(of: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(of) {
        Ok(Value::Object(members)) => members,
        _ => Map::new(),
    }
}

/// Adds an entry; its id tells when. Done right before the change itself, so that no change goes without.
///
/// # Errors
/// Redis cannot answer.
pub async fn add(redis: &Client, who: &str, what: &str, project: &str, change: Change) -> Result<(), StoreError> {
    let mut fields = vec![("who", who.to_owned()), ("what", what.to_owned()), ("project", project.to_owned())];
    for (name, members) in [("before", change.before), ("after", change.after)] {
        if !members.is_empty() {
            fields.push((name, Value::Object(members).to_string()));
        }
    }
    Ok(redis.xadd(name::AUDIT, false, ("MAXLEN", "~", KEPT), "*", fields).await?)
}

/// Which way to read.
#[derive(Clone, Copy, Debug)]
pub enum From<'a> {
    /// The newest first, from right before this cursor or from the end.
    Newest(Option<&'a str>),
    /// The oldest first, from right behind this cursor.
    Behind(&'a str),
}

/// A page of entries.
///
/// # Errors
/// Redis cannot answer.
pub async fn page(redis: &Client, from: From<'_>, limit: u64) -> Result<Vec<Record>, StoreError> {
    let page: Vec<(String, Vec<String>)> = match from {
        From::Behind(cursor) => redis.xrange(name::AUDIT, format!("({cursor}"), "+", Some(limit)).await?,
        From::Newest(before) => {
            let end = before.map_or_else(|| "+".to_owned(), |cursor| format!("({cursor}"));
            redis.xrevrange(name::AUDIT, end, "-", Some(limit)).await?
        }
    };
    Ok(super::spend::records(page))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn of_two_records_only_what_differs_is_kept() {
        let change = Change::between(&json!({"a": 1, "b": [1], "c": null}), &json!({"a": 2, "b": [1], "d": true}));
        assert_eq!(Value::Object(change.before), json!({"a": 1, "c": null}));
        assert_eq!(Value::Object(change.after), json!({"a": 2, "d": true}));
    }
}
