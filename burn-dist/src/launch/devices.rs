//! The accelerators that the launcher lets a process see.

use super::Vars;

/// CUDA's list of visible devices: numbers, or names such as `GPU-8f2c...`.
const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// The variable's value and the number of devices that it makes visible; `None` if it is not set.
///
/// As in CUDA, entries after the first invalid one do not count.
pub(super) fn visible(vars: Vars) -> Option<(String, usize)> {
    let list = vars(VARIABLE)?;
    let is_device = |entry: &&str| !entry.is_empty() && !entry.starts_with('-');
    let count = list.split(',').map(str::trim).take_while(is_device).count();
    Some((format!("{VARIABLE}={list}"), count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_counted_as_cuda_does() {
        let count = |list: &str| visible(&|_| Some(list.into())).unwrap().1;
        assert_eq!(count("0,1"), 2);
        assert_eq!(count("3"), 1);
        assert_eq!(count("GPU-8932f937,GPU-7c1f,MIG-GPU-1/1/0"), 3);
        assert_eq!(count("0,-1,1"), 1);
        assert_eq!(count(""), 0);
        assert_eq!(visible(&|_| None), None);
    }
}
