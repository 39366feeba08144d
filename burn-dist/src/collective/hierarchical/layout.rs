//! Nodes of the ranks, and their places on the nodes.

/// A layout of ranks on several nodes, with the same number (at least two) on each.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// The rank in the group, by node and by place on the node.
    ranks: Vec<Vec<usize>>,
    /// Node of this rank.
    pub(super) node: usize,
    pub(super) place: usize,
}

impl Layout {
    /// The layout around rank `rank` for ranks on these hosts; `None` if it does not fit.
    pub(crate) fn of(hosts: &[Vec<u8>], rank: usize) -> Option<Self> {
        let mut names: Vec<&Vec<u8>> = Vec::new();
        let mut ranks: Vec<Vec<usize>> = Vec::new();
        for (rank, host) in hosts.iter().enumerate() {
            match names.iter().position(|name| *name == host) {
                Some(node) => ranks[node].push(rank),
                None => {
                    names.push(host);
                    ranks.push(vec![rank]);
                }
            }
        }
        let on_each = ranks.first()?.len();
        if ranks.len() < 2 || on_each < 2 || ranks.iter().any(|node| node.len() != on_each) {
            return None;
        }
        let mut layout = Self {
            ranks,
            node: 0,
            place: 0,
        };
        (layout.node, layout.place) = layout.find(rank)?;
        Some(layout)
    }

    /// Whether the ranks of each node are consecutive.
    pub(crate) fn is_in_order(&self) -> bool {
        self.ranks.iter().flatten().is_sorted()
    }

    pub(super) fn find(&self, rank: usize) -> Option<(usize, usize)> {
        let place = |ranks: &Vec<usize>| ranks.iter().position(|other| *other == rank);
        let mut nodes = self.ranks.iter().enumerate();
        nodes.find_map(|(node, ranks)| Some((node, place(ranks)?)))
    }

    pub(super) fn nodes(&self) -> usize {
        self.ranks.len()
    }

    pub(super) fn ranks(&self) -> usize {
        self.nodes() * self.on_each()
    }

    pub(super) fn on_each(&self) -> usize {
        self.ranks[0].len()
    }

    /// The ranks of this rank's node, by place.
    pub(crate) fn mates(&self) -> &[usize] {
        &self.ranks[self.node]
    }

    /// The ranks in place `place` of each node.
    pub(super) fn in_place(&self, place: usize) -> Vec<usize> {
        self.ranks.iter().map(|node| node[place]).collect()
    }

    /// The ranks in this rank's place of each node, by node.
    pub(crate) fn counterparts(&self) -> Vec<usize> {
        self.in_place(self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &str) -> Vec<Vec<u8>> {
        names.bytes().map(|name| vec![name]).collect()
    }

    #[test]
    fn ranks_are_found_wherever_they_are() {
        let layout = Layout::of(&hosts("baabba"), 4).unwrap();
        assert_eq!(layout.mates(), [0, 3, 4]);
        assert_eq!(layout.counterparts(), [4, 5]);
        assert_eq!(layout.find(2), Some((1, 1)));
        assert_eq!(layout.find(6), None);
        assert!(!layout.is_in_order());
        assert!(Layout::of(&hosts("bbbaaa"), 0).unwrap().is_in_order());
    }

    #[test]
    fn one_ring_is_left_where_nodes_have_one_rank_or_not_as_many() {
        for flat in ["aaaa", "abcd", "aab", "aabbc", ""] {
            assert!(Layout::of(&hosts(flat), 0).is_none(), "{flat}");
        }
    }
}
