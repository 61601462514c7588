//! The document a script is, and which rule answers.

use std::fmt;

use regex::Regex;
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::Value;

use super::template::{Values, json, text};

/// A script: rules, the first that fits answers.
///
/// Texts and arguments are templates: `{{1}}` and `{{name}}` stand for groups of the rule's
/// `user` pattern, `{{user}}` for the user's last message, `{{tools}}` for the tool results at
/// the end of the prompt, one per line. In arguments, a string that ends in `|number` becomes a
/// JSON number, when what stands before it is one.
///
/// ```toml
/// split = '\s+and\s+'
/// default = "I can roll dice: say `roll 6`."
///
/// [[rules]]
/// when = { user = '^roll (\d+)$', offers = "roll" }
/// tool_calls = [{ name = "roll", arguments = { sides = "{{1}}|number" } }]
///
/// [[rules]]
/// when = { after_tools = true }
/// text = "It is {{tools}}."
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The rules, in the order they are tried.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// Where to cut the user's message when each piece is answered by tool calls: all of them
    /// go into one reply. Otherwise the message is taken as a whole.
    #[serde(default)]
    pub split: Option<Pattern>,
    /// The text when no rule fits. After tool results it is `{{tools}}` instead.
    #[serde(default = "default_text")]
    pub default: String,
    /// Milliseconds between the pieces of a streamed reply.
    #[serde(default)]
    pub delay_ms: u64,
}

/// When to answer what. Either `text` or `tool_calls`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, try_from = "RuleFields")]
pub struct Rule {
    /// What must hold.
    pub when: When,
    /// The reply.
    pub reply: ReplyTemplate,
}

/// What a rule asks of a request. All that is given must hold.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct When {
    /// A pattern found in the user's last message.
    pub user: Option<Pattern>,
    /// Whether the prompt ends in tool results; default false, so that no rule calls its tools
    /// again when they have answered.
    pub after_tools: bool,
    /// A tool that the request offers.
    pub offers: Option<String>,
}

/// What a rule replies.
#[derive(Debug, Clone)]
pub enum ReplyTemplate {
    /// A text.
    Text(String),
    /// Tool calls.
    Calls(Vec<CallTemplate>),
}

/// A tool call of a rule.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallTemplate {
    /// The tool.
    pub name: String,
    /// Its arguments; strings in it are templates.
    #[serde(default = "no_arguments")]
    pub arguments: Value,
}

/// A regular expression, checked when it is read. It takes time linear in what it searches.
#[derive(Clone)]
pub struct Pattern(Regex);

/// What a script says to a request.
#[derive(Debug, PartialEq)]
pub(super) enum Said {
    Text(String),
    /// Names and argument texts.
    Calls(Vec<(String, String)>),
}

impl Script {
    /// The built-in script for the ledger example.
    pub fn ledger() -> Self {
        // The text is part of the program, and a test reads it.
        #[expect(clippy::expect_used)]
        toml::from_str(include_str!("ledger.toml")).expect("the built-in script is well-formed")
    }

    pub(super) fn answer(
        &self,
        user: &str,
        results: &[String],
        offers: impl Fn(&str) -> bool,
    ) -> Said {
        let after_tools = !results.is_empty();
        let results = results.join("\n");
        if let Some(Pattern(split)) = self.split.as_ref().filter(|_| !after_tools) {
            let pieces: Vec<&str> = split
                .split(user)
                .map(str::trim)
                .filter(|piece| !piece.is_empty())
                .collect();
            let calls = |piece: &&str| match self.rule(piece, &results, after_tools, &offers)? {
                Said::Calls(calls) => Some(calls),
                Said::Text(_) => None,
            };
            if pieces.len() > 1
                && let Some(calls) = pieces.iter().map(calls).collect::<Option<Vec<_>>>()
            {
                return Said::Calls(calls.concat());
            }
        }
        self.rule(user, &results, after_tools, &offers)
            .unwrap_or_else(|| match after_tools {
                true => Said::Text(results),
                false => Said::Text(text(
                    &self.default,
                    &Values {
                        groups: None,
                        user,
                        tools: &results,
                    },
                )),
            })
    }

