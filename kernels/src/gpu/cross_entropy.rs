//! Mean cross-entropy of softmax against classes, in three kernels. Burn's operations take about
//! thirty.

use std::sync::{Arc, OnceLock};

use burn::tensor::{DType, Int, IntDType, Tensor};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::matrix::{Matrix, arg, primitive, primitive_int};
use super::operation::{BackwardInput, Operation, apply};
use super::rows::{cubes, row_largest, row_of_unit, row_sum, width};
use super::sums::{UNITS, cube, over_lanes};

/// Computes the mean cross-entropy with label smoothing.
///
/// It is the mean over rows of `-log softmax(logits)` at the class in `classes`, where a share
/// `smoothing` (0 to 1) is spread evenly over all classes. With `other`, each row has two classes:
/// the one in `classes` with the weight in `other`, and the one in `other` with the rest.
///
/// `logits` is \[rows, classes\] of any float type, all else \[rows\]; the result has one element,
/// in f32, in which it is computed. A class that does not exist has no logit and no gradient.
/// Requires a device for which [`super::is_gpu`] is true.
///
/// # Panics
///
/// Panics without a logit, or unless each row has one class, and one of `other`.
pub fn cross_entropy(
    logits: Tensor<2>,
    classes: Tensor<1, Int>,
    other: Option<(Tensor<1, Int>, Tensor<1>)>,
    smoothing: f64,
) -> Tensor<1> {
    let [rows, columns] = logits.dims();
    assert!(rows * columns > 0, "no logits");
    let of_rows = |tensor: CubeTensor| {
        assert_eq!(tensor.meta.shape().num_elements(), rows, "one for each row");
        into_contiguous(tensor)
    };
    let class = |classes: Tensor<1, Int>| {
        let classes = classes.without_autodiff().cast(IntDType::I32);
        of_rows(primitive_int(classes))
    };
    let classes = class(classes);
    let other = other.map(|(classes, weights)| {
        let weights = weights.without_autodiff().cast(DType::F32);
        [class(classes), of_rows(primitive(weights))]
    });
    let operation = CrossEntropy {
        targets: Targets {
            has_other: other.is_some(),
            // The kernel needs an argument, even an unused one.
            other: other.unwrap_or_else(|| [classes.clone(), classes.clone()]),
            classes,
            smoothing: smoothing as f32,
        },
        logarithms: OnceLock::new(),
    };
    apply(Arc::new(operation), logits)
}

/// The targets of rows.
#[derive(Debug)]
struct Targets {
    classes: CubeTensor,
    /// The second classes, and the weights of the first.
    other: [CubeTensor; 2],
    has_other: bool,
    smoothing: f32,
}

#[derive(Debug)]
struct CrossEntropy {
    targets: Targets,
    /// For each row its largest logit, and the logarithm of the sum of the exponentials of the
    /// differences from it.
    logarithms: OnceLock<CubeTensor>,
}

impl Operation<1> for CrossEntropy {
    fn forward(&self, [logits]: [CubeTensor; 1]) -> CubeTensor {
        let logits = Matrix::new(logits);
        let targets = &self.targets;
        let losses = logits.numbers([logits.rows()]);
        let logarithms = logits.numbers([logits.rows(), 2]);
        let mean = logits.numbers([1]);
        // SAFETY: the cubes cover all rows, the units of a row all of its vectors; all but the
        // logits have numbers for each row.
        unsafe {
            lose_rows::launch_unchecked(
                logits.client(),
                cubes(&logits),
                cube(),
                logits.address(),
                logits.vector(),
                logits.arg(),
                arg(&targets.classes),
                arg(&targets.other[0]),
                arg(&targets.other[1]),
                arg(&losses),
                arg(&logarithms),
                logits.rows(),
                logits.row_vectors(),
                targets.smoothing,
                targets.has_other,
                width(&logits),
                logits.elem(),
            );
            mean_of_rows::launch_unchecked(
                logits.client(),
                CubeCount::Static(1, 1, 1),
                cube(),
                logits.address(),
                1,
                arg(&losses),
                arg(&mean),
                logits.rows(),
            );
        }
        self.logarithms.get_or_init(|| logarithms);
        mean
    }

    fn backward(
        &self,
        BackwardInput { x: logits, dy, .. }: BackwardInput,
    ) -> [Option<CubeTensor>; 1] {
        let (Some(logits), Some(logarithms)) = (logits, self.logarithms.get()) else {
            return [None];
        };
        let (logits, targets) = (Matrix::new(logits), &self.targets);
        let out = logits.empty_like();
        // SAFETY: as in `forward`; `dy` has one number.
        unsafe {
            back_rows::launch_unchecked(
                logits.client(),
                cubes(&logits),
                cube(),
                logits.address(),
                logits.vector(),
                logits.arg(),
                arg(&targets.classes),
                arg(&targets.other[0]),
                arg(&targets.other[1]),
                arg(logarithms),
                arg(&into_contiguous(dy)),
                out.arg(),
                logits.rows(),
                logits.row_vectors(),
                targets.smoothing,
                targets.has_other,
                width(&logits),
                logits.elem(),
            );
        }
        [Some(out.into_tensor())]
    }

