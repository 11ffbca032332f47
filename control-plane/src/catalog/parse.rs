//! YAML text to a [`Catalog`], or all that is wrong with it.

use super::node::Node;
use super::parse_model::models;
use super::reader::At;
use super::{BaseUrl, Catalog, Classifier, Credential, Embeddings, Faults, Provider, Secret, chains, scalar};
use proxium_wire::{Breaker, Dialect, Endpoint, Limits};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// What an environment variable's or file's content is read with; the error says what to set.
pub(super) type Secrets<'a> = &'a dyn Fn(&Secret) -> Result<String, String>;

/// Reads and validates a whole catalog. `secrets` gives the value of a credential, or says what to do to have it.
///
/// # Errors
/// Everything that is wrong, at once; only text that is no YAML at all stops at its first fault.
pub fn parse(yaml: &str, secrets: &dyn Fn(&Secret) -> Result<String, String>) -> Result<Catalog, Faults> {
    let root: Node = serde_yaml_ng::from_str(yaml).map_err(|error| Faults::whole(format!("is not YAML that can be read: {error}")))?;
    let mut faults = Faults::default();
    let catalog = catalog(&At::root(&root), secrets, &mut faults);
    match catalog {
        Some(catalog) if faults.is_empty() => Ok(catalog),
        _ if faults.is_empty() => Err(Faults::whole("is empty: write `providers` and `models`")),
        _ => Err(faults),
    }
}

fn catalog(root: &At<'_>, secrets: Secrets<'_>, faults: &mut Faults) -> Option<Catalog> {
    let mut table = root.table(faults)?;
    let at_mesh = table.field("mesh");
    let at_providers = table.field("providers").required("name at least one provider", faults);
    let at_models = table.field("models").required("name at least one model", faults);
    let at_chains = table.field("chains");
    let at_embeddings = table.field("embeddings");
    let at_classifier = table.field("classifier");
    let at_limits = table.field("limits");
    let at_breaker = table.field("breaker");
    let at_price_guard = table.field("price_guard");
    table.finish(faults);

    // Names as written, so that a fault inside an entry does not also make its name unknown.
    let (provider_names, model_names, chain_names) = (names(&at_providers), names(&at_models), names(&at_chains));
    let is_target = |name: &str| model_names.contains(name) || chain_names.contains(name);

    let mesh = at_mesh.read(faults, |text| if text == "istio" { Ok(()) } else { Err("must be istio, or left out".to_owned()) });
    let mut providers = providers(&at_providers, secrets, faults);
    if mesh.is_some() {
        for provider in providers.values_mut() {
            let BaseUrl { host, port, .. } = &provider.endpoint;
            provider.cluster.get_or_insert_with(|| format!("outbound|{port}||{host}"));
            provider.in_mesh = true;
        }
    }
    let models = models(&at_models, &provider_names, faults);
    for (name, model) in &models {
        let lacks = |endpoint: &&Endpoint| matches!(endpoint, Endpoint::Embeddings | Endpoint::Moderations | Endpoint::Rerank);
        let dialect = providers.get(&model.provider).map(|provider| provider.dialect);
        if let (Some(Dialect::Anthropic), Some(endpoint)) = (dialect, model.endpoints.iter().find(lacks)) {
            faults.add(
                &format!("models.{name}.endpoints"),
                format!("holds {}, which no provider of the anthropic dialect has", endpoint.name()),
            );
        }
    }
    let chains = chains::flatten(&at_chains, &model_names, faults);
    let embeddings = embeddings(&at_embeddings, &model_names, faults);
    if let Some(model) = embeddings.as_ref().and_then(|embeddings| models.get(&embeddings.model))
        && !model.endpoints.contains(&Endpoint::Embeddings)
    {
        faults.add("embeddings.model", "must be a model whose `endpoints` hold embeddings");
    }
    let classifier = classifier(&at_classifier, &model_names, &is_target, faults);
    let (limits, breaker) = (limits(&at_limits, faults), breaker(&at_breaker, faults));
    let max_failover_ratio_ppm = price_guard(&at_price_guard, faults);
    Some(Catalog { providers, models, chains, embeddings, classifier, limits, breaker, max_failover_ratio_ppm })
}

