//! Exact money.

use std::fmt;
use std::str::FromStr;

const NANO_PER_USD: i64 = 1_000_000_000;

/// An amount in nano-USD (10^-9 USD), signed; corrections are negative.
///
/// Text is a plain decimal number of USD with at most nine decimals (`0.000123`, `-1.5`, `0`): no exponent, no float on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NanoUsd(pub i64);

/// Why a text is not an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoneyError {
    /// Not a plain decimal number.
    NotDecimal,
    /// More than nine decimals: it would have to be rounded.
    TooFine,
    /// Beyond 64 bits (about 9.2 thousand million USD).
    TooLarge,
}

impl fmt::Display for MoneyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotDecimal => "write a plain decimal number of USD, like 12.50",
            Self::TooFine => "at most nine decimals of a USD can be kept exactly",
            Self::TooLarge => "the amount is beyond what can be kept exactly",
        })
    }
}

impl std::error::Error for MoneyError {}

impl NanoUsd {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// The sum, or `None` beyond 64 bits.
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }
}

impl fmt::Display for NanoUsd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.unsigned_abs();
        let (whole, rest) = (magnitude / NANO_PER_USD.unsigned_abs(), magnitude % NANO_PER_USD.unsigned_abs());
        if self.0 < 0 {
            f.write_str("-")?;
        }
        write!(f, "{whole}")?;
        if rest > 0 {
            let digits = format!("{rest:09}");
            write!(f, ".{}", digits.trim_end_matches('0'))?;
        }
        Ok(())
    }
}

impl FromStr for NanoUsd {
    type Err = MoneyError;

    fn from_str(text: &str) -> Result<Self, MoneyError> {
        let (negative, magnitude) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, decimals) = magnitude.split_once('.').unwrap_or((magnitude, ""));
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(decimals) || magnitude.ends_with('.') {
            return Err(MoneyError::NotDecimal);
        }
        let decimals = decimals.trim_end_matches('0');
        if decimals.len() > 9 {
            return Err(MoneyError::TooFine);
        }
        let nano: i128 = format!("{whole}{decimals:0<9}").parse().map_err(|_| MoneyError::TooLarge)?;
        i64::try_from(if negative { -nano } else { nano }).map(Self).map_err(|_| MoneyError::TooLarge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn amounts_survive_their_text() {
        for (text, nano) in
            [("0", 0), ("0.000000001", 1), ("-1.5", -1_500_000_000), ("12", 12_000_000_000), ("9223372036.854775807", i64::MAX)]
        {
            assert_eq!(text.parse(), Ok(NanoUsd(nano)));
            assert_eq!(NanoUsd(nano).to_string(), text);
        }
    }

    #[test]
    fn what_cannot_be_kept_exactly_is_refused() {
        for (text, error) in [
            ("", MoneyError::NotDecimal),
            ("1e3", MoneyError::NotDecimal),
            ("1.", MoneyError::NotDecimal),
            (".5", MoneyError::NotDecimal),
            ("+1", MoneyError::NotDecimal),
            ("0.0000000001", MoneyError::TooFine),
            ("9223372036.854775808", MoneyError::TooLarge),
            ("99999999999999999999999999999999999999999999", MoneyError::TooLarge),
        ] {
            assert_eq!(text.parse::<NanoUsd>(), Err(error), "{text}");
        }
    }

    #[test]
    fn trailing_zeros_are_not_precision() {
        assert_eq!("1.50000000000000".parse(), Ok(NanoUsd(1_500_000_000)));
    }
}
