//! Models in one file, used away from their run.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{Finished, LIMIT, Trial};
use image::{GrayImage, Luma};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A small run and its model, exported to `model.safetensors`.
struct Exported {
    run: Finished,
    export: Finished,
}

impl Exported {
    fn new(format: &str) -> Self {
        let settings = ["checkpoint.every_epochs=1", "train.epochs=1"];
        let run = Trial::tiny(&[], &settings).start().wait(LIMIT);
        run.assert_code(0);
        let run_dir = run.path("run");
        let args = ["export", run_dir.to_str().unwrap(), "--format", format];
        let export = Trial::new(&args).start().wait(LIMIT);
        export.assert_code(0);
        Self { run, export }
    }

    /// Runs the program. In the arguments, `RUN`, `CONFIG` and `FILE` stand for the run folder, its
    /// configuration and the exported file.
    fn then(&self, args: &[&str]) -> Finished {
        let (run, file) = (self.run.path("run"), self.export.path("model.safetensors"));
        let config = run.join("config.toml");
        let args: Vec<&str> = args
            .iter()
            .map(|arg| match *arg {
                "RUN" => run.to_str().unwrap(),
                "CONFIG" => config.to_str().unwrap(),
                "FILE" => file.to_str().unwrap(),
                arg => arg,
            })
            .collect();
        Trial::new(&args).start().wait(LIMIT)
    }
}

fn picture(path: &Path, side: u32) {
    let picture = GrayImage::from_fn(side, side, |x, y| Luma([(x * y % 256) as u8]));
    picture.save(path).unwrap();
}

fn evaluation(finished: &Finished) -> Value {
    finished.assert_code(0);
    let text = std::fs::read_to_string(finished.path("result.json")).unwrap();
    let mut result: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result["step"], 20);
    result["evaluation"].take()
}

#[test]
fn a_file_is_evaluated_as_the_run() {
    for format in ["torch", "burn"] {
        let exported = Exported::new(format);
        let of_run = exported.then(&["eval", "RUN", "--json", "result.json"]);
        let of_run = evaluation(&of_run);
        for nproc in ["1", "2"] {
            let args = ["eval", "FILE", "--config", "CONFIG", "--nproc", nproc];
            let found = exported.then(&[&args[..], &["--json", "result.json"]].concat());
            let of_file = evaluation(&found);
            assert_eq!(of_file["accuracy"], of_run["accuracy"], "{format} {nproc}");
            assert_eq!(of_file["samples"], of_run["samples"]);
            assert!(found.stdout.contains("model.safetensors, step 20"));
        }
    }
}

#[test]
fn a_file_predicts_what_the_run_does() {
    let exported = Exported::new("torch");
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("deep")).unwrap();
    picture(&folder.path().join("deep/a.png"), 40);
    picture(&folder.path().join("b.png"), 28);
    std::fs::write(folder.path().join("notes.txt"), "no image").unwrap();
    let images = folder.path().to_str().unwrap();
    let of_run = exported.then(&["predict", "RUN", images]);
    let of_file = exported.then(&["predict", "FILE", images, "--jsonl", "all.jsonl"]);
    of_run.assert_code(0);
    of_file.assert_code(0);
    assert_eq!(of_file.stdout, of_run.stdout);
    let names: Vec<&str> = of_file
        .stdout
        .lines()
        .map(|line| &line[..line.find(": ").unwrap()])
        .collect();
    assert!(
        names[0].ends_with("/b.png") && names[1].ends_with("/deep/a.png"),
        "{names:?}"
    );

    std::fs::write(folder.path().join("c.png"), "no image either").unwrap();
    let args = [
        "predict",
        "FILE",
        images,
        "--jsonl",
        "all.jsonl",
        "--top",
        "2",
    ];
    let found = exported.then(&args);
    found.assert_code(1).assert_stderr(&["c.png"]);
    let lines = std::fs::read_to_string(found.path("all.jsonl")).unwrap();
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    for line in [&lines[0], &lines[2]] {
        let guesses = line["guesses"].as_array().unwrap();
        assert_eq!(guesses.len(), 2, "{line}");
        let class = guesses[0]["class"].as_str().unwrap();
        let percent = 100.0 * guesses[0]["probability"].as_f64().unwrap();
        let said = format!(
            "{}: {class} {percent:.1} %",
            line["image"].as_str().unwrap()
        );
        assert!(found.stdout.contains(&said), "{said}");
    }
    assert!(lines[1]["error"].as_str().unwrap().contains("c.png"));

    let empty = tempfile::tempdir().unwrap();
    let empty = exported.then(&["predict", "FILE", empty.path().to_str().unwrap()]);
    empty.assert_code(2).assert_stderr(&["there is no image"]);
}

