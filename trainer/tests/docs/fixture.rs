//! Files in the folder of a page's commands: images, and data sets that are not downloaded.

use std::path::Path;

use datasets::{Dataset, Digits, Split};
use image::GrayImage;
use models::weights::PyTorchKeys;

/// Classes of the images in `photos/`.
const CLASSES: [(u32, &str); 3] = [(3, "three"), (5, "five"), (8, "eight")];

/// Makes `photos/`, `photo.png`, `data/mnist` and `data/cifar-100` in `folder`.
pub fn make(folder: &Path) {
    photos(&folder.join("photos"));
    let photo = folder.join("photos/val/eight/0000.png");
    std::fs::copy(photo, folder.join("photo.png")).unwrap();
    mnist(&folder.join("data/mnist"));
    cifar_100(&folder.join("data/cifar-100"));
}

/// Makes `resnet18.safetensors`, with the names and shapes of torchvision's.
pub fn weights(folder: &Path) {
    let model = models::ResNetConfig::resnet18(1000);
    let model = model.init(&burn::tensor::Device::flex()).unwrap();
    let keys = model.key_map();
    models::weights::save(&model, folder.join("resnet18.safetensors"), &keys).unwrap();
}

/// Labels and pixels of generated digits.
fn digits(split: Split, count: usize) -> Vec<(u32, Vec<u8>)> {
    let digits = Digits::new(split, count, 1);
    let read = |index| {
        let mut pixels = vec![0; 28 * 28];
        let label = digits.read(index, &mut pixels).unwrap();
        (label, pixels)
    };
    (0..count).map(read).collect()
}

/// One folder per class, 80 images of each to train and 30 to validate.
fn photos(root: &Path) {
    for (part, split, count) in [("train", Split::Train, 80), ("val", Split::Test, 30)] {
        let digits = digits(split, 15 * count);
        for (digit, class) in CLASSES {
            let folder = root.join(part).join(class);
            std::fs::create_dir_all(&folder).unwrap();
            let of_class = digits.iter().filter(|(label, _)| *label == digit);
            for (number, (_, pixels)) in of_class.take(count).enumerate() {
                let picture = GrayImage::from_raw(28, 28, pixels.clone()).unwrap();
                let path = folder.join(format!("{number:04}.png"));
                picture.save(path).unwrap();
            }
        }
    }
}

/// The four files of MNIST, with few images.
fn mnist(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    for (name, split, count) in [("train", Split::Train, 320), ("t10k", Split::Test, 64)] {
        let header = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_be_bytes()).collect()
        };
        let mut images = header(&[0x803, count as u32, 28, 28]);
        let mut labels = header(&[0x801, count as u32]);
        for (label, pixels) in digits(split, count) {
            images.extend(pixels);
            labels.push(label as u8);
        }
        let write = |file: &str, bytes| std::fs::write(folder.join(file), bytes).unwrap();
        write(&format!("{name}-images-idx3-ubyte"), images);
        write(&format!("{name}-labels-idx1-ubyte"), labels);
    }
}

/// The unpacked files of CIFAR-100, with few images.
fn cifar_100(folder: &Path) {
    let folder = folder.join("cifar-100-binary");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, count) in [("train.bin", 320_u32), ("test.bin", 64)] {
        let record = |index: u32| {
            let pixels = (0..3072_u32).map(move |pixel| (pixel * 7 + index * 31) as u8);
            let labels = [(index % 20) as u8, (index % 100) as u8];
            labels.into_iter().chain(pixels)
        };
        let bytes: Vec<u8> = (0..count).flat_map(record).collect();
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    for (name, count) in [("fine", 100), ("coarse", 20)] {
        let names: String = (0..count).map(|class| format!("class-{class}\n")).collect();
        std::fs::write(folder.join(format!("{name}_label_names.txt")), names).unwrap();
    }
}
