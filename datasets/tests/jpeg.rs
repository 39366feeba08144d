//! JPEGs with every sampling of their components: decoded correctly, or refused by name.
//!
//! The pictures are made here from flat blocks, so that their content is known. libjpeg, through
//! Pillow, decodes all valid ones to the same pixels.

use std::fs;
use std::path::Path;

use datasets::{DatasetError, ImageFolder, ImageFolderOptions, ImageShape, Split, read_image};

const SIDE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Baseline,
    /// Baseline with a scan for each component.
    Apart,
    Progressive,
}

/// Horizontal and vertical sampling factors.
type Factors = [usize; 2];

fn most(factors: &[Factors]) -> Factors {
    [0, 1].map(|side| factors.iter().map(|both| both[side]).max().unwrap())
}

/// Returns the value of component `component` in the block that begins at a pixel: luma rises to
/// the right, the chromas downwards and towards the lower right corner.
fn value(component: usize, x: usize, y: usize) -> i32 {
    let (x, y, side) = (x as i32, y as i32, SIDE as i32);
    match component {
        0 => x * 200 / side - 100,
        1 => y * 160 / side - 80,
        2 => (x + y) * 60 / side - 60,
        _ => 0,
    }
}

/// Returns the picture according to the standard.
fn expected(factors: &[Factors]) -> Vec<u8> {
    let most = most(factors);
    let mut planes = vec![0; 3 * SIDE * SIDE];
    for y in 0..SIDE {
        for x in 0..SIDE {
            let of = |component: usize| {
                let start = |at: usize, side: usize| {
                    let block = 8 * most[side] / factors[component][side];
                    at / block * block
                };
                f64::from(value(component, start(x, 0), start(y, 1)))
            };
            let (luma, blue, red) = (of(0) + 128.0, of(1), of(2));
            let rgb = [
                luma + 1.402 * red,
                luma - 0.344_136 * blue - 0.714_136 * red,
                luma + 1.772 * blue,
            ];
            for (plane, level) in rgb.into_iter().enumerate() {
                planes[(plane * SIDE + y) * SIDE + x] = level.round().clamp(0.0, 255.0) as u8;
            }
        }
    }
    planes
}

/// Bits of a scan.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    open: u32,
    count: u32,
}

impl Bits {
    fn put(&mut self, bits: u32, count: u32) {
        for at in (0..count).rev() {
            self.open = self.open << 1 | (bits >> at & 1);
            self.count += 1;
            if self.count == 8 {
                self.bytes.push(self.open as u8);
                if self.open == 0xFF {
                    self.bytes.push(0);
                }
                (self.open, self.count) = (0, 0);
            }
        }
    }

    /// Writes a difference of means with a code of four bits for its length.
    fn difference(&mut self, difference: i32) {
        let length = 32 - difference.unsigned_abs().leading_zeros();
        self.put(length, 4);
        let bits = if difference < 0 {
            difference - 1
        } else {
            difference
        };
        self.put(bits as u32 & ((1 << length) - 1), length);
    }

    fn done(mut self) -> Vec<u8> {
        while self.count > 0 {
            self.put(1, 1);
        }
        self.bytes
    }
}

fn segment(code: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len() + 2).unwrap();
    [&[0xFF, code][..], &length.to_be_bytes(), content].concat()
}

