//! The interface between the blocked products and an instruction set for bf16.

/// Columns of a micro-tile, and so of a panel of the right matrix.
pub(super) const COLUMNS: usize = 32;

/// A micro-kernel and the formats of its factors.
///
/// A word holds the bf16 values of two neighbouring steps of the depth. The right matrix is packed
/// as \[panel\]\[pair of steps\]\[[`COLUMNS`]\] words. The left one has a format of its own per
/// implementation, with `ROWS` words per pair of steps and micro-tile.
pub(crate) trait Micro {
    /// Rows of a micro-tile.
    const ROWS: usize;
    /// The packed depth is a multiple of this many steps, zeros at the end. At most 64, and even.
    const GRAIN: usize;
    /// Depth of a block, a multiple of 64.
    const DEPTH: usize;
    /// Maximum number of micro-tiles in the rows of a block.
    const BLOCK: usize;
    /// Minimum, if the product has as many.
    const LEAST: usize;
    /// State of a thread that calls [`Micro::tile`].
    type Session;

    /// Prepares this thread for [`Micro::tile`] until the session is dropped.
    fn session() -> Self::Session;

    /// Packs `lanes` rows of the left matrix that are adjacent in memory, into micro-tiles that are
    /// `panel` words apart. Steps of the depth are `step` apart.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions; `from` has `depth` steps of `lanes` elements; `to` has room
    /// for whole micro-tiles.
    unsafe fn pack_adjacent(
        lanes: usize,
        depth: usize,
        from: *const f32,
        step: usize,
        to: *mut u32,
        panel: usize,
    );

    /// Packs `rows` rows of the left matrix that are `step` apart. Steps of the depth are adjacent.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions; `from` has the rows; `to` has room for whole micro-tiles.
    unsafe fn pack_rows(
        rows: usize,
        depth: usize,
        from: *const f32,
        step: usize,
        to: *mut u32,
    ) -> Left;

    /// `c (+)= a · b` for a micro-tile; only `rows` × `columns` of it exist.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions and the thread a session; `a` is a packed micro-tile of `depth`
    /// pairs, and the rows beyond `rows` are arbitrary; `b` is a panel of `depth` pairs; `c` has
    /// the rows, `step` apart.
    unsafe fn tile(
        depth: usize,
        a: Left,
        b: *const u32,
        size: (usize, usize),
        c: *mut f32,
        step: usize,
        add: bool,
    );

    /// The pairs of `steps` steps of a packed matrix.
    fn pairs(steps: usize) -> usize {
        steps.next_multiple_of(Self::GRAIN) / 2
    }
}

/// Words of the left matrix.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    pub start: *const u32,
    /// Distance between rows whose pairs are adjacent; 1 in a panel.
    pub row: usize,
}

impl Left {
    /// Creates a panel.
    pub fn panel(start: *const u32) -> Self {
        Self { start, row: 1 }
    }

    /// The panel or rows that begin `words` later.
    ///
    /// # Safety
    ///
    /// The memory holds at least `words` more.
    pub unsafe fn later(self, words: usize) -> Self {
        // SAFETY: guaranteed by the caller.
        let start = unsafe { self.start.add(words) };
        Self { start, ..self }
    }
}
