//! Catalogs for tests.

use crate::Mocks;

/// The environment of every control plane: what catalogs name as `credential: {env: …}`.
pub const CREDENTIALS: [(&str, &str); 3] = [
    ("FIRST_CREDENTIAL", "platform-credential-of-first"),
    ("SECOND_CREDENTIAL", "platform-credential-of-second"),
    ("THIRD_CREDENTIAL", "platform-credential-of-third"),
];

/// Only the `providers:` of [`three_providers`], to write one's own models under.
#[must_use]
pub fn providers(mocks: &Mocks) -> String {
    let provider = |name: &str, addr| {
        let variable = name.to_uppercase();
        format!("  {name}: {{dialect: openai, endpoint: \"http://{addr}/v1\", credential: {{env: {variable}_CREDENTIAL}}}}\n")
    };
    let (first, second, third) = (mocks.first.addr(), mocks.second.addr(), mocks.third.addr());
    format!("providers:\n{}{}{}", provider("first", first), provider("second", second), provider("third", third))
}

/// Models `m1`, `m2`, `m3`, one a provider; chains `fast: [m1, m2]`, `long: [m1, m2, m3]`. Per million tokens: input 1, 2, 3 USD, cached
/// input a tenth, output 10, 20, 30 USD.
#[must_use]
pub fn three_providers(mocks: &Mocks) -> String {
    let model = |name: &str, provider: &str, price: u32| {
        format!(
            "  {name}: {{provider: {provider}, price_usd_per_mtok: {{input: {price}, cached_input: 0.{price}, output: {price}0}}, \
             max_output_tokens: 1000, timeout: 30s}}\n"
        )
    };
    format!(
        "{}models:\n{}{}{}chains:\n  fast: [m1, m2]\n  long: [m1, m2, m3]\n",
        providers(mocks),
        model("m1", "first", 1),
        model("m2", "second", 2),
        model("m3", "third", 3)
    )
}

/// Every provider in both dialects: models `m1` to `m3` (OpenAI's), and `a1` to `a3` (Anthropic's) on the same mocks, priced as in
/// [`three_providers`] with cache writes at twice the input. The first event has a second. Chains: `<of the first>-<of the
/// second>` and `<of the first>-<of the second>-<of the third>`, like `m1-a2-m3`.
#[must_use]
pub fn both_dialects(mocks: &Mocks) -> String {
    let mut yaml = providers(mocks);
    let mut models = String::from("models:\n");
    for (number, name, mock) in [(1, "first", &mocks.first), (2, "second", &mocks.second), (3, "third", &mocks.third)] {
        let (addr, variable) = (mock.addr(), name.to_uppercase());
        yaml +=
            &format!("  {name}_a: {{dialect: anthropic, endpoint: \"http://{addr}/v1\", credential: {{env: {variable}_CREDENTIAL}}}}\n");
        for (model, provider) in [(format!("m{number}"), name.to_owned()), (format!("a{number}"), format!("{name}_a"))] {
            models += &format!(
                "  {model}: {{provider: {provider}, price_usd_per_mtok: {{input: {number}, cached_input: 0.{number}, cache_write_5m: {}, \
                 output: {number}0}}, max_output_tokens: 1000, timeout: 30s, first_byte_timeout: 1s}}\n",
                2 * number
            );
        }
    }
    let mut chains = String::from("chains:\n");
    for first in ["m1", "a1"] {
        for second in ["m2", "a2"] {
            chains += &format!("  {first}-{second}: [{first}, {second}]\n");
            for third in ["m3", "a3"] {
                chains += &format!("  {first}-{second}-{third}: [{first}, {second}, {third}]\n");
            }
        }
    }
    yaml + &models + &chains
}

/// The same with twenty seconds for the first event, for tests that keep the machine busy.
#[must_use]
pub fn both_dialects_patient(mocks: &Mocks) -> String {
    both_dialects(mocks).replace("first_byte_timeout: 1s", "first_byte_timeout: 20s")
}

/// Two models for each endpoint of the short path, the first of the first provider, the second of the second, and a chain of both; and
/// `m1` for chat. Responses: `p1`, `p2` as themselves, `c3` of a provider that only speaks chat, `a3` of an Anthropic one.
///
/// | endpoint | chain | models | price |
/// |---|---|---|---|
/// | embeddings | `embed` | `e1`, `e2` | 0.02, 0.13 USD per million tokens |
/// | moderations | `moderate` | `o1`, `o2` | free; 0.0005 USD per call |
/// | rerank | `rank` | `r1`, `r2` | 0.002 USD per search; 0.05 USD per million tokens |
/// | responses | `respond` | `p1`, `p2`; `c3`, `a3` | input 1, cached 0.1, output 10 USD per million tokens; twice, three times as much |
#[must_use]
pub fn every_endpoint(mocks: &Mocks) -> String {
    let third = mocks.third.addr();
    let providers = providers(mocks)
        + &format!(
            "  chatty: {{dialect: openai, endpoint: \"http://{third}/v1\", responses: chat, credential: {{env: THIRD_CREDENTIAL}}}}\n"
        )
        + &format!("  claude: {{dialect: anthropic, endpoint: \"http://{third}/v1\", credential: {{env: THIRD_CREDENTIAL}}}}\n");
    let generates = |price: u32| {
        format!("price_usd_per_mtok: {{input: {price}, cached_input: 0.{price}, output: {price}0}}, max_output_tokens: 1000, timeout: 30s")
    };
    let models = [
        ("m1", "first", "chat, messages", generates(1)),
        ("e1", "first", "embeddings", "price_usd_per_mtok: {input: 0.02}".into()),
        ("e2", "second", "embeddings", "price_usd_per_mtok: {input: 0.13}".into()),
        ("o1", "first", "moderations", "free: true".into()),
        ("o2", "second", "moderations", "price_usd_per_call: 0.0005".into()),
        ("r1", "first", "rerank", "price_usd_per_search: 0.002".into()),
        ("r2", "second", "rerank", "price_usd_per_mtok: {input: 0.05}".into()),
        ("p1", "first", "responses", generates(1)),
        ("p2", "second", "responses", generates(2)),
        ("c3", "chatty", "responses", generates(3)),
        ("a3", "claude", "responses", generates(3)),
    ];
    let models: String = models
        .into_iter()
        .map(|(name, provider, endpoints, price)| format!("  {name}: {{provider: {provider}, endpoints: [{endpoints}], {price}}}\n"))
        .collect();
    format!("{providers}models:\n{models}chains:\n  embed: [e1, e2]\n  moderate: [o1, o2]\n  rank: [r1, r2]\n  respond: [p1, p2]\n")
}
