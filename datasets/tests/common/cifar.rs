//! Small archives in the publisher's layout.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::LazyLock;

use flate2::{Compression, write::GzEncoder};

/// A hundred names, one per line.
pub static NAMES_100: LazyLock<String> = LazyLock::new(|| names(100));

fn names(count: usize) -> String {
    (0..count).map(|class| format!("class{class}\n")).collect()
}

/// Returns `count` records of CIFAR-10; record `r` has label `r`, its pixel `p` is `(p + 13) * r`,
/// modulo 256.
pub fn records_10(count: usize) -> Vec<u8> {
    records(count, |record| vec![record as u8 % 10])
}

/// Returns `count` records of CIFAR-100 with superclass `r` and class `19 * r`.
pub fn records_100(count: usize) -> Vec<u8> {
    records(count, |record| {
        vec![record as u8 % 20, (19 * record % 100) as u8]
    })
}

fn records(count: usize, labels: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    (0..count)
        .flat_map(|record| {
            let pixels = (0..3072).map(move |pixel| ((pixel + 13) * record) as u8);
            labels(record).into_iter().chain(pixels)
        })
        .collect()
}

/// Returns five training files of 1 to 5 records, and a test file of 2.
pub fn archive_10() -> Archive {
    let folder = "cifar-10-batches-bin";
    let names = "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n";
    let mut archive = Archive::default().also(&format!("{folder}/batches.meta.txt"), names.into());
    for batch in 1..=5 {
        let path = format!("{folder}/data_batch_{batch}.bin");
        archive = archive.also(&path, records_10(batch));
    }
    archive.also(&format!("{folder}/test_batch.bin"), records_10(2))
}

/// Returns six records to train with, and three to test.
pub fn archive_100() -> Archive {
    Archive::default()
        .also("cifar-100-binary/coarse_label_names.txt", names(20).into())
        .also("cifar-100-binary/fine_label_names.txt", names(100).into())
        .also("cifar-100-binary/test.bin", records_100(3))
        .also("cifar-100-binary/train.bin", records_100(6))
}

/// Contents of a `.tar.gz`.
#[derive(Default)]
pub struct Archive {
    files: Vec<(String, Vec<u8>)>,
    links: Vec<(String, String)>,
    /// Replaces all of that.
    bytes: Option<Vec<u8>>,
}

impl Archive {
    /// Returns an archive of arbitrary bytes.
    pub fn bytes(bytes: Vec<u8>) -> Self {
        Archive {
            bytes: Some(bytes),
            ..Archive::default()
        }
    }

    /// Returns an archive of these bytes, compressed.
    pub fn raw(tar: &[u8]) -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(tar).unwrap();
        Self::bytes(encoder.finish().unwrap())
    }

    /// Returns an archive with one file of `len` zeros.
    pub fn bomb(path: &str, len: u64) -> Self {
        let encoder = GzEncoder::new(Vec::new(), Compression::fast());
        let mut builder = tar::Builder::new(encoder);
        let mut header = header(len);
        builder
            .append_data(&mut header, path, io::repeat(0).take(len))
            .unwrap();
        Self::bytes(builder.into_inner().unwrap().finish().unwrap())
    }

    /// Adds a file.
    pub fn also(mut self, path: &str, content: Vec<u8>) -> Self {
        self.files.push((path.into(), content));
        self
    }

    /// Adds a symbolic link.
    pub fn link(mut self, path: &str, target: &str) -> Self {
        self.links.push((path.into(), target.into()));
        self
    }

    /// Replaces a file.
    pub fn with(mut self, path: &str, content: Vec<u8>) -> Self {
        let file = self.files.iter_mut().find(|(name, _)| name == path);
        file.unwrap().1 = content;
        self
    }

    /// Removes a file.
    pub fn remove(&mut self, path: &str) {
        self.files.retain(|(name, _)| name != path);
    }

    /// Returns the tar before compression.
    pub fn tar(&self) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, content) in &self.files {
            let mut header = header(content.len() as u64);
            // The builder's own methods refuse paths that lead outside.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_cksum();
            builder.append(&header, content.as_slice()).unwrap();
        }
        for (path, target) in &self.links {
            let mut header = header(0);
            header.set_entry_type(tar::EntryType::Symlink);
            builder.append_link(&mut header, path, target).unwrap();
        }
        builder.into_inner().unwrap()
    }

    /// Returns the `.tar.gz`.
    pub fn compressed(&self) -> Vec<u8> {
        match &self.bytes {
            Some(bytes) => bytes.clone(),
            None => Self::raw(&self.tar()).bytes.unwrap(),
        }
    }

    /// Writes the `.tar.gz`.
    pub fn write(&self, path: &Path) {
        fs::write(path, self.compressed()).unwrap();
    }

    /// Writes the files, without the archive's folder.
    pub fn write_files(&self, dir: &Path) {
        fs::create_dir_all(dir).unwrap();
        for (path, content) in &self.files {
            let name = path.rsplit('/').next().unwrap();
            fs::write(dir.join(name), content).unwrap();
        }
    }
}

fn header(len: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_size(len);
    header.set_mode(0o644);
    header.set_cksum();
    header
}
