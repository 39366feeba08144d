//! The page of one run.

use std::fmt::Write;

use super::axis::number;
use super::classes;
use super::folder::Run;
use super::html;
use super::lines::{EvaluatedData, Metrics, World};
use super::measures::{self, best, series};
use super::plot::{self, Curve, Frame, Pen, Return};
use super::series::Series;
use crate::config::metric::{Measure, Shown};
use crate::run::environment::Environment;
use crate::run::metrics::Changed;
use crate::run::process::RunProcess;
use crate::system::host::HostRecord;

/// Maximum characters of the configuration and other long texts.
const TEXT: usize = 100_000;
const VALUE: usize = 2000;

/// Maximum bars of ranks. More ranks share bars with their neighbors.
const RANK_BARS: usize = 128;

/// Phases of a step, in the order of [`Metrics::times`].
const PARTS: [&str; 5] = ["data", "forward", "backward", "wait", "update"];
/// Colors of the phases; waiting stands out.
const PART_COLOURS: [usize; 5] = [3, 0, 5, 1, 2];

/// The whole page.
pub fn page(run: &Run) -> String {
    let mut body = format!("<h1>{}</h1>\n", html::name(&run.name));
    body += &subtitle(run);
    for remark in &run.remarks {
        let _ = writeln!(
            body,
            "<p class=\"note\">{}</p>",
            html::shortened(remark, VALUE)
        );
    }
    body += &html::cards(&cards(run));
    body += &html::positions(std::iter::once(positions(run)));
    let returns = returns(std::slice::from_ref(run));
    body += &html::section("Training", &plots(&training(run, &returns)));
    body += &html::section("Time and memory", &plots(&speed(&run.metrics, &returns)));
    if let Some(details) = &run.details {
        body += &classes::sections(details);
    }
    if let Some(environment) = &run.environment {
        body += &html::section("Environment", &environment_table(environment));
    }
    body += &html::section("Processes", &processes(run));
    body += &html::section("Changes when continued", &changes(&run.metrics));
    body += &html::section("Ranks and nodes", &worlds(&run.metrics));
    if let Some(config) = &run.config {
        let text = html::shortened(config.trim_end(), TEXT);
        body += &html::section("Configuration", &format!("<pre>{text}</pre>\n"));
    }
    html::page(&format!("{} – training report", run.name), &body)
}

fn subtitle(run: &Run) -> String {
    let Some(environment) = &run.environment else {
        return String::new();
    };
    let ranks = match environment.world_size {
        1 => "one rank".to_owned(),
        ranks => format!("{ranks} ranks"),
    };
    format!(
        "<p class=\"soft\">Started {} with {ranks}, device {}</p>\n",
        html::name(&environment.started),
        html::name(&environment.device)
    )
}

/// A fraction in percent.
pub fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

fn cards(run: &Run) -> Vec<(String, String)> {
    let metrics = &run.metrics;
    let mut cards = Vec::new();
    for (index, measure) in measures::of_run(run).iter().enumerate() {
        let label = measures::label(measure);
        let mut card = |name: String, value: Option<f64>| {
            cards.extend(value.map(|value| (name, measures::text(measure, value))));
        };
        card(label.clone(), series(metrics, measure).last());
        if index == 0 {
            card(format!("best {label}"), best(metrics, measure));
        }
    }
    let mut card = |name: &str, value: Option<String>| {
        cards.extend(value.map(|value| (name.to_owned(), value)));
    };
    let evaluated = metrics.evaluated.unwrap_or_default();
    let loss = metrics.eval_loss.last().map(number);
    card(&evaluated.title("loss"), loss);
    let last = metrics.loss.smooth().last().map(|(_, loss)| number(*loss));
    card("training loss", last);
    card("steps", Some(metrics.step.to_string()));
    card("epochs", Some(metrics.epoch.to_string()));
    card("training time", metrics.elapsed.map(html::duration));
    let rate = metrics.throughput.mean_rate();
    card(&units_per_second(metrics), rate.map(number));
    let parameters = run.environment.as_ref().map(|env| env.parameters);
    let parameters = parameters.filter(|count| *count > 0);
    card("parameters", parameters.map(grouped));
    card(
        "peak memory of rank 0, MiB",
        metrics.memory.max().map(|mib| format!("{mib:.0}")),
    );
    card("TFLOP/s", metrics.tflops.mean_rate().map(number));
    card(
        "of the device's peak",
        metrics.share_of_peak.mean_rate().map(percent),
    );
    let skipped = metrics.skipped_steps.filter(|steps| *steps > 0.0);
    card("steps skipped", skipped.map(number));
    cards
}

