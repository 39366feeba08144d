use super::*;

#[test]
fn a_guard_keeps_threads_from_the_end() {
    let body = "
        mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0;
        setp.ge.u32 %p1, %r3, 100;
        @%p1 bra $END;
        mul.wide.u32 %d4, %r3, 4; add.s64 %d5, %d0, %d4; add.s64 %d6, %d1, %d4;
        ld.global.f32 %f1, [%d5]; add.f32 %f2, %f1, 0f3F800000; st.global.f32 [%d6], %f2;
    $END:";
    let input: Vec<u32> = (0..100u16).map(|n| f32::from(n).to_bits()).collect();
    let out = launch(body, [4, 1, 1], [32, 1, 1], &input, 100).unwrap();
    let expected: Vec<u32> = (1..101u16).map(|n| f32::from(n).to_bits()).collect();
    assert_eq!(out, expected);
}

#[test]
fn each_lane_loops_as_often_as_it_wants() {
    let body = "
        mov.u32 %r1, 0; mov.u32 %r2, 0;
    $LOOP:
        setp.ge.u32 %p1, %r1, %r0;
        @%p1 bra $END;
        add.u32 %r2, %r2, %r1; add.u32 %r1, %r1, 1;
        bra.uni $LOOP;
    $END:
        activemask.b32 %r3;
        setp.ne.u32 %p2, %r3, -1;
        @%p2 mov.u32 %r2, 9999;
        st.global.u32 [%d3], %r2;";
    let expected: Vec<u32> = (0..32u32).map(|n| (0..n).sum()).collect();
    assert_eq!(warp(body, &[]), expected);
}

#[test]
fn lanes_that_return_are_not_waited_for() {
    let body = "
        setp.ge.u32 %p1, %r0, 16;
        @!%p1 bra $WAIT;
        mov.u32 %r1, 5;
        bra $DONE;
    $WAIT:
        bar.warp.sync -1;
        mov.u32 %r1, 3;
    $DONE:
        st.global.u32 [%d3], %r1;";
    let out = warp(body, &[]);
    assert_eq!((out[0], out[31]), (3, 5));
}

#[test]
fn a_block_adds_up_in_shared_memory() {
    let body = "
        .shared .align 4 .b32 sums[128];
        mov.u32 %r1, sums; mad.lo.u32 %r2, %r0, 4, %r1;
        ld.global.u32 %r3, [%d2]; st.shared.u32 [%r2], %r3;
        mov.u32 %r4, 64;
    $LOOP:
        bar.sync 0;
        setp.ge.u32 %p1, %r0, %r4;
        @%p1 bra $SKIP;
        mad.lo.u32 %r5, %r4, 4, %r2;
        ld.shared.u32 %r6, [%r5]; ld.shared.u32 %r7, [%r2];
        add.u32 %r8, %r6, %r7; st.shared.u32 [%r2], %r8;
    $SKIP:
        shr.u32 %r4, %r4, 1;
        setp.ne.u32 %p2, %r4, 0;
        @%p2 bra $LOOP;
        setp.ne.u32 %p3, %r0, 0;
        @%p3 ret;
        mov.u32 %r9, %ctaid.x; mad.wide.u32 %d4, %r9, 4, %d1;
        ld.shared.u32 %r10, [sums]; st.global.u32 [%d4], %r10;";
    let input: Vec<u32> = (1..129).collect();
    let out = launch(body, [20, 1, 1], [128, 1, 1], &input, 20).unwrap();
    assert_eq!(out, [128 * 129 / 2; 20]);
}

#[test]
fn a_barrier_for_some_warps_does_not_wait_for_others() {
    let body = "
        .shared .b32 x;
        setp.ge.u32 %p1, %r0, 64;
        @%p1 bra $OTHERS;
        bar.sync 1, 64;
        st.global.u32 [%d3], 1;
        bra $ALL;
    $OTHERS:
        st.global.u32 [%d3], 2;
    $ALL:
        bar.sync 0;";
    let body = body
        .replace("[%d3], 1", "[%d3], %r0")
        .replace("[%d3], 2", "[%d3], %r0");
    let out = launch(&body, [1; 3], [96, 1, 1], &[], 96).unwrap();
    assert_eq!(out, (0..96).collect::<Vec<u32>>());
}

#[test]
fn special_registers_say_where_a_thread_is() {
    let body = "
        mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %laneid; mov.u32 %r4, %warpid;
        mov.u32 %r5, %ntid.y; mov.u32 %r6, %nctaid.y; mov.u32 %r7, %ctaid.y; mov.u32 %r8, %lanemask_lt;
        mad.lo.u32 %r9, %r2, 3, %r1; mad.lo.u32 %r9, %r9, 4, %r0;
        mul.wide.u32 %d4, %r9, 32; add.s64 %d5, %d1, %d4;
        st.global.v4.u32 [%d5], {%r1, %r2, %r3, %r4};
        st.global.v4.u32 [%d5+16], {%r5, %r6, %r7, %r8};";
    let out = launch(body, [1, 1, 1], [4, 3, 4], &[], 48 * 8).unwrap();
    // Thread (1, 2, 2) is number 33.
    assert_eq!(out[33 * 8..][..8], [2, 2, 1, 1, 3, 1, 0, 1]);
}
