//! `proxium serve`: the control plane.

use super::Log;
use crate::admin::{self, Tokens};
use crate::catalog::Watched;
use crate::internal;
use crate::metrics::Metrics;
use crate::render::{self, EnvoyFlags, SecretFlags};
use crate::seal::{HOW_TO_SET_A_KEY, Seal};
use crate::store::changes::Changes;
use crate::store::refusals::Refusals;
use crate::store::{self, Money};
use crate::trace::Export;
use axum::Router;
use axum::serve::Listener;
use fred::prelude::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// How long calls that are under way may take once a signal came.
const GRACE: Duration = Duration::from_secs(10);
/// Envoy takes back calls whose time is up; all that waited while this process stood still, as a throttled container does, it finds at once.
/// More than this end the connection and every call on it; the library's own bound is 20.
const TAKEN_BACK: usize = 10_000;
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const TRIM_EVERY: Duration = Duration::from_secs(3_600);

/// Arguments of `proxium serve`.
#[derive(clap::Args)]
pub struct Args {
    /// The catalog's file; it is watched.
    #[arg(long, value_name = "FILE", env = "PROXIUM_CATALOG")]
    catalog: PathBuf,
    /// Redis for keys and budgets: `redis://`, `rediss://`, `redis-sentinel://`, `redis-cluster://`.
    #[arg(long, value_name = "URL", env = "REDIS_URL", default_value = "redis://127.0.0.1:6379", hide_env_values = true)]
    redis_url: String,
    /// Admit and settle only what so many replicas of Redis have, too (`WAIT`): a failover then loses less, and each call waits for them.
    #[arg(long, value_name = "N", env = "PROXIUM_REDIS_WAIT_REPLICAS", default_value_t = 0)]
    redis_wait_replicas: u8,
    /// Another Redis for stored answers; the same when left out.
    #[arg(long, value_name = "URL", env = "REDIS_CACHE_URL", hide_env_values = true)]
    cache_url: Option<String>,
    /// Where filters call; keep it inside the mesh.
    #[arg(long, value_name = "HOST:PORT", env = "PROXIUM_INTERNAL_LISTEN", default_value = "127.0.0.1:10003")]
    internal_listen: SocketAddr,
    /// Where people call: admin API, health, metrics.
    #[arg(long, value_name = "HOST:PORT", env = "PROXIUM_ADMIN_LISTEN", default_value = "127.0.0.1:10001")]
    admin_listen: SocketAddr,
    /// How long ledger records are kept: days, like `400d`.
    #[arg(long, value_name = "DAYS", env = "PROXIUM_LEDGER_RETENTION", default_value = "400d", value_parser = days)]
    ledger_retention: Duration,
    #[command(flatten)]
    secret: SecretFlags,
    /// The token that may do everything on the admin API.
    #[arg(long, value_name = "TOKEN", env = "PROXIUM_ADMIN_TOKEN", hide_env_values = true)]
    admin_token: Option<String>,
    /// A file that holds it alone.
    #[arg(long, value_name = "FILE", env = "PROXIUM_ADMIN_TOKEN_FILE")]
    admin_token_file: Option<PathBuf>,
    /// The token that may read on the admin API.
    #[arg(long, value_name = "TOKEN", env = "PROXIUM_VIEWER_TOKEN", hide_env_values = true)]
    viewer_token: Option<String>,
    /// Keys for credentials at rest, `<key id>:<64 hex digits>`, several separated by commas: the first seals, all open.
    #[arg(long, value_name = "KEYS", env = "PROXIUM_SEAL_KEY", hide_env_values = true)]
    seal_key: Option<String>,
    /// A file that holds them.
    #[arg(long, value_name = "FILE")]
    seal_key_file: Option<PathBuf>,
    /// Keep Envoy's files in this directory as `proxium render envoy` makes them, anew with each catalog.
    #[arg(long, value_name = "DIR")]
    render_to: Option<PathBuf>,
    #[command(flatten)]
    envoy: EnvoyFlags,
    /// How log lines are written.
    #[arg(long, value_enum, env = "PROXIUM_LOG", default_value = "text")]
    pub log: Log,
}

/// Runs until a signal ends it. Redis need not be there yet: the ports are open, and calls are answered 503 until it is.
pub async fn serve(args: Args) -> Result<(), String> {
    let secret = args.secret.read()?;
    let seal = Arc::new(seal(&args)?);
    let tokens = Arc::new(tokens(&args)?);
    let export = Export::start()?;
    let metrics = Arc::new(Metrics::new().map_err(|error| error.to_string())?);
    let ((internal_port, internal_at), (admin_port, admin_at)) = (bind(args.internal_listen).await?, bind(args.admin_listen).await?);
    let redis = connect("--redis-url", &args.redis_url)?;
    let cache = match &args.cache_url {
        Some(url) => connect("--cache-url", url)?,
        None => redis.clone(),
    };
    let catalog = catalog(&args, &secret)?;
    let money = Money::new(redis.clone(), cache.clone()).replicated(args.redis_wait_replicas);
    tokio::spawn(sweep(money.clone(), Arc::clone(&metrics)));
    tokio::spawn(trim(money.clone(), args.ledger_retention));
    let internal = internal::router(internal::State {
        changes: Changes::start(redis.clone()),
        redis: redis.clone(),
        cache: cache.clone(),
        money: money.clone(),
        seal: Arc::clone(&seal),
        catalog: catalog.clone(),
        secret: secret.into(),
        refusals: Refusals::start(redis.clone()),
        metrics: Arc::clone(&metrics),
    });
    let admin = admin::router(admin::State { redis, cache, money, seal, catalog, tokens, metrics });

    let (stop, stopped) = watch::channel(false);
    let mut servers = tokio::spawn(async move {
        tokio::join!(run(internal_port, internal, stopped.clone()), run(admin_port, admin, stopped));
    });
    tracing::info!(%internal_at, %admin_at, "the control plane is open");
    tokio::select! {
        ended = &mut servers => return ended.map_err(|error| error.to_string()),
        signal = ended_by_signal() => tracing::info!(signal = signal?, "ending; calls under way are finished"),
    }
    stop.send_replace(true);
    let ended = match tokio::time::timeout(GRACE, servers).await {
        Ok(ended) => ended.map_err(|error| error.to_string()),
        Err(_) => {
            tracing::warn!("calls were still under way after {} s; ending all the same", GRACE.as_secs());
            Ok(())
        }
    };
    if let Some(export) = export {
        let _ = tokio::task::spawn_blocking(|| export.end()).await;
    }
    ended
}

