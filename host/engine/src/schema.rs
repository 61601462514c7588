//! JSON Schemas of tools [C7]: they come from strangers, so they are bounded and never fetch.

mod cost;

use std::sync::OnceLock;

use belljar_protocol::Json;
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

/// Most bytes of one schema.
pub(crate) const MAX_BYTES: usize = 64 * 1024;
/// Deepest nesting of one schema.
pub(crate) const MAX_DEPTH: usize = 32;
/// Most tools of one config or call.
pub(crate) const MAX_TOOLS: usize = 128;

/// The compiled input schemas of a config's tools, each made when first needed.
#[derive(Debug)]
pub(crate) struct Compiled(Vec<OnceLock<Result<Checker, String>>>);

/// A schema that is ready to check values.
#[derive(Debug)]
pub(crate) struct Checker {
    schema: cost::Schema,
    validator: Validator,
}

impl Compiled {
    pub(crate) fn new(tools: usize) -> Self {
        Self(std::iter::repeat_with(OnceLock::new).take(tools).collect())
    }

    /// Checks a value against the schema of the tool at `ix`.
    pub(crate) fn check(&self, ix: usize, schema: &Json, value: &Value) -> Result<(), String> {
        let Some(slot) = self.0.get(ix) else {
            return check(schema, value);
        };
        match slot.get_or_init(|| compile(schema)) {
            Ok(checker) => checker.check(value),
            Err(error) => Err(error.clone()),
        }
    }
}

/// Checks a value against a schema that is compiled for this one time.
pub(crate) fn check(schema: &Json, value: &Value) -> Result<(), String> {
    compile(schema)?.check(value)
}

/// Compiles a schema: at most 64 KiB and 32 levels, no remote references, patterns of a
/// linear-time engine.
pub(crate) fn compile(schema: &Json) -> Result<Checker, String> {
    let size = schema.as_str().len();
    if size > MAX_BYTES {
        return Err(format!(
            "the schema has {size} bytes, at most {MAX_BYTES} are allowed"
        ));
    }
    let schema: Value = schema.read().map_err(|e| e.to_string())?;
    let depth = depth(&schema);
    if depth > MAX_DEPTH {
        return Err(format!(
            "the schema is nested {depth} deep, at most {MAX_DEPTH} are allowed"
        ));
    }
    if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
        return Err("a schema must be an object or a boolean".into());
    }
    let wrong = |reason: String| format!("the schema does not compile: {reason}");
    let schema = cost::Schema::new(schema).map_err(wrong)?;
    let validator = jsonschema::options()
        .with_pattern_options(PatternOptions::regex())
        .build(schema.root())
        .map_err(|e| wrong(shortened(e.to_string())))?;
    Ok(Checker { schema, validator })
}

impl Checker {
    /// The first three violations, joined. A value that would take too long to check has one.
    fn check(&self, value: &Value) -> Result<(), String> {
        if !self.schema.can_check(value) {
            return Err("checking them against the tool's schema takes too many steps".into());
        }
        violations(&self.validator, value)
    }
}

fn violations(validator: &Validator, value: &Value) -> Result<(), String> {
    let found: Vec<String> = validator
        .iter_errors(value)
        .take(3)
        .map(|error| {
            let at = error.instance_path().to_string();
            let text = if at.is_empty() {
                error.to_string()
            } else {
                format!("{at}: {error}")
            };
            shortened(text)
        })
        .collect();
    if found.is_empty() {
        Ok(())
    } else {
        Err(found.join("; "))
    }
}

