//! The agreement of all ranks before every batch.

use burn_dist::{Error, ProcessGroup, ReduceOp};

/// The state of all ranks before a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Whether any rank has a batch.
    pub(crate) any: bool,
    /// Whether all ranks have a batch.
    pub(crate) all: bool,
    /// A rank that was asked to stop.
    pub(crate) stopped_by: Option<usize>,
}

impl Turn {
    /// Tells the others whether this rank has a batch, and whether it was asked to stop. A
    /// collective call.
    pub(crate) fn agree(group: &ProcessGroup, has: bool, stops: bool) -> Result<Self, Error> {
        let stops = match stops {
            true => 1 + group.rank() as i64,
            false => 0,
        };
        let mut said = [i64::from(has), i64::from(!has), stops];
        group.all_reduce::<i64>(&mut said, ReduceOp::Max)?;
        let [any, lacks, stopped_by] = said;
        Ok(Self {
            any: any != 0,
            all: lacks == 0,
            stopped_by: usize::try_from(stopped_by - 1).ok(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_dist::GroupOptions;

    #[test]
    fn every_rank_knows_of_all() {
        let groups = ProcessGroup::in_process(3, &GroupOptions::default()).unwrap();
        let turn = |group: ProcessGroup| {
            let rank = group.rank();
            [
                Turn::agree(&group, true, false).unwrap(),
                Turn::agree(&group, rank == 1, rank == 2).unwrap(),
                Turn::agree(&group, false, false).unwrap(),
            ]
        };
        std::thread::scope(|scope| {
            let ranks: Vec<_> = groups
                .into_iter()
                .map(|group| scope.spawn(move || turn(group)))
                .collect();
            for rank in ranks {
                let expected = [
                    (true, true, None),
                    (true, false, Some(2)),
                    (false, false, None),
                ];
                let expected = expected.map(|(any, all, stopped_by)| Turn {
                    any,
                    all,
                    stopped_by,
                });
                assert_eq!(rank.join().unwrap(), expected);
            }
        });
    }
}
