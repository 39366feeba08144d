//! How much memory a rank uses.

/// Resident memory of this process in MiB; none where the system does not say.
pub fn resident_mib() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages as f64 * rustix::param::page_size() as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_shows() {
        let before = resident_mib().unwrap();
        let taken = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = resident_mib().unwrap();
        assert!(after - before > 60.0, "{before} {after}");
        drop(taken);
    }
}
