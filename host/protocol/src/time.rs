//! Points in time: whole milliseconds since 1970, written as RFC 3339 in UTC.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A point in time, in milliseconds since the Unix epoch. Reads and writes as RFC 3339, UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From milliseconds since the Unix epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }
    /// Milliseconds since the Unix epoch.
    pub const fn millis(self) -> i64 {
        self.0
    }
    /// This many seconds later. A fraction of a millisecond rounds up, so that a timer never
    /// fires early; what does not fit saturates.
    pub fn plus_secs(self, secs: f64) -> Self {
        Self(self.0.saturating_add((secs * 1000.0).ceil() as i64))
    }
    /// Seconds from `earlier` to this, negative when it lies later.
    pub fn secs_since(self, earlier: Self) -> f64 {
        (self.0.saturating_sub(earlier.0)) as f64 / 1000.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(at) => write!(f, "{at:.3}"),
            // Beyond the years RFC 3339 can name; only a saturated sum gets here.
            Err(_) => f.write_str("9999-12-30T22:00:00.999Z"),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        let at: jiff::Timestamp = text
            .parse()
            .map_err(|e| D::Error::custom(format!("`{text}` is not an RFC 3339 time: {e}")))?;
        Ok(Self(at.as_millisecond()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let at = Timestamp::from_millis(1_764_547_200_123);
        let text = serde_json::to_string(&at).unwrap();
        assert_eq!(text, "\"2025-12-01T00:00:00.123Z\"");
        assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), at);
        assert!(serde_json::from_str::<Timestamp>("\"yesterday\"").is_err());
    }

    #[test]
    fn a_saturated_time_reads_back() {
        let text = serde_json::to_string(&Timestamp::from_millis(i64::MAX)).unwrap();
        assert!(serde_json::from_str::<Timestamp>(&text).is_ok(), "{text}");
    }

    #[test]
    fn fractions_round_up_so_that_no_timer_is_early() {
        assert_eq!(Timestamp::from_millis(0).plus_secs(0.0001).millis(), 1);
        assert_eq!(Timestamp::from_millis(0).plus_secs(1.5).millis(), 1500);
    }
}
