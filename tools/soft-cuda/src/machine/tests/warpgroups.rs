use half::bf16;

use super::*;

/// Rows, columns and depth of the product, and columns of numbers that threads have.
const N: usize = 96;
const K: usize = 16;
const M: usize = 64;

/// Layout of a factor in shared memory: the vectors permuted by a swizzle, and whether rows lie
/// along it.
#[derive(Clone, Copy, Debug)]
struct Layout {
    swizzled: usize,
    across: bool,
}

impl Layout {
    /// Returns the bytes of the manual's leading and stride dimension.
    fn offsets(self, count: usize) -> [usize; 2] {
        match (self.swizzled, self.across) {
            // One column of cores of 8 by 8 after the other.
            (1, _) => [count * 16, 128],
            // Eight rows, then the next eight.
            (n, false) => [16, 8 * 16 * n],
            // As wide as the swizzle, all sixteen deep, then the next.
            (n, true) => [16 * 16 * n, 8 * 16 * n],
        }
    }

    /// Returns the place of number `k` of row `mn` in bytes.
    fn place(self, mn: usize, k: usize, count: usize) -> usize {
        let [leading, stride] = self.offsets(count);
        let wide = 8 * self.swizzled;
        let at = match (self.swizzled, self.across) {
            (1, false) => mn / 8 * stride + k / 8 * leading + mn % 8 * 16 + k % 8 * 2,
            (1, true) => mn / 8 * stride + k / 8 * leading + k % 8 * 16 + mn % 8 * 2,
            (n, false) => mn / 8 * stride + mn % 8 * 16 * n + k * 2,
            (n, true) => mn / wide * leading + k / 8 * stride + k % 8 * 16 * n + mn % wide * 2,
        };
        let exchanged = at / 128 % self.swizzled;
        at ^ (exchanged * 16)
    }

    fn bytes(self, count: usize) -> usize {
        let wide = 8 * self.swizzled;
        match self.across {
            true => count.next_multiple_of(wide) * 32,
            false => count * 16 * self.swizzled.max(2),
        }
    }

    fn descriptor(self, start: usize, count: usize) -> u64 {
        let [leading, stride] = self.offsets(count);
        let mode = match self.swizzled {
            8 => 1u64,
            4 => 2,
            2 => 3,
            _ => 0,
        };
        let field = |bytes: usize, at: u32| (bytes as u64 >> 4) << at;
        field(start, 0) | field(leading, 16) | field(stride, 32) | mode << 62
    }

    /// Returns the words of shared memory.
    fn lay(self, matrix: &[f32], count: usize) -> Vec<u32> {
        let mut bytes = vec![0u8; self.bytes(count)];
        for mn in 0..count {
            for k in 0..K {
                let at = self.place(mn, k, count);
                let number = bf16::from_f32(matrix[mn * K + k]).to_le_bytes();
                bytes[at..at + 2].copy_from_slice(&number);
            }
        }
        let words = bytes.as_chunks::<4>().0;
        words.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }
}

/// Returns small integers, row by row.
fn matrix(count: usize, seed: usize) -> Vec<f32> {
    let number = |n: usize| ((n * 7 + n / 16 * 3 + seed) % 11) as f32 - 5.0;
    (0..count * K).map(number).collect()
}

/// Returns a kernel of four warps that copies factors to shared memory in the layout of the input,
/// multiplies them twice and writes the sums in the layout of the threads.
fn body(a: Layout, b: Layout) -> (String, Vec<u32>) {
    let words = [a.lay(&matrix(M, 1), M), b.lay(&matrix(N, 2), N)];
    let start_b = (words[0].len() * 4).next_multiple_of(1024);
    let mut input = words[0].clone();
    input.resize(start_b / 4, 0);
    input.extend(&words[1]);
    input.resize(input.len().next_multiple_of(128), 0);
    let bytes = input.len() * 4;
    let (da, db) = (a.descriptor(0, M), b.descriptor(start_b, N));
    let sums: Vec<String> = (0..N / 2).map(|n| format!("s{n}")).collect();
    let zero: String = sums
        .iter()
        .map(|s| format!("mov.f32 {s}, 0f00000000; "))
        .collect();
    let stores = sums.iter().enumerate();
    let stores: String = stores
        .map(|(n, s)| format!("st.global.f32 [%d20+{}], {s}; ", n * 4))
        .collect();
    let (list, across) = (sums.join(", "), [a, b].map(|l| u8::from(l.across)));
    let multiply = format!(
        "wgmma.mma_async.sync.aligned.m64n{N}k16.f32.bf16.bf16 {{{list}}}, %d10, %d11, %p1, 1, 1, {}, {};",
        across[0], across[1]
    );
    let body = format!(
        ".shared .align 1024 .b8 tiles[{bytes}];
         .reg .f32 s<{}>;
         mov.u32 %r1, %r0; mov.u32 %r2, tiles; shl.b32 %r3, %r0, 2; add.u32 %r2, %r2, %r3;
         mov.u64 %d12, %d2;
         more:
         ld.global.u32 %r4, [%d12]; st.shared.u32 [%r2], %r4;
         add.u64 %d12, %d12, 512; add.u32 %r2, %r2, 512; add.u32 %r1, %r1, 128;
         setp.lt.u32 %p0, %r1, {}; @%p0 bra more;
         fence.proxy.async;
         bar.sync 0;
         mov.u32 %r5, tiles; shr.u32 %r5, %r5, 4; cvt.u64.u32 %d13, %r5;
         add.u64 %d10, %d13, {da}; add.u64 %d11, %d13, {db};
         setp.eq.u32 %p1, 0, 0;
         {zero}
         wgmma.fence.sync.aligned;
         {multiply}
         wgmma.commit_group.sync.aligned;
         {multiply}
         wgmma.commit_group.sync.aligned;
         wgmma.wait_group.sync.aligned 0;
         bar.sync 1;
         mov.u32 %r2, tiles; add.u32 %r2, %r2, %r3; st.shared.u32 [%r2], %r0;
         mad.wide.u32 %d20, %r0, {}, %d1;
         {stores}",
        N / 2,
        input.len(),
        N * 2,
    );
    (body, input)
}

