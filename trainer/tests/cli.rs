//! The command line without training: rejected arguments, their exit codes and messages, and that
//! nothing is left behind.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Trial, free_port};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn the_configurations_inside_are_listed_and_printed() {
    let listed = Trial::new(&["configs"]).run();
    listed.assert_code(0);
    for name in ["digits.toml", "mnist-cnn.toml"] {
        assert!(listed.stdout.contains(name), "{}", listed.stdout);
    }
    let printed = Trial::new(&["configs", "mnist-cnn.toml"]).run();
    printed.assert_code(0);
    let original = include_str!("../configs/mnist-cnn.toml");
    assert_eq!(printed.stdout, original);
    Trial::new(&["configs", "mnist_cnn"])
        .run()
        .assert_code(2)
        .assert_stderr(&["did you mean `mnist-cnn.toml`?"]);
}

#[test]
fn a_wrong_key_is_shown_in_its_source() {
    let text = "[model]\nname = \"cnn\"\n\n[optimizer]\nname = \"sgd\"\nmomentun = 0.9\n";
    let finished = Trial::new(&["--config", "mine.toml", "--nproc", "2"])
        .file("mine.toml", text)
        .run();
    finished
        .assert_code(2)
        .assert_stderr(&[
            "unknown key `momentun` in [optimizer]",
            "line 6, column 1 of mine.toml",
            "6 │ momentun = 0.9",
            "did you mean `momentum`?",
        ])
        .assert_no_files(&["mine.toml"]);
}

#[test]
fn a_wrong_setting_is_shown_in_its_source() {
    Trial::new(&["--set", "train.epoch=3"])
        .run()
        .assert_code(2)
        .assert_stderr(&[
            "unknown key `epoch` in [train]",
            "column 7 of --set train.epoch=3",
            "did you mean `epochs`?",
        ])
        .assert_no_files(&[]);
}

#[test]
fn wrong_arguments_are_refused_before_anything_starts() {
    let cases: &[(&[&str], &str)] = &[
        (&["--nproc", "0"], "--nproc"),
        (&["--nproc", "100000"], "--nproc"),
        (&["--nproc", "two"], "--nproc"),
        (&["--no-such-flag"], "--no-such-flag"),
        (
            &["--config", "nowhere.toml"],
            "cannot read the configuration nowhere.toml",
        ),
        (
            &["--config", "mnist.toml"],
            "did you mean `mnist-cnn.toml`?",
        ),
        (
            &["--resume", "checkpoints/7"],
            "no such checkpoint or run folder",
        ),
        (&["--resume", ""], "auto, off or a path"),
        (
            &["--nproc", "3", "--set", "train.batch_size=64"],
            "63 or 66",
        ),
        (&["--set", "train.precision=bf17"], "did you mean `bf16`?"),
        (
            &["--set", "train.device=cuda"],
            "this program was built without cuda",
        ),
        (
            &["--set", "parallel.compression=fp16"],
            "did you mean `f16`?",
        ),
        (&["--set", "model.name=cmm"], "unknown model `cmm`"),
        (&["--set", "data.name=mnits"], "did you mean `mnist`?"),
        (&["--set", "optimizer.name=adm"], "did you mean `adam"),
    ];
    for (args, words) in cases {
        Trial::new(args)
            .run()
            .assert_code(2)
            .assert_stderr(&[words])
            .assert_no_files(&[]);
    }
}

#[test]
fn all_errors_of_a_configuration_are_shown_in_their_lines() {
    let text = "[model]\nname = \"cnn\"\n[optimizer]\nname = \"AdamW\"\n[train]\nmax_epochs = 3\n\
                seed = \"1\"\n[early_stopping]\ntarget_accuracy = 99\n";
    let finished = Trial::new(&["mine.toml"]).file("mine.toml", text).run();
    finished.assert_code(2).assert_stderr(&[
        "invalid configuration, 4 errors",
        "4 │ name = \"AdamW\"",
        "did you mean `adamw`?",
        "6 │ max_epochs = 3",
        "did you mean `epochs`?",
        "7 │ seed = \"1\"",
        "write `seed = 1`",
        "write 0.99 for 99 %",
    ]);
    Trial::new(&["mine.toml"])
        .file("mine.toml", text.replace("AdamW", "adamw"))
        .run()
        .assert_code(2)
        .assert_stderr(&[
            "3 errors",
            "9 │ target_accuracy = 99",
            "write 0.99 for 99 %",
        ]);
}

