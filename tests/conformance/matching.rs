//! Patterns of vectors, and the names they bind.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use serde_json::Value;

/// Names bound so far: `$name` binds at first sight and must be equal afterwards.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names(BTreeMap<String, Value>);

impl Names {
    pub(crate) fn bind(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// A value of the story with the names in it replaced.
    pub(crate) fn fill(&self, value: &Value) -> Value {
        match value {
            Value::String(text) if text.starts_with('$') => {
                self.0.get(text).cloned().unwrap_or_else(|| value.clone())
            }
            Value::Array(items) => items.iter().map(|item| self.fill(item)).collect(),
            Value::Object(members) => members
                .iter()
                .map(|(key, value)| (key.clone(), self.fill(value)))
                .collect(),
            _ => value.clone(),
        }
    }

    /// Whether `found` is what `pattern` asks for; says where not.
    pub(crate) fn check(&mut self, pattern: &Value, found: Option<&Value>, at: &str) -> Result<()> {
        let found = found.unwrap_or(&Value::Null);
        match pattern {
            Value::String(text) => self.check_text(text, found, at),
            Value::Object(members) => {
                ensure!(found.is_object(), "{at}: expected an object, found {found}");
                for (key, pattern) in members {
                    self.check(pattern, found.get(key), &format!("{at}.{key}"))?;
                }
                Ok(())
            }
            Value::Array(items) => {
                let list = found.as_array().cloned().unwrap_or_default();
                let absent = found.is_null() && items.is_empty();
                ensure!(
                    found.is_array() || absent,
                    "{at}: expected a list, found {found}"
                );
                ensure!(
                    list.len() == items.len(),
                    "{at}: expected {} items, found {}: {found}",
                    items.len(),
                    list.len()
                );
                for (ix, (pattern, found)) in items.iter().zip(&list).enumerate() {
                    self.check(pattern, Some(found), &format!("{at}[{ix}]"))?;
                }
                Ok(())
            }
            Value::Number(number) => {
                ensure!(
                    found.as_f64().is_some() && found.as_f64() == number.as_f64(),
                    "{at}: expected {number}, found {found}"
                );
                Ok(())
            }
            Value::Null | Value::Bool(_) => {
                ensure!(pattern == found, "{at}: expected {pattern}, found {found}");
                Ok(())
            }
        }
    }

    fn check_text(&mut self, text: &str, found: &Value, at: &str) -> Result<()> {
        let empty = match found {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(members) => members.is_empty(),
            Value::Bool(_) | Value::Number(_) => false,
        };
        match text {
            "*" => ensure!(!found.is_null(), "{at}: expected anything, found nothing"),
            "<absent>" => ensure!(empty, "{at}: expected nothing, found {found}"),
            "<not true>" => ensure!(*found != Value::Bool(true), "{at}: expected not true"),
            name if name.starts_with('$') => match self.0.get(name) {
                Some(bound) => ensure!(
                    bound == found,
                    "{at}: expected {name} = {bound}, found {found}"
                ),
                None if found.is_null() => {
                    bail!("{at}: expected a value for {name}, found nothing")
                }
                None => self.bind(name, found.clone()),
            },
            part if part.len() > 2 && part.starts_with('*') && part.ends_with('*') => {
                let part = &part[1..part.len() - 1];
                ensure!(
                    found.as_str().is_some_and(|text| text.contains(part)),
                    "{at}: expected a text with `{part}`, found {found}"
                );
            }
            _ => ensure!(
                found.as_str() == Some(text),
                "{at}: expected {text:?}, found {found}"
            ),
        }
        Ok(())
    }
}