/// Encodes the picture.
fn jpeg(factors: &[Factors], mode: Mode) -> Vec<u8> {
    let [most_h, most_v] = most(factors);
    let units = [SIDE.div_ceil(8 * most_h), SIDE.div_ceil(8 * most_v)];
    let mut file = vec![0xFF, 0xD8];
    file.extend(segment(0xE0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0"));
    file.extend(segment(0xDB, &[&[0][..], &[8; 64]].concat()));
    let code = if mode == Mode::Progressive {
        0xC2
    } else {
        0xC0
    };
    let mut frame = vec![8, 0, SIDE as u8, 0, SIDE as u8, factors.len() as u8];
    for (number, [h, v]) in factors.iter().enumerate() {
        frame.extend([number as u8 + 1, (h << 4 | v) as u8, 0]);
    }
    file.extend(segment(code, &frame));
    let lengths: Vec<u8> = (0..16).map(|bits| if bits == 3 { 12 } else { 0 }).collect();
    let codes: Vec<u8> = (0..12).collect();
    file.extend(segment(0xC4, &[&[0][..], &lengths, &codes].concat()));
    let lengths: Vec<u8> = (0..16).map(|bits| u8::from(bits == 0)).collect();
    file.extend(segment(0xC4, &[&[0x10][..], &lengths, &[0]].concat()));
    let scan = |components: &[usize], [from, to]: [u8; 2]| {
        let mut head = vec![components.len() as u8];
        components
            .iter()
            .for_each(|number| head.extend([*number as u8 + 1, 0]));
        head.extend([from, to, 0]);
        segment(0xDA, &head)
    };
    let (means, rest) = (
        |bits: &mut Bits, last: &mut i32, mean: i32| {
            bits.difference(mean - *last);
            *last = mean;
        },
        |bits: &mut Bits| bits.put(0, 1),
    );
    let mean = |number: usize, x: usize, y: usize| {
        let [h, v] = factors[number];
        value(number, x * 8 * most_h / h, y * 8 * most_v / v)
    };
    // A scan for a single component only has blocks with pixels.
    let alone = |number: usize, with_means: bool, with_rest: bool| {
        let [h, v] = factors[number];
        let blocks = |factor: usize, most: usize| (SIDE * factor).div_ceil(most).div_ceil(8);
        let (mut bits, mut last) = (Bits::default(), 0);
        for y in 0..blocks(v, most_v) {
            for x in 0..blocks(h, most_h) {
                if with_means {
                    means(&mut bits, &mut last, mean(number, x, y));
                }
                if with_rest {
                    rest(&mut bits);
                }
            }
        }
        bits.done()
    };
    let together = |with_rest: bool| {
        let (mut bits, mut last) = (Bits::default(), vec![0; factors.len()]);
        for down in 0..units[1] {
            for across in 0..units[0] {
                for (number, [h, v]) in factors.iter().enumerate() {
                    for (y, x) in (0..*v).flat_map(|y| (0..*h).map(move |x| (y, x))) {
                        let mean = mean(number, across * h + x, down * v + y);
                        means(&mut bits, &mut last[number], mean);
                        if with_rest {
                            rest(&mut bits);
                        }
                    }
                }
            }
        }
        bits.done()
    };
    let all: Vec<usize> = (0..factors.len()).collect();
    match mode {
        Mode::Baseline => {
            file.extend(scan(&all, [0, 63]));
            file.extend(together(true));
        }
        Mode::Apart => {
            for number in all {
                file.extend(scan(&[number], [0, 63]));
                file.extend(alone(number, true, true));
            }
        }
        Mode::Progressive => {
            file.extend(scan(&all, [0, 0]));
            file.extend(together(false));
            for number in all {
                file.extend(scan(&[number], [1, 63]));
                file.extend(alone(number, false, true));
            }
        }
    }
    file.extend([0xFF, 0xD9]);
    file
}

/// Returns the mean difference of the decoded picture, or the error.
fn decoded(path: &Path, factors: &[Factors], mode: Mode) -> Result<f64, DatasetError> {
    fs::write(path, jpeg(factors, mode)).unwrap();
    let shape = ImageShape {
        channels: 3,
        height: SIDE,
        width: SIDE,
    };
    let mut image = vec![0; shape.len()];
    read_image(path, shape, SIDE, &mut image)?;
    let expected = expected(factors);
    let differences = image
        .iter()
        .zip(&expected)
        .map(|(a, b)| f64::from(a.abs_diff(*b)));
    Ok(differences.sum::<f64>() / expected.len() as f64)
}

#[test]
fn every_sampling_is_decoded_rightly_or_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.jpg");
    let factors = || (1..=4).flat_map(|h| (1..=4).map(move |v| [h, v]));
    let (mut right, mut refused) = (0, 0);
    for luma in factors() {
        for blue in factors() {
            // Others only cost time, because the chromas are treated alike.
            for red in factors().filter(|red| *red == blue || [red[0], blue[0]] == [1, 2]) {
                for mode in [Mode::Baseline, Mode::Apart, Mode::Progressive] {
                    let factors = [luma, blue, red];
                    match decoded(&path, &factors, mode) {
                        Ok(difference) => {
                            assert!(difference < 6.0, "{factors:?} {mode:?}: {difference}");
                            right += 1;
                        }
                        Err(DatasetError::UnsupportedImage { what, .. }) => {
                            let named =
                                what.contains("sampling") || what.contains("separate scans");
                            assert!(named, "{factors:?} {mode:?}: {what}");
                            refused += 1;
                        }
                        Err(error) => panic!("{factors:?} {mode:?}: {error}"),
                    }
                }
            }
        }
    }
    assert!(right > 40 && refused > 60, "{right} {refused}");
}

#[test]
fn the_usual_samplings_are_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.jpg");
    for luma in [[1, 1], [2, 1], [2, 2], [1, 2], [4, 1], [4, 2]] {
        for mode in [Mode::Baseline, Mode::Progressive] {
            let difference = decoded(&path, &[luma, [1, 1], [1, 1]], mode);
            let difference =
                difference.unwrap_or_else(|error| panic!("{luma:?} {mode:?}: {error}"));
            assert!(difference < 6.0, "{luma:?} {mode:?}: {difference}");
        }
    }
}

