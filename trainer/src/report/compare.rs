//! The page that compares several runs.

use std::collections::BTreeMap;

use super::axis::number;
use super::folder::Run;
use super::html;
use super::measures::{self, best, series};
use super::overview::{self, percent, plots, units_per_second};
use super::plot::{self, COLOURS, Curve, Frame, Pen, Return};
use super::series::{Point, Series};
use crate::config::metric::Measure;

/// Accuracies for the table of times, in ten thousandths.
const LEVELS: &[u32] = &[
    1000, 2000, 3000, 4000, 5000, 6000, 7000, 7500, 8000, 8500, 9000, 9300, 9500, 9700, 9800, 9900,
    9950,
];
/// Number of accuracies in the table.
const TOLD: usize = 5;

/// The whole page.
pub fn page(runs: &[Run], notes: &[String]) -> String {
    let names = names(runs);
    let mut body = format!("<h1>{} runs</h1>\n", runs.len());
    body += &html::positions(runs.iter().map(overview::positions));
    for note in notes {
        body += &format!("<p class=\"note\">{}</p>\n", html::shortened(note, 2000));
    }
    for (run, name) in runs.iter().zip(&names) {
        for remark in &run.remarks {
            let remark = format!("{name}: {remark}");
            body += &format!("<p class=\"note\">{}</p>\n", html::shortened(&remark, 2000));
        }
    }
    body += &html::section("Results", &boxed(&results(runs, &names)));
    body += &html::section("Curves", &plots(&curves(runs, &names)));
    body += &html::section("Time to accuracy", &boxed(&times(runs, &names)));
    body += &html::section("Different settings", &boxed(&settings(runs, &names)));
    html::page("Comparison of runs", &body)
}

/// Names of the folders, numbered if they are equal.
fn names(runs: &[Run]) -> Vec<String> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let number = runs.iter().map(|run| {
        let count = seen.entry(&run.name).or_default();
        *count += 1;
        match *count {
            1 => run.name.clone(),
            count => format!("{} ({count})", run.name),
        }
    });
    number.collect()
}

fn boxed(table: &str) -> String {
    match table.is_empty() {
        true => String::new(),
        false => format!("<div class=\"box\">{table}</div>\n"),
    }
}

/// The name of a run with its color in the plots.
fn key(name: &str, index: usize) -> String {
    format!(
        "<span class=\"key c{}\">{}</span>",
        index % COLOURS,
        html::name(name)
    )
}

/// The metrics of all runs. The first run decides the order.
fn measured(runs: &[Run]) -> Vec<Measure> {
    let mut all: Vec<Measure> = Vec::new();
    for measure in runs.iter().flat_map(measures::of_run) {
        if !all.iter().any(|known| known.name == measure.name) {
            all.push(measure);
        }
    }
    all
}

fn results(runs: &[Run], names: &[String]) -> String {
    let shown =
        |value: Option<f64>, text: &dyn Fn(f64) -> String| value.map_or("–".to_owned(), text);
    let measured = measured(runs);
    let row = |(index, (run, name)): (usize, (&Run, &String))| {
        let metrics = &run.metrics;
        let loss = metrics.loss.smooth().last().map(|point| point.1);
        let mut row = vec![key(name, index)];
        for (index, measure) in measured.iter().enumerate() {
            let text = |value| measures::text(measure, value);
            if index == 0 {
                row.push(shown(best(metrics, measure), &text));
            }
            row.push(shown(series(metrics, measure).last(), &text));
        }
        row.extend([
            shown(metrics.eval_loss.last(), &number),
            metrics.evaluated.unwrap_or_default().name().to_owned(),
            shown(loss, &number),
            metrics.step.to_string(),
            shown(metrics.elapsed, &html::duration),
            shown(metrics.throughput.mean_rate(), &number),
        ]);
        row
    };
    let rows: Vec<_> = runs.iter().zip(names).enumerate().map(row).collect();
    let mut head = vec!["run".to_owned()];
    for (index, measure) in measured.iter().enumerate() {
        let label = measures::label(measure);
        match index {
            0 => head.extend([format!("best {label}"), format!("last {label}")]),
            _ => head.push(html::shortened(measures::short(measure), 40)),
        }
    }
    let others = [
        "evaluation loss",
        "evaluated on",
        "training loss",
        "steps",
        "training time",
    ];
    head.extend(others.map(str::to_owned));
    head.push(rate(runs));
    html::table("", &head, &rows)
}