/// Name of the throughput, as HTML.
pub fn units_per_second(metrics: &Metrics) -> String {
    match metrics.unit.as_str() {
        "" => "images per second".to_owned(),
        unit => format!("{} per second", html::shortened(unit, 40)),
    }
}

/// A number with a thin space between thousands.
fn grouped(count: usize) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Puts plots side by side, below the choice of their axes.
pub fn plots(figures: &str) -> String {
    match figures.is_empty() {
        true => String::new(),
        false => format!("{}<div class=\"plots\">\n{figures}</div>\n", html::axes()),
    }
}

/// The maps of the run's steps to epochs and seconds, as JSON.
pub fn positions(run: &Run) -> String {
    let environment = run.environment.as_ref();
    let steps = environment.map(|environment| environment.steps_per_epoch as f64);
    run.metrics
        .positions
        .json(steps.filter(|steps| *steps > 0.0))
}

/// The returns of the runs to an earlier step.
pub fn returns(runs: &[Run]) -> Vec<Return> {
    let of_run = |(index, run): (usize, &Run)| -> Vec<Return> {
        let processes = run.environment.iter().flat_map(|known| &known.processes);
        let known = processes.filter_map(|process| {
            let from = process.went_back_from?;
            Some((from as f64, process.first_step as f64))
        });
        let found = known.chain(run.metrics.positions.returns().iter().copied());
        found
            .map(|(from, to)| Return {
                run: index,
                from,
                to,
            })
            .collect()
    };
    runs.iter().enumerate().flat_map(of_run).collect()
}

/// The processes of a run: when and where they ran, and how they ended.
fn processes(run: &Run) -> String {
    let Some(environment) = &run.environment else {
        return String::new();
    };
    let count = environment.processes.len();
    let row = |(index, process): (usize, &RunProcess)| {
        let end = process
            .status
            .as_deref()
            .unwrap_or(match index + 1 == count {
                true => "still running, or killed",
                false => "killed",
            });
        let hosts: Vec<&str> = process.hosts.iter().map(|host| &*host.host).collect();
        let back = process
            .went_back_from
            .map(|from| format!(" (back from {from})"));
        let step = process
            .last_step
            .map_or("–".to_owned(), |step| step.to_string());
        vec![
            html::name(&process.started),
            html::name(process.ended.as_deref().unwrap_or("–")),
            format!("{}{}", process.first_step, back.unwrap_or_default()),
            step,
            html::shortened(end, VALUE),
            html::shortened(&hosts.join(", "), VALUE),
            html::name(&format!("{} ({})", process.version, process.revision)),
        ]
    };
    let rows: Vec<Vec<String>> = environment.processes.iter().enumerate().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = [
        "started",
        "ended",
        "after step",
        "until step",
        "end",
        "hosts",
        "program",
    ];
    let table = html::table("", &head.map(str::to_owned), &rows);
    format!("<div class=\"box\">{table}</div>\n")
}

/// A noisy curve and its trend, or only the curve if it is too short for a trend.
fn noisy(name: &str, colour: usize, series: &Series) -> Vec<Curve> {
    let (values, trend) = (series.extremes(), series.smooth());
    if values == trend {
        return vec![Curve::new(name, colour, Pen::Line, values)];
    }
    let smoothed = format!("{name}, smoothed");
    vec![
        Curve::new(name, colour, Pen::Faint, values),
        Curve::new(&smoothed, colour, Pen::Line, trend),
    ]
}

/// The task's metrics: shares together, others on their own.
fn measured(run: &Run, returns: &[Return]) -> String {
    let (metrics, all) = (&run.metrics, measures::of_run(run));
    let classifies = run
        .environment
        .as_ref()
        .is_none_or(|env| env.task.is_none());
    let (shares, others): (Vec<_>, Vec<_>) = all
        .iter()
        .partition(|measure| measure.shown == Shown::Percent);
    let figure = |y: &str, measures: &[&Measure]| {
        let Some(first) = measures.first() else {
            return String::new();
        };
        let title = measures::title(first);
        let id = html::shortened(&first.name, 40);
        let frame = Frame::over_steps(&id, &title, y).returning(returns);
        let curve = |(index, measure): (usize, &&Measure)| {
            let values = series(metrics, measure).means();
            Curve::new(measures::short(measure), 2 * index, Pen::Marks, values)
        };
        let curves: Vec<Curve> = measures.iter().enumerate().map(curve).collect();
        plot::curves(&frame, &curves)
    };
    let evaluated = metrics.evaluated.unwrap_or_default();
    let share = match classifies {
        true => format!("share of {} images", evaluated.name()),
        false => "share".to_owned(),
    };
    let others = others
        .into_iter()
        .map(|measure| figure(&measures::label(measure), &[measure]));
    figure(&share, &shares) + &others.collect::<String>()
}

