//! The ranks of a run: their states now, and their work in the last epoch.

use std::time::{Duration, Instant};

use burn_dist::group::RankState;

use crate::run::metrics::RanksLine;
use crate::system::output::duration;

/// A rank that stays where it is for this long does not keep up.
const PAUSE: Duration = Duration::from_secs(2);

/// Activity of a rank, the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Does {
    /// It does not answer.
    NoAnswer,
    /// Others are ahead, and it does not move.
    Late,
    /// It reads or writes files.
    Files,
    /// It waits for a rank that is late.
    Waits,
    /// It is in step.
    Runs,
}

/// The last answer of a rank.
#[derive(Clone, Copy, Debug)]
struct Heard {
    state: RankState,
    /// Time of the first answer with this state.
    since: Instant,
}

/// A rank, as shown.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub rank: usize,
    pub does: Does,
    pub words: String,
    /// Share of the last epoch in which the rank computed, if known.
    pub work: Option<f64>,
    pub memory_mib: Option<f64>,
}

/// All ranks.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    heard: Vec<Heard>,
    epoch: RanksLine,
}

impl Ranks {
    /// Takes the states of all ranks.
    pub(super) fn hear(&mut self, states: &[RankState], now: Instant) {
        self.heard.truncate(states.len());
        for (rank, &state) in states.iter().enumerate() {
            match self.heard.get_mut(rank) {
                Some(heard) if heard.state == state => {}
                Some(heard) => *heard = Heard { state, since: now },
                None => self.heard.push(Heard { state, since: now }),
            }
        }
    }

    /// Takes the work of an epoch.
    pub(super) fn worked(&mut self, line: &RanksLine) {
        self.epoch = line.clone();
    }

    /// All ranks in order; empty if there is only one.
    pub(super) fn rows(&self, now: Instant) -> Vec<Row> {
        let size = self.heard.len().max(self.epoch.compute.len());
        let front = self.heard.iter().filter_map(|heard| reached(heard.state));
        let front = front.max();
        let stuck = |heard: &Heard| now.saturating_duration_since(heard.since) >= PAUSE;
        let behind = |heard: &Heard| match heard.state {
            RankState::Silent => true,
            RankState::Elsewhere => false,
            RankState::Reached(reached) | RankState::Busy(reached) => Some(reached) < front,
        };
        let one_is_late = self.heard.iter().any(|heard| behind(heard) && stuck(heard));
        let row = |rank: usize| {
            let heard = self.heard.get(rank);
            let does = heard.map_or(Does::Runs, |heard| match heard.state {
                RankState::Silent => Does::NoAnswer,
                _ if !stuck(heard) => Does::Runs,
                RankState::Busy(_) => Does::Files,
                RankState::Elsewhere => Does::Runs,
                RankState::Reached(_) if behind(heard) => Does::Late,
                RankState::Reached(_) if one_is_late => Does::Waits,
                RankState::Reached(_) => Does::Runs,
            });
            let word = match does {
                Does::NoAnswer => "no answer",
                Does::Late => "late",
                Does::Files => "files",
                Does::Waits => "waits",
                Does::Runs => "runs",
            };
            let since = heard.filter(|_| does != Does::Runs);
            let since = since.map(|heard| now.saturating_duration_since(heard.since));
            let words = match since {
                Some(since) => format!("{word} {}", duration(since)),
                None => word.to_owned(),
            };
            let of = |values: &[f64]| values.get(rank).copied();
            let both = of(&self.epoch.compute).zip(of(&self.epoch.wait));
            Row {
                rank,
                does,
                words,
                work: both.map(|(compute, wait)| compute / (compute + wait).max(1e-9)),
                memory_mib: of(&self.epoch.device_mib).or(of(&self.epoch.memory_mib)),
            }
        };
        match size {
            0 | 1 => Vec::new(),
            _ => (0..size).map(row).collect(),
        }
    }
}

/// The collective that a rank has entered, in the group of all ranks.
fn reached(state: RankState) -> Option<u64> {
    match state {
        RankState::Reached(reached) | RankState::Busy(reached) => Some(reached),
        RankState::Elsewhere | RankState::Silent => None,
    }
}

/// At most `room` of the rows, the gravest first, and the number of the others.
pub(super) fn gravest(mut rows: Vec<Row>, room: usize) -> (Vec<Row>, usize) {
    if rows.len() <= room {
        return (rows, 0);
    }
    rows.sort_by_key(|row| (row.does, row.rank));
    let kept = room.saturating_sub(1);
    let others = rows.len() - kept;
    rows.truncate(kept);
    (rows, others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use RankState::{Busy, Reached, Silent};

    fn doing(ranks: &Ranks, now: Instant) -> Vec<Does> {
        ranks.rows(now).iter().map(|row| row.does).collect()
    }

    #[test]
    fn the_rank_that_others_wait_for_is_late() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut ranks = Ranks::default();
        ranks.hear(&[Reached(8), Reached(7), Busy(7)], begin);
        assert_eq!(doing(&ranks, begin), [Does::Runs; 3]);
        ranks.hear(&[Reached(8), Reached(7), Busy(7)], after(3));
        let found = doing(&ranks, after(3));
        assert_eq!(found, [Does::Waits, Does::Late, Does::Files]);
        ranks.hear(&[Reached(9), Reached(9), Silent], after(4));
        let rows = ranks.rows(after(7));
        let words: Vec<&str> = rows.iter().map(|row| row.words.as_str()).collect();
        assert_eq!(words, ["waits 3.0 s", "waits 3.0 s", "no answer 3.0 s"]);
    }

    /// As in an evaluation, which has no collectives.
    #[test]
    fn ranks_that_stand_together_run() {
        let begin = Instant::now();
        let mut ranks = Ranks::default();
        ranks.hear(&[Reached(8); 2], begin);
        let later = begin + Duration::from_secs(60);
        assert_eq!(doing(&ranks, later), [Does::Runs; 2]);
        ranks.hear(&[Reached(8)], later);
        assert_eq!(ranks.rows(later), []);
    }

    #[test]
    fn a_small_panel_shows_the_gravest() {
        let mut ranks = Ranks::default();
        let begin = Instant::now();
        ranks.hear(&[Reached(1), Reached(1), Silent, Reached(1)], begin);
        ranks.worked(&RanksLine {
            compute: vec![3.0; 4],
            wait: vec![1.0; 4],
            memory_mib: vec![7.0; 4],
            ..RanksLine::default()
        });
        let (rows, others) = gravest(ranks.rows(begin), 3);
        let shown: Vec<usize> = rows.iter().map(|row| row.rank).collect();
        assert_eq!((shown, others), (vec![2, 0], 2));
        assert_eq!((rows[0].work, rows[0].memory_mib), (Some(0.75), Some(7.0)));
        assert_eq!(gravest(ranks.rows(begin), 4).0.len(), 4);
    }
}
