//! Tests of parsing configurations, right and wrong ones.

use burn_dist::parallel::Precision;
use proptest::prelude::*;

use super::*;

const GOOD: &str = "[model]\nname = \"cnn\"\n\n[optimizer]\nname = \"sgd\"\nlr = 0.1\n";

fn load(text: &str, sets: &[&str]) -> Result<Loaded, ConfigError> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    Loaded::parse("test.toml", "test", text, &sets)
}

/// Message and help of the error in one text.
fn error(text: &str, sets: &[&str]) -> String {
    let error = load(text, sets).unwrap_err();
    format!("{error} | {}", error.help_text().unwrap_or_default())
}

#[track_caller]
fn assert_error(text: &str, sets: &[&str], parts: &[&str]) {
    let message = error(text, sets);
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

#[test]
fn every_shipped_configuration_reads_and_round_trips() {
    for embedded in EMBEDDED {
        let loaded = Loaded::load(embedded.name, &[]).unwrap();
        assert_eq!(loaded.name, embedded.stem());
        // The batch sizes of published recipes do not divide by 3.
        for world in [1, 2, 4] {
            loaded.batching(world).unwrap();
        }
        let text = loaded.config.to_toml().unwrap();
        let again = load(&text, &[]).unwrap();
        assert_eq!(again.config, loaded.config, "{text}");
    }
}

#[test]
fn defaults_are_filled_in() {
    let config = load(GOOD, &[]).unwrap().config;
    assert_eq!(config.model.kind, ModelKind::Cnn(CnnConfig::default()));
    assert_eq!(config.optimizer.lr(), 0.1);
    assert_eq!(config.train, TrainConfig::default());
    assert_eq!(config.log.every_steps, 1);
    let text = config.to_toml().unwrap();
    for expected in ["every_steps = 1", "nesterov = false", "bucket_mib = 8"] {
        assert!(text.contains(expected), "{expected} is not in:\n{text}");
    }
}

#[test]
fn an_unknown_key_is_named_with_its_place_and_the_nearest() {
    let text = GOOD.replace("lr = 0.1", "momentun = 0.9");
    assert_error(
        &text,
        &[],
        &[
            "unknown key `momentun` in [optimizer]",
            "line 6, column 1 of test.toml",
            "did you mean `momentum`?",
        ],
    );
    assert_error(
        &format!("{GOOD}[train]\nlr = 0.1"),
        &[],
        &["unknown key `lr` in [train]", "belongs to [optimizer]"],
    );
    // A key of another optimizer is not a key of this one.
    assert_error(
        &format!("{GOOD}rho = 0.9"),
        &[],
        &["unknown key `rho`", "valid keys: lr, momentum"],
    );
}

#[test]
fn an_unknown_section_is_named_with_its_place_and_the_nearest() {
    assert_error(
        &format!("{GOOD}[optimiser]\nlr = 1"),
        &[],
        &[
            "unknown section `optimiser`",
            "line 7, column 2",
            "did you mean `optimizer`?",
        ],
    );
    assert_error("lr = 0.1", &[], &["line 1, column 1", "optimizer.lr"]);
    assert_error(
        "train = 3",
        &[],
        &["`train` is a section", "line 1, column 9"],
    );
}

#[test]
fn unknown_names_are_named_with_the_nearest() {
    let model = GOOD.replace("\"cnn\"", "\"cmm\"");
    assert_error(
        &model,
        &[],
        &[
            "unknown model `cmm`",
            "line 2, column 8",
            "valid names: cnn, csc-cnn",
        ],
    );
    let optimizer = GOOD.replace("sgd", "adamx");
    assert_error(
        &optimizer,
        &[],
        &[
            "unknown optimizer `adamx`",
            "line 5, column 8",
            "did you mean `adam",
        ],
    );
    assert_error(
        &format!("{GOOD}[data]\nname = \"mnits\""),
        &[],
        &[
            "unknown name `mnits`",
            "line 8, column 8",
            "did you mean `mnist`?",
        ],
    );
    assert_error(
        "[model]\n",
        &[],
        &["[model] needs the key `name`", "one of: cnn"],
    );
    assert_error("", &[], &["[model] needs the key `name`"]);
    assert_error(
        "[model]\nname = 3",
        &[],
        &["must be a string", "line 2, column 8"],
    );
}

#[test]
fn wrong_types_and_syntax_errors_show_their_place() {
    assert_error(
        &GOOD.replace("0.1", "\"fast\""),
        &[],
        &["`optimizer.lr` must be a number", "line 6, column 6"],
    );
    assert_error(
        &format!("{GOOD}[train]\nepochs = -1"),
        &[],
        &["line 8, column 10"],
    );
    assert_error("[model\n", &[], &["line 1"]);
    assert_error(
        &format!("{GOOD}[train]\nbatch_size = 8\nbatch_size = 9"),
        &[],
        &["line 9, column 1"],
    );
}

#[test]
fn numbers_out_of_range_show_their_place() {
    for (section, line, key) in [
        ("train", "epochs = 0", "train.epochs"),
        ("train", "max_steps = 0", "train.max_steps"),
        ("train", "clip_norm = nan", "train.clip_norm"),
        ("train", "clip_norm = 0.0", "train.clip_norm"),
        ("data", "workers = 100000", "data.workers"),
        ("data", "train_samples = 0", "data.train_samples"),
        ("data", "dir = \"x\"", "data.dir"),
        ("data", "augment = \"rotate\"", "rotate"),
        ("parallel", "bucket_mib = 0", "parallel.bucket_mib"),
        ("parallel", "abort_seconds = 0", "parallel.abort_seconds"),
        ("ema", "decay = 1.0", "ema.decay"),
        ("loss_scale", "initial = 0.0", "loss_scale.initial"),
        ("loss_scale", "floor = 1e9", "loss_scale.floor"),
        ("loss_scale", "growth = 0.5", "loss_scale.growth"),
        ("loss_scale", "backoff = 1.0", "loss_scale.backoff"),
        ("loss_scale", "hysteresis = 0", "loss_scale.hysteresis"),
        (
            "parallel",
            "timeout_seconds = 0",
            "parallel.timeout_seconds",
        ),
        ("log", "every_steps = 0", "log.every_steps"),
    ] {
        let text = format!("{GOOD}[{section}]\n{line}");
        assert_error(&text, &[], &[key, "line 8, column"]);
    }
    for (set, key) in [
        ("optimizer.lr=0", "optimizer.lr"),
        ("optimizer.lr=-1.0", "optimizer.lr"),
        ("optimizer.lr=inf", "optimizer.lr"),
        ("optimizer.lr=1e-300", "optimizer.lr"),
        ("optimizer.momentum=1.0", "optimizer.momentum"),
        ("optimizer.nesterov=true", "optimizer.nesterov"),
        (
            "optimizer={name=\"lion\", betas=[0.9, 1.0]}",
            "optimizer.betas",
        ),
        ("model.dropout_conv=1.0", "model.dropout_conv"),
        ("model.dropout_hidden=-0.1", "model.dropout_hidden"),
        ("model.filters=[0, 1]", "model.filters"),
    ] {
        assert_error(GOOD, &[set], &[key, "of --set"]);
    }
}

#[test]
fn a_wrong_type_is_told_in_the_words_of_a_user() {
    for (line, parts) in [
        (
            "epochs = \"10\"",
            [
                "`train.epochs` must be an integer, but is the string",
                "write `epochs = 10`",
            ],
        ),
        (
            "epochs = 10.0",
            ["but is the number 10.0", "write `epochs = 10`"],
        ),
        ("epochs = [10]", ["but is an array", "write `epochs = 10`"]),
        (
            "epochs = \"ten\"",
            ["must be an integer", "for example `epochs = 1`"],
        ),
        (
            "epochs = -1",
            ["`train.epochs` = -1 must not be negative", "line 8"],
        ),
        (
            "max_steps = \"all\"",
            ["must be an integer", "for example `max_steps = 10`"],
        ),
        (
            "recompute = \"yes\"",
            ["must be `true` or `false`", "write `recompute = true`"],
        ),
        (
            "recompute = 0",
            ["but is the integer 0", "write `recompute = false`"],
        ),
        (
            "device = true",
            [
                "must be a string in quotes, but is `true`",
                "for example `device = \"auto\"`",
            ],
        ),
        (
            "clip_norm = \"1e-3\"",
            ["must be a number", "write `clip_norm = 1e-3`"],
        ),
        (
            "precision = 16",
            [
                "a string in quotes, but is the integer 16",
                "write `precision = \"f16\"`",
            ],
        ),
    ] {
        assert_error(&format!("{GOOD}[train]\n{line}"), &[], &parts);
    }
    let adam = "optimizer.name=adam";
    for (set, parts) in [
        (
            "optimizer.betas=0.9",
            [
                "an array of 2 numbers, but is the number 0.9",
                "for example `betas = [0.9, 0.999]`",
            ],
        ),
        (
            "optimizer.betas=[0.9]",
            [
                "expected 2 values, found 1",
                "for example `betas = [0.9, 0.999]`",
            ],
        ),
        (
            "optimizer.betas=[0.9, \"0.99\"]",
            ["but contains the string \"0.99\"", "betas"],
        ),
        (
            "data.mean=0.5",
            ["an array of numbers", "write `mean = [0.5]`"],
        ),
        (
            "data.augment=[\"crop:4\", \"flip\"]",
            ["but is an array", "write `augment = \"crop:4+flip\"`"],
        ),
    ] {
        assert_error(GOOD, &[adam, set], &[parts[0], parts[1], "of --set"]);
    }
}

#[test]
fn words_of_other_frameworks_are_translated() {
    for (line, part) in [
        ("[train]\nmax_epochs = 3", "did you mean `epochs`?"),
        (
            "[train]\nlearning_rate = 0.1",
            "did you mean `lr` in [optimizer]?",
        ),
        ("[train]\ngrad_clip = 1.0", "did you mean `clip_norm`?"),
        (
            "[train]\nweight-decay = 0.1",
            "did you mean `weight_decay` in [optimizer]?",
        ),
        ("[train]\naccelerator = \"gpu\"", "did you mean `device`?"),
        ("[train]\namp = true", "did you mean `precision`?"),
        ("[train]\nema = true", "did you mean `decay` in [ema]?"),
        ("[train]\ndevices = 2", "--nproc N"),
        ("[train]\nseed_everything = 1", "did you mean `seed`?"),
        ("[train]\ncompile = true", "nothing needs to be compiled"),
        ("[train]\nreport_to = \"wandb\"", "log.tensorboard"),
        ("[zero_optimization]\nstage = 2", "did you mean `parallel`?"),
        ("[parallel]\nstage = 2", "did you mean `strategy`?"),
        ("[train]\nBatch_Size = 8", "did you mean `batch_size`?"),
        ("[train]\ndevice = \"gpu\"", "did you mean `cuda`?"),
        ("[train]\nprecision = \"FP16\"", "did you mean `f16`?"),
        ("[data]\ngray = true", "did you mean `color` in [data]?"),
        ("[data]\nname = \"CIFAR10\"", "did you mean `cifar-10`?"),
        ("[parallel]\nstrategy = \"fsdp\"", "did you mean `zero-3`?"),
        ("[training]\nepochs = 3", "did you mean `train`?"),
        ("[scheduler]\nname = \"cosine\"", "did you mean `schedule`?"),
        ("[early_stopping]\ntarget_accuracy = 99", "write 0.99"),
        ("[early_stopping]\ntarget_accuracy = 99.5", "write 0.995"),
        ("[data]\nvalidation = 20", "write 0.2"),
        ("[train]\nlabel_smoothing = 10", "write 0.1"),
        ("[data]\naugment = \"flip+crop\"", "`data.augment`: "),
        ("[data]\naugment = \"autoaugment\"", "autoaugment"),
    ] {
        assert_error(&format!("{GOOD}{line}"), &[], &[part]);
    }
    assert_error(
        &GOOD.replace("sgd", "AdamW"),
        &[],
        &["did you mean `adamw`?"],
    );
    assert_error("learning_rate = 0.1", &[], &["did you mean optimizer.lr?"]);
    // A value that is no percentage.
    let far = error(GOOD, &["early_stopping.target_accuracy=1.5"]);
    assert!(!far.contains("write"), "{far}");
}

#[test]
fn a_key_of_another_name_is_told_with_that_name() {
    let adam = GOOD.replace("sgd", "adam") + "momentum = 0.9";
    let parts = [
        "did you mean `betas`?",
        "`momentum` is a key of sgd, muon, rmsprop",
    ];
    assert_error(&adam, &[], &parts);
    let csc = GOOD.replace("name = \"cnn\"", "name = \"csc-cnn\"\npatch = 4");
    assert_error(&csc, &[], &["`patch` is a key of vit"]);
}

/// The messages of all errors, in their order.
fn errors(text: &str, sets: &[&str]) -> Vec<String> {
    let error = load(text, sets).unwrap_err();
    error.flaws().map(ToString::to_string).collect()
}

#[test]
fn all_errors_of_a_file_are_told_at_once() {
    let text = "[model]\nname = \"cnn\"\nhiden = 8\n[optimizer]\nname = \"sgd\"\nlr = -1.0\n\
                weight_decay = -1.0\n[train]\nepochs = \"ten\"\nclip_norm = 0.0\nseeed = 1\n\
                [early_stoping]\npatience = 3\n[schedule]\nname = \"cosin\"\n";
    let found = errors(text, &["parallel.prefetch=1000", "train.device=gpu"]);
    let places = [
        "line 3,",
        "line 6,",
        "line 7,",
        "line 9,",
        "line 10,",
        "line 11,",
        "line 12,",
        "line 15,",
        "--set parallel.prefetch",
        "--set train.device",
    ];
    assert_eq!(found.len(), places.len(), "{found:#?}");
    for (message, place) in found.iter().zip(places) {
        assert!(message.contains(place), "{message} {place}");
    }
    let both = errors(
        "[data]\nworkers = ]\n[train]\nepochs = = 3\n",
        &["train.seed"],
    );
    assert_eq!(both.len(), 3, "{both:#?}");
    for (message, part) in both.iter().zip(["line 2", "line 4", "lacks `=`"]) {
        assert!(message.contains(part), "{both:#?}");
    }
    let many: String = (0..100).map(|i| format!("[section{i}]\n")).collect();
    let many = errors(&many, &[]);
    assert!(
        many.last().unwrap().starts_with("and ") && many.len() == 21,
        "{many:#?}"
    );
}

/// Otherwise one mistake gives two errors.
#[test]
fn an_error_that_only_follows_from_another_is_not_told() {
    for (text, sets) in [
        (
            format!("{GOOD}[ema]\ndecay = \"0.9\"\nwarmup = false"),
            &[][..],
        ),
        (format!("{GOOD}momentun = 0.9\nnesterov = true"), &[]),
        (
            format!("{GOOD}[schedule]\nname = \"cosine\"\nmin_lr = 0.05"),
            &["optimizer.lr=fast"],
        ),
        (
            format!("{GOOD}[schedule]\nname = \"cosine\"\nmin_lr = 0.05"),
            &["optimizer.name=addam"],
        ),
        (
            GOOD.replace("cnn", "cmm"),
            &["task.name=language", "data.name=text", "data.path=x"],
        ),
        (GOOD.to_owned(), &["task.name=languages", "data.name=text"]),
    ] {
        let found = errors(&text, sets);
        assert_eq!(found.len(), 1, "{found:#?}");
    }
}

#[test]
fn arrays_have_the_length_that_belongs_to_them() {
    for (set, words) in [
        ("model.filters=[1, 2, 3]", "expected 2 values, found 3"),
        ("model.filters=[1]", "expected 2 values, found 1"),
        (
            "optimizer={name=\"adam\", betas=[0.9, 0.99, 0.999]}",
            "found 3",
        ),
        ("optimizer={name=\"adafactor\", eps=[1e-3]}", "found 1"),
    ] {
        assert_error(GOOD, &[set], &[words, "of --set"]);
    }
}

#[test]
fn optimizers_that_see_whole_parameters_are_read_and_checked() {
    for (sets, key) in [
        (
            ["optimizer.name=lamb", "optimizer.betas=[0.9, 1.0]"],
            "optimizer.betas",
        ),
        (
            ["optimizer.name=lamb", "optimizer.weight_decay=-1.0"],
            "optimizer.weight_decay",
        ),
        (
            ["optimizer.name=adafactor", "optimizer.beta2_decay=0.8"],
            "optimizer.beta2_decay",
        ),
        (
            ["optimizer.name=adafactor", "optimizer.eps=[0.0, 1.0]"],
            "optimizer.eps",
        ),
        (
            ["optimizer.name=adafactor", "optimizer.clip_threshold=0"],
            "optimizer.clip_threshold",
        ),
        (
            ["optimizer.name=muon", "optimizer.momentum=1.0"],
            "optimizer.momentum",
        ),
        (
            ["optimizer.name=muon", "optimizer.ns_steps=0"],
            "optimizer.ns_steps",
        ),
        (
            ["optimizer.name=muon", "optimizer.adamw_lr=0.0"],
            "optimizer.adamw_lr",
        ),
        (
            ["optimizer.name=muon", "optimizer.adamw_betas=[-0.1, 0.9]"],
            "optimizer.adamw_betas",
        ),
        (
            ["optimizer.name=muon", "optimizer.adjust_lr=original-"],
            "original",
        ),
    ] {
        assert_error(GOOD, &sets, &[key, "of --set"]);
    }
    let sets =
        ["optimizer={name=\"muon\", adjust_lr=\"match-rms-adamw\", adamw_match=[\"head.*\"]}"];
    let config = load(GOOD, &sets).unwrap().config;
    let again = load(&config.to_toml().unwrap(), &[]).unwrap().config;
    assert_eq!(again, config);
    let of = |set: &str, path: &str, shape: &[usize]| {
        let state = load(GOOD, &[set]).unwrap().config.optimizer;
        let state = state.state_of(&burn_dist::parallel::ParameterSpec {
            path: path.to_owned(),
            shape: shape.to_vec(),
            dtype: burn_dist::DType::F32,
        });
        (state.elements, state.kept, state.whole)
    };
    assert_eq!(of("optimizer.name=lamb", "a", &[2, 3]), (6, 12, true));
    assert_eq!(of("optimizer.name=lion", "a", &[2, 3]), (6, 6, false));
    assert_eq!(
        of("optimizer.name=adafactor", "a", &[2, 3, 5]),
        (30, 6 + 10, true)
    );
    assert_eq!(of("optimizer.name=adafactor", "a", &[7]), (7, 7, true));
    assert_eq!(of("optimizer.name=adafactor", "a", &[7, 0]), (0, 0, true));
    let muon = sets[0];
    assert_eq!(of(muon, "fc.weight", &[2, 3]), (6, 6, true));
    assert_eq!(of(muon, "head.weight", &[2, 3]), (6, 12, false));
    assert_eq!(of(muon, "fc.bias", &[3]), (3, 6, false));
    let sgd = "optimizer.groups=[{match=\"fc.*\", momentum=0.5}]";
    assert_eq!(of(sgd, "fc.bias", &[3]), (3, 3, false));
    assert_eq!(of(sgd, "head.bias", &[3]), (3, 0, false));
}

#[test]
fn defaults_may_be_written_out() {
    let off = "[checkpoint]\nevery_steps = 0\nevery_epochs = 0\nkeep = 3\n[early_stopping]\n\
               [schedule]\nname = \"constant\"\n[parallel]\nstrategy = \"zero-2\"\n";
    assert!(load(&format!("{GOOD}{off}"), &[]).is_ok());
}

#[test]
fn ranks_to_shard_over_are_a_word_or_a_number() {
    use burn_dist::parallel::ShardWithin;
    let read = |value: &str| {
        let sets = [
            "parallel.strategy=zero-3",
            &format!("parallel.shard_within={value}"),
        ];
        let loaded = load(GOOD, &sets).unwrap();
        let again = load(&loaded.config.to_toml().unwrap(), &[]).unwrap();
        assert_eq!(again.config, loaded.config);
        loaded
    };
    let within = |value: &str| read(value).config.parallel.shard_within;
    assert_eq!(
        load(GOOD, &[]).unwrap().config.parallel.shard_within,
        ShardWithin::All
    );
    assert_eq!(
        (within("all"), within("node")),
        (ShardWithin::All, ShardWithin::Node)
    );
    assert_eq!(within("4").to_string(), "4");
    assert!(read("4").check_sharding(8).is_ok() && read("node").check_sharding(7).is_ok());
    let error = read("4").check_sharding(6).unwrap_err().to_string();
    assert!(error.contains("multiple of 4"), "{error}");
    for value in ["0", "-2", "host", "1.5", "[2]"] {
        let set = format!("parallel.shard_within={value}");
        assert_error(
            GOOD,
            &["parallel.strategy=zero-2", &set],
            &["a number of ranks", "of --set"],
        );
    }
    let set = "parallel.shard_within=2";
    assert_error(GOOD, &[set], &["shards nothing", "zero-3", "of --set"]);
}

#[test]
fn groups_are_read_and_checked() {
    let groups = "decay_norm_and_bias = false\n[[optimizer.groups]]\nmatch = \"head.*\"\n\
                  lr_factor = 10\nweight_decay = 0.0\n[[optimizer.groups]]\nmatch = \"*.bias\"\n";
    let text = format!("{GOOD}{groups}");
    let config = load(&text, &[]).unwrap().config;
    let found = &config.optimizer.groups;
    assert_eq!(found.len(), 2);
    assert_eq!(
        (found[0].lr_factor, found[0].weight_decay),
        (10.0, Some(0.0))
    );
    assert_eq!((found[1].lr_factor, found[1].weight_decay), (1.0, None));
    assert!(!config.optimizer.decay_norm_and_bias);
    let again = load(&config.to_toml().unwrap(), &[]).unwrap().config;
    assert_eq!(again, config);
    for (group, part) in [
        ("{match=\"\"}", "is empty"),
        ("{match=\"a\", lr_factor=-1.0}", "zero or positive"),
        ("{match=\"a\", weight_decay=-1.0}", "zero or positive"),
        ("{match=\"a\", momentum=1.0}", "in [0, 1)"),
        ("{lr_factor=1.0}", "missing field"),
        ("{match=\"a\", lr=1.0}", "unknown field"),
    ] {
        let set = format!("optimizer.groups=[{group}]");
        assert_error(GOOD, &[&set], &[part, "of --set"]);
    }
    let sets = [
        "optimizer.name=adam",
        "optimizer.groups=[{match=\"a\", momentum=0.5}]",
    ];
    assert_error(GOOD, &sets, &["momentum, which `adam` does not have"]);
}

#[test]
fn evaluations_are_in_f32_or_in_the_precision_of_the_training() {
    let precision = |sets: &[&str]| load(GOOD, sets).unwrap().config.train.eval_precision();
    assert_eq!(precision(&[]), Precision::F32);
    assert_eq!(precision(&["train.precision=bf16"]), Precision::Bf16);
    let both = ["train.precision=bf16", "train.eval_precision=f32"];
    assert_eq!(precision(&both), Precision::F32);
    assert_error(
        GOOD,
        &["train.precision=f16", "train.eval_precision=bf16"],
        &[
            "`train.eval_precision` = \"bf16\"",
            "remove it to evaluate in \"f16\"",
        ],
    );
}

#[test]
fn set_overrides_the_file() {
    let config = load(
        GOOD,
        &[
            "optimizer.lr=0.5",
            "optimizer.lr = 0.25",
            "data.name=mnist",
            "data.dir=/data/my mnist",
            "data.train_samples=12",
            "model.filters=[8, 16]",
            "train.precision=\"f32\"",
        ],
    )
    .unwrap()
    .config;
    assert_eq!(config.optimizer.lr(), 0.25);
    let dir = Some("/data/my mnist".into());
    assert_eq!(config.data.kind, DataKind::Mnist(MnistConfig { dir }));
    assert_eq!(config.data.train_samples, Some(12));
    // Another optimizer with other keys, in one argument.
    let replaced = GOOD.replace("lr = 0.1\n", "");
    let config = load(&replaced, &["optimizer={name=\"adamw\", eps=1e-6}"]);
    assert!(matches!(
        config.unwrap().config.optimizer.kind,
        OptimizerKind::AdamW(AdamWConfig { eps: 1e-6, .. })
    ));
}

#[test]
fn errors_in_set_point_into_its_text() {
    assert_error(
        GOOD,
        &["train.seed=1", "train.epoch=3"],
        &[
            "unknown key `epoch`",
            "column 7 of --set train.epoch=3",
            "did you mean `epochs`?",
        ],
    );
    assert_error(
        GOOD,
        &["train.epochs=three"],
        &[
            "must be an integer",
            "column 14 of --set train.epochs=three",
        ],
    );
    assert_error(GOOD, &["lr=0.1"], &["unknown section `lr`", "optimizer.lr"]);
    assert_error(GOOD, &["train.epochs"], &["lacks `=`"]);
    assert_error(GOOD, &["=3"], &["not a configuration key"]);
    assert_error(GOOD, &["train..epochs=3"], &["not a configuration key"]);
    assert_error(GOOD, &["a.b.c.d.e.f=3"], &["not a configuration key"]);
    assert_error(GOOD, &["train=3"], &["is a section", "column 7 of --set"]);
    // If a --set changes the name, keys in the file may no longer fit: the error shows the file.
    assert_error(
        &format!("{GOOD}momentum = 0.9"),
        &["optimizer.name=adam"],
        &["unknown key `momentum`", "line 7, column 1 of test.toml"],
    );
}

#[test]
fn batch_sizes_that_do_not_fit_show_their_place() {
    let loaded = load(&format!("{GOOD}[train]\nbatch_size = 64"), &[]).unwrap();
    let error = loaded.batching(3).unwrap_err();
    assert!(error.to_string().contains("line 8, column 14"), "{error}");
    assert!(loaded.batching(2).is_ok());
}

#[test]
fn a_missing_file_is_an_error_that_lists_what_is_shipped() {
    let error = Loaded::load("mnist_cnn.toml", &[]).unwrap_err();
    assert!(error.to_string().contains("mnist_cnn.toml"), "{error}");
    let help = error.help_text().unwrap_or_default();
    assert!(help.contains("did you mean `mnist-cnn.toml`?"), "{help}");
    assert!(Loaded::load("/", &[]).is_err());
    assert!(Loaded::load("", &[]).is_err());
}

#[test]
fn a_file_where_the_user_stands_wins() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("digits.toml");
    std::fs::write(&file, GOOD).unwrap();
    let loaded = Loaded::load(file.to_str().unwrap(), &[]).unwrap();
    assert_eq!(loaded.config.optimizer.lr(), 0.1);
    std::fs::write(&file, [0xff, 0xfe]).unwrap();
    let error = Loaded::load(file.to_str().unwrap(), &[]).unwrap_err();
    assert!(error.to_string().contains("UTF-8"), "{error}");
}

