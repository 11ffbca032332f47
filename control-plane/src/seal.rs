//! A project's own credentials, encrypted at rest.
//!
//! AES-256-GCM with a random nonce; project and provider are authenticated with the secret, so that a sealed text moved to another
//! project or provider does not open. A sealed text names its key, so that keys can be rotated: the first key of the list seals, all open.

use aes_gcm::aead::{Aead, Generate, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Key, Nonce};
use std::collections::BTreeMap;
use std::fmt;

/// What stands before every sealed text, so that another format can follow one day.
const FORMAT: &str = "v1";
const NONCE_BYTES: usize = 12;

/// What to do when there is no key.
pub const HOW_TO_SET_A_KEY: &str = "set PROXIUM_SEAL_KEY (or --seal-key-file) to `<key id>:<64 hex digits>` on every control plane, \
                                    the digits from `openssl rand -hex 32`; several keys are separated by commas, the first seals";

/// Why a secret could not be sealed or opened. Tells nothing of secret or key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SealError {
    /// No key was configured.
    NoKey,
    /// Sealed by a key that is not among the configured ones; holds its id.
    UnknownKey(String),
    /// Not a sealed text of this project and provider, or damaged.
    Unreadable,
}

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKey => write!(f, "no key for credentials at rest is configured: {HOW_TO_SET_A_KEY}"),
            Self::UnknownKey(id) => {
                write!(f, "the credential was sealed by the key `{id}`: add it to PROXIUM_SEAL_KEY again, or set the credential anew")
            }
            Self::Unreadable => f.write_str("the sealed credential is damaged or was moved here from elsewhere: set it anew"),
        }
    }
}

impl std::error::Error for SealError {}

/// The keys that seal and open.
pub struct Seal {
    /// Id of the key that seals; `None` only without any key.
    first: Option<String>,
    ciphers: BTreeMap<String, Aes256Gcm>,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal").field("keys", &self.ciphers.keys().collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

impl Seal {
    /// Without a key: every call answers [`SealError::NoKey`].
    #[must_use]
    pub const fn without_key() -> Self {
        Self { first: None, ciphers: BTreeMap::new() }
    }

    /// Seals by `key`; opens what it or one of the `old` keys sealed.
    #[must_use]
    pub fn from_key_material(key_id: &str, key: [u8; 32], old: &[(String, [u8; 32])]) -> Self {
        let cipher = |key: &[u8; 32]| Aes256Gcm::new(&Key::<Aes256Gcm>::from(*key));
        let mut ciphers: BTreeMap<_, _> = old.iter().map(|(id, key)| (id.clone(), cipher(key))).collect();
        ciphers.insert(key_id.to_owned(), cipher(&key));
        Self { first: Some(key_id.to_owned()), ciphers }
    }

    /// From `<key id>:<64 hex digits>`, several separated by commas or line ends; the first seals.
    ///
    /// # Errors
    /// Says which entry is wrong and how to write it, never its digits.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut keys = Vec::new();
        for (at, entry) in text.split([',', '\n']).map(str::trim).filter(|entry| !entry.is_empty()).enumerate() {
            let at = at + 1;
            let (id, digits) = entry.split_once(':').ok_or_else(|| format!("seal key {at} has no `:`; {HOW_TO_SET_A_KEY}"))?;
            if id.is_empty() || id.len() > 40 || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
                return Err(format!("the id of seal key {at} must be 1 to 40 letters, digits, `-` or `_`; {HOW_TO_SET_A_KEY}"));
            }
            let mut key = [0; 32];
            hex::decode_to_slice(digits, &mut key)
                .map_err(|_| format!("seal key {at} (`{id}`) is not 64 hex digits; {HOW_TO_SET_A_KEY}"))?;
            if keys.iter().any(|(other, _)| other == id) {
                return Err(format!("two seal keys are named `{id}`; give each key an id of its own"));
            }
            keys.push((id.to_owned(), key));
        }
        match keys.split_first() {
            Some(((id, key), old)) => Ok(Self::from_key_material(id, *key, old)),
            None => Err(format!("there is no seal key in it; {HOW_TO_SET_A_KEY}")),
        }
    }

    /// Seals a secret for one project and provider.
    ///
    /// # Errors
    /// [`SealError::NoKey`].
    pub fn seal(&self, project: &str, provider: &str, secret: &str) -> Result<String, SealError> {
        let first = self.first.as_ref().ok_or(SealError::NoKey)?;
        let cipher = self.ciphers.get(first).ok_or(SealError::NoKey)?;
        let nonce = Nonce::generate();
        let bound = bound_to(project, provider);
        let sealed =
            cipher.encrypt(&nonce, Payload { msg: secret.as_bytes(), aad: bound.as_bytes() }).map_err(|_| SealError::Unreadable)?;
        Ok(format!("{FORMAT}:{first}:{}{}", hex::encode(nonce), hex::encode(sealed)))
    }

    /// The id of the key that seals.
    ///
    /// # Errors
    /// [`SealError::NoKey`].
    pub fn first_key(&self) -> Result<&str, SealError> {
        self.first.as_deref().ok_or(SealError::NoKey)
    }

    /// The same secret sealed by the first key; `None`: it is already.
    ///
    /// # Errors
    /// Those of [`Seal::open`].
    pub fn reseal(&self, project: &str, provider: &str, sealed: &str) -> Result<Option<String>, SealError> {
        let secret = self.open(project, provider, sealed)?;
        if sealed.split(':').nth(1) == self.first.as_deref() {
            return Ok(None);
        }
        self.seal(project, provider, &secret).map(Some)
    }

    /// Opens what [`Seal::seal`] made for the same project and provider.
    ///
    /// # Errors
    /// Says what to do; never the secret.
    pub fn open(&self, project: &str, provider: &str, sealed: &str) -> Result<String, SealError> {
        if self.first.is_none() {
            return Err(SealError::NoKey);
        }
        let mut parts = sealed.splitn(3, ':');
        let (Some(FORMAT), Some(id), Some(text)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(SealError::Unreadable);
        };
        let cipher = self.ciphers.get(id).ok_or_else(|| SealError::UnknownKey(id.to_owned()))?;
        let bytes = hex::decode(text).map_err(|_| SealError::Unreadable)?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_BYTES>().ok_or(SealError::Unreadable)?;
        let bound = bound_to(project, provider);
        let secret =
            cipher.decrypt(&Nonce::from(*nonce), Payload { msg: sealed, aad: bound.as_bytes() }).map_err(|_| SealError::Unreadable)?;
        String::from_utf8(secret).map_err(|_| SealError::Unreadable)
    }
}

