//! The instant by which the whole plan must have answered.

/// Counted from the request's headers, over every attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    at_ms: u64,
    /// When it would have been, had the caller not asked for sooner.
    operator_at_ms: u64,
}

/// The time of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// At least 1.
    pub timeout_ms: u64,
    /// It is as short as this because the caller shortened the deadline: its end by timeout is the caller's doing.
    pub cut_by_caller: bool,
}

impl Deadline {
    /// `asked_ms`: what the caller asked for; `default_ms` and `max_ms`: the operator's.
    #[must_use]
    pub fn new(start_ms: u64, asked_ms: Option<u64>, default_ms: u64, max_ms: u64) -> Self {
        let operator_ms = default_ms.min(max_ms);
        let span_ms = asked_ms.map_or(operator_ms, |asked| asked.min(max_ms));
        Self { at_ms: start_ms.saturating_add(span_ms), operator_at_ms: start_ms.saturating_add(operator_ms) }
    }

    /// What is left.
    #[must_use]
    pub fn left_ms(&self, now_ms: u64) -> u64 {
        self.at_ms.saturating_sub(now_ms)
    }

    /// The caller asked for sooner than the operator would have.
    #[must_use]
    pub fn is_callers(&self) -> bool {
        self.at_ms < self.operator_at_ms
    }

    /// The time an attempt gets: never more than its model's timeout, and at most 60 % of what is left when a later entry could still
    /// answer. `None`: the deadline ran out.
    #[must_use]
    pub fn share(&self, now_ms: u64, model_timeout_ms: u64, later_entries: bool) -> Option<Share> {
        let part = |left: u64| if later_entries { left.saturating_mul(3) / 5 } else { left };
        let left_ms = self.left_ms(now_ms);
        if left_ms == 0 {
            return None;
        }
        let timeout_ms = part(left_ms).min(model_timeout_ms).max(1);
        let operators_ms = part(self.operator_at_ms.saturating_sub(now_ms)).min(model_timeout_ms).max(1);
        Some(Share { timeout_ms, cut_by_caller: timeout_ms < operators_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_caller_can_ask_for_sooner_and_for_later_up_to_the_most() {
        let left = |asked| Deadline::new(1_000, asked, 300, 600).left_ms(1_000);
        assert_eq!((left(None), left(Some(5)), left(Some(450)), left(Some(9_999))), (300, 5, 450, 600));
    }

    #[test]
    fn a_hung_first_entry_leaves_time_for_the_second() {
        let deadline = Deadline::new(0, Some(6_000), 300_000, 600_000);
        let first = deadline.share(0, 120_000, true).unwrap();
        assert_eq!(first, Share { timeout_ms: 3_600, cut_by_caller: true });
        assert_eq!(deadline.share(3_600, 120_000, false).unwrap().timeout_ms, 2_400);
        assert_eq!(deadline.share(6_000, 120_000, false), None);
    }

    #[test]
    fn the_models_own_timeout_is_the_operators() {
        let deadline = Deadline::new(0, Some(6_000), 300_000, 600_000);
        assert_eq!(deadline.share(0, 1_000, true), Some(Share { timeout_ms: 1_000, cut_by_caller: false }));
        assert!(!Deadline::new(0, Some(500_000), 300_000, 600_000).share(0, 900_000, false).unwrap().cut_by_caller);
    }
}
