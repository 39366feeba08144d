//! What is launched for a convolution and its gradients, and whether it can be.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::{permute, permute_nchw_to_nhwc, permute_nhwc_to_nchw};
use burn_cubecl::tensor::CubeTensor;
use cubecl::features::MmaConfig;
use cubecl::ir::FloatKind;
use cubecl::prelude::*;

use super::super::matrix::arg;
use super::geometry::Geometry;
use super::plan::Gpu;
use super::shape::Slide;
use super::slide::convolve;
use super::tile::{COLUMNS, DEPTH, LANES, ROWS, Tile, VECTOR};
use super::tune::fastest;
use super::weights::{Parts, add_parts, multiply_parts};

/// Numbers of a vector of the result: what a lane has beside one another.
const OF_RESULT: usize = 4;

/// Numbers of a vector of a part.
const OF_PART: usize = 2;

/// Units of a cube that adds up parts.
const UNITS: u32 = 256;

/// Processors of a GPU that does not say how many it has.
const PROCESSORS: u32 = 100;

/// A convolution and how it and its gradients are computed.
#[derive(Clone, Debug)]
pub(super) struct Convolution {
    geometry: Geometry,
    /// Tiles for the result, for the gradient of the images and for that of the weight.
    pub result: Vec<Tile>,
    pub images: Vec<Tile>,
    pub weight: Vec<Tile>,
    pub parts: Parts,
}

impl Convolution {
    /// If channels are whole vectors, and the device has the instructions for numbers of this type, and memory.
    pub fn new(x: &CubeTensor, weight: &CubeTensor, geometry: Geometry) -> Option<Self> {
        let channels = [geometry.inputs, geometry.outputs];
        let are_vectors = channels.iter().all(|n| n.is_multiple_of(VECTOR as u32));
        if weight.dtype != x.dtype || !are_vectors || !has_instructions(x) {
            return None;
        }
        let hardware = &x.client.properties().hardware;
        let gpu = Gpu {
            processors: hardware.num_streaming_multiprocessors.unwrap_or(PROCESSORS),
            memory: hardware.max_shared_memory_size,
        };
        let result = gpu.tiles(geometry.slide(), geometry.batch);
        let images = gpu.tiles(geometry.slide_back(), geometry.batch);
        let (weight, parts) = gpu.tiles_and_parts(geometry.slide(), geometry.pixels());
        let has_memory = ![&result, &images, &weight].into_iter().any(Vec::is_empty);
        has_memory.then_some(Self {
            geometry,
            result,
            images,
            weight,
            parts,
        })
    }

    /// The result, \[batch, out, out height, out width\], with its channels last in memory.
    pub fn forward(&self, x: CubeTensor, weight: CubeTensor) -> CubeTensor {
        let weight = into_contiguous(permute_nchw_to_nhwc(weight));
        let batch = self.geometry.batch;
        slide(x, weight, batch, self.geometry.slide(), &self.result)
    }

    /// The gradient of the images for that of the result.
    pub fn gradient_of_images(&self, dy: CubeTensor, weight: CubeTensor) -> CubeTensor {
        let weight = into_contiguous(permute(weight, &[1, 2, 3, 0]));
        let batch = self.geometry.batch;
        slide(dy, weight, batch, self.geometry.slide_back(), &self.images)
    }

    /// The gradient of the weight for that of the result, \[out, in, window height, window width\]; in memory,
    /// channels that go in come last.
    pub fn gradient_of_weight(&self, x: CubeTensor, dy: CubeTensor) -> CubeTensor {
        let [x, dy] = [x, dy].map(|tensor| into_contiguous(permute_nchw_to_nhwc(tensor)));
        let (geometry, parts) = (self.geometry, self.parts);
        let name = format!("{:?} {geometry:?}", x.dtype);
        let like = x.clone();
        let run = move |tile| weigh(&x, &dy, geometry, tile, parts);
        permute_nhwc_to_nchw(fastest(name, &like, &self.weight, run))
    }
}

