//! Reports in a browser: Chromium opens them offline, in light and dark, and every plot must be
//! visible.

mod common;

use std::fmt::Write;
use std::fs::{self, File};
use std::io::Cursor;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::{Finished, Trial};
use image::{ImageFormat, Rgb, RgbImage};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

const WIDTH: u32 = 1240;

/// Script for a copy of the page: writes the positions of plots and the sizes of their shapes.
const MEASURE: &str = "<script>
const plots = [...document.querySelectorAll('svg[data-plot]')].map((svg) => {
  const box = svg.getBoundingClientRect();
  const paths = [...svg.querySelectorAll('path:not(.grid):not(.cross)')].map((path) => path.getBBox());
  return { name: svg.dataset.plot, box: [box.x + scrollX, box.y + scrollY, box.width, box.height],
    shapes: paths.map((box) => Math.max(box.width, box.height)) };
});
const wide = document.documentElement.scrollWidth;
document.documentElement.dataset.plots = JSON.stringify({ plots, wide, height: document.documentElement.scrollHeight });
</script>";

struct Browser {
    program: PathBuf,
    folder: tempfile::TempDir,
}

/// Layout of a page in the browser.
struct Layout {
    height: u32,
    plots: Vec<Plot>,
}

struct Plot {
    name: String,
    /// Left, top, width and height in pixels.
    place: [u32; 4],
}

