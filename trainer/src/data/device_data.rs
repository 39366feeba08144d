//! Images in device memory: uploaded once, then gathered, augmented and normalized there.
//!
//! The augmentations are those of the loader. GPU kernels give the loader's values bit for bit;
//! Burn's operations differ by rounding in the normalization.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use datasets::{BatchPlan, Dataset, DatasetError, ImageShape, Loader, Move};

use crate::data::batch::Targets;

/// Maximum bytes of a data set on a device of unknown memory size.
const USUAL_LIMIT: u64 = 1 << 30;

/// A data set in device memory.
pub(crate) struct DeviceData {
    images: Images,
    /// The class of every image.
    classes: Vec<i32>,
}

/// Implementation that makes the batches.
enum Images {
    /// GPU kernels: one kernel per batch.
    Own(Box<own::StoredImages>),
    Burn(Box<BurnImages>),
}

/// Burn's operations, on any device.
struct BurnImages {
    pixels: Pixels,
    labels: Tensor<1, Int>,
    /// \[1, channels, 1, 1\] each.
    scale: Tensor<4>,
    offset: Tensor<4>,
    shape: ImageShape,
    reflects: bool,
    device: Device,
}

/// \[images, channels, rows × columns\], values from 0 to 255.
enum Pixels {
    Bytes(Tensor<3, Int>),
    /// For devices that cannot compute with bytes.
    Floats(Tensor<3>),
}

/// Bytes of device memory for `dataset` on `device`.
pub(crate) fn size(dataset: &dyn Dataset, device: &Device) -> u64 {
    let values = dataset.len() as u64 * dataset.shape().len() as u64;
    match device.supports_dtype(DType::U8) {
        true => values,
        false => values.saturating_mul(4),
    }
}

/// Decides whether the training images and the evaluation images go to the device.
///
/// Follows `wanted`, or `usual` for this device and data. Training images also need `possible`.
/// `bytes` are the sizes of both, `total` is the device's memory, if known.
pub(crate) fn place(
    wanted: Option<bool>,
    usual: bool,
    possible: bool,
    [train, test]: [u64; 2],
    total: Option<u64>,
) -> [bool; 2] {
    let some = wanted.unwrap_or(usual);
    let brings_train = some && possible && (wanted.is_some() || fits(train, total));
    let before = if brings_train { train } else { 0 };
    [
        brings_train,
        some && fits(before.saturating_add(test), total),
    ]
}

/// Whether `bytes` of images may go to a device with `total` bytes of memory, if known.
fn fits(bytes: u64, total: Option<u64>) -> bool {
    bytes <= total.map_or(USUAL_LIMIT, |total| total / 4)
}

impl DeviceData {
    /// Uploads the images of `dataset` to `device`, with the augmentations of `loader`.
    ///
    /// # Errors
    /// Fails if an image cannot be read.
    pub fn upload(
        dataset: &dyn Dataset,
        loader: &Loader,
        device: &Device,
    ) -> Result<Self, DatasetError> {
        Self::upload_as(dataset, loader, device, device.supports_dtype(DType::U8))
    }

    fn upload_as(
        dataset: &dyn Dataset,
        loader: &Loader,
        device: &Device,
        in_bytes: bool,
    ) -> Result<Self, DatasetError> {
        let (bytes, classes) = read(dataset)?;
        let images = Images::upload(bytes, &classes, (dataset.shape(), loader), device, in_bytes);
        Ok(Self { images, classes })
    }

    /// Classes of the images at `indices`, on the host.
    pub fn classes_of(&self, indices: &[usize]) -> Vec<i32> {
        let class = |index: &usize| self.classes.get(*index).copied();
        indices.iter().filter_map(class).collect()
    }

    /// Makes a batch: images \[samples, channels, height, width\] and their targets.
    pub fn batch(&self, plan: &BatchPlan) -> (Tensor<4>, Targets) {
        let (images, labels) = match &self.images {
            Images::Own(images) => own::batch(images, plan),
            Images::Burn(images) => images.batch(plan),
        };
        let targets = Targets {
            labels,
            mix: None,
            weight: None,
        };
        (images, targets)
    }
}

