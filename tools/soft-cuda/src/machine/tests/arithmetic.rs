use super::*;

#[test]
fn division_of_integers() {
    let min = i32::MIN as u32;
    let minus = |n: i32| -n as u32;
    let cases = [
        ("div.u32", 7, 2, 3),
        ("div.u32", 7, 0, u32::MAX),
        ("rem.u32", 7, 0, 7),
        ("div.s32", minus(7), 2, minus(3)),
        ("rem.s32", minus(7), 2, minus(1)),
        ("div.s32", min, u32::MAX, min),
        ("rem.s32", min, u32::MAX, 0),
        ("div.s32", 5, 0, u32::MAX),
    ];
    for (name, a, b, expected) in cases {
        let out = of_two(&format!("{name} %r3, %r1, %r2;"), a, b);
        assert_eq!(out, expected, "{name} {a} {b}");
    }
    let min = i64::MIN as u64;
    assert_eq!(of_two_wide("div.s64 %d13, %d11, %d12;", min, u64::MAX), min);
    assert_eq!(
        of_two_wide("rem.u64 %d13, %d11, %d12;", 1 << 40, 1000),
        (1 << 40) % 1000
    );
}

#[test]
fn shifts_by_more_than_the_width() {
    let cases = [
        ("shl.b32", 1, 31, 1 << 31),
        ("shl.b32", 1, 32, 0),
        ("shr.u32", u32::MAX, 32, 0),
        ("shr.s32", 0x8000_0000, 40, u32::MAX),
        ("shr.s32", 0x4000_0000, u32::MAX, 0),
    ];
    for (name, a, n, expected) in cases {
        let out = of_two(&format!("{name} %r3, %r1, %r2;"), a, n);
        assert_eq!(out, expected, "{name} {a} {n}");
    }
    assert_eq!(of_two_wide("shl.b64 %d13, %d11, %r2;", 3, 63), 1 << 63);
    assert_eq!(
        of_two_wide("shr.s64 %d13, %d11, %r2;", 1 << 63, 64),
        u64::MAX
    );
    let half = "cvt.u16.u32 %h1, %r1; shr.s16 %h2, %h1, %r2; cvt.u32.u16 %r3, %h2;";
    assert_eq!(of_two(half, 0x8000, 0x1_0000), 0xffff);
    assert_eq!(of_two(&half.replace("s16", "u16"), 0x8000, 15), 1);
    for (mode, expected) in [("l.wrap", 0x2345_6789), ("l.clamp", 0x2345_6789)] {
        let out = of_two(
            &format!("shf.{mode}.b32 %r3, %r2, %r1, 4;"),
            0x1234_5678,
            0x9abc_def0,
        );
        assert_eq!(out, expected, "{mode}");
    }
    assert_eq!(of_two("shf.r.clamp.b32 %r3, %r1, %r2, 40;", 1, 2), 2);
}

#[test]
fn products_low_high_and_wide() {
    let minus = u32::MAX;
    assert_eq!(
        of_two("mul.lo.s32 %r3, %r1, %r2;", minus, 3),
        (-3i32) as u32
    );
    assert_eq!(of_two("mul.hi.s32 %r3, %r1, %r2;", minus, 3), u32::MAX);
    assert_eq!(of_two("mul.hi.u32 %r3, %r1, %r2;", minus, 3), 2);
    assert_eq!(of_two("mad.lo.s32 %r3, %r1, %r2, 5;", minus, 3), 2);
    let (halves, bytes) = (0x0002_ffff, 0x0706_0504);
    let low = 0xffff * 4 + 2 * 5 + 1;
    assert_eq!(
        of_two("dp2a.lo.u32.u32 %r3, %r1, %r2, 1;", halves, bytes),
        low
    );
    let high = 0xffff * 6 + 2 * 7 + 1;
    assert_eq!(
        of_two("dp2a.hi.u32.u32 %r3, %r1, %r2, 1;", halves, bytes),
        high
    );
    let wide = "cvt.u32.u64 %r1, %d11; mul.wide.s32 %d13, %r1, %r2;";
    assert_eq!(of_two_wide(wide, 0xffff_ffff, 3), (-3i64) as u64);
    let wide = "cvt.u32.u64 %r1, %d11; mad.wide.u32 %d13, %r1, %r2, %d11;";
    assert_eq!(of_two_wide(wide, 0xffff_ffff, 3), 0xffff_ffff * 4);
    assert_eq!(
        of_two_wide("mul.hi.u64 %d13, %d11, %d12;", u64::MAX, 16),
        15
    );
    assert_eq!(
        of_two("add.sat.s32 %r3, %r1, %r2;", i32::MAX as u32, 1),
        i32::MAX as u32
    );
}

