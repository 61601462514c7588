//! What checking a value against a schema costs, counted beforehand: a chain of references may
//! double the work with each link, or be deeper than a stack. The count is of pairs of schema and
//! value, each walked once, so that counting is cheap where checking is not.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

/// Most steps of one check.
const MAX_STEPS: u64 = 1_000_000;
/// Most steps within one another: two megabytes of stack hold three times as many.
const MAX_NESTED: u32 = 512;

/// A schema whose references can all be followed.
#[derive(Debug)]
pub(super) struct Schema {
    root: Value,
}

impl Schema {
    /// References must lead to places of the same document, and nothing in it may be a document
    /// of its own.
    pub(super) fn new(root: Value) -> Result<Self, String> {
        let anchors = anchors(&root);
        let draft = root.get("$schema").and_then(Value::as_str);
        let id = match draft.is_some_and(|draft| draft.contains("draft-04")) {
            true => "id",
            false => "$id",
        };
        let mut all = vec![&root];
        while let Some(at) = all.pop() {
            for (key, value) in at.as_object().into_iter().flatten() {
                match (key.as_str(), value) {
                    ("enum" | "const" | "default" | "examples", _) => continue,
                    ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(to))
                        if follow(&root, &anchors, to).is_none() =>
                    {
                        return Err(format!("`{to}` is no reference within the schema (`#…`)"));
                    }
                    (key, Value::String(named)) if key == id && !std::ptr::eq(at, &root) => {
                        return Err(format!("a schema within the schema has an id, `{named}`"));
                    }
                    _ => all.push(value),
                }
            }
            all.extend(at.as_array().into_iter().flatten());
        }
        Ok(Self { root })
    }

    pub(super) fn root(&self) -> &Value {
        &self.root
    }

    /// Whether checking `value` stays within the limits.
    pub(super) fn can_check(&self, value: &Value) -> bool {
        let mut meter = Meter {
            root: &self.root,
            anchors: anchors(&self.root),
            known: HashMap::new(),
        };
        meter.cost(&self.root, value, 0).is_some()
    }
}

/// Named places of a schema.
type Anchors<'a> = BTreeMap<&'a str, &'a Value>;

fn anchors(root: &Value) -> Anchors<'_> {
    let mut anchors = BTreeMap::new();
    let mut all = vec![root];
    while let Some(at) = all.pop() {
        for name in ["$anchor", "$dynamicAnchor"] {
            anchors.extend(at.get(name).and_then(Value::as_str).map(|name| (name, at)));
        }
        all.extend(
            at.as_object()
                .into_iter()
                .flat_map(|members| members.values()),
        );
        all.extend(at.as_array().into_iter().flatten());
    }
    anchors
}

/// Where a reference leads.
fn follow<'a>(root: &'a Value, anchors: &Anchors<'a>, to: &str) -> Option<&'a Value> {
    let to = to.strip_prefix('#')?;
    if to.is_empty() || to.starts_with('/') {
        root.pointer(&percent_decoded(to)?)
    } else {
        anchors.get(to).copied()
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

struct Meter<'a> {
    root: &'a Value,
    anchors: Anchors<'a>,
    /// Pairs of schema and value → their steps, and how deep these go.
    known: HashMap<(*const Value, *const Value), Cost>,
}

#[derive(Debug, Clone, Copy)]
struct Cost {
    steps: u64,
    nested: u32,
}

impl<'a> Meter<'a> {
    /// The cost of checking `value`, none when it is over the limits.
    fn cost(&mut self, schema: &'a Value, value: &'a Value, depth: u32) -> Option<Cost> {
        let mut sum = Cost {
            steps: 1,
            nested: 1,
        };
        if depth >= MAX_NESTED || self.known.len() as u64 > MAX_STEPS {
            return None;
        }
        let Some(members) = schema.as_object() else {
            return Some(sum);
        };
        let pair = (std::ptr::from_ref(schema), std::ptr::from_ref(value));
        if let Some(known) = self.known.get(&pair) {
            return (depth + known.nested <= MAX_NESTED).then_some(*known);
        }
        // While it is under way it counts as one: the validator leaves circles as it meets them.
        self.known.insert(pair, sum);
        for (keyword, below) in members {
            for (schema, value) in self.pairs(keyword, below, value) {
                let cost = self.cost(schema, value, depth + 1)?;
                sum.steps = sum.steps.saturating_add(cost.steps);
                sum.nested = sum.nested.max(cost.nested + 1);
            }
            if sum.steps > MAX_STEPS {
                return None;
            }
        }
        self.known.insert(pair, sum);
        Some(sum)
    }

    /// What a keyword checks against what: the value itself, or parts of it.
    fn pairs(
        &self,
        keyword: &str,
        below: &'a Value,
        value: &'a Value,
    ) -> Vec<(&'a Value, &'a Value)> {
        let values = || {
            value
                .as_object()
                .into_iter()
                .flat_map(|members| members.values())
        };
        let items = || value.as_array().into_iter().flatten();
        let list = || below.as_array().into_iter().flatten();
        let map = || below.as_object().into_iter().flatten();
        match keyword {
            "$ref" | "$dynamicRef" | "$recursiveRef" => below
                .as_str()
                .and_then(|to| follow(self.root, &self.anchors, to))
                .map(|to| (to, value))
                .into_iter()
                .collect(),
            "not" | "if" | "then" | "else" => vec![(below, value)],
            "allOf" | "anyOf" | "oneOf" | "enum" | "required" => {
                list().map(|below| (below, value)).collect()
            }
            "dependentSchemas" | "dependencies" => map().map(|(_, below)| (below, value)).collect(),
            "properties" => map()
                .filter_map(|(name, below)| Some((below, value.as_object()?.get(name)?)))
                .collect(),
            "patternProperties" => map()
                .flat_map(|(_, below)| values().map(move |value| (below, value)))
                .collect(),
            "additionalProperties" | "unevaluatedProperties" => {
                values().map(|value| (below, value)).collect()
            }
            "propertyNames" => values().map(|_| (below, &Value::Null)).collect(),
            "prefixItems" => list().zip(items()).collect(),
            "items" if below.is_array() => list().zip(items()).collect(),
            "items" | "additionalItems" | "unevaluatedItems" | "contains" => {
                items().map(|value| (below, value)).collect()
            }
            _ => Vec::new(),
        }
    }
}
