//! Checks that `resized-crop` crops from the whole pictures in a folder, like torchvision's
//! `RandomResizedCrop`, and not from the crops for evaluation.

use std::path::Path;
use std::sync::Arc;

use datasets::{
    Area, Batch, Color, Dataset, DatasetError, EvalSampler, ImageFolder, ImageFolderOptions,
    Loader, Split, TrainSampler,
};
use image::{GrayImage, Luma, Rgb, RgbImage};
use proptest::prelude::*;

/// Side of the images.
const SIDE: usize = 8;

fn write(root: &Path, name: &str, picture: &RgbImage) {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    picture.save(path).unwrap();
}

fn open(root: &Path, change: impl FnOnce(&mut ImageFolderOptions)) -> Arc<ImageFolder> {
    let mut options = ImageFolderOptions::new(SIDE);
    change(&mut options);
    Arc::new(ImageFolder::open(root, Split::Train, &options).unwrap())
}

/// Returns a picture in which nearly every pixel differs from its neighbours.
fn rough(height: u32, width: u32, offset: u32) -> GrayImage {
    GrayImage::from_fn(width, height, |x, y| {
        Luma([((x * x * 7 + y * y * 13 + x * y * 5 + offset) % 256) as u8])
    })
}

fn area([top, left, height, width]: [usize; 4]) -> Area {
    Area {
        top,
        left,
        height,
        width,
    }
}

/// Expected values from Pillow 13, which torchvision uses for pictures:
/// `picture.crop(...).resize((8, 8), BILINEAR)`. Pixels around the crop have no influence; with
/// `resize(..., box=...)`, where they do, these values differ by 10 to 68.
const BY_PILLOW: [([usize; 4], [[u8; 8]; 8]); 5] = [
    (
        [0, 0, 37, 53],
        [
            [114, 142, 133, 134, 125, 80, 130, 128],
            [134, 136, 151, 137, 129, 121, 127, 124],
            [122, 126, 128, 120, 132, 122, 133, 116],
            [113, 135, 133, 122, 134, 132, 140, 125],
            [128, 132, 127, 125, 120, 130, 129, 92],
            [125, 116, 128, 122, 133, 124, 124, 113],
            [126, 110, 121, 125, 123, 125, 135, 125],
            [125, 123, 119, 135, 138, 131, 134, 132],
        ],
    ),
    (
        [6, 11, 20, 31],
        [
            [139, 188, 135, 146, 129, 132, 149, 139],
            [109, 133, 127, 106, 136, 123, 127, 134],
            [137, 126, 134, 114, 131, 136, 108, 126],
            [136, 115, 122, 127, 125, 184, 126, 126],
            [179, 135, 121, 120, 120, 119, 126, 136],
            [150, 123, 112, 138, 119, 124, 128, 140],
            [128, 129, 112, 136, 103, 115, 130, 139],
            [146, 127, 121, 111, 187, 122, 124, 120],
        ],
    ),
    (
        [33, 48, 4, 5],
        [
            [61, 94, 143, 199, 180, 85, 141, 193],
            [83, 116, 162, 179, 161, 106, 131, 156],
            [126, 161, 200, 138, 122, 149, 112, 81],
            [112, 148, 189, 129, 113, 142, 107, 77],
            [41, 78, 128, 150, 136, 86, 116, 144],
            [40, 78, 129, 153, 141, 93, 124, 153],
            [109, 149, 194, 138, 128, 162, 131, 104],
            [144, 184, 226, 131, 121, 196, 134, 80],
        ],
    ),
    (
        [3, 1, 5, 50],
        [
            [135, 125, 122, 140, 123, 45, 116, 136],
            [132, 131, 94, 127, 121, 49, 124, 130],
            [127, 140, 67, 114, 119, 57, 133, 122],
            [129, 150, 148, 143, 124, 78, 120, 127],
            [130, 149, 184, 158, 136, 106, 130, 123],
            [131, 137, 177, 157, 155, 140, 161, 111],
            [137, 140, 173, 144, 137, 159, 139, 112],
            [142, 143, 170, 134, 121, 171, 120, 113],
        ],
    ),
    ([36, 0, 1, 1], [[208; 8]; 8]),
];

#[test]
fn parts_are_scaled_as_torchvision_scales_them() {
    let root = tempfile::tempdir().unwrap();
    let picture = rough(37, 53, 0);
    write(
        root.path(),
        "a/1.png",
        &image::DynamicImage::from(picture).into_rgb8(),
    );
    for (color, channels) in [(Color::Rgb, 3), (Color::Grey, 1)] {
        // Like torchvision, from the picture: the scale for evaluation has no influence.
        let set = open(root.path(), |options| {
            options.color = color;
            options.resize = Some(9);
        });
        for (part, expected) in BY_PILLOW {
            let mut image = vec![0; channels * SIDE * SIDE];
            let mut sizes = Vec::new();
            let mut choose = |height, width| {
                sizes.push((height, width));
                area(part)
            };
            assert_eq!(set.read_part(0, &mut choose, &mut image).unwrap(), 0);
            assert_eq!(sizes, [(37, 53)]);
            let expected = expected.concat().repeat(channels);
            let far = image.iter().zip(&expected);
            let far = far.filter(|(a, b)| a.abs_diff(**b) > 1).count();
            assert_eq!(far, 0, "{part:?}: {image:?}\n{expected:?}");
        }
    }
}

