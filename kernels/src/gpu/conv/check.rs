//! Which instruction convolutions of a device take: `wgmma`, if it has that and computes with it what it computes with
//! `mma`. Once per device both multiply whole numbers, whose sums are exact: how factors lie in shared memory, and how
//! that is described to the instruction, is known from documents and tested in software, and who trains on a device
//! that understands it otherwise shall not do so with wrong numbers.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use burn::backend::Cube;
use burn::tensor::{DType, Tensor};
use burn_cubecl::tensor::CubeTensor;

use super::super::matrix::memory;
use super::super::warpgroup::has_warpgroups;
use super::ConvOptions;
use super::geometry::Geometry;
use super::launch::Convolution;
use super::operation::{Addends, Product};
use super::tile::{Instruction, Order, Tile};

/// What is compared: more rows and columns than the first tile, which has two groups of two blocks and several blocks of
/// columns, and more steps than its stages.
const X: [usize; 4] = [1, 264, 17, 16];
const OUTPUTS: usize = 168;
const WINDOW: [usize; 2] = [3, 3];
const OPTIONS: ConvOptions = ConvOptions {
    stride: [1, 1],
    padding: [1, 1],
};

/// The instruction for the device of `x`.
pub(super) fn instruction(x: &CubeTensor) -> Instruction {
    static CHECKED: Mutex<BTreeMap<String, Instruction>> = Mutex::new(BTreeMap::new());
    if !has_warpgroups(&x.client) {
        return Instruction::Mma;
    }
    let mut checked = CHECKED.lock().unwrap_or_else(PoisonError::into_inner);
    let device = format!("{:?}", x.device);
    let taken = checked.entry(device);
    *taken.or_insert_with_key(|device| taken_of(device, |instruction| products(x, instruction)))
}

/// `wgmma`, if both compute the same.
fn taken_of<T: PartialEq>(device: &str, products: impl Fn(Instruction) -> T) -> Instruction {
    if products(Instruction::Wgmma) == products(Instruction::Mma) {
        return Instruction::Wgmma;
    }
    tracing::warn!(
        "{device} computes something else with wgmma than with mma: its convolutions and linear layers take mma, which \
         is slower. Please report it"
    );
    Instruction::Mma
}

/// A result and both gradients, on the device of `like`.
fn products(like: &CubeTensor, instruction: Instruction) -> Option<[Vec<f32>; 3]> {
    let geometry = Geometry::new(X, weight(), OPTIONS)?;
    let [height, width] = geometry.slide().result.map(|size| size as usize);
    let numbers = [X, weight(), [X[0], OUTPUTS, height, width]];
    let [x, weight, dy] = numbers.map(|shape| whole_numbers(like, shape));
    let memory = like.client.properties().hardware.max_shared_memory_size;
    let first = |order| Tile::all(instruction, order, memory).next();
    let (along, across) = (first(Order::Along)?, first(Order::Across)?);
    let convolution = Convolution::with(&x, &weight, geometry, instruction)?;
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

fn weight() -> [usize; 4] {
    [OUTPUTS, X[1], WINDOW[0], WINDOW[1]]
}

/// Numbers from −4 to 4, in bf16.
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
        let right = |_| Some([1.0, 2.0]);
        assert_eq!(taken_of("a GPU", right), Instruction::Wgmma);
        let wrong = |instruction| match instruction {
            Instruction::Wgmma => Some([1.0, f32::NAN]),
            Instruction::Mma => Some([1.0, 2.0]),
        };
        assert_eq!(taken_of("a GPU", wrong), Instruction::Mma);
    }
}
