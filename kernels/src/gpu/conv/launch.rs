//! Launches a convolution and its gradients, and decides whether that is possible.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::ops::{permute_nchw_to_nhwc, permute_nhwc_to_nchw, reshape};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::super::column_sums::ColumnSums;
use super::super::matrix::{Matrix, address, arg, memory};
use super::super::split::{HALF, split};
use super::super::tensor_cores::{VECTOR, has_instructions};
use super::arrange::{Layout, Matrices, transposed};
use super::check::{Taken, taken};
use super::geometry::Geometry;
use super::operation::{Addends, Product};
use super::parts::{Parts, add_up, fits_beside};
use super::plan::Gpu;
use super::shape::Slide;
use super::slide::convolve;
use super::tile::Tile;
use super::tune::{fastest, tried};
use super::weights::{cubes as cubes_of, multiply_parts, written_at_once};
use super::widen::widen;

/// Numbers of a vector of the result: adjacent numbers of a lane.
const OF_RESULT: usize = 4;

/// SMs of a GPU that does not say how many it has.
const PROCESSORS: u32 = 100;

/// A convolution, with the tiles for it and its gradients.
#[derive(Clone, Debug)]
pub(super) struct Convolution {
    geometry: Geometry,
    /// The geometry with channels rounded up to whole vectors.
    wide: Geometry,
    /// Tiles for the result, the images' gradient and the weight's gradient.
    pub result: Vec<Tile>,
    pub images: Vec<Tile>,
    pub weight: Vec<Tile>,
    pub parts: Parts,
    /// The type of images and results.
    dtype: DType,
    /// The type of the factors.
    of_factors: DType,
    /// The type of the weight and its gradient.
    weight_dtype: DType,
}

impl Convolution {
    /// `None` if the device lacks the instructions for the type of `x`, or for its halves, or the
    /// memory. The weight is in f32 or that type.
    pub fn new(x: &CubeTensor, weight: &CubeTensor, geometry: Geometry) -> Option<Self> {
        let can_be_read = [DType::F32, x.dtype].contains(&weight.dtype);
        if !can_be_read || !has_instructions(&x.client, factors_of(x)) {
            return None;
        }
        Self::with(x, weight, geometry, taken(x))
    }

    /// The same for the given device.
    pub fn with(
        x: &CubeTensor,
        weight: &CubeTensor,
        geometry: Geometry,
        taken: Taken,
    ) -> Option<Self> {
        let weight_dtype = weight.dtype;
        let split = x.dtype == DType::F32;
        let geometry = geometry.split(split);
        let wide = geometry.widened()?;
        let hardware = &x.client.properties().hardware;
        let gpu = Gpu {
            processors: hardware.num_streaming_multiprocessors.unwrap_or(PROCESSORS),
            memory: hardware.max_shared_memory_size,
            instruction: taken.instruction,
            halos: taken.halos,
        };
        let result = gpu.tiles(wide.slide(), geometry.batch);
        let images = gpu.tiles(wide.slide_back(), geometry.batch);
        let (weight, parts) = gpu.tiles_and_parts(wide.slide(), geometry.pixels());
        let has_memory = ![&result, &images, &weight].into_iter().any(Vec::is_empty);
        has_memory.then_some(Self {
            geometry,
            wide,
            result,
            images,
            weight,
            parts,
            dtype: x.dtype,
            of_factors: factors_of(x),
            weight_dtype,
        })
    }

    /// In one tile of each order, regardless of the expected time.
    pub fn in_tiles(self, along: Tile, across: Tile) -> Self {
        Self {
            result: vec![along],
            images: vec![along],
            weight: vec![across],
            ..self
        }
    }

    /// Returns the dimensions of the result.
    pub fn dims(&self) -> [usize; 4] {
        let [height, width] = self.geometry.slide().result;
        let Geometry { batch, outputs, .. } = self.geometry;
        [batch, outputs, height, width].map(|size| size as usize)
    }

    /// Computes the result for a weight [`Self::arranged`] as \[out, window, in\] for the tiles of
    /// results.
    pub fn convolve(&self, x: CubeTensor, weight: CubeTensor, addends: Addends) -> CubeTensor {
        let outputs = self.geometry.outputs;
        let slide = self.wide.slide();
        let widened = |bias| {
            let bias = reshape(bias, Shape::new([1, 1, 1, self.geometry.outputs as usize]));
            widen(bias, self.wide.outputs)
        };
        let of_result = |plus| widen_images(plus, self.wide.outputs);
        let addends = Addends {
            bias: addends.bias.map(widened),
            plus: addends.plus.map(of_result),
        };
        let x = self.factor_of_images(x);
        self.slide([x, weight], addends, slide, outputs, &self.result)
    }

