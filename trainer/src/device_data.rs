//! The training images on the device: their bytes are brought there once, and batches are gathered,
//! moved, mirrored and normalised there. What happens to which image is what the loader would do, so
//! the numbers are the same up to the last bit of the normalisation.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use datasets::{BatchPlan, Dataset, DatasetError, ImageShape, Loader, Move};

use crate::batch::Targets;

/// Bytes that a data set may take on a device whose size is not known.
const USUAL_LIMIT: u64 = 1 << 30;

/// A data set in device memory.
pub(crate) struct DeviceData {
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
    /// Where the device does not compute with bytes.
    Floats(Tensor<3>),
}

/// Bytes of device memory that `dataset` would take on `device`.
pub(crate) fn size(dataset: &dyn Dataset, device: &Device) -> u64 {
    let values = dataset.len() as u64 * dataset.shape().len() as u64;
    match device.supports_dtype(DType::U8) {
        true => values,
        false => values.saturating_mul(4),
    }
}

/// Whether a data set of `bytes` belongs on a device with `total` bytes of memory, if that is known.
pub(crate) fn fits(bytes: u64, total: Option<u64>) -> bool {
    bytes <= total.map_or(USUAL_LIMIT, |total| total / 4)
}

impl DeviceData {
    /// Brings the images of `dataset` to `device`, to be changed as `loader` changes them.
    ///
    /// # Errors
    /// If an image cannot be read.
    pub fn upload(
        dataset: &dyn Dataset,
        loader: &Loader,
        device: &Device,
    ) -> Result<Self, DatasetError> {
        let shape = dataset.shape();
        let (images, len) = (dataset.len(), shape.len());
        let mut bytes = vec![0u8; images.saturating_mul(len)];
        let mut labels = Vec::with_capacity(images);
        for (index, image) in bytes.chunks_exact_mut(len.max(1)).enumerate() {
            labels.push(dataset.read(index, image)?.cast_signed());
        }
        let dims = [images, shape.channels, shape.height * shape.width];
        let pixels = match device.supports_dtype(DType::U8) {
            true => {
                let data = TensorData::new(bytes, dims);
                Pixels::Bytes(Tensor::from_data(data, (device, DType::U8)))
            }
            false => {
                let floats: Vec<f32> = bytes.into_iter().map(f32::from).collect();
                Pixels::Floats(Tensor::from_data(TensorData::new(floats, dims), device))
            }
        };
        let (scale, offset): (Vec<f32>, Vec<f32>) = loader.lines().into_iter().unzip();
        let line = |values: Vec<f32>| {
            let channels = values.len();
            Tensor::from_data(TensorData::new(values, [1, channels, 1, 1]), device)
        };
        Ok(Self {
            pixels,
            labels: Tensor::from_data(TensorData::new(labels, [images]), device),
            scale: line(scale),
            offset: line(offset),
            shape,
            reflects: loader.reflects(),
            device: device.clone(),
        })
    }

    /// Images \[samples, channels, height, width\] and what they show.
    pub fn batch(&self, plan: &BatchPlan) -> (Tensor<4>, Targets) {
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
        let targets = Targets {
            labels: self.labels.clone().select(0, indices),
            mix: None,
        };
        (images, targets)
    }

    /// Every image at its place, as [`Move`] says.
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
        // In an image that is mirrored after the move, column x shows what would be at w - 1 - x.
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

    /// Which of `len` places is seen at `position`, \[samples, len\]; where none is, some place and
    /// a zero beside it.
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
    use crate::batch::to_tensors;
    use datasets::{Generated, Split, TrainSampler};

    /// Compares batches that are made on the device with those of the loader.
    fn compare(device: &Device) {
        let shape = ImageShape {
            channels: 3,
            height: 7,
            width: 9,
        };
        for augment in [
            "none",
            "flip",
            "crop:4",
            "crop:3:reflect+flip",
            "repeat+shift:2",
        ] {
            let dataset = Generated::new(shape, 5, 24, 3).unwrap().split(Split::Train);
            let dataset: Arc<dyn Dataset> = Arc::new(dataset);
            let loader = Loader::new(dataset.clone()).unwrap();
            let augment: datasets::Augment = augment.parse().unwrap();
            let sampler = TrainSampler::new(24, 12, 12, 0, 1, 5).unwrap();
            let sampler = sampler.repeat(augment.repeat());
            let loader = loader.augment(augment.clone(), 7);
            let resident = DeviceData::upload(dataset.as_ref(), &loader, device).unwrap();
            let plans = loader.plans(sampler.epoch(1)).unwrap();
            let batches: Vec<_> = loader.iter(sampler.epoch(1)).collect();
            assert_eq!(plans.size_hint().0, 0);
            let mut count = 0;
            for (plan, batch) in plans.zip(batches) {
                let (images, targets) = resident.batch(&plan);
                let (expected, expected_targets) = to_tensors(batch.unwrap(), &Device::flex());
                let labels = |targets: Targets| -> Vec<i64> {
                    targets.labels.into_data().iter::<i64>().collect()
                };
                assert_eq!(labels(targets), labels(expected_targets), "{augment}");
                let values = |images: Tensor<4>| images.into_data().try_to_vec::<f32>().unwrap();
                for (a, b) in values(images).into_iter().zip(values(expected)) {
                    assert!((a - b).abs() < 1e-5, "{augment}: {a} is not {b}");
                }
                count += 1;
            }
            assert_eq!(count, 2, "{augment}");
        }
    }

    #[test]
    fn batches_are_those_of_the_loader() {
        compare(&Device::flex());
        compare(&Device::flex().autodiff());
    }

    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    #[test]
    fn batches_on_a_gpu_device_are_those_of_the_loader() {
        use burn_dist::device::DeviceChoice;
        use burn_dist::world::World;
        let asked = std::env::var("BURN_DIST_TEST_DEVICE").ok();
        let choice = asked
            .as_deref()
            .map_or(DeviceChoice::Wgpu, |name| name.parse().unwrap());
        match World::single().choose_device(choice) {
            Ok(chosen) => compare(&chosen.device),
            Err(error) if asked.is_some() => panic!("{error}"),
            Err(error) => eprintln!("SKIPPED: batches on wgpu: {error}"),
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
    fn a_set_that_is_too_large_stays_in_host_memory() {
        assert!(fits(100, Some(400)) && !fits(101, Some(400)));
        assert!(fits(USUAL_LIMIT, None) && !fits(USUAL_LIMIT + 1, None));
    }
}