#[test]
fn deep_nesting_is_refused_not_overflowed() {
    let segments = vec!["a"; 100_000].join(".");
    assert_error(&format!("{segments} = 1"), &[], &["dots in one line"]);
    assert_error(
        GOOD,
        &[&format!("{segments}=1")],
        &["not a configuration key"],
    );
    let brackets = "[".repeat(100_000);
    assert!(load(&format!("{GOOD}[data]\nworkers = {brackets}"), &[]).is_err());
    assert!(load(GOOD, &[&format!("data.workers={brackets}")]).is_err());
    // As deep as the limits allow: dotted keys inside nested inline tables, one line each.
    let line = format!("{{{} =\n", vec!["a"; 60].join("."));
    let deep = format!("x = {}1{}", line.repeat(70), "}".repeat(70));
    assert!(load(&deep, &[]).is_err());
    assert!(load(&"x".repeat(2 << 20), &[]).is_err());
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC*", set in "\\PC*") {
        let _ = load(&text, &[]);
        let _ = load(GOOD, &[&set]);
    }

    #[test]
    fn no_text_that_looks_like_a_configuration_panics(
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "[", "]", "[[", "]]", "{", "}", "=", ".", ",", "\n", "\"", "'", "\"\"\"", "#", " ",
                "model", "train", "optimizer", "data", "name", "lr", "batch_size", "hidden", "cnn",
                "sgd", "\"cnn\"", "\"sgd\"", "1", "-1", "1e400", "0x", "99999999999999999999999",
                "nan", "true", "1979-05-27", "é", "\u{1F600}", "\\u0000", "\r\n", "\t",
            ]),
            0..40,
        ),
    ) {
        let text = pieces.concat();
        let _ = load(&text, &[]);
        let _ = load(GOOD, &[&text]);
        let _ = load(GOOD, &[&format!("train.{text}")]);
    }

    #[test]
    fn numbers_read_back_exactly(lr in 1e-30f64..1e30, seed in 0..i64::MAX as u64) {
        let lr_set = format!("optimizer.lr={lr:?}");
        let seed_set = format!("train.seed={seed}");
        let loaded = load(GOOD, &[&lr_set, &seed_set]).unwrap();
        prop_assert_eq!(loaded.config.optimizer.lr(), lr);
        let again = load(&loaded.config.to_toml().unwrap(), &[]).unwrap();
        prop_assert_eq!(again.config, loaded.config);
    }
}

