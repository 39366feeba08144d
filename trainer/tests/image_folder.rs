//! Runs on folders of images: class names and normalization.

mod common;

use std::path::Path;

use common::{Finished, LIMIT, Trial};
use image::{Rgb, RgbImage};

/// A folder of color images, 12 per class for training and 3 for evaluation. Each class is darker
/// than the one before.
fn pictures(root: &Path, classes: &[&str]) {
    for (number, class) in classes.iter().enumerate() {
        for (part, count) in [("train", 12), ("val", 3)] {
            let folder = root.join(part).join(class);
            std::fs::create_dir_all(&folder).unwrap();
            for image in 0..count {
                let value = 250 - 60 * number as u8 - 3 * image as u8;
                let picture = RgbImage::from_pixel(20, 16, Rgb([value, value / 2, value / 3]));
                picture
                    .save(folder.join(format!("{image:02}.png")))
                    .unwrap();
            }
        }
    }
}

/// Swaps the names of two classes.
fn swap(root: &Path, [one, other]: [&str; 2]) {
    for part in ["train", "val"] {
        let folder = root.join(part);
        let rename = |from: &str, to: &str| {
            std::fs::rename(folder.join(from), folder.join(to)).unwrap();
        };
        rename(one, "aside");
        rename(other, one);
        rename("aside", other);
    }
}

fn data(root: &Path) -> String {
    format!("data={{name=\"image-folder\", dir={root:?}, size=12}}")
}

/// A tiny run with one checkpoint.
fn train(data: &str, args: &[&str], settings: &[&str]) -> Finished {
    let mut all = vec![data, "train.batch_size=6", "checkpoint.every_epochs=1"];
    all.extend(settings);
    Trial::tiny(args, &all).start().wait(LIMIT)
}

