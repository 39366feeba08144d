use half::{bf16, f16};

use super::*;

/// Returns small integers, which no format rounds.
fn matrix(rows: usize, columns: usize, seed: usize) -> Vec<f32> {
    let number = |n: usize| ((n * 7 + seed) % 11) as f32 - 5.0;
    (0..rows * columns).map(number).collect()
}

fn product(a: &[f32], b: &[f32], c: &[f32], [m, n, k]: [usize; 3]) -> Vec<f32> {
    let at = |y: usize, x: usize| {
        let sum: f32 = (0..k).map(|z| a[y * k + z] * b[z * n + x]).sum();
        sum + c[y * n + x]
    };
    (0..m * n).map(|i| at(i / n, i % n)).collect()
}

fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    let rows = matrix.len() / columns;
    let at = |i: usize| matrix[i % rows * columns + i / rows];
    (0..matrix.len()).map(at).collect()
}

/// Returns numbers in a format as words.
fn words(numbers: &[f32], kind: &str) -> Vec<u32> {
    let halves = |bits: fn(f32) -> u16| {
        let pairs = numbers.chunks_exact(2);
        let pairs = pairs.map(|p| u32::from(bits(p[1])) << 16 | u32::from(bits(p[0])));
        pairs.collect()
    };
    match kind {
        "f16" => halves(|n| f16::from_f32(n).to_bits()),
        "bf16" => halves(|n| bf16::from_f32(n).to_bits()),
        _ => numbers.iter().map(|n| n.to_bits()).collect(),
    }
}

fn numbers(words: &[u32], kind: &str) -> Vec<f32> {
    let half = |bits: u32| f16::from_bits(bits as u16).to_f32();
    match kind {
        "f16" => words
            .iter()
            .flat_map(|&w| [half(w), half(w >> 16)])
            .collect(),
        _ => words.iter().map(|&w| f32::from_bits(w)).collect(),
    }
}

fn registers(first: usize, count: usize) -> String {
    let each: Vec<String> = (first..first + count).map(|n| format!("%r{n}")).collect();
    format!("{{{}}}", each.join(", "))
}

fn wmma(shape: [usize; 3], kind: &str, sum: &str, a_columns: bool, b_columns: bool) {
    let [m, n, k] = shape;
    let (a, b, c) = (matrix(m, k, 1), matrix(k, n, 2), matrix(m, n, 3));
    let layout = |columns: bool| if columns { "col" } else { "row" };
    let (la, lb) = (layout(a_columns), layout(b_columns));
    let stored = |x: &[f32], columns: usize, of_columns: bool| {
        let x = if of_columns {
            transposed(x, columns)
        } else {
            x.to_vec()
        };
        words(&x, kind)
    };
    let (wa, wb, wc) = (
        stored(&a, k, a_columns),
        stored(&b, n, b_columns),
        words(&c, sum),
    );
    let (stride_a, stride_b) = (if a_columns { m } else { k }, if b_columns { k } else { n });
    let (at_b, at_c) = (wa.len() * 4, (wa.len() + wb.len()) * 4);
    let count = |elements: usize| match kind {
        "f16" => 8,
        "bf16" => elements / 64,
        _ => elements / 32,
    };
    let sums = if sum == "f16" { 4 } else { 8 };
    let (ra, rb) = (registers(20, count(m * k)), registers(40, count(k * n)));
    let (rc, rd) = (registers(60, sums), registers(80, sums));
    let shape_word = format!("m{m}n{n}k{k}");
    let types = match kind {
        "f16" => format!("{sum}.{sum}"),
        _ => format!("{sum}.{kind}.{kind}.{sum}"),
    };
    let body = format!(
        "wmma.load.a.sync.aligned.{la}.{shape_word}.global.{kind} {ra}, [%d0], {stride_a};
         wmma.load.b.sync.aligned.{lb}.{shape_word}.{kind} {rb}, [%d0+{at_b}], {stride_b};
         wmma.load.c.sync.aligned.row.{shape_word}.global.{sum} {rc}, [%d0+{at_c}], {n};
         wmma.mma.sync.aligned.{la}.{lb}.{shape_word}.{types} {rd}, {ra}, {rb}, {rc};
         wmma.store.d.sync.aligned.col.{shape_word}.global.{sum} [%d1], {rd}, {m};"
    );
    let input = [wa, wb, wc].concat();
    let out = launch(&body, [1; 3], [32, 1, 1], &input, m * n).unwrap();
    let used = if sum == "f16" { m * n / 2 } else { m * n };
    let expected = transposed(&product(&a, &b, &c, shape), n);
    assert_eq!(
        numbers(&out[..used], sum),
        expected,
        "{shape_word} {types} {la} {lb}"
    );
}

#[test]
fn wmma_of_every_shape_and_layout() {
    for shape in [[16, 16, 16], [8, 32, 16], [32, 8, 16]] {
        for (a, b) in [(false, false), (true, false), (false, true), (true, true)] {
            wmma(shape, "f16", "f32", a, b);
            wmma(shape, "bf16", "f32", a, b);
        }
        wmma(shape, "f16", "f16", false, true);
    }
    wmma([16, 16, 8], "tf32", "f32", false, false);
    wmma([16, 16, 8], "tf32", "f32", true, true);
}

/// Returns row and column of register `r`, number `n`, of a lane by the manual.
fn place_a(lane: usize, r: usize, n: usize, wide: bool) -> (usize, usize) {
    let (g, t) = (lane / 4, lane % 4);
    match (wide, r) {
        (false, 0) => (g, 2 * t + n),
        (false, 1) => (g + 8, 2 * t + n),
        (false, 2) => (g, 2 * t + n + 8),
        (false, _) => (g + 8, 2 * t + n + 8),
        (true, 0) => (g, t),
        (true, 1) => (g + 8, t),
        (true, 2) => (g, t + 4),
        (true, _) => (g + 8, t + 4),
    }
}

