//! Compares every tile with a reference in f64, if `BURN_DIST_TEST_DEVICE` is `cuda`, for example
//! on CUDA in software (docs/internals/soft-cuda.md).

use burn::backend::Cube;
use burn::tensor::{Device, FloatDType, Gradients, Tensor};
use burn_cubecl::tensor::CubeTensor;

use super::super::column_sums::ColumnSums;
use super::super::matrix::{Matrix, primitive};
use super::super::test_device::device;
use super::geometry::Geometry;
use super::halo::Halo;
use super::launch::Convolution;
use super::operation::{Addends, Product};
use super::parts::Parts;
use super::tile::{Instruction, Order, STAGE_DEPTH, Tile};
use super::{ConvOptions, conv2d, linear, multiplies_on};

#[derive(Clone, Copy, Debug)]
struct Case {
    /// Batch, channels, height, width.
    x: [usize; 4],
    outputs: usize,
    window: [usize; 2],
    options: ConvOptions,
    dtype: FloatDType,
}

const CASE: Case = Case {
    x: [3, 16, 6, 5],
    outputs: 24,
    window: [3, 3],
    options: ConvOptions {
        stride: [1, 1],
        padding: [1, 1],
    },
    dtype: FloatDType::BF16,
};

/// The result, and the gradients of images and weight.
type Results = [Vec<f64>; 3];

impl Case {
    fn weight(&self) -> [usize; 4] {
        [self.outputs, self.x[1], self.window[0], self.window[1]]
    }

    fn geometry(&self) -> Geometry {
        Geometry::new(self.x, self.weight(), self.options).unwrap()
    }

    fn result(&self) -> [usize; 4] {
        let [height, width] = self.geometry().slide().result;
        [self.x[0], self.outputs, height as usize, width as usize]
    }

    /// Draws images, weight and the result's gradient, with numbers that the type can represent.
    fn draw(&self) -> [Tensor<4>; 3] {
        let mut random = fastrand::Rng::with_seed(3);
        [self.x, self.weight(), self.result()].map(|dims| {
            let count = dims.iter().product();
            let values: Vec<f32> = (0..count).map(|_| random.f32() - 0.5).collect();
            let values = Tensor::<1>::from_floats(values.as_slice(), &Device::flex());
            values.cast(self.dtype).reshape(dims)
        })
    }

    /// Calls `add` with the place in the images, in the weight and in the result of each product.
    fn products(&self, mut add: impl FnMut(usize, usize, usize)) {
        let [_, inputs, height, width] = self.x;
        let [rows, columns] = self.window;
        let [_, outputs, out_height, out_width] = self.result();
        let ConvOptions { stride, padding } = self.options;
        for y in 0..self.result().iter().product() {
            let [column, row] = [y % out_width, y / out_width % out_height];
            let plane = y / out_width / out_height;
            let [output, image] = [plane % outputs, plane / outputs];
            for tap in 0..rows * columns {
                let down = (row * stride[0] + tap / columns).checked_sub(padding[0]);
                let beside = (column * stride[1] + tap % columns).checked_sub(padding[1]);
                let (Some(down), Some(beside)) = (down, beside) else {
                    continue;
                };
                if down >= height || beside >= width {
                    continue;
                }
                for input in 0..inputs {
                    let x = ((image * inputs + input) * height + down) * width + beside;
                    let weight = (output * inputs + input) * rows * columns + tap;
                    add(x, weight, y);
                }
            }
        }
    }

    fn expected(&self, given: &[Tensor<4>; 3]) -> Results {
        let [x, weight, dy] = given.each_ref().map(|tensor| numbers(tensor.clone()));
        let mut out = [
            vec![0.0; dy.len()],
            vec![0.0; x.len()],
            vec![0.0; weight.len()],
        ];
        self.products(|at_x, at_weight, at_y| {
            out[0][at_y] += x[at_x] * weight[at_weight];
            out[1][at_x] += dy[at_y] * weight[at_weight];
            out[2][at_weight] += dy[at_y] * x[at_x];
        });
        out
    }

