//! Event files for TensorBoard.
//!
//! The format is TensorFlow's: records with checksums
//! ([TFRecord](https://www.tensorflow.org/tutorials/load_data/tfrecord)), each an `Event` of
//! [event.proto](https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto).

mod event;
mod record;

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::TrainError;
use crate::run::metrics::{Changed, Metric, ResumeLine};
use event::Event;

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

    fn append(&mut self, event: &Event) -> Result<(), TrainError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let wall_time = now.unwrap_or(Duration::ZERO).as_secs_f64();
        let record = record::frame(&event.encode(wall_time));
        // One call, so that a killed process rarely leaves half a record.
        self.file
            .write_all(&record)
            .map_err(TrainError::run_dir(&self.path))
    }
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
        tag: "run/changes",
        text,
    }
}

/// The step and the named numbers of a line.
fn scalars(metric: &Metric) -> (u64, Vec<(Cow<'static, str>, f64)>) {
    let (step, values, own, norms) = match metric {
        Metric::Train(line) => {
            let optional = [
                ("train/memory_mib", line.memory_mib),
                ("train/tflops", line.tflops),
                ("train/share_of_peak", line.share_of_peak),
                ("train/gradient_norm", line.gradient_norm),
            ];
            let mut values = vec![
                ("train/loss", line.loss),
                ("train/lr", line.lr),
                ("time/data", line.time.data),
                ("time/forward", line.time.forward),
                ("time/backward", line.time.backward),
                ("time/wait", line.time.wait),
                ("time/update", line.time.update),
            ];
            let known = optional.into_iter();
            values.extend(known.filter_map(|(tag, value)| Some((tag, value?))));
            let rate = format!("train/{}", line.throughput.key());
            let own = vec![(rate, line.throughput.per_second)];
            (line.step, values, own, line.gradient_norms.as_ref())
        }
        Metric::Eval(line) => {
            // `train` has the losses of the steps.
            let set = match line.set.as_str() {
                set @ ("val" | "test") => set,
                _ => "eval",
            };
            let all = [("loss", line.loss), ("seconds", line.seconds)].into_iter();
            let all = all.chain(line.metrics.iter());
            let own = all.map(|(name, value)| (format!("{set}/{name}"), value));
            (line.step, Vec::new(), own.collect(), None)
        }
        Metric::Ranks(line) => {
            let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
            let mut values = vec![
                ("ranks/compute_max", most(&line.compute)),
                ("ranks/wait_max", most(&line.wait)),
                ("ranks/memory_mib_max", most(&line.memory_mib)),
            ];
            if !line.device_mib.is_empty() {
                values.push(("ranks/device_mib_max", most(&line.device_mib)));
            }
            (line.step, values, Vec::new(), None)
        }
        // A text, see `changes`.
        Metric::Resume(line) => (line.step, Vec::new(), Vec::new(), None),
    };
    let values = values.into_iter().map(|(tag, value)| (tag.into(), value));
    let norms = norms.into_iter().flatten();
    let norms = norms.map(|(path, norm)| (format!("gradient_norm/{path}").into(), *norm));
    let own = own.into_iter().map(|(tag, value)| (tag.into(), value));
    (step, values.chain(own).chain(norms).collect())
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
