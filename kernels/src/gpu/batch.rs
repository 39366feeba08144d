//! Batches of images that lie on the device as bytes. One kernel gathers, moves, mirrors and
//! normalizes them. Burn's operations take about twenty kernels and several small copies from the
//! host, while nothing else runs yet.

use burn::backend::Cube;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::kind::Autodiff;
use burn::tensor::{DType, Device, Int, IntDType, Shape, Tensor, TensorData};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::{permute_nhwc_to_nchw, reshape};
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::matrix::{Matrix, address, arg, memory, primitive, primitive_int};
use super::sums::cube;
use crate::gpu::{ImageFacts, Sample};

/// Number of values of a byte.
const BYTES: usize = 256;

/// Numbers that describe the change of an image.
const OF_SAMPLE: usize = 4;

/// Images in the memory of a GPU. Batches are made there.
#[derive(Clone, Debug)]
pub struct StoredImages {
    /// \[images, channels, rows × columns\].
    pixels: CubeTensor,
    /// \[images\].
    labels: CubeTensor,
    /// The value of every byte, \[channels, bytes\]. It is looked up, because GPU compilers fuse a
    /// product and a sum in one kernel, whose last bits then differ from the host's.
    values: CubeTensor,
    frame: Frame,
    device: Device,
}

/// The constants that a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Frame {
    channels: usize,
    height: usize,
    width: usize,
    reflects: bool,
}

impl Frame {
    /// Returns the pixels of a channel.
    const fn plane(&self) -> usize {
        self.height * self.width
    }

    /// Returns the numbers of an image.
    const fn len(&self) -> usize {
        self.channels * self.plane()
    }
}

impl StoredImages {
    /// Stores images given as bytes.
    ///
    /// `pixels` is \[images, channels, rows × columns\] in a byte type, with at least one value, on
    /// a device for which [`super::is_gpu`] is true.
    ///
    /// # Panics
    ///
    /// Panics unless there is one label for each image and one line for each channel.
    pub fn of_bytes(pixels: Tensor<3, Int>, facts: ImageFacts<'_>) -> Self {
        let device = pixels.device();
        let pixels = primitive_int(pixels.without_autodiff());
        Self::new(pixels, device, facts)
    }

    /// Stores bytes as f32, for devices that do not compute with bytes.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`Self::of_bytes`].
    pub fn of_floats(pixels: Tensor<3>, facts: ImageFacts<'_>) -> Self {
        let device = pixels.device();
        let pixels = primitive(pixels.without_autodiff());
        Self::new(pixels, device, facts)
    }

    fn new(pixels: CubeTensor, device: Device, facts: ImageFacts<'_>) -> Self {
        let [images, channels, plane] = [0, 1, 2].map(|dim| pixels.meta.shape()[dim]);
        let [height, width] = facts.size;
        let frame = Frame {
            channels,
            height,
            width,
            reflects: facts.reflects,
        };
        assert_eq!(plane, frame.plane(), "pixels of an image");
        assert_eq!(facts.labels.dims(), [images], "one for each image");
        assert_eq!(facts.lines.len(), channels, "one for each channel");
        let labels = facts.labels.without_autodiff().cast(IntDType::I32);
        Self {
            pixels: into_contiguous(pixels),
            labels: into_contiguous(primitive_int(labels)),
            values: primitive(values(facts.lines, &device.clone().inner())),
            frame,
            device,
        }
    }

    /// Returns the images of `samples` and their labels.
    ///
    /// `samples` must not be empty. The images are \[samples, channels, rows, columns\] in f32.
    /// Both results are on the device of the pixels; the images lie channels-last in memory, as
    /// convolutions need them. An index beyond the end selects the last image; a shift by more than
    /// an image counts as a shift by one image.
    pub fn batch(&self, samples: &[Sample]) -> (Tensor<4>, Tensor<1, Int>) {
        let Frame {
            channels,
            height,
            width,
            ..
        } = self.frame;
        let count = samples.len();
        let labels = memory(&self.labels, Shape::new([count]), DType::I32);
        let shape = Shape::new([count, self.frame.len()]);
        let out = Matrix::new(memory(&self.pixels, shape, DType::F32));
        self.make(&self.uploaded(samples), &out, &labels);
        let shape = Shape::new([count, height, width, channels]);
        let images = permute_nhwc_to_nchw(reshape(out.into_tensor(), shape));
        let images = Tensor::from_primitive::<Cube>(images);
        let labels = Tensor::from_primitive::<Cube>(labels);
        (on(images, &self.device), on(labels, &self.device))
    }

    /// The samples as numbers, \[samples, [`OF_SAMPLE`]\].
    fn uploaded(&self, samples: &[Sample]) -> CubeTensor {
        let numbers = |sample: &Sample| {
            // At most the last one, whichever it is.
            let index = i32::try_from(sample.index).unwrap_or(i32::MAX);
            let mirrored = i32::from(sample.mirrored);
            [index, sample.down, sample.right, mirrored]
        };
        let numbers: Vec<i32> = samples.iter().flat_map(numbers).collect();
        let data = TensorData::new(numbers, [samples.len(), OF_SAMPLE]);
        let device = self.device.clone().inner();
        primitive_int(Tensor::<2, Int>::from_data(data, (&device, DType::I32)))
    }

