//! What an operator sees of calls: Envoy's Prometheus endpoint, the control plane's, the access log; and one trace through all callouts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use proxium::mock_provider::Behaviour;
use proxium_e2e::{BOUND, Call, Key, Mocks, Stack, catalog, chat, eventually};
use serde_json::{Value, json};

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The sum of a metric's series that have these labels.
fn sum(text: &str, metric: &str, labels: &[(&str, &str)]) -> f64 {
    let series = text.lines().filter(|line| {
        line.strip_prefix(metric).is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|(label, value)| line.contains(&format!("{label}=\"{value}\"")))
    });
    series.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

/// Waits until a metric of the first Envoy says so: a call is counted when it is over, after its answer.
async fn counted(stack: &Stack, metric: &str, labels: &[(&str, &str)], expected: f64) {
    let what = format!("{metric}{labels:?} is {expected}");
    eventually(&what, BOUND, || async {
        let text = stack.envoys[0].admin("/stats/prometheus?usedonly").await;
        let found = sum(&text, metric, labels);
        let ours = || text.lines().filter(|line| line.contains("proxium_") || line.contains("gen_ai_")).collect::<Vec<_>>().join("\n");
        if (found - expected).abs() < 0.5 { Ok(()) } else { Err(format!("{found}\n{}", ours())) }
    })
    .await;
}

/// The access log's line of a call.
async fn logged(stack: &Stack, request_id: &str) -> Value {
    let mut line = Value::Null;
    eventually("the call is in the access log", BOUND, || {
        let log = stack.envoys[0].process().log();
        let found = log.lines().find(|line| line.starts_with('{') && line.contains(request_id)).map(str::to_owned);
        line = found.as_deref().map_or(Value::Null, |line| serde_json::from_str(line).unwrap());
        let there = line != Value::Null;
        async move { there }
    })
    .await;
    line
}

