//! What the operator says about model APIs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use crate::price::Price;
use crate::script::Script;

/// The API that [`ProvidersConfig::with_env`] names `openai` unless told otherwise.
const OPENAI_URL: &str = "https://api.openai.com/v1";
/// Its model when `OPENAI_MODEL` names none: small, cheap, calls tools well.
const OPENAI_MODEL: &str = "gpt-5-mini";

/// Every model API and alias.
///
/// ```toml
/// [providers.openai]
/// api_key_env = "OPENAI_API_KEY"
/// default_model = "gpt-5-mini"
/// prices.gpt-5-mini = { input = "0.25", cached_input = "0.025", output = "2" }
///
/// [providers.local]
/// base_url = "http://127.0.0.1:11434/v1"
/// default_model = "qwen3"
/// idle_timeout_secs = 300
///
/// [aliases]
/// default = "openai/gpt-5-mini"
/// cheap = "local/qwen3"
/// ```
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProvidersConfig {
    /// Model APIs by the name that stands before the slash in `provider/model`. `script` is
    /// taken by the scripted stand-ins.
    pub providers: BTreeMap<String, ProviderConfig>,
    /// Other names for models: alias to `provider/model`, or to another alias. `default` is the
    /// model of agents that name none of their own; absent, it is the default model of the
    /// first provider, by name, that has one and can be asked, else `script/ledger`.
    pub aliases: BTreeMap<String, String>,
    /// Scripted stand-ins by name, asked for as `script/<name>`. `ledger` is built in.
    pub scripts: BTreeMap<String, Script>,
}

/// One model API.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProviderConfig {
    /// The API's wire format; `openai` (the default) is chat completions, which many servers speak.
    pub kind: ProviderKind,
    /// Where the API is, without `/chat/completions`; absent: OpenAI's own.
    pub base_url: Option<String>,
    /// The key, sent as a bearer token. Prefer `api_key_env`. Neither: requests carry no key.
    pub api_key: Option<Secret>,
    /// The environment variable that holds the key. Unset or empty: this provider's models fail
    /// with a message that names the variable.
    pub api_key_env: Option<String>,
    /// The model for the alias `default`, as the API knows it.
    pub default_model: Option<String>,
    /// Dollars per million tokens by the API's model name. A model without a price costs what
    /// the API says it cost, if it says so.
    pub prices: BTreeMap<String, Price>,
    /// Longest silence of the API while it is answering, before and between pieces of a reply;
    /// default 60.
    pub idle_timeout_secs: Option<f64>,
    /// Longest wait for a connection; default 10.
    pub connect_timeout_secs: Option<f64>,
}

/// The wire formats there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProviderKind {
    /// OpenAI's chat completions.
    #[default]
    OpenAi,
}

/// A key. It never shows in debug output, and nothing serialises it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The key itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A setting that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct ConfigError {
    /// The key, such as `providers.openai.base_url`.
    pub key: String,
    /// What is wrong with its value. Never holds a secret.
    pub problem: String,
}

impl ConfigError {
    pub(crate) fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            problem: problem.into(),
        }
    }
}

impl ProvidersConfig {
    /// Takes keys from the environment, read through `get`.
    ///
    /// Every `api_key_env` is looked up. Then, as OpenAI's SDKs do, `OPENAI_API_KEY` and
    /// `OPENAI_BASE_URL` make a provider `openai`; a base URL alone is enough, for servers that
    /// want no key. `OPENAI_MODEL` is its default model; with a key it has one anyway. A
    /// provider `openai` in the config wins: of the environment it takes only a key, and only
    /// when it has neither a key nor a `base_url` of its own.
    #[must_use]
    pub fn with_env(mut self, get: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| {
            get(name)
                .map(|value| value.trim().to_owned())
                .filter(|value| !value.is_empty())
        };
        for provider in self.providers.values_mut() {
            if let (None, Some(variable)) = (&provider.api_key, &provider.api_key_env) {
                provider.api_key = get(variable).map(Secret);
            }
        }
        let key = get("OPENAI_API_KEY").map(Secret);
        let base_url = get("OPENAI_BASE_URL");
        match self.providers.get_mut("openai") {
            Some(openai) => {
                let bare = openai.api_key_env.is_none() && openai.base_url.is_none();
                if bare && openai.api_key.is_none() {
                    openai.api_key = key;
                }
            }
            None if key.is_some() || base_url.is_some() => {
                let default_model =
                    get("OPENAI_MODEL").or_else(|| key.is_some().then(|| OPENAI_MODEL.to_owned()));
                let openai = ProviderConfig {
                    base_url,
                    api_key: key,
                    default_model,
                    ..Default::default()
                };
                self.providers.insert("openai".to_owned(), openai);
            }
            None => {}
        }
        self
    }
}

