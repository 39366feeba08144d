//! CSV: `train.csv` and `eval.csv` in the folder `csv` of the run.
//!
//! A resumed run keeps the rows up to the step that it goes on from. If the columns
//! change, a new table begins, and the old one becomes `old-1-train.csv`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use csv::{ReaderBuilder, StringRecord, Writer};

use super::{LogError, LoggedRun, Logger};
use crate::run::metrics::{EvalLine, Metric, TrainLine};
use crate::system::whole_file;

/// Folder in the run folder.
const FOLDER: &str = "csv";

/// A column and its value, if known.
type Cell = (String, Option<String>);

/// Opens the tables.
pub fn open(run: &LoggedRun<'_>) -> Result<Option<Box<dyn Logger>>, LogError> {
    if !run.config.log.csv {
        return Ok(None);
    }
    let folder = run.folder.join(FOLDER);
    fs::create_dir_all(&folder).map_err(failed(&folder))?;
    let table = |name| Table::open(&folder, name, run.steps);
    Ok(Some(Box::new(Tables {
        train: table("train.csv")?,
        eval: table("eval.csv")?,
    })))
}

fn failed(path: &Path) -> impl Fn(io::Error) -> LogError + use<> {
    let path = path.display().to_string();
    move |error| LogError(format!("cannot write {path}: {error}"))
}

struct Tables {
    train: Table,
    eval: Table,
}

impl Logger for Tables {
    fn metric(&mut self, metric: &Metric) -> Result<(), LogError> {
        match metric {
            Metric::Train(line) => self.train.append(&train_cells(line)),
            Metric::Eval(line) => self.eval.append(&eval_cells(line)),
            Metric::Ranks(_) | Metric::Resume(_) | Metric::World(_) => Ok(()),
        }
    }
}

/// One file.
struct Table {
    path: PathBuf,
    /// Rows of an earlier process, the names of the columns first.
    before: Vec<StringRecord>,
    /// Writes rows, once the columns are known.
    writer: Option<Writer<File>>,
}

impl Table {
    /// Reads the rows up to step `steps`, the first column. A damaged row is left out.
    fn open(folder: &Path, name: &str, steps: u64) -> Result<Self, LogError> {
        let path = folder.join(name);
        let mut before: Vec<StringRecord> = Vec::new();
        if steps > 0 && path.exists() {
            let bytes = whole_file::read(&path).map_err(failed(&path))?;
            let mut reader = ReaderBuilder::new();
            let mut reader = reader
                .has_headers(false)
                .flexible(true)
                .from_reader(&bytes[..]);
            before.extend(reader.records().flatten());
            let columns = before.first().map_or(0, StringRecord::len);
            let step = |row: &StringRecord| row.get(0)?.parse::<u64>().ok();
            let mut is_head = true;
            before.retain(|row| {
                let first = std::mem::take(&mut is_head);
                first || row.len() == columns && step(row).is_some_and(|step| step <= steps)
            });
        }
        Ok(Self {
            path,
            before,
            writer: None,
        })
    }

    /// Appends a row, and hands it to the system at once.
    fn append(&mut self, cells: &[Cell]) -> Result<(), LogError> {
        let fail = failed(&self.path);
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.begin(cells).map_err(&fail)?,
        };
        let row = cells
            .iter()
            .map(|(_, value)| value.as_deref().unwrap_or_default());
        let written = writer.write_record(row).map_err(io::Error::from);
        written.and_then(|()| writer.flush()).map_err(fail)?;
        self.writer = Some(writer);
        Ok(())
    }

    /// Starts the file with the rows of before, if they have these columns.
    fn begin(&mut self, cells: &[Cell]) -> io::Result<Writer<File>> {
        let head: StringRecord = cells.iter().map(|(name, _)| name.as_str()).collect();
        let before = std::mem::take(&mut self.before);
        let is_same = before.first() == Some(&head);
        if !is_same && !before.is_empty() {
            fs::rename(&self.path, self.free_name())?;
        }
        let rows = if is_same { before } else { vec![head] };
        let mut kept = Writer::from_writer(Vec::new());
        for row in &rows {
            kept.write_record(row)?;
        }
        let kept = kept.into_inner().map_err(|error| error.into_error())?;
        whole_file::replace(&self.path, &kept, None)?;
        let file = File::options().append(true).open(&self.path)?;
        Ok(Writer::from_writer(file))
    }

    /// The first free name for the table of before.
    fn free_name(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let numbered = |number: u64| self.path.with_file_name(format!("old-{number}-{name}"));
        let free = (1..).map(numbered).find(|path| !path.exists());
        free.unwrap_or_else(|| numbered(0))
    }
}