fn stream(key: &Key, model: &str, text: &str) -> Call {
    let mut body = chat(model, text);
    body["stream"] = json!(true);
    Call::chat(key, &body)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_is_counted_once_under_names_of_the_catalog_and_in_the_access_log() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 4}})).await;
    let usage = json!({"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107});

    stack.mocks.first.next("m1", [Behaviour::answer().usage(usage.clone())]);
    let body = chat("m1", "the secret prompt");
    let miss = stack.call(&Call::chat(&key, &body).header("traceparent", TRACEPARENT)).await.expect(200);
    stack.kept(&key.project, &miss).await;
    let hit = stack.chat(&key, &body).await.expect(200);
    assert_eq!(hit.header("x-proxium-cache"), Some("hit"));
    stack.mocks.first.next("m1", [Behaviour::status(500)]);
    let failover = stack.chat(&key, &chat("fast", "failover")).await.expect(200);
    let streamed = stack.call(&stream(&key, "m3", "a stream")).await.expect(200);
    stack.settled(&key.project, &streamed).await;
    let unknown = stack.chat(&key, &chat("no-such-model", "?")).await.expect(404);
    let _ = stack.chat(&key, &chat("m1", "the last one that is allowed")).await.expect(200);
    let capped = stack.chat(&key, &chat("m1", "one too many")).await.expect(429);
    let _ = stack.chat("px_wrong", &chat("m1", "?")).await.expect(401);

    let ok = [("endpoint", "chat"), ("status", "200"), ("code", "ok")];
    counted(&stack, "proxium_calls_total", &ok, 5.0).await;
    counted(&stack, "proxium_calls_total", &[("code", "tenant_capped"), ("status", "429")], 1.0).await;
    counted(&stack, "proxium_calls_total", &[("code", "invalid_key"), ("status", "401")], 1.0).await;
    counted(&stack, "proxium_cache_results_total", &[("cache", "hit")], 1.0).await;
    counted(&stack, "proxium_cache_results_total", &[("cache", "miss")], 4.0).await;
    let attempts = |outcome, provider, model| [("outcome", outcome), ("provider", provider), ("model", model)];
    counted(&stack, "proxium_attempts_total", &attempts("ok", "first", "m1"), 2.0).await;
    counted(&stack, "proxium_attempts_total", &attempts("status_500", "first", "m1"), 1.0).await;
    counted(&stack, "proxium_attempts_total", &attempts("ok", "second", "m2"), 1.0).await;
    counted(&stack, "proxium_attempts_total", &attempts("ok", "third", "m3"), 1.0).await;

    let of = |provider, model| [("gen_ai_operation_name", "chat"), ("gen_ai_provider_name", provider), ("gen_ai_response_model", model)];
    counted(&stack, "gen_ai_server_request_duration_milliseconds_count", &of("first", "m1"), 3.0).await;
    counted(&stack, "gen_ai_server_request_duration_milliseconds_count", &of("third", "m3"), 1.0).await;
    counted(&stack, "gen_ai_server_time_to_first_token_milliseconds_count", &of("third", "m3"), 1.0).await;
    counted(&stack, "gen_ai_client_operation_duration_milliseconds_count", &[("gen_ai_response_model", "m1")], 3.0).await;
    let tokens = |kind| [("gen_ai_token_type", kind), ("gen_ai_provider_name", "first"), ("gen_ai_response_model", "m1")];
    counted(&stack, "gen_ai_client_token_usage_count", &tokens("input"), 2.0).await;
    counted(&stack, "gen_ai_client_token_usage_bucket", &[tokens("output")[0], tokens("output")[2], ("le", "4194304")], 2.0).await;
    counted(&stack, "proxium_outbox_pending", &[], 0.0).await;
    let text = stack.envoys[0].admin("/stats/prometheus?usedonly").await;
    for call in ["admit", "settle", "snapshot", "authenticate"] {
        let count = sum(&text, "proxium_control_plane_milliseconds_count", &[("call", call), ("outcome", "status_200")]);
        assert!(count >= 1.0, "{call}: {text}");
    }
    assert!(sum(&text, "proxium_settle_lag_milliseconds_count", &[]) >= 4.0, "{text}");

    // One line a call, whose fields are the call's own.
    let id = |answer: &proxium_e2e::Response| answer.header("x-proxium-request-id").unwrap().to_owned();
    let line = logged(&stack, &id(&miss)).await;
    for (field, value) in [
        ("project", key.project.as_str()),
        ("key", key.id.as_str()),
        ("endpoint", "chat"),
        ("code", "ok"),
        ("model", "m1"),
        ("provider", "first"),
        ("cache", "miss"),
        ("attempts", "1"),
        ("input_tokens", "100"),
        ("output_tokens", "7"),
        ("cost_usd", "0.00017"),
        ("traceparent", TRACEPARENT),
    ] {
        assert_eq!(line[field], value, "{field} of {line}");
    }
    let line = logged(&stack, &id(&hit)).await;
    assert_eq!((&line["cache"], &line["cost_usd"], &line["provider"]), (&json!("hit"), &json!("0"), &json!("first")));
    let line = logged(&stack, &id(&failover)).await;
    assert_eq!((&line["model"], &line["attempts"]), (&json!("m2"), &json!("2")));
    let line = logged(&stack, &id(&streamed)).await;
    assert_eq!((&line["model"], &line["provider"], &line["project"]), (&json!("m3"), &json!("third"), &json!(key.project)));
    assert!(line["output_tokens"].as_str().is_some_and(|tokens| tokens.parse::<u64>().unwrap() > 0), "{line}");
    assert!(line["cost_usd"].as_str().is_some_and(|cost| cost.starts_with("0.")), "{line}");
    let line = logged(&stack, &id(&unknown)).await;
    assert_eq!((&line["code"], &line["model"]), (&json!("model_not_found"), &Value::Null));
    assert_eq!(logged(&stack, &id(&capped)).await["code"], "tenant_capped");
    let log = stack.envoys[0].process().log();
    for hidden in ["secret prompt", key.text.as_str(), "platform-credential"] {
        assert!(!log.contains(hidden), "{hidden} is in the log");
    }

    // The control plane counts the same calls from its side.
    let metrics = stack.admin().try_send(&Call::new("GET", "/metrics")).await.unwrap().expect(200).text();
    assert!(sum(&metrics, "proxium_admissions_total", &[("outcome", "hit")]) >= 1.0, "{metrics}");
    assert!((sum(&metrics, "proxium_admissions_total", &[("limit", "calls_per_hour")]) - 1.0).abs() < 0.1, "{metrics}");
    assert!(sum(&metrics, "proxium_request_seconds_count", &[("port", "internal"), ("route", "/v1/admit")]) >= 6.0, "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_that_opens_and_closes_is_counted_and_so_is_a_caller_who_leaves() {
    let dotted = "models:\n  code.v4.1: {provider: third, free: true}\n  endpoint: {provider: third, free: true}\n";
    let catalog = move |mocks: &Mocks| catalog::three_providers(mocks).replacen("models:\n", dotted, 1);
    let stack = Stack::builder().catalog(catalog).and_catalog("breaker: {consecutive_failures: 2, cooldown: 200ms}").start().await;
    let key = stack.key().await;
    stack.mocks.first.next("m1", [500, 500].map(Behaviour::status));
    for number in 0..2 {
        let _ = stack.chat(&key, &chat("fast", &format!("failing {number}"))).await.expect(200);
    }
    counted(&stack, "proxium_breaker_changes_total", &[("state", "open"), ("provider", "first")], 1.0).await;
    // Nobody has called since: half-open by the clock alone, and all others are there and closed.
    let state = |provider| [("breaker", "platform"), ("provider", provider)];
    counted(&stack, "proxium_breaker_state", &state("first"), 1.0).await;
    let text = stack.envoys[0].admin("/stats/prometheus?usedonly").await;
    for line in ["{breaker=\"platform\",provider=\"second\"} 0", "{breaker=\"projects\",provider=\"first\"} 0"] {
        assert!(text.contains(&format!("proxium_breaker_state{line}")), "{line}: {text}");
    }
    let mut number = 0;
    eventually("the breaker closes", BOUND, || {
        number += 1;
        let call = chat("fast", &format!("trying {number}"));
        let (stack, key) = (&stack, &key);
        async move { stack.chat(key, &call).await.header("x-proxium-model") == Some("m1") }
    })
    .await;
    for state in ["half_open", "closed"] {
        counted(&stack, "proxium_breaker_changes_total", &[("state", state), ("provider", "first")], 1.0).await;
    }
    counted(&stack, "proxium_breaker_state", &state("first"), 0.0).await;

    // Names that Envoy would take apart otherwise.
    for (model, label) in [("code.v4.1", "code_v4_1"), ("endpoint", "endpoint_")] {
        let _ = stack.chat(&key, &chat(model, "hello")).await.expect(200);
        counted(&stack, "proxium_attempts_total", &[("outcome", "ok"), ("provider", "third"), ("model", label)], 1.0).await;
    }

    let before = stack.mocks.first.calls("m1");
    stack.mocks.first.next("m1", [Behaviour::hang()]);
    let waiting = stack.envoys[0].spawn(Call::chat(&key, &chat("m1", "nobody waits for this")));
    eventually("the provider has the call", BOUND, || async { stack.mocks.first.calls("m1") > before }).await;
    waiting.abort();
    counted(&stack, "proxium_calls_total", &[("status", "499"), ("code", "client_gone")], 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_goes_on_in_every_callout() {
    let stack = Stack::builder().env("RUST_LOG", "info,fred=error,proxium=debug").start().await;
    let key = stack.key().await;
    let unary = Call::chat(&key, &chat("m1", "unary")).header("traceparent", TRACEPARENT).header("tracestate", "vendor=1");
    let unary = stack.call(&unary).await.expect(200);
    stack.settled(&key.project, &unary).await;
    let streamed = stream(&key, "m2", "stream").header("traceparent", TRACEPARENT).header("tracestate", "vendor=1");
    let _ = stack.call(&streamed).await.expect(200);
    for mock in [&stack.mocks.first, &stack.mocks.second] {
        let seen = mock.requests();
        assert_eq!((seen[0].header("traceparent"), seen[0].header("tracestate")), (Some(TRACEPARENT), Some("vendor=1")));
    }
    // The control plane says so itself, of each call that it takes from a filter for a client.
    let trace = TRACEPARENT.split('-').nth(1).unwrap();
    let mut number = 0;
    eventually("each call of the control plane has the trace", BOUND, || {
        // A settlement that is not acknowledged in 50 ms goes on by the outbox, in a batch without a trace: then the next call shows it.
        number += 1;
        let call = Call::chat(&key, &chat("m1", &format!("unary {number}"))).header("traceparent", TRACEPARENT);
        let stack = &stack;
        async move {
            let _ = stack.call(&call).await.expect(200);
            let log = stack.control_planes[0].process().log();
            let of = |path: &str| log.lines().any(|line| line.contains(trace) && line.contains(path));
            ["/v1/authenticate", "/v1/admit", "/v1/settle"].iter().all(|path| of(path))
        }
    })
    .await;
}
