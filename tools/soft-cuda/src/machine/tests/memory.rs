use super::*;

#[test]
fn vectors_of_every_width() {
    let body = "
        ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d0];
        ld.global.v2.u16 {%h1, %h2}, [%d0+16];
        ld.global.nc.v4.u8 {%h3, %h4, %h5, _}, [%d0+20];
        ld.global.s8 %r5, [%d0+23];
        cvt.u32.u16 %r6, %h1; cvt.u32.u16 %r7, %h2; cvt.u32.u16 %r8, %h4;
        st.global.v4.u32 [%d1], {%r4, %r3, %r2, %r1};
        st.global.v4.u32 [%d1+16], {%r5, %r6, %r7, %r8};
        st.global.v2.u16 [%d1+32], {%h2, %h1};";
    let input = [1, 2, 3, 4, 0x000b_000a, 0xfe0c_0d0e];
    let out = launch(body, [1; 3], [1; 3], &input, 9).unwrap();
    assert_eq!(out, [4, 3, 2, 1, 0xffff_fffe, 10, 11, 0x0d, 0x000a_000b]);
}

#[test]
fn packing_and_unpacking() {
    let body = "
        ld.global.v2.u32 {%r1, %r2}, [%d0];
        mov.b64 %d4, {%r1, %r2};
        mov.b64 {%r3, %r4}, %d4;
        mov.b32 {%h1, %h2}, %r3;
        mov.b32 %r5, {%h2, %h1};
        mov.b64 {_, %r6}, %d4;
        st.global.u64 [%d1], %d4;
        st.global.v2.u32 [%d1+8], {%r5, %r6};";
    let out = launch(body, [1; 3], [1; 3], &[0x0002_0001, 7], 4).unwrap();
    assert_eq!(out, [0x0002_0001, 7, 0x0001_0002, 7]);
}

#[test]
fn each_lane_has_its_own_local_memory() {
    let body = "
        .local .align 8 .b8 depot[64];
        .reg .b64 %SP; .reg .b64 %SPL;
        mov.u64 %SPL, depot;
        cvta.local.u64 %SP, %SPL;
        and.b32 %r1, %r0, 7; mul.wide.u32 %d4, %r1, 8; add.u64 %d5, %SP, %d4;
        st.u32 [%d5], %r0;
        add.u64 %d6, %SPL, %d4;
        ld.local.u32 %r2, [%d6];
        st.global.u32 [%d3], %r2;";
    assert_eq!(warp(body, &[]), (0..32).collect::<Vec<u32>>());
}

#[test]
fn tables_and_shared_memory_through_generic_addresses() {
    let body = "
        .shared .align 8 .b8 own[16];
        mov.u64 %d4, table; ld.global.u32 %r1, [%d4+8]; ld.u32 %r2, [table];
        mov.u64 %d5, own; cvta.shared.u64 %d6, %d5; st.u32 [%d6+4], %r1;
        ld.shared.u32 %r3, [own+4];
        cvta.to.shared.u64 %d7, %d6; cvt.u32.u64 %r4, %d7; ld.shared.u32 %r5, [%r4+4];
        mov.u32 %r6, dynamic; st.shared.u32 [%r6+252], %r2; ld.shared.u32 %r7, [dynamic+252];
        st.global.v4.u32 [%d1], {%r2, %r3, %r5, %r7};";
    assert_eq!(launch(body, [1; 3], [1; 3], &[], 4).unwrap(), [7, 9, 9, 7]);
}

#[test]
fn copies_to_shared_memory() {
    let body = "
        .shared .align 16 .b8 tile[64];
        mov.u32 %r1, tile;
        cp.async.cg.shared.global [%r1], [%d0], 16;
        cp.async.ca.shared.global.L2::128B [%r1+16], [%d0+16], 16, 4;
        cp.async.ca.shared.global [%r1+32], [%d0+4], 4, 0;
        cp.async.commit_group; cp.async.wait_group 0;
        ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [tile];
        ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [tile+16];
        ld.shared.v2.u32 {%r10, %r11}, [tile+32];
        st.global.v4.u32 [%d1], {%r2, %r3, %r4, %r5};
        st.global.v4.u32 [%d1+16], {%r6, %r7, %r8, %r9};
        st.global.v2.u32 [%d1+32], {%r10, %r11};";
    let out = launch(body, [1; 3], [1; 3], &[1, 2, 3, 4, 5, 6, 7, 8], 10).unwrap();
    // Unwritten memory is not zero.
    assert_eq!(out, [1, 2, 3, 4, 5, 0, 0, 0, 0, u32::MAX]);
}

#[test]
fn copies_arrive_when_they_are_waited_for() {
    let body = "
        .shared .align 16 .b8 tile[16];
        mov.u32 %r1, 7; st.shared.v4.u32 [tile], {%r1, %r1, %r1, %r1};
        mov.u32 %r1, tile;
        cp.async.ca.shared.global [%r1], [%d0], 4; cp.async.commit_group;
        cp.async.ca.shared.global [%r1+4], [%d0+4], 4; cp.async.commit_group;
        cp.async.ca.shared.global [%r1+8], [%d0+8], 4;
        ld.shared.u32 %r2, [tile];
        cp.async.wait_group 1;
        ld.shared.v2.u32 {%r3, %r4}, [tile];
        cp.async.wait_group 0;
        ld.shared.u32 %r5, [tile+4]; ld.shared.u32 %r6, [tile+8];
        cp.async.wait_all;
        ld.shared.u32 %r7, [tile+8];
        st.global.v4.u32 [%d1], {%r2, %r3, %r4, %r5};
        st.global.v2.u32 [%d1+16], {%r6, %r7};";
    let out = launch(body, [1; 3], [1; 3], &[1, 2, 3, 4], 6).unwrap();
    assert_eq!(out, [7, 1, 7, 2, 7, 3]);
}

#[test]
fn shared_memory_is_forgotten_between_blocks() {
    let body = "
        .shared .b32 x;
        ld.shared.u32 %r1, [x]; mov.u32 %r2, 5; st.shared.u32 [x], %r2;
        mov.u32 %r3, %ctaid.x; mad.wide.u32 %d4, %r3, 4, %d1;
        st.global.u32 [%d4], %r1;";
    let out = launch(body, [8, 1, 1], [1; 3], &[], 8).unwrap();
    assert_eq!(out, [u32::MAX; 8]);
}
