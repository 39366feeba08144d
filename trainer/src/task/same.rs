//! Checks that all ranks have the same data.

use burn_dist::ProcessGroup;

use crate::error::TrainError;

/// Compares descriptions of the data on all ranks. A collective call.
///
/// # Errors
/// [`TrainError::DataDiffers`] on all ranks with the first description that differs.
pub(super) fn check_same(facts: &[String], group: &ProcessGroup) -> Result<(), TrainError> {
    let message = serde_json::to_vec(facts).unwrap_or_default();
    let all = group.gather_bytes(&message)?;
    let read =
        |bytes: &Vec<u8>| -> Vec<String> { serde_json::from_slice(bytes).unwrap_or_default() };
    let all: Vec<Vec<String>> = all.iter().map(read).collect();
    let Some(first) = all.first() else {
        return Ok(());
    };
    for (rank, other) in all.iter().enumerate() {
        let differs = first
            .iter()
            .zip(other)
            .find(|(ours, theirs)| ours != theirs);
        if let Some((ours, theirs)) = differs {
            return Err(TrainError::DataDiffers {
                rank,
                ours: ours.clone(),
                theirs: theirs.clone(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_dist::GroupOptions;

    #[test]
    fn all_ranks_learn_which_rank_differs() {
        let groups = ProcessGroup::in_process(3, &GroupOptions::default()).unwrap();
        std::thread::scope(|scope| {
            for group in groups {
                scope.spawn(move || {
                    let items = if group.rank() == 2 { 9 } else { 10 };
                    let facts = ["same".to_owned(), format!("{items} items")];
                    match check_same(&facts, &group) {
                        Err(TrainError::DataDiffers { rank, ours, theirs }) => {
                            let found = (rank, ours.as_str(), theirs.as_str());
                            assert_eq!(found, (2, "10 items", "9 items"));
                        }
                        other => panic!("{other:?}"),
                    }
                    check_same(&facts[..1], &group).unwrap();
                });
            }
        });
    }
}
