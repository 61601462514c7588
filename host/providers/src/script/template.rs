//! Templates of a script: `{{name}}` in texts, and in the strings of JSON values.

use regex::Captures;
use serde_json::Value;

/// What a template may name.
pub(super) struct Values<'a> {
    /// The groups of the rule's pattern.
    pub(super) groups: Option<&'a Captures<'a>>,
    /// The user's last message.
    pub(super) user: &'a str,
    /// The tool results at the end of the prompt.
    pub(super) tools: &'a str,
}

impl<'a> Values<'a> {
    /// What a name stands for; what stands for nothing is empty.
    fn get(&self, name: &str) -> &'a str {
        let group = self.groups.and_then(|groups| match name.parse() {
            Ok(number) => groups.get(number),
            Err(_) => groups.name(name),
        });
        match (group, name) {
            (Some(group), _) => group.as_str(),
            (None, "user") => self.user,
            (None, "tools") => self.tools,
            (None, _) => "",
        }
    }
}

/// Fills in a text.
pub(super) fn text(template: &str, values: &Values<'_>) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((name, after)) = after.split_once("}}") else {
            break;
        };
        out.push_str(before);
        out.push_str(values.get(name.trim()));
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Fills in the strings of a value; gives its JSON text, in which numbers keep their digits.
pub(super) fn json(template: &Value, values: &Values<'_>) -> String {
    match template {
        Value::String(template) => {
            let (template, as_number) = match template.strip_suffix("|number") {
                Some(template) => (template, true),
                None => (template.as_str(), false),
            };
            let filled = text(template, values);
            number(&filled)
                .filter(|_| as_number)
                .unwrap_or_else(|| Value::from(filled).to_string())
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| json(item, values)).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(members) => {
            let members: Vec<String> = members
                .iter()
                .map(|(key, value)| {
                    format!("{}:{}", Value::from(key.as_str()), json(value, values))
                })
                .collect();
            format!("{{{}}}", members.join(","))
        }
        other => other.to_string(),
    }
}

/// A number as JSON writes it, when it is one.
fn number(text: &str) -> Option<String> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let numeric = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !numeric(whole) || !numeric(fraction) {
        return None;
    }
    let significant = digits.trim_start_matches('0');
    let zero = if significant.is_empty() || significant.starts_with('.') {
        "0"
    } else {
        ""
    };
    Some(format!("{sign}{zero}{significant}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (from, to) in [
            ("7", Some("7")),
            ("-3.50", Some("-3.50")),
            ("007", Some("7")),
            ("0", Some("0")),
            ("00.5", Some("0.5")),
            ("-0", Some("-0")),
            ("3.", None),
            (".5", None),
            ("1e5", None),
            ("", None),
            ("-", None),
            ("1.2.3", None),
        ] {
            assert_eq!(number(from).as_deref(), to, "{from}");
        }
    }

    #[test]
    fn a_brace_that_opens_nothing_stays() {
        let values = Values {
            groups: None,
            user: "u",
            tools: "",
        };
        assert_eq!(text("{{user}} {{ user }} {{x}} {{ {", &values), "u u  {{ {");
    }
}
