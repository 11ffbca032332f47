//! Waiting for a condition.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Longer than anything here takes, on a busy machine too.
pub const BOUND: Duration = Duration::from_secs(30);

/// What a condition may answer: `bool`, `Option<T>` (some: met), `Result<T, why not yet>`.
pub trait Condition {
    /// What is handed out once it is met.
    type Met;
    /// Met, or why not.
    ///
    /// # Errors
    /// Not met yet.
    fn met(self) -> Result<Self::Met, String>;
}

impl Condition for bool {
    type Met = ();
    fn met(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("false".into()) }
    }
}

impl<T> Condition for Option<T> {
    type Met = T;
    fn met(self) -> Result<T, String> {
        self.ok_or_else(|| "none".into())
    }
}

impl<T, E: Debug> Condition for Result<T, E> {
    type Met = T;
    fn met(self) -> Result<T, String> {
        self.map_err(|why| format!("{why:?}"))
    }
}

/// Asks again every 10 ms until the condition is met.
///
/// # Panics
/// `bound` is over; the message tells `what` and why it was not met at last.
pub async fn eventually<F, C>(what: &str, bound: Duration, mut condition: impl FnMut() -> F) -> C::Met
where
    F: Future<Output = C>,
    C: Condition,
{
    let until = Instant::now() + bound;
    loop {
        match condition().await.met() {
            Ok(met) => return met,
            Err(why) => assert!(Instant::now() < until, "not within {bound:?}: {what} (at last: {why})"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_condition_is_asked_until_it_is_met() {
        let mut asked = 0;
        let met = eventually("counted to three", BOUND, || {
            asked += 1;
            std::future::ready(if asked == 3 { Ok(asked) } else { Err(asked) })
        });
        assert_eq!(met.await, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "not within 30ms: pigs fly (at last: false)")]
    async fn a_condition_that_is_never_met_fails_with_its_name() {
        eventually("pigs fly", Duration::from_millis(30), || std::future::ready(false)).await;
    }
}