#[test]
fn a_file_becomes_one_of_the_other_layout_and_back() {
    let exported = Exported::new("torch");
    let burn = exported.then(&["export", "FILE", "--format", "burn"]);
    burn.assert_code(0);
    let burn = burn.path("model.safetensors");
    let torch = exported.then(&["export", burn.to_str().unwrap(), "--format", "torch"]);
    torch.assert_code(0);
    let read = |path: &Path| std::fs::read(path).unwrap();
    let first = read(&exported.export.path("model.safetensors"));
    assert_eq!(read(&torch.path("model.safetensors")), first);
    assert_ne!(read(&burn), first);
}

/// The ending says the format: the file begins like a zip archive, and needs no configuration.
#[test]
fn a_file_for_pytorch_is_one_and_is_read_back() {
    let exported = Exported::new("torch");
    for name in ["model.pt", "model.PTH"] {
        let checkpoint = exported.then(&["export", "RUN", "--out", name]);
        checkpoint.assert_code(0).assert_no_files(&[name]);
        let path = checkpoint.path(name);
        assert!(std::fs::read(&path).unwrap().starts_with(b"PK\x03\x04"));
        let path = path.to_str().unwrap();
        let back = exported.then(&["export", path]);
        back.assert_code(0);
        let read = |path: &Path| std::fs::read(path).unwrap();
        let first = read(&exported.export.path("model.safetensors"));
        assert_eq!(read(&back.path("model.safetensors")), first);
    }
    for (name, more, told) in [
        ("model.onnx", &[][..], "torch.onnx.export"),
        ("model.bin", &[], "must end with .safetensors, .pt or .pth"),
        ("model", &[], "must end with .safetensors, .pt or .pth"),
        ("model.pt", &["--format", "burn"], ".safetensors file"),
    ] {
        let args = [&["export", "RUN", "--out", name], more].concat();
        let refused = exported.then(&args);
        refused
            .assert_code(2)
            .assert_stderr(&[told])
            .assert_no_files(&[]);
    }
}

#[test]
fn files_are_not_taken_for_what_they_are_not() {
    let exported = Exported::new("torch");
    let without = exported.then(&["eval", "FILE", "--nproc", "2"]);
    without
        .assert_code(2)
        .assert_stderr(&["model.safetensors does not name the data", "--config"]);
    let other = [
        "data.name=generated",
        "data.size=28",
        "data.channels=1",
        "data.test_samples=8",
    ];
    let mut args = vec!["eval", "FILE"];
    args.extend(other.iter().flat_map(|setting| ["--set", setting]));
    exported.then(&args).assert_code(2).assert_stderr(&[
        "trained for other classes",
        "`0`",
        "of --set data.name=generated",
    ]);
    for (setting, told) in [
        ("data.mean=[0.5]", "images normalized with"),
        ("model.hidden=17", "fc1.weight"),
    ] {
        let args = ["eval", "FILE", "--config", "CONFIG", "--set", setting];
        let place = format!("of --set {setting}");
        exported
            .then(&args)
            .assert_code(2)
            .assert_stderr(&[told, &place]);
    }
    let folder = tempfile::tempdir().unwrap();
    let damaged = folder.path().join("damaged.safetensors");
    let file = std::fs::read(exported.export.path("model.safetensors")).unwrap();
    std::fs::write(&damaged, &file[..file.len() / 2]).unwrap();
    let damaged = damaged.to_str().unwrap();
    let image = folder.path().join("a.png");
    picture(&image, 28);
    for args in [
        &["predict", damaged, image.to_str().unwrap()][..],
        &["eval", damaged, "--config", "CONFIG"],
        &["export", damaged],
    ] {
        exported
            .then(args)
            .assert_code(1)
            .assert_stderr(&["damaged.safetensors", "may be truncated"]);
    }
}

/// Header and values of a safetensors file.
fn parts(path: &Path) -> (Value, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, values) = rest.split_at(u64::from_le_bytes(*length) as usize);
    (serde_json::from_slice(header).unwrap(), values.to_vec())
}

/// The same weights in the naming of another program, without metadata of the model.
fn renamed(from: &Path, to: &Path, prefix: &str) {
    let (header, values) = parts(from);
    let header: serde_json::Map<String, Value> = header
        .as_object()
        .unwrap()
        .iter()
        .filter(|(key, _)| *key != "__metadata__")
        .map(|(key, tensor)| (format!("{prefix}{key}"), tensor.clone()))
        .collect();
    let header = serde_json::to_vec(&header).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(to, [&length[..], &header, &values].concat()).unwrap();
}

