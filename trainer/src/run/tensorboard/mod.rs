//! Event files for TensorBoard.
//!
//! The format is TensorFlow's: records with checksums
//! ([TFRecord](https://www.tensorflow.org/tutorials/load_data/tfrecord)), each an `Event` of
//! [event.proto](https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto).

mod event;
mod hparams;
mod message;
mod record;

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::TrainError;
use crate::run::metrics::{Changed, Metric, ResumeLine};
use crate::run::scalars::scalars;
use event::Event;
pub use hparams::{HyperParameter, SessionEnd};

/// Folder in the run folder.
pub const FOLDER: &str = "tensorboard";

/// File names to try.
const ATTEMPTS: u32 = 1000;

/// Writes one event file.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: File,
}

impl EventWriter {
    /// Starts a new file in `folder`.
    ///
    /// The file tells TensorBoard to drop steps after `steps` in older files.
    ///
    /// # Errors
    /// Fails if the folder or the file cannot be made.
    pub fn open(folder: &Path, steps: u64) -> Result<Self, TrainError> {
        let create = || {
            std::fs::create_dir_all(folder)?;
            create_file(folder)
        };
        let (path, file) = create().map_err(TrainError::run_dir(folder))?;
        let mut writer = Self { path, file };
        writer.append(&Event::Version)?;
        writer.append(&Event::Start { step: steps + 1 })?;
        Ok(writer)
    }

    /// Writes the numbers of a line of metrics.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write(&mut self, metric: &Metric) -> Result<(), TrainError> {
        if let Metric::Resume(line) = metric {
            return self.append(&changes(line));
        }
        let (step, values) = scalars(metric);
        self.append(&Event::Scalars { step, values })
    }

    /// Writes named numbers of a step, such as `("val/psnr", 31.2)`.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn scalars<N: Into<Cow<'static, str>>>(
        &mut self,
        step: u64,
        values: impl IntoIterator<Item = (N, f64)>,
    ) -> Result<(), TrainError> {
        let values = values.into_iter().map(|(name, value)| (name.into(), value));
        let values = values.collect();
        self.append(&Event::Scalars { step, values })
    }

    /// Writes a named text in Markdown.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn text(
        &mut self,
        step: u64,
        tag: impl Into<Cow<'static, str>>,
        text: String,
    ) -> Result<(), TrainError> {
        let tag = tag.into();
        self.append(&Event::Text { step, tag, text })
    }

    /// Writes a named image, a PNG file. Ignores any other.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn image(&mut self, step: u64, tag: String, png: &[u8]) -> Result<(), TrainError> {
        let Some(size) = event::size_of_png(png) else {
            return Ok(());
        };
        let png = png.to_vec();
        self.append(&Event::Image {
            step,
            tag,
            size,
            png,
        })
    }

    /// Writes the hyper-parameters of the run, for the tab of that name.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn hyper_parameters(
        &mut self,
        values: impl IntoIterator<Item = (String, HyperParameter)>,
    ) -> Result<(), TrainError> {
        let content = hparams::session_start(values, now());
        let tag = hparams::START;
        self.append(&Event::HyperParameters { tag, content })
    }

    /// Writes how the run ended, for the tab of the hyper-parameters.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn end_session(&mut self, end: SessionEnd) -> Result<(), TrainError> {
        let content = hparams::session_end(end, now());
        let tag = hparams::END;
        self.append(&Event::HyperParameters { tag, content })
    }

    fn append(&mut self, event: &Event) -> Result<(), TrainError> {
        let record = record::frame(&event.encode(now()));
        // One call, so that a killed process rarely leaves half a record.
        self.file
            .write_all(&record)
            .map_err(TrainError::run_dir(&self.path))
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or(Duration::ZERO).as_secs_f64()
}

/// Creates a file with a name that TensorBoard knows. It reads files in the order of their names,
/// which begin with the time.
fn create_file(folder: &Path) -> io::Result<(PathBuf, File)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = now.unwrap_or(Duration::ZERO).as_secs();
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().replace('/', "-");
    for attempt in 0..ATTEMPTS {
        let name = format!("events.out.tfevents.{seconds:010}.{attempt:03}.{host}");
        let path = folder.join(name);
        match OpenOptions::new().append(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Changes of a resumed run, as a table.
fn changes(line: &ResumeLine) -> Event {
    // TOML values may contain a bar.
    let cell = |text: &str| format!("`{}`", text.replace('|', "\\|"));
    let mut text = "| key | before | after |\n|---|---|---|\n".to_owned();
    for Changed { key, before, after } in &line.changes {
        text += &format!("| {key} | {} | {} |\n", cell(before), cell(after));
    }
    Event::Text {
        step: line.step,
        tag: "run/changes".into(),
        text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::metrics::TrainLine;

    #[test]
    fn files_never_overwrite_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("new");
        for _ in 0..3 {
            let mut writer = EventWriter::open(&folder, 5).unwrap();
            writer.write(&Metric::Train(TrainLine::default())).unwrap();
        }
        let names: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(names.len(), 3);
        assert!(
            names
                .iter()
                .all(|name| name.starts_with("events.out.tfevents."))
        );
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(EventWriter::open(&file.join("events"), 0).is_err());
    }
}