/// The bytes of all images, and the class of each.
fn read(dataset: &dyn Dataset) -> Result<(Vec<u8>, Vec<i32>), DatasetError> {
    let (images, len) = (dataset.len(), dataset.shape().len());
    let mut bytes = vec![0u8; images.saturating_mul(len)];
    let mut classes = Vec::with_capacity(images);
    for (index, image) in bytes.chunks_exact_mut(len.max(1)).enumerate() {
        classes.push(dataset.read(index, image)?.cast_signed());
    }
    Ok((bytes, classes))
}

impl Images {
    fn upload(
        bytes: Vec<u8>,
        classes: &[i32],
        (shape, loader): (ImageShape, &Loader),
        device: &Device,
        in_bytes: bool,
    ) -> Self {
        let images = classes.len();
        let dims = [images, shape.channels, shape.height * shape.width];
        let pixels = Pixels::new(bytes, dims, device, in_bytes);
        let labels = Tensor::from_data(TensorData::new(classes.to_vec(), [images]), device);
        if images * shape.len() > 0 && own::computes_on(device) {
            let images = own::stored(pixels, labels, loader, shape);
            return Self::Own(Box::new(images));
        }
        let burn = BurnImages::new(pixels, labels, loader, (shape, device));
        Self::Burn(Box::new(burn))
    }
}

/// Batches by the GPU kernels.
mod own {
    use super::*;
    pub(super) use kernels::gpu::StoredImages;
    use kernels::gpu::{ImageFacts, Sample};
    pub(super) use kernels::policy::on_gpu as computes_on;

    pub(super) fn stored(
        pixels: Pixels,
        labels: Tensor<1, Int>,
        loader: &Loader,
        shape: ImageShape,
    ) -> StoredImages {
        let facts = ImageFacts {
            labels,
            lines: &loader.lines(),
            size: [shape.height, shape.width],
            reflects: loader.reflects(),
        };
        match pixels {
            Pixels::Bytes(bytes) => StoredImages::of_bytes(bytes, facts),
            Pixels::Floats(floats) => StoredImages::of_floats(floats, facts),
        }
    }

    pub(super) fn batch(images: &StoredImages, plan: &BatchPlan) -> (Tensor<4>, Tensor<1, Int>) {
        let sample = |(index, moved): (&usize, &Move)| Sample {
            index: *index,
            down: moved.down,
            right: moved.right,
            mirrored: moved.mirrored,
        };
        let samples: Vec<Sample> = plan.indices.iter().zip(&plan.moves).map(sample).collect();
        images.batch(&samples)
    }
}

impl Pixels {
    fn new(bytes: Vec<u8>, dims: [usize; 3], device: &Device, in_bytes: bool) -> Self {
        if in_bytes {
            let data = TensorData::new(bytes, dims);
            return Self::Bytes(Tensor::from_data(data, (device, DType::U8)));
        }
        let floats: Vec<f32> = bytes.into_iter().map(f32::from).collect();
        Self::Floats(Tensor::from_data(TensorData::new(floats, dims), device))
    }
}

impl BurnImages {
    fn new(
        pixels: Pixels,
        labels: Tensor<1, Int>,
        loader: &Loader,
        (shape, device): (ImageShape, &Device),
    ) -> Self {
        let (scale, offset): (Vec<f32>, Vec<f32>) = loader.lines().into_iter().unzip();
        let line = |values: Vec<f32>| {
            let channels = values.len();
            Tensor::from_data(TensorData::new(values, [1, channels, 1, 1]), device)
        };
        Self {
            pixels,
            labels,
            scale: line(scale),
            offset: line(offset),
            shape,
            reflects: loader.reflects(),
            device: device.clone(),
        }
    }

    fn batch(&self, plan: &BatchPlan) -> (Tensor<4>, Tensor<1, Int>) {
        let samples = plan.indices.len();
        let indices = self.ints(plan.indices.iter().map(|index| *index as i32));
        let pixels = match &self.pixels {
            Pixels::Bytes(bytes) => bytes.clone().select(0, indices.clone()).float(),
            Pixels::Floats(floats) => floats.clone().select(0, indices.clone()),
        };
        let ImageShape {
            channels,
            height,
            width,
        } = self.shape;
        let moved = match plan.moves.iter().any(|m| *m != Move::default()) {
            true => self.moved(pixels, &plan.moves),
            false => pixels,
        };
        let images = moved.reshape([samples, channels, height, width]);
        let images = images * self.scale.clone() + self.offset.clone();
        (images, self.labels.clone().select(0, indices))
    }

