//! The catalog while calls go on: edits act without a restart, a bad one does nothing, and an https provider is who it says.

// Helpers of tests: a panic is how a test fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use proxium::mock_provider::{ANY, Behaviour, Mock};
use proxium_e2e::{Ask, BOUND, Call, Dir, Key, Mocks, Response, Stack, catalog, chat, eventually};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// "A few seconds", on two busy cores.
const SOON: Duration = Duration::from_secs(10);

async fn answered(what: &str, stack: &Stack, key: &Key, model: &str, wanted: impl Fn(&Response) -> bool) {
    eventually(what, SOON, || async {
        for _ in 0..6 {
            let answer = stack.call(&Call::chat(key, &chat(model, "hi")).header("x-proxium-cache", "bypass")).await;
            if !wanted(&answer) {
                return Err(format!("{} {:?} {}", answer.status, answer.headers, answer.text()));
            }
        }
        Ok(())
    })
    .await;
}

fn by<'a>(model: &'a str) -> impl Fn(&Response) -> bool + 'a {
    move |answer| answer.status == 200 && answer.header("x-proxium-model") == Some(model)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_and_a_model_added_serve_calls_without_a_restart_and_without_a_failed_call() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    let fourth = Mock::start(([127, 0, 0, 1], 0).into()).unwrap();
    answered("m4 is not there yet", &stack, &key, "m4", |answer| answer.status == 404).await;

    let addr = fourth.addr();
    // Other calls go on meanwhile, some of them slow, and none fails.
    stack.mocks.first.always("m1", Behaviour::answer().after(Duration::from_millis(100)));
    let done = std::sync::atomic::AtomicBool::new(false);
    let traffic = async {
        let mut calls = 0;
        while !done.load(std::sync::atomic::Ordering::SeqCst) {
            let answer = stack.call(&Call::chat(&key, &chat("m1", "hi")).header("x-proxium-cache", "bypass")).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            calls += 1;
        }
        calls
    };
    let edit = async {
        stack.edit_catalog(|yaml| {
            yaml.replacen("providers:\n", &format!("providers:\n  fourth: {{dialect: openai, endpoint: \"http://{addr}/v1\"}}\n"), 1)
                .replacen("models:\n", "models:\n  m4: {provider: fourth, price_usd_per_mtok: {input: 4, output: 40}}\n", 1)
                .replacen("chains:\n", "chains:\n  newest: [m4]\n", 1)
        });
        answered("m4 serves", &stack, &key, "m4", by("m4")).await;
        answered("its chain too", &stack, &key, "newest", by("m4")).await;
        done.store(true, std::sync::atomic::Ordering::SeqCst);
    };
    let (calls, ()) = tokio::join!(traffic, edit);
    assert!(calls > 1);
    assert!(fourth.calls("m4") >= 12);
    assert_eq!(fourth.requests()[0].header("authorization"), None, "it has no credential, and gets nobody else's");

    // Its price counts from now on: 1 token in at 4, 3 out at 40.
    let answer = stack.chat(&key, &chat("m4", "hi")).await.expect(200);
    assert_eq!(answer.header("x-proxium-cost-usd"), Some("0.000124"));
    stack.edit_catalog(|yaml| yaml.replacen("{input: 4, output: 40}", "{input: 8, output: 80}", 1));
    answered("the new price counts", &stack, &key, "m4", |answer| answer.header("x-proxium-cost-usd") == Some("0.000248")).await;

    // Taken out again: the model is gone, and the rest serves.
    stack.edit_catalog(|yaml| {
        let gone = |line: &&str| !(line.contains("fourth") || line.contains("newest"));
        yaml.lines().filter(gone).map(|line| format!("{line}\n")).collect()
    });
    answered("m4 is gone", &stack, &key, "m4", |answer| answer.status == 404 && answer.code() == "model_not_found").await;
    answered("m1 serves", &stack, &key, "m1", by("m1")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_under_way_ends_on_the_catalog_it_began_with() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    let gate = stack.mocks.first.gate();
    let call = Call::chat(&key, &chat("m1", "hi"));
    let under_way = stack.call(&call);
    let edit = async {
        eventually("the provider has it", BOUND, || async { gate.waiting() == 1 }).await;
        stack.edit_catalog(|yaml| {
            let price = "price_usd_per_mtok: {input: 1, cached_input: 0.1, output: 10}";
            assert!(yaml.contains(price), "{yaml}");
            yaml.replacen(price, "price_usd_per_mtok: {input: 100, output: 1000}", 1)
                .replacen("m1: {provider: first", "m1: {provider: second", 1)
                .replacen("models:\n", "models:\n  new: {provider: third, free: true}\n", 1)
        });
        answered("the edit acts", &stack, &key, "new", by("new")).await;
        answered("the new price too", &stack, &key, "m1", |answer| answer.header("x-proxium-cost-usd") == Some("0.0031")).await;
        gate.open();
    };
    let (answer, ()) = tokio::join!(under_way, edit);
    let answer = answer.expect(200);
    assert_eq!(answer.header("x-proxium-cost-usd"), Some("0.000031"), "1 token in at 1, 3 out at 10");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_edit_is_refused_and_the_catalog_before_it_serves() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    let good = std::cell::RefCell::new(String::new());
    let mut seen = 0;
    for (what, old, new) in [
        ("an unknown field", "models:\n", "models:\n  m9: {provider: first, fre: true}\n"),
        ("a model without a price", "models:\n", "models:\n  m9: {provider: first}\n"),
        ("a chain that names nobody", "chains:\n", "chains:\n  new: [m9]\n"),
        ("a cycle", "chains:\n", "chains:\n  a: [b]\n  b: [a]\n"),
        ("no YAML", "models:\n", "models: [\n"),
        ("an empty file", "", ""),
    ] {
        stack.edit_catalog_only(|yaml| {
            if good.borrow().is_empty() {
                good.replace(yaml);
            }
            if old.is_empty() { String::new() } else { good.borrow().replacen(old, new, 1) }
        });
        seen = eventually(&format!("{what} is refused in the log"), BOUND, || async {
            let refusals = stack.control_planes[0].process().log().matches("edit is refused").count();
            (refusals > seen).then_some(refusals)
        })
        .await;
        answered(what, &stack, &key, "fast", by("m1")).await;
        answered(what, &stack, &key, "m9", |answer| answer.status == 404).await;
    }
    let shown = stack.admin().get("/catalog").await.expect(200).json();
    assert!(shown.to_string().contains("m3"), "{shown}");
    // A good one acts afterwards.
    stack.edit_catalog_only(|_| good.borrow().replacen("fast: [m1, m2]", "fast: [m2]", 1));
    answered("a good edit acts", &stack, &key, "fast", by("m2")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_whose_model_left_the_catalog_stands_for_what_is_left() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({"rules": {"both": ["m3", "m2"], "gone": ["m3"]}}), json!({})).await;
    answered("both are there", &stack, &key, "both", by("m3")).await;
    stack.edit_catalog(|yaml| {
        let yaml: String = yaml.lines().filter(|line| !line.contains("m3: {")).map(|line| format!("{line}\n")).collect();
        yaml.replacen("long: [m1, m2, m3]", "long: [m1, m2]", 1)
    });
    answered("one is left", &stack, &key, "both", by("m2")).await;
    answered("none is left", &stack, &key, "gone", |answer| answer.status == 404).await;
    // Such a project can still be changed.
    let _ = stack.admin().patch(&format!("/projects/{}", key.project), &json!({"name": "renamed"})).await.expect(200);
}

