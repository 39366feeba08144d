//! What loggers receive: real readers read it, and a logger that fails stops nothing.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{Trial, free_port};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

/// Prints all scalars below a folder as JSON: for each name, steps and values.
const READER: &str = "
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})
events.Reload()
tags = events.Tags()['scalars']
print(json.dumps({tag: [(s.step, s.value) for s in events.Scalars(tag)] for tag in tags}))
";

/// Prints the rest of what TensorBoard finds below a folder as JSON: texts, the sizes of images,
/// and hyper-parameters.
const DETAILS: &str = "
import io, json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
events = EventAccumulator(sys.argv[1], size_guidance={'images': 0, 'tensors': 0})
events.Reload()
images = {}
for tag in events.Tags()['images']:
    last = events.Images(tag)[-1]
    assert last.encoded_image_string.startswith(b'\\x89PNG'), tag
    images[tag] = [last.step, last.width, last.height]
def text(tag):
    return events.Tensors(tag)[-1].tensor_proto.string_val[0].decode()
texts = {tag: text(tag) for tag in events.PluginTagToContent('text')}
plugin = events.PluginTagToContent('hparams')
start = metadata.parse_session_start_info_plugin_data(plugin['_hparams_/session_start_info'])
end = metadata.parse_session_end_info_plugin_data(plugin['_hparams_/session_end_info'])
def value(v):
    return getattr(v, v.WhichOneof('kind'))
hparams = {key: value(v) for key, v in start.hparams.items()}
print(json.dumps({'images': images, 'texts': texts, 'hparams': hparams, 'status': end.status}))
";

/// Prints the newest run of an experiment on an MLflow server as JSON.
const MLFLOW: &str = "
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient(sys.argv[1])
experiment = client.get_experiment_by_name(sys.argv[2])
runs = client.search_runs([experiment.experiment_id])
run = runs[0]
history = {key: [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, key)]
           for key in run.data.metrics}
print(json.dumps({'runs': len(runs), 'name': run.info.run_name, 'status': run.info.status,
                  'params': run.data.params, 'tags': run.data.tags, 'metrics': history}))
";

type Scalars = BTreeMap<String, Vec<(u64, f64)>>;

/// Reads a folder with TensorBoard's package. `None` if no Python has it.
fn read(folder: &Path) -> Option<Scalars> {
    let printed = tensorboard(READER, folder)?;
    Some(serde_json::from_slice(&printed).unwrap())
}

/// What a script with TensorBoard's package prints about a folder.
fn tensorboard(script: &str, folder: &Path) -> Option<Vec<u8>> {
    let Ok(python) = std::env::var("BURN_DIST_TENSORBOARD_PYTHON") else {
        eprintln!(
            "SKIPPED: set BURN_DIST_TENSORBOARD_PYTHON to a Python with the package tensorboard to \
             read event files with it"
        );
        return None;
    };
    Some(printed(&python, &["-c", script, folder.to_str().unwrap()]))
}

fn printed(python: &str, args: &[&str]) -> Vec<u8> {
    let output = Command::new("timeout")
        .args(["-k", "5", "100", python])
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// The values of `key` in lines of `kind` of `metrics.jsonl`, by step.
fn metrics(run: &Path, kind: &str, key: &str) -> Vec<(u64, f64)> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["kind"] == kind)
        .map(|line| (line["step"].as_u64().unwrap(), line[key].as_f64().unwrap()))
        .collect()
}

#[track_caller]
fn assert_same(scalars: &Scalars, tag: &str, expected: &[(u64, f64)]) {
    let found = scalars.get(tag).unwrap_or_else(|| panic!("no {tag}"));
    // Event files hold single precision.
    let expected: Vec<(u64, f64)> = expected
        .iter()
        .map(|&(step, value)| (step, f64::from(value as f32)))
        .collect();
    assert_eq!(found, &expected, "{tag}");
}