#[test]
fn options_that_are_keys_are_translated() {
    for (option, advice) in [
        ("--epochs", "--set train.epochs=VALUE"),
        ("--lr=0.1", "--set optimizer.lr=VALUE"),
        ("--batch-size", "--set train.batch_size=VALUE"),
        ("--train.seed", "--set train.seed=VALUE"),
        ("--learning_rate", "--set optimizer.lr=VALUE"),
        ("--devices", "--nproc N"),
        ("--nprocs", "--nproc"),
    ] {
        let refused = Trial::new(&[option, "3"]).run();
        refused.assert_code(2).assert_stderr(&[advice]);
        let of_another = option == "--epochs" && refused.stderr.contains("--nproc");
        assert!(!of_another, "{}", refused.stderr);
    }
}

#[test]
fn a_configuration_needs_no_option() {
    let config = "[model]\nname = \"cnn\"\n[optimizer]\nname = \"sgd\"\nlr = 0.125\n";
    for args in [
        &["mine.toml", "--dry-run"][..],
        &["--dry-run", "mine.toml"],
        &["train", "mine.toml", "--dry-run"],
        &["check", "mine.toml"],
        &["check", "--set", "train.epochs=2", "mine.toml"],
        &["check", "--config", "mine.toml"],
    ] {
        let finished = Trial::new(args).file("mine.toml", config).run();
        finished.assert_code(0).assert_no_files(&["mine.toml"]);
        assert!(
            finished.stdout.contains("lr = 0.125"),
            "{}",
            finished.stdout
        );
    }
    let built_in = Trial::new(&["digits", "--dry-run"]).run();
    built_in.assert_code(0);
    for (args, told) in [
        (&["chekc"][..], "Did you mean `trainer check`?"),
        (
            &["chekc", "mine.toml", "--nproc", "2"],
            "Did you mean `trainer check`?",
        ),
        (
            &["nowhere.toml"],
            "cannot read the configuration nowhere.toml",
        ),
        (&["digits", "--config", "digits"], "cannot be used with"),
        (&["check", "digits", "vit"], "unexpected argument"),
        (&["/"], "--resume / continues the run"),
        (&["train.toml"], "cannot read the configuration train.toml"),
        (&["digit"], "did you mean `digits.toml`?"),
        (&["fit", "digits"], "Did you mean `trainer train`?"),
        (&["train.epochs=2"], "write --set train.epochs=2"),
        (&["check", "train.epochs=2"], "write --set train.epochs=2"),
        (&["--run-dir", ""], "the path is empty"),
    ] {
        Trial::new(args).run().assert_code(2).assert_stderr(&[told]);
    }
    Trial::new(&["check", "mine.yml"])
        .file("mine.yml", "train:\n  epochs: 3\n")
        .run()
        .assert_code(2)
        .assert_stderr(&["mine.yml is a YAML file", "trainer init"]);
}

#[test]
fn a_new_configuration_is_written_with_comments() {
    let args = [
        "init",
        "mine.toml",
        "--data",
        "image-folder",
        "--dir",
        "photos",
    ];
    let more = [
        "--model",
        "vit",
        "--epochs",
        "7",
        "--set",
        "train.batch_size=32",
    ];
    let written = Trial::new(&[&args[..], &more].concat()).run();
    written.assert_code(0).assert_no_files(&["mine.toml"]);
    let text = std::fs::read_to_string(written.path("mine.toml")).unwrap();
    for line in [
        "name = \"image-folder\"",
        "dir = \"photos\"",
        "name = \"vit\"",
        "epochs = 7",
        "batch_size = 32",
        "# seed = 1",
    ] {
        assert!(text.lines().any(|own| own == line), "{line}: {text}");
    }
    // Without choices and a terminal, it is the default training, which can be checked.
    let usual = Trial::new(&["init"]).run();
    usual.assert_code(0).assert_no_files(&["train.toml"]);
    let text = std::fs::read_to_string(usual.path("train.toml")).unwrap();
    Trial::new(&["check", "train.toml"])
        .file("train.toml", &text)
        .run()
        .assert_code(0);
    let kept = Trial::new(&["init", "mine.toml"])
        .file("mine.toml", "old")
        .run();
    kept.assert_code(2)
        .assert_stderr(&["mine.toml exists", "--force"]);
    let replaced = Trial::new(&["init", "mine.toml", "--force"])
        .file("mine.toml", "old")
        .run();
    replaced.assert_code(0);
    for (args, told) in [
        (&["init", "--model", "resnt"][..], "did you mean `resnet`?"),
        (
            &["init", "--set", "train.epoch=3"],
            "did you mean `epochs`?",
        ),
        (&["init", "--set", "epochs=3"], "section.key=value"),
    ] {
        Trial::new(args)
            .run()
            .assert_code(2)
            .assert_stderr(&[told])
            .assert_no_files(&[]);
    }
}

