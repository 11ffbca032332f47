//! Shared secrets: compared without telling by the time it takes how much of a guess is right.

use sha2::{Digest, Sha256};

/// Whether two secrets are the same. Their digests are compared: what a comparison of those leaks says nothing of the secrets, nor of
/// their lengths. An empty one is never the same as anything.
#[must_use]
pub fn same(given: &[u8], secret: &[u8]) -> bool {
    !secret.is_empty() && Sha256::digest(given) == Sha256::digest(secret)
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn only_the_secret_is_the_secret() {
        assert!(same(b"secret", b"secret"));
        assert!(!same(b"secreT", b"secret"));
        assert!(!same(b"", b"secret"));
        assert!(!same(b"", b""));
    }
}