    fn assert_close(&self, found: &Results, expected: &Results, how: &str) {
        // Sums are in f32; results are rounded once. Products of f32 numbers use sixteen bits.
        let (rounding, of_sums) = match self.dtype {
            FloatDType::F16 => (2f64.powi(-11), 1e-6),
            FloatDType::F32 => (2f64.powi(-16), OF_HALVES),
            _ => (2f64.powi(-8), 1e-6),
        };
        for (what, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert_eq!(found.len(), expected.len());
            let most = expected.iter().fold(0.0f64, |most, v| most.max(v.abs()));
            for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
                let off = (found - expected).abs();
                assert!(
                    off <= rounding * expected.abs() + of_sums * most,
                    "{} at {at}: {found} instead of {expected}, {how}, {self:?}",
                    ["result", "images", "weight"][what]
                );
            }
        }
    }
}

/// Tolerance of sums of split numbers, relative to the largest.
const OF_HALVES: f64 = 8e-6;

/// Types of the weight and of the images, and the tolerance of the weight's gradient, relative to
/// the largest.
const OF_WEIGHT: [(FloatDType, FloatDType, f64); 3] = [
    (FloatDType::BF16, FloatDType::BF16, 1.0),
    (FloatDType::BF16, FloatDType::F32, 1e-6),
    (FloatDType::F32, FloatDType::F32, OF_HALVES),
];

fn assert_gradient(found: &[f64], expected: &[f64], off: f64) {
    let most = expected.iter().fold(0.0f64, |most, v| most.max(v.abs()));
    for (found, expected) in found.iter().zip(expected) {
        let is_near = (found - expected).abs() <= off * most;
        assert!(
            is_near,
            "gradient of the weight: {found} instead of {expected}"
        );
    }
}

fn numbers(tensor: Tensor<4>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().iter().collect()
}

fn on(device: &Device, dtype: FloatDType, tensor: Tensor<4>) -> Tensor<4> {
    Tensor::from_data(tensor.into_data(), (device, dtype.into()))
}

/// Computes `case` in its own choice of tiles, or in the tiles that `choose` sets.
fn check(device: &Device, case: Case, choose: impl Fn(&mut Convolution)) -> Results {
    let given = case.draw();
    let expected = case.expected(&given);
    let there = given.map(|tensor| primitive(on(device, case.dtype, tensor)));
    let [x, weight, dy] = &there;
    let mut convolution = Convolution::new(x, weight, case.geometry()).unwrap();
    choose(&mut convolution);
    let dy = convolution.factor(dy.clone());
    let found = [
        convolution.forward(x.clone(), weight.clone(), Addends::NONE),
        convolution.gradient_of_input(dy.clone(), weight.clone(), None),
        convolution.gradients_of_parameters(x.clone(), dy, None).0,
    ];
    let found = found.map(|found: CubeTensor| numbers(Tensor::from_primitive::<Cube>(found)));
    case.assert_close(&found, &expected, &format!("{convolution:?}"));
    found
}

const MEMORY: usize = 232_448;

const INSTRUCTIONS: [Instruction; 2] = [Instruction::Mma, Instruction::Wgmma];

#[test]
fn every_tile_on_tensor_cores() {
    let Some(device) = device("tiles") else {
        return;
    };
    // More rows and columns than one of any tile, in both products, and steps for all stages.
    for (channels, dtype) in [(64, FloatDType::BF16), (32, FloatDType::F32)] {
        let case = Case {
            x: [2, channels, 13, 11],
            outputs: 168,
            dtype,
            ..CASE
        };
        let all_of = |order| {
            INSTRUCTIONS
                .into_iter()
                .flat_map(move |i| Tile::all(i, order, MEMORY))
        };
        let mut all = Vec::new();
        for (columns, rows) in all_of(Order::Along).zip(all_of(Order::Across)) {
            all.push(check(&device, case, |convolution| {
                convolution.result = vec![columns];
                convolution.images = vec![columns];
                convolution.weight = vec![rows];
            }));
        }
        assert!(
            all.windows(2).all(|two| two[0] == two[1]),
            "tiles differ in bits"
        );
    }
}