#[test]
fn keys_are_explained_and_the_help_says_so() {
    for (word, told) in [
        ("train.epochs", "train.epochs = 1  (integer, epochs)"),
        ("epochs", "Passes over the training data."),
        ("learning_rate", "`learning_rate` is optimizer.lr here."),
        ("ema", "ema.decay"),
        ("devices", "--nproc N"),
    ] {
        let found = Trial::new(&["docs", word]).run();
        found.assert_code(0);
        assert!(found.stdout.contains(told), "{word}: {}", found.stdout);
    }
    Trial::new(&["docs", "train.epohcs"])
        .run()
        .assert_code(2)
        .assert_stderr(&["Did you mean train.epochs?"]);
    let help = Trial::new(&["--help"]).run();
    help.assert_code(0);
    for line in [
        "trainer docs KEY",
        "  docs ",
        "  init ",
        "  man ",
        "[CONFIG]",
    ] {
        assert!(help.stdout.contains(line), "{line}: {}", help.stdout);
    }
    let page = Trial::new(&["man"]).run();
    page.assert_code(0);
    assert!(page.stdout.starts_with(".") && page.stdout.contains(".TH trainer 1"));
}

#[test]
fn the_program_is_installed_with_its_manual_and_completions() {
    let folder = tempfile::tempdir().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/install.sh");
    let installed = Command::new("bash")
        .args([script, env!("CARGO_BIN_EXE_trainer")])
        .env("PREFIX", folder.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&installed.stderr);
    assert!(installed.status.success(), "{errors}");
    for file in [
        "bin/trainer",
        "share/man/man1/trainer.1",
        "share/man/man1/trainer-lr-find.1",
        "share/bash-completion/completions/trainer",
        "share/zsh/site-functions/_trainer",
        "share/fish/vendor_completions.d/trainer.fish",
    ] {
        let size = std::fs::metadata(folder.path().join(file)).map(|found| found.len());
        assert!(
            size.as_ref().is_ok_and(|size| *size > 100),
            "{file}: {size:?}"
        );
    }
    let program = folder.path().join("bin/trainer");
    let ran = Command::new(program).arg("--version").output().unwrap();
    assert!(ran.status.success());
}

/// An archive is only read, into memory.
#[test]
fn checks_and_previews_write_nothing_beside_the_data() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let record = |index: u32| {
        let pixels = (0..3072_u32).map(move |pixel| (pixel * 7 + index * 31) as u8);
        [(index % 20) as u8, (index % 100) as u8]
            .into_iter()
            .chain(pixels)
    };
    let records = |count: u32| (0..count).flat_map(record).collect::<Vec<u8>>();
    let names = |count: u32| {
        (0..count)
            .map(|class| format!("class-{class}\n"))
            .collect::<String>()
    };
    let unpacked = folder.path().join("cifar-100-binary");
    std::fs::create_dir(&unpacked).unwrap();
    std::fs::write(unpacked.join("train.bin"), records(64)).unwrap();
    std::fs::write(unpacked.join("test.bin"), records(16)).unwrap();
    std::fs::write(unpacked.join("fine_label_names.txt"), names(100)).unwrap();
    std::fs::write(unpacked.join("coarse_label_names.txt"), names(20)).unwrap();
    let packed = Command::new("tar")
        .args(["-czf", "data/cifar-100-binary.tar.gz", "cifar-100-binary"])
        .current_dir(folder.path())
        .status();
    assert!(packed.unwrap().success());
    let dir = format!("data.dir={}", data.display());
    let home = folder.path().join("home");
    std::fs::create_dir(&home).unwrap();
    for (args, files) in [
        (&["check"][..], &[][..]),
        (&["train", "--dry-run"], &[]),
        (&["preview", "--images", "4"], &["preview.png"]),
    ] {
        let sets = [
            "--set",
            "data.name=cifar-100",
            "--set",
            &dir,
            "--set",
            "train.batch_size=8",
        ];
        let done = Trial::new(&[args, &sets[..]].concat())
            .env("HOME", home.to_str().unwrap())
            .env("XDG_CACHE_HOME", "")
            .run();
        done.assert_code(0).assert_no_files(files);
        let counted =
            args[0] == "preview" || done.stdout.contains("64 training and 16 test images");
        assert!(counted, "{}", done.stdout);
        let left = std::fs::read_dir(&data).unwrap().count();
        assert_eq!(left, 1, "{args:?} wrote beside the data");
        assert_eq!(std::fs::read_dir(&home).unwrap().count(), 0, "{args:?}");
    }
}