/// Name of the throughput.
fn rate(runs: &[Run]) -> String {
    let of_run = |run: &Run| units_per_second(&run.metrics);
    let mut rates: Vec<String> = runs.iter().map(of_run).collect();
    rates.dedup();
    match &rates[..] {
        [rate] => rate.clone(),
        _ => "units per second".to_owned(),
    }
}

/// A plot with these names.
fn frame<'a>(id: &'a str, title: &'a str, x: &'a str, y: &'a str) -> Frame<'a> {
    Frame {
        id,
        title,
        x,
        y,
        ..Frame::default()
    }
}

fn curves(runs: &[Run], names: &[String]) -> String {
    let all = |pen: Pen, points: &dyn Fn(&Run) -> Vec<Point>| -> Vec<Curve> {
        let runs = runs.iter().zip(names).enumerate();
        runs.map(|(index, (run, name))| Curve::new(name, index, pen, points(run)).of_run(index))
            .collect()
    };
    let returns = overview::returns(runs);
    let frame = |id, title, y| Frame::over_steps(id, title, y).returning(&returns);
    let per_second = rate(runs);
    let smooth = |series: fn(&Run) -> &Series| move |run: &Run| series(run).smooth();
    let means = |series: fn(&Run) -> &Series| move |run: &Run| series(run).means();
    let (line, marks) = (Pen::Line, Pen::Marks);
    [
        plot::curves(
            &frame("loss", "Training loss, smoothed", "loss").or_logarithmic(),
            &all(line, &smooth(|run| &run.metrics.loss)),
        ),
        plot::curves(
            &frame("eval_loss", "Evaluation loss", "loss").or_logarithmic(),
            &all(marks, &means(|run| &run.metrics.eval_loss)),
        ),
        main_measure(runs, &returns, &all),
        plot::curves(
            &frame("lr", "Learning rate", "learning rate").above_zero(),
            &all(line, &|run| run.metrics.lr.extremes()),
        ),
        plot::curves(
            &frame("throughput", "Throughput, smoothed", &per_second).above_zero(),
            &all(line, &smooth(|run| &run.metrics.throughput)),
        ),
    ]
    .concat()
}

/// The points of a run's curve.
type Points<'a> = &'a dyn Fn(&Run) -> Vec<Point>;

