//! Expands Slurm's lists of hosts, such as `gpu[1-3,07],login`.
//!
//! `scontrol(1)` describes the form under `show hostnames`: names separated by commas; numbers and
//! ranges in brackets, with significant leading zeros; several brackets in one name.

/// Largest number of hosts. It bounds the memory that a text can make us allocate.
pub const MOST_HOSTS: usize = 1 << 16;

/// Largest number of characters of a name in the list, apart from brackets.
const LONGEST_NAME: usize = 4096;

/// Largest number of digits of a number in brackets.
const MOST_DIGITS: usize = 20;

/// The reason why a text is not a list of hosts.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostlistError {
    /// A bracket is not closed or not opened.
    #[error("unbalanced bracket in `{0}`")]
    Bracket(String),
    /// The text in brackets is neither a number nor a range.
    #[error("`{part}` in `{list}` is neither a number nor a range like 1-4")]
    Range {
        /// The text in brackets.
        part: String,
        /// The whole list.
        list: String,
    },
    /// No host, or an empty name.
    #[error("empty host name in `{0}`")]
    Empty(String),
    /// A name is longer than a host name can be.
    #[error("a host name of {0} characters is too long")]
    TooLong(usize),
    /// The list has too many hosts.
    #[error("`{0}` expands to more than {MOST_HOSTS} hosts")]
    TooMany(String),
}

crate::debug_is_display!(HostlistError);

/// Expands `list` into its hosts, in its order.
///
/// # Errors
/// Fails if it is malformed or has more than [`MOST_HOSTS`] hosts.
pub fn expand(list: &str) -> Result<Vec<String>, HostlistError> {
    let mut hosts = Vec::new();
    for name in split_outside_brackets(list)? {
        expand_name(name, list, &mut hosts)?;
    }
    Ok(hosts)
}

/// Splits at the commas outside brackets.
fn split_outside_brackets(list: &str) -> Result<Vec<&str>, HostlistError> {
    let unbalanced = || HostlistError::Bracket(list.to_owned());
    let (mut names, mut start, mut open) = (Vec::new(), 0, false);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if open => return Err(unbalanced()),
            b']' if !open => return Err(unbalanced()),
            b'[' => open = true,
            b']' => open = false,
            b',' if !open => {
                names.push(list.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    if open {
        return Err(unbalanced());
    }
    names.push(list.get(start..).unwrap_or_default());
    Ok(names)
}

/// Number of characters of a name outside brackets, which all its hosts share.
fn outside_brackets(name: &str) -> usize {
    let parts = name.split('[').enumerate();
    let outside = parts.map(|(index, part)| match (index, part.split_once(']')) {
        (0, _) => part.len(),
        (_, Some((_, behind))) => behind.len(),
        (_, None) => 0,
    });
    outside.sum()
}

/// Appends all hosts of one name; the last bracket changes fastest.
fn expand_name(name: &str, list: &str, hosts: &mut Vec<String>) -> Result<(), HostlistError> {
    let outside = outside_brackets(name);
    if outside > LONGEST_NAME {
        return Err(HostlistError::TooLong(outside));
    }
    let mut made = vec![String::new()];
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, behind) = after
            .split_once(']')
            .ok_or_else(|| HostlistError::Bracket(list.to_owned()))?;
        let numbers = numbers(ranges, list)?;
        if made.len().saturating_mul(numbers.len()) + hosts.len() > MOST_HOSTS {
            return Err(HostlistError::TooMany(list.to_owned()));
        }
        made = made
            .iter()
            .flat_map(|host| {
                numbers
                    .iter()
                    .map(move |number| format!("{host}{before}{number}"))
            })
            .collect();
        rest = behind;
    }
    for host in &mut made {
        host.push_str(rest);
        if host.is_empty() {
            return Err(HostlistError::Empty(list.to_owned()));
        }
    }
    if made.len() + hosts.len() > MOST_HOSTS {
        return Err(HostlistError::TooMany(list.to_owned()));
    }
    hosts.append(&mut made);
    Ok(())
}