impl ProviderConfig {
    /// Where the API is.
    pub(crate) fn base_url(&self) -> &str {
        self.base_url.as_deref().unwrap_or(OPENAI_URL)
    }

    /// Whether a request could be answered, as far as can be known here: it has a key, or it is
    /// at an address of its own that was not said to want one.
    pub(crate) fn can_be_asked(&self) -> bool {
        self.api_key.is_some() || (self.base_url.is_some() && self.api_key_env.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        }
    }

    fn key(config: &ProviderConfig) -> Option<&str> {
        config.api_key.as_ref().map(Secret::expose)
    }

    #[test]
    fn the_environment_makes_an_openai_provider() {
        let config = ProvidersConfig::default().with_env(env(&[("OPENAI_API_KEY", " sk-1\n")]));
        let openai = &config.providers["openai"];
        assert_eq!(key(openai), Some("sk-1"));
        assert_eq!(openai.base_url(), OPENAI_URL);
        assert_eq!(openai.default_model.as_deref(), Some(OPENAI_MODEL));
    }

    #[test]
    fn a_base_url_without_a_key_is_enough() {
        let config = ProvidersConfig::default().with_env(env(&[
            ("OPENAI_BASE_URL", "http://127.0.0.1:1/v1"),
            ("OPENAI_API_KEY", ""),
        ]));
        let openai = &config.providers["openai"];
        assert_eq!(
            (key(openai), openai.base_url()),
            (None, "http://127.0.0.1:1/v1")
        );
        assert_eq!(
            openai.default_model, None,
            "a stranger's models are not known"
        );
        let config = ProvidersConfig::default().with_env(env(&[
            ("OPENAI_BASE_URL", "http://127.0.0.1:1/v1"),
            ("OPENAI_MODEL", "m"),
        ]));
        assert_eq!(
            config.providers["openai"].default_model.as_deref(),
            Some("m")
        );
    }

    #[test]
    fn an_empty_environment_changes_nothing() {
        assert!(
            ProvidersConfig::default()
                .with_env(|_| None)
                .providers
                .is_empty()
        );
    }

    #[test]
    fn a_key_of_the_environment_is_not_sent_to_an_address_of_the_config() {
        let text = "[providers.openai]\nbase_url = 'https://elsewhere.example/v1'";
        let config: ProvidersConfig = toml::from_str(text).unwrap();
        let config = config.with_env(env(&[("OPENAI_API_KEY", "sk-1")]));
        assert_eq!(key(&config.providers["openai"]), None);
        let config: ProvidersConfig = toml::from_str("[providers.openai]").unwrap();
        let config = config.with_env(env(&[("OPENAI_API_KEY", "sk-1")]));
        assert_eq!(key(&config.providers["openai"]), Some("sk-1"));
    }

    #[test]
    fn keys_named_by_variable_are_looked_up() {
        let text =
            "[providers.a]\napi_key_env = 'A'\n[providers.b]\napi_key_env = 'B'\napi_key = 'own'";
        let config: ProvidersConfig = toml::from_str(text).unwrap();
        let config = config.with_env(env(&[("A", "ka"), ("B", "kb")]));
        assert_eq!(key(&config.providers["a"]), Some("ka"));
        assert_eq!(key(&config.providers["b"]), Some("own"));
    }

    #[test]
    fn a_misspelt_key_is_an_error_and_a_secret_never_shows() {
        assert!(toml::from_str::<ProvidersConfig>("[providers.a]\nbaseurl = 'x'").is_err());
        let config: ProvidersConfig =
            toml::from_str("[providers.a]\napi_key = 'sk-secret'").unwrap();
        assert!(!format!("{config:?}").contains("sk-secret"));
    }
}
