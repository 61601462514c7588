//! What a reply costs, in exact decimal arithmetic.

use std::fmt;

use belljar_protocol::Json;
use rust_decimal::Decimal;
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer};

/// Prices of one model, in dollars per million tokens.
///
/// Each may be written as a string (`"0.15"`) or as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Tokens of the prompt.
    #[serde(deserialize_with = "dollars")]
    pub input: Decimal,
    /// Tokens of the prompt that the provider had in its cache; absent: as `input`.
    #[serde(default, deserialize_with = "optional_dollars")]
    pub cached_input: Option<Decimal>,
    /// Tokens of the reply, reasoning among them.
    #[serde(deserialize_with = "dollars")]
    pub output: Decimal,
}

impl Price {
    /// Dollars for a reply with this usage; none when the counts are missing or absurd.
    pub(crate) fn cost(&self, usage: &Json) -> Option<String> {
        let counts: Counts = usage.read().ok()?;
        let prompt = count(counts.prompt_tokens.as_ref())?;
        let completion = count(counts.completion_tokens.as_ref())?;
        let details = counts
            .prompt_tokens_details
            .and_then(|details| details.cached_tokens);
        let cached = count(details.as_ref())
            .or_else(|| count(counts.prompt_cache_hit_tokens.as_ref()))
            .unwrap_or_default()
            .min(prompt); // `prompt_tokens` counts the cached ones too.
        let millionths = (prompt - cached)
            .checked_mul(self.input)?
            .checked_add(cached.checked_mul(self.cached_input.unwrap_or(self.input))?)?
            .checked_add(completion.checked_mul(self.output)?)?;
        Some(written(millionths.checked_div(Decimal::from(1_000_000))?))
    }
}

/// The dollars the provider itself says a reply cost.
pub(crate) fn stated_cost(usage: &Json) -> Option<String> {
    let counts: Counts = usage.read().ok()?;
    count(counts.cost.as_ref()).map(written)
}

/// Token counts, as far as they matter for the cost.
#[derive(Deserialize)]
struct Counts {
    prompt_tokens: Option<Json>,
    completion_tokens: Option<Json>,
    prompt_tokens_details: Option<PromptDetails>,
    prompt_cache_hit_tokens: Option<Json>,
    cost: Option<Json>,
}

#[derive(Deserialize)]
struct PromptDetails {
    cached_tokens: Option<Json>,
}

fn count(number: Option<&Json>) -> Option<Decimal> {
    number.and_then(|number| decimal(&number.to_argument_text()).ok())
}

/// A decimal without trailing zeros or exponent.
fn written(number: Decimal) -> String {
    number.normalize().to_string()
}

/// Reads a number that is not negative, exactly as it is written.
fn decimal(text: &str) -> Result<Decimal, String> {
    let number = Decimal::from_str_exact(text)
        .or_else(|_| Decimal::from_scientific(text))
        .map_err(|_| format!("`{text}` is not a decimal number"))?;
    if number.is_sign_negative() && !number.is_zero() {
        return Err(format!("`{text}` is negative"));
    }
    Ok(number)
}

fn dollars<'de, D: Deserializer<'de>>(from: D) -> Result<Decimal, D::Error> {
    struct Dollars;
    impl Visitor<'_> for Dollars {
        type Value = Decimal;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("dollars per million tokens, such as \"0.15\"")
        }
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Decimal, E> {
            decimal(text).map_err(E::custom)
        }
        fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Decimal, E> {
            self.visit_str(&number.to_string())
        }
        fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Decimal, E> {
            self.visit_str(&number.to_string())
        }
        // The shortest text that reads as this float is what the person wrote.
        fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Decimal, E> {
            self.visit_str(&number.to_string())
        }
    }
    from.deserialize_any(Dollars)
        .map_err(|error| D::Error::custom(error.to_string()))
}

fn optional_dollars<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Decimal>, D::Error> {
    dollars(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(text: &str) -> Price {
        toml::from_str(text).unwrap()
    }

    fn usage(text: &str) -> Json {
        Json::parse(text).unwrap()
    }

    #[test]
    fn cost_is_exact_and_cached_tokens_are_part_of_the_prompt() {
        let price = price("input = 0.15\ncached_input = \"0.075\"\noutput = 0.6");
        let usage = usage(
            r#"{"prompt_tokens":1000,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":400}}"#,
        );
        // 600 * 0.15 + 400 * 0.075 + 10 * 0.6 = 126 millionths of a dollar.
        assert_eq!(price.cost(&usage).as_deref(), Some("0.000126"));
    }

    #[test]
    fn cached_tokens_cost_as_the_others_when_they_have_no_price() {
        let price = price("input = 3\noutput = 15");
        let usage = usage(
            r#"{"prompt_tokens":1000000,"completion_tokens":0,"prompt_cache_hit_tokens":9999999}"#,
        );
        assert_eq!(price.cost(&usage).as_deref(), Some("3"));
    }

    #[test]
    fn absurd_counts_cost_nothing_known() {
        let price = price("input = 3\noutput = 15");
        for text in [
            "{}",
            r#"{"prompt_tokens":-1,"completion_tokens":1}"#,
            r#"{"prompt_tokens":"many","completion_tokens":1}"#,
            r#"{"prompt_tokens":79228162514264337593543950335,"completion_tokens":1}"#,
            "7",
        ] {
            assert_eq!(price.cost(&usage(text)), None, "{text}");
        }
    }

    #[test]
    fn the_providers_own_cost_keeps_its_digits() {
        assert_eq!(
            stated_cost(&usage(r#"{"cost":0.00014310}"#)).as_deref(),
            Some("0.0001431")
        );
        assert_eq!(
            stated_cost(&usage(r#"{"cost":1.2e-05}"#)).as_deref(),
            Some("0.000012")
        );
        assert_eq!(stated_cost(&usage(r#"{"cost":0}"#)).as_deref(), Some("0"));
        assert_eq!(stated_cost(&usage(r#"{"cost":null}"#)), None);
        assert_eq!(stated_cost(&usage(r#"{"cost":-1}"#)), None);
    }

    #[test]
    fn a_price_below_zero_is_refused() {
        assert!(toml::from_str::<Price>("input = -1\noutput = 1").is_err());
        assert!(toml::from_str::<Price>("input = \"x\"\noutput = 1").is_err());
    }
}
