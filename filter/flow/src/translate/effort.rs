//! How hard a model thinks: OpenAI's `reasoning_effort`, Anthropic's token budget, and Anthropic's `output_config.effort`.
//!
//! | `reasoning_effort` | budget (Claude up to 4.5) | `output_config.effort` (Claude from 4.6) |
//! |---|---|---|
//! | `none` | no thinking | no thinking; `low` from Claude 5, which cannot be told not to think |
//! | `minimal` | 1,024 | `low` |
//! | `low` | 2,048 | `low` |
//! | `medium` | 8,192 | `medium` |
//! | `high` | 16,384 | `high` |
//! | `xhigh`, `max` | 32,768 | the same; `high` on 4.6 |
//!
//! A budget is at most half of `max_tokens`, so that room for the answer is left; below 1,024, the least there is, the model does not
//! think. Towards OpenAI a budget below 4,096 is `low`, below 16,384 `medium`, else `high`; `xhigh` and `max`, which not every
//! reasoning model takes, become `high`, and disabled thinking `low`.

/// The least budget that Anthropic takes.
const LEAST_BUDGET: u64 = 1_024;

/// The token budget for an effort; `None`: no thinking.
pub(super) fn budget(effort: &str, max_tokens: u64) -> Option<u64> {
    let wanted: u64 = match effort {
        "minimal" => LEAST_BUDGET,
        "low" => 2_048,
        "medium" => 8_192,
        "high" => 16_384,
        "xhigh" | "max" => 32_768,
        _ => return None,
    };
    Some(wanted.min(max_tokens / 2)).filter(|budget| *budget >= LEAST_BUDGET)
}

/// The effort that a budget stands for.
pub(super) fn of_budget(budget: u64) -> &'static str {
    match budget {
        0..4_096 => "low",
        4_096..16_384 => "medium",
        _ => "high",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_budget_leaves_half_of_the_tokens_to_the_answer() {
        assert_eq!(budget("high", 100_000), Some(16_384));
        assert_eq!(budget("high", 16_384), Some(8_192));
        assert_eq!(budget("high", 2_047), None);
        assert_eq!(budget("none", 100_000), None);
    }

    #[test]
    fn an_effort_survives_both_ways() {
        for effort in ["low", "medium", "high"] {
            assert_eq!(budget(effort, u64::MAX).map(of_budget), Some(effort));
        }
    }
}