    /// Moves every image as [`Move`] says.
    fn moved(&self, pixels: Tensor<3>, moves: &[Move]) -> Tensor<3> {
        let ImageShape {
            channels,
            height,
            width,
        } = self.shape;
        let (samples, device) = (moves.len(), &self.device);
        let column = |values: Tensor<1, Int>| values.unsqueeze_dim::<2>(1);
        let line = |len: usize| Tensor::<1, Int>::arange(0..len as i64, device).unsqueeze::<2>();
        let down = column(self.ints(moves.iter().map(|m| m.down)));
        let right = column(self.ints(moves.iter().map(|m| m.right)));
        let mirrored = column(self.ints(moves.iter().map(|m| i32::from(m.mirrored))));
        // In an image that is mirrored after the move, column x shows the pixel of w - 1 - x.
        let turn = line(width).mul_scalar(-2).add_scalar(width as i64 - 1);
        let framed = line(width) + mirrored * turn;
        let (y, rows_seen) = self.seen(line(height) - down, height);
        let (x, columns_seen) = self.seen(framed - right, width);
        let place = y.mul_scalar(width as i64).unsqueeze_dim::<3>(2) + x.unsqueeze_dim::<3>(1);
        let place = place.reshape([samples, 1, height * width]);
        let moved = pixels.gather(2, place.expand([samples, channels, height * width]));
        match (rows_seen, columns_seen) {
            (Some(rows), Some(columns)) => {
                let seen = rows.unsqueeze_dim::<3>(2) * columns.unsqueeze_dim::<3>(1);
                moved * seen.reshape([samples, 1, height * width])
            }
            _ => moved,
        }
    }

    /// Maps each `position` to one of `len` source places, \[samples, len\]. A position outside
    /// gets any place and a zero in the second tensor.
    fn seen(&self, position: Tensor<2, Int>, len: usize) -> (Tensor<2, Int>, Option<Tensor<2>>) {
        let last = len as i64 - 1;
        if self.reflects {
            let once = position.abs().sub_scalar(last).abs();
            return (once.mul_scalar(-1).add_scalar(last), None);
        }
        let inside = position.clone().clamp(0, last);
        let seen = position.equal(inside.clone()).float();
        (inside, Some(seen))
    }

