//! Samples of tar files, good and hostile ones.

use std::convert::Infallible;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use burn_dataset::Dataset;
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

use super::*;
use crate::{Division, Loader, LoaderError, ShardLoader, ShardSampler, TrainSampler};

fn header(kind: EntryType, name: &str, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    let field = &mut header.as_old_mut().name;
    field[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    header
}

fn file(tar: &mut Builder<Vec<u8>>, name: &str, content: &[u8]) {
    let header = header(EntryType::Regular, name, content.len() as u64);
    tar.append(&header, content).unwrap();
}

/// Samples `from..to`: a number as text in `txt`, and as many bytes in `bin`.
fn shard(from: usize, to: usize) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    for number in from..to {
        let key = format!("part/{number:06}");
        file(
            &mut tar,
            &format!("{key}.txt"),
            number.to_string().as_bytes(),
        );
        file(&mut tar, &format!("{key}.BIN"), &vec![7; number]);
    }
    tar.into_inner().unwrap()
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    File::create(&path).unwrap().write_all(bytes).unwrap();
    path
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// All samples of a file.
fn read_all(path: &Path, limit: u64) -> Result<Vec<TarSample>, TarError> {
    let mut reader = TarReader::open(path, limit, CONTENTS)?;
    let mut samples = Vec::new();
    while let Some(place) = reader.sample(true)? {
        samples.push(place.sample);
    }
    // The offsets of skipped samples are the same.
    let mut skipping = TarReader::open(path, limit, input::HEADERS)?;
    let mut skipped = 0;
    while skipping.sample(false)?.is_some() {
        skipped += 1;
    }
    assert_eq!(
        (skipped, skipping.offset()),
        (samples.len(), reader.offset())
    );
    Ok(samples)
}

/// The error of a file that begins with these bytes.
fn error_of(bytes: &[u8]) -> TarError {
    let folder = TempDir::new().unwrap();
    read_all(&write(folder.path(), "bad.tar", bytes), 4096).unwrap_err()
}

fn number(sample: &TarSample) -> usize {
    let text = str::from_utf8(sample.get("txt").unwrap()).unwrap();
    let number = text.parse().unwrap();
    assert_eq!(sample.key(), format!("part/{number:06}"));
    assert_eq!(sample.get("bin").unwrap(), vec![7; number]);
    number
}

#[test]
fn shards_of_ranks_and_workers_hold_every_sample_once() {
    let folder = TempDir::new().unwrap();
    for (index, (from, to)) in [(0, 40), (40, 45), (45, 90), (90, 100)]
        .into_iter()
        .enumerate()
    {
        // Half of them compressed: the content decides, not the name.
        let bytes = shard(from, to);
        let bytes = if index % 2 == 1 { gzip(&bytes) } else { bytes };
        write(folder.path(), &format!("shard-{index:03}.tar"), &bytes);
    }
    let pattern = format!("{}/shard-{{000..003}}.tar", folder.path().display());
    for division in [Division::Shards, Division::Samples] {
        let mut seen = Vec::new();
        for rank in 0..3 {
            let shards = TarShards::from_pattern(&pattern).unwrap();
            let decode = |sample, _: &mut _| Ok::<_, Infallible>(number(&sample));
            let loader = ShardLoader::new(shards, decode, Ok::<_, Infallible>).workers(2);
            let sampler = ShardSampler::new(4, rank, 3).unwrap().divide(division);
            let sampler = sampler.shuffle(10, 42);
            let all = |epoch| -> Vec<Vec<usize>> {
                loader.iter(epoch).collect::<Result<_, _>>().unwrap()
            };
            let whole = all(sampler.epoch(1));
            let rest = all(sampler.epoch(1).from_step(2));
            assert_eq!(rest, whole[2.min(whole.len())..]);
            seen.extend(whole.into_iter().flatten());
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..100));
    }
}