fn model(text: &str) -> ModelKind {
    let text = GOOD.replace("name = \"cnn\"", text);
    load(&text, &[]).unwrap().config.model.kind
}

#[test]
fn presets_fill_in_what_is_left_out() {
    let ModelKind::Vit(vit) = model("name = \"vit\"\npreset = \"b-16\"\ndepth = 3") else {
        panic!("not a vit");
    };
    assert_eq!((vit.dim, vit.heads), (Some(768), Some(12)));
    assert_eq!((vit.depth, vit.patch), (Some(3), Some(16)));
    let ModelKind::Vit(large) = model("name = \"vit\"\npreset = \"l-16\"") else {
        panic!("not a vit");
    };
    assert_eq!((large.dim, large.heads), (Some(1024), Some(16)));
    assert_eq!((large.depth, large.patch), (Some(24), Some(16)));
    let ModelKind::ConvNext(small) = model("name = \"convnext\"\npreset = \"small\"") else {
        panic!("not a convnext");
    };
    assert_eq!(small.depths, Some([3, 3, 27, 3]));
    assert_eq!(small.widths, Some([96, 192, 384, 768]));
    let ModelKind::WideResNet(wide) = model("name = \"wide-resnet\"\nwiden = 2") else {
        panic!("not a wide-resnet");
    };
    assert_eq!((wide.depth, wide.widen), (Some(28), Some(2)));
    let ModelKind::WideResNet(olivia) = model("name = \"wide-resnet\"\npreset = \"olivia\"") else {
        panic!("not a wide-resnet");
    };
    assert_eq!((olivia.depth, olivia.dropout), (None, Some(0.01)));
}

