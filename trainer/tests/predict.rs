//! `trainer predict` on several ranks, through pipes, after a kill, and away from the run.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use common::{Finished, LIMIT, Trial, free_port, processes_of, rank_of};
use image::{GrayImage, Luma};
use rustix::process::{Signal, kill_process};
use tempfile::TempDir;

/// A trained run and a folder of images.
struct Setting {
    run: Finished,
    images: TempDir,
}

impl Setting {
    fn new() -> Self {
        let run = Trial::tiny(&[], &["checkpoint.every_epochs=1"]).run();
        run.assert_code(0);
        let images = tempfile::tempdir().unwrap();
        Self { run, images }
    }

    fn image(&self, name: &str) -> PathBuf {
        self.images.path().join(name)
    }

    /// Draws photo-like images, each of another size. Their names sort in this order.
    fn small(&self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let picture = GrayImage::from_fn(20 + number % 37, 20 + number % 11, |x, y| {
                Luma([(x * y * (number + 1) % 256) as u8])
            });
            picture
                .save(self.image(&format!("{number:04}.png")))
                .unwrap();
        }
    }

    /// `trainer predict` of the images, with JSON lines into `to`.
    fn predict(&self, args: &[&str], to: &str) -> Trial {
        let run = self.run.path("run");
        let (run, images) = (run.to_str().unwrap(), self.images.path().to_str().unwrap());
        Trial::new(&[&["predict", run, images, "--jsonl", to][..], args].concat())
    }

    /// The JSON lines of one rank.
    fn expected(&self, code: i32) -> String {
        let found = self.predict(&[], "all.jsonl").run();
        found.assert_code(code);
        fs::read_to_string(found.path("all.jsonl")).unwrap()
    }
}

/// Several batches with broken images in two of them give the same bytes.
#[test]
fn any_number_of_ranks_writes_the_same_lines() {
    let setting = Setting::new();
    setting.small(0..150);
    for broken in ["0003.png", "0140.png"] {
        fs::write(setting.image(broken), "no image").unwrap();
    }
    let expected = setting.expected(1);
    let images: Vec<_> = expected
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["image"].to_string())
        .collect();
    assert_eq!(images.len(), 150);
    assert!(images.is_sorted());
    for nproc in ["2", "3"] {
        let found = setting.predict(&["--nproc", nproc], "all.jsonl").run();
        found
            .assert_code(1)
            .assert_stderr(&["0003.png cannot be used", "0140.png"]);
        assert_eq!(
            fs::read_to_string(found.path("all.jsonl")).unwrap(),
            expected
        );
        assert_eq!(found.stdout.lines().count(), 148);
        found.assert_no_files(&["all.jsonl"]).assert_nobody_left();
    }
    // Ranks of another launcher.
    let port = free_port();
    let file = setting.run.path("both.jsonl");
    let start = |rank| {
        let trial = setting.predict(&[], file.to_str().unwrap());
        trial.rank(rank, 2, &port).start()
    };
    let [first, second] = [start(0), start(1)].map(|rank| rank.wait(LIMIT));
    first.assert_code(1);
    second.assert_code(0);
    assert!(
        second.stdout.is_empty() && second.stderr.is_empty(),
        "{}",
        second.stderr
    );
    assert_eq!(fs::read_to_string(file).unwrap(), expected);
}

#[test]
fn standard_output_gets_the_lines_and_nothing_else() {
    let setting = Setting::new();
    setting.small(0..70);
    let expected = setting.expected(0);
    for nproc in ["1", "2"] {
        let found = setting.predict(&["--nproc", nproc], "-").run();
        found.assert_code(0).assert_no_files(&[]);
        assert_eq!(found.stdout, expected);
    }
    // A reader that has read enough ends all ranks.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let found = setting.predict(&["--nproc", "2"], "-").to(writer).run();
    found.assert_code(0).assert_nobody_left();
    assert!(found.stderr.is_empty(), "{}", found.stderr);
}

#[test]
fn the_first_broken_image_ends_all_ranks_if_asked() {
    let setting = Setting::new();
    setting.small(0..200);
    fs::write(setting.image("0070.png"), "no image").unwrap();
    let args = ["--stop-at-error", "--nproc", "2"];
    let file = setting.run.path("all.jsonl");
    let path = file.to_str().unwrap();
    let found = setting.predict(&args, path).run();
    found.assert_code(1).assert_nobody_left();
    let said = found.stderr.matches("0070.png cannot be used").count();
    assert_eq!(said, 1, "{}", found.stderr);
    assert!(found.stderr.contains("error: rank 1: "), "{}", found.stderr);
    assert!(!file.exists());
    // The image is replaced, and the run continues behind the batch before it.
    setting.small(70..71);
    let found = setting.predict(&args, path).run();
    found
        .assert_code(0)
        .assert_stderr(&["all.jsonl.partial after 64 of 200 images"]);
    assert_eq!(found.stdout.lines().count(), 136);
    assert_eq!(fs::read_to_string(file).unwrap(), setting.expected(0));
}

