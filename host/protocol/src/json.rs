//! JSON of others: kept as the text that came, compared by value with exact numbers.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// Deepest nesting of arrays and objects a document may have. Whatever walks a document may
/// recurse this far, so a deeper one is refused when it comes.
pub const MAX_DEPTH: usize = 128;

/// A JSON document kept byte for byte as it came, nested at most [`MAX_DEPTH`] deep.
///
/// Cheap to clone. Equality is that of the parsed values: key order and white space do not
/// matter, numbers compare exactly (`1.0` equals `1`, `9007199254740993` is not `...992`).
#[derive(Clone)]
pub struct Json(Arc<str>);

impl Json {
    /// Checks that `text` is one JSON document.
    ///
    /// # Errors
    /// The parser's message with line and column, or that it is nested too deep.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The JSON form of a value. A value that has none (a map with keys that are not strings,
    /// which no type of this project holds) becomes `null`.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Self {
        Self(
            serde_json::to_string(value)
                .unwrap_or_else(|_| "null".into())
                .into(),
        )
    }

    /// A JSON string holding `text`.
    pub fn string(text: &str) -> Self {
        Self::of(text)
    }

    /// The document's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses into a type.
    ///
    /// # Errors
    /// The parser's message, when the document is not of that type.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }

    /// The string inside, when the document is a string.
    pub fn text(&self) -> Option<String> {
        self.0.starts_with('"').then(|| self.read().ok()).flatten()
    }

    /// Whether the document is `null`.
    pub fn is_null(&self) -> bool {
        &*self.0 == "null"
    }

    /// Whether the document is an object without members.
    pub fn is_empty_object(&self) -> bool {
        matches!(shape(&self.0), Shape::Object(members) if members.is_empty())
    }

    /// What travels where a string is asked for: a string's own text, `null` as the empty
    /// string, anything else as its JSON text [D5].
    pub fn to_argument_text(&self) -> String {
        if self.is_null() {
            return String::new();
        }
        self.text().unwrap_or_else(|| self.0.to_string())
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0 || same_value(&self.0, &other.0)
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // The text was checked when it came; a raw value is made without another pass.
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(from)?;
        if let Some(reason) = unfit(raw.get()) {
            return Err(serde::de::Error::custom(reason));
        }
        Ok(Self(raw.get().into()))
    }
}

/// Why a document that parses is refused all the same: it is nested deeper than [`MAX_DEPTH`], or
/// a string of it holds half a surrogate pair, which JSON can spell and no text can hold.
fn unfit(text: &str) -> Option<String> {
    let (mut depth, mut in_string) = (0, false);
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => match surrogate(bytes, at) {
                None => at += 1,
                Some(High)
                    if surrogate(bytes, at + 6) == Some(Low)
                        && bytes.get(at + 5) == Some(&b'\\') =>
                {
                    at += 11;
                }
                Some(_) => return Some("a string holds half a surrogate pair".into()),
            },
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Some(format!("nested more than {MAX_DEPTH} levels deep"));
                }
            }
            b']' | b'}' if !in_string => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Half of a surrogate pair.
#[derive(PartialEq)]
enum Half {
    High,
    Low,
}
use Half::{High, Low};

/// The half that an escape spells; `at` is after its backslash.
fn surrogate(bytes: &[u8], at: usize) -> Option<Half> {
    let [b'u', b'd' | b'D', third, _, _] = bytes.get(at..at + 5)? else {
        return None;
    };
    match third {
        b'8' | b'9' | b'a' | b'b' | b'A' | b'B' => Some(High),
        b'c'..=b'f' | b'C'..=b'F' => Some(Low),
        _ => None,
    }
}

/// A document in one canonical form: keys sorted, no white space, numbers in lowest terms. Equal
/// values have equal forms.
pub fn canonical(json: &Json) -> String {
    let mut out = String::with_capacity(json.as_str().len());
    write_canonical(json.as_str(), &mut out);
    out
}

fn write_canonical(text: &str, out: &mut String) {
    match shape(text) {
        Shape::Null => out.push_str("null"),
        Shape::Bool(true) => out.push_str("true"),
        Shape::Bool(false) => out.push_str("false"),
        Shape::Number(number) => {
            let Decimal {
                negative,
                digits,
                exponent,
            } = Decimal::of(number);
            let sign = if negative { "-" } else { "" };
            out.push_str(&if digits.is_empty() {
                "0".into()
            } else {
                format!("{sign}{digits}e{exponent}")
            });
        }
        Shape::String(string) => out.push_str(Json::string(&string).as_str()),
        Shape::Array(items) => {
            for (ix, item) in items.iter().enumerate() {
                out.push(if ix == 0 { '[' } else { ',' });
                write_canonical(item.get(), out);
            }
            out.push_str(if items.is_empty() { "[]" } else { "]" });
        }
        Shape::Object(members) => {
            for (ix, (key, value)) in members.iter().enumerate() {
                out.push(if ix == 0 { '{' } else { ',' });
                out.push_str(Json::string(key).as_str());
                out.push(':');
                write_canonical(value.get(), out);
            }
            out.push_str(if members.is_empty() { "{}" } else { "}" });
        }
    }
}