/// The first metric, over steps and over time.
fn main_measure(
    runs: &[Run],
    returns: &[Return],
    all: &dyn Fn(Pen, Points<'_>) -> Vec<Curve>,
) -> String {
    let measured = measured(runs);
    let Some(measure) = measured.first() else {
        return String::new();
    };
    let name = html::shortened(&measure.name, 40);
    let (by_time, title) = (format!("{name}_by_time"), measures::title(measure));
    let over_time = format!("{title} over time");
    let label = measures::label(measure);
    let classifies = |run: &Run| {
        run.environment
            .as_ref()
            .is_none_or(|env| env.task.is_none())
    };
    let y = match runs.iter().all(classifies) {
        true => "share of evaluated images",
        false => &label,
    };
    let curves = |run: &Run| run.metrics.measured(&measure.name).by_step.means();
    let in_time = |run: &Run| run.metrics.measured(&measure.name).by_time.means();
    let over_steps = frame(&name, &title, "step", y).returning(returns);
    plot::curves(&over_steps, &all(Pen::Marks, &curves))
        + &plot::curves(
            &frame(&by_time, &over_time, "seconds of training", y),
            &all(Pen::Marks, &in_time),
        )
}

/// Accuracies for the table of times: the last round ones that all good runs have reached, the best
/// that all of them have, and the best of all.
///
/// A run without half of the best accuracy is not good: it must not empty the table.
fn levels(runs: &[Run]) -> Vec<u32> {
    let best: Vec<u32> = runs
        .iter()
        .filter_map(|run| run.metrics.best_reached())
        .collect();
    let Some(highest) = best.iter().copied().max() else {
        return Vec::new();
    };
    let good = best.into_iter().filter(|best| *best >= highest / 2);
    let common = good.min().unwrap_or(highest);
    let reached: Vec<u32> = LEVELS
        .iter()
        .copied()
        .filter(|level| *level < common)
        .collect();
    let mut levels = reached
        .get(reached.len().saturating_sub(TOLD)..)
        .unwrap_or_default()
        .to_vec();
    levels.push(common);
    if highest > common {
        levels.push(highest);
    }
    levels
}

fn times(runs: &[Run], names: &[String]) -> String {
    let levels = levels(runs);
    if levels.is_empty() {
        return String::new();
    }
    let mut head = vec!["run".to_owned()];
    head.extend(
        levels
            .iter()
            .map(|level| percent(f64::from(*level) / 10_000.0)),
    );
    let row = |(index, (run, name)): (usize, (&Run, &String))| {
        let mut row = vec![key(name, index)];
        let seconds = levels.iter().map(|level| run.metrics.seconds_to(*level));
        row.extend(seconds.map(|seconds| seconds.map_or("–".to_owned(), html::duration)));
        row
    };
    let rows: Vec<_> = runs.iter().zip(names).enumerate().map(row).collect();
    html::table("", &head, &rows)
}

/// Configuration keys that differ between runs.
fn settings(runs: &[Run], names: &[String]) -> String {
    let flat: Vec<BTreeMap<String, String>> = runs.iter().map(flat_config).collect();
    let mut keys: Vec<&String> = flat.iter().flat_map(BTreeMap::keys).collect();
    keys.sort();
    keys.dedup();
    let differs = |key: &&String| {
        let mut values = flat.iter().map(|config| config.get(*key));
        let first = values.next().flatten();
        values.any(|value| value != first)
    };
    let row = |key: &String| {
        let mut row = vec![html::shortened(key, 100)];
        let values = flat.iter().map(|config| config.get(key));
        row.extend(
            values.map(|value| value.map_or("–".to_owned(), |text| html::shortened(text, 200))),
        );
        row
    };
    let rows: Vec<_> = keys.into_iter().filter(differs).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut head = vec!["key".to_owned()];
    head.extend(
        names
            .iter()
            .enumerate()
            .map(|(index, name)| key(name, index)),
    );
    html::table("keys2", &head, &rows)
}

/// Dotted keys and their values as TOML. Empty if the configuration cannot be read.
fn flat_config(run: &Run) -> BTreeMap<String, String> {
    let table = run
        .config
        .as_deref()
        .and_then(|text| text.parse::<toml::Table>().ok());
    let mut flat = BTreeMap::new();
    flatten("", &table.unwrap_or_default(), &mut flat);
    flat
}

fn flatten(prefix: &str, table: &toml::Table, flat: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let key = format!("{prefix}{key}");
        match value {
            // The recursion is bounded: the parser limits the depth of tables.
            toml::Value::Table(table) => flatten(&format!("{key}."), table, flat),
            value => {
                flat.insert(key, value.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::Metrics;
    use super::*;

    fn run(config: &str, evals: &[(f64, f64)]) -> Run {
        let lines: String = evals
            .iter()
            .map(|(accuracy, elapsed)| {
                format!("{{\"kind\":\"eval\",\"accuracy\":{accuracy},\"elapsed\":{elapsed}}}\n")
            })
            .collect();
        Run {
            name: "run<".to_owned(),
            metrics: Metrics::read(lines.as_bytes()).unwrap(),
            config: Some(config.to_owned()),
            environment: None,
            details: None,
            remarks: Vec::new(),
        }
    }

    #[test]
    fn differences_and_times_are_told() {
        let runs = [
            run("a = 1\n[b]\nc = 'x'\nd = 2", &[(0.91, 5.0), (0.9712, 65.0)]),
            run("a = 1\n[b]\nc = 'y<'", &[(0.98, 7.0)]),
        ];
        let expected = [8500, 9000, 9300, 9500, 9700, 9712, 9800];
        assert_eq!(levels(&runs), expected);
        let page = page(&runs, &["left out".to_owned()]);
        let parts = [
            "<td>b.c</td>",
            "y&lt;",
            "<td>b.d</td>",
            "1 min 05 s",
            "97.12 %",
            "run&lt; (2)",
            "<p class=\"note\">left out</p>",
        ];
        for part in parts {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("<td>a</td>"));
    }

    #[test]
    fn runs_that_reach_nothing_leave_the_times_of_the_others() {
        let good = || run("", &[(0.91, 5.0), (0.97, 65.0)]);
        let expected = levels(&[good(), good()]);
        for bad in [run("", &[]), run("", &[(0.1, 1.0)])] {
            let runs = [good(), bad, good()];
            assert_eq!(levels(&runs), expected);
            let times = times(&runs, &names(&runs));
            assert_eq!(times.matches("1 min 05 s").count(), 2 * 3, "{times}");
            assert!(times.contains("–"), "{times}");
            assert_eq!(settings(&runs, &names(&runs)), "");
        }
        let none = [run("", &[]), run("", &[])];
        assert_eq!(times(&none, &names(&none)), "");
    }
}