#[test]
fn an_index_gives_the_samples_in_any_order() {
    let folder = TempDir::new().unwrap();
    let paths = [(0, 30), (30, 41)].map(|(from, to)| {
        let name = format!("{from}.tar");
        write(folder.path(), &name, &shard(from, to))
    });
    let samples = TarShards::new(paths).unwrap().index().unwrap();
    assert_eq!(samples.len(), 41);
    assert_eq!(number(&samples.get(33).unwrap()), 33);
    assert_eq!(number(&samples.get(0).unwrap()), 0);
    let error = samples.get(41).unwrap_err();
    assert!(matches!(error, TarError::Index { index: 41, len: 41 }));

    let sampler = TrainSampler::new(41, 8, 4, 1, 2, 42).unwrap();
    let numbers = |samples: Vec<TarSample>| {
        Ok::<_, Infallible>(samples.iter().map(number).collect::<Vec<_>>())
    };
    let loader = Loader::new(samples, numbers).workers(2);
    let epoch = sampler.epoch(0);
    let read: Vec<Vec<usize>> = loader
        .iter(epoch.clone())
        .collect::<Result<_, _>>()
        .unwrap();
    assert!(epoch.iter().eq(&read));

    let compressed = write(folder.path(), "c.tar", &gzip(&shard(0, 3)));
    let error = TarShards::new([compressed]).unwrap().index().unwrap_err();
    assert!(matches!(error, TarError::Compressed { .. }), "{error}");
}

#[test]
fn other_entries_and_long_names_are_understood() {
    let mut tar = Builder::new(Vec::new());
    let long = format!("{}/7.txt", "x".repeat(200));
    // As Python's tarfile writes them: every file with a PAX header.
    tar.append_pax_extensions([("mtime", b"1.5".as_slice()), ("path", "ü/7.txt".as_bytes())])
        .unwrap();
    file(&mut tar, "_/7.txt", b"one");
    tar.append(&header(EntryType::Directory, "a.dir/", 0), &[][..])
        .unwrap();
    file(&mut tar, "README", b"nothing");
    let mut link = header(EntryType::Symlink, "b.txt", 0);
    link.set_size(1000); // Some writers do, without content.
    link.set_cksum();
    tar.append(&link, &[][..]).unwrap();
    let mut name = header(EntryType::Regular, "_", 3);
    tar.append_data(&mut name, &long, b"two".as_slice())
        .unwrap();
    file(&mut tar, "./c/7.txt", b"three");
    file(&mut tar, "c/7.cls", b"4");
    file(&mut tar, "c/8.cls", b"5");
    let folder = TempDir::new().unwrap();
    let path = write(folder.path(), "a.tar", &tar.into_inner().unwrap());
    let samples = read_all(&path, 4096).unwrap();
    let found: Vec<(&str, usize)> = samples
        .iter()
        .map(|sample| (sample.key(), sample.files().len()))
        .collect();
    let long = long.trim_end_matches(".txt");
    assert_eq!(found, [("ü/7", 1), (long, 1), ("c/7", 2), ("c/8", 1)]);
    assert_eq!(samples[2].get("txt").unwrap(), b"three");
    // The index finds them too.
    let indexed = TarShards::new([path]).unwrap().index().unwrap();
    let all: Vec<TarSample> = (0..4).map(|index| indexed.get(index).unwrap()).collect();
    assert_eq!(all, samples);
}

#[test]
fn truncated_shards_are_errors() {
    let whole = shard(0, 3);
    let folder = TempDir::new().unwrap();
    let last = whole.len() - 1024; // The end mark has two blocks.
    for len in [0, 100, 512, 513, 1024, 1536, 2000, last - 1, last] {
        for bytes in [whole[..len].to_vec(), gzip(&whole[..len])] {
            let path = write(folder.path(), "a.tar", &bytes);
            let error = read_all(&path, 4096).unwrap_err();
            assert!(
                matches!(error, TarError::Truncated { .. }),
                "{len}: {error}"
            );
        }
    }
    let compressed = gzip(&whole);
    for len in [20, compressed.len() / 2, compressed.len() - 1] {
        let path = write(folder.path(), "a.tar", &compressed[..len]);
        let error = read_all(&path, 4096).unwrap_err();
        assert!(
            matches!(error, TarError::Truncated { .. }),
            "{len}: {error}"
        );
    }
}

