//! CPU steps for parameters on a GPU, so that the GPU does not hold optimizer state (Ren et al.
//! 2021, "ZeRO-Offload", <https://arxiv.org/abs/2101.06840>).
//!
//! This rank's parameters and gradients move to host memory in one piece and back in one, because
//! every read waits for all work queued on the device.

use std::iter;
use std::ops::Range;

use burn::tensor::{DType, Device, ExecutionError, Shape, Tensor, TensorData};

use super::{KeptState, OptimizerState, Stepping};
use crate::bucket::{BucketError, Reducer, take_parts};

/// Parameters that are stepped together, in `f32`.
#[derive(Default)]
struct Together {
    places: Vec<Stretch>,
    values: Vec<Tensor<1>>,
    gradients: Vec<Tensor<1>>,
    len: usize,
}

struct Stretch {
    /// Index among the results.
    result: usize,
    /// Index of the parameter in the model.
    index: usize,
    /// Position among all elements that are stepped together.
    elements: Range<usize>,
    /// The shape that Burn's optimizers see.
    shape: Shape,
}

impl Together {
    fn add(
        &mut self,
        (result, index): (usize, usize),
        values: Tensor<1>,
        gradients: Tensor<1>,
        shape: Shape,
    ) {
        let begin = self.len;
        self.len += values.shape().num_elements();
        self.places.push(Stretch {
            result,
            index,
            elements: begin..self.len,
            shape,
        });
        self.values.push(values);
        self.gradients.push(gradients);
    }
}

impl OptimizerState {
    /// The new values of several parameters, in their order. Parameters that could not be stepped
    /// keep the old ones.
    pub(super) fn step_offloaded(
        &mut self,
        reducer: &Reducer,
        learning_rate: f64,
        parameters: Vec<Stepping<'_>>,
        factor: Option<f64>,
    ) -> Result<Vec<Tensor<1>>, BucketError> {
        let indices: Vec<usize> = parameters.iter().map(|parameter| parameter.index).collect();
        let gradients = reducer.shards(&indices)?;
        let (mut parts, mut results) = (Vec::new(), Vec::new());
        let mut together = Together::default();
        for (parameter, gradients) in parameters.into_iter().zip(gradients) {
            let Stepping {
                index,
                mut part,
                shape,
            } = parameter;
            let mut values = part.take();
            match gradients {
                Some(gradients) if values.dtype() == DType::F32 => {
                    let place = (results.len(), index);
                    together.add(place, values.clone(), gradients, shape);
                }
                // Burn steps other types one by one, as everywhere.
                Some(gradients) => {
                    let stepped = self.step_alone(
                        index,
                        [values.clone(), gradients],
                        (learning_rate, factor),
                        &shape,
                    );
                    values = stepped.unwrap_or_else(|error| self.failed(index, &error, values));
                }
                None => {}
            }
            parts.push(part);
            results.push(values);
        }
        if let Some(first) = together.places.first().map(|place| place.index) {
            match self.step_together(together, learning_rate, factor) {
                Ok(stepped) => {
                    for (result, values) in stepped {
                        results[result] = values;
                    }
                }
                Err(error) => self.failed(first, &error, ()),
            }
        }
        let put = parts
            .into_iter()
            .zip(results)
            .map(|(part, values)| part.put(values));
        Ok(put.collect())
    }

    /// New values, and their indices among the results.
    fn step_together(
        &mut self,
        together: Together,
        learning_rate: f64,
        factor: Option<f64>,
    ) -> Result<Vec<(usize, Tensor<1>)>, ExecutionError> {
        let Together {
            places,
            values,
            gradients,
            ..
        } = together;
        let Some(device) = values.first().map(Tensor::device) else {
            return Ok(Vec::new());
        };
        let mut values = Tensor::cat(values, 0).try_into_data()?.convert::<f32>();
        let gradients = Tensor::cat(gradients, 0).try_into_data()?.convert::<f32>();
        // Both were just converted.
        if let (Ok(values), Ok(gradients)) = (values.as_mut_slice(), gradients.as_slice()) {
            for place in &places {
                let own = values.get_mut(place.elements.clone());
                let gradients = gradients.get(place.elements.clone());
                if let (Some(own), Some(gradients)) = (own, gradients) {
                    let rates = (learning_rate, factor);
                    let shape = place.shape.clone();
                    self.step_host(place.index, rates, own, gradients, shape);
                }
            }
        }
        device.staging(iter::once(&mut values));
        let all = Tensor::<1>::from_data(values, (&device, DType::F32));
        let elements: Vec<Range<usize>> = places.iter().map(|p| p.elements.clone()).collect();
        let results = places.iter().map(|place| place.result);
        Ok(results.zip(take_parts(all, &elements)).collect())
    }

    /// Steps `values` in host memory; Burn's optimizers see them in `shape`.
    fn step_host(
        &mut self,
        index: usize,
        (learning_rate, factor): (f64, Option<f64>),
        values: &mut [f32],
        gradients: &[f32],
        shape: Shape,
    ) {
        let choice = self.choices.get(index);
        if let Some((fused, lr_factor)) = choice.and_then(|c| Some((c.fused?, c.lr_factor))) {
            let mut state = self.take_fused(index);
            let factor = factor.map(|factor| factor as f32);
            let rate = learning_rate * lr_factor;
            if let Err(reason) = fused.step(rate, values, gradients, factor, &mut state) {
                self.failure.get_or_insert((index, reason));
            }
            self.set_state(index, state.map(KeptState::fused));
            return;
        }
        let place = Device::flex();
        let tensor =
            |values: &[f32]| Tensor::from_data(TensorData::from(values), (&place, DType::F32));
        let (value, gradient) = (tensor(values), tensor(gradients));
        let stepped = self.step_flat(index, learning_rate, [value, gradient], factor, shape);
        if let Ok(stepped) = stepped.into_data().as_slice::<f32>()
            && stepped.len() == values.len()
        {
            values.copy_from_slice(stepped);
        }
    }

    fn step_alone(
        &mut self,
        index: usize,
        [values, gradients]: [Tensor<1>; 2],
        (learning_rate, factor): (f64, Option<f64>),
        shape: &Shape,
    ) -> Result<Tensor<1>, ExecutionError> {
        let (device, dtype) = (values.device(), values.dtype());
        let on_host = |tensor: Tensor<1>| -> Result<Tensor<1>, ExecutionError> {
            let data: TensorData = tensor.try_into_data()?;
            let dtype = data.dtype();
            Ok(Tensor::from_data(data, (&Device::flex(), dtype)))
        };
        let tensors = [on_host(values)?, on_host(gradients)?];
        let stepped = self.step_flat(index, learning_rate, tensors, factor, shape.clone());
        let stepped = stepped.try_into_data()?;
        Ok(Tensor::from_data(stepped, (&device, dtype)))
    }

    /// Remembers the first failure and returns the old value.
    fn failed<T>(&mut self, index: usize, error: &ExecutionError, old: T) -> T {
        self.failure.get_or_insert((index, error.to_string()));
        old
    }
}
