//! GPU kernels of batch normalization, on matrices of a row per pixel and a column per channel.
//!
//! Burn's own normalization with ReLU reads and writes every value about fifty times in a step.
//! Eight times are enough: each direction is a sum over pixels and a line through every pixel, with
//! a few numbers per channel in between.
//!
//! The sums are of differences from the first pixel's value: they do not cancel if a mean is large
//! compared with its deviation.

use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::dropout::{Drops, Mask};
use super::matrix::{Matrix, arg};
use super::sums::{
    Division, FINISH_WIDTH, Terms, TermsExpand, Two, add_part, cube, over_parts, write_part,
};

/// Rows of the numbers that forward computes for every channel.
pub(super) mod forward {
    /// Mean of the batch.
    pub const MEAN: usize = 0;
    /// Variance of the batch, divided by the number of values.
    pub const VARIANCE: usize = 1;
    /// Factor of a value.
    pub const SCALE: usize = 2;
    /// Summand after that.
    pub const OFFSET: usize = 3;
    /// Their number.
    pub const ROWS: usize = 4;
}

/// Rows of the numbers that the gradient of the input needs of every channel.
mod backward {
    /// Factor of the deviation from the mean.
    pub const SLOPE: usize = 0;
    /// Summand after that.
    pub const OFFSET: usize = 1;
    /// Their number.
    pub const ROWS: usize = 2;
}

/// Vectors of one column that a unit computes, so that numbers of channels are read less often.
/// Only if the matrix still has enough units for all SMs, and if a 32-bit index cannot overflow
/// behind the last vector.
const VECTORS_OF_UNIT: usize = 4;
const ENOUGH: usize = 1 << 20;
const TOO_MANY: usize = 1 << 31;

/// How the vectors of a matrix are divided among units. Each unit has vectors of one column.
struct Lines {
    vector: usize,
    /// Vectors of a row.
    columns: usize,
    vectors: usize,
    of_unit: usize,
    /// Number of units, and the distance between two vectors of one unit: whole rows.
    units: usize,
}

impl Lines {
    fn of(x: &Matrix) -> Self {
        let vector = x.wide_vector();
        let columns = x.columns() / vector;
        let vectors = x.rows() * columns;
        let of_unit = match (ENOUGH..TOO_MANY).contains(&vectors) {
            true => VECTORS_OF_UNIT,
            false => 1,
        };
        Self {
            vector,
            columns,
            vectors,
            of_unit,
            units: vectors.div_ceil(of_unit).next_multiple_of(columns.max(1)),
        }
    }

    fn cubes(&self, x: &Matrix) -> CubeCount {
        calculate_cube_count_elemwise(x.client(), self.units, cube())
    }
}

/// The sums over all pixels in backward.
pub(super) struct GradientSums {
    /// Gradients of the parameters, \[channels\].
    pub weight: CubeTensor,
    pub bias: CubeTensor,
    /// Coefficients for the input's gradient, \[[`backward::ROWS`], channels\].
    lines: CubeTensor,
}

/// Computes mean, variance and the linear function that normalises each channel,
/// \[[`forward::ROWS`], channels\].
pub(super) fn moments(x: &Matrix, [weight, bias]: [CubeTensor; 2], epsilon: f32) -> CubeTensor {
    let (rows, channels, vector) = (x.rows(), x.columns(), x.vector());
    let division = Division::new(rows, x.row_vectors());
    let client = x.client();
    let sums = x.numbers([division.parts, 2, channels]);
    let out = x.numbers([forward::ROWS, channels]);
    // SAFETY: the division covers the rows and columns of `x`, and `sums` has room for all parts.
    unsafe {
        sum_moments::launch_unchecked(
            client,
            division.cubes(),
            cube(),
            x.address(),
            vector,
            x.arg(),
            arg(&sums),
            rows,
            division.rows_of_part,
            division.columns,
            division.width,
            division.lanes,
            x.elem(),
        );
    }
    // SAFETY: all have a number for each channel, and `sums` has that many parts.
    unsafe {
        finish_moments::launch_unchecked(
            client,
            division.finish_cubes(),
            cube(),
            AddressType::default(),
            vector,
            x.arg(),
            arg(&sums),
            arg(&weight),
            arg(&bias),
            arg(&out),
            division.parts,
            division.columns,
            rows as f32,
            epsilon,
            x.elem(),
        );
    }
    out
}

