//! Stands in for GPU kernels in builds without a GPU.

use std::ops::Range;

use burn::tensor::{Device, Tensor};

/// No kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kernels {}

/// The parameters of an SGD step, as kernels would take them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SgdStep {
    pub scale: f32,
    pub penalty: f32,
    pub keep: f32,
    pub intake: f32,
    pub of_velocity: f32,
    pub of_gradient: f32,
    pub rate: f32,
}

/// The parameters of an Adam step, as kernels would take them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct AdamStep {
    pub scale: f32,
    pub penalty: f32,
    pub betas: [f32; 2],
    pub corrections: [f32; 2],
    pub epsilon: f32,
    pub decay: f32,
    pub rate: f32,
}

impl Kernels {
    pub fn on(_device: &Device) -> Option<Self> {
        None
    }

    pub fn put_parts(self, _flat: Tensor<1>, _parts: Vec<(usize, Tensor<1>)>) -> Tensor<1> {
        match self {}
    }

    pub fn take_parts(self, _flat: Tensor<1>, _places: &[Range<usize>]) -> Vec<Tensor<1>> {
        match self {}
    }

    pub fn sums_of_squares(self, _tensors: Vec<Tensor<1>>) -> Option<Tensor<1>> {
        match self {}
    }

    pub fn blend(self, _weight: f32, _pairs: Vec<[Tensor<1>; 2]>) -> Vec<Tensor<1>> {
        match self {}
    }

    pub fn sgd(self, _step: &SgdStep, _tensors: Vec<[Tensor<1>; 2]>) -> Vec<Tensor<1>> {
        match self {}
    }

    pub fn sgd_momentum(
        self,
        _step: &SgdStep,
        _tensors: Vec<[Tensor<1>; 3]>,
    ) -> Vec<[Tensor<1>; 2]> {
        match self {}
    }

    pub fn adam(self, _step: &AdamStep, _tensors: Vec<[Tensor<1>; 4]>) -> Vec<[Tensor<1>; 3]> {
        match self {}
    }
}

pub(crate) fn few_streams() {}

pub(crate) fn name(_device: &Device) -> Option<String> {
    None
}
