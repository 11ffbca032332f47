//! Where a provider is.

use std::net::IpAddr;

/// A provider's base URL in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl {
    /// `https`.
    pub tls: bool,
    /// A DNS name in lower case, or an IP address (IPv6 without brackets).
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// What stands before `/chat/completions`, without a closing slash: `/v1`, or empty.
    pub path_prefix: String,
}

impl BaseUrl {
    /// Reads `http(s)://host[:port][/prefix]`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let shape = || "must be http:// or https://, a host, and if needed :port and a path, like https://api.openai.com/v1".to_owned();
        let (scheme, rest) = text.split_once("://").ok_or_else(shape)?;
        let tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(shape()),
        };
        if rest.contains(['@', '?', '#']) {
            return Err("must hold no user, query or fragment; write the key as `credential`".to_owned());
        }
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at_checked(at).ok_or_else(shape)?,
            None => (rest, ""),
        };
        let (host, port) = split_port(authority).ok_or_else(shape)?;
        let port = match port {
            None => {
                if tls {
                    443
                } else {
                    80
                }
            }
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or("must name a port from 1 to 65535")?,
        };
        let path_prefix = path.trim_end_matches('/');
        if !path_prefix.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("must hold no spaces or other characters that a path cannot have".to_owned());
        }
        Ok(Self { tls, host: host.to_ascii_lowercase(), port, path_prefix: path_prefix.to_owned() })
    }

    /// The host as an address, when it is one.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// `host[:port]` as a client of this URL sends it: without the scheme's own port.
    #[must_use]
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == if self.tls { 443 } else { 80 } { host } else { format!("{host}:{}", self.port) }
    }
}

/// Splits `host[:port]`; `None` when the host is neither a name nor an address. IPv6 stands in brackets and is returned without.
pub fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        return if rest.is_empty() { Some((host, None)) } else { Some((host, Some(rest.strip_prefix(':')?))) };
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    let label = |label: &str| {
        !label.is_empty() && label.len() <= 63 && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    (host.len() <= 253 && host.split('.').all(label)).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_gives_its_parts() {
        for (text, tls, host, port, prefix, authority) in [
            ("https://api.openai.com/v1", true, "api.openai.com", 443, "/v1", "api.openai.com"),
            ("https://API.openai.com:8443", true, "api.openai.com", 8443, "", "api.openai.com:8443"),
            ("http://127.0.0.1:11434/v1/", false, "127.0.0.1", 11434, "/v1", "127.0.0.1:11434"),
            ("http://[::1]:80/a/b", false, "::1", 80, "/a/b", "[::1]"),
        ] {
            let url = BaseUrl::parse(text).unwrap();
            assert_eq!((url.tls, url.host.as_str(), url.port, url.path_prefix.as_str()), (tls, host, port, prefix), "{text}");
            assert_eq!(url.authority(), authority);
        }
    }

    #[test]
    fn what_is_not_a_base_url_is_refused() {
        for text in [
            "",
            "api.openai.com",
            "ftp://a",
            "https://",
            "https://:443",
            "https://a b",
            "https://a:0",
            "https://a:70000",
            "https://a:",
            "https://user:pass@a",
            "https://a/?k=v",
            "https://a/#f",
            "https://a..b",
            "https://[zz]",
            "https://[::1]x",
            "https://a/b c",
        ] {
            assert!(BaseUrl::parse(text).is_err(), "{text}");
        }
    }
}