    fn rule(
        &self,
        user: &str,
        tools: &str,
        after_tools: bool,
        offers: &impl Fn(&str) -> bool,
    ) -> Option<Said> {
        self.rules.iter().find_map(|Rule { when, reply }| {
            if when.after_tools != after_tools || !when.offers.as_deref().is_none_or(offers) {
                return None;
            }
            let groups = match &when.user {
                Some(Pattern(pattern)) => Some(pattern.captures(user)?),
                None => None,
            };
            let values = Values {
                groups: groups.as_ref(),
                user,
                tools,
            };
            Some(match reply {
                ReplyTemplate::Text(template) => Said::Text(text(template, &values)),
                ReplyTemplate::Calls(calls) => Said::Calls(
                    calls
                        .iter()
                        .map(|call| (call.name.clone(), json(&call.arguments, &values)))
                        .collect(),
                ),
            })
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFields {
    #[serde(default)]
    when: When,
    text: Option<String>,
    tool_calls: Option<Vec<CallTemplate>>,
}

impl TryFrom<RuleFields> for Rule {
    type Error = &'static str;

    fn try_from(fields: RuleFields) -> Result<Self, Self::Error> {
        let reply = match (fields.text, fields.tool_calls) {
            (Some(text), None) => ReplyTemplate::Text(text),
            (None, Some(calls)) if !calls.is_empty() => ReplyTemplate::Calls(calls),
            _ => return Err("a rule has either `text` or `tool_calls`"),
        };
        Ok(Self {
            when: fields.when,
            reply,
        })
    }
}

impl Pattern {
    /// Compiles a regular expression.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(pattern: &str) -> Result<Self, String> {
        Regex::new(pattern)
            .map(Self)
            .map_err(|error| error.to_string())
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.0)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::new(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

fn default_text() -> String {
    "This is a scripted reply, no model was asked: no rule fits what you said.".into()
}

fn no_arguments() -> Value {
    Value::Object(serde_json::Map::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Script {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn the_first_rule_that_fits_answers() {
        let script = script(
            r#"
            rules = [
                { when = { user = "a", offers = "t" }, text = "offered" },
                { when = { user = "(?i)a(?<rest>.*)" }, text = "{{rest}}|{{0}}|{{2}}|{{user}}" },
                { when = { after_tools = true, user = "b" }, text = "b gave {{tools}}" },
            ]
            default = "none for {{user}}"
            "#,
        );
        let say = |user: &str, results: &[&str], offered: &str| {
            let results: Vec<String> = results.iter().map(|&result| result.to_owned()).collect();
            match script.answer(user, &results, |tool| tool == offered) {
                Said::Text(text) => text,
                Said::Calls(calls) => panic!("{calls:?}"),
            }
        };
        assert_eq!(say("a", &[], "t"), "offered");
        assert_eq!(say("xAbc", &[], ""), "bc|Abc||xAbc");
        assert_eq!(say("b", &[], ""), "none for b");
        assert_eq!(say("b", &["1", "2"], ""), "b gave 1\n2");
        assert_eq!(say("a", &["1", "2"], "t"), "1\n2");
    }

    #[test]
    fn a_script_may_be_json_too() {
        let text = r#"{"rules":[{"when":{"user":"^(.*)$"},"tool_calls":[{"name":"t","arguments":{"a":["{{1}}",{"n":"{{1}}|number"}],"b":true}},{"name":"u"}]}]}"#;
        let script: Script = serde_json::from_str(text).unwrap();
        let calls = |user: &str| match script.answer(user, &[], |_| false) {
            Said::Calls(calls) => calls
                .into_iter()
                .map(|(_, arguments)| arguments)
                .collect::<Vec<_>>(),
            Said::Text(text) => panic!("{text}"),
        };
        assert_eq!(
            calls("1.50"),
            [r#"{"a":["1.50",{"n":1.50}],"b":true}"#, "{}"]
        );
        assert_eq!(
            calls("\"x"),
            [r#"{"a":["\"x",{"n":"\"x"}],"b":true}"#, "{}"]
        );
    }

    #[test]
    fn a_script_that_cannot_be_is_refused() {
        for (text, said) in [
            (
                "rules = [{ text = 'x', tool_calls = [{ name = 'y' }] }]",
                "either `text` or `tool_calls`",
            ),
            ("rules = [{ when = {} }]", "either `text` or `tool_calls`"),
            (
                "rules = [{ tool_calls = [] }]",
                "either `text` or `tool_calls`",
            ),
            (
                "rules = [{ when = { user = '(' }, text = 'x' }]",
                "unclosed group",
            ),
            (
                "rules = [{ when = { says = 'x' }, text = 'x' }]",
                "unknown field `says`",
            ),
            ("rule = []", "unknown field `rule`"),
        ] {
            let error = toml::from_str::<Script>(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
