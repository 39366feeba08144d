//! The hooks by themselves: order, values, and what they count.

use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};
use std::sync::{Arc, Mutex};

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};

use super::{GradHooks, GradientSink, ParameterSource, boundary, depth, forget_depth, grad_hook};

const WIDTH: usize = 6;

#[derive(Module, Debug)]
struct Blocks {
    stem: Linear,
    blocks: Vec<Linear>,
}

impl Blocks {
    fn new(device: &Device) -> Self {
        let linear = || LinearConfig::new(WIDTH, WIDTH).init(device);
        Self {
            stem: linear(),
            blocks: (0..3).map(|_| linear()).collect(),
        }
    }

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let stem = self.stem.forward(input);
        self.blocks
            .iter()
            .fold(stem, |x, block| relu(block.forward(boundary(x))))
    }
}

/// Records the calls of the hooks.
#[derive(Debug, Default)]
struct Recorder {
    collecting: AtomicBool,
    panics: AtomicBool,
    uses: Mutex<Vec<isize>>,
    alive: AtomicIsize,
    collected: Mutex<Vec<(usize, TensorData)>>,
    reasons: Mutex<Vec<String>>,
}

impl Recorder {
    fn new(collecting: bool) -> Arc<Self> {
        Arc::new(Self {
            collecting: AtomicBool::new(collecting),
            ..Self::default()
        })
    }

    fn order(&self) -> Vec<usize> {
        let collected = self.collected.lock().unwrap();
        collected.iter().map(|(index, _)| *index).collect()
    }

    fn alive(&self) -> isize {
        self.alive.load(Ordering::SeqCst)
    }
}

impl GradientSink for Recorder {
    fn used(&self, parameter: usize) {
        let mut uses = self.uses.lock().unwrap();
        let len = uses.len().max(parameter + 1);
        uses.resize(len, 0);
        uses[parameter] += 1;
        self.alive.fetch_add(1, Ordering::SeqCst);
    }

    fn released(&self, _parameter: usize) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }

    fn is_collecting(&self) -> bool {
        self.collecting.load(Ordering::SeqCst)
    }

    fn collect(&self, parameter: usize, gradient: Tensor<1>) {
        assert!(!self.panics.load(Ordering::SeqCst), "collecting fails");
        assert!(!gradient.is_autodiff());
        let mut collected = self.collected.lock().unwrap();
        collected.push((parameter, gradient.into_data()));
    }

    fn panicked(&self, parameter: usize, reason: &str) {
        let mut reasons = self.reasons.lock().unwrap();
        reasons.push(format!("{parameter}: {reason}"));
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn input() -> Tensor<2> {
    let values = (0..3 * WIDTH).map(|i| (i % 7) as f32 - 2.5).collect();
    Tensor::from_data(TensorData::new(values, [3, WIDTH]), &Device::flex())
}

fn hooked(model: &Blocks, sink: &Arc<Recorder>) -> Blocks {
    forget_depth();
    model
        .clone()
        .apply_reparameterization(GradHooks::new(sink.clone(), None, None))
}

/// Gradients of the parameters in visit order, as bytes.
fn gradients(model: &Blocks, loss: Tensor<1>) -> Vec<Option<Vec<u8>>> {
    struct Collect(GradientsParams, Vec<Option<Vec<u8>>>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = self.0.get::<D>(param.id);
            self.1
                .push(gradient.map(|gradient| gradient.into_data().as_bytes().to_vec()));
        }
    }
    let mut collect = Collect(
        GradientsParams::from_grads(loss.backward(), model),
        Vec::new(),
    );
    model.visit(&mut collect);
    collect.1
}

/// Notes in a recorder when backward reaches its activation.
#[derive(Debug)]
struct Marker {
    recorder: Arc<Recorder>,
    name: usize,
}

impl GradientSink for Marker {
    fn used(&self, _parameter: usize) {}

    fn released(&self, _parameter: usize) {}

    fn is_collecting(&self) -> bool {
        let mut collected = self.recorder.collected.lock().unwrap();
        collected.push((self.name, TensorData::new(Vec::<f32>::new(), [0])));
        false
    }

    fn collect(&self, _parameter: usize, _gradient: Tensor<1>) {}

    fn panicked(&self, _parameter: usize, _reason: &str) {}
}