#[test]
fn impossible_models_are_refused_with_their_place() {
    for (text, parts) in [
        ("name = \"wide-resnet\"\ndepth = 27", ["6n + 4", "line 3"]),
        (
            "name = \"wide-resnet\"\npreset = \"olivia\"\nwiden = 2",
            ["no effect with the preset `olivia`", "line 4"],
        ),
        (
            "name = \"resnet\"\ndepth = 20",
            ["must be 18, 34, 50, 101 or 152", "line 3"],
        ),
        (
            "name = \"convnext\"\nwidths = [1, 2, 3]",
            ["expected 4 values", "line 3"],
        ),
        ("name = \"vit\"\nheads = 5", ["does not divide", "line 3"]),
        ("name = \"vit\"\npreset = \"huge\"", ["huge", "line 3"]),
        (
            "name = \"csc-cnn\"\nhidden = 5",
            ["unknown key `hidden`", "line 3"],
        ),
    ] {
        assert_error(&GOOD.replace("name = \"cnn\"", text), &[], &parts);
    }
}

#[test]
fn keys_that_a_data_set_has_no_use_for_are_refused() {
    for (set, part) in [
        ("data.labels=coarse", "no effect with `digits`"),
        ("data.evaluate=test", "without `data.validation`"),
        ("data.cache_dir=/x", "cifar-10, cifar-100"),
    ] {
        assert_error(GOOD, &[set], &[part, "of --set"]);
    }
    let sets = ["data.name=cifar-100", "data.labels=coarse"];
    assert!(load(GOOD, &sets).is_ok());
    let sets = ["data.name=image-folder", "data.validation=1.5"];
    assert_error(GOOD, &sets, &["between 0 and 1"]);
    let sets = ["data.validation=0.2", "data.evaluate=train"];
    assert_error(GOOD, &sets, &["valid names: val, test"]);
}