/// Zeros for the same model with another hidden width, as a sparse file.
fn widened(from: &Path, to: &Path, widths: [u64; 2]) {
    let (header, _) = parts(from);
    let mut end = 0;
    let mut tensors = header.as_object().unwrap().clone();
    tensors.remove("__metadata__");
    for tensor in tensors.values_mut() {
        let shape = tensor["shape"].as_array_mut().unwrap();
        for side in shape.iter_mut().filter(|side| **side == widths[0]) {
            *side = widths[1].into();
        }
        let numbers: u64 = shape.iter().map(|side| side.as_u64().unwrap()).product();
        let begin = end;
        end += numbers * 4;
        tensor["data_offsets"] = [begin, end].into();
    }
    let header = serde_json::to_vec(&tensors).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(to, [&length[..], &header].concat()).unwrap();
    let file = std::fs::File::options().write(true).open(to).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();
}

/// Whether the process has the file open.
fn has_open(process: Pid, file: &Path) -> bool {
    let open = std::fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero()));
    let mut open = open.into_iter().flatten().flatten();
    open.any(|open| std::fs::read_link(open.path()).is_ok_and(|path| path == file))
}

/// The same weights twice in one file, like a model and its average.
fn doubled(from: &Path, to: &Path) {
    let (header, values) = parts(from);
    let tensors = header.as_object().unwrap().iter();
    let header: serde_json::Map<String, Value> = tensors
        .filter(|(key, _)| *key != "__metadata__")
        .flat_map(|(key, tensor)| {
            let mut second = tensor.clone();
            for offset in second["data_offsets"].as_array_mut().unwrap() {
                *offset = (offset.as_u64().unwrap() + values.len() as u64).into();
            }
            [
                (format!("model.{key}"), tensor.clone()),
                (format!("model_ema.{key}"), second),
            ]
        })
        .collect();
    let header = serde_json::to_vec(&header).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(to, [&length[..], &header, &values, &values].concat()).unwrap();
}

/// Without the message, a user could evaluate the wrong set unnoticed.
#[test]
fn a_second_set_of_weights_in_a_file_is_told_by_every_command() {
    let exported = Exported::new("torch");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [both, image] = [path("both.safetensors"), path("a.png")];
    doubled(&exported.export.path("model.safetensors"), Path::new(&both));
    picture(Path::new(&image), 28);
    for args in [
        &["eval", &both, "--config", "CONFIG"][..],
        &["predict", &both, &image, "--config", "CONFIG"],
        &["export", &both, "--config", "CONFIG"],
    ] {
        let finished = exported.then(args);
        finished.assert_code(0).assert_stderr(&[
            "under `model`",
            "fit under `model_ema`; choose with weights.part",
        ]);
        let part = [args, &["--set", "weights.part=model_ema"]].concat();
        let finished = exported.then(&part);
        finished.assert_code(0);
        assert!(!finished.stderr.contains("chooses"), "{}", finished.stderr);
    }
}