/// Runs the program in the folder of an earlier run.
fn then(run: &Finished, args: &[&str]) -> Finished {
    let run_dir = run.path("run");
    let of_run = |arg: &&str| match *arg {
        "RUN" => run_dir.to_str().unwrap().to_owned(),
        arg => arg.to_owned(),
    };
    let args: Vec<String> = args.iter().map(of_run).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Trial::new(&args).start().wait(LIMIT)
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_checkpoint_is_for_classes_of_the_same_names() {
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good");
    pictures(&good, &["ant", "bee", "cat"]);
    let run = train(&data(&good), &[], &[]);
    run.assert_code(0);
    then(&run, &["eval", "RUN"]).assert_code(0);

    // The same number of classes, with one other name.
    let other = folder.path().join("other");
    pictures(&other, &["ant", "bee", "dog"]);
    let elsewhere = format!("data.dir={}", other.display());
    let difference = "class 2 was `cat` in training and is `dog` in the data";
    for nproc in ["1", "2"] {
        let args = ["eval", "RUN", "--nproc", nproc, "--set", &elsewhere];
        let found = then(&run, &args);
        found
            .assert_code(2)
            .assert_stderr(&[difference, "data.dir"]);
        assert_eq!(
            found.stderr.matches(difference).count(),
            1,
            "{}",
            found.stderr
        );
    }
    // The run folder has the class names; a checkpoint alone needs the data for them.
    std::fs::remove_file(run.path("run/environment.json")).unwrap();
    let image = good.join("val/cat/00.png");
    let image = image.to_str().unwrap();
    for command in [
        &["predict", "RUN", image, "--set", &elsewhere][..],
        &[
            "export",
            "RUN",
            "--out",
            "x.safetensors",
            "--set",
            &elsewhere,
        ],
    ] {
        let found = then(&run, command);
        found.assert_code(2).assert_stderr(&[difference]);
        assert!(!found.path("x.safetensors").exists());
    }
    then(&run, &["predict", "RUN", image]).assert_code(0);
    let checkpoint = run.path("run");
    let resume = ["--resume", checkpoint.to_str().unwrap()];
    let resumed = train(&data(&other), &resume, &["train.epochs=2"]);
    resumed.assert_code(2).assert_stderr(&[difference]);
    train(&data(&good), &resume, &["train.epochs=2"]).assert_code(0);
}

/// A name with another sort position shifts the labels of others.
#[test]
fn a_class_that_is_renamed_moves_the_labels_of_others() {
    let folder = tempfile::tempdir().unwrap();
    pictures(folder.path(), &["ant", "bee", "cat"]);
    let run = train(&data(folder.path()), &[], &[]);
    run.assert_code(0);
    // Other images under the same names are the user's choice.
    swap(folder.path(), ["ant", "cat"]);
    then(&run, &["eval", "RUN"]).assert_code(0);
    for part in ["train", "val"] {
        let part = folder.path().join(part);
        std::fs::rename(part.join("ant"), part.join("zebra")).unwrap();
    }
    let found = then(&run, &["eval", "RUN"]);
    found
        .assert_code(2)
        .assert_stderr(&["class 0 was `ant` in training and is `bee` in the data"]);
}

/// The loss of `trainer eval`.
fn loss(run: &Finished, args: &[&str]) -> f64 {
    let args = [&["eval", "RUN", "--json", "result.json"][..], args].concat();
    let found = then(run, &args);
    found.assert_code(0);
    let result = json(&found.path("result.json"));
    result["evaluation"]["loss"].as_f64().unwrap()
}

#[test]
fn images_are_normalised_alike_wherever_they_are_used() {
    let folder = tempfile::tempdir().unwrap();
    pictures(folder.path(), &["ant", "bee"]);
    let data = data(folder.path());
    let numbers = ["data.mean=[0.25, 0.5, 0.125]", "data.std=[0.5]"];
    let run = train(&data, &[], &numbers);
    run.assert_code(0);
    let environment = json(&run.path("run/environment.json"));
    assert_eq!(environment["mean"], serde_json::json!([0.25, 0.5, 0.125]));
    assert_eq!(environment["std"], serde_json::json!([0.5, 0.5, 0.5]));

    let evaluated = run.metrics("eval")[0]["loss"].as_f64().unwrap();
    assert!((loss(&run, &[]) - evaluated).abs() < 1e-6);
    let otherwise = ["--set", "data.mean=[0.9]"];
    assert!((loss(&run, &otherwise) - evaluated).abs() > 1e-4);

    let image = folder.path().join("val/bee/00.png");
    let predict = |more: &[&str]| {
        let args = [&["predict", "RUN", image.to_str().unwrap()][..], more].concat();
        let found = then(&run, &args);
        found.assert_code(0);
        found.stdout
    };
    let export = || {
        let found = then(&run, &["export", "RUN", "--out", "model.safetensors"]);
        found.assert_code(0);
        let bytes = std::fs::read(found.path("model.safetensors")).unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(text.contains("[0.25,0.5,0.125]"), "the mean is missing");
        assert!(text.contains("[0.5,0.5,0.5]"), "the deviation is missing");
    };
    let predicted = predict(&[]);
    assert_ne!(predict(&otherwise), predicted);
    export();
    // Without environment.json, the normalization is that of the configuration.
    std::fs::remove_file(run.path("run/environment.json")).unwrap();
    assert_eq!(predict(&[]), predicted);
    export();
}

#[test]
fn numbers_for_other_channels_are_shown_where_they_are_written() {
    let folder = tempfile::tempdir().unwrap();
    pictures(folder.path(), &["ant", "bee"]);
    let data = data(folder.path());
    for (set, key) in [
        ("data.mean=[0.5, 0.5]", "data.mean"),
        ("data.std=[0.5, 0.5, 0.5, 0.5]", "data.std"),
    ] {
        let found = train(&data, &[], &[set]);
        let reason = "for 3 channels";
        found
            .assert_code(2)
            .assert_stderr(&[key, reason, "--set", set]);
        found.assert_no_files(&[]);
    }
}

#[test]
fn what_teaches_nothing_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    pictures(folder.path(), &["ant"]);
    let settings = ["train.batch_size=2", "train.epochs=2"];
    let run = train(&data(folder.path()), &[], &settings);
    run.assert_code(0);
    for warning in [
        "the data has one class, `ant`",
        "the loss was 0 in each of the last 10 steps",
    ] {
        let told = run.stdout.matches(warning).count() + run.stderr.matches(warning).count();
        assert_eq!(told, 1, "{warning}: {}\n{}", run.stdout, run.stderr);
    }
}

#[test]
fn a_folder_without_images_has_nothing_to_predict() {
    let folder = tempfile::tempdir().unwrap();
    pictures(folder.path(), &["ant", "bee"]);
    let run = train(&data(folder.path()), &[], &[]);
    run.assert_code(0);
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(empty.join("notes.txt"), "no image").unwrap();
    let found = then(&run, &["predict", "RUN", empty.to_str().unwrap()]);
    found.assert_code(2).assert_stderr(&["found no images"]);
}