/// `1 - momentum` of the `old` means and variances plus `momentum` of those in `lines`, the
/// variances times `unbias`.
pub(super) fn running(
    lines: &CubeTensor,
    old: [CubeTensor; 2],
    momentum: f32,
    unbias: f32,
) -> [CubeTensor; 2] {
    let [old_mean, old_variance] = old.map(Matrix::new);
    let channels = old_mean.columns();
    assert!(
        lines.meta.shape().to_vec() == [forward::ROWS, channels]
            && old_variance.columns() == channels
    );
    let (mean, variance) = (old_mean.empty_like(), old_mean.empty_like());
    // SAFETY: every unit writes at most one channel, its own, and all have every channel.
    unsafe {
        blend::launch_unchecked(
            old_mean.client(),
            calculate_cube_count_elemwise(old_mean.client(), channels, cube()),
            cube(),
            AddressType::default(),
            arg(lines),
            old_mean.arg(),
            old_variance.arg(),
            mean.arg(),
            variance.arg(),
            channels,
            momentum,
            momentum * unbias,
        );
    }
    [mean.into_tensor(), variance.into_tensor()]
}

/// The operations after a normalization, before the sum.
#[derive(Clone, Debug)]
pub(super) struct Then {
    pub relu: bool,
    pub drops: Option<Drops>,
}

impl Then {
    /// The kernel arguments of dropout; placeholders without dropout.
    fn drops(&self, other: &CubeTensor) -> (BufferArg, u32, f32) {
        match &self.drops {
            Some(drops) => (arg(&drops.key), drops.below, drops.scale),
            None => (arg(other), 0, 1.0),
        }
    }
}

/// `x` times a scale plus an offset, rows of `lines`, then the operations, then `plus`.
pub(super) fn normalise(
    x: &Matrix,
    lines: &CubeTensor,
    then: &Then,
    plus: Option<&Matrix>,
) -> Matrix {
    let (key, below, scale) = then.drops(lines);
    let out = x.empty_like();
    let division = Lines::of(x);
    // SAFETY: every unit writes existing vectors of its own: their indices do not overflow. `lines`
    // has all channels, and `plus` is as large as `x`.
    unsafe {
        line::launch_unchecked(
            x.client(),
            division.cubes(x),
            cube(),
            x.address(),
            division.vector,
            x.vector(),
            x.arg(),
            arg(lines),
            // The kernel needs an argument, even an unused one.
            plus.unwrap_or(x).arg(),
            key,
            out.arg(),
            division.columns,
            division.vectors,
            division.units,
            below,
            scale,
            division.of_unit,
            then.relu,
            then.drops.is_some(),
            plus.is_some(),
            x.elem(),
        );
    }
    out
}

/// The gradients of weight and bias, and the numbers for the gradient of the input.
pub(super) fn gradient_sums(
    x: &Matrix,
    dy: &Matrix,
    lines: &CubeTensor,
    epsilon: f32,
    then: &Then,
) -> GradientSums {
    let (key, below, scale) = then.drops(lines);
    let (rows, channels, vector) = (x.rows(), x.columns(), x.vector());
    let division = Division::new(rows, x.row_vectors());
    let client = x.client();
    let sums = x.numbers([division.parts, 2, channels]);
    let [to_weight, to_bias] = [(); 2].map(|()| x.numbers([channels]));
    let to_input = x.numbers([backward::ROWS, channels]);
    // SAFETY: `dy` is as large as `x`; otherwise as in `moments`.
    unsafe {
        sum_gradients::launch_unchecked(
            client,
            division.cubes(),
            cube(),
            x.address(),
            vector,
            x.arg(),
            dy.arg(),
            arg(lines),
            key,
            arg(&sums),
            rows,
            division.rows_of_part,
            division.columns,
            below,
            scale,
            division.width,
            division.lanes,
            then.relu,
            then.drops.is_some(),
            x.elem(),
        );
    }
    // SAFETY: as in `moments`.
    unsafe {
        finish_gradients::launch_unchecked(
            client,
            division.finish_cubes(),
            cube(),
            AddressType::default(),
            vector,
            arg(lines),
            arg(&sums),
            arg(&to_weight),
            arg(&to_bias),
            arg(&to_input),
            division.parts,
            division.columns,
            rows as f32,
            epsilon,
        );
    }
    GradientSums {
        weight: to_weight,
        bias: to_bias,
        lines: to_input,
    }
}