#[test]
fn sources_that_stay_for_all_places_of_a_window_on_tensor_cores() {
    let Some(device) = device("halos") else {
        return;
    };
    let sizes = [
        ([5, 64, 8, 8], 32),
        ([1, 32, 16, 16], 160),
        ([1, 32, 8, 32], 64),
        ([8, 32, 7, 8], 32),
        ([1, 96, 15, 31], 32),
        // The gradient of its images is computed otherwise.
        ([1, 32, 8, 8], 24),
    ];
    for (x, outputs) in sizes {
        let case = Case { x, outputs, ..CASE };
        let [there, back] = [case.geometry().slide(), case.geometry().slide_back()];
        let without = check(&device, case, choose(Instruction::Wgmma, None));
        let tiles = Tile::all(Instruction::Wgmma, Order::Along, MEMORY);
        let with = |tile: Tile, slide| {
            let halo = Halo::of(&tile, slide, x[0] as u32)?;
            Some(vec![tile.with_halo(halo, MEMORY)])
        };
        let images = |tile| with(tile, back).unwrap_or_else(|| vec![tile]);
        let tiles = tiles.filter_map(|tile| Some((with(tile, there)?, images(tile))));
        let mut tried = 0;
        for (result, images) in tiles {
            let found = check(&device, case, |convolution| {
                choose(Instruction::Wgmma, None)(convolution);
                convolution.result = result.clone();
                convolution.images = images.clone();
            });
            assert_eq!(found, without, "differ in bits: {result:?}");
            tried += 1;
        }
        assert!(tried > 0, "{case:?}");
    }
}

#[test]
fn every_division_into_parts_on_tensor_cores() {
    let Some(device) = device("parts") else {
        return;
    };
    let steps = CASE.geometry().pixels().div_ceil(STAGE_DEPTH as u32);
    for dtype in [FloatDType::BF16, FloatDType::F32] {
        for (count, instruction) in (1..=steps).flat_map(|n| INSTRUCTIONS.map(|i| (n, i))) {
            check(&device, Case { dtype, ..CASE }, |convolution| {
                choose(instruction, None)(convolution);
                convolution.parts = Parts::new(steps, count);
            });
        }
    }
}

/// The first tile of an instruction, in `stages` stages, for all three.
fn choose(instruction: Instruction, stages: Option<usize>) -> impl Fn(&mut Convolution) {
    move |convolution| {
        let first = |order| {
            let tile = Tile::all(instruction, order, MEMORY).next().unwrap();
            vec![Tile {
                stages: stages.unwrap_or(tile.stages),
                ..tile
            }]
        };
        convolution.result = first(Order::Along);
        convolution.images = first(Order::Along);
        convolution.weight = first(Order::Across);
    }
}

#[test]
fn every_number_of_stages_on_tensor_cores() {
    let Some(device) = device("stages") else {
        return;
    };
    for (instruction, stages) in [(Instruction::Mma, 2..=4), (Instruction::Wgmma, 4..=6)] {
        for (stages, x) in stages.flat_map(|n| [[1, 8, 3, 3], [2, 32, 6, 5]].map(|x| (n, x))) {
            check(
                &device,
                Case { x, ..CASE },
                choose(instruction, Some(stages)),
            );
        }
    }
}

#[test]
fn windows_of_one_place_in_all_steps_on_tensor_cores() {
    let Some(device) = device("windows of one place") else {
        return;
    };
    for (channels, instruction) in [32, 64, 160]
        .into_iter()
        .flat_map(|n| INSTRUCTIONS.map(|i| (n, i)))
    {
        let case = Case {
            x: [2, channels, 3, 4],
            outputs: 72,
            window: [1, 1],
            options: ConvOptions {
                stride: [1, 1],
                padding: [0, 0],
            },
            dtype: FloatDType::BF16,
        };
        check(&device, case, choose(instruction, None));
    }
}

