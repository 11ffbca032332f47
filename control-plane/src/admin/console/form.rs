//! Fields of a form as a document of the admin API, which then checks it.

use crate::admin::json::Json;
use std::collections::BTreeMap;

/// What a form sent; one value a name.
pub type Fields = BTreeMap<String, String>;

/// A document in the making. A field that was left empty is null: it removes.
pub struct Document<'a> {
    fields: &'a Fields,
    members: BTreeMap<String, Json>,
}

impl<'a> Document<'a> {
    /// Of these fields.
    pub const fn of(fields: &'a Fields) -> Self {
        Self { fields, members: BTreeMap::new() }
    }

    fn put(&mut self, path: &str, value: Json) {
        put(&mut self.members, path, value);
    }

    fn given(&self, path: &str) -> Option<&'a str> {
        self.fields.get(path).map(|text| text.trim()).filter(|text| !text.is_empty())
    }

    /// Words; money too.
    pub fn text(mut self, path: &str) -> Self {
        let value = self.given(path).map_or(Json::Null, |text| Json::Text(text.to_owned()));
        self.put(path, value);
        self
    }

    /// A number; what is none is told so by the API.
    pub fn number(mut self, path: &str) -> Self {
        let value = self.given(path).map_or(Json::Null, |text| Json::Number(text.to_owned()));
        self.put(path, value);
        self
    }

    /// A box: ticked, or not sent.
    pub fn flag(mut self, path: &str) -> Self {
        let value = Json::Flag(self.fields.contains_key(path));
        self.put(path, value);
        self
    }

    /// Names with commas between.
    pub fn names(mut self, path: &str) -> Self {
        let names = |text: &str| text.split(',').map(|name| Json::Text(name.trim().to_owned())).collect();
        let value = self.given(path).map_or(Json::Null, |text| Json::List(names(text)));
        self.put(path, value);
        self
    }

    /// An instant of a date picker, which knows no offset: UTC.
    pub fn day(mut self, path: &str) -> Self {
        let value = self.given(path).map_or(Json::Null, |day| Json::Text(format!("{day}T00:00:00Z")));
        self.put(path, value);
        self
    }

    /// As it stands.
    pub fn done(self) -> Json {
        Json::Object(self.members)
    }
}

fn put(members: &mut BTreeMap<String, Json>, path: &str, value: Json) {
    let Some((outer, inner)) = path.split_once('.') else {
        members.insert(path.to_owned(), value);
        return;
    };
    if let Json::Object(members) = members.entry(outer.to_owned()).or_insert_with(|| Json::Object(BTreeMap::new())) {
        put(members, inner, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_a_document_and_what_was_left_empty_is_null() {
        let fields =
            [("name", " Team "), ("cache.ttl_s", "60"), ("cache.exact", "on"), ("models", "a, b"), ("until", "2027-01-31"), ("cap", "")];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let document = Document::of(&fields).text("name").number("cache.ttl_s").flag("cache.exact").flag("cache.near.enabled");
        let document = document.names("models").day("until").text("cap").done();
        let expected = r#"{"name":"Team","cache":{"ttl_s":60,"exact":true,"near":{"enabled":false}},"models":["a","b"],"until":"2027-01-31T00:00:00Z","cap":null}"#;
        assert_eq!(document, Json::parse(expected).unwrap());
    }
}