/// Waits until the unfinished file has this many batches.
fn wait_for_batches(file: &Path, batches: usize) {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        let text = fs::read_to_string(file).unwrap_or_default();
        // One more mark begins the file.
        if text.matches('#').count() > batches {
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
    panic!("no {batches} batches after {LIMIT:?}");
}

#[test]
fn a_prediction_that_is_killed_goes_on_to_the_same_bytes() {
    let setting = Setting::new();
    setting.small(0..260);
    // Some take long, so that the kill comes in the middle. The fourth batch has them.
    let large = setting.image("0195.png");
    let picture = GrayImage::from_fn(5000, 5000, |x, y| Luma([(x ^ y) as u8]));
    picture.save(&large).unwrap();
    for number in 196..200 {
        let name = setting.image(&format!("{number:04}.png"));
        fs::remove_file(&name).unwrap();
        fs::hard_link(&large, name).unwrap();
    }
    fs::write(setting.image("0001.png"), "no image").unwrap();
    let expected = setting.expected(1);
    for (rank, nproc) in [(1, "2"), (0, "3")] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("all.jsonl");
        fs::write(&file, "the old one").unwrap();
        let (path, part) = (
            file.to_str().unwrap(),
            folder.path().join("all.jsonl.partial"),
        );
        let killed = setting.predict(&["--nproc", nproc], path).start();
        wait_for_batches(&part, 2);
        kill_process(rank_of(folder.path(), rank), Signal::KILL).unwrap();
        killed.wait(LIMIT).assert_code(1);
        assert!(processes_of(folder.path()).is_empty());
        assert_eq!(fs::read_to_string(&file).unwrap(), "the old one");
        let found = setting.predict(&["--nproc", "2"], path).run();
        found
            .assert_code(1)
            .assert_stderr(&["continues", "0001.png cannot be used"]);
        let lines = found.stdout.lines().count();
        assert!((1..=132).contains(&lines), "{lines}");
        assert_eq!(fs::read_to_string(&file).unwrap(), expected);
        assert!(!part.exists());
    }
}

/// Draws 12 images per class for training and 3 for evaluation.
fn classes(root: &Path) {
    for (number, class) in ["ant", "bee"].into_iter().enumerate() {
        for (part, count) in [("train", 12), ("val", 3)] {
            let folder = root.join(part).join(class);
            fs::create_dir_all(&folder).unwrap();
            for image in 0..count {
                let value = 200 - 100 * number as u8 - image;
                let picture = GrayImage::from_pixel(16, 16, Luma([value]));
                picture.save(folder.join(format!("{image}.png"))).unwrap();
            }
        }
    }
}

/// The folder of the start has the data under a relative path, and is not the current one.
#[test]
fn a_run_is_evaluated_from_any_folder() {
    let home = tempfile::tempdir().unwrap();
    let pictures = home.path().join("pictures");
    classes(&pictures);
    let data = "data={name=\"image-folder\", dir=\"photos\", size=12}";
    let settings = [data, "train.batch_size=6", "checkpoint.every_epochs=1"];
    let mut trial = Trial::tiny(&[], &settings);
    for part in ["train", "val"] {
        for entry in walk(&pictures.join(part)) {
            let name = entry.strip_prefix(&pictures).unwrap().to_owned();
            let name = Path::new("photos").join(name);
            trial = trial.file(name.to_str().unwrap(), fs::read(&entry).unwrap());
        }
    }
    let run = trial.run();
    run.assert_code(0);
    let loss = |args: &[&str]| {
        let found = Trial::new(&[&["eval"], args].concat()).run();
        found.assert_code(0);
        let line = found.stdout.lines().last().unwrap().to_owned();
        (line, found)
    };
    let run_dir = run.path("run");
    let (expected, found) = loss(&[run_dir.to_str().unwrap(), "--nproc", "2"]);
    let said = format!("data in {}", run.path("photos").display());
    assert!(found.stdout.contains(&said), "{}", found.stdout);

    // A moved run: the relative path no longer leads anywhere, and says so.
    let moved = home.path().join("moved");
    fs::rename(&run_dir, &moved).unwrap();
    fs::remove_dir_all(run.path("photos")).unwrap();
    let moved = moved.to_str().unwrap();
    let lost = run.path("photos");
    Trial::new(&["eval", moved])
        .run()
        .assert_code(2)
        .assert_stderr(&[lost.to_str().unwrap()]);
    let set = format!("data.dir={}", pictures.display());
    assert_eq!(loss(&[moved, "--set", &set]).0, expected);

    // A checkpoint alone has its configuration.
    let checkpoints = fs::read_dir(Path::new(moved).join("checkpoints")).unwrap();
    let step = checkpoints
        .map(|entry| entry.unwrap().path())
        .find(|path| path.join("manifest.json").is_file())
        .unwrap();
    let alone = home.path().join("alone");
    fs::rename(step, &alone).unwrap();
    let alone = alone.to_str().unwrap();
    assert_eq!(loss(&[alone, "--set", &set]).0, expected);
    let image = pictures.join("val/ant/0.png");
    let args = ["predict", alone, image.to_str().unwrap(), "--set", &set];
    Trial::new(&args).run().assert_code(0);
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => walk(&path),
            false => vec![path],
        })
        .collect()
}