const PLAIN: Layout = Layout {
    swizzled: 4,
    across: false,
};

fn run(body: &str, input: &[u32]) -> Result<Vec<f32>, FaultKind> {
    let mut to = Buffer::new(M * N * 4).unwrap();
    let ran = prepared(
        body,
        [1; 3],
        [128, 1, 1],
        input,
        &to,
        // SAFETY: only this launch has the buffers.
        |launch| unsafe { launch.run_watched() },
    );
    match ran {
        Ok(()) => {}
        Err(LaunchError::Failed(failure)) => return Err(failure.kind),
        Err(error) => panic!("{error}"),
    }
    let words = to.read();
    let words = words.as_chunks::<4>().0;
    Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
}

/// Returns twice the product in the layout of the threads ("Register Fragments for
/// wgmma.mma_async.m64nNk16").
fn expected() -> Vec<f32> {
    let (a, b) = (matrix(M, 1), matrix(N, 2));
    let of_thread = |thread: usize, r: usize| {
        let (warp, lane) = (thread / 32, thread % 32);
        let row = 16 * warp + lane / 4 + 8 * (r / 2 % 2);
        let column = r / 4 * 8 + lane % 4 * 2 + r % 2;
        let product = (0..K).map(|k| a[row * K + k] * b[column * K + k]);
        2.0 * product.sum::<f32>()
    };
    (0..M * N)
        .map(|at| of_thread(at / (N / 2), at % (N / 2)))
        .collect()
}

#[test]
fn products_of_every_layout() {
    for swizzled in [1, 2, 4, 8] {
        for (across_a, across_b) in [(false, false), (true, false), (false, true), (true, true)] {
            let layout = |across| Layout { swizzled, across };
            let (body, input) = body(layout(across_a), layout(across_b));
            let found = run(&body, &input);
            assert_eq!(found, Ok(expected()), "{swizzled} {across_a} {across_b}");
        }
    }
}

/// Returns the failure of a kernel without a line.
fn without(line: &str) -> Result<bool, FaultKind> {
    let (body, input) = body(PLAIN, PLAIN);
    assert!(body.contains(line));
    let found = run(&body.replacen(line, "", 1), &input);
    found.map(|found| found == expected())
}

#[test]
fn factors_are_visible_before_they_are_read_and_stay_until_then() {
    assert_eq!(without("fence.proxy.async;"), Err(FaultKind::Unfenced));
    assert!(matches!(
        without("bar.sync 0;"),
        Err(FaultKind::Race { .. } | FaultKind::Unfenced)
    ));
    assert!(matches!(
        without("bar.sync 1;"),
        Err(FaultKind::Race { .. })
    ));
    assert_eq!(without("wgmma.wait_group.sync.aligned 0;"), Ok(false));
    let (body, input) = body(PLAIN, PLAIN);
    let late = body.replacen(
        "wait_group.sync.aligned 0;",
        "wait_group.sync.aligned 1;",
        1,
    );
    assert_ne!(run(&late, &input), Ok(expected()));
}

#[test]
fn what_is_not_known_is_refused() {
    let (body, input) = body(PLAIN, PLAIN);
    let negative = body.replacen("%p1, 1, 1", "%p1, -1, 1", 1);
    assert_eq!(run(&negative, &input), Err(FaultKind::Descriptor));
    // With a base offset.
    let shifted = body.replacen(
        "setp.eq.u32 %p1",
        "or.b64 %d10, %d10, 562949953421312; setp.eq.u32 %p1",
        1,
    );
    assert_eq!(run(&shifted, &input), Err(FaultKind::Descriptor));
    let wide = source(&body).replace(&format!("m64n{N}k16"), "m64n100k16");
    let mut module = Module::parse(&wide).unwrap();
    assert!(Kernel::new(module.functions.remove(0)).is_err());
}
