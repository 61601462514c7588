//! Which model a name means.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use belljar_protocol::model::ModelFailure;
use belljar_protocol::ports::{Model, Models};

use crate::config::{ConfigError, ProviderConfig, ProviderKind, ProvidersConfig};
use crate::failure::terminal;
use crate::openai::OpenAi;
use crate::script::{Script, Scripted};

/// The provider whose models are scripts.
const SCRIPT: &str = "script";
/// The script that is always there.
const LEDGER: &str = "ledger";
/// The alias of agents that name no model of their own.
const DEFAULT: &str = "default";

/// Every model there is, by `provider/name` and by alias.
pub struct Providers {
    providers: BTreeMap<String, Provider>,
    scripts: BTreeMap<String, Arc<dyn Model>>,
    /// From alias to `provider/name`, aliases of aliases resolved.
    aliases: BTreeMap<String, String>,
}

struct Provider {
    model: Arc<dyn Model>,
    /// Names of models that the config mentions.
    known: BTreeSet<String>,
    /// The variable that should hold its key and does not.
    missing_key: Option<String>,
}

impl Providers {
    /// Builds every API of the config; connects to none. Environment variables are read before,
    /// by [`ProvidersConfig::with_env`].
    ///
    /// # Errors
    /// A value that cannot be used, or an alias that leads nowhere.
    pub fn from_config(config: ProvidersConfig) -> Result<Self, ConfigError> {
        let ProvidersConfig {
            providers: configs,
            mut aliases,
            mut scripts,
        } = config;
        aliases
            .entry(DEFAULT.to_owned())
            .or_insert_with(|| default_model(&configs));
        scripts
            .entry(LEDGER.to_owned())
            .or_insert_with(Script::ledger);

        let mut providers = BTreeMap::new();
        for (name, config) in configs {
            if name == SCRIPT || !is_name(&name) {
                let problem = "is no name a provider can have: letters, digits, `_`, `-` and `.`, and not `script`";
                return Err(ConfigError::new(format!("providers.{name}"), problem));
            }
            providers.insert(name.clone(), Provider::new(&name, &config)?);
        }
        if let Some(name) = scripts.keys().find(|name| !is_name(name)) {
            return Err(ConfigError::new(
                format!("scripts.{name}"),
                "is no name a script can have",
            ));
        }
        let scripts = scripts
            .into_iter()
            .map(|(name, script)| {
                let model: Arc<dyn Model> = Arc::new(Scripted::new(&name, script));
                (name, model)
            })
            .collect();
        let mut this = Self {
            providers,
            scripts,
            aliases: BTreeMap::new(),
        };
        this.aliases = this.follow(&aliases)?;
        Ok(this)
    }

    /// What a name means, as `provider/name`, whether or not it can be asked.
    ///
    /// # Errors
    /// A terminal failure that names the model and lists what there is.
    pub fn full_name(&self, model: &str) -> Result<String, ModelFailure> {
        let full = self.aliases.get(model).map_or(model, String::as_str);
        match self.find(full) {
            Some(_) => Ok(full.to_owned()),
            None => Err(self.unknown(model)),
        }
    }

    /// The names worth offering to a person: aliases, the models that the config mentions, and
    /// scripts. A provider may know more.
    pub fn names(&self) -> Vec<String> {
        let known = self
            .providers
            .iter()
            .flat_map(|(provider, Provider { known, .. })| {
                known.iter().map(move |model| format!("{provider}/{model}"))
            });
        let scripts = self.scripts.keys().map(|name| format!("{SCRIPT}/{name}"));
        self.aliases
            .keys()
            .cloned()
            .chain(known)
            .chain(scripts)
            .collect()
    }

    /// Checks aliases and shortens chains of them.
    fn follow(
        &self,
        aliases: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, ConfigError> {
        let mut followed = BTreeMap::new();
        for (alias, first) in aliases {
            let mut target = first;
            // A chain that visits more aliases than there are goes in a circle.
            for _ in 0..aliases.len() {
                match aliases.get(target) {
                    Some(next) => target = next,
                    None => break,
                }
            }
            let key = || format!("aliases.{alias}");
            if aliases.contains_key(target) {
                return Err(ConfigError::new(key(), "leads back to itself"));
            }
            if self.find(target).is_none() {
                return Err(ConfigError::new(key(), self.unknown(target).message));
            }
            followed.insert(alias.clone(), target.clone());
        }
        Ok(followed)
    }

    /// The model behind a full name, and the name it goes by there.
    fn find<'a>(&self, full_name: &'a str) -> Option<(Found<'_>, &'a str)> {
        let (provider, name) = full_name.split_once('/')?;
        if name.is_empty() {
            return None;
        }
        let found = match provider {
            SCRIPT => Found::Script(self.scripts.get(name)?),
            _ => Found::Provider(self.providers.get(provider)?),
        };
        Some((found, name))
    }

    fn unknown(&self, model: &str) -> ModelFailure {
        let open = self
            .providers
            .keys()
            .map(|provider| format!("{provider}/<model>"));
        let scripts = self.scripts.keys().map(|name| format!("{SCRIPT}/{name}"));
        let there: Vec<String> = self
            .aliases
            .keys()
            .cloned()
            .chain(open)
            .chain(scripts)
            .collect();
        terminal(format!(
            "there is no model `{model}`; there are {}",
            there.join(", ")
        ))
    }
}