fn place_b(lane: usize, r: usize, n: usize, wide: bool) -> (usize, usize) {
    let (g, t) = (lane / 4, lane % 4);
    if wide {
        (t + 4 * r, g)
    } else {
        (2 * t + n + 8 * r, g)
    }
}

/// Tests `mma.sync` of registers loaded by the manual's layout.
fn mma(k: usize, kind: &str, sum: &str) {
    let (a, b, c) = (matrix(16, k, 4), matrix(k, 8, 5), matrix(16, 8, 6));
    let wide = kind == "tf32";
    let per = if wide { 1 } else { 2 };
    let (na, nb) = (16 * k / 32 / per, k * 8 / 32 / per);
    let sums = if sum == "f16" { 2 } else { 4 };
    let each = na + nb + sums;
    let mut input = Vec::new();
    for lane in 0..32 {
        let element = |n: usize| (lane / 4 + 8 * (n / 2), lane % 4 * 2 + n % 2);
        let of_a = (0..na * per).map(|i| place_a(lane, i / per, i % per, wide));
        let of_b = (0..nb * per).map(|i| place_b(lane, i / per, i % per, wide));
        let of_a: Vec<f32> = of_a.map(|(y, x)| a[y * k + x]).collect();
        let of_b: Vec<f32> = of_b.map(|(y, x)| b[y * 8 + x]).collect();
        let of_c: Vec<f32> = (0..4).map(element).map(|(y, x)| c[y * 8 + x]).collect();
        input.extend(words(&of_a, kind));
        input.extend(words(&of_b, kind));
        input.extend(words(&of_c, sum));
    }
    let loads: String = (0..each)
        .map(|n| format!("ld.global.u32 %r{}, [%d4+{}];\n", 20 + n, n * 4))
        .collect();
    let stores: String = (0..sums)
        .map(|n| format!("st.global.u32 [%d5+{}], %r{};\n", n * 4, 50 + n))
        .collect();
    let (ra, rb) = (registers(20, na), registers(20 + na, nb));
    let (rc, rd) = (registers(20 + na + nb, sums), registers(50, sums));
    let body = format!(
        "mad.wide.u32 %d4, %r0, {}, %d0; mad.wide.u32 %d5, %r0, {}, %d1;
         {loads}
         mma.sync.aligned.m16n8k{k}.row.col.{sum}.{kind}.{kind}.{sum} {rd}, {ra}, {rb}, {rc};
         {stores}",
        each * 4,
        sums * 4,
    );
    let out = launch(&body, [1; 3], [32, 1, 1], &input, 32 * sums).unwrap();
    let expected = product(&a, &b, &c, [16, 8, k]);
    for (lane, out) in numbers(&out, sum).chunks_exact(4).enumerate() {
        for (n, &value) in out.iter().enumerate() {
            let (y, x) = (lane / 4 + 8 * (n / 2), lane % 4 * 2 + n % 2);
            assert_eq!(
                value,
                expected[y * 8 + x],
                "k{k} {kind} {sum} lane {lane} {n}"
            );
        }
    }
}

#[test]
fn mma_of_the_documented_layouts() {
    mma(8, "tf32", "f32");
    mma(4, "tf32", "f32");
    for k in [8, 16] {
        mma(k, "f16", "f32");
        mma(k, "bf16", "f32");
        mma(k, "f16", "f16");
    }
}

#[test]
fn ldmatrix_feeds_mma() {
    // A of 16 × 16, row-major, as four matrices; B of 16 × 8, row-major, as two that are
    // transposed.
    let (a, b) = (matrix(16, 16, 7), matrix(16, 8, 8));
    let body = "
        .shared .align 16 .b8 a[512]; .shared .align 16 .b8 b[256];
        mov.u32 %r1, a; mov.u32 %r2, b;
        mad.lo.u32 %r3, %r0, 16, %r1; mad.wide.u32 %d4, %r0, 16, %d0;
        cp.async.cg.shared.global [%r3], [%d4], 16;
        mad.lo.u32 %r4, %r0, 8, %r2; mad.wide.u32 %d5, %r0, 8, %d0;
        cp.async.ca.shared.global [%r4], [%d5+512], 8;
        cp.async.wait_all; bar.sync 0;
        and.b32 %r5, %r0, 15; shr.u32 %r6, %r0, 4;
        mad.lo.u32 %r7, %r5, 32, %r1; mad.lo.u32 %r7, %r6, 16, %r7;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r7];
        mad.lo.u32 %r8, %r5, 16, %r2;
        ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r24, %r25}, [%r8];
        mov.f32 %f1, 0f00000000;
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r30, %r31, %r32, %r33},
            {%r20, %r21, %r22, %r23}, {%r24, %r25}, {%f1, %f1, %f1, %f1};
        mad.wide.u32 %d6, %r0, 16, %d1;
        st.global.v4.u32 [%d6], {%r30, %r31, %r32, %r33};";
    let input = [words(&a, "f16"), words(&b, "f16")].concat();
    let out = launch(body, [1; 3], [32, 1, 1], &input, 128).unwrap();
    let expected = product(&a, &b, &[0.0; 128], [16, 8, 16]);
    for (lane, out) in numbers(&out, "f32").chunks_exact(4).enumerate() {
        for (n, &value) in out.iter().enumerate() {
            let (y, x) = (lane / 4 + 8 * (n / 2), lane % 4 * 2 + n % 2);
            assert_eq!(value, expected[y * 8 + x], "lane {lane} {n}");
        }
    }
}
