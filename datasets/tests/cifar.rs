//! CIFAR archives: real ones if `BURN_DIST_DATA` names a folder with `cifar-100/`, and artificial
//! ones, whole and damaged in many ways.

mod common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, thread};

use common::cifar::{Archive, NAMES_100, archive_10, archive_100, records_10, records_100};
use datasets::Cifar100Labels::{Coarse, Fine};
use datasets::{Cifar10, Cifar100, Dataset, DatasetError, Split};

fn real() -> Option<PathBuf> {
    let folder = env::var_os("BURN_DIST_DATA").map(|data| PathBuf::from(data).join("cifar-100"));
    if folder.is_none() {
        common::skipped(
            "set BURN_DIST_DATA to a folder that has cifar-100/ to test on real CIFAR-100",
        );
    }
    folder
}

fn first_labels(set: &impl Dataset, count: usize) -> Vec<u32> {
    let mut image = vec![0; set.shape().len()];
    (0..count)
        .map(|index| set.read(index, &mut image).unwrap())
        .collect()
}

fn image(set: &impl Dataset, index: usize) -> Vec<u8> {
    let mut image = vec![0; set.shape().len()];
    set.read(index, &mut image).unwrap();
    image
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn the_real_set_is_whole_and_opens_at_once_the_second_time() {
    let Some(folder) = real() else { return };
    let cache = tempfile::tempdir().unwrap();
    assert_eq!(Cifar100::missing(&folder), []);
    let start = Instant::now();
    let train = Cifar100::open_with_cache(&folder, Split::Train, Fine, &cache).unwrap();
    let first = start.elapsed();
    let start = Instant::now();
    let test = Cifar100::open_with_cache(&folder, Split::Test, Fine, &cache).unwrap();
    common::say(&format!(
        "first open {first:?}, second {:?}",
        start.elapsed()
    ));

    assert_eq!((train.len(), test.len()), (20_000, 10_000));
    assert_eq!(train.class_names()[..3], ["apple", "aquarium_fish", "baby"]);
    assert_eq!(first_labels(&train, 8), FINE_TRAIN);
    assert_eq!(first_labels(&test, 8), FINE_TEST);
    let coarse = Cifar100::open_with_cache(&folder, Split::Train, Coarse, &cache).unwrap();
    assert_eq!(coarse.class_names()[19], "vehicles_2");
    assert_eq!(first_labels(&coarse, 8), COARSE_TRAIN);
    assert_eq!(image(&coarse, 7), image(&train, 7));

    let mut per_class = [0; 100];
    first_labels(&test, test.len())
        .iter()
        .for_each(|&label| per_class[label as usize] += 1);
    assert_eq!(per_class, [100; 100]);

    // The loader's normalization uses the statistics of the pixels.
    let normalization = train.normalization();
    let mut sums = [0.0f64; 3];
    for index in (0..train.len()).step_by(4) {
        for (sum, plane) in sums.iter_mut().zip(image(&train, index).chunks(1024)) {
            *sum += plane.iter().map(|&byte| f64::from(byte)).sum::<f64>();
        }
    }
    for (sum, mean) in sums.iter().zip(&normalization.mean) {
        let found = sum / 255.0 / 1024.0 / (train.len() / 4) as f64;
        assert!((found - f64::from(*mean)).abs() < 0.01, "{found} {mean}");
    }
}

const FINE_TRAIN: [u32; 8] = [22, 11, 87, 39, 43, 54, 44, 37];
const COARSE_TRAIN: [u32; 8] = [5, 14, 5, 5, 8, 2, 15, 9];
const FINE_TEST: [u32; 8] = [36, 41, 13, 39, 4, 3, 35, 26];

#[test]
fn archives_and_unpacked_folders_give_the_same() {
    for sub in ["", "cifar-10-batches-bin"] {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join(sub);
        fs::create_dir_all(&place).unwrap();
        archive_10().write(&place.join("cifar-10-binary.tar.gz"));
        let train = Cifar10::open(dir.path(), Split::Train).unwrap();
        // Five files of 1 to 5 records.
        assert_eq!(train.len(), 15);
        assert_eq!(first_labels(&train, 6), [0, 0, 1, 0, 1, 2]);
        assert_eq!(image(&train, 0), vec![0; 3072]);
        assert_eq!(image(&train, 14)[..3], [52, 56, 60]);
        assert_eq!(train.class_names()[9], "truck");
        assert_eq!(Cifar10::open(dir.path(), Split::Test).unwrap().len(), 2);
        assert_eq!(Cifar10::missing(dir.path()), []);
        let error = train.read(15, &mut [0; 3072]).unwrap_err();
        assert!(matches!(error, DatasetError::Index { index: 15, len: 15 }));
        assert!(train.read(0, &mut [0; 3071]).is_err());

        let unpacked = tempfile::tempdir().unwrap();
        let place = unpacked.path().join(sub);
        archive_10().write_files(&place);
        let again = Cifar10::open(unpacked.path(), Split::Train).unwrap();
        assert_eq!(first_labels(&again, 15), first_labels(&train, 15));
        assert_eq!(image(&again, 14), image(&train, 14));
        assert_eq!(Cifar10::missing(unpacked.path()), []);
        assert!(!place.join(".burn-dist").exists());
    }
}

/// For commands that only look at the data.
#[test]
fn an_archive_is_read_without_writing_anything() {
    let dir = tempfile::tempdir().unwrap();
    archive_10().write(&dir.path().join("cifar-10-binary.tar.gz"));
    let hundred = dir.path().join("cifar-100-binary.tar.gz");
    archive_100().write(&hundred);
    let archives = entries(dir.path());
    let cache = tempfile::tempdir().unwrap();
    let read = |split| Cifar10::open_read_only(dir.path(), split, Some(cache.path())).unwrap();
    let (train, test) = (read(Split::Train), read(Split::Test));
    let fine = Cifar100::open_read_only(dir.path(), Split::Train, Fine, None).unwrap();
    assert_eq!((train.len(), test.len(), fine.len()), (15, 2, 6));
    assert_eq!(first_labels(&fine, 6), [0, 19, 38, 57, 76, 95]);
    assert_eq!(entries(dir.path()), archives);
    assert_eq!(entries(cache.path()), [""; 0]);
    // What is unpacked already is used, even if the archive has become unreadable.
    let unpacked = Cifar10::open_with_cache(dir.path(), Split::Train, cache.path()).unwrap();
    assert_eq!(first_labels(&train, 15), first_labels(&unpacked, 15));
    assert_eq!(image(&train, 14), image(&unpacked, 14));
    let again = read(Split::Train);
    assert_eq!(image(&again, 14), image(&unpacked, 14));

    let damaged = archive_100().with("cifar-100-binary/train.bin", records_100(6)[1..].to_vec());
    damaged.write(&hundred);
    let error = Cifar100::open_read_only(dir.path(), Split::Train, Fine, None).unwrap_err();
    assert!(matches!(error, DatasetError::Records { .. }), "{error}");
    assert!(error.to_string().contains("tar.gz/train.bin"), "{error}");
    // The other split does not need that file.
    Cifar100::open_read_only(dir.path(), Split::Test, Fine, None).unwrap();
}

#[test]
fn fine_and_coarse_labels_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    archive_100().write(&dir.path().join("cifar-100-binary.tar.gz"));
    let fine = Cifar100::open(dir.path(), Split::Train, Fine).unwrap();
    let coarse = Cifar100::open(dir.path(), Split::Train, Coarse).unwrap();
    assert_eq!(first_labels(&fine, 6), [0, 19, 38, 57, 76, 95]);
    assert_eq!(first_labels(&coarse, 6), [0, 1, 2, 3, 4, 5]);
    assert_eq!(
        (fine.class_names().len(), coarse.class_names().len()),
        (100, 20)
    );
}

