//! Compares every operation with torchvision 0.29 (`transforms.autoaugment._apply_op` on a uint8
//! tensor).

use super::*;
use proptest::prelude::*;

const SHAPE: ImageShape = ImageShape {
    channels: 3,
    height: 4,
    width: 5,
};

/// 40 + 67 c + 53 y + 29 x + 7 x y, modulo 256.
#[rustfmt::skip]
const IMAGE: [u8; 60] = [
    40, 69, 98, 127, 156,  93, 129, 165, 201, 237,  146, 189, 232, 19, 62,  199, 249, 43, 93, 143,
    107, 136, 165, 194, 223,  160, 196, 232, 12, 48,  213, 0, 43, 86, 129,  10, 60, 110, 160, 210,
    174, 203, 232, 5, 34,  227, 7, 43, 79, 115,  24, 67, 110, 153, 196,  77, 127, 177, 227, 21,
];

fn changed(operation: Operation, magnitude: f32, shape: ImageShape, image: &[u8]) -> Vec<u8> {
    let mut pixels = Pixels::default();
    pixels.resize(shape);
    pixels.image.copy_from_slice(image);
    run(operation, magnitude, shape, &mut pixels);
    pixels.image
}

#[track_caller]
fn check(operation: Operation, magnitude: f32, expected: [u8; 60]) {
    let result = changed(operation, magnitude, SHAPE, &IMAGE);
    assert_eq!(result, expected, "{operation:?} {magnitude}");
}

#[test]
#[rustfmt::skip]
fn geometry_is_torchvisions() {
    check(Identity, 30.0, IMAGE);
    check(ShearX, 30.0, [
        40, 69, 98, 127, 156,  93, 129, 165, 201, 237,  189, 232, 19, 62, 0,  249, 43, 93, 143, 0,
        107, 136, 165, 194, 223,  160, 196, 232, 12, 48,  0, 43, 86, 129, 0,  60, 110, 160, 210, 0,
        174, 203, 232, 5, 34,  227, 7, 43, 79, 115,  67, 110, 153, 196, 0,  127, 177, 227, 21, 0,
    ]);
    check(ShearY, -30.0, [
        40, 69, 0, 0, 0,  93, 129, 98, 127, 156,  146, 189, 165, 201, 237,  199, 249, 232, 19, 62,
        107, 136, 0, 0, 0,  160, 196, 165, 194, 223,  213, 0, 232, 12, 48,  10, 60, 43, 86, 129,
        174, 203, 0, 0, 0,  227, 7, 232, 5, 34,  24, 67, 43, 79, 115,  77, 127, 110, 153, 196,
    ]);
    check(TranslateX, 20.0, [
        0, 40, 69, 98, 127,  0, 93, 129, 165, 201,  0, 146, 189, 232, 19,  0, 199, 249, 43, 93,
        0, 107, 136, 165, 194,  0, 160, 196, 232, 12,  0, 213, 0, 43, 86,  0, 10, 60, 110, 160,
        0, 174, 203, 232, 5,  0, 227, 7, 43, 79,  0, 24, 67, 110, 153,  0, 77, 127, 177, 227,
    ]);
    check(TranslateY, -20.0, [
        93, 129, 165, 201, 237,  146, 189, 232, 19, 62,  199, 249, 43, 93, 143,  0, 0, 0, 0, 0,
        160, 196, 232, 12, 48,  213, 0, 43, 86, 129,  10, 60, 110, 160, 210,  0, 0, 0, 0, 0,
        227, 7, 43, 79, 115,  24, 67, 110, 153, 196,  77, 127, 177, 227, 21,  0, 0, 0, 0, 0,
    ]);
    check(Rotate, 30.0, [
        0, 98, 127, 237, 237,  69, 129, 165, 19, 62,  93, 129, 232, 19, 93,  146, 146, 249, 43, 0,
        0, 165, 194, 48, 48,  136, 196, 232, 86, 129,  160, 196, 43, 86, 160,  213, 213, 60, 110, 0,
        0, 232, 5, 115, 115,  203, 7, 43, 153, 196,  227, 7, 110, 153, 227,  24, 24, 127, 177, 0,
    ]);
}

