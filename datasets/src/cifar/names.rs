//! Lists of class names, one per line.

use super::MAX_NAMES;
use crate::DatasetError;
use crate::cifar::locate::Place;

/// The names in `file`, which must be `classes`; empty lines do not count.
pub(super) fn read(place: &Place, file: &str, classes: usize) -> Result<Vec<String>, DatasetError> {
    let text = place.beginning(file, MAX_NAMES)?;
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().map(str::trim);
    let names: Vec<String> = lines
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    if names.len() != classes {
        return Err(DatasetError::Names {
            path: place.path(file),
            found: names.len(),
            expected: classes,
        });
    }
    Ok(names)
}