/// The archive is replaced by other bytes of the same size and time; it is not read again.
#[test]
fn the_second_open_does_not_read_the_archive() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cifar-100-binary.tar.gz");
    archive_100().write(&path);
    let metadata = fs::metadata(&path).unwrap();
    let (len, modified) = (metadata.len(), metadata.modified().unwrap());
    Cifar100::open(dir.path(), Split::Train, Fine).unwrap();
    let caches = entries(&dir.path().join(".burn-dist"));
    assert_eq!(caches.len(), 1, "{caches:?}");

    let rubbish = File::create(&path).unwrap();
    rubbish.set_len(len).unwrap();
    rubbish.set_modified(modified).unwrap();
    for split in [Split::Train, Split::Test] {
        Cifar100::open(dir.path(), split, Fine).unwrap();
    }
    assert_eq!(entries(&dir.path().join(".burn-dist")), caches);

    // A changed archive is not taken for the old one.
    rubbish
        .set_modified(modified + Duration::from_secs(1))
        .unwrap();
    let error = Cifar100::open(dir.path(), Split::Train, Fine).unwrap_err();
    assert!(matches!(error, DatasetError::Malformed { .. }), "{error}");
    assert!(
        error.to_string().contains("cifar-100-binary.tar.gz"),
        "{error}"
    );
    let left = entries(&dir.path().join(".burn-dist"));
    assert!(!left.iter().any(|name| name.ends_with(".part")), "{left:?}");
}

