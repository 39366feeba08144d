//! Devices of a run: which one it chooses, and that a GPU computes what the CPU does.
//!
//! The GPU is wgpu's, or software Vulkan if the machine has none; see docs/internals/kernels.md.

mod common;

use common::Trial;

#[test]
fn a_run_says_what_it_computes_on_and_why() {
    let finished = Trial::tiny(&[], &["train.device=cpu"]).run();
    finished.assert_code(0);
    let line = "\ndevice CPU (as requested); precision f32; kernels ";
    assert!(finished.stdout.contains(line), "{}", finished.stdout);
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_device_that_is_not_built_in_is_an_error_that_says_how_to_get_it() {
    let finished = Trial::tiny(&["--nproc", "2"], &["train.device=cuda"]).run();
    finished
        .assert_code(2)
        .assert_stderr(&["built without cuda", "--features cuda"])
        .assert_nobody_left();
}

#[cfg(feature = "cuda")]
#[test]
fn a_machine_without_a_driver_says_so() {
    use burn_dist::device::DeviceChoice;
    use burn_dist::world::World;
    if World::single().choose_device(DeviceChoice::Cuda).is_ok() {
        eprintln!("SKIPPED: a machine without a CUDA device: this one has one");
        return;
    }
    let finished = Trial::tiny(&["--nproc", "2"], &["train.device=cuda"]).run();
    finished
        .assert_code(1)
        .assert_stderr(&["no cuda device on this machine"])
        .assert_nobody_left();
}

#[test]
fn images_on_the_device_need_a_simple_augmentation() {
    let settings = ["data.on_device=true", "data.augment=cutout"];
    let finished = Trial::tiny(&[], &settings).run();
    finished
        .assert_code(2)
        .assert_stderr(&["data.on_device = true supports only"]);
}

#[test]
fn images_on_the_device_are_those_of_the_loader() {
    let losses = |on_device: &str| {
        let settings = [on_device, "data.augment=shift:2", "train.epochs=2"];
        let finished = Trial::tiny(&[], &settings).run();
        finished.assert_code(0);
        let evaluations = finished.metrics("eval");
        let evaluated = evaluations
            .iter()
            .map(|line| line["loss"].as_f64().unwrap());
        finished.losses().into_iter().chain(evaluated).collect()
    };
    let (there, here): (Vec<f64>, Vec<f64>) = (
        losses("data.on_device=true"),
        losses("data.on_device=false"),
    );
    assert_eq!(there.len(), here.len());
    for (there, here) in there.iter().zip(&here) {
        assert!((there / here - 1.0).abs() < 1e-4, "{there} {here}");
    }
}

/// GPU tests on wgpu, in software if the machine has no GPU, or on the device in
/// `BURN_DIST_TEST_DEVICE`; see docs/internals/kernels.md.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod gpu {
    use std::sync::LazyLock;

    use burn_dist::world::World;

    use super::common::{Finished, Trial};

    static ASKED: LazyLock<Option<String>> =
        LazyLock::new(|| std::env::var("BURN_DIST_TEST_DEVICE").ok());

    fn device() -> &'static str {
        ASKED.as_deref().unwrap_or("wgpu")
    }

    /// The setting that selects the device.
    fn on_device() -> String {
        format!("train.device={}", device())
    }

    /// Whether the device exists. Prints the skip if not.
    fn is_here(test: &str) -> bool {
        match World::single().choose_device(device().parse().unwrap()) {
            Ok(_) => true,
            Err(error) if ASKED.is_some() => panic!("{error}"),
            Err(error) => {
                eprintln!("SKIPPED: {test}: {error}");
                false
            }
        }
    }

    /// Tolerance of a loss: CUDA's tensor cores multiply f32 in TensorFloat-32.
    fn tolerance() -> f64 {
        if device() == "cuda" { 2e-3 } else { 1e-3 }
    }

    /// Settings of a run of ten steps.
    const SHORT: [&str; 2] = ["data.train_samples=120", "train.max_steps=10"];

    fn run(device: &str, nproc: &str, settings: &[&str]) -> Finished {
        let device = format!("train.device={device}");
        let mut all = vec![device.as_str()];
        all.extend(SHORT);
        all.extend(settings);
        let finished = Trial::tiny(&["--nproc", nproc], &all).run();
        finished.assert_code(0).assert_nobody_left();
        finished
    }

    /// Initial parameters for all devices, whose random generators differ: the setting that loads
    /// them, and the run whose folder holds them.
    fn same_start() -> (String, Finished) {
        let cpu = "train.device=cpu";
        let settings = ["train.max_steps=1", "checkpoint.every_steps=1", cpu];
        let first = Trial::tiny(&[], &settings).run();
        (exported(&first), first)
    }

    /// The setting that loads the parameters of a run.
    fn exported(first: &Finished) -> String {
        first.assert_code(0);
        let (run, file) = (first.path("run"), first.path("start.safetensors"));
        let (run, file) = (run.to_str().unwrap(), file.to_str().unwrap());
        Trial::new(&["export", run, "--last", "--out", file])
            .run()
            .assert_code(0);
        format!("model.weights={file}")
    }

    fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
        assert_eq!(found.len(), expected.len(), "{what}");
        for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
            let off = (found / expected - 1.0).abs();
            assert!(
                off < tolerance,
                "{what}, step {step}: {found} is not {expected}"
            );
        }
    }

    #[test]
    fn steps_are_those_of_the_processor_whatever_the_strategy_and_the_number_of_ranks() {
        if !is_here("training") {
            return;
        }
        let (start, _folder) = same_start();
        let start = start.as_str();
        let expected = run("cpu", "1", &[start]).losses();
        assert!(expected.last() < expected.first());
        let one = run(device(), "1", &[start]);
        assert!(
            one.stdout.to_lowercase().contains(device()),
            "{}",
            one.stdout
        );
        assert_close(&one.losses(), &expected, tolerance(), "one rank");
        for strategy in ["ddp", "zero-1", "zero-2", "zero-3"] {
            let strategy = format!("parallel.strategy={strategy}");
            let two = run(device(), "2", &[start, &strategy]).losses();
            assert_close(&two, &expected, tolerance(), &strategy);
        }
        let settings = [start, "train.accumulate=2", "train.clip_norm=0.5"];
        let expected = run("cpu", "1", &settings).losses();
        for nproc in ["1", "2"] {
            let found = run(device(), nproc, &settings).losses();
            assert_close(&found, &expected, tolerance(), "accumulated and clipped");
        }
    }

    #[test]
    fn models_of_every_kind_of_layer_are_those_of_the_processor() {
        if !is_here("models") {
            return;
        }
        let residual = ["model.name=wide-resnet", "model.depth=10", "model.widen=1"];
        let vit = [
            "model.name=vit",
            "model.patch=4",
            "model.dim=16",
            "model.depth=2",
            "model.heads=2",
        ];
        for model in [&residual[..], &vit] {
            let cpu = "train.device=cpu";
            let same = ["train.max_steps=1", "checkpoint.every_steps=1", cpu];
            let first = Trial::of_model(&[], &[model, &same].concat()).run();
            let start = exported(&first);
            let losses = |device: &str| {
                let settings = [model, &SHORT, &["train.max_steps=3", &start, device]].concat();
                let finished = Trial::of_model(&[], &settings).run();
                finished.assert_code(0).assert_nobody_left();
                let taken = finished.metrics("ranks").pop().unwrap()["device_mib"][0].as_f64();
                assert_eq!(
                    taken.is_some_and(|mib| mib > 0.0),
                    device != cpu,
                    "{taken:?}"
                );
                // The last evaluation uses running statistics.
                let mut losses = finished.losses();
                let evaluated = finished.metrics("eval");
                losses.push(evaluated.last().unwrap()["loss"].as_f64().unwrap());
                losses
            };
            let (found, expected) = (losses(&on_device()), losses("train.device=cpu"));
            assert_close(&found, &expected, 2e-3, &format!("{model:?}"));
        }
    }

    #[test]
    fn half_precision_learns_and_what_is_not_supported_is_refused() {
        if !is_here("number formats") {
            return;
        }
        let expected = run("cpu", "1", &[]).losses();
        for nproc in ["1", "2"] {
            let half = run(device(), nproc, &["train.precision=f16"]);
            assert_close(&half.losses(), &expected, 0.05, "f16");
            assert!(half.metrics("train")[0]["loss_scale"].is_number());
        }
        if device() == "cuda" {
            let half = run(device(), "2", &["train.precision=bf16"]);
            assert_close(&half.losses(), &expected, 0.1, "bf16");
            return;
        }
        let settings = ["train.device=wgpu", "train.precision=bf16"];
        let finished = Trial::tiny(&[], &settings).run();
        finished.assert_code(1).assert_stderr(&["bf16", "f16"]);
    }

    #[test]
    fn a_run_that_is_continued_goes_on_as_if_nothing_had_happened() {
        if !is_here("checkpoints") {
            return;
        }
        // LAMB needs whole parameters, and uses Burn's step.
        for (strategy, optimizer) in [
            ("ddp", "adamw"),
            ("zero-1", "lamb"),
            ("zero-2", "adamw"),
            ("zero-3", "adamw"),
        ] {
            let strategy = format!("parallel.strategy={strategy}");
            let optimizer = format!("optimizer.name={optimizer}");
            let saved = "checkpoint.every_steps=4";
            let settings = ["train.clip_norm=0.5", saved, &strategy, &optimizer];
            let whole = run(device(), "2", &settings);
            let from = whole.path("run/checkpoints/step-0000000004");
            let on_device = on_device();
            let all = [&[on_device.as_str()][..], &SHORT, &settings].concat();
            let expected = &whole.losses()[4..];
            // The same number of ranks, and another number, which sums in another order.
            for (nproc, tolerance) in [("2", 1e-6), ("1", tolerance())] {
                let arguments = ["--nproc", nproc, "--resume", from.to_str().unwrap()];
                let again = Trial::tiny(&arguments, &all).run();
                again.assert_code(0).assert_nobody_left();
                assert_close(&again.losses(), expected, tolerance, &strategy);
            }
        }
    }

    #[test]
    fn averages_of_the_parameters_are_those_of_the_processor_and_are_continued() {
        if !is_here("averages of parameters") {
            return;
        }
        let (start, _folder) = same_start();
        let average = "ema={decay=0.9, warmup=false}";
        let settings = [start.as_str(), average, "checkpoint.every_steps=4"];
        let evaluated = |finished: &Finished| {
            let loss = finished.metrics("eval").last().unwrap()["loss"].as_f64();
            [loss.unwrap()]
        };
        let expected = evaluated(&run("cpu", "1", &settings));
        let plain = evaluated(&run(device(), "1", &[&start]));
        assert!(
            (plain[0] / expected[0] - 1.0).abs() > 5e-3,
            "{plain:?} {expected:?}"
        );
        let whole = run(device(), "1", &settings);
        assert_close(&evaluated(&whole), &expected, tolerance(), "one rank");
        for strategy in ["ddp", "zero-2", "zero-3"] {
            let strategy = format!("parallel.strategy={strategy}");
            let settings = [settings[0], settings[1], &strategy];
            let two = run(device(), "2", &settings);
            assert_close(&evaluated(&two), &expected, tolerance(), &strategy);
        }
        let from = whole.path("run/checkpoints/step-0000000004");
        let on_device = on_device();
        let all = [&[on_device.as_str()][..], &SHORT, &settings].concat();
        let arguments = ["--nproc", "1", "--resume", from.to_str().unwrap()];
        let again = Trial::tiny(&arguments, &all).run();
        again.assert_code(0).assert_nobody_left();
        assert_close(&evaluated(&again), &evaluated(&whole), 1e-6, "continued");
    }
}