impl Browser {
    fn find() -> Option<Self> {
        let on_path = || {
            let folders = std::env::var_os("PATH")?;
            let names = ["chromium", "chromium-browser", "google-chrome"];
            std::env::split_paths(&folders)
                .flat_map(|folder| names.map(|name| folder.join(name)))
                .find(|file| file.is_file())
        };
        let named = std::env::var_os("BURN_DIST_CHROMIUM").filter(|name| !name.is_empty());
        let named = named.map(PathBuf::from);
        let Some(program) = named.or_else(on_path) else {
            eprintln!(
                "SKIPPED: install chromium, or set BURN_DIST_CHROMIUM to it, to see reports in a \
                 browser"
            );
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        Some(Self { program, folder })
    }

    /// Opens a page under a hard time limit and returns the output. Kills the browser's processes
    /// that outlive the first.
    fn open(&self, page: &Path, args: &[String]) -> String {
        let [printed, complaints] = ["stdout", "stderr"].map(|name| self.folder.path().join(name));
        let mut command = Command::new("timeout");
        command
            .args(["-k", "5", "90"])
            .arg(&self.program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu"])
            .args([
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--hide-scrollbars",
            ])
            .args(["--disable-extensions", "--disable-background-networking"])
            .arg("--host-resolver-rules=MAP * ~NOTFOUND")
            .arg(format!("--user-data-dir={}", self.folder.path().display()))
            .args(args)
            .arg(format!("file://{}", page.display()))
            .env("HOME", self.folder.path())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(File::create(&printed).unwrap())
            .stderr(File::create(&complaints).unwrap());
        let mut child = command.spawn().unwrap();
        let status = child.wait().unwrap();
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let complaints = fs::read_to_string(complaints).unwrap();
        assert!(status.success(), "{status}: {complaints}");
        fs::read_to_string(printed).unwrap()
    }

    fn measure(&self, page: &Path) -> Layout {
        let html = fs::read_to_string(page).unwrap();
        let copy = self.folder.path().join("measured.html");
        fs::write(
            &copy,
            html.replacen("</body>", &format!("{MEASURE}</body>"), 1),
        )
        .unwrap();
        let size = format!("--window-size={WIDTH},1000");
        let dom = self.open(&copy, &["--dump-dom".to_owned(), size]);
        let value = dom.split("data-plots=\"").nth(1).expect(&dom);
        let value = value.split('"').next().unwrap().replace("&quot;", "\"");
        let value: Value = serde_json::from_str(&value).unwrap();
        assert_eq!(value["wide"], WIDTH, "the page is wider than the window");
        let plots = value["plots"].as_array().unwrap().iter().map(|plot| {
            let name = plot["name"].as_str().unwrap().to_owned();
            let shapes = plot["shapes"].as_array().unwrap();
            let largest = shapes
                .iter()
                .map(|size| size.as_f64().unwrap())
                .fold(0.0, f64::max);
            assert!(largest > 1.0, "{name} has no shape: {shapes:?}");
            let place = [0, 1, 2, 3].map(|index| plot["box"][index].as_f64().unwrap() as u32);
            Plot { name, place }
        });
        Layout {
            height: value["height"].as_u64().unwrap() as u32,
            plots: plots.collect(),
        }
    }

    /// A screenshot of the whole page.
    fn picture(&self, page: &Path, height: u32, dark: bool) -> RgbImage {
        let name = if dark { "dark.png" } else { "light.png" };
        let file = self.folder.path().join(name);
        let scheme = u8::from(!dark);
        let args = [
            format!("--screenshot={}", file.display()),
            // The window's frame takes a part of the height.
            format!("--window-size={WIDTH},{}", height + 200),
            format!("--blink-settings=preferredColorScheme={scheme}"),
        ];
        self.open(page, &args);
        if let Some(folder) = std::env::var_os("BURN_DIST_SCREENSHOTS") {
            let page = page.parent().unwrap().file_name().unwrap();
            let to = Path::new(&folder).join(format!("{}-{name}", page.display()));
            fs::copy(&file, to).unwrap();
        }
        image::open(&file).unwrap().into_rgb8()
    }

    /// Opens a page in light and dark; all these plots are visible and colored.
    fn check(&self, page: &Path, plots: &[&str]) {
        let layout = self.measure(page);
        let names: Vec<&str> = layout.plots.iter().map(|plot| plot.name.as_str()).collect();
        for plot in plots {
            assert!(names.contains(plot), "{plot} is not among {names:?}");
        }
        for dark in [false, true] {
            let picture = self.picture(page, layout.height, dark);
            assert!(picture.height() >= layout.height);
            let Rgb([red, ..]) = *picture.get_pixel(2, 2);
            assert_eq!(
                red < 100,
                dark,
                "the page is not dark where it should be, or is"
            );
            for plot in &layout.plots {
                assert_coloured(&picture, plot, dark);
            }
        }
    }
}

/// Text and grid lines are gray, curves and bars are not.
fn assert_coloured(picture: &RgbImage, plot: &Plot, dark: bool) {
    let [x, y, width, height] = plot.place;
    let part = image::imageops::crop_imm(picture, x, y, width, height).to_image();
    let coloured = |pixel: &&Rgb<u8>| {
        let values = pixel.0;
        let low = values.iter().min().unwrap();
        values.iter().max().unwrap() - low > 60
    };
    let count = part.pixels().filter(coloured).count();
    let (name, least) = (&plot.name, width as usize / 4);
    assert!(
        count > least,
        "{name} (dark: {dark}) has {count} coloured pixels of {width}×{height}"
    );
}

/// The page loads nothing from outside and runs no code from the run's files.
fn assert_self_contained(page: &Path) {
    let html = fs::read_to_string(page).unwrap();
    let size = html.len();
    assert!(size < 2_000_000, "{size} bytes");
    for address in [
        "http://", "https://", "src=\"//", "@import", "url(", "<link",
    ] {
        assert!(!html.contains(address), "{address}");
    }
    assert_eq!(html.matches("<script").count(), 1);
    assert!(html.matches("src=\"").count() == html.matches("src=\"data:image/png;base64,").count());
    assert!(!html.contains("NaN") && !html.contains("Infinity"));
}

fn png(shade: u8) -> String {
    let image = RgbImage::from_fn(32, 32, |x, y| Rgb([shade, (8 * x) as u8, (8 * y) as u8]));
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, ImageFormat::Png).unwrap();
    STANDARD.encode(bytes.into_inner())
}

/// Files of a synthetic run: `steps` steps, and an evaluation of `classes` classes.
fn generated(run: &Path, steps: u32, classes: usize) {
    fs::create_dir_all(run).unwrap();
    let mut lines = String::new();
    for step in 1..=steps {
        let progress = f64::from(step) / f64::from(steps);
        let noise = f64::from(step * 7919 % 101) / 101.0;
        let elapsed = 0.05 * f64::from(step);
        let epoch = (step - 1) / (steps / 10) + 1;
        let line = json!({"kind": "train", "step": step, "epoch": epoch, "loss": 4.6 / (1.0 + 40.0 * progress) * (0.8 + 0.4 * noise),
            "lr": 0.1 * (1.0 - progress), "images_per_second": 900.0 + 80.0 * noise, "elapsed": elapsed,
            "time": {"data": 0.002, "forward": 0.02 + 0.004 * noise, "backward": 0.04, "wait": 0.006 * noise, "update": 0.005},
            "memory_mib": 300.0 + 20.0 * progress, "gradient_norm": 5.0 / (1.0 + 9.0 * progress) + noise,
            "loss_scale": 65536, "skipped_steps": 2});
        let _ = writeln!(lines, "{line}");
        if step % (steps / 10) == 0 {
            let accuracy = 0.75 - 0.6 / (1.0 + 12.0 * progress);
            let line = json!({"kind": "eval", "epoch": step / (steps / 10), "step": step, "loss": 0.4 + 3.0 * (1.0 - accuracy),
                "accuracy": accuracy, "top5": 0.5 + accuracy / 2.0, "samples": 10_000, "elapsed": elapsed, "seconds": 3.0});
            let ranks = json!({"kind": "ranks", "epoch": 1, "step": step, "compute": [4.1, 4.4, 3.9, 4.0], "wait": [0.4, 0.1, 0.6, 0.5]});
            let _ = writeln!(lines, "{line}\n{ranks}");
        }
    }
    lines += "{\"kind\":\"train\",\"step\":";
    fs::write(run.join("metrics.jsonl"), lines).unwrap();
    let seen = |row: usize, column: usize| match (row == column, (row * 31 + column * 17) % 23) {
        (true, part) => 60 + (part + row % 7) as i64,
        (false, part @ 0..3) => 3 * (part as i64 + 1),
        _ => 0,
    };
    let confusion: Vec<Vec<i64>> = (0..classes)
        .map(|row| (0..classes).map(|column| seen(row, column)).collect())
        .collect();
    let per_class: Vec<Value> = confusion
        .iter()
        .enumerate()
        .map(|(class, row)| json!({"samples": row.iter().sum::<i64>(), "correct": row[class]}))
        .collect();
    let mut names: Vec<String> = (0..classes)
        .map(|class| format!("class number {class}"))
        .collect();
    names[1] = "<script>document.body.remove()</script>".to_owned();
    let predictions: Vec<Value> = (0..24usize)
        .map(|index| {
            let class = index % classes;
            let top = [
                (class + index % 3, 0.61),
                ((class + 1) % classes, 0.25),
                (3, 0.04),
            ];
            let top =
                top.map(|(class, probability)| json!({"class": class, "probability": probability}));
            json!({"image_png_base64": png(index as u8 * 10), "label": class, "top": top})
        })
        .collect();
    let evaluation = json!({"epoch": 10, "step": steps, "loss": 1.2, "accuracy": 0.7, "top5": 0.9, "samples": 10_000,
        "class_names": names, "confusion": confusion, "per_class": per_class, "predictions": predictions});
    fs::write(run.join("evaluation.json"), evaluation.to_string()).unwrap();
    let config = "name = \"</pre><script>document.body.remove()</script>\"\n\n[train]\nepochs = 10\nbatch_size = 64\n";
    fs::write(run.join("config.toml"), config).unwrap();
    let environment = json!({"version": "0.1.0", "command": ["trainer", "--nproc", "4"], "started": "2026-11-21T09:00:00Z",
        "hosts": ["n1", "n1", "n2", "n2"], "device": "Cpu", "world_size": 4, "nodes": 2, "threads": 1, "parameters": 1_199_882,
        "train_samples": 50_000, "test_samples": 10_000, "steps_per_epoch": steps / 10, "class_names": names});
    fs::write(run.join("environment.json"), environment.to_string()).unwrap();
}

const TRAINING: [&str; 6] = ["loss", "accuracy", "lr", "throughput", "step_time", "ranks"];

fn trained() -> Finished {
    let finished = Trial::tiny(&["--nproc", "2"], &["train.epochs=3"]).run();
    finished.assert_code(0);
    finished
}

fn report(args: &[&str]) -> Finished {
    Trial::new(&[&["report"], args].concat()).run()
}

#[test]
fn a_run_and_its_comparison_are_seen_in_a_browser() {
    let finished = trained();
    let run = finished.path("run");
    let written = report(&[run.to_str().unwrap()]);
    written.assert_code(0);
    let page = run.join("report.html");
    assert_eq!(written.stdout.trim(), page.to_str().unwrap());
    assert_self_contained(&page);
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("batch_size = 12") && html.contains("best accuracy"));

    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("ten");
    generated(&other, 40, 10);
    let compared = report(&[run.to_str().unwrap(), other.to_str().unwrap()]);
    compared.assert_code(0);
    let comparison = compared.path("compare.html");
    assert_self_contained(&comparison);
    let html = fs::read_to_string(&comparison).unwrap();
    assert!(html.contains("<td>train.batch_size</td>") && html.contains("Time to accuracy"));

