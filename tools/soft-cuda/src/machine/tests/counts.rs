use super::*;
use crate::machine::{Count, Counts, Unit};

/// Counts the work of the blocks of a grid, of which at most `most` are run.
fn counted(body: &str, blocks: u32, threads: u32, most: u64) -> Counts {
    let to = Buffer::new(4096).unwrap();
    let input = vec![0; 1024];
    let (grid, block) = ([blocks, 1, 1], [threads, 1, 1]);
    // SAFETY: only this launch has the buffers.
    let counts = prepared(body, grid, block, &input, &to, |launch| unsafe {
        launch.run_counted(most)
    });
    counts.unwrap()
}

#[test]
fn neighbours_share_sectors_and_strangers_do_not() {
    let body = "
        ld.global.u32 %r1, [%d2];
        mad.wide.u32 %d4, %r0, 64, %d0;
        ld.global.u32 %r2, [%d4];
        st.global.u32 [%d3], %r1;";
    let counts = counted(body, 1, 32, 1);
    let loads = Count {
        instructions: 2,
        lanes: 64,
        bytes: 256,
        sectors: 4 + 32,
        ..Count::default()
    };
    assert_eq!(counts.of[&Unit::Load], loads);
    assert_eq!(counts.of[&Unit::Store].sectors, 4);
    // Both loads read sectors 0 and 2 of the input.
    assert_eq!((counts.read, counts.written), (4 + 32 - 2, 4));
}

#[test]
fn lanes_that_want_one_bank_wait_for_each_other() {
    // Words of the same bank, of different ones, and one for all.
    for (factor, wavefronts) in [(8, 2), (4, 1), (0, 1)] {
        let body = format!("mul.lo.u32 %r1, %r0, {factor}; ld.shared.u32 %r3, [%r1];");
        let count = counted(&body, 1, 32, 1).of[&Unit::SharedLoad];
        let found = (count.wavefronts, count.least_wavefronts);
        assert_eq!(found, (wavefronts, 1), "{factor}");
    }
    let wide = "mul.lo.u32 %r1, %r0, 16; and.b32 %r1, %r1, 255; ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r1];";
    let count = counted(wide, 1, 32, 1).of[&Unit::SharedLoad];
    assert_eq!((count.wavefronts, count.least_wavefronts), (4, 4));
}

#[test]
fn some_blocks_stand_for_all() {
    let body = "setp.eq.u32 %p1, %r0, 0; @%p1 st.global.u32 [%d3], %r0;";
    let counts = counted(body, 1000, 64, 3);
    assert_eq!(counts.blocks, 3);
    let stores = counts.of[&Unit::Store];
    assert_eq!((stores.instructions, stores.lanes), (3, 3));
    assert_eq!(counted(body, 2, 64, 3).blocks, 2);
}
