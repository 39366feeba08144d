//! Memory for short, repeated use: gathered parameters and gradients in flight.
//!
//! The allocator would leave holes between pieces of megabytes that come and go (a third of the
//! heap under ZeRO-3), and would clear the pages each time.

use parking_lot::Mutex;

use super::Line;

/// Largest number of free pieces. Training has fewer in flight; code that gathered a whole model
/// returns more.
const KEPT: usize = 8;

/// Lines of the smallest piece that is kept: 64 KiB. Smaller pieces have many sizes and would drive
/// out the large ones, and the allocator handles them well.
const LEAST: usize = 1024;

/// Free pieces, and the largest number of lines in use so far.
struct Pool {
    free: Vec<Vec<Line>>,
    free_lines: usize,
    used_lines: usize,
    most_used: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool::new());

impl Pool {
    const fn new() -> Self {
        Self {
            free: Vec::new(),
            free_lines: 0,
            used_lines: 0,
            most_used: 0,
        }
    }

    /// Takes the smallest free piece that suffices, but none of twice the length.
    fn take(&mut self, lines: usize) -> Option<Vec<Line>> {
        let fits = |piece: &Vec<Line>| piece.len() >= lines && piece.len() / 2 <= lines;
        let candidates = self
            .free
            .iter()
            .enumerate()
            .filter(|(_, piece)| fits(piece));
        // The latest among pieces of equal length: it may still be in the cache.
        let (index, _) = candidates.rev().min_by_key(|(_, piece)| piece.len())?;
        let piece = self.free.remove(index);
        self.free_lines -= piece.len();
        Some(piece)
    }

    fn lend(&mut self, lines: usize) {
        self.used_lines += lines;
        self.most_used = self.most_used.max(self.used_lines);
    }

    /// Keeps a piece. Returns pieces beyond the largest use so far.
    fn keep(&mut self, piece: Vec<Line>) -> Vec<Vec<Line>> {
        self.used_lines -= piece.len();
        self.free_lines += piece.len();
        self.free.push(piece);
        let mut surplus = Vec::new();
        while self.free.len() > KEPT
            || self.free_lines + self.used_lines > self.most_used && !self.free.is_empty()
        {
            let oldest = self.free.remove(0);
            self.free_lines -= oldest.len();
            surplus.push(oldest);
        }
        surplus
    }
}

fn with_pool<R>(action: impl FnOnce(&mut Pool) -> R) -> R {
    action(&mut POOL.lock())
}

/// Memory that returns to the pool, unless it is small.
pub(super) struct Recycled {
    lines: Vec<Line>,
}

impl Recycled {
    /// At least `lines` lines of arbitrary contents.
    pub(super) fn new(lines: usize) -> Self {
        let is_kept = lines >= LEAST;
        let found = is_kept
            .then(|| with_pool(|pool| pool.take(lines)))
            .flatten();
        let mut lines = found.unwrap_or_else(|| vec![Line([0; 64]); lines]);
        if cfg!(test) {
            // NaN, so that a read of an unwritten element shows.
            lines.fill(Line([0xff; 64]));
        }
        if is_kept {
            with_pool(|pool| pool.lend(lines.len()));
        }
        Self { lines }
    }

    pub(super) fn lines(&self) -> &[Line] {
        &self.lines
    }

    pub(super) fn lines_mut(&mut self) -> &mut [Line] {
        &mut self.lines
    }
}

impl Drop for Recycled {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        if lines.len() < LEAST {
            return;
        }
        // Dropped here, outside the lock.
        let _surplus = with_pool(|pool| pool.keep(lines));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(lines: usize) -> Vec<Line> {
        vec![Line([0; 64]); lines]
    }

    #[test]
    fn pieces_come_back_for_like_sizes_only() {
        let mut pool = Pool::new();
        pool.lend(100);
        assert!(pool.keep(piece(100)).is_empty());
        assert!(pool.take(101).is_none());
        assert!(pool.take(49).is_none());
        assert_eq!(pool.take(90).map(|piece| piece.len()), Some(100));
        assert!(pool.take(90).is_none());
    }

    #[test]
    fn a_whole_model_is_not_kept() {
        let mut pool = Pool::new();
        (0..100).for_each(|_| pool.lend(10));
        let surplus: usize = (0..100).map(|_| pool.keep(piece(10)).len()).sum();
        assert_eq!((surplus, pool.free.len()), (100 - KEPT, KEPT));
    }

    #[test]
    fn no_more_is_kept_than_was_in_use_at_once() {
        let mut pool = Pool::new();
        for lines in [100, 300, 1000] {
            assert!(pool.take(lines).is_none());
            pool.lend(lines);
            pool.keep(piece(lines));
            assert!(pool.free_lines <= pool.most_used);
        }
        assert_eq!((pool.free.len(), pool.used_lines), (1, 0));
    }
}
