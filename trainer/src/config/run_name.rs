//! The name of a run, as the name of its folder has it, and what lies in that folder.

/// The resolved configuration, in the run folder.
pub const CONFIG_FILE: &str = "config.toml";
/// Folder of the checkpoints, in the run folder.
pub const CHECKPOINTS: &str = "checkpoints";

/// The name of the run whose folder is called so: what `run::dir` puts behind it is left out.
pub(crate) fn name_of(folder: &str) -> &str {
    let stamped = |(at, _): (usize, &str)| {
        let (name, stamp) = folder.split_at(at);
        when_made(stamp.get(1..)?).map(|_| name)
    };
    let name = folder.match_indices('-').find_map(stamped);
    name.filter(|name| !name.is_empty()).unwrap_or(folder)
}

/// Day, time of the day, and number among the runs of that second, out of what `run::dir` puts
/// behind a name; nothing if it is something else.
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