#[test]
fn images_are_normalised_by_numbers_that_make_sense() {
    let sets = ["data.mean=[0.485, 0.456, 0.406]", "data.std=[0.25]"];
    let config = load(GOOD, &sets).unwrap().config;
    let text = config.to_toml().unwrap();
    assert_eq!(load(&text, &[]).unwrap().config, config);
    let data = config.data;
    assert_eq!(data.mean, Some(vec![0.485, 0.456, 0.406]));
    assert_eq!(data.std, Some(vec![0.25]));
    for (set, part) in [
        ("data.mean=[]", "is empty"),
        ("data.std=[]", "is empty"),
        ("data.mean=[123.675]", "divide those of bytes by 255"),
        ("data.mean=[0.5, nan]", "not in [0, 1]"),
        ("data.std=[0.2, 0.0]", "not positive"),
        ("data.std=[-1.0]", "not positive"),
        ("data.std=[inf]", "not positive"),
        ("data.std=[1e-300]", "not positive"),
        ("data.std=0.5", "data.std"),
    ] {
        assert_error(GOOD, &[set], &[part, "of --set"]);
    }
}

/// The command line cannot remove keys from the file when it tries another schedule.
#[test]
fn another_schedule_on_the_command_line_gives_up_what_it_does_not_use() {
    let file = format!(
        "{GOOD}[schedule]\nname = \"step\"\nmilestones = [60]\ngamma = 0.2\nwarmup_epochs = 5\n"
    );
    let loaded = load(&file, &["schedule.name=cosine"]).unwrap();
    let schedule = &loaded.config.schedule;
    assert_eq!(schedule.kind, ScheduleKind::Cosine(Cosine::default()));
    assert_eq!(schedule.warmup_epochs, Some(5.0));
    // The resolved configuration parses as well.
    load(&loaded.config.to_toml().unwrap(), &[]).unwrap();
    let one_cycle = load(&file, &["schedule.name=one-cycle"]).unwrap().config;
    assert_eq!(one_cycle.schedule.warmup_epochs, None);
    let both = ["schedule.name=cosine", "schedule.gamma=0.5"];
    assert_error(&file, &both, &["no effect with `cosine`"]);
    let stops = format!("{GOOD}[early_stopping]\npatience = 3\nmonitor = \"loss\"\n");
    load(&stops, &["early_stopping.target_accuracy=0.9"]).unwrap();
}