fn environment(run: &Path) -> Value {
    let text = std::fs::read_to_string(run.join("environment.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn weights_of_another_program_start_a_run_which_remembers_them() {
    use sha2::{Digest, Sha256};
    let exported = Exported::new("torch");
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.safetensors");
    let model = exported.export.path("model.safetensors");
    renamed(&model, &other, "state_dict.model._orig_mod.");
    let weights = format!("model.weights={}", other.display());
    let run = folder.path().join("run");
    let settings = [weights.as_str(), "checkpoint.every_epochs=1"];
    let started = Trial::tiny_at(&run, &[], &settings).run();
    started.assert_code(0);
    let said = format!(
        "weights {}, under `state_dict.model._orig_mod`",
        other.display()
    );
    assert!(started.stdout.contains(&said), "{}", started.stdout);
    let digest = Sha256::digest(std::fs::read(&other).unwrap());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = other.to_str().unwrap();
    assert_eq!(environment(&run)["weights"]["path"], expected);
    assert_eq!(environment(&run)["weights"]["sha256"], digest.as_str());
    // This also holds for a resume, without the file.
    std::fs::remove_file(&other).unwrap();
    let more = [&settings[..], &["train.epochs=2"]].concat();
    Trial::tiny_at(&run, &["--resume", "auto"], &more)
        .run()
        .assert_code(0);
    assert_eq!(environment(&run)["weights"]["sha256"], digest.as_str());
}

#[test]
fn weights_of_another_size_start_a_run_where_that_is_wanted() {
    let exported = Exported::new("torch");
    let weights = format!(
        "model.weights={}",
        exported.export.path("model.safetensors").display()
    );
    let settings = [weights.as_str(), "model.hidden=24"];
    let strict = Trial::tiny(&[], &settings).run();
    let differs = "fc1.bias: [24] in the model, [16] in the file";
    strict
        .assert_code(2)
        .assert_stderr(&[differs, "model.weights"]);
    let lenient = [&settings[..], &["weights.strict=false"]].concat();
    let lenient = Trial::tiny(&[], &lenient).run();
    lenient.assert_code(0);
    for part in ["5 tensors of", "weights.strict = false", differs] {
        assert!(lenient.stderr.contains(part), "{part}: {}", lenient.stderr);
    }
    Trial::tiny(&[], &["weights.strict=false"])
        .run()
        .assert_code(2)
        .assert_stderr(&["has no effect without `model.weights`"]);
}

/// PyTorch's `num_batches_tracked` of all batch normalizations.
fn counts(path: &Path) -> Vec<i64> {
    let (header, values) = parts(path);
    let counters = header.as_object().unwrap().iter();
    counters
        .filter(|(key, _)| key.ends_with("num_batches_tracked"))
        .map(|(_, tensor)| {
            let start = tensor["data_offsets"][0].as_u64().unwrap() as usize;
            i64::from_le_bytes(*values[start..].first_chunk().unwrap())
        })
        .collect()
}

#[test]
fn counts_of_batches_survive_a_round_trip() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let text = |name: &str| at(name).to_str().unwrap().to_owned();
    let train = |more: &[&str]| {
        let model = [
            "model.name=csc-cnn",
            "checkpoint.every_epochs=1",
            "data.train_samples=48",
        ];
        let run = Trial::of_model(&[], &[&model[..], more].concat()).run();
        run.assert_code(0);
        run
    };
    let export = |from: &Path, to: &str| {
        let args = [
            "export",
            "--last",
            from.to_str().unwrap(),
            "--out",
            &text(to),
        ];
        Trial::new(&args).run().assert_code(0);
        counts(&at(to))
    };
    let run = train(&[]);
    assert_eq!(export(&run.path("run"), "one.safetensors"), [4, 4]);
    assert_eq!(export(&at("one.safetensors"), "two.safetensors"), [4, 4]);
    let weights = format!("model.weights={}", text("two.safetensors"));
    let again = train(&[&weights, "train.accumulate=2"]);
    assert_eq!(export(&again.path("run"), "three.safetensors"), [12, 12]);
    // This also holds if one layer has counted less, and a run resumes with other micro-batches.
    let (header, mut values) = parts(&at("two.safetensors"));
    let counter = &header["layer1.1.num_batches_tracked"]["data_offsets"][0];
    let start = counter.as_u64().unwrap() as usize;
    values[start..start + 8].copy_from_slice(&1i64.to_le_bytes());
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    let bytes = [&length, header.as_bytes(), &values].concat();
    std::fs::write(at("two.safetensors"), bytes).unwrap();
    let run = train(&[&weights]);
    let folder = run.path("run");
    assert_eq!(export(&folder, "four.safetensors"), [5, 8]);
    let folder = folder.to_str().unwrap();
    let more = ["--resume", folder, "--set", "train.epochs=2"];
    Trial::new(&[&more[..], &["--set", "train.accumulate=2"]].concat())
        .run()
        .assert_code(0);
    assert_eq!(export(Path::new(folder), "five.safetensors"), [13, 16]);
}

/// The first step may be far away, and the run has nothing to save yet.
#[test]
fn a_request_to_save_ends_a_run_that_loads_weights() {
    let exported = Exported::new("torch");
    let folder = tempfile::tempdir().unwrap();
    let wide = folder.path().join("wide.safetensors");
    widened(
        &exported.export.path("model.safetensors"),
        &wide,
        [16, 40_000],
    );
    let weights = format!("model.weights={}", wide.display());
    let settings = [weights.as_str(), "model.hidden=40000"];
    let running = Trial::tiny(&["--nproc", "1"], &settings).start();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !has_open(running.pid(), &wide) {
        assert!(Instant::now() < deadline, "it does not read the weights");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(running.pid(), Signal::USR1).unwrap();
    let finished = running.wait(Duration::from_secs(20));
    finished
        .assert_code(75)
        .assert_stderr(&["before the first step; start the run again"]);
    assert!(
        !finished.stdout.contains("checkpoint"),
        "{}",
        finished.stdout
    );
}
