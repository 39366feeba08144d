//! Expands Slurm's numbers of tasks, such as `2(x3),1`.

use super::MOST_HOSTS;

/// The number of tasks on each node; `None` if `text` is malformed or has more than [`MOST_HOSTS`]
/// nodes.
pub(super) fn expand(text: &str) -> Option<Vec<usize>> {
    let mut tasks = Vec::new();
    for part in text.split(',') {
        let (number, times) = match part.split_once("(x") {
            Some((number, times)) => (number, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        let number: u32 = number.trim().parse().ok()?;
        if times > MOST_HOSTS - tasks.len() {
            return None;
        }
        tasks.extend(std::iter::repeat_n(number as usize, times));
    }
    Some(tasks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_written_out_as_slurm_does() {
        assert_eq!(expand("3,1"), Some(vec![3, 1]));
        assert_eq!(expand("2(x3),1"), Some(vec![2, 2, 2, 1]));
        assert_eq!(expand("4"), Some(vec![4]));
        for wrong in [
            "",
            "x",
            "2(x",
            "2(x3",
            "2(3)",
            "1,,2",
            "-1",
            "2(x99999999)",
            "1(x65536),1",
        ] {
            assert_eq!(expand(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_does_harm(text in "[0-9(x),]{0,30}") {
            if let Some(tasks) = expand(&text) {
                prop_assert!(tasks.len() <= MOST_HOSTS);
            }
        }
    }
}