    let Some(browser) = Browser::find() else {
        return;
    };
    browser.check(&page, &TRAINING);
    let plots = [
        "loss",
        "eval_loss",
        "accuracy",
        "accuracy_by_time",
        "lr",
        "throughput",
    ];
    browser.check(&comparison, &plots);
}

/// Script for a copy of the page: presses buttons, and writes what the plots then are.
const PRESS: &str = "<script>
const press = (name) => document.querySelector(`.axes button[data-${name}]`).click();
const state = () => [...document.querySelectorAll('svg[data-plot=\"loss\"]')].map((svg) => ({
  x: svg.dataset.x, y: svg.dataset.y, label: svg.querySelector('text.x').textContent,
  path: svg.querySelector('path.line').getAttribute('d'),
  mark: svg.querySelector('path.return')?.getAttribute('d'),
  labels: [...svg.querySelectorAll('g.scale text')].map((text) => text.textContent),
}))[0];
const states = { first: state() };
for (const name of ['axis=\"epoch\"', 'axis=\"time\"', 'scale=\"linear\"', 'scale=\"log\"', 'scale=\"auto\"', 'axis=\"step\"']) {
  press(name);
  states[name.split('\"')[1]] = state();
}
document.documentElement.dataset.states = JSON.stringify(states);
</script>";

