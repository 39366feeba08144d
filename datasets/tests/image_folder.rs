//! Folders of generated images, in every format and with all kinds of errors.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use datasets::{
    Check, Color, Dataset, DatasetError, EvalSampler, ImageFolder, ImageFolderOptions, Loader,
    Normalization, Split,
};
use image::codecs::jpeg::JpegEncoder;
use image::codecs::webp::WebPEncoder;
use image::{DynamicImage, ImageEncoder, ImageFormat, Rgb, RgbImage};

const RED: Rgb<u8> = Rgb([200, 30, 10]);

/// Returns a picture of one colour.
fn plain(color: Rgb<u8>) -> DynamicImage {
    RgbImage::from_pixel(40, 30, color).into()
}

fn grey(value: u8) -> DynamicImage {
    plain(Rgb([value; 3])).into_luma8().into()
}

/// Writes a picture in the format of its extension.
fn write(path: PathBuf, picture: &DynamicImage) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    picture.save(path).unwrap();
}

fn options(size: usize) -> ImageFolderOptions {
    ImageFolderOptions::new(size)
}

fn open(root: &Path, split: Split, options: &ImageFolderOptions) -> ImageFolder {
    ImageFolder::open(root, split, options).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(root: &Path, options: &ImageFolderOptions) -> DatasetError {
    ImageFolder::open(root, Split::Train, options).unwrap_err()
}

fn read(set: &ImageFolder, index: usize) -> (u32, Vec<u8>) {
    let mut image = vec![0; set.shape().len()];
    let label = set
        .read(index, &mut image)
        .unwrap_or_else(|error| panic!("{error}"));
    (label, image)
}

/// Returns the bytes of a set with one picture, stored in the file `name`.
fn only(name: &str, content: &[u8], options: &ImageFolderOptions) -> Vec<u8> {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("class").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    read(&open(root.path(), Split::Train, options), 0).1
}

fn encoded(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    picture.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

fn near(bytes: &[u8], expected: [u8; 3], tolerance: u8) -> bool {
    let planes = bytes.chunks(bytes.len() / 3);
    planes
        .zip(expected)
        .all(|(plane, value)| plane.iter().all(|byte| byte.abs_diff(value) <= tolerance))
}

#[test]
fn classes_and_files_come_in_order() {
    let root = tempfile::tempdir().unwrap();
    for (part, count) in [("train", 3), ("val", 1)] {
        for class in ["dog", "Cat", "ant"] {
            for number in 0..count {
                let path = root.path().join(part).join(class);
                write(path.join(format!("{number}.png")), &plain(RED));
            }
        }
    }
    write(root.path().join("train/dog/deep/er/x.jpg"), &plain(RED));
    fs::write(root.path().join("train/dog/.DS_Store"), "hidden").unwrap();
    fs::write(root.path().join("train/LICENSE"), "beside the classes").unwrap();
    fs::create_dir(root.path().join("train/.thumbnails")).unwrap();

    let train = open(root.path(), Split::Train, &options(8));
    assert_eq!(train.class_names(), ["Cat", "ant", "dog"]);
    assert_eq!(train.len(), 10);
    let labels: Vec<u32> = (0..10).map(|index| read(&train, index).0).collect();
    assert_eq!(labels, [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]);
    assert!(train.path(9).unwrap().ends_with("dog/deep/er/x.jpg"));
    let test = open(root.path(), Split::Test, &options(8));
    assert_eq!((test.len(), test.class_names()), (3, train.class_names()));
    assert_eq!(
        (
            test.shape().channels,
            test.shape().height,
            test.shape().width
        ),
        (3, 8, 8)
    );
    let error = test.read(3, &mut [0; 192]).unwrap_err();
    assert!(matches!(error, DatasetError::Index { index: 3, len: 3 }));
}

const FORMATS: [ImageFormat; 6] = [
    ImageFormat::Png,
    ImageFormat::Jpeg,
    ImageFormat::WebP,
    ImageFormat::Bmp,
    ImageFormat::Tiff,
    ImageFormat::Pnm,
];

#[test]
fn every_format_is_decoded() {
    for format in FORMATS {
        // The content decides, not the extension.
        let bytes = only("picture.jpg", &encoded(&plain(RED), format), &options(16));
        assert!(near(&bytes, RED.0, 3), "{format:?}: {:?}", &bytes[..3]);
    }
    for format in [ImageFormat::Tiff, ImageFormat::Pnm] {
        let bytes = only("grey.tif", &encoded(&grey(77), format), &options(16));
        assert_eq!(bytes, [77; 256], "{format:?}");
    }
    let bytes = only("bits.PBM", b"P4\n9 2\n\xff\x80\xff\x80", &options(2));
    assert_eq!(bytes, [0; 4]);
    let bytes = only("text.ppm", b"P3 1 1 15 15 0 3", &options(2));
    assert!(near(&bytes, [255, 0, 51], 0), "{bytes:?}");
    let bytes = only(
        "grey.png",
        &encoded(&grey(77), ImageFormat::Png),
        &options(16),
    );
    assert_eq!(bytes, [77; 256]);
    let deep: DynamicImage = DynamicImage::from(plain(RED).into_rgb16());
    let bytes = only("deep.png", &encoded(&deep, ImageFormat::Png), &options(16));
    assert!(near(&bytes, RED.0, 0));
}

/// CMYK as Pillow writes it: 0, 200, 220, 40 of 255.
#[test]
fn cmyk_becomes_rgb() {
    let bytes = only("cmyk.jpg", include_bytes!("fixtures/cmyk.jpg"), &options(8));
    assert!(near(&bytes, [215, 46, 30], 4), "{bytes:?}");
}

#[test]
fn colours_are_converted_as_asked() {
    let mut rgb = options(4);
    rgb.color = Color::Rgb;
    let bytes = only("grey.png", &encoded(&grey(77), ImageFormat::Png), &rgb);
    assert_eq!(bytes, [77; 48]);
    let mut to_grey = options(4);
    to_grey.color = Color::Grey;
    let bytes = only("red.png", &encoded(&plain(RED), ImageFormat::Png), &to_grey);
    // 0.299 * 200 + 0.587 * 30 + 0.114 * 10
    assert_eq!(bytes, [79; 16]);
}

#[test]
fn transparent_images_are_laid_over_black() {
    let mut picture = plain(Rgb([200, 100, 50])).into_rgba8();
    picture.pixels_mut().for_each(|pixel| pixel.0[3] = 51);
    for format in [ImageFormat::Png, ImageFormat::WebP] {
        let bytes = encoded(&picture.clone().into(), format);
        let bytes = only("veiled.png", &bytes, &options(4));
        assert!(near(&bytes, [40, 20, 10], 1), "{:?}", &bytes[..3]);
    }
    let grey = DynamicImage::from(picture).into_luma_alpha8();
    let value = grey.get_pixel(0, 0).0[0];
    let bytes = only(
        "grey.png",
        &encoded(&grey.into(), ImageFormat::Png),
        &options(4),
    );
    assert!(bytes.iter().all(|byte| byte.abs_diff(value / 5) <= 1));
}

/// Returns a picture of 60x20: the left third is red, the middle green, the right blue.
fn thirds() -> RgbImage {
    RgbImage::from_fn(60, 20, |x, _| {
        let mut color = Rgb([0; 3]);
        color.0[x as usize / 20] = 240;
        color
    })
}

#[test]
fn the_centre_is_cut_out_after_scaling_the_shorter_side() {
    let bytes = only(
        "wide.png",
        &encoded(&thirds().into(), ImageFormat::Png),
        &options(20),
    );
    assert!(near(&bytes, [0, 240, 0], 0));
    let tall: DynamicImage = DynamicImage::from(thirds()).rotate90();
    let bytes = only("tall.png", &encoded(&tall, ImageFormat::Png), &options(20));
    assert!(near(&bytes, [0, 240, 0], 0));
    // Scaled to 30x10, whose middle is 10 wide; the filter mixes in the neighbours.
    let bytes = only(
        "wide.png",
        &encoded(&thirds().into(), ImageFormat::Png),
        &options(10),
    );
    assert!(bytes[100..200].iter().all(|&byte| byte >= 200), "{bytes:?}");
    // Scaled to 90x30, from which 20 are cropped: only green.
    let mut larger = options(20);
    larger.resize = Some(30);
    let bytes = only(
        "wide.png",
        &encoded(&thirds().into(), ImageFormat::Png),
        &larger,
    );
    assert!(near(&bytes, [0, 240, 0], 0));
}

/// Reducing must average over all pixels: fine stripes become grey, not black or white.
#[test]
fn reducing_does_not_alias() {
    let stripes = RgbImage::from_fn(256, 256, |x, _| Rgb([if x % 2 == 0 { 0 } else { 255 }; 3]));
    let bytes = only(
        "stripes.png",
        &encoded(&stripes.into(), ImageFormat::Png),
        &options(32),
    );
    assert!(
        bytes.iter().all(|byte| byte.abs_diff(127) <= 6),
        "{:?}",
        &bytes[..32]
    );
}

/// Expected values are from torchvision's `Resize(20)` (antialiased, bilinear) and `CenterCrop(16)`
/// of a gradient.
#[test]
fn sizes_are_rounded_as_torchvision_does() {
    let gradient = RgbImage::from_fn(53, 37, |x, y| Rgb([(4 * x) as u8, (6 * y) as u8, 128]));
    let mut as_imagenet = options(16);
    as_imagenet.resize = Some(20);
    let bytes = only(
        "gradient.png",
        &encoded(&gradient.into(), ImageFormat::Png),
        &as_imagenet,
    );
    let rows: Vec<u8> = bytes[..16].to_vec();
    let columns: Vec<u8> = bytes[256..512].iter().step_by(16).copied().collect();
    for (found, expected) in [(rows, TORCHVISION_ROW), (columns, TORCHVISION_COLUMN)] {
        let far = found
            .iter()
            .zip(expected)
            .filter(|(a, b)| a.abs_diff(*b) > 1);
        assert_eq!(far.count(), 0, "{found:?}\n{expected:?}");
    }
}

const TORCHVISION_ROW: [u8; 16] = [
    47, 55, 62, 70, 77, 85, 92, 100, 108, 116, 123, 131, 138, 146, 153, 161,
];
const TORCHVISION_COLUMN: [u8; 16] = [
    24, 36, 47, 58, 69, 80, 91, 102, 114, 125, 136, 147, 158, 169, 180, 192,
];

#[test]
fn photographs_are_turned_upright() {
    // Exif with one entry: orientation 6, which turns the image by 90 degrees clockwise.
    let exif = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    // The left half is red; after the rotation, it is the upper half.
    let halves = RgbImage::from_fn(32, 32, |x, _| if x < 16 { RED } else { Rgb([0; 3]) });
    let mut bytes = Vec::new();
    let mut encoder = JpegEncoder::new_with_quality(&mut bytes, 95);
    encoder.set_exif_metadata(exif.to_vec()).unwrap();
    encoder
        .write_image(&halves, 32, 32, image::ExtendedColorType::Rgb8)
        .unwrap();
    let planes = only("turned.jpg", &bytes, &options(32));
    let upper = &planes[..32 * 12];
    let lower = &planes[32 * 20..32 * 32];
    assert!(upper.iter().all(|&byte| byte > 170), "{upper:?}");
    assert!(lower.iter().all(|&byte| byte < 30), "{lower:?}");
}

#[test]
fn a_fraction_is_kept_for_validation() {
    let root = tempfile::tempdir().unwrap();
    for (class, count) in [("a", 20), ("b", 7), ("c", 1)] {
        for number in 0..count {
            write(
                root.path().join(class).join(format!("{number}.png")),
                &plain(RED),
            );
        }
    }
    let mut kept = options(4);
    kept.validation = Some(0.25);
    let paths = |split, kept: &ImageFolderOptions| -> Vec<PathBuf> {
        let set = open(root.path(), split, kept);
        (0..set.len())
            .map(|index| set.path(index).unwrap().to_owned())
            .collect()
    };
    let (train, test) = (paths(Split::Train, &kept), paths(Split::Test, &kept));
    assert_eq!((train.len(), test.len()), (15 + 5 + 1, 5 + 2));
    assert!(train.iter().all(|path| !test.contains(path)));
    assert_eq!(test, paths(Split::Test, &kept));
    kept.seed = 1;
    assert_ne!(test, paths(Split::Test, &kept));
    // Nothing is kept for validation: all images are for training.
    assert_eq!(paths(Split::Train, &options(4)).len(), 28);
    let error = ImageFolder::open(root.path(), Split::Test, &options(4)).unwrap_err();
    assert!(
        error.to_string().contains("no validation images"),
        "{error}"
    );
}

#[test]
fn everything_unusable_is_reported_at_once() {
    let root = tempfile::tempdir().unwrap();
    let class = root.path().join("a");
    write(class.join("good.png"), &plain(RED));
    fs::create_dir(root.path().join("empty")).unwrap();
    let png = encoded(&thirds().into(), ImageFormat::Png);
    let jpeg = encoded(&thirds().into(), ImageFormat::Jpeg);
    let webp = encoded(&thirds().into(), ImageFormat::WebP);
    let mut header = png.clone();
    header[20] ^= 0xff;
    for (name, content, _) in [
        ("cut.png", &png[..png.len() - 10], "truncated"),
        ("cut.jpg", &jpeg[..jpeg.len() - 10], "truncated"),
        ("cut.webp", &webp[..webp.len() - 10], "damaged or truncated"),
        ("header.png", &header, "damaged"),
        ("nothing.png", b"", "empty"),
        ("notes.png", b"some notes about these pictures", "no image"),
        ("old.jpg", b"GIF89a\x01\0\x01\0\0\0\0;", "Gif"),
    ] {
        fs::write(class.join(name), content).unwrap();
    }
    #[cfg(unix)]
    std::os::unix::fs::symlink("nowhere", class.join("link.png")).unwrap();
    let error = refused(root.path(), &options(8));
    let DatasetError::Images { problems, .. } = &error else {
        panic!("{error}");
    };
    let message = error.to_string();
    let links = usize::from(cfg!(unix));
    assert_eq!(problems.len(), 8 + links, "{message}");
    for (name, reason) in [
        ("cut.png", "truncated"),
        ("cut.jpg", "truncated"),
        ("cut.webp", "it is"),
        ("header.png", "damaged"),
        ("nothing.png", "it is empty"),
        (
            "notes.png",
            "it is not an image in a supported format (JPEG, PNG",
        ),
        (
            "old.jpg",
            "Gif; supported are JPEG, PNG, WebP, BMP, TIFF and PNM",
        ),
        ("empty", "no image of this class"),
    ] {
        let line = message.lines().find(|line| line.contains(name));
        assert!(
            line.is_some_and(|line| line.contains(reason)),
            "{name}: {message}"
        );
    }
    assert!(!message.contains("good.png"), "{message}");

    for number in 0..20 {
        fs::write(class.join(format!("more{number}.png")), "x").unwrap();
    }
    let message = refused(root.path(), &options(8)).to_string();
    assert!(
        message.starts_with(&format!("{} files and folders", 28 + links)),
        "{message}"
    );
    assert!(
        message.ends_with(&format!("and {} more", 18 + links)),
        "{message}"
    );
    assert_eq!(message.lines().count(), 12, "{message}");
}

/// Found at once, both in files that are read whole and in those of which a part is read.
#[test]
fn every_format_has_its_end() {
    for side in [8, 150] {
        let noise = RgbImage::from_fn(side, side, |x, y| Rgb([(x * y * 37 % 251) as u8; 3]));
        for format in FORMATS {
            let whole = encoded(&noise.clone().into(), format);
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join("a/picture.png");
            fs::create_dir(root.path().join("a")).unwrap();
            fs::write(&path, &whole).unwrap();
            open(root.path(), Split::Train, &options(8));
            // The last four bytes of a PNG are the checksum of an empty chunk; no reader needs
            // them.
            let least = if format == ImageFormat::Png { 5 } else { 1 };
            for lacks in [least, 20, whole.len() / 2] {
                fs::write(&path, &whole[..whole.len() - lacks]).unwrap();
                let error = refused(root.path(), &options(8));
                assert!(
                    matches!(error, DatasetError::Images { .. }),
                    "{format:?} {lacks}: {error}"
                );
            }
        }
    }
}

/// No file says which value is white.
#[test]
fn floating_point_pixels_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let floats = DynamicImage::from(plain(RED).into_rgb32f());
    write(root.path().join("a/1.tiff"), &floats);
    let error = refused(root.path(), &options(8)).to_string();
    assert!(
        error.contains("1.tiff: it is not supported: floating-point pixels"),
        "{error}"
    );
}

/// Log output.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<u8>>>);

impl Write for Told {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Told {
    /// Returns the log lines of `work`.
    fn during(work: impl FnOnce()) -> Vec<String> {
        let told = Told::default();
        let writer = told.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, work);
        let text = String::from_utf8(told.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn files_that_are_not_called_images_are_left_out() {
    let root = tempfile::tempdir().unwrap();
    write(root.path().join("a/1.png"), &plain(RED));
    write(root.path().join("a/2.PNG"), &plain(RED));
    write(root.path().join("b/deep/3.jpeg"), &plain(RED));
    let put = |name: &str| fs::write(root.path().join(name), "no image").unwrap();
    put("a/.DS_Store");
    let mut divided = options(8);
    divided.validation = Some(0.5);
    let lens = |options: &ImageFolderOptions| {
        let of = |split| ImageFolder::open(root.path(), split, options);
        (
            of(Split::Train).unwrap().len(),
            of(Split::Test).unwrap().len(),
        )
    };
    let told = Told::during(|| assert_eq!(lens(&divided), (2, 1)));
    assert!(told.is_empty(), "{told:?}");

    for name in ["a/Thumbs.db", "a/old.gif", "a/png", "b/deep/README.txt"] {
        put(name);
    }
    let told = Told::during(|| assert_eq!(lens(&divided), (2, 1)));
    assert_eq!(told.len(), 1, "{told:?}");
    for part in [
        "WARN",
        "skipped 4 files, such as",
        "a/",
        ".jpg, .jpeg, .png, ",
    ] {
        assert!(told[0].contains(part), "{part}: {told:?}");
    }

    // A class may not consist of them alone.
    fs::create_dir(root.path().join("c")).unwrap();
    put("c/only.gif");
    let error = refused(root.path(), &options(8)).to_string();
    for part in ["c: there is no image of this class", "unlike", "only.gif"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// Headers can be right with damaged pixels: found on request, or reported when the pixels are
/// read.
#[test]
fn damaged_pixels_are_named() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a/damaged.png");
    write(root.path().join("a/good.png"), &plain(RED));
    let noise = RgbImage::from_fn(64, 64, |x, y| Rgb([(x * y * 37 % 251) as u8; 3]));
    let mut bytes = encoded(&noise.into(), ImageFormat::Png);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&path, bytes).unwrap();

    let set = Arc::new(open(root.path(), Split::Train, &options(8)));
    let error = set.read(0, &mut [0; 192]).unwrap_err();
    assert!(matches!(error, DatasetError::Image { .. }), "{error}");
    assert!(error.to_string().contains("damaged.png"), "{error}");
    let loader = Loader::new(set).unwrap().workers(2);
    let epoch = EvalSampler::new(2, 2, 0, 1).unwrap().epoch();
    let error = loader.iter(epoch).next().unwrap().unwrap_err();
    assert!(error.to_string().contains("damaged.png"), "{error}");

    let mut thorough = options(8);
    thorough.check = Check::Pixels;
    let error = refused(root.path(), &thorough);
    assert!(matches!(error, DatasetError::Images { .. }), "{error}");
    assert!(error.to_string().contains("damaged.png"), "{error}");
}

/// Long metadata before the pixels, and any data after them, are no damage.
#[test]
fn long_headers_and_tails_are_read() {
    let mut bytes = Vec::new();
    let mut encoder = JpegEncoder::new_with_quality(&mut bytes, 100);
    encoder.set_icc_profile(vec![7; 60_000]).unwrap();
    let noise = RgbImage::from_fn(300, 300, |x, y| Rgb([(x * y * 37 % 251) as u8; 3]));
    encoder
        .write_image(&noise, 300, 300, image::ExtendedColorType::Rgb8)
        .unwrap();
    assert!(bytes.len() > 100_000);
    only("long.jpg", &bytes, &options(8));
    bytes.extend([0; 10_000]);
    only("padded.jpg", &bytes, &options(8));
    bytes.truncate(90_000);
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("a")).unwrap();
    fs::write(root.path().join("a/cut.jpg"), bytes).unwrap();
    let error = refused(root.path(), &options(8));
    assert!(error.to_string().contains("truncated"), "{error}");
}

/// A small file may claim more pixels than fit into memory.
#[test]
fn bombs_are_refused() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("a")).unwrap();
    let mut bytes = encoded(&plain(RED), ImageFormat::Png);
    for (width, height) in [(60_000u32, 60_000u32), (4_000_000, 2), (0, 5)] {
        bytes[16..20].copy_from_slice(&width.to_be_bytes());
        bytes[20..24].copy_from_slice(&height.to_be_bytes());
        let mut crc = flate2::Crc::new();
        crc.update(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&crc.sum().to_be_bytes());
        fs::write(root.path().join("a/bomb.png"), &bytes).unwrap();
        let error = refused(root.path(), &options(8));
        assert!(matches!(error, DatasetError::Images { .. }), "{error}");
    }
}

/// A decoder assembles a colour profile from its segments in a copy.
#[test]
fn a_photo_that_is_all_profile_is_refused() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("a")).unwrap();
    let whole = encoded(&plain(RED), ImageFormat::Jpeg);
    let segment = [&[0xFF, 0xE2, 0xFF, 0xFF][..], &[0; 0xFFFD]].concat();
    let with = |segments| [&whole[..2], &segment.repeat(segments), &whole[2..]].concat();
    let path = root.path().join("a/photo.jpg");
    fs::write(&path, with(2)).unwrap();
    open(root.path(), Split::Train, &options(8));
    fs::write(&path, with(300)).unwrap();
    let error = refused(root.path(), &options(8)).to_string();
    let words = "its color profile has 18 MiB, more than the maximum of 16 MiB";
    assert!(error.contains(words), "{error}");
}

