//! What was measured: the table, the file, and the statistics behind both.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

/// One figure.
pub(crate) struct Figure {
    /// What it is.
    pub(crate) name: &'static str,
    /// How much.
    pub(crate) value: f64,
    /// Of what.
    pub(crate) unit: &'static str,
    /// The same without what is being judged, measured in the same run.
    pub(crate) floor: Option<f64>,
    /// What is aimed at: a ratio where there is a floor, a value otherwise.
    pub(crate) aim: Option<f64>,
    /// For the reader of the table.
    pub(crate) note: String,
}

impl Figure {
    pub(crate) fn new(name: &'static str, value: f64, unit: &'static str) -> Self {
        Self {
            name,
            value,
            unit,
            floor: None,
            aim: None,
            note: String::new(),
        }
    }

    pub(crate) fn over(mut self, floor: f64) -> Self {
        self.floor = Some(floor);
        self
    }

    pub(crate) fn aim(mut self, aim: f64) -> Self {
        self.aim = Some(aim);
        self
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    fn ratio(&self) -> Option<f64> {
        self.floor.map(|floor| self.value / floor)
    }
}

/// All figures, printed as they come.
#[derive(Default)]
pub(crate) struct Report {
    figures: Vec<Figure>,
}

impl Report {
    pub(crate) fn add(&mut self, figure: Figure) {
        if self.figures.is_empty() {
            println!(
                "{:<42} {:>11} {:<12} {:>10} {:>7} {:>7}",
                "", "value", "", "floor", "ratio", "aim"
            );
        }
        let cell = |value: Option<f64>| value.map(shown).unwrap_or_default();
        let line = format!(
            "{:<42} {:>11} {:<12} {:>10} {:>7} {:>7}  {}",
            figure.name,
            shown(figure.value),
            figure.unit,
            cell(figure.floor),
            figure
                .ratio()
                .map(|ratio| format!("{ratio:.2}"))
                .unwrap_or_default(),
            cell(figure.aim),
            figure.note,
        );
        println!("{}", line.trim_end());
        self.figures.push(figure);
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let figures: Vec<_> = self
            .figures
            .iter()
            .map(|figure| {
                json!({
                    "name": figure.name,
                    "value": figure.value,
                    "unit": figure.unit,
                    "floor": figure.floor,
                    "ratio": figure.ratio(),
                    "aim": figure.aim,
                })
            })
            .collect();
        let mut text = serde_json::to_string_pretty(&figures)?;
        text.push('\n');
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}

/// A number with as many digits as mean something.
fn shown(value: f64) -> String {
    match value.abs() {
        small if small >= 100.0 => format!("{value:.0}"),
        small if small >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Times of one thing.
#[derive(Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub(crate) fn extend(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The time that this share of them stays below, in microseconds.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut times = self.0.clone();
        times.sort_unstable();
        let last = times.len().saturating_sub(1);
        let ix = (last as f64 * share).round() as usize;
        times
            .get(ix)
            .map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    }

    /// The middle one, in microseconds.
    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }
}
