//! What the program says of wrong configurations, as users of other frameworks write them.

use trainer::config::Loaded;

/// Wrong lines after a good configuration, or a whole configuration that names its model.
const WRONG: &[&str] = &[
    // Keys of other frameworks and other spellings.
    "[train]\nmax_epochs = 10",
    "[train]\nnum_train_epochs = 10",
    "[train]\nlearning_rate = 0.1",
    "[train]\nlr = 0.1",
    "[train]\ngrad_clip = 1.0",
    "[train]\nmax_grad_norm = 1.0",
    "[train]\nBatch_Size = 64",
    "[train]\nbatchsize = 64",
    "[train]\ngradient_accumulation_steps = 4",
    "[train]\namp = true",
    "[train]\nema = true",
    "[train]\naccelerator = \"gpu\"",
    "[train]\ndevices = 4",
    "[train]\nnum_nodes = 2",
    "[train]\nresume = \"last.ckpt\"",
    "[train]\nshuffle = true",
    "[train]\nweight-decay = 0.1",
    "[train]\nnum_workers = 4",
    "[data]\ngray = true",
    "[data]\nimage_size = 224",
    "[data]\nval_split = 0.1",
    "[data]\nmixup = 0.2",
    "[data]\nnum_classes = 10",
    "[parallel]\nzero_stage = 3",
    "[checkpoint]\nsave_top_k = 3",
    "[log]\nlog_interval = 10",
    "momentun = 0.9",
    "betas = [0.9, 0.99]",
    // Sections.
    "[training]\nepochs = 3",
    "[Train]\nepochs = 3",
    "[scheduler]\nname = \"cosine\"",
    "[trainer]\nmax_epochs = 3",
    "[seed]\nvalue = 3",
    // Names.
    "[data]\nname = \"CIFAR10\"",
    "[data]\nname = \"ImageNet\"",
    "[schedule]\nname = \"CosineAnnealingLR\"",
    "[schedule]\nname = \"ReduceLROnPlateau\"",
    "[train]\ndevice = \"gpu\"",
    "[train]\ndevice = \"cuda:0\"",
    "[train]\nprecision = \"fp16\"",
    "[train]\nprecision = \"bf16-mixed\"",
    "[parallel]\nstrategy = \"fsdp\"",
    "[parallel]\nstrategy = \"zero3\"",
    "[parallel]\ntransport = \"gloo\"",
    "[early_stopping]\nmonitor = \"val_loss\"\npatience = 3",
    "[data]\nname = 3",
    // Types.
    "[train]\nepochs = \"10\"",
    "[train]\nepochs = 10.0",
    "[train]\nepochs = \"many\"",
    "[train]\nepochs = -1",
    "[train]\nseed = 1e3",
    "[train]\nclip_norm = \"1.0\"",
    "[train]\nclip_norm = [1.0]",
    "[train]\nrecompute = \"yes\"",
    "[train]\nrecompute = 1",
    "[train]\nprecision = 16",
    "[train]\ndevice = true",
    "[data]\nmean = 0.5",
    "[data]\nstd = \"0.5\"",
    "[data]\naugment = [\"crop:4\", \"flip\"]",
    "[data]\naugment = \"rotate\"",
    "[schedule]\nname = \"step\"\nmilestones = 30",
    "train = 3",
    // Values.
    "[train]\nepochs = 0",
    "[train]\nlabel_smoothing = 10",
    "[data]\nvalidation = 20",
    "[early_stopping]\ntarget_accuracy = 99",
    "[early_stopping]\ntarget_accuracy = 1.5",
    "[ema]\ndecay = 1.0",
    "[ema]\nwarmup = false",
    "[schedule]\nmin_lr = 0.1",
    // Syntax.
    "[train\nepochs = 3",
    "[train]\nepochs = three",
    "[train]\nepochs 3",
    "[train]\nepochs = 3\nepochs = 4",
    // Several at once.
    "nesterov = \"no\"\n[train]\nmax_epochs = 10\nclip_norm = -1.0\n[early_stoping]\npatience = 3",
    "[model]\nname = \"resnet18\"\n[optimizer]\nname = \"AdamW\"\nlearning_rate = 0.1",
    "[model]\nname = \"vit\"\nhidden_size = 384\n[optimizer]\nname = \"adam\"\nmomentum = 0.9\nlr = \"fast\"",
    "",
];

#[test]
fn errors_are_those_of_the_snapshot() {
    let good = "[model]\nname = \"cnn\"\n[optimizer]\nname = \"sgd\"\nlr = 0.1\n";
    let mut text = String::new();
    for wrong in WRONG {
        let whole = match wrong.is_empty() || wrong.starts_with("[model]") {
            true => (*wrong).to_owned(),
            false => format!("{good}{wrong}\n"),
        };
        text += &format!("{}\n", wrong.replace('\n', " ⏎ "));
        let error = Loaded::parse("x.toml", "x", &whole, &[]).expect_err(wrong);
        for flaw in error.flaws() {
            text += &format!("    {}\n", shortened(&flaw.to_string()));
            let help = flaw.help_text().map(shortened);
            text += &help
                .map(|help| format!("      help: {help}\n"))
                .unwrap_or_default();
        }
        text += "\n";
    }
    insta::assert_snapshot!("errors", text);
}

/// Without the lists of valid names, which grow.
fn shortened(text: &str) -> String {
    let text = text.replace('\n', " ⏎ ");
    let Some((before, list)) = text.split_once("valid ") else {
        return text;
    };
    let (what, _) = list.split_once(':').unwrap_or((list, ""));
    let end = if before.ends_with('(') { ")" } else { "" };
    format!("{before}valid {what}: …{end}")
}