#[test]
fn a_check_warns_of_files_that_are_ignored_and_only_of_these() {
    let folder = tempfile::tempdir().unwrap();
    for (index, class) in ["ant", "bee", "ant", "bee"].iter().enumerate() {
        let class = folder.path().join(class);
        std::fs::create_dir_all(&class).unwrap();
        let picture = image::GrayImage::from_fn(12, 12, |x, y| image::Luma([(x * y) as u8]));
        picture.save(class.join(format!("{index}.png"))).unwrap();
    }
    let dir = format!("data.dir={}", folder.path().display());
    let check = |args: &[&str]| {
        let sets = [
            "data.name=image-folder",
            "data.size=12",
            "data.validation=0.5",
            &dir,
        ];
        let sets = sets.iter().flat_map(|set| ["--set", *set]);
        let more = ["--set", "train.batch_size=2"];
        let args: Vec<&str> = args.iter().copied().chain(sets).chain(more).collect();
        let checked = Trial::new(&args).run();
        checked.assert_code(0);
        checked.stderr
    };
    assert_eq!(check(&["check"]), "");
    std::fs::write(folder.path().join("ant/notes.txt"), "no image").unwrap();
    for args in [&["check"][..], &["train", "--dry-run"]] {
        let told = check(args);
        assert_eq!(told.matches("skipped 1 files").count(), 1, "{told}");
        assert!(told.contains("notes.txt"), "{told}");
    }
}

#[test]
fn contradictions_with_a_launcher_are_refused() {
    let launched = |rank: &str, size: &str, args: &[&str]| {
        Trial::new(args)
            .env("RANK", rank)
            .env("LOCAL_RANK", rank)
            .env("WORLD_SIZE", size)
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", "29500")
            .env("BURN_DIST_SECRET", "0123456789abcdef")
            .run()
    };
    launched("0", "2", &["--nproc", "2"])
        .assert_code(2)
        .assert_stderr(&[
            "--nproc starts ranks, but",
            "or unset RANK, LOCAL_RANK and WORLD_SIZE",
        ]);
    // An impossible rank may not be meant as a rank.
    launched("2", "2", &["--nproc", "2"])
        .assert_code(2)
        .assert_stderr(&[
            "rank 2 does not exist",
            "To start ranks with --nproc, unset RANK, LOCAL_RANK and WORLD_SIZE",
        ]);
    launched("2", "2", &[])
        .assert_code(2)
        .assert_stderr(&["rank 2 does not exist"]);
    launched("0", "0", &[])
        .assert_code(2)
        .assert_stderr(&["world size 0"]);
    // Only the main rank shows the source; the others name their rank.
    let other = launched("1", "2", &["--set", "train.epoch=3"]);
    other
        .assert_code(2)
        .assert_stderr(&["error on rank 1: unknown key `epoch`"]);
    assert!(!other.stderr.contains('│'), "{}", other.stderr);
}

