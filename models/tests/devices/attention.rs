//! Attention in one operation, compared with Burn's operations.

use burn::tensor::{Device, FloatDType, Tensor};
use kernels::gpu::attention;

use crate::check::{asked, close, device, numbers};
use crate::inputs::{CASE, Case};

/// Computes attention of \[batch, tokens, 3 × heads × depth\] with Burn's operations.
fn burns_attention(qkv: Tensor<3>, heads: usize) -> Tensor<3> {
    let [batch, tokens, width] = qkv.dims();
    let depth = width / 3 / heads;
    let qkv = qkv.reshape([batch, tokens, 3, heads, depth]);
    let part = |index| {
        qkv.clone()
            .narrow(2, index, 1)
            .squeeze_dim::<4>(2)
            .swap_dims(1, 2)
    };
    let scores = part(0).matmul(part(1).transpose()) / (depth as f64).sqrt();
    let mixed = burn::tensor::activation::softmax(scores, 3).matmul(part(2));
    mixed.swap_dims(1, 2).reshape([batch, tokens, width / 3])
}

#[test]
fn gpu_attention_is_that_of_the_definition() {
    let Some(device) = device("attention on a GPU") else {
        return;
    };
    let half = device.supports_dtype(FloatDType::F16);
    for (batch, tokens, heads, depth) in
        [(1, 1, 1, 1), (2, 5, 3, 4), (3, 17, 2, 16), (1, 65, 3, 64)]
    {
        for (dtype, recompute) in [
            (FloatDType::F32, false),
            (FloatDType::F32, true),
            (FloatDType::F16, false),
            (FloatDType::F16, true),
        ] {
            if dtype == FloatDType::F16 && !half {
                eprintln!("SKIPPED: attention in f16: this device does not compute in it");
                continue;
            }
            let shape = [batch, tokens, 3 * heads * depth];
            let count: usize = shape.iter().product();
            let case = Case {
                shape: [1, 1, 1, count],
                dtype,
                ..CASE
            };
            let inputs = case.inputs();
            let dy = &inputs.dy[..count / 3];
            let run = |device: &Device, plain: &Device, dtype: FloatDType, own: bool| {
                let leaf = |values: &[f32], shape: [usize; 3]| {
                    let values = Tensor::<1>::from_data(values, plain)
                        .cast(dtype)
                        .reshape(shape);
                    Tensor::<3>::from_inner(values).to_device(device)
                };
                let x = leaf(&inputs.x, shape).require_grad();
                let out = match own {
                    true => attention(x.clone(), heads),
                    false => burns_attention(x.clone(), heads),
                };
                let loss = (out.clone() * leaf(dy, [batch, tokens, heads * depth])).sum();
                let dx = x.grad_remove(&mut loss.backward()).unwrap();
                [numbers(out), numbers(dx)]
            };
            let tracked = match recompute {
                true => device.clone().autodiff().gradient_checkpointing(),
                false => device.clone().autodiff(),
            };
            let processor = Device::flex();
            let exact = processor.clone().autodiff();
            let expected = run(&exact, &processor, FloatDType::F64, false);
            let found = run(&tracked, &device, dtype, true);
            let tolerance = match dtype {
                FloatDType::F16 => 1e-2,
                // Tensor cores multiply 16 bits of a number, or 11 with Burn's products.
                _ if asked().as_deref() == Some("cuda") && depth.is_multiple_of(16) => 3e-5,
                _ if asked().as_deref() == Some("cuda") => 2e-3,
                _ => 1e-5,
            };
            let what = format!("attention of {shape:?} in {dtype:?}");
            close(&what, &expected[0], &found[0], tolerance);
            close(
                &format!("gradient of {what}"),
                &expected[1],
                &found[1],
                tolerance,
            );
        }
    }
}