fn names<'a>(at: &At<'a>) -> BTreeSet<&'a str> {
    at.entries(&mut Faults::default()).into_iter().map(|(name, _)| name).collect()
}

fn providers(at: &At<'_>, secrets: Secrets<'_>, faults: &mut Faults) -> BTreeMap<String, Provider> {
    let mut providers = BTreeMap::new();
    for (name, at) in at.entries(faults) {
        if let Err(fault) = scalar::provider_name(name) {
            faults.add(&at.path, fault);
        }
        if let Some(provider) = provider(at, secrets, faults) {
            providers.insert(name.to_owned(), provider);
        }
    }
    providers
}

fn provider(at: At<'_>, secrets: Secrets<'_>, faults: &mut Faults) -> Option<Provider> {
    let mut table = at.required("write its dialect and endpoint", faults).table(faults)?;
    let dialect = table.field("dialect").required("openai or anthropic", faults).read(faults, |text| match text {
        "openai" => Ok(Dialect::Openai),
        "anthropic" => Ok(Dialect::Anthropic),
        _ => Err("must be openai or anthropic".to_owned()),
    });
    let endpoint = table.field("endpoint").required("a URL like https://api.openai.com/v1", faults).read(faults, BaseUrl::parse);
    let cluster = table.field("cluster").read(faults, |text| {
        scalar::visible(text, 255)
            .map(|()| text.to_owned())
            .ok_or_else(|| "must be the name of a cluster of Envoy, without spaces".to_owned())
    });
    let authority = table.field("authority").read(faults, |text| match super::split_port(text) {
        Some((_, port)) if port.is_none_or(|port| port.parse::<u16>().is_ok()) => Ok(text.to_owned()),
        _ => Err("must be a host, if needed with :port".to_owned()),
    });
    let credential = credential(&table.field("credential"), secrets, faults);
    let chat_only = table.field("responses").read(faults, |text| match text {
        "native" => Ok(false),
        "chat" => Ok(true),
        _ => Err("must be native (it has /responses itself), or chat (such calls are translated to /chat/completions)".to_owned()),
    });
    table.finish(faults);
    let chat_only = chat_only.unwrap_or_default();
    Some(Provider { dialect: dialect?, endpoint: endpoint?, cluster, in_mesh: false, authority, credential, chat_only })
}

fn credential(at: &At<'_>, secrets: Secrets<'_>, faults: &mut Faults) -> Option<Credential> {
    let mut table = at.table(faults)?;
    let env = table.field("env").text(faults).map(|name| Secret::Env(name.to_owned()));
    let file = table.field("file").text(faults).map(|path| Secret::File(PathBuf::from(path)));
    table.finish(faults);
    let secret = match (env, file) {
        (Some(secret), None) | (None, Some(secret)) => secret,
        _ => {
            faults.add(&at.path, "must be either {env: NAME} or {file: /path}");
            return None;
        }
    };
    match secrets(&secret) {
        // It becomes a header's value; the fault must not show it.
        Ok(value) if scalar::visible(&value, 8192).is_none() => {
            faults.add(&at.path, "is empty or holds spaces or other characters that no header can carry: set the provider's key alone");
            None
        }
        Ok(value) => Some(Credential(value)),
        Err(fault) => {
            faults.add(&at.path, fault);
            None
        }
    }
}

fn embeddings(at: &At<'_>, models: &BTreeSet<&str>, faults: &mut Faults) -> Option<Embeddings> {
    let mut table = at.table(faults)?;
    let model = model_of(&table.field("model"), models, faults);
    table.finish(faults);
    Some(Embeddings { model: model? })
}