/// A shell started by a launcher leaves these variables behind.
#[test]
fn ranks_are_started_in_spite_of_what_a_launcher_left_behind() {
    for (left, named) in [
        (
            &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")][..],
            "warning: --nproc starts ranks: OMPI_COMM_WORLD_RANK is ignored",
        ),
        (&[("PMI_RANK", "1"), ("PMI_SIZE", "4")], "PMI_RANK"),
        (&[("PMIX_RANK", "0")], "PMIX_RANK"),
        (
            &[
                ("SLURM_JOB_ID", "7"),
                ("SLURM_STEP_ID", "0"),
                ("SLURM_PROCID", "0"),
                ("SLURM_NTASKS", "2"),
            ],
            "",
        ),
        (
            &[("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")],
            "",
        ),
        // No process can be that rank.
        (
            &[("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "4")],
            "RANK, LOCAL_RANK and WORLD_SIZE are ignored",
        ),
        (&[("RANK", "none")], "RANK is ignored"),
    ] {
        let mut trial = Trial::tiny(&["--nproc", "2"], &["train.max_steps=1"]);
        for (name, value) in left {
            trial = trial.env(name, value);
        }
        let finished = trial.run();
        finished.assert_code(0).assert_stderr(&[named]);
        let is_warned = finished.stderr.contains("warning");
        assert_eq!(is_warned, !named.is_empty(), "{}", finished.stderr);
        let told = "2 ranks on 1 node, launcher built-in, transport shared memory;";
        assert!(finished.stdout.contains(told), "{}", finished.stdout);
    }
}

#[test]
fn a_secret_that_is_guessed_at_once_is_warned_of() {
    let port = free_port();
    let start = |rank| {
        Trial::tiny(&[], &["train.max_steps=1"])
            .rank(rank, 2, &port)
            .env("BURN_DIST_SECRET", "aaaaaaaaaaaaaaaa")
            .start()
    };
    let [main, other] = [start(0), start(1)].map(|rank| rank.wait(Duration::from_secs(60)));
    let warning = "easy to guess; create one with `openssl rand -hex 16`";
    main.assert_code(0).assert_stderr(&[warning]);
    assert!(!other.stderr.contains(warning), "{}", other.stderr);
}

/// Otherwise each rank would start as many ranks again.
#[test]
fn a_launcher_that_is_there_is_heard_and_its_variables_are_named() {
    let of_mpi = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let meeting = [
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
        ("BURN_DIST_SECRET", "a secret of this test only"),
    ];
    let mut trial = Trial::new(&["--nproc", "2"]);
    for (name, value) in of_mpi.into_iter().chain(meeting) {
        trial = trial.env(name, value);
    }
    let refused = trial.named_parent("mpirun").run();
    refused.assert_code(2).assert_stderr(&[
        "--nproc starts ranks, but mpi already started this process",
        "or unset OMPI_COMM_WORLD_RANK\n",
    ]);
}

/// `--config <(command)` of a shell makes a pipe. Only one reader can read it.
#[test]
fn a_pipe_is_no_configuration_for_several_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let pipe = pipe.to_str().unwrap();
    Trial::new(&["--nproc", "2", "--config", pipe])
        .run()
        .assert_code(2)
        .assert_stderr(&["is not a regular file"])
        .assert_nobody_left();
    // Weights cannot come from a pipe either; without the check this would wait for ever.
    let weights = format!("model.weights={pipe}");
    Trial::new(&["check", "--set", &weights])
        .run()
        .assert_code(2)
        .assert_stderr(&["it is not a regular file"]);
}

/// The memory of this host says nothing about a GPU's.
#[test]
fn what_fits_is_told_of_the_device_that_is_asked_for() {
    let fits = |device: &str| {
        let device = format!("train.device={device}");
        let checked = Trial::new(&["check", "--nproc", "2", "--set", &device]).run();
        checked.assert_code(0);
        checked
            .stdout
            .lines()
            .filter(|line| line.contains(", fits into"))
            .count()
    };
    assert_eq!(fits("cpu"), 4);
    if cfg!(not(feature = "cuda")) {
        assert_eq!(fits("cuda"), 0);
        let told = Trial::new(&["check", "--set", "train.device=cuda"]).run();
        assert!(
            told.stdout.contains("# (whether it fits is unknown: "),
            "{}",
            told.stdout
        );
    }
}

#[test]
fn a_folder_that_holds_a_run_is_refused() {
    Trial::new(&["--run-dir", "old"])
        .file("old/metrics.jsonl", "")
        .run()
        .assert_code(2)
        .assert_stderr(&["old already contains a run", "--resume auto"]);
    // A path that is no folder is rejected even if a run may be resumed.
    Trial::new(&["--run-dir", "file", "--resume", "auto"])
        .file("file", "")
        .run()
        .assert_code(2)
        .assert_stderr(&["file is not a folder"]);
}

#[test]
fn a_dry_run_says_what_would_be_done_and_does_nothing() {
    let finished = Trial::new(&["--dry-run", "--nproc", "2", "--set", "optimizer.lr=0.25"]).run();
    finished.assert_code(0).assert_no_files(&[]);
    for expected in [
        "lr = 0.25",
        "# world size 2",
        "1199882 parameters",
        "steps per epoch",
    ] {
        assert!(finished.stdout.contains(expected), "{}", finished.stdout);
    }
    for (settings, steps) in [
        (
            &["train.limit_batches=5"][..],
            "# 8192 training and 2000 test images, 5 steps",
        ),
        (
            &["train.fast_dev_run=true"],
            "# 8192 training and 2000 test images, 3 steps",
        ),
        (
            &["train.overfit_batches=4", "train.batch_size=32"],
            "# 128 training and 128 train images, 4 steps",
        ),
    ] {
        let sets = settings.iter().flat_map(|setting| ["--set", setting]);
        let args: Vec<&str> = ["--dry-run"].into_iter().chain(sets).collect();
        let finished = Trial::new(&args).run();
        finished.assert_code(0);
        assert!(finished.stdout.contains(steps), "{}", finished.stdout);
    }
    // The printed configuration is valid.
    Trial::new(&["--dry-run", "--config", "printed.toml"])
        .file("printed.toml", &finished.stdout)
        .run()
        .assert_code(0);
}

#[test]
fn what_does_not_fit_the_data_or_the_model_is_told_with_its_place() {
    let config = "[model]\nname = \"cnn\"\n[data]\ntrain_samples = 64\ntest_samples = 8\n\
                  [train]\nbatch_size = 32\nepochs = 1\n\
                  [optimizer]\nname = \"sgd\"\nlr = 0.1\n[[optimizer.groups]]\nmatch = \"fc2.*\"\n";
    let cases = [
        ("train.batch_size=128", "of --set train.batch_size=128"),
        (
            "data.name=image-folder data.dir=none",
            "of --set data.dir=none",
        ),
        ("model.name=csc-cnn", "line 12, column 1 of my.toml"),
        (
            "data.on_device=true data.augment=cutout:4",
            "of --set data.on_device=true",
        ),
        (
            "data.name=generated data.size=4",
            "line 2, column 8 of my.toml",
        ),
    ];
    for (settings, place) in cases {
        let sets = settings.split(' ').flat_map(|set| ["--set", set]);
        let sets: Vec<&str> = sets.collect();
        let run = |first: &[&str]| {
            let args = [first, &["--config", "my.toml"], &sets].concat();
            let finished = Trial::new(&args).file("my.toml", config).run();
            finished
                .assert_code(2)
                .assert_stderr(&["invalid configuration", place])
                .assert_no_files(&["my.toml"]);
            assert_eq!(finished.stderr.matches(place).count(), 1);
        };
        run(&["train", "--run-dir", "run"]);
        run(&["train", "--run-dir", "run", "--nproc", "2"]);
        run(&["check"]);
    }
}

#[test]
fn a_pattern_that_matches_nothing_is_told_with_its_key() {
    let groups = "[[optimizer.groups]]\nmatch = \"fc2.*\"\n";
    for (pattern, place) in [("haed.*", "line 6, column 15"), ("fc2.*", "")] {
        let config = format!(
            "[model]\nname = \"cnn\"\n[optimizer]\nname = \"muon\"\nlr = 0.02\nadamw_match = [\"{pattern}\"]\n{groups}"
        );
        let finished = Trial::new(&["check", "--config", "my.toml"])
            .file("my.toml", config)
            .run();
        match place {
            "" => finished.assert_code(0),
            place => finished.assert_code(2).assert_stderr(&[place]),
        };
    }
}

#[test]
fn missing_data_is_a_wrong_configuration_and_broken_data_a_failure() {
    let mnist = |nproc: &str| {
        Trial::new(&[
            "--config",
            "mnist-cnn.toml",
            "--nproc",
            nproc,
            "--set",
            "data.download=false",
            "--set",
            "data.dir=mnist",
            "--run-dir",
            "run",
        ])
    };
    for nproc in ["1", "2"] {
        let finished = mnist(nproc).run();
        finished
            .assert_code(2)
            .assert_stderr(&["train-images-idx3-ubyte", "of --set data.dir=mnist"])
            .assert_no_files(&[]);
        assert_eq!(finished.stderr.matches("incomplete").count(), 1);
    }
    let with_images = |images: &[u8]| {
        mnist("1")
            .file("mnist/train-images-idx3-ubyte", images)
            .file("mnist/train-labels-idx1-ubyte", [0, 0, 8, 1, 0, 0, 0, 1, 7])
            .file("mnist/t10k-images-idx3-ubyte", images)
            .file("mnist/t10k-labels-idx1-ubyte", [0, 0, 8, 1, 0, 0, 0, 1, 7])
            .run()
    };
    let header = [0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28];
    let truncated = [&header[..], &[0; 700]].concat();
    with_images(&truncated)
        .assert_code(1)
        .assert_stderr(&["train-images-idx3-ubyte", "truncated"])
        .assert_no_files(&["mnist"]);
    let wrong_magic = [&[1, 2, 3, 4], &header[4..], &[0; 784]].concat();
    with_images(&wrong_magic)
        .assert_code(1)
        .assert_stderr(&["train-images-idx3-ubyte", "it starts with"])
        .assert_no_files(&["mnist"]);
}

/// Job scripts handle the exit codes of ranks. This test stands in for Slurm.
#[test]
fn job_scripts_pass_signals_on_and_requeue_what_is_theirs() {
    let array = [("SLURM_ARRAY_JOB_ID", "7"), ("SLURM_ARRAY_TASK_ID", "2")];
    let cases = [
        (
            &array[..],
            Some(Signal::TERM),
            "RUNNING",
            75,
            "requeue 7_2\n",
        ),
        (&[], Some(Signal::USR1), "RUNNING", 75, "requeue 7\n"),
        (&[], Some(Signal::USR1), "COMPLETING", 75, ""),
        (&[], None, "RUNNING", 138, ""),
    ];
    // All scripts end alike.
    for (script, cases) in [
        ("one-node", &cases[..]),
        ("several-nodes", &cases[..1]),
        ("preemptible", &cases[..1]),
    ] {
        for &(variables, signal, state, code, requeued) in cases {
            let (ended, asked, said) = job_script(script, variables, signal, state);
            assert_eq!(ended, Some(code), "{script} {state}: {said}");
            assert_eq!(asked, requeued, "{script} {state}: {said}");
            assert_eq!(said.contains("it needs `exec`"), code == 138, "{said}");
        }
    }
}

/// Runs a job script with substitutes of Slurm's programs, whose tasks exit with 138 unless told to
/// save. Returns the exit code, the requests to the controller, and the output.
fn job_script(
    script: &str,
    variables: &[(&str, &str)],
    signal: Option<Signal>,
    state: &str,
) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let wait = match signal {
        Some(_) => "100",
        None => "1",
    };
    for (name, text) in [
        (
            "srun",
            format!(
                "trap 'exit 75' USR1; touch begun; for i in $(seq {wait}); do sleep 0.1; done; exit 138"
            ),
        ),
        ("squeue", format!("echo {state}")),
        ("scontrol", "echo \"$@\" >>asked".to_owned()),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = std::env::var("PATH").unwrap();
    let file = format!("../configs/slurm/{script}.sbatch");
    let child = Command::new("bash")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(file))
        .current_dir(folder.path())
        .env("PATH", format!("{}:{path}", folder.path().display()))
        .env("TRAINER", env!("CARGO_BIN_EXE_trainer"))
        .env("SLURM_JOB_ID", "7")
        .env("SLURM_JOB_NAME", "test")
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !folder.path().join("begun").exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    if let Some(signal) = signal {
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap_or_default();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), asked, said)
}

