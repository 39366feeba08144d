//! Makes the thread that trains one of the pool that computes.
//!
//! Operations that begin on any other thread are handed to the pool: that thread sleeps while all the
//! others work, and every operation costs two threads' way to sleep and back.

/// The variable with the number of threads, as rayon reads it.
const VARIABLE: &str = "RAYON_NUM_THREADS";

/// Makes the calling thread the first of rayon's pool, which gets as many threads as ever. Does nothing
/// if the pool has been started.
///
/// With one thread there is nothing to gain, and work from other threads, such as those that load
/// data, would wait for one that never looks for it.
pub fn join_pool() {
    let asked = std::env::var(VARIABLE).ok();
    let threads = asked
        .and_then(|text| text.parse().ok())
        .filter(|&threads| threads > 0)
        .or_else(|| std::thread::available_parallelism().ok().map(usize::from));
    if let Some(threads @ 2..) = threads {
        let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
        if let Err(error) = builder.use_current_thread().build_global() {
            tracing::debug!("the pool of threads stays as it is: {error}");
        }
    }
}
