//! What is wrong with a catalog: everything at once.

use std::fmt;

/// All faults of a catalog. Its text has one line a fault: `path: what is wrong and what to do`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

/// One fault; `path` is empty when the whole file is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    path: String,
    text: String,
}

impl Faults {
    /// A single fault of the whole file.
    pub(super) fn whole(text: impl Into<String>) -> Self {
        let mut faults = Self::default();
        faults.add("", text);
        faults
    }

    pub(super) fn add(&mut self, path: &str, text: impl Into<String>) {
        self.0.push(Fault { path: path.to_owned(), text: text.into() });
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when nothing is wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Fault { path, text }) in self.0.iter().enumerate() {
            let (newline, colon) = (if index > 0 { "\n" } else { "" }, if path.is_empty() { "" } else { ": " });
            write!(f, "{newline}{path}{colon}{text}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}