    /// The gradient of the images, from a [`Self::factor_of_result`], a weight [`Self::arranged`]
    /// as \[in, window, out\] for their tiles, and `plus`, which is like the images.
    pub fn convolve_back(
        &self,
        dy: CubeTensor,
        weight: CubeTensor,
        plus: Option<CubeTensor>,
    ) -> CubeTensor {
        let (slide, inputs) = (self.wide.slide_back(), self.geometry.inputs);
        let addends = Addends {
            bias: None,
            plus: plus.map(|plus| widen_images(plus, self.wide.inputs)),
        };
        self.slide([dy, weight], addends, slide, inputs, &self.images)
    }

    /// A weight for the product in any of `tiles`: the matrices `sizes`, transposed.
    pub fn arranged(
        &self,
        weight: CubeTensor,
        tiles: &[Tile],
        sizes: impl Fn(Geometry) -> Matrices,
    ) -> CubeTensor {
        let layout = match tiles.first().and_then(|tile| tile.halo) {
            None => Layout::Features,
            Some(_) => Layout::Planes {
                places: self.geometry.in_window(),
            },
        };
        transposed(
            weight,
            sizes(self.geometry),
            sizes(self.wide),
            (self.of_factors, self.geometry.is_split()),
            layout,
        )
    }

    /// Images as factors, \[batch, height, width, channels\].
    pub fn factor_of_images(&self, images: CubeTensor) -> CubeTensor {
        self.factor_of(images, self.wide.inputs)
    }

    /// Converts the result's gradient to a factor.
    pub fn factor_of_result(&self, dy: CubeTensor) -> CubeTensor {
        self.factor_of(dy, self.wide.outputs)
    }

    fn factor_of(&self, images: CubeTensor, channels: u32) -> CubeTensor {
        let images = widen_images(images, channels);
        match self.geometry.is_split() {
            true => split(&images),
            false => images,
        }
    }

    /// The result or the gradient of the images, with `channels` channels.
    fn slide(
        &self,
        [source, weight]: [CubeTensor; 2],
        addends: Addends,
        slide: Slide,
        channels: u32,
        tiles: &[Tile],
    ) -> CubeTensor {
        let batch = self.geometry.batch;
        let (dtype, added) = (self.dtype, addends.are_there());
        let tried = tried(tiles);
        let name = || format!("{dtype:?} {batch} {slide:?} {added:?} {tried:x}");
        let like = source.clone();
        let run = move |tile| slide_in([&source, &weight], &addends, batch, slide, tile, dtype);
        let out = fastest(name, &like, tiles, run);
        permute_nhwc_to_nchw(widen(out, channels))
    }

    /// The gradient of the weight from both factors, \[out, in, window height, window width\], and
    /// the gradient of a bias, from its sums over all pixels.
    pub fn weigh(
        &self,
        [x, dy]: [CubeTensor; 2],
        for_bias: Option<CubeTensor>,
    ) -> (CubeTensor, Option<CubeTensor>) {
        let (wide, parts) = (self.wide, self.parts);
        let bias = for_bias.map(|dy| ColumnSums::of(&Matrix::of_images(dy)));
        // Both are added up in one kernel, if their vectors are the same.
        let (beside, alone) = match bias {
            Some(bias) if fits_beside(&bias) => (Some(bias), None),
            other => (None, other.map(ColumnSums::add_up)),
        };
        let of_bias = alone.or_else(|| beside.as_ref().map(|bias| bias.out.clone()));
        let (like, weight) = (x.clone(), (self.geometry, self.weight_dtype));
        let (dtype, with_bias) = (x.dtype, beside.is_some());
        let tried = tried(&self.weight);
        let name = || format!("{dtype:?} {wide:?} {with_bias} {tried:x}");
        let run = move |tile| weigh([&x, &dy], wide, tile, parts, weight, beside.as_ref());
        (fastest(name, &like, &self.weight, run), of_bias)
    }
}

impl Product for Convolution {
    /// Computes the result, \[batch, out, out height, out width\], channels-last in memory.
    fn forward(&self, x: CubeTensor, weight: CubeTensor, addends: Addends) -> CubeTensor {
        let weight = self.arranged(weight, &self.result, |sizes| Matrices {
            count: sizes.outputs,
            rows: sizes.inputs,
            columns: sizes.in_window(),
        });
        self.convolve(x, weight, addends)
    }

