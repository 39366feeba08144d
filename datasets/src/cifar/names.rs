//! Lists of class names, one per line.

use std::fs::File;
use std::io::Read;

use super::MAX_NAMES;
use crate::DatasetError;
use crate::cifar::locate::Place;

/// The names in `file`, which must be `classes`; empty lines do not count.
pub(super) fn read(place: &Place, file: &str, classes: usize) -> Result<Vec<String>, DatasetError> {
    let path = place.folder.join(file);
    let opened = File::open(&path).map_err(DatasetError::io("open", &path))?;
    let mut text = Vec::new();
    let mut reader = opened.take(MAX_NAMES);
    let read = reader.read_to_end(&mut text);
    read.map_err(DatasetError::io("read", &path))?;
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().map(str::trim);
    let names: Vec<String> = lines
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    if names.len() != classes {
        return Err(DatasetError::Names {
            path,
            found: names.len(),
            expected: classes,
        });
    }
    Ok(names)
}