/// A violation quotes what it found, which may be all of the arguments.
fn shortened(mut text: String) -> String {
    const MOST: usize = 500;
    if text.len() > MOST {
        text.truncate(text.floor_char_boundary(MOST));
        text.push('…');
    }
    text
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(text: &str) -> Json {
        Json::parse(text).unwrap()
    }

    #[test]
    fn c7_names_at_most_three_violations() {
        let s = schema(r#"{"type":"object","required":["a","b","c","d"]}"#);
        let error = check(&s, &serde_json::json!({})).unwrap_err();
        assert_eq!(error.matches("required").count(), 3, "{error}");
        assert!(check(&s, &serde_json::json!({"a":1,"b":1,"c":1,"d":1})).is_ok());
    }

    #[test]
    fn c7_hostile_schemas_are_refused() {
        let deep = format!("{}{}", r#"{"not":"#.repeat(40), "{}") + &"}".repeat(40);
        for (hostile, reason) in [
            (
                r#"{"$ref":"https://example.com/schema.json"}"#.to_owned(),
                "compile",
            ),
            (r#"{"$ref":"file:///etc/passwd"}"#.to_owned(), "compile"),
            (deep, "nested"),
            (
                format!(r#"{{"description":"{}"}}"#, "x".repeat(MAX_BYTES)),
                "bytes",
            ),
            (r#"{"type":"nonsense"}"#.to_owned(), "compile"),
            (
                r##"{"$ref":"#/nowhere"}"##.to_owned(),
                "no reference within",
            ),
            (r##"{"$ref":"#nowhere"}"##.to_owned(), "no reference within"),
            (r##"{"$ref":"#/%zz"}"##.to_owned(), "no reference within"),
            (
                r##"{"$ref":"#/$defs/x","$defs":{"x":{"$id":"https://a.b/c"}}}"##.to_owned(),
                "has an id",
            ),
            (r#"{"pattern":"(?=lookahead)"}"#.to_owned(), "compile"),
            ("[]".to_owned(), "object or a boolean"),
        ] {
            let error = compile(&schema(&hostile)).unwrap_err();
            assert!(error.contains(reason), "{hostile:.60}: {error}");
        }
    }

    #[test]
    fn c7_what_a_check_may_cost_is_bounded() {
        let nested = |depth: usize| {
            let mut value = serde_json::json!({});
            for _ in 0..depth {
                value = serde_json::json!({ "a": value });
            }
            value
        };
        let chain = |link: &str| {
            let defs: Vec<_> = (0..900)
                .map(|n| format!(r##""d{n}":{}"##, link.replace('N', &format!("{}", n + 1))))
                .collect();
            schema(&format!(
                r##"{{"$ref":"#/$defs/d0","$defs":{{{},"d900":{{}}}}}}"##,
                defs.join(",")
            ))
        };
        let circle = r##"{"properties":{"a":{"allOf":[{"$ref":"#"},{"$ref":"#"}]}}}"##;
        let twice = r##"{"allOf":[{"$ref":"#/$defs/dN"},{"$ref":"#/$defs/dN"}]}"##;
        // Twice the work with each link; twice with each level; deeper than a stack.
        for (hostile, value) in [
            (chain(twice), nested(1)),
            (schema(circle), nested(100)),
            (chain(r##"{"$ref":"#/$defs/dN"}"##), nested(1)),
        ] {
            let error = check(&hostile, &value).unwrap_err();
            assert!(error.contains("too many steps"), "{error}");
        }
        // What goes round in circles, and trees of any depth, are fine.
        for (kind, ok) in [
            (r##"{"$ref":"#"}"##, true),
            (r##"{"allOf":[{"$ref":"#"}]}"##, true),
            (r##"{"additionalProperties":{"$ref":"#"}}"##, true),
            (
                r##"{"$defs":{"t":{"$anchor":"t","type":"object","additionalProperties":{"$ref":"#t"}}},"$ref":"#/%24defs/t"}"##,
                true,
            ),
            (
                r##"{"additionalProperties":{"$ref":"#"},"maxProperties":0}"##,
                false,
            ),
        ] {
            assert_eq!(check(&schema(kind), &nested(120)).is_ok(), ok, "{kind}");
        }
    }

    #[test]
    fn c7_large_arguments_are_checked() {
        let s = schema(r#"{"properties":{"rows":{"items":{"type":"number","minimum":0}}}}"#);
        let rows =
            |last: i64| serde_json::json!({"rows": (0..100_000).chain([last]).collect::<Vec<_>>()});
        assert!(check(&s, &rows(1)).is_ok());
        assert!(check(&s, &rows(-1)).unwrap_err().contains("/rows/100000"));
    }

    #[test]
    fn c7_patterns_run_in_linear_time() {
        let s = schema(r#"{"type":"string","pattern":"^(a+)+$"}"#);
        let value = Value::String("a".repeat(50_000) + "!");
        assert!(check(&s, &value).is_err());
    }
}
