//! Reads a document field by field and collects every fault with its path, so that the caller hears all at once.

use super::json::Json;
use jiff::Timestamp;
use proxium_wire::NanoUsd;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// One bad field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Its path: `rules.fast[1]`; empty for the document itself.
    pub field: String,
    /// What is wrong and what to write.
    pub message: String,
}

/// All faults of a document.
#[derive(Debug, Default)]
pub struct Faults(RefCell<Vec<Fault>>);

impl Faults {
    /// Notes a fault.
    pub fn add(&self, field: &str, message: impl Into<String>) {
        self.0.borrow_mut().push(Fault { field: field.to_owned(), message: message.into() });
    }

    /// The value, if there are no faults.
    ///
    /// # Errors
    /// The faults.
    pub fn none_or<T>(self, value: T) -> Result<T, Vec<Fault>> {
        let faults = self.0.into_inner();
        if faults.is_empty() { Ok(value) } else { Err(faults) }
    }
}

/// An object that is being read. Every field is taken once; what is left at [`Object::close`] is unknown. Null is as good as absent.
pub struct Object<'f> {
    at: String,
    members: BTreeMap<String, Json>,
    known: Vec<&'static str>,
    faults: &'f Faults,
}

impl<'f> Object<'f> {
    /// The document itself.
    #[must_use]
    pub fn root(document: Json, faults: &'f Faults) -> Self {
        Self::at(String::new(), document, faults)
    }

    fn at(at: String, value: Json, faults: &'f Faults) -> Self {
        let members = match value {
            Json::Object(members) => members,
            Json::Null => BTreeMap::new(),
            _ => {
                faults.add(&at, "must be an object");
                BTreeMap::new()
            }
        };
        Self { at, members, known: Vec::new(), faults }
    }

    /// The path of one of its fields.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    /// Notes a fault of one of its fields.
    pub fn fault(&self, name: &str, message: impl Into<String>) {
        self.faults.add(&self.path(name), message);
    }

    fn take(&mut self, name: &'static str) -> Option<Json> {
        self.known.push(name);
        self.members.remove(name).filter(|value| *value != Json::Null)
    }

    /// Takes a field by `read`, which says what it should have been.
    fn read<T>(&mut self, name: &'static str, read: impl FnOnce(Json) -> Result<T, String>) -> Option<T> {
        let value = self.take(name)?;
        read(value).map_err(|message| self.fault(name, message)).ok()
    }

    /// Says that a field is missing, if nothing was noted of it yet.
    pub fn required<T: Default>(&self, name: &'static str, value: Option<T>) -> T {
        let path = self.path(name);
        if value.is_none() && !self.faults.0.borrow().iter().any(|fault| fault.field == path) {
            self.faults.add(&path, "is missing");
        }
        value.unwrap_or_default()
    }

    /// A name for people: 1 to 100 characters, none of them a control character.
    pub fn label(&mut self, name: &'static str) -> Option<String> {
        self.read(name, |value| match value {
            Json::Text(text) if (1..=100).contains(&text.trim().chars().count()) && !text.chars().any(char::is_control) => {
                Ok(text.trim().to_owned())
            }
            _ => Err("must be a string of 1 to 100 characters".to_owned()),
        })
    }

    /// A secret that can stand in a header. Never shown in a fault.
    pub fn secret(&mut self, name: &'static str) -> Option<String> {
        self.read(name, |value| match value {
            Json::Text(text) if (1..=4_096).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(text),
            _ => Err("must be a string of 1 to 4096 visible ASCII characters without spaces".to_owned()),
        })
    }

    /// `true` or `false`.
    pub fn flag(&mut self, name: &'static str) -> Option<bool> {
        self.read(name, |value| match value {
            Json::Flag(flag) => Ok(flag),
            _ => Err("must be true or false".to_owned()),
        })
    }

    /// A whole number within bounds.
    pub fn integer(&mut self, name: &'static str, bounds: RangeInclusive<u64>) -> Option<u64> {
        self.read(name, |value| {
            let number = match &value {
                Json::Number(digits) => digits.parse().ok().filter(|number| bounds.contains(number)),
                _ => None,
            };
            number.ok_or_else(|| format!("must be a whole number from {} to {}", bounds.start(), bounds.end()))
        })
    }

