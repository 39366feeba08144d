//! Cuts a model's parameters into the pieces that this rank owns.

use std::collections::VecDeque;
use std::ops::Range;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, ExecutionError, Tensor, TensorData};

use super::ParallelError;
use super::replicas::AutodiffPlace;
use super::visited::keeps_path;
use crate::{ProcessGroup, flat};

/// The pieces of every parameter that this rank owns, in visit order.
pub(super) type Pieces = Vec<Tensor<1>>;

/// The pieces of every trainable parameter that this rank owns, on `device`.
pub(super) fn pieces_of<M: Module>(
    model: M,
    owned: &[Range<usize>],
    device: &Device,
) -> (M, Result<Pieces, ParallelError>) {
    cut(model, owned, device, None)
}

/// Takes all trainable parameters out of a model. A collective call.
///
/// Every rank gets its pieces of rank 0's values. In the model, each parameter becomes one element
/// that pretends to have the parameter's shape. This happens one parameter at a time, so no rank
/// holds a whole model if parameters are initialized lazily.
pub(super) fn take_pieces<M: Module>(
    model: M,
    owned: &[Range<usize>],
    device: &Device,
    group: &ProcessGroup,
) -> (M, Result<Pieces, ParallelError>) {
    cut(model, owned, device, Some(group))
}

fn cut<M: Module>(
    model: M,
    owned: &[Range<usize>],
    device: &Device,
    take: Option<&ProcessGroup>,
) -> (M, Result<Pieces, ParallelError>) {
    let mut cut = Cut {
        path: Vec::new(),
        owned,
        device,
        take,
        // Reserved in one go: between the values that come and go, they would leave holes in the
        // heap.
        empty: owned
            .iter()
            .map(|range| Vec::with_capacity(range.len()))
            .collect(),
        pieces: Vec::new(),
        outcome: Ok(()),
    };
    let model = model.map(&mut cut);
    (model, cut.outcome.map(|()| cut.pieces))
}

struct Cut<'a> {
    path: Vec<String>,
    owned: &'a [Range<usize>],
    /// Target device of the pieces.
    device: &'a Device,
    /// The group whose rank 0 has the values, if the values leave the model.
    take: Option<&'a ProcessGroup>,
    /// Memory for the pieces that are still to come.
    empty: VecDeque<Vec<f32>>,
    pieces: Pieces,
    outcome: Result<(), ParallelError>,
}

impl Cut<'_> {
    fn piece(
        &mut self,
        data: Result<TensorData, ExecutionError>,
    ) -> Result<Vec<f32>, ParallelError> {
        let path = &self.path;
        let unreadable = |reason: String| ParallelError::read(&path.join("."), reason);
        let mut data = data.map_err(|error| unreadable(error.to_string()))?;
        if self.take.is_some() && data.dtype() != DType::F32 {
            let dtype = data.dtype();
            return Err(unreadable(format!(
                "it holds {dtype:?}; only f32 can be sharded"
            )));
        }
        if let Some(group) = self.take {
            let (mut bytes, shape, dtype) = data.into_parts();
            group.broadcast::<u8>(&mut bytes, 0)?;
            data = TensorData::from_bytes(bytes, shape, dtype);
        }
        let owned = self.owned.get(self.pieces.len()).cloned().unwrap_or(0..0);
        let mut piece = self.empty.pop_front().unwrap_or_default();
        match data
            .as_slice::<f32>()
            .map(|values| values.get(owned.clone()))
        {
            Ok(Some(values)) => {
                piece.extend_from_slice(values);
                Ok(piece)
            }
            _ => {
                let values: Vec<f32> = data.iter::<f32>().collect();
                let values = values.get(owned).map(<[f32]>::to_vec);
                values.ok_or_else(|| unreadable("it has too few elements".to_owned()))
            }
        }
    }
}

impl ModuleMapper for Cut<'_> {
    keeps_path!();

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.outcome.is_err() {
            return param;
        }
        if !param.is_require_grad() {
            return param;
        }
        match self.piece(param.base().inner().try_into_data()) {
            Ok(piece) => self.pieces.push(flat::put(piece, self.device)),
            Err(error) => self.outcome = Err(error),
        }
        if self.take.is_none() {
            return param;
        }
        let shape = param.lazy_shape();
        param.map(|value| {
            let place = AutodiffPlace::of(&value);
            let one = Tensor::<D>::zeros([1; D], (&value.device().inner(), value.dtype()));
            place.restore(one.expand(shape))
        })
    }
}