#[test]
fn the_events_of_a_run_that_was_continued_are_those_of_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let train = || {
        let args = ["--nproc", "2", "--resume", "auto"];
        let settings = [
            "train.epochs=2",
            "checkpoint.every_steps=7",
            "checkpoint.keep=100",
        ];
        let finished = Trial::tiny_at(&dir, &args, &settings).run();
        finished.assert_code(0);
    };
    train();
    // As if it had been killed after step 33, with the last good checkpoint at step 7.
    for checkpoint in fs::read_dir(dir.join("checkpoints")).unwrap() {
        let path = checkpoint.unwrap().path();
        if !path.ends_with("step-0000000007") {
            fs::remove_dir_all(path).unwrap();
        }
    }
    let events = dir.join("tensorboard");
    let old = fs::read_dir(&events)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let bytes = fs::read(&old).unwrap();
    fs::write(&old, &bytes[..bytes.len() * 3 / 4 + 1]).unwrap();
    train();
    assert_eq!(fs::read_dir(&events).unwrap().count(), 2);

    let losses = metrics(&dir, "train", "loss");
    let steps: Vec<u64> = losses.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, (1..=40).collect::<Vec<u64>>());
    let Some(scalars) = read(&events) else {
        return;
    };
    assert_same(&scalars, "train/loss", &losses);
    assert_same(&scalars, "train/lr", &metrics(&dir, "train", "lr"));
    assert_same(
        &scalars,
        "test/accuracy",
        &metrics(&dir, "eval", "accuracy"),
    );
    assert_same(&scalars, "test/top5", &metrics(&dir, "eval", "top5"));
    for tag in [
        "time/forward",
        "train/images_per_second",
        "train/memory_mib",
    ] {
        assert_eq!(scalars.get(tag).map(Vec::len), Some(40), "{tag}");
    }
}

/// The run left no checkpoint, so it starts from scratch in its folder.
#[test]
fn the_events_of_a_run_that_starts_anew_are_not_mixed_with_those_of_before() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    for epochs in ["train.epochs=2", "train.epochs=1"] {
        let finished = Trial::tiny_at(&dir, &["--resume", "auto"], &[epochs]).run();
        finished.assert_code(0);
    }
    let Some(scalars) = read(&dir.join("tensorboard")) else {
        return;
    };
    assert_same(&scalars, "train/loss", &metrics(&dir, "train", "loss"));
}

#[test]
fn events_can_be_left_out() {
    let finished = Trial::tiny(&["--nproc", "1"], &["log.tensorboard=false"]).run();
    finished.assert_code(0);
    assert!(!finished.path("run/tensorboard").exists());
    assert!(finished.path("run/evaluation.json").is_file());
}

#[test]
fn configuration_pictures_and_hyper_parameters_are_on_tensorboard() {
    let finished = Trial::tiny(&["--nproc", "2"], &["optimizer.lr=0.003"]).run();
    finished.assert_code(0);
    let Some(printed) = tensorboard(DETAILS, &finished.path("run/tensorboard")) else {
        return;
    };
    let found: Value = serde_json::from_slice(&printed).unwrap();
    assert_eq!(found["hparams"]["optimizer.lr"], 0.003);
    assert_eq!(found["hparams"]["data.name"], "digits");
    assert_eq!(found["hparams"]["log.tensorboard"], true);
    assert_eq!(found["status"], 1, "a success");
    let config = fs::read_to_string(finished.path("run/config.toml")).unwrap();
    let texts = &found["texts"];
    assert_eq!(texts["run/config"], format!("```toml\n{config}```\n"));
    assert!(
        texts["run/environment"]
            .as_str()
            .unwrap()
            .contains("\"revision\"")
    );
    let table = texts["test/confusion"].as_str().unwrap();
    assert_eq!(table.lines().count(), 2 + 10, "{table}");
    let steps = 20;
    assert_eq!(found["images"]["test/examples/00"], json!([steps, 28, 28]));
    assert_eq!(found["images"]["test/confusion"], json!([steps, 320, 320]));
    let captions = texts["test/examples"].as_str().unwrap();
    assert_eq!(captions.matches(" %").count(), 8 * 3, "{captions}");
}

fn rows(path: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).unwrap();
    let cells = |line: &str| line.split(',').map(str::to_owned).collect();
    text.lines().map(cells).collect()
}

#[test]
fn tables_of_a_resumed_run_are_those_of_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let train = |steps: &str| {
        let settings = ["log.csv=true", "checkpoint.every_steps=5", steps];
        let trial = Trial::tiny_at(&dir, &["--nproc", "1", "--resume", "auto"], &settings);
        trial.run().assert_code(0);
    };
    train("train.max_steps=8");
    // As if it had been killed after step 8, with its last checkpoint at step 5.
    fs::remove_dir_all(dir.join("checkpoints/step-0000000008")).unwrap();
    train("train.max_steps=12");
    let table = rows(&dir.join("csv/train.csv"));
    assert_eq!(
        table[0][..5],
        ["step", "epoch", "loss", "lr", "images_per_second"]
    );
    let column = |index: usize| -> Vec<(u64, f64)> {
        let rows = table[1..].iter();
        let number = |text: &str| text.parse::<f64>().unwrap();
        rows.map(|row| (row[0].parse().unwrap(), number(&row[index])))
            .collect()
    };
    assert_eq!(column(2), metrics(&dir, "train", "loss"));
    assert_eq!(column(2).len(), 12);
    let table = rows(&dir.join("csv/eval.csv"));
    let head = [
        "step", "epoch", "set", "loss", "accuracy", "top5", "samples", "elapsed", "seconds",
    ];
    assert_eq!(table[0], head);
    assert_eq!(
        table[1..].iter().map(|row| &*row[0]).collect::<Vec<_>>(),
        ["12"]
    );
}

