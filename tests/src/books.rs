//! What Redis has counted, seen from all sides.

use crate::{BOUND, Key, Stack, eventually};
use std::collections::HashMap;

/// The ledger of a project with one key, its windows and its money.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Books {
    /// Calls in the key's hour.
    pub calls: i64,
    /// Calls in the key's minute.
    pub requests: i64,
    /// Tokens in the key's minute.
    pub tokens: i64,
    /// The month's money, nano-USD.
    pub spend: i64,
    /// Held money, nano-USD.
    pub held: i64,
    /// Reservations that are neither settled, released nor expired.
    pub holds: u64,
    /// The ledger, oldest record first.
    pub ledger: Vec<HashMap<String, String>>,
}

impl Books {
    /// The sum of a field of all records.
    ///
    /// # Panics
    /// It is no number.
    #[must_use]
    pub fn sum(&self, field: &str) -> i64 {
        self.ledger.iter().map(|record| record.get(field).map_or(0, |value| value.parse::<i64>().expect("a number"))).sum()
    }

    /// How many records are of this kind.
    #[must_use]
    pub fn count(&self, kind: &str) -> usize {
        self.ledger.iter().filter(|record| record.get("kind").is_some_and(|of| of == kind)).count()
    }

    /// Nothing is held, and the ledger adds up to windows and spend.
    fn closed(self) -> Result<Self, Self> {
        let of_windows = [self.calls, self.requests, self.tokens, self.spend, self.held];
        let of_ledger = [self.sum("calls"), self.sum("calls"), self.sum("tokens"), self.sum("cost_nano_usd"), 0];
        if of_windows == of_ledger && self.holds == 0 { Ok(self) } else { Err(self) }
    }
}

impl Stack {
    /// The books of a key's project as they are now.
    ///
    /// # Panics
    /// Redis does not answer.
    pub async fn books(&self, key: &Key) -> Books {
        let (windows, state, ledger) = (self.windows(key).await, self.state(&key.project).await, self.ledger(&key.project).await);
        let number = |of: &HashMap<String, String>, field: &str| of.get(field).map_or(0, |value| value.parse().expect("a number"));
        Books {
            calls: number(&windows, "c_sum"),
            requests: number(&windows, "r_sum"),
            tokens: number(&windows, "t_sum"),
            spend: number(&state, "spend"),
            held: number(&state, "held"),
            holds: self.due(&key.project).await.len() as u64,
            ledger,
        }
    }

    /// The same once nothing is held any more and the ledger, of this many records, adds up to windows and spend.
    pub async fn closed_books(&self, key: &Key, records: usize) -> Books {
        let closed = || async {
            let books = self.books(key).await.closed()?;
            if books.ledger.len() == records { Ok(books) } else { Err(books) }
        };
        eventually("the books are closed", BOUND, closed).await
    }
}
