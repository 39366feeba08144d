//! How far every rank is, asked from beside the collectives.

use std::sync::Weak;
use std::time::Duration;

use super::members::Members;
use crate::rendezvous::Store;

/// State of a rank, in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankState {
    /// The rank has entered this collective of the group, counted from the first.
    Reached(u64),
    /// The same, and it reads or writes files.
    Busy(u64),
    /// The rank last entered a collective of another group.
    Elsewhere,
    /// The rank does not answer: its process is stopped or gone.
    Silent,
}

/// Asks the ranks of a group what they do. Other than a collective, one rank calls it alone.
///
/// It does not keep the group connected.
#[derive(Clone, Debug)]
pub struct RankStates {
    store: Option<Weak<Store>>,
    members: Members,
}

impl RankStates {
    pub(super) fn new(store: Option<Weak<Store>>, members: Members) -> Self {
        Self { store, members }
    }

    /// The state of each rank, by rank in the group. Waits at most `timeout` for silent ranks.
    ///
    /// Empty for a group of one, and once the group or its store is gone.
    pub fn ask(&self, timeout: Duration) -> Vec<RankState> {
        let store = self.store.as_ref().and_then(Weak::upgrade);
        let survey = store.and_then(|store| store.survey(timeout).ok());
        let Some(survey) = survey else {
            return Vec::new();
        };
        let state = |rank: &usize| {
            let progress = survey.get(*rank).copied().flatten();
            match progress.map(|progress| (self.members.reached(progress), progress)) {
                None => RankState::Silent,
                Some((Err(_), _)) => RankState::Elsewhere,
                Some((Ok(reached), progress)) if Members::is_busy(progress) => {
                    RankState::Busy(reached)
                }
                Some((Ok(reached), _)) => RankState::Reached(reached),
            }
        };
        self.members.ranks().iter().map(state).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupOptions, ProcessGroup, ReduceOp};

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn a_rank_tells_how_far_the_others_are() {
        let groups = ProcessGroup::in_process(3, &GroupOptions::default()).unwrap();
        let states = groups[0].rank_states();
        let before = states.ask(LIMIT);
        std::thread::scope(|scope| {
            for group in &groups {
                scope.spawn(|| {
                    for _ in 0..3 {
                        group.all_reduce(&mut [1.0f32], ReduceOp::Sum).unwrap();
                    }
                });
            }
        });
        let reached = |states: &[RankState]| -> Vec<u64> {
            let reached = states.iter().map(|state| match state {
                RankState::Reached(reached) => *reached,
                other => panic!("{other:?}"),
            });
            reached.collect()
        };
        let (before, after) = (reached(&before), reached(&states.ask(LIMIT)));
        assert!(before.iter().zip(&after).all(|(a, b)| a < b), "{after:?}");
        assert_eq!(after, [after[0]; 3]);
        let busy = groups[1].busy();
        busy.during(|| {
            assert_eq!(states.ask(LIMIT)[1], RankState::Busy(after[0]));
        });
        drop(groups);
        assert_eq!(states.ask(LIMIT), []);
        assert_eq!(ProcessGroup::single().rank_states().ask(LIMIT), []);
    }
}