/// A run that went back from step 34 to step 20, as `environment.json` says.
fn went_back(run: &Path) {
    let path = run.join("environment.json");
    let mut environment: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    environment["processes"] = json!([
        {"started": "2026-11-21T09:00:00Z", "first_step": 0},
        {"started": "2026-11-21T10:00:00Z", "ended": "2026-11-21T11:00:00Z", "first_step": 20,
         "went_back_from": 34, "last_step": 40, "status": "complete"}]);
    fs::write(path, environment.to_string()).unwrap();
}

#[test]
fn axes_can_be_chosen_and_returns_are_marked() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("ten");
    generated(&run, 40, 10);
    went_back(&run);
    report(&[run.to_str().unwrap()]).assert_code(0);
    let page = run.join("report.html");
    let html = fs::read_to_string(&page).unwrap();
    for part in [
        "went back from step 34 to 20",
        ">went back<",
        ">killed<",
        "20 (back from 34)",
    ] {
        assert!(html.contains(part), "{part}");
    }
    let Some(browser) = Browser::find() else {
        return;
    };
    let copy = browser.folder.path().join("pressed.html");
    fs::write(
        &copy,
        html.replacen("</body>", &format!("{PRESS}</body>"), 1),
    )
    .unwrap();
    let dom = browser.open(&copy, &["--dump-dom".to_owned()]);
    let states = dom
        .split("data-states=\"")
        .nth(1)
        .expect(&dom)
        .split('"')
        .next()
        .unwrap();
    let states: Value = serde_json::from_str(&states.replace("&quot;", "\"")).unwrap();
    let [first, epoch, time] = ["first", "epoch", "time"].map(|name| &states[name]);
    let ends = |state: &Value| -> [f64; 2] {
        let x = state["x"].as_str().unwrap();
        let mut numbers = x
            .split(' ')
            .map(|number| number.parse().unwrap_or(f64::NAN));
        [numbers.next().unwrap(), numbers.next().unwrap()]
    };
    assert_eq!(first["label"], "step");
    assert_eq!(ends(first), [1.0, 40.0]);
    // Four steps in an epoch, and 0.05 s in a step.
    assert_eq!(
        (&epoch["label"], ends(epoch)),
        (&json!("epochs"), [0.25, 10.0])
    );
    assert_eq!(
        (&time["label"], ends(time)),
        (&json!("seconds of training"), [0.05, 2.0])
    );
    let y = |name: &str| {
        states[name]["y"]
            .as_str()
            .unwrap()
            .rsplit(' ')
            .next()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        [y("linear"), y("log"), y("auto")],
        ["linear", "log", &y("first")]
    );
    assert_ne!(states["linear"]["path"], states["log"]["path"]);
    // Back at the beginning, the script draws what the page had without it.
    let again = &states["step"];
    assert_eq!(
        (&again["x"], &again["y"], &again["labels"]),
        (&first["x"], &first["y"], &first["labels"])
    );
    assert_eq!(
        again["mark"].as_str().unwrap()[..4],
        first["mark"].as_str().unwrap()[..4]
    );
    browser.check(&page, &TRAINING);
}