#[test]
fn windows_and_strides_on_tensor_cores() {
    let Some(device) = device("windows") else {
        return;
    };
    let options = |stride, padding| ConvOptions { stride, padding };
    for (x, window, options) in [
        ([2, 32, 8, 8], [3, 3], options([2, 2], [1, 1])),
        ([2, 32, 7, 8], [1, 1], options([2, 2], [0, 0])),
        ([2, 16, 12, 11], [5, 3], options([2, 3], [2, 0])),
        ([2, 8, 8, 8], [4, 4], options([4, 4], [0, 0])),
        ([1, 8, 5, 7], [1, 6], options([1, 1], [3, 2])),
        ([1, 32, 3, 4], [3, 4], options([1, 1], [0, 0])),
        ([2, 3, 6, 5], [3, 3], options([1, 1], [1, 1])),
    ] {
        for dtype in [FloatDType::BF16, FloatDType::F16, FloatDType::F32] {
            for outputs in [24, 5] {
                let case = Case {
                    x,
                    outputs,
                    window,
                    options,
                    dtype,
                };
                check(&device, case, |_| {});
                check(&device, case, choose(Instruction::Mma, None));
            }
        }
    }
}

#[test]
fn a_window_that_no_cube_has_in_memory_on_tensor_cores() {
    let Some(device) = device("a large window") else {
        return;
    };
    let options = ConvOptions {
        stride: [1, 1],
        padding: [0, 0],
    };
    let case = Case {
        x: [1, 8, 47, 46],
        outputs: 8,
        window: [47, 45],
        options,
        dtype: FloatDType::F16,
    };
    check(&device, case, |_| {});
}

/// Summands of a product: a bias, and one for every number.
#[derive(Clone, Copy, Debug)]
struct Added {
    bias: bool,
    plus: bool,
}

const ADDED: [Added; 4] = [
    Added {
        bias: false,
        plus: false,
    },
    Added {
        bias: true,
        plus: false,
    },
    Added {
        bias: false,
        plus: true,
    },
    Added {
        bias: true,
        plus: true,
    },
];

/// Both on a device, with gradients, in the form for the convolution of `case`.
struct Addend {
    bias: Option<Tensor<1>>,
    plus: Option<Tensor<4>>,
}

impl Added {
    /// Adds to `y` too.
    fn draw(self, case: &Case, y: &mut [f64], device: &Device) -> Addend {
        let plane = y.len() / case.x[0] / case.outputs;
        let bias: Vec<f32> = (0..case.outputs).map(|n| n as f32 / 4.0 - 1.0).collect();
        // Numbers that half precision can represent.
        let plus: Vec<f32> = (0..y.len())
            .map(|at| (at % 37) as f32 / 8.0 - 2.0)
            .collect();
        for (at, y) in y.iter_mut().enumerate() {
            *y += f64::from(bias[at / plane % case.outputs]) * f64::from(u8::from(self.bias));
            *y += f64::from(plus[at]) * f64::from(u8::from(self.plus));
        }
        let there = |values: &[f32]| Tensor::<1>::from_floats(values, device);
        Addend {
            bias: self.bias.then(|| there(&bias).require_grad()),
            plus: self.plus.then(|| {
                let plus = there(&plus).reshape(case.result()).cast(case.dtype);
                plus.detach().require_grad()
            }),
        }
    }
}

impl Addend {
    fn assert_gradients(self, case: &Case, dy: &[f64], gradients: &mut Gradients) {
        let plane = dy.len() / case.x[0] / case.outputs;
        if let Some(bias) = self.bias {
            let mut expected = vec![0.0; case.outputs];
            for (at, dy) in dy.iter().enumerate() {
                expected[at / plane % case.outputs] += dy;
            }
            let found = bias.grad_remove(gradients).unwrap().into_data();
            for (found, expected) in found.iter::<f64>().zip(expected) {
                assert!(
                    (found - expected).abs() < 1e-4,
                    "bias: {found} instead of {expected}"
                );
            }
        }
        if let Some(plus) = self.plus {
            assert_eq!(numbers(plus.grad_remove(gradients).unwrap()), dy);
        }
    }
}

