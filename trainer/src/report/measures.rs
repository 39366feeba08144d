//! The metrics of a run's task: their labels, formats and directions.

use std::borrow::Cow;

use super::axis::number;
use super::folder::Run;
use super::html;
use super::lines::Metrics;
use super::overview::percent;
use super::series::Series;
use crate::config::metric::{Better, Measure, Shown};
use crate::config::{AnyTask, ClassificationConfig};

/// Maximum characters of a label.
const LABEL: usize = 40;

/// The metrics that a run has values of, in the order of its task. Metrics that its files do not
/// describe come last.
pub fn of_run(run: &Run) -> Vec<Measure> {
    let described = run
        .environment
        .as_ref()
        .map(|environment| environment.measures.clone());
    let described = described.filter(|measures| !measures.is_empty());
    let usual = || {
        ClassificationConfig::default()
            .measures()
            .unwrap_or_default()
            .to_vec()
    };
    let mut all = described.unwrap_or_else(usual);
    for (name, _) in &run.metrics.measured {
        if !all.iter().any(|measure| measure.name == *name) {
            all.push(undescribed(name));
        }
    }
    all.retain(|measure| !series(&run.metrics, measure).is_empty());
    all
}

/// A metric without a description.
fn undescribed(name: &str) -> Measure {
    Measure {
        name: Cow::Owned(name.to_owned()),
        label: Cow::Owned(name.to_owned()),
        better: Better::Lower,
        shown: Shown::Number,
    }
}

/// The values over the steps.
pub fn series<'a>(metrics: &'a Metrics, measure: &Measure) -> &'a Series {
    &metrics.measured(&measure.name).by_step
}

/// The best value.
pub fn best(metrics: &Metrics, measure: &Measure) -> Option<f64> {
    let series = series(metrics, measure);
    match measure.better {
        Better::Higher => series.max(),
        Better::Lower => series.min(),
    }
}

/// A value in words.
pub fn text(measure: &Measure, value: f64) -> String {
    match measure.shown {
        Shown::Percent => percent(value),
        Shown::Number => number(value),
    }
}

/// The label as HTML.
pub fn label(measure: &Measure) -> String {
    html::shortened(&measure.label, LABEL)
}

/// The label as HTML, with a capital letter.
pub fn title(measure: &Measure) -> String {
    let mut letters = measure.label.chars();
    let first = letters
        .next()
        .map(|letter| letter.to_uppercase().to_string());
    let whole = first.unwrap_or_default() + letters.as_str();
    html::shortened(&whole, LABEL)
}

/// The label without the word that all accuracies share.
pub fn short(measure: &Measure) -> &str {
    let label = measure.label.as_ref();
    label.strip_suffix(" accuracy").unwrap_or(label)
}
