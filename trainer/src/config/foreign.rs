//! Names in other frameworks, and the names here.
//!
//! The left sides are in lower case, without separators.

use super::suggest::plain;

/// Other names of sections, keys and values.
const NAMES: &[(&str, &str)] = &[
    // Sections.
    ("optim", "optimizer"),
    ("optimiser", "optimizer"),
    ("training", "train"),
    ("trainer", "train"),
    ("dataset", "data"),
    ("datamodule", "data"),
    ("dataloader", "data"),
    ("scheduler", "schedule"),
    ("lrscheduler", "schedule"),
    ("distributed", "parallel"),
    ("logging", "log"),
    ("logger", "log"),
    ("checkpointing", "checkpoint"),
    ("network", "model"),
    ("net", "model"),
    ("modelema", "ema"),
    ("gradscaler", "loss_scale"),
    ("zerooptimization", "parallel"),
    // Keys.
    ("momentum", "betas"),
    // Devices.
    ("gpu", "cuda"),
    ("cuda0", "cuda"),
    ("nvidia", "cuda"),
    ("mps", "wgpu"),
    ("metal", "wgpu"),
    ("vulkan", "wgpu"),
    ("rocm", "wgpu"),
    ("amd", "wgpu"),
    // Precision.
    ("fp32", "f32"),
    ("float32", "f32"),
    ("float", "f32"),
    ("32", "f32"),
    ("32true", "f32"),
    ("fp16", "f16"),
    ("float16", "f16"),
    ("half", "f16"),
    ("16", "f16"),
    ("16mixed", "f16"),
    ("amp", "f16"),
    ("bfloat16", "bf16"),
    ("bf16mixed", "bf16"),
    ("bf16true", "bf16"),
    ("mixed", "bf16"),
    // Strategies and transports.
    ("fsdp", "zero-3"),
    ("fullshard", "zero-3"),
    ("hybridshard", "zero-3"),
    ("stage3", "zero-3"),
    ("deepspeedstage3", "zero-3"),
    ("shardgradop", "zero-2"),
    ("stage2", "zero-2"),
    ("deepspeed", "zero-2"),
    ("deepspeedstage2", "zero-2"),
    ("stage1", "zero-1"),
    ("zero", "zero-1"),
    ("deepspeedstage1", "zero-1"),
    ("ddpspawn", "ddp"),
    ("dataparallel", "ddp"),
    ("dp", "ddp"),
    ("gloo", "tcp"),
    ("socket", "tcp"),
    ("sharedmemory", "shm"),
    ("nccl", "auto"),
    // Models.
    ("wrn", "wide-resnet"),
    ("visiontransformer", "vit"),
    ("deit", "vit"),
    ("gpt", "transformer"),
    ("gpt2", "transformer"),
    ("convnet", "cnn"),
    ("lenet", "cnn"),
    // Data.
    ("imagenet", "image-folder"),
    ("folder", "image-folder"),
    ("fashion", "fashion-mnist"),
    ("fmnist", "fashion-mnist"),
    ("cifar", "cifar-10"),
    ("synthetic", "generated"),
    ("fake", "generated"),
    ("fakedata", "generated"),
    ("random", "generated"),
    ("gray", "grey"),
    ("grayscale", "grey"),
    ("l", "grey"),
    // Optimizers and schedules.
    ("sgdm", "sgd"),
    ("cosineannealing", "cosine"),
    ("cosineannealinglr", "cosine"),
    ("cosinedecay", "cosine"),
    ("warmupcosine", "cosine"),
    ("multistep", "step"),
    ("multisteplr", "step"),
    ("steplr", "step"),
    ("reducelronplateau", "plateau"),
    ("onecyclelr", "one-cycle"),
    ("1cycle", "one-cycle"),
    ("fixed", "constant"),
    ("linearlr", "linear"),
    ("polynomial", "linear"),
    ("exponentiallr", "exponential"),
    // Tasks and metrics.
    ("imageclassification", "classification"),
    ("lm", "language"),
    ("causallm", "language"),
    ("semanticsegmentation", "segmentation"),
    ("acc", "accuracy"),
    ("valacc", "accuracy"),
    ("valaccuracy", "accuracy"),
    ("top1", "accuracy"),
    ("valloss", "loss"),
    ("miou", "mean_iou"),
    ("iou", "mean_iou"),
    // Nothing.
    ("no", "none"),
    ("off", "none"),
    ("no", "f32"),
    ("none", "constant"),
];

