use super::*;

/// The manual's pseudocode, word for word.
fn shuffled(mode: &str, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let max = (lane & segment) | (clamp & !segment);
    let min = lane & segment;
    let (j, p) = match mode {
        "up" => (lane as i32 - b as i32, lane as i32 - b as i32 >= max as i32),
        "down" => ((lane + b) as i32, lane + b <= max),
        "bfly" => ((lane ^ b) as i32, lane ^ b <= max),
        _ => ((min | (b & !segment)) as i32, (min | (b & !segment)) <= max),
    };
    (if p { j as u32 } else { lane }, p)
}

#[test]
fn shuffles_of_every_mode() {
    for mode in ["up", "down", "bfly", "idx"] {
        for (b, c) in [
            (1, 31),
            (3, 0x1f),
            (1, 0x181f),
            (7, 0x0c03),
            (5, 0),
            (16, 0x1c07),
        ] {
            let body = format!(
                "ld.global.u32 %r1, [%d2];
                 shfl.sync.{mode}.b32 %r2|%p1, %r1, {b}, {c}, -1;
                 selp.u32 %r3, 1000, 0, %p1; add.u32 %r2, %r2, %r3;
                 st.global.u32 [%d3], %r2;"
            );
            let input: Vec<u32> = (100..132).collect();
            let expected: Vec<u32> = (0..32)
                .map(|lane| shuffled(mode, lane, b, c))
                .map(|(from, p)| 100 + from + 1000 * u32::from(p))
                .collect();
            assert_eq!(warp(&body, &input), expected, "{mode} {b} {c}");
        }
    }
}

#[test]
fn lanes_meet_at_a_shuffle_from_both_sides_of_a_branch() {
    let body = "
        setp.lt.u32 %p1, %r0, 10;
        mov.u32 %r1, 1;
        @%p1 bra $FEW;
        mov.u32 %r1, 2;
    $FEW:
        shfl.sync.idx.b32 %r2, %r1, 31, 31, -1;
        shfl.sync.idx.b32 %r3, %r1, 0, 31, -1;
        mad.lo.u32 %r4, %r2, 10, %r3;
        st.global.u32 [%d3], %r4;";
    assert_eq!(warp(body, &[]), [21; 32]);
}

#[test]
fn votes() {
    let body = "
        setp.lt.u32 %p1, %r0, 4; setp.lt.u32 %p2, %r0, 99;
        vote.sync.ballot.b32 %r1, %p1, -1;
        vote.sync.any.pred %p3, %p1, -1; vote.sync.all.pred %p4, %p1, -1;
        vote.sync.all.pred %p5, %p2, -1; vote.sync.uni.pred %p6, %p1, -1;
        selp.u32 %r2, 0x100, 0, %p3; or.b32 %r1, %r1, %r2;
        selp.u32 %r2, 0x200, 0, %p4; or.b32 %r1, %r1, %r2;
        selp.u32 %r2, 0x400, 0, %p5; or.b32 %r1, %r1, %r2;
        selp.u32 %r2, 0x800, 0, %p6; or.b32 %r1, %r1, %r2;
        st.global.u32 [%d3], %r1;";
    assert_eq!(warp(body, &[]), [0x50f; 32]);
}

#[test]
fn one_lane_is_elected() {
    let body = "
        setp.lt.u32 %p1, %r0, 8;
        mov.u32 %r2, 77;
        @%p1 bra $END;
        elect.sync %r1|%p2, 0xffffff00;
        selp.u32 %r2, 1, 0, %p2; mad.lo.u32 %r2, %r1, 10, %r2;
    $END:
        st.global.u32 [%d3], %r2;";
    let out = warp(body, &[]);
    assert_eq!((out[7], out[8], out[9], out[31]), (77, 81, 80, 80));
}

#[test]
fn atomics_of_all_lanes_and_blocks() {
    let body = "
        .shared .b32 count;
        setp.ne.u32 %p1, %r0, 0;
        mov.u32 %r1, 0;
        @%p1 bra $START;
        st.shared.u32 [count], %r1;
        $START: bar.sync 0;
        atom.shared.add.u32 %r2, [count], 1;
        red.global.add.u32 [%d1], 2;
        atom.global.add.f32 %f1, [%d1+4], 0f3F000000;
        atom.global.max.s32 %r3, [%d1+8], %r2;
        red.global.inc.u32 [%d1+12], 6;
        cvta.shared.u64 %d9, 0;";
    let body = &body.replace("cvta.shared.u64 %d9, 0;", "");
    let head = "@%p9 bra $NEVER; $NEVER:";
    let body = format!("setp.eq.u32 %p9, 0, 1; {head} {body}");
    // The output starts as ones: the first word counts from -1, the float is NaN.
    let out = launch(&body, [16, 1, 1], [64, 1, 1], &[], 4).unwrap();
    assert_eq!(out[0], 2 * 16 * 64 - 1);
    assert!(f32::from_bits(out[1]).is_nan());
    assert_eq!(out[2], 63);
    // From all ones to 0, and around in seven steps.
    assert_eq!(out[3], (16 * 64 - 1) % 7);
}

#[test]
fn compare_and_swap_sums_floats() {
    let body = "
        mov.u32 %r1, 0;
        setp.eq.u32 %p1, %r0, 0;
        @%p1 st.global.u32 [%d1], %r1;
        bar.sync 0;
    $AGAIN:
        ld.global.u32 %r2, [%d1];
        add.f32 %r3, %r2, 0f3F800000;
        atom.global.cas.b32 %r4, [%d1], %r2, %r3;
        setp.ne.u32 %p2, %r4, %r2;
        @%p2 bra $AGAIN;";
    let out = launch(body, [1; 3], [128, 1, 1], &[], 1).unwrap();
    assert_eq!(f32::from_bits(out[0]), 128.0);
}