/// PyTorch rejects these in training, too, because nothing is learned from them.
#[test]
fn a_batch_normalization_of_one_value_is_refused() {
    let sets = |model: &[&'static str], size: &'static str, batch: &'static str| {
        let data = ["data.name=generated", "data.train_samples=8", size, batch];
        let sets = model.iter().copied().chain(data);
        sets.flat_map(|set| ["--set", set]).collect::<Vec<_>>()
    };
    let resnet = ["model.name=resnet", "model.stem=imagenet"];
    let one = sets(&resnet, "data.size=32", "train.batch_size=1");
    let two = sets(&resnet, "data.size=32", "train.batch_size=2");
    let larger = sets(&resnet, "data.size=33", "train.batch_size=1");
    for command in [
        &["train", "--run-dir", "run", "--nproc", "1"][..],
        &["check"],
        &["lr-find"],
    ] {
        Trial::new(&[command, &one].concat())
            .run()
            .assert_code(2)
            .assert_stderr(&["one value per channel", "train.batch_size=1", "at least 2"])
            .assert_no_files(&[]);
    }
    let accumulated = [&["check", "--set", "train.accumulate=2"], &two[..]].concat();
    let told = ["train.accumulate=2", "lower train.accumulate (now 2)"];
    let refused = Trial::new(&accumulated).run();
    refused.assert_code(2).assert_stderr(&told);
    let ranks = ["check", "--nproc", "2"];
    Trial::new(&[&ranks, &two[..]].concat())
        .run()
        .assert_code(2)
        .assert_stderr(&["parallel.sync_batch_norm = true"]);
    let together = [
        &ranks,
        &two[..],
        &["--set", "parallel.sync_batch_norm=true"],
    ]
    .concat();
    for good in [
        together,
        [&["check"], &two[..]].concat(),
        [&["check"], &larger[..]].concat(),
    ] {
        Trial::new(&good).run().assert_code(0);
    }
}