/// Other names of keys, and the keys with their sections.
const KEYS: &[(&[&str], &str)] = &[
    (
        &["modelname", "arch", "architecture", "backbone"],
        "model.name",
    ),
    (
        &[
            "pretrained",
            "initfrom",
            "finetunefrom",
            "pretrainedweights",
        ],
        "model.weights",
    ),
    (
        &["embeddim", "hiddensize", "hiddendim", "dmodel"],
        "model.dim",
    ),
    (&["numlayers", "nlayers"], "model.depth"),
    (&["numheads", "nheads", "numattentionheads"], "model.heads"),
    (&["patchsize"], "model.patch"),
    (&["widenfactor", "widthfactor"], "model.widen"),
    (&["droppathrate", "stochasticdepth"], "model.drop_path"),
    (&["droprate", "dropoutrate"], "model.dropout"),
    (&["dataset", "datasetname"], "data.name"),
    (
        &[
            "datadir",
            "datapath",
            "dataroot",
            "datafolder",
            "root",
            "traindir",
        ],
        "data.dir",
    ),
    (
        &["imagesize", "imgsize", "imsize", "inputsize", "resolution"],
        "data.size",
    ),
    (
        &["gray", "grey", "grayscale", "greyscale", "colormode"],
        "data.color",
    ),
    (
        &[
            "valsplit",
            "validationsplit",
            "valsize",
            "valratio",
            "valfraction",
            "testsize",
        ],
        "data.validation",
    ),
    (
        &[
            "numworkers",
            "nworkers",
            "dataloadernumworkers",
            "loaderworkers",
        ],
        "data.workers",
    ),
    (
        &[
            "augmentation",
            "augmentations",
            "transform",
            "transforms",
            "aa",
            "autoaugment",
            "randaugment",
            "mixup",
            "cutmix",
            "cutout",
            "hflip",
            "randomflip",
            "randomcrop",
            "randomerasing",
            "reprob",
        ],
        "data.augment",
    ),
    (
        &["numtrain", "ntrain", "maxsamples", "numsamples"],
        "data.train_samples",
    ),
    (
        &["optim", "opt", "optimizertype", "optimizername"],
        "optimizer.name",
    ),
    (
        &[
            "learningrate",
            "baselr",
            "initiallr",
            "maxlr",
            "peaklr",
            "eta",
        ],
        "optimizer.lr",
    ),
    (&["wd", "l2", "l2penalty"], "optimizer.weight_decay"),
    (
        &["beta1", "beta2", "adambeta1", "adambeta2", "adambetas"],
        "optimizer.betas",
    ),
    (&["epsilon", "adamepsilon"], "optimizer.eps"),
    (
        &[
            "scheduler",
            "lrscheduler",
            "lrschedule",
            "sched",
            "lrschedulertype",
        ],
        "schedule.name",
    ),
    (
        &["warmup", "numwarmupsteps", "warmupiters"],
        "schedule.warmup_steps",
    ),
    (&["warmupratio"], "schedule.warmup_epochs"),
    (&["etamin", "minimumlr", "endlr"], "schedule.min_lr"),
    (&["lrdecay", "decayrate", "lrgamma"], "schedule.gamma"),
    (
        &["stepsize", "decayepochs", "lrsteps"],
        "schedule.milestones",
    ),
    (&["scalelr", "autoscalelr"], "schedule.lr_scaling"),
    (
        &[
            "epoch",
            "maxepochs",
            "numepochs",
            "nepochs",
            "numtrainepochs",
            "trainepochs",
            "totalepochs",
        ],
        "train.epochs",
    ),
    (
        &[
            "steps",
            "maxiters",
            "maxiterations",
            "totalsteps",
            "trainsteps",
            "numsteps",
            "iterations",
        ],
        "train.max_steps",
    ),
    (
        &[
            "batch",
            "bs",
            "trainbatchsize",
            "globalbatchsize",
            "totalbatchsize",
        ],
        "train.batch_size",
    ),
    (
        &[
            "perdevicetrainbatchsize",
            "perdevicebatchsize",
            "trainmicrobatchsizepergpu",
            "microbatch",
            "localbatchsize",
            "batchsizepergpu",
        ],
        "train.micro_batch_size",
    ),
    (
        &[
            "accumulategradbatches",
            "gradientaccumulation",
            "gradientaccumulationsteps",
            "gradaccum",
            "gradaccumsteps",
            "accumulationsteps",
        ],
        "train.accumulate",
    ),
    (
        &[
            "amp",
            "mixedprecision",
            "fp16",
            "bf16",
            "half",
            "dtype",
            "ampdtype",
        ],
        "train.precision",
    ),
    (&["accelerator", "gpu", "usecuda", "usegpu"], "train.device"),
    (
        &[
            "clip",
            "clipgrad",
            "clipgradnorm",
            "gradclip",
            "gradclipnorm",
            "gradientclipval",
            "gradientclipping",
            "maxgradnorm",
        ],
        "train.clip_norm",
    ),
    (
        &["randomseed", "randomstate", "manualseed", "seedeverything"],
        "train.seed",
    ),
    (&["labelsmooth", "smoothing"], "train.label_smoothing"),
    (
        &[
            "gradientcheckpointing",
            "activationcheckpointing",
            "checkpointactivations",
            "gradcheckpoint",
        ],
        "train.recompute",
    ),
    (&["maxtime", "timelimit", "maxhours"], "train.max_minutes"),
    (
        &["limittrainbatches", "limitvalbatches", "maxbatches"],
        "train.limit_batches",
    ),
    (
        &["evalsteps", "evalevery", "evalinterval", "valcheckinterval"],
        "train.evaluate_every_steps",
    ),
    (
        &["ema", "useema", "emadecay", "modelema", "modelemadecay"],
        "ema.decay",
    ),
    (&["initscale", "initialscale"], "loss_scale.initial"),
    (
        &[
            "shardingstrategy",
            "zerostage",
            "stage",
            "fsdp",
            "deepspeed",
            "zero",
            "ddp",
        ],
        "parallel.strategy",
    ),
    (&["backend", "distbackend"], "parallel.transport"),
    (&["bucketcapmb", "bucketsize"], "parallel.bucket_mib"),
    (&["syncbn", "syncbatchnorm"], "parallel.sync_batch_norm"),
    (&["timeout", "ddptimeout"], "parallel.timeout_seconds"),
    (&["cpuoffload", "offload"], "parallel.offload_optimizer"),
    (
        &[
            "loginterval",
            "logevery",
            "logeverynsteps",
            "loggingsteps",
            "logfreq",
            "printfreq",
        ],
        "log.every_steps",
    ),
    (
        &[
            "saveevery",
            "savesteps",
            "savefreq",
            "saveinterval",
            "everyntrainsteps",
        ],
        "checkpoint.every_steps",
    ),
    (&["everynepochs", "saveepochs"], "checkpoint.every_epochs"),
    (
        &["savetopk", "savetotallimit", "maxtokeep"],
        "checkpoint.keep",
    ),
    (&["earlystop"], "early_stopping.patience"),
];