/// Failures that the software CUDA driver can simulate; see docs/internals/soft-cuda.md.
#[cfg(feature = "cuda")]
mod soft_cuda {
    use rustix::process::{Signal, kill_process};

    use super::common::{Finished, LIMIT, Trial, free_port};

    /// Whether software CUDA is active. Prints the skip if not.
    fn is_here(test: &str) -> bool {
        let here = std::env::var_os("SOFT_CUDA_DEVICES").is_some();
        if !here {
            eprintln!("SKIPPED: {test}: the CUDA driver is not soft-cuda");
        }
        here
    }

    /// Device memory in bytes, too little for the ranks of
    /// [`ranks_that_see_one_device_each_do_not_share_it`] to share.
    const MEMORY: &str = "64000000";

    /// A run of a few steps with this variable of the driver.
    fn run(variable: (&str, &str), nproc: &str, settings: &[&str]) -> Finished {
        let short = ["data.train_samples=120", "train.max_steps=2"];
        let all = [&["train.device=cuda"], &short[..], settings].concat();
        let (name, value) = variable;
        Trial::tiny(&["--nproc", nproc], &all)
            .env(name, value)
            .env("RUST_LOG", "info")
            .run()
    }

    #[test]
    fn too_little_memory_is_an_error_that_says_what_to_do() {
        if !is_here("too little memory") {
            return;
        }
        let large = ["model.hidden=1024"];
        run(("SOFT_CUDA_MEMORY", "8000000"), "1", &large)
            .assert_code(1)
            .assert_stderr(&[
                "A model of up to",
                "parameters fits",
                "zero-1",
                "offload_optimizer",
            ]);
        run(("SOFT_CUDA_MEMORY", "24000000"), "1", &large)
            .assert_code(1)
            .assert_stderr(&["out of device memory", "train.micro_batch_size"]);
    }

