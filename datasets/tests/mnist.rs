//! The real MNIST, if the environment variable `BURN_DIST_DATA` names a folder with `mnist/`.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::{env, fs};

use datasets::{Dataset, Mnist, Split};
use sha2::{Digest, Sha256};

fn folder() -> Option<PathBuf> {
    let folder = env::var_os("BURN_DIST_DATA").map(|data| PathBuf::from(data).join("mnist"));
    if folder.is_none() {
        // The test harness hides `eprintln!` of passing tests.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: set BURN_DIST_DATA to a folder that has mnist/ to test on real MNIST"
        );
    }
    folder
}

#[test]
fn both_splits_are_whole() {
    let Some(folder) = folder() else { return };
    assert_eq!(Mnist::missing(&folder), []);
    // Images per class, as published.
    let train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949];
    let test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009];
    for (split, classes) in [(Split::Train, train), (Split::Test, test)] {
        let set = Mnist::open(&folder, split).unwrap();
        assert_eq!(set.len(), classes.iter().sum::<usize>());
        let mut counts = [0; 10];
        let mut image = vec![0; set.shape().len()];
        let mut sum = 0;
        for index in 0..set.len() {
            counts[set.read(index, &mut image).unwrap() as usize] += 1;
            sum += image.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        }
        assert_eq!(counts, classes);
        let mean = sum as f64 / 255.0 / (set.len() * image.len()) as f64;
        assert!(
            (mean - f64::from(set.normalization().mean[0])).abs() < 0.002,
            "{mean}"
        );
    }
}

#[test]
fn the_published_checksums_are_those_of_the_files() {
    let Some(folder) = folder() else { return };
    for file in Mnist::FILES {
        let mut content = Vec::new();
        let stored = fs::File::open(folder.join(file.name)).unwrap();
        flate2::read::MultiGzDecoder::new(stored)
            .read_to_end(&mut content)
            .unwrap();
        let digits: String = Sha256::digest(&content)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(
            (digits.as_str(), content.len() as u64),
            (file.sha256, file.len)
        );
    }
}

#[test]
fn uncompressed_files_in_torchvisions_layout_are_the_same() {
    let Some(folder) = folder() else { return };
    let copy = tempfile::tempdir().unwrap();
    let raw = copy.path().join("MNIST/raw");
    fs::create_dir_all(&raw).unwrap();
    for file in &Mnist::FILES[2..] {
        let mut content = Vec::new();
        let stored = fs::File::open(folder.join(file.name)).unwrap();
        flate2::read::MultiGzDecoder::new(stored)
            .read_to_end(&mut content)
            .unwrap();
        fs::write(raw.join(file.name.trim_end_matches(".gz")), content).unwrap();
    }
    let (plain, compressed) = (
        Mnist::open(copy.path(), Split::Test).unwrap(),
        Mnist::open(&folder, Split::Test).unwrap(),
    );
    let (mut a, mut b) = (vec![0; 784], vec![0; 784]);
    for index in 0..compressed.len() {
        assert_eq!(
            plain.read(index, &mut a).unwrap(),
            compressed.read(index, &mut b).unwrap()
        );
        assert_eq!(a, b);
    }
    let missing: Vec<&str> = Mnist::missing(copy.path())
        .iter()
        .map(|file| file.name)
        .collect();
    assert_eq!(
        missing,
        ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"]
    );
}
