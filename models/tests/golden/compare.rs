//! Tolerances for the differences from PyTorch, and a table of larger differences.

use std::collections::{BTreeMap, BTreeSet};

use super::case::Case;

/// A tensor's largest gradient below this share of the largest of all counts as rounding error.
const NO_GRADIENT: f32 = 1e-6;
/// Adam amplifies rounding errors of gradients below this share of their tensor's largest.
const NOISE: f32 = 1e-3;

/// The comparisons of one golden file.
pub struct Table {
    name: String,
    rows: Vec<Row>,
}

struct Row {
    tensor: String,
    /// The difference with the largest ratio to its tolerance.
    difference: f32,
    tolerated: f32,
}

impl Row {
    /// Returns the difference as a multiple of its tolerance.
    fn ratio(&self) -> f32 {
        if self.difference == 0.0 {
            0.0
        } else {
            self.difference / self.tolerated
        }
    }

    fn fails(&self) -> bool {
        self.ratio().is_nan() || self.ratio() > 1.0
    }

    fn line(&self) -> String {
        format!(
            "  {:<50} off by {:.2e}, tolerated {:.2e}",
            self.tensor, self.difference, self.tolerated
        )
    }
}

impl Table {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            rows: Vec::new(),
        }
    }

    pub fn summary(&self) -> String {
        let worst = self.rows.iter().map(Row::ratio).fold(0.0, f32::max);
        let rows = self.rows.len();
        format!(
            "{}: {rows} comparisons, worst {worst:.3} of its tolerance",
            self.name
        )
    }

    pub fn failures(&self) -> Option<String> {
        let failed: Vec<String> = self
            .rows
            .iter()
            .filter(|row| row.fails())
            .map(Row::line)
            .collect();
        let title = format!(
            "{}: {} of {} comparisons fail",
            self.name,
            failed.len(),
            self.rows.len()
        );
        (!failed.is_empty()).then(|| format!("{title}\n{}", failed.join("\n")))
    }

    /// Compares element by element; an element with the tolerance `None` is skipped.
    fn compare(
        &mut self,
        tensor: String,
        found: &[f32],
        expected: &[f32],
        tolerated: impl Fn(usize) -> Option<f32>,
    ) {
        assert_eq!(found.len(), expected.len(), "{}: {tensor}", self.name);
        let rows = (0..found.len()).filter_map(|i| {
            Some(Row {
                tensor: tensor.clone(),
                difference: (found[i] - expected[i]).abs(),
                tolerated: tolerated(i)?,
            })
        });
        let worse = |a: Row, b: Row| {
            if a.ratio().is_nan() || a.ratio() >= b.ratio() {
                a
            } else {
                b
            }
        };
        self.rows.extend(rows.reduce(worse));
    }
}

/// The tolerances of one golden file.
pub struct Tolerances<'a> {
    case: &'a Case,
    /// The largest gradient of all.
    largest_gradient: f32,
    /// Returns true if the true gradient of the whole tensor is zero.
    idle_tensor: bool,
}

impl<'a> Tolerances<'a> {
    pub fn of(case: &'a Case) -> Self {
        let largest: Vec<f32> = case.under("grad").map(|(_, grad)| largest(grad)).collect();
        let largest_gradient = largest.iter().copied().fold(0.0, f32::max);
        let idle = |gradient: &f32| *gradient < NO_GRADIENT * largest_gradient;
        Self {
            case,
            largest_gradient,
            idle_tensor: largest.iter().any(idle),
        }
    }

    /// Checks that the export is bitwise equal to the import.
    pub fn same(&self, table: &mut Table, kind: &str, found: &BTreeMap<String, Vec<f32>>) {
        for (key, found, expected) in self.pairs(kind, found) {
            table.compare(format!("{kind}/{key}"), found, expected, |_| {
                Some(f32::MIN_POSITIVE)
            });
        }
    }

    pub fn outputs(&self, table: &mut Table, tensor: &str, tolerance: f32, found: &[f32]) {
        let expected = self.case.tensor(tensor);
        let name = format!("{tensor} (to {tolerance:.0e})");
        table.compare(name, found, expected, |i| {
            Some(tolerance * expected[i].abs().max(1.0))
        });
    }

    pub fn gradients(&self, table: &mut Table, found: &BTreeMap<String, Vec<f32>>) {
        let mut found = found.clone();
        found.retain(|key, _| !is_statistic(key));
        for (key, found, expected) in self.pairs("grad", &found) {
            let largest = largest(expected);
            let tolerated = if largest < NO_GRADIENT * self.largest_gradient {
                NO_GRADIENT * self.largest_gradient
            } else {
                1e-4 * largest
            };
            table.compare(format!("grad/{key}"), found, expected, |_| Some(tolerated));
        }
    }

    /// Compares the state dict after `steps` steps with `learning_rate`.
    pub fn after_steps(
        &self,
        table: &mut Table,
        kind: &str,
        learning_rate: f64,
        steps: usize,
        found: &BTreeMap<String, Vec<f32>>,
    ) {
        let adam = kind.starts_with("adamw");
        let (mut compared, mut elements) = (0, 0);
        for (key, found, expected) in self.pairs(kind, found) {
            let name = format!("{kind}/{key}");
            if is_statistic(key) {
                let drift = if adam && self.idle_tensor && key.ends_with("running_mean") {
                    steps as f32 * learning_rate as f32
                } else {
                    0.0
                };
                table.compare(name, found, expected, |i| {
                    Some(1e-5 * expected[i].abs().max(1.0) + drift)
                });
                continue;
            }
            let start = self.case.tensor(&format!("param/{key}"));
            let change: Vec<f32> = expected.iter().zip(start).map(|(a, b)| a - b).collect();
            let tolerated = 1e-3 * largest(&change) + 1e-6 * largest(expected);
            let moves = |i: usize| !adam || self.moves(key, i);
            compared += (0..expected.len()).filter(|i| moves(*i)).count();
            elements += expected.len();
            table.compare(name, found, expected, |i| moves(i).then_some(tolerated));
        }
        assert!(
            2 * compared > elements,
            "{}: {kind}: only {compared} of {elements} elements have gradients to go by",
            self.case.name
        );
    }

    /// Returns true if Adam moves an element by its gradient, not by rounding errors.
    fn moves(&self, key: &str, element: usize) -> bool {
        let gradient = self.case.tensor(&format!("grad/{key}"));
        let floor = largest(gradient).max(NOISE * self.largest_gradient);
        gradient[element].abs() > NOISE * floor
    }

    /// Returns the found and expected tensors, which must have the same names.
    fn pairs<'b>(
        &'b self,
        kind: &str,
        found: &'b BTreeMap<String, Vec<f32>>,
    ) -> Vec<(&'b str, &'b [f32], &'b [f32])> {
        let expected: BTreeMap<&str, &[f32]> = self
            .case
            .under(kind)
            .filter(|(key, _)| !key.ends_with("num_batches_tracked"))
            .collect();
        let names: BTreeSet<&str> = found.keys().map(String::as_str).collect();
        let wanted: BTreeSet<&str> = expected.keys().copied().collect();
        assert_eq!(names, wanted, "{}: {kind}", self.case.name);
        found
            .iter()
            .map(|(key, found)| (key.as_str(), found.as_slice(), expected[key.as_str()]))
            .collect()
    }
}

fn is_statistic(key: &str) -> bool {
    key.ends_with("running_mean") || key.ends_with("running_var")
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}