#[test]
fn gradients_reach_parameters_on_tensor_cores() {
    let Some(device) = device("gradients") else {
        return;
    };
    let device = device.autodiff();
    let outputs = [24, 5].into_iter();
    let cases = outputs.flat_map(|n| OF_WEIGHT.map(|types| (n, types)));
    for ((outputs, types), added) in cases.flat_map(|case| ADDED.map(|a| (case, a))) {
        let (dtype, of_weight, off) = types;
        let case = Case {
            outputs,
            dtype,
            ..CASE
        };
        let given = case.draw();
        let [mut y, dx, dweight] = case.expected(&given);
        let addend = added.draw(&case, &mut y, &device);
        let dy = numbers(given[2].clone());
        let [x, weight, there] = given.map(|tensor| on(&device, case.dtype, tensor));
        let weight = weight.cast(of_weight).detach();
        let (x, weight) = (x.require_grad(), weight.require_grad());
        let plus = addend.plus.clone();
        let out = conv2d(&x, &weight, addend.bias.as_ref(), plus, case.options).unwrap();
        let mut gradients = (out.clone() * there).sum().backward();
        let found = [x, weight].map(|tensor| tensor.grad_remove(&mut gradients).unwrap());
        assert_eq!(FloatDType::from(found[1].dtype()), of_weight);
        let [found_dx, found_dweight] = found.map(numbers);
        assert_gradient(&found_dweight, &dweight, off);
        let found = [numbers(out), found_dx, found_dweight];
        case.assert_close(
            &found,
            &[y, dx, dweight],
            &format!("{added:?} by Burn's graph"),
        );
        addend.assert_gradients(&case, &dy, &mut gradients);
    }
}

#[test]
fn the_gradient_of_a_bias_is_the_sum_over_all_pixels_on_cuda() {
    let Some(device) = device("the gradient of a bias") else {
        return;
    };
    // Pixels that are read one by one, several at once, and both; enough parts for the same.
    for shape in [[1, 5, 1, 3], [4, 24, 20, 21], [3, 255, 25, 28]] {
        for dtype in [FloatDType::BF16, FloatDType::F32] {
            let [_, channels, height, width] = shape;
            let count = shape.iter().product();
            // Their sums are exact.
            let values: Vec<f32> = (0..count).map(|at| (at * 7 % 11) as f32 - 2.0).collect();
            let mut expected = vec![0.0; channels];
            for (at, value) in values.iter().enumerate() {
                expected[at / (height * width) % channels] += f64::from(*value);
            }
            let dy = Tensor::<1>::from_floats(values.as_slice(), &device).reshape(shape);
            let sum = ColumnSums::of(&Matrix::of_images(primitive(dy.cast(dtype)))).add_up();
            let sum = Tensor::<1>::from_primitive::<Cube>(sum).into_data();
            let sum: Vec<f64> = sum.iter::<f64>().collect();
            assert_eq!(sum, expected, "{shape:?} in {dtype:?}");
        }
    }
}

#[test]
fn only_what_has_the_shape_of_the_result_is_added_to_it_on_tensor_cores() {
    let Some(device) = device("what is added") else {
        return;
    };
    let [x, weight, _] = CASE.draw().map(|tensor| on(&device, CASE.dtype, tensor));
    let plus = Tensor::<4>::full([1, 24, 1, 1], 0.5, (&device, CASE.dtype.into()));
    let product = |plus| numbers(conv2d(&x, &weight, None, plus, CASE.options).unwrap());
    for (without, with) in product(None).into_iter().zip(product(Some(plus))) {
        assert!((with - without - 0.5).abs() <= 2f64.powi(-8) * with.abs());
    }
}