    #[test]
    fn what_fits_is_told_of_the_memory_of_a_device_and_who_shares_it() {
        if !is_here("what fits") {
            return;
        }
        let large = ["model.hidden=1024", "train.device=cuda"];
        let fits = |more: &[&str]| {
            let sets = large.iter().chain(more).flat_map(|set| ["--set", set]);
            let args: Vec<&str> = ["check", "--nproc", "3"].into_iter().chain(sets).collect();
            let checked = Trial::new(&args)
                .env("SOFT_CUDA_DEVICES", "2")
                .env("SOFT_CUDA_MEMORY", "400000000")
                .run();
            checked.assert_code(0);
            assert!(
                checked.stdout.contains(", shared by 2 ranks; "),
                "{}",
                checked.stdout
            );
            let told = checked
                .stdout
                .lines()
                .filter(|line| line.contains("into 191"));
            told.map(|line| !line.contains("NOT"))
                .collect::<Vec<bool>>()
        };
        // Under `ddp`: 36 MiB of parameters, as many of gradients, activations, and twice that of
        // optimizer state.
        assert!(!fits(&[])[0]);
        assert!(fits(&["parallel.offload_optimizer=true"])[0]);
    }

    #[test]
    fn kernels_are_compiled_for_the_next_process_too() {
        if !is_here("kept kernels") {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("kernels");
        let compiled = || {
            let settings = [
                "train.device=cuda",
                "data.train_samples=24",
                "train.epochs=1",
            ];
            let finished = Trial::tiny(&["--nproc", "1"], &settings)
                .env("BURN_DIST_KERNELS", folder.to_str().unwrap())
                .env("RUST_LOG", "info")
                // Loaded, but not run, so the driver has no results to compare either.
                .env("SOFT_CUDA_IDLE", "1")
                .env("BURN_DIST_WGMMA", "unchecked")
                .run();
            let line = format!("kernel cache {}", folder.display());
            finished.assert_code(0).assert_stderr(&[&line]);
            std::fs::read_dir(&folder).unwrap().count()
        };
        let first = compiled();
        assert!(first > 10, "{first}");
        // cubecl emits a few kernels with varying text, so they are compiled again.
        let second = compiled() - first;
        assert!(second < first / 3, "{second} after {first}");
    }

    #[test]
    fn a_driver_without_devices_is_an_error_or_means_the_processor() {
        if !is_here("no devices") {
            return;
        }
        let none = ("SOFT_CUDA_DEVICES", "0");
        run(none, "1", &[])
            .assert_code(1)
            .assert_stderr(&["the NVIDIA driver reports no device", "auto or cpu"]);
        run(none, "1", &["train.device=auto"]).assert_code(0);
    }

    #[test]
    fn convolutions_are_those_that_were_asked_for() {
        if !is_here("kernels of convolutions") {
            return;
        }
        let takes_burns = |settings: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            let dump = ("SOFT_CUDA_DUMP", folder.path().to_str().unwrap());
            run(dump, "1", settings).assert_code(0);
            let files = std::fs::read_dir(folder.path()).unwrap();
            let names: Vec<String> = files
                .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
                .flat_map(|ptx| ptx.lines().map(str::to_owned).collect::<Vec<_>>())
                .filter(|line| line.contains(".entry "))
                .collect();
            assert!(!names.is_empty(), "no kernel was loaded");
            names.iter().any(|name| name.contains("conv2d"))
        };
        assert!(!takes_burns(&[]));
        assert!(takes_burns(&["train.kernels=exact"]));
        assert!(takes_burns(&["train.kernels=burn"]));
    }