#[test]
fn hooks_fire_when_backward_leaves_their_block() {
    let recorder = Recorder::new(true);
    let model = hooked(&Blocks::new(&device()), &recorder);
    let mut x = model.stem.forward(input());
    let marker = |index| -> Arc<dyn GradientSink> {
        Arc::new(Marker {
            recorder: recorder.clone(),
            name: 100 + index,
        })
    };
    // The graph keeps none of them.
    let markers: Vec<_> = (0..model.blocks.len()).map(marker).collect();
    for (marker, block) in markers.iter().zip(&model.blocks) {
        x = boundary(grad_hook::apply(x, marker, 0));
        x = relu(block.forward(x));
    }
    drop(x.square().mean().backward());
    // Weight and bias of a block may come in either order. Parameters 0 and 1 are the stem's, read
    // before the first boundary.
    let order = recorder.order();
    let blocks: Vec<usize> = order
        .iter()
        .map(|name| if *name < 100 { name / 2 } else { *name })
        .collect();
    assert_eq!(blocks, [3, 3, 102, 2, 2, 101, 1, 1, 100, 0, 0]);
    assert_eq!(recorder.alive(), 0);
}

#[test]
fn collected_gradients_are_those_of_the_plain_model() {
    let plain = Blocks::new(&device());
    let sink = Recorder::new(true);
    let model = hooked(&plain, &sink);
    let expected = gradients(&plain, plain.forward(input()).square().mean());
    drop(model.forward(input()).square().mean().backward());
    let collected = sink.collected.lock().unwrap();
    assert_eq!(collected.len(), expected.len());
    for (index, gradient) in collected.iter() {
        assert_eq!(expected[*index].as_deref(), Some(gradient.as_bytes()));
    }
}

#[test]
fn without_a_collecting_sink_the_model_is_an_ordinary_one() {
    let plain = Blocks::new(&device());
    let sink = Recorder::new(false);
    let model = hooked(&plain, &sink);
    let expected = gradients(&plain, plain.forward(input()).square().mean());
    let got = gradients(&model, model.forward(input()).square().mean());
    assert!(expected.iter().all(Option::is_some));
    assert_eq!(got, expected);
}

#[test]
fn a_parameter_read_twice_reports_two_parts() {
    let plain = Blocks::new(&device());
    let sink = Recorder::new(true);
    let model = hooked(&plain, &sink);
    let twice = |model: &Blocks| model.stem.forward(model.stem.forward(input())).sum();
    let expected = gradients(&plain, twice(&plain));
    drop(twice(&model).backward());
    let collected = sink.collected.lock().unwrap();
    let parts: Vec<Vec<f32>> = collected
        .iter()
        .filter(|(index, _)| *index == 0)
        .map(|(_, gradient)| gradient.try_to_vec().unwrap())
        .collect();
    assert_eq!(parts.len(), 2);
    let sum: Vec<f32> = parts[0].iter().zip(&parts[1]).map(|(a, b)| a + b).collect();
    assert_eq!(expected[0].as_deref(), Some(bytemuck::cast_slice(&sum)));
}

#[test]
fn evaluation_counts_no_use() {
    let sink = Recorder::new(true);
    let model = hooked(&Blocks::new(&device()), &sink);
    let valid = model.valid();
    let logits = valid.forward(input());
    assert!(!logits.is_autodiff());
    assert!(sink.uses.lock().unwrap().is_empty());
    let exported = valid.materialize();
    assert_eq!(exported.forward(input()).into_data(), logits.into_data());
}

#[test]
fn uses_of_a_dropped_forward_are_released() {
    let sink = Recorder::new(true);
    let model = hooked(&Blocks::new(&device()), &sink);
    drop(model.forward(input()));
    forget_depth();
    drop(model.forward(input()).sum().backward());
    assert_eq!(sink.alive(), 0);
    assert_eq!(sink.order().len(), 8);
}

#[test]
fn an_activation_that_the_loss_does_not_depend_on_is_no_part_of_backward() {
    let plain = Blocks::new(&device());
    let sink = Recorder::new(true);
    let model = hooked(&plain, &sink);
    // The head is read after a boundary of a detached branch. In that branch a gradient of zero
    // would become NaN: the derivative of a root of zero.
    let detached = |model: &Blocks| {
        let x = boundary(model.stem.forward(input()));
        let x = boundary(model.blocks[1].forward(x.mul_scalar(0.0).sqrt()));
        model.blocks[0].forward(x.detach()).square().mean()
    };
    let expected = gradients(&plain, detached(&plain));
    drop(detached(&model).backward());
    let collected = sink.collected.lock().unwrap();
    assert_eq!(collected.len(), 2);
    for (index, gradient) in collected.iter() {
        assert_eq!(expected[*index].as_deref(), Some(gradient.as_bytes()));
    }
    assert!(expected[0].is_none() && expected[2].is_some());
}