/// A resumed run may use another optimizer than its resolved configuration.
#[test]
fn keys_of_another_optimizer_or_model_go_with_its_name() {
    let adamw = load(GOOD, &["optimizer.name=adamw", "optimizer.lr=0.25"]).unwrap();
    let resolved = adamw.config.to_toml().unwrap();
    let of_run = |text: &str, sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Loaded::parse_as(("config.toml", "run"), text, &sets, true)
    };
    for sets in [
        &["optimizer.name=sgd"][..],
        &["optimizer.name=\"sgd\"", "optimizer.momentum=0.5"],
        &["optimizer={name=\"sgd\"}"],
        &["model.name=vit"],
    ] {
        let config = of_run(&resolved, sets).unwrap().config;
        assert_eq!(config.optimizer.lr(), 0.25, "{sets:?}");
    }
    let typo = resolved.replace("\neps = ", "\nmomentun = 0.9\neps = ");
    let file = resolved.replace("\"adamw\"", "\"sgd\"");
    let given = ["optimizer.name=sgd", "optimizer.betas=[0.5, 0.5]"];
    for (text, sets, part) in [
        (&resolved, &given[..], "`betas`"),
        (&typo, &["optimizer.name=sgd"], "`momentun`"),
        (&file, &[], "`betas`"),
    ] {
        let error = of_run(text, sets).unwrap_err().to_string();
        assert!(error.contains(&format!("unknown key {part}")), "{error}");
    }
}