impl Models for Providers {
    fn resolve(&self, model: &str) -> Result<(Arc<dyn Model>, String), ModelFailure> {
        let full = self.aliases.get(model).map_or(model, String::as_str);
        match self.find(full) {
            Some((Found::Script(script), name)) => Ok((Arc::clone(script), name.to_owned())),
            Some((
                Found::Provider(Provider {
                    missing_key: None,
                    model,
                    ..
                }),
                name,
            )) => Ok((Arc::clone(model), name.to_owned())),
            Some((
                Found::Provider(Provider {
                    missing_key: Some(variable),
                    ..
                }),
                _,
            )) => Err(terminal(format!(
                "`{full}` has no key: the variable {variable} (api_key_env) is not set"
            ))),
            None => Err(self.unknown(model)),
        }
    }
}

enum Found<'a> {
    Provider(&'a Provider),
    Script(&'a Arc<dyn Model>),
}

impl Provider {
    fn new(name: &str, config: &ProviderConfig) -> Result<Self, ConfigError> {
        let model: Arc<dyn Model> = match config.kind {
            ProviderKind::OpenAi => Arc::new(OpenAi::new(name, config)?),
        };
        let known = config
            .default_model
            .iter()
            .chain(config.prices.keys())
            .cloned()
            .collect();
        let missing_key = config
            .api_key_env
            .clone()
            .filter(|_| config.api_key.is_none());
        Ok(Self {
            model,
            known,
            missing_key,
        })
    }
}

fn default_model(configs: &BTreeMap<String, ProviderConfig>) -> String {
    let first = configs.iter().filter(|(_, config)| config.can_be_asked());
    first
        .filter_map(|(name, config)| Some(format!("{name}/{}", config.default_model.as_ref()?)))
        .next()
        .unwrap_or_else(|| format!("{SCRIPT}/{LEDGER}"))
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn providers(config: &str) -> Result<Providers, ConfigError> {
        Providers::from_config(toml::from_str(config).unwrap())
    }

    fn name_of(providers: &Providers, model: &str) -> Result<String, String> {
        providers
            .resolve(model)
            .map(|(_, name)| name)
            .map_err(|failure| {
                assert!(!failure.retryable);
                failure.message
            })
    }

    #[test]
    fn without_a_key_the_default_is_the_script() {
        let providers = providers("").unwrap();
        assert_eq!(providers.full_name("default").unwrap(), "script/ledger");
        assert_eq!(name_of(&providers, "default").unwrap(), "ledger");
        assert_eq!(providers.names(), ["default", "script/ledger"]);
    }

    #[test]
    fn the_default_is_the_first_provider_that_can_be_asked() {
        let config = r#"
            [providers.a]
            api_key = "k"
            [providers.b]
            api_key_env = "NOT_SET"
            default_model = "mb"
            [providers.c]
            base_url = "http://127.0.0.1:1/v1"
            default_model = "mc"
            [providers.d]
            api_key = "k"
            default_model = "md"
        "#;
        let found = providers(config).unwrap();
        assert_eq!(found.full_name("default").unwrap(), "c/mc");
        let found = providers(&format!("aliases.default = 'd/x'\n{config}")).unwrap();
        assert_eq!(found.full_name("default").unwrap(), "d/x");
    }

    #[test]
    fn names_and_aliases() {
        let config = r#"
            aliases = { fast = "quick", quick = "a.b/meta/llama", me = "script/mine" }
            scripts.mine = { default = "hi" }
            [providers."a.b"]
            default_model = "m"
            prices."p/q" = { input = 1, output = 2 }
        "#;
        let providers = providers(config).unwrap();
        assert_eq!(name_of(&providers, "fast").unwrap(), "meta/llama");
        assert_eq!(name_of(&providers, "a.b/any").unwrap(), "any");
        assert_eq!(name_of(&providers, "me").unwrap(), "mine");
        assert_eq!(
            providers.names(),
            [
                "default",
                "fast",
                "me",
                "quick",
                "a.b/m",
                "a.b/p/q",
                "script/ledger",
                "script/mine"
            ]
        );
        for wrong in ["", "gpt", "a.b", "a.b/", "/m", "script/none", "other/m"] {
            assert_eq!(
                name_of(&providers, wrong).unwrap_err(),
                format!(
                    "there is no model `{wrong}`; there are default, fast, me, quick, a.b/<model>, script/ledger, script/mine"
                )
            );
            assert!(providers.full_name(wrong).is_err());
        }
    }

    #[test]
    fn a_missing_key_is_told_when_the_model_is_asked_for() {
        let providers = providers("[providers.a]\napi_key_env = 'A_KEY'").unwrap();
        assert_eq!(
            name_of(&providers, "a/m").unwrap_err(),
            "`a/m` has no key: the variable A_KEY (api_key_env) is not set"
        );
    }

    #[test]
    fn a_config_that_cannot_be_is_refused() {
        for (config, said) in [
            ("providers.script = {}", "providers.script: is no name"),
            ("providers.'a/b' = {}", "providers.a/b: is no name"),
            ("scripts.'a b' = {}", "scripts.a b: is no name"),
            ("aliases.a = 'b/c'", "aliases.a: there is no model `b/c`"),
            (
                "aliases.a = 'b'\naliases.b = 'a'",
                "aliases.a: leads back to itself",
            ),
            (
                "aliases.default = 'default'",
                "aliases.default: leads back to itself",
            ),
            (
                "providers.a.base_url = 'x'",
                "providers.a.base_url: not a URL",
            ),
        ] {
            let error = providers(config).err().unwrap().to_string();
            assert!(error.starts_with(said), "{config}: {error}");
        }
    }
}