fn training(run: &Run, returns: &[Return]) -> String {
    let metrics = &run.metrics;
    let frame = |id, title, y| Frame::over_steps(id, title, y).returning(returns);
    let loss = frame("loss", "Loss", "loss").or_logarithmic();
    let mut losses = noisy("training", 0, &metrics.loss);
    let evaluated = metrics.evaluated.unwrap_or_default();
    losses.push(Curve::new(
        evaluated.name(),
        1,
        Pen::Marks,
        metrics.eval_loss.means(),
    ));
    let mut figures = plot::curves(&loss, &losses);
    figures += &measured(run, returns);
    let lr = Curve::new("learning rate", 3, Pen::Line, metrics.lr.extremes());
    let rate = frame("lr", "Learning rate", "learning rate").above_zero();
    figures += &plot::curves(&rate, &[lr]);
    let norm = frame("gradient_norm", "Gradient norm", "norm before clipping").or_logarithmic();
    figures += &plot::curves(&norm, &noisy("norm", 5, &metrics.gradient_norm));
    let scale = frame("loss_scale", "Loss scale", "factor").or_logarithmic();
    let curve = Curve::new("loss scale", 6, Pen::Line, metrics.loss_scale.extremes());
    figures + &plot::curves(&scale, &[curve])
}

/// Changes of a resumed run; empty if nothing changed.
fn changes(metrics: &Metrics) -> String {
    let rows: Vec<Vec<String>> = metrics
        .changes
        .iter()
        .map(|(step, Changed { key, before, after })| {
            let texts = [key, before, after].map(|text| html::shortened(text, VALUE));
            [vec![number(*step)], texts.to_vec()].concat()
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = ["from step", "key", "before", "after"].map(str::to_owned);
    format!(
        "<div class=\"box\">{}</div>\n",
        html::table("keys2", &head, &rows)
    )
}

/// Generations of ranks; empty without `trainer launch`.
fn worlds(metrics: &Metrics) -> String {
    let row = |world: &World| {
        let numbers = [world.step, world.ranks, world.nodes, world.accumulate];
        let reason = html::shortened(&world.reason, VALUE);
        [numbers.map(number).to_vec(), vec![reason]].concat()
    };
    let rows: Vec<Vec<String>> = metrics.worlds.iter().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = ["from step", "ranks", "nodes", "accumulation", "because"].map(str::to_owned);
    let table = html::table("keys2", &head, &rows);
    format!(
        "{}<div class=\"box\">{table}</div>\n",
        plots(&track(metrics))
    )
}

/// The numbers of ranks and nodes over the steps. Empty if they never changed.
fn track(metrics: &Metrics) -> String {
    let worlds = &metrics.worlds;
    let of_generation = |world: &World| (world.ranks, world.nodes);
    let changed = |pair: &[World]| matches!(pair, [a, b] if of_generation(a) != of_generation(b));
    if !worlds.windows(2).any(changed) {
        return String::new();
    }
    let end = metrics.lr.last_step().unwrap_or_default();
    let steps = |value: fn(&World) -> f64| {
        let ends = worlds.iter().skip(1).map(|next| next.step).chain([end]);
        let stair = worlds.iter().zip(ends);
        stair
            .flat_map(|(world, end)| [(world.step, value(world)), (end, value(world))])
            .collect()
    };
    let frame = Frame::over_steps("world", "Ranks and nodes", "number").above_zero();
    let curves = [
        Curve::new("ranks", 0, Pen::Line, steps(|world| world.ranks)),
        Curve::new("nodes", 1, Pen::Line, steps(|world| world.nodes)),
    ];
    plot::curves(&frame, &curves)
}

fn speed(metrics: &Metrics, returns: &[Return]) -> String {
    let frame = |id, title, y| {
        let frame = Frame::over_steps(id, title, y).above_zero();
        frame.returning(returns)
    };
    let per_second = units_per_second(metrics);
    let mut figures = plot::curves(
        &frame("throughput", "Throughput", &per_second),
        &noisy(&per_second, 2, &metrics.throughput),
    );
    let mut layers = Vec::new();
    for ((series, part), colour) in metrics.times.iter().zip(PARTS).zip(PART_COLOURS) {
        let milliseconds = series.smooth().into_iter().map(|(x, y)| (x, 1000.0 * y));
        layers.push(Curve::new(part, colour, Pen::Line, milliseconds.collect()));
    }
    figures += &plot::stack(
        &frame(
            "step_time",
            "Time of a step on rank 0, smoothed",
            "milliseconds",
        ),
        &layers,
    );
    let memory = Curve::new("rank 0", 4, Pen::Line, metrics.memory.extremes());
    figures += &plot::curves(&frame("memory", "Memory", "MiB"), &[memory]);
    figures + &ranks(metrics)
}

/// Work and waiting of every rank.
fn ranks(metrics: &Metrics) -> String {
    let count = metrics.compute.len().max(metrics.wait.len());
    let group = count.div_ceil(RANK_BARS).max(1);
    let part = |name, colour, seconds: &[f64]| {
        let groups = seconds.chunks(group).enumerate();
        let means = groups.map(|(index, group)| {
            let mean = group.iter().sum::<f64>() / group.len() as f64;
            (index as f64, mean)
        });
        Curve::new(name, colour, Pen::Line, means.collect())
    };
    let x = if group == 1 {
        "rank"
    } else {
        "group of neighboring ranks"
    };
    let frame = Frame {
        x,
        ..Frame::over_steps("ranks", "Work of the ranks", "seconds, all epochs").above_zero()
    };
    let parts = [
        part("own work", 0, &metrics.compute),
        part("waiting for other ranks", 1, &metrics.wait),
    ];
    plot::bars(&frame, &parts)
}

fn environment_table(environment: &Environment) -> String {
    let mut hosts = environment.hosts.clone();
    hosts.sort();
    hosts.dedup();
    let texts = [
        ("started", environment.started.clone()),
        ("command", environment.command.join(" ")),
        ("working directory", environment.folder.clone()),
        ("version", environment.version.clone()),
        ("revision", environment.revision.clone()),
        ("features", environment.features.clone()),
        ("target", environment.target.clone()),
        ("device", environment.device.clone()),
        ("hosts", hosts.join(", ")),
        ("CPU", known(environment, |host| Some(host.cpu.clone()))),
        ("GPU driver", known(environment, |host| host.driver.clone())),
        ("Slurm job", slurm(environment)),
        ("data", data(environment)),
    ];
    let items = environment.items.as_deref().unwrap_or("images");
    let items = html::shortened(items, 40);
    let evaluated = EvaluatedData::named(&environment.evaluated).title(&items);
    let training = format!("training {items}");
    let counts = [
        ("ranks", environment.world_size),
        ("nodes", environment.nodes),
        ("threads per rank", environment.threads),
        ("parameters", environment.parameters),
        (training.as_str(), environment.train_samples),
        (evaluated.as_str(), environment.eval_samples),
        ("classes", environment.class_names.len()),
        ("steps per epoch", environment.steps_per_epoch as usize),
    ];
    let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
    let texts = texts.map(|(key, text)| vec![key.to_owned(), html::shortened(&text, VALUE)]);
    let counts = counts.into_iter().filter(|(_, count)| *count > 0);
    let counts = counts.map(|(key, count)| vec![key.to_owned(), grouped(count)]);
    let rows: Vec<Vec<String>> = texts.chain(counts).collect();
    let table = html::table("keys2", &[], &rows);
    format!("<div class=\"box\">{table}</div>\n")
}

/// A property of the hosts of the last process, each value once.
fn known(environment: &Environment, property: impl Fn(&HostRecord) -> Option<String>) -> String {
    let hosts = environment.processes.last().map(|process| &process.hosts);
    let mut values: Vec<String> = hosts.into_iter().flatten().filter_map(property).collect();
    values.sort();
    values.dedup();
    values.join(", ")
}

fn slurm(environment: &Environment) -> String {
    let job = environment.processes.last().map(|process| &process.slurm);
    let pairs = job.into_iter().flatten();
    let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key} {value}")).collect();
    pairs.join(", ")
}

fn data(environment: &Environment) -> String {
    let sums = environment.data.iter();
    let sums = sums.map(|sum| format!("{}: SHA-256 of {} {}", sum.path, sum.of, sum.sha256));
    sums.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(lines: &str) -> Run {
        Run {
            name: "<script>alert(1)</script>".to_owned(),
            metrics: Metrics::read(lines.as_bytes()).unwrap(),
            config: Some("name = \"</pre><script>\"".to_owned()),
            environment: Some(Environment {
                device: "<img src=x>".to_owned(),
                command: vec!["<svg onload=alert(1)>".to_owned()],
                ..Environment::default()
            }),
            details: None,
            remarks: vec!["<b>".to_owned()],
        }
    }

    #[test]
    fn what_files_hold_is_text() {
        let page = page(&run("{\"kind\":\"train\",\"step\":1,\"loss\":2.5}\n"));
        assert_eq!(page.matches("<script>").count(), 1);
        assert_eq!(page.matches("</pre>").count(), 1);
        for markup in ["<img", "<svg onload", "note\"><b>"] {
            assert!(!page.contains(markup), "{markup}");
        }
    }

    #[test]
    fn what_was_changed_when_the_run_was_continued_is_shown() {
        let train = "{\"kind\":\"train\",\"step\":1,\"loss\":2.5}\n";
        assert!(!page(&run(train)).contains("Changes when continued"));
        let changed = "{\"kind\":\"resume\",\"step\":41,\"lr\":0.1,\"changes\":[{\"key\":\"optimizer.lr\",\
                       \"before\":\"0.1\",\"after\":\"<b>\"}]}\n";
        let page = page(&run(&format!("{train}{changed}")));
        let row = "<tr><td>41</td><td>optimizer.lr</td><td>0.1</td><td>&lt;b&gt;</td></tr>";
        assert!(
            page.contains("Changes when continued") && page.contains(row),
            "{page}"
        );
    }

    #[test]
    fn generations_of_ranks_are_shown() {
        let train = "{\"kind\":\"train\",\"step\":1,\"loss\":2.5}\n";
        assert!(!page(&run(train)).contains("Ranks and nodes"));
        let world = "{\"kind\":\"world\",\"step\":41,\"generation\":2,\"ranks\":2,\"nodes\":1,\
                     \"accumulate\":4,\"reason\":\"node <b> is gone\"}\n";
        let page = page(&run(&format!("{train}{world}")));
        let row =
            "<tr><td>41</td><td>2</td><td>1</td><td>4</td><td>node &lt;b&gt; is gone</td></tr>";
        assert!(
            page.contains("Ranks and nodes") && page.contains(row),
            "{page}"
        );
    }

    #[test]
    fn evaluated_images_are_called_what_they_are() {
        let line = |set: &str| {
            format!("{{\"kind\":\"eval\",\"step\":1,{set}\"loss\":0.5,\"accuracy\":0.75}}\n")
        };
        for (set, loss, share) in [
            ("\"set\":\"val\",", "val loss", "share of val images"),
            ("\"set\":\"test\",", "test loss", "share of test images"),
            ("", "test loss", "share of test images"),
        ] {
            let page = page(&run(&line(set)));
            assert!(page.contains(loss) && page.contains(share), "{set}");
        }
    }

    #[test]
    fn a_million_lines_make_a_small_page() {
        let mut text = String::new();
        for step in 0..100_000 {
            let _ = writeln!(
                text,
                "{{\"kind\":\"train\",\"step\":{step},\"loss\":{},\"lr\":0.1,\"images_per_second\":9e2,\
                 \"time\":{{\"forward\":0.1,\"wait\":0.{}}},\"memory_mib\":{step},\"gradient_norm\":{}}}",
                2.0 / f64::from(1 + step),
                1 + step % 7,
                step % 100
            );
        }
        // With ten times the lines, the page no longer grows.
        let page = page(&run(&text.repeat(10)));
        assert!(page.len() < 300_000, "{}", page.len());
        for plot in [
            "loss",
            "lr",
            "throughput",
            "step_time",
            "memory",
            "gradient_norm",
        ] {
            assert!(page.contains(&format!("data-plot=\"{plot}\"")), "{plot}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf "));
    }

    #[test]
    fn thousands_are_told_apart() {
        assert_eq!(grouped(1_199_882), "1\u{202f}199\u{202f}882");
        assert_eq!(grouped(100), "100");
    }
}
