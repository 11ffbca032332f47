//! Tokens to money, exactly.

use proxium_wire::{NanoUsd, Prices, Usage};

const PICO_PER_NANO: i128 = 1_000;

/// What `usage` costs at `prices`: summed in pico-USD without loss, rounded once, half up.
#[must_use]
pub fn cost(usage: &Usage, prices: &Prices) -> NanoUsd {
    let reasoning = usage.reasoning.min(usage.output);
    let priced = [
        (usage.input, prices.input),
        (usage.cached_input, prices.cached_input),
        (usage.cache_write_5m, prices.cache_write_5m),
        (usage.cache_write_1h, prices.cache_write_1h),
        (usage.output - reasoning, prices.output),
        (reasoning, prices.reasoning_output.unwrap_or(prices.output)),
        (usage.searches, prices.per_search),
        (1, prices.per_call),
    ];
    let pico: i128 = priced.iter().map(|(count, price)| i128::from(*count) * i128::from(*price)).sum();
    in_nano(pico + PICO_PER_NANO / 2)
}

/// The most a call of so many tokens and searches can cost: every input token at the dearest input price, every output token at the dearest output
/// price; rounded up.
#[must_use]
pub fn worst(input_tokens: u64, output_tokens: u64, searches: u64, prices: &Prices) -> NanoUsd {
    let input = prices.input.max(prices.cached_input).max(prices.cache_write_5m).max(prices.cache_write_1h);
    let output = prices.output.max(prices.reasoning_output.unwrap_or_default());
    let priced = [(input_tokens, input), (output_tokens, output), (searches, prices.per_search), (1, prices.per_call)];
    let pico: i128 = priced.iter().map(|(count, price)| i128::from(*count) * i128::from(*price)).sum();
    in_nano(pico + PICO_PER_NANO - 1)
}

fn in_nano(pico: i128) -> NanoUsd {
    NanoUsd(i64::try_from(pico / PICO_PER_NANO).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const PRICES: Prices = Prices {
        input: 250_000,
        cached_input: 25_000,
        cache_write_5m: 312_500,
        cache_write_1h: 500_000,
        output: 2_000_000,
        reasoning_output: None,
        per_call: 0,
        per_search: 0,
    };

    #[test]
    fn every_kind_of_token_has_its_price_and_counts_once() {
        let usage =
            Usage { input: 3, cached_input: 2_455, cache_write_5m: 12_304, cache_write_1h: 1, output: 550, reasoning: 500, searches: 0 };
        assert_eq!(cost(&usage, &PRICES), NanoUsd((3 * 250 + 2_455 * 25) + (12_304 * 3_125 / 10) + 500 + 550 * 2_000));
    }

    #[test]
    fn reasoning_may_cost_otherwise_and_never_more_tokens_than_the_output() {
        let prices = Prices { reasoning_output: Some(1_000_000), ..PRICES };
        let usage = Usage { output: 10, reasoning: 4, ..Usage::default() };
        assert_eq!(cost(&usage, &prices), NanoUsd(6 * 2_000 + 4 * 1_000));
        assert_eq!(cost(&Usage { output: 1, reasoning: 9, ..Usage::default() }, &prices), NanoUsd(1_000));
    }

    #[test]
    fn a_half_is_rounded_up_once() {
        let prices = Prices { input: 100, cached_input: 399, ..Prices::default() };
        assert_eq!(cost(&Usage { input: 5, ..Usage::default() }, &prices), NanoUsd(1));
        assert_eq!(cost(&Usage { input: 1, cached_input: 1, ..Usage::default() }, &prices), NanoUsd(0));
        assert_eq!(cost(&Usage { input: 3, cached_input: 3, ..Usage::default() }, &prices), NanoUsd(1));
    }

    #[test]
    fn calls_and_searches_are_priced() {
        let prices = Prices { per_call: 7_000, per_search: 2_000, ..Prices::default() };
        assert_eq!(cost(&Usage { searches: 2, ..Usage::default() }, &prices), NanoUsd(11));
    }

    #[test]
    fn the_worst_case_is_never_below_the_cost() {
        let usage = Usage { cache_write_1h: 7, output: 3, ..Usage::default() };
        assert!(worst(7, 3, 0, &PRICES) >= cost(&usage, &PRICES));
        assert_eq!(worst(1, 0, 0, &Prices { input: 1, ..Prices::default() }), NanoUsd(1));
        assert_eq!(worst(0, 0, 3, &Prices { per_search: 2_000, per_call: 1_000, ..Prices::default() }), NanoUsd(7));
        assert_eq!(worst(u64::MAX, u64::MAX, 0, &PRICES), NanoUsd(i64::MAX));
    }
}
