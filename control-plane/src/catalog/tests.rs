//! Whole catalogs: what is refused, and what comes out of what is not.

use super::*;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const GOOD: &str = r#"
providers:
  openai:    {dialect: openai, endpoint: https://api.openai.com/v1, credential: {env: OPENAI_API_KEY}}
  anthropic: {dialect: anthropic, endpoint: https://api.anthropic.com/v1, credential: {file: /run/secrets/anthropic}}
  local:     {dialect: openai, endpoint: http://127.0.0.1:11434/v1, responses: chat}
  mesh:      {dialect: openai, endpoint: http://llm.svc:8000, cluster: "outbound|8000||llm.svc", authority: llm.example}
models:
  gpt-5-mini:
    provider: openai
    price_usd_per_mtok: {input: 0.25, cached_input: 0.025, output: 2.00}
    max_output_tokens: 16384
    timeout: 90s
    first_byte_timeout: 15s
  claude-haiku-4-5:
    provider: anthropic
    price_usd_per_mtok: {input: 1, cached_input: 0.1, cache_write_5m: "1.25", cache_write_1h: 2, output: 5, reasoning_output: 6}
    price_usd_per_call: 0.01
  meta/llama:3.2: {provider: local, free: true, upstream: llama3.2}
  text-embedding-3-small: {provider: openai, endpoints: [embeddings], price_usd_per_mtok: {input: 0.02}}
  rerank-1: {provider: mesh, endpoints: [rerank], price_usd_per_search: 0.002}
chains:
  fast: [gpt-5-mini, claude-haiku-4-5]
  smart: [claude-haiku-4-5, fast, "meta/llama:3.2"]
  auto: [fast]
  gpt-5-mini: [gpt-5-mini, "meta/llama:3.2"]
  "*": [fast]
embeddings: {model: text-embedding-3-small}
classifier: {model: gpt-5-mini, tiers: {simple: fast, hard: smart}, fallback: fast}
limits: {max_body: 5MiB, default_timeout: 100s, max_timeout: 200s}
breaker: {consecutive_failures: 3, failure_ratio: 0.25, min_requests: 10, window: 10s, cooldown: 5s, max_cooldown: 60s}
"#;

const SMALL: &str = "providers: {p: {dialect: openai, endpoint: 'http://127.0.0.1:1'}}\nmodels: {m: {provider: p, free: true}}\n";

fn given(_: &Secret) -> Result<String, String> {
    Ok("sk-test".to_owned())
}

fn good(yaml: &str) -> Catalog {
    parse(yaml, &given).unwrap_or_else(|faults| panic!("{faults}"))
}

/// The faults of `yaml`, one a line.
fn faults(yaml: &str) -> Vec<String> {
    parse(yaml, &given).expect_err("this catalog must be refused").to_string().lines().map(str::to_owned).collect()
}

/// The only fault of the small catalog with `more` added.
fn fault(more: &str) -> String {
    let faults = faults(&format!("{SMALL}{more}"));
    assert_eq!(faults.len(), 1, "{faults:#?}");
    faults[0].clone()
}

/// The only fault of a model written so.
fn model_fault(model: &str) -> String {
    let faults = faults(&format!("providers: {{p: {{dialect: openai, endpoint: 'http://127.0.0.1:1'}}}}\nmodels:\n  m: {model}\n"));
    assert_eq!(faults.len(), 1, "{faults:#?}");
    faults[0].clone()
}

#[test]
fn a_full_catalog_is_read_whole() {
    let catalog = good(GOOD);
    let haiku = &catalog.models["claude-haiku-4-5"];
    assert_eq!(
        haiku.prices,
        Prices {
            input: 1_000_000,
            cached_input: 100_000,
            cache_write_5m: 1_250_000,
            cache_write_1h: 2_000_000,
            output: 5_000_000,
            reasoning_output: Some(6_000_000),
            per_call: 10_000_000_000,
            per_search: 0,
        }
    );
    assert_eq!((haiku.timeout_ms, haiku.first_byte_timeout_ms, haiku.max_output_tokens), (120_000, 20_000, 16_384));
    assert_eq!(haiku.endpoints, [Endpoint::Chat, Endpoint::Messages]);
    let mini = &catalog.models["gpt-5-mini"];
    assert_eq!((mini.prices.input, mini.prices.cached_input, mini.prices.output), (250_000, 25_000, 2_000_000));
    assert_eq!((mini.prices.cache_write_5m, mini.prices.cache_write_1h), (250_000, 250_000), "cache writes default to the input price");
    assert_eq!((mini.timeout_ms, mini.first_byte_timeout_ms), (90_000, 15_000));
    assert_eq!(catalog.models["meta/llama:3.2"].prices, Prices::default());
    assert_eq!(catalog.models["rerank-1"].prices.per_search, 2_000_000_000);
    assert_eq!(catalog.models["text-embedding-3-small"].max_output_tokens, 0);
    assert_eq!(catalog.limits, Limits { max_body_bytes: 5 << 20, default_timeout_ms: 100_000, max_timeout_ms: 200_000 });
    assert_eq!((catalog.breaker.failure_ratio_ppm, catalog.breaker.max_cooldown_ms), (250_000, 60_000));
    assert_eq!(catalog.classifier.as_ref().map(|classifier| classifier.timeout_ms), Some(2_000));
}

#[test]
fn chains_of_chains_become_models_each_once_in_order() {
    let catalog = good(GOOD);
    assert_eq!(catalog.chains["smart"], ["claude-haiku-4-5", "gpt-5-mini", "meta/llama:3.2"]);
    assert_eq!(catalog.chains["auto"], ["gpt-5-mini", "claude-haiku-4-5"]);
    assert_eq!(catalog.chains["*"], catalog.chains["fast"]);
}

#[test]
fn a_chain_may_bear_the_name_of_a_model_which_lists_then_mean() {
    let catalog = good(GOOD);
    assert_eq!(catalog.chains["gpt-5-mini"], ["gpt-5-mini", "meta/llama:3.2"]);
    assert_eq!(catalog.chains["fast"], ["gpt-5-mini", "claude-haiku-4-5"], "the model, not the chain of its name");
}

#[test]
fn the_wire_message_says_where_each_provider_is() {
    let wire = good(GOOD).to_wire();
    let provider = |name| wire.providers.iter().find(|provider| provider.name == name).unwrap();
    let openai = provider("openai");
    assert_eq!(
        (openai.authority.as_str(), openai.path_prefix.as_str(), openai.credential.as_deref()),
        ("api.openai.com", "/v1", Some("sk-test"))
    );
    assert!(openai.cluster.starts_with("provider-openai-"), "{}", openai.cluster);
    let mesh = provider("mesh");
    assert_eq!((mesh.cluster.as_str(), mesh.authority.as_str(), mesh.path_prefix.as_str()), ("outbound|8000||llm.svc", "llm.example", ""));
    assert_eq!((provider("local").authority.as_str(), provider("local").chat_only, openai.chat_only), ("127.0.0.1:11434", true, false));
    assert_eq!(provider("anthropic").dialect, Dialect::Anthropic as i32);
    assert_eq!(wire.models.iter().find(|model| model.name == "meta/llama:3.2").unwrap().upstream, "llama3.2");
}

#[test]
fn a_provider_that_leads_elsewhere_is_another_cluster_and_only_then() {
    let cluster = |yaml: &str| good(yaml).to_wire().providers[0].cluster.clone();
    let first = cluster(SMALL);
    assert_eq!(first, cluster(&SMALL.replace("127.0.0.1:1", "127.0.0.1:1/v2")), "a path is no other place");
    for elsewhere in ["127.0.0.1:2", "127.0.0.2:1", "127.0.0.1:1', authority: 'a"] {
        assert_ne!(first, cluster(&SMALL.replace("127.0.0.1:1", elsewhere)), "{elsewhere}");
    }
}

#[test]
fn the_revision_follows_content_and_credentials_and_nothing_else() {
    let catalog = good(GOOD);
    assert_eq!(catalog.revision(), good(&format!("# a comment\n{GOOD}")).revision());
    assert_ne!(catalog.revision(), good(&GOOD.replace("output: 2.00", "output: 2.01")).revision());
    let other = parse(GOOD, &|_| Ok("sk-other".to_owned())).unwrap();
    assert_ne!(catalog.revision(), other.revision());
    assert!(!format!("{catalog:?}").contains("sk-test"), "a credential is in no debug text");
}

#[test]
fn all_faults_are_told_at_once_with_their_paths() {
    let found = faults(
        r#"
providers:
  OpenAI: {dialect: gemini, endpoint: api.openai.com, credential: {}, colour: blue}
  p: {dialect: openai, endpoint: 'http://127.0.0.1:1'}
models:
  a: {provider: nobody, free: true}
  b: {provider: p}
  c: {provider: p, price_usd_per_mtok: {input: 0.0000001, putput: 2}}
  d: {provider: p, free: true, timeout: 120}
chains:
  x: [y]
  y: [x, z]
color: red
"#,
    );
    let paths: Vec<&str> = found.iter().map(|line| line.split_once(": ").unwrap().0).collect();
    assert_eq!(
        paths,
        [
            "color",
            "providers.OpenAI",
            "providers.OpenAI.dialect",
            "providers.OpenAI.endpoint",
            "providers.OpenAI.credential",
            "providers.OpenAI.colour",
            "models.a.provider",
            "models.b",
            "models.c.price_usd_per_mtok.input",
            "models.c.price_usd_per_mtok.output",
            "models.c.price_usd_per_mtok.putput",
            "models.d.timeout",
            "chains.y[0]",
            "chains.y[1]",
        ],
        "{found:#?}"
    );
}

#[test]
fn a_faulty_provider_does_not_make_its_models_faulty() {
    let found = faults("providers: {p: {dialect: x, endpoint: 'http://a'}}\nmodels: {m: {provider: p, free: true}}");
    assert_eq!(found, ["providers.p.dialect: must be openai or anthropic"]);
}

#[test]
fn nothing_is_no_catalog() {
    assert_eq!(faults(""), ["is empty: write `providers` and `models`"]);
    assert_eq!(faults("chains: {}").len(), 2);
    assert_eq!(faults("providers: {}\nmodels: {}").len(), 2);
    assert!(faults("a: [")[0].starts_with("is not YAML"));
    assert_eq!(faults("[1]"), ["must be a map like {name: value}, not a list"]);
    assert_eq!(faults("providers: {p: }\nmodels: {m: }").len(), 2);
}

#[test]
fn a_key_written_twice_is_a_fault() {
    assert_eq!(model_fault("{provider: p, free: true, free: true}"), "models.m.free: is written twice: keep one");
    assert_eq!(fault("models: {n: {provider: p, free: true}}"), "models: is written twice: keep one");
}

#[test]
fn a_model_without_a_price_is_refused_unless_free() {
    assert!(model_fault("{provider: p}").starts_with("models.m: has no price"));
    assert!(model_fault("{provider: p, free: false}").starts_with("models.m: has no price"));
    assert!(model_fault("{provider: p, price_usd_per_call: 1}").starts_with("models.m: has no price"), "its tokens would be free");
    assert!(model_fault("{provider: p, free: true, price_usd_per_call: 1}").starts_with("models.m.free: cannot stand"));
    assert!(model_fault("{provider: p, price_usd_per_mtok: {input: 1}}").starts_with("models.m.price_usd_per_mtok.output: is missing"));
    assert!(
        model_fault("{provider: p, price_usd_per_mtok: {input: 1, output: -2}}").starts_with("models.m.price_usd_per_mtok.output: must")
    );
    assert!(model_fault("{provider: p, price_usd_per_mtok: {input: true, output: 2}}").contains("not true or false"));
}

#[test]
fn what_a_dialect_does_not_have_and_a_word_it_does_not_know_are_faults() {
    let fault = |provider: &str, model: &str| {
        let found =
            faults(&format!("providers: {{p: {{{provider}, endpoint: 'http://127.0.0.1:1'}}}}\nmodels: {{m: {{provider: p, {model}}}}}\n"));
        assert_eq!(found.len(), 1, "{found:#?}");
        found[0].clone()
    };
    for endpoint in ["embeddings", "moderations", "rerank"] {
        let found = fault("dialect: anthropic", &format!("free: true, endpoints: [chat, {endpoint}]"));
        assert!(found.starts_with("models.m.endpoints: ") && found.contains(endpoint), "{found}");
    }
    assert!(fault("dialect: openai, responses: 'yes'", "free: true").starts_with("providers.p.responses: "));
}

#[test]
fn what_a_field_cannot_hold_is_a_fault_of_that_field() {
    for (model, path) in [
        ("{provider: p, free: true, endpoints: []}", "models.m.endpoints"),
        ("{provider: p, free: true, endpoints: [chat, dance]}", "models.m.endpoints[1]"),
        ("{provider: p, free: true, endpoints: chat}", "models.m.endpoints"),
        ("{provider: p, free: 'yes'}", "models.m"),
        ("{provider: p, free: true, upstream: 4.1}", "models.m.upstream"),
        ("{provider: p, free: true, upstream: ''}", "models.m.upstream"),
        ("{provider: p, free: true, max_output_tokens: 0}", "models.m.max_output_tokens"),
        ("{provider: p, free: true, max_output_tokens: 1.5}", "models.m.max_output_tokens"),
        ("{provider: p, free: true, timeout: 5s, first_byte_timeout: 6s}", "models.m.first_byte_timeout"),
        ("[1]", "models.m"),
    ] {
        let found = faults(&format!("providers: {{p: {{dialect: openai, endpoint: 'http://127.0.0.1:1'}}}}\nmodels:\n  m: {model}\n"));
        assert!(found.iter().any(|line| line.starts_with(&format!("{path}: "))), "{model}: {found:#?}");
    }
    for (more, path) in [
        ("limits: {max_body: 10MB}", "limits.max_body"),
        ("limits: {max_timeout: 10s, default_timeout: 20s}", "limits.default_timeout"),
        ("limits: {max_bodies: 1}", "limits.max_bodies"),
        ("breaker: {failure_ratio: 1.5}", "breaker.failure_ratio"),
        ("breaker: {consecutive_failures: 0}", "breaker.consecutive_failures"),
        ("breaker: {cooldown: 60s, max_cooldown: 30s}", "breaker.max_cooldown"),
        ("chains: {c: []}", "chains.c"),
        ("chains: {c: }", "chains.c"),
        ("chains: {c: [c]}", "chains.c[0]"),
        ("chains: {c: ['*'], '*': [m]}", "chains.c[0]"),
        ("chains: {'a b': [m]}", "chains.a b"),
        ("embeddings: {model: m}", "embeddings.model"),
        ("embeddings: {model: n}", "embeddings.model"),
        ("classifier: {model: m, tiers: {a: nothing}, fallback: m}", "classifier.tiers.a"),
        ("classifier: {model: m, fallback: m}", "classifier.tiers"),
        ("classifier: {model: m, tiers: {a: m}}", "classifier.fallback"),
    ] {
        assert!(fault(more).starts_with(&format!("{path}: ")), "{more}: {}", fault(more));
    }
}

#[test]
fn a_cycle_is_shown_whole() {
    let found = fault("chains: {a: [b], b: [c, m], c: [a]}");
    assert_eq!(found, "chains.c[0]: closes a circle: a -> b -> c -> a; take one of them out");
}

#[test]
fn a_credential_that_is_absent_says_what_to_set() {
    let dir = Dir::new();
    let file = dir.write("catalog.yaml", GOOD.replace("OPENAI_API_KEY", "PROXIUM_TEST_ABSENT").as_str());
    let found = load(&file).expect_err("neither credential is there").to_string();
    assert!(found.contains("providers.openai.credential: set the environment variable PROXIUM_TEST_ABSENT"), "{found}");
    assert!(found.contains("providers.anthropic.credential: cannot read /run/secrets/anthropic"), "{found}");
    assert!(load_without_credentials(&file).is_ok_and(|catalog| catalog.providers["openai"].credential.is_none()));
}

#[test]
fn a_credential_that_no_header_can_carry_is_refused_and_not_shown() {
    for secret in ["", "two words", "line\nbreak", "ключ"] {
        let found = parse(GOOD, &|_| Ok(secret.to_owned())).expect_err("refused").to_string();
        assert!(found.contains("providers.openai.credential: is empty or holds"), "{found}");
        assert!(secret.is_empty() || !found.contains(secret), "{found}");
    }
}

#[test]
fn the_catalogs_that_come_with_proxium_are_good() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/catalog");
    for name in ["demo.yaml", "example.yaml", "example-multi.yaml"] {
        load_without_credentials(&dir.join(name)).unwrap_or_else(|faults| panic!("{name}\n{faults}"));
    }
    load(&dir.join("demo.yaml")).expect("the demo needs no credential");
}

#[test]
fn a_good_edit_is_taken_and_a_bad_one_refused() {
    let dir = Dir::new();
    let file = dir.write("catalog.yaml", SMALL);
    let watched = watch(&file, |_| Ok(()));
    let first = watched.current();
    dir.write("catalog.yaml", "providers: {p: {dialect: openai, endpoint: 'http://a'}}");
    eventually(|| watched.last_fault().is_some_and(|fault| fault.contains("models: is missing")));
    assert!(Arc::ptr_eq(&first, &watched.current()), "the old catalog stays");
    dir.write("catalog.yaml", &SMALL.replace("m:", "n:"));
    eventually(|| watched.current().models.contains_key("n"));
    assert_eq!(watched.last_fault(), None);
    std::fs::remove_file(&file).unwrap();
    eventually(|| watched.last_fault().is_some_and(|fault| fault.contains("cannot read")));
    assert!(watched.current().models.contains_key("n"));
    dir.write("catalog.yaml", &SMALL.replace("m:", "n:"));
    eventually(|| watched.last_fault().is_none());
}

#[test]
fn a_new_credential_in_its_file_makes_a_new_revision() {
    let dir = Dir::new();
    dir.write("key", "sk-one\n");
    let file = dir.write("catalog.yaml", &SMALL.replace("'http://127.0.0.1:1'", "'http://127.0.0.1:1', credential: {file: key}"));
    let watched = watch(&file, |_| Ok(()));
    let (revision, wire) = (watched.current().revision(), watched.current().to_wire());
    assert_eq!(wire.providers[0].credential.as_deref(), Some("sk-one"));
    dir.write("key", "sk-two\n");
    eventually(|| watched.current().revision() != revision);
    assert_eq!(watched.current().to_wire().providers[0].credential.as_deref(), Some("sk-two"));
}

#[test]
fn a_swap_that_fails_is_tried_again_and_the_old_catalog_kept_meanwhile() {
    let dir = Dir::new();
    let file = dir.write("catalog.yaml", SMALL);
    let full = Arc::new(AtomicBool::new(false));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (disk, swaps) = (full.clone(), seen.clone());
    let watched = watch(&file, move |catalog| {
        if disk.load(Ordering::SeqCst) {
            return Err("the disk is full".to_owned());
        }
        swaps.lock().unwrap().push(catalog.models.keys().next().cloned().unwrap());
        Ok(())
    });
    full.store(true, Ordering::SeqCst);
    dir.write("catalog.yaml", &SMALL.replace("m:", "n:"));
    eventually(|| watched.last_fault().as_deref() == Some("the disk is full"));
    assert!(watched.current().models.contains_key("m"));
    full.store(false, Ordering::SeqCst);
    eventually(|| watched.current().models.contains_key("n"));
    assert_eq!(watched.last_fault(), None);
    assert_eq!(*seen.lock().unwrap(), ["m", "n"], "once for each catalog, the first included");
}

fn watch(file: &Path, on_swap: impl Fn(&Catalog) -> Result<(), String> + Send + 'static) -> Watched {
    Watched::start_polling(file.to_owned(), Duration::from_millis(5), Box::new(on_swap)).unwrap_or_else(|faults| panic!("{faults}"))
}

fn eventually(holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < end, "did not come true within 10 s");
        std::thread::yield_now();
    }
}

/// A directory that is removed with its value.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("proxium-catalog-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
