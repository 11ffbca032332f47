//! A catalog from its file, with the credentials it names.

use super::{Catalog, Faults, Secret, parse};
use std::cell::RefCell;
use std::path::Path;

/// Reads a catalog with its credentials from the environment and from files.
///
/// # Errors
/// The file cannot be read, or all that is wrong with it.
pub fn load(path: &Path) -> Result<Catalog, Faults> {
    Inputs::read(path).1
}

/// Reads a catalog where its credentials are not needed and may be absent: to render, or to check it before they exist.
///
/// # Errors
/// As [`load`], credentials apart.
pub fn load_without_credentials(path: &Path) -> Result<Catalog, Faults> {
    let mut catalog = parse(&read_text(path).map_err(Faults::whole)?, &|_| Ok("absent".to_owned()))?;
    catalog.providers.values_mut().for_each(|provider| provider.credential = None);
    Ok(catalog)
}

/// Everything that a catalog was made from, to tell whether it must be made again.
#[derive(PartialEq)]
pub(super) struct Inputs {
    text: Result<String, String>,
    secrets: Vec<(Secret, Result<String, String>)>,
}

impl Inputs {
    /// Reads all of it, and what comes out.
    pub(super) fn read(path: &Path) -> (Self, Result<Catalog, Faults>) {
        let text = read_text(path);
        let secrets = RefCell::new(Vec::new());
        let catalog = match &text {
            Ok(text) => parse(text, &|secret| {
                let value = read_secret(path, secret);
                secrets.borrow_mut().push((secret.clone(), value.clone()));
                value
            }),
            Err(fault) => Err(Faults::whole(fault)),
        };
        (Self { text, secrets: secrets.into_inner() }, catalog)
    }

    /// Whether the file and every credential still hold what they held.
    pub(super) fn unchanged(&self, path: &Path) -> bool {
        read_text(path) == self.text && self.secrets.iter().all(|(secret, value)| read_secret(path, secret) == *value)
    }
}

fn read_text(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read the catalog {}: {error}", path.display()))
}

fn read_secret(catalog: &Path, secret: &Secret) -> Result<String, String> {
    match secret {
        Secret::Env(name) => std::env::var(name).map_err(|_| format!("set the environment variable {name} to the provider's key")),
        Secret::File(path) => {
            let path = catalog.parent().unwrap_or(Path::new("")).join(path);
            let text = std::fs::read_to_string(&path)
                .map_err(|error| format!("cannot read {} ({error}): write the provider's key into it", path.display()))?;
            Ok(text.trim().to_owned())
        }
    }
}