    /// One of these words.
    pub fn one_of(&mut self, name: &'static str, words: &[&str]) -> Option<String> {
        self.read(name, |value| match value {
            Json::Text(word) if words.contains(&word.as_str()) => Ok(word),
            _ => Err(format!("must be one of {}", words.join(", "))),
        })
    }

    /// USD, exactly, as a number or a string.
    pub fn money(&mut self, name: &'static str, most: NanoUsd) -> Option<NanoUsd> {
        let amount = self.signed_money(name, most)?;
        if amount < NanoUsd::ZERO {
            self.fault(name, "must not be negative");
            return None;
        }
        Some(amount)
    }

    /// The same that may be below zero.
    pub fn signed_money(&mut self, name: &'static str, most: NanoUsd) -> Option<NanoUsd> {
        self.read(name, |value| {
            let (Json::Number(text) | Json::Text(text)) = value else {
                return Err("must be a decimal number of USD, or a string of one, like \"12.50\"".to_owned());
            };
            let amount: NanoUsd = text.parse().map_err(|error: proxium_wire::MoneyError| error.to_string())?;
            match amount {
                NanoUsd(nano) if nano.unsigned_abs() > most.0.unsigned_abs() => Err(format!("must be at most {most} USD")),
                _ => Ok(amount),
            }
        })
    }

    /// A fraction from 0 to 1 with at most six decimals, in parts per million.
    pub fn fraction(&mut self, name: &'static str) -> Option<u32> {
        self.read(name, |value| {
            let amount = match &value {
                // A fraction is read as exactly as money is: a millionth is 1000 of its smallest parts.
                Json::Number(text) => text.parse::<NanoUsd>().ok(),
                _ => None,
            };
            amount
                .filter(|NanoUsd(nano)| (0..=1_000_000_000).contains(nano) && nano % 1_000 == 0)
                .and_then(|NanoUsd(nano)| u32::try_from(nano / 1_000).ok())
                .ok_or_else(|| "must be a number from 0 to 1 with at most six decimals".to_owned())
        })
    }

    /// An instant, RFC 3339 with an offset, not before 1970.
    pub fn instant(&mut self, name: &'static str) -> Option<Timestamp> {
        self.read(name, |value| {
            let instant = match &value {
                Json::Text(text) => text.parse::<Timestamp>().ok().filter(|instant| *instant >= Timestamp::UNIX_EPOCH),
                _ => None,
            };
            instant.ok_or_else(|| "must be an RFC 3339 time with an offset, like 2027-01-31T12:00:00+01:00".to_owned())
        })
    }

    /// Names, each of which `check` says is fine or why not.
    pub fn names(&mut self, name: &'static str, check: &dyn Fn(&str) -> Result<(), String>) -> Option<Vec<String>> {
        let items = self.read(name, |value| match value {
            Json::List(items) => Ok(items),
            _ => Err("must be a list of names".to_owned()),
        })?;
        Some(names(&self.path(name), items, self.faults, check))
    }

    /// Rules: names to lists of at least one name.
    pub fn rules(&mut self, name: &'static str, check: &dyn Fn(&str) -> Result<(), String>) -> Option<BTreeMap<String, Vec<String>>> {
        let members = self.object(name)?.members;
        let path = self.path(name);
        let rule = |(requested, value): (String, Json)| {
            let path = format!("{path}.{requested}");
            if requested.is_empty() || requested.len() > 200 || requested.chars().any(char::is_control) {
                self.faults.add(&path, "the requested name must have 1 to 200 characters");
            }
            match value {
                Json::List(items) if !items.is_empty() => (requested, names(&path, items, self.faults, check)),
                _ => {
                    self.faults.add(&path, "must be a list of at least one model or chain");
                    (requested, Vec::new())
                }
            }
        };
        Some(members.into_iter().map(rule).collect())
    }

    /// An object within.
    pub fn object(&mut self, name: &'static str) -> Option<Self> {
        let value = self.take(name)?;
        Some(Self::at(self.path(name), value, self.faults))
    }

    /// A text of up to `most` characters; white space is as good as none at its ends.
    pub fn text(&mut self, name: &'static str, most: usize) -> Option<String> {
        self.read(name, |value| match value {
            Json::Text(text) if !text.trim().is_empty() && text.trim().chars().count() <= most => Ok(text.trim().to_owned()),
            _ => Err(format!("must be a string of 1 to {most} characters")),
        })
    }