/// Computes the gradient of the input, plus `plus`.
pub(super) fn input_gradient(
    x: &Matrix,
    dy: &Matrix,
    lines: &CubeTensor,
    sums: &GradientSums,
    then: &Then,
    plus: Option<&Matrix>,
) -> Matrix {
    let (key, below, scale) = then.drops(lines);
    let out = x.empty_like();
    let division = Lines::of(x);
    // SAFETY: as in `normalise`; `dy` is as large as `x`, `sums` has all channels.
    unsafe {
        back::launch_unchecked(
            x.client(),
            division.cubes(x),
            cube(),
            x.address(),
            division.vector,
            x.vector(),
            x.arg(),
            dy.arg(),
            arg(lines),
            arg(&sums.lines),
            // The kernel needs an argument, even an unused one.
            plus.unwrap_or(dy).arg(),
            key,
            out.arg(),
            division.columns,
            division.vectors,
            division.units,
            below,
            scale,
            division.of_unit,
            then.relu,
            then.drops.is_some(),
            plus.is_some(),
            x.elem(),
        );
    }
    out
}

/// A column's differences from its first value, and their squares.
#[derive(CubeType)]
struct Deviations<'a, F: Float, N: Size> {
    x: &'a [Vector<F, N>],
    base: Vector<f32, N>,
    column: usize,
    columns: usize,
}

#[cube]
impl<'a, F: Float, N: Size> Deviations<'a, F, N> {
    fn new(x: &'a [Vector<F, N>], column: usize, columns: usize) -> Self {
        Deviations::<'a, F, N> {
            x,
            base: Vector::cast_from(x[column]),
            column,
            columns,
        }
    }
}

#[cube]
impl<'a, F: Float, N: Size> Terms<F, N> for Deviations<'a, F, N> {
    fn read(&self, row: usize) -> Two<F, N> {
        let value = self.x[row * self.columns + self.column];
        Two::new(value, value)
    }

    fn of(&self, read: &Two<F, N>, _row: usize) -> Two<f32, N> {
        let value = Vector::<f32, N>::cast_from(read.first) - self.base;
        Two::new(value, value * value)
    }
}