    #[test]
    fn ranks_take_nccl_if_each_has_its_own_device_and_memory_of_the_host_if_not() {
        if !is_here("ranks and devices") {
            return;
        }
        for (devices, words) in [
            ("2", "buckets stay on the device, NCCL"),
            ("1", "buckets go through host memory, no NCCL"),
        ] {
            let finished = run(("SOFT_CUDA_DEVICES", devices), "2", &[]);
            finished
                .assert_code(0)
                .assert_stderr(&[words])
                .assert_nobody_left();
            let share = finished.stdout.contains("shared by 2 ranks");
            assert_eq!(share, devices == "1", "{}", finished.stdout);
        }
    }

    /// `srun --gpus-per-task=1` shows every rank one device, as its first.
    #[test]
    fn ranks_that_see_one_device_each_do_not_share_it() {
        if !is_here("ranks that see one device each") {
            return;
        }
        // Half of a device is too little for the state, and a whole one is enough.
        let settings = [
            "train.device=cuda",
            "data.train_samples=120",
            "train.max_steps=2",
            "model.hidden=2048",
        ];
        let ranks = |seen: [&str; 2]| {
            let port = free_port();
            let running = [0, 1].map(|rank| {
                Trial::tiny(&[], &settings)
                    .rank(rank, 2, &port)
                    .env("CUDA_VISIBLE_DEVICES", seen[rank])
                    .env("SOFT_CUDA_DEVICES", "2")
                    .env("SOFT_CUDA_MEMORY", MEMORY)
                    .start()
            });
            running.map(|running| running.wait(LIMIT))
        };
        let [first, second] = ranks(["0", "1"]);
        first.assert_code(0);
        second.assert_code(0);
        assert!(!first.stdout.contains("shared by"), "{}", first.stdout);
        let [first, _] = ranks(["1", "1"]);
        first
            .assert_code(1)
            .assert_stderr(&["MiB for each rank on it"]);
    }

    #[test]
    fn a_rank_that_is_killed_ends_a_run_over_nccl_and_is_named() {
        if !is_here("a killed rank") {
            return;
        }
        let settings = ["train.device=cuda", "train.epochs=1000"];
        let mut running = Trial::tiny(&["--nproc", "2"], &settings)
            .env("SOFT_CUDA_DEVICES", "2")
            .env("RUST_LOG", "info")
            .start();
        running.wait_for_metrics(2);
        kill_process(running.rank(1), Signal::KILL).unwrap();
        running
            .wait(LIMIT)
            .assert_code(1)
            .assert_stderr(&["buckets stay on the device, NCCL", "rank 1"])
            .assert_nobody_left();
    }
}