/// Neither a project id nor a provider's name holds a slash, so two different pairs never read the same.
fn bound_to(project: &str, provider: &str) -> String {
    format!("{project}/{provider}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str, byte: u8) -> String {
        format!("{id}:{}", hex::encode([byte; 32]))
    }

    #[test]
    fn what_was_sealed_opens_for_the_same_project_and_provider_only() {
        let seal = Seal::parse(&key("a", 1)).unwrap();
        let sealed = seal.seal("demo", "openai", "sk-secret").unwrap();
        assert!(!sealed.contains("sk-secret"));
        assert_eq!(seal.open("demo", "openai", &sealed), Ok("sk-secret".to_owned()));
        assert_eq!(seal.open("other", "openai", &sealed), Err(SealError::Unreadable));
        assert_eq!(seal.open("demo", "anthropic", &sealed), Err(SealError::Unreadable));
    }

    #[test]
    fn the_same_secret_never_seals_to_the_same_text() {
        let seal = Seal::parse(&key("a", 1)).unwrap();
        assert_ne!(seal.seal("demo", "openai", "s"), seal.seal("demo", "openai", "s"));
    }

    #[test]
    fn an_older_key_still_opens_and_the_first_seals() {
        let old = Seal::parse(&key("old", 1)).unwrap().seal("demo", "openai", "s").unwrap();
        let both = Seal::parse(&format!("{},{}", key("new", 2), key("old", 1))).unwrap();
        assert_eq!(both.open("demo", "openai", &old), Ok("s".to_owned()));
        let new = both.seal("demo", "openai", "s").unwrap();
        assert!(new.starts_with("v1:new:"));
        let without_old = Seal::parse(&key("new", 2)).unwrap();
        assert_eq!(without_old.open("demo", "openai", &old), Err(SealError::UnknownKey("old".to_owned())));
    }

    #[test]
    fn damage_is_noticed() {
        let seal = Seal::parse(&key("a", 1)).unwrap();
        let sealed = seal.seal("demo", "openai", "s").unwrap();
        let mut damaged = sealed.clone();
        let last = damaged.pop().unwrap();
        damaged.push(if last == '0' { '1' } else { '0' });
        for text in [damaged.as_str(), "", "v1", "v1:a", "v1:a:", "v1:a:00", "v1:a:zz", "v2:a:00"] {
            assert_eq!(seal.open("demo", "openai", text), Err(SealError::Unreadable), "{text}");
        }
    }

    #[test]
    fn without_a_key_the_error_says_what_to_set() {
        let seal = Seal::without_key();
        assert_eq!(seal.open("demo", "openai", "v1:a:00"), Err(SealError::NoKey));
        assert!(seal.seal("demo", "openai", "s").unwrap_err().to_string().contains("PROXIUM_SEAL_KEY"));
    }

    #[test]
    fn a_bad_key_list_is_refused_without_showing_it() {
        for text in ["", ",", "nocolon", ":00", "a:00", "a b:00", &format!("{},{}", key("a", 1), key("a", 2))] {
            let error = Seal::parse(text).unwrap_err();
            assert!(!error.contains(&hex::encode([1; 32])), "{error}");
        }
    }
}