/// Reported when the folder is opened, not hours later; and not as damage.
#[test]
fn what_is_not_supported_is_told_by_its_name() {
    let root = tempfile::tempdir().unwrap();
    let class = root.path().join("class");
    fs::create_dir(&class).unwrap();
    let small_luma = jpeg(&[[1, 1], [2, 1], [2, 1]], Mode::Baseline);
    let usual = jpeg(&[[2, 2], [1, 1], [1, 1]], Mode::Baseline);
    let at = usual
        .windows(2)
        .position(|bytes| bytes == [0xFF, 0xC0])
        .unwrap();
    let changed = |offset: usize, byte: u8| {
        let mut file = usual.clone();
        file[at + offset] = byte;
        file
    };
    for (name, content, what) in [
        ("luma.jpg", small_luma, "sampling 1×1, 2×1, 2×1"),
        (
            "apart.jpg",
            jpeg(&[[1, 1]; 3], Mode::Apart),
            "separate scans",
        ),
        ("arithmetic.jpg", changed(1, 0xC9), "arithmetic coding"),
        ("lossless.jpg", changed(1, 0xC3), "lossless coding"),
        ("hierarchical.jpg", changed(1, 0xC5), "hierarchical coding"),
        ("deep.jpg", changed(4, 12), "samples of 12 bits"),
        (
            "three.jpg",
            jpeg(&[[3, 1], [1, 1], [1, 1]], Mode::Baseline),
            "sampling 3×1",
        ),
    ] {
        let path = class.join(name);
        fs::write(&path, content).unwrap();
        let options = ImageFolderOptions::new(8);
        let told = ImageFolder::open(root.path(), Split::Train, &options)
            .unwrap_err()
            .to_string();
        let said = format!("{name}: it is not supported: JPEG");
        assert!(told.contains(&said) && told.contains(what), "{told}");
        let shape = ImageShape {
            channels: 3,
            height: 8,
            width: 8,
        };
        let error = read_image(&path, shape, 8, &mut [0; 192]).unwrap_err();
        assert!(
            matches!(error, DatasetError::UnsupportedImage { .. }),
            "{error}"
        );
        assert!(!error.to_string().contains("damaged"), "{error}");
        fs::remove_file(path).unwrap();
    }
}