/// Names of what no key sets, and how it is done here.
const ELSEWHERE: &[(&[&str], &str)] = &[
    (
        &[
            "devices",
            "gpus",
            "ngpus",
            "numgpus",
            "numprocesses",
            "nprocpernode",
            "worldsize",
            "ranks",
        ],
        "the number of ranks is no key: start them with --nproc N, srun, mpirun or torchrun",
    ),
    (
        &["nodes", "numnodes", "nnodes"],
        "the number of nodes is no key: srun, mpirun or torchrun start ranks on several",
    ),
    (
        &["numclasses", "nclasses"],
        "the classes come from the data",
    ),
    (
        &[
            "outputdir",
            "logdir",
            "savedir",
            "workdir",
            "defaultrootdir",
        ],
        "name the run folder with --run-dir DIR",
    ),
    (
        &["resume", "resumefrom", "resumefromcheckpoint", "ckptpath"],
        "continue a run with --resume auto or --resume PATH",
    ),
    (
        &["shuffle"],
        "training data is always shuffled; train.seed decides the order",
    ),
    (
        &["droplast"],
        "training always drops the images that do not fill a batch, other ones in each epoch",
    ),
    (
        &["compile", "torchcompile", "compilemodel"],
        "nothing needs to be compiled: kernels of GPUs are compiled at their first use, and kept",
    ),
    (
        &["reportto"],
        "log.tensorboard, log.csv and log.mlflow choose where metrics are written",
    ),
    (
        &["pinmemory", "persistentworkers", "prefetchfactor"],
        "data.workers threads prepare batches in advance; nothing else needs to be set",
    ),
];