#[test]
fn parts_that_a_picture_does_not_have_are_refused() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "a/1.png", &RgbImage::new(30, 20));
    let set = open(root.path(), |_| {});
    let mut image = vec![0; 3 * SIDE * SIDE];
    for part in [[0, 0, 21, 1], [0, 30, 1, 1], [5, 5, 0, 3]] {
        let refused = set.read_part(0, &mut |_, _| area(part), &mut image);
        let error = refused.unwrap_err();
        assert!(matches!(error, DatasetError::Area { .. }), "{error}");
        assert!(error.to_string().contains("20×30"), "{error}");
    }
    let error = set.read_part(1, &mut |_, _| area([0, 0, 1, 1]), &mut image);
    assert!(matches!(
        error.unwrap_err(),
        DatasetError::Index { index: 1, len: 1 }
    ));
    std::fs::remove_file(root.path().join("a/1.png")).unwrap();
    let error = set.read_part(0, &mut |_, _| area([0, 0, 1, 1]), &mut image);
    assert!(error.unwrap_err().to_string().contains("1.png"));
}

/// Returns every epoch of 200 in batches of one image.
fn epochs(set: &Arc<ImageFolder>, augment: &str) -> Vec<Batch> {
    let loader = Loader::new(set.clone()).unwrap();
    let loader = loader.augment(augment.parse().unwrap(), 7);
    let sampler = TrainSampler::new(set.len(), 1, 1, 0, 1, 0).unwrap();
    let epochs = (0..200).flat_map(|epoch| loader.iter(sampler.epoch(epoch)));
    epochs.collect::<Result<_, _>>().unwrap()
}

#[test]
fn the_outer_parts_of_pictures_are_seen() {
    let root = tempfile::tempdir().unwrap();
    // From black at the left to white at the right; the centre crop is a third of it.
    let slope = RgbImage::from_fn(256, 85, |x, _| Rgb([x as u8; 3]));
    write(root.path(), "a/1.png", &slope);
    let set = open(root.path(), |options| {
        options.normalization = Some(datasets::Normalization {
            mean: vec![0.0; 3],
            std: vec![1.0 / 255.0; 3],
        });
    });
    let seen = |augment| {
        let images = epochs(&set, augment).into_iter();
        let values: Vec<f32> = images.flat_map(|batch| batch.images).collect();
        let least = values.iter().copied().fold(f32::MAX, f32::min);
        (least, values.iter().copied().fold(0.0, f32::max))
    };
    let (left, right) = seen("flip");
    assert!(left > 80.0 && right < 176.0, "{left} {right}");
    let (left, right) = seen("resized-crop+flip");
    assert!(left < 8.0 && right > 247.0, "{left} {right}");
}

#[test]
fn detail_is_not_lost_before_the_part_is_taken() {
    let root = tempfile::tempdir().unwrap();
    // Alternating black and white pixels: anything scaled down becomes grey.
    let board = RgbImage::from_fn(80, 80, |x, y| Rgb([255 * ((x + y) % 2) as u8; 3]));
    write(root.path(), "a/1.png", &board);
    let set = open(root.path(), |_| {});
    let mut image = vec![0; 3 * SIDE * SIDE];
    set.read(0, &mut image).unwrap();
    assert!(image.iter().all(|value| value.abs_diff(127) < 5));
    let part = area([70, 3, SIDE, SIDE]);
    set.read_part(0, &mut |_, _| part, &mut image).unwrap();
    let board: Vec<u8> = (0..64)
        .map(|at| 255 * ((at / 8 + at % 8 + 1) % 2))
        .collect();
    assert_eq!(image, board.repeat(3));
}

/// Writes pictures of different sizes, each in its own class.
fn gallery(root: &Path) -> Arc<ImageFolder> {
    for number in 0..12u32 {
        let picture = rough(9 + 7 * number, 90 - 6 * number, 20 * number);
        let name = format!("{number:02}/1.png");
        let picture = image::DynamicImage::from(picture);
        write(root, &name, &picture.into_rgb8());
    }
    open(root, |options| options.resize = Some(10))
}

fn load(
    set: &Arc<ImageFolder>,
    augment: &str,
    epoch: datasets::Epoch,
    workers: usize,
) -> Vec<Batch> {
    let loader = Loader::new(set.clone()).unwrap().workers(workers);
    let loader = loader.augment(augment.parse().unwrap(), 3).prefetch(3);
    loader.iter(epoch).collect::<Result<_, _>>().unwrap()
}