#[test]
fn mixed_colours_need_a_decision() {
    let root = tempfile::tempdir().unwrap();
    write(root.path().join("a/colour.png"), &plain(RED));
    write(root.path().join("b/grey.png"), &grey(5));
    let error = refused(root.path(), &options(8));
    assert!(matches!(error, DatasetError::MixedColor { .. }), "{error}");
    let message = error.to_string();
    for part in [
        "colour.png is RGB",
        "grey.png is grey",
        "Set color to rgb or grey",
    ] {
        assert!(message.contains(part), "{message}");
    }
    for (color, channels) in [(Color::Rgb, 3), (Color::Grey, 1)] {
        let mut decided = options(8);
        decided.color = color;
        let set = open(root.path(), Split::Train, &decided);
        assert_eq!(set.shape().channels, channels);
        assert_eq!(set.normalization().mean.len(), channels);
        Loader::new(Arc::new(set)).unwrap();
    }
    let mut own = options(8);
    own.color = Color::Grey;
    let normalization = Normalization {
        mean: vec![0.1],
        std: vec![0.2],
    };
    own.normalization = Some(normalization.clone());
    assert_eq!(
        open(root.path(), Split::Train, &own).normalization(),
        normalization
    );
}

#[test]
fn folders_that_do_not_fit_are_named() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [root.path().join("nowhere"), file] {
        let error = refused(&path, &options(8));
        assert!(matches!(error, DatasetError::Layout { .. }), "{error}");
        let message = error.to_string();
        for part in [
            path.to_str().unwrap(),
            "does not exist",
            "data.dir",
            "one subfolder of images per class",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
    let error = refused(root.path(), &options(8));
    assert!(error.to_string().contains("no class folder"), "{error}");

    for class in ["train/a", "train/b", "val/a", "val/c"] {
        write(root.path().join(class).join("x.png"), &plain(RED));
    }
    for split in [Split::Train, Split::Test] {
        let error = ImageFolder::open(root.path(), split, &options(8)).unwrap_err();
        assert!(matches!(error, DatasetError::Classes { .. }), "{error}");
        let message = error.to_string();
        assert!(
            message.contains("train has b") && message.contains("val has c"),
            "{message}"
        );
    }
    let mut both = options(8);
    both.validation = Some(0.5);
    let error = refused(root.path(), &both);
    assert!(
        error.to_string().contains("data.validation also takes"),
        "{error}"
    );
    fs::remove_dir_all(root.path().join("val")).unwrap();
    open(root.path(), Split::Train, &both);
}

/// Returns the number of training images and that of evaluation images, or the latter's error.
fn parts(root: &Path, validation: Option<f64>) -> (usize, Result<usize, String>) {
    let mut options = options(8);
    options.validation = validation;
    let of = |split| ImageFolder::open(root, split, &options);
    let test = of(Split::Test).map(|set| set.len());
    let train = of(Split::Train).map(|set| set.len());
    (
        train.unwrap_or_default(),
        test.map_err(|error| error.to_string()),
    )
}

#[test]
fn the_folder_for_evaluation_has_several_names() {
    for name in ["val", "valid", "validation", "test"] {
        let root = tempfile::tempdir().unwrap();
        for (part, count) in [("train", 3), (name, 2)] {
            for number in 0..count {
                let file = format!("{part}/a/{number}.png");
                write(root.path().join(file), &plain(RED));
            }
        }
        assert_eq!(parts(root.path(), None), (3, Ok(2)), "{name}");
        let found = ImageFolder::evaluation_folders(root.path());
        assert_eq!(found, [name != "test", name == "test"]);
        let divided = parts(root.path(), Some(0.34));
        if name == "test" {
            // The test images are not touched.
            assert_eq!(divided, (2, Ok(1)));
            // A folder for validation takes precedence.
            write(root.path().join("valid/a/1.png"), &plain(RED));
            assert_eq!(parts(root.path(), None), (3, Ok(1)));
            let mut finished = options(8);
            finished.prefers_test = true;
            assert_eq!(open(root.path(), Split::Test, &finished).len(), 2);
            assert_eq!(ImageFolder::evaluation_folders(root.path()), [true, true]);
            continue;
        }
        let both = divided.1.unwrap_err();
        let folder = root.path().join(name);
        let starts = format!("{}: there are validation images, and", folder.display());
        assert!(both.starts_with(&starts), "{both}");
    }
    let root = tempfile::tempdir().unwrap();
    for part in ["train", "val", "validation"] {
        write(root.path().join(part).join("a/1.png"), &plain(RED));
    }
    let (_, several) = parts(root.path(), None);
    let several = several.unwrap_err();
    assert!(several.contains("images: val, validation"), "{several}");
    let root = tempfile::tempdir().unwrap();
    write(root.path().join("train/a/1.png"), &plain(RED));
    let (train, nowhere) = parts(root.path(), None);
    let nowhere = nowhere.unwrap_err();
    assert_eq!(train, 1);
    assert!(
        nowhere.contains("val, valid, validation or test"),
        "{nowhere}"
    );
}

/// ImageNet's `test` has no labels.
#[test]
fn images_without_classes_are_for_nothing() {
    for name in ["test", "val"] {
        let root = tempfile::tempdir().unwrap();
        for number in 0..4 {
            let file = format!("train/a/{number}.png");
            write(root.path().join(file), &plain(RED));
        }
        write(root.path().join(name).join("1.png"), &plain(RED));
        let (train, test) = parts(root.path(), None);
        let test = test.unwrap_err();
        assert_eq!(train, 4);
        let folder = root.path().join(name);
        let starts = format!("{}: it contains no class folders", folder.display());
        assert!(test.starts_with(&starts), "{test}");
        assert!(test.contains("set data.validation"), "{test}");
        // They are not needed here.
        assert_eq!(parts(root.path(), Some(0.25)), (3, Ok(1)));
        if name == "test" {
            write(root.path().join("val/a/1.png"), &plain(RED));
            assert_eq!(parts(root.path(), None), (4, Ok(1)));
        }
    }
}

/// A folder `train` with pictures directly in it contains trains.
#[test]
fn train_may_be_a_class() {
    let root = tempfile::tempdir().unwrap();
    for class in ["train", "plane"] {
        write(root.path().join(class).join("x.png"), &plain(RED));
    }
    let set = open(root.path(), Split::Train, &options(8));
    assert_eq!(set.class_names(), ["plane", "train"]);
}

#[cfg(unix)]
#[test]
fn links_are_followed_but_not_in_circles() {
    use std::os::unix::fs::symlink;
    let root = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    write(root.path().join("a/1.png"), &plain(RED));
    write(root.path().join("b/deep/2.png"), &plain(RED));
    write(elsewhere.path().join("3.png"), &plain(RED));
    symlink(elsewhere.path(), root.path().join("a/more")).unwrap();
    symlink(root.path(), root.path().join("a/around")).unwrap();
    symlink(".", root.path().join("b/deep/self")).unwrap();
    symlink("..", root.path().join("b/deep/up")).unwrap();
    let set = open(root.path(), Split::Train, &options(8));
    let labels: Vec<u32> = (0..set.len()).map(|index| read(&set, index).0).collect();
    assert_eq!(labels, [0, 0, 1]);

    symlink("loop.png", root.path().join("a/loop.png")).unwrap();
    let error = refused(root.path(), &options(8));
    assert!(error.to_string().contains("loop.png"), "{error}");
}

#[test]
fn impossible_settings_are_refused() {
    let root = tempfile::tempdir().unwrap();
    write(root.path().join("a/1.png"), &plain(RED));
    let change = |change: fn(&mut ImageFolderOptions)| {
        let mut options = options(8);
        change(&mut options);
        options
    };
    for options in [
        options(0),
        options(1 << 20),
        change(|options| options.resize = Some(7)),
        change(|options| options.resize = Some(1 << 20)),
        change(|options| options.validation = Some(0.0)),
        change(|options| options.validation = Some(1.0)),
        change(|options| options.validation = Some(f64::NAN)),
    ] {
        let error = refused(root.path(), &options);
        assert!(matches!(error, DatasetError::Settings { .. }), "{error}");
    }
}

/// A picture of extreme proportions needs no extreme memory.
#[test]
fn slender_pictures_are_cut_before_they_are_enlarged() {
    let line = RgbImage::from_fn(20_000, 1, |_, _| RED);
    let bytes = only(
        "line.png",
        &encoded(&line.into(), ImageFormat::Png),
        &options(64),
    );
    assert!(near(&bytes, RED.0, 1));
    let dot = RgbImage::from_pixel(1, 1, RED);
    let mut bytes = Vec::new();
    WebPEncoder::new_lossless(&mut bytes)
        .write_image(&dot, 1, 1, image::ExtendedColorType::Rgb8)
        .unwrap();
    assert!(near(&only("dot.webp", &bytes, &options(5)), RED.0, 1));
}

#[test]
fn a_file_that_vanishes_is_named() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a/1.png");
    write(path.clone(), &plain(RED));
    let set = open(root.path(), Split::Train, &options(8));
    fs::remove_file(&path).unwrap();
    let error = set.read(0, &mut [0; 192]).unwrap_err();
    assert!(error.to_string().contains("1.png"), "{error}");
    File::create(&path).unwrap();
    let error = set.read(0, &mut [0; 192]).unwrap_err();
    assert!(error.to_string().contains("it is empty"), "{error}");
}