#[test]
fn a_cache_from_which_something_was_taken_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    archive_100().write(&dir.path().join("cifar-100-binary.tar.gz"));
    let open = || Cifar100::open(dir.path(), Split::Train, Fine);
    open().unwrap();
    let root = dir.path().join(".burn-dist");
    let folder = root.join(&entries(&root)[0]);
    for file in ["train.bin", "complete.txt", "fine_label_names.txt"] {
        fs::remove_file(folder.join(file)).unwrap();
        assert_eq!(open().unwrap().len(), 6);
        assert!(folder.join(file).exists());
    }
    File::options()
        .write(true)
        .open(folder.join("train.bin"))
        .and_then(|file| file.set_len(3074))
        .unwrap();
    assert_eq!(open().unwrap().len(), 6);
}

/// The error must not blame the archive for damage to its copy.
#[test]
fn a_damaged_cache_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    archive_100().write(&dir.path().join("cifar-100-binary.tar.gz"));
    let open = || Cifar100::open(dir.path(), Split::Train, Fine);
    let right = first_labels(&open().unwrap(), 6);
    let root = dir.path().join(".burn-dist");
    let folder = root.join(&entries(&root)[0]);
    let copy = folder.join("train.bin");
    let mut records = fs::read(&copy).unwrap();
    records[3074..3080].fill(0xff);
    fs::write(&copy, records).unwrap();

    let message = open().unwrap_err().to_string();
    for part in [
        format!("{} is damaged", copy.display()),
        "coarse label 255 of record 1".to_owned(),
        format!("Delete the folder {} to unpack it again", folder.display()),
    ] {
        assert!(message.contains(&part), "{part}: {message}");
    }
    assert!(!message.contains("Replace it"), "{message}");
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(first_labels(&open().unwrap(), 6), right);
}

/// Runs in a separate process, see below.
#[test]
fn child_opens() {
    let Some(dir) = env::var_os("CIFAR_CHILD") else {
        return;
    };
    assert_eq!(Cifar100::open(dir, Split::Train, Fine).unwrap().len(), 6);
}

#[test]
fn what_a_killed_process_unpacked_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let large = vec![0; 20_000 * 3074];
    let archive = archive_100().with("cifar-100-binary/train.bin", large);
    archive.write(&dir.path().join("cifar-100-binary.tar.gz"));
    let root = dir.path().join(".burn-dist");
    let parts = || {
        let names = fs::read_dir(&root).into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".part")).count()
    };
    let kill_half_way = || {
        let _ = fs::remove_dir_all(&root);
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["child_opens", "--exact"])
            .env("CIFAR_CHILD", dir.path())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while parts() == 0 && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        parts()
    };
    // Unless it had finished before.
    assert!((0..20).any(|_| kill_half_way() == 1));

    let set = Cifar100::open(dir.path(), Split::Train, Fine).unwrap();
    assert_eq!(set.len(), 20_000);
    assert_eq!(entries(&root).len(), 1, "{:?}", entries(&root));
}

