//! The compute pool, in a separate process, because a process has only one.

use rayon::prelude::*;

#[test]
fn the_calling_thread_is_the_first_of_the_pool() {
    trainer::system::threads::join_pool(1);
    let expected = (rayon::current_num_threads() > 1).then_some(0);
    assert_eq!(rayon::current_thread_index(), expected);

    let sum = || (0..10_000u64).into_par_iter().sum::<u64>();
    assert_eq!(sum(), 49_995_000);
    // This thread waits meanwhile and does not work for the pool.
    let elsewhere = std::thread::spawn(sum).join();
    assert_eq!(elsewhere.expect("no panic"), 49_995_000);

    // Too late for an effect, but no error.
    trainer::system::threads::join_pool(1);
    assert_eq!(rayon::current_thread_index(), expected);
}