#[test]
fn home_and_variables_in_paths_are_expanded() {
    let image = image::RgbImage::from_pixel(12, 12, image::Rgb([9, 99, 199]));
    let mut png = std::io::Cursor::new(Vec::new());
    image.write_to(&mut png, image::ImageFormat::Png).unwrap();
    let home = tempfile::tempdir().unwrap();
    for class in ["a", "b"] {
        let folder = home.path().join("pictures").join(class);
        std::fs::create_dir_all(&folder).unwrap();
        for number in 0..3 {
            std::fs::write(folder.join(format!("{number}.png")), png.get_ref()).unwrap();
        }
    }
    let config = "[model]\nname = \"cnn\"\n[optimizer]\nname = \"sgd\"\n[train]\nbatch_size = 2\nepochs = 1\n\
                  [data]\nname = \"image-folder\"\nsize = 12\nvalidation = 0.3\n";
    std::fs::write(home.path().join("my.toml"), config).unwrap();
    let trial = |args: &[&str]| {
        let home = home.path().to_str().unwrap();
        Trial::new(args)
            .env("HOME", home)
            .env("PLACE", "pictures")
            .run()
    };
    for dir in ["data.dir=~/pictures", "data.dir='$HOME/${PLACE}'"] {
        trial(&[
            "--config",
            "~/my.toml",
            "--set",
            dir,
            "--run-dir=~/run",
            "--nproc",
            "1",
        ])
        .assert_code(0)
        .assert_no_files(&[]);
        assert!(home.path().join("run/metrics.jsonl").is_file());
        std::fs::remove_dir_all(home.path().join("run")).unwrap();
    }
    trial(&[
        "check",
        "--config=~/my.toml",
        "--set",
        "data.dir=$NOT_SET_AT_ALL/x",
    ])
    .assert_code(2)
    .assert_stderr(&[
        "`data.dir`",
        "NOT_SET_AT_ALL, which is not set",
        "--set data.dir",
    ]);
    trial(&["--config=~/my.toml", "--run-dir=$NOT_SET_AT_ALL/x"])
        .assert_code(2)
        .assert_stderr(&["--run-dir", "NOT_SET_AT_ALL, which is not set"])
        .assert_no_files(&[]);
}

