//! The compute pool, in a separate process, because a process has only one.

use burn_dist::thread_pool::PoolSize;
use burn_dist::world::World;
use rayon::prelude::*;

#[test]
fn the_calling_thread_is_the_first_of_the_pool() {
    let size = PoolSize::of_rank(&World::single());
    size.join().expect("a few threads");
    assert_eq!(rayon::current_num_threads(), size.threads());
    let expected = (size.threads() > 1).then_some(0);
    assert_eq!(rayon::current_thread_index(), expected);

    let sum = || (0..10_000u64).into_par_iter().sum::<u64>();
    assert_eq!(sum(), 49_995_000);
    // This thread waits meanwhile and does not work for the pool.
    let elsewhere = std::thread::spawn(sum).join();
    assert_eq!(elsewhere.expect("no panic"), 49_995_000);

    // Too late for an effect, but no error.
    size.join().expect("nothing to do");
    size.start().expect("nothing to do");
    assert_eq!(rayon::current_thread_index(), expected);
}