/// A column of a number.
fn number(name: impl Into<String>, value: impl ToString) -> Cell {
    (name.into(), Some(value.to_string()))
}

/// A column of a number that may be unknown.
fn optional(name: &str, value: Option<impl ToString>) -> Cell {
    (name.to_owned(), value.map(|value| value.to_string()))
}

fn train_cells(line: &TrainLine) -> Vec<Cell> {
    vec![
        number("step", line.step),
        number("epoch", line.epoch),
        number("loss", line.loss),
        number("lr", line.lr),
        number(line.throughput.key(), line.throughput.per_second),
        number("elapsed", line.elapsed),
        number("time_data", line.time.data),
        number("time_forward", line.time.forward),
        number("time_backward", line.time.backward),
        number("time_wait", line.time.wait),
        number("time_update", line.time.update),
        optional("memory_mib", line.memory_mib),
        optional("tflops", line.tflops),
        optional("share_of_peak", line.share_of_peak),
        optional("gradient_norm", line.gradient_norm),
        optional("loss_scale", line.loss_scale),
        optional("skipped_steps", line.skipped_steps),
    ]
}

fn eval_cells(line: &EvalLine) -> Vec<Cell> {
    let mut cells = vec![
        number("step", line.step),
        number("epoch", line.epoch),
        ("set".to_owned(), Some(line.set.clone())),
        number("loss", line.loss),
    ];
    cells.extend(line.metrics.iter().map(|(name, value)| number(name, value)));
    cells.extend([
        number("samples", line.samples),
        number("elapsed", line.elapsed),
        number("seconds", line.seconds),
    ]);
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: u64, columns: &[&str]) -> Vec<Cell> {
        let others = columns.iter().map(|name| number(*name, 0.5));
        [number("step", step)].into_iter().chain(others).collect()
    }

    #[test]
    fn a_resumed_table_has_every_step_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.csv");
        let write = |steps: u64, rows: std::ops::Range<u64>, columns: &[&str]| {
            let mut table = Table::open(folder.path(), "train.csv", steps).unwrap();
            for step in rows {
                table.append(&row(step, columns)).unwrap();
            }
        };
        let read = || fs::read_to_string(&path).unwrap();
        write(0, 1..4, &["a,b"]);
        assert_eq!(read(), "step,\"a,b\"\n1,0.5\n2,0.5\n3,0.5\n");
        // As after a kill in the middle of a row.
        fs::write(&path, read() + "4").unwrap();
        write(2, 3..5, &["a,b"]);
        assert_eq!(read(), "step,\"a,b\"\n1,0.5\n2,0.5\n3,0.5\n4,0.5\n");
        write(4, 5..6, &["a,b", "c"]);
        assert_eq!(read(), "step,\"a,b\",c\n5,0.5,0.5\n");
        let old = fs::read_to_string(folder.path().join("old-1-train.csv")).unwrap();
        assert_eq!(old.lines().count(), 5);
        // A run that starts from scratch forgets the rows of before.
        write(0, 1..2, &["a,b"]);
        assert_eq!(read(), "step,\"a,b\"\n1,0.5\n");
    }
}
