use super::*;
use crate::machine::Other;

/// Runs a body in two warps of each block and detects races.
fn watched(body: &str, blocks: u32) -> Result<(), FaultKind> {
    let to = Buffer::new(4096).unwrap();
    let input = vec![0; 1024];
    // SAFETY: only this launch has the buffers.
    let ran = prepared(
        body,
        [blocks, 1, 1],
        [64, 1, 1],
        &input,
        &to,
        |launch| unsafe { launch.run_watched() },
    );
    match ran {
        Ok(()) => Ok(()),
        Err(LaunchError::Failed(failure)) => Err(failure.kind),
        Err(error) => panic!("{error}"),
    }
}

/// Checks that there is a race without a line of the body, and none with it.
fn needs(line: &str, body: &str) {
    assert!(body.contains(line));
    assert_eq!(watched(body, 3), Ok(()), "{body}");
    let without = body.replacen(line, "", 1);
    let raced = watched(&without, 3);
    assert!(
        matches!(raced, Err(FaultKind::Race { .. })),
        "{raced:?} without `{line}`: {body}"
    );
}

/// The thread's word of shared memory at `%r1`, and the same word of the other warp at `%r2`.
const WORDS: &str = "
    mov.u32 %r5, dynamic;
    shl.b32 %r1, %r0, 2; xor.b32 %r2, %r1, 128;
    add.u32 %r1, %r1, %r5; add.u32 %r2, %r2, %r5;";

#[test]
fn what_another_warp_wrote_is_read_behind_a_barrier() {
    let body = format!("{WORDS} st.shared.u32 [%r1], %r0; bar.sync 0; ld.shared.u32 %r3, [%r2];");
    needs("bar.sync 0;", &body);
    // The barrier of its own warp is not enough.
    needs("bar.sync 0;", &format!("{body} bar.warp.sync -1;"));
    let by_parts = body.replacen("st.shared.u32 [%r1], %r0;", "st.shared.u16 [%r1], %h1;", 1);
    needs("bar.sync 0;", &by_parts);
}

#[test]
fn what_another_warp_reads_is_overwritten_behind_a_barrier() {
    let body = format!(
        "{WORDS} st.shared.u32 [%r1], %r0; bar.sync 1;
         ld.shared.u32 %r3, [%r2]; bar.sync 0; st.shared.u32 [%r1], %r3;"
    );
    needs("bar.sync 0;", &body);
    needs("bar.sync 1;", &body);
}

#[test]
fn what_another_lane_wrote_is_read_behind_a_barrier_of_the_warp() {
    let body = format!(
        "{WORDS} xor.b32 %r2, %r1, 4;
         st.shared.u32 [%r1], %r0; bar.warp.sync -1; ld.shared.u32 %r3, [%r2];"
    );
    needs("bar.warp.sync -1;", &body);
    let shuffled = body.replacen(
        "bar.warp.sync -1;",
        "shfl.sync.idx.b32 %r6|%p1, %r0, 0, 31, -1;",
        1,
    );
    assert!(watched(&shuffled, 1).is_err());
}

#[test]
fn lanes_read_what_all_have_read() {
    let body = "ld.shared.u32 %r3, [dynamic]; ld.global.u32 %r3, [%d0];";
    assert_eq!(watched(body, 2), Ok(()));
}

#[test]
fn two_lanes_do_not_write_to_one_place() {
    let raced = watched("st.shared.u32 [dynamic], %r0;", 1);
    let other = Other::Thread {
        warp: Some(0),
        lane: Some(0),
        wrote: true,
    };
    assert_eq!(raced, Err(FaultKind::Race { address: 0, other }));
    let words = "warp 0, lane 0, which wrote it";
    assert!(raced.unwrap_err().to_string().ends_with(words));
}

#[test]
fn copies_are_waited_for_and_then_shared_behind_a_barrier() {
    let body = format!(
        "{WORDS}
         cp.async.ca.shared.global [%r1], [%d2], 4;
         cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
         ld.shared.u32 %r3, [%r2];"
    );
    needs("bar.sync 0;", &body);
    needs("cp.async.wait_group 0;", &body);
    // Even for a thread's own copies.
    needs(
        "cp.async.wait_group 0;",
        &body.replacen("[%r2]", "[%r1]", 1),
    );
}

#[test]
fn a_copy_may_write_as_soon_as_it_begins() {
    let body = format!(
        "{WORDS}
         st.shared.u32 [%r1], %r0; bar.sync 1;
         ld.shared.u32 %r3, [%r2]; bar.sync 0;
         cp.async.ca.shared.global [%r1], [%d2], 4;
         cp.async.wait_all;"
    );
    needs("bar.sync 0;", &body);
}

#[test]
fn a_copy_that_no_block_waits_for_is_not_the_next_blocks() {
    let body =
        format!("{WORDS} ld.shared.u32 %r3, [%r1]; cp.async.ca.shared.global [%r1], [%d2], 4;");
    assert_eq!(watched(&body, 3), Ok(()));
}

#[test]
fn atomics_do_not_race_with_each_other() {
    let add = "atom.shared.add.u32 %r3, [dynamic], 1; atom.global.add.u32 %r3, [%d1], 1;";
    assert_eq!(watched(add, 2), Ok(()));
    needs(
        "bar.sync 0;",
        &format!("{add} bar.sync 0; ld.shared.u32 %r3, [dynamic];"),
    );
    let volatile = "st.volatile.shared.u32 [dynamic], %r0; ld.volatile.shared.u32 %r3, [dynamic];";
    assert_eq!(watched(volatile, 1), Ok(()));
}

#[test]
fn blocks_race_whatever_barriers_they_have() {
    let between_blocks = |body: &str, blocks| match watched(body, blocks) {
        Err(FaultKind::Race { other, .. }) => other == Other::Block,
        other => {
            assert_eq!(other, Ok(()));
            false
        }
    };
    // Each thread accesses its own word, the same in each block.
    let write = "st.global.u32 [%d3], %r0; bar.sync 0;";
    assert_eq!(watched(write, 1), Ok(()));
    assert!(between_blocks(write, 2));
    let own = "mov.u32 %r1, %ctaid.x; mad.wide.u32 %d3, %r1, 256, %d3;";
    assert!(!between_blocks(&format!("{own} {write}"), 4));
    let neighbour = format!("{own} {write} xor.b64 %d4, %d3, 256; ld.global.u32 %r3, [%d4];");
    assert!(between_blocks(&neighbour, 2));
    let read_of_added = "atom.global.add.u32 %r3, [%d3], 1; bar.sync 0; ld.global.u32 %r3, [%d3];";
    assert_eq!(watched(read_of_added, 1), Ok(()));
    assert!(between_blocks(read_of_added, 2));
}
