//! Files of weights: matching tensors are loaded, all others are named.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use models::weights::{
    Batches, KeyMap, Load, PyTorchKeys, WeightsError, batches, load, save, save_from, save_with,
    state_dict,
};
use models::*;
use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;
use zip::write::{SimpleFileOptions, ZipWriter};

fn csc() -> CscCnn {
    CscCnnConfig::new()
        .with_channels(3)
        .with_height(12)
        .with_width(9)
        .with_classes(5)
        .with_filters([4, 6])
        .init(&Device::flex())
        .unwrap()
}

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(file)
}

fn state<M: PyTorchKeys + Module>(model: &M) -> BTreeMap<String, TensorData> {
    state_dict(model, &model.key_map()).unwrap()
}

fn write(path: &Path, tensors: &BTreeMap<String, TensorData>) {
    let views = tensors.iter().map(|(key, data)| {
        let dtype = match data.dtype() {
            burn::tensor::DType::I64 => Dtype::I64,
            burn::tensor::DType::F64 => Dtype::F64,
            burn::tensor::DType::F16 => Dtype::F16,
            burn::tensor::DType::BF16 => Dtype::BF16,
            _ => Dtype::F32,
        };
        let view = TensorView::new(dtype, data.shape().to_vec(), data.as_bytes()).unwrap();
        (key, view)
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn message(path: &Path) -> String {
    let model = csc();
    let keys = model.key_map();
    load(model, path, &keys).unwrap_err().to_string()
}

/// Writes a file with this content; returns its temporary folder and path.
fn file(name: &str, content: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    (folder, path)
}

fn zip_with(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let deflated =
        SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    for (name, content) in entries {
        archive.start_file(*name, deflated).unwrap();
        archive.write_all(content).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

fn every_model_survives<M: Module + PyTorchKeys>(build: impl Fn() -> M) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let model = build();
    save(&model, &path, &model.key_map()).unwrap();
    let other = build();
    let keys = other.key_map();
    let loaded = load(other, &path, &keys).unwrap();
    assert_eq!(state(&loaded), state(&model));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn what_is_saved_is_loaded() {
    let device = Device::flex();
    every_model_survives(|| CnnConfig::new().with_hidden(5).init(&device).unwrap());
    every_model_survives(csc);
    every_model_survives(|| {
        WideResNetConfig::new(16, 1, 5)
            .with_base(2)
            .init(&device)
            .unwrap()
    });
    every_model_survives(|| {
        PlainWideResNetConfig::new(5)
            .with_widths([2, 3, 4, 5])
            .init(&device)
            .unwrap()
    });
    every_model_survives(|| {
        ResNetConfig::new([1, 1, 1, 2], true, 5)
            .with_width(2)
            .init(&device)
            .unwrap()
    });
    for pooling in [Pooling::ClassToken, Pooling::Mean] {
        every_model_survives(|| {
            VitConfig::new(8, 2, 2, 5)
                .with_pooling(pooling)
                .init(&device.clone().autodiff())
                .unwrap()
        });
    }
}

#[test]
fn a_saved_file_is_as_pytorch_wants_it() {
    let (folder, path) = file("model.safetensors", b"an older file");
    let model = csc();
    save(&model, &path, &model.key_map()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
    let shape = |key: &str| header.info(key).unwrap().shape.clone();
    assert_eq!(shape("fc.weight"), [5, 6 * 3 * 2]);
    assert_eq!(shape("layer1.0.weight"), [4, 3, 5, 5]);
    assert_eq!(shape("layer2.1.running_var"), [6]);
    let counter = header.info("layer1.1.num_batches_tracked").unwrap();
    assert_eq!((counter.dtype, counter.shape.len()), (Dtype::I64, 0));
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o400, 0o400);
    assert_ne!(mode & 0o777, 0o600, "only its owner may read it");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A file's metadata lie in a hash map, whose order differs between processes.
#[test]
fn the_same_model_makes_the_same_bytes() {
    let model = csc();
    let folder = tempfile::tempdir().unwrap();
    let write = |number: usize| {
        let path = folder.path().join(format!("{number}.safetensors"));
        // A new map has another order.
        let about = (0..12).map(|at| (format!("key {at}"), format!("\"{at}\", ä")));
        let about = about.collect();
        save_with(&model, &path, &model.key_map(), about, &Batches::default()).unwrap();
        std::fs::read(path).unwrap()
    };
    let first = write(0);
    assert!((1..8).all(|number| write(number) == first));
    let (_, header) = SafeTensors::read_metadata(&first).unwrap();
    let about = header.metadata().as_ref().unwrap();
    assert_eq!((about.len(), about["key 3"].as_str()), (13, "\"3\", ä"));
}

#[test]
fn values_from_elsewhere_are_asked_for_by_path_and_shape() {
    let (model, other) = (csc(), csc());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.safetensors");
    let native = state_dict(&other, &KeyMap::native()).unwrap();
    let read = |path: &str, shape: &[usize]| {
        let data = &native[path];
        assert_eq!(data.shape().to_vec(), shape);
        Ok(data.try_to_vec().unwrap())
    };
    save_from(
        &model,
        &path,
        &model.key_map(),
        (HashMap::new(), &Batches::default()),
        read,
        || Ok(()),
    )
    .unwrap();
    let loaded = load(model, &path, &other.key_map()).unwrap();
    assert_eq!(state(&loaded), state(&other));
}

#[test]
fn values_that_cannot_be_read_leave_no_file() {
    let model = csc();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let keys = model.key_map();
    let batches = Batches::default();
    let nothing = || (HashMap::new(), &batches);
    let failing = |at: &str, shape: &[usize]| match at {
        "fc.bias" => Err("the disk is gone".to_owned()),
        _ => Ok(vec![0.0; shape.iter().product()]),
    };
    let error = save_from(&model, &path, &keys, nothing(), failing, || Ok(())).unwrap_err();
    assert!(
        error.to_string().contains("`fc.bias`: the disk is gone"),
        "{error}"
    );
    let short = |_: &str, _: &[usize]| Ok(vec![0.0; 3]);
    let error = save_from(&model, &path, &keys, nothing(), short, || Ok(())).unwrap_err();
    assert!(error.to_string().contains("has 3 elements"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let model = csc();
    let error = save(&model, "/nonexistent/model.safetensors", &model.key_map()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot write /nonexistent/model.safetensors: "),
        "{error}"
    );
    let error = message(Path::new("/nonexistent/model.pt"));
    assert!(
        error.starts_with("cannot read /nonexistent/model.pt: "),
        "{error}"
    );
}

#[test]
fn all_differences_are_named_at_once() {
    let mut tensors = state(&csc());
    tensors.remove("layer1.0.weight");
    tensors.insert("fc2.bias".into(), TensorData::new(vec![0f32; 3], [3]));
    tensors.insert("fc.weight".into(), TensorData::new(vec![0f32; 36], [36, 1]));
    tensors.insert("fc.bias".into(), TensorData::new(vec![0i64; 5], [5]));
    let (_folder, path) = file("model.safetensors", b"");
    write(&path, &tensors);
    let message = message(&path);
    let expected = "does not fit the model\n  missing in the file:\n    layer1.0.weight [4, 3, 5, 5]\n  \
        not part of the model:\n    fc2.bias [3]\n  of another shape:\n    fc.weight: [5, 36] in the \
        model, [36, 1] in the file\n  not floating-point:\n    fc.bias: I64";
    assert!(message.ends_with(expected), "{message}");
}

#[test]
fn a_failed_load_changes_nothing() {
    let model = csc();
    let before = state(&model);
    let mut tensors = state(&csc());
    tensors.insert(
        "layer1.1.running_mean".into(),
        TensorData::new(vec![7f32; 4], [4]),
    );
    tensors.remove("fc.bias");
    let (_folder, path) = file("model.safetensors", b"");
    write(&path, &tensors);
    load(model.clone(), &path, &model.key_map()).unwrap_err();
    assert_eq!(state(&model), before);
}

#[test]
fn wrappers_and_prefixes_are_found() {
    let original = state(&csc());
    for prefix in [
        "module.",
        "state_dict.",
        "model.",
        "state_dict.module.",
        "state_dict.model.",
        "_orig_mod.module.",
        "params_ema.",
        "state_dict.model._orig_mod.module.net.",
        "0.ema.shadow.",
    ] {
        let mut tensors: BTreeMap<String, TensorData> = original
            .iter()
            .map(|(key, data)| (format!("{prefix}{key}"), data.clone()))
            .collect();
        let (_folder, path) = file("model.safetensors", b"");
        let beside = TensorData::new(vec![1f32], [1]);
        tensors.insert("optimizer.momentum".into(), beside);
        write(&path, &tensors);
        let model = csc();
        let keys = model.key_map();
        let loaded = load(model, &path, &keys).unwrap_or_else(|error| panic!("{prefix}: {error}"));
        assert_eq!(state(&loaded), original, "{prefix}");
        // Unknown tensors among the weights are still reported.
        let extra = TensorData::new(vec![1f32], [1]);
        tensors.insert(format!("{prefix}extra.weight"), extra);
        write(&path, &tensors);
        let message = message(&path);
        assert!(message.contains("extra.weight [1]"), "{prefix}: {message}");
    }
}

#[test]
fn a_checkpoint_of_a_training_script_is_loaded() {
    let model = csc();
    let keys = model.key_map();
    let plain = load(csc(), golden("csc_cnn.pt"), &keys).unwrap();
    let loaded = load(model, golden("csc_cnn_checkpoint.pt"), &keys).unwrap();
    assert_eq!(state(&loaded), state(&plain));
    let missing = Load::new().part("model_ema");
    let error = missing
        .load(csc(), golden("csc_cnn_checkpoint.pt"), &keys)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("nothing is stored under `model_ema`"),
        "{error}"
    );
    assert!(error.ends_with("optimizer, state_dict"), "{error}");
}

#[test]
fn a_new_head_is_kept() {
    let (_folder, path) = file("model.safetensors", b"");
    let pretrained = csc();
    save(&pretrained, &path, &pretrained.key_map()).unwrap();
    let model = CscCnnConfig::new()
        .with_channels(3)
        .with_height(12)
        .with_width(9)
        .with_classes(17)
        .with_filters([4, 6])
        .init(&Device::flex())
        .unwrap();
    let head = state(&model)["fc.weight"].clone();
    let keys = model.key_map();
    assert!(load(model.clone(), &path, &keys).is_err());
    let model = Load::new().without("fc").load(model, &path, &keys).unwrap();
    let loaded = state(&model);
    assert_eq!(loaded["fc.weight"], head);
    assert_eq!(
        loaded["layer2.0.weight"],
        state(&pretrained)["layer2.0.weight"]
    );
    let error = Load::new()
        .without("layer")
        .load(model, &path, &keys)
        .unwrap_err();
    assert!(
        matches!(error, WeightsError::NothingWithout { .. }),
        "{error}"
    );
}

#[test]
fn other_precisions_become_f32() {
    let mut tensors = state(&csc());
    let model = csc();
    let values = [0.5f32, -1.25, 3.0, 0.0, 8.0];
    let keys = model.key_map();
    let (_folder, path) = file("model.safetensors", b"");
    for dtype in [
        burn::tensor::DType::F64,
        burn::tensor::DType::F16,
        burn::tensor::DType::BF16,
    ] {
        let data = TensorData::new(values.to_vec(), [5]).convert_dtype(dtype);
        tensors.insert("fc.bias".into(), data);
        write(&path, &tensors);
        let loaded = load(csc(), &path, &keys).unwrap();
        let bias = state(&loaded)["fc.bias"].clone();
        assert_eq!(bias, TensorData::new(values.to_vec(), [5]));
    }
}

#[test]
fn loading_overrules_statistics_that_are_still_pending() {
    let (_folder, path) = file("model.safetensors", b"");
    let source = csc();
    save(&source, &path, &source.key_map()).unwrap();
    let device = Device::flex().autodiff();
    let model = csc().to_device(&device);
    let _ = model.forward(Tensor::ones([2, 3, 12, 9], &device) * 5.0);
    let keys = model.key_map();
    let loaded = load(model, &path, &keys).unwrap();
    assert_eq!(state(&loaded), state(&source));
}

#[test]
fn the_first_and_last_of_two_rules_meet() {
    let keys = KeyMap::same()
        .rule("^fc", "head")
        .and_then(|keys| keys.rule("^head", "classifier"))
        .unwrap();
    assert_eq!(keys.key("fc.bias"), "classifier.bias");
}

#[test]
fn files_of_other_kinds_are_named() {
    for (name, content) in [
        ("empty.safetensors", &b""[..]),
        ("empty.pt", b""),
        ("text.pt", b"these are no weights"),
        ("text.safetensors", b"these are no weights"),
        ("zeros.pth", &[0; 4096]),
        ("image.pt", b"\x89PNG\r\n\x1a\n0000000000000000000"),
        ("zip.pt", b"PK\x03\x04 and then nothing of the kind"),
        ("pickle.pt", b"\x80\x02}q\x00."),
    ] {
        let (_folder, path) = file(name, content);
        let message = message(&path);
        assert!(message.contains(name), "{message}");
        assert!(
            message.contains("not a valid") || message.contains("does not fit"),
            "{message}"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let message = message(folder.path());
    assert!(message.contains("cannot read"), "{message}");
}

#[test]
fn declared_lengths_are_not_believed() {
    let header = |length: u64, json: &str| [&length.to_le_bytes()[..], json.as_bytes()].concat();
    for length in [u64::MAX, 1 << 62, 1 << 40, 99_000_000] {
        let (_folder, path) = file("model.safetensors", &header(length, "{}"));
        let message = message(&path);
        assert!(message.contains("may be truncated"), "{message}");
    }
    for shape in ["[1099511627776]", "[4294967296,4294967296,4294967296]"] {
        for end in ["0", "4398046511104", "18446744073709551615"] {
            let json = format!(
                r#"{{"fc.bias":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{end}]}}}}"#
            );
            let (_folder, path) = file("model.safetensors", &header(json.len() as u64, &json));
            let message = message(&path);
            assert!(message.contains("not a valid safetensors"), "{message}");
        }
    }
    let deep = "[".repeat(100_000);
    let (_folder, path) = file("model.safetensors", &header(100_000, &deep));
    assert!(message(&path).contains("not a valid safetensors"));
}

#[test]
fn archives_that_unpack_to_much_are_refused() {
    let many = vec![b'N'; 64 << 20];
    for root in ["archive/data.pkl", "data.pkl", "a/b/data.pkl"] {
        let bomb = zip_with(&[(root, &many)]);
        assert!(bomb.len() < 1 << 20);
        let (_folder, path) = file("bomb.pt", &bomb);
        let message = message(&path);
        assert!(message.contains("67108864 bytes, more than"), "{message}");
    }
}

/// Two kilobytes of a tape archive may stand for any number of zeros.
#[test]
fn tape_archives_are_refused() {
    let mut header = vec![b'0'; 1024];
    header[257..262].copy_from_slice(b"ustar");
    let (_folder, path) = file("old.pt", &header);
    assert!(message(&path).contains("tar archive"), "{}", message(&path));
}

#[test]
fn code_in_a_pickle_is_not_executed() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let command = format!("touch {}", trace.display());
    let calls = [
        format!("cos\nsystem\n(S'{command}'\ntR."),
        format!("}}S'layer1.0.weight'\ncposix\nsystem\n(S'{command}'\ntRs."),
        format!("c__builtin__\neval\n(S'__import__(\"os\").system(\"{command}\")'\ntR."),
    ];
    for pickle in calls {
        let plain = folder.path().join("plain.pt");
        std::fs::write(&plain, &pickle).unwrap();
        let packed = folder.path().join("packed.pt");
        let archive = zip_with(&[("archive/data.pkl", pickle.as_bytes())]);
        std::fs::write(&packed, archive).unwrap();
        for path in [plain, packed] {
            let message = message(&path);
            assert!(!message.is_empty());
            assert!(!trace.exists(), "{pickle}");
        }
    }
}

#[test]
fn every_truncation_is_an_error() {
    let model = csc();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("whole.safetensors");
    save(&model, &path, &model.key_map()).unwrap();
    let keys = model.key_map();
    for whole in [path, golden("csc_cnn.pt"), golden("csc_cnn_checkpoint.pt")] {
        let bytes = std::fs::read(&whole).unwrap();
        let cut = folder
            .path()
            .join("cut")
            .with_extension(whole.extension().unwrap());
        let step = (bytes.len() / 150).max(1);
        for length in (0..bytes.len()).step_by(step).chain([bytes.len() - 1]) {
            std::fs::write(&cut, &bytes[..length]).unwrap();
            let loaded = load(csc(), &cut, &keys);
            assert!(loaded.is_err(), "{length} of {} bytes", bytes.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Damage gives an error or, in values or unused bytes, a model; never a panic.
    #[test]
    fn damaged_files_do_not_panic(
        kind in 0usize..3,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        near_start in any::<bool>(),
    ) {
        let mut bytes = match kind {
            0 => {
                let (_folder, path) = file("model.safetensors", b"");
                let model = csc();
                save(&model, &path, &model.key_map()).unwrap();
                std::fs::read(&path).unwrap()
            }
            1 => std::fs::read(golden("csc_cnn.pt")).unwrap(),
            _ => std::fs::read(golden("csc_cnn_checkpoint.pt")).unwrap(),
        };
        // Names and shapes are at the start.
        let range = if near_start { 1500 } else { bytes.len() };
        for (place, value) in damage {
            let place = place.index(range);
            bytes[place] = value;
        }
        let name = if kind == 0 { "model.safetensors" } else { "model.pt" };
        let (_folder, path) = file(name, &bytes);
        let model = csc();
        let keys = model.key_map();
        if let Err(error) = load(model, &path, &keys) {
            prop_assert!(error.to_string().contains(name));
        }
    }
}

/// Written by scripts/golden/containers.py: Lightning's checkpoint of a compiled model, the average
/// of a model in a separate dictionary, and the format before PyTorch 1.6, each with the additional
/// entries of training scripts.
#[test]
fn weights_are_found_in_the_containers_of_others() {
    let original = load(csc(), golden("csc_cnn.pt"), &csc().key_map()).unwrap();
    let original = state(&original);
    for (file, prefix) in [
        ("lightning.ckpt", "state_dict.model._orig_mod."),
        ("averaged.pt", "params_ema.module."),
        ("stream.pt", "weights."),
    ] {
        let keys = csc().key_map();
        let (loaded, taken) = Load::new()
            .load_told(csc(), golden(file), &keys)
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(state(&loaded), original, "{file}");
        assert_eq!(taken.prefix, prefix);
        assert!(taken.alternatives.is_empty(), "{taken:?}");
        assert_eq!(taken.tensors, 14, "{file}");
        let counter = |name: &str| format!("{name}.num_batches_tracked");
        let expected = [("layer1.1", 1234), ("layer2.1", 4321)];
        let expected = expected.map(|(name, count)| (counter(name), count));
        assert!(taken.batches.into_iter().eq(expected.clone()), "{file}");

        // The batch counters survive a round trip.
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy.safetensors");
        let counted = Batches {
            by_name: batches(golden(file)).unwrap(),
            otherwise: 7,
        };
        save_with(&loaded, &copy, &keys, HashMap::new(), &counted).unwrap();
        let counts: Vec<(String, i64)> = batches(&copy).unwrap().into_iter().collect();
        assert_eq!(counts, expected, "{file}");
    }
}

#[test]
fn of_several_places_that_fit_the_usual_one_is_taken_and_the_others_told() {
    let (one, other) = (state(&csc()), state(&csc()));
    let (_folder, path) = file("model.safetensors", b"");
    let mut tensors = BTreeMap::new();
    for (prefix, state) in [
        ("model.", &one),
        ("averages.module.", &other),
        ("a.model.", &other),
    ] {
        let named = state
            .iter()
            .map(|(key, data)| (format!("{prefix}{key}"), data.clone()));
        tensors.extend(named);
    }
    write(&path, &tensors);
    let keys = csc().key_map();
    let (loaded, taken) = Load::new().load_told(csc(), &path, &keys).unwrap();
    assert_eq!(state(&loaded), one);
    assert_eq!(taken.prefix, "model.");
    assert_eq!(taken.alternatives, ["a.model.", "averages.module."]);
    let chosen = Load::new()
        .part("averages")
        .load(csc(), &path, &keys)
        .unwrap();
    assert_eq!(state(&chosen), other);
}

#[test]
fn a_lenient_load_takes_what_fits_and_lists_the_rest() {
    let saved = state(&csc());
    let mut tensors: BTreeMap<String, TensorData> = saved
        .iter()
        .map(|(key, data)| (format!("state_dict.net.{key}"), data.clone()))
        .collect();
    tensors.remove("state_dict.net.fc.bias");
    let other = TensorData::new(vec![0f32; 36], [36, 1]);
    tensors.insert("state_dict.net.fc.weight".into(), other.clone());
    tensors.insert("state_dict.net.head.bias".into(), saved["fc.bias"].clone());
    let (_folder, path) = file("model.safetensors", b"");
    write(&path, &tensors);
    let said = message(&path);
    for part in [
        "under `state_dict.net.`",
        "fc.bias [5]; the file has state_dict.net.head.bias [5]",
        "fc.weight: [5, 36] in the model, state_dict.net.fc.weight [36, 1] in the file",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let model = csc();
    let before = state(&model);
    let keys = model.key_map();
    let load = Load::new().lenient(true);
    let (loaded, taken) = load.load_told(model, &path, &keys).unwrap();
    for (key, data) in state(&loaded) {
        let from = if key.starts_with("fc.") {
            &before
        } else {
            &saved
        };
        assert_eq!(data, from[&key], "{key}");
    }
    assert_eq!(taken.mismatches.missing.len(), 1, "{taken:?}");
    assert_eq!(taken.mismatches.misshapen.len(), 1, "{taken:?}");
    assert_eq!(taken.mismatches.unexpected.len(), 1, "{taken:?}");
    // A file without any matching tensor is refused.
    write(&path, &BTreeMap::from([("a".to_owned(), other)]));
    let error = load.load(csc(), &path, &keys).unwrap_err();
    assert!(matches!(error, WeightsError::Mismatch { .. }), "{error}");
}

/// A few bytes of a pickle can refer to one large object repeatedly.
#[test]
fn pickles_that_grow_are_refused_or_small() {
    let nested = |inner: &[u8], times: usize| {
        let mut pickle = b"\x80\x02".to_vec();
        pickle.extend(inner);
        pickle.extend(b"q\x00");
        for _ in 0..times {
            // A tuple of the last one, twice.
            pickle.extend(b"h\x00\x86q\x00");
        }
        pickle.push(b'.');
        pickle
    };
    let mut copies = b"\x80\x02(".to_vec();
    copies.extend(vec![b'N'; 1 << 20]);
    copies.extend(b"lq\x00");
    for _ in 0..1000 {
        copies.extend(b"0cbuiltins\nlist\nh\x00\x85R");
    }
    copies.push(b'.');
    let mut itself = b"\x80\x02}q\x00X\x01\0\0\0ah\x00s.".to_vec();
    itself.extend(b"");
    let deep = [
        b"\x80\x02".as_slice(),
        &vec![b']'; 1 << 20],
        &vec![b'a'; (1 << 20) - 1],
        b".",
    ]
    .concat();
    for pickle in [nested(b"]", 60), copies, itself, deep] {
        let (_folder, path) = file("archive.pt", &zip_with(&[("archive/data.pkl", &pickle)]));
        let begin = std::time::Instant::now();
        assert!(!message(&path).is_empty());
        assert!(begin.elapsed().as_secs() < 20);
    }
}