#[test]
fn samples_depend_on_seed_epoch_index_and_copy_alone() {
    let root = tempfile::tempdir().unwrap();
    let set = gallery(root.path());
    for augment in [
        "resized-crop+flip",
        "repeat:2+resized-crop:0.3+flip",
        "resized-crop+flip+rand-augment+mixup:1:0.5+cutmix:1:0.5+erase",
    ] {
        let parsed: datasets::Augment = augment.parse().unwrap();
        let sampler = |micro_batch, rank, ranks| {
            let sampler = TrainSampler::new(12, 12, micro_batch, rank, ranks, 5).unwrap();
            sampler.repeat(parsed.repeat()).epoch(4)
        };
        let images = |batches: Vec<Batch>| -> Vec<(usize, Vec<f32>)> {
            let images = batches.into_iter().flat_map(|batch| {
                let images = batch.images.chunks(batch.shape.len()).map(<[f32]>::to_vec);
                let images: Vec<_> = images.collect();
                batch.indices.into_iter().zip(images)
            });
            images.collect()
        };
        let expected = images(load(&set, augment, sampler(12, 0, 1), 0));
        assert_eq!(expected.len(), 12);
        for workers in [0, 1, 2, 5] {
            let found = images(load(&set, augment, sampler(3, 0, 1), workers));
            assert_eq!(found, expected, "{augment}, {workers} workers");
        }
        let ranks = [0, 1].map(|rank| images(load(&set, augment, sampler(3, rank, 2), 2)));
        assert_eq!(ranks.concat(), expected, "{augment}, 2 ranks");
        if parsed.repeat() == 2 {
            let copies = expected.chunks(2);
            assert!(copies.clone().all(|pair| pair[0].0 == pair[1].0));
            // In slender pictures the same crop is often drawn, since few others fit.
            let same = copies.filter(|pair| pair[0].1 == pair[1].1).count();
            assert!(same <= 2, "{same}");
        }
    }
}

#[test]
fn what_is_mixed_in_is_the_part_that_the_other_picture_shows_in_this_epoch() {
    let root = tempfile::tempdir().unwrap();
    let set = gallery(root.path());
    let epoch = |number| TrainSampler::new(12, 12, 4, 0, 1, 5).unwrap().epoch(number);
    let mut mixed = 0;
    for number in 0..4 {
        let alone = load(&set, "resized-crop+flip", epoch(number), 0);
        // Every picture has its own class.
        let of_class = |class: i32| {
            let mut all = alone.iter().flat_map(|batch| {
                let images = batch.images.chunks(batch.shape.len());
                batch.labels.iter().zip(images)
            });
            all.find(|(label, _)| **label == class).unwrap().1
        };
        for batch in load(&set, "resized-crop+flip+mixup:1:0.5", epoch(number), 2) {
            let Batch {
                images,
                labels,
                shape,
                mixed: Some(second),
                ..
            } = batch
            else {
                panic!("second labels are missing");
            };
            let images = images.chunks(shape.len()).zip(labels);
            for (at, (image, label)) in images.enumerate() {
                let weight = second.weights[at];
                let pair = of_class(label).iter().zip(of_class(second.labels[at]));
                for (value, (own, other)) in image.iter().zip(pair) {
                    let expected = weight * own + (1.0 - weight) * other;
                    assert!((value - expected).abs() < 1e-4);
                }
                mixed += usize::from(weight < 1.0);
            }
        }
    }
    assert!((10..40).contains(&mixed), "{mixed}");
}

#[test]
fn evaluation_sees_the_centre() {
    let root = tempfile::tempdir().unwrap();
    let set = gallery(root.path());
    let epoch = || EvalSampler::new(12, 5, 0, 1).unwrap().epoch();
    let plain = load(&set, "none", epoch(), 0);
    assert_eq!(load(&set, "resized-crop+flip", epoch(), 2), plain);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A single colour stays, for any picture size and crop.
    #[test]
    fn any_picture_has_parts(
        height in prop_oneof![1u32..4, 1u32..300, Just(3000)],
        width in prop_oneof![1u32..4, 1u32..300, Just(3000)],
        min_scale in prop_oneof![Just(0.001), 0.001f32..=1.0],
        grey: bool, value: u8, seed: u64,
    ) {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "a/1.png", &RgbImage::from_pixel(width, height, Rgb([value; 3])));
        let set = open(root.path(), |options| {
            options.color = if grey { Color::Grey } else { Color::Rgb };
        });
        let augment = format!("resized-crop:{min_scale}+flip").parse().unwrap();
        let loader = Loader::new(set.clone()).unwrap().augment(augment, seed);
        let epoch = TrainSampler::new(1, 1, 1, 0, 1, 0).unwrap().epoch(0);
        let batch = loader.iter(epoch).next().unwrap().unwrap();
        let evaluation = EvalSampler::new(1, 1, 0, 1).unwrap().epoch();
        let whole = loader.iter(evaluation).next().unwrap().unwrap();
        prop_assert_eq!(batch.images, whole.images);
    }
}
