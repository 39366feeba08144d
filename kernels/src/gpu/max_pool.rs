//! Maximum of a sliding window. Burn's gradient kernel allocates images whose rows of channels are
//! padded to 512 bytes, which the next convolution must copy. It also keeps an index for every
//! number of the result.

use std::sync::Arc;

use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::matrix::Matrix;
use super::operation::{BackwardInput, Operation, apply};
use super::sums::cube;
use crate::gpu::PoolOptions;

/// The maximum of each window, with the gradient for the first pixel that has it, as in PyTorch's
/// `max_pool2d`. `None` if a window may see no pixel.
///
/// `x` and the result are \[batch, channels, height, width\]. In memory the result's channels come
/// last; this is also the best layout for `x`. For a device that [`super::is_gpu`].
pub fn max_pool2d(x: Tensor<4>, options: PoolOptions) -> Option<Tensor<4>> {
    let [batch, channels, height, width] = x.dims();
    let pool = Pool::new([height, width], options)?;
    (batch * channels > 0).then(|| apply(Arc::new(pool), x))
}

/// Sizes of the source and the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pool {
    source: [usize; 2],
    result: [usize; 2],
    window: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
}

impl Pool {
    /// `None` if a window sees no pixel.
    fn new(source: [usize; 2], options: PoolOptions) -> Option<Self> {
        let PoolOptions {
            window,
            stride,
            padding,
        } = options;
        let size = |d: usize| {
            let sees = padding[d] <= window[d] / 2;
            let padded = padding[d].checked_mul(2)?.checked_add(source[d])?;
            let steps = padded.checked_sub(window[d])?.checked_div(stride[d])?;
            (sees && window[d] > 0 && source[d] > 0).then_some(steps + 1)
        };
        Some(Self {
            source,
            result: [size(0)?, size(1)?],
            window,
            stride,
            padding,
        })
    }
}

impl Operation<1> for Pool {
    fn forward(&self, [x]: [CubeTensor; 1]) -> CubeTensor {
        let x = Matrix::of_images(x);
        let [height, width] = self.source;
        let batch = x.rows() / (height * width);
        let out = x.empty([batch, self.result[0], self.result[1], x.columns()]);
        let vectors = out.rows() * x.row_vectors();
        // SAFETY: a unit that has a vector of `out` writes it, and reads pixels inside of the same
        // image of `x`.
        unsafe {
            largest_of_each::launch_unchecked(
                x.client(),
                calculate_cube_count_elemwise(x.client(), vectors, cube()),
                cube(),
                x.address().max(out.address()),
                x.vector(),
                x.arg(),
                out.arg(),
                vectors,
                x.row_vectors(),
                x.vector(),
                *self,
                x.elem(),
            );
        }
        out.into_images()
    }

    fn backward(&self, BackwardInput { x, dy, .. }: BackwardInput) -> [Option<CubeTensor>; 1] {
        let Some(x) = x else {
            return [None];
        };
        let (x, dy) = (Matrix::of_images(x), Matrix::of_images(dy));
        let (vectors, out) = (x.rows() * x.row_vectors(), x.empty_like());
        // SAFETY: a unit that has a vector of `x` writes that of `out`, and reads pixels inside of
        // the same image of `x` and of `dy`.
        unsafe {
            gradient_of_each::launch_unchecked(
                x.client(),
                calculate_cube_count_elemwise(x.client(), vectors, cube()),
                cube(),
                x.address().max(dy.address()),
                x.vector(),
                x.arg(),
                dy.arg(),
                out.arg(),
                vectors,
                x.row_vectors(),
                x.vector(),
                *self,
                x.elem(),
            );
        }
        [Some(out.into_images())]
    }

    fn reads_input(&self) -> bool {
        true
    }
}

/// The first of some places or steps, and the end.
#[derive(CubeType)]
struct Seen {
    start: usize,
    end: usize,
}

/// The places that the window of a step sees, in one direction.
#[cube]
fn seen(step: usize, #[comptime] pool: Pool, #[comptime] d: usize) -> Seen {
    let (window, padding) = comptime!((pool.window[d], pool.padding[d]));
    let start = step * comptime!(pool.stride[d]);
    let end = comptime!(pool.source[d] + padding);
    Seen {
        start: start.max(padding) - padding,
        end: (start + window).min(end) - padding,
    }
}