#[test]
#[rustfmt::skip]
fn mixtures_are_torchvisions() {
    check(Brightness, 9.0, [
        50, 87, 124, 161, 198,  118, 163, 209, 255, 255,  185, 240, 255, 24, 78,  252, 255, 54, 118, 181,
        135, 172, 209, 246, 255,  203, 248, 255, 15, 60,  255, 0, 54, 109, 163,  12, 76, 139, 203, 255,
        220, 255, 255, 6, 43,  255, 8, 54, 100, 146,  30, 85, 139, 194, 248,  97, 161, 224, 255, 26,
    ]);
    check(Color, 9.0, [
        25, 54, 83, 120, 149,  78, 122, 158, 234, 255,  139, 222, 255, 4, 47,  232, 255, 28, 78, 136,
        110, 139, 168, 205, 234,  163, 207, 243, 0, 30,  224, 0, 25, 89, 132,  0, 42, 113, 163, 221,
        195, 224, 253, 0, 0,  248, 0, 3, 79, 115,  0, 67, 110, 174, 217,  77, 127, 198, 248, 0,
    ]);
    check(Contrast, -9.0, [
        63, 84, 105, 126, 147,  101, 128, 154, 180, 207,  140, 172, 203, 47, 79,  179, 215, 65, 101, 138,
        112, 133, 154, 175, 196,  150, 177, 203, 42, 69,  189, 34, 65, 96, 128,  41, 77, 114, 150, 187,
        161, 182, 203, 37, 58,  199, 39, 65, 91, 117,  51, 82, 114, 145, 177,  90, 126, 163, 199, 49,
    ]);
    check(Sharpness, 9.0, [
        40, 69, 98, 127, 156,  93, 129, 170, 211, 237,  146, 194, 247, 0, 62,  199, 249, 43, 93, 143,
        107, 136, 165, 194, 223,  160, 206, 253, 0, 48,  213, 0, 32, 80, 129,  10, 60, 110, 160, 210,
        174, 203, 232, 5, 34,  227, 0, 32, 73, 115,  24, 61, 110, 158, 196,  77, 127, 177, 227, 21,
    ]);
}

#[test]
#[rustfmt::skip]
fn levels_are_torchvisions() {
    check(Posterize, 30.0, [
        32, 64, 96, 112, 144,  80, 128, 160, 192, 224,  144, 176, 224, 16, 48,  192, 240, 32, 80, 128,
        96, 128, 160, 192, 208,  160, 192, 224, 0, 48,  208, 0, 32, 80, 128,  0, 48, 96, 160, 208,
        160, 192, 224, 0, 32,  224, 0, 32, 64, 112,  16, 64, 96, 144, 192,  64, 112, 176, 224, 16,
    ]);
    check(Solarize, 9.0, [
        40, 69, 98, 127, 156,  93, 129, 165, 54, 18,  146, 66, 23, 19, 62,  56, 6, 43, 93, 143,
        107, 136, 165, 61, 32,  160, 59, 23, 12, 48,  42, 0, 43, 86, 129,  10, 60, 110, 160, 45,
        174, 52, 23, 5, 34,  28, 7, 43, 79, 115,  24, 67, 110, 153, 59,  77, 127, 177, 28, 21,
    ]);
    check(AutoContrast, 9.0, [
        23, 55, 87, 119, 151,  82, 121, 161, 201, 241,  140, 188, 236, 0, 47,  199, 255, 26, 82, 137,
        117, 149, 181, 213, 245,  175, 215, 255, 13, 52,  234, 0, 47, 94, 141,  10, 65, 120, 175, 230,
        189, 222, 255, 0, 32,  249, 2, 42, 83, 123,  21, 69, 117, 166, 214,  80, 137, 193, 249, 17,
    ]);
    // Too few pixels to equalize.
    check(Equalize, 9.0, IMAGE);
}

#[test]
fn a_levelled_histogram_is_torchvisions() {
    let shape = ImageShape {
        channels: 1,
        height: 16,
        width: 34,
    };
    let image: Vec<u8> = (0..shape.len()).map(|i| (i * i / 700) as u8).collect();
    let levelled = changed(Equalize, 9.0, shape, &image);
    for (value, expected) in [
        (0, 0),
        (7, 38),
        (14, 55),
        (42, 103),
        (84, 154),
        (133, 202),
        (196, 246),
        (252, 255),
    ] {
        let at = image.iter().position(|&other| other == value).unwrap();
        assert_eq!(levelled[at], expected, "{value}");
    }
}

#[test]
fn magnitude_zero_changes_nothing_but_white() {
    for operation in OPERATIONS {
        if ![AutoContrast, Equalize].contains(&operation) {
            check(operation, 0.0, IMAGE);
            check(operation, -0.0, IMAGE);
        }
    }
    let white = [255; 60];
    assert_eq!(changed(Solarize, 0.0, SHAPE, &white), [0; 60]);
}

proptest! {
    #[test]
    fn any_shape_is_kept(channels in 1usize..5, height in 0usize..8, width in 0usize..8,
                         operations in 1u8..15, magnitude in 0u8..=MAX_MAGNITUDE, seed: u64) {
        let shape = ImageShape { channels, height, width };
        let mut pixels = Pixels::default();
        pixels.resize(shape);
        let mut stream = Stream::new(crate::random::Purpose::RandAugment, seed, 0, 0);
        stream.bytes(&mut pixels.image);
        RandAugment { operations, magnitude }.apply(&mut stream, shape, &mut pixels);
        prop_assert_eq!(pixels.image.len(), shape.len());
    }

    #[test]
    fn one_colour_stays_one(value: u8, index in 6usize..14, magnitude in -30f32..30.0) {
        let operation = OPERATIONS[index];
        let magnitude = if operation.is_signed() { magnitude } else { magnitude.abs() };
        let result = changed(operation, magnitude, SHAPE, &[value; 60]);
        // Truncation of a blend may lose 1.
        prop_assert!(result.iter().all(|&other| other.abs_diff(result[0]) <= 1));
    }
}
