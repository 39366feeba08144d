//! Best and median of a list of timings, which every benchmark reports.

/// Smallest value. `None` for an empty list.
pub fn best(values: &[f64]) -> Option<f64> {
    values.iter().copied().min_by(f64::total_cmp)
}

/// Median: the middle value, or the mean of the two middle ones. `None` for an empty list.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get(sorted.len() / 2 - 1)?;
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_least() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 4.0]), Some(4.0));
        assert_eq!(median(&[9.0, 1.0, 4.0, 2.0]), Some(3.0));
        assert_eq!(best(&[9.0, 1.0, 4.0]), Some(1.0));
        assert_eq!(best(&[]), None);
    }
}