/// One level of a document.
enum Shape<'a> {
    Null,
    Bool(bool),
    Number(&'a str),
    String(String),
    Array(Vec<&'a RawValue>),
    Object(BTreeMap<String, &'a RawValue>),
}

fn shape(text: &str) -> Shape<'_> {
    let text = text.trim();
    // Every text here was accepted by the parser once, so the fallbacks are never taken.
    match text.as_bytes().first() {
        Some(b'"') => Shape::String(serde_json::from_str(text).unwrap_or_default()),
        Some(b'[') => Shape::Array(serde_json::from_str(text).unwrap_or_default()),
        Some(b'{') => Shape::Object(serde_json::from_str(text).unwrap_or_default()),
        Some(b't') => Shape::Bool(true),
        Some(b'f') => Shape::Bool(false),
        Some(b'n') | None => Shape::Null,
        Some(_) => Shape::Number(text),
    }
}

fn same_value(a: &str, b: &str) -> bool {
    match (shape(a), shape(b)) {
        (Shape::Null, Shape::Null) => true,
        (Shape::Bool(a), Shape::Bool(b)) => a == b,
        (Shape::Number(a), Shape::Number(b)) => Decimal::of(a) == Decimal::of(b),
        (Shape::String(a), Shape::String(b)) => a == b,
        (Shape::Array(a), Shape::Array(b)) => {
            a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| same_value(a.get(), b.get()))
        }
        (Shape::Object(a), Shape::Object(b)) => {
            a.len() == b.len()
                && a.iter().zip(&b).all(|((ka, a), (kb, b))| {
                    ka.cmp(kb) == Ordering::Equal && same_value(a.get(), b.get())
                })
        }
        _ => false,
    }
}

/// A JSON number in lowest terms: sign, digits without outer zeros, power of ten.
#[derive(PartialEq)]
struct Decimal {
    negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    fn of(text: &str) -> Self {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, e)) => match e.trim_start_matches('+').parse::<i64>() {
                Ok(exponent) => (mantissa, exponent),
                // An exponent beyond 64 bits is equal to nothing but its own spelling.
                Err(_) => {
                    return Self {
                        negative,
                        digits: text.to_owned(),
                        exponent: 0,
                    };
                }
            },
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        let kept = all.trim_end_matches('0');
        let dropped = (all.len() - kept.len()) as i64;
        let digits = kept.trim_start_matches('0').to_owned();
        if digits.is_empty() {
            return Self {
                negative: false,
                digits,
                exponent: 0,
            };
        }
        Self {
            negative,
            digits,
            exponent: exponent
                .saturating_sub(fraction.len() as i64)
                .saturating_add(dropped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(a: &str, b: &str) -> bool {
        Json::parse(a).unwrap() == Json::parse(b).unwrap()
    }

    #[test]
    fn equality_is_that_of_values_with_exact_numbers() {
        assert!(same(
            r#"{"a":1,"b":[true,null]}"#,
            r#"{ "b" : [true, null], "a" : 1.0 }"#
        ));
        assert!(same("100", "1e2"));
        assert!(same("0.10", "0.1"));
        assert!(same("-0", "0"));
        assert!(same(r#""A""#, r#""\u0041""#));
        assert!(!same("9007199254740993", "9007199254740992"));
        assert!(!same("1", "\"1\""));
        assert!(!same("[1]", "[1,1]"));
        assert!(!same("-1", "1"));
    }

    #[test]
    fn text_travels_byte_for_byte() {
        let text = r#"{"z": 1.50, "a": [1,  2]}"#;
        #[derive(Serialize, Deserialize)]
        struct Holder {
            inner: Json,
        }
        let holder: Holder = serde_json::from_str(&format!(r#"{{"inner":{text}}}"#)).unwrap();
        assert_eq!(holder.inner.as_str(), text);
        assert_eq!(
            serde_json::to_string(&holder).unwrap(),
            format!(r#"{{"inner":{text}}}"#)
        );
    }

    #[test]
    fn a_document_nested_too_deep_is_refused_before_anything_walks_it() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(Json::parse(&nested(MAX_DEPTH)).is_ok());
        for n in [MAX_DEPTH + 1, 1_000_000] {
            assert!(
                Json::parse(&nested(n))
                    .unwrap_err()
                    .to_string()
                    .contains("128 levels")
            );
        }
        assert!(Json::parse(&format!("\"{}\\\"[\"", "[".repeat(200))).is_ok());
    }

    #[test]
    fn half_a_surrogate_pair_is_refused_and_a_whole_one_is_text() {
        for half in [
            r#""\ud800""#,
            r#""\udc00""#,
            r#"{"\uD83D":1}"#,
            r#""\ud83d\u0041""#,
            r#""\ud83dx\ude00""#,
        ] {
            assert!(Json::parse(half).is_err(), "{half}");
        }
        assert!(same(r#""\ud83d\ude00""#, "\"😀\""));
        assert!(
            same(r#""\\ud800""#, r#""\\ud800""#),
            "an escaped backslash begins no escape"
        );
        assert!(!same("1e99999999999999999999", "1e88888888888888888888"));
    }

    #[test]
    fn canonical_forms_are_equal_for_equal_values() {
        let form = |text| canonical(&Json::parse(text).unwrap());
        assert_eq!(
            form(r#"{"b": [1.0, {}], "a": "x"}"#),
            form(r#"{"a":"\u0078","b":[10e-1,{}]}"#)
        );
        assert_ne!(form("[1,2]"), form("[12]"));
        assert_ne!(form(r#"{"a":[]}"#), form(r#"{"a":{}}"#));
        assert!(Json::parse(&form(r#"{"a":[0,-1.50,"q\""]}"#)).is_ok());
    }

    #[test]
    fn argument_text_follows_d5() {
        assert_eq!(Json::parse("null").unwrap().to_argument_text(), "");
        assert_eq!(Json::parse("\"7\"").unwrap().to_argument_text(), "7");
        assert_eq!(
            Json::parse("{\"t\":1}").unwrap().to_argument_text(),
            "{\"t\":1}"
        );
    }
}