/// The gradient of a weight in one tile.
fn weigh(
    x: &CubeTensor,
    dy: &CubeTensor,
    geometry: Geometry,
    tile: Tile,
    parts: Parts,
) -> CubeTensor {
    let slide = geometry.slide();
    let beside = slide.under_window().div_ceil(tile.columns() as u32);
    let below = slide.features.div_ceil(tile.rows() as u32);
    let [height, width] = slide.window;
    let shape = [slide.features, height, width, slide.depth];
    let of_parts = [parts.count, slide.features, height * width, slide.depth];
    let sums = memory(x, of_parts, DType::F32);
    let out = memory(x, shape, x.dtype);
    let vectors = slide.features * slide.under_window() / OF_RESULT as u32;
    let elem = dtype_to_storage_type(x.dtype);
    // SAFETY: a unit copies from places of `x` that it has found inside of an image, and from pixels and
    // channels that `dy` has; it writes to numbers of `sums` that its part has. Then a unit of its own
    // reads and writes each vector of `out`.
    unsafe {
        multiply_parts::launch_unchecked(
            &x.client,
            CubeCount::Static(beside, below, parts.count),
            CubeDim::new_1d(tile.units() as u32),
            address(&[x, dy, &sums]),
            VECTOR,
            OF_PART,
            arg(x),
            arg(dy),
            arg(&sums),
            geometry.pixels(),
            parts.steps,
            slide,
            tile,
            elem,
        );
        add_parts::launch_unchecked(
            &x.client,
            CubeCount::Static(vectors.div_ceil(UNITS), 1, 1),
            CubeDim::new_1d(UNITS),
            address(&[&sums, &out]),
            OF_RESULT,
            arg(&sums),
            arg(&out),
            parts.count as usize,
            vectors as usize,
            elem,
        );
    }
    out
}

/// Whether the device multiplies matrices of this type from shared memory, and copies into it meanwhile.
fn has_instructions(x: &CubeTensor) -> bool {
    let properties = x.client.properties();
    let elem = dtype_to_storage_type(x.dtype);
    let product = MmaConfig {
        a_type: elem,
        b_type: elem,
        cd_type: ElemType::Float(FloatKind::F32),
        m: ROWS as u32,
        n: COLUMNS as u32,
        k: DEPTH as u32,
    };
    let (features, hardware) = (&properties.features, &properties.hardware);
    matches!(x.dtype, DType::F16 | DType::BF16)
        && features.copy_async
        && features.matmul.ldmatrix.contains(&elem)
        && features.matmul.mma.contains(&product)
        && [hardware.plane_size_min, hardware.plane_size_max] == [LANES as u32; 2]
}

/// A convolution, or the gradient of images.
fn slide(
    source: CubeTensor,
    weight: CubeTensor,
    batch: u32,
    slide: Slide,
    tiles: &[Tile],
) -> CubeTensor {
    let source = into_contiguous(permute_nchw_to_nhwc(source));
    let name = format!("{:?} {batch} {slide:?}", source.dtype);
    let like = source.clone();
    let run = move |tile| slide_in(&source, &weight, batch, slide, tile);
    permute_nhwc_to_nchw(fastest(name, &like, tiles, run))
}

/// The same in one tile.
fn slide_in(
    source: &CubeTensor,
    weight: &CubeTensor,
    batch: u32,
    slide: Slide,
    tile: Tile,
) -> CubeTensor {
    let [height, width] = slide.result;
    let out = memory(source, [batch, height, width, slide.features], source.dtype);
    let [height, width] = slide.grid();
    let rows = batch * height * width;
    let cubes = rows.div_ceil(tile.rows() as u32) * slide.beside(tile);
    // SAFETY: a unit copies from places of `source` that it has found inside of an image, and from the rows
    // of `weight` below `features`; it writes to pixels of `out` that it has found inside as well.
    unsafe {
        convolve::launch_unchecked(
            &source.client,
            CubeCount::Static(cubes, 1, slide.grids()),
            CubeDim::new_1d(tile.units() as u32),
            address(&[source, weight, &out]),
            VECTOR,
            OF_RESULT,
            arg(source),
            arg(weight),
            arg(&out),
            rows,
            slide,
            tile,
            dtype_to_storage_type(source.dtype),
        );
    }
    out
}

fn memory(like: &CubeTensor, shape: [u32; 4], dtype: DType) -> CubeTensor {
    let shape = Shape::new(shape.map(|size| size as usize));
    let client = like.client.clone();
    let handle = client.empty(shape.num_elements() * dtype.size());
    CubeTensor::new_contiguous(client, like.device.clone(), shape, handle, dtype)
}

/// How wide the indices of all of them are.
fn address(tensors: &[&CubeTensor]) -> AddressType {
    let types = tensors.iter().map(|tensor| tensor.required_address_type());
    types.max().unwrap_or_default()
}