/// A request that the server got: its path and its content.
type Request = (String, Value);

/// A server that keeps what it gets, and answers every request like MLflow, or with `status`.
fn serve(status: &'static str) -> (String, Arc<Mutex<Vec<Request>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::<Request>::new()));
    let kept = requests.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let request = receive(&stream);
            let (path, _) = &request;
            let known = kept
                .lock()
                .unwrap()
                .iter()
                .any(|(path, _)| path.ends_with("experiments/create"));
            let (status, body) = match path.as_str() {
                _ if status != "200 OK" => (status, json!({"message": "out of order"})),
                path if path.contains("get-by-name") && !known => (
                    "404 Not Found",
                    json!({"error_code": "RESOURCE_DOES_NOT_EXIST"}),
                ),
                path if path.contains("get-by-name") => {
                    (status, json!({"experiment": {"experiment_id": "7"}}))
                }
                path if path.ends_with("experiments/create") => {
                    (status, json!({"experiment_id": "7"}))
                }
                path if path.ends_with("runs/create") => {
                    (status, json!({"run": {"info": {"run_id": "r1"}}}))
                }
                _ => (status, json!({})),
            };
            kept.lock().unwrap().push(request);
            answer(stream, status, &body.to_string());
        }
    });
    (url, requests)
}

fn receive(stream: &TcpStream) -> Request {
    let mut reader = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let path = line().split(' ').nth(1).unwrap_or_default().to_owned();
    let mut length = 0;
    loop {
        let header = line().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (path, serde_json::from_slice(&body).unwrap_or_default())
}

fn answer(mut stream: TcpStream, status: &str, body: &str) {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    let _ = stream.write_all((head + body).as_bytes());
}

/// Trains into `dir` with MLflow at `url`, up to a step.
fn trial_with_mlflow(dir: &Path, url: &str, steps: u64) -> Trial {
    let settings = [
        &format!("log.mlflow={url}"),
        "log.mlflow_experiment=digits of a test",
        "checkpoint.every_steps=100",
        &format!("train.max_steps={steps}"),
    ];
    let trial = Trial::tiny_at(dir, &["--nproc", "1", "--resume", "auto"], &settings);
    ["http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"]
        .iter()
        .fold(trial, |trial, name| trial.env(name, ""))
}

#[test]
fn a_run_and_its_resume_are_one_run_for_mlflow() {
    let (url, requests) = serve("200 OK");
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    for steps in [5, 8] {
        let finished = trial_with_mlflow(&dir, &url, steps).run();
        finished.assert_code(0);
        assert_eq!(finished.stderr, "");
    }
    let requests = requests.lock().unwrap();
    let of = |end: &str| -> Vec<&Value> {
        let bodies = requests.iter().filter(|(path, _)| path.ends_with(end));
        bodies.map(|(_, body)| body).collect()
    };
    assert_eq!(
        of("experiments/create"),
        [&json!({"name": "digits of a test"})]
    );
    let [created] = of("runs/create")[..] else {
        panic!("not one run: {:?}", of("runs/create"));
    };
    assert_eq!(
        (&created["experiment_id"], &created["run_name"]),
        (&json!("7"), &json!("run"))
    );
    let pairs = |kind: &str| -> Vec<&Value> {
        let batches = of("runs/log-batch").into_iter();
        let batches = batches.filter(|batch| batch["run_id"] == "r1");
        batches
            .filter_map(|batch| batch[kind].as_array())
            .flatten()
            .collect()
    };
    let params = pairs("params");
    assert!(
        params.contains(&&json!({"key": "train.batch_size", "value": "12"})),
        "{params:?}"
    );
    let losses: Vec<(u64, f64)> = pairs("metrics")
        .into_iter()
        .filter(|metric| metric["key"] == "train/loss")
        .map(|metric| {
            (
                metric["step"].as_u64().unwrap(),
                metric["value"].as_f64().unwrap(),
            )
        })
        .collect();
    assert_eq!(losses, metrics(&dir, "train", "loss"));
    let tags = pairs("tags");
    let has = |key: &str, value: &str| tags.contains(&&json!({"key": key, "value": value}));
    assert!(
        has("resumed_after_step", "5") && has("ranks", "1"),
        "{tags:?}"
    );
    assert!(
        has("changed.train.max_steps", "5 before step 6, then 8"),
        "{tags:?}"
    );
    let statuses: Vec<&Value> = of("runs/update")
        .into_iter()
        .map(|body| &body["status"])
        .collect();
    assert_eq!(statuses, ["FINISHED", "RUNNING", "FINISHED"]);
}

#[test]
fn a_logger_that_fails_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (broken, _) = serve("500 Internal Server Error");
    // Takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    let absent = format!("http://127.0.0.1:{}", free_port());
    let runs = [
        ("broken", &broken),
        ("silent", &silent_url),
        ("absent", &absent),
    ];
    let runs = runs.map(|(name, url)| {
        (
            name,
            trial_with_mlflow(&folder.path().join(name), url, 20).start(),
        )
    });
    for (name, run) in runs {
        let finished = run.wait(Duration::from_secs(60));
        finished
            .assert_code(0)
            .assert_stderr(&["warning: log.mlflow takes no more; training continues: "]);
        assert!(
            finished.time < Duration::from_secs(40),
            "{name}: {:?}",
            finished.time
        );
        assert_eq!(
            finished
                .metrics_in(&folder.path().join(name), "train")
                .len(),
            20
        );
    }
    // A file stands where TensorBoard and the tables want their folders.
    let dir = folder.path().join("files");
    fs::create_dir(&dir).unwrap();
    for name in ["tensorboard", "csv"] {
        fs::write(dir.join(name), "").unwrap();
    }
    let finished = Trial::tiny_at(&dir, &["--nproc", "1"], &["log.csv=true"]).run();
    finished
        .assert_code(0)
        .assert_stderr(&["warning: log.tensorboard takes", "warning: log.csv takes"]);
    assert_eq!(finished.metrics_in(&dir, "train").len(), 20);
}

