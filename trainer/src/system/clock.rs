//! UTC times for people and files.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `20261121-031550`, in UTC.
pub(crate) fn timestamp(now: SystemTime) -> String {
    let [year, month, day, hour, minute, second] = moment(now);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// `2026-11-21T03:15:50Z`, a UTC time as in RFC 3339.
pub fn rfc3339(now: SystemTime) -> String {
    let [year, month, day, hour, minute, second] = moment(now);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month, day, hour, minute and second, in UTC.
fn moment(now: SystemTime) -> [u64; 6] {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let seconds = since.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let time = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
    [year, month, day, time[0], time[1], time[2]]
}

/// Year, month and day of the `days`-th day after 1970-01-01 in the Gregorian calendar.
fn date(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    // Skips whole periods of 400 years first, so that no clock makes this loop long.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_the_calendars() {
        // Days from `date -u -d ... +%s`, divided by 86400.
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(59), (1970, 3, 1));
        assert_eq!(date(789), (1972, 2, 29));
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(20_778), (2026, 11, 21));
        assert_eq!(date(47_540), (2100, 2, 28));
        assert_eq!(date(47_541), (2100, 3, 1));
        let moment = UNIX_EPOCH + Duration::from_secs(20_778 * 86_400 + 3 * 3600 + 15 * 60 + 50);
        assert_eq!(timestamp(moment), "20261121-031550");
        assert_eq!(rfc3339(moment), "2026-11-21T03:15:50Z");
        let far = UNIX_EPOCH + Duration::from_secs(u64::from(u32::MAX) * 1000);
        assert!(timestamp(far).len() > 15);
    }
}