#[test]
fn complete_samples_come_before_an_error() {
    let folder = TempDir::new().unwrap();
    let bytes = shard(0, 3);
    let path = write(folder.path(), "a.tar", &bytes[..bytes.len() - 1024]);
    let decode = |sample, _: &mut _| Ok::<_, Infallible>(number(&sample));
    let shards = TarShards::new([path]).unwrap();
    let loader = ShardLoader::new(shards, decode, Ok::<_, Infallible>);
    let mut batches = loader.iter(ShardSampler::new(1, 0, 1).unwrap().epoch(0));
    for number in 0..3 {
        assert_eq!(batches.next().unwrap().unwrap(), [number]);
    }
    let error = batches.next().unwrap().unwrap_err();
    assert!(
        matches!(error, LoaderError::Shard { shard: 0, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("a.tar is truncated"), "{error}");
}

#[test]
fn hostile_shards_are_errors() {
    let with = |change: &dyn Fn(&mut Builder<Vec<u8>>)| {
        let mut tar = Builder::new(Vec::new());
        change(&mut tar);
        tar.into_inner().unwrap()
    };
    for name in ["../a.txt", "a/../b.txt", "/etc/a.txt", "a/..", ".."] {
        let error = error_of(&with(&|tar| file(tar, name, b"x"))).to_string();
        assert!(error.contains("leads out of its folder"), "{error}");
    }
    // More than the limit in one file, and in several.
    let large = |sizes: &[usize]| {
        let error = error_of(&with(&|tar| {
            for (index, &size) in sizes.iter().enumerate() {
                file(tar, &format!("a.{index}"), &vec![0; size]);
            }
        }));
        assert!(
            matches!(error, TarError::TooLarge { limit: 4096, .. }),
            "{error}"
        );
    };
    large(&[4097]);
    large(&[2000, 0, 2000, 97]);
    // A size that is only announced: nothing is allocated for it.
    for size in [1 << 40, u64::MAX, u64::MAX - 511] {
        let bytes = header(EntryType::Regular, "a.txt", size)
            .as_bytes()
            .to_vec();
        assert!(matches!(error_of(&bytes), TarError::TooLarge { .. }));
        let bytes = header(EntryType::Regular, "README", size)
            .as_bytes()
            .to_vec();
        assert!(matches!(error_of(&bytes), TarError::Truncated { .. }));
        for kind in [
            EntryType::GNULongName,
            EntryType::XHeader,
            EntryType::XGlobalHeader,
        ] {
            let bytes = header(kind, "a.txt", size).as_bytes().to_vec();
            assert!(matches!(error_of(&bytes), TarError::Damaged { .. }));
        }
    }
    let damaged = |bytes: &[u8], text: &str| {
        let error = error_of(bytes).to_string();
        assert!(error.contains(text), "{error}");
    };
    let twice = with(&|tar| {
        file(tar, "a.txt", b"1");
        file(tar, "a.TXT", b"2");
    });
    damaged(&twice, "it contains a.txt twice");
    let many = with(&|tar| (0..1025).for_each(|file| self::file(tar, &format!("a.{file}"), b"")));
    damaged(&many, "the sample a has more than 1024 files");
    damaged(&[1; 512], "a header has a wrong checksum");
    let sparse = header(EntryType::GNUSparse, "a.txt", 0).as_bytes().to_vec();
    damaged(&sparse, "sparse");
    let pax = |key: &str, value: &[u8]| {
        with(&|tar| {
            tar.append_pax_extensions([(key, value)]).unwrap();
            file(tar, "a.txt", b"1");
        })
    };
    damaged(&pax("size", b"99"), "a PAX header has a size");
    damaged(&pax("path", b"\xff.txt"), "a name is not UTF-8");
    damaged(&pax("path", &[b'x'; 4097]), "a name has 4097 bytes");
    damaged(&pax("path", b"/x.txt"), "leads out of its folder");
    damaged(&pax("GNU.sparse.major", b"1"), "sparse");
}

#[test]
fn missing_shards_are_named() {
    let error = TarShards::from_pattern("/no/shard-{0..1}.tar").unwrap_err();
    assert!(error.to_string().contains("/no/shard-0.tar"), "{error}");
    let none: [&str; 0] = [];
    assert!(matches!(TarShards::new(none), Err(TarError::NoShards)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damage_is_an_error_or_another_content(
        changes in prop::collection::vec((0_usize..4096, any::<u8>()), 1..20),
        compress: bool,
    ) {
        let mut bytes = shard(0, 3);
        for (place, byte) in changes {
            let place = place % bytes.len();
            bytes[place] = byte;
        }
        let folder = TempDir::new().unwrap();
        let bytes = if compress { gzip(&bytes) } else { bytes };
        let path = write(folder.path(), "a.tar", &bytes);
        if let Ok(samples) = read_all(&path, 1 << 20) {
            prop_assert!(samples.len() <= 6);
        }
    }
}