#[test]
fn folders_of_systems_are_left_out_with_a_line() {
    let root = tempfile::tempdir().unwrap();
    for part in ["train", "val"] {
        for class in ["a", "b"] {
            write(
                root.path().join(part).join(class).join("1.png"),
                &plain(RED),
            );
        }
    }
    let foreign = ["__MACOSX", "lost+found", ".ipynb_checkpoints"];
    for name in foreign {
        for place in ["", "train", "val", "train/a"] {
            let folder = root.path().join(place).join(name);
            write(folder.join("1.png"), &plain(RED));
        }
    }
    for (split, part, count) in [(Split::Train, "train", 6), (Split::Test, "val", 3)] {
        let told = Told::during(|| {
            let set = open(root.path(), split, &options(8));
            assert_eq!(set.class_names(), ["a", "b"]);
            assert_eq!(set.len(), 2);
        });
        assert_eq!(told.len(), 1, "{told:?}");
        let said = format!(
            "skipped {count} folders with names that systems and programs use, such as {}",
            root.path().join(part).display()
        );
        assert!(
            told[0].contains(&said) && told[0].contains("WARN"),
            "{told:?}"
        );
    }
    // A folder of them alone has no class.
    let alone = tempfile::tempdir().unwrap();
    write(alone.path().join("__MACOSX/1.png"), &plain(RED));
    let error = refused(alone.path(), &options(8)).to_string();
    assert!(error.contains("it contains no class folders"), "{error}");
}
