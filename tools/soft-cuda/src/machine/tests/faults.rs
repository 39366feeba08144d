use super::*;

fn fault(body: &str) -> FaultKind {
    launch(body, [1; 3], [64, 1, 1], &[0; 64], 64).unwrap_err()
}

#[test]
fn memory_beyond_an_allocation() {
    for body in [
        "ld.global.u32 %r1, [%d0+256];",
        "st.global.u32 [%d1-4], %r0;",
        "mov.u64 %d4, 0; ld.u32 %r1, [%d4];",
        "mov.u64 %d4, -4; ld.u32 %r1, [%d4];",
        "ld.shared.u32 %r1, [dynamic+256];",
        "atom.global.add.u32 %r1, [%d0+256], 1;",
        ".local .b32 a[4]; ld.local.u32 %r1, [a+16];",
        "ld.global.u32 %r1, [table+12];",
        "ld.param.u64 %d4, [out+8];",
    ] {
        let kind = fault(body);
        assert!(
            matches!(kind, FaultKind::IllegalAddress { .. }),
            "{body}: {kind}"
        );
    }
}

#[test]
fn misaligned_addresses() {
    for body in [
        "ld.global.u32 %r1, [%d0+2];",
        "ld.global.v2.u32 {%r1, %r2}, [%d0+4];",
        "st.shared.u16 [dynamic+1], %h1;",
        "mov.u32 %r1, dynamic; cp.async.ca.shared.global [%r1], [%d0+4], 8;",
        "mov.u32 %r1, dynamic; cp.async.ca.shared.global [%r1+4], [%d0], 8;",
    ] {
        let kind = fault(body);
        assert!(
            matches!(kind, FaultKind::Misaligned { .. }),
            "{body}: {kind}"
        );
    }
}

#[test]
fn lanes_that_wait_in_vain() {
    let bar_and_shuffle = "
        setp.eq.u32 %p1, %r0, 3;
        @%p1 bra $OTHER;
        bar.warp.sync -1;
        bra $END;
    $OTHER:
        bar.sync 0;
    $END:";
    assert_eq!(fault(bar_and_shuffle), FaultKind::Deadlock);
    assert_eq!(fault("bar.sync 1, 128;"), FaultKind::Deadlock);
    let two_barriers = "
        setp.lt.u32 %p1, %r0, 32;
        @%p1 bar.sync 1;
        @!%p1 bar.sync 2;";
    assert_eq!(fault(two_barriers), FaultKind::Deadlock);
    assert_eq!(fault("trap;"), FaultKind::Trap);
}

#[test]
fn a_failure_says_where_it_happened() {
    let kernel = kernel("setp.eq.u32 %p1, %r0, 37; @%p1 ld.global.u32 %r1, [%d0];");
    let launch = Launch {
        kernel: &kernel,
        grid: [1, 3, 1],
        block: [64, 1, 1],
        dynamic_shared: 0,
        arguments: &[0; 16],
        globals: &[],
        device: &[],
    };
    // SAFETY: there is no memory.
    let error = unsafe { launch.run() }.unwrap_err().to_string();
    for part in ["`k`", "[0, 0, 0]", "warp 1, lane 5", "ld.global.u32", "0x0"] {
        assert!(error.contains(part), "{error} does not say {part}");
    }
}

#[test]
fn unknown_instructions_are_refused() {
    for body in [
        "frobnicate.u32 %r1, %r2;",
        "add.cc.u32 %r1, %r2, %r3;",
        "add.u32 %r1, %r2;",
        "add.u32 5, %r2, %r3;",
        "mov.u32 %tid.x, %r1;",
        "mov.u32 %r1, %nothing;",
        "mov.u32 %r1, _;",
        "bra $NOWHERE;",
        "ld.global.v4.u32 {%r1, %r2}, [%d0];",
        "ld.global.u32 %r1, %r2;",
        "tcgen05.wait::ld.sync.aligned;",
        "cp.async.bulk.commit_group;",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 %r1, %r2, %r3, %r4;",
        "call f;",
        ".local .b8 big[1048576];",
        "setp.eq.u32 %r1;",
    ] {
        let module = Module::parse(&source(body));
        let kernel = module.and_then(|mut module| Kernel::new(module.functions.remove(0)));
        assert!(kernel.is_err(), "{body}");
    }
}
