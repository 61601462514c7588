//! The configuration file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use belljar_providers::{ProviderConfig, ProvidersConfig, script::Script};
use belljar_sandbox::Limits;
use serde::Deserialize;

/// Everything an operator may say. `belljar.example.toml` shows every key.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Where to listen; default 127.0.0.1:7700. Loopback only, until keys exist.
    pub(crate) listen: Option<SocketAddr>,
    /// The folder of everything the host keeps; default `belljar-data`.
    pub(crate) data: Option<PathBuf>,
    /// Names beside the loopback ones under which the server may be called.
    pub(crate) hosts: Vec<String>,
    /// Model APIs by name.
    pub(crate) providers: BTreeMap<String, ProviderConfig>,
    /// Other names for models; `default` is what agents ask for that name none.
    pub(crate) aliases: BTreeMap<String, String>,
    /// Scripted stand-ins by name.
    pub(crate) scripts: BTreeMap<String, Script>,
    /// Limits of every decision.
    pub(crate) limits: LimitsConfig,
}

/// Limits that differ from the defaults.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsConfig {
    fuel: Option<u64>,
    cpu_secs: Option<f64>,
    wall_secs: Option<f64>,
    memory_mib: Option<u64>,
    host_calls: Option<u64>,
    log_kib: Option<usize>,
    scratch_mib: Option<u64>,
    scratch_entries: Option<usize>,
    file_mib: Option<u64>,
}

const MIB: u64 = 1024 * 1024;

impl Config {
    /// Reads a file; without one, everything is at its default.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is not a configuration", path.display()))
    }

    /// The model APIs, with keys from the environment.
    pub(crate) fn providers(&mut self) -> ProvidersConfig {
        let config = ProvidersConfig {
            providers: std::mem::take(&mut self.providers),
            aliases: std::mem::take(&mut self.aliases),
            scripts: std::mem::take(&mut self.scripts),
        };
        config.with_env(|name| std::env::var(name).ok())
    }
}

impl LimitsConfig {
    /// The limits, the defaults where nothing is said.
    pub(crate) fn limits(&self) -> Result<Limits> {
        let mut limits = Limits::default();
        let secs = |key: &str, secs: f64| {
            Duration::try_from_secs_f64(secs)
                .with_context(|| format!("limits.{key}: {secs} is no time in seconds"))
        };
        if let Some(fuel) = self.fuel {
            limits.fuel = fuel;
        }
        if let Some(cpu) = self.cpu_secs {
            limits.cpu = secs("cpu_secs", cpu)?;
        }
        if let Some(wall) = self.wall_secs {
            limits.wall = secs("wall_secs", wall)?;
        }
        if let Some(mib) = self.memory_mib {
            limits.memory = mib.saturating_mul(MIB);
        }
        if let Some(calls) = self.host_calls {
            limits.host_calls = calls;
        }
        if let Some(kib) = self.log_kib {
            limits.log_bytes = kib.saturating_mul(1024);
        }
        if let Some(mib) = self.scratch_mib {
            limits.scratch_bytes = mib.saturating_mul(MIB);
        }
        if let Some(entries) = self.scratch_entries {
            limits.scratch_entries = entries;
        }
        if let Some(mib) = self.file_mib {
            limits.file_bytes = mib.saturating_mul(MIB);
        }
        Ok(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../belljar.example.toml");

    #[test]
    fn the_example_shows_the_defaults_and_every_key_of_it_reads() {
        let config: Config = toml::from_str(EXAMPLE).unwrap();
        assert_eq!(
            config.limits.limits().unwrap(),
            Limits::default(),
            "the example shows the defaults"
        );
        assert_eq!(config.listen.unwrap().to_string(), "127.0.0.1:7700");
        // The commented lines are keys as well.
        let all: String = EXAMPLE
            .lines()
            .map(|line| line.strip_prefix("#: ").unwrap_or(line))
            .collect::<Vec<_>>()
            .join("\n");
        let mut config: Config = toml::from_str(&all).unwrap();
        assert_eq!(config.providers().providers.len(), 2);
    }

    #[test]
    fn a_key_that_is_not_there_is_named() {
        let error = toml::from_str::<Config>("lisen = 1")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("lisen") && error.contains("listen"),
            "{error}"
        );
    }
}