#[test]
fn what_tensor_cores_lack_is_left_to_others_on_tensor_cores() {
    let Some(device) = device("what is left") else {
        return;
    };
    let takes = |x: [usize; 4], outputs: usize, dtype: FloatDType| {
        let x = Tensor::<4>::zeros(x, (&device, dtype.into()));
        let weight = [outputs, x.dims()[1], 3, 3];
        let weight = Tensor::<4>::zeros(weight, (&device, dtype.into()));
        conv2d(&x, &weight, None, None, CASE.options).is_some()
    };
    assert!(multiplies_on(&device));
    assert!(takes(CASE.x, 24, FloatDType::BF16));
    assert!(takes(CASE.x, 24, FloatDType::F32));
    assert!(!takes([3, 16, 6, 0], 24, FloatDType::BF16));
}

#[test]
fn linear_layers_on_tensor_cores() {
    let Some(device) = device("linear layers") else {
        return;
    };
    let device = device.autodiff();
    let sizes = [([3, 5], 16, 24), ([2, 9], 40, 5), ([1, 4], 7, 64)].into_iter();
    let cases = sizes.flat_map(|sizes| OF_WEIGHT.map(|types| (sizes, types)));
    let cases = cases.flat_map(|case| ADDED.map(|added| (case, added)));
    for (((rows, inputs, outputs), (dtype, of_weight, off)), added) in cases {
        let count = rows.iter().product();
        let case = Case {
            x: [count, inputs, 1, 1],
            outputs,
            window: [1, 1],
            options: ConvOptions {
                stride: [1, 1],
                padding: [0, 0],
            },
            dtype,
        };
        let given = case.draw();
        let [mut y, dx, dweight] = case.expected(&given);
        let addend = added.draw(&case, &mut y, &device);
        let of_result = numbers(given[2].clone());
        let [x, weight, dy] = given.map(|tensor| on(&device, case.dtype, tensor));
        let x = x.reshape([rows[0], rows[1], inputs]).require_grad();
        // A convolution's weight is [out, in].
        let weight = weight.reshape([outputs, inputs]).transpose();
        let weight = weight.cast(of_weight).detach().require_grad();
        let dims = [rows[0], rows[1], outputs];
        let plus = addend.plus.clone().map(|plus| plus.reshape(dims));
        let out = linear(&x, &weight, addend.bias.as_ref(), plus).unwrap();
        assert_eq!(out.dims(), dims);
        let dy = dy.reshape(out.dims());
        let mut gradients = (out.clone() * dy).sum().backward();
        let found_dweight = weight.grad_remove(&mut gradients).unwrap();
        assert_eq!(found_dweight.dims(), [inputs, outputs]);
        assert_eq!(FloatDType::from(found_dweight.dtype()), of_weight);
        let found_dweight = numbers(found_dweight.transpose().reshape([outputs, inputs, 1, 1]));
        assert_gradient(&found_dweight, &dweight, off);
        let found = [
            numbers(out.reshape([count, outputs, 1, 1])),
            numbers(x.grad_remove(&mut gradients).unwrap().reshape(case.x)),
            found_dweight,
        ];
        let how = format!("{added:?} as a linear layer");
        case.assert_close(&found, &[y, dx, dweight], &how);
        addend.assert_gradients(&case, &of_result, &mut gradients);
    }
}

#[test]
fn linear_layers_that_tensor_cores_lack_are_left_on_tensor_cores() {
    let Some(device) = device("linear layers that are left") else {
        return;
    };
    let takes = |x: [usize; 2], weight: [usize; 2], dtype: FloatDType| {
        let x = Tensor::<2>::zeros(x, (&device, dtype.into()));
        let weight = Tensor::<2>::zeros(weight, (&device, dtype.into()));
        linear(&x, &weight, None, None).is_some()
    };
    assert!(takes([3, 16], [16, 8], FloatDType::F16));
    assert!(takes([3, 16], [16, 8], FloatDType::F32));
    assert!(!takes([0, 16], [16, 8], FloatDType::F16));
    assert!(!takes([3, 16], [8, 16], FloatDType::F16));
}