async fn run(mut port: TcpListener, router: Router, mut stopped: watch::Receiver<bool>) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http2().max_pending_accept_reset_streams(TAKEN_BACK);
    let open = GracefulShutdown::new();
    loop {
        let (socket, _) = tokio::select! {
            accepted = Listener::accept(&mut port) => accepted,
            // An error means that the sender is gone: that is an end too.
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        // Else a small answer may wait for the acknowledgement of the one before it.
        socket.set_nodelay(true).ok();
        let connection = builder.serve_connection(TokioIo::new(socket), TowerToHyperService::new(router.clone()));
        let connection = open.watch(connection.into_owned());
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error, "a connection ended early");
            }
        });
    }
    drop(port);
    open.shutdown().await;
}

/// A port and where it is, which is news for port 0.
async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), String> {
    let bound = async {
        let port = TcpListener::bind(address).await?;
        let at = port.local_addr()?;
        Ok((port, at))
    };
    bound.await.map_err(|error: std::io::Error| format!("cannot listen on {address}: {error}"))
}

fn connect(flag: &str, url: &str) -> Result<Client, String> {
    // The URL may hold a password, so it is not shown.
    store::connect(url).map_err(|error| format!("{flag} is not a Redis URL (redis://host:port): {}", error.details()))
}

fn catalog(args: &Args, secret: &str) -> Result<Watched, String> {
    let (render_to, envoy, secret) = (args.render_to.clone(), args.envoy.clone(), secret.to_owned());
    let on_swap = move |catalog: &crate::catalog::Catalog| match &render_to {
        Some(dir) => render::install(catalog, &envoy, &secret, dir),
        None => Ok(()),
    };
    Watched::start(args.catalog.clone(), on_swap).map_err(|faults| faults.to_string())
}

fn seal(args: &Args) -> Result<Seal, String> {
    match (&args.seal_key_file, &args.seal_key) {
        (Some(path), _) => Seal::parse(&file(path)?),
        (None, Some(keys)) => Seal::parse(keys),
        (None, None) => {
            tracing::warn!("projects cannot have credentials of their own: {HOW_TO_SET_A_KEY}");
            Ok(Seal::without_key())
        }
    }
}

fn tokens(args: &Args) -> Result<Tokens, String> {
    let admin = match &args.admin_token_file {
        Some(path) => Some(file(path)?),
        None => args.admin_token.clone(),
    };
    let token = |token: Option<String>| token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
    let tokens = Tokens { admin: token(admin), viewer: token(args.viewer_token.clone()) };
    if tokens.admin.is_none() {
        tracing::warn!("nothing can be changed on the admin API: set PROXIUM_ADMIN_TOKEN, or name a file with --admin-token-file");
    }
    if tokens.admin.is_some() && tokens.admin == tokens.viewer {
        return Err("the viewer's token is the admin's; give it one of its own".to_owned());
    }
    Ok(tokens)
}

fn file(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Charges due holds each second, on every control plane: whoever comes first does it, the others find nothing.
async fn sweep(money: Money, metrics: Arc<Metrics>) {
    let mut tick = tokio::time::interval(SWEEP_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        tick.tick().await;
        let began = Instant::now();
        let outcome = money.sweep_all().await;
        match &outcome {
            Ok(holds) => metrics.swept(*holds, began.elapsed()),
            Err(error) if !failing => tracing::warn!(%error, "due holds cannot be swept; tried again each second"),
            Err(_) => {}
        }
        failing = outcome.is_err();
    }
}

/// Forgets old ledger records each hour, on every control plane.
async fn trim(money: Money, retention: Duration) {
    let mut tick = tokio::time::interval(TRIM_EVERY);
    loop {
        tick.tick().await;
        if let Err(error) = money.trim_ledgers(retention).await {
            tracing::warn!(%error, "old ledger records cannot be removed; tried again in an hour");
        }
    }
}

/// At least a day: the running month has a counter of its own.
fn days(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok()).filter(|days| (1..=36_500).contains(days));
    days.map(|days| Duration::from_secs(days * 86_400))
        .ok_or_else(|| "must be a whole number of days from 1d to 36500d, like 400d".to_owned())
}

async fn ended_by_signal() -> Result<&'static str, String> {
    let watch = |kind| signal(kind).map_err(|error| format!("cannot watch for signals: {error}"));
    let (mut terminate, mut interrupt) = (watch(SignalKind::terminate())?, watch(SignalKind::interrupt())?);
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}
