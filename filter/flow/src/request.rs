//! What a client says in its headers.

use crate::endpoint::Route;
use crate::message::Headers;
use crate::refusal::Refusal;
use proxium_wire::{MoneyError, NanoUsd};
use sha2::{Digest, Sha256};

/// The header that bounds what a call may come to.
pub const MAX_COST: &str = "x-proxium-max-cost-usd";

/// The longest `x-proxium-source` and `x-proxium-user`.
const MAX_TAG_BYTES: usize = 128;

/// The head of a request that is proxium's.
#[derive(Debug)]
pub struct Head {
    /// The endpoint and the dialect.
    pub route: Route,
    /// The path without its query.
    pub path: String,
    /// What follows `?`.
    pub query: Option<String>,
    /// The header lines, names in lower case.
    pub headers: Headers,
    /// Milliseconds since 1970.
    pub arrived_ms: u64,
    /// Names this call to everybody; also its reservation.
    pub request_id: String,
}

/// How to treat the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// Read and write.
    #[default]
    Use,
    /// Neither read nor write.
    Bypass,
    /// Do not read, write.
    Refresh,
}

/// The `x-proxium-*` headers of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controls {
    /// `x-proxium-source`, the sender; empty: none.
    pub source: String,
    /// `x-proxium-user`, the end user; empty: the body may tell.
    pub end_user: String,
    /// `x-proxium-timeout-ms`.
    pub timeout_ms: Option<u64>,
    /// `x-proxium-cache`.
    pub cache: CacheMode,
    /// `x-proxium-memory: recall`.
    pub recall: bool,
    /// `x-proxium-max-cost-usd`: the most the call may come to.
    pub max_cost: Option<NanoUsd>,
}

impl Controls {
    /// Reads and checks them.
    ///
    /// # Errors
    /// A 400 that names the header.
    pub fn read(headers: &Headers) -> Result<Self, Refusal> {
        Ok(Self {
            source: tag(headers, "x-proxium-source")?,
            end_user: tag(headers, "x-proxium-user")?,
            timeout_ms: match headers.get("x-proxium-timeout-ms") {
                None => None,
                Some(text) => Some(milliseconds(text)?),
            },
            cache: match headers.get("x-proxium-cache") {
                None => CacheMode::Use,
                Some("bypass") => CacheMode::Bypass,
                Some("refresh") => CacheMode::Refresh,
                Some(_) => return Err(Refusal::invalid("x-proxium-cache", "The header `x-proxium-cache` must be `bypass` or `refresh`.")),
            },
            recall: match headers.get("x-proxium-memory") {
                None => false,
                Some("recall") => true,
                Some(_) => return Err(Refusal::invalid("x-proxium-memory", "The header `x-proxium-memory` must be `recall`.")),
            },
            max_cost: headers.get(MAX_COST).map(usd).transpose()?,
        })
    }
}

fn tag(headers: &Headers, name: &str) -> Result<String, Refusal> {
    let Some(text) = headers.get(name) else { return Ok(String::new()) };
    let visible = text.bytes().all(|byte| (0x21..=0x7e).contains(&byte));
    if text.is_empty() || text.len() > MAX_TAG_BYTES || !visible {
        return Err(Refusal::invalid(
            name,
            format!("The header `{name}` must be 1 to {MAX_TAG_BYTES} visible ASCII characters without spaces."),
        ));
    }
    Ok(text.to_owned())
}

/// A plain decimal number of USD, zero or more.
fn usd(text: &str) -> Result<NanoUsd, Refusal> {
    match text.parse::<NanoUsd>() {
        Ok(amount) if amount >= NanoUsd::ZERO => Ok(amount),
        Err(MoneyError::TooLarge) if !text.starts_with('-') => Ok(NanoUsd(i64::MAX)),
        Ok(_) => Err(Refusal::invalid(MAX_COST, format!("The header `{MAX_COST}` must not be negative."))),
        Err(error) => Err(Refusal::invalid(MAX_COST, format!("The header `{MAX_COST}` is not usable: {error}."))),
    }
}

/// A whole number of at least 1; one too long for 64 bits is as good as the maximum.
fn milliseconds(text: &str) -> Result<u64, Refusal> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u64>().unwrap_or(u64::MAX) {
        ms if digits && ms >= 1 => Ok(ms),
        _ => Err(Refusal::invalid(
            "x-proxium-timeout-ms",
            "The header `x-proxium-timeout-ms` must be a whole number of milliseconds, 1 or more.",
        )),
    }
}