fn classifier(at: &At<'_>, models: &BTreeSet<&str>, is_target: &dyn Fn(&str) -> bool, faults: &mut Faults) -> Option<Classifier> {
    let target = |text: &str| {
        is_target(text).then(|| text.to_owned()).ok_or_else(|| format!("names `{text}`, which is neither a chain nor a model here"))
    };
    let mut table = at.table(faults)?;
    let model = model_of(&table.field("model"), models, faults);
    let at_tiers = table.field("tiers").required("map the classifier's answers to chains", faults);
    let tiers = at_tiers.entries(faults).into_iter().filter_map(|(tier, at)| {
        let at = at.required("name a chain or a model", faults);
        Some((tier.to_owned(), at.read(faults, target)?))
    });
    let tiers = tiers.collect();
    let fallback = table.field("fallback").required("name a chain or a model", faults).read(faults, target);
    let timeout_ms = table.field("timeout").read(faults, scalar::duration_ms).unwrap_or(2_000);
    table.finish(faults);
    Some(Classifier { model: model?, tiers, fallback: fallback?, timeout_ms })
}

fn model_of(at: &At<'_>, models: &BTreeSet<&str>, faults: &mut Faults) -> Option<String> {
    at.clone().required("name a model", faults).read(faults, |text| {
        models.contains(text).then(|| text.to_owned()).ok_or_else(|| format!("names `{text}`, which is no model here"))
    })
}

fn limits(at: &At<'_>, faults: &mut Faults) -> Limits {
    let mut limits = Limits { max_body_bytes: 10 << 20, default_timeout_ms: 300_000, max_timeout_ms: 600_000 };
    let Some(mut table) = at.table(faults) else { return limits };
    let max_body = table.field("max_body").read(faults, scalar::size_bytes);
    let at_default = table.field("default_timeout");
    let default = at_default.read(faults, scalar::duration_ms);
    let max = table.field("max_timeout").read(faults, scalar::duration_ms);
    table.finish(faults);
    limits.max_body_bytes = max_body.unwrap_or(limits.max_body_bytes);
    limits.max_timeout_ms = max.unwrap_or(limits.max_timeout_ms);
    // A lower maximum alone lowers the default too; only a written contradiction is a fault.
    limits.default_timeout_ms = default.unwrap_or(limits.default_timeout_ms.min(limits.max_timeout_ms));
    if limits.default_timeout_ms > limits.max_timeout_ms {
        faults.add(&at_default.path, "must not be longer than limits.max_timeout");
    }
    limits
}

fn price_guard(at: &At<'_>, faults: &mut Faults) -> Option<u64> {
    let mut table = at.table(faults)?;
    let max_ratio = table.field("max_ratio").required("a number of at least 1, like 3.0", faults).read(faults, scalar::factor_ppm);
    table.finish(faults);
    max_ratio
}

fn breaker(at: &At<'_>, faults: &mut Faults) -> Breaker {
    let mut breaker = Breaker {
        consecutive_failures: 5,
        failure_ratio_ppm: 500_000,
        min_requests: 20,
        window_ms: 30_000,
        cooldown_ms: 30_000,
        max_cooldown_ms: 300_000,
    };
    let Some(mut table) = at.table(faults) else { return breaker };
    let count = |text: &str| u32::try_from(scalar::whole(text, 1, 100_000)?).map_err(|error| error.to_string());
    let consecutive = table.field("consecutive_failures").read(faults, count);
    let ratio = table.field("failure_ratio").read(faults, scalar::ratio_ppm);
    let min_requests = table.field("min_requests").read(faults, count);
    let window = table.field("window").read(faults, scalar::duration_ms);
    let cooldown = table.field("cooldown").read(faults, scalar::duration_ms);
    let at_max = table.field("max_cooldown");
    let max_cooldown = at_max.read(faults, scalar::duration_ms);
    table.finish(faults);
    breaker.consecutive_failures = consecutive.unwrap_or(breaker.consecutive_failures);
    breaker.failure_ratio_ppm = ratio.unwrap_or(breaker.failure_ratio_ppm);
    breaker.min_requests = min_requests.unwrap_or(breaker.min_requests);
    breaker.window_ms = window.unwrap_or(breaker.window_ms);
    breaker.cooldown_ms = cooldown.unwrap_or(breaker.cooldown_ms);
    breaker.max_cooldown_ms = max_cooldown.unwrap_or(breaker.max_cooldown_ms.max(breaker.cooldown_ms));
    if breaker.cooldown_ms > breaker.max_cooldown_ms {
        faults.add(&at_max.path, "must not be shorter than breaker.cooldown");
    }
    breaker
}