/// Returns the steps whose windows see a place along one axis.
#[cube]
fn seeing(place: usize, #[comptime] pool: Pool, #[comptime] d: usize) -> Seen {
    let (window, stride) = comptime!((pool.window[d], pool.stride[d]));
    let place = place + comptime!(pool.padding[d]);
    // The first window that ends after it.
    let start = (place + stride).max(window) - window;
    Seen {
        start: start / stride,
        end: (place / stride + 1).min(comptime!(pool.result[d])),
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn largest_of_each<F: Float, N: Size>(
    x: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    vectors: usize,
    columns: usize,
    #[comptime] lanes: usize,
    #[comptime] pool: Pool,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let (pixel, column) = (at / columns, at % columns);
        let (line, right) = (pixel / pool.result[1], pixel % pool.result[1]);
        let (image, down) = (line / pool.result[0], line % pool.result[0]);
        let rows = seen(down, pool, 0usize);
        let places = seen(right, pool, 1usize);
        let image = image * pool.source[0];
        let first = (image + rows.start) * pool.source[1] + places.start;
        let mut largest = Vector::<f32, N>::cast_from(x[first * columns + column]);
        for row in rows.start..rows.end {
            for place in places.start..places.end {
                let from = (image + row) * pool.source[1] + place;
                let value = Vector::<f32, N>::cast_from(x[from * columns + column]);
                #[unroll]
                for lane in 0..lanes {
                    let (new, old) = (value.extract(lane), largest.extract(lane));
                    // NaN is passed on.
                    largest.insert(lane, select(new > old || new.is_nan(), new, old));
                }
            }
        }
        out[at] = Vector::<F, N>::cast_from(largest);
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gradient_of_each<F: Float, N: Size>(
    x: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    vectors: usize,
    columns: usize,
    #[comptime] lanes: usize,
    #[comptime] pool: Pool,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let (pixel, column) = (at / columns, at % columns);
        let (line, right) = (pixel / pool.source[1], pixel % pool.source[1]);
        let (image, down) = (line / pool.source[0], line % pool.source[0]);
        let own = Vector::<f32, N>::cast_from(x[at]);
        let mut sum = Vector::<f32, N>::new(0.0f32);
        let lines = seeing(down, pool, 0usize);
        let steps = seeing(right, pool, 1usize);
        for line in lines.start..lines.end {
            for step in steps.start..steps.end {
                let rows = seen(line, pool, 0usize);
                let places = seen(step, pool, 1usize);
                let from = (image * pool.result[0] + line) * pool.result[1] + step;
                let mut gradient = Vector::<f32, N>::cast_from(dy[from * columns + column]);
                for row in rows.start..rows.end {
                    for place in places.start..places.end {
                        let other = (image * pool.source[0] + row) * pool.source[1] + place;
                        let value = Vector::<f32, N>::cast_from(x[other * columns + column]);
                        #[unroll]
                        for lane in 0..lanes {
                            let (new, old) = (value.extract(lane), own.extract(lane));
                            let is_larger = new > old || (new == old && other < pixel);
                            let left = select(is_larger, 0.0f32, gradient.extract(lane));
                            gradient.insert(lane, left);
                        }
                    }
                }
                sum += gradient;
            }
        }
        out[at] = Vector::<F, N>::cast_from(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: PoolOptions = PoolOptions {
        window: [3, 2],
        stride: [2, 1],
        padding: [1, 0],
    };

    #[test]
    fn sizes_are_pytorchs() {
        assert_eq!(Pool::new([8, 5], OPTIONS).unwrap().result, [4, 4]);
        assert_eq!(Pool::new([1, 2], OPTIONS).unwrap().result, [1, 1]);
    }

    #[test]
    fn windows_that_may_see_nothing_are_left_to_others() {
        let with = |change: fn(&mut PoolOptions)| {
            let mut options = OPTIONS;
            change(&mut options);
            options
        };
        for (source, options) in [
            ([8, 1], OPTIONS),
            ([0, 5], OPTIONS),
            ([8, 5], with(|o| o.padding = [2, 0])),
            ([8, 5], with(|o| o.stride = [0, 1])),
            (
                [8, 5],
                with(|o| (o.window, o.padding) = ([usize::MAX; 2], [usize::MAX / 2; 2])),
            ),
            ([8, 5], with(|o| o.window = [0, 2])),
        ] {
            assert_eq!(Pool::new(source, options), None, "{source:?} {options:?}");
        }
    }
}
