use super::*;

fn of(instruction: &str, a: u32) -> u32 {
    of_two(instruction, a, 0)
}

/// Converts through a register of 16 bits.
fn to_half(kind: &str, a: f32) -> u32 {
    let text = format!("cvt.{kind}.f32 %h1, %r1; cvt.u32.u16 %r3, %h1;");
    of(&text, a.to_bits())
}

#[test]
fn from_single_precision_to_half() {
    // 1 + 2⁻¹¹ lies midway between two half-precision numbers.
    let middle = 1.0 + 1.0 / 2048.0;
    for (kind, a, expected) in [
        ("rn.f16", 1.0, 0x3c00),
        ("rn.f16", middle, 0x3c00),
        ("rz.f16", middle, 0x3c00),
        ("rp.f16", middle, 0x3c01),
        ("rm.f16", -middle, 0xbc01),
        ("rz.f16", -middle, 0xbc00),
        ("rn.f16", 1e6, 0x7c00),
        ("rz.f16", 1e6, 0x7bff),
        ("rn.f16", 6e-8, 0x0001),
        ("rn.relu.f16", -3.0, 0x0000),
        ("rn.bf16", 1.0, 0x3f80),
        ("rn.bf16", 1.0 + 1.0 / 256.0, 0x3f80),
        ("rn.bf16", 1.0 + 3.0 / 256.0, 0x3f82),
        ("rz.bf16", 1.0 + 3.0 / 256.0, 0x3f81),
    ] {
        assert_eq!(to_half(kind, a), expected, "{kind} {a}");
    }
}

#[test]
fn two_at_once() {
    let (high, low) = (1f32.to_bits(), (-2f32).to_bits());
    let out = of_two("cvt.rn.f16x2.f32 %r3, %r1, %r2;", high, low);
    assert_eq!(out, 0x3c00_c000);
    let out = of_two("cvt.rn.bf16x2.f32 %r3, %r1, %r2;", high, low);
    assert_eq!(out, 0x3f80_c000);
    let out = of_two("cvt.rn.relu.bf16x2.f32 %r3, %r1, %r2;", high, low);
    assert_eq!(out, 0x3f80_0000);
}

#[test]
fn from_half_to_single_precision() {
    let text = "cvt.u16.u32 %h1, %r1; cvt.f32.f16 %r3, %h1;";
    for bits in [0u16, 0x8000, 0x3c00, 0x0001, 0x7bff, 0x7c00] {
        let expected = half::f16::from_bits(bits).to_f32().to_bits();
        assert_eq!(of(text, bits.into()), expected, "{bits:x}");
        let text = text.replace("f32.f16", "f32.bf16");
        assert_eq!(of(&text, bits.into()), u32::from(bits) << 16, "{bits:x}");
    }
}

#[test]
fn to_whole_numbers() {
    for (kind, a, expected) in [
        ("rni.s32.f32", 2.5, 2),
        ("rni.s32.f32", 3.5, 4),
        ("rzi.s32.f32", -2.9, -2),
        ("rmi.s32.f32", -2.1, -3),
        ("rpi.s32.f32", 2.1, 3),
        ("rzi.s32.f32", 1e20, i32::MAX),
        ("rzi.u32.f32", -1.0, 0),
        ("rzi.u32.f32", 4e9, 4_000_000_000u32 as i32),
        ("rzi.s32.f32", f32::NAN, 0),
    ] {
        let out = of(&format!("cvt.{kind} %r3, %r1;"), a.to_bits());
        assert_eq!(out as i32, expected, "{kind} {a}");
    }
    let round = of("cvt.rni.f32.f32 %r3, %r1;", 2.5f32.to_bits());
    assert_eq!(f32::from_bits(round), 2.0);
    let limited = of("cvt.sat.f32.f32 %r3, %r1;", 2.5f32.to_bits());
    assert_eq!(f32::from_bits(limited), 1.0);
}

#[test]
fn from_whole_numbers() {
    let float = |kind: &str, a: u32| f32::from_bits(of(&format!("cvt.{kind} %r3, %r1;"), a));
    assert_eq!(float("rn.f32.s32", u32::MAX), -1.0);
    assert_eq!(float("rn.f32.u32", 0x0100_0001), 16_777_216.0);
    assert_eq!(float("rp.f32.u32", 0x0100_0001), 16_777_218.0);
    assert_eq!(float("rz.f32.u32", 0x0100_0003), 16_777_218.0);
    let text = "cvt.rn.bf16.s32 %h1, %r1; cvt.u32.u16 %r3, %h1;";
    // Rounding in two steps would give 0x4380.
    assert_eq!(of(text, 257), 0x4380);
    assert_eq!(of(text, 0x0101_0001), 0x4b81);
}

#[test]
fn between_integers_the_sign_counts() {
    let cases = [
        ("cvt.s32.s8", 0x80, 0xffff_ff80),
        ("cvt.u32.u8", 0x1ff, 0xff),
        ("cvt.s32.s16", 0x8000, 0xffff_8000),
        ("cvt.sat.u8.s32", 300, 255),
        ("cvt.sat.s8.s32", 300, 127),
        ("cvt.sat.u8.s32", u32::MAX, 0),
    ];
    for (name, a, expected) in cases {
        assert_eq!(of(&format!("{name} %r3, %r1;"), a), expected, "{name}");
    }
    let wide = "cvt.s64.s32 %d13, %r2;";
    assert_eq!(of_two_wide(wide, 0, 0xffff_fffe), -2i64 as u64);
    assert_eq!(
        of_two_wide("cvt.u64.u32 %d13, %r2;", 0, 0xffff_fffe),
        0xffff_fffe
    );
}

#[test]
fn to_the_format_of_tensor_cores() {
    let text = "cvt.rna.tf32.f32 %r3, %r1;";
    assert_eq!(of(text, 0x3f80_0fff), 0x3f80_0000);
    assert_eq!(of(text, 0x3f80_1000), 0x3f80_2000);
    assert_eq!(of(text, 0x7fff_ffff), 0x7fff_ffff);
    assert_eq!(of("cvt.rn.tf32.f32 %r3, %r1;", 0x3f80_1000), 0x3f80_0000);
}