/// A certificate authority of this test alone.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    bundle: PathBuf,
}

impl Authority {
    fn new(dir: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Its own name: a certificate whose issuer has the name of its subject counts as self-signed.
        params.distinguished_name.push(DnType::CommonName, format!("proxium test CA {name}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let bundle = dir.join(format!("{name}.pem"));
        std::fs::write(&bundle, issuer.pem()).unwrap();
        Self { issuer, bundle }
    }

    /// A server's configuration with a certificate for this name.
    fn server(&self, host: &str) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![host.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

/// Server name and protocol that a client asked for.
type Handshake = (Option<String>, Option<String>);

/// TLS in front of a mock.
struct Tls {
    port: u16,
    /// Of each handshake that went well: the name asked for, the protocol agreed on.
    handshakes: Arc<Mutex<Vec<Handshake>>>,
}

impl Tls {
    async fn before(mock: &Mock, config: Arc<ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, upstream, handshakes) = (listener.local_addr().unwrap().port(), mock.addr(), Arc::<Mutex<Vec<_>>>::default());
        let seen = handshakes.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, seen) = (tokio_rustls::TlsAcceptor::from(config.clone()), seen.clone());
                tokio::spawn(async move {
                    let Ok(mut tls) = acceptor.accept(socket).await else { return };
                    let connection = tls.get_ref().1;
                    let protocol = connection.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned());
                    let handshake = (connection.server_name().map(str::to_owned), protocol);
                    seen.lock().unwrap().push(handshake);
                    let mut plain = TcpStream::connect(upstream).await.unwrap();
                    tokio::io::copy_bidirectional(&mut tls, &mut plain).await.ok();
                });
            }
        });
        Self { port, handshakes }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_https_provider_is_asked_for_by_name_and_must_be_who_it_says() {
    let dir = Dir::fresh();
    let (ours, theirs) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "theirs"));
    // Plain at first: the TLS ports are known only when the mocks are.
    let stack = Stack::builder()
        .catalog(|mocks: &Mocks| format!("{}models:\n  plain: {{provider: first, free: true}}\n", catalog::providers(mocks)))
        .render("--ca-bundle", ours.bundle.to_str().unwrap())
        .start()
        .await;
    let key = stack.key().await;
    let good = Tls::before(&stack.mocks.first, ours.server("localhost")).await;
    let misnamed = Tls::before(&stack.mocks.second, ours.server("somebody.else")).await;
    let unknown = Tls::before(&stack.mocks.third, theirs.server("localhost")).await;
    let authority = Tls::before(&stack.mocks.first, ours.server("api.example.com")).await;
    stack.edit_catalog(|yaml| {
        let provider = |name: &str, port: u16, more: &str| {
            format!(
                "  {name}: {{dialect: openai, endpoint: \"https://localhost:{port}/v1\", credential: {{env: THIRD_CREDENTIAL}}{more}}}\n"
            )
        };
        let providers = [
            provider("good", good.port, ""),
            provider("misnamed", misnamed.port, ""),
            provider("unknown", unknown.port, ""),
            provider("authority", authority.port, ", authority: api.example.com"),
        ];
        let models = ["good", "misnamed", "unknown", "authority"].map(|name| format!("  of-{name}: {{provider: {name}, free: true}}\n"));
        yaml.replacen("providers:\n", &format!("providers:\n{}", providers.concat()), 1).replacen(
            "models:\n",
            &format!("models:\n{}", models.concat()),
            1,
        )
    });
    answered("TLS with a name and our CA", &stack, &key, "of-good", by("of-good")).await;
    let seen = good.handshakes.lock().unwrap().clone();
    assert!(!seen.is_empty());
    assert!(seen.iter().all(|handshake| *handshake == (Some("localhost".into()), Some("http/1.1".into()))), "{seen:?}");
    let request = stack.mocks.first.requests().pop().unwrap();
    assert_eq!(request.header("host"), Some(format!("localhost:{}", good.port).as_str()));
    assert_eq!(request.header("authorization"), Some("Bearer platform-credential-of-third"));

    let stream = stack.streamed(&Ask::Chat.stream(&key, "of-good", "word by word")).await.whole();
    assert_eq!(stream.text(), "You said: word by word");
    assert_eq!(stack.mocks.first.requests().pop().unwrap().header("authorization"), Some("Bearer platform-credential-of-third"));

    answered("TLS with the authority's name", &stack, &key, "of-authority", by("of-authority")).await;
    assert_eq!(authority.handshakes.lock().unwrap()[0].0.as_deref(), Some("api.example.com"));
    assert_eq!(stack.mocks.first.requests().pop().unwrap().header("host"), Some("api.example.com"));

    // A certificate for another name, and one of a CA that is not in the bundle: no request, so no credential, goes there.
    for model in ["of-misnamed", "of-unknown"] {
        let refused = stack.chat(&key, &chat(model, "hi")).await.expect(502);
        assert_eq!(refused.code(), "providers_failed");
    }
    assert_eq!((stack.mocks.second.calls(ANY), stack.mocks.third.calls(ANY)), (0, 0));
}
