//! Memory for small files of very large pictures. The only test of its process, whose memory it
//! measures.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::thread;

use datasets::{DatasetError, ImageFolder, ImageFolderOptions, ImageShape, Split, read_image};
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

const MIB: u64 = 1 << 20;

fn chunk(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let mut crc = Crc::new();
    crc.update(name);
    crc.update(content);
    let length = u32::try_from(content.len()).unwrap();
    [
        &length.to_be_bytes()[..],
        name,
        content,
        &crc.sum().to_be_bytes(),
    ]
    .concat()
}

/// Writes a transparent square as PNG; zeros are not kept in memory.
fn transparent(path: &Path, side: u32) {
    let mut pixels = ZlibEncoder::new(Vec::new(), Compression::fast());
    let row = vec![0; 1 + 4 * side as usize];
    for _ in 0..side {
        pixels.write_all(&row).unwrap();
    }
    let header = [
        &side.to_be_bytes()[..],
        &side.to_be_bytes(),
        &[8, 6, 0, 0, 0],
    ]
    .concat();
    let file = [
        &b"\x89PNG\r\n\x1a\n"[..],
        &chunk(b"IHDR", &header),
        &chunk(b"IDAT", &pixels.finish().unwrap()),
        &chunk(b"IEND", &[]),
    ]
    .concat();
    assert!(file.len() < 4 << 20);
    fs::write(path, file).unwrap();
}

/// Writes a red pixel as PNG with a colour profile of that many MiB of zeros.
fn with_profile(path: &Path, mib: u64) {
    let mut profile = ZlibEncoder::new(b"zeros\0\0".to_vec(), Compression::fast());
    let zeros = vec![0; MIB as usize];
    for _ in 0..mib {
        profile.write_all(&zeros).unwrap();
    }
    let mut pixels = ZlibEncoder::new(Vec::new(), Compression::fast());
    pixels.write_all(&[0, 255, 0, 0]).unwrap();
    let file = [
        &b"\x89PNG\r\n\x1a\n"[..],
        &chunk(b"IHDR", &[0, 0, 0, 1, 0, 0, 0, 1, 8, 2, 0, 0, 0]),
        &chunk(b"iCCP", &profile.finish().unwrap()),
        &chunk(b"IDAT", &pixels.finish().unwrap()),
        &chunk(b"IEND", &[]),
    ]
    .concat();
    fs::write(path, file).unwrap();
}

/// Returns the peak memory of the process.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        << 10
}

#[test]
fn all_threads_decode_within_one_budget() {
    let root = tempfile::tempdir().unwrap();
    let class = root.path().join("class");
    fs::create_dir(&class).unwrap();
    let (large, huge) = (class.join("large.png"), class.join("huge.png"));

    // A profile is not used: a picture with a profile of any size is read, without memory for the
    // profile.
    let profile = root.path().join("profile.png");
    with_profile(&profile, 400);
    let before = peak();
    let pixel = ImageShape {
        channels: 3,
        height: 1,
        width: 1,
    };
    let mut image = [1; 3];
    read_image(&profile, pixel, 1, &mut image).unwrap();
    assert_eq!(image, [255, 0, 0]);
    assert!(
        peak() - before < 64 * MIB,
        "{} MiB",
        (peak() - before) / MIB
    );

    // 187 MiB, and 140 more without transparency.
    transparent(&large, 7000);
    let before = peak();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let shape = ImageShape {
                    channels: 3,
                    height: 8,
                    width: 8,
                };
                let mut image = [1; 192];
                read_image(&large, shape, 8, &mut image).unwrap();
                assert_eq!(image, [0; 192]);
            });
        }
    });
    let taken = peak() - before;
    assert!(
        (100 * MIB..560 * MIB).contains(&taken),
        "{} MiB",
        taken / MIB
    );

    // More than the total limit: refused when the folder is opened.
    transparent(&huge, 9000);
    let options = ImageFolderOptions::new(8);
    let error = ImageFolder::open(root.path(), Split::Train, &options).unwrap_err();
    assert!(
        matches!(error, DatasetError::Images { usable: 1, .. }),
        "{error}"
    );
    let said = error.to_string();
    let words =
        "huge.png: its 9000x9000 pixels need 540 MiB to decode, more than the maximum of 512 MiB";
    assert!(said.contains(words), "{said}");
    assert_eq!(peak() - before, taken);
}