#[test]
fn of_several_processes_one_unpacks_and_the_others_wait() {
    let dir = tempfile::tempdir().unwrap();
    archive_100().write(&dir.path().join("cifar-100-binary.tar.gz"));
    let start = || {
        Command::new(env::current_exe().unwrap())
            .args(["child_opens", "--exact"])
            .env("CIFAR_CHILD", dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut children: Vec<_> = (0..4).map(|_| start()).collect();
    assert!(
        children
            .iter_mut()
            .all(|child| child.wait().unwrap().success())
    );
    let root = dir.path().join(".burn-dist");
    let caches = entries(&root);
    let folder: Vec<_> = caches
        .iter()
        .filter(|name| !name.ends_with(".lock"))
        .collect();
    assert_eq!(folder.len(), 1, "{caches:?}");

    // While another process holds the lock, nobody else unpacks.
    let folder = root.join(folder[0]);
    fs::remove_dir_all(&folder).unwrap();
    let lock_path = root.join(format!(".{}.lock", folder.file_name().unwrap().display()));
    let lock = File::create(&lock_path).unwrap();
    lock.lock().unwrap();
    let mut children: Vec<_> = (0..2).map(|_| start()).collect();
    thread::sleep(Duration::from_millis(300));
    for child in &mut children {
        assert!(child.try_wait().unwrap().is_none(), "it did not wait");
    }
    let waiting = entries(&root);
    assert!(
        waiting.iter().all(|name| name.ends_with(".lock")),
        "{waiting:?}"
    );
    drop(lock);
    assert!(
        children
            .iter_mut()
            .all(|child| child.wait().unwrap().success())
    );
    assert!(folder.join("train.bin").exists());
}

/// Data often lies in a folder that cannot be written to.
#[cfg(unix)]
#[test]
fn the_cache_goes_where_it_can_be_written() {
    use std::os::unix::fs::PermissionsExt;
    let outer = tempfile::tempdir().unwrap();
    let [data, home, temporary] = ["data", "home", "temporary"].map(|name| outer.path().join(name));
    for dir in [&data, &home, &temporary] {
        fs::create_dir(dir).unwrap();
    }
    archive_100().write(&data.join("cifar-100-binary.tar.gz"));
    let open = || {
        let child = Command::new(env::current_exe().unwrap())
            .args(["child_opens", "--exact"])
            .env("CIFAR_CHILD", &data)
            .env("XDG_CACHE_HOME", &home)
            .env("TMPDIR", &temporary)
            .env("USER", "somebody")
            .output();
        let child = child.unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned();
        (child.status.success(), said)
    };
    let block = |path: &Path| fs::write(path, "no folder").unwrap();

    block(&data.join(".burn-dist"));
    assert!(open().0);
    assert_eq!(entries(&home.join("burn-dist")).len(), 1);

    fs::remove_dir_all(home.join("burn-dist")).unwrap();
    block(&home.join("burn-dist"));
    assert!(open().0);
    let last = temporary.join("burn-dist-somebody");
    assert_eq!(
        fs::metadata(&last).unwrap().permissions().mode() & 0o777,
        0o700
    );
    assert_eq!(entries(&last).len(), 1);
    assert!(open().0);

    // Files that others may have put there are not trusted.
    fs::set_permissions(&last, fs::Permissions::from_mode(0o777)).unwrap();
    let (opened, said) = open();
    assert!(!opened && said.contains("others can write to it"), "{said}");
}

#[test]
fn what_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = Cifar10::open(dir.path(), Split::Train)
        .unwrap_err()
        .to_string();
    for part in [
        "CIFAR-10",
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        "data.dir",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(Cifar10::missing(dir.path()), Cifar10::FILES);

    archive_10().write_files(dir.path());
    fs::remove_file(dir.path().join("data_batch_3.bin")).unwrap();
    let error = Cifar10::open(dir.path(), Split::Train)
        .unwrap_err()
        .to_string();
    assert!(error.contains("data_batch_3.bin"), "{error}");
    assert!(!error.contains("data_batch_2.bin"), "{error}");
    assert_eq!(Cifar10::missing(dir.path()), Cifar10::FILES);
    Cifar10::open(dir.path(), Split::Test).unwrap();
}

/// Returns the error from opening an archive.
fn refused(archive: &Archive) -> DatasetError {
    let dir = tempfile::tempdir().unwrap();
    archive.write(&dir.path().join("cifar-100-binary.tar.gz"));
    Cifar100::open(dir.path(), Split::Train, Fine).unwrap_err()
}

/// Returns the kind of an unpacked file's damage, and its place if known.
fn damage(error: &DatasetError) -> (&'static str, Option<u64>) {
    let DatasetError::Unpacked { damage, .. } = error else {
        panic!("{error}");
    };
    match **damage {
        DatasetError::Malformed { offset, .. } => ("Malformed", Some(offset)),
        DatasetError::Records { .. } => ("Records", None),
        DatasetError::Names { expected: 100, .. } => ("Names", None),
        _ => panic!("{error}"),
    }
}

#[test]
fn wrong_labels_are_named_with_record_and_byte() {
    for (byte, value, name) in [(0, 20, "coarse label 20"), (1, 100, "fine label 100")] {
        let mut records = records_100(6);
        records[4 * 3074 + byte] = value;
        let error = refused(&archive_100().with("cifar-100-binary/train.bin", records));
        assert_eq!(damage(&error).1, Some(4 * 3074 + byte as u64));
        let message = error.to_string();
        assert!(
            message.contains(&format!("{name} of record 4")),
            "{message}"
        );
        assert!(message.contains("cifar-100-binary.tar.gz"), "{message}");
        assert!(message.contains("train.bin"), "{message}");
    }
    let mut records = records_10(3);
    records[2 * 3073] = 10;
    let dir = tempfile::tempdir().unwrap();
    let archive = archive_10().with("cifar-10-batches-bin/data_batch_3.bin", records);
    archive.write_files(dir.path());
    let error = Cifar10::open(dir.path(), Split::Train)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("data_batch_3.bin") && error.contains("label 10 of record 2"),
        "{error}"
    );
}

#[test]
fn cut_records_are_named_with_numbers() {
    for (len, records, rest) in [(6 * 3074 - 1, 5, 3073), (3074 + 5, 1, 5), (0, 0, 0)] {
        let mut cut = records_100(6);
        cut.truncate(len);
        let error = refused(&archive_100().with("cifar-100-binary/train.bin", cut));
        assert_eq!(damage(&error).0, "Records", "{error}");
        let message = error.to_string();
        for part in [
            format!("{len} bytes"),
            format!("{records} records of 3074 bytes"),
            format!("{rest} bytes more"),
        ] {
            assert!(message.contains(&part), "{part}: {message}");
        }
    }
}

#[test]
fn lists_of_another_length_are_refused() {
    for names in [
        NAMES_100.replace("class7\n", ""),
        format!("{}more\n", *NAMES_100),
        String::new(),
    ] {
        let list = "cifar-100-binary/fine_label_names.txt";
        let error = refused(&archive_100().with(list, names.into_bytes()));
        assert_eq!(damage(&error).0, "Names", "{error}");
        assert!(
            error.to_string().contains("fine_label_names.txt"),
            "{error}"
        );
    }
}

#[test]
fn every_cut_of_an_archive_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cifar-100-binary.tar.gz");
    let whole = archive_100().compressed();
    let mut truncated = 0;
    for len in (0..whole.len()).step_by(whole.len() / 40) {
        fs::write(&path, &whole[..len]).unwrap();
        let error = Cifar100::open(dir.path(), Split::Test, Fine).unwrap_err();
        truncated += usize::from(matches!(error, DatasetError::ArchiveTruncated { .. }));
        assert!(
            error.to_string().contains("cifar-100-binary.tar.gz"),
            "{error}"
        );
    }
    assert!(truncated > 35, "{truncated}");
    let left = entries(&dir.path().join(".burn-dist"));
    assert!(left.iter().all(|name| name.ends_with(".lock")), "{left:?}");
}

