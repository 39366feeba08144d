//! Helpers for the tests of several models.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// Number of trainable elements of a model on an autodiff device, without running statistics.
pub(crate) fn trainable<M: Module>(model: &M) -> usize {
    struct Counter(usize);

    impl ModuleVisitor for Counter {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // A lazy parameter would be drawn by the question whether it is trained.
            if !param.is_initialized() || param.is_require_grad() {
                self.0 += param.lazy_shape().num_elements();
            }
        }
    }

    let mut counter = Counter(0);
    model.visit(&mut counter);
    counter.0
}
