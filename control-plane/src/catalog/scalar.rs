//! The small texts of a catalog: prices, ratios, durations, sizes, names. Each error says what to write instead.

/// `text`, a plain decimal number, times 10^`decimals`, exactly. `max` bounds the result.
pub(super) fn decimal(text: &str, decimals: usize, max: u64) -> Result<u64, String> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || text.ends_with('.') {
        return Err("must be a plain decimal number, zero or more, like 0.25".to_owned());
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > decimals {
        return Err(format!("is too fine to be kept exactly: at most {decimals} decimals"));
    }
    match format!("{whole}{fraction:0<decimals$}").parse() {
        Ok(value) if value <= max => Ok(value),
        _ => Err(format!("is too large: at most {}", max / 10_u64.pow(u32::try_from(decimals).unwrap_or(0)))),
    }
}

/// USD per million tokens as pico-USD per token; at most 100,000 USD.
pub(super) fn price_per_mtok(text: &str) -> Result<u64, String> {
    decimal(text, 6, 100_000_000_000)
}

/// USD as pico-USD; at most 100 USD.
pub(super) fn price_per_piece(text: &str) -> Result<u64, String> {
    decimal(text, 12, 100_000_000_000_000)
}

/// A share above 0 and up to 1, in parts per million.
pub(super) fn ratio_ppm(text: &str) -> Result<u32, String> {
    match decimal(text, 6, 1_000_000)? {
        0 => Err("must be above 0 and at most 1".to_owned()),
        ppm => u32::try_from(ppm).map_err(|_| "must be at most 1".to_owned()),
    }
}

/// A factor from 1 to 1000, in parts per million.
pub(super) fn factor_ppm(text: &str) -> Result<u64, String> {
    match decimal(text, 6, 1_000_000_000)? {
        ppm if ppm < 1_000_000 => Err("must be at least 1".to_owned()),
        ppm => Ok(ppm),
    }
}

/// A whole number between `min` and `max`.
pub(super) fn whole(text: &str, min: u64, max: u64) -> Result<u64, String> {
    text.parse().ok().filter(|value| (min..=max).contains(value)).ok_or_else(|| format!("must be a whole number from {min} to {max}"))
}

/// `500ms`, `120s`, `2m`, `1h` in milliseconds; from 1 ms to 24 h.
pub(super) fn duration_ms(text: &str) -> Result<u64, String> {
    with_unit(text, &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)])
        .filter(|ms| (1..=86_400_000).contains(ms))
        .ok_or_else(|| "must be a whole number with a unit, from 1ms to 24h, like 500ms, 120s or 2m".to_owned())
}

/// `512KiB`, `10MiB`, `1048576B` in bytes; from 1 KiB to 128 MiB.
pub(super) fn size_bytes(text: &str) -> Result<u64, String> {
    with_unit(text, &[("KiB", 1 << 10), ("MiB", 1 << 20), ("B", 1)])
        .filter(|bytes| (1 << 10..=128 << 20).contains(bytes))
        .ok_or_else(|| "must be a whole number with a unit, from 1KiB to 128MiB, like 512KiB or 10MiB".to_owned())
}

fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(unit_at)?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// A provider's name: it stands in the names of clusters and metrics.
pub(super) fn provider_name(name: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    named(name, 40, fits).ok_or_else(|| "is not a provider's name: 1 to 40 of a-z 0-9 _ -".to_owned())
}

/// A model's or chain's name: what clients send as `model`.
pub(super) fn model_name(name: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/@-".contains(&byte);
    named(name, 128, fits).ok_or_else(|| "is not a model's name: 1 to 128 of A-Z a-z 0-9 . _ : / @ -".to_owned())
}

/// What may stand in a header: visible ASCII, 1 to `max` characters.
pub(super) fn visible(text: &str, max: usize) -> Option<()> {
    named(text, max, |byte| byte.is_ascii_graphic())
}

fn named(text: &str, max: usize, fits: impl Fn(u8) -> bool) -> Option<()> {
    ((1..=max).contains(&text.len()) && text.bytes().all(fits)).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_become_pico_usd_exactly() {
        for (text, pico) in
            [("0", 0), ("0.25", 250_000), ("2.00", 2_000_000), ("0.000001", 1), ("100000", 100_000_000_000), ("1.10", 1_100_000)]
        {
            assert_eq!(price_per_mtok(text), Ok(pico), "{text}");
        }
        assert_eq!(price_per_piece("0.000000000001"), Ok(1));
        assert_eq!(price_per_piece("0.002"), Ok(2_000_000_000));
    }

    #[test]
    fn what_is_not_an_exact_price_is_refused() {
        for text in ["", "-1", "+1", "1e3", ".5", "5.", "NaN", "inf", "0.0000001", "100000.000001", "1,5", "99999999999999999999999999"] {
            assert!(price_per_mtok(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_and_sizes_need_their_unit() {
        assert_eq!(duration_ms("500ms"), Ok(500));
        assert_eq!(duration_ms("120s"), Ok(120_000));
        assert_eq!(duration_ms("2m"), Ok(120_000));
        assert_eq!(size_bytes("10MiB"), Ok(10 << 20));
        for text in ["", "120", "s", "1.5s", "0s", "-1s", "5 s", "25h", "99999999999999999999h"] {
            assert!(duration_ms(text).is_err(), "{text}");
        }
        for text in ["10", "10MB", "1GiB", "1B", "MiB"] {
            assert!(size_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_factor_is_at_least_one() {
        assert_eq!(factor_ppm("3.0"), Ok(3_000_000));
        assert_eq!(factor_ppm("1"), Ok(1_000_000));
        assert!(factor_ppm("0.999999").is_err() && factor_ppm("1000.1").is_err() && factor_ppm("-3").is_err());
    }

    #[test]
    fn a_ratio_is_above_zero_and_at_most_one() {
        assert_eq!(ratio_ppm("0.5"), Ok(500_000));
        assert_eq!(ratio_ppm("1"), Ok(1_000_000));
        assert!(ratio_ppm("0").is_err() && ratio_ppm("1.1").is_err() && ratio_ppm("0.0000001").is_err());
    }
}