/// The tar inside ends early, though gzip is complete.
#[test]
fn a_cut_inside_the_compression_is_noticed() {
    let tar = archive_100().tar();
    for len in [100, 512, 5000, tar.len() / 2] {
        let error = refused(&Archive::raw(&tar[..len]));
        assert!(
            matches!(error, DatasetError::ArchiveTruncated { .. }),
            "{len}: {error}"
        );
    }
}

#[test]
fn damaged_archives_are_refused() {
    let mut checksum = archive_100().compressed();
    let at = checksum.len() - 6;
    checksum[at] ^= 1;
    let mut header = archive_100().tar();
    header[3] ^= 1;
    let twice = archive_100().also("cifar-100-binary/train.bin", records_100(1));
    let huge = archive_100().with("cifar-100-binary/fine_label_names.txt", vec![b'a'; 70_000]);
    for (archive, reason) in [
        (
            Archive::bytes(checksum),
            "cannot read it after its last file",
        ),
        (Archive::raw(&header), "cannot read it"),
        (
            Archive::bytes(b"<html>please log in</html>".to_vec()),
            "cannot read it",
        ),
        (twice, "twice"),
        (huge, "at most 65536"),
    ] {
        let error = refused(&archive);
        assert!(matches!(error, DatasetError::Malformed { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{reason}: {error}");
    }
}

#[test]
fn archives_of_something_else_are_refused() {
    let other = Archive::default().also("cifar-100-binary/readme.txt", vec![1; 100]);
    let mut lacks = archive_100();
    lacks.remove("cifar-100-binary/test.bin");
    for (archive, names) in [
        (archive_10(), "train.bin, test.bin"),
        (other, "train.bin"),
        (lacks, "contain test.bin,"),
    ] {
        let error = refused(&archive);
        assert!(
            matches!(error, DatasetError::ArchiveLacks { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(names), "{error}");
    }
}

/// Paths in the archive only lead to the expected names.
#[test]
fn nothing_is_written_outside_the_cache() {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("data");
    fs::create_dir(&dir).unwrap();
    let mut archive = archive_100();
    for path in [
        "../escaped",
        "/escaped",
        "cifar-100-binary/../../escaped",
        "other/train.bin",
    ] {
        archive = archive.also(path, vec![1; 10]);
    }
    archive = archive.link("cifar-100-binary/link", "../../..");
    archive.write(&dir.join("cifar-100-binary.tar.gz"));
    Cifar100::open(&dir, Split::Train, Fine).unwrap();
    assert_eq!(entries(outer.path()), ["data"]);
    let root = dir.join(".burn-dist");
    assert_eq!(
        entries(&root.join(&entries(&root)[0])),
        [
            "coarse_label_names.txt",
            "complete.txt",
            "fine_label_names.txt",
            "test.bin",
            "train.bin"
        ]
    );
}

/// Small files may unpack to very large ones.
#[test]
fn a_bomb_is_not_unpacked() {
    let error = refused(&Archive::bomb("cifar-100-binary/other.bin", 700 << 20));
    assert!(error.to_string().contains("more than the"), "{error}");
    let error = refused(&Archive::bomb("cifar-100-binary/train.bin", 300 << 20));
    assert!(error.to_string().contains("at most 268435456"), "{error}");
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    archive_100().write(&dir.path().join("cifar-100-binary.tar.gz"));
    let blocked = dir.path().join("file");
    fs::write(&blocked, "").unwrap();
    let cache = blocked.join("cache");
    let error = Cifar100::open_with_cache(dir.path(), Split::Train, Fine, &cache).unwrap_err();
    assert!(matches!(error, DatasetError::NoCache { .. }), "{error}");
    assert!(
        error.to_string().contains(cache.to_str().unwrap()),
        "{error}"
    );
}
