//! Handwritten kernels, run through the public interface.
#![allow(unsafe_code)] // Launches.

mod arithmetic;
mod control;
mod conversion;
mod counts;
mod faults;
mod matrices;
mod memory;
mod races;
mod warpgroups;
mod warps;

use super::{Buffer, FaultKind, Kernel, Launch, LaunchError};
use crate::ptx::Module;

/// Prologue of every body: `%d0` is the input's address and `%d1` the output's, `%r0` the thread of
/// the block, `%d2` and `%d3` the addresses of its 32 bits of the input and the output.
const PROLOGUE: &str = "
    .reg .pred %p<20>; .reg .b16 %h<50>; .reg .b32 %r<150>; .reg .f32 %f<50>; .reg .b64 %d<50>;
    ld.param.u64 %d0, [in]; ld.param.u64 %d1, [out];
    mov.u32 %r0, %tid.x;
    mad.wide.u32 %d2, %r0, 4, %d0; mad.wide.u32 %d3, %r0, 4, %d1;
";

/// Returns a module with a kernel of this body.
pub(super) fn source(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n\
         .extern .shared .align 16 .b8 dynamic[];\n\
         .global .align 4 .b32 table[3] = {{7, 8, 9}};\n\
         .visible .entry k(.param .u64 in, .param .u64 out) {{\n{PROLOGUE}\n{body}\nret;\n}}"
    )
}

fn kernel(body: &str) -> Kernel {
    let mut module = Module::parse(&source(body)).unwrap();
    Kernel::new(module.functions.remove(0)).unwrap()
}

/// Runs a body with 256 bytes of dynamic shared memory, and returns the output.
fn launch(
    body: &str,
    grid: [u32; 3],
    block: [u32; 3],
    input: &[u32],
    outputs: usize,
) -> Result<Vec<u32>, FaultKind> {
    let mut to = Buffer::new(outputs * 4).unwrap();
    // SAFETY: only this launch has the buffers.
    let ran = prepared(body, grid, block, input, &to, |launch| unsafe {
        launch.run()
    });
    match ran {
        Ok(()) => {}
        Err(LaunchError::Failed(failure)) => return Err(failure.kind),
        Err(error) => panic!("{error}"),
    }
    let words = to.read();
    let words = words.chunks_exact(4);
    Ok(words
        .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
        .collect())
}

/// Prepares a launch of a body with 256 bytes of dynamic shared memory, and passes it to `then`.
fn prepared<T>(
    body: &str,
    grid: [u32; 3],
    block: [u32; 3],
    input: &[u32],
    to: &Buffer,
    then: impl FnOnce(&Launch<'_>) -> T,
) -> T {
    let kernel = kernel(body);
    let bytes = |words: &[u32]| {
        words
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect::<Vec<_>>()
    };
    let mut from = Buffer::new((input.len() * 4).max(4)).unwrap();
    from.write(&bytes(input));
    let mut table = Buffer::new(12).unwrap();
    table.write(&bytes(&[7, 8, 9]));
    let mut device = [from.range(), to.range(), table.range()];
    let arguments = [device[0].start, device[1].start].map(u64::to_le_bytes);
    let globals = [device[2].start];
    device.sort_by_key(|range| range.start);
    then(&Launch {
        kernel: &kernel,
        grid,
        block,
        dynamic_shared: 256,
        arguments: arguments.as_flattened(),
        globals: &globals,
        device: &device,
    })
}

/// Runs a body in one warp that writes a word per lane.
fn warp(body: &str, input: &[u32]) -> Vec<u32> {
    launch(body, [1; 3], [32, 1, 1], input, 32).unwrap()
}

/// Evaluates PTX on two words: `%r1` and `%r2` into `%r3`.
fn of_two(instructions: &str, a: u32, b: u32) -> u32 {
    let body = format!(
        "ld.global.u32 %r1, [%d0]; ld.global.u32 %r2, [%d0+4];
         {instructions}
         st.global.u32 [%d1], %r3;"
    );
    launch(&body, [1; 3], [1; 3], &[a, b], 1).unwrap()[0]
}

/// Does the same as [`of_two`] for numbers of 64 bits: `%d11` and `%d12` into `%d13`.
fn of_two_wide(instructions: &str, a: u64, b: u64) -> u64 {
    let body = format!(
        "ld.global.v2.u64 {{%d11, %d12}}, [%d0];
         cvt.u32.u64 %r2, %d12;
         {instructions}
         st.global.u64 [%d1], %d13;"
    );
    let words = [a, b].map(|n| [n as u32, (n >> 32) as u32]);
    let out = launch(&body, [1; 3], [1; 3], words.as_flattened(), 2).unwrap();
    u64::from(out[1]) << 32 | u64::from(out[0])
}
