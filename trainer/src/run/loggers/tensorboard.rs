//! TensorBoard: an event file in the run folder.

use super::{LogError, LoggedEnd, LoggedRun, Logger, flat};
use crate::run::gallery::Gallery;
use crate::run::metrics::Metric;
use crate::run::tensorboard::{EventWriter, FOLDER, HyperParameter, SessionEnd};

/// Opens a new event file, and writes the configuration into it.
pub fn open(run: &LoggedRun<'_>) -> Result<Option<Box<dyn Logger>>, LogError> {
    if !run.config.log.tensorboard {
        return Ok(None);
    }
    let mut writer = EventWriter::open(&run.folder.join(FOLDER), run.steps)?;
    let text = run.config.to_toml().unwrap_or_default();
    writer.text(run.steps, "run/config", format!("```toml\n{text}```\n"))?;
    let environment = serde_json::to_string_pretty(&run.environment.processes.last());
    let environment = environment.unwrap_or_default();
    writer.text(
        run.steps,
        "run/environment",
        format!("```json\n{environment}\n```\n"),
    )?;
    let values = flat(run.config).into_iter();
    let values = values.map(|(key, value)| (key, hyper_parameter(value)));
    writer.hyper_parameters(values)?;
    Ok(Some(Box::new(writer)))
}

fn hyper_parameter(value: toml::Value) -> HyperParameter {
    match value {
        toml::Value::Boolean(value) => HyperParameter::Bool(value),
        toml::Value::Integer(value) => HyperParameter::Number(value as f64),
        toml::Value::Float(value) => HyperParameter::Number(value),
        toml::Value::String(value) => HyperParameter::Text(value),
        other => HyperParameter::Text(other.to_string()),
    }
}

impl Logger for EventWriter {
    fn metric(&mut self, metric: &Metric) -> Result<(), LogError> {
        Ok(self.write(metric)?)
    }

    fn show(&mut self, gallery: &Gallery) -> Result<(), LogError> {
        let (step, set) = (gallery.step, gallery.set.as_str());
        for picture in &gallery.pictures {
            let tag = format!("{set}/{}/{:02}", picture.group, picture.number);
            self.image(step, tag, &picture.png)?;
        }
        for group in ["examples", "mistakes"] {
            if let Some(captions) = gallery.captions(group) {
                self.text(step, format!("{set}/{group}"), captions)?;
            }
        }
        if let Some(picture) = gallery.confusion_png() {
            self.image(step, format!("{set}/confusion"), &picture)?;
        }
        if let Some(table) = gallery.confusion_table() {
            self.text(step, format!("{set}/confusion"), table)?;
        }
        Ok(())
    }

    fn end(&mut self, end: LoggedEnd) -> Result<(), LogError> {
        // A paused run goes on in another file.
        let end = match end {
            LoggedEnd::Done => SessionEnd::Success,
            LoggedEnd::Failed => SessionEnd::Failure,
            LoggedEnd::Paused => return Ok(()),
        };
        Ok(self.end_session(end)?)
    }
}
