//! Machine and time of a measurement, which every result needs.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Origin of a result.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// UTC, `YYYY-MM-DDThh:mm:ssZ`.
    pub date: String,
    /// Name of the host.
    pub host: String,
    /// CPU model.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
}

impl Machine {
    /// Describes this machine, now.
    pub fn here() -> Self {
        Self {
            date: date(
                SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default(),
            ),
            host: first_line("/proc/sys/kernel/hostname").unwrap_or_else(unknown),
            cpu: cpu_model().unwrap_or_else(unknown),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn first_line(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

/// UTC date and time from the time since the Unix epoch.
fn date(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    while days >= days_in_year(year) {
        days -= days_in_year(year);
        year += 1;
    }
    let february = if days_in_year(year) == 366 { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let day = days + 1;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

fn days_in_year(year: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    if leap { 366 } else { 365 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_around_leap_days() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_798_761_600, "2027-01-01T00:00:00Z"),
        ] {
            assert_eq!(date(Duration::from_secs(seconds)), expected);
        }
    }
}