/// The numbers in a pair of brackets, with their leading zeros.
fn numbers(ranges: &str, list: &str) -> Result<Vec<String>, HostlistError> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let wrong = || HostlistError::Range {
            part: range.to_owned(),
            list: list.to_owned(),
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let read = |text: &str| {
            let digits = (1..=MOST_DIGITS).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse::<u64>().ok()).flatten()
        };
        let (low, high) = (
            read(first).ok_or_else(wrong)?,
            read(last).ok_or_else(wrong)?,
        );
        if low > high {
            return Err(wrong());
        }
        if (high - low) as usize >= MOST_HOSTS - numbers.len().min(MOST_HOSTS - 1) {
            return Err(HostlistError::TooMany(list.to_owned()));
        }
        let width = first.len();
        numbers.extend((low..=high).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn assert_expands(list: &str, hosts: &[&str]) {
        assert_eq!(expand(list).unwrap(), hosts, "{list}");
    }

    #[test]
    fn lists_are_written_out_as_slurm_does() {
        assert_expands("node1", &["node1"]);
        assert_expands("node[1-2,07]", &["node1", "node2", "node07"]);
        assert_expands("a[1-2]b[01-02]", &["a1b01", "a1b02", "a2b01", "a2b02"]);
        assert_expands("x,y[3-4]", &["x", "y3", "y4"]);
        assert_expands(
            "n[098-101]-ib",
            &["n098-ib", "n099-ib", "n100-ib", "n101-ib"],
        );
        assert_expands("a[1],b[2],c", &["a1", "b2", "c"]);
        assert_expands("rack-1.host[5]", &["rack-1.host5"]);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for list in ["a[1-2", "a1-2]", "a[1[2]]"] {
            assert_eq!(expand(list), Err(HostlistError::Bracket(list.into())));
        }
        for list in [
            "a[2-1]",
            "a[]",
            "a[x]",
            "a[1-]",
            "a[-1]",
            "a[1--2]",
            "a[99999999999999999999]",
        ] {
            assert!(
                matches!(expand(list), Err(HostlistError::Range { .. })),
                "{list}"
            );
        }
        for list in ["", ",a", "a,", "a,,b"] {
            assert_eq!(expand(list), Err(HostlistError::Empty(list.into())));
        }
        let long = format!("a{}", "b".repeat(LONGEST_NAME));
        assert_eq!(expand(&long), Err(HostlistError::TooLong(long.len())));
        // A job on many nodes that are not adjacent.
        let numbers: Vec<String> = (0..2000).map(|number| (2 * number).to_string()).collect();
        let many = format!("nid[{}]", numbers.join(","));
        assert!(many.len() > LONGEST_NAME);
        assert_eq!(expand(&many).unwrap()[1999], "nid3998");
        let zeros = format!("a[{}1-9]", "0".repeat(MOST_DIGITS));
        assert!(matches!(expand(&zeros), Err(HostlistError::Range { .. })));
        for list in [
            "a[0-99999999]",
            "a[0-255]b[0-255]c[0-255]",
            "a[0-65535],b",
            "a[1-40000,1-40000]",
        ] {
            assert_eq!(expand(list), Err(HostlistError::TooMany(list.into())));
        }
    }

    proptest! {
        #[test]
        fn no_text_does_harm(text in "[a-c0-9\\[\\],-]{0,40}") {
            if let Ok(hosts) = expand(&text) {
                prop_assert!(hosts.len() <= MOST_HOSTS);
                prop_assert!(hosts.iter().all(|host| !host.is_empty()));
            }
        }

        #[test]
        fn ranges_give_every_number_once(low in 0u64..500, more in 0u64..300, width in 1usize..6) {
            let list = format!("n[{low:0width$}-{}]", low + more);
            let expected: Vec<String> =
                (low..=low + more).map(|number| format!("n{number:0width$}")).collect();
            prop_assert_eq!(expand(&list).unwrap(), expected);
        }
    }
}