    fn reads_input(&self) -> bool {
        true
    }
}

/// The target of a row.
#[derive(CubeType)]
struct Target {
    class: u32,
    weight: f32,
    other: u32,
    weight_of_other: f32,
    /// The even share of every class.
    evenly: f32,
}

#[cube]
fn target_of<N: Size>(
    classes: &[i32],
    others: &[i32],
    weights: &[f32],
    row: usize,
    columns: usize,
    smoothing: f32,
    #[comptime] has_other: bool,
) -> Target {
    let share = 1.0f32 - smoothing;
    let evenly = smoothing / f32::cast_from(columns * N::value());
    let class = u32::cast_from(classes[row]);
    if comptime!(has_other) {
        let weight = weights[row];
        Target {
            class,
            weight: share * weight,
            other: u32::cast_from(others[row]),
            weight_of_other: share * (1.0f32 - weight),
            evenly,
        }
    } else {
        Target {
            class,
            weight: share,
            other: class,
            weight_of_other: 0.0f32.runtime(),
            evenly,
        }
    }
}

#[cube]
impl Target {
    /// Returns the probabilities of a vector's classes.
    fn vector<N: Size>(&self, column: usize) -> Vector<f32, N> {
        let mut target = Vector::<f32, N>::new(self.evenly);
        #[unroll]
        for index in 0..N::value() {
            let class = u32::cast_from(column * N::value() + index);
            let one = select(class == self.class, self.weight, 0.0f32);
            let two = select(class == self.other, self.weight_of_other, 0.0f32);
            target.insert(index, self.evenly + one + two);
        }
        target
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn lose_rows<F: Float, N: Size>(
    logits: &[Vector<F, N>],
    classes: &[i32],
    others: &[i32],
    weights: &[f32],
    losses: &mut [f32],
    logarithms: &mut [f32],
    rows: usize,
    columns: usize,
    smoothing: f32,
    #[comptime] has_other: bool,
    #[comptime] width: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = row_of_unit(width);
    let place = UNIT_POS as usize % width;
    let start = row * columns;
    let most = row_largest::<F, N>(logits, row, rows, columns, width);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut hit = Vector::<f32, N>::new(0.0f32);
    if row < rows {
        let target = target_of::<N>(classes, others, weights, row, columns, smoothing, has_other);
        let mut column = place;
        while column < columns {
            let below =
                Vector::<f32, N>::cast_from(logits[start + column]) - Vector::<f32, N>::new(most);
            sum += below.exp();
            hit += below * target.vector::<N>(column);
            column += width;
        }
    }
    let sum = row_sum::<N>(sum, width);
    let hit = row_sum::<N>(hit, width);
    if row < rows && place == 0 {
        let logarithm = sum.ln();
        losses[row] = logarithm - hit;
        // Not their sum: it would round both to the precision of the larger.
        logarithms[2 * row] = most;
        logarithms[2 * row + 1] = logarithm;
    }
}

/// Adds the losses in an order that depends on their number alone.
#[cube(launch_unchecked, address_type = "dynamic")]
fn mean_of_rows<N: Size>(losses: &[Vector<f32, N>], mean: &mut [Vector<f32, N>], rows: usize) {
    let unit = UNIT_POS as usize;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut row = unit;
    while row < rows {
        sum += losses[row];
        row += UNITS;
    }
    let sum = over_lanes::<N>(sum, unit, 1usize, UNITS);
    if unit == 0 {
        mean[0] = sum / Vector::<f32, N>::new(f32::cast_from(rows));
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn back_rows<F: Float, N: Size>(
    logits: &[Vector<F, N>],
    classes: &[i32],
    others: &[i32],
    weights: &[f32],
    logarithms: &[f32],
    dy: &[f32],
    out: &mut [Vector<F, N>],
    rows: usize,
    columns: usize,
    smoothing: f32,
    #[comptime] has_other: bool,
    #[comptime] width: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = row_of_unit(width);
    if row < rows {
        let target = target_of::<N>(classes, others, weights, row, columns, smoothing, has_other);
        let most = Vector::<f32, N>::new(logarithms[2 * row]);
        let logarithm = Vector::<f32, N>::new(logarithms[2 * row + 1]);
        let share = Vector::<f32, N>::new(dy[0] / f32::cast_from(rows));
        let mut column = UNIT_POS as usize % width;
        while column < columns {
            let at = row * columns + column;
            let below = Vector::<f32, N>::cast_from(logits[at]) - most;
            let probability = (below - logarithm).exp();
            let gradient = (probability - target.vector::<N>(column)) * share;
            out[at] = Vector::<F, N>::cast_from(gradient);
            column += width;
        }
    }
}