#[test]
fn a_folder_of_runs_is_compared_without_its_bad_ones() {
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    for name in ["first", "second"] {
        generated(&runs.join(name), 40, 10);
    }
    // Never learned anything, and broke at once.
    fs::create_dir_all(runs.join("poor")).unwrap();
    let line = json!({"kind": "eval", "step": 4, "loss": 9.0, "accuracy": 0.1, "elapsed": 1.0});
    fs::write(runs.join("poor/metrics.jsonl"), format!("{line}\n")).unwrap();
    fs::create_dir_all(runs.join("broken")).unwrap();
    fs::write(runs.join("broken/metrics.jsonl"), "nothing\n").unwrap();
    fs::create_dir_all(runs.join("notes")).unwrap();
    let finished = report(&[runs.to_str().unwrap()]);
    finished
        .assert_code(0)
        .assert_stderr(&["warning: left out: no metrics in", "broken"]);
    let html = fs::read_to_string(finished.path("compare.html")).unwrap();
    assert!(html.contains("<h1>3 runs</h1>") && html.contains("left out: no metrics in"));
    let times = html
        .split("Time to accuracy")
        .nth(1)
        .unwrap()
        .split("</section>")
        .next()
        .unwrap();
    assert!(
        times.matches(" s</td>").count() >= 4 && times.contains("<td>–</td>"),
        "{times}"
    );
    // With only one run in it, the folder is that run.
    fs::remove_dir_all(runs.join("poor")).unwrap();
    fs::remove_dir_all(runs.join("second")).unwrap();
    let one = report(&[runs.to_str().unwrap()]);
    assert_eq!(
        one.stdout.trim(),
        runs.join("first/report.html").to_str().unwrap()
    );
}

#[test]
fn many_classes_and_strange_names_are_seen_in_a_browser() {
    let folder = tempfile::tempdir().unwrap();
    let browser = Browser::find();
    for (name, classes) in [("ten", 10), ("hundred", 100)] {
        let run = folder.path().join(name);
        generated(&run, 3000, classes);
        report(&[run.to_str().unwrap()]).assert_code(0);
        let page = run.join("report.html");
        assert_self_contained(&page);
        let html = fs::read_to_string(&page).unwrap();
        assert!(html.contains("One line of metrics.jsonl could not be read"));
        assert_eq!(html.matches("<img").count(), 24);
        if let Some(browser) = &browser {
            let further = [
                "memory",
                "gradient_norm",
                "loss_scale",
                "classes",
                "confusion",
            ];
            browser.check(&page, &[TRAINING.as_slice(), &further].concat());
        }
    }
}

#[test]
fn what_is_no_run_is_named() {
    let finished = report(&["missing"]);
    finished
        .assert_code(2)
        .assert_stderr(&["no run at missing", "runs/NAME"]);
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().to_str().unwrap();
    let finished = report(&[empty]);
    finished
        .assert_code(2)
        .assert_stderr(&["no metrics in", empty]);
    fs::write(
        folder.path().join("metrics.jsonl"),
        "{\"kind\":\"train\",\"loss\":1}",
    )
    .unwrap();
    let finished = report(&[empty, "--out", "no/such/folder.html"]);
    finished
        .assert_code(2)
        .assert_stderr(&["cannot write no/such/folder.html", "--out"]);
    // As on a read-only file system, the folder accepts no report.
    fs::create_dir(folder.path().join("report.html")).unwrap();
    let finished = report(&[empty]);
    finished
        .assert_code(2)
        .assert_stderr(&["cannot write", "report.html", "--out"]);
}