#[test]
fn a_boundary_is_an_operation_only_where_activations_are_computed_again() {
    for (device, operations) in [(device(), 0), (device().gradient_checkpointing(), 1)] {
        let model = hooked(&Blocks::new(&device), &Recorder::new(true));
        let x = boundary(model.stem.forward(input()));
        let first = depth::for_hook();
        boundary(x);
        assert_eq!(depth::for_hook() - first, operations);
        assert!(first > 0);
    }
}

#[test]
fn what_another_forward_pass_of_the_thread_has_left_is_no_part_of_backward() {
    let plain = Blocks::new(&device());
    let sink = Recorder::new(true);
    let model = hooked(&plain, &sink);
    let expected = gradients(&plain, plain.forward(input()).square().mean());
    // Both use the same model, without taking it again.
    let [first, second] = [(); 2].map(|()| model.forward(input()).square().mean());
    for loss in [first, second] {
        sink.collected.lock().unwrap().clear();
        drop(loss.backward());
        for (index, gradient) in sink.collected.lock().unwrap().iter() {
            assert_eq!(expected[*index].as_deref(), Some(gradient.as_bytes()));
        }
    }
}

#[test]
fn a_panic_while_collecting_stays_inside() {
    let sink = Recorder::new(true);
    sink.panics.store(true, Ordering::SeqCst);
    let model = hooked(&Blocks::new(&device()), &sink);
    drop(model.forward(input()).sum().backward());
    let reasons = sink.reasons.lock().unwrap();
    assert_eq!(reasons.len(), 8);
    assert!(reasons[0].ends_with("collecting fails"), "{}", reasons[0]);
}

/// Holds the values of a model elsewhere, and records the reads.
#[derive(Debug)]
struct Elsewhere {
    values: Vec<Vec<f32>>,
    reads: Mutex<Vec<usize>>,
}

impl Elsewhere {
    fn of(model: &Blocks) -> Arc<Self> {
        struct Collect(Vec<Vec<f32>>);
        impl ModuleVisitor for Collect {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.push(param.val().into_data().try_to_vec().unwrap());
            }
        }
        let mut collect = Collect(Vec::new());
        model.visit(&mut collect);
        Arc::new(Self {
            values: collect.0,
            reads: Mutex::default(),
        })
    }

    fn take_reads(&self) -> Vec<usize> {
        std::mem::take(&mut self.reads.lock().unwrap())
    }
}

impl ParameterSource for Elsewhere {
    fn whole(&self, parameter: usize) -> Option<Tensor<1>> {
        self.reads.lock().unwrap().push(parameter);
        let values = self.values[parameter].as_slice();
        Some(Tensor::from_floats(values, &device().inner()))
    }
}

#[test]
fn parameters_from_elsewhere_are_fetched_again_in_backward_and_not_kept() {
    let plain = Blocks::new(&device());
    let source = Elsewhere::of(&plain);
    let sink = Recorder::new(true);
    forget_depth();
    // Other values, which must not be used.
    let model = Blocks::new(&device()).apply_reparameterization(GradHooks::new(
        sink.clone(),
        None,
        Some(source.clone()),
    ));
    let loss = model.forward(input()).square().mean();
    let expected_loss = plain.forward(input()).square().mean();
    assert_eq!(
        loss.clone().into_data().as_bytes(),
        expected_loss.clone().into_data().as_bytes()
    );
    // Weight and bias of the stem and the three blocks, in the order of the forward pass.
    assert_eq!(source.take_reads(), [0, 1, 2, 3, 4, 5, 6, 7]);
    let expected = gradients(&plain, expected_loss);
    drop(loss.backward());
    // The gradient of a block's input needs the block's weight. The gradient of the stem's input is
    // not needed, and no gradient needs a bias.
    assert_eq!(source.take_reads(), [6, 4, 2]);
    let collected = sink.collected.lock().unwrap();
    assert_eq!(collected.len(), expected.len());
    for (index, gradient) in collected.iter() {
        assert_eq!(expected[*index].as_deref(), Some(gradient.as_bytes()));
    }
}
