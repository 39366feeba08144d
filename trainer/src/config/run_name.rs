//! The name of a run in its folder's name, and names of files in the run folder.

/// The resolved configuration, in the run folder.
pub const CONFIG_FILE: &str = "config.toml";
/// Folder of the checkpoints, in the run folder.
pub const CHECKPOINTS: &str = "checkpoints";

/// The run's name in a folder's name, without the suffix of `run::dir`.
pub(crate) fn name_of(folder: &str) -> &str {
    let stamped = |(at, _): (usize, &str)| {
        let (name, stamp) = folder.split_at(at);
        when_made(stamp.get(1..)?).map(|_| name)
    };
    let name = folder.match_indices('-').find_map(stamped);
    name.filter(|name| !name.is_empty()).unwrap_or(folder)
}

/// Parses the suffix of `run::dir`: date, time, and number among the runs of that second.
///
/// `None` for anything else.
pub(crate) fn when_made(text: &str) -> Option<(u64, u64, u32)> {
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = text.split('-');
    let day = parts.next().filter(|day| day.len() == 8 && number(day))?;
    let time = parts
        .next()
        .filter(|time| time.len() == 6 && number(time))?;
    let among = match parts.next() {
        Some(text) => Some(text).filter(|text| number(text))?.parse().ok()?,
        None => 1,
    };
    let made = (day.parse().ok()?, time.parse().ok()?, among);
    parts.next().is_none().then_some(made)
}
