//! `log`: lines for whoever looks at the decision later.

use belljar_protocol::run::LogLevel;

use super::Host;
use crate::bindings::log::{Host as Log, Level};

impl Log for Host {
    fn write(&mut self, level: Level, line: String) {
        let level = match level {
            Level::Debug => LogLevel::Debug,
            Level::Info => LogLevel::Info,
            Level::Warn => LogLevel::Warn,
            Level::Error => LogLevel::Error,
        };
        self.journal.write(level, &line);
    }
}