    fn make(&self, samples: &CubeTensor, out: &Matrix, labels: &CubeTensor) {
        let vectors = out.rows() * out.row_vectors();
        // SAFETY: a unit that has a vector of `out` writes it, and the label of an image that
        // begins there; each image of `out` has numbers in `samples`; indices into the other three
        // are clamped.
        unsafe {
            make_batch::launch_unchecked(
                out.client(),
                calculate_cube_count_elemwise(out.client(), vectors, cube()),
                cube(),
                address(&[&self.pixels]).max(out.address()),
                out.vector(),
                arg(&self.pixels),
                arg(&self.labels),
                arg(&self.values),
                arg(samples),
                out.arg(),
                arg(labels),
                vectors,
                self.labels.meta.shape().num_elements(),
                self.frame,
                dtype_to_storage_type(self.pixels.dtype),
            );
        }
    }
}

/// The value of every byte of every channel, as the host computes it.
fn values(lines: &[(f32, f32)], device: &Device) -> Tensor<2> {
    let of_channel = |(scale, offset): &(f32, f32)| {
        let (scale, offset) = (*scale, *offset);
        (0..=u8::MAX).map(move |byte| f32::from(byte) * scale + offset)
    };
    let values: Vec<f32> = lines.iter().flat_map(of_channel).collect();
    let data = TensorData::new(values, [lines.len(), BYTES]);
    Tensor::from_data(data, (device, DType::F32))
}

/// Adds autodiff if `device` has it, because layers check their input for training.
fn on<const D: usize, K: Autodiff>(tensor: Tensor<D, K>, device: &Device) -> Tensor<D, K> {
    match device.gradient_checkpointing_strategy() {
        Some(strategy) => {
            let tensor = tensor.autodiff();
            tensor.with_gradient_checkpointing_strategy(strategy)
        }
        None => tensor,
    }
}

/// The source of a place, in one direction.
#[derive(CubeType)]
struct Seen {
    /// A row or column of the image, clamped.
    place: usize,
    /// Whether it is inside of the image.
    inside: bool,
}

/// The source of `place` in an image of `len` rows or columns that was moved by `by`.
#[cube]
fn seen(place: usize, by: i32, #[comptime] len: usize, #[comptime] reflects: bool) -> Seen {
    let (back, on, last) = comptime!((-(len as i32), len as i32, len as i32 - 1));
    // At most so far that nothing is left of it: beyond that numbers would overflow.
    let position = i32::cast_from(place) - by.max(back).min(on);
    let inside = position.max(0i32).min(last);
    if comptime!(reflects) {
        let once = last - i32::abs(i32::abs(position) - last);
        Seen {
            place: usize::cast_from(once.max(0i32)),
            inside: true.runtime(),
        }
    } else {
        Seen {
            place: usize::cast_from(inside),
            inside: position == inside,
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn make_batch<P: Numeric, N: Size>(
    pixels: &[P],
    labels: &[i32],
    values: &[f32],
    samples: &[Vector<i32, Const<4>>],
    out: &mut [Vector<f32, N>],
    labels_out: &mut [i32],
    vectors: usize,
    images: usize,
    #[comptime] frame: Frame,
    #[define(P)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let (len, plane) = comptime!((frame.len(), frame.plane()));
        let first = at * N::value();
        // A vector belongs to one image.
        let (number, place) = (first / len, first % len);
        let sample = samples[number];
        let index = sample.extract(0usize).max(0i32);
        let index = usize::cast_from(index).min(images - 1);
        let (down, right) = (sample.extract(1usize), sample.extract(2usize));
        let is_mirrored = sample.extract(3usize) != 0;
        let mut vector = Vector::<f32, N>::empty();
        #[unroll]
        for lane in 0..N::value() {
            let channel = (place + lane) % frame.channels;
            let pixel = (place + lane) / frame.channels;
            let (y, x) = (pixel / frame.width, pixel % frame.width);
            // In an image that is mirrored after the move, column x shows column w - 1 - x.
            let x = select(is_mirrored, comptime!(frame.width - 1) - x, x);
            let row = seen(y, down, frame.height, frame.reflects);
            let column = seen(x, right, frame.width, frame.reflects);
            let from = (index * frame.channels + channel) * plane;
            let byte = u32::cast_from(pixels[from + row.place * frame.width + column.place]);
            let byte = usize::cast_from(byte).min(comptime!(BYTES - 1));
            let byte = select(row.inside && column.inside, byte, 0usize);
            vector.insert(lane, values[channel * BYTES + byte]);
        }
        out[at] = vector;
        if place == 0 {
            labels_out[number] = labels[index];
        }
    }
}