/// A real MLflow server, which ends with this value.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(python: &str, folder: &Path) -> Self {
        let port = free_port();
        let mut command = Command::new(python);
        command
            .args([
                "-m",
                "mlflow",
                "server",
                "--host",
                "127.0.0.1",
                "--port",
                &port,
            ])
            .args(["--workers", "1", "--backend-store-uri"])
            .arg(format!("sqlite:///{}", folder.join("mlflow.db").display()))
            .current_dir(folder)
            .env("HOME", folder)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let server = Self {
            child: command.spawn().unwrap(),
            url: format!("http://127.0.0.1:{port}"),
        };
        let deadline = Instant::now() + Duration::from_secs(90);
        while TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
            assert!(
                Instant::now() < deadline,
                "the MLflow server does not start"
            );
            thread::sleep(Duration::from_millis(100));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

#[test]
fn a_real_mlflow_server_has_the_run() {
    let Ok(python) = std::env::var("BURN_DIST_MLFLOW_PYTHON") else {
        eprintln!(
            "SKIPPED: set BURN_DIST_MLFLOW_PYTHON to a Python with the package mlflow to send a run \
             to its server"
        );
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&python, folder.path());
    let dir = folder.path().join("run");
    for steps in [5, 8] {
        let finished = trial_with_mlflow(&dir, &server.url, steps).run();
        finished.assert_code(0);
        assert_eq!(finished.stderr, "");
    }
    let found = printed(&python, &["-c", MLFLOW, &server.url, "digits of a test"]);
    let found: Value = serde_json::from_slice(&found).unwrap();
    assert_eq!(
        (&found["runs"], &found["name"], &found["status"]),
        (&json!(1), &json!("run"), &json!("FINISHED"))
    );
    assert_eq!(found["params"]["train.batch_size"], "12");
    assert_eq!(found["tags"]["resumed_after_step"], "5");
    let values = |key: &str| -> Vec<(u64, f64)> {
        serde_json::from_value(found["metrics"][key].clone()).unwrap()
    };
    assert_eq!(values("train/loss"), metrics(&dir, "train", "loss"));
    assert_eq!(values("test/accuracy"), metrics(&dir, "eval", "accuracy"));
}