/// The meaning of a word of another framework.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// This `section.key`.
    Key(String),
    /// No key: how it is done.
    Elsewhere(&'static str),
}

/// Names here for a plain name of another framework, the likeliest first.
pub(super) fn names(plain: &str) -> impl Iterator<Item = &'static str> {
    let known = NAMES.iter().filter(move |(theirs, _)| *theirs == plain);
    known.map(|(_, ours)| *ours)
}

/// The meaning of another framework's key.
pub(crate) fn meaning(word: &str) -> Option<Meaning> {
    let word = plain(word);
    let is_in = |(theirs, _): &&(&[&str], &'static str)| theirs.contains(&word.as_str());
    let key = KEYS.iter().find(is_in);
    let elsewhere = || ELSEWHERE.iter().find(is_in);
    key.map(|(_, ours)| Meaning::Key((*ours).to_owned()))
        .or_else(|| elsewhere().map(|(_, advice)| Meaning::Elsewhere(advice)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{reference, sections, variants};

    /// Everything that a configuration may contain.
    fn known() -> Vec<String> {
        let sections = sections().into_iter();
        let names = sections.flat_map(|(section, keys)| [vec![section], keys].concat());
        let variants = variants().into_iter().map(|(_, name, _)| name);
        let names = names.chain(variants).map(str::to_owned);
        let values = reference::keys().into_iter().flat_map(|key| key.values);
        let metrics = ["loss", "accuracy", "mean_iou", "none"].map(str::to_owned);
        names
            .chain(values.map(|(value, _)| value))
            .chain(metrics)
            .collect()
    }

    #[test]
    fn every_translation_is_of_something_that_exists() {
        let known = known();
        for (theirs, ours) in NAMES {
            assert!(known.iter().any(|name| name == ours), "{theirs} → {ours}");
            assert_eq!(plain(theirs), *theirs);
        }
        let sections = sections();
        for (theirs, ours) in KEYS {
            let (section, key) = ours.split_once('.').unwrap();
            let (_, keys) = sections.iter().find(|(name, _)| *name == section).unwrap();
            assert!(keys.contains(&key), "{theirs:?} → {ours}");
        }
        for word in KEYS.iter().chain(ELSEWHERE).flat_map(|(words, _)| *words) {
            assert_eq!(plain(word), *word);
        }
    }

    #[test]
    fn no_word_has_two_translations() {
        let all = KEYS.iter().chain(ELSEWHERE).flat_map(|(words, _)| *words);
        let mut all: Vec<&str> = all.copied().collect();
        let words = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), words);
    }
}