    fn ints(&self, values: impl Iterator<Item = i32>) -> Tensor<1, Int> {
        let values: Vec<i32> = values.collect();
        let shape = [values.len()];
        Tensor::from_data(TensorData::new(values, shape), &self.device)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::data::batch::to_tensors;
    use datasets::{Generated, Split, TrainSampler};

    const AUGMENTATIONS: [&str; 6] = [
        "none",
        "flip",
        "crop:4",
        "crop:3:reflect",
        "crop:3:reflect+flip",
        "repeat+shift:2",
    ];

    /// Shapes with whole vectors of pixels, with a remainder, and with one channel.
    const SHAPES: [[usize; 3]; 3] = [[3, 8, 10], [3, 7, 9], [1, 9, 6]];

    const IMAGES: usize = 24;

    fn loader(shape: [usize; 3], augment: &str) -> (Arc<dyn Dataset>, Loader) {
        let [channels, height, width] = shape;
        let shape = ImageShape {
            channels,
            height,
            width,
        };
        let dataset = Generated::new(shape, 5, IMAGES, 3).unwrap();
        let dataset: Arc<dyn Dataset> = Arc::new(dataset.split(Split::Train));
        let loader = Loader::new(dataset.clone()).unwrap();
        (dataset, loader.augment(augment.parse().unwrap(), 7))
    }

    fn resident(
        dataset: &dyn Dataset,
        loader: &Loader,
        device: &Device,
        in_bytes: bool,
    ) -> DeviceData {
        DeviceData::upload_as(dataset, loader, device, in_bytes).unwrap()
    }

    fn numbers(images: Tensor<4>) -> Vec<f32> {
        images.into_data().try_to_vec().unwrap()
    }

    fn classes(targets: Targets) -> Vec<i64> {
        targets.labels.into_data().iter::<i64>().collect()
    }

    /// Compares batches made on the device with those of the loader. Values may differ by `most`.
    fn compare(device: &Device, shape: [usize; 3], augment: &str, in_bytes: bool, most: f32) {
        let name = format!("{augment} of {shape:?}, bytes: {in_bytes}");
        let (dataset, loader) = loader(shape, augment);
        let augment: datasets::Augment = augment.parse().unwrap();
        let sampler = TrainSampler::new(IMAGES, 12, 12, 0, 1, 5).unwrap();
        let sampler = sampler.repeat(augment.repeat());
        let resident = resident(dataset.as_ref(), &loader, device, in_bytes);
        let plans = loader.plans(sampler.epoch(1)).unwrap();
        let batches: Vec<_> = loader.iter(sampler.epoch(1)).collect();
        assert_eq!(plans.size_hint().0, 0);
        let mut count = 0;
        for (plan, batch) in plans.zip(batches) {
            let (images, targets) = resident.batch(&plan);
            assert_eq!(images.device(), *device, "{name}");
            let (expected, expected_targets) = to_tensors(batch.unwrap(), &Device::flex());
            assert_eq!(images.dims(), expected.dims(), "{name}");
            assert_eq!(classes(targets), classes(expected_targets), "{name}");
            for (a, b) in numbers(images).into_iter().zip(numbers(expected)) {
                assert!((a - b).abs() <= most, "{name}: {a} is not {b}");
            }
            count += 1;
        }
        assert_eq!(count, 2, "{name}");
    }

    fn compare_all(device: &Device, most: f32) {
        for in_bytes in [true, false] {
            if in_bytes && !device.supports_dtype(DType::U8) {
                continue;
            }
            for shape in SHAPES {
                for augment in AUGMENTATIONS {
                    compare(device, shape, augment, in_bytes, most);
                }
            }
        }
    }

    #[test]
    fn batches_are_those_of_the_loader() {
        compare_all(&Device::flex(), 1e-5);
        compare(&Device::flex().autodiff(), SHAPES[0], "crop:4", true, 1e-5);
    }

    #[test]
    fn the_processor_takes_burns_operations() {
        let (dataset, loader) = loader(SHAPES[0], "none");
        let data = DeviceData::upload(dataset.as_ref(), &loader, &Device::flex()).unwrap();
        assert!(matches!(data.images, Images::Burn(_)));
    }

    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    mod on_a_gpu {
        use super::*;
        use burn_dist::device::DeviceChoice;
        use burn_dist::world::World;

        fn device(test: &str) -> Option<Device> {
            let asked = std::env::var("BURN_DIST_TEST_DEVICE").ok();
            let choice = asked
                .as_deref()
                .map_or(DeviceChoice::Wgpu, |name| name.parse().unwrap());
            match World::single().choose_device(choice) {
                Ok(chosen) => Some(chosen.device),
                Err(error) if asked.is_some() => panic!("{error}"),
                Err(error) => {
                    eprintln!("SKIPPED: {test} on wgpu: {error}");
                    None
                }
            }
        }

        /// One kernel gives the same bits.
        #[test]
        fn batches_are_those_of_the_loader() {
            let Some(device) = device("batches") else {
                return;
            };
            compare_all(&device, 0.0);
            let in_bytes = device.supports_dtype(DType::U8);
            let device = device.autodiff();
            for device in [device.clone(), device.gradient_checkpointing()] {
                compare(&device, SHAPES[0], "crop:4", in_bytes, 0.0);
            }
        }

        #[test]
        fn one_kernel_makes_them_unless_burns_operations_are_asked_for() {
            use kernels::policy::{Choice, scoped};
            let Some(device) = device("who makes batches") else {
                return;
            };
            let upload = || {
                let (dataset, loader) = loader(SHAPES[1], "none");
                DeviceData::upload(dataset.as_ref(), &loader, &device).unwrap()
            };
            assert!(matches!(upload().images, Images::Own(_)));
            assert!(matches!(
                scoped(Choice::Burn, upload).images,
                Images::Burn(_)
            ));
            let in_bytes = device.supports_dtype(DType::U8);
            scoped(Choice::Burn, || {
                compare(&device, SHAPES[1], "crop:4", in_bytes, 1e-5);
            });
        }

        #[test]
        fn channels_lie_last_in_memory() {
            let Some(device) = device("how a batch lies in memory") else {
                return;
            };
            let (dataset, loader) = loader(SHAPES[1], "none");
            let data = DeviceData::upload(dataset.as_ref(), &loader, &device).unwrap();
            let plan = BatchPlan {
                indices: vec![3, 1],
                moves: vec![Move::default(); 2],
            };
            let (images, _) = data.batch(&plan);
            let images = images.try_into_primitive::<burn::backend::Cube>().unwrap();
            let strides: Vec<usize> = images.meta.strides().iter().copied().collect();
            assert_eq!(strides, [189, 1, 27, 3]);
        }

        /// No loader makes a plan with these indices; memory behind the images must not be read for
        /// it.
        #[test]
        fn what_is_not_there_is_not_read() {
            let Some(device) = device("impossible plans") else {
                return;
            };
            let moves = [i32::MIN, -9, 9, i32::MAX].map(|by| Move {
                down: by,
                right: -by.max(-i32::MAX),
                mirrored: by > 0,
            });
            let plan = BatchPlan {
                indices: vec![0, IMAGES, usize::MAX, IMAGES - 1],
                moves: moves.to_vec(),
            };
            for augment in ["crop:3", "crop:3:reflect"] {
                let (dataset, loader) = loader(SHAPES[1], augment);
                let data = DeviceData::upload(dataset.as_ref(), &loader, &device).unwrap();
                let (images, targets) = data.batch(&plan);
                let classes = classes(targets);
                assert_eq!(classes[1..], [classes[3]; 3], "{augment}");
                let (images, plane) = (numbers(images), 7 * 9);
                if augment == "crop:3" {
                    // All zeros.
                    let offsets: Vec<f32> = loader.lines().iter().map(|line| line.1).collect();
                    let of_place = |place: usize| offsets[place / plane % 3];
                    let expected: Vec<f32> = (0..images.len()).map(of_place).collect();
                    assert_eq!(images, expected);
                }
            }
        }
    }

    #[test]
    fn other_augmentations_stay_with_the_loader() {
        let dataset: Arc<dyn Dataset> = Arc::new(datasets::Digits::new(Split::Train, 4, 1));
        let only_moves = |augment: &str| {
            let loader = Loader::new(dataset.clone()).unwrap();
            loader.augment(augment.parse().unwrap(), 1).only_moves()
        };
        assert!(only_moves("shift:2"));
        for augment in ["mixup", "cutout", "resized-crop", "auto-augment", "crop:28"] {
            assert!(!only_moves(augment), "{augment}");
        }
    }

    #[test]
    fn images_lie_where_there_is_room() {
        let total = Some(400);
        // The GPU default: both, only training, only evaluation, neither.
        let usual = |possible, bytes| place(None, true, possible, bytes, total);
        assert_eq!(usual(true, [60, 40]), [true, true]);
        assert_eq!(usual(true, [60, 41]), [true, false]);
        assert_eq!(usual(true, [101, 41]), [false, true]);
        assert_eq!(usual(false, [60, 100]), [false, true]);
        assert_eq!(usual(false, [60, 101]), [false, false]);
        assert_eq!(place(None, false, true, [1, 1], total), [false, false]);
        // If requested: training always, evaluation if it fits.
        let wanted = |wanted, bytes| place(Some(wanted), false, true, bytes, total);
        assert_eq!(wanted(true, [60, 40]), [true, true]);
        assert_eq!(wanted(true, [300, 40]), [true, false]);
        assert_eq!(wanted(false, [1, 1]), [false, false]);
    }

    #[test]
    fn a_set_that_is_too_large_stays_in_host_memory() {
        assert!(fits(100, Some(400)) && !fits(101, Some(400)));
        assert!(fits(USUAL_LIMIT, None) && !fits(USUAL_LIMIT + 1, None));
    }
}
