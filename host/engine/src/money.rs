//! Costs and token counts, summed exactly.

use belljar_protocol::Json;
use rust_decimal::Decimal;
use serde_json::{Map, Number, Value};

/// A sum of costs and usages.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sum {
    cost: Option<Decimal>,
    usage: Map<String, Value>,
}

impl Sum {
    /// Adds one reply's: dollars that do not parse count as none; counts are summed field by
    /// field where both are numbers [C13].
    pub(crate) fn add(&mut self, usage: Option<&Json>, cost: Option<&str>) {
        if let Some(cost) = cost.and_then(|cost| cost.parse::<Decimal>().ok()) {
            self.cost = Some(self.cost.unwrap_or_default().saturating_add(cost));
        }
        if let Some(Value::Object(more)) = usage.and_then(|usage| usage.read().ok()) {
            add_fields(&mut self.usage, more);
        }
    }

    pub(crate) fn cost(&self) -> Option<String> {
        Some(self.cost?.normalize().to_string())
    }

    pub(crate) fn usage(&self) -> Option<Json> {
        (!self.usage.is_empty()).then(|| Json::of(&self.usage))
    }

    pub(crate) fn restore(cost: Option<&str>, usage: Option<&Json>) -> Self {
        let mut sum = Self::default();
        sum.add(usage, cost);
        sum
    }
}

/// A decimal without trailing zeros; none for what is not a decimal of at most 28 digits.
pub(crate) fn normalised(cost: &str) -> Option<String> {
    Some(cost.trim().parse::<Decimal>().ok()?.normalize().to_string())
}

fn add_fields(sum: &mut Map<String, Value>, more: Map<String, Value>) {
    for (key, value) in more {
        match (sum.get_mut(&key), value) {
            (Some(Value::Number(have)), Value::Number(add)) => *have = add_numbers(have, &add),
            (Some(Value::Object(have)), Value::Object(add)) => add_fields(have, add),
            (_, value) => {
                sum.insert(key, value);
            }
        }
    }
}

fn add_numbers(a: &Number, b: &Number) -> Number {
    if let (Some(a), Some(b)) = (a.as_i64(), b.as_i64())
        && let Some(sum) = a.checked_add(b)
    {
        return sum.into();
    }
    let sum = a.as_f64().unwrap_or(0.0) + b.as_f64().unwrap_or(0.0);
    Number::from_f64(sum).unwrap_or_else(|| a.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c13_costs_are_normalised_and_usage_is_summed_field_by_field() {
        let mut sum = Sum::default();
        let usage = Json::parse(r#"{"in":3,"cache":{"read":1},"model":"a"}"#).unwrap();
        sum.add(Some(&usage), Some("0.010"));
        sum.add(
            Some(&Json::parse(r#"{"in":4,"cache":{"read":2},"out":5,"model":"b"}"#).unwrap()),
            Some("0.02"),
        );
        assert_eq!(sum.cost().unwrap(), "0.03");
        let expected = Json::parse(r#"{"in":7,"cache":{"read":3},"out":5,"model":"b"}"#).unwrap();
        assert_eq!(sum.usage().unwrap(), expected);
        assert_eq!(normalised("1.500"), Some("1.5".into()));
        assert_eq!(normalised("free"), None);
    }
}