    /// Every field that was not taken is unknown.
    pub fn close(self) {
        for name in self.members.keys() {
            self.fault(name, format!("unknown field; known here: {}", self.known.join(", ")));
        }
    }
}

fn names(path: &str, items: Vec<Json>, faults: &Faults, check: &dyn Fn(&str) -> Result<(), String>) -> Vec<String> {
    let mut names = Vec::with_capacity(items.len());
    for (at, item) in items.into_iter().enumerate() {
        let outcome = match item {
            Json::Text(name) if names.contains(&name) => Err("is there already".to_owned()),
            Json::Text(name) => check(&name).map(|()| name),
            _ => Err("must be a string".to_owned()),
        };
        match outcome {
            Ok(name) => names.push(name),
            Err(message) => faults.add(&format!("{path}[{at}]"), message),
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T>(text: &str, read: impl FnOnce(&mut Object<'_>) -> T) -> Result<T, Vec<Fault>> {
        let faults = Faults::default();
        let mut object = Object::root(Json::parse(text).unwrap(), &faults);
        let value = read(&mut object);
        object.close();
        faults.none_or(value)
    }

    #[test]
    fn money_is_read_exactly_from_numbers_and_strings() {
        for (text, nano) in [("0.1", 100_000_000), ("\"0.000000001\"", 1), ("9000000", 9_000_000_000_000_000), ("12.50", 12_500_000_000)] {
            let document = format!(r#"{{"cap":{text}}}"#);
            assert_eq!(read(&document, |object| object.money("cap", NanoUsd(9_000_000_000_000_000))), Ok(Some(NanoUsd(nano))), "{text}");
        }
        for text in ["0.10000000000000001", "1e2", "-1", "9000000.000000001", "\"\"", "true", "[]"] {
            let document = format!(r#"{{"cap":{text}}}"#);
            assert!(read(&document, |object| object.money("cap", NanoUsd(9_000_000_000_000_000))).is_err(), "{text}");
        }
    }

    #[test]
    fn fractions_have_six_decimals() {
        for (text, ppm) in [("0", 0), ("1", 1_000_000), ("0.25", 250_000), ("0.000001", 1)] {
            assert_eq!(read(&format!(r#"{{"x":{text}}}"#), |object| object.fraction("x")), Ok(Some(ppm)), "{text}");
        }
        for text in ["1.000001", "-0.1", "0.0000001", "\"0.5\"", "1e-1"] {
            assert!(read(&format!(r#"{{"x":{text}}}"#), |object| object.fraction("x")).is_err(), "{text}");
        }
    }

    #[test]
    fn instants_need_an_offset() {
        let at = |text: &str| read(&format!(r#"{{"at":"{text}"}}"#), |object| object.instant("at"));
        assert_eq!(at("2027-01-31T12:00:00+01:00").unwrap().unwrap().to_string(), "2027-01-31T11:00:00Z");
        for text in ["2027-01-31T12:00:00", "2027-01-31", "tomorrow", "1969-01-01T00:00:00Z"] {
            assert!(at(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_fault_is_told_with_its_path() {
        let known = |name: &str| if name == "m" { Ok(()) } else { Err("no such model".to_owned()) };
        let faults = read(r#"{"rules":{"a":[],"b":["m","x",1,"m"]},"limits":{"rpm":-1,"rpn":2},"extra":0}"#, |object| {
            let name = object.label("name");
            object.required("name", name);
            object.rules("rules", &known);
            let mut limits = object.object("limits").unwrap();
            limits.integer("rpm", 0..=9);
            limits.close();
        })
        .unwrap_err();
        let fields: Vec<_> = faults.iter().map(|fault| fault.field.as_str()).collect();
        assert_eq!(fields, ["name", "rules.a", "rules.b[1]", "rules.b[2]", "rules.b[3]", "limits.rpm", "limits.rpn", "extra"]);
        assert_eq!(faults[7].message, "unknown field; known here: name, rules, limits");
    }

    #[test]
    fn null_is_as_good_as_absent() {
        assert_eq!(read(r#"{"a":null,"b":null}"#, |object| (object.flag("a"), object.text("b", 9))), Ok((None, None)));
    }
}
