//! Chooses the instruction for the convolutions of a device: `wgmma`, if the device has it and it
//! gives the same results as `mma`. Both multiply whole numbers once per device, so the sums are
//! exact. The layout of factors in shared memory and its description for the instruction come from
//! documents and are tested in software. A device that interprets them otherwise must not train
//! with wrong numbers.

use std::collections::BTreeMap;

use burn::backend::Cube;
use burn::tensor::{DType, Tensor};
use burn_cubecl::tensor::CubeTensor;
use parking_lot::Mutex;

use super::super::matrix::memory;
use super::super::warpgroup::{has_warpgroups, is_unchecked};
use super::ConvOptions;
use super::geometry::Geometry;
use super::halo::Halo;
use super::launch::Convolution;
use super::operation::{Addends, Product};
use super::tile::{Instruction, Order, Tile};

/// Shape of the images, and channels of the result.
type Case = ([usize; 4], usize);

/// More rows and columns than the first tile, which has two groups of two blocks and several blocks
/// of columns, and more steps than stages.
const STAGES: Case = ([1, 264, 17, 16], 168);

/// A source that stays, in three parts, for more than one cube.
const STAYS: Case = ([8, 96, 8, 8], 32);

const WINDOW: [usize; 2] = [3, 3];
const OPTIONS: ConvOptions = ConvOptions {
    stride: [1, 1],
    padding: [1, 1],
};

/// How a device multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub instruction: Instruction,
    /// True if sources may stay in shared memory.
    pub halos: bool,
}

/// The instruction and options for the device of `x`.
pub(super) fn taken(x: &CubeTensor) -> Taken {
    static CHECKED: Mutex<BTreeMap<String, Taken>> = Mutex::new(BTreeMap::new());
    if !has_warpgroups(&x.client) {
        return Taken {
            instruction: Instruction::Mma,
            halos: false,
        };
    }
    if is_unchecked() {
        return Taken {
            instruction: Instruction::Wgmma,
            halos: true,
        };
    }
    let mut checked = CHECKED.lock();
    let device = format!("{:?}", x.device);
    let taken = checked.entry(device);
    *taken.or_insert_with_key(|device| {
        taken_of(device, |case, instruction| products(x, case, instruction))
    })
}

/// `wgmma`, and sources that stay, if they compute the same as `mma`.
fn taken_of<T: PartialEq>(device: &str, products: impl Fn(Case, Instruction) -> T) -> Taken {
    let is_right = |case| products(case, Instruction::Wgmma) == products(case, Instruction::Mma);
    let warn = |what| {
        tracing::warn!(
            "{device} computes other results with {what} than with mma, so convolutions and linear \
             layers do without it and are slower. Please report this"
        );
    };
    if !is_right(STAGES) {
        warn("wgmma");
        return Taken {
            instruction: Instruction::Mma,
            halos: false,
        };
    }
    let halos = is_right(STAYS);
    if !halos {
        warn("wgmma on images that stay in shared memory");
    }
    Taken {
        instruction: Instruction::Wgmma,
        halos,
    }
}

/// Computes the result and both gradients of a case on the device of `like`.
fn products(
    like: &CubeTensor,
    (x, outputs): Case,
    instruction: Instruction,
) -> Option<[Vec<f32>; 3]> {
    let of_weight = [outputs, x[1], WINDOW[0], WINDOW[1]];
    let geometry = Geometry::new(x, of_weight, OPTIONS)?;
    let slide = geometry.slide();
    let [height, width] = slide.result.map(|size| size as usize);
    let numbers = [x, of_weight, [x[0], outputs, height, width]];
    let [x, weight, dy] = numbers.map(|shape| whole_numbers(like, shape));
    let memory = like.client.properties().hardware.max_shared_memory_size;
    let first = |order| Tile::all(instruction, order, memory).next();
    let (along, across) = (first(Order::Along)?, first(Order::Across)?);
    let along = match Halo::of(&along, slide, geometry.batch) {
        Some(halo) => along.with_halo(halo, memory),
        None => along,
    };
    let taken = Taken {
        instruction,
        halos: false,
    };
    let convolution = Convolution::with(&x, &weight, geometry, taken)?;
    let convolution = convolution.in_tiles(along, across);
    let dy = convolution.factor(dy);
    let results = [
        convolution.forward(x.clone(), weight.clone(), Addends::NONE),
        convolution.gradient_of_input(dy.clone(), weight, None),
        convolution.gradients_of_parameters(x, dy, None).0,
    ];
    Some(results.map(|result| {
        let data = Tensor::<4>::from_primitive::<Cube>(result).into_data();
        data.iter::<f32>().collect()
    }))
}

/// Returns integers from −4 to 4 in bf16.
fn whole_numbers(like: &CubeTensor, shape: [usize; 4]) -> CubeTensor {
    let number = |at: usize| (at * 7 + at / 9 * 5) % 9;
    // The upper half of an f32's bits.
    let bits = |at| ((number(at) as f32 - 4.0).to_bits() >> 16) as u16;
    let bytes: Vec<u8> = (0..shape.iter().product())
        .flat_map(|at| bits(at).to_ne_bytes())
        .collect();
    let mut tensor = memory(like, shape.into(), DType::BF16);
    tensor.handle = like.client.create_from_slice(&bytes);
    tensor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wgmma_is_taken_where_it_is_right() {
        let of = |wrong: &[Case]| {
            let products = |case, instruction| match instruction {
                Instruction::Wgmma if wrong.contains(&case) => [1.0, f32::NAN],
                _ => [1.0, 2.0],
            };
            let Taken { instruction, halos } = taken_of("a GPU", products);
            (instruction, halos)
        };
        assert_eq!(of(&[]), (Instruction::Wgmma, true));
        assert_eq!(of(&[STAYS]), (Instruction::Wgmma, false));
        assert_eq!(of(&[STAGES]), (Instruction::Mma, false));
    }
}