#[test]
fn milestones_that_are_not_in_order_are_refused() {
    for (key, values, said) in [
        ("milestones", "[60, 30]", "not in ascending order"),
        ("milestone_steps", "[5, 7, 6]", "not in ascending order"),
        ("milestones", "[2, 2.0]", "contain the same value twice"),
        (
            "milestone_steps",
            "[1, 5, 5]",
            "contain the same value twice",
        ),
    ] {
        let set = format!("schedule.{key}={values}");
        Trial::new(&["check", "--set", "schedule.name=step", "--set", &set])
            .run()
            .assert_code(2)
            .assert_stderr(&[said, &format!("--set {set}")]);
    }
}

#[test]
fn a_folder_of_images_without_a_usable_file_is_a_wrong_configuration() {
    let args = [
        "--nproc",
        "1",
        "--run-dir",
        "run",
        "--set",
        "data.name=image-folder",
        "--set",
        "data.dir=pictures",
        "--set",
        "data.validation=0.5",
    ];
    for (file, content) in [
        ("pictures/a/notes.txt", &b"no image"[..]),
        ("pictures/a/1.png", b"no PNG"),
    ] {
        Trial::new(&args)
            .file(file, content)
            .run()
            .assert_code(2)
            .assert_stderr(&["contains no usable image", "--set data.dir=pictures"])
            .assert_no_files(&["pictures"]);
    }
}

#[test]
fn colors_are_those_that_the_environment_allows() {
    let wrong = ["--set", "train.epoch=3"];
    let colored = |variables: &[(&str, &str)]| {
        let mut trial = Trial::new(&wrong);
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
            trial = trial.without(name);
        }
        for (name, value) in variables {
            trial = trial.env(name, value);
        }
        let finished = trial.run();
        finished.assert_code(2).assert_stderr(&["did you mean"]);
        finished.stderr.contains('\x1b')
    };
    assert!(!colored(&[]), "a pipe gets no colors");
    assert!(colored(&[("CLICOLOR_FORCE", "1")]));
    assert!(!colored(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
    // On a terminal.
    let on_terminal = |variable: &str| {
        let command = format!("{} --set train.epoch=3", env!("CARGO_BIN_EXE_trainer"));
        let output = Command::new("env")
            .args(["-u", "NO_COLOR", "-u", "CLICOLOR", "-u", "CLICOLOR_FORCE"])
            // With it, any terminal gets colors.
            .args(["-u", "CI"])
            .args([
                "TERM=xterm",
                variable,
                "script",
                "-qec",
                &command,
                "/dev/null",
            ])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("did you mean"), "{text}");
        text.contains('\x1b')
    };
    if Command::new("script").arg("--version").output().is_err() {
        println!("SKIPPED: colors on a terminal: there is no `script` (util-linux)");
        return;
    }
    assert!(on_terminal("A=1"));
    for variable in ["NO_COLOR=1", "TERM=dumb", "CLICOLOR=0"] {
        assert!(!on_terminal(variable), "{variable}");
    }
}

#[test]
fn flags_choose_what_is_printed() {
    let settings = [
        "train.max_steps=2",
        "loss_scale.initial=1024.0",
        "checkpoint.every_epochs=1",
    ];
    let run = |args: &[&str]| {
        let finished = Trial::tiny(args, &settings).run();
        finished.assert_code(0);
        finished
    };
    let idle = "warning: [loss_scale] has no effect with train.precision = \"f32\"";
    let usual = run(&["--nproc", "2"]);
    assert!(usual.stdout.contains("epoch 1/1"), "{}", usual.stdout);
    assert!(!usual.stderr.contains("info: "), "{}", usual.stderr);
    let quiet = run(&["-q", "train", "--nproc", "2"]);
    assert_eq!(quiet.stdout, "");
    // Warnings stay, in one style and once.
    for finished in [&usual, &quiet] {
        finished.assert_stderr(&[idle]);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        assert!(!finished.stdout.contains("warning"), "{}", finished.stdout);
    }
    let verbose = run(&["train", "-v", "--nproc", "2"]);
    verbose.assert_stderr(&["info: rank 0 of 2, ", "[rank 1] info: rank 1 of 2"]);
    let folder = quiet.path("run");
    let folder = folder.to_str().unwrap();
    for args in [
        &["eval", "-q", folder][..],
        &["-v", "eval", folder],
        &["-vv", "check"],
    ] {
        let finished = Trial::new(args).run();
        finished.assert_code(0);
        assert!(!finished.stdout.is_empty(), "{args:?}");
    }
    let json = Trial::new(&["eval", "--nproc", "2", folder, "--json", "-"]).run();
    json.assert_code(0);
    let value: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(value["step"], 2);
    Trial::new(&["-q", "-v"]).run().assert_code(2);
}
