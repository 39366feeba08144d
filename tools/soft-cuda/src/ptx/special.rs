//! Special registers (PTX ISA, "Special Registers").

/// A dimension of a grid or a block.
pub type Axis = usize;

/// Value of a special register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// `%tid`: the thread within the block.
    Thread(Axis),
    /// `%ntid`: threads of the block.
    Threads(Axis),
    /// `%ctaid`: the block within the grid.
    Block(Axis),
    /// `%nctaid`: blocks of the grid.
    Blocks(Axis),
    /// `%laneid`
    Lane,
    /// `%warpid`
    Warp,
    /// `%nwarpid`
    Warps,
    /// `%lanemask_eq`
    LanesEqual,
    /// `%lanemask_lt`
    LanesBelow,
    /// `%lanemask_le`
    LanesUpTo,
    /// `%lanemask_gt`
    LanesAbove,
    /// `%lanemask_ge`
    LanesFrom,
    /// `%dynamic_smem_size`: bytes of dynamic shared memory.
    DynamicShared,
    /// A constant: a cluster is one block, clocks stand still.
    Always(u64),
}

impl Special {
    /// Returns the register of this name, which includes its `%`.
    pub fn of(name: &str) -> Option<Self> {
        if let Some((vector, axis)) = name.split_once('.') {
            let axis = ["x", "y", "z"].iter().position(|&of| of == axis)?;
            return Self::vector(vector, axis);
        }
        Some(match name {
            "%laneid" => Self::Lane,
            "%warpid" => Self::Warp,
            "%nwarpid" => Self::Warps,
            "%lanemask_eq" => Self::LanesEqual,
            "%lanemask_lt" => Self::LanesBelow,
            "%lanemask_le" => Self::LanesUpTo,
            "%lanemask_gt" => Self::LanesAbove,
            "%lanemask_ge" => Self::LanesFrom,
            "%dynamic_smem_size" => Self::DynamicShared,
            "%cluster_nctarank" | "%is_explicit_cluster" => Self::Always(1),
            "%cluster_ctarank" | "%clusterid" | "%smid" | "%gridid" => Self::Always(0),
            "%clock" | "%clock_hi" | "%clock64" | "%globaltimer" => Self::Always(0),
            "%globaltimer_lo" | "%globaltimer_hi" => Self::Always(0),
            "WARP_SZ" => Self::Always(32),
            _ => return None,
        })
    }

    fn vector(name: &str, axis: Axis) -> Option<Self> {
        Some(match name {
            "%tid" => Self::Thread(axis),
            "%ntid" => Self::Threads(axis),
            "%ctaid" | "%clusterid" => Self::Block(axis),
            "%nctaid" | "%nclusterid" => Self::Blocks(axis),
            "%cluster_ctaid" => Self::Always(0),
            "%cluster_nctaid" => Self::Always(1),
            _ => return None,
        })
    }
}