#[test]
fn fields_of_bits() {
    let cases = [
        (
            "bfi.b32 %r3, %r1, %r2, 8, 4;",
            0xf5,
            0xffff_ffff,
            0xffff_f5ff,
        ),
        ("bfi.b32 %r3, %r1, %r2, 40, 4;", 0xf5, 7, 7),
        ("bfi.b32 %r3, %r1, %r2, 0, 32;", 0xf5, 7, 0xf5),
        ("bfe.u32 %r3, %r1, 4, 8;", 0x1234_5678, 0, 0x67),
        ("bfe.u32 %r3, %r1, 28, 8;", 0x9234_5678, 0, 9),
        ("bfe.s32 %r3, %r1, 4, 4;", 0x0000_00f0, 0, u32::MAX),
        ("bfe.s32 %r3, %r1, 28, 8;", 0x9234_5678, 0, 0xffff_fff9),
        ("bfe.s32 %r3, %r1, 4, 0;", 0x0000_00f0, 0, 0),
        (
            "prmt.b32 %r3, %r1, %r2, 0x7531;",
            0x3322_1100,
            0x7766_5544,
            0x7755_3311,
        ),
        (
            "prmt.b32 %r3, %r1, %r2, 0x9988;",
            0x0000_807f,
            0,
            0xffff_0000,
        ),
        (
            "lop3.b32 %r3, %r1, %r2, 0x0f0f0f0f, 0x96;",
            0xff00_ff00,
            0x3333_3333,
            0xff00_ff00 ^ 0x3333_3333 ^ 0x0f0f_0f0f,
        ),
        ("lop3.b32 %r3, %r1, %r2, %r1, 0xC0;", 0xff, 0x3c, 0x3c),
        ("popc.b32 %r3, %r1;", 0xf0f0, 0, 8),
        ("clz.b32 %r3, %r1;", 1, 0, 31),
        ("brev.b32 %r3, %r1;", 1, 0, 1 << 31),
        ("not.b32 %r3, %r1;", 5, 0, !5),
    ];
    for (instruction, a, b, expected) in cases {
        assert_eq!(of_two(instruction, a, b), expected, "{instruction}");
    }
}

#[test]
fn comparisons_with_nans_and_joined() {
    let nan = f32::NAN.to_bits();
    let one = 1f32.to_bits();
    let compare = |name: &str, a: u32, b: u32| {
        let text = format!("setp.{name}.f32 %p1, %r1, %r2; selp.u32 %r3, 1, 0, %p1;");
        of_two(&text, a, b) == 1
    };
    for (name, equal, unordered) in [
        ("eq", true, false),
        ("ne", false, false),
        ("lt", false, false),
        ("ge", true, false),
        ("equ", true, true),
        ("neu", false, true),
        ("ltu", false, true),
        ("num", true, false),
        ("nan", false, true),
    ] {
        assert_eq!(compare(name, one, one), equal, "{name}");
        assert_eq!(compare(name, one, nan), unordered, "{name} of NaN");
    }
    let joined = "setp.eq.u32 %p2, %r2, 5; setp.lt.and.s32 %p1|%p3, %r1, 0, %p2;
        selp.u32 %r3, 1, 0, %p1; selp.u32 %r4, 2, 0, %p3; or.b32 %r3, %r3, %r4;";
    assert_eq!(of_two(joined, u32::MAX, 5), 1);
    assert_eq!(of_two(joined, 1, 5), 2);
    assert_eq!(of_two(joined, 1, 4), 0);
}

#[test]
fn single_precision() {
    let of = |name: &str, a: f32, b: f32| {
        f32::from_bits(of_two(
            &format!("{name} %r3, %r1, %r2;"),
            a.to_bits(),
            b.to_bits(),
        ))
    };
    assert_eq!(of("add.f32", 1.5, 2.0), 3.5);
    assert_eq!(of("div.rn.f32", 1.0, 3.0), 1.0 / 3.0);
    assert_eq!(of("min.f32", f32::NAN, 2.0), 2.0);
    assert!(of("min.NaN.f32", f32::NAN, 2.0).is_nan());
    assert!(of("max.f32", -0.0, 0.0).is_sign_positive());
    assert!(of("min.f32", 0.0, -0.0).is_sign_negative());
    assert_eq!(of("copysign.f32", -1.0, 2.0), -2.0);
    let (down, up) = (of("add.rm.f32", 1.0, 1e-9), of("add.rp.f32", 1.0, 1e-9));
    assert_eq!((down, up), (1.0, 1.0f32.next_up()));
    assert_eq!(of("add.rz.f32", -1.0, -1e-9), -1.0);
    let fused = "fma.rn.f32 %r3, %r1, %r1, %r2;";
    let a = 1.0 + f32::EPSILON;
    let out = of_two(fused, a.to_bits(), (-(a * a)).to_bits());
    assert_eq!(f32::from_bits(out), a.mul_add(a, -(a * a)));
    assert_ne!(f32::from_bits(out), 0.0);
    assert_eq!(
        of_two("ex2.approx.ftz.f32 %r3, %r1;", 3f32.to_bits(), 0),
        8f32.to_bits()
    );
}

#[test]
fn half_precision_pairs() {
    use half::{bf16, f16};
    let pack = |a: f32, b: f32| {
        u32::from(f16::from_f32(b).to_bits()) << 16 | u32::from(f16::from_f32(a).to_bits())
    };
    let sum = of_two(
        "fma.rn.f16x2 %r3, %r1, %r2, %r1;",
        pack(1.0, -2.0),
        pack(3.0, 0.5),
    );
    assert_eq!(sum, pack(4.0, -3.0));
    let brain = |n: f32| u32::from(bf16::from_f32(n).to_bits());
    let text =
        "cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2; mul.bf16 %h3, %h1, %h2; cvt.u32.u16 %r3, %h3;";
    assert_eq!(of_two(text, brain(3.0), brain(-1.5)), brain(-4.5));
    // 2048 + 1 is no half-precision number, and is rounded to even.
    let text = text.replace("mul.bf16", "add.f16");
    let half = |n: f32| u32::from(f16::from_f32(n).to_bits());
    assert_eq!(of_two(&text, half(2048.0), half(1.0)), half(2048.0));
    assert_eq!(of_two(&text, half(2048.0), half(3.0)), half(2052.0));
}