/// The SHA-256 of the key that came with the request.
///
/// # Errors
/// [`Refusal::MissingKey`] without one, or with an empty one; [`Refusal::InvalidKey`] when two different ones came.
pub fn key_hash(headers: &Headers) -> Result<[u8; 32], Refusal> {
    let bearer = headers.all("authorization").filter_map(|value| {
        let (scheme, token) = value.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let mut keys = bearer.chain(headers.all("x-api-key").map(str::trim)).filter(|key| !key.is_empty());
    let key = keys.next().ok_or(Refusal::MissingKey)?;
    if keys.any(|other| other != key) {
        return Err(Refusal::InvalidKey);
    }
    Ok(Sha256::digest(key).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn lines(lines: &[(&'static str, &str)]) -> Headers {
        lines.iter().map(|(name, value)| (*name, *value)).collect()
    }

    #[test]
    fn a_key_comes_as_bearer_or_as_x_api_key() {
        let hash: [u8; 32] = Sha256::digest("px_1").into();
        assert_eq!(key_hash(&lines(&[("authorization", "Bearer px_1")])), Ok(hash));
        assert_eq!(key_hash(&lines(&[("authorization", "bearer  px_1 ")])), Ok(hash));
        assert_eq!(key_hash(&lines(&[("x-api-key", "px_1")])), Ok(hash));
        assert_eq!(key_hash(&lines(&[("x-api-key", "px_1"), ("authorization", "Bearer px_1")])), Ok(hash));
    }

    #[test]
    fn another_scheme_or_an_empty_token_is_no_key_and_two_keys_are_none() {
        for missing in [
            &[][..],
            &[("authorization", "Basic cHg6MQ==")],
            &[("authorization", "Bearer ")],
            &[("authorization", "Bearer")],
            &[("x-api-key", "")],
        ] {
            assert_eq!(key_hash(&lines(missing)), Err(Refusal::MissingKey));
        }
        assert_eq!(key_hash(&lines(&[("authorization", "Bearer a"), ("x-api-key", "b")])), Err(Refusal::InvalidKey));
        assert_eq!(key_hash(&lines(&[("authorization", "Bearer a"), ("authorization", "Bearer b")])), Err(Refusal::InvalidKey));
    }

    #[test]
    fn a_bad_control_header_is_named() {
        for (name, value) in [
            ("x-proxium-timeout-ms", "0"),
            ("x-proxium-timeout-ms", "-5"),
            ("x-proxium-timeout-ms", "1.5"),
            ("x-proxium-timeout-ms", "+5"),
            ("x-proxium-timeout-ms", ""),
            ("x-proxium-cache", "off"),
            ("x-proxium-source", "a b"),
            ("x-proxium-source", "\u{fffd}"),
            ("x-proxium-user", ""),
            (MAX_COST, "1e3"),
            (MAX_COST, "-1"),
            (MAX_COST, "0.0000000001"),
            (MAX_COST, ""),
        ] {
            match Controls::read(&lines(&[(name, value)])) {
                Err(Refusal::InvalidRequest { param, .. }) => assert_eq!(param.as_deref(), Some(name)),
                other => panic!("{name}: {value} gave {other:?}"),
            }
        }
        assert!(Controls::read(&lines(&[("x-proxium-source", &"s".repeat(129))])).is_err());
    }

    #[test]
    fn a_ceiling_of_cost_is_exact_and_one_beyond_all_numbers_is_none() {
        let max_cost = |text| Controls::read(&lines(&[(MAX_COST, text)])).unwrap().max_cost;
        assert_eq!(max_cost("0.000000001"), Some(NanoUsd(1)));
        assert_eq!(max_cost("0"), Some(NanoUsd::ZERO));
        assert_eq!(max_cost("99999999999999999999"), Some(NanoUsd(i64::MAX)));
    }

    #[test]
    fn a_timeout_beyond_all_numbers_is_the_maximum() {
        let controls = Controls::read(&lines(&[("x-proxium-timeout-ms", "99999999999999999999999")])).unwrap();
        assert_eq!(controls.timeout_ms, Some(u64::MAX));
    }
}