#[test]
fn schedules_and_stops_that_make_no_sense_are_refused() {
    for (sets, part) in [
        (vec!["schedule.name=step"], "needs milestones"),
        (
            vec!["schedule.name=one-cycle", "schedule.warmup_steps=5"],
            "already has a warm-up",
        ),
        (
            vec!["schedule.warmup_steps=5", "schedule.warmup_epochs=1"],
            "both set the warm-up",
        ),
        (
            vec!["schedule.name=cosine", "schedule.min_lr=1.0"],
            "between 0 and `optimizer.lr`",
        ),
        (
            vec!["schedule.name=plateau", "schedule.factor=1.0"],
            "between 0 and 1",
        ),
        (
            vec!["schedule.name=exponential", "schedule.gamma=0.0"],
            "in (0, 1]",
        ),
        (
            vec!["schedule.name=one-cycle", "schedule.div_factor=0.5"],
            "1 or larger",
        ),
        (vec!["schedule.warmup_epochs=-1.0"], "zero or positive"),
        (
            vec!["schedule.milestones=[1.0]"],
            "`schedule.milestones` has no effect with `constant`",
        ),
        (
            vec!["schedule.name=cosine", "schedule.gamma=0.5"],
            "`schedule.gamma` has no effect with `cosine`",
        ),
        (
            vec!["schedule.warmup_factor=0.5"],
            "no effect without a warm-up",
        ),
        (
            vec!["schedule.lr_scaling=linear", "train.batch_size=64"],
            "but `train.batch_size` fixes it",
        ),
        (vec!["ema.warmup=false"], "no effect without `ema.decay`"),
        (vec!["swa.every_steps=3"], "no effect without `swa.start`"),
        (vec!["swa.start=1.0"], "in [0, 1)"),
        (
            vec!["swa.start=0.5", "ema.decay=0.9"],
            "both set an average",
        ),
        (
            vec!["train.bce_threshold=0.2"],
            "no effect without `train.loss`",
        ),
        (vec!["train.class_weights=[1.0, -1.0]"], "class_weights"),
        (vec!["train.class_weights=balance"], "\"balanced\""),
        (vec!["data.balance=1.5"], "in [0, 1]"),
        (vec!["optimizer.layer_decay=0.0"], "in (0, 1]"),
        (vec!["schedule.name=wsd", "schedule.decay=0.0"], "in (0, 1]"),
        (
            vec!["early_stopping.monitor=loss"],
            "no effect without `early_stopping.patience`",
        ),
        (vec!["train.label_smoothing=1.0"], "in [0, 1)"),
        (vec!["checkpoint.keep=0"], "checkpoint.keep"),
        (vec!["checkpoint.every_minutes=-1.0"], "zero or positive"),
        (
            vec!["checkpoint.in_memory=true", "checkpoint.every_epochs=0"],
            "needs checkpoints on disk too",
        ),
        (
            vec!["checkpoint.in_memory_every_steps=3"],
            "no effect without `checkpoint.in_memory`",
        ),
        (vec!["early_stopping.target_accuracy=99.0"], "in [0, 1]"),
        (vec!["early_stopping.patience=0"], "early_stopping.patience"),
        (
            vec!["data.name=image-folder", "data.resize=200"],
            "smaller than the image side, 224",
        ),
    ] {
        assert_error(GOOD, &sets, &[part, "of --set"]);
    }
}