/// Sums of some rows' differences from the first row, and of their squares.
#[cube(launch_unchecked, address_type = "dynamic")]
fn sum_moments<F: Float, N: Size>(
    x: &[Vector<F, N>],
    sums: &mut [Vector<f32, N>],
    rows: usize,
    rows_of_part: usize,
    columns: usize,
    #[comptime] width: usize,
    #[comptime] lanes: usize,
    #[define(F)] _dtype: ElemType,
) {
    let unit = UNIT_POS as usize;
    let lane = unit / width;
    let column = CUBE_POS_Y as usize * width + unit % width;
    let mut of_lane = Two::<f32, N>::zero();
    if lane < lanes && column < columns {
        let terms = Deviations::<F, N>::new(x, column, columns);
        add_part::<F, N, Deviations<F, N>>(&mut of_lane, &terms, rows, rows_of_part, lane, lanes);
    }
    write_part::<N>(sums, &of_lane, column, columns, width, lanes);
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn blend(
    lines: &[f32],
    old_mean: &[f32],
    old_variance: &[f32],
    mean: &mut [f32],
    variance: &mut [f32],
    channels: usize,
    of_mean: f32,
    of_variance: f32,
) {
    let channel = ABSOLUTE_POS;
    if channel < channels {
        let keep = 1.0f32 - of_mean;
        mean[channel] =
            old_mean[channel] * keep + lines[forward::MEAN * channels + channel] * of_mean;
        variance[channel] = old_variance[channel] * keep
            + lines[forward::VARIANCE * channels + channel] * of_variance;
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn finish_moments<F: Float, N: Size>(
    x: &[Vector<F, N>],
    sums: &[Vector<f32, N>],
    weight: &[Vector<f32, N>],
    bias: &[Vector<f32, N>],
    out: &mut [Vector<f32, N>],
    parts: usize,
    columns: usize,
    rows: f32,
    epsilon: f32,
    #[define(F)] _dtype: ElemType,
) {
    let unit = UNIT_POS as usize;
    let column = CUBE_POS_X as usize * FINISH_WIDTH + unit % FINISH_WIDTH;
    let sums = over_parts::<N>(sums, column, parts, columns);
    if unit < FINISH_WIDTH && column < columns {
        let rows = Vector::<f32, N>::new(rows);
        let mean = sums.first / rows;
        let zero = Vector::<f32, N>::new(0.0f32);
        let variance = sums.second / rows - mean * mean;
        // Rounding may take it below; NaN stays NaN.
        let variance = select_many(variance.less_than(&zero), zero, variance);
        let mean = mean + Vector::<f32, N>::cast_from(x[column]);
        let deviation = (variance + Vector::<f32, N>::new(epsilon)).sqrt();
        let scale = weight[column] / deviation;
        out[forward::MEAN * columns + column] = mean;
        out[forward::VARIANCE * columns + column] = variance;
        out[forward::SCALE * columns + column] = scale;
        out[forward::OFFSET * columns + column] = bias[column] - mean * scale;
    }
}

/// A vector of f32 as wide as the vectors of a shorter type: wider than a read.
#[cube]
fn wide<N: Size, P: Size>(numbers: &[Vector<f32, P>], at: usize) -> Vector<f32, N> {
    let (whole, width) = (N::value(), P::value());
    let parts = comptime!(whole / width);
    let mut vector = Vector::<f32, N>::empty();
    #[unroll]
    for part in 0..parts {
        let values = numbers[at * parts + part];
        #[unroll]
        for i in 0..width {
            vector.insert(comptime!(part * width + i), values.extract(i));
        }
    }
    vector
}

/// A function of a value, or of a value and a gradient, and of the addend of the result, at a
/// vector of memory.
#[cube]
trait Line<F: Float, N: Size> {
    fn of(&self, read: &Two<F, N>, plus: Vector<F, N>, at: usize) -> Vector<F, N>;
}

/// Computes the vectors of a unit. All rows are read before the first is written, because a unit
/// waits for memory longer than it computes.
#[cube]
fn compute<F: Float, N: Size, L: Line<F, N> + CubeType>(
    line: &L,
    first: &[Vector<F, N>],
    second: &[Vector<F, N>],
    plus: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    unit: usize,
    units: usize,
    vectors: usize,
    #[comptime] of_unit: usize,
) {
    if unit + comptime!(of_unit - 1) * units < vectors {
        let mut read = Sequence::<Two<F, N>>::new();
        let mut added = Sequence::<Vector<F, N>>::new();
        #[unroll]
        for i in 0..of_unit {
            let at = unit + i * units;
            read.push(Two::new(first[at], second[at]));
            added.push(plus[at]);
        }
        #[unroll]
        for i in 0..of_unit {
            let at = unit + i * units;
            out[at] = line.of(read.index(i), *added.index(i), at);
        }
    } else {
        let mut at = unit;
        while at < vectors {
            out[at] = line.of(&Two::new(first[at], second[at]), plus[at], at);
            at += units;
        }
    }
}

/// The forward computation.
#[derive(CubeType)]
struct Normalised<N: Size> {
    scale: Vector<f32, N>,
    offset: Vector<f32, N>,
    mask: Mask,
    #[cube(comptime)]
    relu: bool,
    #[cube(comptime)]
    has_plus: bool,
}

#[cube]
impl<F: Float, N: Size> Line<F, N> for Normalised<N> {
    fn of(&self, read: &Two<F, N>, plus: Vector<F, N>, at: usize) -> Vector<F, N> {
        let mut value = Vector::<f32, N>::cast_from(read.first) * self.scale + self.offset;
        if comptime!(self.relu) {
            // NaN stays NaN: a scaled loss must be seen to overflow.
            let zero = Vector::<f32, N>::new(0.0f32);
            value = select_many(value.less_than(&zero), zero, value);
        }
        value = self.mask.of::<N>(value, at);
        if comptime!(self.has_plus) {
            value += Vector::<f32, N>::cast_from(plus);
        }
        Vector::<F, N>::cast_from(value)
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn line<F: Float, N: Size, P: Size>(
    x: &[Vector<F, N>],
    lines: &[Vector<f32, P>],
    plus: &[Vector<F, N>],
    key: &[Vector<f32, Const<1>>],
    out: &mut [Vector<F, N>],
    columns: usize,
    vectors: usize,
    units: usize,
    below: u32,
    scale: f32,
    #[comptime] of_unit: usize,
    #[comptime] relu: bool,
    #[comptime] drops: bool,
    #[comptime] has_plus: bool,
    #[define(F)] _dtype: ElemType,
) {
    let unit = ABSOLUTE_POS;
    if unit < units {
        let column = unit % columns;
        let line = Normalised::<N> {
            scale: wide::<N, P>(lines, forward::SCALE * columns + column),
            offset: wide::<N, P>(lines, forward::OFFSET * columns + column),
            mask: Mask::new(key, below, scale, drops),
            relu,
            has_plus,
        };
        compute::<F, N, Normalised<N>>(&line, x, x, plus, out, unit, units, vectors, of_unit);
    }
}

/// Returns the gradient before ReLU, if present.
#[cube]
fn before_relu<N: Size>(
    x: Vector<f32, N>,
    dy: Vector<f32, N>,
    scale: Vector<f32, N>,
    offset: Vector<f32, N>,
    #[comptime] relu: bool,
) -> Vector<f32, N> {
    if comptime!(relu) {
        let zero = Vector::<f32, N>::new(0.0f32);
        let value = x * scale + offset;
        select_many(value.less_equal(&zero), zero, dy)
    } else {
        dy
    }
}

/// A column's gradients, and their products with the deviations from the mean.
#[derive(CubeType)]
struct Gradients<'a, F: Float, N: Size> {
    x: &'a [Vector<F, N>],
    dy: &'a [Vector<F, N>],
    mean: Vector<f32, N>,
    scale: Vector<f32, N>,
    offset: Vector<f32, N>,
    mask: Mask,
    column: usize,
    columns: usize,
    #[cube(comptime)]
    relu: bool,
}

#[cube]
impl<'a, F: Float, N: Size> Gradients<'a, F, N> {
    fn new(
        x: &'a [Vector<F, N>],
        dy: &'a [Vector<F, N>],
        lines: &[Vector<f32, N>],
        mask: Mask,
        column: usize,
        columns: usize,
        #[comptime] relu: bool,
    ) -> Self {
        Gradients::<'a, F, N> {
            x,
            dy,
            mean: lines[forward::MEAN * columns + column],
            scale: lines[forward::SCALE * columns + column],
            offset: lines[forward::OFFSET * columns + column],
            mask,
            column,
            columns,
            relu,
        }
    }
}

#[cube]
impl<'a, F: Float, N: Size> Terms<F, N> for Gradients<'a, F, N> {
    fn read(&self, row: usize) -> Two<F, N> {
        let at = row * self.columns + self.column;
        Two::new(self.x[at], self.dy[at])
    }

    fn of(&self, read: &Two<F, N>, row: usize) -> Two<f32, N> {
        let value = Vector::<f32, N>::cast_from(read.first);
        let gradient = Vector::<f32, N>::cast_from(read.second);
        let gradient = self
            .mask
            .of::<N>(gradient, row * self.columns + self.column);
        let relu = comptime!(self.relu);
        let gradient = before_relu::<N>(value, gradient, self.scale, self.offset, relu);
        Two::new(gradient, gradient * (value - self.mean))
    }
}

/// Computes sums over some rows of the gradients, and of their products with the deviations from
/// the mean.
#[cube(launch_unchecked, address_type = "dynamic")]
fn sum_gradients<F: Float, N: Size>(
    x: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    lines: &[Vector<f32, N>],
    key: &[Vector<f32, Const<1>>],
    sums: &mut [Vector<f32, N>],
    rows: usize,
    rows_of_part: usize,
    columns: usize,
    below: u32,
    scale: f32,
    #[comptime] width: usize,
    #[comptime] lanes: usize,
    #[comptime] relu: bool,
    #[comptime] drops: bool,
    #[define(F)] _dtype: ElemType,
) {
    let unit = UNIT_POS as usize;
    let lane = unit / width;
    let column = CUBE_POS_Y as usize * width + unit % width;
    let mut of_lane = Two::<f32, N>::zero();
    if lane < lanes && column < columns {
        let mask = Mask::new(key, below, scale, drops);
        let terms = Gradients::<F, N>::new(x, dy, lines, mask, column, columns, relu);
        add_part::<F, N, Gradients<F, N>>(&mut of_lane, &terms, rows, rows_of_part, lane, lanes);
    }
    write_part::<N>(sums, &of_lane, column, columns, width, lanes);
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn finish_gradients<N: Size>(
    lines: &[Vector<f32, N>],
    sums: &[Vector<f32, N>],
    to_weight: &mut [Vector<f32, N>],
    to_bias: &mut [Vector<f32, N>],
    to_input: &mut [Vector<f32, N>],
    parts: usize,
    columns: usize,
    rows: f32,
    epsilon: f32,
) {
    let unit = UNIT_POS as usize;
    let column = CUBE_POS_X as usize * FINISH_WIDTH + unit % FINISH_WIDTH;
    let sums = over_parts::<N>(sums, column, parts, columns);
    if unit < FINISH_WIDTH && column < columns {
        let rows = Vector::<f32, N>::new(rows);
        let variance = lines[forward::VARIANCE * columns + column] + Vector::<f32, N>::new(epsilon);
        let scale = lines[forward::SCALE * columns + column];
        let zero = Vector::<f32, N>::new(0.0f32);
        to_weight[column] = sums.second / variance.sqrt();
        to_bias[column] = sums.first;
        let slope = zero - scale * (sums.second / (rows * variance));
        to_input[backward::SLOPE * columns + column] = slope;
        to_input[backward::OFFSET * columns + column] = zero - scale * (sums.first / rows);
    }
}

/// The backward computation.
#[derive(CubeType)]
struct Returned<N: Size> {
    mean: Vector<f32, N>,
    scale: Vector<f32, N>,
    offset: Vector<f32, N>,
    slope: Vector<f32, N>,
    rest: Vector<f32, N>,
    mask: Mask,
    #[cube(comptime)]
    relu: bool,
    #[cube(comptime)]
    has_plus: bool,
}

#[cube]
impl<F: Float, N: Size> Line<F, N> for Returned<N> {
    fn of(&self, read: &Two<F, N>, plus: Vector<F, N>, at: usize) -> Vector<F, N> {
        let value = Vector::<f32, N>::cast_from(read.first);
        let gradient = Vector::<f32, N>::cast_from(read.second);
        let gradient = self.mask.of::<N>(gradient, at);
        let relu = comptime!(self.relu);
        let gradient = before_relu::<N>(value, gradient, self.scale, self.offset, relu);
        let mut result = self.scale * gradient + self.slope * (value - self.mean) + self.rest;
        if comptime!(self.has_plus) {
            result += Vector::<f32, N>::cast_from(plus);
        }
        Vector::<F, N>::cast_from(result)
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn back<F: Float, N: Size, P: Size>(
    x: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    lines: &[Vector<f32, P>],
    sums: &[Vector<f32, P>],
    plus: &[Vector<F, N>],
    key: &[Vector<f32, Const<1>>],
    out: &mut [Vector<F, N>],
    columns: usize,
    vectors: usize,
    units: usize,
    below: u32,
    scale: f32,
    #[comptime] of_unit: usize,
    #[comptime] relu: bool,
    #[comptime] drops: bool,
    #[comptime] has_plus: bool,
    #[define(F)] _dtype: ElemType,
) {
    let unit = ABSOLUTE_POS;
    if unit < units {
        let column = unit % columns;
        let line = Returned::<N> {
            mean: wide::<N, P>(lines, forward::MEAN * columns + column),
            scale: wide::<N, P>(lines, forward::SCALE * columns + column),
            offset: wide::<N, P>(lines, forward::OFFSET * columns + column),
            slope: wide::<N, P>(sums, backward::SLOPE * columns + column),
            rest: wide::<N, P>(sums, backward::OFFSET * columns + column),
            mask: Mask::new(key, below, scale, drops),
            relu,
            has_plus,
        };
        compute::<F, N, Returned<N>>(&line, x, dy, plus, out, unit, units, vectors, of_unit);
    }
}