    fn factor(&self, dy: CubeTensor) -> CubeTensor {
        self.factor_of_result(dy)
    }

    /// The gradient of the images, from the gradient of the result.
    fn gradient_of_input(
        &self,
        dy: CubeTensor,
        weight: CubeTensor,
        plus: Option<CubeTensor>,
    ) -> CubeTensor {
        let weight = self.arranged(weight, &self.images, |sizes| Matrices {
            count: 1,
            rows: sizes.outputs,
            columns: sizes.inputs * sizes.in_window(),
        });
        self.convolve_back(dy, weight, plus)
    }

    fn gradients_of_parameters(
        &self,
        x: CubeTensor,
        dy: CubeTensor,
        for_bias: Option<CubeTensor>,
    ) -> (CubeTensor, Option<CubeTensor>) {
        self.weigh([self.factor_of_images(x), dy], for_bias)
    }

    fn gradient_of_bias(&self, dy: CubeTensor) -> CubeTensor {
        ColumnSums::of(&Matrix::of_images(dy)).add_up()
    }
}

/// Returns the type in which numbers like those of `x` are multiplied.
fn factors_of(x: &CubeTensor) -> DType {
    match x.dtype {
        DType::F32 => HALF,
        dtype => dtype,
    }
}

/// Images \[batch, channels, height, width\] as \[batch, height, width, channels\], padded to
/// `channels` channels.
fn widen_images(images: CubeTensor, channels: u32) -> CubeTensor {
    widen(permute_nchw_to_nhwc(images), channels)
}

/// The gradient of a weight in one tile, with the given channels and type. The gradient of a bias
/// is added up beside it.
fn weigh(
    [x, dy]: [&CubeTensor; 2],
    wide: Geometry,
    tile: Tile,
    parts: Parts,
    (weight, dtype): (Geometry, DType),
    bias: Option<&ColumnSums>,
) -> CubeTensor {
    let slide = wide.slide();
    let [of_window, of_channels] = cubes_of(slide, tile);
    let [height, width] = slide.window;
    let of_parts = [parts.count, slide.features, height * width, slide.depth];
    let sums = memory(x, shape(of_parts), DType::F32);
    let sizes = [weight.outputs, weight.inputs, height, width];
    let out = memory(x, shape(sizes), dtype);
    // SAFETY: a unit copies from places of `x` that it has checked to be inside of an image, and
    // from existing pixels and channels of `dy`; it writes to numbers of `sums` in its part.
    unsafe {
        multiply_parts::launch_unchecked(
            &x.client,
            CubeCount::Static(of_window, of_channels, parts.count),
            CubeDim::new_1d(tile.units() as u32),
            address(&[x, dy, &sums]),
            VECTOR,
            written_at_once(tile),
            arg(x),
            arg(dy),
            arg(&sums),
            wide.pixels(),
            parts.steps,
            slide,
            tile,
            dtype_to_storage_type(x.dtype),
        );
    }
    let of_weight = [weight.outputs, weight.inputs];
    add_up(&sums, &out, parts.count, slide, of_weight, bias);
    out
}

/// Computes a convolution, or the gradient of images, in one tile.
fn slide_in(
    [source, weight]: [&CubeTensor; 2],
    addends: &Addends,
    batch: u32,
    slide: Slide,
    tile: Tile,
    dtype: DType,
) -> CubeTensor {
    let [height, width] = slide.result;
    let sizes = [batch, height, width, slide.features];
    let out = memory(source, shape(sizes), dtype);
    let [height, width] = slide.grid();
    let rows = batch * height * width;
    let cubes = slide.below(tile, batch) * slide.beside(tile);
    // SAFETY: a unit copies from places of `source` that it has checked to be inside of an image,
    // and from the rows of `weight` and `bias` below `features`; it writes to pixels of `out` that
    // it has also checked, where `plus` has numbers too.
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
            // The kernel needs an argument, even an unused one.
            arg(addends.bias.as_ref().unwrap_or(weight)),
            arg(addends.plus.as_ref().unwrap_or(weight)),
            arg(&out),
            rows,
            addends.are_there(),
            slide,
            tile,
            dtype_to_storage_type(source.dtype),
            dtype_to_storage_type(dtype),
        );
    }
    out
}

pub(super) fn shape(sizes: [u32; 4]) -> Shape {
    Shape::new(sizes.map(|size| size as usize))
}
